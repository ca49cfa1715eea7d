"""Held-out batches: every row of a fixed plan with fixed masks exactly once."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from bert_jax.data.assemble import Batch, assemble_rows
from bert_jax.data.batches.source import shard_rows, tables_of
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.plan import plan_epoch
from bert_jax.errors import UserError


def heldout_batches(
    corpus: Corpus,
    config: ExampleConfig,
    batch_size: int,
    max_rows: int | None,
    seed: int,
    shard: tuple[int, int] = (0, 1),
    *,
    row_multiple: int = 1,
) -> Iterator[Batch]:
    """Batches of the first `max_rows` rows (None: all) in the random order of epoch 0, the same for all batch sizes and numbers
    of hosts.

    No batch is larger than these rows, rounded up to `row_multiple`. The last batch is padded with empty rows (no tokens, no
    targets, no NSP labels), which do not count in sums; every host gets the same number of batches, as collectives require. Since
    the order is random, fewer rows are a random sample of the split.
    Raises UserError for `max_rows` below 1.
    """
    if max_rows is not None and max_rows < 1:
        raise UserError(f"max_rows={max_rows} leaves nothing to evaluate on; set 1 or more, or None for every row")
    plan = plan_epoch(corpus, config, seed=seed, epoch=0)
    tables = tables_of(corpus)
    rows = plan.num_rows if max_rows is None else min(max_rows, plan.num_rows)
    multiple = math.lcm(row_multiple, shard[1])
    batch_size = min(batch_size, -(-rows // multiple) * multiple)
    mine = shard_rows(batch_size, shard)
    for first in range(0, rows, batch_size):
        yield assemble_rows(corpus, plan, np.where(first + mine < rows, first + mine, -1), tables)
