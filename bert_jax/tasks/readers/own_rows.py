"""The rows of the user's own data, with the same access to the cells of a table and the fields of JSON lines."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax.corpus.files import Json, JsonObject, parse_json
from bert_jax.errors import UserError, nearest
from bert_jax.storage.formats import bare_name
from bert_jax.tasks.readers.tables import CORRECT_ROW, Place, is_utf8, read_table, read_text, split_lines

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_JSON = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Row:
    """A row of a file: the cells of a table, or the values of a JSON object. Its methods raise UserError for invalid values."""

    place: Place
    values: JsonObject
    separator: str | None  # of lists in a cell; None: JSON, which has lists

    def value(self, name: str, *, optional: bool = False) -> Any:
        """The value of column or field `name`; None if it is `optional` and absent, null or an empty cell."""
        value = self.values.get(name)
        if name not in self.values and not optional:
            kind, place = ("field", self.place) if self.separator is None else ("column", Place(self.place.path, 1))
            raise place.error(f"no {kind} {name!r}; {nearest(name, self.values) if self.values else 'the object is empty'}")
        if value is None and not optional:
            raise self.place.error(f"{name} is null; fill it in, or remove the row")
        return None if optional and value == "" else value

    def text(self, name: str) -> str:
        """The value as a text that is not blank."""
        value = self.value(name)
        if not isinstance(value, str) or not value.strip():
            raise self.place.error(f"{name} is {short(value)}, not a text; {CORRECT_ROW}")
        return value

    def name(self, name: str, *, optional: bool) -> str | None:
        """The value as the name of a label: a text without surrounding blanks, or a JSON number or boolean as JSON text."""
        value = self.value(name, optional=optional)
        if isinstance(value, bool | int | float):
            return json.dumps(value)
        return None if value is None else self.text(name).strip()

    def texts(self, name: str, *, optional: bool = False) -> tuple[str, ...] | None:
        """The value as a list; of an empty cell (), or None if it is optional."""
        value = self.value(name, optional=optional)
        if isinstance(value, str) and self.separator is not None:
            # any number of spaces separates two words; between two other separators there is an empty text
            value = [part for part in value.split(self.separator) if part or (value and self.separator != " ")]
        if value is None:
            return None
        listed = value if isinstance(value, list) else [None]
        parts: list[Any] = [json.dumps(part) if isinstance(part, bool | int | float) else part for part in listed]
        if not all(isinstance(part, str) and part.strip() for part in parts):
            raise self.place.error(f"{name} is {short(value)}, not a list of texts; {CORRECT_ROW}")
        return tuple(parts)


def short(value: Json) -> str:
    """A value as JSON, truncated to 60 characters for error messages."""
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def suffix(path: pathlib.Path) -> str:
    """The suffix of a file's name, without the one of a compression."""
    return pathlib.Path(bare_name(path.name)).suffix


def read_own_rows(
    path: pathlib.Path, delimiter: str | None, *, quotes: bool | None, columns: Sequence[str], separator: str
) -> Iterator[Row]:
    """The rows of a CSV, TSV or JSON-lines file in its order; the suffix determines the format.

    delimiter, quotes: None: the defaults for the suffix. columns: the names of a table's columns, if its first row does not have
    them. separator: the separator of a list in a cell. Raises UserError for an unknown suffix, and for invalid rows.
    """
    if (ending := suffix(path)) in _JSON:
        for i, line in enumerate(split_lines(read_text(path)), 1):
            if line.strip():
                yield Row(Place(path, i), _json_object(Place(path, i), line), None)
        return
    delimiter = delimiter or _DELIMITERS.get(ending)
    if delimiter is None:
        known = ", ".join((*_DELIMITERS, *_JSON))
        raise UserError(f"{path} ends in {ending!r}, which is no known format; name it with one of {known}, or set delimiter")
    quotes = ending == ".csv" if quotes is None else quotes
    for place, values in read_table(path, delimiter, columns=columns, quotes=quotes):
        yield Row(place, values, separator)


def _json_object(place: Place, line: str) -> JsonObject:
    try:
        value = parse_json(line)
    except ValueError as error:
        raise place.error(f"not JSON ({error}): {line[:60]!r}; each line is one object") from error
    if not isinstance(value, dict):
        raise place.error(f"{short(value)} is not an object; each line is one object with the columns as its fields")
    for name, held in value.items() if "\\u" in line else ():
        if not is_utf8(name + json.dumps(held, ensure_ascii=False)):
            raise place.error(f"{name!r} holds half a surrogate pair, which is no character; {CORRECT_ROW}")
    return value
