"""Verifies the checksums of a corpus against its manifest, and copies a corpus from a bucket to the local disk.

Reading a corpus takes one to two seconds per gigabyte. A corpus is therefore verified only once per machine, in the background
of training. The size and modification time of each verified file are recorded:

    with Verification("DIR") as verification:       # a thread reads the files that this machine has not verified
        for step in ...:
            ...
            verification.check()                    # raises an error if a damaged file was found; takes no time
            verification.wait()                     # before every save: waits for the remaining files

Every save waits until the corpus is verified, so no checkpoint or model comes from a damaged corpus. In practice a save does
not wait, because the verification ends before the first checkpoint."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterable

from bert_jax import files
from bert_jax.data.corpus.store import MANIFEST, CorruptedCorpus, check_sizes, read_manifest, remedy
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.hardware import available_cores
from bert_jax.interface.progress import Progress
from bert_jax.interface.words import byte_unit, counted
from bert_jax.storage.fetching import cached_path, downloading, fetch, forget
from bert_jax.storage.objects import listed
from bert_jax.storage.paths import cache_directory, checked, is_remote

_BLOCK = 4 << 20  # bytes hashed at a time; hashlib releases the GIL while it hashes
_CORES_A_THREAD, _MOST_THREADS = 4, 8  # one thread hashes 1-2 GB/s, and a fast disk reads several times as much
_NICENESS = 10  # the threads get a lower priority than training
_SAVE_SECONDS = 5.0
_TICK = 0.5  # seconds

log = logging.getLogger(__name__)

_Seen = list[int | str]  # [bytes, modification time in ns, sha256] of a verified file


class Verification:
    """Compares the files of the corpus in `directory` with the manifest of the corpus. Background threads compare the files
    between `__enter__` and `__exit__`.

    A file is skipped if this machine has verified it before and the size and modification time of the file are unchanged. With
    `again`, no file is skipped."""

    def __init__(self, directory: pathlib.Path | str, *, again: bool = False):
        self._directory = pathlib.Path(directory)
        self._expected: dict[str, JsonObject] = {}
        for shard in read_manifest(self._directory)["shards"]:
            check_sizes(self._directory / shard["name"], shard["files"])
            self._expected |= {f"{shard['name']}/{name}": facts for name, facts in shard["files"].items()}
        self._memory = _record_file(self._directory)
        self._seen = {} if again else _read_record(self._memory)
        self._pending = [name for name in self._expected if not self._is_seen(name)]
        self.bytes = sum(self._expected[name]["bytes"] for name in self._pending)
        self.done = 0  # how many of `self.bytes` are verified so far
        self._fault: UserError | None = None
        self._stopped = threading.Event()
        self._ended = threading.Event()  # every file is verified, or a damaged file was found
        self._lock = threading.Lock()
        self._saved = time.monotonic()
        self._thread: threading.Thread | None = None
        if not self._pending:
            self._ended.set()

    def _is_seen(self, name: str) -> bool:
        seen = self._seen.get(name)
        return seen == [*_stamp(self._directory / name), self._expected[name]["sha256"]]

    def __enter__(self) -> Verification:
        if self._pending:
            # The thread is a daemon, so it does not delay the exit of the process inside the `with` block.
            self._thread = threading.Thread(target=self._run, name="verification", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()  # at most the time to hash one block

    def check(self) -> None:
        """Raises CorruptedCorpus if a damaged file was found. Takes no time, because it only reads an attribute."""
        if self._fault is not None:
            raise self._fault

    def wait(self, alive: Callable[[], object] = lambda: None) -> None:
        """Waits until every file is verified, and calls `alive` every 0.5 s. Raises the errors of `check`."""
        if not self._ended.is_set():
            log.info("waiting until the corpus is verified: %s", self._sizes())
        while not self._ended.wait(_TICK):
            alive()
        self.check()

    def _sizes(self) -> str:
        scale, unit = byte_unit(self.bytes)
        return f"{self.done / scale:,.0f} of {self.bytes / scale:,.0f} {unit}"

    def _run(self) -> None:
        began, bytes_each = time.monotonic(), {name: self._expected[name]["bytes"] for name in self._pending}
        largest_first = sorted(self._pending, key=bytes_each.__getitem__, reverse=True)
        threads = max(1, min(_MOST_THREADS, available_cores() // _CORES_A_THREAD, len(largest_first)))
        try:
            with concurrent.futures.ThreadPoolExecutor(threads, "verification", initializer=_lower_priority) as pool:
                list(pool.map(self._verify, largest_first))
        except Exception as error:  # this is a bug in bert_jax; if `_fault` were not set, the run would wait forever
            self._fail(UserError(f"the corpus {self._directory} could not be verified: {error!r}"))
        finally:
            self._remember()
        if self._fault is None and not self._stopped.is_set():
            seconds = time.monotonic() - began
            files = counted(len(largest_first), "file")
            scale, unit = byte_unit(self.bytes)
            log.info("the corpus is verified: %s, %s %s, %.1fs", files, f"{self.bytes / scale:,.0f}", unit, seconds)
            self._ended.set()

    def _fail(self, error: UserError) -> None:
        self._fault = self._fault or error
        self._ended.set()

    def _verify(self, name: str) -> None:
        if self._stopped.is_set() or self._fault is not None:
            return
        file, expected = self._directory / name, self._expected[name]["sha256"]
        try:
            stamp = _stamp(file)
            found = self._sha256(file)
        except OSError as error:
            self._fail(CorruptedCorpus(f"corrupted corpus: {file} cannot be read: {error.strerror}; {remedy(file)}"))
            return
        if found is None:
            return
        if found != expected:
            self._fail(
                CorruptedCorpus(
                    f"corrupted corpus: {file} has changed since it was written: its sha256 is {found[:12]}..., expected "
                    f"{expected[:12]}...; {remedy(file)}"
                )
            )
            return
        with self._lock:
            self._seen[name] = [*stamp, expected]
            due = time.monotonic() - self._saved > _SAVE_SECONDS
        if due:
            self._remember()

    def _sha256(self, file: pathlib.Path) -> str | None:
        """Returns the SHA-256 of a file in hexadecimal, or None if the verification was stopped."""
        digest, block = hashlib.sha256(), memoryview(bytearray(min(_BLOCK, file.stat().st_size + 1)))
        with file.open("rb", buffering=0) as opened:
            while size := opened.readinto(block):
                if self._stopped.is_set():
                    return None
                digest.update(block[:size])
                with self._lock:
                    self.done += size
        return digest.hexdigest()

    def _remember(self) -> None:
        """Records the files verified so far. If the run is killed, the next run does not verify these files again."""
        with self._lock:
            self._saved = time.monotonic()
            content: JsonObject = {"corpus": str(self._directory.resolve()), "files": dict(self._seen)}
        with contextlib.suppress(OSError):  # the home directory is missing or full; the next run verifies the files again
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(self._memory, content, indent=1)


class Verifications:
    """Verifies several corpora, with the methods of `Verification`."""

    def __init__(self, directories: Iterable[pathlib.Path | str]):
        self._each = [Verification(directory) for directory in dict.fromkeys(map(str, directories))]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Verifications:
        for one in self._each:
            self._stack.enter_context(one)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def check(self) -> None:
        """Raises CorruptedCorpus if a damaged file was found in any of the corpora."""
        for one in self._each:
            one.check()

    def wait(self, alive: Callable[[], object] = lambda: None) -> None:
        """Waits until all corpora are verified, and calls `alive` every 0.5 s. Raises the errors of `check`."""
        for one in self._each:
            one.wait(alive)


def verify(directory: pathlib.Path | str) -> tuple[int, int]:
    """Verifies the whole corpus now, including files that were verified before. Shows a progress line. Returns (number of
    files, number of bytes) of the corpus.

    Raises CorruptedCorpus at the first damaged file.
    """
    with Verification(directory, again=True) as verification:
        scale, unit = byte_unit(verification.bytes)
        with Progress("verifying the corpus:", total=round(verification.bytes / scale), unit=unit) as progress:
            verification.wait(lambda: progress.update(round(verification.done / scale)))
        return len(verification._expected), verification.bytes


def _stamp(file: pathlib.Path) -> list[int]:
    facts = file.stat()
    return [facts.st_size, facts.st_mtime_ns]


def _record_file(directory: pathlib.Path) -> pathlib.Path:
    """Returns the path at which this machine records the verified files of a corpus."""
    key = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:20]
    return cache_directory() / "verified" / f"{key}.json"


def _read_record(path: pathlib.Path) -> dict[str, _Seen]:
    try:
        remembered = files.read_object(path).get("files")
    except UserError:  # the record is missing or damaged, so all files are verified again
        return {}
    return remembered if isinstance(remembered, dict) else {}


def _lower_priority() -> None:
    """Lowers the priority of this thread if the system has priorities per thread (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


KEY = "config.corpus.directory"


def local_corpus(directory: str | pathlib.Path, name: str = KEY) -> pathlib.Path:
    """Returns the local directory of a corpus. A corpus in a bucket is copied to the local disk. A local corpus is used in
    place. `name` is the flag or key of the corpus, for messages.

    A new or changed copy is verified immediately. A copy made earlier is verified in the background, as all corpora are. Raises
    UserError if there is no corpus, if the corpus does not fit on the disk, if an object is missing, or if an object has
    changed since the corpus was built."""
    text = checked(str(directory), name)
    if not is_remote(text):
        return pathlib.Path(text)
    with downloading():
        return _copied(text, name)


def _copied(text: str, name: str) -> pathlib.Path:
    objects = listed(text)
    if MANIFEST not in objects:
        raise UserError(
            f"{name}={text} is not a corpus, because the bucket has no {MANIFEST} there; build a corpus with python -m "
            f"bert_jax.corpus --output={text} ..., or upload a corpus: `gcloud storage rsync --recursive DIR {text}`"
        )
    copy = cached_path(text)
    if fetch(text, copy, objects):
        try:
            verify(copy)
        except CorruptedCorpus as error:
            forget(copy)
            reason = str(error).partition("; ")[0].removeprefix("corrupted corpus: ").replace(str(copy), text)
            raise UserError(
                f"the corpus {text} is damaged ({reason}); upload it again from the machine that built it: "
                f"`gcloud storage rsync --recursive --checksums-only DIR {text}`"
            ) from error
    return copy
