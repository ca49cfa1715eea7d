"""Rows of the user's own data. Table cells, JSON fields and Parquet columns are read through the same methods.

Parquet and Arrow files are found in the layouts of the Hugging Face hub and `datasets`:

    train.parquet, data/train-*.parquet     files, or the pattern of their names
    DIR                                     a folder of the hub: `data/train-00000-of-00008.parquet`, or CONFIG/train/0000.parquet
    DIR                                     a Dataset or a DatasetDict, written by `save_to_disk`

In a directory, the split named "train" is read, even if there is also "train_unlabeled". A line then names the split that is
left out. If only longer names fit, such as "train_r1" and "train_r2", the directory is refused. The same holds for dev and test.

A column of type ClassLabel, or of lists of ClassLabel, holds numbers. The class names are in the schema of the file. The rows
returned here hold these names instead of the numbers."""

from __future__ import annotations

import ast
import contextlib
import datetime
import decimal
import json
import math
import pathlib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from bert_jax.data.corpus.columnar import configuration_name, full_split_name, is_data, split_name
from bert_jax.errors import UserError, listed, missing_path, nearest, repeated
from bert_jax.files import Json, JsonObject, parse_json, read_object
from bert_jax.interface.words import counted
from bert_jax.storage.formats import HEAD_BYTES, UNREADABLE, bare_name, is_text, open_packed, recognise, refuse_pipe
from bert_jax.storage.records import (
    KINDS,
    ColumnFile,
    Location,
    columns_explained,
    has_spaces,
    is_utf8,
    open_columns,
    read_text,
    refuse_broken_links,
    split_lines,
    text_lines,
)
from bert_jax.tasks.readers.tables import CORRECT_ROW, Say, is_invisible, note, other_delimiter, read_table

COLUMNAR = {f".{kind}": name for kind, name in KINDS.items()}
"""The format by suffix."""
_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
"""The name of each split in the data sets of the hub."""
_SHARD = re.compile(r"(?s)(.*?)(?<!\d)\d+-of-(\d+)(.*)")


def data_files(path: pathlib.Path, split: str, say: Say = lambda text: None) -> list[pathlib.Path]:
    """Expands a path to data files. These are the file itself, the files that match a pattern, or the files of `split` in a
    directory. `split` is "train", "dev" or "test". Reports other splits of the directory with similar names. Raises UserError
    if there are no files."""
    found: list[pathlib.Path] = []
    try:
        if path.is_dir():
            return _files_in(path, split, say)
        if path.exists() or not any(sign in str(path) for sign in "*?["):
            return [path]
        above = pathlib.Path(path.anchor)
        matches = sorted(above.glob(str(path.relative_to(above))))
        refuse_broken_links(matches)
        found = [file for file in matches if file.is_file() and file.name[0] != "."]
    except OSError:  # the path is too long, or in an unreadable directory; opening the file will report this
        return [path]
    except ValueError as error:
        raise UserError(f"{path} is not a valid pattern of file names ({error}); correct the pattern") from error
    if not found:
        raise UserError(f"{path} matches no file; correct the pattern")
    return found


def _files_in(directory: pathlib.Path, split: str, say: Say) -> list[pathlib.Path]:
    if (state := directory / "state.json").is_file():
        return _saved(directory, state)
    if (directory / "dataset_dict.json").is_file():
        names = read_object(directory / "dataset_dict.json", "save the data set again").get("splits")
        known = [name for name in names or () if isinstance(name, str)]
        fitting = [name for name in known if split_name(name) == _SPLITS[split]]
        if chosen := _best_fitting(fitting, split):
            if len(chosen) > 1:
                raise UserError(
                    f"{directory} has {counted(len(chosen), f'{split} split')} ({_some(chosen)}); give the directory of one, "
                    f"such as {directory / chosen[0]}"
                )
            _report_left_out(directory, split, chosen[0], fitting, say)
            return _saved(directory / chosen[0], directory / chosen[0] / "state.json")
        raise UserError(
            f"{directory} has no {split} split (splits: {', '.join(known) or 'none'}); give the directory of one split"
        )
    names = [file.relative_to(directory).as_posix() for file in sorted(directory.rglob("*")) if file.suffix in COLUMNAR]
    named = {name: split_name(name) for name in names if any(is_data(name, kind) for kind in KINDS)}
    if not named:
        raise UserError(f"{directory} has no Parquet or Arrow files; give the file of the {split} split")
    found = [name for name, its_split in named.items() if its_split == _SPLITS[split]]
    if not found and len(set(named.values())) == 1 and not set(named.values()) & set(_SPLITS.values()):
        found = list(named)  # the directory holds only one split
    if not found:
        raise UserError(
            f"{directory} has no file for the {split} split, only {', '.join(list(named)[:3])}; give a file, or a pattern"
        )
    fitting = list(dict.fromkeys(map(full_split_name, found)))
    best = _best_fitting(fitting, split)
    found = [name for name in found if full_split_name(name) in best]
    if len(best) > 1:
        raise UserError(
            f"{directory} has {counted(len(best), f'{split} split')} ({_some(best)}); give the file or the directory of one, or "
            "a pattern of its files"
        )
    _report_left_out(directory, split, best[0], fitting, say)
    sets = sorted({configuration_name(name) for name in found})
    if len(sets) > 1:
        raise UserError(f"{directory} holds several data sets ({', '.join(sets[:4])}); give the directory of one data set")
    if shard := next(filter(None, map(_SHARD.fullmatch, found)), None):
        beginning, number, end = shard.groups()
        there = {name[: -len(end)] for name in found}
        parts = (f"{beginning}{i:0{len(number)}}-of-{number}" for i in range(min(int(number[:9]), len(found) + 1)))
        if "-" not in end and (missing := next((part for part in parts if part not in there), None)):
            raise UserError(f"{directory} lacks {missing}{end}, a part of the {split} split; fetch this file")
    return [directory / name for name in found]


def _best_fitting(names: Iterable[str], split: str) -> list[str]:
    """Returns the names that fit `split` best, of the names of splits that contain a word for it. A usual name is better than
    another word, such as "val", and a word is better than a longer name, such as "train_unlabeled"."""
    rank = {name: (name.lower() not in (split, _SPLITS[split]), not name.isalpha()) for name in names}
    return [name for name in rank if rank[name] == min(rank.values())]


def _report_left_out(directory: pathlib.Path, split: str, chosen: str, fitting: Sequence[str], say: Say) -> None:
    if others := [name for name in fitting if name != chosen]:
        say(f"{directory}: the {split} split is {chosen}, without {_some(others)}; for all of them, give a pattern of files")


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:4], *(["..."] if len(names) > 4 else [])])


def _saved(directory: pathlib.Path, state: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files of a Dataset in the order in which `save_to_disk` wrote them."""
    remedy = "save the data set again"
    content = read_object(state, remedy)
    listed = content.get("_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed or ()]
    if not names or not all(isinstance(name, str) and pathlib.PurePath(name).name == name for name in names):
        raise UserError(f"{state} does not list the files of a data set; {remedy}")
    if content.get("_indices_data_files"):
        raise UserError(f"{state} has indices of rows, which are not supported; {remedy} after flatten_indices()")
    return [directory / str(name) for name in names]


def read_columnar(
    path: pathlib.Path, wanted: Container[str] | None = None, *, by_name: bool = True
) -> Iterator[tuple[Location, JsonObject]]:
    """Yields the rows of a Parquet or Arrow file as Python values, each with its location.

    wanted: the columns to read, or None to read all columns. The values of all other columns are None. by_name: whether class
    ids are replaced by class names. Raises UserError if the file is missing, damaged or in another format, or if pyarrow does
    not read its codec."""
    with _opened(path) as file:
        names = [name for name in file.schema.names if wanted is None or name in wanted]
        if twice := repeated(names):
            raise UserError(f"{path}: two columns are named {twice[0]!r}; give each a different name")
        rest = dict.fromkeys(file.schema.names)
        decode = _decoders(path, file.schema) if by_name else {}
        number = 0
        for batch in file.batches(names):
            columns = [[decode.get(name, plain)(value) for value in batch.column(name).to_pylist()] for name in names]
            for i in range(batch.num_rows):
                number += 1
                yield (
                    Location(path, number, "row"),
                    {**rest, **{name: held[i] for name, held in zip(names, columns, strict=True)}},
                )


def class_names(path: pathlib.Path) -> dict[str, tuple[str, ...]]:
    """Returns the class names of each column with classes in a Parquet or Arrow file. The names are in the order of the class
    ids."""
    with _opened(path) as file:
        return _classes(path, file.schema)


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[ColumnFile]:
    if path.suffix.lower() not in COLUMNAR:
        raise UserError(f"{path} is compressed as a whole; decompress it first")
    kind = path.suffix.lower()[1:]
    refuse_pipe(path)
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise UserError(f"{missing_path(path)} cannot be read: {error.strerror}; give the path of a file") from error
    if not head:
        raise UserError(f"{path} is empty; fetch it again, or give another file")
    if (found := recognise(head, path.name)) and found.kind != kind:
        raise UserError(f"{path} {found.what}, not {KINDS[kind]}; {found.remedy}")
    if not found and is_text(head):
        raise UserError(f"{path} is text, not {KINDS[kind]}; give it a name with the ending of its format, such as .csv")
    with columns_explained(kind, path), open_columns(kind, path) as file:
        yield file


def plain(value: Any) -> Any:
    """Converts a value of a Parquet or Arrow file for JSON. UTF-8 bytes become text, and decimals become floats."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode("utf-8")
    return float(value) if isinstance(value, decimal.Decimal) else value


def _decoders(path: pathlib.Path, schema: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Returns a function for each column of classes. The function converts values of the column to class names."""

    def decoder(column: str, names: Sequence[str]) -> Callable[[Any], Any]:
        def decode(value: Any) -> Any:
            if isinstance(value, list):
                return [decode(item) for item in value]
            if value is None or value == -1:  # -1 means unknown, as in GLUE's test sets
                return None
            if isinstance(value, float) and value.is_integer():  # pandas writes whole numbers as floats if some are missing
                value = int(value)
            if not isinstance(value, int):
                return value
            if not 0 <= value < len(names):
                raise UserError(
                    f"{path}: {column} has the class {value}, but only {len(names)} classes have names; correct the file"
                )
            return names[value]

        return decode

    return {column: decoder(column, names) for column, names in _classes(path, schema).items()}


def _classes(path: pathlib.Path, schema: Any) -> dict[str, tuple[str, ...]]:
    """Returns the names of the classes by column, from the schema, or from the dataset_info.json next to the file."""
    features: Any = None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        features = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
    if isinstance(features, list):  # as in the header of a README.md on the hub
        features = {each["name"]: each for each in features if isinstance(each, dict) and "name" in each}
    if not isinstance(features, dict) and (info := path.parent / "dataset_info.json").is_file():
        features = read_object(info, "save the data set again").get("features")
    found = {column: _names_in(feature) for column, feature in (features if isinstance(features, dict) else {}).items()}
    return {column: names for column, names in found.items() if names and column in schema.names}


def _names_in(feature: Any) -> tuple[str, ...]:
    """Returns the class names of a ClassLabel, or of a list of ClassLabels. `feature` is written as in `datasets`, or as in a
    README.md on the hub. Returns () for any other feature."""
    while isinstance(feature, list) and len(feature) == 1:
        feature = feature[0]
    if not isinstance(feature, dict):
        return ()
    if feature.get("_type") == "ClassLabel" or (feature.keys() <= {"names", "id"} and "names" in feature):
        names = feature.get("names")
        if isinstance(names, dict) and {*names} == {str(i) for i in range(len(names))}:  # {"0": "no", "1": "yes"}
            names = [names[str(i)] for i in range(len(names))]
        return tuple(map(str, names)) if isinstance(names, list) else ()
    if feature.get("_type") in ("Sequence", "List", "LargeList"):
        return _names_in(feature.get("feature"))
    inside = (feature[key] for key in ("class_label", "dtype", "sequence", "list") if isinstance(feature.get(key), dict))
    return next(filter(None, map(_names_in, inside)), ())


DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": "\t", ".psv": "|"}
"""The delimiter between columns, by the suffix of the table's file."""
JSON = (".jsonl", ".ndjson", ".json")
"""The suffixes of JSON files. They have one object per line, or one list of objects."""
SENTENCE = "Sentence #"
"""The column that numbers the sentences in a popular table of named entities with one word per row (ner_dataset.csv)."""
MISSING = frozenset((
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL", "NaN",
    "NaT", "None", "n/a", "nan", "null",
    "#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!",
))  # fmt: skip
"""Texts that pandas reads as missing values, and the error values of spreadsheets."""
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")
_SEPARATOR_LINE = re.compile(r'\ufeff?"?sep=(.)"?\r?(?:\n|\Z)')
_ITEM = re.compile(r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,'"\[\](){}]+)\s*(,?)""", re.DOTALL)
_END = re.compile(r"\s*\Z")
_PYTHON_OBJECT = re.compile(r"(?:set|frozenset|array|tensor|Series|Index|dict_keys|dict_values)\([\[{)].*", re.DOTALL)
_SINGLE_QUOTED = re.compile("'[^']+'")
_DOUBLE_QUOTES = "enclose cells in double quotes, not in single ones"
_FILL_IN = "fill in a value, or remove the row"


class NoColumn(UserError):
    """A column of a table, or a field of JSON, is missing."""

    def __init__(self, message: str, column: str):
        super().__init__(message)
        self.column = column


@dataclass(frozen=True)
class Row:
    """A row of a file, i.e. the cells of a table, or the values of an object. The methods raise UserError for invalid
    values."""

    location: Location
    values: JsonObject
    separator: str | None = None  # the separator of the items in a cell; None means spaces
    has_cells: bool = False  # whether all values are texts from the cells of a table
    classes: Container[str] = ()  # names of classes in the file's own description
    keeps_quotes: bool = False  # whether double quotes around a cell are part of its value

    def value(self, name: str, *, optional: bool = False) -> Any:
        """Returns the value of the column or field `name`. If the value is `optional`, returns None for an absent value, null,
        NaN or an empty cell."""
        value = self.values.get(name)
        if name not in self.values and not optional:
            kind, location = ("field", self.location) if self.location.unit in ("line", "item") else ("column", self.location)
            if self.has_cells:
                kind, location = "column", Location(self.location.path, 1)
            hint = nearest(name, self.values) if self.values else "the object is empty"
            if {"annotations", "data"} <= self.values.keys():
                hint = "the file has tasks of Label Studio with annotations; export them as JSON-MIN or as CSV"
            raise NoColumn(str(location.error(f"there is no {kind} {name!r}; {hint}")), name)
        is_nan = isinstance(value, float) and math.isnan(value)
        if (value is None or is_nan) and not optional:
            null = "null or -1" if self.classes and self.location.unit == "row" else "null"
            raise self.location.error(f"{name} is {'NaN' if is_nan else null}; {_FILL_IN}")
        return None if is_nan or (optional and value == "") else value

    def text(self, name: str, *, may_be_empty: bool = False) -> str:
        """Returns the value as a text, which is not blank unless it `may_be_empty`."""
        value = self.value(name)
        if not isinstance(value, str) or (is_invisible(value) and not may_be_empty):
            remedy = CORRECT_ROW
            if isinstance(value, dict):
                remedy = f"write each part to a {'column' if self.location.unit == 'row' else 'field'} of its own"
            elif holds_columns(self.values):
                remedy = COLUMNS_REMEDY
            elif self.location.unit == "row" and not isinstance(value, str):
                remedy = f"name a column of texts among {listed(other for other in self.values if other != name)}"
            raise self.location.error(f"{name} is {_shown(value)}, not a text; {remedy}")
        return value

    def name(self, name: str, *, optional: bool = False) -> str | None:
        """Returns the value as text, in the form of `label_text`."""
        value = self.value(name, optional=optional)
        if isinstance(value, bool | int | float):
            return label_text(value)
        if isinstance(value, datetime.date | datetime.time):
            return str(value)
        if value is not None and (not isinstance(value, str) or is_invisible(value)):
            raise self.location.error(f"{name} is {_shown(value)}, not a text; {CORRECT_ROW}")
        return None if value is None else label_text(value)

    def label(self, name: str, *, optional: bool = False, known: Container[str] = ()) -> str | None:
        """Returns the value as the name of a label. Raises UserError for a text that usually marks a missing value, unless it
        is `known` or is a class name of the file."""
        found = self.name(name, optional=optional)
        return found if found is None else self._label(name, found, known)

    def written(self, name: str) -> Any:
        """Returns the value. If the value is the text of a list or an object in JSON or Python, returns the parsed list or
        object."""
        value = self.value(name)
        bare = value.strip() if isinstance(value, str) else ""
        begins = bare[:2]
        if begins in ("['", '["', "[]"):
            return self._written(name, bare, strict=True)
        if begins not in ("{'", '{"', "[{", "{}"):
            return value
        try:
            return written_object(bare)
        except ValueError as error:
            raise self.location.error(
                f'{name} is {short(value)}, which cannot be read as an object; write it as {{"text": ["a"]}}, or give JSON lines'
            ) from error

    def labels(self, name: str, *, optional: bool = False, known: Container[str] = ()) -> tuple[str, ...] | None:
        """Returns the label names that the value lists, or None if the value is optional and missing, or a list of nulls."""
        listed = self.values.get(name)
        if optional and isinstance(listed, list) and listed and all(item is None for item in listed):
            return None
        items = self._items(name, optional=optional, remedy="fill in a label, or remove the item", strict=True)
        return None if items is None else tuple(self._label(name, label_text(item), known) for item in items)

    def texts(self, name: str, *, optional: bool = False) -> tuple[str, ...] | None:
        """Returns the value as a list of texts, or None if the value is optional and missing."""
        remedy = 'replace it by a visible character such as "_", or remove it (with a word, also remove its label)'
        items = self._items(name, optional=optional, remedy=remedy, strict=False)
        return None if items is None else tuple(item if isinstance(item, str) else json.dumps(item) for item in items)

    def _label(self, name: str, label: str, known: Container[str]) -> str:
        if label in known or label in self.classes:
            return label
        if label in MISSING or label in ("Infinity", "-Infinity", "inf", "-inf"):
            raise self.location.error(
                f"{name} is {label!r}, which usually marks a missing value; {_FILL_IN} (if it is a class, list all classes in "
                "label_names)"
            )
        if self.keeps_quotes and is_quoted(label):
            raise self.location.error(_quotes_remedy(label))
        raw = self.values.get(name)
        if self.has_cells and _SINGLE_QUOTED.fullmatch(label):
            raise self.location.error(
                f"{name} is {label[:60]}, and the single quotes are part of the label; {_DOUBLE_QUOTES}, or list all classes "
                "in label_names"
            )
        if isinstance(raw, str) and raw[:1] == " " and is_quoted(label):
            raise self.location.error(
                f"{name} is {label[:60]}, and the quotes are part of the label because a space precedes them; remove the "
                "space, or list all classes in label_names"
            )
        return label

    def _items(self, name: str, *, optional: bool, remedy: str, strict: bool) -> list[str | int | float | bool] | None:
        """Returns the items of a list. The value may be a list, a text with a list written in JSON or Python, or a cell with a
        separator between the items."""
        value = self.value(name, optional=optional)
        if value is None:
            return None
        listed = value
        if isinstance(value, str):
            listed = self._written(name, value, strict=strict)
            if listed is None and self.has_cells:
                if (self.separator or " ") == " " or not value.strip():  # any number of spaces, TABs and line ends
                    listed = split_words(value)
                else:
                    listed = [part.strip() for part in value.split(self.separator)]
        if not isinstance(listed, list | tuple) or not all(isinstance(part, str | bool | int | float | None) for part in listed):
            remedy = COLUMNS_REMEDY if holds_columns(self.values) else CORRECT_ROW
            raise self.location.error(f"{name} is {short(value)}, not a list of texts; {remedy}")
        for i, part in enumerate(listed, 1):
            if part is None or (isinstance(part, float) and not math.isfinite(part)):
                raise self.location.error(f"item {i} of {name} is {json.dumps(part)}; {_FILL_IN}")
            if isinstance(part, str) and (is_invisible(part) if strict else not part.strip()):
                shown = " ".join(f"U+{ord(sign):04X}" for sign in part[:5])
                what = f"{'invisible' if part.strip() else 'only white space'} ({shown})" if part else '""'
                raise self.location.error(f"item {i} of {len(listed)} in {name} is {what}; {remedy}")
        return list(listed)

    def _written(self, name: str, text: str, *, strict: bool) -> list[str | int | float | bool] | None:
        """Returns the items of `written_list`. Raises UserError for a list that cannot be read."""
        try:
            return written_list(text, strict=strict)
        except ValueError as error:
            raise self.location.error(f"{name} is {short(text)}, {error}") from error


def split_words(text: str) -> list[str]:
    """Returns the words between spaces, TABs and line ends. Other white space, such as a no-break space, is part of a word, as in
    files of words."""
    return [part for part in re.split("[ \t\r\n]+", text) if part]


CHOICES_OBJECT = re.compile(r"\A\s*\{\s*['\"](text|label)['\"]\s*:")
"""Matches a cell that starts like the object of `as_choices`, i.e. with {"text": or {"label":."""


def as_choices(value: Any) -> dict[str, Any] | None:
    """Returns {"text": texts, "label": labels} for choices with labels, or None for any other value. The value may be such an
    object (as in ARC), a list of objects with a text and a label (CommonsenseQA), or an object that maps labels to texts
    (MedQA)."""
    if isinstance(value, list) and value and all(map(_has_choice, value)):
        return {name: [choice[name] for choice in value] for name in ("text", "label")}
    if _has_choice(value):
        return value
    # A row of a Parquet file has a column for every label. The columns of labels that the example does not have are null.
    texts = {label: text for label, text in value.items() if text is not None} if isinstance(value, dict) else {}
    if texts and all(isinstance(text, str) for text in texts.values()):
        return {"text": [*texts.values()], "label": [*texts]}
    return None


def without_blank_end(values: Sequence[Any]) -> list[Any]:
    """Returns the choices in several columns, without those at the end that are null, NaN or invisible, because some questions
    have fewer choices than there are columns."""

    def is_blank(value: Any) -> bool:
        if isinstance(value, str):
            return is_invisible(value)
        return value is None or (isinstance(value, float) and math.isnan(value))

    return list(values[: max((i for i, value in enumerate(values, 1) if not is_blank(value)), default=0)])


def _has_choice(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and value.keys() == {"text", "label"}


def written_object(text: str) -> Any:
    """Parses the text of an object in JSON or Python. Raises ValueError for any other text."""
    with contextlib.suppress(ValueError):
        return parse_json(text)
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError("not an object that can be read") from error


def written_list(text: str, *, strict: bool = False) -> list[str | int | float | bool] | None:
    """Parses the text of a list in the syntax of JSON, Python or numpy. Returns the items, or None for any other text.

    Other texts in square brackets, such as "[laughter]", are ordinary texts. However, if `strict` is set, or if the text has
    quotes, commas or brackets like a list, this function raises ValueError with the problem and the remedy.
    """
    bare = text.strip()
    if bare[:2] in ("('", '("', "{'", '{"') and bare[-1] in ")}":  # the text is a tuple, a set, or ordinary text
        items = _parse_list(bare[1:-1])
        if items is not None and (len(items) < 2 or "," in bare):
            return items
    inside = bare[1:-1] if bare[:1] == "[" and bare.endswith("]") and bare != "[" else None
    if not strict and inside is not None and inside[:1] == inside[-1:] == " " and not set("'\"") & set(inside):
        return None  # the brackets are words
    items = None if inside is None else _parse_list(inside)
    if items is not None:
        return items
    is_list = bare[:2] in ("['", '["', "[[", "[{") or _PYTHON_OBJECT.fullmatch(bare)
    if is_list or (inside is not None and (strict or ("," in inside and not set("[]") & set(inside)))):
        raise ValueError('not a list that can be read; write it as ["a", "b"]')
    return None


def _parse_list(inside: str) -> list[str | int | float | bool] | None:
    """Returns the items between the brackets of a list, or None if the text cannot be read. Items are quoted strings, numbers,
    true, false, null or NaN.

    Items are separated by commas or, in numpy's format, only by spaces. Python joins two adjacent strings into one, so its own
    parser is only used for a single string."""
    items: list[str | int | float | bool] = []
    commas = position = 0
    while not _END.match(inside, position):
        found = _ITEM.match(inside, position)
        if not found:
            return None
        item, comma = found.groups()
        commas += bool(comma)
        position = found.end()
        try:
            items.append(_parse_item(item))
        except (ValueError, SyntaxError):
            return None
    return items if not commas or len(items) - commas in (0, 1) else None  # a comma may follow the last item


def _parse_item(item: str) -> Any:
    if item[0] in "'\"":
        try:
            text = parse_json(item)
        except ValueError:
            text = ast.literal_eval(item)
        if not is_utf8(text):
            raise ValueError("half a surrogate pair")
        return text
    words = {"True": True, "False": False, "None": math.nan, "nan": math.nan, "null": math.nan}
    if item in words:
        return words[item]
    if re.fullmatch(r"-?[0-9]+\.", item):  # numpy writes [1. 0.]
        item += "0"
    value = parse_json(item)
    if not isinstance(value, bool | int | float):
        raise ValueError(item)
    return value


def holds_columns(values: JsonObject) -> bool:
    """Returns whether an object seems to hold whole columns instead of a row, i.e. whether all values are lists of the same
    length."""
    lists = [value for value in values.values() if isinstance(value, list)]
    return len(lists) == len(values) > 1 and len({len(column) for column in lists}) == 1


COLUMNS_REMEDY = (
    "the object holds whole columns; write one object per row (pandas: DataFrame(columns).to_json(FILE, "
    "orient='records', lines=True))"
)


def label_text(value: str | bool | float) -> str:
    """Returns a label as text, without surrounding blanks. true and false are written as in JSON. Whole numbers are written
    without ".0", which pandas adds to the integers of a column with missing values."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    text = value.strip() if isinstance(value, str) else json.dumps(value)
    whole = _WHOLE.fullmatch(text)
    return text if not whole else "0" if whole[1] == "-0" else whole[1]


MARKDOWN_LINE = "the line belongs to a table in Markdown"


def is_markdown_line(cells: Iterable[str]) -> bool:
    """Returns whether the cells are from the line below the header of a Markdown table, e.g. "---" or ":--:"."""
    filled = [cell.strip() for cell in cells if cell.strip()]
    return len(filled) > 1 and all(re.fullmatch(r":?-{2,}:?", cell) for cell in filled)


def is_quoted(cell: str) -> bool:
    """Returns whether a cell is in double quotes, and all double quotes inside are doubled."""
    return len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in cell[1:-1].replace('""', "")


def _quotes_remedy(cell: str) -> str:
    return (
        f"{cell[:60]} is in double quotes; set quotes=true if the quotes only enclose the cell, or quotes=false if they are "
        "part of the text"
    )


def short(value: Json) -> str:
    """Returns a value as JSON, truncated to 60 characters for error messages."""
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _shown(value: Json) -> str:
    """Returns a value as `short` does, but shows a text of invisible characters as escapes."""
    return ascii(value[:60]) if isinstance(value, str) and value.strip() and is_invisible(value) else short(value)


def several_questions(field: str, path: pathlib.Path | str) -> str:
    """Returns the error message for a row with a list of questions, as in MRQA, instead of one question in `field`."""
    return (
        f"there is no field {field!r}, but a list of questions about one context, as in MRQA; give one question per line "
        f"(jq -c 'select(.qas) | {{context}} + .qas[]' {pathlib.Path(path).name})"
    )


def suffix(path: pathlib.Path) -> str:
    """Returns the suffix of a file name in lower case, after a suffix such as .gz is removed."""
    return pathlib.Path(bare_name(path.name)).suffix.lower()


def read_own_rows(
    path: pathlib.Path,
    delimiter: str | None = None,
    *,
    quotes: bool | None = None,
    columns: Sequence[str] = (),
    separator: str | None = None,
    wanted: Container[str] | None = None,
    by_name: bool = True,
    say: Say = note,
) -> Iterator[Row]:
    """Yields the rows of a CSV, TSV, JSON, Parquet or Arrow file, in the order of the file. The suffix determines the format.

    delimiter, quotes: if None, the default for the suffix is used. columns: the names of a table's columns, if the first row
    does not have the names. separator: the separator of a list in a cell. wanted, by_name: as in `read_columnar`. Raises
    UserError for an unknown suffix, and for invalid rows. `say` reports cells whose quotes are kept.
    """
    if (ending := suffix(path)) in COLUMNAR:
        classes = frozenset(name for names in class_names(path).values() for name in names)
        for location, values in read_columnar(path, wanted, by_name=by_name):
            yield Row(location, values, classes=classes)
        return
    if ending in JSON:
        yield from (Row(location, values) for location, values in _json_rows(path))
        return
    delimiter = delimiter or DELIMITERS.get(ending)
    if delimiter is None:
        if foreign := recognise(_head(path), path.name):
            raise UserError(f"{path} {foreign.what}, not text; {foreign.remedy}")
        if ending == ".ann":
            raise UserError(
                f"{path} has annotations with the offsets of their characters, as brat writes them; give the words and tags "
                'of each text as JSON lines, {"words": ["in", "Paris"], "labels": ["O", "B-LOC"]}'
            )
        known = ", ".join((*DELIMITERS, *JSON, *COLUMNAR))
        line = _head(path).decode(errors="replace").partition("\n")[0]
        sign = max(",;\t|", key=line.count)
        delimiter = f"delimiter={sign!r}" if sign in line else "delimiter"
        remedy = f"give it a name that ends in one of {known}, or set {delimiter}"
        raise UserError(f"{path} ends in {ending!r}, which is not the ending of a known format; {remedy}")
    yield from _table_rows(path, delimiter, quotes=quotes, columns=columns, separator=separator, wanted=wanted, say=say)


def _table_rows(
    path: pathlib.Path,
    delimiter: str,
    *,
    quotes: bool | None,
    columns: Sequence[str],
    separator: str | None,
    wanted: Container[str] | None,
    say: Say,
) -> Iterator[Row]:
    """Yields the rows of a table. A first line `sep=;`, which Excel writes and reads, sets the delimiter."""
    head = _head(path).decode(errors="replace").lstrip("\ufeff")
    stated = _SEPARATOR_LINE.match(head)
    unsure, quotes = quotes is None and suffix(path) != ".csv", suffix(path) == ".csv" if quotes is None else quotes
    delimiter = stated[1] if stated else delimiter
    lines = {"skip": 1 if stated else 0}
    begin = re.split("\r\n|\r|\n", head[stated.end() :] if stated else head)[0]
    spaced = not columns and has_spaces(begin, delimiter)

    def refuse(location: Location, row: list[str]) -> None:
        raise table.wrong_width(location, row, _cells_remedy(row, table.columns, delimiter, quotes=quotes))

    table = read_table(path, delimiter, columns=columns, quotes=quotes, skipped=refuse, wanted=wanted, spaced=spaced, **lines)
    if not columns and (other := other_delimiter(table.columns, delimiter)):
        raise Location(path, 1 + lines["skip"]).error(f"the only column is {table.columns[0]!r}; set delimiter={other!r}")
    if not columns and (quoted := next(filter(_SINGLE_QUOTED.fullmatch, table.columns), None)):
        raise Location(path, 1 + lines["skip"]).error(f"the column {quoted} is in single quotes; {_DOUBLE_QUOTES}")
    if not quotes and unsure and (quoted := next((name for name in table.columns if is_quoted(name)), None)):
        raise Location(path, 1 + lines["skip"]).error(_quotes_remedy(quoted))
    if table.columns[0].startswith("__label__"):
        raise Location(path, 1 + lines["skip"]).error(
            "the file is in fastText's format; write a label, a TAB and a text on each line (sed -E "
            r"'s/[[:space:]]+/ /g; s/^((__label__[^ ]+ +)+)/\1\t/; s/__label__//g'), and set columns=[label,text]"
        )
    kept: list[tuple[Location, str]] = []
    for location, values in table:
        first = next(iter(values))
        if values[first].strip("\ufeff ") == first and all(cell.strip("\ufeff ") == name for name, cell in values.items()):
            raise location.error("the row repeats the column names, perhaps because files were joined; remove the row")
        if is_markdown_line(values.values()):
            raise location.error(f"{MARKDOWN_LINE}; remove it, and the '|' at the beginning and end of each line")
        for cell in values.values() if unsure else ():
            if is_quoted(cell):
                if '""' in cell[1:-1]:
                    raise location.error(_quotes_remedy(cell))
                kept.append((location, cell))
        yield Row(location, values, separator, has_cells=True, keeps_quotes=unsure)
    if kept:
        location, cell = kept[0]
        say(f"WARNING: {location.error(_quotes_remedy(cell))} ({counted(len(kept), 'such cell')})")


def _head(path: pathlib.Path) -> bytes:
    """Returns the first bytes of a file, or b"" if the file cannot be read. The error is reported when the rows are read."""
    refuse_pipe(path)
    with contextlib.suppress(*UNREADABLE), open_packed(path) as file:
        return file.read(HEAD_BYTES)
    return b""


def _cells_remedy(row: Sequence[str], columns: Sequence[str], delimiter: str, *, quotes: bool) -> str:
    """Returns the remedy for a row whose number of cells differs from the number of columns."""
    if other := other_delimiter(row, delimiter) or other_delimiter(columns, delimiter):
        return f"if {other!r} separates the columns, set delimiter={other!r}; otherwise correct the line"
    if len(columns) == 1:
        return "the first line must name the columns"
    if len(row) == len(columns) + 1 and not row[-1].strip():
        return f"remove the {delimiter!r} at the end of the line"
    if not quotes and any(cell.startswith('"') and not is_quoted(cell) for cell in row):
        return "if double quotes enclose cells, set quotes=true; otherwise correct the line"
    if any(cell.lstrip()[:1] == "'" for cell in row) and any(cell.rstrip()[-1:] == "'" for cell in row):
        return _DOUBLE_QUOTES
    return "correct the line, or remove it"


def _json_rows(path: pathlib.Path) -> Iterator[tuple[Location, JsonObject]]:
    """Yields the objects in a file, each with its location. The file has an object on each line, or one list of objects. Only a
    list is read into memory as a whole."""
    is_first = True
    for number, text in enumerate(text_lines(path), 1):
        for i, line in enumerate(split_lines(text), number):
            if not line.strip():
                continue
            if is_first and line.lstrip()[:1] == "[":
                whole = read_text(path)
                listed = _parsed(whole)
                if listed == []:
                    raise UserError(f"{path} has no rows; give a file with one example per row")
                if isinstance(listed, list) and any(isinstance(item, dict) for item in listed):
                    has_escapes = "\\u" in whole
                    yield from (_checked(Location(path, n, "item"), item, has_escapes) for n, item in enumerate(listed, 1))
                    return
            yield _checked(Location(path, i), _json_line(path, i, line, is_first), "\\u" in line)
            is_first = False


def _json_line(path: pathlib.Path, number: int, line: str, is_first: bool) -> Any:
    """Returns the value in a line. Raises UserError if the line is not JSON, or if it holds the whole file as one object."""
    try:
        value = parse_json(line)
    except ValueError as error:
        text = read_text(path)
        if line.lstrip()[:1] == "{" and isinstance(whole := _parsed(text), dict):
            raise UserError(f"{path} is a single object ({', '.join(whole)}); {_rows_wanted(path, whole)}") from error
        if (bare := line.rstrip()).endswith(",") and isinstance(_parsed(bare[:-1]), dict):
            raise Location(path, number).error(
                f"a comma follows the object; remove the comma from each line (sed -i 's/,[[:space:]]*$//' {path.name})"
            ) from error
        if is_first and "Extra data" in _problem(text):
            raise UserError(
                f"{path} holds several JSON values, one after another; write each value on a line of its own (jq -c . "
                f"{path.name} > {_of_lines(path)})"
            ) from error
        if number == 1 and suffix(path) == ".json":
            raise UserError(f"{path} is not JSON ({_problem(text)}); fetch the file again") from error
        raise Location(path, number).error(f"the line is not JSON ({error}): {line[:60]!r}; write one object per line") from error
    if is_first and isinstance(value, dict) and _container(value) and "\n" not in read_text(path).strip():
        raise UserError(f"{path} is a single object ({', '.join(value)}); {_rows_wanted(path, value)}")
    if is_first and isinstance(value, dict) and _is_whole_table(value):
        raise UserError(f"{path} is a single object for the whole table, as written by pandas' to_json; {_LIST_WANTED}")
    return value


def _is_whole_table(value: JsonObject) -> bool:
    """Returns whether an object is a whole table written by pandas, i.e. {row index: row} or {column: {row index: cell}}."""
    inside = list(value.values())
    if not inside or not all(isinstance(held, dict) and held for held in inside):
        return False
    return all(map(str.isdecimal, value)) or all(key.isdecimal() for held in inside for key in held)


_LIST_WANTED = "give one object per row, each on its own line or all in one list (pandas: to_json with orient='records')"


def _container(value: JsonObject) -> str:
    """Returns the field of an object that holds a list of all rows, or ""."""
    usual = ("data", "rows", "examples", "items", "records", "instances", "train")
    return next((name for name in usual if isinstance(value.get(name), list)), "")


def _rows_wanted(path: pathlib.Path, value: JsonObject) -> str:
    """Returns the remedy for a file that is the single object `value`."""
    rows = value.get(name := _container(value)) or [None]
    if not all(isinstance(row, dict) for row in rows):
        return COLUMNS_REMEDY if holds_columns(value) else _LIST_WANTED
    inside = "[].row" if all("row" in row for row in rows) else "[]"  # the hub's viewer writes rows in this way
    return f"give one object per row, each on its own line (jq -c '.{name}{inside}' {path.name} > {_of_lines(path)})"


def _of_lines(path: pathlib.Path) -> str:
    """Returns a name for the JSON Lines file to which a JSON file is converted."""
    return f"{path.stem}{'' if suffix(path) == '.json' else '-lines'}.jsonl"


def _problem(text: str) -> str:
    """Returns the reason why a text is not valid JSON."""
    try:
        parse_json(text)
    except ValueError as error:
        return str(error)
    return "several values"


def _parsed(text: str) -> Any:
    """Parses a JSON text. Returns None if the text is not valid JSON."""
    try:
        return parse_json(text)
    except ValueError:
        return None


def _checked(location: Location, value: Any, has_escapes: bool) -> tuple[Location, JsonObject]:
    """Returns a row with its location. Raises UserError if the row is not an object, holds half a surrogate pair, or was not
    accepted in Prodigy."""
    if not isinstance(value, dict):
        raise location.error(
            f"{short(value)} is not an object; write each {location.unit} as one object with the columns as fields"
        )
    for name, held in value.items() if has_escapes else ():
        if not is_utf8(name + json.dumps(held, ensure_ascii=False)):
            raise location.error(f"{name!r} has half a surrogate pair, which is not a character; {CORRECT_ROW}")
    if "_input_hash" in value and value.get("answer", "accept") != "accept":  # a row as Prodigy writes it
        raise location.error(
            f"the annotator's answer is {value['answer']!r}; keep only accepted rows (jq -c 'select(.answer == \"accept\")' "
            f"{pathlib.Path(location.path).name})"
        )
    return location, value
