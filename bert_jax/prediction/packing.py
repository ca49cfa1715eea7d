"""Texts of any length -> few shapes of batch: several short ones share a row, and no attention crosses between them.

A text takes the shortest of a few row lengths that holds it; what it leaves free is filled with shorter ones (best fit, longest
first). How long the rows of short texts are is tried out (USUAL), and the cheapest packing is taken. On sentences of 28 tokens
97 % of what is computed is text, and a thousand of them need four compiled programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int32

from bert_jax.examples.packing import best_fit

USUAL = (64, 128, 256)
"""Rows for texts that are shorter: 64 where they pack well, else more."""
LENGTHS = (16, 32, 64, 128, 192, 256, 384)
"""Rows for texts by their own length; beyond, powers of two."""
ATTENTION = 1 / 500
"""A token costs 1 + ATTENTION x the length of its row (measured on a CPU, 384 wide: 64 to 128 tokens 9 %, 512 double)."""
TOKENS_A_TEXT = 8
"""A batch has one slot for this many tokens: so many texts can be in it at most."""


@dataclasses.dataclass(frozen=True)
class Item:
    """One text (or pair) as the model reads it, with its [CLS] and [SEP]s."""

    ids: Sequence[int]
    segment_b: int = -1
    """Where token type 1 begins; -1 where there is no second segment."""
    places: tuple[int, ...] = ()
    """Positions of special interest: the [MASK]s to fill."""
    targets: tuple[int, ...] = ()
    """A token id for each of `places`, where a known word is judged there."""


@dataclasses.dataclass(frozen=True)
class Packed:
    """One batch, and where its items lie in it."""

    arrays: dict[str, Int32[np.ndarray, " ..."]]
    """input_ids, token_type_ids, position_ids, sequence_ids [B, L] (0 padding, else slot + 1, unique in the batch); starts [T],
    the flat index of the [CLS] of each slot; places [X], flat indices; targets [X]."""
    items: tuple[int, ...]
    """Item numbers by slot."""
    starts: tuple[int, ...]
    """Flat index of every item's first token."""
    places: tuple[slice, ...]
    """Which of the X places are an item's."""


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()


def row_length(n: int) -> int:
    """The shortest row for `n` tokens."""
    return next((length for length in LENGTHS if length >= n), power_of_two(n))


def rows_of(lengths: Sequence[int], longest: int) -> dict[int, list[list[int]]]:
    """Row length -> rows, each a list of item numbers whose lengths fit in it; `longest` is the position table's size.

    The cheapest of the packings that USUAL gives, where a row of L tokens costs L (1 + ATTENTION L).
    """
    whole = row_length(sum(lengths))  # a few short texts need no more than a row of their own
    packings = [_rows(lengths, longest, usual) for usual in sorted({min(usual, whole) for usual in USUAL})]
    return min(packings, key=lambda rows: sum(len(some) * n * (1 + ATTENTION * n) for n, some in rows.items()))


def _rows(lengths: Sequence[int], longest: int, usual: int) -> dict[int, list[list[int]]]:
    rows: dict[int, list[list[int]]] = {}
    packed = best_fit(
        lengths,
        lambda n: min(longest, max(usual, row_length(n))),
        lambda length: max(1, length // TOKENS_A_TEXT),
        least_room=3,
    )
    for length, members in packed:
        rows.setdefault(length, []).append(members)
    return rows


def pack(items: Sequence[Item], *, longest: int, tokens: int, devices: int = 1, pad_id: int = 0) -> Iterator[Packed]:
    """`items` in batches of about `tokens` tokens a device, rows a multiple of `devices`; every item once.

    The number of rows is 1, 4, 16, ... times `devices` up to the batch of `tokens`, and the number of places 8, 32, 128, ..., so
    few shapes occur. Raises ValueError for an item longer than `longest`.
    """
    lengths = [len(item.ids) for item in items]
    if lengths and max(lengths) > longest:
        raise ValueError(f"an item of {max(lengths)} tokens does not fit in {longest}")
    for length, rows in sorted(rows_of(lengths, longest).items()):
        most = devices * max(1, tokens // length)
        for start in range(0, len(rows), most):
            some = rows[start : start + most]
            count = devices
            while count < len(some):
                count = min(most, count * 4)
            yield _batch(items, some, length, count, pad_id)


def _batch(items: Sequence[Item], rows: Sequence[Sequence[int]], length: int, count: int, pad_id: int) -> Packed:
    names = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
    arrays = {name: np.zeros((count, length), np.int32) for name in names}
    arrays["input_ids"][:] = pad_id
    numbers: list[int] = []
    starts: list[int] = []
    places: list[slice] = []
    flat_places: list[int] = []
    targets: list[int] = []
    for row, members in enumerate(rows):
        column = 0
        for i in members:
            item, end = items[i], column + len(items[i].ids)
            numbers.append(i)
            starts.append(row * length + column)
            arrays["input_ids"][row, column:end] = item.ids
            arrays["position_ids"][row, column:end] = np.arange(end - column)
            arrays["sequence_ids"][row, column:end] = len(numbers)
            if item.segment_b >= 0:
                arrays["token_type_ids"][row, column + item.segment_b : end] = 1
            places.append(slice(len(flat_places), len(flat_places) + len(item.places)))
            flat_places += [starts[-1] + place for place in item.places]
            targets += item.targets or [0] * len(item.places)
            column = end
    arrays["starts"] = _padded(starts, max(1, count * length // TOKENS_A_TEXT))
    slots = 8
    while slots < len(flat_places):
        slots *= 4
    arrays["places"], arrays["targets"] = _padded(flat_places, slots), _padded(targets, slots)
    return Packed(arrays, tuple(numbers), tuple(starts), tuple(places))


def _padded(values: Sequence[int], size: int) -> Int32[np.ndarray, " {size}"]:
    result = np.zeros(size, np.int32)
    result[: len(values)] = values
    return result
