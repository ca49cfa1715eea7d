"""What would make a program fit that does not: by compiling what might."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax

from bert_jax.costs.compiling import Compiler, DoesNotFit
from bert_jax.costs.memory import used_bytes
from bert_jax.errors import UserError

CLOSE = 128
"""Rows a device above which a row more or less is not worth a compilation."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A change that may help."""

    flags: str
    """As one gives it on the command line."""
    lower: Callable[[], jax.stages.Lowered]
    """The lowered program with it."""


@dataclasses.dataclass(frozen=True)
class Remedy:
    """A change that was found to help."""

    flags: str
    bytes: int
    """Per device, arguments and temporaries."""


def is_refusal(error: BaseException) -> bool:
    """Whether it says that the compiler would not compile; of kernels, Pallas puts an exception of its own around that."""
    return isinstance(error, jax.errors.JaxRuntimeError) or isinstance(error.__cause__, jax.errors.JaxRuntimeError)


def attempt(compiler: Compiler, lower: Callable[[], jax.stages.Lowered]) -> tuple[bool, int]:
    """(whether the program that `lower()` gives can run, bytes per device that it takes or would take; 0 where nobody knows).
    What is no valid experiment cannot, nor what the compiler refuses for a reason other than memory."""
    try:
        return True, used_bytes(compiler.compile(lower()).memory)
    except DoesNotFit as error:
        return False, int(error.needs)
    except Exception as error:
        if isinstance(error, UserError) or is_refusal(error):
            return False, 0
        raise


def first_that_fits(compiler: Compiler, trials: Sequence[Trial]) -> Remedy | None:
    """The first of the trials, mildest first, whose program fits; None if none does."""
    for trial in trials:
        fits, size = attempt(compiler, trial.lower)
        if fits:
            return Remedy(trial.flags, size)
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
    the line through both ends meets the limit: three or four programs are compiled instead of log2(rows). Up to 2 * CLOSE rows
    the answer is exact, and above that within 1/CLOSE.
    """
    low, high, tried = fits, does_not, 0
    while high.rows - low.rows > max(1, low.rows // CLOSE):
        cut = (low.rows + high.rows) // 2
        if tried % 3 < 2 and low.bytes < limit < high.bytes:
            share = (limit - low.bytes) / (high.bytes - low.bytes)
            cut = low.rows + round(share * (high.rows - low.rows))
        cut = min(max(cut, low.rows + 1), high.rows - 1)
        good, size = measure(cut)
        low, high = (Size(cut, size), high) if good else (low, Size(cut, size))
        tried += 1
    return low


def largest_batch(
    compiler: Compiler, lower: Callable[[int], jax.stages.Lowered], kept: float, does_not: Size, limit: float
) -> Size:
    """The most rows a device for which the program that `lower(rows)` gives fits; `kept` bytes are there without any row."""
    return largest(lambda rows: attempt(compiler, lambda: lower(rows)), Size(0, kept), does_not, limit)
