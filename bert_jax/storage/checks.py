"""Checks that a local or mounted directory supports the operations that a run needs. The checks take milliseconds at the start.

A run renames the directory of a checkpoint when the checkpoint is complete, and appends lines of metrics to a file. The
processes of a run look for each other's files. A bucket mounted with gcsfuse rejects the renaming of directories by default
(EMFILE)."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import time
from collections.abc import Callable

from bert_jax.errors import UserError, WorkdirError
from bert_jax.files import remove_tree
from bert_jax.storage.paths import AnyPath, is_remote

PROBE = ".writable-"
"""The prefix of the directory in which the checks run."""
CLOCK_SECONDS = 60.0
"""A warning is logged if the clocks of the file system and the machine differ by more than this."""
_REMEDY = (
    "for a bucket, give --workdir=gs://BUCKET/PATH, mount it with `gcsfuse --rename-dir-limit=100000`, or use a bucket with "
    "hierarchical namespace; otherwise name a directory on another file system"
)

log = logging.getLogger(__name__)


def require_capable(directory: pathlib.Path, remote: str = "") -> None:
    """Raises UserError unless the existing `directory` is suitable for a run. Files in it must support creation, appending,
    listing and replacement. A non-empty directory must support renaming, and Orbax must be able to read the path. Logs a
    warning if the clock of the file system is wrong. `remote` is the workdir in a bucket if `directory` is its local copy."""
    _require_path(remote or directory)
    name, remedy = f"--workdir={directory}", "name a directory that you may write to"
    if remote:
        name, remedy = f"{directory}, the local copy of --workdir={remote},", "set BERT_JAX_CACHE to another directory"
    probe = directory / f"{PROBE}{os.getpid()}-{os.urandom(4).hex()}"  # processes in two containers may have the same number
    inside = probe / "inside"
    file = inside / "file"
    try:
        try:
            inside.mkdir(parents=True, exist_ok=True)
            now = time.time()
            file.write_bytes(b"1")
        except OSError as error:
            reason = "a file is in the way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            raise UserError(f"{name} cannot be written ({reason}); {remedy}") from error
        for what, does in (
            ("cannot append to files, but metrics are appended line by line", lambda: _appends(file)),
            (
                "does not list a file that was just written, but processes find each other by such files",
                lambda: _lists(file),
            ),
            ("cannot rename a file over another file, but results are written this way", lambda: _replaces(file)),
            ("cannot rename a directory that holds files, but checkpoints are completed this way", lambda: _renames(file)),
        ):
            _require(f"{name} {what}", does, remedy if remote else _REMEDY)
        _tell_of_clock(directory, probe / "renamed" / "file", now)
    finally:
        remove_tree(probe)


def _require_path(directory: str | pathlib.Path) -> None:
    """Raises UserError if Orbax could not read checkpoints at this path. Orbax treats *, ? and [ as wildcards, and its C++ code
    needs UTF-8."""
    path = str(directory) if is_remote(directory) else str(pathlib.Path(directory).absolute())
    if sign := next((sign for sign in "[*?" if sign in path), ""):
        of = "" if sign in str(directory) else f" ({path})"
        raise UserError(
            f"--workdir={directory}{of} contains {sign!r}, but Orbax treats this as a wildcard and could read no checkpoint; "
            "name a directory without *, ? and [ in its path"
        )
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"--workdir={ascii(str(directory))[1:-1]}: the path is not UTF-8, which checkpoints need; name another directory"
        ) from error


def _require(what: str, does: Callable[[], bool], remedy: str) -> None:
    reason = ""
    try:
        if does():
            return
    except OSError as error:
        reason = f" ({error.strerror or error})"
    raise UserError(f"{what}{reason}; {remedy}")


def _appends(file: pathlib.Path) -> bool:
    with file.open("ab", buffering=0) as opened:
        opened.write(b"2")
    return file.read_bytes() == b"12"


def _lists(file: pathlib.Path) -> bool:
    return file.name in os.listdir(file.parent)  # noqa: PTH208 - as Orbax lists


def _replaces(file: pathlib.Path) -> bool:
    other = file.with_name("other")
    other.write_bytes(b"12")
    other.replace(file)
    return not other.exists() and file.read_bytes() == b"12"


def _renames(file: pathlib.Path) -> bool:
    renamed = file.parent.rename(file.parent.with_name("renamed"))
    return not file.exists() and (renamed / file.name).read_bytes() == b"12"


def _tell_of_clock(directory: pathlib.Path, file: pathlib.Path, written: float) -> None:
    difference = file.stat().st_mtime - written
    if abs(difference) > CLOCK_SECONDS:
        side = "ahead of" if difference > 0 else "behind"
        message = "the clock of the file system of %s is %.0f s %s this machine's clock; synchronise both by NTP: %s"
        log.warning(message, directory, abs(difference), side, "timedatectl set-ntp true")


def require_room(directory: AnyPath, size: int) -> None:
    """Raises WorkdirError if a checkpoint of `size` bytes does not fit on the disk of `directory`. Buckets always have room."""
    if is_remote(directory):
        return
    there = next(place for place in (directory, *directory.parents) if place.exists())
    free = shutil.disk_usage(there).free
    if size > free:
        raise WorkdirError(
            f"a checkpoint of this run has {size / 1e9:,.2f} GB, but {there} has only {free / 1e9:,.2f} GB free; free space, or "
            "name a --workdir on a larger disk or in a bucket (gs://BUCKET/PATH)"
        )
