"""Aligns the words of two models with different pieces, so that one compiled function can compare both models word by word.

A window has the same words for both models. The two models may split the words into different numbers of pieces. In a batch,
the window has as many columns as the larger number. Word z of a window is at column z of the window for both models, so
attention and vectors refer to the same words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from bert_jax.analysis.maps import Slots
from bert_jax.analysis.windows import Window, Word, as_window, placed_words
from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig
from bert_jax.model.tokens import Batch
from bert_jax.prediction.engine import Engine
from bert_jax.prediction.packing import Item
from bert_jax.prediction.questions import shortened


@flax.struct.dataclass
class Other:
    """The second of two models."""

    params: Mapping[str, PyTree[jax.Array]]
    config: ModelConfig = flax.struct.field(pytree_node=False)


@dataclasses.dataclass(frozen=True)
class WindowPair:
    """The same words, split into the pieces of each of two models."""

    own: Window
    other: Window

    def item(self, pads: tuple[int, int], masked: Sequence[int] = (), masks: tuple[int, int] | None = None) -> Item:
        """Returns one item for both models, with the columns that `own_batch` and `other_batch` read. The pieces of both models
        are padded with `pads` to the same length.

        The words `masked`, which are one piece in both models, are replaced by `masks`. The query positions are the positions
        of these words in the first model. At these positions, the columns "target" and "other_target" hold the pieces of the
        words, and "other_position" holds the position of the words in the second model."""
        sides = zip((self.own, self.other), masks or pads, strict=True)
        first, second = (self._row(window, masked, mask) for window, mask in sides)
        length = max(len(first["ids"]), len(second["ids"]))

        def filled(values: Sequence[int], pad: int = 0) -> list[int]:
            return [*values, *[pad] * (length - len(values))]

        columns = {"other_ids": filled(second["ids"], pads[1])}
        for name in ("words", "kinds", "real"):
            columns |= {name: filled(first[name]), f"other_{name}": filled(second[name])}
        at, there = ([row["words"].index(number) for number in masked] for row in (first, second))
        targets = {"target": self.own, "other_target": self.other}
        for name in ("masked", *targets, "other_position"):
            columns[name] = [0] * length
        for number, here, other in zip(masked, at, there, strict=True):
            columns["masked"][here], columns["other_position"][here] = 1, other
            for name, window in targets.items():
                columns[name][here] = window.words[number].ids[0]
        return Item(filled(first["ids"], pads[0]), query_positions=tuple(at), columns=columns)

    @staticmethod
    def _row(window: Window, masked: Sequence[int], mask: int) -> dict[str, list[int]]:
        item, hidden = window.item(), set(masked)
        numbers = item.columns["words"]
        ids = [mask if number in hidden else i for number, i in zip(numbers, item.ids, strict=True)]
        return {"ids": ids, "words": [*numbers], "kinds": [*item.columns["kinds"]], "real": [1] * len(ids)}


def with_column(item: Item, name: str, value: int) -> Item:
    """Returns the item with an additional column that has the same value for all tokens."""
    return dataclasses.replace(item, columns={**item.columns, name: [value] * len(item.ids)})


def own_batch(batch: Batch) -> dict[str, Any]:
    """Returns the batch of the first model."""
    return {**batch, "sequence_ids": batch["sequence_ids"] * batch["real"]}


def other_batch(batch: Batch) -> dict[str, Any]:
    """Returns the batch of the second model. It has the same windows at the same columns, with the pieces of the second
    model."""
    return {
        "input_ids": batch["other_ids"],
        "token_type_ids": jnp.zeros_like(batch["other_ids"]),
        "position_ids": batch["position_ids"],
        "sequence_ids": batch["sequence_ids"] * batch["other_real"],
        "words": batch["other_words"],
        "kinds": batch["other_kinds"],
    }


def aligned_slots(batch: Batch) -> Slots:
    """Returns slots like `maps.word_slots`, except that word z of a window is always at column z of the window."""
    sequences, words = batch["sequence_ids"], batch["words"]
    columns = jnp.arange(sequences.shape[1], dtype=jnp.int32)[None]
    own = columns - batch["position_ids"] + words
    members = (own[:, :, None] == columns[:, None, :]) & (sequences > 0)[:, :, None]

    def in_words(values: Int[Array, "B L"]) -> Int[Array, "B Z"]:
        return jnp.where(members, values[:, :, None], 0).max(1)

    return Slots(
        members=members.astype(jnp.float32), sequence=in_words(sequences), number=in_words(words), kind=in_words(batch["kinds"])
    )


def paired_windows(engine: Engine, other: Engine, text: str) -> Iterator[WindowPair]:
    """Splits a text of any length into windows. Both models have the same words in a window, each with its own pieces. Each
    window is short enough for both position tables.

    A word is the shortest part of the text that consists of whole words of both models. If a word is longer than a position
    table, only its first pieces are read. Raises UserError if the text has no tokens."""
    engines = (engine, other)
    room = min(each.config.max_position for each in engines) - 2
    both = _common_words(engines, text, room)
    if not both:
        raise UserError(f"{shortened(text)} has no tokens; give text")
    waiting: list[tuple[Word, ...]] = []
    sizes = [0, 0]
    for pair in both:
        grown = [size + len(word.ids) for size, word in zip(sizes, pair, strict=True)]
        if max(grown) > room:
            yield _pair(engines, waiting)
            waiting, grown = [], [len(word.ids) for word in pair]
        waiting.append(pair)
        sizes = grown
    yield _pair(engines, waiting)


def _common_words(engines: Sequence[Engine], text: str, room: int) -> list[tuple[Word, ...]]:
    """Returns each word of a text with the pieces that it has in each model, at most `room`. A word without pieces becomes the
    unknown token."""
    tokenizers = [engine.model.tokenizer for engine in engines]
    own = [(start, side, word) for side, each in enumerate(tokenizers) for start, word in placed_words(each, text)]
    groups: list[list[tuple[int, int, Word]]] = []
    end = 0
    for start, side, word in sorted(own, key=lambda each: each[:2]):
        if start >= end:
            groups.append([])
        groups[-1].append((start, side, word))
        end = max(end, start + len(word.text))
    words = []
    for group in groups:
        end = max(start + len(word.text) for start, _, word in group)
        kind = min(word.kind for _, _, word in group)  # PUNCTUATION if all are punctuation marks
        ids = [[i for _, of, word in group if of == side for i in word.ids] for side in range(len(engines))]
        pieces = [tuple(found or [each.unk_id])[:room] for found, each in zip(ids, tokenizers, strict=True)]
        words.append(tuple(Word(text[group[0][0] : end], found, kind) for found in pieces))
    return words


def _pair(engines: Sequence[Engine], words: Sequence[tuple[Word, ...]]) -> WindowPair:
    own, other = (as_window(engine, side) for engine, side in zip(engines, zip(*words, strict=True), strict=True))
    return WindowPair(own, other)
