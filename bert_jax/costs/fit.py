"""What would make a program fit that does not: by compiling what might."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from bert_jax.costs.compiling import Compiler, DoesNotFit
from bert_jax.costs.memory import used_bytes
from bert_jax.terminal import UserError


@dataclasses.dataclass(frozen=True)
class Trial:
    """A change that may help."""

    flags: str
    """As one gives it on the command line."""
    lower: Callable[[], Any]
    """The lowered program with it."""


@dataclasses.dataclass(frozen=True)
class Remedy:
    """A change that was found to help."""

    flags: str
    bytes: int
    """Per device, arguments and temporaries."""


def first_that_fits(compiler: Compiler, trials: Sequence[Trial]) -> Remedy | None:
    """The first of the trials, mildest first, whose program fits; None if none does. One that is no valid experiment is passed
    over."""
    for trial in trials:
        try:
            return Remedy(trial.flags, used_bytes(compiler.compile(trial.lower()).memory))
        except (DoesNotFit, UserError):
            continue
    return None


@dataclasses.dataclass(frozen=True)
class Size:
    """What a batch of `rows` a device takes; `bytes` is 0 where nobody knows."""

    rows: int
    bytes: float


def largest(measure: Callable[[int], tuple[bool, float]], fits: Size, does_not: Size, limit: float) -> Size:
    """The largest batch between one that `fits` and one that `does_not` (of these neither is tried again); `measure(rows)` says
    whether that many fit and how many bytes they take, of `limit` that there are.

    By bisection: what does not fit does not with more rows. Bytes grow about linearly with rows, so every other cut is made where
    the line through both ends meets the limit: three or four programs are compiled instead of log2(rows).
    """
    low, high, tried = fits, does_not, 0
    while high.rows - low.rows > 1:
        cut = (low.rows + high.rows) // 2
        if tried % 3 < 2 and low.bytes < limit < high.bytes:
            share = (limit - low.bytes) / (high.bytes - low.bytes)
            cut = low.rows + round(share * (high.rows - low.rows))
        cut = min(max(cut, low.rows + 1), high.rows - 1)
        good, size = measure(cut)
        low, high = (Size(cut, size), high) if good else (low, Size(cut, size))
        tried += 1
    return low


def largest_batch(compiler: Compiler, lower: Callable[[int], Any], kept: float, does_not: Size, limit: float) -> Size:
    """The most rows a device for which the program that `lower(rows)` gives fits; `kept` bytes are there without any row."""

    def measure(rows: int) -> tuple[bool, float]:
        try:
            return True, used_bytes(compiler.compile(lower(rows)).memory)
        except DoesNotFit as error:
            return False, error.needs

    return largest(measure, Size(0, kept), does_not, limit)
