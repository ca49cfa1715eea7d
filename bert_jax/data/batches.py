"""Pretraining batches as a pure function of the step."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from concurrent.futures import Future

import numpy as np
from jaxtyping import Int64

from bert_jax.data.assemble import Batch, assemble_rows
from bert_jax.data.blocks import Blocks
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import BLOCK_TOKENS, Corpus
from bert_jax.data.masking import MaskingTables, masking_tables
from bert_jax.data.plan import EpochPlan, plan_epoch
from bert_jax.data.tokenizers.tokenizer import Tokenizer, VocabularyInfo
from bert_jax.errors import UserError
from bert_jax.interface.words import counted

_PLANS_HELD = 3  # a batch may have rows of two blocks while the plan of the next block is computed


class BatchSource:
    """Pretraining batches: `source.at(step)` is the batch of a step, as a pure function of the step.

    An epoch has one block, the whole corpus, or several if the corpus is large (`examples/blocks.py`). Rows are numbered through
    all blocks of all epochs: step s has the rows [s B, (s + 1) B), so a batch may have rows of two blocks. Every block has
    as many rows as the first one, so that the block of a row is known without the plans of earlier blocks. But the plans of
    blocks differ in their numbers of rows (by 0.3 % on 8,000 Wikipedia articles, 2 % on the 2,000 documents of the embedded
    corpus): the last rows of a longer plan are left out, and the first rows of a shorter plan are repeated. Rows are in random
    order, so these are different rows in each epoch.
    """

    def __init__(
        self,
        corpus: Corpus,
        config: ExampleConfig,
        batch_size: int,
        seed: int,
        *,
        tables: MaskingTables | None = None,
        block_tokens: int = BLOCK_TOKENS,
    ):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} is not a number of rows; it must be 1 or more")
        self._config, self.batch_size = config, batch_size
        self._tables = tables or tables_of(corpus)
        self._lock = threading.Lock()
        self._blocks = Blocks(corpus, seed, config.duplicates, block_tokens)
        self._blocks.require_documents()
        self._planned: OrderedDict[int, Future[tuple[Corpus, EpochPlan]]] = OrderedDict()
        self._rows_per_block = self.plan(0).num_rows
        self.rows_per_epoch = self._blocks.count * self._rows_per_block

    def at(self, step: int, shard: tuple[int, int] = (0, 1)) -> Batch:
        """The batch of `step`, or its rows [index B/count, (index + 1) B/count) for the host `shard` = (index, count)."""
        places = step * self.batch_size + shard_rows(self.batch_size, shard)
        blocks, places = np.divmod(places, self._rows_per_block)
        parts = []
        for block in np.unique(blocks).tolist():
            corpus, plan = self._start(block).result()
            parts.append(assemble_rows(corpus, plan, places[blocks == block] % plan.num_rows, self._tables))
        if 2 * places[-1] >= self._rows_per_block:
            self._start(int(blocks[-1]) + 1)
        return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def plan(self, block: int) -> EpochPlan:
        """The plan of a block, numbered through all epochs; waits until it is computed."""
        return self._start(block).result()[1]

    def _start(self, block: int) -> Future[tuple[Corpus, EpochPlan]]:
        """The future of the texts and the plan of a block, which a background thread computes.

        The thread is a daemon: the plan of a large corpus takes a minute, and a program that ends should not wait for it.
        """
        with self._lock:
            if block in self._planned:
                self._planned.move_to_end(block)
                return self._planned[block]
            promise: Future[tuple[Corpus, EpochPlan]] = Future()
            self._planned[block] = promise
            while len(self._planned) > _PLANS_HELD:
                self._planned.popitem(last=False)
        threading.Thread(target=self._make, args=(block, promise), name=f"plan-block-{block}", daemon=True).start()
        return promise

    def _make(self, block: int, promise: Future[tuple[Corpus, EpochPlan]]) -> None:
        try:
            corpus, seed, epoch = self._blocks.at(block)
            promise.set_result((corpus, plan_epoch(corpus, self._config, seed=seed, epoch=epoch)))
        except BaseException as error:  # raised in `result()`; the next call of `_start` computes the plan again
            with self._lock:
                self._planned.pop(block, None)
            promise.set_exception(error)


def tables_of(corpus: Corpus) -> MaskingTables:
    """The masking tables of the corpus's vocabulary and tokenizer."""
    return _tables(corpus.vocabulary, corpus.tokenizer)


@functools.lru_cache(maxsize=4)
def _tables(vocabulary: VocabularyInfo, tokenizer: Tokenizer | None) -> MaskingTables:
    """`masking_tables`, cached because the held-out set is evaluated many times."""
    return masking_tables(vocabulary, tokenizer)


def shard_rows(batch_size: int, shard: tuple[int, int]) -> Int64[np.ndarray, " B"]:
    """The indices of the batch_size / count rows of a batch for the host `shard` = (index, count). Raises UserError if
    `batch_size` is not divisible by `count`."""
    index, count = shard
    if not 0 <= index < count:
        raise ValueError(f"shard {index} of {count}")
    if batch_size % count:
        near = sorted({max(count, batch_size // count * count), -(-batch_size // count) * count})
        raise UserError(
            f"batch_size={batch_size} does not divide over {counted(count, 'host')}; {' and '.join(map(str, near))} would"
        )
    size = batch_size // count
    return np.arange(index * size, (index + 1) * size, dtype=np.int64)
