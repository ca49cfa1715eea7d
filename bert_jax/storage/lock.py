"""The lock of a directory in a bucket. The lock is an object that is created only if it does not exist (generation precondition
0).

The process that holds the lock rewrites the object every few seconds. A new process that finds the lock watches the object. If
its generation does not change for a minute, the holder counts as dead, and the new process takes the lock over. This
write also has a precondition, so that only one process gets the lock. Clocks of different machines are never compared. The lock
of a dead process on the same machine is taken over immediately."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from bert_jax.errors import USER_ERROR_STATUS, UserError
from bert_jax.files import this_process
from bert_jax.interface.ranges import whole_number
from bert_jax.storage.objects import StorageError, read, remove, write
from bert_jax.storage.paths import AnyPath

BEAT = 10.0
"""Seconds between writes of a held lock."""
MISSED = 6
"""The number of missed writes after which the process that holds a lock is considered dead."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def locked_in_bucket(
    directory: AnyPath, name: str, *, beat: float = BEAT, leave: Callable[[int], object] = os._exit
) -> Iterator[None]:
    """Holds the lock `name` in a directory of a bucket, and rewrites it every `beat` seconds. If another process holds the
    lock, raises a UserError that names this process.

    If this process is stopped or has no connection for `MISSED` beats, another process may take the lock over. In this case,
    `leave` ends this process with an exit status."""
    lock = _Lock(f"{directory}/{name}", str(directory), beat, leave)
    try:
        yield
    finally:
        lock.release()


class _Lock:
    """A held lock. A thread rewrites it regularly."""

    def __init__(self, path: str, directory: str, beat: float, leave: Callable[[int], object]):
        self._path, self._directory, self._leave = path, directory, leave
        self._beat, self._stale = beat, MISSED * beat
        self._text = f"{this_process()}\n{_machine()}\n{os.getpid()}\n{os.urandom(8).hex()}\n"
        self._generation = self._acquire()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lock", daemon=True)
        self._thread.start()

    def _acquire(self) -> str:
        """Acquires the lock and returns its generation. Raises UserError if its holder is alive."""
        # the generation to overwrite; the generation of the holder; the time since which this generation is known
        replaced, seen, since = "0", "", 0.0
        while True:
            with contextlib.suppress(FileExistsError):
                return write(self._path, self._text.encode(), replaced)
            replaced = "0"
            there = read(self._path)
            if there is None:
                continue
            text = there.data.decode(errors="replace")
            if text == self._text:  # an earlier request wrote this text, but its answer was lost
                return there.generation
            holder = text.partition("\n")[0] or "another process"
            if not seen:
                seen, since = there.generation, time.monotonic() - min(max(there.age, 0.0), self._stale)
                left = self._stale - (time.monotonic() - since)
                if left > 0 and not _is_dead(text):
                    log.warning(
                        "%s is locked by %s; waiting for %.0f s to see whether this process is alive",
                        self._directory,
                        holder,
                        left,
                    )
            elif there.generation != seen:
                raise UserError(
                    f"--workdir={self._directory} is in use by {holder}; wait until this process ends, stop it, or name "
                    "another --workdir"
                )
            if _is_dead(text) or time.monotonic() - since >= self._stale:
                log.warning("the lock of %s belonged to a dead process: %s", self._directory, holder)
                replaced = there.generation
            else:
                time.sleep(self._beat / 10)

    def _renew(self) -> None:
        while not self._closed.wait(self._beat):
            try:
                self._generation = write(self._path, self._text.encode(), self._generation)
            except FileExistsError:
                self._look_again()
            # there is no connection; if another process takes the lock meanwhile, the next write detects this
            except StorageError:
                pass

    def _look_again(self) -> None:
        """Checks after a refused write whether this process still holds the lock. If it has lost the lock, ends this
        process."""
        with contextlib.suppress(StorageError):
            there = read(self._path)
            if there and there.data.decode(errors="replace") == self._text:  # the answer of an earlier write was lost
                self._generation = there.generation
            elif not self._closed.is_set():
                holder = there.data.decode(errors="replace").partition("\n")[0] if there else "nobody"
                sys.stderr.write(
                    f"error: the lock of {self._directory} is now held by {holder}, because this process was stopped or had no "
                    f"connection for more than {self._stale:.0f} s; this process ends, so that two runs do not write to one "
                    "workdir\n"
                )
                self._leave(USER_ERROR_STATUS)

    def release(self) -> None:
        """Removes the lock. If this fails, the next process detects that the holder is dead."""
        self._closed.set()
        self._thread.join()
        with contextlib.suppress(StorageError, FileExistsError):
            remove(self._path, self._generation)


def _machine() -> str:
    """Returns an identifier of this machine and its process namespace, or "" if unavailable."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - the link's target is a text, not a path
    except OSError:
        return ""


def _is_dead(text: str) -> bool:
    """Returns whether the process that wrote this lock text ran on this machine and has ended."""
    _, machine, number, *_ = [*text.split("\n"), "", ""]
    process = whole_number(number, 1)
    if not machine or machine != _machine() or process is None:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False
