"""CoNLL-U -> sentences: words, parts of speech, heads, relations (https://universaldependencies.org/format.html)."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence

from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.prediction.streams import Field, Record, Records, read_records
from bert_jax.tasks.readers.tables import note

_ID = re.compile(r"[0-9]+([-.][0-9]+)?")
_NEWDOC = re.compile(r"#\s*newdoc\b")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The syntactic words of a sentence with their annotation, a column of CoNLL-U each; "_" where there is none."""

    place: str
    """The beginning of messages about it: "FILE, line 3: "."""
    document: int
    """The number of its document, from 0; that of the sentence in a file without `# newdoc`."""
    words: tuple[str, ...]
    lemmas: tuple[str, ...]
    upos: tuple[str, ...]
    xpos: tuple[str, ...]
    features: tuple[str, ...]
    heads: tuple[int, ...]
    """For each word the number of its head, from 0; -1 for the root. Empty where the file gives no heads."""
    relations: tuple[str, ...]
    misc: tuple[str, ...]
    places: tuple[str, ...] = ()
    """For each word the beginning of messages about it."""
    comments: tuple[str, ...] = ()
    """The lines before the sentence that begin with "#"."""


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
        document = number = 0
        found = tried = documents = False
        rows: list[Record] = []
        comments: list[str] = []
        for record in _with_a_blank_end(self._open()):
            self.line = record.number
            line = record.values.get("line", "")
            if line.startswith("#"):
                comments.append(line.replace("\t", " "))
                if _NEWDOC.match(line):
                    document, documents = document + documents, True
            elif not record.blank:
                rows.append(record)
            elif rows:
                if half in (None, number % 2):
                    tried = True
                    try:
                        sentence = read_sentence(rows, document, self._needs_heads)
                    except UserError as error:
                        self._leave_out(f"{error}; the sentence is left out")
                    else:
                        found = True
                        yield dataclasses.replace(sentence, comments=tuple(comments))
                number, document, rows, comments = number + 1, document + (not documents), [], []
        if not found and (tried or not number):
            raise UserError(f"{self.path} holds no sentence that can be read; give a CoNLL-U file")

    def _open(self) -> Records:
        return read_records((), self.path, (Field("line"),), blank_lines=True)

    def _leave_out(self, problem: str) -> None:
        if problem not in self._reported:  # an earlier iteration has reported it
            self._reported.add(problem)
            self._report(problem)


def _with_a_blank_end(records: Records) -> Iterator[Record]:
    number = 0
    for record in records:
        number = record.number
        yield record
    yield Record(number, "", blank=True)


def read_sentence(rows: Sequence[Record], document: int, needs_heads: bool) -> Sentence:
    """The sentence of these lines.

    Raises UserError, with file and line, for a line that is not one of CoNLL-U, for heads that are no tree, and with
    `needs_heads` for a sentence without heads.
    """
    words: list[tuple[Record, list[str]]] = []
    for record in rows:
        row = _columns(record)
        if row[0].isdigit():
            if int(row[0]) != len(words) + 1:
                raise UserError(f"{record.place}the ID {row[0]} follows {len(words)}; number the words of a sentence from 1")
            words.append((record, row))
    place = rows[0].place
    if not words:
        raise UserError(f"{place}a sentence without a word")
    columns = [tuple(column) for column in zip(*(row for _, row in words), strict=True)]
    heads: tuple[int, ...] = ()
    if any(head != "_" for head in columns[6]):
        heads = tuple(_head(record, row[6], len(words)) for record, row in words)
        _check_tree(place, heads)
    elif needs_heads:
        raise UserError(f"{place}the sentence has no heads (column 7 is _); give a treebank, or parse the file first")
    places = tuple(record.place for record, _ in words)
    forms, lemmas, upos, xpos, features = columns[1:6]
    return Sentence(place, document, forms, lemmas, upos, xpos, features, heads, columns[7], columns[9], places)


def _columns(record: Record) -> list[str]:
    if record.problem:
        raise UserError(f"{record.place}{record.problem}")
    row = str(record.values["line"]).split("\t")
    if len(row) != 10:
        raise UserError(f"{record.place}{counted(len(row), 'column')} between TABs, not the 10 of CoNLL-U; correct the line")
    if not _ID.fullmatch(row[0]):
        raise UserError(f"{record.place}the ID {row[0]!r} is not one of CoNLL-U, such as 1, 1-2 or 8.1; correct the line")
    if not all(row):
        raise UserError(f"{record.place}column {row.index('') + 1} is empty; correct the line (_ stands for nothing)")
    return row


def _head(record: Record, text: str, count: int) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= count):
        raise UserError(f"{record.place}the head {text!r} is not a word of the sentence, from 1 to {count}, or 0 for the root")
    return int(text) - 1


def _check_tree(place: str, heads: Sequence[int]) -> None:
    """Raises UserError where the heads hold a cycle."""
    reaches_root = [False] * len(heads)
    for word in range(len(heads)):
        path: list[int] = []
        at = word
        while at >= 0 and not reaches_root[at]:
            if at in path:
                cycle = " -> ".join(str(i + 1) for i in (*path[path.index(at) :], at))
                raise UserError(f"{place}the heads of the words {cycle} are a cycle, not a tree; correct them")
            path.append(at)
            at = heads[at]
        for i in path:
            reaches_root[i] = True
