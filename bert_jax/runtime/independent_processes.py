"""Divides the runs of a sweep among processes, each on its own devices and without collectives between them.

Otherwise a sweep on a slice of several hosts would train one small run after another on all chips. The processes may end hours
apart, and a collective would time out; so each process writes a small file with its state into the workdir and reads those of
the others. The file holds a heartbeat, whether the process was asked to stop, and the results of its runs.

The `results.json` of the runs and the age of their `metrics.jsonl` would need less code, but cannot express two of these states:
that one process was asked to stop, so that all save and stop (a preempted host ends its slice), and that a new start has begun,
so that processes of an earlier start that still run leave the files to the new one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from bert_jax.errors import UserError
from bert_jax.files import Json, JsonObject, parse_json, read_bytes, write_json
from bert_jax.runtime.workdir import locked
from bert_jax.storage.paths import Place

log = logging.getLogger(__name__)

Item = TypeVar("Item")

FOLDER = ".processes"
WORKING, DONE, STOPPED, FAILED = "working", "done", "stopped", "failed"
BEAT = 2.0
"""Seconds between heartbeats."""
EARLIER = 120.0
"""Seconds to wait for a process of an earlier start to save and end."""


class ProcessesLost(Exception):
    """Another process has failed, or its heartbeat has stopped."""


class ProcessShare:
    """The share of the process with number `index` of `count` in the runs of a sweep; all of them where `count` is 1.

    `stop` is called when another process was asked to stop, or when process 0 is lost. A process without a heartbeat for
    `patience` seconds counts as lost. `start` identifies this start of the sweep: files of earlier starts are ignored. If
    processes of an earlier start still run, they stop, and the new ones wait for them; UserError is raised if they do not end.

    >>> with ProcessShare(directory, (1, 4), start="5e0c", stop=preemption.request) as share:
    ...     mine = {run: train(run) for run in share.of(runs)}
    ...     everything = share.gather(mine, waiting=lambda: None)  # in process 0; None in the others, which may then end
    """

    def __init__(
        self,
        directory: Place,
        part: tuple[int, int] = (0, 1),
        *,
        start: str = "",
        stop: Callable[[], object] = lambda: None,
        patience: float = 600.0,
        beat: float = BEAT,
    ):
        self.index, self.count = part
        self._workdir, self._start, self._stop, self._patience, self._beat = directory, start, stop, patience, beat
        self._folder = directory / FOLDER
        self._own: JsonObject = {"start": start, "beats": 0, "state": WORKING, "value": None}
        self._heard: dict[int, tuple[JsonObject, float]] = {}
        self._earlier: str | None = None  # the start of the record of process 0 that existed when this process began
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
            self._heard = {other: ({"state": WORKING}, now) for other in range(self.count) if other != self.index}
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
        """Every `count`-th of the `items`, from item `index`. Neighbouring runs, which differ in the seed only and cost the same,
        go to different processes."""
        return items[self.index :: self.count]

    def tell_stopped(self) -> None:
        """Tells the other processes that this one was asked to stop, so that they stop too."""
        with contextlib.suppress(OSError):
            self._write(state=STOPPED)

    def gather(self, value: JsonObject, waiting: Callable[[], bool]) -> list[JsonObject] | None:
        """Waits in process 0 until every process has called `gather`, and returns their JSON values in the order of the
        processes.

        Returns None in the other processes, without waiting, and in process 0 if a process was asked to stop or `waiting`, which
        is called every second, returns True. Raises ProcessesLost where another process failed before its `gather`, and OSError
        where this process cannot write its value.
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
                raise ProcessesLost(f"process {', '.join(lost)} of {self.count} failed or does not respond")
            time.sleep(min(1.0, self._beat))

    def _lost(self, other: int) -> bool:
        record, since = self._heard[other]
        silent = record["state"] == WORKING and time.monotonic() - since > self._patience
        return silent or record["state"] == FAILED

    def _hold(self) -> None:
        """Waits for the end of the process with this number of an earlier start, since both would write the same files."""
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
        """Whether this process should stop: another one was asked to stop, process 0 is lost, or a newer start has begun."""
        if any(record["state"] == STOPPED for record, _ in self._heard.values()):
            return True
        if not self.index:
            return False
        # The record of an earlier start remains until process 0 of this start replaces it, possibly after this process has begun.
        return self._lost(0) or self._start_of_first() not in (None, self._start, self._earlier)

    def _start_of_first(self) -> str | None:
        """The identifier of the start in the record of process 0; None while there is no record."""
        first = _read(self._folder / "0.json")
        return None if first is None else str(first["start"])

    def _live(self) -> None:
        told = False
        while True:
            before = time.monotonic()
            if self._closed.wait(self._beat):
                return
            if time.monotonic() - before > 2 * self._beat:  # this process was stopped, and the others perhaps with it
                self._heard = {other: (record, time.monotonic()) for other, (record, _) in self._heard.items()}
            try:
                self._write(beats=self._own["beats"] + 1)
            except OSError as error:  # for example a full disk; the next heartbeat may succeed
                log.warning("%s cannot be written (%s)", self._folder, error.strerror)
            self._listen()
            if not told and self._is_over():
                told = True
                log.warning("another process was asked to stop, or process 0 is lost: saving, then stopping")
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


def _read(path: Place) -> JsonObject | None:
    """The record that a process has written; None where there is no complete one."""
    try:
        return parse_json(read_bytes(path))
    except (OSError, ValueError):
        return None
