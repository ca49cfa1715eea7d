"""Writes files and directories atomically, reads and writes JSON, locks files, and removes directories.

    write_json(path, value)                    # a reader sees the complete old file or the complete new one
    with replacing(path) as file: ...          # the same for content that is written piece by piece
    with writing_directory(path) as part: ...  # the same for a directory
    value = read_json(path, "copy it again")   # raises a UserError with that remedy if it is not JSON
    with locked(path, "another process ..."):  # one process at a time; a kill releases the lock

Every path may be in a bucket, except the paths of locks, of files that are written piece by piece, and of directories that are
written.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import importlib
import json
import logging
import math
import os
import pathlib
import re
import shutil
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NoReturn, TypeAlias

from bert_jax.errors import UserError

log = logging.getLogger(__name__)

Path: TypeAlias = "str | os.PathLike[str]"
"""A local path, or a path in a bucket."""
JsonObject: TypeAlias = dict[str, Any]
"""A JSON object that was read from a file. Its values are not checked."""
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A value that can be written as JSON."""

GIT_LFS = (
    b"version https://git-lfs.github.com/", "is a pointer of Git LFS, not the file itself", "fetch the file (git lfs pull)",
)  # fmt: skip
"""Git LFS leaves a pointer in place of a file that was not fetched. The three values are the first bytes of a pointer, the
clause about it in errors, and the remedy."""
BUCKETS = {"gs": "bert_jax.storage.objects"}
"""Scheme of a path -> the module that reads, writes and removes these paths. The module is imported when it is needed."""


def _host() -> str:
    name = os.uname().nodename
    with contextlib.suppress(OSError):  # e.g. not Linux
        name += f" {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - the link's target is a text, not a path
    return f"{zlib.crc32(os.fsencode(name)):08x}"


HOST = _host()
"""A hash of this machine's name and process namespace, for the names of temporary files. A process counts as one of this machine
if both are the same. Containers may share the name of a machine, but do not see each other's processes. A directory may be shared
by machines that do not see each other's locks, so a process only removes leftovers of another machine when they are old.

The hash is short, since a file name has at most 255 bytes. 223 of them are left for the name of a file, and 218 for the name of a
directory."""
PARTIAL_SUFFIX = ".bert_jax.part"
"""The suffix of temporary files, whose content is incomplete. The process that writes a temporary file holds a lock on it."""
_DIRECTORY_SUFFIX = ".bert_jax.directory"
"""The suffix of temporary directories. The process that writes one holds a lock on the temporary file of the same name."""
_DAY = 24 * 60 * 60
"""The seconds after which a leftover of another machine is old."""
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
"""The errors of file systems without locks, such as some network file systems."""


def _bucket_module(path: Path) -> Any:
    """Returns the module for a path in a bucket, or None for a local path."""
    scheme, separator, _ = os.fspath(path).partition("://")
    return importlib.import_module(BUCKETS[scheme]) if separator and scheme in BUCKETS else None


# Whole files


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file. Raises FileNotFoundError if the file does not exist, and OSError if it cannot be read."""
    bucket = _bucket_module(path)
    content: bytes = bucket.read_bytes(path) if bucket else pathlib.Path(path).read_bytes()
    return content


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces `path` atomically. A reader sees the complete old file or the complete new file. A device or a pipe is written
    to."""
    if bucket := _bucket_module(path):
        bucket.write(path, content)
        return
    path = pathlib.Path(path)
    if path.is_char_device() or path.is_fifo():
        path.write_bytes(content)
        return
    with replacing(path) as file:
        file.write(content)


def write_text(path: Path, content: str) -> None:
    """Replaces `path` atomically with UTF-8 text. File names in the text may have bytes that are not UTF-8. These are
    escaped."""
    write_bytes(path, content.encode(errors="backslashreplace"))


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Yields a temporary file next to `path`. At the end of the `with` block, the file is renamed to `path`. After an
    exception, e.g. if the disk is full, the temporary file is removed and `path` is unchanged."""
    partial = PartialFile(path)
    try:
        yield partial.file
        partial.complete()
    finally:
        partial.close()


class PartialFile:
    """A temporary file next to `path`, open for writing as `file`. `complete` renames the file to `path`. `close` removes the
    file if it was not completed.

    This process holds a lock on the file. The lock shows other processes that the file is not a leftover of a killed process
    (`being_written`)."""

    def __init__(self, path: pathlib.Path):
        self._path, self.temporary = path, path.with_name(f".{path.name}.{HOST}.{os.getpid()}{PARTIAL_SUFFIX}")
        self._is_complete = self._is_on_disk = False
        while True:
            try:
                self.file: IO[bytes] = self.temporary.open("xb")
            except FileExistsError:  # the file belongs to another thread, or is a leftover of a killed process with the same id
                try:
                    with _leftover(self.temporary) as is_free:
                        self.temporary.unlink() if is_free else time.sleep(0.001)
                except FileNotFoundError:
                    pass
                except OSError:  # the file is a link, or the file system has no locks
                    self.temporary.unlink(missing_ok=True)
                continue
            while try_lock(self.file.fileno()) is False:  # another process checks whether the file is a leftover
                time.sleep(0.001)
            if os.fstat(self.file.fileno()).st_nlink:
                break
            self.file.close()  # another process removed the file as a leftover before it was locked

    def flush_to_disk(self) -> None:
        """Waits until the content is on the disk. The caller must have written all of the content."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self._is_on_disk = True

    def complete(self) -> None:
        """Renames the file to `path` after its content is on the disk."""
        if not self._is_on_disk:
            self.flush_to_disk()
        self.temporary.replace(self._path)
        self._is_complete = True

    def close(self) -> None:
        """Closes the file. Removes the file if it was not completed."""
        if not self._is_complete:  # after a rename, another thread may already use the name
            with contextlib.suppress(OSError):  # which would hide the error that ended the writing
                self.temporary.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.file.close()


def being_written(path: pathlib.Path, besides: pathlib.Path | None = None) -> list[pathlib.Path]:
    """Returns the temporary files of `path`, except `besides`, that running processes are writing. A temporary file of this name
    also exists while a process is writing the directory `path`."""
    parts = _temporaries(path.parent, path.name, PARTIAL_SUFFIX)
    return [part for part in parts if part != besides and _is_being_written(part)]


def _temporaries(directory: pathlib.Path, name: str, suffix: str) -> list[pathlib.Path]:
    """Returns the temporary files or directories (by their suffix) of the file or directory `name`, or of all
    names if `name` is empty."""
    pattern = re.compile(rf"\.{re.escape(name) or '(?s:.+)'}\.[^.]+\.[0-9]+{re.escape(suffix)}")
    parts = directory.glob(f".{glob.escape(name) or '*'}.*.*{suffix}")
    return [part for part in parts if pattern.fullmatch(part.name)]


def _is_being_written(part: pathlib.Path) -> bool:
    with contextlib.suppress(OSError), _leftover(part) as is_free:
        return not is_free
    return False


def remove_leftovers(directory: pathlib.Path, name: str = "") -> None:
    """Removes the temporary files and directories of processes that no longer run. These are regular files of this user without
    a lock, and directories of this user without a temporary file. Leftovers of another machine, such as a container that no
    longer exists, are only removed if they have not changed for a day. With `name`, only removes the leftovers of this file."""
    for part in _temporaries(directory, name, PARTIAL_SUFFIX):
        with contextlib.suppress(OSError):
            if _is_removable(part):
                with _leftover(part) as is_free:
                    part.unlink() if is_free else None
    for part in _temporaries(directory, name, _DIRECTORY_SUFFIX):
        with contextlib.suppress(OSError):
            if not part.with_suffix(".part").exists() and _is_removable(part):
                remove_tree(part)


def _is_removable(part: pathlib.Path) -> bool:
    """Returns whether a temporary file or directory belongs to this user, and to this machine or has not changed for a day."""
    if part.lstat().st_uid != os.geteuid():
        return False
    if part.name.split(".")[-4] == HOST:
        return True
    inside = part.with_suffix(".directory").rglob("*")  # the writer of a directory does not change the file that it has locked
    return max(path.lstat().st_mtime for path in (part, *inside)) < time.time() - _DAY


@contextlib.contextmanager
def _leftover(part: pathlib.Path) -> Iterator[bool]:
    """Takes the lock of a temporary file within the block if no process holds it. Yields whether the lock was free. On a file
    system without locks, a file is free if its process ran on this machine and has ended.

    Raises OSError if this cannot be determined, e.g. for a symbolic link or a file that this user may not read.
    """
    try:
        descriptor = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)  # some network file systems only lock such files
    except PermissionError:  # another user's file
        descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        gained = try_lock(descriptor)
        if gained is None and not (gained := _has_ended(part)):
            raise OSError(errno.ENOLCK, "no locks on this file system")
        if gained and not is_still(part, descriptor):
            raise FileNotFoundError(errno.ENOENT, "the file has been renamed")
        yield gained
    finally:
        os.close(descriptor)


def _has_ended(part: pathlib.Path) -> bool:
    """Returns whether the process that wrote a temporary file ran on this machine and has ended."""
    *_, host, process = part.name.removesuffix(PARTIAL_SUFFIX).split(".")
    try:
        os.kill(int(process), 0) if host == HOST else None
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError, ValueError):
        pass
    return False


def flush_to_disk(path: pathlib.Path) -> None:
    """Waits until a file, or the list of entries of a directory, is on the disk and safe from a power failure. Some file systems
    cannot do this for a directory, which is then left as it is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (error.errno in (errno.EINVAL, errno.EBADF) and path.is_dir()):
            raise
    finally:
        os.close(descriptor)


# Whole directories


@contextlib.contextmanager
def writing_directory(path: pathlib.Path, *, replace: bool = False) -> Iterator[pathlib.Path]:
    """Yields an empty temporary directory next to `path`. At the end of the `with` block, the directory is renamed to `path`
    after its content is on the disk. After an exception, the temporary directory is removed and `path` is unchanged. If `path`
    is a link, the target of the link is written.

    If `path` exists at the end and is not empty, raises FileExistsError, since another process was faster. With `replace`, the
    older directory is instead moved to `aside(path)`, and removed when the new one has its name. If the process is killed in
    between, `restore` moves the older directory back."""
    path = _resolved(path)
    with contextlib.closing(PartialFile(path)) as lock:
        restore(path, besides=lock.temporary)
        part, old = lock.temporary.with_suffix(".directory"), aside(path)
        try:
            remove_tree(part)  # left by a killed process with the same id
            part.mkdir()
            yield part
            for inside in (*part.rglob("*"), part):  # otherwise a power failure could leave empty files
                if not inside.is_symlink():
                    flush_to_disk(inside)
            is_moved = replace and path.is_dir()
            if is_moved:
                path.rename(old)
            try:
                part.rename(path)
            except BaseException as error:
                if is_moved:
                    with contextlib.suppress(OSError):  # another process was faster
                        old.rename(path)
                if isinstance(error, OSError) and error.errno == errno.ENOTEMPTY:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path)) from error
                raise
            if is_moved:
                old.rename(part)  # a directory that is partly removed is thus never taken for a complete one
        finally:
            remove_tree(part)


def restore(path: pathlib.Path, besides: pathlib.Path | None = None) -> None:
    """Moves an older directory `path` back that a killed process left at `aside(path)`, or removes it if the new one is in
    place. Removes the temporary directories of `path` that killed processes left. Does nothing if a process is writing `path`
    (to a temporary file other than `besides`)."""
    path = _resolved(path)
    if being_written(path, besides):
        return
    remove_leftovers(path.parent, path.name)
    old = aside(path)
    if old.is_symlink():  # this package does not make links, so the link is not followed
        old.unlink()
    elif old.is_dir() and not os.path.lexists(path):
        old.rename(path)
    elif old.is_dir():
        removed = path.with_name(f".{path.name}.{HOST}.{os.getpid()}{_DIRECTORY_SUFFIX}")
        old.rename(removed)
        remove_tree(removed)


def aside(path: pathlib.Path) -> pathlib.Path:
    """Returns the name that the older directory `path` has while a new one gets its name."""
    path = _resolved(path)
    return path.parent / f".{path.name}.replaced"  # "/" has no name


def _resolved(path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(os.path.realpath(path))  # unlike "." and "..", it ends with a name


def take_away_unfinished(path: pathlib.Path) -> None:
    """Removes the temporary directories of `path`, even if a process is still writing to one of them, such as a worker whose
    parent was killed. Each directory is first renamed. The process could otherwise add its last file to a directory whose other
    files are gone, and give it the name `path`."""
    restore(path)
    start = f".{glob.escape(path.name)}.*"
    for part in path.parent.glob(f"{start}{_DIRECTORY_SUFFIX}*"):
        removed = part.with_name(f"{part.name}.removed")
        with contextlib.suppress(FileNotFoundError):  # the process has completed the directory
            part.rename(removed)
        remove_tree(removed)
    for part in path.parent.glob(f"{start}{PARTIAL_SUFFIX}"):
        part.unlink(missing_ok=True)


# JSON


def parse_json(text: str | bytes, *, strict: bool = False) -> Any:
    """Parses JSON text. The project has no other JSON reader. `strict` rejects NaN and infinities, which Python writes but the
    JSON standard does not allow. It also rejects numbers like 1e999, which Python reads as infinity.

    Raises ValueError if the text is invalid, if an object has duplicate keys, if an integer has more digits than Python
    converts, or if brackets are nested too deeply for json.loads (about ten thousand levels)."""
    try:
        if strict:
            return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite_float)
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("brackets are nested too deep") from None
    except ValueError as error:
        if "integer string conversion" in str(error):  # Python suggests a remedy that does not help a user
            raise ValueError(f"a number has more than {sys.get_int_max_str_digits():,} digits") from None
        raise


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):  # Python would silently use the last value
        for name, _ in pairs:
            if name not in found:
                raise ValueError(f"the key {name[:80]!r} occurs twice in one object")
            del found[name]
    return found


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large for a float")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def read_json(path: Path, remedy: str = "remove it and run the same command again") -> Any:
    """Returns the value in a JSON file. If the file cannot be read, raises UserError with the file name and the `remedy`."""
    try:
        content = read_bytes(path)
        refuse_pointer(path, content)
        return parse_json(content)
    except (OSError, ValueError) as error:
        raise UserError(f"{os.fspath(path)} cannot be read as JSON ({error}); {remedy}") from error


def refuse_pointer(path: Path, content: bytes) -> None:
    """Raises UserError if `content`, which was read from `path`, is a pointer of Git LFS."""
    if content.startswith(GIT_LFS[0]):
        raise UserError(f"{os.fspath(path)} {GIT_LFS[1]}; {GIT_LFS[2]}")


def read_object(path: Path, remedy: str = "remove it and run the same command again") -> JsonObject:
    """Returns the object in a JSON file. Raises UserError like `read_json`, and also if the file holds another type of
    value."""
    content = read_json(path, remedy)
    if not isinstance(content, dict):
        raise UserError(f"{os.fspath(path)} must hold a JSON object, but holds {json.dumps(content)[:40]}; {remedy}")
    return content


def read_record(path: Path) -> JsonObject | None:
    """Returns the object in a JSON file, or None if the file does not exist or holds no object. Raises OSError (in a bucket,
    StorageError) if the file cannot be read at the moment, because a record that exists must not be taken for a missing one."""
    try:
        content = parse_json(read_bytes(path))
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_json(path: Path, value: Json, *, indent: int = 2, sort_keys: bool = False) -> None:
    """Replaces `path` atomically with `value` as JSON. NaN and infinities become null, since JSON cannot represent them."""
    write_text(path, json.dumps(_finite(value), indent=indent, sort_keys=sort_keys) + "\n")


def _finite(value: Json) -> Json:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def json_lines(path: Path, *, strict: bool = False) -> list[JsonObject]:
    """Returns the objects of a JSON lines file in order. Skips empty lines, lines that are not objects, and lines that are
    incomplete after a kill or a full disk. Raises OSError if the file cannot be read."""
    found = []
    for line in read_bytes(path).splitlines():
        with contextlib.suppress(ValueError):
            found.append(parse_json(line, strict=strict))
    return [value for value in found if isinstance(value, dict)]


# Locks


@contextlib.contextmanager
def locked(path: pathlib.Path, refusal: str | Callable[[], str] | None = None) -> Iterator[IO[str]]:
    """Holds a lock on the file `path` within the block. The file is created if it does not exist. The lock is released at the
    end, and also if the process is killed. Forked processes do not inherit the lock.

    If another process on this machine holds the lock, raises UserError with the text `refusal`. If `refusal` is None, waits for
    the lock. On a file system without locks, logs a warning and runs the block. Yields the open lock file. The block may write
    a note to this file."""
    import filelock  # this import takes 0.04 s

    descriptors: list[int] = []
    lock = filelock.FileLock(
        path, timeout=-1 if refusal is None else 0, thread_local=False, preserve_lock_file=True, on_acquired=descriptors.append
    )
    try:
        lock.acquire()
        while not is_still(path, descriptors[-1]):  # another process replaced the file after it was opened
            lock.release()
            lock.acquire()
    except filelock.Timeout:
        assert refusal is not None
        raise UserError(refusal if isinstance(refusal, str) else refusal()) from None
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        message = "%s cannot be locked (%s); make sure that no other run uses it"
        log.warning(message, path.parent, error.strerror)
    try:
        with path.open("r+", encoding="utf-8", errors="replace") as file:
            yield file
    finally:
        lock.release()


def this_process() -> str:
    """Returns the words by which a lock names this process to other processes."""
    return f"process {os.getpid()} on {os.uname().nodename}, since {time.strftime('%Y-%m-%d %H:%M:%S %Z')}"


def is_locked(path: pathlib.Path) -> bool:
    """Returns whether a process holds an existing lock file."""
    try:
        with locked(path, "it is"):
            return False
    except UserError:
        return True


def is_still(path: pathlib.Path, descriptor: int) -> bool:
    """Returns whether `path` still names the file or directory that was opened as `descriptor`. A link to it does not count."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def try_lock(descriptor: int) -> bool | None:
    """Locks an open file or directory until it is closed. Returns False if another process holds the lock, and None if the file
    system has no locks."""
    import filelock

    try:
        return filelock.lock_descriptor(descriptor, blocking=False)
    except OSError:
        return None


# Removal


def remove_tree(path: Path) -> None:
    """Removes a directory and its contents if the directory exists. Errors are ignored. Links inside the directory are removed
    but not followed. If the directory itself is a link, nothing is removed."""
    if bucket := _bucket_module(path):
        bucket.remove_tree(path)
    else:
        shutil.rmtree(path, ignore_errors=True)
