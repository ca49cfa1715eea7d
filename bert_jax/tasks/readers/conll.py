"""Reads the CoNLL format, which has one word per line, with the word and its tags in columns."""

from __future__ import annotations

import os
import pathlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.storage.records import Location, read_text, split_lines
from bert_jax.tasks.entity_scores import is_tag
from bert_jax.tasks.examples import WordsExample
from bert_jax.tasks.readers.tables import Say, is_invisible, note

COLUMN_FILES = (".conll", ".iob", ".iob2", ".bio", ".bioes", ".bilou", ".bmes")
"""Suffixes of files with a word and its tag on each line."""
_SEVERAL_TAGS = re.compile(r"[BI]-[^,]+(,[BI]-[^,]+)+")
_LONG = 1_000
"""If a sentence has more words than this, the empty lines between several sentences are probably missing."""
_DOCUMENT = "-DOCSTART-"
_NEW_SENTENCE = re.compile(r"#\s+id\s+\S")
"""The line that starts every sentence of MultiCoNER, e.g. "# id UUID domain=train"."""


def read_conll(
    path: str | os.PathLike[str], *, word: int = 0, tag: int | None = -1, document: int | None = None, say: Say = note
) -> list[WordsExample]:
    """Returns the sentences of a CoNLL file. The file has one word per line, columns separated by TABs or by spaces, and an
    empty line after each sentence.

    word, tag: the indices of the columns, from 0. -1 is the last column. `tag` is None if the file has no labels. Tags are
    returned unchanged. document: the index of the column with the name of the document, or None. If it is None, a line
    -DOCSTART- starts a document. In a file without such lines, every sentence is a document. A "#" at the start of a line may
    start a comment or be a word, which `_Columns` decides. Only the lines with words decide whether columns are separated by
    TABs. `say` reports comments that look like words, and lines of spaces or TABs that end a sentence. Raises UserError for an
    invalid file."""
    path = pathlib.Path(path)
    lines = split_lines(read_text(path))
    columns = _Columns.of(path, lines, word, tag, document)
    columns.report(path, say)
    marks, has_marks = 0, any(begins_document(line) for line in lines)
    names: dict[str, int] = {}
    name = ""
    sentences: list[WordsExample] = []
    held: list[tuple[str, str]] = []

    def close() -> None:
        if held:
            labels = tuple(label for _, label in held) if tag is not None else None
            at = marks if has_marks else len(sentences)
            at = at if document is None else names.setdefault(name, len(names))
            sentences.append(WordsExample(str(len(sentences)), tuple(text for text, _ in held), labels, at))
            held.clear()

    for i, line in enumerate(lines):
        if ends_sentence(line) or begins_document(line) or _NEW_SENTENCE.match(line):
            close()
            marks += begins_document(line)
        elif i not in columns.comments:
            tagged = _tagged_word(Location(path, i + 1), line, columns, word, tag)
            if document is not None and (its_name := columns.split(line)[document]) != name:
                close()
                name = its_name
            held.append(tagged)
    close()
    if not sentences:
        raise UserError(f"{path} has no words; give a file that has a word and its tag on each line")
    longest = max(len(sentence.words) for sentence in sentences)
    if longest > _LONG:
        say(f"WARNING: {path} has a sentence with {counted(longest, 'word')}; end each sentence with an empty line")
    return sentences


def column_instead_of_words(sentences: Sequence[WordsExample], width: int) -> tuple[str, Sequence[str]] | None:
    """Returns what stands where the words of `sentences` should be, and usual names of the columns of such a file. Returns None
    if they may be words. `width` is the number of columns. In CoNLL-U, multiword tokens have numbers such as 1-2, and empty
    nodes have numbers such as 8.1."""
    lengths = [len(example.words) for example in sentences]
    if max(lengths) < 2:
        return None
    numbers = [tuple(map(str, range(first, first + max(lengths)))) for first in (0, 1)]
    plain = [tuple(word for word in example.words if not re.fullmatch("[0-9]+[-.][0-9]+", word)) for example in sentences]
    if any(plain) and any(all(words == some[: len(words)] for words in plain) for some in numbers):
        return "the first column has word numbers, not words", ("n", "words", "labels")
    if width > 2 and all(len(set(example.words)) == 1 for example in sentences):
        same = f"it is {sentences[0].words[0]!r} in every line of a sentence"
        return f"the first column does not have words, because {same}", ("document", "part", "n", "words", "labels")
    return None


def conll_width(path: str | os.PathLike[str]) -> int:
    """Returns the number of columns of a CoNLL file."""
    path = pathlib.Path(path)
    return _Columns.of(path, split_lines(read_text(path))).width


def first_with_tag(path: str | os.PathLike[str], tag: str) -> int | None:
    """Returns the line number (from 1) of the first word with this tag in the last column, or None."""
    path = pathlib.Path(path)
    lines = split_lines(read_text(path))
    columns = _Columns.of(path, lines)
    return next((i + 1 for i, line in enumerate(lines) if i not in columns.comments and columns.split(line)[-1] == tag), None)


def begins_document(line: str) -> bool:
    """Returns whether a line begins a document, i.e. starts with -DOCSTART-. Small letters are accepted, since some files are
    lower-cased."""
    return line[: len(_DOCUMENT)].upper() == _DOCUMENT


def ends_sentence(line: str) -> bool:
    """Returns whether a line ends a sentence. Such a line is empty, or has only spaces and TABs (as in WNUT-17). Other white
    space, such as U+00A0, may be a word."""
    return not line.strip(" \t")


@dataclass(frozen=True)
class _Columns:
    """Knows how the lines of a file are divided into columns, and which lines are comments.

    A line that starts with "#" can be a comment only before the first word of a sentence. There, the line is a comment if it
    has more or fewer columns than the lines of words. If it has the same number of columns, and the first column is "#", it may
    be the word "#". The line is a word if the value in every other column fits. A value fits if it is "#", if some word has the
    same value in this column, or if it is an entity tag and all words have entity tags in this column. Otherwise, the line is a
    comment, such as "# sentence 7". If the file has only one such line, the line is a word unless all words have entity tags
    and the line has no entity tag. A line "# id ..." is always a comment, and starts a sentence."""

    width: int
    has_tabs: bool
    comments: frozenset[int]
    """The indices of the lines that are comments."""
    alike: tuple[int, ...]
    """The indices of the comments that have as many columns as a word."""
    spaced: tuple[int, ...]
    """The indices of the lines that hold only spaces or TABs."""

    @classmethod
    def of(
        cls, path: pathlib.Path, lines: Sequence[str], word: int = 0, tag: int | None = -1, document: int | None = None
    ) -> _Columns:
        """Returns the columns of a file with these lines. Raises UserError if the column `word`, `tag` or `document` does not
        exist, or if a line of white space is neither an empty line nor a word."""
        words, openings, marks = _kinds(path, lines)
        sure = words or openings
        has_tabs = 2 * sum("\t" in lines[i] for i in sure) >= max(1, len(sure))
        rows = {i: _split(lines[i], has_tabs) for i in (*words, *openings)}
        width = Counter(len(rows[i]) for i in sure).most_common(1)[0][0] if sure else 2
        for name, column in {"word": word, "tag": tag, "document": document}.items():
            if column is not None and not -width <= column < width:
                raise UserError(
                    f"{path} has {counted(width, 'column')}, but no column {name}={column}; give an index from {-width} to "
                    f"{width - 1}"
                )
        whole = [rows[i] for i in words if len(rows[i]) == width]
        begun = {i: rows[i] for i in openings if len(rows[i]) == width and rows[i][0].split(" ")[0] == "#"}
        alike = _comments_alike(whole, begun, word % width, None if tag is None else tag % width)
        comments = {*marks, *alike, *(i for i in openings if len(rows[i]) != width)}
        spaced = tuple(i for i, line in enumerate(lines) if line and ends_sentence(line))
        return cls(width, has_tabs, frozenset(comments), tuple(sorted(alike)), spaced)

    def split(self, line: str) -> list[str]:
        """Returns the columns of a line."""
        return _split(line, self.has_tabs)

    def report(self, path: pathlib.Path, say: Say) -> None:
        """Reports comments that look like words, and lines of spaces or TABs."""
        if self.alike:
            say(
                f"{path}, line {self.alike[0] + 1}: the line is read as a comment, although it has as many columns as the "
                f"lines of words ({counted(len(self.alike), 'such line')} in the file)"
            )
        if self.spaced:
            say(
                f"{path}, line {self.spaced[0] + 1}: the line has only spaces or TABs, so it ends a sentence like an empty "
                f"line ({counted(len(self.spaced), 'such line')} in the file)"
            )


def _split(line: str, has_tabs: bool) -> list[str]:
    return [cell.strip() for cell in (line.split("\t") if has_tabs else re.split(" +", line.strip(" ")))]


def _kinds(path: pathlib.Path, lines: Sequence[str]) -> tuple[list[int], list[int], list[int]]:
    """Returns three lists of line indices. The first has the lines that are words. The second has the lines that begin with
    "#", before the first word of a sentence. The third has the lines that start a sentence of MultiCoNER."""
    words: list[int] = []
    openings: list[int] = []
    marks: list[int] = []
    inside = False
    for i, line in enumerate(lines):
        if ends_sentence(line) or begins_document(line):
            inside = False
        elif not line.strip():
            raise Location(path, i + 1).error(
                f"the line has only white space ({_code_points(line)}), so it is neither a word nor an empty line that ends a "
                "sentence; correct the line"
            )
        elif _NEW_SENTENCE.match(line):
            marks.append(i)
            inside = False
        elif line.startswith("#") and not inside:
            openings.append(i)
        else:
            words.append(i)
            inside = True
    return words, openings, marks


def _comments_alike(words: Sequence[list[str]], begun: Mapping[int, list[str]], word: int, tag: int | None) -> set[int]:
    """Returns the indices of the comments in `begun`. All lines in `begun` start with "#" and have as many columns as
    `words`."""
    if word:  # the word "#" would not be in the first column
        return set(begun)
    others = range(1, len(words[0])) if words else ()
    held = {column: {row[column] for row in words} for column in others}
    of_tags = {column: all(map(is_tag, values)) for column, values in held.items()}
    alone = {i: row for i, row in begun.items() if row[0] == "#"}

    def fits(column: int, value: str) -> bool:
        return value == "#" or value in held[column] or (of_tags[column] and is_tag(value))

    found = {i for i, row in alone.items() if all(fits(column, row[column]) for column in others)}
    if len(alone) == 1:
        found |= {i for i, row in alone.items() if not tag or not of_tags.get(tag) or fits(tag, row[tag])}
    return begun.keys() - found


def _code_points(text: str) -> str:
    return ", ".join(f"U+{ord(letter):04X}" for letter in sorted(set(text)))


def _tagged_word(location: Location, line: str, columns: _Columns, word: int, tag: int | None) -> tuple[str, str]:
    row = columns.split(line)
    remedy = "correct the line"
    if line.endswith("\t"):
        remedy = "the line ends with a TAB; remove it from all lines (sed -E 's/[[:space:]]+$//')"
    if len(row) != columns.width:
        if line.startswith("#"):
            remedy += ", or put the comment before the first word of a sentence"
        raise location.error(f"the line has {counted(len(row), 'column')}, but other lines have {columns.width}; {remedy}")
    label = row[tag] if tag is not None else ""
    if not row[word].strip() or (tag is not None and is_invisible(label)):
        what = f"has only invisible characters ({_code_points(label)})" if label.strip() and row[word].strip() else "is empty"
        raise location.error(f"the {'tag' if row[word].strip() else 'word'} {what}; {remedy}")
    if _SEVERAL_TAGS.fullmatch(label):
        raise location.error(
            f"{label} has several tags; give a file with one tag per word (for the test set of WNUT-17, give the .annotated file)"
        )
    return row[word], label
