"""Labelled examples as the model reads them, and many of them to packed rows.

A batch is the examples of one step, whatever their lengths, laid into as few rows as hold them: they see nothing of each other
(`sequence_ids`), padding is hardly computed, and the examples of a step are those a shuffled epoch gives, not neighbours in
length.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int32, Num

from bert_jax.examples.assemble import Batch
from bert_jax.examples.packing import best_fit

ROW_LENGTHS = (32, 64, 128, 192, 256, 384, 512)
"""Lengths of a packed row; beyond, multiples of 128."""


@dataclasses.dataclass(frozen=True)
class LabelLayout:
    """Which arrays the labels of packed rows are, and where in a row's logits those of a feature lie.

    The defaults are one label int32 and one row of logits for each feature: labels [B, U], logits [B, U, C].
    """

    shape: tuple[int, ...] = ()
    """Of one label: () or, of several numbers, [...]; labels are [B, U, ...]."""
    dtype: type[np.generic] = np.int32
    per_token: bool = False
    """A label for each token, labels [B, L]; a negative one is left out of the loss."""
    are_positions: bool = False
    """Labels are positions of tokens: in a row they count from its beginning."""
    logits_per_token: bool = False
    """Logits are [B, L, C]."""
    logits_per_candidate: bool = False
    """Logits are [B, P, 1], one for each sequence of a feature."""
    read_positions: int = 0
    """How many tokens of a feature the model reads instead of its [CLS]."""


@dataclasses.dataclass(frozen=True)
class Feature:
    """What the model reads at once of one example, and what it is to say.

    One sequence, or for a choice one for each candidate; a question about a long context is several features. `target` is None
    where nobody knows (a test set), else by the `LabelLayout` of the head an array of its shape and dtype:

        one label     int [] the label, or the right candidate; float [] of a regression; float [C] of several labels
        per token     int [n], -1 where a token has no label
        columns       int [2], the first and last token of an answer; (0, 0), the [CLS], where there is none
    """

    example: int
    """Its number among the examples of its split."""
    ids: tuple[Int32[np.ndarray, " _"], ...]
    """With [CLS] and [SEP]s."""
    types: tuple[Int32[np.ndarray, " _"], ...]
    """The token types."""
    target: Num[np.ndarray, " ..."] | None = None
    read_positions: Int32[np.ndarray, " chosen"] | None = None
    """The tokens that the head reads instead of the [CLS], such as the first of a pronoun and of two names."""

    @functools.cached_property
    def size(self) -> int:
        """Tokens of all its sequences."""
        return sum(len(ids) for ids in self.ids)


@dataclasses.dataclass(frozen=True)
class RowShape:
    """The shape that rows of one data set have."""

    layout: LabelLayout
    """Which arrays the labels are."""
    length: int
    """L, tokens of a row."""
    features: int
    """U, the most features in a row."""
    candidates: int = 1
    """Sequences of a feature; a row has P = U x candidates slots."""

    @property
    def slots(self) -> int:
        """P, the most sequences in a row."""
        return self.features * self.candidates


def row_shape(features: Sequence[Feature], layout: LabelLayout) -> RowShape:
    """The shape for packing `features`: the shortest row that holds the longest, and room for twice as many as go into a row on
    the average (more would be slots that are hardly ever used)."""
    longest = max(feature.size for feature in features)
    length = next((length for length in ROW_LENGTHS if length >= longest), -(-longest // 128) * 128)
    mean = sum(feature.size for feature in features) / len(features)
    return RowShape(layout, length, max(1, round(2 * length / mean)), max(len(feature.ids) for feature in features))


def pack_features(features: Sequence[Feature], shape: RowShape) -> list[list[int]]:
    """Rows, each a list of numbers of `features`: best fit, longest first, at most `shape.features` in a row."""
    rows = best_fit([feature.size for feature in features], lambda n: shape.length, lambda length: shape.features)
    return [members for _, members in rows]


def assemble_features(
    features: Sequence[Feature], rows: Sequence[Sequence[int]], count: int, shape: RowShape, pad_id: int
) -> Batch:
    """The batch of `count` rows, of which the first hold the features that `rows` say and the others nothing.

    input_ids, token_type_ids, position_ids, sequence_ids int32 [B, L]; cls_positions int32 [B, P]; read_positions int32 [B, U, n]
    where the layout has them; labels [B, U, ...] or [B, L] and label_weights float32 [B, U] or [B, L], 1 where there is something
    to learn. Slot p of a row has sequence_ids p + 1.
    """
    L, P, layout = shape.length, shape.slots, shape.layout
    names = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
    batch: Batch = {name: np.zeros((count, L), np.int32) for name in names}
    batch["input_ids"][:] = pad_id
    batch["cls_positions"] = np.zeros((count, P), np.int32)
    width = L if layout.per_token else shape.features
    labels: np.ndarray = np.zeros((count, width, *layout.shape), layout.dtype)
    weights = np.zeros((count, width), np.float32)
    if layout.read_positions:
        batch["read_positions"] = np.zeros((count, shape.features, layout.read_positions), np.int32)
    for r, members in enumerate(rows):
        column = 0
        for u, i in enumerate(members):
            feature, start = features[i], column
            for candidate, (ids, types) in enumerate(zip(feature.ids, feature.types, strict=True)):
                slot, end = u * shape.candidates + candidate, column + len(ids)
                batch["input_ids"][r, column:end] = ids
                batch["token_type_ids"][r, column:end] = types
                batch["position_ids"][r, column:end] = np.arange(len(ids))
                batch["sequence_ids"][r, column:end] = slot + 1
                batch["cls_positions"][r, slot] = column
                column = end
            if feature.read_positions is not None:
                batch["read_positions"][r, u] = start + feature.read_positions
            if feature.target is None:
                continue
            if layout.per_token:
                learnt = feature.target >= 0
                labels[r, start:column] = np.where(learnt, feature.target, 0)
                weights[r, start:column] = learnt
            else:
                labels[r, u] = feature.target + (start if layout.are_positions else 0)
                weights[r, u] = 1
    return batch | {"labels": labels, "label_weights": weights}


def feature_logits(
    logits: Float[np.ndarray, "B _ C"], features: Sequence[Feature], rows: Sequence[Sequence[int]], shape: RowShape
) -> list[Float[np.ndarray, " ..."]]:
    """The logits of each of a batch's `features`, in their order.

    `logits` are float32 as the layout says: [B, U, C], [B, L, C] per token, or [B, P, 1] per candidate; those of a feature are
    [C], [tokens, C] or [candidates].
    """
    layout = shape.layout
    found: list[np.ndarray] = [logits[:0]] * len(features)
    for r, members in enumerate(rows):
        column = 0
        for u, i in enumerate(members):
            if layout.logits_per_token:
                found[i] = logits[r, column : column + features[i].size]
            elif layout.logits_per_candidate:
                first = u * shape.candidates
                found[i] = logits[r, first : first + len(features[i].ids), 0]
            else:
                found[i] = logits[r, u]
            column += features[i].size
    return found
