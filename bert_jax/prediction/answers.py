"""Writes the answers to records in the order of the records, to standard output or to a file.

A record that cannot be read or answered is reported with its number, the other records are answered, and the exit status is 1.
A file appears only when it is complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

from bert_jax.files import JsonObject, PartialFile, remove_leftovers
from bert_jax.interface.progress import CLEAR_LINE, Progress
from bert_jax.interface.words import counted, without_controls
from bert_jax.prediction.output import check_stdout, checked_target, writing
from bert_jax.prediction.streams import Record, Records, in_groups


def answer_records(
    records: Iterable[Record], size: int, answer: Callable[[list[Record]], Sequence[JsonObject | str]], writer: Writer
) -> None:
    """Writes the answers to all `records` in their order.

    `answer` takes at most `size` records without a problem and returns an answer, or an error message, for each.
    """
    for window in in_groups(records, size):
        whole = [record for record in window if record.problem is None]
        replies = dict(zip((record.number for record in whole), answer(whole) if whole else [], strict=True))
        for record in window:
            reply = replies[record.number] if record.problem is None else record.problem
            if isinstance(reply, str):
                writer.fail(record, reply)
            else:
                writer.answer(record, reply)
        writer.flush()


class Writer:
    """Writes answers to standard output or to a file, and problems and progress to standard error.

    `as_text` formats an answer as text. Without it every answer is a line of JSON with the other fields of the record and those
    of the answer (if both have a key k, the record's is written as input_k), and a failed record is the line
    {"line": its number, "error": the message}, so that line i is the result of record i.

    A file is written under a temporary name next to `output` and renamed when it is complete; if an exception leaves the `with`
    block, neither file remains. Raises UserError if the answers cannot be written: the constructor for all that can be checked
    before writing, the other methods for the rest. Raises BrokenPipeError if the reader of a pipe has gone.

    >>> with Writer("answers.jsonl") as writer:
    ...     answer_records(records, 1024, answer, writer)
    >>> sys.exit(writer.status)
    """

    _blank_result = "their answers are empty"  # of the message about blank lines

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
            try:  # not sys.stdout's buffer: Python flushes that again at exit, which would fail a second time after an error
                self._file = self._files.enter_context(os.fdopen(os.dup(sys.stdout.fileno()), "wb"))
            except (OSError, ValueError):  # sys.stdout has no file descriptor
                self._file = sys.stdout.buffer
            return self
        with writing(self._name):
            if not self._path.exists() or self._path.is_file():  # a device or a pipe is opened directly
                remove_leftovers(self._path.parent)
                self._partial = PartialFile(self._path)
            self._file = self._partial.file if self._partial else self._files.enter_context(self._path.open("wb"))
        if self._path.suffix == ".gz":
            packed: Any = gzip.GzipFile(filename="", mode="wb", fileobj=self._file, mtime=0)
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
        rest = {f"input_{name}" if name in values else name: value for name, value in record.rest.items()}
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
