"""The offsets of many shards behave as one array; `tests/data/test_blocks.py` tests how plans use them."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.data.corpus.store import ShardedOffsets

PARTS = [np.array(part, np.int64) for part in ([0, 3, 4, 9], [0], [0, 1], [0, 2, 7, 8, 12])]
JOINED = np.array([0, 3, 4, 9, 10, 12, 17, 18, 22])


@pytest.mark.parametrize(
    "parts", [PARTS, [PARTS[1], *PARTS], [*PARTS, PARTS[1]]], ids=["some", "an empty first", "an empty last"]
)
def test_offsets_of_shards_equal_joined_offsets_even_with_empty_shards(parts):
    offsets = ShardedOffsets(parts)
    assert len(offsets) == len(JOINED)
    assert offsets.joined().tolist() == JOINED.tolist()
    assert [int(offsets[i]) for i in range(len(JOINED))] == JOINED.tolist()
    for start in range(len(JOINED) + 1):
        for stop in range(len(JOINED) + 2):  # also before the start and beyond the end
            assert offsets[start:stop].tolist() == JOINED[start:stop].tolist()
    for goal in range(25):
        assert offsets.first_reaching(goal) == min(int(np.searchsorted(JOINED, goal)), len(JOINED) - 1)
