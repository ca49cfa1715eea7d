"""Reads the records that a verb of `python -m bert_jax.predict` answers, from any length of input in constant memory.

A line of text is one record, its fields separated by TABs; a line of JSON is one object with the fields by name. Blank lines
are skipped unless the caller needs a record for every line. A line that cannot be read is a record with a problem; the lines
after it are read.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pathlib
import stat
import sys
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, NoReturn, TextIO

from bert_jax.corpus.files import JsonObject, parse_json
from bert_jax.errors import UserError, missing_path, nearest
from bert_jax.interface.words import counted
from bert_jax.storage.fetching import fetched
from bert_jax.tasks.readers.tables import is_utf8, split_lines

MOST_BYTES = 64 << 20
"""A longer line is a record with a problem, so that a file without line ends does not fill the memory."""
READ_AHEAD_BYTES = 32 << 20
"""The reading thread stops when the records that wait reach this size."""
COUNTED_BYTES = 1 << 30
"""The lines of a larger file are not counted, so there is no estimate of the time left."""
_File = IO[bytes] | gzip.GzipFile
_BOM = b"\xef\xbb\xbf"
_PACKED = {b"\x1f\x8b": "gzip", b"BZh91AY&SY": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}


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


@dataclass(frozen=True)
class Records:
    """The records of an input, an iterator that can be used once."""

    source: Iterator[Record]
    typed: bool = False  # typed by a person at a terminal, who waits for each answer
    count: Callable[[], int | None] = lambda: None  # returns the number of the last record, or None if counting is too slow
    file: os.stat_result | None = None  # the input file, if it is a regular file

    def __iter__(self) -> Iterator[Record]:
        return self.source


def read_records(
    texts: Sequence[str],
    input_path: str | None,
    fields: Sequence[Field],
    *,
    jsonl: bool = False,
    blank_lines: bool = False,
    stdin: TextIO | None = None,
) -> Records:
    """The records of `texts`, else of the file `input_path` ("-": standard input), else of `stdin` (default: sys.stdin).

    A file is opened at once, so that a misspelt path is reported before the model is loaded. `.gz` is decompressed; `.jsonl` and
    `.jsonl.gz` hold JSON, and with `jsonl` every input does. With `blank_lines` a blank line is a record too, except at a
    terminal. Raises UserError for both texts and a file, for no input, and for a file that cannot be read; the latter also while
    the records are iterated over.
    """
    if texts and input_path:
        raise UserError("both texts and --input are given; give the texts as arguments, or --input=FILE, not both")
    if texts:
        arguments = list(_argument_records(texts, fields))
        return Records(iter(arguments), count=lambda: len(arguments))
    if input_path and input_path != "-":
        path = fetched(input_path, "--input")
        file = _open(input_path if path == pathlib.Path(input_path) else str(path))
        jsonl = jsonl or path.name.removesuffix(".gz").endswith(".jsonl")
        read = _file_records(file, input_path, fields, jsonl, blank_lines)
        return Records(read, count=lambda: _count_lines(path), file=_regular(file))
    stdin = stdin or sys.stdin
    if stdin is None:
        raise UserError("there is no text: standard input is closed; give texts as arguments, or --input=FILE")
    if stdin.isatty():
        line = "JSON object" if jsonl else " TAB ".join(f.name for f in fields if not f.number)
        print(f"type one {line} per line; end with Ctrl-D", file=sys.stderr)
    typed, own = stdin.isatty(), _own(stdin)
    read = _file_records(own, "standard input", fields, jsonl, blank_lines and not typed)
    return Records(read, typed=typed, file=_regular(own))


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
        """The records that were read: when the limit is reached, or `wait` seconds after the first. An empty list at the end of
        the input. Raises the exception of the reading thread."""
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


def _open(path: str) -> _File:
    try:
        return gzip.open(path, "rb") if path.endswith(".gz") else pathlib.Path(path).open("rb")
    except OSError as error:
        _unreadable(path, error)


def _unreadable(path: str, error: Exception) -> NoReturn:
    name = path if path == "standard input" else f"--input={path}"
    reason = getattr(error, "strerror", None)
    if isinstance(error, FileNotFoundError):
        raise UserError(f"--input={missing_path(path)} cannot be read: {reason}; name an existing file") from error
    if reason:
        raise UserError(f"{name} cannot be read: {reason}; name a text file that you may read") from error
    raise UserError(f"{name} cannot be read: it is not a whole gzip file ({error}); copy or make it again") from error


def _regular(file: Any) -> os.stat_result | None:
    """The status of `file` if it is a regular file, else None."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _own(stdin: TextIO) -> IO[bytes]:
    """A second reader of standard input. Python locks sys.stdin at exit, which fails while the reading thread waits in it."""
    try:
        return os.fdopen(os.dup(stdin.fileno()), "rb")
    except (OSError, ValueError):  # stdin has no file descriptor
        return stdin.buffer


def _file_records(file: _File, name: str, fields: Sequence[Field], jsonl: bool, blank_lines: bool) -> Iterator[Record]:
    records = _read(file, name, fields, jsonl, blank_lines)
    weakref.finalize(records, file.close).atexit = False  # for a generator that is never started, whose `with` does not run
    return records


def _read(file: _File, name: str, fields: Sequence[Field], jsonl: bool, blank_lines: bool) -> Iterator[Record]:
    parse = _json_record if jsonl else _text_record
    only = fields[0].name if len(fields) == 1 and not (jsonl or fields[0].many or fields[0].number) else None
    whole = fields[0].name if fields[0].whole else None
    try:
        with file:
            for number, line in enumerate(_lines(file), 1):
                place = f"{name}, line {number}: "
                if number == 1:
                    _check_first(name, line, fields, jsonl)
                text, problem = _decoded(line)
                if problem:
                    yield Record(number, place, problem=problem, size=len(line))
                elif whole:
                    for i, part in enumerate(split_lines(text) if number == 1 else [text.removesuffix("\n").removesuffix("\r")]):
                        # line ends of old Macs: the whole file is one line
                        at = Record(number + i, f"{name}, line {number + i}: " if i else place, size=len(part))
                        yield replace(at, values={whole: part}) if part else replace(at, blank=True)
                elif only and (stripped := text.strip()):  # what `parse` gives, in a quarter of its time: 8 us a line
                    yield Record(number, place, {only: stripped}, size=len(line))
                elif text and not text.isspace():
                    yield replace(parse(number, place, text, fields), size=len(line))
                elif blank_lines:
                    yield Record(number, place, blank=True, size=len(line))
    except (OSError, EOFError, zlib.error) as error:
        _unreadable(name, error)


def _check_first(name: str, line: bytes, fields: Sequence[Field], jsonl: bool) -> None:
    """Raises UserError for a compressed file, and for UTF-16 where whole lines are read. Warns if lines look like JSON but are
    read as text."""
    if packing := next((packing for first, packing in _PACKED.items() if line.startswith(first)), None):
        remedy = "give it a name that ends in .gz, or decompress it first" if packing == "gzip" else "decompress it first"
        raise UserError(f"{name} is compressed with {packing}; {remedy}")
    if fields[0].whole and line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{name} is not UTF-8: it begins as UTF-16 does; convert it (iconv -f UTF-16 -t UTF-8)")
    if jsonl or not line.startswith(b"{"):
        return
    with contextlib.suppress(ValueError):
        found = [field.name for field in fields if field.name in parse_json(line)]
        if found:
            print(f"{name} is read as text, but its first line is JSON with {found[0]!r}; --jsonl reads JSON", file=sys.stderr)


def _lines(file: _File) -> Iterator[bytes]:
    """The lines of a file; of a longer line, the first MOST_BYTES."""
    while line := file.readline(MOST_BYTES):
        rest = line
        while len(rest) == MOST_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MOST_BYTES)
        yield line


def _decoded(line: bytes) -> tuple[str, str | None]:
    """(the text of a line, None), or ("", its problem)."""
    if len(line) == MOST_BYTES and not line.endswith(b"\n"):
        return "", f"longer than {MOST_BYTES >> 20} MiB; split the text into lines"
    if (place := line.find(b"\0")) >= 0:
        return "", f"byte {place + 1} is NUL, which no text holds; give text in UTF-8, one per line"
    try:
        return line.removeprefix(_BOM).decode("utf-8"), None
    except UnicodeDecodeError as error:
        return "", f"byte {error.start + 1} is not UTF-8; convert the text with iconv"


def _argument_records(texts: Sequence[str], fields: Sequence[Field]) -> Iterator[Record]:
    """The records of the arguments: one per argument; but if several fields are required, or words, the arguments are the fields
    of one record, unless an argument holds a TAB or (for words) a space."""
    required = [field for field in fields if not field.optional]
    one_each = any("\t" in text or (fields[0].words and len(text.split()) > 1) for text in texts)
    if not one_each and (len(required) > 1 or fields[0].words):
        yield _divided(1, "", list(texts), fields, arguments=True)
        return
    for number, text in enumerate(texts, 1):
        yield _text_record(number, f"text {number}: " if len(texts) > 1 else "", text, fields)


def _text_record(number: int, place: str, text: str, fields: Sequence[Field]) -> Record:
    texts = [f for f in fields if not f.number]
    if len(texts) == 1 and not texts[0].many:
        parts = [text]
    else:
        parts = text.split() if texts[0].words and "\t" not in text else text.split("\t")
    return _divided(number, place, parts, fields)


def _divided(number: int, place: str, parts: Sequence[str], fields: Sequence[Field], *, arguments: bool = False) -> Record:
    """The record of texts in the order of its fields, which TABs separated or which are `arguments`."""
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


def _json_record(number: int, place: str, text: str, fields: Sequence[Field]) -> Record:
    try:
        given = parse_json(text, strict=True)
    except ValueError as error:
        return Record(number, place, problem=f"not JSON ({error}): {text[:60].strip()!r}")
    if not isinstance(given, dict):
        return Record(number, place, problem=f"a JSON {type(given).__name__}, not an object with {fields[0].name!r}")
    return _record(number, place, given, fields)


def _record(number: int, place: str, given: JsonObject, fields: Sequence[Field]) -> Record:
    """The record of the object `given`, with its fields in `values` and other keys in `rest`."""
    names = {f.name for f in fields}
    rest = {name: value for name, value in given.items() if name not in names}
    values = {f.name: given.get(f.name) for f in fields}
    problems = (_problem(f, given) for f in fields)
    return Record(number, place, values, rest, problem=next(filter(None, problems), None))


def _problem(of: Field, given: JsonObject) -> str | None:
    """The problem of a field's value, or None."""
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
    """The number of lines of a file; None if it is compressed, no regular file, or larger than COUNTED_BYTES."""
    if path.suffix == ".gz" or not path.is_file() or path.stat().st_size > COUNTED_BYTES:
        return None
    count, last = 0, b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            count, last = count + block.count(b"\n"), block
    return count + (last[-1:] not in (b"", b"\n"))
