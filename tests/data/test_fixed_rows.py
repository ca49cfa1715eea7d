"""A seed gives the same rows in every version: a run that continues with a newer version trains on the same rows as before, and
`--replay` shows the rows on which it trained."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.masking import MaskingTables
from bert_jax.data.plan import Blocks, plan_epoch
from bert_jax.data.rows import assemble_rows
from tests.data.corpora import corpus_of

LENGTHS = [[1 + (i * i + 5 * i * j + 3 * j) % 23 for j in range(1 + (7 * i) % 19)] for i in range(60)] + [[400], [1, 300]]
"""Lengths of sentences, from a formula: from one token to more than six rows, in documents of one to nineteen sentences."""
CORPUS = corpus_of(LENGTHS, shards=3)
TABLES = MaskingTables(
    mask_id=103, legal_ids=np.arange(200, 900, dtype=np.int32), continuation=np.arange(CORPUS.vocabulary.size) % 3 == 0
)


def rows_of(corpus: Corpus, config: ExampleConfig, seed: int, epoch: int) -> str:
    """Returns the first digits of a hash of all rows of an epoch, in order."""
    plan = plan_epoch(corpus, config, seed=seed, epoch=epoch)
    batch = assemble_rows(corpus, plan, np.arange(plan.num_rows), TABLES)
    digest = hashlib.sha256()
    for name in sorted(batch):
        digest.update(f"{name} {batch[name].shape}".encode() + batch[name].astype("<i4").tobytes())
    return digest.hexdigest()[:8]


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({}, "1f14d151"),
        ({"pairs": "paper", "short_probability": 0.5}, "1902f249"),
        ({"pairs": "none", "short_probability": 0.5}, "3a72ce28"),
        ({"packed_examples": 4}, "ec3ce172"),
        ({"masking": "whole_words"}, "a6b8ec9e"),
        ({"masking": "words", "packed_examples": 4}, "3bdf68ac"),
        ({"masking": "spans", "mask_probability": 0.5, "random_probability": 0.25}, "981a6f58"),
        ({"targets": "next", "pairs": "none", "packed_examples": 2}, "29b0cc49"),
        ({"duplicates": 3}, "8d386610"),
    ],
)
def test_the_rows_of_a_seed_and_epoch_equal_those_of_earlier_versions(settings: dict[str, object], rows: str):
    config = ExampleConfig(**({"length": 48, "max_predictions": 9} | settings))
    assert rows_of(CORPUS, config, seed=7, epoch=4) == rows


def test_the_blocks_of_a_seed_equal_those_of_earlier_versions():
    config = ExampleConfig(length=48, max_predictions=9)
    blocks = Blocks(CORPUS, seed=7, duplicates=2, block_tokens=CORPUS.num_tokens // 3 + 1)
    assert [rows_of(corpus, config, seed, epoch) for corpus, seed, epoch in map(blocks.at, (0, 7, 11))] == [
        "3ea8404b",
        "b070be8b",
        "9184dd2f",
    ]
