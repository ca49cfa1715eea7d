"""Rows of a plan to arrays: gathers the spans of all rows at once and masks them. No loop over rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bert_jax.corpus.store import Corpus
from bert_jax.examples.counter import random_bits, rehash
from bert_jax.examples.masking import UNUSED, MaskingTables, choose, choose_words, replace
from bert_jax.examples.plan import EpochPlan

Batch = dict[str, np.ndarray]

_BLOCK = 1 << 15  # places at a time (256 rows of 128): temporaries of 256 KB each, which stay in the processor's cache


def assemble_rows(corpus: Corpus, plan: EpochPlan, rows: np.ndarray, tables: MaskingTables) -> Batch:
    """The batch of rows number `rows` (int [B]; -1 makes an empty row: padding only, nothing to predict).

    input_ids         int32 [B, L]
    token_type_ids    int32 [B, L]   0 = [CLS] A [SEP], 1 = B [SEP]; 0 at padding
    sequence_ids      int32 [B, L]   0 = padding, 1..P = which example of the row
    position_ids      int32 [B, L]   from 0 for every example; 0 at padding
    masked_positions  int32 [B, M]   columns, ascending; 0 where unused
    masked_targets    int32 [B, M]   the original tokens; -1 where unused
    cls_positions     int32 [B, P]   columns of the [CLS]s; 0 where unused
    nsp_labels        int32 [B, P]   0 = B follows A, 1 = random; -1 = no example, or pairs="none"
    """
    config = plan.config
    by_place = dict.fromkeys(("input_ids", "token_type_ids", "sequence_ids", "position_ids"), config.length)
    by_mask = dict.fromkeys(("masked_positions", "masked_targets"), config.max_predictions)
    by_example = dict.fromkeys(("cls_positions", "nsp_labels"), config.packed_examples)
    batch = {name: np.empty((len(rows), width), np.int32) for name, width in (by_place | by_mask | by_example).items()}
    step = max(1, _BLOCK // config.length)
    for first in range(0, len(rows), step):
        block = {name: array[first : first + step] for name, array in batch.items()}
        layout = _lay_out(plan, np.asarray(rows[first : first + step]))
        _write_structure(plan, layout, block)
        _write_tokens(corpus, plan, layout, block["input_ids"])
        _mask(plan, layout, tables, block)
    return batch


@dataclass(frozen=True)
class _Layout:
    """Where the E examples of B rows stand, in the order of rows and columns."""

    row: np.ndarray  # int64 [E]
    slot: np.ndarray  # int64 [E], which example of its row, from 0
    column: np.ndarray  # int64 [E], of its [CLS]
    example: np.ndarray  # int64 [E], number in the plan
    a: np.ndarray  # int64 [E], tokens of segment A
    b: np.ndarray  # int64 [E], tokens of segment B, 0 with pairs="none"
    length: np.ndarray  # int64 [E], with the special tokens

    def places(self, row_length: int) -> np.ndarray:
        """int64 [E], of the [CLS]s in the flattened [B, L]."""
        return self.row * row_length + self.column


def _lay_out(plan: EpochPlan, rows: np.ndarray) -> _Layout:
    numbers = np.where(rows[:, np.newaxis] >= 0, plan.rows[rows], -1)
    row, slot = np.nonzero(numbers >= 0)
    example = numbers[row, slot]
    a, b = plan.pairs.a_length[example].astype(np.int64), plan.pairs.b_length[example].astype(np.int64)
    lengths = np.zeros(numbers.shape, np.int64)
    lengths[row, slot] = length = a + b + plan.config.special_tokens
    column = (np.cumsum(lengths, axis=1) - lengths)[row, slot]
    return _Layout(row, slot, column, example, a, b, length)


def _write_structure(plan: EpochPlan, layout: _Layout, block: Batch) -> None:
    """All that does not depend on tokens.

    A row is a run of [CLS] A [SEP] and a run of B [SEP] for each example, then a run of padding: one value for each run, repeated.
    """
    B, P = block["nsp_labels"].shape
    L = plan.config.length
    first, second = 2 * layout.slot, 2 * layout.slot + 1
    runs = np.zeros((B, 2 * P + 1), np.int64)
    runs[layout.row, first], runs[layout.row, second] = layout.a + 2, layout.length - layout.a - 2
    runs[:, -1] = L - runs.sum(axis=1)

    def repeated(of_first: np.ndarray | int, of_second: np.ndarray | int) -> np.ndarray:
        """int32 [B, L] from a value for each example's first run and one for its second; 0 at padding."""
        values = np.zeros(runs.shape, np.int32)
        values[layout.row, first], values[layout.row, second] = of_first, of_second
        return np.repeat(values.ravel(), runs.ravel()).reshape(B, L)

    block["token_type_ids"][...] = repeated(0, 1)
    block["sequence_ids"][...] = repeated(layout.slot + 1, layout.slot + 1)
    np.subtract(np.arange(L, dtype=np.int32), repeated(layout.column, layout.column), out=block["position_ids"])
    block["position_ids"] *= block["sequence_ids"] > 0

    block["cls_positions"][...] = 0
    block["cls_positions"][layout.row, layout.slot] = layout.column
    block["nsp_labels"][...] = -1
    if plan.config.pairs != "none":
        block["nsp_labels"][layout.row, layout.slot] = plan.pairs.random_next[layout.example]


def _write_tokens(corpus: Corpus, plan: EpochPlan, layout: _Layout, input_ids: np.ndarray) -> None:
    vocabulary, place = corpus.vocabulary, layout.places(plan.config.length)
    flat = np.full(input_ids.size, vocabulary.pad_id, np.int32)
    flat[place] = vocabulary.cls_id
    flat[place + layout.a + 1] = flat[place + layout.length - 1] = vocabulary.sep_id
    starts = np.concatenate([plan.pairs.a_start[layout.example], plan.pairs.b_start[layout.example]])
    _gather(corpus, starts, np.concatenate([layout.a, layout.b]), np.concatenate([place + 1, place + layout.a + 2]), flat)
    input_ids[...] = flat.reshape(input_ids.shape)


def _gather(corpus: Corpus, starts: np.ndarray, lengths: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    """out[places[i] : places[i] + lengths[i]] = tokens[starts[i] : starts[i] + lengths[i]] for all i; a span lies in one shard.

    In the order of the store, so that each shard is taken from once and from front to back.
    """
    order = np.argsort(starts)
    starts, lengths, places = starts[order], lengths[order], places[order]
    ends = np.cumsum(lengths)
    ramp = np.arange(lengths.sum())
    source = ramp + np.repeat(starts - (ends - lengths), lengths)
    target = ramp + np.repeat(places - (ends - lengths), lengths)
    bounds = np.asarray(corpus.tokens.bounds)
    cuts = np.searchsorted(source, bounds)
    for shard in np.flatnonzero(np.diff(cuts)).tolist():
        part = slice(cuts[shard], cuts[shard + 1])
        out[target[part]] = corpus.tokens.shards[shard][source[part] - bounds[shard]]


def _mask(plan: EpochPlan, layout: _Layout, tables: MaskingTables, block: Batch) -> None:
    """Chooses and replaces tokens. Example e at position p draws the bits (plan.mask_key, e, p), whatever its row and column."""
    config, (rows, width) = plan.config, block["masked_positions"].shape
    flat, place = block["input_ids"].ravel(), layout.places(config.length)  # ravel makes no copy: the block is contiguous
    position = np.arange(layout.length.max(initial=1))
    bits = random_bits(random_bits(plan.mask_key, layout.example)[:, np.newaxis], position)
    candidates = position < layout.length[:, np.newaxis] - 1
    candidates[:, 0] = False
    candidates[np.arange(len(place)), layout.a + 1] = False
    counts = config.predictions(layout.length)
    if config.whole_word:
        assert tables.continuation is not None, "whole-word masking needs the vocabulary's continuation table"
        tokens = flat[np.minimum(place[:, np.newaxis] + position, flat.size - 1)]
        begins = ~tables.continuation[tokens] | ~candidates
        begins[:, 1:] |= ~candidates[:, :-1]
        positions = choose_words(bits, candidates, begins, counts, width)
    else:
        positions = choose(bits, candidates, counts, width)

    # From examples to rows: each example's masks come after those of the examples before it.
    example, order = np.nonzero(positions != UNUSED)
    chosen = positions[example, order].astype(np.int64)
    counted = np.zeros(block["nsp_labels"].shape, np.int64)
    counted[layout.row, layout.slot] = np.bincount(example, minlength=len(place))
    before = (np.cumsum(counted, axis=1) - counted)[layout.row, layout.slot]
    slots = (layout.row * width + before)[example] + order
    where = place[example] + chosen
    targets, columns = np.full(rows * width, -1, np.int32), np.zeros(rows * width, np.int32)
    targets[slots] = originals = flat[where]
    columns[slots] = layout.column[example] + chosen
    block["masked_targets"][...], block["masked_positions"][...] = targets.reshape(rows, width), columns.reshape(rows, width)
    flat[where] = replace(originals, rehash(bits[example, chosen]), config, tables)
