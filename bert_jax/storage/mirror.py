"""A local mirror of a directory in a bucket. Files are written locally, and uploaded in the background and at the end.

The files that a run writes continuously (metrics, event files, figures) are small, and a bucket cannot append to an object.
They are therefore written to a local disk, and changed files are uploaded every `EVERY` seconds. Checkpoints are not mirrored,
because Orbax writes them directly to the bucket.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pathlib
import secrets
import shlex
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from types import TracebackType

from bert_jax.errors import UserError, WorkdirError
from bert_jax.files import is_still, remove_leftovers, remove_tree, writing_directory
from bert_jax.interface.words import counted
from bert_jax.storage.fetching import Copy, Record, cache_errors, check_names, copy_record, fetch, is_unchanged
from bert_jax.storage.objects import Item, StorageError, as_path, listed, read, remove, require_bucket, upload, write
from bert_jax.storage.paths import AnyPath, cache_directory, checked, is_remote

EVERY = 30.0
"""Seconds between uploads of changes. If the machine is lost, at most the changes of this period are lost."""
MIRRORS, OUTPUTS = "mirrors", "outputs"

log = logging.getLogger(__name__)


def is_input(name: str) -> bool:
    """Returns whether a run that resumes needs a local copy of the file `name`. It needs all files except checkpoints, weights
    and hidden files."""
    return not {"checkpoints", "best"} & {*name.split("/")} and not name.endswith(".safetensors") and not _is_hidden(name)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


class Mirror(contextlib.AbstractContextManager["Mirror"]):
    """Mirrors `remote`, a directory in a bucket, to the local `directory`. Leaving the `with` block uploads all remaining files.

    `part` distinguishes several processes on one machine. Hidden files are not uploaded. A file that is deleted locally is
    removed from the bucket too.

    >>> with Mirror("gs://bucket/runs/mine") as mirror:
    ...     mirror.fetch()
    ...     mirror.start()                  # uploads in the background
    ...     (mirror.directory / "metrics.jsonl").write_text("...")
    """

    def __init__(self, remote: str, part: str = "", *, last: Collection[str] = (), every: float = EVERY, mark: str = ""):
        """`last` has the files that mark a directory as complete. They are uploaded after all other files, and before that, their
        older versions are removed from the bucket. `every` is the time between uploads in seconds. `mark` is a file that is
        deleted on purpose only after `withdraw`, like the directory itself. While this file is missing, nothing is removed from
        the bucket, because somebody else has deleted local files."""
        self.remote, self._last, self._every, self._mark = remote, last, every, mark
        bucket = hashlib.sha256(os.fsencode(remote.rpartition("/")[0])).hexdigest()[:12]
        self.directory = cache_directory() / MIRRORS / (bucket + part) / remote.rpartition("/")[2]
        self._record = Record(self.directory)
        self._known = self._record.read()
        self._pushing, self._due, self._closed = threading.Lock(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._upload_regularly, name="mirror", daemon=True)
        self._failing, self._goes_on = "", False
        self._held = contextlib.ExitStack()
        self._opened: int | None = None

    def __enter__(self) -> Mirror:
        if self.directory.is_symlink():  # links are rejected, since `fetch` removes local files that are not in the bucket
            raise UserError(f"{self.directory} is a symbolic link that bert_jax did not make; remove it")
        with cache_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(self._record.held(wait=False, name="in-use"))
        self._opened = os.open(self.directory, os.O_RDONLY)  # while it is open, no other directory has its number
        self._held.callback(os.close, self._opened)
        return self

    def listed(self) -> dict[str, Item]:
        """Returns the objects in the bucket, by their names relative to `remote`."""
        return listed(self.remote)

    def fetch(self, wanted: Callable[[str], bool] = is_input) -> None:
        """Makes the local directory equal to the `wanted` files in the bucket. Hidden files are left out.

        If nothing in the bucket has changed since this machine's uploads, the local files are kept. The local files may be
        newer, since a killed process may have written more after its last upload.
        """
        objects, uploaded = listed(self.remote), bool(self._known)
        self._known = {name: copy for name, copy in self._known.items() if name in objects}  # missing objects are uploaded again
        there = {name: item for name, item in objects.items() if wanted(name) and not _is_hidden(name)}
        check_names(self.remote, there)
        if not all(self._is_ours(name, item) for name, item in there.items()):
            for name in self._files():
                if name not in there:
                    (self.directory / name).unlink(missing_ok=True)
            fetch(self.remote, self.directory, there)
            self._known = self._record.read()
        elif uploaded and all(map(_is_hidden, objects)):  # somebody has emptied the directory, so the run starts anew
            for name in self._files():
                (self.directory / name).unlink(missing_ok=True)
        self._known = {name: copy for name, copy in self._known.items() if (self.directory / name).is_file()}

    def _is_ours(self, name: str, item: Item) -> bool:
        """Returns whether an object is unchanged since this machine uploaded or downloaded it, and the local file still exists.

        Also returns True if the local file starts with the object's content. In this case, the process was killed after an
        upload, before it could record the upload, and it had written more in the meantime.
        """
        known, file = self._known.get(name), self.directory / name
        if not file.is_file():
            return False
        if known is not None and known.generation == item.generation:
            return True
        if item.size > file.stat().st_size or (there := read(f"{self.remote}/{name}")) is None:
            return False
        with file.open("rb") as opened:
            begins = opened.read(item.size) == there.data
        if begins:
            self._known[name] = Copy(item.generation, item.size, 0)  # the modification time 0 causes another upload
        return begins

    def start(self) -> None:
        """Starts uploading changes in the background."""
        self._goes_on = True
        self._thread.start()

    def soon(self) -> None:
        """Uploads changes immediately, in the background."""
        self._due.set()

    def withdraw(self) -> None:
        """Allows the next upload to remove all objects from the bucket, because the files were deleted on purpose."""
        self._mark = ""

    def push(self) -> None:
        """Uploads changed files, and removes the objects of deleted files from the bucket. Raises StorageError. Does nothing if
        the local directory was moved or removed, e.g. with the whole cache."""
        with self._pushing:
            if self._is_gone():
                return
            files = self._files()
            changed = [name for name in files if not is_unchanged(self.directory / name, self._known.get(name))]
            gone = self._known.keys() - set(files)
            if self._mark in gone:
                gone = set()
            if not changed and not gone:
                return
            marks = [name for name in changed if name in self._last]
            try:
                if len(marks) < len(changed) and marks:  # otherwise, a reader could find an old mark with files of two versions
                    for name in {*marks}.intersection(self.listed()):  # an account may be allowed to create, but not to remove
                        remove(f"{self.remote}/{name}")
                        self._known.pop(name, None)
                for name in sorted({*changed, *gone}, key=lambda name: (name in self._last, name in gone, name)):
                    if name in gone:
                        remove(f"{self.remote}/{name}")
                        del self._known[name]
                        continue
                    with contextlib.suppress(FileNotFoundError):  # the file was replaced or removed in the meantime
                        before = copy_record(self.directory / name, "")
                        generation = upload(self.directory / name, f"{self.remote}/{name}")
                        self._known[name] = Copy(generation, before.size, before.modified)
                    with contextlib.suppress(OSError):
                        self._record.write_regularly(self._known)
            finally:
                with contextlib.suppress(OSError):  # if the disk is full, the next start only downloads more than necessary
                    self._record.write(self._known)

    def durable(self, path: pathlib.Path) -> AnyPath:
        """Returns the path in the bucket that corresponds to `path`, a file or directory in `directory`."""
        return as_path(f"{self.remote}/{path.relative_to(self.directory).as_posix()}")

    def _is_gone(self) -> bool:
        if self._mark and self._opened is not None:
            return not is_still(self.directory, self._opened)
        return not self.directory.is_dir()  # an export replaces the directory

    def _files(self) -> list[str]:
        names = [path.relative_to(self.directory).as_posix() for path in self.directory.rglob("*") if path.is_file()]
        return sorted(name for name in names if not _is_hidden(name))

    def _upload_regularly(self) -> None:
        while not self._closed.is_set():
            self._due.wait(self._every)
            self._due.clear()
            if self._closed.is_set():
                return
            try:
                self.push()
                if self._failing:
                    log.info("files of this run can be uploaded to %s again", self.remote)
                self._failing = ""
            except (StorageError, OSError) as error:
                if not self._failing:
                    log.warning("files could not be uploaded (%s); the run continues, and the upload is tried again", error)
                self._failing = str(error)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Uploads the remaining files. After an error, uploads them only if `start` was called. If the upload fails, or if the
        local directory was moved or removed, raises a UserError that names it. If another error is already being raised, logs a
        warning instead."""
        self._closed.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            if kind is None or self._goes_on:
                self.push()
        except StorageError as unreachable:
            left = [name for name in self._files() if not is_unchanged(self.directory / name, self._known.get(name))]
            message = (
                f"{counted(len(left), 'file')} could not be uploaded to {self.remote} ({unreachable}) and are still in "
                f"{self.directory}; upload them with `gcloud storage rsync --recursive {self.directory} {self.remote}`, or rerun "
                "the command on this machine"
            )
            if kind is None:
                raise UserError(message) from unreachable
            log.warning("%s", message)
        else:
            if kind is None and self._is_gone():
                raise WorkdirError(
                    f"{self.directory}, the local copy of {self.remote}, was moved or removed before its files were uploaded; "
                    "rerun the same command"
                )
        finally:
            self._held.close()


@contextlib.contextmanager
def uploaded(
    output: str,
    name: str,
    wanted: Callable[[str], bool] | None = None,
    *,
    last: Collection[str] = (),
    check: Callable[[pathlib.Path, Collection[str]], object] | None = None,
) -> Iterator[str]:
    """Yields `output`, the directory given by the flag `name`. If `output` is in a bucket, yields a local directory instead.
    This directory is uploaded at the end of the `with` block if there was no error.

    The local directory contains the `wanted` files of the bucket. If one of them is removed there, it is removed from the bucket
    too. All other objects in the bucket are kept. The files `last` are uploaded after all other files, see `Mirror`.

    Before anything is downloaded, `check` receives the local directory, which may have files of an earlier start, and the
    relative names of all objects in the directory of the bucket. It may raise UserError."""
    remote = checked(output, name)
    if not is_remote(remote):
        yield remote
        return
    require_bucket(remote)
    with Mirror(remote, f"-{name.strip('-')}", last=last) as mirror:
        if check:
            check(mirror.directory, mirror.listed())
        mirror.fetch(wanted or (lambda file: False))
        yield str(mirror.directory)
    print(f"uploaded to {remote}", file=sys.stderr)


@contextlib.contextmanager
def uploaded_file(output: str | None, name: str) -> Iterator[str | None]:
    """Yields `output`, the file given by the flag `name`. If `output` is in a bucket, yields a local file instead. At the end
    of the `with` block, this file and the files next to it are uploaded if there was no error.

    If the account must not write to the bucket, raises StorageError at the start. If the upload fails, keeps the local files and
    raises a UserError that names them."""
    remote = checked(output or "", name)
    if not is_remote(remote):
        yield remote or output
        return
    require_bucket(remote)
    with contextlib.suppress(FileExistsError):
        write(remote, b"", generation="1")  # no object has this generation, so nothing is written
    above, last = remote.rsplit("/", 1)
    made = cache_directory() / OUTPUTS / secrets.token_hex(8)
    with contextlib.ExitStack() as incomplete:
        with cache_errors(made.parent):
            made.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(made.parent)
            part = incomplete.enter_context(writing_directory(made))
        yield f"{part}/{last}"
    try:
        for file in sorted(path for path in made.rglob("*") if path.is_file()):
            upload(file, f"{above}/{file.relative_to(made).as_posix()}")
    except BaseException as error:
        kept = f"it is complete in {made}; upload it with `gcloud storage cp --recursive {shlex.quote(str(made))}/* {above}/`"
        if isinstance(error, OSError):
            raise UserError(f"{remote} could not be uploaded ({error}), but {kept}") from error
        print(f"{remote} was not uploaded, but {kept}", file=sys.stderr)  # e.g. after Ctrl-C
        raise
    remove_tree(made)
    print(f"uploaded to {remote}", file=sys.stderr)
