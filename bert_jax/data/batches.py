"""Batches, and their transfer to devices. A batch is a pure function of (corpus, config, seed, step, shard). There is no
iterator state to save, because the position in the data is the step.

    BatchSource          pretraining batches
    eval_batches         held-out batches, with each row exactly once
    LabelledBatches      training batches of labelled examples
    UnlabelledBatches    sentences of a corpus as training batches of the same shape
    AlternatingBatches   batches that alternate between labelled and unlabelled examples
    EvaluationBatches    batches that evaluate every labelled example exactly once
    to_device            numpy arrays -> global jax.Arrays, sharded over the mesh
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int64, Num

from bert_jax.data import INPUTS
from bert_jax.data.config import KIND_KEY, ExampleConfig
from bert_jax.data.corpus.store import BLOCK_TOKENS, Corpus
from bert_jax.data.counter_rng import make_key, random_bits, uniform_integers
from bert_jax.data.example_packing import permutation
from bert_jax.data.masking import KEY as MASKING_KEY
from bert_jax.data.masking import MaskingTables, masking_tables, takes_one_example
from bert_jax.data.plan import Blocks, EpochPlan, check_corpus, plan_epoch
from bert_jax.data.rows import (
    Batch,
    Feature,
    RowShape,
    assemble_features,
    assemble_rows,
    feature_logits,
    pack_features,
    pack_sizes,
)
from bert_jax.errors import UserError
from bert_jax.interface.named import is_in_file
from bert_jax.interface.words import counted

_CHECKED_DOCUMENTS = 64
"""The number of documents that `check_rows` and `check_own_rows` read, so that even a large corpus is checked at once."""
_PLANS_HELD = 3  # a batch may span two blocks while the plan of the next block is computed


class BatchSource:
    """Pretraining batches: `source.at(step)` returns the batch of a step, as a pure function of the step.

    An epoch is one block (the whole corpus). If the corpus is large, an epoch has several blocks (`plan.Blocks`). Rows are
    numbered across all blocks and epochs. Step s has the rows [s B, (s + 1) B), so a batch may span two blocks. Every block has
    as many rows as the first block, so the block of a row is known without planning the earlier blocks. The plans of two blocks
    differ slightly in size (by 0.3 % on 8,000 Wikipedia articles, 2 % on the 2,000 documents of the embedded corpus). If a plan
    is longer than the first plan, its last rows are dropped. If a plan is shorter, its first rows are repeated. Rows are in
    random order, so different rows are dropped or repeated in each epoch."""

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
            raise UserError(f"batch_size={batch_size} must be at least 1")
        self._config, self.batch_size = config, batch_size
        self._tables = tables or corpus_masking_tables(corpus)
        self._lock = threading.Lock()
        self._blocks = Blocks(corpus, seed, config.duplicates, block_tokens)
        self._blocks.require_documents()
        self._planned: OrderedDict[int, Future[tuple[Corpus, EpochPlan]]] = OrderedDict()
        self._rows_per_block = self.plan(0).num_rows
        self.rows_per_epoch = self._blocks.count * self._rows_per_block

    def at(self, step: int, shard: tuple[int, int] = (0, 1)) -> Batch:
        """Returns the batch of `step`. If `shard` = (index, count) is given, returns only the rows of this host, which are
        [index B/count, (index + 1) B/count)."""
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
        """Returns the plan of a block. Waits until the plan is computed. Blocks are numbered across all epochs."""
        return self._start(block).result()[1]

    def texts(self, block: int) -> Corpus:
        """Returns the texts of a block. They are the whole corpus if it is a single block. The positions in `plan(block)` are
        positions in these texts."""
        return self._start(block).result()[0]

    def _start(self, block: int) -> Future[tuple[Corpus, EpochPlan]]:
        """Returns a future of (the texts of a block, its plan). If needed, starts a background thread that computes them.

        The thread is a daemon, because the plan of a large corpus takes a minute and the program should not wait for it on
        exit.
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
        except BaseException as error:  # `result()` raises the error. The next call of `_start` computes the plan again.
            with self._lock:
                self._planned.pop(block, None)
            promise.set_exception(error)


def corpus_masking_tables(corpus: Corpus) -> MaskingTables:
    """Returns the masking tables for the corpus's vocabulary and tokenizer."""
    return masking_tables(corpus.vocabulary, corpus.tokenizer)


def check_rows(corpus: Corpus, config: ExampleConfig) -> None:
    """Raises UserError if no rows can be made from a corpus. Plans the rows of the first documents. If these yield no row, plans
    a whole block."""
    check_corpus(corpus, config)
    blocks = Blocks(corpus, 0, config.duplicates)
    blocks.require_documents()
    first = corpus.part([(0, min(corpus.num_documents, _CHECKED_DOCUMENTS))])
    try:
        plan_epoch(first, config, seed=0, epoch=0)
    except UserError:
        texts, seed, epoch = blocks.at(0)
        plan_epoch(texts, config, seed=seed, epoch=epoch)


def check_own_rows(corpus: Corpus, config: ExampleConfig) -> None:
    """If the kind of rows is a user's own, or if `config.masking` handles one example at a time, like a user's policy, makes two
    rows of the first documents, and the same rows again in the reverse order. Raises UserError if a function cannot be called,
    if a policy returns something other than positions of words, if the arrays are not those that the kind declares, or if the
    rows differ when they are made again."""
    named = [f"{KIND_KEY}={config.targets}"] * is_in_file(config.targets)
    named += [f"{MASKING_KEY}={config.masking}"] * takes_one_example(config.masking)
    if not named:
        return
    part = corpus.part([(0, min(corpus.num_documents, _CHECKED_DOCUMENTS))])
    try:
        plan = plan_epoch(part, config, seed=0, epoch=0)
    except UserError:  # these documents are too short for an example, but others may be longer
        return
    rows, tables = np.append(np.arange(min(plan.num_rows, 2)), -1), corpus_masking_tables(corpus)
    first = assemble_rows(part, plan, rows, tables)
    if is_in_file(config.targets):
        _check_arrays(first, config, len(rows))
    again = assemble_rows(part, plan, rows[::-1], tables)
    if any(not np.array_equal(array, again[name][::-1]) for name, array in first.items()):
        if is_in_file(config.targets):
            raise UserError(
                f"{' or '.join(named)} makes other rows when the same rows are made again in another order, so a resumed run "
                "would train on other rows; draw with random_bits from example_keys, and keep nothing between two calls"
            )
        raise UserError(
            f"{named[0]} chooses other positions when it is called again with the same example, so a resumed "
            "run would train on other rows; draw from rng, and keep nothing between two calls"
        )


def _check_arrays(batch: Batch, config: ExampleConfig, rows: int) -> None:
    """Raises UserError if the arrays of a user's kind of rows are not those that it declares. The last row is empty."""
    kind, key = config.kind, f"{KIND_KEY}={config.targets}"
    widths = dict(kind.widths(config.length, config.max_predictions, config.packed_examples))
    if lacking := [name for name in (*INPUTS, kind.predicted) if name not in widths]:
        raise UserError(f"{key}: widths lacks {lacking[0]!r}, which every kind of rows needs; add it")
    wanted = {name: f"int32 {(rows, width)}" for name, width in widths.items()}
    found = {name: f"{array.dtype} {array.shape}" for name, array in batch.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if (here := found.get(name, "nothing")) != (declared := wanted.get(name, "nothing")):
            raise UserError(f"{key}: assemble returns {here} for {name!r}, but widths declares {declared}; make them equal")
    if (batch["sequence_ids"][-1] != 0).any() or (batch[kind.predicted][-1] != -1).any():
        raise UserError(
            f"{key}: the row with the index -1 is not empty; its 'sequence_ids' must be 0, and its {kind.predicted!r} must be -1"
        )


def shard_rows(batch_size: int, shard: tuple[int, int]) -> Int64[np.ndarray, " B"]:
    """Returns the indices of the batch_size / count rows of a batch for the host `shard` = (index, count). Raises UserError if
    `batch_size` is not divisible by `count`."""
    index, count = shard
    if not 0 <= index < count:
        raise ValueError(f"shard {index} of {count}")
    if batch_size % count:
        near = sorted({max(count, batch_size // count * count), -(-batch_size // count) * count})
        raise UserError(
            f"batch_size={batch_size} cannot be divided equally among {counted(count, 'host')}; set {' or '.join(map(str, near))}"
        )
    size = batch_size // count
    return np.arange(index * size, (index + 1) * size, dtype=np.int64)


def eval_batches(
    corpus: Corpus,
    config: ExampleConfig,
    batch_size: int,
    max_rows: int | None,
    seed: int,
    shard: tuple[int, int] = (0, 1),
    *,
    row_multiple: int = 1,
    plan: EpochPlan | None = None,
) -> Iterator[Batch]:
    """Yields batches of the first `max_rows` rows in the random order of epoch 0, or of all rows if `max_rows` is None. The
    rows do not depend on the batch size or the number of hosts. `plan` is the plan of epoch 0, if the caller already has it.

    If there are fewer rows than `batch_size`, the batch size is reduced. It is then the number of rows, rounded up to a
    multiple of `row_multiple` and of the number of hosts. The last batch is padded with empty rows (no tokens, targets or NSP
    labels), which do not count in sums. Every host gets the same number of batches, as collectives require. Since the order is
    random, the first `max_rows` rows are a random sample of the split. Raises UserError if `max_rows` is below 1.
    """
    if max_rows is not None and max_rows < 1:
        raise UserError(
            f"max_rows={max_rows} leaves nothing to evaluate on; set it to 1 or more, or to None to evaluate on every row"
        )
    plan = plan or plan_epoch(corpus, config, seed=seed, epoch=0)
    tables = corpus_masking_tables(corpus)
    rows = plan.num_rows if max_rows is None else min(max_rows, plan.num_rows)
    multiple = math.lcm(row_multiple, shard[1])
    batch_size = min(batch_size, -(-rows // multiple) * multiple)
    mine = shard_rows(batch_size, shard)
    for first in range(0, rows, batch_size):
        yield assemble_rows(corpus, plan, np.where(first + mine < rows, first + mine, -1), tables)


EVALUATED = {"cpu": 2_048}
EVALUATED_ELSEWHERE = 16_384
"""The number of tokens per device in an evaluation batch. `EVALUATED` has the number by platform, and `EVALUATED_ELSEWHERE` is
the number on all other platforms."""


PACKED_AHEAD = 20_000
"""The number of steps that are packed before a run starts, to choose the row counts. This takes less than a second."""
WORTH_COMPILING = 2**20
"""A second, smaller row count is compiled only if it saves at least this many tokens of padding in a run."""


class LabelledBatches:
    """Fine-tuning batches: `batches.at(step)` returns the packed features of a step, as a pure function of the step.

    Every epoch has all features in a new random order. The last step of an epoch has the remaining features, as in
    transformers' trainers. The original drops the remaining features. The number of rows that a batch needs depends on the
    lengths of its features. Since each row count needs a compilation, a run uses only one or two row counts (`row_counts`) and
    pads batches with empty rows. In a run of more than `PACKED_AHEAD` steps, a later batch may need more rows. It is then
    compiled separately."""

    def __init__(
        self,
        features: Sequence[Feature],
        shape: RowShape,
        batch_size: int,
        seed: int,
        *,
        epochs: int,
        row_multiple: int,
        pad_id: int,
    ):
        self._features, self._shape, self._batch_size, self._seed = features, shape, batch_size, seed
        self._pad_id, self._row_multiple = pad_id, row_multiple
        self._order = functools.lru_cache(maxsize=2)(self._new_order)  # every step needs the order of its epoch
        self.steps_per_epoch = -(-len(features) // batch_size)
        self.row_counts = choose_row_counts(self._needed(epochs), shape.length)
        """The row counts of the batches, ascending."""

    def _new_order(self, epoch: int) -> Int64[np.ndarray, " _"]:
        """Returns the indices of all features in the order of an epoch."""
        return permutation(len(self._features), make_key(self._seed, epoch), np.int64)

    def _needed(self, epochs: int) -> Int64[np.ndarray, " _"]:
        """Returns the number of rows that each of the first `PACKED_AHEAD` steps needs, rounded up to a multiple of
        `row_multiple`."""
        sizes = np.array([feature.size for feature in self._features])

        def rows() -> Iterator[int]:
            for epoch in range(epochs):
                of_epoch = sizes[self._order(epoch)]
                for first in range(0, len(sizes), self._batch_size):
                    yield self._rounded(len(pack_sizes(of_epoch[first : first + self._batch_size].tolist(), self._shape)))

        return np.array([*itertools.islice(rows(), PACKED_AHEAD)], np.int64)

    def _rounded(self, rows: int) -> int:
        return -(-rows // self._row_multiple) * self._row_multiple

    def members(self, step: int) -> list[int]:
        """Returns the indices of the features of a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        return self._order(epoch)[place * self._batch_size : (place + 1) * self._batch_size].tolist()

    def at(self, step: int, shard: tuple[int, int] = (0, 1)) -> Batch:
        """Returns the rows of `step`. If `shard` = (index, count) is given, returns only the rows of this host."""
        features = [self._features[i] for i in self.members(step)]
        rows = pack_features(features, self._shape)
        count = next((count for count in self.row_counts if count >= len(rows)), self._rounded(len(rows)))
        mine = shard_rows(count, shard)
        return assemble_features(features, [rows[r] for r in mine if r < len(rows)], len(mine), self._shape, self._pad_id)


class UnlabelledBatches:
    """Random sentences of a corpus as unlabelled examples. The rows have the same shape as those with labelled examples.
    `batches.at(step)` is a pure function of the step.

    A step draws `sentences` sentences with replacement. The `row_count` rows of a batch have room for this many sentences of
    average length. Drawn sentences that do not fit are left out. A sentence that is longer than a row is cut. The batch has an
    additional array with the name `weights`, float32 [B, L], which is 1 at the first piece of each word."""

    def __init__(self, corpus: Corpus, shape: RowShape, sentences: int, seed: int, *, row_multiple: int, weights: str):
        self._corpus, self._shape, self._sentences, self._seed, self._weights = corpus, shape, sentences, seed, weights
        offsets = np.asarray(corpus.sentence_offsets[: _MEASURED + 1])
        mean = (np.minimum(np.diff(offsets), shape.length - 2) + 2).mean()
        rows = math.ceil(_SPARE * sentences * max(mean / shape.length, 1 / shape.features))
        self.row_count = -(-rows // row_multiple) * row_multiple

    def at(self, step: int, shard: tuple[int, int] = (0, 1)) -> Batch:
        """Returns the rows of `step`. If `shard` = (index, count) is given, returns only the rows of this host."""
        bits = random_bits(make_key(self._seed, _UNLABELLED, step), np.arange(self._sentences))
        drawn = uniform_integers(self._corpus.num_sentences, bits)
        features = [self._feature(n, int(sentence)) for n, sentence in enumerate(drawn)]
        rows = pack_features(features, self._shape)[: self.row_count]
        mine, pad_id = shard_rows(self.row_count, shard), self._corpus.vocabulary.pad_id
        batch = assemble_features(features, [rows[r] for r in mine if r < len(rows)], len(mine), self._shape, pad_id)
        return batch | {self._weights: batch["word_starts"].astype(np.float32)}

    def _feature(self, number: int, sentence: int) -> Feature:
        corpus, vocabulary = self._corpus, self._corpus.vocabulary
        first, end = (int(offset) for offset in corpus.sentence_offsets[sentence : sentence + 2])
        end = min(end, first + self._shape.length - 2)
        pieces = corpus.tokens[first:end].astype(np.int32)
        if corpus.word_starts is not None:
            begins = corpus.word_starts.at(np.arange(first, end))
        else:
            assert corpus.tokenizer is not None, "a corpus opened from a directory has a tokenizer"
            begins = ~corpus.tokenizer.is_continuation(pieces)
        begins[:1] = True
        ids = np.concatenate([[vocabulary.cls_id], pieces, [vocabulary.sep_id]]).astype(np.int32)
        return Feature(number, (ids,), (np.zeros_like(ids),), None, 1 + np.flatnonzero(begins).astype(np.int32))


_UNLABELLED = 0x756E6C61  # "unla"
_MEASURED = 20_000  # the lengths of this many sentences determine the number of rows
_SPARE = 1.1


@dataclasses.dataclass(frozen=True)
class AlternatingBatches:
    """Batches that alternate between labelled examples and unlabelled sentences. An epoch has twice as many steps as an epoch of
    the labelled batches alone."""

    labelled: LabelledBatches
    unlabelled: UnlabelledBatches

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in which every labelled example is seen once."""
        return 2 * self.labelled.steps_per_epoch

    @property
    def row_counts(self) -> tuple[int, ...]:
        """The row counts of the batches, ascending."""
        return tuple(sorted({*self.labelled.row_counts, self.unlabelled.row_count}))

    def at(self, step: int, shard: tuple[int, int] = (0, 1)) -> Batch:
        """Returns the rows of `step`. Even steps have labelled examples, odd steps unlabelled sentences."""
        return (self.unlabelled if step % 2 else self.labelled).at(step // 2, shard)


def choose_row_counts(needed: Int64[np.ndarray, " _"], length: int) -> tuple[int, ...]:
    """Returns the one or two row counts to compile for, ascending. The last count is the maximum over all steps. A smaller
    count is added for steps that need fewer rows, if it saves a tenth of all rows and `WORTH_COMPILING` tokens in rows of
    `length`."""
    most = int(needed.max())
    totals = {count: int(np.where(needed <= count, count, most).sum()) for count in np.unique(needed).tolist()}
    best = min(totals, key=lambda count: (totals[count], count))
    saved = totals[most] - totals[best]
    return (best, most) if saved >= totals[most] / 10 and saved * length >= WORTH_COMPILING else (most,)


@dataclasses.dataclass(frozen=True)
class EvaluationBatches:
    """Evaluates all `features` in batches of `rows` rows. Each feature is evaluated exactly once on any mesh."""

    features: Sequence[Feature]
    shape: RowShape
    rows: int
    pad_id: int

    def logits(
        self,
        forward: Callable[[Batch], Float[np.ndarray, "B _ C"]],
        mine: Sequence[int] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Float[np.ndarray, " ..."]]:
        """Returns the logits of all features, in the order of the features. `feature_logits` documents their shapes.

        `mine` are the row indices of this host in a batch (None: all rows). `forward` receives these rows and returns the
        logits of all rows of the batch. `progress` is called after each batch with the number of finished features and the
        number of all features."""
        packed = pack_features(self.features, self.shape)
        done = 0
        found: list[np.ndarray] = [np.zeros(0, np.float32)] * len(self.features)
        for rows, batch in self._batches(packed, range(self.rows) if mine is None else mine):
            numbers = [i for members in rows for i in members]
            local = iter(range(len(numbers)))
            local_rows = [[next(local) for _ in members] for members in rows]
            of_features = feature_logits(forward(batch), [self.features[i] for i in numbers], local_rows, self.shape)
            for i, logits in zip(numbers, of_features, strict=True):
                found[i] = logits
            done += len(numbers)
            if progress:
                progress(done, len(self.features))
        return found

    def _batches(self, packed: list[list[int]], mine: Sequence[int]) -> Iterator[tuple[list[list[int]], Batch]]:
        for first in range(0, len(packed), self.rows):
            rows = packed[first : first + self.rows]
            own = [rows[r] if r < len(rows) else [] for r in mine]
            yield rows, assemble_features(self.features, own, len(mine), self.shape, self.pad_id)


def evaluation_rows(shape: RowShape, platform: str, row_multiple: int) -> int:
    """Returns the number of rows of an evaluation batch for `row_multiple` devices."""
    tokens = EVALUATED.get(platform, EVALUATED_ELSEWHERE)
    return row_multiple * max(1, tokens // shape.length)


def to_device(batch: Batch, mesh: Mesh, batch_axes: PartitionSpec) -> dict[str, Num[Array, "_ ..."]]:
    """Makes global arrays from this process's part of the batch (`process_shard`). The rows are sharded over the mesh axes
    `batch_axes`.

    The number of rows must be divisible by the size of these axes. `sharding.rules.check_batch_size` checks this before the
    first batch.
    """
    _, count = process_shard(mesh, batch_axes)
    rows = len(next(iter(batch.values()))) * count
    sharding = NamedSharding(mesh, batch_axes)
    return {
        name: jax.make_array_from_process_local_data(sharding, array, (rows, *array.shape[1:])) for name, array in batch.items()
    }


@functools.lru_cache(maxsize=8)  # called at every step, and a pod has many devices
def process_shard(mesh: Mesh, batch_axes: PartitionSpec) -> tuple[int, int]:
    """Returns (index, count) for the part of every batch that this process assembles. They may differ from (process_index,
    process_count), since processes that differ only on the tensor axis hold the same rows."""
    ways = _ways(mesh, batch_axes)
    pieces: dict[int, set[int]] = {}
    piece_of: dict[jax.Device, tuple[slice]] = dict(NamedSharding(mesh, batch_axes).devices_indices_map((ways,)))
    for device, (piece,) in piece_of.items():
        pieces.setdefault(device.process_index, set()).update(range(ways)[piece])
    return _find_shard(jax.process_index(), pieces)


def process_rows(mesh: Mesh, batch_axes: PartitionSpec, rows: int) -> Int64[np.ndarray, " B"]:
    """Returns the indices of the rows that this process holds of a global array with `rows` rows. The indices are ascending, as
    `to_device` expects, but they need not be contiguous."""
    pieces: dict[jax.Device, tuple[slice]] = dict(NamedSharding(mesh, batch_axes).devices_indices_map((rows,)))
    own = [range(rows)[piece] for device, (piece,) in pieces.items() if device.process_index == jax.process_index()]
    return np.unique(np.concatenate([np.array(piece) for piece in own]))


def _find_shard(process: int, pieces: dict[int, set[int]]) -> tuple[int, int]:
    """Returns (index, count) for the part of the batch that `process` assembles. `pieces` lists the pieces of the batch that
    each process holds.

    On a TPU the mesh follows the interconnect, so the pieces of a process may not be contiguous. The rows of the process are
    then scattered in the global array, and the global batch has the same rows in a different order. Raises UserError if the
    parts of two processes overlap or differ in size.
    """
    parts = sorted({frozenset(part) for part in pieces.values()}, key=min)
    if sum(map(len, parts)) != len(frozenset.union(*parts)) or len({len(part) for part in parts}) != 1:
        raise UserError(
            f"the mesh gives the processes overlapping or unequal parts of the batch ({sorted(map(sorted, parts))}); choose "
            "mesh axes whose sizes divide the device count of one host, or are multiples of this count"
        )
    return parts.index(frozenset(pieces[process])), len(parts)


def _ways(mesh: Mesh, batch_axes: PartitionSpec) -> int:
    return math.prod(mesh.shape[axis] for axis in _axes(batch_axes))


def _axes(batch_axes: PartitionSpec) -> tuple[str, ...]:
    """Returns the mesh axes that split the rows."""
    first = batch_axes[0] if len(batch_axes) else None
    if first is None:
        return ()
    return tuple(first) if isinstance(first, tuple | list) else (first,)
