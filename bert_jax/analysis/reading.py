"""Reads texts and annotated files for an analysis, reports problems, leaves out unreadable items, and shows progress."""

from __future__ import annotations

import abc
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeVar

from bert_jax.analysis.windows import Window, read_windows
from bert_jax.errors import UserError
from bert_jax.interface.progress import Progress
from bert_jax.interface.words import counted
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.fields import Field
from bert_jax.prediction.streams import Records, read_records
from bert_jax.tasks.readers.conllu import Line, Sentence, read_blocks, read_sentence
from bert_jax.tasks.readers.tables import Say, note

T = TypeVar("T")
DELAY = 2.0
"""Seconds before the first progress line is shown."""
Note = Callable[[str], None]
"""Called with a progress message, e.g. "3,000 words"."""


class AnnotatedSource(abc.ABC):
    """A file with annotation, which is read again in each iteration.

    A part that cannot be read is left out, counted in `failed`, and reported to `report` (default: standard error) as a
    sentence with file and line. Each problem is reported only once, even if the file is read several times."""

    def __init__(self, path: str | os.PathLike[str], report: Say | None = None):
        self.path = os.fspath(path)
        self._report = report or (lambda problem: note(f"error: {problem}"))
        self._reported: set[str] = set()
        self.line = 0
        """The number of the last line that was read, from 1. It is used to show the progress."""
        self.file: os.stat_result | None = None
        """The status of the file, or None if the file is not a regular file."""
        self.count: Callable[[], int | None] = lambda: None
        """Returns the number of lines, or None if counting takes too long."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    @property
    def failed(self) -> int:
        """The number of problems that have been reported."""
        return len(self._reported)

    def tell(self, problem: str) -> None:
        """Reports a problem, unless an earlier iteration has already reported it."""
        if problem not in self._reported:
            self._reported.add(problem)
            self._report(problem)

    def open_lines(self) -> Records:
        """Returns the lines of the file, decompressed if necessary. Raises UserError if the file cannot be read."""
        lines = read_records((), self.path, (Field("line", whole=True),), blank_lines=True)
        self.file, self.count = lines.file, lines.count
        return lines


class Treebank(AnnotatedSource):
    """The sentences of a CoNLL-U file of any size.

    Multiword tokens ("1-2") are left out, since their syntactic words are listed separately. Empty nodes ("8.1") have no word.
    Raises UserError if the file cannot be read. If an iteration finds no sentence, it ends with a UserError that asks for
    `wanted`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        needs_heads: bool = False,
        report: Say | None = None,
        wanted: str = "a CoNLL-U file",
    ):
        super().__init__(path, report)
        self._needs_heads, self._wanted = needs_heads, wanted
        self._noted: set[str] = set()
        if self.path == "-":
            raise UserError("--input=- is standard input, but a treebank is read several times; give a file")
        self.open_lines()

    def __iter__(self) -> Iterator[Sentence]:
        return self._sentences()

    def half(self, which: int) -> Iterator[Sentence]:
        """Returns every other sentence of the file. Half 0 has the first, the third, ... sentence, and half 1 has the second,
        the fourth, ... sentence. The other half is not parsed, since parsing is half of the time it takes to read a file."""
        return self._sentences(which)

    def _sentences(self, half: int | None = None) -> Iterator[Sentence]:
        found = tried = False
        number = -1
        for block in read_blocks(self._lines(), self._note):
            number = block.number
            if half in (None, number % 2):
                tried = True
                try:
                    sentence = read_sentence(block, heads="required" if self._needs_heads else "optional")
                except UserError as error:
                    self.tell(f"{error}; the sentence is left out")
                else:
                    found = True
                    yield sentence
        if not found and (tried or number < 0):
            part = "" if half is None else (" among those with odd numbers", " among those with even numbers")[half]
            raise UserError(f"{self.path} has no sentence that can be read{part}; give {self._wanted}")

    def _lines(self) -> Iterator[Line]:
        for record in self.open_lines():
            self.line = record.number
            yield Line(record.place, record.values.get("line", ""), record.problem)

    def _note(self, problem: str) -> None:
        if problem not in self._noted:
            self._noted.add(problem)
            note(problem)


class Reading:
    """Reads records as windows and shows the progress. Counts the texts and the records that cannot be read."""

    def __init__(self, engine: Engine, records: Records, longest: int | None = None):
        """`longest` is the maximum number of tokens of a window (default: the length of the model's position table)."""
        self._engine, self._records, self._longest = engine, records, longest or engine.config.max_position
        self._progress = Progress("read", None, "lines", delay=DELAY)
        self._line = 0
        self.texts = self.failed = 0

    def windows(self) -> Iterator[Window]:
        """Yields the windows of all texts. Records that cannot be read are reported and left out."""
        return self.each(lambda text: read_windows(self._engine, text))

    def each(self, windows: Callable[[str], Iterator[T]]) -> Iterator[T]:
        """Yields the items that `windows` returns for each text. Records that cannot be read are reported and left out."""
        total = self._records.count()
        for record in self._records:
            self._line, self._total = record.number, total
            try:
                if record.problem:
                    raise UserError(record.problem)
                found = list(windows(record.values["text"]))
            except UserError as error:
                self.failed += 1
                print(f"error: {record.place}{error}", file=sys.stderr)
                continue
            self.texts += 1
            yield from found

    def show(self, note: str) -> None:
        """Shows the progress."""
        self._progress.update(self._line, note, self._total)

    def summary(self, words: int, windows: int) -> str:
        """Ends the progress line. Returns a message with the number of texts and words. If a text was cut, the message also has
        the number of windows."""
        self._progress.close()
        said = f"{counted(self.texts, 'text')}, {counted(words, 'word')}"
        if windows == self.texts:
            return said
        return f"{said}; texts longer than {counted(self._longest, 'token')} were cut: {counted(windows, 'window')}"


Show = Callable[[AnnotatedSource], contextlib.AbstractContextManager[Note]]
"""Called with a file. Returns a context manager, which yields a function that shows notes while the file is read."""


@contextlib.contextmanager
def in_silence(file: object) -> Iterator[Note]:
    """Yields a function that shows nothing."""
    yield lambda note: None


@contextlib.contextmanager
def line_progress(file: AnnotatedSource) -> Iterator[Note]:
    """Yields a function that shows a note together with the progress through the lines of a file and the remaining time."""
    total = file.count()
    with Progress("read", total, "lines", delay=DELAY) as progress:
        yield lambda note: progress.update(file.line, note)


@contextlib.contextmanager
def progress_through(texts: Iterable[str]) -> Iterator[tuple[Iterable[str], Note]]:
    """Yields an iterable over `texts`, which counts the texts that are read, and a function that shows a note next to this
    count. The remaining time is shown if the number of texts is known, e.g. for a list."""
    read = 0

    def counted_texts() -> Iterator[str]:
        nonlocal read
        for text in texts:
            read += 1
            yield text

    with Progress("read", len(texts) if isinstance(texts, Sized) else None, "texts", delay=DELAY) as progress:
        yield counted_texts(), lambda note: progress.update(read, note)


def stage_progress(stage: str, unit: str) -> Callable[[int, int], None]:
    """Returns a function that shows the progress of a stage and the remaining time. The function is called with the amount done
    and the total, in `unit`s."""
    progress: list[Progress] = []

    def say(done: int, total: int) -> None:
        if not progress:
            progress.append(Progress(stage, total, unit, delay=DELAY))
        progress[0].update(done)
        if done >= total:
            progress[0].close()

    return say
