"""GAP (Webster et al. 2018): a pronoun and two names in a text, one of which or neither it refers to -> texts with one question.

The candidates are the head words of the two names, before the pronoun or after it. The head word of a name is its last word, but
for "Jr." and the like. A pronoun that refers to neither name has no right candidate.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator

from bert_jax.analysis.coreference.mentions import Question, Text, TextFile
from bert_jax.storage.fetching import fetched
from bert_jax.tasks.examples import PronounExample
from bert_jax.tasks.readers.gap import read_gap
from bert_jax.tasks.readers.tables import Say, note

GROUPS = ("all", "masculine", "feminine", "neither")
RULES = ("nearest name", "name before", "first name")
"""The name that is fewer words away; the nearest before the pronoun, else the nearest; the first in the text."""
_WORD = re.compile(r"\w+|[^\w\s]")
_AFTER_NAMES = {"jr", "sr", "ii", "iii", "iv", "."}


@dataclasses.dataclass(frozen=True)
class PronounText(Text):
    """A text with a pronoun and two names."""

    pronoun: int
    """The number of the pronoun among the words."""
    names: tuple[int, int]
    """The numbers of the head words of A and B."""
    label: str | None
    gender: str | None

    def candidates(self, first: int, last: int) -> tuple[int, ...]:
        """The head words of the names in [first, last), in order."""
        return tuple(sorted(name for name in {*self.names} if first <= name < last))

    def questions(self, first: int, own: int, last: int) -> tuple[list[Question], list[tuple[str, ...]]]:
        """The one question, where the pronoun is in [own, last); both names have to be in [first, last)."""
        if not own <= self.pronoun < last or self.label is None:
            return [], []
        groups = ("neither",) if self.label == "neither" else ("all", *((self.gender,) if self.gender else ()))
        found = self.candidates(first, last)
        if len(found) < 2:
            return [], [groups]
        right = frozenset((self.names["AB".index(self.label)],)) if self.label != "neither" else frozenset()
        nearest = min(found, key=lambda name: abs(name - self.pronoun))
        before = [name for name in found if name < self.pronoun]
        return [Question(self.pronoun, len(self.words), right, (nearest, (before or [nearest])[-1], found[0]), groups)], []


class GapFile(TextFile):
    """The texts of a GAP file. Rows that cannot be read are told to `report` and left out.

    Raises UserError for a file that cannot be read, that lacks columns, and at the end where no row can be read.
    """

    groups = GROUPS
    rules = RULES
    asks_once = True

    def __init__(self, path: str | os.PathLike[str], report: Say = lambda problem: note(f"error: {problem}")):
        super().__init__(path, report)
        local = fetched(path, "--input")
        self._examples = read_gap(local, self.tell)
        self.file = local.stat()
        self.count = lambda: len(self._examples) + 1

    def __iter__(self) -> Iterator[PronounText]:
        for i, example in enumerate(self._examples):
            self.line = i + 2
            yield pronoun_text(example)


def pronoun_text(example: PronounExample) -> PronounText:
    """The words of an example, and those of its mentions; a mention that begins within a word is in that word."""
    spans = [match.span() for match in _WORD.finditer(example.text)]

    def inside(start: int, text: str) -> list[int]:
        return [i for i, (begin, end) in enumerate(spans) if end > start and begin < start + len(text)]

    def head(start: int, text: str) -> int:
        own = inside(start, text)
        while len(own) > 1 and example.text[slice(*spans[own[-1]])].lower() in _AFTER_NAMES:
            own.pop()
        return own[-1]

    words = tuple(example.text[begin:end] for begin, end in spans)
    names = head(example.a_start, example.a), head(example.b_start, example.b)
    pronoun = inside(example.pronoun_start, example.pronoun)[0]
    return PronounText(example.id, words, (0,), pronoun, names, example.label, example.gender)
