"""Reads CoNLL-U treebanks (https://universaldependencies.org/format.html), for tagging and for analysis.

A file of CoNLL-U Plus (https://universaldependencies.org/ext-format.html; PARSEME's .cupt) names its columns in a comment,
`# global.columns = ID FORM UPOS ...`, in any order. Columns that CoNLL-U lacks are not read."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

from bert_jax.errors import UserError, nearest, repeated
from bert_jax.interface.ranges import whole_number
from bert_jax.interface.words import counted, cut
from bert_jax.storage.records import read_text, split_lines
from bert_jax.tasks.examples import WordsExample
from bert_jax.tasks.readers.conll import ends_sentence
from bert_jax.tasks.readers.tables import Say, is_invisible, note

MOST_WORDS = 10_000
"""The maximum number of words in a sentence. If a sentence is longer, the empty lines between sentences are probably
missing."""
TAGS = ("upos", "xpos")
"""The columns of parts of speech."""
CONLLU = (".conllu", ".conllup", ".cupt")
"""The suffixes of CoNLL-U files."""
COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
"""The columns of CoNLL-U."""
_GLOBAL_COLUMNS = re.compile(r"#\s*global\.columns\s*=(.*)")
_ID = re.compile(r"[0-9]+([-.][0-9]+)?")
_NEWDOC = re.compile(r"#\s*newdoc\b")


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a file, or the problem if the line cannot be read."""

    place: str
    """The prefix of messages about the line, e.g. "FILE, line 3: "."""
    text: str
    problem: str | None = None


@dataclasses.dataclass(frozen=True)
class Block:
    """The lines of a sentence."""

    number: int
    """The index of the sentence in the file, from 0."""
    document: int
    """The index of the sentence's document, from 0. In a file without `# newdoc`, every sentence is a document."""
    rows: tuple[Line, ...]
    comments: tuple[str, ...]
    """The lines that start with "#", before the words."""
    columns: tuple[str, ...] = COLUMNS
    """The names of the file's columns."""


@dataclasses.dataclass(frozen=True)
class EmptyNode:
    """A node without a word, e.g. the subject that a language leaves out. Its ID is "8.1" if it follows word 8."""

    after: int
    """The number of words before it."""
    misc: str
    place: str
    """The prefix of messages about the node."""


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The syntactic words of a sentence with their annotation, one field per CoNLL-U column. A missing value is "_"."""

    place: str
    """The prefix of messages about the sentence, e.g. "FILE, line 3: "."""
    document: int
    """The index of the sentence's document, from 0. In a file without `# newdoc`, every sentence is a document."""
    words: tuple[str, ...]
    lemmas: tuple[str, ...]
    upos: tuple[str, ...]
    xpos: tuple[str, ...]
    features: tuple[str, ...]
    heads: tuple[int, ...]
    """The index of each word's head, from 0, or -1 for the root. The tuple is empty if the file has no heads."""
    relations: tuple[str, ...]
    misc: tuple[str, ...]
    places: tuple[str, ...] = ()
    """The prefix of messages about each word."""
    comments: tuple[str, ...] = ()
    """The lines that start with "#", before the sentence."""
    empty_nodes: tuple[EmptyNode, ...] = ()


def read_conllu(
    path: str | os.PathLike[str], *, column: str = "upos", may_lack_tags: bool = False, say: Say = note
) -> list[WordsExample]:
    """Returns the sentences of a CoNLL-U file, with the tags in the column `upos` or `xpos`. Only syntactic words are returned,
    not multiword tokens ("1-2") and empty nodes ("8.1"). A comment `# newdoc` starts a document, as -DOCSTART- does in
    `read_conll`.

    may_lack_tags: whether every tag may be "_", as in some test sets. Labels are then None. Raises UserError for an invalid
    file. Heads are not read.
    """
    if column not in TAGS:
        raise UserError(f"column={column!r} is not a column of tags; {nearest(column, TAGS)}")
    path = pathlib.Path(path)
    lines = [Line(f"{path}, line {i}: ", line) for i, line in enumerate(split_lines(read_text(path)), 1)]
    sentences = [read_sentence(block, heads="ignored") for block in read_blocks(lines, say)]
    if not sentences:
        raise UserError(f"{path} has no words; give a CoNLL-U file")
    tags = [getattr(sentence, column) for sentence in sentences]
    if may_lack_tags and all(tag == "_" for own in tags for tag in own):
        return [WordsExample(str(i), sentence.words, None, sentence.document) for i, sentence in enumerate(sentences)]
    for sentence, own in zip(sentences, tags, strict=True):
        if (i := next((i for i, tag in enumerate(own) if tag == "_" or is_invisible(tag)), None)) is not None:
            raise UserError(
                f"{sentence.places[i]}{sentence.words[i]!r} has no {column}; choose the other column, or tag the file first"
            )
    return [WordsExample(str(i), s.words, own, s.document) for i, (s, own) in enumerate(zip(sentences, tags, strict=True))]


def read_blocks(lines: Iterable[Line], say: Say = note) -> Iterator[Block]:
    """Yields the sentences of a file as lines. `say` reports lines of spaces or TABs that end a sentence. Raises UserError if
    `global.columns` lacks the column ID or FORM, or names a column twice."""
    document = number = spaced = 0
    documents = False
    rows: list[Line] = []
    comments: list[str] = []
    first = ""
    columns = COLUMNS
    for line in itertools.chain(lines, (Line("", ""),)):
        if line.text.startswith("#") and not line.problem:
            comments.append(line.text.replace("\t", " "))
            if named := _GLOBAL_COLUMNS.match(line.text):
                columns = tuple(named[1].split())
                wrong = [name for name in ("ID", "FORM") if name not in columns]
                wrong += repeated(columns)
                if wrong:
                    times = counted(columns.count(wrong[0]), "time")
                    raise UserError(f"{line.place}global.columns names {wrong[0]} {times}; name it once")
            if _NEWDOC.match(line.text):
                document, documents = document + documents, True
        elif line.problem or not ends_sentence(line.text):
            rows.append(line)
        else:
            if line.text:
                first, spaced = first or line.place, spaced + 1
            if rows:
                yield Block(number, document, tuple(rows), tuple(comments), columns)
                number, document, rows, comments = number + 1, document + (not documents), [], []
    if spaced:
        say(
            f"{first}the line has only spaces or TABs, so it ends a sentence like an empty line "
            f"({counted(spaced, 'such line')} in the file)"
        )


def read_sentence(block: Block, *, heads: str = "optional") -> Sentence:
    """Returns the sentence in the lines of `block`.

    heads: "ignored", "optional", or "required". Raises UserError if a line is not valid CoNLL-U, if the heads do not form a
    tree (unless heads are ignored), or if the sentence has no heads (if heads are required). The error names the file and the
    line."""
    words: list[tuple[Line, list[str]]] = []
    empty_nodes: list[EmptyNode] = []
    for line in block.rows:
        row = _columns(line, block.columns)
        if row[0].isdecimal():
            if whole_number(row[0]) != len(words) + 1:
                order = f"follows the ID {len(words)}" if words else "is the first ID of the sentence"
                raise UserError(f"{line.place}the ID {cut(row[0], 20)} {order}; {_renumber(row[0])}")
            words.append((line, row))
        elif "." in row[0]:
            empty_nodes.append(EmptyNode(len(words), row[9], line.place))
    place = block.rows[0].place
    if not words:
        raise UserError(f"{place}the sentence has no word; remove its lines")
    if len(words) > MOST_WORDS:
        raise UserError(
            f"{place}the sentence has {counted(len(words), 'word')}, more than {MOST_WORDS:,}; end each sentence with an "
            "empty line"
        )
    columns = [tuple(column) for column in zip(*(row for _, row in words), strict=True)]
    if len(words) > 1 and not any(form.strip("_") for form in columns[1]):
        raise UserError(
            f"{place}all {counted(len(words), 'word')} of the sentence are {columns[1][0]!r}: they were removed for licence "
            "reasons; restore them with the treebank's script"
        )
    found: tuple[int, ...] = ()
    if heads != "ignored" and any(head != "_" for head in columns[6]):
        found = tuple(_head(line, row[6], len(words)) for line, row in words)
        check_tree(place, found)
    elif heads == "required":
        raise UserError(f"{place}the sentence has no heads (column 7 is _); give a treebank, or parse the file first")
    forms, lemmas, upos, xpos, features = columns[1:6]
    return Sentence(
        place, block.document, forms, lemmas, upos, xpos, features, found, columns[7], columns[9],
        tuple(line.place for line, _ in words), block.comments, tuple(empty_nodes),
    )  # fmt: skip


def _columns(line: Line, names: Sequence[str]) -> list[str]:
    """Returns the ten columns of CoNLL-U. A column that the file lacks is "_"."""
    if line.problem:
        raise UserError(f"{line.place}{line.problem}")
    row = line.text.split("\t")
    if len(row) != len(names):
        standard = "CoNLL-U" if names is COLUMNS else "global.columns"
        found = f"the line has {counted(len(row), 'column')} between TABs, not the {counted(len(names), 'column')} of {standard}"
        remedy = "remove the TAB at the end" if not row[-1] and len(row) == len(names) + 1 else "correct the line"
        raise UserError(f"{line.place}{found}; {remedy}")
    if names is not COLUMNS:
        row = [row[names.index(name)] if name in names else "_" for name in COLUMNS]
    if not _ID.fullmatch(row[0]):
        raise UserError(f"{line.place}{cut(row[0], 20)!r} is not an ID of CoNLL-U, such as 1, 1-2 or 8.1; correct the line")
    if not row[1].strip():
        raise UserError(f"{line.place}column 2, the word, is empty; correct the line")
    return [row[0], row[1], *(value.strip() or "_" for value in row[2:])]


def _renumber(number: str) -> str:
    if number == "1":
        return "end the previous sentence with an empty line"
    return "number the words of a sentence from 1"


def _head(line: Line, text: str, count: int) -> int:
    number = whole_number(text, 0, count)
    if number is None or not text.isdecimal():
        shown = cut(text, 20)
        raise UserError(f"{line.place}the head {shown!r} is not a word of the sentence, from 1 to {count}, or 0 for the root")
    return number - 1


def check_tree(place: str, heads: Sequence[int]) -> None:
    """Raises UserError if the heads contain a cycle."""
    # For each word, the index (from 1) of the first word whose path to the root contains it, or 0 if there is none yet.
    reached = [0] * len(heads)
    for word in range(len(heads)):
        at = word
        while at >= 0 and not reached[at]:
            reached[at] = word + 1
            at = heads[at]
        if at >= 0 and reached[at] == word + 1:
            cycle = [at]
            while heads[cycle[-1]] != at:
                cycle.append(heads[cycle[-1]])
            shown = [str(i + 1) for i in (*cycle, at)]
            if len(shown) > 12:
                shown = [*shown[:10], "...", shown[-1]]
            raise UserError(f"{place}the heads of the words {' -> '.join(shown)} are a cycle, not a tree; correct the heads")
