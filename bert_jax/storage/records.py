"""Reads the records of files in bounded memory. A record is a line of text, a row of a table, or a row of a Parquet or Arrow
file.

    for line in text_lines(path): ...                                 # the file may be compressed
    for row in table_rows(name, numbered(text_lines(path)), ","): ... # cells, with the number of their first line
    with open_columns("parquet", path) as file:
        for batch in file.batches(["text"], 1_000, 2_000): ...        # only these rows and this column

Corpus sources, labelled data and prediction inputs are read with these functions. The callers define the content of a record,
and how to handle invalid records.
"""

from __future__ import annotations

import contextlib
import csv
import io
import mmap
import pathlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from bert_jax.errors import UserError, missing_path
from bert_jax.storage.formats import (
    HEAD_BYTES,
    UNREADABLE,
    conversion,
    damage,
    open_packed,
    recognise,
    refuse_pipe,
    unicode_encoding,
)

KINDS = {"parquet": "Parquet", "arrow": "Arrow"}
"""The column file formats, by suffix without the dot."""
BOM = b"\xef\xbb\xbf"
_LONGEST_CELL = 128 << 20  # in characters; unmatched quotes are detected within this distance
_SKIPPED_BYTES = 1 << 20  # bytes to read at a time when skipping the rest of a line that is too long
_BATCH_BYTES, _MOST_ROWS = 4 << 20, 4096  # the approximate bytes of a batch, and its maximum number of rows
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_MAPPED_BYTES = 32 << 20  # maximum bytes of an Arrow file in memory, unless a single batch is larger
_READ_BYTES = 1 << 20  # bytes to read at a time from a column of a Parquet file


@dataclass(frozen=True)
class Location:
    """A position in a file for error messages: a line (from 1), an item of a list, or a row of a Parquet file."""

    path: pathlib.Path | str
    line: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.path}, {self.unit} {self.line}"

    def error(self, problem: str) -> UserError:
        """Returns a UserError about this position."""
        return UserError(f"{self}: {problem}")


# Text


def read_lines(file: IO[bytes], most: int, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """For each line that starts at byte `start` or later, yields (the byte offset of the line, the line with its line end).

    A line of more than `most` bytes is cut to its first `most` bytes (`is_cut`). The rest of the line is skipped."""
    place = start
    if start:
        file.seek(start - 1)
        place += len(file.readline(most)) - 1
    while line := file.readline(most):
        yield place, line
        place += len(line)
        if is_cut(line, most):
            while rest := file.readline(_SKIPPED_BYTES):
                place += len(rest)
                if rest.endswith(b"\n"):
                    break


def without_bom(line: bytes) -> bytes:
    """Returns a line without byte order marks at its start. Programs that do not expect the mark may write a second one."""
    while line.startswith(BOM):
        line = line[len(BOM) :]
    return line


def first_bytes(file: Any) -> bytes:
    """Peeks at the first bytes of a file, as many as `recognise` needs. Returns b"" if the file does not support peeking."""
    return file.peek(HEAD_BYTES)[:HEAD_BYTES] if hasattr(file, "peek") else b""


def is_cut(line: bytes, most: int) -> bool:
    """Returns whether a line of `read_lines` was cut."""
    return len(line) == most and not line.endswith(b"\n")


def refuse_broken_links(paths: Iterable[pathlib.Path]) -> None:
    """Raises UserError if one of `paths` is a broken link, since its texts would be missing without notice. Hidden links, such
    as the locks of editors, are ignored."""
    for path in paths:
        if path.name[0] != "." and path.is_symlink() and not path.exists():
            raise UserError(f"{missing_path(path)} cannot be read; restore its target, or remove the link")


def text_lines(path: pathlib.Path) -> Iterator[str]:
    """Yields the lines of a text file with their line ends, without the byte order mark. Compressed files are decompressed.

    Raises UserError if the file is missing, damaged, empty, a pipe, in another format, or not UTF-8. For text that is not
    UTF-8, the message names the byte and the line.
    """
    refuse_pipe(path)
    characters, is_empty = 0, True
    try:
        with open_packed(path) as file:
            head = first_bytes(file)
            if found := recognise(head, path.name):
                raise UserError(f"{path} {found.what}, not text; {found.remedy}")
            for number, (place, line) in enumerate(read_lines(file, -1), 1):
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise Location(path, number).error(
                        f"byte {place + error.start + 1:,} of the file (0x{line[error.start]:02x}) is not UTF-8{conversion(head)}"
                    ) from error
                text = text.lstrip("\ufeff") if number == 1 else text
                if (nul := text.find("\0")) >= 0:
                    remedy = conversion(head) if unicode_encoding(head) else "; remove it"
                    raise Location(path, number).error(
                        f"character {characters + nul + 1:,} of the file is NUL, which text must not contain{remedy}"
                    )
                characters += len(text)
                is_empty &= not text.strip()
                yield text
    except UNREADABLE as error:
        if fault := damage(path.name, error, "fetch it again"):
            raise UserError(f"{path} is {fault}") from error
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{missing_path(path)} cannot be read: {reason}; give the path of a text file") from error
    if is_empty:
        raise UserError(f"{path} is empty; fetch it again, or give another file")


def read_text(path: pathlib.Path) -> str:
    """Returns the text of a file, read like `text_lines`."""
    return "".join(text_lines(path))


def split_lines(text: str) -> list[str]:
    """Splits a text at LF or CR LF, or at CR if all lines end in CR. Unlike `str.splitlines`, this function does not split at
    U+0085 and U+2028."""
    lines = text.split("\n" if "\n" in text else "\r")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def is_utf8(text: str) -> bool:
    r"""Returns whether a text can be encoded as UTF-8. JSON can have an escape for half a surrogate pair ("\ud83d", half an
    emoji), which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Tables of text


class Line(NamedTuple):
    """A line of a text with its number, from 1."""

    number: int
    text: str
    size: int = 0  # in bytes
    problem: str | None = None  # the reason why the line could not be read; `text` is then a substitute


class TableRow(NamedTuple):
    """A row of a table of text."""

    location: Location  # the location of the first line of the row
    cells: list[str]
    size: int  # the size of the lines of the row, in bytes
    problem: str | None  # the problem of the first line of the row that could not be read


def has_spaces(header: str, delimiter: str) -> bool:
    """Returns whether a space follows each delimiter in the header of a table. If so, spaces before a cell are not part of the
    cell."""
    rest = header.split(delimiter)[1:]
    return bool(rest) and all(name.startswith(" ") for name in rest)


def table_rows(
    path: pathlib.Path | str,
    lines: Iterable[Line],
    delimiter: str,
    *,
    quotes: bool,
    spaced: bool = False,
    keep_going: bool = False,
) -> Iterator[TableRow]:
    """Yields the rows of a table. A blank line is a row without cells. If `quotes` is true, a cell in double quotes may contain
    delimiters and line ends. Otherwise, quotes are ordinary characters. `spaced` is the result of `has_spaces`. Raises
    UserError if quotes are not balanced. However, if `keep_going` is set and a text follows the closing quote in a row of one
    line, the row has a problem and no cells, and the next line starts a new row. In a row of several lines, an earlier quote may
    be the wrong one, so the place where the next row starts is not known."""
    if not quotes:
        for line in lines:
            is_whole = line.number == 1 and "\n" not in line.text  # the text is then the whole file, whose lines end in CR
            for i, text in enumerate(split_lines(line.text) if is_whole else [line.text.removesuffix("\n").removesuffix("\r")]):
                cells = text.split(delimiter) if text.strip("\r") else []
                yield TableRow(Location(path, line.number + i), cells, line.size, line.problem)
        return
    first: int
    last: int
    size: int
    problem: str | None

    def read() -> Iterator[str]:
        nonlocal first, last, size, problem
        for line in lines:
            size, problem = size + line.size, problem or line.problem
            parts = io.StringIO(line.text, newline="") if "\r" in line.text.removesuffix("\r\n") else [line.text]
            for number, text in enumerate(parts, line.number):
                first, last = first or number, number
                yield text

    # this limit applies to the whole process, so it is never lowered
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    texts = read()
    rows = csv.reader(texts, delimiter=delimiter, strict=True, skipinitialspace=spaced)
    while True:
        first, last, size, problem = 0, 0, 0, None
        try:
            row = next(rows, None)
        except csv.Error as error:
            remedy = f"are not balanced ({error}); double every quote inside quotes"
            if not keep_going or first != last or "expected after" not in str(error):  # other errors concern all later rows
                raise Location(path, first).error(f"the quotes in this row {remedy}") from error
            yield TableRow(Location(path, first), [], size, f"the quotes in this row {remedy}")
            rows = csv.reader(texts, delimiter=delimiter, strict=True, skipinitialspace=spaced)
            continue
        if row is None:
            return
        yield TableRow(Location(path, first), row, size, problem)


# Files of columns


@contextlib.contextmanager
def open_columns(kind: str, path: str | pathlib.Path) -> Iterator[ColumnFile]:
    """Opens a Parquet or Arrow file (`KINDS`). Opening or reading may raise pyarrow errors, which `columns_explained` converts
    to a UserError."""
    import pyarrow
    import pyarrow.parquet
    from pyarrow import ipc

    if kind == "parquet":
        # pages are read on demand, since a whole column of a row group may exceed the memory
        with pyarrow.parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as parquet:
            yield ColumnFile(parquet.schema_arrow, parquet)
        return
    with pathlib.Path(path).open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    source = pyarrow.BufferReader(pyarrow.py_buffer(mapped))
    if mapped[:6] == b"ARROW1":
        file = ipc.open_file(source)
        yield ColumnFile(file.schema, _in_bounded_memory(mapped, (file.get_batch(i) for i in range(file.num_record_batches))))
        return
    end = _STREAM_END if mapped[:4] == _STREAM_END[:4] else bytes(4)  # streams before Arrow 0.15 end with only the second half
    if mapped[-len(end) :] != end:  # without this check, batches could be missing unnoticed
        raise EOFError("the mark at the end is missing")
    stream = ipc.open_stream(source)
    yield ColumnFile(stream.schema, _in_bounded_memory(mapped, stream))


@dataclass(frozen=True)
class ColumnFile:
    """An open column file, which can be read once."""

    schema: Any
    _content: Any  # a ParquetFile, or the batches of an Arrow file

    def groups(self, column: str) -> list[tuple[int, int]]:
        """Returns (rows, bytes in one column) of each row group of a Parquet file, or of each batch of an Arrow file."""
        if not hasattr(self._content, "metadata"):
            return [(batch.num_rows, batch.column(column).nbytes) for batch in self._content]
        about = self._content.metadata
        leaves = _leaves(about, [column])
        return [(about.row_group(i).num_rows, _bytes(about, i, leaves)) for i in range(about.num_row_groups)]

    def batches(self, columns: Collection[str], start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Yields small record batches of the rows [start, stop) with the given columns, in file order. In a Parquet file, only
        the row groups of these rows are read. In an Arrow file, earlier batches are skipped."""
        first = 0
        names = [name for name in self.schema.names if name in columns]
        is_parquet = hasattr(self._content, "metadata")
        for rows, batches in self._parquet_groups(names) if is_parquet else ((b.num_rows, [b]) for b in self._content):
            if stop is not None and first >= stop:
                return
            if start < first + rows:
                place = first
                for batch in batches:
                    last = len(batch) if stop is None else min(len(batch), stop - place)
                    begin = max(0, start - place)
                    yield from (batch[k : min(k + _MOST_ROWS, last)] for k in range(begin, last, _MOST_ROWS))
                    place += len(batch)
                    if stop is not None and place >= stop:
                        return
            first += rows

    def _parquet_groups(self, columns: list[str]) -> Iterator[tuple[int, Iterator[Any]]]:
        about = self._content.metadata
        leaves = _leaves(about, columns)
        for group in range(about.num_row_groups):
            rows = about.row_group(group).num_rows
            most = max(1, min(_MOST_ROWS, _BATCH_BYTES * rows // max(1, _bytes(about, group, leaves))))
            yield rows, self._content.iter_batches(most, row_groups=[group], columns=columns, use_threads=False)


def _leaves(about: Any, columns: Collection[str]) -> list[int]:
    """Returns the indices of the column chunks that these columns have in every row group. A nested column has several
    chunks."""
    paths = (about.schema.column(i).path for i in range(about.num_columns))
    return [i for i, path in enumerate(paths) if path in columns or path.partition(".")[0] in columns]


def _bytes(about: Any, group: int, leaves: Iterable[int]) -> int:
    """Returns the uncompressed bytes of some chunks of a row group."""
    return sum(about.row_group(group).column(i).total_uncompressed_size for i in leaves)


def _in_bounded_memory(mapped: mmap.mmap, batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the batches of a mapped file, and releases their pages after reading. Raises EOFError if the file becomes shorter,
    since reading a missing page would kill the process."""
    each, read = iter(batches), 0
    while True:
        if mapped.size() < len(mapped):
            raise EOFError("the file was cut while it was being read")
        batch = next(each, None)
        if batch is None:
            return
        yield batch
        read += batch.nbytes
        if read > _MAPPED_BYTES and hasattr(mapped, "madvise"):
            mapped.madvise(mmap.MADV_DONTNEED)
            read = 0


@contextlib.contextmanager
def columns_explained(kind: str, path: str | pathlib.Path) -> Iterator[None]:
    """Converts pyarrow errors inside the `with` block to a UserError about the file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        said = str(error).partition("\n")[0].partition(". ")[0].strip()[:160] or type(error).__name__
        if "ompression" in str(error) and "upported" in str(error):
            raise UserError(f"{path} has an unsupported codec ({said}); rewrite it with zstd") from error
        if isinstance(error, OSError) and error.errno is not None:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        raise UserError(f"{path} is not a whole {KINDS[kind]} file ({said}); fetch it again") from error
