"""Nested plain values to frozen dataclasses: unknown keys, wrong types and values outside their ranges are UserErrors.

dacite does not make this shorter: with the same messages it takes 81 lines. It gives no path for an unknown key, from which the
nearest key is sought, takes True for 1, and builds a group, whose own checks then fail first, before its ranges can be checked.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from bert_jax.configs.keys import did_you_mean
from bert_jax.errors import UserError
from bert_jax.interface.ranges import check_value, hints, is_group, kinds_of

Section = TypeVar("Section")


def section(kind: type[Section], values: Any, where: str, root: Any = None) -> Section:
    """A dataclass from nested plain values; sections and lists of sections are built in turn.

    Raises UserError for a key that it does not have, a value of another type or outside the range that its annotation says, and
    a key that is missing. `root` is the dataclass of the whole experiment, in which an unknown key is looked for.
    """
    root = root or kind
    if not isinstance(values, Mapping):
        raise UserError(f"{where} must be a group of keys, not {values!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            full = f"{where}.{name}"
            raise UserError(f"there is no {full}; {did_you_mean(full.partition('.')[2], root, fields)}")
        arguments[name] = _value(f"{where}.{name}", value, hints(kind)[name], fields[name].default, root)
    missing = [
        name
        for name, field in fields.items()
        if field.default is field.default_factory is dataclasses.MISSING and name not in arguments
    ]
    if missing:
        raise UserError(f"{where} needs {' and '.join(missing)}")
    return kind(**arguments)


def _value(key: str, value: Any, hint: Any, default: Any, root: Any) -> Any:
    """`value` as what the annotation `hint` of its field describes."""
    items = typing.get_args(hint)[:1]
    if is_group(hint):
        return section(hint, value, key, root)
    if items and is_group(items[0]):
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise UserError(f"{key} must be a list of {key.rpartition('.')[2]}, not {value!r}")
        return tuple(section(items[0], item, f"{key}.{i}", root) for i, item in enumerate(value))
    made = _typed(key, value, kinds_of(hint), default)
    check_value(key, made, hint)
    return made


def _typed(key: str, value: Any, kinds: tuple[Any, ...], default: Any) -> Any:
    """`value` as one of `kinds`; whole numbers pass for floats, lists for tuples, and nothing else is converted."""
    for kind in kinds:
        if typing.get_origin(kind) is tuple:
            if isinstance(value, Sequence) and not isinstance(value, str):
                inside = kinds_of(typing.get_args(kind)[0])
                return tuple(_typed(f"{key}.{i}", item, inside, dataclasses.MISSING) for i, item in enumerate(value))
        elif kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value) if abs(value) < 10**300 else value  # which no range holds
        elif type(value) is kind:
            return value
    names = {bool: "true or false", float: "a float", int: "an int", str: "a str", type(None): "none"}
    wanted = " or ".join(names.get(kind, "a list") for kind in kinds)
    like = "" if default is dataclasses.MISSING else f", like the default {default!r}"
    raise UserError(f"{key}={value!r} must be {wanted}{like}")
