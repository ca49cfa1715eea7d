"""Measures throughput and model FLOPs utilisation (MFU) of a run, and formats the log line of a step."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from bert_jax.hardware import peak_flops
from bert_jax.interface.words import duration, prefixed
from bert_jax.runtime.goodput import Activity, Ledger


class Throughput:
    """Rows (or the examples of labelled tasks), tokens and FLOPs per second since the last report, and the time left.

    The time left is computed from FLOPs, not steps: a step of the second phase (length 512) costs several of the first.

    >>> throughput = Throughput(ledger)
    >>> throughput.add(64, tokens=7800, flops=64 * row_flops(...))       # after every step
    >>> with throughput.pause(Activity.EVALUATING): evaluate()                # time not counted in the rates
    >>> rates = throughput.report(flops_left=...)                             # {'rows_per_second': ..., ...}; starts the next
    window
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic, unit: str = "rows"):
        self._ledger, self._clock, self._unit = ledger, clock, unit
        self._reset()

    def _reset(self) -> None:
        self._start = self._clock()
        self._units = self._tokens = self._flops = 0.0

    def add(self, units: float, *, tokens: float, flops: float) -> None:
        """Adds finished work to the current window; `units` are rows, or examples where the rates are of examples."""
        self._units, self._tokens, self._flops = self._units + units, self._tokens + tokens, self._flops + flops

    @contextlib.contextmanager
    def pause(self, activity: Activity) -> Iterator[None]:
        """Excludes the time inside the `with` block from the rates, and counts it as `activity` in the ledger of time."""
        before = self._clock()
        try:
            with self._ledger.during(activity):
                yield
        finally:
            self._start += self._clock() - before

    def report(self, flops_left: float) -> dict[str, float]:
        """The rates of the current window: rows_per_second or examples_per_second, tokens_per_second (without padding),
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
    """Model FLOPs utilisation: the fraction of the bf16 peak of all devices; None on hardware without a known peak (any CPU)."""
    peak = peak_flops(device_kind)
    return flops_per_second / (peak * devices) if peak else None


def training_line(
    step: int, last_step: int, scores: Sequence[str], rates: Mapping[str, float], device_kind: str, devices: int
) -> str:
    """The log line of a step: scores, throughput, utilisation and the time left.

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
