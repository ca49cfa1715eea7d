"""Text files in rows and columns. Errors name the file, line and column."""

from __future__ import annotations

import itertools
import math
import pathlib
import re
import sys
import unicodedata
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bert_jax.errors import UserError, listed, nearest, repeated
from bert_jax.interface.ranges import LARGEST, decimal_number, whole_number
from bert_jax.interface.words import counted, cut
from bert_jax.storage.records import Line, Location, table_rows, text_lines

Example = TypeVar("Example")
Say = Callable[[str], object]
"""A function that reports a non-fatal problem in the data."""


CORRECT_ROW = "correct the row, or remove it"
"""The remedy in most errors."""
INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {chr(i) for i in range(0xFE00, 0xFE10)}
"""The invisible characters that Unicode counts as letters, marks or symbols. They are fillers, a blank, and variation
selectors."""


def note(message: str) -> None:
    """The default `Say` of all readers. Prints a line to standard error."""
    print(message, file=sys.stderr)


def is_invisible(text: str) -> bool:
    """Returns whether a text has no visible character, i.e. only white space and characters such as U+200B."""
    return all(sign.isspace() or sign in INVISIBLE or unicodedata.category(sign) in ("Cf", "Cc") for sign in text)


def read_rows(
    path: pathlib.Path, delimiter: str = "\t", *, quotes: bool = False, skip: int = 0, spaced: bool = False
) -> Iterator[tuple[Location, list[str]]]:
    """Yields the rows of a file that are not blank, as `table_rows` reads them. The first `skip` lines are left out."""
    lines = (Line(number, text) for number, text in enumerate(text_lines(path), 1) if number > skip)
    rows = table_rows(path, lines, delimiter, quotes=quotes, spaced=spaced)
    yield from ((row.location, row.cells) for row in rows if row.cells)


@dataclass(frozen=True)
class Table:
    """The rows of a file with named columns. The rows can only be iterated over once.

    Raises UserError for a row with a wrong number of columns, unless `skipped` is given.
    """

    path: pathlib.Path
    columns: tuple[str, ...]
    rows: Iterator[tuple[Location, list[str]]]
    skipped: Callable[[Location, list[str]], None] | None = None  # called for each row with a wrong number of columns
    delimiter: str = "\t"

    def __iter__(self) -> Iterator[tuple[Location, dict[str, str]]]:
        for location, row in self.rows:
            if len(row) == len(self.columns):
                yield location, dict(zip(self.columns, row, strict=True))
            elif self.skipped:
                self.skipped(location, row)
            else:
                raise self.wrong_width(location, row, "correct the line, or remove it")

    def wrong_width(self, location: Location, row: Sequence[str], remedy: str) -> UserError:
        """Returns the error for a row with a wrong number of columns."""
        names = f"there are {len(self.columns)} column names" if len(self.columns) > 1 else "there is only one column name"
        return location.error(f"the row has {counted(len(row), 'column')}, but {names} ({listed(self.columns)}); {remedy}")

    def require(self, *names: str) -> None:
        """Raises UserError if one of `names` is not a column. The error names the most similar column."""
        for name in names:
            if name not in self.columns and (other := other_delimiter(self.columns, self.delimiter)):
                right = {"\t": "TABs", ",": "commas"}[self.delimiter]
                only = cut(self.columns[0])
                raise Location(self.path, 1).error(
                    f"the only column is {only!r}; separate columns with {right}, not with {other!r}"
                )
            if name not in self.columns and self.columns[0].startswith("#"):
                raise Location(self.path, 1).error(
                    f"the first line must have the column names, but it is a comment ({cut(self.columns[0])!r}); remove the "
                    "comment"
                )
            if name not in self.columns:
                raise Location(self.path, 1).error(f"there is no column {name!r}; {nearest(name, self.columns)}")


def read_table(
    path: pathlib.Path,
    delimiter: str = "\t",
    *,
    columns: Sequence[str] = (),
    quotes: bool = False,
    skip: int = 0,
    skipped: Callable[[Location, list[str]], None] | None = None,
    wanted: Container[str] | None = None,
    spaced: bool = False,
) -> Table:
    """Returns the table in a file. The first row has the names of the columns, unless `columns` are given. Several columns may
    have an empty name. Raises UserError if the file cannot be read, or if `columns` are given although the first row holds
    their names instead of an example. Also raises it if two columns have the same name, and `wanted` has this name or is
    None."""
    rows = read_rows(path, delimiter, quotes=quotes, skip=skip, spaced=spaced)
    if columns:
        first = next(rows, None)
        if first is not None:
            location, cells = first
            if [cell.strip().strip('"').casefold() for cell in cells] == [name.casefold() for name in columns]:
                raise location.error(
                    "the first row has the column names; remove this row, or, for your own data, leave columns out"
                )
            rows = itertools.chain([first], rows)
    if not columns:
        first = next(rows, None)
        if first is None:
            raise UserError(f"{path} has no rows; give a file with one example per row")
        location, cells = first
        columns = [name.strip() for name in cells]
        known = (name for name in columns if name and (wanted is None or name in wanted))
        if twice := repeated(known):
            raise location.error(f"two columns are named {twice[0]!r}; give each column a different name in the first line")
    return Table(path, tuple(columns), rows, skipped, delimiter)


def other_delimiter(cells: Sequence[str], delimiter: str) -> str | None:
    """Returns the delimiter that seems to separate the cells of a row that `delimiter` does not split, or None."""
    return next((sign for sign in ";\t,|" if sign != delimiter and sign in cells[0]), None) if len(cells) == 1 else None


def check_filled(location: Location, row: Mapping[str, str], *names: str) -> None:
    """Raises UserError if one of the columns `names` is blank in a row."""
    for name in names:
        if not row[name].strip():
            raise location.error(f"{name} is empty; {CORRECT_ROW}")


def parse_integer(location: Location, name: str, value: str, *, below: int | None = None) -> int:
    """Parses `value` as an integer in [0, below). Raises UserError for any other value."""
    number = whole_number(value, 0, LARGEST if below is None else below - 1)
    if number is not None:
        return number
    most = f" to {below - 1}" if below is not None else ""
    raise location.error(f"{name} is {cut(value)!r}, not an integer from 0{most}; {CORRECT_ROW}")


def parse_number(location: Location, name: str, value: str, low: float, high: float) -> float:
    """Parses `value` as a number in [low, high]. Raises UserError for any other value."""
    number = decimal_number(value.strip(), low, high)
    if number is not None:
        return number
    within = f" from {low:g} to {high:g}" if math.isfinite(high - low) else ""
    comma = "replace the decimal comma by a point, " if re.fullmatch(r"[+-]?[0-9]+,[0-9]+", value.strip()) else ""
    if re.fullmatch(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?", value.strip()):
        comma = "remove the comma if it separates thousands, replace it by a point if it is a decimal comma, "
    raise location.error(f"{name} is {cut(value)!r}, not a number{within}; {comma}{CORRECT_ROW}")


def not_empty(path: pathlib.Path, examples: list[Example], which: str = "") -> list[Example]:
    """Returns `examples`. Raises UserError if there are no examples. `which` describes the rows that the file should have."""
    if not examples:
        raise UserError(f"{path} has no rows{which}; give the complete file")
    return examples
