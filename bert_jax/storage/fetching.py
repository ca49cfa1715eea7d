"""Local copies of inputs in a bucket (models, corpora, task data, texts), cached for the next start.

An object is downloaded again only if its generation has changed. Every machine has its own copies in the cache directory. A
file next to the copies records the generation of each object, and the size and modification time of each copy. A local file
counts as unchanged if it has the recorded size and modification time. An object counts as unchanged if it has the recorded
generation."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import fnmatch
import glob
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from bert_jax.errors import UserError
from bert_jax.files import locked, remove_leftovers, replacing, write_text
from bert_jax.interface.progress import Progress
from bert_jax.interface.ranges import whole_number
from bert_jax.interface.words import byte_unit
from bert_jax.storage.objects import Item, StorageError, download, listed, object_at
from bert_jax.storage.paths import SCHEME, cache_directory, checked, is_plain, is_remote, name_and_value, split

COPIES = "buckets"
_AT_ONCE = 8
_PROGRESS_DELAY = 1.0  # seconds
RECORDED = 5.0
"""Seconds between writes of the record during a transfer. A killed process repeats at most the transfers of this period, and
those in progress."""
_ROOM = 64 << 20  # bytes that are kept free


@dataclasses.dataclass(frozen=True)
class Copy:
    """The record of a local copy: the generation of the object, and the size and modification time of the local file."""

    generation: str
    size: int
    modified: int
    """In nanoseconds."""


def copy_record(file: pathlib.Path, generation: str) -> Copy:
    """Returns the record of a local file that is a copy of this generation of the object."""
    facts = file.stat()
    return Copy(generation, facts.st_size, facts.st_mtime_ns)


def is_unchanged(file: pathlib.Path, copy: Copy | None) -> bool:
    """Returns whether a file exists and matches its record."""
    try:
        return copy is not None and copy_record(file, copy.generation) == copy
    except OSError:
        return False


class Record:
    """The record of the copies in a directory, by relative name. `held` ensures that only one process at a time changes the
    copies."""

    def __init__(self, directory: pathlib.Path):
        self._path = directory.parent / f".{directory.name}.copies"
        self._written = time.monotonic()

    def read(self) -> dict[str, Copy]:
        """Returns the recorded copies. Invalid lines are skipped. Names that are not `is_plain` are skipped too, since they could
        be outside of the directory, and the recorded files may be deleted later."""
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return {}
        copies = {}
        for line in lines:
            generation, *rest = line.split("\t", 3)
            size, modified = (whole_number(text) for text in (*rest, "", "")[:2])
            if len(rest) == 3 and size is not None and modified is not None and is_plain(rest[2]):
                copies[rest[2]] = Copy(generation, size, modified)
        return copies

    def write(self, copies: dict[str, Copy]) -> None:
        """Replaces the record."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{copy.generation}\t{copy.size}\t{copy.modified}\t{name}\n" for name, copy in sorted(copies.items())]
        write_text(self._path, "".join(lines))
        self._written = time.monotonic()

    def write_regularly(self, copies: dict[str, Copy]) -> None:
        """Replaces the record if it was not written in the last `RECORDED` seconds."""
        if time.monotonic() - self._written >= RECORDED:
            self.write(copies)

    @contextlib.contextmanager
    def held(self, *, wait: bool, name: str = "lock") -> Iterator[None]:
        """Holds the lock of the record within the `with` block. If another process holds the lock, waits for this process if
        `wait` is true, and otherwise raises UserError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        refusal = f"another process on this machine is using {self._path}; wait until it ends, or stop it"
        with locked(self._path.with_name(f"{self._path.name}.{name}"), None if wait else refusal):
            yield


def cached_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the local path at which the copy of `path`, a path in a bucket, is cached."""
    bucket, key = split(path)
    return cache_directory() / COPIES / bucket / key


def name_in_bucket(path: str) -> str:
    """Returns the path in a bucket whose local copy is at `path`. Other paths are returned unchanged."""
    copies = f"{cache_directory() / COPIES}/"
    return SCHEME + path.removeprefix(copies) if path.startswith(copies) else path


@contextlib.contextmanager
def copies_named_in_bucket() -> Iterator[None]:
    """Replaces the local copies in the message of a UserError by their paths in the bucket."""
    try:
        yield
    except UserError as error:
        if f"/{COPIES}/" in (message := str(error)):
            error.args = (message.replace(f"{cache_directory() / COPIES}/", SCHEME),)
        raise


def local_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the local path of a file or directory, or of its copy if it is in a bucket."""
    return cached_path(path) if is_remote(path) else pathlib.Path(path)


def forget(directory: pathlib.Path) -> None:
    """Makes the next `fetch` download every object of a directory again."""
    with contextlib.suppress(OSError):
        Record(directory).write({})


def fetched(
    path: str | os.PathLike[str], name: str, *, deep: bool = True, wanted: Callable[[str], bool] | None = None
) -> pathlib.Path:
    """Returns the local path of a file or directory: `path` itself, or its copy if it is in a bucket. `name` is the flag or key
    of the path. If the path is a directory, its files with `wanted` names are copied (default: all). With `deep`, files in
    subdirectories are copied too.

    The path may also be a common prefix of several names, e.g. of a TensorFlow checkpoint. The `wanted` files next to these files
    are then copied too (default: none). Raises UserError if a path in a bucket
    is mistyped, does not exist, cannot be read, or does not fit on the local disk.
    """
    text = checked(os.fspath(path), name)
    if not is_remote(text):
        return pathlib.Path(text)
    copy = cached_path(text)
    if objects := listed(text, deep=deep):
        files = {other: item for other, item in objects.items() if wanted is None or wanted(other)}
        fetch(text, copy, files, keep=not deep, there=objects)
        return copy
    above, last = text.rpartition("/")[::2]
    there = listed(above, deep=False) if split(above)[1] else {}
    if item := object_at(text):
        files = {last: item}
    elif files := {other: item for other, item in there.items() if other.startswith(f"{last}.")}:
        files |= {other: item for other, item in there.items() if wanted is not None and wanted(other)}
    else:
        given = name_and_value(name, text)
        raise UserError(f"{given} does not exist in the bucket; to see what exists, run `gcloud storage ls {above}`")
    fetch(above, copy.parent, files, keep=True, there=there)
    return copy


def fetched_files(pattern: str, name: str) -> list[pathlib.Path]:
    """Returns local copies of the files in a bucket that match `pattern` (`*`, `?`, and `**` across directories), sorted by
    name. Copies that match but no longer exist in the bucket are deleted."""
    text = checked(pattern, name)
    parts = text.split("/")
    fixed = next(i for i, part in enumerate([*parts, "*"]) if any(sign in part for sign in "*?["))
    if fixed == len(parts) or object_at(text):  # the name of an existing object is used literally, even if it has wildcards
        return [path] if (path := fetched(text, name)).is_file() else []
    above, wanted = "/".join(parts[:fixed]), parts[fixed:]
    there, copies = listed(above, deep=wanted[1:] != [] or "**" in wanted), cached_path(above)
    objects = {other: item for other, item in there.items() if item.size and _matches(other.split("/"), wanted)}
    fetch(above, copies, objects, keep=True)
    with cache_errors(copies):
        for name in glob.glob("/".join(wanted), root_dir=copies, recursive=True):  # noqa: PTH207 - as `_matches`
            if name not in there and (copies / name).is_file():
                (copies / name).unlink(missing_ok=True)
    return [copies / other for other in sorted(objects)]


def fetch_chosen(path: str, name: str, choose: Callable[[Sequence[str]], Sequence[str]]) -> list[pathlib.Path]:
    """Returns local copies of some files in a directory of a bucket. `choose` receives all relative names and returns the names
    to download, in order."""
    text = checked(path, name)
    objects = listed(text)
    if not objects and (item := object_at(text)):
        above, _, last = text.rpartition("/")
        fetch(above, cached_path(above), {last: item}, keep=True)
        return [cached_path(text)]
    chosen = choose([other for other, item in objects.items() if item.size])
    fetch(text, cached_path(text), {other: objects[other] for other in chosen}, keep=True)
    return [cached_path(text) / other for other in chosen]


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Returns whether the parts of a path match a pattern as in a shell. Hidden names match only patterns that start with a dot,
    and `**` matches any number of directories."""
    reached = {0}  # indices of the parts of the pattern that may match the next name
    for name in names:
        for place in sorted(reached):  # `**` may also match nothing
            while place < len(patterns) and patterns[place] == "**":
                place += 1
                reached.add(place)
        reached = {
            place + (patterns[place] != "**")
            for place in reached
            if place < len(patterns)
            and (not name.startswith(".") or patterns[place].startswith("."))
            and (patterns[place] == "**" or fnmatch.fnmatchcase(name, patterns[place]))
        }
    return len(patterns) in reached or (patterns[-1] == "**" and len(patterns) - 1 in reached)


def fetch(
    remote: str, directory: pathlib.Path, objects: Mapping[str, Item], *, keep: bool = False, there: Collection[str] = ()
) -> bool:
    """Downloads `objects` to `directory`, except objects whose local copies are current. The names of the objects are relative
    to `remote`. Returns whether any file was new, changed or removed.

    Copies of other objects are deleted. With `keep`, they are kept, except files directly in `remote` that are no longer `there`
    (an empty `there` is not known). The record is also written during the download. Raises UserError if the disk has too little
    space, and for names as in `check_names`.
    """
    check_names(remote, objects)
    record = Record(directory)
    with downloading(), cache_errors(directory), record.held(wait=True):
        known = record.read()
        due = {name for name, item in objects.items() if not _is_current(directory / name, known.get(name), item)}
        gone = known.keys() - objects.keys()
        if keep:
            gone = {name for name in gone if there and "/" not in name and name not in there}
        for name in gone:
            (directory / name).unlink(missing_ok=True)
            del known[name]
        try:
            require_space(remote, directory, _space_needed(directory, {name: objects[name].size for name in due}))
            _download(remote, directory, {name: objects[name] for name in due}, known, record)
        finally:
            record.write(known)
    return bool(due or gone)


def check_names(remote: str, names: Iterable[str]) -> None:
    """Raises UserError if an object in the directory `remote` has a name whose copy could be outside of the local directory."""
    if odd := next((name for name in names if not is_plain(name)), None):
        raise UserError(
            f"{remote}/{odd} cannot be copied to a disk, because its name has an empty part, `.` or `..`; rename it: `gcloud "
            f"storage mv {remote}/{odd} {remote}/NAME`"
        )


_spent: list[float] = []


def seconds_spent() -> float:
    """Returns the seconds spent in `downloading` blocks before the run's goodput recorder started."""
    return sum(_spent)


@contextlib.contextmanager
def _added_up() -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    finally:
        _spent.append(time.monotonic() - began)


Measure = Callable[[], contextlib.AbstractContextManager[None]]
_measure: contextvars.ContextVar[Measure] = contextvars.ContextVar("_measure", default=_added_up)


@contextlib.contextmanager
def downloading() -> Iterator[None]:
    """Counts the time of the `with` block as time for downloading inputs."""
    with _measure.get()(), measured_by(contextlib.nullcontext):
        yield


@contextlib.contextmanager
def measured_by(measure: Measure) -> Iterator[None]:
    """Within the `with` block, every `downloading` of this thread runs in the context `measure()`. This context may, for
    example, add the time to a category of the run's time."""
    before = _measure.set(measure)
    try:
        yield
    finally:
        _measure.reset(before)


def _is_current(file: pathlib.Path, copy: Copy | None, item: Item) -> bool:
    return copy is not None and copy.generation == item.generation and is_unchanged(file, copy)


def _space_needed(directory: pathlib.Path, sizes: Mapping[str, int]) -> int:
    """Returns the additional bytes that a download to `directory` needs at most, where `sizes` are those of the objects. An
    existing file is only replaced when its new copy is complete, so the old files of the current downloads need space too."""
    replaced = []
    for name, size in sizes.items():
        with contextlib.suppress(OSError):
            replaced.append(min(size, (directory / name).stat().st_size))
    return sum(sizes.values()) - sum(sorted(replaced)[:-_AT_ONCE])


def _download(
    remote: str, directory: pathlib.Path, objects: Mapping[str, Item], known: dict[str, Copy], record: Record
) -> None:
    """Downloads objects concurrently with a progress line. Adds each object to `known` as soon as its copy is complete, and
    writes `known` to the record regularly."""
    for folder in {(directory / name).parent for name in objects}:
        remove_leftovers(folder)  # a killed process may have left incomplete objects
    total, done, counting = sum(item.size for item in objects.values()), 0, threading.Lock()
    scale, unit = byte_unit(total)
    progress = Progress(f"fetching {remote}:", total=round(total / scale), unit=unit, delay=_PROGRESS_DELAY)

    def arrived(size: int) -> None:
        nonlocal done
        with counting:
            done += size
            progress.update(round(done / scale))

    def one(name: str) -> None:
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as part:
            download(f"{remote}/{name}", pathlib.Path(part.name), objects[name], arrived)
        with counting:
            known[name] = copy_record(file, objects[name].generation)
            record.write_regularly(known)

    with progress, ThreadPoolExecutor(_AT_ONCE, "fetching") as pool:
        list(pool.map(one, objects))


def require_space(what: str, directory: pathlib.Path, size: int) -> None:
    """Raises UserError unless `size` bytes fit on the disk of `directory`, which need not exist yet."""
    there = next(place for place in (directory, *directory.parents) if place.exists())
    free = shutil.disk_usage(there).free
    if size and size + _ROOM > free:
        raise UserError(
            f"{what} needs {size / 1e9:,.2f} GB in {there}, but only {free / 1e9:,.2f} GB are free there; free space, or set "
            "BERT_JAX_CACHE to a directory on a larger disk"
        )


@contextlib.contextmanager
def cache_errors(directory: pathlib.Path) -> Iterator[None]:
    """Converts an OSError about a `directory` in the cache to a UserError."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise UserError(
            f"{error.filename or directory} cannot be written ({error.strerror}); free space, or set BERT_JAX_CACHE to another "
            "directory"
        ) from error

