"""A model directory appears complete or not at all, and replaces an older one only then."""

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
    """A directory does not take a model: it is another's, its disk is full, or it may not be written to."""


@contextlib.contextmanager
def replaced_when_complete(
    directory: pathlib.Path, *, is_ours: Callable[[pathlib.Path], bool], format_files: Collection[str]
) -> Iterator[pathlib.Path]:
    """Yields a temporary directory beside `directory` to write into; on leaving without an exception it takes the name.

    An older directory of that name is moved aside until the new one is in place, and what is not one of the `format_files` (a
    README someone wrote) is carried over. It must have been written by us (`is_ours`) or be empty: nothing else is ever deleted.
    Raises Unwritable where that is not so, where another process is writing to `directory`, and where the disk takes no more;
    what was there is then there still.

    A process killed between the two renames leaves the old one as `.NAME.replaced`, from where `recover` takes it back.
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
    """Makes `temporary`, empty, and locks it until the end; removes it on an exception.

    Raises Unwritable where another process has it, which writes to `directory`. A killed process leaves it without a lock.
    """
    descriptor = -1
    while descriptor < 0:
        temporary.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise Unwritable(f"another process is writing a model to {directory}; wait for its end, or name another") from error
        except OSError:  # some network disks know no locks
            pass
        if not _is_still(temporary, descriptor):  # its process before has ended since it was opened
            os.close(descriptor)
            descriptor = -1
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
    """Whether `path` is what was opened as `descriptor`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _as_unwritable(directory: pathlib.Path) -> Iterator[None]:
    """Errors of the disk are Unwritable."""
    try:
        yield
    except OSError as error:
        raise _unwritable(directory, error) from error


def _unwritable(directory: pathlib.Path, error: OSError) -> Unwritable:
    remedy = "free space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else ""
    return Unwritable(f"cannot write a model to {directory}: {error.strerror or error}; {remedy}choose a writable directory")


def recover(directory: pathlib.Path) -> None:
    """Puts back the older directory that an interrupted replacement had moved aside."""
    old = aside(directory)
    if old.is_dir():
        if directory.exists():  # the new one was in place already: only the tidying was missed
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(directory)


def aside(directory: pathlib.Path) -> pathlib.Path:
    """Where the older directory waits while the new one takes its name."""
    directory = directory.absolute()  # "." has no name of its own
    return directory.parent / f".{directory.name}.replaced"


def _flush(directory: pathlib.Path) -> None:
    """Contents on disk before the rename is: otherwise a power cut could leave the new name on empty files."""
    for path in [*directory.iterdir(), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
