"""Answers records in order: reads them ahead in groups, and writes the answers to standard output or a file.

If a record cannot be read or answered, the problem is reported with the record's number, and the exit status is 1. All other
records are answered. An output file only appears when it is complete. The file has lines of text, lines of JSON, or (.npy) one
vector per record. The number of records need not be known in advance."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import JsonObject, PartialFile, remove_leftovers
from bert_jax.interface.output import check_stdout, checked_target, writing
from bert_jax.interface.progress import CLEAR_LINE, Progress
from bert_jax.interface.words import counted, without_controls
from bert_jax.prediction.fields import Record
from bert_jax.prediction.streams import Records
from bert_jax.storage.formats import compressing

READ_AHEAD_BYTES = 32 << 20
"""The reading thread pauses when the pending records reach this size."""
NPY_HEADER_BYTES = 128


def answer_records(
    records: Iterable[Record], size: int, answer: Callable[[list[Record]], Sequence[JsonObject | str]], writer: Writer
) -> None:
    """Writes the answers to all `records` in their order.

    `answer` is called with at most `size` records, which have no `problem`. For each record, it returns the answer, or an error
    message.
    """
    for window in in_groups(records, size):
        whole = [record for record in window if record.problem is None]
        replies = iter([reply for _, reply in zip(whole, answer(whole) if whole else [], strict=True)])
        for record in window:
            reply = next(replies) if record.problem is None else record.problem
            if isinstance(reply, str):
                writer.fail(record, reply)
            else:
                writer.answer(record, reply)
        writer.flush()


def in_groups(records: Iterable[Record], size: int, *, wait: float = 0.2) -> Iterator[list[Record]]:
    """Yields `records` in lists of at most `size`. A thread reads the next list while the caller answers the current list.

    A list is yielded at most `wait` seconds after its first record arrived, so that the records of a slow pipe are answered
    soon. Input typed at a terminal is yielded line by line.
    """
    ahead = _ReadAhead(records, 1 if isinstance(records, Records) and records.typed else size)
    try:
        while group := ahead.take(wait):
            yield group
    finally:
        ahead.stop()


class _ReadAhead:
    """A thread that reads records ahead, until `size` records or READ_AHEAD_BYTES are pending."""

    def __init__(self, records: Iterable[Record], size: int):
        self._records, self._size = records, size
        self._ready: list[Record] = []
        self._bytes = 0
        self._ended = self._stopped = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        # a daemon thread does not keep the process alive while it waits for input
        threading.Thread(target=self._read, daemon=True, name="reader of records").start()

    def take(self, wait: float) -> list[Record]:
        """Waits until the limit is reached, or until `wait` seconds after the first record. Then returns the pending records.
        Returns an empty list at the end of the input. If the reading thread failed, raises its exception."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended)
            self._changed.wait_for(lambda: self._full() or self._ended, wait)
            group, self._ready, self._bytes = self._ready, [], 0
            self._changed.notify_all()
        if not group and self._error:
            raise self._error
        return group

    def stop(self) -> None:
        """Stops the thread at its next record."""
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


class Writer:
    """Writes answers to standard output or to a file, and problems and progress to standard error.

    `as_text` formats an answer as text. Without `as_text`, every answer is a line of JSON with two groups of fields: those of the
    record that were not read, and those of the answer. If both have a field k, the record's field is named input_k, or
    input_input_k if that name is taken too. For a failed record, the line {"line": its number, "error": the message} is written,
    so that line i is always the result of record i.

    A file is compressed if its name has a suffix of `formats.COMPRESSIONS`. It is written under a temporary name next to
    `output`. When the file is complete, it is renamed. After an exception in the `with` block, the temporary file is removed.
    Raises UserError if the answers cannot be written, in the constructor if possible. Raises BrokenPipeError if the reader of a
    pipe is gone.

    >>> with Writer("answers.jsonl") as writer:
    ...     answer_records(records, 1024, answer, writer)
    >>> sys.exit(writer.status)
    """

    _blank_result = "their answers are empty"  # for the message about blank lines

    def __init__(
        self,
        output: str | None = None,
        as_text: Callable[[JsonObject], str] | None = None,
        records: Records | None = None,
    ):
        self._as_text = as_text
        source = records.file if records else None
        self._path = None if output in (None, "-") else checked_target(output or "", source)
        if self._path is None:
            check_stdout(source)
        self._on_terminal = self._path is None and sys.stdout.isatty()
        self._name = "standard output" if self._path is None else f"--output={output}"
        self._files = contextlib.ExitStack()
        self._partial: PartialFile | None = None
        self._file: IO[bytes] | None = None
        self._progress: Progress | None = None
        if records and not records.typed and sys.stderr.isatty() and (self._path or not sys.stdout.isatty()):
            self._progress = Progress("answered", records.count(), "lines")
        self._total = self._failed = self._blank = self._line = 0

    @property
    def status(self) -> int:
        """The exit status of the process: 0, or 1 if a record failed."""
        return int(self._failed > 0)

    def __enter__(self) -> Writer:
        if self._path is None:
            sys.stdout.flush()
            # Python flushes the buffer of sys.stdout at exit. After a write error, this would fail again, so it is not used.
            try:
                self._file = self._files.enter_context(os.fdopen(os.dup(sys.stdout.fileno()), "wb"))
            except (OSError, ValueError):  # sys.stdout has no file descriptor
                self._file = sys.stdout.buffer
            return self
        with writing(self._name):
            if not self._path.exists() or self._path.is_file():  # a device or a pipe is opened directly
                remove_leftovers(self._path.parent)
                self._partial = PartialFile(self._path)
            self._file = self._partial.file if self._partial else self._files.enter_context(self._path.open("wb"))
        packed = compressing(self._file, self._path.name)
        if packed is not self._file:
            self._file = self._files.enter_context(packed)
        return self

    def answer(self, record: Record, values: JsonObject) -> None:
        """Writes the answer to a record."""
        self._count(record)
        if self._as_text:
            text = self._as_text(values)
            self._write(without_controls(text) if self._on_terminal else text)
        else:
            self._write_json(record, values)

    def fail(self, record: Record, problem: str) -> None:
        """Reports a record without an answer."""
        self._count(record)
        self._report(record, problem)

    def _report(self, record: Record, problem: str) -> None:
        self._failed += 1
        clear = CLEAR_LINE if self._progress else ""
        print(f"{clear}error: {record.place}{problem}", file=sys.stderr)
        if not self._as_text:
            self._write_json(record, {"line": record.number, "error": problem})

    def flush(self) -> None:
        """Flushes the file and updates the progress line."""
        assert self._file is not None, "a Writer is used in a with block"
        with writing(self._name):
            self._file.flush()
        if self._progress:
            self._progress.update(self._line, f"{self._failed:,} failed" if self._failed else "")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            with contextlib.suppress(OSError):
                self._files.close()
            if self._partial:
                self._partial.close()
            if self._progress:
                self._progress.close()
        if kind is None and self._failed and self._total > 1:
            print(f"{self._failed:,} of {counted(self._total, 'line')} failed", file=sys.stderr)
        if kind is None and not self._total:
            print("no texts: the input is empty or holds only blank lines", file=sys.stderr)
        if kind is None and self._blank:
            print(f"{self._blank:,} of {counted(self._total, 'line')} blank: {self._blank_result}", file=sys.stderr)

    def _finish(self) -> None:
        with writing(self._name):
            self._files.close()
            if self._partial:
                self._partial.complete()

    def _count(self, record: Record) -> None:
        self._total += 1
        self._blank += record.blank
        self._line = record.number

    def _write_json(self, record: Record, values: JsonObject) -> None:
        taken, rest = values.keys() | record.rest.keys(), dict[str, Any]()
        for name, value in record.rest.items():
            free = name
            while name in values and free in taken:
                free = f"input_{free}"
            taken.add(free)
            rest[free] = value
        try:
            line = json.dumps(rest | dict(values), ensure_ascii=False, allow_nan=False)
        except RecursionError:  # the JSON parser accepts deeper nesting than the writer
            self._report(dataclasses.replace(record, rest={}), "its other fields are nested too deep to be written")
            return
        self._write(line)

    def _write(self, line: str) -> None:
        assert self._file is not None, "a Writer is used in a with block"
        with writing(self._name):
            self._file.write(f"{line}\n".encode(errors="backslashreplace"))  # half a surrogate pair becomes \udXXX, as in JSON


class VectorWriter(Writer):
    """A `Writer` of answers {"embedding": float32 [I]} to a .npy file with float32 [records, I].

    Failed records and blank lines have rows of NaN, so that row i belongs to record i.
    """

    _blank_result = "their rows are NaN"

    def __init__(self, output: str, records: Records | None = None):
        super().__init__(output, None, records)
        self._rows, self._width = 0, 0

    def __enter__(self) -> VectorWriter:
        if self._path is None or (self._path.exists() and not self._path.is_file()):
            raise UserError(f"{self._name} is not a regular file, but .npy needs one: its header is written last; name a file")
        super().__enter__()
        self._put(bytes(NPY_HEADER_BYTES))
        return self

    def answer(self, record: Record, values: JsonObject) -> None:
        """Writes the vector of a record."""
        self._count(record)
        if values["embedding"] is None:
            self._row(self._nan())
            return
        vector = np.ascontiguousarray(values["embedding"], "<f4")
        if not self._width:
            self._width = vector.size
            self._put(self._nan() * self._rows)
        self._row(vector.tobytes())

    def _write_json(self, record: Record, values: JsonObject) -> None:
        self._row(self._nan())  # only failed records call this function

    def _row(self, row: bytes) -> None:
        self._rows += 1
        self._put(row)

    def _nan(self) -> bytes:
        return np.full(self._width, np.nan, "<f4").tobytes()

    def _put(self, data: bytes) -> None:
        assert self._file is not None, "a Writer is used in a with block"
        with writing(self._name):
            self._file.write(data)

    def _finish(self) -> None:
        assert self._file is not None, "a Writer is used in a with block"
        with writing(self._name):
            self._file.seek(0)
        self._put(npy_header(self._rows, self._width))
        super()._finish()


def npy_header(rows: int, width: int) -> bytes:
    """Returns the first NPY_HEADER_BYTES of a .npy file (format 1.0) of little-endian float32 [rows, width]."""
    described = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}".ljust(NPY_HEADER_BYTES - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + (NPY_HEADER_BYTES - 10).to_bytes(2, "little") + described.encode("latin1")
