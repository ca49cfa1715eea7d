"""Labelled data in Parquet and Arrow files, as the Hugging Face hub and `datasets` lay it out, with the names of its classes.

    train.parquet, data/train-*.parquet     files, or the pattern of their names
    DIR                                     a folder of the hub: `data/train-00000-of-00008.parquet`, or CONFIG/train/0000.parquet
    DIR                                     what `save_to_disk` of a Dataset or a DatasetDict wrote

A column of the type ClassLabel, or of lists of it, holds numbers; their names are in the schema of the file, and here its values
are these names.
"""

from __future__ import annotations

import contextlib
import decimal
import pathlib
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from bert_jax.data.corpus.tables import is_data, set_of, split_of
from bert_jax.errors import UserError, missing_path
from bert_jax.files import JsonObject, parse_json, read_object
from bert_jax.storage.formats import HEAD_BYTES, recognise
from bert_jax.storage.records import KINDS, ColumnFile, Place, columns_explained, open_columns

COLUMNAR = {f".{kind}": name for kind, name in KINDS.items()}
"""Suffix -> the format."""
_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
"""The name of each split in the data sets of the hub."""
_SHARD = re.compile(r"(?s)(.*?)(?<!\d)\d+-of-(\d+)(.*)")


def files_of(path: pathlib.Path, split: str) -> list[pathlib.Path]:
    """The data files that a path stands for: the file itself, the files that match a pattern, or a directory's files of `split`,
    which is "train", "dev" or "test". Raises UserError if there are none."""
    found: list[pathlib.Path] = []
    try:
        if path.is_dir():
            return _files_in(path, split)
        if path.exists() or not any(sign in str(path) for sign in "*?["):
            return [path]
        above = pathlib.Path(path.anchor)
        found = sorted(file for file in above.glob(str(path.relative_to(above))) if file.is_file() and file.name[0] != ".")
    except OSError:  # too long, or in a directory that may not be read: whoever opens the file says so
        return [path]
    except ValueError as error:
        raise UserError(f"{path} is not a pattern of file names ({error}); correct it") from error
    if not found:
        raise UserError(f"{path} matches no file; correct the pattern")
    return found


def _files_in(directory: pathlib.Path, split: str) -> list[pathlib.Path]:
    if (state := directory / "state.json").is_file():
        return _saved(directory, state)
    if (directory / "dataset_dict.json").is_file():
        names = read_object(directory / "dataset_dict.json", "save the data set again").get("splits")
        known = [name for name in names or () if isinstance(name, str) and (directory / name / "state.json").is_file()]
        if chosen := next((name for name in known if split_of(name) == _SPLITS[split]), None):
            return _saved(directory / chosen, directory / chosen / "state.json")
        raise UserError(f"{directory} has no {split} split, only {', '.join(known) or 'none'}; give the directory of one of them")
    names = [file.relative_to(directory).as_posix() for file in sorted(directory.rglob("*")) if file.suffix in COLUMNAR]
    named = {name: split_of(name) for name in names if any(is_data(name, kind) for kind in KINDS)}
    if not named:
        raise UserError(f"{directory} is a directory without Parquet or Arrow files; give the file of the {split} split")
    found = [name for name, its_split in named.items() if its_split == _SPLITS[split]]
    if not found and not set(named.values()) & set(_SPLITS.values()):
        found = list(named)  # a directory of one split
    if not found:
        raise UserError(
            f"{directory} has no file of its {split} split, only {', '.join(list(named)[:3])}; give a file, or a pattern"
        )
    sets = sorted({set_of(name) for name in found})
    if len(sets) > 1:
        raise UserError(f"{directory} holds several data sets ({', '.join(sets[:4])}); give the directory of one of them")
    if shard := next(filter(None, map(_SHARD.fullmatch, found)), None):
        beginning, number, end = shard.groups()
        there = {name[: -len(end)] for name in found}
        parts = (f"{beginning}{i:0{len(number)}}-of-{number}" for i in range(min(int(number[:9]), len(found) + 1)))
        if "-" not in end and (missing := next((part for part in parts if part not in there), None)):
            raise UserError(f"{directory} lacks {missing}{end}, a part of its {split} split; fetch it")
    return [directory / name for name in found]


def _saved(directory: pathlib.Path, state: pathlib.Path) -> list[pathlib.Path]:
    """The files of a Dataset in the order in which `save_to_disk` wrote them."""
    remedy = "save the data set again"
    content = read_object(state, remedy)
    listed = content.get("_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed or ()]
    if not names or not all(isinstance(name, str) and pathlib.PurePath(name).name == name for name in names):
        raise UserError(f"{state} does not list the files of a data set; {remedy}")
    if content.get("_indices_data_files"):
        raise UserError(f"{state} has indices of rows, which are not read; {remedy} after flatten_indices()")
    return [directory / str(name) for name in names]


def read_columnar(
    path: pathlib.Path, wanted: Container[str] | None = None, *, by_name: bool = True
) -> Iterator[tuple[Place, JsonObject]]:
    """The rows of a Parquet or Arrow file with their places, as values of Python.

    wanted: the columns that are read, the others are None; None: all of them. by_name: replaces the numbers of classes by their
    names. Raises UserError for a file that is missing, damaged, of another format, or in a codec that pyarrow does not read.
    """
    with _opened(path) as file:
        names = [name for name in file.schema.names if wanted is None or name in wanted]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{path}: two columns are named {repeated[0]!r}; give each a name of its own")
        rest = dict.fromkeys(file.schema.names)
        decode = _decoders(path, file.schema) if by_name else {}
        number = 0
        for batch in file.batches(names):
            columns = [[decode.get(name, _plain)(value) for value in batch.column(name).to_pylist()] for name in names]
            for i in range(batch.num_rows):
                number += 1
                yield Place(path, number, "row"), {**rest, **{name: held[i] for name, held in zip(names, columns, strict=True)}}


def class_names(path: pathlib.Path) -> dict[str, tuple[str, ...]]:
    """Column -> the names of its classes by number, for the columns of classes in a Parquet or Arrow file."""
    with _opened(path) as file:
        return _classes(path, file.schema)


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[ColumnFile]:
    if path.suffix not in COLUMNAR:
        raise UserError(f"{path} is compressed as a whole; decompress it first")
    kind = path.suffix[1:]
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise UserError(f"{missing_path(path)} cannot be read: {error.strerror}; give the path of a file") from error
    if not head:
        raise UserError(f"{path} is empty; fetch it again, or give another file")
    if (found := recognise(head, path.name)) and found.kind != kind:
        raise UserError(f"{path} {found.what}, not {COLUMNAR[path.suffix]}; {found.remedy}")
    with columns_explained(kind, path), open_columns(kind, path) as file:
        yield file


def _plain(value: Any) -> Any:
    """A value as JSON could hold it: bytes that are UTF-8 are text."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode("utf-8")
    return float(value) if isinstance(value, decimal.Decimal) else value


def _decoders(path: pathlib.Path, schema: Any) -> Mapping[str, Callable[[Any], Any]]:
    """For each column of classes, the function from its values to their names."""

    def decoder(column: str, names: Sequence[str]) -> Callable[[Any], Any]:
        def decode(value: Any) -> Any:
            if isinstance(value, list):
                return [decode(item) for item in value]
            if value is None or value == -1:  # -1: unknown, as in the test sets of GLUE
                return None
            if not isinstance(value, int):
                return value
            if not 0 <= value < len(names):
                raise UserError(f"{path}: {column} has the class {value}, but only {len(names)} names; correct the file")
            return names[value]

        return decode

    return {column: decoder(column, names) for column, names in _classes(path, schema).items()}


def _classes(path: pathlib.Path, schema: Any) -> dict[str, tuple[str, ...]]:
    """The names of the classes by column, from the schema, or from the dataset_info.json beside the file."""
    features: Any = None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        features = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
    if not isinstance(features, dict) and (beside := path.parent / "dataset_info.json").is_file():
        features = read_object(beside, "save the data set again").get("features")
    found = {column: _names_in(feature) for column, feature in (features if isinstance(features, dict) else {}).items()}
    return {column: names for column, names in found.items() if names and column in schema.names}


def _names_in(feature: Any) -> tuple[str, ...]:
    """The names of a ClassLabel, or of one in lists; () for another feature."""
    while isinstance(feature, list) and len(feature) == 1:
        feature = feature[0]
    if not isinstance(feature, dict):
        return ()
    if feature.get("_type") == "ClassLabel":
        names = feature.get("names")
        return tuple(map(str, names)) if isinstance(names, list) else ()
    return _names_in(feature.get("feature")) if feature.get("_type") in ("Sequence", "List", "LargeList") else ()
