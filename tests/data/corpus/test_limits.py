"""Limits that no result depends on: memory, waiting times, and the work done at once."""

from __future__ import annotations

import pytest

from bert_jax.data.corpus import build, corpus_report, hub, shard, store, text_files, tfds_text, verification
from bert_jax.data.corpus.embedded import embedded_dataset_builder
from bert_jax.data.tokenizers import wordpiece


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (shard._FLUSH_TOKENS * 4, 4 << 20),  # bytes of the tokens that a worker holds
        (corpus_report._CHUNK_TOKENS * 8, 16 << 20),  # bytes of their hashes
        (corpus_report._REPEATED, 20),  # lines that a shard keeps; five of them are shown
        (shard._MOST_LETTERS, 5_000),  # characters whose counts a shard keeps
        (text_files.HEAD_BYTES, 1 << 16),  # bytes from which a format is recognised
        (text_files._PIECE, 1 << 20),  # bytes, "about every MiB" in the help
        (text_files._MAX_LINE, 256 << 20),  # bytes, as in the message
        (wordpiece._CACHED_CHUNKS, 524_288),  # chunks, "about 100 MB"
        (store.BLOCK_TOKENS, 536_870_912),  # tokens; the block of a row depends on it, and with it every batch
        (build._TOKENS_WORTH_PROCESSES, 20_000_000),
        (verification._BLOCK, 4 << 20),  # bytes
        (verification._TICK, 0.5),  # seconds, as documented
        (verification._SAVE_SECONDS, 5.0),
        (hub.HUB_SECONDS, 5.0),  # how long a cluster node without a network waits for the hub
        (tfds_text._CONNECTIONS, 8),
        (tfds_text._TIMEOUT, 60),  # seconds
        (embedded_dataset_builder._REVISION, 1),  # a larger version makes every installation extract the text again
    ],
)
def test_internal_limits_have_their_documented_values(limit, expected):
    assert limit == expected
