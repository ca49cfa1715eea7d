"""The records that a verb of `python -m bert_jax.predict` is to answer: any length of input in constant memory.

A line of text is one record, its fields separated by TABs; a line of JSON is one object with the fields by name. Blank lines
are skipped, but where each line has to have its answer. A line that cannot be read is a record with a problem, and the lines
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
from bert_jax.tasks.tables import is_whole

MOST_BYTES = 64 << 20
"""A longer line fails: so a file without line ends does not fill the memory."""
AHEAD_BYTES = 32 << 20
"""Lines are read ahead up to this size, or one line."""
COUNTED_BYTES = 1 << 30
"""Lines of a larger file are not counted for the estimate of the time left."""
_File = IO[bytes] | gzip.GzipFile
_BOM = b"\xef\xbb\xbf"
_PACKED = {b"\x1f\x8b": "gzip", b"BZh91AY&SY": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}


@dataclass(frozen=True)
class Field:
    """One thing a verb asks of a record. In text lines the texts stand in order, and a `many` one takes all that is left."""

    name: str
    many: bool = False  # a list of texts
    optional: bool = False  # None where it is absent
    number: bool = False  # a count of characters instead of a text, which JSON alone can hold
    words: bool = False  # of a `many` one: white space separates them in a line that has no TAB


@dataclass(frozen=True)
class Record:
    """One line of the input, or why it is none (`problem`)."""

    number: int  # of the line, from 1; of the text, where texts are given as arguments
    place: str  # "FILE, line 3: ", for messages; "" for a single argument
    values: JsonObject = field(default_factory=dict)  # by the fields' names
    rest: JsonObject = field(default_factory=dict)  # what else a JSON object holds
    problem: str | None = None
    blank: bool = False  # a line with nothing in it, where those are records too
    size: int = 0  # bytes


@dataclass(frozen=True)
class Records:
    """The records of an input, to be iterated over once."""

    source: Iterator[Record]
    typed: bool = False  # by a person at a terminal, who waits for each answer
    count: Callable[[], int | None] = lambda: None  # the number of the last record, None where it is dear to know
    file: os.stat_result | None = None  # what they are read from, where it is a regular file

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
    """The records in `texts`, else in the file `input_path` ("-" is standard input), else in `stdin` (sys.stdin).

    A file is opened at once, so that a misspelt name costs no model's loading; `.gz` is unpacked, `.jsonl` and `.jsonl.gz` hold
    JSON as all input does with `jsonl`. With `blank_lines` a blank line is a record too, but where a person types. Raises
    UserError for texts and a file together, no input at all, and a file that cannot be read, while the records are read too.
    """
    if texts and input_path:
        raise UserError("both texts and --input are given; give the texts as arguments, or --input=FILE, not both")
    if texts:
        arguments = list(_argument_records(texts, fields))
        return Records(iter(arguments), count=lambda: len(arguments))
    if input_path and input_path != "-":
        file, path = _open(input_path), pathlib.Path(input_path)
        jsonl = jsonl or path.name.removesuffix(".gz").endswith(".jsonl")
        read = _file_records(file, input_path, fields, jsonl, blank_lines)
        return Records(read, count=lambda: _count_lines(path), file=_regular(file))
    stdin = stdin or sys.stdin
    if stdin is None:
        raise UserError("there is no text: standard input is closed; give texts as arguments, or --input=FILE")
    if stdin.isatty():
        line = "JSON object" if jsonl else " TAB ".join(f.name for f in fields if not f.number)
        print(f"one {line} a line; end with Ctrl-D", file=sys.stderr)
    typed, own = stdin.isatty(), _own(stdin)
    read = _file_records(own, "standard input", fields, jsonl, blank_lines and not typed)
    return Records(read, typed=typed, file=_regular(own))


def in_windows(records: Iterable[Record], size: int, *, wait: float = 0.2) -> Iterator[list[Record]]:
    """`records` in lists of at most `size`, read ahead by a thread while the list before is answered.

    What has come `wait` seconds after the first record goes out, so a slow pipe gets its answers promptly; a person who types
    gets each answer at once.
    """
    ahead = _Ahead(records, 1 if isinstance(records, Records) and records.typed else size)
    try:
        while window := ahead.take(wait):
            yield window
    finally:
        ahead.stop()


class _Ahead:
    """A thread that reads records until `size` of them, or AHEAD_BYTES, wait to be taken."""

    def __init__(self, records: Iterable[Record], size: int):
        self._records, self._size = records, size
        self._ready: list[Record] = []
        self._bytes = 0
        self._ended = self._stopped = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        # a daemon: it may wait for a line that never comes when the process has to end
        threading.Thread(target=self._read, daemon=True, name="reader of records").start()

    def take(self, wait: float) -> list[Record]:
        """What is ready when it is full or `wait` seconds after the first; empty at the end. Raises what reading raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended)
            self._changed.wait_for(lambda: self._full() or self._ended, wait)
            window, self._ready, self._bytes = self._ready, [], 0
            self._changed.notify_all()
        if not window and self._error:
            raise self._error
        return window

    def stop(self) -> None:
        """Lets the thread end at its next record."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _full(self) -> bool:
        return len(self._ready) >= self._size or self._bytes >= AHEAD_BYTES

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
        raise UserError(f"--input={missing_path(path)} cannot be read: {reason}; name a file that is there") from error
    if reason:
        raise UserError(f"{name} cannot be read: {reason}; name a file of text that you may read") from error
    raise UserError(f"{name} cannot be read: it is not a whole gzip file ({error}); copy or make it again") from error


def _regular(file: Any) -> os.stat_result | None:
    """What `file` is, where it is a regular file of the system."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _own(stdin: TextIO) -> IO[bytes]:
    """A reader of our own of standard input: Python locks its own at exit, which a thread that still waits there would forbid."""
    try:
        return os.fdopen(os.dup(stdin.fileno()), "rb")
    except (OSError, ValueError):  # not a file of the system
        return stdin.buffer


def _file_records(file: _File, name: str, fields: Sequence[Field], jsonl: bool, blank_lines: bool) -> Iterator[Record]:
    records = _read(file, name, fields, jsonl, blank_lines)
    weakref.finalize(records, file.close).atexit = False  # a generator that never begins closes nothing
    return records


def _read(file: _File, name: str, fields: Sequence[Field], jsonl: bool, blank_lines: bool) -> Iterator[Record]:
    parse = _json_record if jsonl else _text_record
    try:
        with file:
            for number, line in enumerate(_lines(file), 1):
                place = f"{name}, line {number}: "
                if number == 1:
                    _check_first(name, line, fields, jsonl)
                text, problem = _decoded(line)
                if problem:
                    yield Record(number, place, problem=problem, size=len(line))
                elif text and not text.isspace():
                    yield replace(parse(number, place, text, fields), size=len(line))
                elif blank_lines:
                    yield Record(number, place, blank=True, size=len(line))
    except (OSError, EOFError, zlib.error) as error:
        _unreadable(name, error)


def _check_first(name: str, line: bytes, fields: Sequence[Field], jsonl: bool) -> None:
    """Refuses a packed file, and says where lines look like JSON that they are read as text."""
    if packing := next((packing for first, packing in _PACKED.items() if line.startswith(first)), None):
        remedy = "give it a name that ends in .gz, or unpack it first" if packing == "gzip" else "unpack it first"
        raise UserError(f"{name} is packed by {packing}; {remedy}")
    if jsonl or not line.startswith(b"{"):
        return
    with contextlib.suppress(ValueError):
        found = [field.name for field in fields if field.name in parse_json(line)]
        if found:
            print(f"{name} is read as text, but its first line is JSON with {found[0]!r}; --jsonl reads that", file=sys.stderr)


def _lines(file: _File) -> Iterator[bytes]:
    """The lines of a file; of one that is too long, the first MOST_BYTES."""
    while line := file.readline(MOST_BYTES):
        rest = line
        while len(rest) == MOST_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MOST_BYTES)
        yield line


def _decoded(line: bytes) -> tuple[str, str | None]:
    """(text of a line, None) or ("", what is wrong with it)."""
    if len(line) == MOST_BYTES and not line.endswith(b"\n"):
        return "", f"longer than {MOST_BYTES >> 20} MiB; split the text into lines"
    if (place := line.find(b"\0")) >= 0:
        return "", f"byte {place + 1} is NUL, which no text holds; give text in UTF-8, one a line"
    try:
        return line.removeprefix(_BOM).decode("utf-8"), None
    except UnicodeDecodeError as error:
        return "", f"byte {error.start + 1} is not UTF-8; convert the text with iconv"


def _argument_records(texts: Sequence[str], fields: Sequence[Field]) -> Iterator[Record]:
    """The records in arguments: one each; but of a question that needs several texts they are the parts of one record, as are
    words, unless there is a TAB or (between words) a space in one of them."""
    required = [field for field in fields if not field.optional]
    apart = any("\t" in text or (fields[0].words and len(text.split()) > 1) for text in texts)
    if not apart and (len(required) > 1 or fields[0].words):
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
    """The record of texts in the order of its fields: from between TABs, or `arguments`."""
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
    """The record of the values `given`, which holds its fields and the rest."""
    names = {f.name for f in fields}
    rest = {name: value for name, value in given.items() if name not in names}
    values = {f.name: given.get(f.name) for f in fields}
    problems = (_problem(f, given) for f in fields)
    return Record(number, place, values, rest, problem=next(filter(None, problems), None))


def _problem(of: Field, given: JsonObject) -> str | None:
    """What is wrong with a field, if anything."""
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
    if not is_whole("".join(texts)):
        return f"its {of.name} holds half a surrogate pair, or a byte that is not UTF-8; convert it with iconv"
    return None


def _count_lines(path: pathlib.Path) -> int | None:
    """How many lines a file has, None where that takes long to tell."""
    if path.suffix == ".gz" or not path.is_file() or path.stat().st_size > COUNTED_BYTES:
        return None
    count, last = 0, b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            count, last = count + block.count(b"\n"), block
    return count + (last[-1:] not in (b"", b"\n"))
