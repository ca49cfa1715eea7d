"""Examples to rows: one a row, or several short ones together.

Best-fit decreasing on the histogram of lengths (Krell et al. 2021, "Efficient sequence packing without cross-contamination",
there called longest-pack-first histogram packing). Examples of one length are alike, so packs are too: the work grows with the
number of lengths, not of examples, and the plan of ten million examples packs in the time of sorting them.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int, Integer

from bert_jax.examples.counter import key_of

_SHUFFLE_EXAMPLES, _SHUFFLE_ROWS = 7, 8  # purposes of random numbers


def rows_of(
    lengths: Integer[np.ndarray, " E"], row_length: int, most: int, key: int
) -> Int[np.ndarray, "plan_rows {most}"]:
    """The examples of each row, -1 where there is none; rows in random order, each example in one row.

    `lengths` counts the special tokens; `most` is P; `key` decides the order. int32, or int64 for 2**31 examples and more.
    """
    dtype = np.int32 if len(lengths) < 2**31 else np.int64
    if most == 1:
        return shuffled(len(lengths), key_of(key, _SHUFFLE_ROWS), dtype)[:, np.newaxis]
    # Random order within a length, so that the packs of one epoch are not those of the next.
    order = shuffled(len(lengths), key_of(key, _SHUFFLE_EXAMPLES), dtype)
    by_length = order[np.argsort(lengths[order], kind="stable")]
    histogram = np.bincount(lengths, minlength=row_length + 1)
    free = np.cumsum(histogram) - histogram  # where in `by_length` the unused examples of each length begin
    blocks = []
    for pack, count in packs_of(histogram, row_length, most):
        rows = np.full((count, most), -1, dtype)
        for column, length in enumerate(pack):
            rows[:, column] = by_length[free[length] : free[length] + count]
            free[length] += count
        blocks.append(rows)
    rows = np.concatenate(blocks)
    return rows[shuffled(len(rows), key_of(key, _SHUFFLE_ROWS), dtype)]


def packs_of(histogram: Int[np.ndarray, " lengths"], row_length: int, most: int) -> list[tuple[tuple[int, ...], int]]:
    """(lengths, how often) of every kind of row, for `histogram[l]` examples of length l: from the longest, each goes where it
    leaves least room.
    """
    finished: list[tuple[tuple[int, ...], int]] = []
    open_packs: list[list[tuple[tuple[int, ...], int]]] = [[] for _ in range(row_length + 1)]  # by the room they have
    open_packs[row_length] = [((), int(histogram.sum()))]  # as many empty rows as can be needed

    def put(pack: tuple[int, ...], count: int) -> None:
        if count:
            (finished if len(pack) == most else open_packs[row_length - sum(pack)]).append((pack, count))

    for length in range(row_length, 0, -1):
        left = int(histogram[length])
        for room in range(length, row_length + 1):
            while left and open_packs[room]:
                pack, count = open_packs[room].pop()
                alike = min(room // length, most - len(pack))  # examples of this length that one such pack takes
                filled = min(left // alike, count)
                left -= filled * alike
                put(pack + (length,) * alike, filled)
                if filled < count:  # the rest is fewer than one pack takes
                    put(pack + (length,) * left, 1)
                    put(pack, count - filled - 1)
                    left = 0
    return finished + [(pack, count) for packs in open_packs for pack, count in packs if pack]


def best_fit(
    lengths: Sequence[int], row_length: Callable[[int], int], most: Callable[[int], int], least_room: int = 1
) -> list[tuple[int, list[int]]]:
    """Rows (length, numbers of items): longest item first, each goes where it leaves least room, or begins a row of
    `row_length(its length)`.

    For the few items of one batch, where `rows_of` plans an epoch. A row takes `most(its length)` items, and none once it has
    less than `least_room` left.
    """
    rows: list[tuple[int, list[int]]] = []
    free: list[tuple[int, int]] = []  # (room left, row number), sorted
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        at = bisect.bisect_left(free, (lengths[i], 0))
        if at < len(free):
            left, row = free.pop(at)
        else:
            left, row = row_length(lengths[i]), len(rows)
            rows.append((left, []))
        length, members = rows[row]
        members.append(i)
        if left - lengths[i] >= least_room and len(members) < most(length):
            bisect.insort(free, (left - lengths[i], row))
    return rows


def shuffled(count: int, key: np.uint64, dtype: type) -> Int[np.ndarray, " {count}"]:
    """A random permutation."""
    order: np.ndarray = np.arange(count, dtype=dtype)
    np.random.Generator(np.random.Philox(key=int(key))).shuffle(order)
    return order
