"""Checks the path of the output file, and writes a file that appears under its name only when it is complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import pathlib
import stat
import sys
from collections.abc import Iterator
from typing import IO

from bert_jax.errors import UserError, missing_path
from bert_jax.interface.command import require_stdout

PARTIAL_SUFFIX = ".bert_jax.part"
"""Suffix of the temporary file with the answers written so far; the process that writes it holds its lock."""


def checked_target(output: str, source: os.stat_result | None = None) -> pathlib.Path:
    """The path of `output` with symbolic links resolved; the path of a device or a pipe unchanged.

    Raises UserError if it cannot be written, if another process is writing it, and if it is `source`, the input file.
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
        raise UserError(f"{name} is the file that the texts are read from, which answers would replace; choose another --output")
    if there and not there.st_mode & 0o222:
        raise UserError(f"{name} is write-protected; choose another --output, or allow writing: chmod u+w {output}")
    path = path.resolve()
    if not path.parent.is_dir():
        raise UserError(f"{name}: there is no directory {missing_path(pathlib.Path(output).parent)}; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"{name} cannot be written: no permission to make files in {path.parent}; choose another --output")
    for part in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL_SUFFIX}"):
        if is_being_written(part):
            raise UserError(f"{name} is being written by another process (in {part}); wait for it, or choose another --output")
    return path


def check_stdout(source: os.stat_result | None = None) -> None:
    """Raises UserError if standard output is closed, or is `source`, the input file, which would grow while it is read."""
    require_stdout("name a file with --output=FILE")
    try:
        there = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):  # sys.stdout has no file descriptor
        return
    if source and os.path.samestat(there, source):
        raise UserError("standard output is the file that the texts are read from; name another one: --output=FILE")


class PartialFile:
    """A temporary file beside `path`, open for writing as `file`. `complete` renames it to `path`; `close` removes it if it was
    not completed.

    The constructor removes temporary files that killed processes left in the directory. Raises OSError where file operations do.
    """

    def __init__(self, path: pathlib.Path):
        _clear(path.parent)
        self._path, self._own = path, path.with_name(f".{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
        while True:
            descriptor = os.open(self._own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            with contextlib.suppress(OSError):  # some network file systems support no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)  # before it was locked, another process took it for a leftover and removed it
        self.file: IO[bytes] = os.fdopen(descriptor, "wb")

    def complete(self) -> None:
        """Renames the file to `path` after its content is on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self._own.replace(self._path)

    def close(self) -> None:
        """Closes the file, and removes it if it was not completed, that is if its temporary name is still there."""
        self._own.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.file.close()


def _clear(directory: pathlib.Path) -> None:
    """Removes the temporary files of processes that no longer run: regular files with our suffix and owner, and no lock."""
    for part in directory.glob(f".*{PARTIAL_SUFFIX}"):
        with contextlib.suppress(OSError), _locked(part) as gained:
            if gained and part.lstat().st_uid == os.geteuid():
                part.unlink()


@contextlib.contextmanager
def _locked(part: pathlib.Path) -> Iterator[bool]:
    """Holds the lock of a file within the block if it is free: True, or False if another process holds it.

    Raises OSError if that cannot be found out, for example for a symbolic link or a file of another user.
    """
    descriptor = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def is_being_written(part: pathlib.Path) -> bool:
    """Whether a process that still runs writes the temporary file `part`."""
    with contextlib.suppress(OSError), _locked(part) as gained:
        return not gained
    return False


@contextlib.contextmanager
def writing(name: str) -> Iterator[None]:
    """Turns an OSError of the block into a UserError about `name`, except BrokenPipeError: the reader of the output has gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror or error}; choose another --output") from error
