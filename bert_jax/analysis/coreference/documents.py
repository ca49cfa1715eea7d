"""Documents with mentions, the questions about them, and the windows that the model reads."""

from __future__ import annotations

import abc
import bisect
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.analysis.coreference.mentions import KINDS, Mention, guesses, pronoun_groups
from bert_jax.analysis.reading import AnnotatedSource
from bert_jax.analysis.windows import Window, as_window, given_words
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.packing import Item

GROUPS = ("all", *KINDS, "he, she, it, they", "it")
"""The groups of mentions with an antecedent: all mentions, the mentions of each kind, third-person pronouns, and "it"."""
NEITHER = "neither"
"""The group of pronouns that refer to neither of the two names (GAP)."""


@dataclasses.dataclass(frozen=True)
class Question:
    """A mention whose antecedent the heads have to find."""

    head: int
    """The index of the mention's head word in the document."""
    limit: int
    """The candidates are the head words with a smaller index."""
    right: frozenset[int]
    """The candidates that are antecedents. Empty if no candidate is correct."""
    guesses: tuple[int, ...]
    """The candidate that each rule chooses."""
    groups: tuple[str, ...]
    """The groups in which the mention counts."""


@dataclasses.dataclass(frozen=True)
class Text(abc.ABC):
    """The words of a text and the questions about them. This interface is the same for all file formats."""

    name: str
    words: tuple[str, ...]
    sentences: tuple[int, ...]
    """The index of the first word of each sentence."""

    @abc.abstractmethod
    def candidates(self, first: int, last: int) -> tuple[int, ...]:
        """Returns the indices of the candidate words in [first, last), in order."""

    @abc.abstractmethod
    def questions(self, first: int, own: int, last: int) -> tuple[list[Question], list[tuple[str, ...]]]:
        """Returns two lists for the mentions whose head word is in [own, last). If a mention has an antecedent in [first,
        last), the first list has a question about the mention, with the candidates in [first, last). If all antecedents of a
        mention are outside, the second list has the groups of the mention."""


class TextFile(AnnotatedSource):
    """A file of texts."""

    groups: tuple[str, ...]
    """The groups of mentions that are scored separately."""
    rules: tuple[str, ...]
    """The rules with which heads are compared."""
    asks_once = False
    """Whether every text has at most one question."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Text]: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that report what the last iteration left out on purpose."""
        return ()


@dataclasses.dataclass(frozen=True)
class Document(Text):
    """A text in which every mention may be an antecedent of a later mention.

    Mentions are ordered by their head words. An antecedent of a mention is a mention of the same entity with an earlier head
    word.
    """

    mentions: tuple[Mention, ...]
    """Sorted by head word."""

    def candidates(self, first: int, last: int) -> tuple[int, ...]:
        """Returns the head words in [first, last), in order."""
        return tuple(sorted({mention.head for mention in self._between(first, last)}))

    def questions(self, first: int, own: int, last: int) -> tuple[list[Question], list[tuple[str, ...]]]:
        """See `Text.questions`."""
        asked, outside = [], []
        for mention in self._between(own, last):
            if mention.head == self._first_heads[mention.entity]:
                continue  # the first mention of an entity has no antecedent
            before = list(self._between(first, mention.head))[::-1]
            right = frozenset(other.head for other in before if other.entity == mention.entity)
            groups = ("all", mention.kind, *pronoun_groups(self.words[mention.head], mention.kind))
            if right:
                asked.append(Question(mention.head, mention.head, right, guesses(mention, before, self.words), groups))
            else:
                outside.append(groups)
        return asked, outside

    def _between(self, first: int, last: int) -> Sequence[Mention]:
        return self.mentions[bisect.bisect_left(self._heads, first) : bisect.bisect_left(self._heads, last)]

    @functools.cached_property
    def _heads(self) -> list[int]:
        return [mention.head for mention in self.mentions]

    @functools.cached_property
    def _first_heads(self) -> dict[str, int]:
        return {mention.entity: mention.head for mention in reversed(self.mentions)}


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a text that the model reads at once, and the questions about this part. The rank of a word is its index in the
    window. Word i of the text has rank i - `first` + 1, since [CLS] has rank 0."""

    window: Window
    first: int
    candidates: tuple[int, ...]
    questions: tuple[Question, ...]
    outside: tuple[tuple[str, ...], ...] = ()
    """The groups of each mention whose antecedents are not in the window."""

    def item(self, of_pairs: bool = True, order: Sequence[int] | None = None) -> Item:
        """Returns the pieces of the window, with a query for each question at the first piece of the mention's head word. The
        candidates of a query are the candidates with a rank below the target of the query. The column "candidates" has the rank
        of a candidate at each of its pieces, and 0 elsewhere.

        `order` has, for each position in the window, the index (from 0) of the word to put there. None keeps the order of the
        text."""
        words = self.window.words
        own = [0, *((i + 1 for i in order) if order is not None else range(1, len(words) - 1)), len(words) - 1]
        placed = dataclasses.replace(self.window, words=tuple(words[i] for i in own))
        starts = dict(zip(own, itertools.accumulate((len(word.ids) for word in placed.words), initial=0), strict=False))
        ranks = {candidate - self.first + 1 for candidate in self.candidates}
        item = placed.item(of_pairs)
        column = [own[number] if own[number] in ranks else 0 for number in item.columns["words"]]
        return dataclasses.replace(
            item,
            query_positions=tuple(starts[question.head - self.first + 1] for question in self.questions),
            targets=tuple(min(question.limit - self.first + 1, len(words)) for question in self.questions),
            columns={**item.columns, "candidates": column},
        )

    def shuffled(self, rng: np.random.Generator) -> list[int]:
        """Returns a random `order` for `item`."""
        return [int(i) for i in rng.permutation(len(self.window.words) - 2)]


def sections(engine: Engine, text: Text, tokens: int) -> Iterator[Section]:
    """Yields the sections of a text, each of at most `tokens` tokens including [CLS] and [SEP].

    Every word is new in exactly one section, which asks about the mentions with this head word. A section starts at the
    beginning of the text, or at most half a window before its first new word. Sections start and end between sentences if
    possible."""
    room = min(tokens, engine.config.max_position) - 2
    words = given_words(engine.model.tokenizer, text.words, room)
    for first, own, last in spans([len(word.ids) for word in words], text.sentences, room):
        questions, outside = text.questions(first, own, last)
        window = as_window(engine, words[first:last])
        yield Section(window, first, text.candidates(first, last), tuple(questions), tuple(outside))


def spans(sizes: Sequence[int], sentences: Sequence[int], room: int) -> Iterator[tuple[int, int, int]]:
    """Splits words of these sizes into windows of at most `room` tokens. Yields (first, own, last) for each window: words
    [first, last) are read together, and words [own, last) are new. The window starts with as many whole earlier sentences as
    fit into half of the room.

    `sentences` has the index of the first word of each sentence.
    """
    count = len(sizes)
    ends = [0, *itertools.accumulate(sizes)]
    first = own = 0
    while own < count:
        last = own
        while last < count and ends[last + 1] - ends[first] <= room:
            last += 1
        if last < count:
            last = max((start for start in sentences if own < start <= last), default=last)
        yield first, own, last
        own = first = last
        if last < count:
            context = max(0, min(room // 2, room - sizes[last]))
            first = bisect.bisect_left(ends, ends[last] - context)
            first = min((start for start in sentences if first <= start <= last), default=first)
