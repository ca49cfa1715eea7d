"""Builds frozen dataclasses from nested plain values. Unknown keys, wrong types and values out of range are UserErrors.

dacite is not used, since the code would not be shorter: with the same error messages it takes 81 lines. It does not report the
path of an unknown key, which suggestions need. It also accepts True for 1. And it builds a group before its ranges can be
checked, so the group's own checks would fail first."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from bert_jax.configs.keys import did_you_mean
from bert_jax.errors import UserError
from bert_jax.interface.flags import expand_home
from bert_jax.interface.ranges import check_value, hints, is_group, is_path, value_types
from bert_jax.interface.words import shown

Section = TypeVar("Section")


def dataclass_from_dict(kind: type[Section], values: Any, where: str, root: Any = None) -> Section:
    """Builds the dataclass `kind` from nested dicts. Dataclasses and lists of dataclasses in its fields are built recursively.

    `where` is the dotted key of `values`, for messages. `root` is the dataclass of the whole experiment, for suggestions. Raises
    UserError for an unknown or missing key, or a value whose type or range does not match the annotation.
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
    """Converts and checks `value` according to the annotation `hint` of its field."""
    items = typing.get_args(hint)[:1]
    if is_group(hint):
        return dataclass_from_dict(hint, value, key, root)
    if items and is_group(items[0]):
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise UserError(f"{key} must be a list of {key.rpartition('.')[2]}, not {value!r}")
        return tuple(dataclass_from_dict(items[0], item, f"{key}.{i}", root) for i, item in enumerate(value))
    made = _typed(key, value, value_types(hint), default)
    if is_path(hint) and isinstance(made, str):
        if "\0" in made:
            raise UserError(f"{key}={made!r} contains a zero byte, which is invalid in a path; correct the experiment file")
        made = expand_home(made, f"{key}={made}")
    check_value(key, made, hint)
    return made


def _typed(key: str, value: Any, kinds: tuple[Any, ...], default: Any) -> Any:
    """Returns `value` as one of the types `kinds`. The only conversions are from integers to floats and from lists to tuples."""
    for kind in kinds:
        if typing.get_origin(kind) is tuple:
            if isinstance(value, Sequence) and not isinstance(value, str):
                inside = value_types(typing.get_args(kind)[0])
                return tuple(_typed(f"{key}.{i}", item, inside, dataclasses.MISSING) for i, item in enumerate(value))
        elif typing.get_origin(kind) is dict:
            if isinstance(value, Mapping):
                return dict(value)
        elif kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value) if abs(value) < 10**300 else value  # float() would overflow; the range check rejects the integer
        elif type(value) is kind:
            return value
    names = {bool: "true or false", float: "a float", int: "an int", str: "a str", type(None): "none", dict: "a group of keys"}
    wanted = " or ".join(names.get(typing.get_origin(kind) or kind, "a list") for kind in kinds)
    like = "" if default is dataclasses.MISSING else f", like the default {default!r}"
    raise UserError(f"{key}={shown(value)} must be {wanted}{like}")
