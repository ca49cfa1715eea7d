"""The log of a run. Log lines and the records in `metrics.jsonl` contain scores, throughput and model FLOPs utilisation (MFU).
Curves are drawn from the records.

`PretrainingLog` and `FinetuningLog` add the lines at the start of a run and after an evaluation.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from jax.sharding import Mesh

from bert_jax.files import JsonObject
from bert_jax.hardware import peak_flops
from bert_jax.interface.words import duration, prefixed
from bert_jax.runtime.goodput import GoodputFile, GoodputRecorder, TimeCategory
from bert_jax.runtime.launch import Run
from bert_jax.training.config import LogConfig
from bert_jax.training.metrics import MetricsWriter

FIGURE = "curves.png"
SKIPPED_BATCHES = "train/skipped_batches"
"""The number of batches that rollbacks have skipped. Runs that may roll back record it for the steps from the record's step on,
at every rollback and whenever they resume."""


class Logged(Protocol):
    """The configuration of a run."""

    @property
    def log(self) -> LogConfig:
        """The section `config.log`."""

    def to_dict(self) -> JsonObject:
        """Returns the configuration as nested plain values, for log sinks."""


class RunLog(abc.ABC):
    """The log of a run. Its files are in `directory`, and all log lines start with `prefix`.

    A subclass defines the unit of the throughput. It also defines how scores and work are computed from sums, and how the
    curves are drawn.
    """

    unit = "rows"
    """The unit of the throughput, "rows" or "examples". Tokens are also reported."""

    def __init__(
        self,
        run: Run,
        directory: pathlib.Path,
        goodput: GoodputRecorder,
        mesh: Mesh,
        last_step: int,
        log: logging.Logger,
        prefix: str = "",
    ):
        self._run, self._directory, self._time, self._mesh, self._last_step = run, directory, goodput, mesh, last_step
        self._log, self.prefix = log, prefix
        self.throughput = Throughput(goodput, unit=self.unit)
        self.metrics: MetricsWriter | None = None
        """The writer of `metrics.jsonl`; None in processes that do not write files."""
        self._goodput: GoodputFile | None = None
        self._is_drawn = True
        self._first: tuple[int, Mapping[str, float]] | None = None
        self.skipped = 0
        """The number of steps that were skipped since the run was started or resumed."""

    def open(self, step: int, experiment: Logged) -> None:
        """Opens the files and log sinks of a run that starts or resumes at `step`. Records of later steps are dropped, since
        those steps will be repeated. With `step` -1, all records are dropped."""
        if self._run.is_first:
            self.metrics = MetricsWriter(self._directory, step, experiment.log.sinks, experiment.to_dict())
            self._goodput = GoodputFile(self._directory, self._time)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.metrics:
            self.metrics.close()
        if self._goodput:
            self._goodput.close()
        if not self._is_drawn:  # so that a run that is interrupted before its next evaluation also has curves
            self.draw()

    def note(self, text: str) -> None:
        """Logs one line."""
        self._log.info("%s%s", self.prefix, text)

    def warn(self, text: str) -> None:
        """Logs one line as a warning."""
        self._log.warning("%s%s", self.prefix, text)

    def pause(self, category: TimeCategory) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager. The time inside it counts as `category` and is excluded from the rates."""
        return self.throughput.pause(category)

    def rolled_back(self, step: int, skipped_batches: int) -> None:
        """Drops the records of the steps after `step`, which will be repeated with other batches (`SKIPPED_BATCHES`)."""
        self._write_first()
        if self.metrics:
            self.metrics.rollback(step or -1)
        self.write(step, {SKIPPED_BATCHES: skipped_batches})
        self._time.rolled_back()

    def training(self, step: int, window: Mapping[str, Any]) -> None:
        """Writes a log line and a record with the means over the steps since the last log line. `window` holds the sums of
        these steps."""
        self._run.require_in_place()
        scores = self.compute_scores(window)
        units, flops, flops_left = self.count_work(step, window)
        self.throughput.add(units, tokens=float(window["tokens"]), flops=flops)
        rates = self.throughput.report(flops_left)
        kind = self._mesh.devices.flat[0].device_kind
        self.note(training_line(step, self._last_step, self.shown(scores), rates, kind, self._mesh.size))
        self.skipped += int(window["skipped"])
        if skipped := int(window["skipped"]):
            self.warn(f"{skipped} of these steps had a non-finite loss or gradient and were skipped")
        if spikes := int(window.get("spikes", 0)):
            self.warn(f"{spikes} of these steps had a loss far above the running mean and were skipped")
        values = scores | rates | {"grad_norm": float(window["grad_norm"]) / max(float(window["steps"]), 1.0)}
        values |= {name: float(window[name]) for name in ("learning_rate", "skipped", "spikes") if name in window}
        self._is_drawn = False
        self.write(step, {f"train/{name}": value for name, value in values.items()})
        if self._goodput:
            self._goodput.write()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends a record to `metrics.jsonl`."""
        self._write_first()
        if self.metrics:
            self.metrics.write(step, values)

    def write_with_next(self, step: int, values: Mapping[str, float]) -> None:
        """Appends a record just before the next one. A start that is rejected before its first step therefore leaves
        `metrics.jsonl` unchanged, so that the workdir can be restored (`open_workdir`)."""
        self._first = (step, values)

    def _write_first(self) -> None:
        if self.metrics and self._first:
            self.metrics.write(*self._first)
        self._first = None

    @abc.abstractmethod
    def compute_scores(self, window: Mapping[str, Any]) -> dict[str, float]:
        """Computes scores from the sums of some training steps."""

    @abc.abstractmethod
    def shown(self, scores: Mapping[str, float]) -> list[str]:
        """Returns the scores to show in a log line, as texts."""

    @abc.abstractmethod
    def count_work(self, step: int, window: Mapping[str, Any]) -> tuple[float, float, float]:
        """Returns (the number of units in the steps since the last call, the FLOPs of these steps, the FLOPs left after
        `step`). `window` holds the sums of these steps."""

    def draw(self) -> None:
        """Draws the curves from `metrics.jsonl`."""
        self._is_drawn = True
        if self._run.is_first:
            self.draw_to(self._directory / FIGURE)

    @abc.abstractmethod
    def draw_to(self, path: pathlib.Path) -> None:
        """Draws the curves in each of `Run.figure_formats`. `path` ends in .png. Files in other formats are written next to
        it."""


# ----------------------------------------------------------------------------------------------------------- rates
class Throughput:
    """Measures rows (or examples of labelled tasks), tokens and FLOPs per second since the last report, and the time left.

    The time left is computed from FLOPs instead of steps, since a step of the second phase (length 512) costs as much as several
    steps of the first.

    >>> throughput = Throughput(goodput)
    >>> throughput.add(64, tokens=7800, flops=64 * row_flops(...))       # after every step
    >>> with throughput.pause(TimeCategory.EVALUATING): evaluate()                # this time is not counted in the rates
    >>> rates = throughput.report(flops_left=...)                             # {'rows_per_second': ..., ...}; starts the next
    window
    """

    def __init__(self, goodput: GoodputRecorder, clock: Callable[[], float] = time.monotonic, unit: str = "rows"):
        self._goodput, self._clock, self._unit = goodput, clock, unit
        self._reset()

    def _reset(self) -> None:
        self._start = self._clock()
        self._units = self._tokens = self._flops = 0.0

    def add(self, units: float, *, tokens: float, flops: float) -> None:
        """Adds finished work to the current window. `units` are rows or examples."""
        self._units, self._tokens, self._flops = self._units + units, self._tokens + tokens, self._flops + flops

    @contextlib.contextmanager
    def pause(self, category: TimeCategory) -> Iterator[None]:
        """Excludes the time inside the `with` block from the rates. The time accounting counts this time as `category`."""
        before = self._clock()
        try:
            with self._goodput.during(category):
                yield
        finally:
            self._start += self._clock() - before

    def report(self, flops_left: float) -> dict[str, float]:
        """Returns the rates of the current window: rows_per_second or examples_per_second, tokens_per_second (without padding),
        flops_per_second and seconds_left. Starts the next window."""
        seconds = max(self._clock() - self._start, 1e-9)
        speed = self._flops / seconds
        rates = {
            f"{self._unit}_per_second": self._units / seconds,
            "tokens_per_second": self._tokens / seconds,
            "flops_per_second": speed,
            "seconds_left": flops_left / speed if speed else math.inf,
        }
        self._reset()
        return rates


def utilisation(flops_per_second: float, device_kind: str, devices: int) -> float | None:
    """Returns the model FLOPs utilisation, which is `flops_per_second` as a fraction of the bf16 peak of all devices. Returns
    None if the peak is unknown, as it is for every CPU."""
    peak = peak_flops(device_kind)
    return flops_per_second / (peak * devices) if peak else None


def training_line(
    step: int, last_step: int, scores: Sequence[str], rates: Mapping[str, float], device_kind: str, devices: int
) -> str:
    """Returns the log line of a step, which has the scores, the throughput, the utilisation and the time left.

    scores: the texts of the scores (`objectives.scores.Score.text`). rates: the output of `Throughput.report`.

    >>> training_line(1200, 10000, ["MLM loss 5.561", "MLM accuracy 18.4 %", "NSP accuracy 62.0 %"], rates, "TPU v4", 8)
    'step  1,200/10,000  MLM loss 5.561  MLM accuracy 18.4 %  NSP accuracy 62.0 %  4,310 rows/s  478 k tokens/s  41 % of peak
    ETA 1h02m'
    """
    width = len(f"{last_step:,}")
    parts = [f"step {step:>{width},}/{last_step:,}", *scores]
    units = [name for name in ("rows", "examples", "tokens") if f"{name}_per_second" in rates]
    parts += [f"{prefixed(rates[f'{name}_per_second'])} {name}/s" for name in units]
    share = utilisation(rates["flops_per_second"], device_kind, devices)
    parts.append(prefixed(rates["flops_per_second"], "FLOP/s") if share is None else f"{100 * share:.0f} % of peak")
    if step < last_step and math.isfinite(rates["seconds_left"]):
        parts.append(f"ETA {duration(rates['seconds_left'])}")
    return "  ".join(parts)
