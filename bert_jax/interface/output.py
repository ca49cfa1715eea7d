"""Checks the path of an output file or directory, and explains errors of writing it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
import sys
from collections.abc import Iterator

from bert_jax.errors import UserError, broken_link, missing_path
from bert_jax.files import being_written
from bert_jax.interface.command import require_stdout


def checked_target(output: str, source: os.stat_result | None = None, flag: str = "--output") -> pathlib.Path:
    """Returns the path of `output`, the file that `flag` names. Symbolic links are resolved, except for devices and pipes.

    Raises UserError if the file cannot be written, if another process is writing it, or if it is `source`, the input file.
    """
    name, path = f"{flag}={output}", pathlib.Path(output)
    try:
        there: os.stat_result | None = path.stat()
    except FileNotFoundError:
        there = None
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror}; choose another {flag}") from error
    if there and not stat.S_ISREG(there.st_mode):
        if stat.S_ISDIR(there.st_mode):
            example = path / ("out.json" if flag == "--json" else "out.jsonl")
            raise UserError(f"{name} cannot be written: Is a directory; choose another {flag}, such as {example}")
        return path
    if there and source and os.path.samestat(there, source):
        raise UserError(f"{name} is the input file, which the answers would overwrite; choose another {flag}")
    if there and not there.st_mode & 0o222:
        raise UserError(f"{name} is write-protected; choose another {flag}, or allow writing: chmod u+w {output}")
    path = path.resolve()
    if not path.parent.is_dir():
        raise UserError(f"{name}: there is no directory {missing_path(pathlib.Path(output).parent)}; create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"{name} cannot be written: no permission to create files in {path.parent}; choose another {flag}")
    for part in being_written(path):
        raise UserError(f"{name} is being written by another process (in {part}); wait for it, or choose another {flag}")
    return path


def check_directory(output: str | os.PathLike[str], flag: str = "--output") -> None:
    """Raises UserError if the directory that `flag` names cannot be created or written."""
    name, path = f"{flag}={os.fspath(output)}", pathlib.Path(output)
    if broken := broken_link(path):
        raise UserError(f"{name} cannot be written ({broken}); create that directory, or choose another {flag}")
    try:
        if path.exists() and not path.is_dir():
            raise UserError(f"{name} is a file; name a directory")
        there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror}; choose another {flag}") from error
    if not there.is_dir():
        raise UserError(f"{name} cannot be written: {there} is a file; choose another {flag}")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{name} cannot be written: no permission to make files in {there}; choose another {flag}")


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
def writing(name: str, flag: str = "--output") -> Iterator[None]:
    """Converts an OSError in the block to a UserError about `name`, the value of `flag`. BrokenPipeError (the reader is gone) is
    raised unchanged."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror or error}; choose another {flag}") from error
