"""Numbers in settings, flags and files: their ranges, which type annotations declare, and their text.

A field of a settings dataclass declares its range in its annotation, which `configs.experiment_files` and `check_ranges` read:

    rate: Annotated[float, Interval(ge=0, lt=1)] = 0.1        # annotated_types.Interval: ge, gt, le, lt
    pairs: Annotated[str, OneOf(("original", "paper"))] = "original"
    objective: Annotated[str, NamedIn(tuple(OBJECTIVES))] = "mlm"     # or FILE.py:NAME

An annotation may also hold markers, which state other facts about the field (`marked`).

A flag declares its range in its type: `parser.add_argument("--top-k", type=InRange(int, Interval(ge=1, le=1_000)))`. Every
float must be finite.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import re
import types
import typing
from typing import Annotated, Any, Generic, TypeVar

from annotated_types import Interval, MinLen

from bert_jax.errors import UserError, nearest
from bert_jax.interface.named import is_in_file
from bert_jax.interface.words import shown

Number = TypeVar("Number", int, float)
Marker = TypeVar("Marker")

MAX_COUNT = 2**31 - 1
"""The largest count of steps, rows or seconds, since counters have 32 bits."""
COUNT = Interval(ge=1, le=MAX_COUNT)
SEED = Interval(ge=0, le=2**32 - 1)

Count = Annotated[int, COUNT]
CountOrZero = Annotated[int, Interval(ge=0, le=MAX_COUNT)]
Seed = Annotated[int, SEED]
BatchSize = Annotated[int, Interval(ge=1, le=2**20)]
Name = Annotated[str, MinLen(1)]
"""The name of a column, a task or an arm. The name must not be empty."""
Fraction = Annotated[float, Interval(ge=0, le=1)]
Dropout = Annotated[float, Interval(ge=0, lt=1)]
LearningRate = Annotated[float, Interval(ge=0, le=1e30)]
"""A learning rate that float32 can represent. If a run with it diverges, the training loop ends the run."""
Epsilon = Annotated[float, Interval(ge=1e-37, le=1)]
"""A term that keeps a float32 denominator above 0. Numbers below 1e-37 may be 0 in float32."""


@dataclasses.dataclass(frozen=True)
class IsPath:
    """Marks a text as the path of a file or directory. A leading `~` is expanded when a configuration is read."""


PathText = Annotated[str, IsPath()]
"""A local path, a path in a bucket, or the name of a model on the hub. The text may be empty."""
GivenPath = Annotated[str, IsPath(), MinLen(1)]
"""A path that must not be empty."""


@dataclasses.dataclass(frozen=True)
class OneOf:
    """The allowed values of a string."""

    words: tuple[str, ...]

    def error(self, value: str) -> str:
        """Returns the error text for a value that is not allowed."""
        words = [word or "nothing" for word in self.words]
        hint = nearest(value, words)
        return f"is not one of {', '.join(words)}" + (f"; {hint}" if hint.startswith("did") else "")


@dataclasses.dataclass(frozen=True)
class NamedIn(OneOf):
    """The allowed names of a string. FILE.py:NAME, an object in the user's own file, is allowed too (`interface/named.py`)."""

    def error(self, value: str) -> str:
        """Returns the error text for an unknown name. Returns "" for FILE.py:NAME, which is checked when it is loaded."""
        return "" if is_in_file(value) else f"{super().error(value)}; FILE.py:NAME loads your own"


def range_text(interval: Interval) -> str:
    """Returns the range as text, such as "at least 0 and below 1", or "" if the range contains every number."""
    bounds = (("at least", interval.ge), ("above", interval.gt), ("at most", interval.le), ("below", interval.lt))
    return " and ".join(f"{words} {_written(bound)}" for words, bound in bounds if bound is not None)


def _written(bound: Any) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def range_error(value: float, interval: Interval) -> str:
    """Returns the error text for a value outside the range, such as "must be at least 1 and at most 9", or "" if the value is
    inside the range."""
    if isinstance(value, float) and not math.isfinite(value):
        return ", ".join(filter(None, ("must be a finite number", range_text(interval))))
    inside = (
        (interval.ge is None or value >= interval.ge)  # type: ignore[operator]
        and (interval.gt is None or value > interval.gt)  # type: ignore[operator]
        and (interval.le is None or value <= interval.le)  # type: ignore[operator]
        and (interval.lt is None or value < interval.lt)  # type: ignore[operator]
    )
    return "" if inside else f"must be {range_text(interval)}"


@dataclasses.dataclass(frozen=True)
class InRange(Generic[Number]):
    """The `type=` of a flag that accepts a number in a range. `FlagParser` converts its error to a UserError."""

    kind: type[Number]
    interval: Interval

    def __call__(self, text: str) -> Number:
        """Parses a number. Raises argparse.ArgumentTypeError if `text` is not a number or out of range."""
        try:
            value = self.kind(text)
            wrong = range_error(value, self.interval)
        except (ValueError, OverflowError):
            kind = "a whole number" if self.kind is int else "a number"
            wrong = ", ".join(filter(None, (f"must be {kind}", range_text(self.interval))))
        if wrong:
            raise argparse.ArgumentTypeError(f"={text} {wrong}")
        return value


def is_group(hint: Any) -> bool:
    """Returns whether an annotation is a settings dataclass, i.e. a group of keys in the configuration."""
    return dataclasses.is_dataclass(hint)


def hints(kind: Any) -> dict[str, Any]:
    """Returns the annotation of every field of a settings dataclass, with its range."""
    return _hints(kind)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    annotations = typing.get_type_hints(kind, include_extras=True)
    return {field.name: annotations[field.name] for field in dataclasses.fields(kind)}


def value_types(hint: Any) -> tuple[Any, ...]:
    """Returns the types in an annotation, without ranges: `(tuple[float, ...],)` for a list, `(float, NoneType)` for an optional
    value."""
    if typing.get_origin(hint) is Annotated:
        return value_types(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for part in typing.get_args(hint) for kind in value_types(part))
    return (hint,)


def markers(hint: Any, kind: type[Marker]) -> list[Marker]:
    """Returns all markers of this class in an annotation, including nested markers."""
    inside = typing.get_args(hint)
    return [part for part in inside if isinstance(part, kind)] + [each for part in inside for each in markers(part, kind)]


def marked(settings: type, kind: type[Marker]) -> dict[str, Marker]:
    """Returns name -> marker for the fields of a settings dataclass whose annotation has a marker of this class."""
    key: Any = kind  # mypy takes a class of an unknown type for unhashable
    return dict(_marked(settings, key))


@functools.cache  # a model configuration asks at every construction, and a search takes a millisecond
def _marked(settings: Any, kind: Any) -> dict[str, Any]:
    found: dict[str, list[Any]] = {name: markers(hint, kind) for name, hint in hints(settings).items()}
    return {name: each[0] for name, each in found.items() if each}


def intervals(hint: Any) -> list[Interval]:
    """Returns all ranges in an annotation, including nested ranges."""
    return markers(hint, Interval)


def allowed_words(hint: Any) -> tuple[str, ...]:
    """Returns the allowed words in an annotation or in its parts, or () if any word is allowed."""
    return next((one.words for one in markers(hint, OneOf) if one.words), ())


def is_path(hint: Any) -> bool:
    """Returns whether a text of this annotation is a path."""
    return bool(markers(hint, IsPath))


def check_ranges(settings: Any, where: str) -> None:
    """Raises UserError if a field of a settings dataclass is out of range. The message names the first such field. `where` is
    the key of its group, such as "mesh"."""
    for name, hint in hints(type(settings)).items():
        check_value(f"{where}.{name}", getattr(settings, name), hint)


def check_value(key: str, value: Any, hint: Any) -> None:
    """Raises UserError, naming `key`, if `value` or one of its items is outside the ranges in the annotation `hint`. None is
    always accepted. Types are not checked."""
    if value is None:
        return
    if typing.get_origin(hint) is Annotated:
        inner, *constraints = typing.get_args(hint)
        check_value(key, value, inner)
        for constraint in constraints:
            if isinstance(constraint, Interval) and (wrong := range_error(value, constraint)):
                raise UserError(f"{key}={shown(value)} {wrong}")
            if isinstance(constraint, MinLen) and len(value) < constraint.min_length:
                raise UserError(f"{key}={value!r} must not be empty; give a value, or leave the key out for the default")
            if isinstance(constraint, OneOf) and value not in constraint.words and (wrong := constraint.error(str(value))):
                raise UserError(f"{key}={value!r} {wrong}")
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        for kind in typing.get_args(hint):
            check_value(key, value, kind)
    elif typing.get_origin(hint) is tuple:
        for i, item in enumerate(value):
            check_value(f"{key}.{i}", item, typing.get_args(hint)[0])


# ---------------------------------------------------------------------------------------------------------- numbers from text
# `int` is too lenient, because it accepts "1_000", " 7" and the digits of every script. It also raises a special error beyond
# 4,300 digits. `str.isdigit` is too lenient, too, because `"²".isdigit()` is true, but `int("²")` fails.
LARGEST = 2**63 - 1
"""The largest integer that an array can hold."""
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def whole_number(text: str, low: int = 0, high: int = LARGEST) -> int | None:
    """Parses an integer in ASCII digits with an optional sign. Returns None for other texts and numbers outside [low, high]."""
    if not _WHOLE.fullmatch(text):
        return None
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > len(str(max(abs(low), abs(high)))):  # checked before `int`, which rejects more than 4,300 digits
        return None
    value = int(digits or "0") * (-1 if text[0] == "-" else 1)
    return value if low <= value <= high else None


def decimal_number(text: str, low: float = -math.inf, high: float = math.inf) -> float | None:
    """Parses a number such as "2", "-0.5" or "1e-3". Returns None for other texts ("nan", "inf", "1_000"), numbers outside [low,
    high], and numbers too large for a float."""
    if not _DECIMAL.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) and low <= value <= high else None
