"""The brackets that open and close mentions between the words of a document, and the document that they belong to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from bert_jax.analysis.coreference.documents import Document
from bert_jax.analysis.coreference.mentions import Mention
from bert_jax.tasks.readers.tables import Say


@dataclasses.dataclass(frozen=True)
class Opened:
    """A bracket that was opened."""

    key: str
    place: str
    sentence: int
    first: int
    fields: Mapping[str, str]
    """The further fields of the bracket, by name."""


class Brackets:
    """Matches the brackets of mentions in the words of one document; brackets may be nested and may overlap."""

    def __init__(self, report: Say):
        self._report = report
        self._open: list[Opened] = []

    def open(self, opened: Opened) -> None:
        """Opens a mention."""
        self._open.append(opened)

    def close(self, key: str, place: str, sentence: int) -> Opened | None:
        """The mention that was opened last under this key. None, and a report, where there is none in the same sentence."""
        opened = next((opened for opened in reversed(self._open) if opened.key == key), None)
        if opened is None:
            self._report(f"{place}{key}) closes a mention that is not open; it is left out")
            return None
        self._open.remove(opened)
        if opened.sentence != sentence:
            self._report(f"{opened.place}the mention ({key} ends in another sentence ({place.rstrip(': ')}); it is left out")
            return None
        return opened

    def end(self) -> None:
        """The end of the document: reports the mentions that are open."""
        for opened in self._open:
            self._report(f"{opened.place}the mention ({opened.key} is never closed; it is left out")
        self._open = []


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
