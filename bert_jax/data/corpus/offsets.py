"""Offsets of sentences or documents through all shards of a corpus, joined in memory or read where they lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from bert_jax.data.corpus.integrity import check_mapped


class ShardedOffsets:
    """The offsets of each shard, which begin at 0, as offsets into the concatenation of all shards; nothing is copied.

    It behaves as the joined int64 array for `len`, an index and a slice. The 4 x 10^9 sentences of a corpus of 10^11 tokens would
    take 32 GB joined.
    """

    def __init__(self, parts: Sequence[np.ndarray]):
        self._parts = tuple(parts)
        self._bases = np.cumsum([0, *(int(part[-1]) for part in parts)], dtype=np.int64)
        self._firsts = np.cumsum([0, *(len(part) - 1 for part in parts)], dtype=np.int64)
        """The index of the first offset of each part; its last one is the first of the next part."""

    def __len__(self) -> int:
        return int(self._firsts[-1]) + 1

    def __getitem__(self, where: int | slice) -> np.ndarray:
        """The offset with this index, or those of a slice of step 1."""
        if not isinstance(where, slice):
            (offset,) = self[where : where + 1]
            return offset
        start, stop, step = where.indices(len(self))
        assert step == 1
        found = np.empty(max(0, stop - start), np.int64)
        part = int(np.searchsorted(self._firsts, start, side="right")) - 1
        at = start
        while at < stop:
            part = min(part, len(self._parts) - 1)
            first = int(self._firsts[part])
            end = min(stop, first + len(self._parts[part]))
            check_mapped(self._parts[part])
            found[at - start : end - start] = self._parts[part][at - first : end - first] + self._bases[part]
            at, part = end, part + 1
        return found

    def first_reaching(self, goal: int) -> int:
        """The index of the first offset that is at least `goal`, by two binary searches; the last index where none is."""
        part = min(max(0, int(np.searchsorted(self._bases, goal, side="left")) - 1), len(self._parts) - 1)
        within = int(np.searchsorted(self._parts[part], goal - int(self._bases[part]), side="left"))
        return min(int(self._firsts[part]) + within, len(self) - 1)

    def joined(self) -> Int64[np.ndarray, " _"]:
        """All offsets in memory."""
        return self[:]
