"""Checks the path of the output file, and explains errors of writing it."""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import stat
import sys
from collections.abc import Iterator

from bert_jax.errors import UserError, missing_path
from bert_jax.files import PARTIAL_SUFFIX, is_being_written
from bert_jax.interface.command import require_stdout


def checked_target(output: str, source: os.stat_result | None = None) -> pathlib.Path:
    """Returns the path of `output`. Symbolic links are resolved, except for devices and pipes.

    Raises UserError if the file cannot be written, if another process is writing it, or if it is `source`, the input file.
    """
    name, path = f"--output={output}", pathlib.Path(output)
    try:
        there: os.stat_result | None = path.stat()
    except FileNotFoundError:
        there = None
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror}; choose another --output") from error
    if there and not stat.S_ISREG(there.st_mode):
        if stat.S_ISDIR(there.st_mode):
            raise UserError(f"{name} cannot be written: Is a directory; choose another --output, such as {path / 'out.jsonl'}")
        return path
    if there and source and os.path.samestat(there, source):
        raise UserError(f"{name} is the input file, which the answers would overwrite; choose another --output")
    if there and not there.st_mode & 0o222:
        raise UserError(f"{name} is write-protected; choose another --output, or allow writing: chmod u+w {output}")
    path = path.resolve()
    if not path.parent.is_dir():
        raise UserError(f"{name}: there is no directory {missing_path(pathlib.Path(output).parent)}; create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"{name} cannot be written: no permission to create files in {path.parent}; choose another --output")
    for part in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL_SUFFIX}"):
        if is_being_written(part):
            raise UserError(f"{name} is being written by another process (in {part}); wait for it, or choose another --output")
    return path


def check_stdout(source: os.stat_result | None = None) -> None:
    """Raises UserError if standard output is closed, or if it is `source`, the input file. The input file would grow while it
    is read."""
    require_stdout("name a file with --output=FILE")
    try:
        there = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):  # sys.stdout has no file descriptor
        return
    if source and os.path.samestat(there, source):
        raise UserError("standard output is the input file; name another one: --output=FILE")


@contextlib.contextmanager
def writing(name: str) -> Iterator[None]:
    """Converts an OSError in the block to a UserError about `name`. BrokenPipeError (the reader is gone) is raised
    unchanged."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror or error}; choose another --output") from error
