"""Texts -> windows of the position table's length, with the questions that are asked in each."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.analysis.coreference.mentions import Question, Text
from bert_jax.analysis.windows import Window, word_windows
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.packing import Item


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a text that the model reads, and what is asked about it. Word i of the text is word i - `first` + 1 of the
    window, [CLS] being word 0; this number is the word's rank."""

    window: Window
    first: int
    candidates: tuple[int, ...]
    questions: tuple[Question, ...]
    outside: tuple[tuple[str, ...], ...] = ()
    """The groups of each mention whose antecedents are not in the window."""

    def item(self, of_pairs: bool = True, order: Sequence[int] | None = None) -> Item:
        """The pieces, with a query at the first piece of each question's word. Its target is the limit of the ranks of its
        candidates, and the column "candidates" holds a candidate's rank at its pieces, else 0.

        order: for each place in the window the word of the text that stands there, from 0; None: as in the text.
        """
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
        """A random order of the window's words, for `item`."""
        return [int(i) for i in rng.permutation(len(self.window.words) - 2)]


def sections(engine: Engine, text: Text, tokens: int) -> Iterator[Section]:
    """The sections of a text, each of at most `tokens` tokens with [CLS] and [SEP].

    Each mention is asked about in one of them, which begins with the text or half a window before; windows begin and end between
    sentences where they can.
    """
    _, _, counts = engine.model.tokenizer.encode_words(text.words)
    room = min(tokens, engine.config.max_position) - 2
    for first, own, last in spans([min(count, room) for count in counts], text.sentences, room):
        questions, outside = text.questions(first, own, last)
        (window, *more) = word_windows(engine, text.words[first:last])
        assert not more
        yield Section(window, first, text.candidates(first, last), tuple(questions), tuple(outside))


def spans(sizes: Sequence[int], sentences: Sequence[int], room: int) -> Iterator[tuple[int, int, int]]:
    """(first, own, last) of windows over words of these sizes, each at most `room`: words [first, last) are read together, and
    [own, last) are new. The words before them are as many sentences as half the room holds.

    sentences: the numbers of the first words of sentences.
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
