"""Documents in which every mention may be an antecedent of a later one."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Sequence

from bert_jax.analysis.coreference.grammar import pronoun_groups
from bert_jax.analysis.coreference.mentions import KINDS, Mention, Question, Text
from bert_jax.analysis.coreference.rules import guesses

GROUPS = ("all", *KINDS, "he, she, it, they", "it")
"""All mentions with an antecedent, those of each kind, and of the pronouns those of the third person and "it" alone."""


@dataclasses.dataclass(frozen=True)
class Document(Text):
    """The words and mentions of a text in which every mention may be an antecedent of a later one.

    A mention stands where its head word stands: an antecedent is a mention of the same entity whose head word stands before.
    """

    mentions: tuple[Mention, ...]
    """In the order of their head words."""

    def candidates(self, first: int, last: int) -> tuple[int, ...]:
        """The head words in [first, last), in order."""
        return tuple(sorted({mention.head for mention in self._between(first, last)}))

    def questions(self, first: int, own: int, last: int) -> tuple[list[Question], list[tuple[str, ...]]]:
        """See `Text.questions`."""
        asked, outside = [], []
        for mention in self._between(own, last):
            if mention.head == self._first_heads[mention.entity]:
                continue  # the first mention of its entity
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
