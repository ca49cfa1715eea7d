"""The values that a setting or a flag may have, declared beside its type and checked here.

A field of a settings dataclass says its range in its annotation, which `config.section` and `check_ranges` read:

    rate: Annotated[float, Interval(ge=0, lt=1)] = 0.1        # annotated_types.Interval: ge, gt, le, lt
    pairs: Annotated[str, OneOf(("original", "paper"))] = "original"

A flag says it in its type: `parser.add_argument("--top-k", type=InRange(int, Interval(ge=1, le=1_000)))`. Every float is finite.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import types
import typing
from typing import Annotated, Any, Generic, TypeVar

from annotated_types import Interval, MinLen

from bert_jax.errors import UserError, nearest

Number = TypeVar("Number", int, float)

MOST = 2**31 - 1
"""Steps, rows and seconds are counted in 32 bits."""
COUNT = Interval(ge=1, le=MOST)
SEED = Interval(ge=0, le=2**32 - 1)

Count = Annotated[int, COUNT]
CountOrZero = Annotated[int, Interval(ge=0, le=MOST)]
Seed = Annotated[int, SEED]
BatchSize = Annotated[int, Interval(ge=1, le=2**20)]
Name = Annotated[str, MinLen(1)]
"""Of a file, a column, a task: whatever cannot be empty."""
Share = Annotated[float, Interval(ge=0, le=1)]
Dropout = Annotated[float, Interval(ge=0, lt=1)]
Rate = Annotated[float, Interval(ge=0, le=1e30)]
"""Learning rates that float32 holds: one that is too high to learn with is found by the loop, which ends the run."""
Epsilon = Annotated[float, Interval(ge=1e-37, le=1)]
"""What keeps a float32 division from one by zero: a smaller number is 0 in float32."""


@dataclasses.dataclass(frozen=True)
class OneOf:
    """The words that a string may be."""

    words: tuple[str, ...]

    def fault(self, value: str) -> str:
        """What is wrong with a value that is none of them."""
        words = [word or "nothing" for word in self.words]
        hint = nearest(value, words)
        return f"is not one of {', '.join(words)}" + (f"; {hint}" if hint.startswith("did") else "")


def described(interval: Interval) -> str:
    """The range in words: "at least 0 and below 1"; "" where every number is in it."""
    bounds = (("at least", interval.ge), ("above", interval.gt), ("at most", interval.le), ("below", interval.lt))
    return " and ".join(f"{words} {_written(bound)}" for words, bound in bounds if bound is not None)


def _written(bound: Any) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def fault(value: float, interval: Interval) -> str:
    """What `value` must be and is not: "must be at least 1 and at most 9"; "" where it is in the range."""
    if isinstance(value, float) and not math.isfinite(value):
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
        """The number in the text of a flag. Raises argparse.ArgumentTypeError where there is none, or one out of range."""
        try:
            value = self.kind(text)
            wrong = fault(value, self.interval)
        except (ValueError, OverflowError):
            what = "a whole number" if self.kind is int else "a number"
            wrong = ", ".join(filter(None, (f"must be {what}", described(self.interval))))
        if wrong:
            raise argparse.ArgumentTypeError(f"={text} {wrong}")
        return value


def is_group(hint: Any) -> bool:
    """Whether an annotation is a settings dataclass, a group of keys."""
    return dataclasses.is_dataclass(hint)


def hints(kind: Any) -> dict[str, Any]:
    """The annotations of a settings dataclass by field, with their ranges."""
    return _hints(kind)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation names, without their ranges: `(tuple[float, ...],)` for a list, `(float, NoneType)` where the
    value may be absent."""
    if typing.get_origin(hint) is Annotated:
        return kinds_of(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for part in typing.get_args(hint) for kind in kinds_of(part))
    return (hint,)


def intervals(hint: Any) -> list[Interval]:
    """The ranges that an annotation states, at any depth."""
    inside = typing.get_args(hint)
    found = [one for one in inside if isinstance(one, Interval)]
    return found + [one for part in inside if not isinstance(part, Interval) for one in intervals(part)]


def check_ranges(settings: Any, where: str) -> None:
    """Raises UserError for the first field of a settings dataclass that is not in its range; `where` is what its group of keys is
    called."""
    for name, hint in hints(type(settings)).items():
        check_value(f"{where}.{name}", getattr(settings, name), hint)


def check_value(key: str, value: Any, hint: Any) -> None:
    """Raises UserError, naming `key`, unless `value` is in the ranges that the annotation `hint` states for it, for its items, or
    for what it is when it is not None. Types are not checked."""
    if value is None:
        return
    if typing.get_origin(hint) is Annotated:
        inner, *constraints = typing.get_args(hint)
        check_value(key, value, inner)
        for constraint in constraints:
            if isinstance(constraint, Interval) and (wrong := fault(value, constraint)):
                raise UserError(f"{key}={value} {wrong}")
            if isinstance(constraint, MinLen) and len(value) < constraint.min_length:
                raise UserError(f"{key}={value!r} must not be empty; leave it out for the default, or give one")
            if isinstance(constraint, OneOf) and value not in constraint.words:
                raise UserError(f"{key}={value!r} {constraint.fault(str(value))}")
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        for kind in typing.get_args(hint):
            check_value(key, value, kind)
    elif typing.get_origin(hint) is tuple:
        for i, item in enumerate(value):
            check_value(f"{key}.{i}", item, typing.get_args(hint)[0])
