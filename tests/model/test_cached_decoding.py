"""The cache of a left-to-right model before its first token; `tests/prediction/test_decoding.py` reads tokens with it."""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.model.cached_decoding import empty_cache
from tests.random_rows import TINY


def test_an_empty_cache_has_a_column_for_each_token_and_has_read_none():
    config = dataclasses.replace(TINY, dtype="bfloat16", num_layers=3)
    cache = empty_cache(config, rows=2, columns=7)
    assert int(cache.used) == 0
    assert (cache.tokens.sequence_ids.shape, cache.tokens.sequence_ids.dtype) == ((2, 7), np.int32)
    assert len(cache.layers) == 3
    for layer in cache.layers:
        for kept in (layer["keys"], layer["values"]):
            assert (kept.shape, kept.dtype) == ((2, TINY.num_heads, 7, TINY.head_width), "bfloat16")
            assert not kept.any()
    assert not cache.tokens.sequence_ids.any()
