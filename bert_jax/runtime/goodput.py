"""Computes the goodput of a run from the seconds that its starts spent in each time category. `ledger.jsonl` records these
seconds.

Every second between the first start of a run and its end belongs to exactly one category. The goodput is the fraction of this
time in the category `training`."""

from __future__ import annotations

import contextlib
import enum
import itertools
import json
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import jax

from bert_jax.files import JsonObject, json_lines
from bert_jax.interface.words import counted, duration

if TYPE_CHECKING:  # importing it takes a second
    from bert_jax.data.prefetch import prefetch

Made = TypeVar("Made")

GOODPUT_FILE = "ledger.jsonl"
EVERY = 30.0
"""Seconds between lines of the file. The time after the last line of a killed start counts as time between starts."""
POLL = 0.001
"""Seconds between checks of the devices while no batch is ready."""


class TimeCategory(enum.StrEnum):
    """A category of time. The value of a member is its key in `results.json`."""

    TRAINING = "training"
    """Steps that no earlier start had finished."""
    REPEATED = "repeated_steps"
    """Unfinished steps, and steps that are computed again because an earlier start lost them or a rollback undid them."""
    WAITING = "waiting_for_data"
    """Time in which the devices are idle because the next batch is not ready."""
    COMPILING = "compiling"
    EVALUATING = "evaluating"
    SAVING = "saving"
    """Time in which training waits for a checkpoint to be saved. Most of a save runs in the background."""
    RESTORING = "restoring"
    DOWNLOADING = "downloading"
    """Time in which training waits for downloads from a bucket (corpus, model, data, workdir) or for the verification of the
    corpus."""
    OTHER = "other"
    """Starting processes, reading data, exporting the model."""
    BETWEEN = "between_starts"


class GoodputRecorder:
    """Measures the time of each category since its creation, and adds up the starts of a run.

    `clock` counts seconds from any fixed moment, and `wall_clock` counts seconds from the epoch. Other threads may read the
    recorder.

    >>> goodput = GoodputRecorder()
    >>> with goodput.during(TimeCategory.RESTORING):
    ...     state = restore()
    >>> with goodput.training(prefetch(rows, step, last_step), sums.is_computing) as batches:
    ...     for batch in batches:
    ...         state, sums = train_step(state, batch)
    ...         goodput.step_done(step := step + 1)
    >>> goodput.totals()["goodput"]
    0.931
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time):
        self._clock, self._began = clock, wall_clock()
        self._since = clock()
        self._category = TimeCategory.OTHER
        self._seconds = dict.fromkeys(TimeCategory, 0.0)
        self._of_this_step = 0.0  # the training time since the last finished step
        self._step = self._furthest = 0
        self._earlier: Sequence[JsonObject] = ()
        self._lock = threading.Lock()

    def continue_after(self, earlier: Sequence[JsonObject]) -> None:
        """Adds the records of earlier starts. From now on, steps that these starts have already finished count as repeated."""
        self._earlier = earlier
        self._furthest = max((record["step"] for record in earlier), default=0)

    def preceded_by(self, category: TimeCategory, seconds: float) -> None:
        """Adds to `category` the `seconds` that this process spent on it before the recorder was created."""
        with self._lock:
            self._seconds[category] += seconds
            self._began -= seconds

    @contextlib.contextmanager
    def during(self, category: TimeCategory) -> Iterator[None]:
        """Counts the time of the `with` block as `category`. Blocks may be nested."""
        before = self._change(category)
        try:
            with jax.profiler.TraceAnnotation(category.value):  # the name of the block in a profile
                yield
        finally:
            self._change(before)

    @contextlib.contextmanager
    def training(self, batches: prefetch[Made], is_computing: Callable[[], bool]) -> Iterator[Iterator[Made]]:
        """Counts the time of the `with` block as training. Yields an iterator over `batches`, and closes `batches` at the end.

        The time until the next batch counts as waiting once the devices are idle (`is_computing` returns False). The time after
        the last finished step counts as training, unless an exception ends the block. In that case, the unfinished step will be
        repeated.
        """
        with batches, self.during(TimeCategory.TRAINING):
            yield self._awaited(batches, is_computing)
            self._finish_step()

    def step_done(self, step: int) -> None:
        """Counts the time since the last call as training time. The step that has just finished has the number `step`."""
        self._step = step
        self._finish_step()

    def rolled_back(self) -> None:
        """From now on, steps that this start has already finished count as repeated."""
        self._furthest = max(self._furthest, self._step)

    def record(self) -> JsonObject:
        """Returns this start's line of `ledger.jsonl`. It has the index of the start (from 1), the time at which it began, the
        last finished step, and the seconds of each category."""
        with self._lock:
            self._settle()
            seconds = dict(self._seconds)
            seconds[TimeCategory.REPEATED] += self._of_this_step
        return {
            "start": max((record["start"] for record in self._earlier), default=0) + 1,
            "began": round(self._began, 3),
            "step": self._step,
            "seconds": {str(category): round(spent, 3) for category, spent in seconds.items() if spent},
        }

    def totals(self) -> JsonObject:
        """Returns the entry "ledger" of `results.json` for all starts so far; see `sum_starts`."""
        return sum_starts([*self._earlier, self.record()])

    def _awaited(self, batches: prefetch[Made], is_computing: Callable[[], bool]) -> Iterator[Made]:
        while True:
            while not batches.is_ready() and is_computing():
                batches.is_ready(within=POLL)
            try:
                if batches.is_ready():
                    batch = next(batches)
                else:
                    with self.during(TimeCategory.WAITING):
                        batch = next(batches)
            except StopIteration:
                return
            yield batch

    def _change(self, category: TimeCategory) -> TimeCategory:
        """Counts the time from now on as `category`. Returns the previous category."""
        with self._lock:
            self._settle()
            before, self._category = self._category, category
        return before

    def _settle(self) -> None:
        """Counts the time since the last call as the current category."""
        now = self._clock()
        spent, self._since = now - self._since, now
        if self._category is TimeCategory.TRAINING:
            self._of_this_step += spent
        else:
            self._seconds[self._category] += spent

    def _finish_step(self) -> None:
        with self._lock:
            self._settle()
            kind = TimeCategory.REPEATED if 0 < self._step <= self._furthest else TimeCategory.TRAINING
            self._seconds[kind] += self._of_this_step
            self._of_this_step = 0.0


def sum_starts(records: Sequence[JsonObject]) -> JsonObject:
    """Adds up the starts of a run. Returns {"goodput": fraction, "starts": count, "seconds": {category: seconds}}.

    `records` are the lines of `ledger.jsonl`. The last line of a start replaces the earlier lines of this start. The time
    between two starts runs from the last line of the first start to the beginning of the second start. It is 0 if a clock was
    set back."""
    last = {record["start"]: record for record in records}
    starts = [last[number] for number in sorted(last)]
    seconds = dict.fromkeys(map(str, TimeCategory), 0.0)
    for start in starts:
        for category, spent in start["seconds"].items():
            seconds[category] = seconds.get(category, 0.0) + spent
    for former, latter in itertools.pairwise(starts):
        ended = former["began"] + sum(former["seconds"].values())
        seconds[TimeCategory.BETWEEN] += max(0.0, latter["began"] - ended)
    return _summary(len(starts), seconds)


def combined(totals: Sequence[JsonObject]) -> JsonObject:
    """Adds the totals of several runs, e.g. of a sweep."""
    seconds: dict[str, float] = {}
    for one in totals:
        for category, spent in one["seconds"].items():
            seconds[category] = seconds.get(category, 0.0) + spent
    return _summary(sum(one["starts"] for one in totals), seconds)


def _summary(starts: int, seconds: dict[str, float]) -> JsonObject:
    total = sum(seconds.values())
    goodput = seconds[TimeCategory.TRAINING] / total if total else 0.0
    return {"goodput": round(goodput, 4), "starts": starts, "seconds": {name: round(spent, 3) for name, spent in seconds.items()}}


def goodput_line(totals: JsonObject) -> str:
    """Formats the result of `sum_starts` as a log line. It has the goodput and every category of at least half a second,
    longest first.

    >>> goodput_line(goodput.totals())
    'goodput 93.1 % of 2h13m in 2 starts: training 2h04m, between starts 5m10s, compiling 2m01s, evaluating 1m44s'
    """
    spent = sorted(totals["seconds"].items(), key=lambda item: -item[1])
    parts = [f"{name.replace('_', ' ')} {duration(seconds)}" for name, seconds in spent if seconds >= 0.5]
    total = duration(sum(totals["seconds"].values()))
    line = f"goodput {100 * totals['goodput']:.1f} % of {total} in {counted(totals['starts'], 'start')}"
    return f"{line}: {', '.join(parts)}" if parts else line


class GoodputFile:
    """Appends the records of `goodput` to `WORKDIR/ledger.jsonl`. A record is written at every call of `write`, every 30
    seconds, and at the end.

    Every line holds the total seconds of a start so far. If a write fails, no time is lost, because the next line includes
    it."""

    def __init__(self, workdir: pathlib.Path, goodput: GoodputRecorder):
        self._path, self._goodput = workdir / GOODPUT_FILE, goodput
        goodput.continue_after(read_goodput(self._path))
        # The last line may be incomplete, because another process was killed while it wrote the line, or because the disk was
        # full.
        self._torn = True
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write_regularly, name="ledger", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Appends a line. Does nothing if the file cannot be written, since the next line replaces this one."""
        with self._writing:
            line = json.dumps(self._goodput.record()).encode() + b"\n"
            try:
                with self._path.open("ab", buffering=0) as file:
                    text = b"\n" + line if self._torn and file.tell() else line
                    self._torn = True
                    self._torn = file.write(text) < len(text)
            except OSError:
                pass

    def close(self) -> None:
        """Appends the last line."""
        self._closed.set()
        self._thread.join()
        self.write()

    def _write_regularly(self) -> None:
        while not self._closed.wait(EVERY):
            self.write()


def read_goodput(path: pathlib.Path) -> list[JsonObject]:
    """Returns the records of `ledger.jsonl` in order, without empty and incomplete lines. Returns [] if the file cannot be
    read."""
    try:
        return [record for record in json_lines(path, strict=True) if _is_complete(record)]
    except OSError:
        return []


def _is_complete(record: JsonObject) -> bool:
    match record:
        case {"start": int(), "began": int() | float(), "step": int(), "seconds": {**seconds}}:
            return all(isinstance(spent, int | float) for spent in seconds.values())
    return False
