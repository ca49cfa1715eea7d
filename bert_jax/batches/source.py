"""Pretraining batches as a pure function of the step."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from concurrent.futures import Future

import numpy as np
from jaxtyping import Int64

from bert_jax.corpus.store import Corpus
from bert_jax.corpus.tokenizer import Tokenizer, VocabularyInfo
from bert_jax.errors import UserError
from bert_jax.examples.assemble import Batch, assemble_rows
from bert_jax.examples.config import ExampleConfig
from bert_jax.examples.masking import MaskingTables, masking_tables
from bert_jax.examples.plan import EpochPlan, plan_epoch
from bert_jax.interface.words import counted

_PLANS_HELD = 3  # a batch may have rows of two epochs while the plan of the next epoch is computed


class BatchSource:
    """Pretraining batches: `source.at(step)` is the batch of a step, as a pure function of the step.

    Rows are numbered through all epochs: step s has the rows [s B, (s + 1) B), so a batch may have rows of two epochs. Every
    epoch has `rows_per_epoch` rows, the number of rows of epoch 0, so that the epoch of a row is known without the plans of
    earlier epochs. But the plans of epochs differ in their numbers of rows (by 0.3 % on 8,000 Wikipedia articles, 2 % on the
    2,000 documents of the embedded corpus): the last rows of a longer plan are left out, and the first rows of a shorter plan are
    repeated. Rows are in random order, so these are different rows in each epoch.
    """

    def __init__(self, corpus: Corpus, config: ExampleConfig, batch_size: int, seed: int, *, tables: MaskingTables | None = None):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} is not a number of rows; it must be 1 or more")
        self._corpus, self._config, self.batch_size, self._seed = corpus, config, batch_size, seed
        self._tables = tables or tables_of(corpus)
        self._lock = threading.Lock()
        self._plans: OrderedDict[int, Future[EpochPlan]] = OrderedDict()
        self.rows_per_epoch = self.plan(0).num_rows

    def at(self, step: int, shard: tuple[int, int] = (0, 1)) -> Batch:
        """The batch of `step`, or its rows [index B/count, (index + 1) B/count) for the host `shard` = (index, count)."""
        places = step * self.batch_size + shard_rows(self.batch_size, shard)
        epochs, places = np.divmod(places, self.rows_per_epoch)
        parts = []
        for epoch in np.unique(epochs).tolist():
            plan = self.plan(epoch)
            parts.append(assemble_rows(self._corpus, plan, places[epochs == epoch] % plan.num_rows, self._tables))
        if 2 * places[-1] >= self.rows_per_epoch:
            self._start(int(epochs[-1]) + 1)
        return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of `epoch`; waits until it is computed."""
        return self._start(epoch).result()

    def _start(self, epoch: int) -> Future[EpochPlan]:
        """The future of the plan of `epoch`, which a background thread computes.

        The thread is a daemon: the plan of a large corpus takes a minute, and a program that ends should not wait for it.
        """
        with self._lock:
            if epoch in self._plans:
                self._plans.move_to_end(epoch)
                return self._plans[epoch]
            promise: Future[EpochPlan] = Future()
            self._plans[epoch] = promise
            while len(self._plans) > _PLANS_HELD:
                self._plans.popitem(last=False)
        threading.Thread(target=self._make, args=(epoch, promise), name=f"plan-epoch-{epoch}", daemon=True).start()
        return promise

    def _make(self, epoch: int, promise: Future[EpochPlan]) -> None:
        try:
            promise.set_result(plan_epoch(self._corpus, self._config, seed=self._seed, epoch=epoch))
        except BaseException as error:  # raised in `result()`; the next call of `_start` computes the plan again
            with self._lock:
                self._plans.pop(epoch, None)
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
