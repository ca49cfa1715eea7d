"""Reads the records that a command such as `python -m bert_jax.predict` answers, from any length of input in constant memory.

A line of text is one record, its fields separated by TABs; a line of JSON is one object with the fields by name; a row of a table
(CSV, TSV, Parquet, Arrow) has the fields in columns of their names. Blank lines are skipped unless the caller needs a record for
every line. A line that cannot be read is a record with a problem; the lines after it are read.
"""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import json
import os
import pathlib
import re
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, NoReturn, TextIO, TypeAlias

from bert_jax.errors import UserError, missing_path, nearest
from bert_jax.files import JsonObject, parse_json
from bert_jax.interface.words import counted
from bert_jax.storage.fetching import fetched
from bert_jax.storage.formats import HEAD_BYTES, UNREADABLE, bare_name, compression, damage, open_packed, recognise
from bert_jax.storage.records import (
    BOM,
    KINDS,
    UTF16,
    Line,
    first_bytes,
    is_cut,
    is_utf8,
    open_columns,
    read_lines,
    split_lines,
    table_rows,
)
from bert_jax.tasks.examples import QuestionExample
from bert_jax.tasks.readers.squad import read_squad

MOST_BYTES = 64 << 20
"""A longer line is a record with a problem, so that a file without line ends does not fill the memory."""
READ_AHEAD_BYTES = 32 << 20
"""The reading thread stops when the records that wait reach this size."""
COUNTED_BYTES = 1 << 30
"""The lines of a larger file are not counted, so no time left is estimated."""
DELIMITERS = ",;\t|"
"""Those of a table, in the order in which they are tried."""
TAB_TABLES = (".tsv", ".tab")
JSON_LINES = (".jsonl", ".ndjson")
COLUMN_FILES = (".conll", ".conllu", ".bio", ".iob", ".iob2", ".bioes", ".bilou")
USUAL_COLUMNS = frozenset(
    (
        "id",
        "idx",
        "index",
        "text",
        "text_a",
        "text_b",
        "sentence",
        "sentence1",
        "sentence2",
        "question",
        "question1",
        "question2",
        "premise",
        "hypothesis",
        "context",
        "answer",
        "label",
        "labels",
        "score",
        "target",
        "words",
        "tags",
        "review",
        "title",
    )
)
"""A first line of such words names columns, in the data sets of GLUE and others."""
WRITER_SECONDS = 10.0
"""How long a pipe that nothing writes to is waited for."""


@dataclass(frozen=True)
class Field:
    """A field of a record. The texts of a line are the fields in order; a field with `many` takes all texts that are left."""

    name: str
    many: bool = False  # the value is a list of texts
    optional: bool = False  # the value may be absent, and is None then
    number: bool = False  # the value is a number of characters; only JSON records can hold it
    words: bool = False  # with `many`: white space separates the texts in a line without TABs
    whole: bool = False  # the only field, of blank lines too: the value is the line as it is, and only an empty one is blank


@dataclass(frozen=True)
class Record:
    """One line of the input, or the reason why it cannot be read (`problem`)."""

    number: int  # of the line, from 1, or of the argument
    place: str  # prefix of messages: "FILE, line 3: "; "" for a single argument
    values: JsonObject = field(default_factory=dict)  # by field name
    rest: JsonObject = field(default_factory=dict)  # the other fields of a JSON object
    problem: str | None = None
    blank: bool = False  # a blank line
    size: int = 0  # in bytes
    divided: bool = False  # a line of text whose fields were found by their order, not by their names


@dataclass(frozen=True)
class Records:
    """The records of an input, an iterator that can be used once."""

    source: Iterator[Record]
    typed: bool = False  # typed by a person at a terminal, who waits for each answer
    count: Callable[[], int | None] = lambda: None  # returns the number of the last record, or None if counting is too slow
    file: os.stat_result | None = None  # the input file, if it is a regular file

    def __iter__(self) -> Iterator[Record]:
        return self.source


@dataclass(frozen=True)
class _Form:
    """The way in which the lines of a file are read."""

    jsonl: bool = False  # every line is a JSON object
    blank_lines: bool = False  # a blank line is a record too
    named: str | None = (
        None  # the suffix of a file whose content is recognised; "" for standard input; None: lines, whatever they hold
    )
    columns: Mapping[str, Sequence[str] | str] = field(
        default_factory=dict
    )  # field -> its column in a table, where the names differ
    path: pathlib.Path | None = None  # of a regular file, for formats that are not read line by line


def read_texts(
    texts: Sequence[str],
    input_path: str | None,
    fields: Sequence[Field],
    *,
    jsonl: bool = False,
    blank_lines: bool = False,
    columns: Mapping[str, Sequence[str] | str] | None = None,
    stdin: TextIO | None = None,
) -> Records:
    """As `read_records`, for the texts of a person, who may give a table, a list of JSON or the name of a file.

    - `.csv`, `.parquet` and `.arrow` hold a table whose columns have the names of the fields, or the names in `columns` (field ->
      column, read when the first record is). So do `.tsv` and other text whose first line names the columns. Other columns are in
      `Record.rest`. In a `.tsv` without names, TABs separate the fields in their order.
    - `.json`, and text that begins as JSON, hold JSON objects, one per line or in one list.

    Raises UserError for texts that are names of files, for a table without the columns, for a file of annotated words
    (`.conllu`), and for a pipe that nothing writes to.
    """
    if not input_path:
        check_not_files(texts)
    suffix = "" if not input_path or input_path == "-" else _suffix(input_path)
    if suffix in COLUMN_FILES:
        raise UserError(
            f"--input={input_path} holds annotated words, one per line, but a text is expected on each line; write the texts to "
            "another file, one per line"
        )
    form = _Form(jsonl, blank_lines, suffix, {} if columns is None else columns)
    return _records(texts, input_path, fields, form, stdin)


def read_records(
    texts: Sequence[str],
    input_path: str | None,
    fields: Sequence[Field],
    *,
    jsonl: bool = False,
    blank_lines: bool = False,
    stdin: TextIO | None = None,
) -> Records:
    """Returns the records of `texts`, else of the file `input_path` ("-": standard input), else of `stdin` (default: sys.stdin).

    A file is opened at once, so that a misspelt path is reported before the model is loaded. A compressed file is decompressed,
    by its name (`formats.COMPRESSIONS`); `.jsonl`, compressed or not, holds JSON, and with `jsonl` every input does. With
    `blank_lines` a blank line is a record too, except at a terminal. Raises UserError for both texts and a file, for no input,
    and for a file that cannot be read; the latter also while the records are iterated over.
    """
    return _records(texts, input_path, fields, _Form(jsonl, blank_lines), stdin)


def _records(texts: Sequence[str], input_path: str | None, fields: Sequence[Field], form: _Form, stdin: TextIO | None) -> Records:
    if texts and input_path:
        raise UserError("both texts and --input are given; give the texts as arguments, or --input=FILE, not both")
    if texts:
        arguments = list(_argument_records(texts, fields))
        return Records(iter(arguments), count=lambda: len(arguments))
    if input_path and input_path not in ("-", "/dev/stdin"):
        path = fetched(input_path, "--input")
        file = _open(input_path if path == pathlib.Path(input_path) else str(path))
        regular = _regular(file)
        form = replace(form, jsonl=form.jsonl or _suffix(path.name) in JSON_LINES, path=path if regular else None)
        read = _file_records(file, input_path, fields, form)
        return Records(read, count=lambda: _count_lines(path), file=regular)
    stdin = stdin or sys.stdin
    if stdin is None:
        raise UserError("there is no text: standard input is closed; give texts as arguments, or --input=FILE")
    if stdin.isatty():
        line = "JSON object" if form.jsonl else " TAB ".join(f.name for f in fields if not f.number)
        print(f"type one {line} per line; end with Ctrl-D", file=sys.stderr)
    typed, own = stdin.isatty(), _own(stdin)
    form = replace(form, blank_lines=form.blank_lines and not typed, named=None if typed else form.named)
    return Records(_file_records(own, "standard input", fields, form), typed=typed, file=_regular(own))


def _suffix(path: str) -> str:
    """Returns the suffix of a file's name in lower case; for a compressed file, the suffix before the compression's."""
    return pathlib.PurePath(bare_name(pathlib.PurePath(path).name.lower())).suffix


def check_not_files(texts: Sequence[str]) -> None:
    """Raises UserError where all `texts` are names of existing files, or one is that has the form of a file's name."""
    files = [text for text in texts if _is_file(text)]
    named = [text for text in files if "/" in text or pathlib.PurePath(text).suffix]
    if files and (named or len(files) == len(texts)):
        first = (named or files)[0]
        raise UserError(
            f"{first} is the name of a file, and not read as a text; read it with --input={first}, or if it is meant as a text, "
            "give it on standard input"
        )


def _is_file(text: str) -> bool:
    """Returns whether `text` is the path of a file or a pipe, or of a directory by a path with a slash."""
    try:
        mode = pathlib.Path(text).stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISDIR(mode) or "/" in text


def in_groups(records: Iterable[Record], size: int, *, wait: float = 0.2) -> Iterator[list[Record]]:
    """Lists of at most `size` of the `records`; a thread reads the next list while the caller answers one.

    A list is yielded at most `wait` seconds after its first record arrived, so that a slow pipe gets its answers promptly; input
    typed at a terminal is yielded line by line.
    """
    ahead = _ReadAhead(records, 1 if isinstance(records, Records) and records.typed else size)
    try:
        while group := ahead.take(wait):
            yield group
    finally:
        ahead.stop()


class _ReadAhead:
    """A thread that reads records ahead: at most `size` of them, or READ_AHEAD_BYTES."""

    def __init__(self, records: Iterable[Record], size: int):
        self._records, self._size = records, size
        self._ready: list[Record] = []
        self._bytes = 0
        self._ended = self._stopped = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        # a daemon, since it may wait for input that never arrives, which must not keep the process alive
        threading.Thread(target=self._read, daemon=True, name="reader of records").start()

    def take(self, wait: float) -> list[Record]:
        """Returns the records that were read: when the limit is reached, or `wait` seconds after the first. An empty list at the
        end of the input. Raises the exception of the reading thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended)
            self._changed.wait_for(lambda: self._full() or self._ended, wait)
            group, self._ready, self._bytes = self._ready, [], 0
            self._changed.notify_all()
        if not group and self._error:
            raise self._error
        return group

    def stop(self) -> None:
        """Makes the thread end at its next record."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _full(self) -> bool:
        return len(self._ready) >= self._size or self._bytes >= READ_AHEAD_BYTES

    def _read(self) -> None:
        try:
            for record in self._records:
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped or not self._full())
                    if self._stopped:
                        return
                    self._ready.append(record)
                    self._bytes += record.size
                    if len(self._ready) == 1 or self._full():
                        self._changed.notify_all()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()


def check_whole_file(path: str, flag: str) -> None:
    """Raises UserError where `path` is standard input or a pipe, for a command that reads its file several times."""
    with contextlib.suppress(OSError, ValueError):
        if path in ("-", "/dev/stdin") or stat.S_ISFIFO(pathlib.Path(path).stat().st_mode):
            raise UserError(f"{flag}={path} is a pipe, and this file is read several times; write it to a file, and name that")


def _open(path: str) -> IO[bytes]:
    file = _open_pipe(path) or path
    try:
        _check_device(path)
        return open_packed(file, path)
    except UNREADABLE as error:
        _unreadable(path, error)


def _check_device(path: str) -> None:
    """Raises UserError for a device without an end, such as /dev/zero; a terminal and /dev/null have one."""
    if stat.S_ISCHR(pathlib.Path(path).stat().st_mode) and not pathlib.Path(path).samefile(os.devnull):
        with pathlib.Path(path).open("rb", buffering=0) as device:
            if not device.isatty():
                raise UserError(f"--input={path} is a device, not a file of texts; name a file")


class _Pipe(io.RawIOBase):
    """A named pipe open for reading, whose first bytes were read when it was opened."""

    def __init__(self, descriptor: int, first: bytes):
        self._descriptor, self._first = descriptor, first

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def readinto(self, buffer: Any) -> int:
        part = self._first[: len(buffer)] or os.read(self._descriptor, len(buffer))
        self._first = self._first[len(part) :]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


def _open_pipe(path: str) -> IO[bytes] | None:
    """Returns the file `path` if it is a pipe, else None. Raises UserError for a named pipe without a writer: opening it would
    wait for ever, without a word."""
    try:
        if not stat.S_ISFIFO(pathlib.Path(path).stat().st_mode):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None  # the error of opening it is reported
    named = "pipe:[" not in os.path.realpath(path)  # a shell's pipe, <(zcat FILE), has a writer from the start
    last = time.monotonic() + WRITER_SECONDS
    first = b""
    try:
        while not (first := os.read(descriptor, 1 << 16)) and named:  # nothing was read: there is no writer
            if time.monotonic() > last:
                os.close(descriptor)
                raise UserError(
                    f"--input={path} is a pipe that no program has written to for {WRITER_SECONDS:g} seconds; start the program "
                    "that writes to it, or give a file"
                )
            time.sleep(0.02)
    except BlockingIOError:  # there is a writer, which has not written yet
        pass
    os.set_blocking(descriptor, True)
    return io.BufferedReader(_Pipe(descriptor, first))


def _unreadable(path: str, error: Exception) -> NoReturn:
    name = path if path == "standard input" else f"--input={path}"
    reason = getattr(error, "strerror", None)
    if isinstance(error, FileNotFoundError):
        raise UserError(f"--input={missing_path(path)} cannot be read: {reason}; name an existing file") from error
    if reason:
        raise UserError(f"{name} cannot be read: {reason}; name a text file that you may read") from error
    fault = damage(path, error) or f"damaged ({error})"
    raise UserError(f"{name} cannot be read: it is {fault}; copy or make it again") from error


def _regular(file: Any) -> os.stat_result | None:
    """Returns the status of `file` if it is a regular file, else None."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _own(stdin: TextIO) -> IO[bytes]:
    """Returns a second reader of standard input. Python locks sys.stdin at exit, which fails while the reading thread waits in
    it."""
    try:
        return os.fdopen(os.dup(stdin.fileno()), "rb")
    except (OSError, ValueError):  # stdin has no file descriptor
        return stdin.buffer


def _file_records(file: IO[bytes], name: str, fields: Sequence[Field], form: _Form) -> Iterator[Record]:
    records = _read(file, name, fields, form)
    weakref.finalize(records, file.close).atexit = False  # for a generator that is never started, whose `with` does not run
    return records


def _read(file: IO[bytes], name: str, fields: Sequence[Field], form: _Form) -> Iterator[Record]:
    try:
        with file:
            head = first_bytes(file)
            numbered = enumerate((line for _, line in read_lines(file, MOST_BYTES)), 1)
            begin: list[tuple[int, bytes]] = []
            for line in numbered:
                begin.append(line)
                if not line[1].removeprefix(BOM).isspace():
                    break
            first = begin[-1][1] if begin else b""
            found = recognise((head or first)[:HEAD_BYTES], name)
            kind = "parquet" if first.startswith(b"PAR1") else found.kind if found else ""
            if kind in KINDS and form.named is not None and not form.jsonl:
                yield from _read_columns(kind, name, fields, form)
                return
            if found:
                raise UserError(f"{name} {found.what}, not text; {found.remedy}")
            if fields[0].whole and (head or first).startswith(UTF16):
                raise UserError(f"{name} is not UTF-8: it begins as UTF-16 does; convert it (iconv -f UTF-16 -t UTF-8)")
            yield from _reader(form, first, fields)(itertools.chain(begin, numbered), name, fields, form)
    except UNREADABLE as error:
        _unreadable(name, error)


def _reader(form: _Form, first: bytes, fields: Sequence[Field]) -> Callable[..., Iterator[Record]]:
    """Returns the function that reads a file of text with this first line that is not blank."""
    if form.jsonl or form.named is None:
        return _read_lines
    first = first.removeprefix(BOM).strip()
    if form.named == ".json" or first.startswith(b"{") or re.match(rb'\[\s*($|[\[{"])', first):
        return _read_json
    if form.named == ".csv" or _names_columns(first.decode("utf-8", "replace"), fields, form):
        return _read_table
    return _read_lines


Lines: TypeAlias = Iterator[tuple[int, bytes]]
"""The lines of a file with their numbers from 1."""


def _read_lines(lines: Lines, name: str, fields: Sequence[Field], form: _Form) -> Iterator[Record]:
    parse = _json_record if form.jsonl else _text_record
    only = fields[0].name if len(fields) == 1 and not (form.jsonl or fields[0].many or fields[0].number) else None
    whole = fields[0].name if fields[0].whole else None
    divided = form.named in TAB_TABLES
    for number, line in lines:
        place = f"{name}, line {number}: "
        text, problem = _decoded(line)
        if problem:
            yield Record(number, place, problem=problem, size=len(line))
        elif whole:
            for i, part in enumerate(split_lines(text) if number == 1 else [text.removesuffix("\n").removesuffix("\r")]):
                # line ends of old Macs: the whole file is one line
                at = Record(number + i, f"{name}, line {number + i}: " if i else place, size=len(part))
                yield replace(at, values={whole: part}) if part else replace(at, blank=True)
        elif only and (stripped := text.strip()):  # what `parse` gives, in a quarter of its time: 8 us a line
            problem = None
            if divided and (parts := stripped.count("\t")):
                problem = f"{parts + 1} texts between TABs, more than the 1 of {only}; name the columns in the first line"
            yield Record(number, place, {only: stripped}, problem=problem, size=len(line), divided=True)
        elif text and not text.isspace():
            yield replace(parse(number, place, text, fields, form.columns), size=len(line), divided=not form.jsonl)
        elif form.blank_lines:
            yield Record(number, place, blank=True, size=len(line))


def _read_json(lines: Lines, name: str, fields: Sequence[Field], form: _Form) -> Iterator[Record]:
    """Yields the records of JSON objects, one per line or all in one list; of text that only begins as JSON, its lines."""
    number, first = next(lines)
    begun = [(number, first)]
    while first.removeprefix(BOM).isspace():
        number, first = next(lines)
        begun.append((number, first))
    too_large = is_cut(first, MOST_BYTES)  # its rest is not read
    with contextlib.suppress(ValueError):
        if not too_large and isinstance(parse_json(first.decode("utf-8-sig")), dict):
            rest = next(lines, None)
            if rest or form.named != ".json":
                yield from _read_lines(
                    itertools.chain(begun, [rest] if rest else [], lines), name, fields, replace(form, jsonl=True)
                )
                return
    size = len(first)
    while not too_large and (line := next(lines, None)):
        begun.append(line)
        size += len(line[1])
        too_large = size > MOST_BYTES
    try:
        if too_large:
            raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
        content = parse_json(b"".join(line for _, line in begun).decode("utf-8-sig"), strict=True)
    except ValueError as error:
        if form.named == ".json":
            raise UserError(f"{name} is not read as JSON ({error}); give JSON lines, one object per line, as a .jsonl") from error
        yield from _read_lines(itertools.chain(begun, lines), name, fields, form)
        return
    if isinstance(content, dict) and "data" in content and {"question", "context"} <= {f.name for f in fields} and form.path:
        for i, example in enumerate(read_squad(form.path, say=lambda message: None), 1):
            yield _record(i, f"{name}, question {i}: ", {"id": example.id, **_asked(example)}, fields)
        return
    if isinstance(content, dict) and all(form.columns.get(f.name, f.name) in content or f.optional for f in fields):
        content = [content]
    if not isinstance(content, list):
        kind = f"one object, with {', '.join([*content][:5])}" if isinstance(content, dict) else "no list"
        raise UserError(f"{name} holds {kind}; give a list of objects with {fields[0].name!r}, or such an object per line")
    required = [f.name for f in fields if not f.optional]
    for i, item in enumerate(content, 1):
        item = {required[0]: item} if isinstance(item, str) and len(required) == 1 and not fields[0].many else item
        yield _object_record(i, f"{name}, item {i}: ", item, fields, form.columns)


def _asked(example: QuestionExample) -> JsonObject:
    return {"question": example.question, "context": example.context}


def _cells(line: str, delimiter: str) -> list[str]:
    """Returns the cells of a line that names columns, without quotes and surrounding blanks."""
    return [cell.strip().strip('"').strip() for cell in line.strip("\r\n").split(delimiter)]


def _names_columns(line: str, fields: Sequence[Field], form: _Form) -> bool:
    """Returns whether a first line is the header of a table: it has the names of the required fields, and others."""
    for delimiter in "\t" if form.named in TAB_TABLES else DELIMITERS:
        names = [cell.casefold() for cell in _cells(line, delimiter)]
        if len(names) == 1 and form.named not in TAB_TABLES:
            continue
        if _columns(names, fields, form.columns) is not None or (len(names) > 1 and USUAL_COLUMNS.issuperset(names)):
            return True
    return False


def _columns(
    names: Sequence[str], fields: Sequence[Field], columns: Mapping[str, Sequence[str] | str]
) -> dict[str, tuple[int, ...]] | None:
    """Field -> the numbers of its columns among `names`; None if a required field has none."""
    found: dict[str, tuple[int, ...]] = {}
    for f in fields:
        stated = columns.get(f.name, f.name)
        wanted = [stated] if isinstance(stated, str) else stated
        for some in (wanted, [f.name]):
            if all(name.casefold() in names for name in some):
                found[f.name] = tuple(names.index(name.casefold()) for name in some)
                break
        else:
            if not f.optional:
                return None
    return found


def _read_table(lines: Lines, name: str, fields: Sequence[Field], form: _Form) -> Iterator[Record]:
    """Yields the rows of a table whose first line names the columns. Raises UserError if a required field has no column."""

    def text() -> Iterator[Line]:
        for number, line in lines:
            decoded, problem = _decoded(line)
            yield Line(number, decoded or ("?" if problem else "\n"), len(line), problem)

    rest = text()
    header = next(line for line in rest if not line.text.isspace())
    if re.fullmatch(r"sep=.\s*", header.text):  # Excel's line
        header = next(rest, Line(header.number, ""))
    if header.problem:
        raise UserError(f"{name}, line {header.number}: {header.problem}")
    delimiters = "\t" if form.named in TAB_TABLES else DELIMITERS
    folded = {delimiter: [cell.casefold() for cell in _cells(header.text, delimiter)] for delimiter in delimiters}
    delimiter = next((d for d in delimiters if _columns(folded[d], fields, form.columns) is not None), None)
    if delimiter is None:
        delimiter = max(delimiters, key=lambda d: len(folded[d]))
        known = set(folded[delimiter])
        required = [form.columns.get(f.name, f.name) for f in fields if not f.optional]
        missing = next(n for n in (x if isinstance(x, str) else x[0] for x in required) if n.casefold() not in known)
        raise UserError(
            f"{name} is read as a table, and its first line names no column {missing!r} (it is {header.text.strip()[:60]!r}); "
            f"name the column {missing}, or give the texts as JSON lines or one per line in a .txt"
        )
    names = _cells(header.text, delimiter)
    columns = _columns(folded[delimiter], fields, form.columns) or {}
    quoted = delimiter != "\t" or form.named == ".csv"
    for where, row, size, problem in table_rows(name, rest, delimiter, quotes=quoted):
        first, place = where.line, f"{where}: "
        if not any(cell.strip() for cell in row):
            if form.blank_lines:
                yield Record(first, place, blank=True, size=size)
            continue
        if not problem and len(row) != len(names):
            problem = f"{counted(len(row), 'column')}, not the {len(names)} of {', '.join(names)}"
        if problem:
            yield Record(first, place, problem=problem, size=size)
            continue
        used = {i for some in columns.values() for i in some}
        given: JsonObject = {f.name: _cell_value(f, [row[i] for i in columns[f.name]]) for f in fields if f.name in columns}
        given |= {column: cell for i, (column, cell) in enumerate(zip(names, row, strict=True)) if i not in used}
        yield replace(_record(first, place, given, fields), size=size)


def _cell_value(of: Field, cells: Sequence[str]) -> Any:
    """Returns the value of a field in the cells of its columns; None for an empty cell of an optional field."""
    cell = cells[0].strip()
    if of.optional and not cell:
        return None
    if of.number:
        return int(float(cell)) if re.fullmatch(r"[0-9]{1,15}(\.0+)?", cell) else cell
    if not of.many:
        return cell
    if len(cells) > 1:
        return [text.strip() for text in cells]
    if cell.startswith("["):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return list(ast.literal_eval(cell))
    return cell.split() if of.words and not cell.startswith("[") else cell


def _read_columns(kind: str, name: str, fields: Sequence[Field], form: _Form) -> Iterator[Record]:
    """Yields the rows of a Parquet or Arrow file. Raises UserError for a damaged one, and if a required field has no column."""
    if form.path is None:
        a = "an Arrow" if kind == "arrow" else "a Parquet"
        raise UserError(f"{name} is {a} file, which cannot be read from a pipe; name the file with --input=FILE")
    import pyarrow

    try:
        with open_columns(kind, form.path) as file:
            known = [column.casefold() for column in file.schema.names]
            columns = _columns(known, fields, form.columns)
            if columns is None:
                shown = ", ".join(file.schema.names[:8])
                missing = next(f.name for f in fields if not f.optional and f.name not in known)
                raise UserError(f"{name} has no column {missing!r}; known: {shown}; rename the column, or give JSON lines")
            used = {i for some in columns.values() for i in some}
            rows = (row for batch in file.batches(file.schema.names) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                values = list(row.items())
                given = {f: [values[i][1] for i in some] if len(some) > 1 else values[some[0]][1] for f, some in columns.items()}
                given |= {column: value for i, (column, value) in enumerate(values) if i not in used and _is_json(value)}
                yield _record(number, f"{name}, row {number}: ", given, fields)
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        shown = str(error).splitlines()[0]
        raise UserError(f"{name} cannot be read as {KINDS[kind]} ({shown}); copy or make it again") from error


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _decoded(line: bytes) -> tuple[str, str | None]:
    """(the text of a line, None), or ("", its problem)."""
    if is_cut(line, MOST_BYTES):
        return "", f"longer than {MOST_BYTES >> 20} MiB; split the text into lines"
    if (place := line.find(b"\0")) >= 0:
        return "", f"byte {place + 1} is NUL, which no text holds; give text in UTF-8, one per line"
    try:
        return line.removeprefix(BOM).decode("utf-8"), None
    except UnicodeDecodeError as error:
        return "", f"byte {error.start + 1} is not UTF-8; convert the text with iconv"


def _argument_records(texts: Sequence[str], fields: Sequence[Field]) -> Iterator[Record]:
    """Yields the records of the arguments: one per argument; but if several fields are required, or words, the arguments are the
    fields of one record, unless an argument holds a TAB or (for words) a space."""
    required = [field for field in fields if not field.optional]
    one_each = any("\t" in text or (fields[0].words and len(text.split()) > 1) for text in texts)
    if not one_each and (len(required) > 1 or fields[0].words):
        yield _divided(1, "", list(texts), fields, arguments=True)
        return
    for number, text in enumerate(texts, 1):
        yield _text_record(number, f"text {number}: " if len(texts) > 1 else "", text, fields)


def _text_record(
    number: int, place: str, text: str, fields: Sequence[Field], columns: Mapping[str, Sequence[str] | str] | None = None
) -> Record:
    texts = [f for f in fields if not f.number]
    if len(texts) == 1 and not texts[0].many:
        parts = [text]
    else:
        parts = text.split() if texts[0].words and "\t" not in text else text.split("\t")
    return _divided(number, place, parts, fields)


def _divided(number: int, place: str, parts: Sequence[str], fields: Sequence[Field], *, arguments: bool = False) -> Record:
    """Returns the record of texts in the order of its fields, which TABs separated or which are `arguments`."""
    fields = [f for f in fields if not f.number]
    parts = [part.strip() for part in parts]
    names = [f"{f.name} ..." if f.many else f.name for f in fields]
    if len(parts) > len(fields) and not fields[-1].many:
        count = f"{len(parts)} arguments" if arguments else f"{counted(len(parts), 'text')} between TABs"
        form = f"{' '.join(names)}; put each in quotes" if arguments else " TAB ".join(names)
        return Record(number, place, problem=f"{count}, more than the {len(fields)} of {form}")
    given: JsonObject = dict(zip((f.name for f in fields), parts, strict=False))
    if fields[-1].many and len(parts) >= len(fields):
        given[fields[-1].name] = parts[len(fields) - 1 :]
    missing = [f.name for f in fields if f.name not in given and not f.optional]
    if missing:
        form = f"the arguments are {' '.join(names)}, each in quotes" if arguments else f"a line is {' TAB '.join(names)}"
        return Record(number, place, problem=f"no {missing[0]}: {form}")
    return _record(number, place, given, fields)


def _json_record(
    number: int, place: str, text: str, fields: Sequence[Field], columns: Mapping[str, Sequence[str] | str] | None = None
) -> Record:
    try:
        given = parse_json(text, strict=True)
    except ValueError as error:
        return Record(number, place, problem=f"not JSON ({error}): {text[:60].strip()!r}")
    return _object_record(number, place, given, fields, columns or {})


def _object_record(
    number: int, place: str, given: Any, fields: Sequence[Field], columns: Mapping[str, Sequence[str] | str]
) -> Record:
    """Returns the record of a JSON value, an object; a field that it lacks may have the name of its column."""
    if not isinstance(given, dict):
        return Record(number, place, problem=f"a JSON {type(given).__name__}, not an object with {fields[0].name!r}")
    for name, stated in columns.items():
        some = [stated] if isinstance(stated, str) else stated
        if name not in given and all(column in given for column in some) and any(f.name == name for f in fields):
            values = [given[column] for column in some]
            given = {name: values if len(some) > 1 else values[0], **{k: v for k, v in given.items() if k not in some}}
    return _record(number, place, given, fields)


def _record(number: int, place: str, given: JsonObject, fields: Sequence[Field]) -> Record:
    """Returns the record of the object `given`, with its fields in `values` and other keys in `rest`."""
    names = {f.name for f in fields}
    rest = {name: value for name, value in given.items() if name not in names}
    values = {f.name: given.get(f.name) for f in fields}
    problems = (_problem(f, given) for f in fields)
    return Record(number, place, values, rest, problem=next(filter(None, problems), None))


def _problem(of: Field, given: JsonObject) -> str | None:
    """Returns the problem of a field's value, or None."""
    value = given.get(of.name)
    if value is None and of.optional:
        return None
    if of.name not in given:
        return f"no field {of.name!r}" + (f"; {nearest(of.name, given)}" if given else "")
    if of.number:
        count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return None if count else f"its {of.name} is {json.dumps(value)[:40]}, not a count of characters from 0"
    texts = value if of.many else [value]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return f"its {of.name} is {json.dumps(value)[:40]}, not {'a list of texts' if of.many else 'text'}"
    if not texts or not all(text and not text.isspace() for text in texts):
        return f"its {of.name} {'holds no text or an empty one' if of.many else 'is empty'}"
    if not is_utf8("".join(texts)):
        return f"its {of.name} holds half a surrogate pair, or a byte that is not UTF-8; convert it with iconv"
    return None


def _count_lines(path: pathlib.Path) -> int | None:
    """Returns the number of lines of a file; None if it is compressed, no regular file, or larger than COUNTED_BYTES."""
    if compression(path.name) or not path.is_file() or path.stat().st_size > COUNTED_BYTES:
        return None
    count, last = 0, b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            count, last = count + block.count(b"\n"), block
    return count + (last[-1:] not in (b"", b"\n"))
