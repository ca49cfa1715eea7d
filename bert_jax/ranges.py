"""The values that a setting or a flag may have, declared beside its type and checked here.

A field of a settings dataclass says its range in its annotation, which `config.section` and `check_ranges` read:

    rate: Annotated[float, Interval(ge=0, lt=1)] = 0.1        # annotated_types.Interval: ge, gt, le, lt
    pairs: Annotated[str, OneOf(("original", "paper"))] = "original"

A flag says it in its type: `parser.add_argument("--top-k", type=InRange(int, Interval(ge=1, le=1_000)))`. Every float is finite.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import Annotated, Any, Generic, TypeVar

from annotated_types import Interval

Number = TypeVar("Number", int, float)

MOST = 2**31 - 1
"""Steps, rows and seconds are counted in 32 bits."""
COUNT = Interval(ge=1, le=MOST)
SEED = Interval(ge=0, le=2**32 - 1)
SECONDS = Interval(gt=0, le=MOST)
"""Time-outs."""

Count = Annotated[int, COUNT]
CountOrZero = Annotated[int, Interval(ge=0, le=MOST)]
Seed = Annotated[int, SEED]
Share = Annotated[float, Interval(ge=0, le=1)]
Dropout = Annotated[float, Interval(ge=0, lt=1)]



@dataclasses.dataclass(frozen=True)
class OneOf:
    """The words that a string may be."""

    words: tuple[str, ...]


def described(interval: Interval) -> str:
    """The range in words: "at least 0 and below 1"; "" where every number is in it."""
    bounds = (("at least", interval.ge), ("above", interval.gt), ("at most", interval.le), ("below", interval.lt))
    return " and ".join(f"{words} {_written(bound)}" for words, bound in bounds if bound is not None)


def _written(bound: Any) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def fault(value: float, interval: Interval) -> str:
    """What `value` must be and is not: "must be at least 1 and at most 9"; "" where it is in the range."""
    if not math.isfinite(value):
        return ", ".join(filter(None, ("must be a finite number", described(interval))))
    inside = (
        (interval.ge is None or value >= interval.ge)  # type: ignore[operator]
        and (interval.gt is None or value > interval.gt)  # type: ignore[operator]
        and (interval.le is None or value <= interval.le)  # type: ignore[operator]
        and (interval.lt is None or value < interval.lt)  # type: ignore[operator]
    )
    return "" if inside else f"must be {described(interval)}"


@dataclasses.dataclass(frozen=True)
class InRange(Generic[Number]):
    """The `type=` of a flag that is a number in a range; `terminal.FlagParser` says what is wrong with any other."""

    kind: type[Number]
    interval: Interval

    def __call__(self, text: str) -> Number:
        try:
            value = self.kind(text)
            wrong = fault(value, self.interval)
        except (ValueError, OverflowError):
            what = "a whole number" if self.kind is int else "a number"
            wrong = ", ".join(filter(None, (f"must be {what}", described(self.interval))))
        if wrong:
            raise argparse.ArgumentTypeError(f"={text} {wrong}")
        return value
