"""Measures throughput and model FLOPs utilisation (MFU) of a run, and formats the log line of a step."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping

from bert_jax.interface.words import duration
from bert_jax.metrics.ledger import Activity, Ledger
from bert_jax.metrics.scores import TOKENS
from bert_jax.model.config import ModelConfig

# Peak bf16 FLOP/s of one JAX device, from the makers' data sheets (dense, without sparsity). On TPU v2, v3 and 7x a device is one
# of a chip's two cores. A name matches if `jax.Device.device_kind` starts with it, up to a word's end; the longest match is used.
PEAKS = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,  # v5p
    "TPU v5p": 459e12,
    "TPU v5e": 197e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 2307e12 / 2,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA A10": 125e12,
}


def row_flops(*, layers: int, width: int, feed_forward: int, vocabulary: int, length: int, predictions: int) -> float:
    """The floating-point operations of a training step per row, forward and backward, padding included.

    Matrix products only, 2 operations per multiply-add, the backward pass twice the forward one; per row of length L
    6 L N (4 D^2 + 2 D F) for the projections, 12 L^2 N D for attention, 6 M (D^2 + D V) for the MLM head on M positions:
    BERT-Base 69.9 G at length 128 with 20 predictions, 300.9 G at 512 with 76. Rematerialisation is not counted, as usual for
    model FLOPs.
    """
    encoder = length * layers * (6 * (4 * width**2 + 2 * width * feed_forward) + 12 * length * width)
    return float(encoder + 6 * predictions * (width**2 + width * vocabulary))


def model_row_flops(model: ModelConfig, length: int, predictions: int = 0) -> float:
    """`row_flops` for the sizes of `model`; with 0 predictions those of the encoder alone, as in fine-tuning, where the head is
    negligible.

    Of an LSTM with cells of width F in R directions of width W: 6 L N R (2 W 4 F + F W) for gates and projection (none where F is
    W), and 6 M R W V for the softmax. Of static vectors: 6 M D (L + N), the scores of all contexts of a row and of its negatives,
    of which skip-gram uses those in the window; its number of negatives per row is taken as 64.
    """
    width, cell = model.word_width, model.intermediate_size
    if model.encoder == "bilm":
        projection = 0 if cell == width else cell * width
        layers = length * model.num_layers * (2 * width * 4 * cell + projection)
        return 6.0 * (model.hidden_size // width) * (layers + predictions * width * model.vocab_size)
    if model.encoder == "static":
        return 6.0 * predictions * width * (length + 64)
    return row_flops(
        layers=model.num_layers,
        width=model.hidden_size,
        feed_forward=model.intermediate_size,
        vocabulary=model.vocab_size,
        length=length,
        predictions=predictions,
    )


def peak_flops(device_kind: str) -> float | None:
    """The bf16 peak of one device in FLOP/s; None if the table does not list it."""
    known = [name for name in PEAKS if re.match(rf"{re.escape(name)}(?!\w)", device_kind)]
    return PEAKS[max(known, key=len)] if known else None


class Throughput:
    """Rows, tokens and FLOPs per second since the last report, and the time left.

    The time left is computed from FLOPs, not steps: a step of the second phase (length 512) costs several of the first.

    >>> throughput = Throughput(ledger)
    >>> throughput.add(rows=64, tokens=7800, flops=64 * row_flops(...))       # after every step
    >>> with throughput.pause(Activity.EVALUATING): evaluate()                # time not counted in the rates
    >>> rates = throughput.report(flops_left=...)                             # {'rows_per_second': ..., ...}; starts the next
    window
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic):
        self._ledger, self._clock = ledger, clock
        self._reset()

    def _reset(self) -> None:
        self._start = self._clock()
        self._rows = self._tokens = self._flops = 0.0

    def add(self, *, rows: float, tokens: float, flops: float) -> None:
        """Adds finished work to the current window."""
        self._rows, self._tokens, self._flops = self._rows + rows, self._tokens + tokens, self._flops + flops

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
        """The rates of the current window: rows_per_second, tokens_per_second (without padding), flops_per_second and
        seconds_left. Starts the next window."""
        seconds = max(self._clock() - self._start, 1e-9)
        speed = self._flops / seconds
        rates = {
            "rows_per_second": self._rows / seconds,
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
    step: int, last_step: int, scores: Mapping[str, float], rates: Mapping[str, float], device_kind: str, devices: int
) -> str:
    """The log line of a step: losses, accuracies, throughput, utilisation and the time left.

    scores: the output of `scores.summarise`, or a loss and an accuracy; missing scores are left out of the line. rates: the
    output of `Throughput.report`.

    >>> training_line(1200, 10000, {"loss": 6.2134, "mlm_accuracy": 0.184, "nsp_accuracy": 0.62}, rates, "TPU v4", 8)
    'step  1,200/10,000  loss 6.213  MLM 18.4 %  NSP 62.0 %  4,310 rows/s  478 k tokens/s  41 % of peak  ETA 1h02m'
    """
    width = len(f"{last_step:,}")
    parts = [f"step {step:>{width},}/{last_step:,}", f"loss {scores.get('loss', math.nan):.3f}"]
    accuracies = {name: f"{measure}_accuracy" for measure, name in TOKENS.items()}
    accuracies |= {"NSP": "nsp_accuracy", "accuracy": "accuracy"}
    parts += [f"{name} {100 * scores[key]:.1f} %" for name, key in accuracies.items() if key in scores]
    parts += [f"{_short(rates['rows_per_second'])} rows/s", f"{_short(rates['tokens_per_second'])} tokens/s"]
    share = utilisation(rates["flops_per_second"], device_kind, devices)
    parts.append(f"{_short(rates['flops_per_second'])}FLOP/s" if share is None else f"{100 * share:.0f} % of peak")
    if step < last_step and math.isfinite(rates["seconds_left"]):
        parts.append(f"ETA {duration(rates['seconds_left'])}")
    return "  ".join(parts)


def _short(number: float) -> str:
    """`number` with three significant digits and an SI prefix: 93.4, 4,310, 47.8 k, 1.07 M, 107 G."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(number) >= size:
            scaled = number / (1e3 if prefix == "k" else size)
            return f"{scaled:.{max(0, 2 - int(math.log10(abs(scaled))))}f} {prefix}"
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"
