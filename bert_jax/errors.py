"""Defines UserError (the exception for mistakes that a user can correct), its subclass WorkdirError, the exit statuses of
commands, and suggestions for misspelt names and paths.

This module imports no other module of the project, so every folder may use it."""

from __future__ import annotations

import collections
import contextlib
import difflib
import os
import pathlib
import signal
from collections.abc import Iterable, Mapping

USER_ERROR_STATUS = 2
"""The exit status of a command that ends with a `UserError`."""

HUNG = 42
"""The exit status after a hang or the loss of another process. The same command resumes from the newest checkpoint."""

MISSING = 43
"""The exit status if another process has not started in time. It may start later, e.g. when it has copied the corpus."""

STOPPED = 128 + signal.SIGTERM
"""The exit status of a run that was stopped by SIGTERM. The run saves a checkpoint before it exits."""

MENDED_BY_RESTART: Mapping[int, str] = {
    HUNG: "no progress, or another process was lost",
    MISSING: "another process did not start in time",
    128 + signal.SIGABRT: "aborted, as JAX does when another process is lost",
    128 + signal.SIGBUS: "crash: bus error",
    128 + signal.SIGKILL: "killed: host memory ran out, or the machine is being shut down",
    128 + signal.SIGSEGV: "crash: segmentation fault",
    STOPPED: "stopped by SIGTERM on this machine, or by SIGTERM or Ctrl-C on another one",
}
"""Exit status -> cause, for the exit statuses of `pretrain` and `finetune` after which the same command may succeed. A restart
does not help after any other status: 1 is a bug, 2 is a `UserError`, and 130 is Ctrl-C."""


class UserError(Exception):
    """A mistake that the user can correct, e.g. in a flag, a setting or a file.

    The message names the value, the limit and the remedy. `run_main` prints the message without a traceback and exits with
    `status`. Every other exception is a bug of bert_jax, so its traceback is printed.
    """

    status = USER_ERROR_STATUS


class WorkersMissing(UserError):
    """Raised if another process of a run has not started in time."""

    status = MISSING


class WorkdirError(UserError):
    """Raised if the directory of a run cannot be used at the moment, e.g. because the disk is full. The run is not at fault.
    When the cause is fixed, the same command continues the run."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint for an unknown `name`: `did you mean 'x'?`, or `known: a, b, c` if no known name is similar. Leading
    dashes of a flag are ignored, and dashes inside a name count as underscores."""
    known = sorted(known)
    bare = {other.lstrip("-").replace("_", "-"): other for other in known}
    given = name.lstrip("-").replace("_", "-")
    close = difflib.get_close_matches(given, bare, cutoff=0.55)
    if not close:  # `name` may be the start of a known name, e.g. `nsp` of `nsp_head`
        begun = [other for other in bare if other.startswith(f"{given}-")]
        close = begun if len(begun) == 1 else []
    return f"did you mean {bare[close[0]]!r}?" if close else f"known: {listed(known)}"


def listed(names: Iterable[str]) -> str:
    """Joins names with commas. Blank names are quoted."""
    return ", ".join(name if name.strip() else repr(name) for name in names)


def repeated(names: Iterable[str]) -> list[str]:
    """Returns the names that occur more than once, in linear time, since a damaged file may have a million column names."""
    return [name for name, count in collections.Counter(names).items() if count > 1]


def missing_path(path: str | os.PathLike[str]) -> str:
    """Formats a missing path for an error message. If the path is relative, adds the current directory. If a similar path
    exists, adds it as a suggestion. If the path is a broken link, adds the target instead. A path in a bucket is returned
    unchanged."""
    if "://" in os.fspath(path):
        return os.fspath(path)
    if broken := broken_link(pathlib.Path(path)):
        return f"{os.fspath(path)} ({broken})"
    near = nearest_path(path)
    remarks = [] if pathlib.Path(path).is_absolute() else [f"looked for in {_current_directory()}"]
    remarks += [f"did you mean {near}?"] if near else []
    return f"{os.fspath(path)} ({'; '.join(remarks)})" if remarks else os.fspath(path)


def broken_link(path: pathlib.Path) -> str:
    """Returns the part of a path that is a broken link, and the target of the link. Returns "" if there is none."""
    for part in (path, *path.parents):
        with contextlib.suppress(OSError):  # the name is too long, or a directory may not be read
            if part.is_symlink() and not part.exists():
                return f"{'' if part == path else f'{part} is '}a link to {part.readlink()}, which does not exist"
    return ""


def nearest_path(path: str | os.PathLike[str]) -> str | None:
    """Returns the existing path that is most similar to `path`. Paths are compared part by part. The result ends before the
    first part without a match. Returns None if every part of `path` exists, or if nothing resembles the first missing part."""
    found, corrected = pathlib.Path(), False
    for part in pathlib.Path(path).parts:
        try:
            if not (found / part).exists():
                close = difflib.get_close_matches(part, [path.name for path in found.iterdir()], cutoff=0.6)
                if not close:
                    break
                part, corrected = close[0], True
        except OSError:  # the name is too long, or a directory may not be read
            break
        found /= part
    return str(found) if corrected else None


def _current_directory() -> str:
    try:
        return str(pathlib.Path.cwd())
    except OSError:
        return "the current directory, which was removed"
