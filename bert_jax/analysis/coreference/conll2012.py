"""CoNLL-2012 (the *_conll files of OntoNotes) -> documents (https://cemantix.org/conll/2012/data.html).

The head word of a mention is that of its constituent in the parse column (`phrases.py`), and where the column is empty the last
noun of the mention. Only mentions with an antecedent or a later mention are annotated in this format.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence

from bert_jax.analysis.coreference.brackets import DocumentReader, Opened, read_brackets
from bert_jax.analysis.coreference.documents import GROUPS, Document
from bert_jax.analysis.coreference.grammar import kind_of, traits_of
from bert_jax.analysis.coreference.mentions import Mention, TextFile
from bert_jax.analysis.coreference.phrases import Phrase, find, is_coordinated, last_noun, phrase_head, read_parse
from bert_jax.analysis.coreference.rules import RULES
from bert_jax.errors import UserError
from bert_jax.interface.numbers import whole_number
from bert_jax.interface.words import counted, cut
from bert_jax.prediction.streams import Field, Record, Records, read_records
from bert_jax.tasks.readers.conll import is_blank
from bert_jax.tasks.readers.conllu import MOST_WORDS
from bert_jax.tasks.readers.tables import Say, note

BEGIN = "#begin document"
_NAME = re.compile(r"#begin document\s*\(?([^);]*)\)?\s*(?:;\s*part\s*(\d+))?")
_LEAST = 12
_NUMBER, _WORD, _TAG, _PARSE, _NAMED = 2, 3, 4, 5, 10


class Conll2012File(TextFile):
    """The documents of a file, one for each part of a text.

    Sentences and mentions that cannot be read are told to `report` and left out. Raises UserError where the file cannot be read,
    and at the end of an iteration that found no document.
    """

    groups = GROUPS
    rules = RULES

    def __init__(self, path: str | os.PathLike[str], report: Say = lambda problem: note(f"error: {problem}")):
        super().__init__(path, report)
        first = self._open()
        self.file, self.count = first.file, first.count

    def _open(self) -> Records:
        return read_records((), self.path, (Field("line", whole=True),), blank_lines=True)

    def __iter__(self) -> Iterator[Document]:
        found = 0
        reader: _Reader | None = None
        rows: list[Record] = []
        for record in self._open():
            self.line = record.number
            columns = _split(record)
            mark = " ".join(columns) if columns and columns[0] in ("#begin", "#end") else ""
            if columns and columns[0].startswith("#") and not mark:
                continue  # a comment: the first column is the name of the document
            if record.problem or not (is_blank(record.values.get("line", "")) or mark):
                rows.append(record)
                continue
            self._read(reader, rows)
            rows = []
            if mark and reader is not None:
                found += 1
                yield reader.document()
                reader = None
            if mark.startswith(BEGIN):
                name = _NAME.match(mark)
                parts = [part for part in (name.groups() if name else ()) if part]
                reader = _Reader("/".join(parts) or str(found + 1), self.tell)
        self._read(reader, rows)
        if reader is not None:
            self.tell(f"{self.path}, line {self.line}: the file ends without '#end document'; is it whole?")
            yield reader.document()
        elif not found:
            raise UserError(f"{self.path} holds no document that can be read; give a file of CoNLL-2012")

    def _read(self, reader: _Reader | None, rows: Sequence[Record]) -> None:
        if rows and reader is None:
            self.tell(f"{rows[0].place}a sentence outside of {BEGIN!r} and '#end document'; it is left out")
        elif rows and reader is not None:
            reader.read(rows)


class _Reader(DocumentReader):
    """Reads the sentences of one document."""

    def read(self, rows: Sequence[Record]) -> None:
        """Adds a sentence; reports one that cannot be read."""
        try:
            if len(rows) > MOST_WORDS:
                raise UserError(
                    f"{rows[0].place}a sentence of {counted(len(rows), 'word')}, more than {MOST_WORDS:,}; end each "
                    "sentence with an empty line"
                )
            columns = [_columns(record, rows[0]) for record in rows]
            _check_numbers(rows, columns)
            tree = _parse(rows[0], [row[_PARSE] for row in columns])
        except UserError as error:
            self._report(f"{error}; the sentence is left out")
            return
        tags, types = [row[_TAG] for row in columns], _named([row[_NAMED] for row in columns])
        number, start = len(self._starts), len(self._words)
        self._starts.append(start)
        self._words += (row[_WORD] for row in columns)
        for i, (record, row) in enumerate(zip(rows, columns, strict=True)):
            brackets, rest = read_brackets(row[-1])
            for key, opens, closes in brackets:
                if opens:
                    self._brackets.open(Opened(key, record.place, number, i, {}))
                mention = self._brackets.close(key, record.place, number) if closes else None
                if mention is not None:
                    found = _mention(mention.key, range(mention.first, i + 1), columns, tags, types, tree)
                    words = tuple(start + word for word in found.words)
                    self._mentions.append(dataclasses.replace(found, words=words, head=start + found.head))
            if rest.strip("|-_"):
                self._report(f"{record.place}the last column {cut(row[-1])!r} is not brackets of mentions or -; correct it")


def _check_numbers(rows: Sequence[Record], columns: Sequence[Sequence[str]]) -> None:
    """Raises UserError where the numbers of the words begin anew: an empty line between two sentences is missing."""
    last = -1
    for record, row in zip(rows, columns, strict=True):
        number = whole_number(row[_NUMBER])
        if number is not None and number <= last:
            raise UserError(f"{record.place}the word {number} follows {last}; end the sentence before it with an empty line")
        last = last if number is None else number


def _mention(
    entity: str,
    words: Sequence[int],
    columns: Sequence[Sequence[str]],
    tags: Sequence[str],
    types: Sequence[str],
    tree: Phrase | None,
) -> Mention:
    """The mention of these words of a sentence. tags, types: the part of speech and the type of named entity of each word."""
    phrase = None if tree is None else find(tree, words[0], words[-1])
    head = last_noun(words[0], words[-1], tags) if phrase is None else phrase_head(phrase, tags)
    kind = kind_of("_", tags[head])
    traits = traits_of([columns[word][_WORD] for word in words], columns[head][_WORD], kind, (tags[head], "_"), types[head])
    if phrase is not None and is_coordinated(phrase, tags):
        traits = dataclasses.replace(traits, number="plural")
    return Mention(entity, tuple(words), head, kind, traits)


def _split(record: Record) -> list[str]:
    line: str = record.values.get("line", "")
    if "\t" in line:
        return [column.strip() for column in line.split("\t")]
    return [column for column in line.split(" ") if column]


def _columns(record: Record, first: Record) -> list[str]:
    if record.problem:
        raise UserError(f"{record.place}{record.problem}")
    row = _split(record)
    if len(row) < _LEAST:
        raise UserError(
            f"{record.place}{counted(len(row), 'column')}, fewer than the {_LEAST} of CoNLL-2012 without predicates; correct it"
        )
    if len(row) != len(_split(first)):
        raise UserError(f"{record.place}{counted(len(row), 'column')}, other than the first word of the sentence; correct it")
    return row


def _parse(first: Record, bits: Sequence[str]) -> Phrase | None:
    try:
        return read_parse(bits)
    except UserError as error:
        raise UserError(f"{first.place}{error}") from error


def _named(column: Sequence[str]) -> list[str]:
    """The type of the named entity that each word is in; "" for none."""
    found = []
    inside = ""
    for text in column:
        if text.startswith("("):
            inside = text.strip("()*")
        found.append(inside)
        if text.endswith(")"):
            inside = ""
    return found
