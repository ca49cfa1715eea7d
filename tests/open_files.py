"""The files that this process holds open, for the tests of what closes them."""

from __future__ import annotations

import contextlib
import pathlib


def open_below(directory: pathlib.Path) -> int:
    """The number of open files and directories below `directory`, removed ones included."""
    found = 0
    for descriptor in list(pathlib.Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # the one that listed them
            found += str(descriptor.readlink()).startswith(f"{directory}/")
    return found
