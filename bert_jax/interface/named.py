"""Loads what a configuration names: one of the project's own objects by its name, or FILE.py:NAME in the user's own file.

    OBJECTIVES = {"mlm": "bert_jax.objectives.mlm_nsp:MlmNsp"}
    objective = load_named("mlm", OBJECTIVES, "config.objective")
    objective = load_named("mine.py:Mine", OBJECTIVES, "config.objective")

A known object is imported when it is loaded, so that a run imports only what it uses. `ranges.NamedIn(tuple(OBJECTIVES))` in an
annotation declares such a key, and `file_record` returns the part of the user's file that a run stores. Exceptions that the
file's functions raise later become a UserError inside `python_files.file_errors_explained(source_file(value), key)`.
"""

from __future__ import annotations

import hashlib
import importlib
import pathlib
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypedDict

from bert_jax.errors import UserError, nearest
from bert_jax.interface.python_files import find_module, load_module

IN_FILE = re.compile(r"(?s)(?P<file>.+?\.py)(?::(?P<name>\w*)(?::(?P<rest>.*))?)?")
"""FILE.py:NAME, and FILE.py:NAME:REST where a value has an argument."""


class Record(TypedDict):
    """The record of a user's file in config.json, results.json and the exported model."""

    path: str
    sha256: str
    source: str


def is_in_file(value: str) -> bool:
    """Returns whether `value` is FILE.py:NAME, and not a plain name."""
    return IN_FILE.fullmatch(value) is not None


def split_named(value: str) -> tuple[str, str, str | None]:
    """FILE.py:NAME or FILE.py:NAME:REST as (file, name, rest); file and name are empty where they are missing, and rest is None
    without a second colon. A plain NAME or NAME:REST has the file ""."""
    if match := IN_FILE.fullmatch(value):
        return match["file"], match["name"] or "", match["rest"]
    name, colon, rest = value.partition(":")
    return "", name, rest if colon else None


def load_named(value: str, known: Mapping[str, str], key: str) -> Any:
    """Returns the object that `value` names: a name in `known`, whose values are "package.module:attribute", or FILE.py:NAME.

    A relative FILE is looked up in the current directory, then in the checkout. A file is executed once for each content, so
    that the same value gives the same object. `key` is the key or flag that has this value, such as "config.objective", for
    messages. Raises UserError for an unknown name, for a file that does not exist or raises an exception, and for a name that the
    file does not define; the last two list what is there.
    """
    file, name, _ = split_named(value)
    if not file:
        if value not in known:
            raise UserError(f"{key}={value!r}: {nearest(value, known)}; {key}=FILE.py:NAME is one in a file of your own")
        where, _, attribute = known[value].partition(":")
        return getattr(importlib.import_module(where), attribute)
    found = _found(file, key)
    if found not in _loaded:
        _loaded[found] = load_module(found[0], key, "")
    module = _loaded[found]
    public = [one for one, x in vars(module).items() if getattr(x, "__module__", None) == module.__name__ and one[0] != "_"]
    if not name:
        names = f"it defines {', '.join(public)}" if public else "it defines no class and no function"
        raise UserError(f"{key}={value} does not say what in the file is meant; write {key}={file}:NAME ({names})")
    if not hasattr(module, name):
        hint = nearest(name, public) if public else "it defines no class and no function"
        raise UserError(f"{key}={value}: {file} has no {name!r}; {hint}")
    return getattr(module, name)


def source_file(value: str) -> str:
    """Returns the FILE of FILE.py:NAME; "" for a plain name. For `python_files.file_errors_explained`."""
    return split_named(value)[0]


def file_record(value: str, key: str = "") -> Record | None:
    """Returns the path, hash and source of the user's file that `value` names; None for a plain name."""
    file = source_file(value)
    if not file:
        return None
    path, digest = _found(file, key)
    return {"path": path, "sha256": digest, "source": pathlib.Path(path).read_text(encoding="utf-8", errors="replace")}


def _found(file: str, key: str) -> tuple[str, str]:
    """(the absolute path of a user's file, the SHA-256 of its bytes)."""
    path = find_module(file, key, "name a Python file of your own as FILE.py:NAME, or one of the names of the project")
    return str(path), hashlib.sha256(path.read_bytes()).hexdigest()


_loaded: dict[tuple[str, str], ModuleType] = {}
"""The user's files that this process has executed, by path and SHA-256."""
