"""The file that answers go to: it takes its name when it is whole, and is never one that they are read from."""

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

from bert_jax.errors import UserError
from bert_jax.interface.command import require_stdout

PART = ".bert_jax.part"
"""How the file ends in which answers wait, locked by the process that writes it, until they are whole."""


def checked_target(output: str, source: os.stat_result | None = None) -> pathlib.Path:
    """The file that `output` means, links followed; a device or a pipe as it is named.

    Raises UserError where it cannot be written, where another process is writing it, and where it is the file `source`, which
    the answers are about.
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
        raise UserError(f"{name}: there is no directory {pathlib.Path(output).parent}; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"{name} cannot be written: no permission to make files in {path.parent}; choose another --output")
    for part in path.parent.glob(f".{glob.escape(path.name)}.*{PART}"):
        if _is_being_written(part):
            raise UserError(f"{name} is being written by another process (in {part}); wait for it, or choose another --output")
    return path


def check_stdout(source: os.stat_result | None = None) -> None:
    """Raises UserError where standard output is closed, or is the file `source`, which would grow as it is read."""
    require_stdout("name a file with --output=FILE")
    try:
        there = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):  # not a file of the system
        return
    if source and os.path.samestat(there, source):
        raise UserError("standard output is the file that the texts are read from; name another one: --output=FILE")


class Part:
    """A new file beside `path`, in `file`, which takes that name in `complete` and is gone after `close` else.

    Files that killed processes have left in the directory are removed. Raises OSError as every file does.
    """

    def __init__(self, path: pathlib.Path):
        _clear(path.parent)
        self._path, self._own = path, path.with_name(f".{path.name}.{os.getpid()}{PART}")
        while True:
            descriptor = os.open(self._own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            with contextlib.suppress(OSError):  # some network disks know no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)  # another process took it for one left over, before it was locked
        self.file: IO[bytes] = os.fdopen(descriptor, "wb")
        self._complete = False

    def complete(self) -> None:
        """Gives the file its name, after all that was written is on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self._own.replace(self._path)
        self._complete = True

    def close(self) -> None:
        """Closes the file, and removes it where it is not complete."""
        if not self._complete:
            self._own.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.file.close()


def _clear(directory: pathlib.Path) -> None:
    """Removes the parts of processes that no longer run: regular files of ours by name and owner, which nobody has locked."""
    for part in directory.glob(f".*{PART}"):
        with contextlib.suppress(OSError), _locked(part) as gained:
            if gained and part.lstat().st_uid == os.geteuid():
                part.unlink()


@contextlib.contextmanager
def _locked(part: pathlib.Path) -> Iterator[bool]:
    """Whether this process could take the lock of that file, which it then holds, or False where another one has it.

    Raises OSError where nobody can tell: for a link, for example, or a file of another user.
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


def _is_being_written(part: pathlib.Path) -> bool:
    with contextlib.suppress(OSError), _locked(part) as gained:
        return not gained
    return False


@contextlib.contextmanager
def writing(name: str) -> Iterator[None]:
    """Raises UserError where `name` cannot be written, but BrokenPipeError as it is: nobody reads the answers any more."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror or error}; choose another --output") from error
