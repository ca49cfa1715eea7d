"""Searches the settings with which a program fits into memory, by compiling it with each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax

from bert_jax.errors import UserError
from bert_jax.tpu.costs.compiling import Compiler, DoesNotFit
from bert_jax.tpu.costs.memory import used_bytes

CLOSE = 128
"""Rows per device above which the search for the largest batch is not exact to a row, to save compilations."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A change of settings that may make a program fit."""

    flags: str
    """The change as flags of the command line."""
    lower: Callable[[], jax.stages.Lowered]
    """Lowers the program with the change."""


@dataclasses.dataclass(frozen=True)
class Remedy:
    """A change with which the program fits."""

    flags: str
    bytes: int
    """Bytes per device of arguments and temporaries."""


def is_refusal(error: BaseException) -> bool:
    """Whether an exception is the compiler's refusal to compile; Pallas wraps those of its kernels in an exception of its own."""
    return isinstance(error, jax.errors.JaxRuntimeError) or isinstance(error.__cause__, jax.errors.JaxRuntimeError)


def attempt(compiler: Compiler, lower: Callable[[], jax.stages.Lowered]) -> tuple[bool, int]:
    """Compiles `lower()` and returns (whether it fits, bytes per device that it takes or would take, 0 where unknown). An invalid
    experiment, or a program that the compiler refuses for a reason other than memory, counts as not fitting."""
    try:
        return True, used_bytes(compiler.compile(lower()).memory)
    except DoesNotFit as error:
        return False, int(error.needs)
    except Exception as error:
        if isinstance(error, UserError) or is_refusal(error):
            return False, 0
        raise


def first_that_fits(compiler: Compiler, trials: Sequence[Trial]) -> Remedy | None:
    """The first of the `trials`, in order of preference, whose program fits; None if none fits."""
    for trial in trials:
        fits, size = attempt(compiler, trial.lower)
        if fits:
            return Remedy(trial.flags, size)
    return None


@dataclasses.dataclass(frozen=True)
class Size:
    """A batch of `rows` per device and its `bytes` per device, 0 where unknown."""

    rows: int
    bytes: float


def largest(measure: Callable[[int], tuple[bool, float]], fits: Size, does_not: Size, limit: float) -> Size:
    """The largest batch between one that `fits` and one that `does_not`. `measure(rows)` returns whether that many rows fit and
    the bytes that they take, of `limit` bytes.

    The search is a bisection, in which every other step interpolates: bytes grow about linearly with rows, so the next candidate
    is where the line through both ends meets the limit. This compiles three or four programs instead of log2(rows). Up to
    2 * CLOSE rows the result is exact, above that within 1/CLOSE.
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
    """The largest number of rows per device with which `lower(rows)` fits; `kept` bytes do not depend on the rows."""
    return largest(lambda rows: attempt(compiler, lambda: lower(rows)), Size(0, kept), does_not, limit)
