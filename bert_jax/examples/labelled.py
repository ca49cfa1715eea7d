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

from bert_jax.examples.assemble import Batch
from bert_jax.examples.packing import best_fit

ROW_LENGTHS = (32, 64, 128, 192, 256, 384, 512)
"""Lengths of a packed row; beyond, multiples of 128."""
KINDS = ("sequence", "regression", "multi_label", "token", "span", "choice", "mention")


@dataclasses.dataclass(frozen=True)
class Unit:
    """What the model reads at once of one example, and what it is to say.

    One sequence, or for a choice one for each candidate; a question about a long context is several units. `target` is None where
    nobody knows (a test set), else by the kind of head:

        sequence   int [] the label, float [] (regression), float [C] (multi-label)     choice   int [] the right candidate
        token      int [n], -1 where a token has no label                               mention  int [] the label
        span       int [2], the first and last token of the answer; (0, 0), the [CLS], where there is none
    """

    example: int
    """Its number among the examples of its split."""
    ids: tuple[np.ndarray, ...]
    """int32 [n] each, with [CLS] and [SEP]s."""
    types: tuple[np.ndarray, ...]
    """int32 [n] each, the token types."""
    target: np.ndarray | None = None
    marks: np.ndarray | None = None
    """Mentions only: int32 [3], the first tokens of the pronoun and of both names."""

    @functools.cached_property
    def size(self) -> int:
        """Tokens of all its sequences."""
        return sum(len(ids) for ids in self.ids)


@dataclasses.dataclass(frozen=True)
class RowShape:
    """The shape that rows of one data set have."""

    kind: str
    """One of KINDS: which arrays the labels are."""
    length: int
    """L, tokens of a row."""
    units: int
    """U, the most units in a row."""
    candidates: int = 1
    """Sequences of a unit; a row has P = U x candidates slots."""
    labels: int = 0
    """C, for multi-label targets."""

    @property
    def slots(self) -> int:
        """P, the most sequences in a row."""
        return self.units * self.candidates


def row_shape(units: Sequence[Unit], kind: str, labels: int = 0) -> RowShape:
    """The shape for packing `units`: the shortest row that holds the longest, and room for twice as many as go into a row on the
    average (more would be slots that are hardly ever used)."""
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is none of {', '.join(KINDS)}")
    longest = max(unit.size for unit in units)
    length = next((length for length in ROW_LENGTHS if length >= longest), -(-longest // 128) * 128)
    mean = sum(unit.size for unit in units) / len(units)
    return RowShape(kind, length, max(1, round(2 * length / mean)), max(len(unit.ids) for unit in units), labels)


def pack_units(units: Sequence[Unit], shape: RowShape) -> list[list[int]]:
    """Rows, each a list of numbers of `units`: best fit, longest first, at most `shape.units` in a row."""
    rows = best_fit([unit.size for unit in units], lambda n: shape.length, lambda length: shape.units)
    return [members for _, members in rows]


def assemble_units(units: Sequence[Unit], rows: Sequence[Sequence[int]], count: int, shape: RowShape, pad_id: int) -> Batch:
    """The batch of `count` rows, of which the first hold the units that `rows` say and the others nothing.

    input_ids, token_type_ids, position_ids, sequence_ids int32 [R, L]; cls_positions int32 [R, P]; marks int32 [R, P, 3] of
    mentions; labels and label_weights (float32, 1 where there is something to learn):

        sequence int32 [R, P]    regression float32 [R, P]    multi_label float32 [R, P, C] (weights [R, P])
        token int32 [R, L]       span int32 [R, P, 2] (weights [R, P])      choice int32 [R, U]      mention int32 [R, P]

    Slot p of a row has sequence_ids p + 1.
    """
    L, P = shape.length, shape.slots
    names = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
    batch: Batch = {name: np.zeros((count, L), np.int32) for name in names}
    batch["input_ids"][:] = pad_id
    batch["cls_positions"] = np.zeros((count, P), np.int32)
    labels, weights = _empty_labels(shape, count)
    if shape.kind == "mention":
        batch["marks"] = np.zeros((count, P, 3), np.int32)
    for r, members in enumerate(rows):
        column = 0
        for u, i in enumerate(members):
            unit, start = units[i], column
            for candidate, (ids, types) in enumerate(zip(unit.ids, unit.types, strict=True)):
                slot, end = u * shape.candidates + candidate, column + len(ids)
                batch["input_ids"][r, column:end] = ids
                batch["token_type_ids"][r, column:end] = types
                batch["position_ids"][r, column:end] = np.arange(len(ids))
                batch["sequence_ids"][r, column:end] = slot + 1
                batch["cls_positions"][r, slot] = column
                column = end
            if unit.marks is not None:
                batch["marks"][r, u] = start + unit.marks
            if unit.target is None:
                continue
            if shape.kind == "token":
                learnt = unit.target >= 0
                labels[r, start:column] = np.where(learnt, unit.target, 0)
                weights[r, start:column] = learnt
            else:
                labels[r, u] = unit.target + (start if shape.kind == "span" else 0)
                weights[r, u] = 1
    return batch | {"labels": labels, "label_weights": weights}


def _empty_labels(shape: RowShape, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of zero and weights of zero, in the shapes of the kind."""
    width = shape.length if shape.kind == "token" else shape.units
    last = {"span": (2,), "multi_label": (shape.labels,)}.get(shape.kind, ())
    dtype = np.float32 if shape.kind in ("regression", "multi_label") else np.int32
    return np.zeros((count, width, *last), dtype), np.zeros((count, width), np.float32)


def unit_logits(
    logits: np.ndarray, units: Sequence[Unit], rows: Sequence[Sequence[int]], shape: RowShape
) -> list[np.ndarray]:
    """What a batch's logits say of each of its `units`, in their order.

    `logits` float32 [R, P, C] (sequence, mention), [R, P, 1] (choice) or [R, L, C] (token, span); of a unit [C], [candidates],
    or [n, C].
    """
    found: list[np.ndarray] = [logits[:0]] * len(units)
    for r, members in enumerate(rows):
        column = 0
        for u, i in enumerate(members):
            if shape.kind in ("token", "span"):
                found[i] = logits[r, column : column + units[i].size]
            elif shape.kind == "choice":
                first = u * shape.candidates
                found[i] = logits[r, first : first + len(units[i].ids), 0]
            else:
                found[i] = logits[r, u]
            column += units[i].size
    return found
