"""Text files in rows and columns; every error names file, line and column."""

from __future__ import annotations

import csv
import io
import math
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bert_jax.errors import UserError, missing_path, nearest
from bert_jax.interface.numbers import LARGEST, decimal_number, whole_number
from bert_jax.interface.words import counted, cut
from bert_jax.storage.formats import HEAD_BYTES, UNREADABLE, damage, open_packed, recognise

Example = TypeVar("Example")
Say = Callable[[str], object]
"""A function that reports a problem of the data that is no error, as a sentence."""


CORRECT_ROW = "correct the row, or remove it"
"""The remedy in most errors."""


def note(message: str) -> None:
    """The default `Say` of all readers: prints a line to standard error."""
    print(message, file=sys.stderr)


@dataclass(frozen=True)
class Place:
    """A line of a file, from 1, for error messages; or an item of a list, or a row of a Parquet file."""

    path: pathlib.Path
    line: int
    unit: str = "line"

    def error(self, problem: str) -> UserError:
        """A UserError about this line."""
        return UserError(f"{self.path}, {self.unit} {self.line}: {problem}")


def read_text(path: pathlib.Path) -> str:
    """The text of a file without its byte order mark; a compressed file is decompressed.

    Raises UserError for a file that is missing, damaged, empty, of another format, or not UTF-8 (with the byte and the line).
    """
    try:
        with open_packed(path) as file:
            data = file.read()
    except UNREADABLE as error:
        if fault := damage(path.name, error):
            raise UserError(f"{path} is {fault}; fetch it again") from error
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{missing_path(path)} cannot be read: {reason}; give the path of a text file") from error
    if found := recognise(data[:HEAD_BYTES], path.name):
        raise UserError(f"{path} {found.what}, not text; {found.remedy}")
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        raise Place(path, data.count(b"\n", 0, error.start) + 1).error(
            f"byte {error.start + 1:,} of the file (0x{data[error.start]:02x}) is not UTF-8"
            f"{': it begins as UTF-16 does' if utf16 else ''}; convert it (iconv -f {'UTF-16' if utf16 else 'LATIN1'} -t UTF-8)"
        ) from error
    if (nul := text.find("\0")) >= 0:
        raise Place(path, text.count("\n", 0, nul) + 1).error(
            f"character {nul + 1:,} of the file is NUL, which no text holds; is it UTF-16 (iconv -f UTF-16LE -t UTF-8)?"
        )
    if not text.strip():
        raise UserError(f"{path} is empty; fetch it again, or give another file")
    return text


def is_utf8(text: str) -> bool:
    r"""Whether a text can be encoded as UTF-8; a JSON escape may be half a surrogate pair ("\ud83d", half an emoji)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def split_lines(text: str) -> list[str]:
    """The lines of a text, which end in LF or CR LF, or all in CR: U+0085 and U+2028, at which `str.splitlines` splits, are
    text."""
    lines = text.split("\n" if "\n" in text else "\r")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def read_rows(
    path: pathlib.Path, delimiter: str = "\t", *, quotes: bool = False, skip: int = 0
) -> Iterator[tuple[Place, list[str]]]:
    """The rows that are not blank, each with its first line. With `quotes`, a field in double quotes may contain delimiters and
    line ends; otherwise quotes are ordinary characters. The first `skip` lines are left out. Raises UserError for unbalanced
    quotes."""
    text = read_text(path)
    for _ in range(skip):
        text = text.partition("\n")[2]
    if not quotes:
        lines = enumerate(split_lines(text), 1 + skip)
        yield from ((Place(path, i), line.split(delimiter)) for i, line in lines if line.strip("\r"))
        return
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a limit of the whole process, so it is never lowered
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1 + skip
    try:
        for row in reader:
            if row:
                yield Place(path, line), row
            line = reader.line_num + 1 + skip
    except csv.Error as error:
        raise Place(path, line).error(f"the quotes of this row do not match ({error}); double a quote inside quotes") from error


@dataclass(frozen=True)
class Table:
    """The rows of a file with named columns; they can be iterated over once.

    Raises UserError for a row with a wrong number of columns, unless `skipped` is given.
    """

    path: pathlib.Path
    columns: tuple[str, ...]
    rows: Iterator[tuple[Place, list[str]]]
    skipped: Callable[[Place, list[str]], None] | None = None  # called for each row with a wrong number of columns

    def __iter__(self) -> Iterator[tuple[Place, dict[str, str]]]:
        for place, row in self.rows:
            if len(row) == len(self.columns):
                yield place, dict(zip(self.columns, row, strict=True))
            elif self.skipped:
                self.skipped(place, row)
            else:
                raise place.error(
                    f"{counted(len(row), 'column')}, not the {len(self.columns)} of {', '.join(self.columns)}; "
                    "correct the line, or remove it"
                )

    def require(self, *names: str) -> None:
        """Raises UserError if one of `names` is no column; the error names the most similar column."""
        for name in names:
            if name not in self.columns:
                raise Place(self.path, 1).error(f"no column {name!r}; {nearest(name, self.columns)}")


def read_table(
    path: pathlib.Path,
    delimiter: str = "\t",
    *,
    columns: Sequence[str] = (),
    quotes: bool = False,
    skip: int = 0,
    skipped: Callable[[Place, list[str]], None] | None = None,
) -> Table:
    """The table in a file; the first row has the names of the columns, unless `columns` are given. Several columns may have an
    empty name. Raises UserError for a file that cannot be read, and for two columns with the same name."""
    rows = read_rows(path, delimiter, quotes=quotes, skip=skip)
    if not columns:
        first = next(rows, None)
        if first is None:
            raise UserError(f"{path} has no rows; give a file with one example a row")
        place, columns = first
        if repeated := [name for name in columns if name and columns.count(name) > 1]:
            raise place.error(f"two columns are named {repeated[0]!r}; the first line must name each column once")
    return Table(path, tuple(columns), rows, skipped)


def check_filled(place: Place, row: Mapping[str, str], *names: str) -> None:
    """Raises UserError if one of the columns `names` is blank in a row."""
    for name in names:
        if not row[name].strip():
            raise place.error(f"{name} is empty; {CORRECT_ROW}")


def parse_integer(place: Place, name: str, value: str, *, below: int | None = None) -> int:
    """`value` as an integer in [0, below). Raises UserError for another value."""
    number = whole_number(value, 0, LARGEST if below is None else below - 1)
    if number is not None:
        return number
    most = f" to {below - 1}" if below is not None else ""
    raise place.error(f"{name} is {cut(value)!r}, not an integer from 0{most}; {CORRECT_ROW}")


def parse_number(place: Place, name: str, value: str, low: float, high: float) -> float:
    """`value` as a number in [low, high]. Raises UserError for another value."""
    number = decimal_number(value.strip(), low, high)
    if number is not None:
        return number
    within = f" from {low:g} to {high:g}" if math.isfinite(high - low) else ""
    comma = "write a point for the comma, " if re.fullmatch(r"[+-]?[0-9]+,[0-9]+", value.strip()) else ""
    raise place.error(f"{name} is {cut(value)!r}, not a number{within}; {comma}{CORRECT_ROW}")


def not_empty(path: pathlib.Path, examples: list[Example], which: str = "") -> list[Example]:
    """`examples`. Raises UserError if there are none; `which` describes the rows that the file should have."""
    if not examples:
        raise UserError(f"{path} has no rows{which}; give the file of that set")
    return examples
