"""Treebanks of any size: the sentences of a CoNLL-U file, which is read anew by each iteration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from bert_jax.errors import UserError
from bert_jax.prediction.streams import Field, Records, read_records
from bert_jax.tasks.readers.conllu import Line, Sentence, read_blocks, read_sentence
from bert_jax.tasks.readers.tables import note


class Treebank:
    """The sentences of a CoNLL-U file of any size, which is read anew by each iteration; a compressed file is decompressed.

    Multiword tokens ("1-2") and empty nodes ("8.1") are left out: their syntactic words are there. A sentence that cannot be read
    is told to `report` as a sentence with file and line, counted in `failed` and left out. Raises UserError where the file cannot
    be read, and at the end of an iteration that found no sentence.
    """

    def __init__(self, path: str | os.PathLike[str], *, needs_heads: bool = False, report: Callable[[str], object] | None = None):
        self.path = os.fspath(path)
        self._needs_heads = needs_heads
        self._report = report or (lambda problem: note(f"error: {problem}"))
        self._reported: set[str] = set()
        self._noted: set[str] = set()
        if self.path == "-":
            raise UserError("--input=- is standard input, and a treebank is read several times; give a file")
        self.line = 0
        """The line that was read last, from 1: the progress."""
        first = self._open()
        self.file = first.file
        """The status of the file, if it is a regular one."""
        self.count = first.count
        """Returns the number of lines, or None if counting takes too long."""

    @property
    def failed(self) -> int:
        """The number of sentences that were left out."""
        return len(self._reported)

    def __iter__(self) -> Iterator[Sentence]:
        return self._sentences()

    def half(self, which: int) -> Iterator[Sentence]:
        """Every other sentence of the file: of half 0 the first, third, ..., of half 1 the second, fourth, ... The others are not
        parsed, which takes half of the time of reading a file."""
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
                    self._leave_out(f"{error}; the sentence is left out")
                else:
                    found = True
                    yield sentence
        if not found and (tried or number < 0):
            raise UserError(f"{self.path} holds no sentence that can be read; give a CoNLL-U file")

    def _open(self) -> Records:
        return read_records((), self.path, (Field("line", whole=True),), blank_lines=True)

    def _lines(self) -> Iterator[Line]:
        for record in self._open():
            self.line = record.number
            yield Line(record.place, record.values.get("line", ""), record.problem)

    def _note(self, problem: str) -> None:
        if problem not in self._noted:
            self._noted.add(problem)
            note(problem)

    def _leave_out(self, problem: str) -> None:
        if problem not in self._reported:  # an earlier iteration has reported it
            self._reported.add(problem)
            self._report(problem)
