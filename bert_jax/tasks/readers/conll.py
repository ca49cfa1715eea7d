"""Words and their tags in the formats CoNLL and CoNLL-U."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Sequence

from bert_jax.errors import UserError, nearest
from bert_jax.interface.words import counted
from bert_jax.tasks.examples import WordsExample
from bert_jax.tasks.readers.tables import Place, read_text, split_lines

_SEVERAL_TAGS = re.compile(r"[BI]-[^,]+(,[BI]-[^,]+)+")
_CONLLU_ID = re.compile(r"[0-9]+([-.][0-9]+)?")
_CONLLU_COLUMNS = {"upos": 3, "xpos": 4}


def read_conll(path: str | os.PathLike[str], *, word: int = 0, tag: int | None = -1) -> list[WordsExample]:
    """The sentences of a CoNLL file: a word on each line, columns separated by TABs or else spaces, a blank line after a
    sentence.

    word, tag: the numbers of the columns, from 0, or from the last with -1; tag=None for a file without labels. Tags are returned
    unchanged. A line -DOCSTART- begins a document; in a file without such lines every sentence is a document. A line that begins
    with "#" is a comment if it is before a sentence and its number of columns differs from that of words, since "#" is also a
    word. Raises UserError for an invalid file.
    """
    path = pathlib.Path(path)
    lines = [(Place(path, i), line) for i, line in enumerate(split_lines(read_text(path)), 1)]
    width, columns = _conll_columns([line for _, line in lines])
    for name, column in {"word": word, "tag": tag}.items():
        if column is not None and not -width <= column < width:
            raise UserError(
                f"{path} has {counted(width, 'column')}, none of them {name}={column}; give one from {-width} to {width - 1}"
            )
    document, has_documents = 0, any(line.startswith("-DOCSTART-") for _, line in lines)
    sentences: list[WordsExample] = []
    held: list[tuple[str, str]] = []

    def close() -> None:
        if held:
            labels = tuple(label for _, label in held) if tag is not None else None
            at = document if has_documents else len(sentences)
            sentences.append(WordsExample(str(len(sentences)), tuple(text for text, _ in held), labels, at))
            held.clear()

    for place, line in lines:
        if not line.strip():
            close()
        elif line.startswith("-DOCSTART-"):
            close()
            document += 1
        elif not (line.startswith("#") and not held and len(columns(line)) != width):
            held.append(_tagged_word(place, columns(line), width, word, tag))
    close()
    if not sentences:
        raise UserError(f"{path} holds no words; give a file with a word and its tag on each line")
    return sentences


def conll_width(path: str | os.PathLike[str]) -> int:
    """The number of columns of a CoNLL file."""
    return _conll_columns(split_lines(read_text(pathlib.Path(path))))[0]


def _conll_columns(lines: Sequence[str]) -> tuple[int, Callable[[str], list[str]]]:
    """The number of columns of the first word, and a function that splits a line into columns."""
    words = [line for line in lines if line.strip() and not line.startswith("-DOCSTART-")]
    has_tabs = any("\t" in line for line in words)

    def columns(line: str) -> list[str]:
        return line.split("\t") if has_tabs else re.split(" +", line.strip(" "))

    return len(columns(next((line for line in words if not line.startswith("#")), (words or [""])[0]))), columns


def _tagged_word(place: Place, row: list[str], width: int, word: int, tag: int | None) -> tuple[str, str]:
    if len(row) != width:
        raise place.error(f"{counted(len(row), 'column')} where other lines have {width}; correct the line")
    label = row[tag] if tag is not None else ""
    if not row[word].strip() or (tag is not None and not label.strip()):
        raise place.error(f"the {'tag' if row[word].strip() else 'word'} is empty; correct the line")
    if _SEVERAL_TAGS.fullmatch(label):
        raise place.error(
            f"{label} are several tags; give a file with one tag per word (for WNUT-17's test set, the .annotated one)"
        )
    return row[word], label


def read_conllu(path: str | os.PathLike[str], *, column: str = "upos", may_lack_tags: bool = False) -> list[WordsExample]:
    """The sentences of a CoNLL-U file with the tags in its column `upos` or `xpos`: the syntactic words, without multiword tokens
    ("1-2") and empty nodes ("8.1"). A comment `# newdoc` begins a document, as -DOCSTART- does in `read_conll`.

    may_lack_tags: if every tag is "_", as in some test sets, labels are None instead of an error. Raises UserError for an invalid
    file.
    """
    if column not in _CONLLU_COLUMNS:
        raise UserError(f"column={column!r} holds no tags; {nearest(column, _CONLLU_COLUMNS)}")
    path = pathlib.Path(path)
    lines = split_lines(read_text(path))
    has_documents = any(_is_newdoc(line) for line in lines)
    document = 0
    sentences: list[WordsExample] = []
    held: list[tuple[str, str]] = []
    untagged: list[UserError] = []
    for i, line in enumerate([*lines, ""], 1):
        if _is_newdoc(line):
            document += 1
        elif not line.strip() and held:
            words, labels = zip(*held, strict=True)
            at = document if has_documents else len(sentences)
            sentences.append(WordsExample(str(len(sentences)), words, labels, at))
            held = []
        elif line.strip() and not line.startswith("#"):
            row, place = line.split("\t"), Place(path, i)
            if len(row) != 10:
                raise place.error(f"{counted(len(row), 'column')} between TABs, not the 10 of CoNLL-U; correct the line")
            if not _CONLLU_ID.fullmatch(row[0]):
                raise place.error(f"the ID {row[0]!r} is not one of CoNLL-U, such as 1, 1-2 or 8.1; correct the line")
            if row[0].isdigit():
                tag = row[_CONLLU_COLUMNS[column]]
                if not row[1].strip() or not tag.strip():
                    raise place.error(f"the {'tag' if row[1].strip() else 'word'} is empty; correct the line")
                if tag == "_":
                    untagged.append(place.error(f"{row[1]!r} has no {column}; give the other column, or tag the file first"))
                held.append((row[1], tag))
    if not sentences:
        raise UserError(f"{path} holds no words; give a CoNLL-U file")
    if untagged and may_lack_tags and len(untagged) == sum(len(sentence.words) for sentence in sentences):
        return [dataclasses.replace(sentence, labels=None) for sentence in sentences]
    if untagged:
        raise untagged[0]
    return sentences


def _is_newdoc(line: str) -> bool:
    return re.match(r"#\s*newdoc\b", line) is not None
