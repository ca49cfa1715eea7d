"""Counts the files that this process has open, for tests of code that closes them."""

from __future__ import annotations

import contextlib
import pathlib


def open_below(directory: pathlib.Path) -> int:
    """Returns the number of open files and directories below `directory`, including removed ones."""
    found = 0
    for descriptor in list(pathlib.Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing, which is closed by now
            found += str(descriptor.readlink()).startswith(f"{directory}/")
    return found
