"""Creates, checks and locks the directory of a run. A directory belongs to one configuration."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import logging
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from bert_jax import __version__, files
from bert_jax.errors import UserError, WorkdirError, missing_path
from bert_jax.files import Json, JsonObject, json_lines, read_json, remove_tree, write_json
from bert_jax.interface.named import Record, file_record, source_file
from bert_jax.interface.python_files import MissingFile
from bert_jax.runtime.goodput import GOODPUT_FILE
from bert_jax.storage.checks import PROBE, require_capable
from bert_jax.storage.objects import as_path
from bert_jax.storage.paths import AnyPath, is_remote

if TYPE_CHECKING:  # loaded only by runs in buckets
    from bert_jax.storage.mirror import Mirror

CONFIG = "config.json"
LOCK = ".lock"
METRICS = "metrics.jsonl"
RESULTS = "results.json"
EVENTS = "tensorboard"
MODEL = "model"
PROCESSES = ".processes"  # this folder has a lock file for each independent process
WRITTEN_BY = "written_by"  # this key of config.json distinguishes a workdir from a model directory
STARTED_IN = "started_in"  # this key of config.json has the directory to which relative paths refer
FILES = "files"  # this key of config.json has the path, hash and source of the user's own files, by configuration key

TRAINING = ("phases", "training", "optimizer", "schedule")
"""The groups of keys that affect training. To train the model further with other values, start another run from its weights."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def open_workdir(
    directory: pathlib.Path,
    command: str,
    config: JsonObject,
    may_change: Sequence[str] = (),
    completed: Callable[[JsonObject], JsonObject] = dict,
    changed_files: bool = False,
    mirror: Mirror | None = None,
) -> Iterator[Callable[[], None]]:
    """Locks the workdir for a run of `command` with `config`, a nested plain dict, and writes its config.json.

    `may_change` lists the keys that a resumed run may change, as patterns over dotted paths (`"log_every"`,
    `"phases.*.steps"`). Any other difference from the stored configuration is a UserError that shows both values, because one
    configuration must describe the whole run. A user's file (FILE.py:NAME in a value) may be moved. If its content has changed,
    this is also a UserError, unless `changed_files` is True. A UserError is raised as well if the directory is in use, cannot
    be written, or holds other files. `completed` adds the defaults of newer keys to a stored configuration, so that a newer
    version can resume the run. `mirror` is the mirror of a workdir in a bucket, whose local copy is `directory`.

    Yields a function that raises WorkdirError if the directory was moved, removed, or replaced by the directory of another run.
    Without this check, the next write would create a new directory with the old name.

    If a start ends with a UserError before its first step, the directory is restored to its previous state, which is without a
    run or with the old configuration."""
    with contextlib.suppress(PermissionError):  # `_make` reports this error
        _require_ours(directory)  # checked before locking, so that no lock file is left in an unrelated directory
    remote = mirror.remote if mirror else ""
    made, named = _make(directory, remote), remote or str(directory)
    with locked(directory, LOCK) as holder:
        stored = stored_config(directory) if (directory / CONFIG).exists() else None
        own = {key: record for key, value in flatten(config) if (record := file_record(str(value), f"config.{key}"))}
        if stored is None:
            _require_empty(directory)
        elif (directory / METRICS).exists():  # a run that ended before its first step may be restarted with another configuration
            before = stored.get(FILES, {})
            same = [key for key in own if key in before and before[key]["sha256"] == own[key]["sha256"]]
            asked = _with_moved_files(stored, config, same)
            _require_same(named, command, stored[WRITTEN_BY], completed(_values(stored)), asked, may_change)
            if not changed_files:
                _require_same_files(named, before, own, may_change)
        written: JsonObject = {WRITTEN_BY: f"bert_jax {__version__} {command}"}
        with contextlib.suppress(OSError):  # the current directory may have been removed
            written[STARTED_IN] = (stored or {}).get(STARTED_IN) or str(pathlib.Path.cwd())
        if own:
            written[FILES] = dict(own)
        write_json(directory / CONFIG, written | config)
        metrics = directory / METRICS
        recorded = metrics.read_bytes() if metrics.exists() else None
        try:
            yield lambda: require_in_place(directory, holder, remote)
        except UserError:
            with contextlib.suppress(OSError):  # a failing disk must not replace the error that is raised
                if not _is_in_place(directory, holder):
                    _remove_made_anew(directory)
                elif stored is None:
                    _withdraw(directory, made, mirror)
                elif metrics.exists() and (recorded or b"").startswith(metrics.read_bytes()):
                    write_json(directory / CONFIG, stored)  # no step was recorded; the resume may have dropped later records
                    if recorded is None:
                        metrics.unlink()  # so that another configuration may start
            raise


def require_in_place(directory: AnyPath, holder: str | None = None, remote: str = "") -> None:
    """Raises WorkdirError if a run's directory, or the local copy of `remote`, is gone or its lock file does not name the process
    `holder`."""
    if not _is_in_place(directory, holder):
        gone = "was moved or removed while the run was using it"
        if remote:
            raise WorkdirError(
                f"{directory}, the local copy of --workdir={remote}, {gone}; rerun the same command, which resumes from the last "
                "checkpoint"
            )
        raise WorkdirError(
            f"--workdir={directory} {gone}; put it back under that name, and the same command resumes from its last checkpoint"
        )


def _is_in_place(directory: AnyPath, holder: str | None) -> bool:
    try:
        there = (directory / LOCK).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a network file system that does not answer at the moment
        return True
    return holder is None or there == holder


def stored_config(directory: AnyPath, remedy: str = "name another --workdir") -> JsonObject:
    """Returns the configuration in a workdir's config.json, as nested plain values, with the keys `written_by`, `started_in`
    and, if it names user's files, `files`. Raises UserError with the `remedy` if the file was not written by a run."""
    stored = read_json(directory / CONFIG, f"{remedy}, or remove this one")
    if not isinstance(stored, dict) or not str(stored.get(WRITTEN_BY, "")).startswith("bert_jax "):
        raise UserError(f"{directory} holds a {CONFIG} that was not written by a run (a model directory?); {remedy}")
    return stored


def run_config(directory: AnyPath, command: str, flag: str = "--workdir") -> JsonObject:
    """Returns the configuration of a run of `command`, which is `stored_config` without its extra keys. `flag` is the flag that
    names the workdir.

    Raises UserError if there is no such run.
    """
    remedy = f"name the workdir of a run of {command}"
    if not (directory / CONFIG).exists():
        raise UserError(f"{flag}={missing_path(directory)} holds no run; {remedy}")
    stored = stored_config(directory, remedy)
    if not str(stored[WRITTEN_BY]).endswith(f" {command}"):
        raise UserError(f"{flag}={directory} holds a run of {stored[WRITTEN_BY]}; {remedy}")
    values = _values(stored)
    for key, record in stored.get(FILES, {}).items():
        _name_file(values, key.split("."), record, f"{flag}={directory}")
    return values


def _values(stored: JsonObject) -> JsonObject:
    """Returns a `stored_config` without the keys that the workdir adds."""
    return {key: value for key, value in stored.items() if key not in (WRITTEN_BY, STARTED_IN, FILES)}


def own_files(directory: AnyPath) -> Mapping[str, Record]:
    """Returns the user's files of the run in a workdir, by key, or {} if there is no run."""
    return stored_config(directory).get(FILES, {}) if (directory / CONFIG).exists() else {}


@contextlib.contextmanager
def recorded_files_named(directory: AnyPath) -> Iterator[None]:
    """If a user's file is missing and the run in `directory` has recorded a path for it, adds that path to the error. After a
    change of the current directory, a relative path in the configuration means a different file."""
    try:
        yield
    except MissingFile as error:
        key = error.flag.removeprefix("config.")
        stored: JsonObject = {}
        with contextlib.suppress(UserError, OSError):
            stored = stored_config(directory)
        if key not in stored.get(FILES, {}):
            raise
        then, value = stored[FILES][key]["path"], str(dict(flatten(stored))[key])
        uses = f"{error.what}; the run in --workdir={directory} uses {then}"
        if not pathlib.Path(then).is_file():
            raise UserError(f'{uses}, which is gone too; restore it from "{FILES}" in {directory / CONFIG}') from error
        moved = f"--{error.flag}={then}{value.removeprefix(source_file(value))}"
        raise UserError(f"{uses}; give {moved}, or run the command in {stored.get(STARTED_IN)}") from error


def _name_file(values: Any, path: Sequence[str], record: Record, run: str) -> None:
    """Changes the FILE in the value at `path` to the location of the user's file that `run` used. Raises UserError if the file
    has changed, except for log sinks, which do not affect the model."""
    value = _set_file(values, path, record["path"])
    if path[0] != "log" and pathlib.Path(record["path"]).is_file():
        now = file_record(value)
        assert now is not None, "the value names a file"
        if now["sha256"] != record["sha256"]:
            says = _changed(f"{run} is a run with a different {record['path']}", ".".join(path), record, now)
            raise UserError(f"{says}; restore that file")


def _set_file(values: Any, path: Sequence[str], file: str) -> str:
    """Changes the FILE in the value at `path` of a nested configuration to `file`, and returns the new value."""
    *groups, last = (int(part) if part.isdigit() else part for part in path)
    for group in groups:
        values = values[group]
    value: str = file + values[last].removeprefix(source_file(values[last]))
    values[last] = value
    return value


def _with_moved_files(stored: JsonObject, config: JsonObject, same: Iterable[str]) -> JsonObject:
    """Returns `config` with the stored paths of the user's files in the keys `same`. The content of these files has not
    changed."""
    values, then = with_lists(config), dict(flatten(stored))
    for key in same:
        _set_file(values, key.split("."), source_file(str(then[key])))
    return values


def with_lists(tree: Any) -> Any:
    """Returns a copy of a nested configuration with lists instead of tuples."""
    if isinstance(tree, Mapping):
        return {key: with_lists(value) for key, value in tree.items()}
    return [with_lists(value) for value in tree] if isinstance(tree, list | tuple) else tree


def _changed(begin: str, key: str, then: Record, now: Record) -> str:
    what = f"the file that config.{key} names"
    if then["source"] == now["source"]:
        before, after = then.get("imports", {}), now.get("imports", {})
        if edited := [path for path in {**before, **after} if before.get(path) != after.get(path)]:
            what = f"{edited[0]}, which {what} imports,"
    return (
        f"{begin}: {what} has changed (SHA-256 {then['sha256'][:12]}, now {now['sha256'][:12]}); "
        f"{CONFIG} in the workdir contains its text"
    )


def from_start(directory: AnyPath, path: str) -> str:
    """Resolves a relative `path` in the configuration of a run. If the path exists in the directory in which the run was
    started, returns its location in this directory. Otherwise, returns `path` unchanged. For example, `path` may be the name of
    a model on the hub."""
    started_in = stored_config(directory).get(STARTED_IN)
    if not path or is_remote(path) or not isinstance(started_in, str):
        return path
    there = pathlib.Path(started_in) / path
    return str(there) if there.exists() else path


def read_metrics(path: AnyPath) -> list[JsonObject]:
    """Returns the records of a `metrics.jsonl` in order, without the incomplete lines that remain if a process is killed during
    a write."""
    try:
        return [record for record in json_lines(path) if isinstance(record.get("step"), int)]
    except FileNotFoundError:
        return []


def differences(stored: JsonObject, asked: JsonObject) -> dict[str, tuple[Json, Json]]:
    """Returns the dotted keys whose values differ, each with both values. A missing value is `"(absent)"`.

    >>> differences({"seed": 0, "phases": [{"steps": 10}]}, {"seed": 0, "phases": [{"steps": 20}]})
    {'phases.0.steps': (10, 20)}
    """
    old, new = dict(flatten(stored)), dict(flatten(asked))
    absent = "(absent)"
    return {k: (old.get(k, absent), new.get(k, absent)) for k in sorted({*old, *new}) if old.get(k, absent) != new.get(k, absent)}


def flatten(tree: Json, prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Yields the dotted path and value of every leaf. An empty container is a leaf, and a tuple becomes a list, as in JSON."""
    branches = list(tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list | tuple) else ())
    if not branches:
        yield prefix, list(tree) if isinstance(tree, tuple) else tree
    for key, value in branches:
        yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))


def fetch_workdir(mirror: Mirror) -> None:
    """Makes the local directory of a run equal to its workdir in a bucket, without the checkpoints. Raises UserError if the
    workdir holds anything other than a run."""
    there = [name for name in mirror.listed() if not name.startswith((LOCK, PROCESSES))]
    if there and CONFIG not in there:
        _refuse_foreign(mirror.remote, sorted({name.partition("/")[0] for name in there}))
    if there:
        stored_config(as_path(mirror.remote))
    mirror.fetch()


def _make(directory: pathlib.Path, remote: str) -> list[pathlib.Path]:
    """Creates the directory, which may be the local copy of `remote`. Returns the directories that it created (including
    parents), innermost first. Raises UserError on failure."""
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file is in the way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        if directory.is_symlink() and not directory.exists():
            reason = f"a link to {directory.readlink()}, which does not exist"
        raise UserError(f"--workdir={directory} cannot be written ({reason}); name a directory that you may write to") from error
    try:
        require_capable(directory, remote)
    except UserError:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
    return made


def _withdraw(directory: pathlib.Path, made: Sequence[pathlib.Path], mirror: Mirror | None) -> None:
    """Removes the files that a rejected start has written, and the directories that it `made`.

    If `metrics.jsonl` has a line or if there are other files, an earlier start has trained. Nothing is removed in this case."""
    inside = sorted(directory.rglob("*"), reverse=True)  # contents come before their directory
    files = {path for path in inside if not path.is_dir() and path.parent not in (directory / EVENTS, directory / PROCESSES)}
    metrics = directory / METRICS
    ours = {directory / name for name in (CONFIG, LOCK, GOODPUT_FILE, METRICS)}
    if files <= ours and not (metrics in files and metrics.stat().st_size):
        if mirror:
            mirror.withdraw()
        with contextlib.suppress(OSError):
            for path in inside:
                path.rmdir() if path.is_dir() else path.unlink()
            for path in made:
                path.rmdir()  # stops at the first directory that is not empty


def _remove_made_anew(directory: pathlib.Path) -> None:
    """Removes a directory that a background writer (a save, the goodput recorder) has created again after the workdir was moved
    or removed. Keeps the directory if it holds any file other than `ledger.jsonl`."""
    inside = {path.name for path in directory.rglob("*") if not path.is_dir()}
    if inside <= {GOODPUT_FILE}:
        remove_tree(directory)


def _require_ours(directory: pathlib.Path) -> None:
    """Raises UserError if the directory holds anything other than a run."""
    if (directory / CONFIG).exists():
        stored_config(directory)
    elif directory.is_dir():
        _require_empty(directory)


def _require_empty(directory: pathlib.Path) -> None:
    left_behind = (LOCK, PROBE, PROCESSES, f".{CONFIG}.")  # of a start without config.json: it was killed early, or rejected
    foreign = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith(left_behind))
    if foreign:
        _refuse_foreign(directory, foreign)


def _refuse_foreign(directory: pathlib.Path | str, foreign: Sequence[str]) -> NoReturn:
    shown = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
    raise UserError(f"--workdir={directory} holds files that are not from a run ({shown}); name a new or empty directory")


def _may_change(key: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def _require_same(
    directory: str, command: str, written_by: str, stored: JsonObject, asked: JsonObject, may_change: Sequence[str]
) -> None:
    stored_command = written_by.split()[-1]
    if stored_command != command:
        raise UserError(f"--workdir={directory} holds a run of `{stored_command}`, not of `{command}`; name another --workdir")
    changed = differences(stored, asked)
    allowed = {key for key in changed if _may_change(key, may_change)}
    refused = [(key, *changed[key]) for key in changed if key not in allowed]
    if refused:
        width = max(len(key) for key, _, _ in refused)
        shown = {key: [value if value != "" else "nothing" for value in values] for key, *values in refused}
        table = "\n".join(f"  {key:<{width}}  stored {old}, given {new}" for key, (old, new) in shown.items())
        names = [{key.partition(".")[0], key.rpartition(".")[2]} for key, _, _ in refused]
        more = any(name & {*TRAINING, "steps", "epochs"} for name in names)
        further = ""
        if more and command in ("pretrain", "finetune"):
            further = f"; to train its model further, name another --workdir and --config.init_from={directory}"
        if more and command == "pretrain":
            further += f", or --config.init_state={directory}@STEP to continue from a kept step with its optimizer"
        raise UserError(
            f"--workdir={directory} holds a run with a different configuration:\n{table}\n"
            f"name another --workdir for the new configuration, or repeat the old values to resume that run{further}"
        )
    for key in sorted(allowed):
        log.info("%s is now %s (was %s)", key, json.dumps(changed[key][1]), json.dumps(changed[key][0]))


def _require_same_files(
    directory: str, stored: Mapping[str, Record], own: Mapping[str, Record], may_change: Sequence[str]
) -> None:
    """Raises UserError if a user's file has changed since the run's last start."""
    for key, now in own.items():
        then = stored.get(key)
        if then and not _may_change(key, may_change) and then["sha256"] != now["sha256"]:
            says = _changed(f"--workdir={directory} is a run with a different {now['path']}", key, then, now)
            raise UserError(f"{says}. Restore the file, name another --workdir, or resume with the new file: --changed-files")


@contextlib.contextmanager
def locked(directory: AnyPath, name: str) -> Iterator[str | None]:
    """Holds the lock file `name` in a workdir, and yields the text of the file (None in a bucket). If another process already
    holds the lock, raises UserError with the name of that process."""
    if is_remote(directory):
        from bert_jax.storage.lock import locked_in_bucket

        with locked_in_bucket(directory, name):
            yield None
        return
    path = directory / name

    def refusal() -> str:
        holder = path.read_text(encoding="utf-8", errors="replace").strip() or "another process"
        return f"--workdir={directory} is in use by {holder}; wait for it, stop it, or name another --workdir"

    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(files.locked(path, refusal))
        except FileNotFoundError:  # a rejected start has removed the directory again
            raise UserError(f"--workdir={directory} was in use until just now; rerun the same command") from None
        file.truncate()
        holder = f"{files.this_process()}\n"
        file.write(holder)
        file.flush()
        try:
            yield holder
        finally:
            with contextlib.suppress(OSError):  # a disk that fails at the end must not replace the error of the run
                file.truncate(0)  # the file is kept; otherwise, two runs could lock two different files with the same name
