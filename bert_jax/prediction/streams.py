"""Opens the input of a command, e.g. `python -m bert_jax.predict`: arguments, a file, a pipe or standard input.

Records are read on demand, so the memory does not grow with the length of the input.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import stat
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, NoReturn, TextIO

from bert_jax.errors import UserError, missing_path
from bert_jax.prediction.fields import JSON_LINES, Field, FileReader, Record, argument_records
from bert_jax.storage.fetching import fetched
from bert_jax.storage.formats import UNREADABLE, bare_name, compression, damage, open_packed
from bert_jax.tasks.readers.conll import COLUMN_FILES
from bert_jax.tasks.readers.conllu import CONLLU

COUNTED_BYTES = 1 << 30
"""In files larger than this, the lines are not counted, so the remaining time is not estimated."""
WRITER_SECONDS = 10.0
"""The number of seconds to wait until a program writes to a named pipe."""


@dataclass(frozen=True)
class Records:
    """The records of an input. They can be iterated only once."""

    source: Iterator[Record]
    typed: bool = False  # whether a person types the input at a terminal and waits for each answer
    count: Callable[[], int | None] = lambda: None  # returns the index of the last record, or None if counting is slow
    file: os.stat_result | None = None  # the input file, if it is a regular file

    def __iter__(self) -> Iterator[Record]:
        return self.source


def read_texts(
    texts: Sequence[str],
    input_path: str | None,
    fields: Sequence[Field],
    *,
    jsonl: bool = False,
    blank_lines: bool = False,
    columns: Mapping[str, Sequence[str] | str] | None = None,
    table: Mapping[str, Any] | None = None,
    stdin: TextIO | None = None,
) -> Records:
    """Like `read_records`, but for the texts of users, which may also be tables, JSON lists or (by mistake) file names.

    - `.csv`, `.parquet` and `.arrow` files have a table. A `.tsv` file, or other text, has a table if its first line is a
      header. The columns have the names in `columns` (field -> column) or, if these are missing, the names of the fields. `table`
      may state the delimiter, quotes and separator of its cells. The caller may fill `columns` and `table` until the first
      record is read. Other columns are in `Record.rest`. If a `.tsv` file has no header, TABs separate the fields, which are in
      their order.
    - `.json` files, and text that starts like JSON, have JSON objects, one per line or in one list.

    Raises UserError if a text is the name of a file, if a table lacks a required column, if the file has annotated words
    (`.conllu`), or if no program writes to a named pipe.
    """
    if not input_path:
        check_not_files(texts)
    suffix = "" if not input_path or input_path == "-" else _suffix(input_path)
    if suffix in (*COLUMN_FILES, *CONLLU):
        raise UserError(
            f"--input={input_path} holds annotated words, one per line, but a text is expected on each line; write the texts to "
            "another file, one per line"
        )
    columns, table = {} if columns is None else columns, {} if table is None else table
    reader = FileReader(input_path or "", fields, jsonl, blank_lines, suffix, columns, table)
    return _open_input(texts, input_path, reader, stdin)


def read_records(
    texts: Sequence[str],
    input_path: str | None,
    fields: Sequence[Field],
    *,
    jsonl: bool = False,
    blank_lines: bool = False,
    stdin: TextIO | None = None,
) -> Records:
    """Returns the records of `texts`, of the file `input_path` ("-": standard input), or of `stdin` (default: sys.stdin).

    A file is opened immediately, so that a misspelt path is reported before the model is loaded. A file whose name ends in one
    of `formats.COMPRESSIONS` is decompressed. With `jsonl`, every input is read as JSON lines. Without `jsonl`, only a `.jsonl`
    or `.ndjson` file (compressed or not) is read as JSON lines. With `blank_lines`, a blank line is a record too, except at a
    terminal. Raises UserError if both texts and a file are given, if there is no input, or if the file cannot be read. An error
    of reading may also be raised during iteration."""
    return _open_input(texts, input_path, FileReader(input_path or "", fields, jsonl, blank_lines), stdin)


def _open_input(texts: Sequence[str], input_path: str | None, reader: FileReader, stdin: TextIO | None) -> Records:
    if texts and input_path:
        raise UserError("both texts and --input are given; give the texts as arguments, or --input=FILE, not both")
    if texts:
        arguments = list(argument_records(texts, reader.fields))
        return Records(iter(arguments), count=lambda: len(arguments))
    if input_path and input_path not in ("-", "/dev/stdin"):
        path = fetched(input_path, "--input")
        file = _open(input_path if path == pathlib.Path(input_path) else str(path))
        regular = _regular(file)
        reader = replace(reader, jsonl=reader.jsonl or _suffix(path.name) in JSON_LINES, path=path if regular else None)
        return Records(_read_records(file, reader), count=lambda: _count_lines(path), file=regular)
    stdin = stdin or sys.stdin
    if stdin is None:
        raise UserError("there is no text: standard input is closed; give texts as arguments, or --input=FILE")
    typed = stdin.isatty()
    if typed:
        line = "JSON object" if reader.jsonl else " TAB ".join(f.name for f in reader.fields if not f.number)
        print(f"type one {line} per line; end with Ctrl-D", file=sys.stderr)
        reader = replace(reader, blank_lines=False, suffix=None)
    own = _own(stdin)
    return Records(_read_records(own, replace(reader, name="standard input")), typed=typed, file=_regular(own))


def _suffix(path: str) -> str:
    """Returns the suffix of a file name in lower case. The suffix of "a.csv.gz" is ".csv"."""
    return pathlib.PurePath(bare_name(pathlib.PurePath(path).name.lower())).suffix


def check_not_files(texts: Sequence[str]) -> None:
    """Raises UserError if all `texts` are names of existing files, or if one of them also looks like a file name."""
    files = [text for text in texts if _is_file(text)]
    named = [text for text in files if "/" in text or pathlib.PurePath(text).suffix]
    if files and (named or len(files) == len(texts)):
        first = (named or files)[0]
        raise UserError(
            f"{first} is the name of a file; read it with --input={first}, or, if it is meant as a text, "
            "give it on standard input"
        )


def _is_file(text: str) -> bool:
    """Returns whether `text` is the path of a file or a pipe. A directory only counts if its path has a slash."""
    try:
        mode = pathlib.Path(text).stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISDIR(mode) or "/" in text


def check_whole_file(path: str, flag: str) -> None:
    """Raises UserError if `path` is standard input or a pipe. Commands that read a file several times call this function."""
    with contextlib.suppress(OSError, ValueError):
        if path in ("-", "/dev/stdin") or stat.S_ISFIFO(pathlib.Path(path).stat().st_mode):
            raise UserError(f"{flag}={path} is a pipe, but this file is read several times; save it to a file first")


def _open(path: str) -> IO[bytes]:
    file = _open_pipe(path) or path
    try:
        _check_device(path)
        return open_packed(file, path)
    except UNREADABLE as error:
        _unreadable(path, error)


def _check_device(path: str) -> None:
    """Raises UserError if `path` is a device that never ends, such as /dev/zero. Terminals and /dev/null are accepted."""
    if stat.S_ISCHR(pathlib.Path(path).stat().st_mode) and not pathlib.Path(path).samefile(os.devnull):
        with pathlib.Path(path).open("rb") as device:
            if not device.isatty():
                raise UserError(f"--input={path} is a device, not a file of texts; name a file")


class _Pipe(io.RawIOBase):
    """A pipe that is open for reading. The first bytes have already been read."""

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
    """Opens `path` if it is a pipe, otherwise returns None. Raises UserError if no program writes to a named pipe, because
    opening the pipe would wait forever without a message."""
    try:
        if not stat.S_ISFIFO(pathlib.Path(path).stat().st_mode):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None  # the error is reported later, when the file is opened
    named = "pipe:[" not in os.path.realpath(path)  # a pipe of the shell, such as <(zcat FILE), has a writer from the start
    last = time.monotonic() + WRITER_SECONDS
    first = b""
    try:
        while not (first := os.read(descriptor, 1 << 16)) and named:  # an empty read means that there is no writer
            if time.monotonic() > last:
                os.close(descriptor)
                raise UserError(
                    f"--input={path} is a pipe that no program has written to for {WRITER_SECONDS:g} seconds; start the program "
                    "that writes to it, or give a file"
                )
            time.sleep(0.02)
    except BlockingIOError:  # a writer exists, but it has not written yet
        pass
    os.set_blocking(descriptor, True)
    return io.BufferedReader(_Pipe(descriptor, first))


def _unreadable(path: str, error: Exception) -> NoReturn:
    name = path if path == "standard input" else f"--input={path}"
    reason = getattr(error, "strerror", None)
    if isinstance(error, FileNotFoundError):
        raise UserError(f"--input={missing_path(path)} cannot be read: {reason}; name an existing file") from error
    if reason:
        raise UserError(f"{name} cannot be read: {reason}; name a text file that you have permission to read") from error
    fault = damage(path, error, "copy or make it again") or f"damaged ({error}); copy or make it again"
    raise UserError(f"{name} cannot be read: it is {fault}") from error


def _regular(file: Any) -> os.stat_result | None:
    """Returns the status of `file` if it is a regular file, otherwise None."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _own(stdin: TextIO) -> IO[bytes]:
    """Returns a second reader of standard input. Python locks sys.stdin at exit. This would fail while the reading thread waits
    for sys.stdin."""
    try:
        return os.fdopen(os.dup(stdin.fileno()), "rb")
    except (OSError, ValueError):  # stdin has no file descriptor
        return stdin.buffer


def _read_records(file: IO[bytes], reader: FileReader) -> Iterator[Record]:
    def read() -> Iterator[Record]:
        try:
            with file:
                yield from reader.read(file)
        except UNREADABLE as error:
            _unreadable(reader.name, error)

    records = read()
    # a generator that is never started does not run its `with` block, so the finalizer closes the file
    weakref.finalize(records, file.close).atexit = False
    return records


def _count_lines(path: pathlib.Path) -> int | None:
    """Counts the lines of a file. Returns None if the file is compressed, not regular, or larger than COUNTED_BYTES."""
    if compression(path.name) or not path.is_file() or path.stat().st_size > COUNTED_BYTES:
        return None
    count, last = 0, b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            count, last = count + block.count(b"\n"), block
    return count + (last[-1:] not in (b"", b"\n"))
