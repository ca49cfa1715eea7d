"""The brackets that open and close mentions between the words of a document, and the document that they belong to."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import NamedTuple

from bert_jax.analysis.coreference.documents import Document
from bert_jax.analysis.coreference.mentions import Mention
from bert_jax.interface.words import cut
from bert_jax.tasks.readers.tables import Say

_PARTS = re.compile(r"[()|]|[^()|]+")
_SIGNS = ("(", ")", "|", "")

@dataclasses.dataclass(frozen=True)
class Opened:
    """A bracket that was opened."""

    key: str
    place: str
    sentence: int
    first: int
    fields: Mapping[str, str]
    """The further fields of the bracket, by name."""
    number: int = 0
    """Of the brackets of the document, in the order in which they were opened."""


class Bracket(NamedTuple):
    """A bracket of a word, which opens or closes the mention of this key: "(key", "key)", or both."""

    key: str
    opens: bool
    closes: bool


def read_brackets(text: str) -> tuple[list[Bracket], str]:
    """The brackets in the field of a word, in order, and what else the field holds. Takes time in proportion to the length."""
    found: list[Bracket] = []
    rest = []
    parts = [*_PARTS.findall(text), "", ""]
    i = 0
    while i < len(parts) - 2:
        if parts[i] == "(" and parts[i + 1] not in _SIGNS:
            closes = parts[i + 2] == ")"
            found.append(Bracket(parts[i + 1], True, closes))
            i += 2 + closes
        elif parts[i] not in _SIGNS and parts[i + 1] == ")":
            found.append(Bracket(parts[i], False, True))
            i += 2
        else:
            rest.append(parts[i])
            i += 1
    return found, "".join(rest)


class Brackets:
    """Matches the brackets of mentions in the words of one document; brackets may be nested and may overlap."""

    def __init__(self, report: Say):
        self._report = report
        self._open: dict[str, list[Opened]] = {}
        self._count = 0

    def open(self, opened: Opened) -> None:
        """Opens a mention."""
        self._open.setdefault(opened.key, []).append(dataclasses.replace(opened, number=self._count))
        self._count += 1

    def close(self, key: str, place: str, sentence: int) -> Opened | None:
        """The mention that was opened last under this key. None, and a report, where there is none in the same sentence."""
        if not self._open.get(key):
            self._report(f"{place}{cut(key)}) closes a mention that is not open; it is left out")
            return None
        opened = self._open[key].pop()
        if opened.sentence != sentence:
            self._report(f"{opened.place}the mention ({cut(key)} ends in another sentence ({place.rstrip(': ')}); it is left out")
            return None
        return opened

    def end(self) -> None:
        """The end of the document: reports the mentions that are open."""
        for opened in sorted(itertools.chain(*self._open.values()), key=lambda opened: opened.number):
            self._report(f"{opened.place}the mention ({cut(opened.key)} is never closed; it is left out")
        self._open = {}


class DocumentReader:
    """The words, sentences and mentions of one document that were read so far; a format adds a sentence in its method `read`."""

    def __init__(self, name: str, report: Say):
        self._name, self._report = name, report
        self._words: list[str] = []
        self._starts: list[int] = []
        self._mentions: list[Mention] = []
        self._brackets = Brackets(report)

    def document(self) -> Document:
        """The document, at its end."""
        self._brackets.end()
        mentions = sorted(self._mentions, key=lambda mention: (mention.head, mention.words[0], -mention.words[-1]))
        return Document(self._name, tuple(self._words), tuple(self._starts), tuple(mentions))
