"""Processes that share the runs of a sweep among themselves, each on its own devices and without a collective between them.

Without them a grid on a slice of several hosts would train one small run after another on all chips. Hours lie between the
end of the first process and of the last, and a collective would time out; so each process writes a small file into the workdir
and reads those of the others: that it is alive, that it was asked to stop, the results of its runs.

The `results.json` of the runs and the age of their `metrics.jsonl` alone would be less code, but could not say two of these
things: that one process was asked to stop, so that all save and stop (a preempted host ends its slice), and that a new start has
begun, so that processes of an earlier start which still run leave the files to it.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from bert_jax.corpus.files import Json, JsonObject, parse_json
from bert_jax.errors import UserError
from bert_jax.metrics.writer import write_json
from bert_jax.runtime.workdir import locked

log = logging.getLogger(__name__)

Item = TypeVar("Item")

FOLDER = ".processes"
WORKING, DONE, STOPPED, FAILED = "working", "done", "stopped", "failed"
BEAT = 2.0
"""Seconds from one sign of life to the next."""
EARLIER = 120.0
"""Seconds that a process of an earlier start gets to save and end."""


class ProcessesLost(Exception):
    """Another process has failed, or shows no sign of life."""


class ProcessShare:
    """The part of this process, number `index` of `count`; alone it has everything.

    `stop` is called as soon as another process says that it was asked to stop, or process 0 is gone. One that shows no sign of
    life for `patience` seconds counts as lost. `start` names this start: what an earlier one has left is not heeded. Its
    processes, should they still run, stop, and the new ones wait for that; UserError is raised if they do not.

    >>> with ProcessShare(directory, 1, 4, start="5e0c", stop=preemption.request) as share:
    ...     mine = {run: train(run) for run in share.of(runs)}
    ...     everything = share.gather(mine, waiting=lambda: None)  # in process 0; None in the others, which may leave
    """

    def __init__(
        self,
        directory: pathlib.Path,
        index: int = 0,
        count: int = 1,
        *,
        start: str = "",
        stop: Callable[[], object] = lambda: None,
        patience: float = 600.0,
        beat: float = BEAT,
    ):
        self.index, self.count = index, count
        self._workdir, self._start, self._stop, self._patience, self._beat = directory, start, stop, patience, beat
        self._folder = directory / FOLDER
        self._own: JsonObject = {"start": start, "beats": 0, "state": WORKING, "value": None}
        self._heard: dict[int, tuple[JsonObject, float]] = {}
        self._earlier: str | None = None  # the start whose record of process 0 was there before this process came
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._live, name="share", daemon=True)
        self._held = contextlib.ExitStack()

    def __enter__(self) -> ProcessShare:
        if self.count > 1:
            self._folder.mkdir(exist_ok=True)
            self._earlier = self._start_of_first()
            self._write()
            self._hold()
            now = time.monotonic()
            self._heard = {other: ({"beats": 0, "state": WORKING}, now) for other in range(self.count) if other != self.index}
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.count > 1:
            self._closed.set()
            self._thread.join()
            self._held.close()
            if self._own["state"] == WORKING:
                with contextlib.suppress(OSError):
                    self._write(state=FAILED)

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """Every `count`-th item: neighbours, which are alike but for the seed, go to different processes."""
        return items[self.index :: self.count]

    def tell_stopped(self) -> None:
        """Says that this process was asked to stop, and leaves off; the others are to do the same."""
        with contextlib.suppress(OSError):
            self._write(state=STOPPED)

    def gather(self, value: JsonObject, waiting: Callable[[], bool]) -> list[JsonObject] | None:
        """In process 0 the values (plain, as JSON takes them) of all processes in their order, once each has given its own. None
        in the others; in process 0 too if one was asked to stop, or if `waiting`, called every second, says so.

        Raises ProcessesLost when one can no longer give its value, OSError when this one cannot.
        """
        if self.count == 1:
            return [value]
        self._write(state=DONE, value=value)
        if self.index:
            return None
        while True:
            self._listen()
            heard = {other: record["state"] for other, (record, _) in self._heard.items()}
            if STOPPED in heard.values() or waiting():
                self.tell_stopped()
                return None
            if all(state == DONE for state in heard.values()):
                return [value, *(self._heard[other][0]["value"] for other in range(1, self.count))]
            if lost := [str(other) for other in heard if self._lost(other)]:
                raise ProcessesLost(f"process {', '.join(lost)} of {self.count} failed or shows no sign of life")
            time.sleep(min(1.0, self._beat))

    def _lost(self, other: int) -> bool:
        record, since = self._heard[other]
        silent = record["state"] == WORKING and time.monotonic() - since > self._patience
        return silent or record["state"] == FAILED

    def _hold(self) -> None:
        """Waits for the process with this number of an earlier start, should it still run: both would write the same files."""
        deadline = time.monotonic() + min(EARLIER, self._patience)
        while True:
            try:
                self._held.enter_context(locked(self._workdir, f"{FOLDER}/{self.index}.lock"))
                return
            except UserError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def _is_over(self) -> bool:
        """Whether there is nothing to go on for: another process was asked to stop, or the first one is gone."""
        if any(record["state"] == STOPPED for record, _ in self._heard.values()):
            return True
        if not self.index:
            return False
        # A record of an earlier start stays until process 0 of this one replaces it, which may be after this process has begun.
        return self._lost(0) or self._start_of_first() not in (None, self._start, self._earlier)

    def _start_of_first(self) -> str | None:
        """The start that the record of process 0 is of; None while there is no record."""
        first = _read(self._folder / "0.json")
        return None if first is None else str(first["start"])

    def _live(self) -> None:
        told = False
        while not self._closed.wait(self._beat):
            try:
                self._write(beats=self._own["beats"] + 1)
            except OSError as error:  # a full disk: the next one may come through
                log.warning("%s cannot be written (%s)", self._folder, error.strerror)
            self._listen()
            if not told and self._is_over():
                told = True
                log.warning("another process was asked to stop, or the first one is gone: saving, then stopping")
                self._stop()

    def _write(self, **changes: Json) -> None:
        if self.count == 1:
            return
        with self._writing:
            self._own |= changes
            write_json(self._folder / f"{self.index}.json", self._own)

    def _listen(self) -> None:
        for other, (before, _) in self._heard.items():
            record = _read(self._folder / f"{other}.json")
            if record is not None and record["start"] == self._start and record != before:
                self._heard[other] = record, time.monotonic()


def _read(path: pathlib.Path) -> JsonObject | None:
    """What a process has written; None while there is nothing."""
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None
