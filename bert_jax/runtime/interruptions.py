"""Handles the two interruptions of a run, a request to stop (SIGTERM, Ctrl-C) and a hang. The run can be resumed after both."""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import os
import pathlib
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType


class Preemption:
    """Converts SIGTERM and the first Ctrl-C to a flag that the training loop polls. After SIGTERM, a preempted machine has
    seconds to minutes left.

    >>> with Preemption() as preemption:
    ...     for step in range(first, last):
    ...         state = train_step(state)
    ...         if preemption.requested():
    ...             save(); sys.exit(preemption.exit_status)

    If several processes train one run, `agreed` is their `Processes.stop_together`, so that all of them stop after the same step.
    Every process must then call `requested` after every step. A second Ctrl-C interrupts immediately. A process that was started
    to ignore Ctrl-C (`&` in a script) continues to ignore it."""

    def __init__(self, agreed: Callable[[bool], bool] | None = None) -> None:
        self._signal: int | None = None
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._agreed = agreed

    def __enter__(self) -> Preemption:
        if threading.current_thread() is threading.main_thread():  # only the main thread can set handlers
            ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # started with `&` in a script
            for number in (signal.SIGTERM, *(() if ignored else (signal.SIGINT,))):
                self._previous[number] = signal.signal(number, self._notice)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def requested(self) -> bool:
        """Returns whether the run should save and end after the current step. The answer is the same in every process."""
        if self._agreed is None:
            return self._signal is not None
        if is_agreed := self._agreed(self._signal is not None):
            self.request()
        return is_agreed

    def requested_here(self) -> bool:
        """Returns whether the run should save and end, at any time between two steps. With several processes, this is always
        False, because the processes do not notice a signal at the same time."""
        return self._agreed is None and self._signal is not None

    def request(self) -> None:
        """Requests a stop, as SIGTERM does. This is called when another process was asked to stop."""
        self._signal = self._signal or signal.SIGTERM

    @property
    def exit_status(self) -> int:
        """The exit status that a shell shows for a process that was ended by the signal: 143 after SIGTERM, 130 after Ctrl-C."""
        return 128 + (self._signal or signal.SIGTERM)

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._signal is not None:
            raise KeyboardInterrupt
        self._signal = number
        step = "this step" if self._agreed is None else "a step that all processes reach"
        again = "; Ctrl-C again stops at once, without saving" if number == signal.SIGINT else ""
        # os.write is used, since print is not safe in a handler, which may have interrupted another print
        os.write(2, f"\n{signal.Signals(number).name}: saving after {step}, then stopping{again}\n".encode())


class Watchdog:
    """Detects that this process makes no progress. `Processes.watched_by` then ends this process and all other processes.

    A collective with a dead process waits forever, and JAX's heartbeat does not detect this. The limit without progress is
    max(`factor` x the median time of the last 101 steps, `floor` seconds). Compiling a large model takes long. Therefore, the
    limit is max(`start`, `floor`) seconds until the time of a step has been measured, from the start of a compilation to the
    next progress, and while a checkpoint is saved or restored, since the storage may be slow. Time in which the
    process was stopped (Ctrl-Z) does not count.

    >>> with processes.watched_by(Watchdog(workdir)) as watchdog:
    ...     for step in ...:
    ...         state = train_step(state)
    ...         watchdog.step_done(step)
    ...         for batch in eval_batches:
    ...             evaluate(batch); watchdog.alive("evaluation")
    """

    def __init__(
        self,
        directory: pathlib.Path,
        *,
        floor: float = 600.0,
        factor: float = 10.0,
        start: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._directory, self._floor, self._factor, self._start, self._clock = directory, floor, factor, start, clock
        self._compiles = False
        self._transfers: set[object] = set()
        self._steps: collections.deque[float] = collections.deque(maxlen=101)
        self._doing = "the start (compilation)"
        self._last_step: float | None = None
        self._last = clock()

    def step_done(self, step: int) -> None:
        """Records that a training step has finished. The time of the step counts towards the median."""
        now = self._clock()
        if self._last_step is not None:
            self._steps.append(now - self._last_step)
        self._last_step = self._last = now
        self._doing, self._compiles = f"the step after {step:,}", False

    def alive(self, doing: str) -> None:
        """Records progress other than a training step (evaluation, saving, drawing). This resets the clock, but the time does
        not count towards the median."""
        self._last, self._last_step, self._doing, self._compiles = self._clock(), None, doing, False

    def compiling(self) -> None:
        """Records that a compilation starts. Until the next progress, the limit for the start applies, which is long enough to
        wait for another process that compiles."""
        self.alive("compilation, or the first step after it")
        self._compiles = True

    @contextlib.contextmanager
    def transferring(self, doing: str) -> Iterator[None]:
        """Applies the limit for the start inside the `with` block, in which this thread waits for a storage. Parallel runs
        transfer at the same time."""
        self.alive(doing)
        transfer = object()
        self._transfers.add(transfer)
        try:
            yield
        finally:
            self._transfers.remove(transfer)
            self.alive(f"the work after {doing}")

    def limit(self) -> float:
        """Returns the current limit. More seconds without progress count as a hang."""
        if not self._steps or self._compiles or self._transfers:
            return max(self._start, self._floor)
        return max(self._factor * statistics.median(self._steps), self._floor)

    def hang(self) -> str:
        """Returns a message with the time and the activity if the process has made no progress for longer than the limit.
        Otherwise, returns ""."""
        waited = self._clock() - self._last
        if waited <= self.limit():
            return ""
        return f"made no progress for {waited:.0f} s in {self._doing} (limit {self.limit():.0f} s)"

    def skip(self, seconds: float) -> None:
        """Excludes the last `seconds`, in which the process did not run (Ctrl-Z, suspended machine)."""
        now = self._clock()
        self._last = min(now, self._last + seconds)
        self._last_step = None if self._last_step is None else min(now, self._last_step + seconds)

    def report(self, found: str, process: int) -> None:
        """Writes the message `found` and the stack of every thread to stderr and `DIRECTORY/hang-PROCESS-TIME.txt`."""
        path = self._directory / f"hang-{process}-{time.strftime('%Y%m%d-%H%M%S')}.txt"
        title = f"{found}; the same command resumes from the last checkpoint. Stack of every thread:\n"
        sys.stderr.write(title)
        sys.stderr.flush()
        faulthandler.dump_traceback(file=2, all_threads=True)  # stderr of the process, even if sys.stderr has been replaced
        try:
            with path.open("w") as file:
                file.write(title)
                file.flush()
                faulthandler.dump_traceback(file=file, all_threads=True)
        # A full or disconnected disk may have caused the hang. The stacks have already been written to stderr.
        except OSError as error:
            sys.stderr.write(f"could not write {path}: {error}\n")
