"""Features, the tokenised form of labelled examples, and their packing into rows.

A batch contains the examples of a step, of any lengths, packed into few rows. Attention is limited to each sequence
(`sequence_ids`), and hardly any padding is computed, although the examples of a step are a random sample and not sorted by
length.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int32, Num

from bert_jax.data.assemble import Batch
from bert_jax.data.packing import best_fit

ROW_LENGTHS = (32, 64, 128, 192, 256, 384, 512)
"""The lengths of packed rows; longer rows are multiples of 128."""


@dataclasses.dataclass(frozen=True)
class LabelLayout:
    """The label arrays of packed rows, and the axes of their logits.

    The defaults are an int32 label and a vector of logits for each feature: labels [B, U], logits [B, U, C].
    """

    shape: tuple[int, ...] = ()
    """The shape of a label; labels are [B, U, *shape]."""
    dtype: type[np.generic] = np.int32
    per_token: bool = False
    """Each token has a label: labels are [B, L]. Negative targets do not count in the loss."""
    are_positions: bool = False
    """Labels are positions of tokens: in a feature from its first token, in a packed row from the first token of the row."""
    logits_per_token: bool = False
    """Logits are [B, L, C]."""
    logits_per_candidate: bool = False
    """Logits are [B, P, 1], one for each sequence of a feature."""
    read_positions: int = 0
    """The number of tokens of a feature that the head reads instead of its [CLS]; 0: the [CLS]."""


@dataclasses.dataclass(frozen=True)
class Feature:
    """An input of the model and its target: one sequence, or for a choice a sequence for each candidate.

    An example is one feature, or several for a question about a long context. `target` is None if unknown (a test set), otherwise
    an array with the shape and dtype of the head's `LabelLayout`:

        default        int [] the label, or the number of the right candidate; float [] of a regression; float [C] of multi-label
        per_token      int [tokens], -1 for tokens without a label
        are_positions  int [2], the first and the last token of an answer; (0, 0), the [CLS], without an answer
    """

    example: int
    """The number of the example in its split."""
    ids: tuple[Int32[np.ndarray, " _"], ...]
    """The token ids of each sequence, with [CLS] and [SEP]."""
    types: tuple[Int32[np.ndarray, " _"], ...]
    """The token types of each sequence."""
    target: Num[np.ndarray, " ..."] | None = None
    read_positions: Int32[np.ndarray, " chosen"] | None = None
    """The positions that the head reads instead of the [CLS], such as the first tokens of a pronoun and of two names; of a layout
    per token the first pieces of the words that are labelled, whether or not their labels are known."""

    @functools.cached_property
    def size(self) -> int:
        """The number of tokens of all sequences."""
        return sum(len(ids) for ids in self.ids)


@dataclasses.dataclass(frozen=True)
class RowShape:
    """The shape of the packed rows of a data set."""

    layout: LabelLayout
    """The label arrays."""
    length: int
    """L, the length of a row in tokens."""
    features: int
    """U, the maximum number of features in a row."""
    candidates: int = 1
    """The maximum number of sequences of a feature; a row has P = U x candidates slots."""

    @property
    def slots(self) -> int:
        """P, the maximum number of sequences in a row."""
        return self.features * self.candidates


def row_shape(features: Sequence[Feature], layout: LabelLayout) -> RowShape:
    """The shape of rows for `features`: the shortest row into which the longest feature fits, with slots for twice the average
    number of features in a row (more slots would hardly ever be used)."""
    longest = max(feature.size for feature in features)
    length = next((length for length in ROW_LENGTHS if length >= longest), -(-longest // 128) * 128)
    mean = sum(feature.size for feature in features) / len(features)
    return RowShape(layout, length, round(2 * length / mean), max(len(feature.ids) for feature in features))


def pack_features(features: Sequence[Feature], shape: RowShape) -> list[list[int]]:
    """Rows as lists of indices of `features`, by best-fit decreasing, with at most `shape.features` in a row."""
    return pack_sizes([feature.size for feature in features], shape)


def pack_sizes(sizes: Sequence[int], shape: RowShape) -> list[list[int]]:
    """`pack_features` for features with these numbers of tokens."""
    rows = best_fit(sizes, lambda n: shape.length, lambda length: shape.features)
    return [members for _, members in rows]


def assemble_features(
    features: Sequence[Feature], rows: Sequence[Sequence[int]], count: int, shape: RowShape, pad_id: int
) -> Batch:
    """The batch of `count` rows: `rows` are the indices in `features` of the members of each of the first rows; the others are
    empty.

    input_ids, token_type_ids, position_ids, sequence_ids int32 [B, L]; cls_positions int32 [B, P]; read_positions int32 [B, U, n]
    if the layout has them; labels [B, U, ...] or [B, L]; label_weights float32 [B, U] or [B, L], 1 where there is a target; of a
    layout per token word_starts int32 [B, L], 1 on the first pieces of the labelled words.

    Slot p of a row has sequence_ids p + 1.
    """
    L, P, layout = shape.length, shape.slots, shape.layout
    names = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
    batch: Batch = {name: np.zeros((count, L), np.int32) for name in names}
    batch["input_ids"][:] = pad_id
    batch["cls_positions"] = np.zeros((count, P), np.int32)
    width = L if layout.per_token else shape.features
    labels: np.ndarray = np.zeros((count, width, *layout.shape), layout.dtype)
    weights = np.zeros((count, width), np.float32)
    if layout.per_token:
        batch["word_starts"] = np.zeros((count, L), np.int32)
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
            if feature.read_positions is not None and layout.per_token:
                batch["word_starts"][r, start + feature.read_positions] = 1
            elif feature.read_positions is not None:
                batch["read_positions"][r, u] = start + feature.read_positions
            if feature.target is None:
                continue
            if layout.per_token:
                has_label = feature.target >= 0
                labels[r, start:column] = np.where(has_label, feature.target, 0)
                weights[r, start:column] = has_label
            else:
                labels[r, u] = feature.target + (start if layout.are_positions else 0)
                weights[r, u] = 1
    return batch | {"labels": labels, "label_weights": weights}


def feature_logits(
    logits: Float[np.ndarray, "B _ C"], features: Sequence[Feature], rows: Sequence[Sequence[int]], shape: RowShape
) -> list[Float[np.ndarray, " ..."]]:
    """The logits of each of the `features` of a batch, in their order.

    `logits` are float32, by the layout [B, U, C], [B, L, C] per token, or [B, P, 1] per candidate; the logits of a feature are
    then [C], [tokens, C] or [candidates]. `rows` are those of `assemble_features`.
    """
    layout = shape.layout
    found: dict[int, np.ndarray] = {}
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
    return [found[i] for i in range(len(features))]
