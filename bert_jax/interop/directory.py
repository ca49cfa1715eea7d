"""Writes a model directory atomically: it appears, and replaces an older one, only when it is complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import shutil
from collections.abc import Callable, Collection, Iterator

from bert_jax.errors import UserError


class Unwritable(UserError):
    """A model cannot be written to a directory: the directory has other files, its disk is full, or it is not writable."""


@contextlib.contextmanager
def replaced_when_complete(
    directory: pathlib.Path, *, is_ours: Callable[[pathlib.Path], bool], format_files: Collection[str]
) -> Iterator[pathlib.Path]:
    """Yields a temporary directory beside `directory` to write into; when the context ends without an exception, it is renamed to
    `directory`.

    An older directory of that name is moved aside until the new one is in place. Its files that are not `format_files`, such as a
    README, are copied to the new one. It must be empty or an export of this package (`is_ours`): no other directory is deleted.
    Raises Unwritable where it is neither, where another process is writing to `directory`, and where the disk is full; the older
    directory is then unchanged.

    A process that is killed between the two renames leaves the old directory as `.NAME.replaced`, and `recover` restores it.
    """
    directory = directory.absolute()
    with _as_unwritable(directory), _alone(directory.parent / f".{directory.name}.incomplete", directory) as temporary:
        recover(directory)
        if directory.exists() and not is_ours(directory) and (not directory.is_dir() or any(directory.iterdir())):
            reason = "holds files that bert_jax did not export, so it is not overwritten"
            raise Unwritable(f"{directory} {reason}; name another directory")
        try:
            yield temporary
            old = aside(directory)
            if directory.exists():
                for path in directory.iterdir():
                    if path.name not in format_files:
                        (shutil.copytree if path.is_dir() else shutil.copy2)(path, temporary / path.name)
            _flush(temporary)
            if directory.exists():
                directory.rename(old)
            temporary.rename(directory)
            shutil.rmtree(old, ignore_errors=True)
        except BaseException:
            recover(directory)
            raise


@contextlib.contextmanager
def _alone(temporary: pathlib.Path, directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """Creates `temporary`, empty, and locks it in the context; removes it after an exception.

    Raises Unwritable where another process holds the lock, because it writes to `directory`. The lock ends with its process.
    """
    descriptor = None
    while descriptor is None:
        temporary.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise Unwritable(f"another process is writing a model to {directory}; wait for its end, or name another") from error
        except OSError:  # some network file systems do not support locks
            pass
        if not _is_still(temporary, descriptor):  # another process has removed it since it was opened
            os.close(descriptor)
            descriptor = None
    try:
        for path in temporary.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        yield temporary
    except BaseException:
        if _is_still(temporary, descriptor):
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def _is_still(path: pathlib.Path, descriptor: int) -> bool:
    """Whether the file at `path` is still the one opened as `descriptor`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _as_unwritable(directory: pathlib.Path) -> Iterator[None]:
    """Turns an OSError in the context into Unwritable."""
    try:
        yield
    except OSError as error:
        raise _unwritable(directory, error) from error


def _unwritable(directory: pathlib.Path, error: OSError) -> Unwritable:
    remedy = "free space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else ""
    return Unwritable(f"cannot write a model to {directory}: {error.strerror or error}; {remedy}choose a writable directory")


def recover(directory: pathlib.Path) -> None:
    """Restores the older directory that an interrupted replacement has moved aside."""
    old = aside(directory)
    if old.is_dir():
        if directory.exists():  # the new one was already in place: only the removal of the old one was missed
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(directory)


def aside(directory: pathlib.Path) -> pathlib.Path:
    """The path to which the older directory is moved while the new one is renamed."""
    directory = directory.absolute()  # "." has no name of its own
    return directory.parent / f".{directory.name}.replaced"


def _flush(directory: pathlib.Path) -> None:
    """Flushes the files of the directory to disk before the rename, since a power failure could otherwise leave empty files."""
    for path in [*directory.iterdir(), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
