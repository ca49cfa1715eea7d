"""Packs examples into rows. A row holds one example, or several short examples.

The algorithm is best-fit decreasing on the histogram of lengths. Krell et al. 2021 ("Efficient sequence packing without
cross-contamination") call it longest-pack-first histogram packing. Examples of the same length are interchangeable, so the work
grows with the number of different lengths, not with the number of examples. Packing ten million examples takes no longer than
sorting them."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int, Integer

from bert_jax.data.counter_rng import make_key

_SHUFFLE_EXAMPLES, _SHUFFLE_ROWS = 7, 8  # the last part of a key of random numbers


def pack_rows(
    lengths: Integer[np.ndarray, " E"], row_length: int, most: int, key: int
) -> Int[np.ndarray, "plan_rows {most}"]:
    """Returns the indices of the examples in each row. Unused slots contain -1. Rows are in random order.

    `lengths` include special tokens, `most` is P, and `key` determines the order. The result is int32, or int64 if there are
    2**31 examples or more.
    """
    dtype = np.int32 if len(lengths) < 2**31 else np.int64
    if most == 1:
        return permutation(len(lengths), make_key(key, _SHUFFLE_ROWS), dtype)[:, np.newaxis]
    # Shuffles examples of the same length, so that each epoch packs different examples together.
    order = permutation(len(lengths), make_key(key, _SHUFFLE_EXAMPLES), dtype)
    by_length = order[np.argsort(lengths[order], kind="stable")]
    histogram = np.bincount(lengths, minlength=row_length + 1)
    free = np.cumsum(histogram) - histogram  # the index in `by_length` of the first unused example of each length
    blocks = []
    for pack, count in pack_histogram(histogram, row_length, most):
        rows = np.full((count, most), -1, dtype)
        for column, length in enumerate(pack):
            rows[:, column] = by_length[free[length] : free[length] + count]
            free[length] += count
        blocks.append(rows)
    rows = np.concatenate(blocks)
    return rows[permutation(len(rows), make_key(key, _SHUFFLE_ROWS), dtype)]


def pack_histogram(histogram: Int[np.ndarray, " lengths"], row_length: int, most: int) -> list[tuple[tuple[int, ...], int]]:
    """Packs `histogram[l]` examples of each length l. A pack is a combination of lengths that fit into one row. Returns
    (lengths, number of rows) for every pack. The examples are placed from the longest to the shortest. Each example goes into
    the row where it leaves the least room."""
    finished: list[tuple[tuple[int, ...], int]] = []
    open_packs: list[list[tuple[tuple[int, ...], int]]] = [[] for _ in range(row_length + 1)]  # by remaining room
    open_packs[row_length] = [((), int(histogram.sum()))]  # more empty rows than are needed

    def put(pack: tuple[int, ...], count: int) -> None:
        if count:
            (finished if len(pack) == most else open_packs[row_length - sum(pack)]).append((pack, count))

    for length in range(row_length, 0, -1):
        left = int(histogram[length])
        for room in range(length, row_length + 1):
            if not left:
                break
            while left and open_packs[room]:
                pack, count = open_packs[room].pop()
                alike = min(room // length, most - len(pack))  # how many examples of this length fit into this pack
                filled = min(left // alike, count)
                left -= filled * alike
                put(pack + (length,) * alike, filled)
                if filled < count:  # fewer examples are left than fit into a pack
                    put(pack + (length,) * left, 1)
                    put(pack, count - filled - 1)
                    left = 0
    return finished + [(pack, count) for packs in open_packs for pack, count in packs if pack]


def best_fit(
    lengths: Sequence[int], row_length: Callable[[int], int], most: Callable[[int], int], least_room: int = 1
) -> list[tuple[int, list[int]]]:
    """Packs items into rows by best-fit decreasing. Items are placed from the longest to the shortest. An item goes into the row
    where it leaves the least room. If it fits into no row, it starts a row of length `row_length(length of the item)`. Returns
    (length, indices of items) for each row.

    This function is for the few items of a batch. For an epoch, use `pack_rows`. A row holds at most `most(length of the row)`
    items, and is closed once it has less room than `least_room`."""
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


def permutation(count: int, key: np.uint64, dtype: type) -> Int[np.ndarray, " {count}"]:
    """Returns a random permutation of 0..count-1."""
    order: np.ndarray = np.arange(count, dtype=dtype)
    np.random.Generator(np.random.Philox(key=int(key))).shuffle(order)
    return order
