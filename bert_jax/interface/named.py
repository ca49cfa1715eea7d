"""Loads objects that a configuration names. These are built-in objects, and objects in the user's own files (FILE.py:NAME).

    OBJECTIVES = {"mlm": "bert_jax.objectives.mlm_nsp:MlmNsp"}
    objective = load_named("mlm", OBJECTIVES, "config.objective")
    objective = load_named("mine.py:Mine", OBJECTIVES, "config.objective")

Built-in objects are imported when they are loaded, so that a run imports only what it uses. To declare such a key, annotate it
with `ranges.NamedIn(tuple(OBJECTIVES))`. A run stores what `file_record` returns about the user's file. If functions of the
file raise exceptions later, these are reported as errors of the file (`python_files.file_errors_explained`)."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import pathlib
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NotRequired, TypedDict

from bert_jax.errors import UserError, nearest
from bert_jax.interface.python_files import MissingFile, find_module, imported_files, load_module, loaded_for

IN_FILE = re.compile(r"(?s)(?P<file>.+?\.py)(?::(?P<name>\w*)(?::(?P<rest>.*))?)?")
"""FILE.py:NAME, or FILE.py:NAME:REST for values with an argument."""


class Record(TypedDict):
    """The record of a user's file in config.json, results.json and the exported model."""

    path: str
    sha256: str
    source: str
    imports: NotRequired[dict[str, str]]
    """Path -> source of the user's files that the file imports."""


def is_in_file(value: str) -> bool:
    """Returns whether `value` is FILE.py:NAME instead of a plain name."""
    return IN_FILE.fullmatch(value) is not None


def split_named(value: str) -> tuple[str, str, str | None]:
    """Splits FILE.py:NAME or FILE.py:NAME:REST into (file, name, rest). A plain NAME or NAME:REST has the file "". If the name
    is missing, it is "". If the rest is missing, it is None."""
    if match := IN_FILE.fullmatch(value):
        return match["file"], match["name"] or "", match["rest"]
    name, colon, rest = value.partition(":")
    return "", name, rest if colon else None


def load_built_in(place: str) -> Any:
    """Returns the object at "package.module:attribute"."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def load_named(value: str, known: Mapping[str, Any], key: str) -> Any:
    """Returns the object that `value` names. `value` is a key of `known`, whose values are "package.module:attribute", or
    FILE.py:NAME.

    A relative FILE is looked up in the current directory, then in the checkout. A file is read once (see `read_files_again`), so
    the same value gives the same object, even if the file is edited while a run trains. `key` is the key or flag with this
    value, e.g. "config.objective", for messages. Raises UserError if the name is unknown, if the file does not exist or raises
    an exception, or if the file does not define the name."""
    file, name, _ = split_named(value)
    if not file:
        if value not in known:
            raise UserError(f"{key}={value!r}: {nearest(value, known)}; {key}=FILE.py:NAME loads your own")
        return load_built_in(known[value])
    module = file_module(value, key)
    public = [one for one, x in vars(module).items() if getattr(x, "__module__", None) == module.__name__ and one[0] != "_"]
    if not name:
        names = f"it defines {', '.join(public)}" if public else "it defines no class or function"
        raise UserError(f"{key}={value} does not name an object in the file; write {key}={file}:NAME ({names})")
    if not hasattr(module, name):
        hint = nearest(name, public) if public else "it defines no class or function"
        raise UserError(f"{key}={value}: {file} has no {name!r}; {hint}")
    return getattr(module, name)


def file_module(value: str, key: str) -> ModuleType:
    """Returns the user's file of FILE.py:NAME as a module. Raises UserError as `load_named` does."""
    path, content, imported = _found(source_file(value), key)
    loaded_for(path, key)
    read = path, content, tuple(imported.items())
    if read not in _loaded:
        try:
            _loaded[read] = load_module(path, key, content, imported)
        except UserError:
            del _read[path]  # in a notebook, the next call reads the corrected file
            raise
    return _loaded[read]


def require_call(function: Any, arguments: str, what: str, *, more: bool = False) -> None:
    """Raises UserError unless a user's `function`, called `what` in the message, can be called with these positional arguments,
    for example "step, steps". With `more`, the function may require further arguments."""
    try:
        signature = inspect.signature(function)
        (signature.bind_partial if more else signature.bind)(*arguments.split(", "))
    except TypeError as error:
        raise UserError(f"{what} must be a function of ({arguments}), but it cannot be called with them ({error})") from error
    except ValueError:  # the function is written in C and has no signature
        pass


def source_file(value: str) -> str:
    """Returns the FILE of FILE.py:NAME, or "" for a plain name."""
    return split_named(value)[0]


def file_record(value: str, key: str = "") -> Record | None:
    """Returns the path, hash and source of the user's file named by `value`, or None for a plain name. If the file imports other
    files of the user, the hash covers them too, and their sources are recorded."""
    file = source_file(value)
    if not file:
        return None
    path, content, imported = _found(file, key)
    digest = hashlib.sha256(content)
    for other in imported.values():
        digest.update(hashlib.sha256(other).digest())
    record: Record = {"path": str(path), "sha256": digest.hexdigest(), "source": content.decode("utf-8", "replace")}
    if imported:
        record["imports"] = {str(one): other.decode("utf-8", "replace") for one, other in imported.items()}
    return record


def by_content(value: str, key: str) -> str:
    """Returns `value` with the FILE of FILE.py:NAME replaced by its hash, to compare files with other paths. A plain name is
    not changed."""
    if (record := file_record(value, key)) is None:
        return value
    return f"{value.removeprefix(source_file(value)).lstrip(':')} of a file with SHA-256 {record['sha256'][:12]}"


def read_files_again() -> None:
    """Lets later calls read the user's files again. Every command calls this when it parses its flags. In between, a file keeps
    the content with which it was first read. A file with the same content is not executed again. In a notebook, call this
    after an edit, before a new `Predictor` or `Analyser`.

    If a file was edited, also clears the caches of this package's functions and of JAX, whose keys are names of the user's
    functions."""
    _read.clear()
    _places.clear()
    edited = [path for path, seen in _seen.items() if _state(path) not in (None, seen)]
    for path in edited:
        del _seen[path]
    if not edited:
        return
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "bert_jax"]:
        for one in vars(module).values():
            if isinstance(one, functools._lru_cache_wrapper):
                one.cache_clear()
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


def _found(file: str, key: str) -> tuple[pathlib.Path, bytes, Mapping[pathlib.Path, bytes]]:
    """Returns (the absolute path of a user's file, its content when it was first read, those of the user's files that it
    imports)."""
    try:
        path = find_module(file, key, "give your own Python file as FILE.py:NAME, or a built-in name")
    except MissingFile:
        if file not in _places:
            raise
        path = _places[file]  # the file was removed after it was read
    _places[file] = path
    if path not in _read:
        state, content = _state(path), path.read_bytes()
        imported = imported_files(path, content)
        _read[path] = content, imported
        _seen.update({path: state, **{one: _state(one) for one in imported}})
    return path, *_read[path]


def _state(path: pathlib.Path) -> tuple[int, int, int] | None:
    """Returns what changes when a file is edited, or None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


_read: dict[pathlib.Path, tuple[bytes, Mapping[pathlib.Path, bytes]]] = {}
"""The contents of the user's files that this command has read and of the files that they import, by path."""
_seen: dict[pathlib.Path, tuple[int, int, int] | None] = {}
"""The states of all files that this process has read, when they were read last."""
_places: dict[str, pathlib.Path] = {}
"""FILE -> the absolute path of the file that it named last."""
_loaded: dict[tuple[pathlib.Path, bytes, tuple[tuple[pathlib.Path, bytes], ...]], ModuleType] = {}
"""The user's files that this process has executed, by path, content and contents of the files that they import."""
