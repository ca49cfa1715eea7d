"""UserError, the error that a user can mend, and the clauses that name the value which was meant.

This module imports nothing of the project, so every folder may use it.
"""

from __future__ import annotations

import difflib
import os
import pathlib
from collections.abc import Iterable

REFUSED = 2
"""The exit status after a `UserError`."""


class UserError(Exception):
    """A mistake that the person at the keyboard can mend.

    The message names the value, the limit and the remedy. `run_verb` prints it without a traceback and exits with status 2;
    every other exception is a bug of ours and keeps its traceback.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """The clause that helps after a misspelt name: `did you mean 'x'?`, or the list of what exists when nothing is near. Dashes
    before a flag say nothing of its name, and those inside are as good as underscores."""
    known = sorted(known)
    bare = {other.lstrip("-").replace("_", "-"): other for other in known}
    given = name.lstrip("-").replace("_", "-")
    close = difflib.get_close_matches(given, bare, n=1, cutoff=0.55)
    if not close:  # the first part of a name, as `nsp` of `nsp_head`
        begun = [other for other in bare if given and other.startswith(f"{given}-")]
        close = begun if len(begun) == 1 else []
    return f"did you mean {bare[close[0]]!r}?" if close else f"known: {', '.join(known)}"


def looked_for(path: str | os.PathLike[str]) -> str:
    """A path that is not there, as a message names it: a relative one with the directory that it was looked for in, and with the
    nearest that is there."""
    near = nearest_path(path)
    said = [] if pathlib.Path(path).is_absolute() else [f"looked for in {_current_directory()}"]
    said += [f"did you mean {near}?"] if near else []
    return f"{os.fspath(path)} ({'; '.join(said)})" if said else os.fspath(path)


def nearest_path(path: str | os.PathLike[str]) -> str | None:
    """The path of a file or directory that is there and spelt nearly as `path`, part by part, or as its beginning; None where
    there is none."""
    found, corrected = pathlib.Path(), False
    for part in pathlib.Path(path).parts:
        if not (found / part).exists():
            try:
                close = difflib.get_close_matches(part, [path.name for path in found.iterdir()], n=1, cutoff=0.6)
            except OSError:
                break
            if not close:
                break
            part, corrected = close[0], True
        found /= part
    return str(found) if corrected else None


def _current_directory() -> str:
    try:
        return str(pathlib.Path.cwd())
    except OSError:
        return "the current directory, which was removed"
