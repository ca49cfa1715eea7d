"""Rows of a plan to arrays: gathers the spans of all rows at once and masks them. No loop over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bert_jax.examples.counter import random_bits, rehash
from bert_jax.examples.masking import NEVER, MaskingTables, choose, replace
from bert_jax.examples.plan import EpochPlan

if TYPE_CHECKING:
    from bert_jax.corpus.store import Corpus

Batch = dict[str, np.ndarray]

_BLOCK = 1 << 15  # places at a time (256 rows of 128): temporaries of 256 KB each, which stay in the processor's cache


def assemble_rows(corpus: Corpus, plan: EpochPlan, rows: np.ndarray, tables: MaskingTables) -> Batch:
    """The batch of rows number `rows` (int [B]; -1 makes an empty row: padding only, nothing to predict).

        input_ids         int32 [B, L]
        token_type_ids    int32 [B, L]   0 = [CLS] A [SEP], 1 = B [SEP], 0 at padding
        sequence_ids      int32 [B, L]   0 = padding, 1..P = which example of the row
        position_ids      int32 [B, L]   from 0 for every example; 0 at padding
        masked_positions  int32 [B, M]   columns, ascending; 0 where unused
        masked_targets    int32 [B, M]   the original tokens; -1 where unused
        cls_positions     int32 [B, P]   columns of the [CLS]s; 0 where unused
        nsp_labels        int32 [B, P]   0 = B follows A, 1 = random; -1 = no example, or pairs="none"
    """
    config = plan.config
    shapes = {
        "input_ids": config.length,
        "token_type_ids": config.length,
        "sequence_ids": config.length,
        "position_ids": config.length,
        "masked_positions": config.max_predictions,
        "masked_targets": config.max_predictions,
        "cls_positions": config.packed_examples,
        "nsp_labels": config.packed_examples,
    }
    batch = {name: np.empty((len(rows), width), np.int32) for name, width in shapes.items()}
    step = max(1, _BLOCK // config.length)
    for first in range(0, len(rows), step):
        block = slice(first, first + step)
        _assemble_block(corpus, plan, np.asarray(rows[block]), tables, {name: array[block] for name, array in batch.items()})
    return batch


def _assemble_block(corpus: Corpus, plan: EpochPlan, rows: np.ndarray, tables: MaskingTables, batch: Batch) -> None:
    config, vocabulary = plan.config, corpus.vocabulary
    B, L, P = len(rows), config.length, config.packed_examples

    # Which examples, and where each lies in its row. All [B, P]; lengths are 0 where there is no example.
    examples = np.where(rows[:, np.newaxis] >= 0, plan.rows[rows], -1)
    present = examples >= 0
    a = np.where(present, plan.pairs.a_length[examples], 0).astype(np.int64)
    b = np.where(present, plan.pairs.b_length[examples], 0).astype(np.int64)
    length = np.where(present, a + b + config.special_tokens, 0)
    column = np.cumsum(length, axis=1) - length
    batch["cls_positions"][...] = np.where(present, column, 0)
    batch["nsp_labels"][...] = np.where(present, plan.pairs.random_next[examples], -1) if config.pairs != "none" else -1

    # The row is a run of [CLS] A [SEP] and a run of B [SEP] for each example, then a run of padding.
    runs = np.empty((B, 2 * P + 1), np.int64)
    runs[:, 0:-1:2] = np.where(present, a + 2, 0)
    runs[:, 1::2] = length - runs[:, 0:-1:2]
    runs[:, -1] = L - length.sum(axis=1)
    numbers = np.arange(1, P + 1)
    runs_flat = runs.ravel()

    def fill(name: str, values: np.ndarray) -> np.ndarray:
        """Writes one value a run ([B, 2P+1]) into `batch[name]`."""
        filled = np.repeat(values.ravel(), runs_flat).reshape(B, L)
        batch[name][...] = filled
        return filled

    of_run = np.zeros((B, 2 * P + 1), np.int32)
    of_run[:, 1::2] = 1
    fill("token_type_ids", of_run)
    of_run[:, 0:-1:2] = of_run[:, 1::2] = numbers
    sequence = fill("sequence_ids", of_run)
    begins = np.zeros((B, 2 * P + 1), np.int32)
    begins[:, 0:-1:2] = begins[:, 1::2] = column
    position = np.arange(L, dtype=np.int32) - np.repeat(begins.ravel(), runs_flat).reshape(B, L)
    real = sequence > 0
    np.multiply(position, real, out=batch["position_ids"])

    # The tokens, and the special ones around them. `place` is a flat index into [B, L].
    ids = np.full(B * L, vocabulary.pad_id, np.int32)
    place = (np.arange(B)[:, np.newaxis] * L + column)[present]
    a_here, b_here, which = a[present], b[present], examples[present]
    starts = np.concatenate([plan.pairs.a_start[which], plan.pairs.b_start[which]])
    _gather(corpus, starts, np.concatenate([a_here, b_here]), np.concatenate([place + 1, place + a_here + 2]), ids)
    separators = place + a_here + 1
    if config.pairs != "none":
        separators = np.concatenate([separators, place + a_here + b_here + 2])
    ids[place] = vocabulary.cls_id
    ids[separators] = vocabulary.sep_id

    # Masks: random bits by example and position in it, so that they do not depend on where the example is packed.
    example_key = np.zeros((B, 2 * P + 1), np.uint64)
    example_key[:, 0:-1:2] = example_key[:, 1::2] = np.where(present, random_bits(plan.mask_key, np.maximum(examples, 0)), 0)
    bits = random_bits(np.repeat(example_key.ravel(), runs_flat), position.ravel())
    excluded = ~real.ravel()
    excluded[place] = excluded[separators] = True
    keys = bits >> np.uint64(8) & ~np.uint64(0xFFFF)
    keys = keys.reshape(B, L)
    keys |= np.arange(L, dtype=np.uint64)
    if P > 1:
        keys |= sequence.astype(np.uint64) << np.uint64(56)
    keys[excluded.reshape(B, L)] = NEVER
    counts = np.where(present, config.predictions(length), 0)
    columns = choose(keys, a + b, counts, config.max_predictions)

    used = columns < L
    flat = (columns + (np.arange(B) * L)[:, np.newaxis])[used]
    originals = ids[flat]
    batch["masked_positions"][...] = np.where(used, columns, 0)
    targets = np.full(used.shape, -1, np.int32)
    targets[used] = originals
    batch["masked_targets"][...] = targets
    ids[flat] = replace(originals, rehash(bits[flat]), config, tables)
    batch["input_ids"][...] = ids.reshape(B, L)


def _gather(corpus: Corpus, starts: np.ndarray, lengths: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    """out[places[i] : places[i] + lengths[i]] = tokens[starts[i] : starts[i] + lengths[i]] for all i; a span lies in one shard.

    In order of the store, so that each shard is read once and from front to back.
    """
    order = np.argsort(starts)
    starts, lengths, places = starts[order], lengths[order], places[order]
    ends = np.cumsum(lengths)
    ramp = np.arange(ends[-1] if len(ends) else 0)
    source = ramp + np.repeat(starts - (ends - lengths), lengths)
    target = ramp + np.repeat(places - (ends - lengths), lengths)
    bounds = np.asarray(corpus.tokens.bounds)
    cuts = np.searchsorted(source, bounds)
    for shard, tokens in enumerate(corpus.tokens.shards):
        part = slice(cuts[shard], cuts[shard + 1])
        if cuts[shard + 1] > cuts[shard]:
            out[target[part]] = tokens[source[part] - bounds[shard]]
