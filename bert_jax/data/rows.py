"""Builds the rows of a batch, from the plan of an epoch or from labelled examples.

`assemble_texts` gathers the spans of all examples at once, chooses their targets, masks these targets (unless they are next
tokens), and packs the examples into rows. It does not loop over rows. Examples are masked before packing, one in each row of an
array, so packing does not change their masks. `assemble_pairs` packs examples of two texts, one for an encoder and one for a
decoder. The kind of rows chooses between these functions (`kinds_of_rows.py`).

`pack_features` and `assemble_features` pack features, i.e. tokenised labelled examples. A batch contains the examples of a step,
packed into few rows. Tokens attend only to tokens of the same sequence (`sequence_ids`). The examples of a step are a random
sample and not sorted by length, but packing still leaves little padding."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int, Int32, Int64, Integer, Num, UInt16, UInt64

from bert_jax.data import DECODER, INPUTS
from bert_jax.data.config import KIND_KEY
from bert_jax.data.corpus.store import Corpus, TokenStore
from bert_jax.data.counter_rng import hash_bits, random_bits
from bert_jax.data.example_packing import best_fit
from bert_jax.data.masking import UNUSED, Examples, MaskingTables, choose, replace_tokens
from bert_jax.data.plan import EpochPlan
from bert_jax.errors import UserError
from bert_jax.interface.words import counted

if TYPE_CHECKING:  # the kinds of rows call the functions of this module
    from bert_jax.data.kinds_of_rows import PairRows, TextRows

Batch = dict[str, Num[np.ndarray, "B ..."]]
"""The arrays of a batch by name. The first axis of every array is the row."""

_BLOCK = 1 << 17  # tokens per chunk (1,024 rows of 128), so that temporaries of at most 512 KB stay in the processor's cache
_FEW = 16  # if there are at most this many examples per row, all examples are made in one array


def assemble_rows(corpus: Corpus, plan: EpochPlan, rows: Int[np.ndarray, " B"], tables: MaskingTables) -> Batch:
    """Returns the batch of the plan's rows with indices `rows`. The index -1 stands for an empty row, which has only padding
    and nothing to predict. All arrays are int32. The kind of rows (`kinds_of_rows.py`) lists them."""
    return plan.config.kind.assemble(corpus, plan, rows, tables)


def assemble_texts(
    kind: TextRows, corpus: Corpus, plan: EpochPlan, rows: Int[np.ndarray, " B"], tables: MaskingTables
) -> Batch:
    """Returns the batch of the plan's rows with indices `rows`, with the arrays that `kinds_of_rows.Masked` lists."""
    L, M, P = plan.config.length, plan.config.max_predictions, plan.config.packed_examples
    batch = {name: np.empty((len(rows), width), np.int32) for name, width in text_widths(L, M, P).items()}
    step = _BLOCK // L
    for first in range(0, len(rows), step):
        numbers = np.asarray(rows[first : first + step])
        examples = plan.rows[numbers]
        row, slot = np.nonzero((examples >= 0) & (numbers >= 0)[:, np.newaxis])
        chosen = examples[row, slot]
        block = {name: array[first : first + step] for name, array in batch.items()}
        block["input_ids"][...] = corpus.vocabulary.pad_id
        if P == 1 and len(row) == len(numbers):
            _copy_unpacked(_make_examples(kind, corpus, plan, chosen, tables, L), block)
        else:
            _copy_packed(_by_width(kind, corpus, plan, chosen, tables, len(numbers)), row, slot, block)
    return batch


def text_widths(length: int, predictions: int, examples: int) -> dict[str, int]:
    """Returns the widths of the arrays of `assemble_texts`."""
    widths = dict.fromkeys(INPUTS, length) | dict.fromkeys(("masked_positions", "masked_targets"), predictions)
    return widths | dict.fromkeys(("cls_positions", "nsp_labels"), examples)


def words_begun(
    corpus: Corpus, plan: EpochPlan, rows: Int[np.ndarray, " B"], batch: Batch, tables: MaskingTables
) -> Bool[np.ndarray, "B M"]:
    """Returns whether each masked token of `batch` starts a word. Unused places are False. `rows` are the indices of the plan's
    rows in the batch."""
    used = batch["masked_targets"] >= 0
    if corpus.word_starts is None:
        assert tables.continuation is not None, "if the corpus does not mark words, its vocabulary has a continuation table"
        return used & ~tables.continuation[batch["masked_targets"]]
    positions, pairs = batch["masked_positions"], plan.pairs
    slots, column = (np.take_along_axis(batch[name], positions, axis=1) for name in ("sequence_ids", "position_ids"))
    examples = plan.rows[rows[:, np.newaxis], np.maximum(slots - 1, 0)]
    a = pairs.a_length[examples].astype(np.int64)
    begins = np.where(column > a + 1, pairs.b_start[examples] - a - 2, pairs.a_start[examples] - 1)
    return used & corpus.word_starts.at(np.where(used, begins + column, 0))


@dataclasses.dataclass(frozen=True)
class Texts:
    """Examples before their targets are chosen, one in each row of W columns: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""

    ids: Integer[np.ndarray, "E W"]  # arbitrary at padding
    real: Bool[np.ndarray, "E W"]  # False at padding
    in_second: Bool[np.ndarray, "E W"]  # True after the first [SEP], also at padding
    starts: Int64[np.ndarray, " E"]  # the index of each [CLS] in the flat `ids`
    separators: Int64[np.ndarray, "2 E"]  # the indices of each first [SEP], and of each last one, in the flat `ids`


@dataclasses.dataclass(frozen=True)
class _Examples:
    """Examples with their targets before packing. Each row of W columns has one example. W is at least the length of the
    longest example, and at most the length of a row of the batch."""

    length: Int64[np.ndarray, " E"]  # includes the special tokens
    real: Bool[np.ndarray, "E W"]  # False at padding
    in_second: Bool[np.ndarray, "E W"]  # True after the first [SEP], also at padding
    ids: Integer[np.ndarray, "E W"]  # arbitrary at padding
    positions: UInt16[np.ndarray, "E M"]  # ascending, then UNUSED
    targets: Int32[np.ndarray, "E M"]  # -1 where unused
    labels: Bool[np.ndarray, " E"] | Int[np.ndarray, " E"]  # for next sentence prediction


def _by_width(
    kind: TextRows, corpus: Corpus, plan: EpochPlan, examples: Int[np.ndarray, " E"], tables: MaskingTables, rows: int
) -> list[tuple[Int64[np.ndarray, " _"], _Examples]]:
    """Divides the plan's examples with indices `examples` into groups of similar length. Returns (positions in `examples`,
    examples) for each group. If there are at most `_FEW` examples per row, there is only one group, and its arrays are as wide
    as a row of the batch. With 8 examples per row, several groups would take twice the time."""
    if len(examples) <= _FEW * rows:
        return [(np.arange(len(examples)), _make_examples(kind, corpus, plan, examples, tables, plan.config.length))]
    pairs = plan.pairs
    length = pairs.a_length[examples].astype(np.int64) + pairs.b_length[examples] + plan.config.special_tokens
    widths = np.minimum(2 ** np.ceil(np.log2(np.maximum(length, 32))).astype(np.int64), plan.config.length)
    groups = [(int(width), np.flatnonzero(widths == width)) for width in np.unique(widths)]
    return [(members, _make_examples(kind, corpus, plan, examples[members], tables, width)) for width, members in groups]


def _make_examples(
    kind: TextRows, corpus: Corpus, plan: EpochPlan, examples: Int[np.ndarray, " E"], tables: MaskingTables, width: int
) -> _Examples:
    """Returns the plan's examples with indices `examples` in `width` columns, with their targets and, if the kind of rows masks
    tokens, with masks."""
    config, pairs, vocabulary = plan.config, plan.pairs, corpus.vocabulary
    a, b = pairs.a_length[examples].astype(np.int64), pairs.b_length[examples].astype(np.int64)
    length = a + b + config.special_tokens
    column = np.arange(width, dtype=np.int16)
    real = column < length[:, np.newaxis].astype(np.int16)
    in_second = column > (a + 1)[:, np.newaxis].astype(np.int16)

    # A begins at position 1 and B at position a + 2. Both are windows of the store. Special tokens are then written around
    # them.
    starts = np.concatenate([pairs.a_start[examples], pairs.b_start[examples]])
    ids, of_b = np.split(_windows(corpus.tokens, starts, np.concatenate([np.ones_like(a), a + 2]), width), 2)
    np.copyto(ids, of_b, where=in_second)
    first = np.arange(len(examples)) * width
    separators = np.stack([first + a + 1, first + length - 1])
    flat = ids.ravel()  # a view of `ids`; writing to it changes `ids`
    flat[first], flat[separators] = vocabulary.cls_id, vocabulary.sep_id

    key = example_keys(plan, examples)
    target_ids, candidates = kind.targets(Texts(ids, real, in_second, first, separators))
    candidates &= target_ids != vocabulary.unk_id  # [UNK] is never predicted here; the original may predict it

    def word_starts() -> Bool[np.ndarray, "E L"]:
        assert corpus.word_starts is not None
        begins = np.where(in_second, (pairs.b_start[examples] - a - 2)[:, np.newaxis], pairs.a_start[examples][:, np.newaxis] - 1)
        return corpus.word_starts.at(begins + column)

    found = None if corpus.word_starts is None else word_starts
    positions, decisions = choose(Examples(config, tables, key, length, ids, candidates, found))
    used = positions != UNUSED
    places = first[:, np.newaxis] + np.where(used, positions, 0)  # unused places point to [CLS], which does not change
    originals = target_ids.ravel()[places]
    if kind.masks:
        replaced = replace_tokens(originals, random_bits(hash_bits(key), positions), config, tables, decisions)
        flat[places] = np.where(used, replaced, originals)
    targets = np.where(used, originals, np.int32(-1)).astype(np.int32)
    labels = pairs.random_next[examples] if config.pairs != "none" else np.full(len(examples), -1)
    return _Examples(length, real, in_second, ids, positions, targets, labels)


def example_keys(plan: EpochPlan, examples: Int[np.ndarray, " E"]) -> UInt64[np.ndarray, "E 1"]:
    """Returns the key of random numbers (`counter_rng.py`) of each of the plan's examples with indices `examples`. It is a
    function of the seed, the epoch and the example, so the numbers of an example do not depend on its row."""
    return random_bits(plan.mask_key, examples)[:, np.newaxis]


def token_spans(
    tokens: TokenStore, starts: Int64[np.ndarray, " E"], lengths: Integer[np.ndarray, " E"]
) -> Integer[np.ndarray, "E W"]:
    """Returns `lengths[i]` tokens of the store from index `starts[i]` in each row i. The following tokens are arbitrary."""
    return _windows(tokens, starts, np.zeros(len(starts), np.int64), int(lengths.max(initial=1)))


def _windows(
    tokens: TokenStore, starts: Int64[np.ndarray, " E"], columns: Int64[np.ndarray, " E"], length: int
) -> Integer[np.ndarray, "E {length}"]:
    """Returns windows of the token store, in the store's dtype. Column `columns[i]` of row i has the store's token `starts[i]`.

    Whole windows are copied, which is five times as fast as indexing each token. If a window exceeds the shard that contains
    `starts[i]`, the tokens outside the shard are arbitrary.
    """
    out = np.empty((len(starts), length), tokens.dtype)
    shard_of = np.searchsorted(tokens.bounds, starts, side="right") - 1
    shard_of = shard_of.astype(np.min_scalar_type(len(tokens.bounds)))  # numbers of up to 16 bits are sorted much faster
    wanted = starts - columns - tokens.bounds[shard_of]
    begins = np.clip(wanted, 0, np.maximum(np.diff(tokens.bounds) - length, 0)[shard_of])
    order = np.argsort(shard_of, kind="stable")
    cuts = np.searchsorted(shard_of[order], np.arange(len(tokens.bounds)))
    for shard in np.flatnonzero(np.diff(cuts)).tolist():
        here = order[cuts[shard] : cuts[shard + 1]]
        held = tokens.shard(shard)
        if len(held) < length:
            held = np.resize(held, length)
        windows = np.ndarray((len(held) - length + 1, length), held.dtype, held, strides=held.strides * 2)
        out[here] = windows[begins[here]]
    moved = np.flatnonzero(wanted != begins)  # windows that exceed a shard were shifted into the shard
    columns_in = np.clip(np.arange(length) + (wanted - begins)[moved, np.newaxis], 0, length - 1)
    out[moved] = np.take_along_axis(out[moved], columns_in, axis=1)
    return out


def _copy_unpacked(made: _Examples, block: Batch) -> None:
    """Does the work of `_copy_packed` for one example per row. It is three times as fast, since every example starts at column
    0."""
    np.copyto(block["input_ids"], made.ids, where=made.real, casting="same_kind")
    np.logical_and(made.in_second, made.real, out=block["token_type_ids"], casting="unsafe")
    block["sequence_ids"][...] = made.real
    np.multiply(np.arange(made.ids.shape[1], dtype=np.int32), made.real, out=block["position_ids"])
    block["masked_positions"][...] = np.where(made.positions != UNUSED, made.positions, 0)
    block["masked_targets"][...] = made.targets
    block["cls_positions"][...] = 0
    block["nsp_labels"][...] = made.labels[:, np.newaxis]


def _copy_packed(
    groups: Sequence[tuple[Int64[np.ndarray, " _"], _Examples]],
    row: Int[np.ndarray, " E"],
    slot: Int[np.ndarray, " E"],
    block: Batch,
) -> None:
    """Copies example i of `groups` (from `_by_width`) into slot `slot[i]` of row `row[i]`. The example directly follows the
    example in the previous slot. Rows and slots are ascending."""
    shape = block["nsp_labels"].shape
    length, predicted = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
    for members, made in groups:
        length[members], predicted[members] = made.length, np.count_nonzero(made.positions != UNUSED, axis=1)
    column, first_mask = (_sums_before(counts, row, slot, shape) for counts in (length, predicted))
    for name in ("sequence_ids", "token_type_ids", "position_ids", "masked_positions", "cls_positions"):
        block[name][...] = 0
    block["masked_targets"][...] = block["nsp_labels"][...] = -1
    block["cls_positions"][row, slot] = column
    (rows, L), begins = block["input_ids"].shape, row * block["input_ids"].shape[1] + column
    # In row order and without padding, the tokens of all examples are the tokens of all rows. Such a mask is faster than indices
    # into the flat arrays, in which an example is contiguous.
    filled = (np.arange(L) < np.bincount(row, length, minlength=rows)[:, np.newaxis]).ravel()
    first_mask += row * block["masked_targets"].shape[1]
    of_tokens = {name: block[name].ravel() for name in ("input_ids", "token_type_ids", "sequence_ids", "position_ids")}
    of_masks = {name: block[name].ravel() for name in ("masked_positions", "masked_targets")}
    for members, made in groups:
        block["nsp_labels"][row[members], slot[members]] = made.labels
        place = np.broadcast_to(np.arange(made.ids.shape[1], dtype=np.int32), made.real.shape)[made.real]
        there = filled if len(groups) == 1 else np.repeat(begins[members], made.length) + place
        of_tokens["input_ids"][there] = made.ids[made.real]
        of_tokens["token_type_ids"][there] = made.in_second[made.real]
        of_tokens["sequence_ids"][there] = np.repeat(slot[members] + 1, made.length)
        of_tokens["position_ids"][there] = place
        example, order = np.nonzero(made.positions != UNUSED)
        there = first_mask[members][example] + order
        of_masks["masked_positions"][there] = made.positions[example, order] + column[members][example]
        of_masks["masked_targets"][there] = made.targets[example, order]


def _sums_before(
    values: Int[np.ndarray, " E"], row: Int[np.ndarray, " E"], slot: Int[np.ndarray, " E"], shape: tuple[int, int]
) -> Int64[np.ndarray, " E"]:
    """Returns, for each example, the sum of `values` over the earlier examples in the same row."""
    table = np.zeros(shape, np.int64)
    table[row, slot] = values
    return (np.cumsum(table, axis=1) - table)[row, slot]


def assemble_pairs(
    kind: PairRows, corpus: Corpus, plan: EpochPlan, rows: Int[np.ndarray, " B"], tables: MaskingTables
) -> Batch:
    """Returns the batch of the plan's rows with indices `rows`, with the arrays that `kinds_of_rows.PairRows` lists. Raises
    UserError if the texts of a row are longer than the row."""
    L, vocabulary = plan.config.length, corpus.vocabulary
    examples = plan.rows[rows]
    row, slot = np.nonzero((examples >= 0) & (rows >= 0)[:, np.newaxis])
    batch: Batch = {}
    for prefix, (tokens, length) in zip(("", DECODER), kind.sides(corpus, plan, examples[row, slot], tables), strict=True):
        used = np.bincount(row, length + 1, minlength=len(rows))
        if (used > L).any():
            raise UserError(
                f"{KIND_KEY}={plan.config.targets} puts {counted(int(used.max()), 'token')} into a row of {L:,}; a "
                "text of sides must have fewer tokens than lengths returns for its example"
            )
        width = int(length.max(initial=0)) + 1
        following = np.empty((len(tokens), width), tokens.dtype)
        following[:, :-1] = tokens[:, : width - 1]
        following[np.arange(len(tokens)), length] = vocabulary.sep_id
        ids, column = following, np.arange(width)
        real, filled = column <= length[:, np.newaxis], np.arange(L) < used[:, np.newaxis]
        arrays = {name: np.zeros((len(rows), L), np.int32) for name in INPUTS}
        arrays["input_ids"][...] = vocabulary.pad_id
        # If padding is left out, the tokens of all rows are the tokens of all examples, in the same order.
        if prefix:
            batch["targets"] = np.full((len(rows), L), -1, np.int32)
            batch["targets"][filled] = following[real]
            ids = np.roll(following, 1, axis=1)
            ids[:, 0] = vocabulary.pad_id
        arrays["input_ids"][filled] = ids[real]
        arrays["sequence_ids"][filled] = np.repeat(slot + 1, length + 1)
        arrays["position_ids"][filled] = np.broadcast_to(column, real.shape)[real]
        batch |= {prefix + name: array for name, array in arrays.items()}
    return batch


ROW_LENGTHS = (32, 64, 128, 192, 256, 384, 512)
"""The lengths of packed rows. If a row must be longer, its length is a multiple of 128."""


@dataclasses.dataclass(frozen=True)
class LabelLayout:
    """Describes the label arrays of packed rows, and the axes of the logits.

    By default, each feature has an int32 label and a vector of logits. The labels are [B, U] and the logits [B, U, C].
    """

    shape: tuple[int, ...] = ()
    """The shape of a label. The labels are [B, U, *shape]."""
    dtype: type[np.generic] = np.int32
    per_token: bool = False
    """Whether each token has a label. The labels are then [B, L]. Negative targets do not count in the loss."""
    are_positions: bool = False
    """Whether labels are token positions. In a feature, positions are counted from the start of the feature. In a packed row,
    they are counted from the start of the row."""
    logits_per_token: bool = False
    """Whether there are logits for each token. The logits are then [B, L, C]."""
    logits_per_candidate: bool = False
    """Whether there is a logit for each sequence of a feature. The logits are then [B, P, 1]."""
    read_positions: int = 0
    """The number of tokens per feature that the head reads instead of [CLS]. If it is 0, the head reads [CLS]."""


@dataclasses.dataclass(frozen=True)
class Feature:
    """A model input and its target. The input is one sequence. For multiple choice, it has one sequence per candidate.

    An example usually becomes one feature. A question about a long context becomes several features. `target` is None for test
    sets. Otherwise it is an array with the shape and dtype of the head's `LabelLayout`:

        default        int [] the label, or the index of the right candidate; float [] for regression; float [C] for multi-label
        per_token      int [tokens], -1 for tokens without a label
        are_positions  int [2], the first and the last token of an answer; (0, 0), the [CLS], if there is no answer
    """

    example: int
    """The index of the example in its split."""
    ids: tuple[Int32[np.ndarray, " _"], ...]
    """The token ids of each sequence, with [CLS] and [SEP]."""
    types: tuple[Int32[np.ndarray, " _"], ...]
    """The token types of each sequence."""
    target: Num[np.ndarray, " ..."] | None = None
    read_positions: Int32[np.ndarray, " chosen"] | None = None
    """The positions that the head reads instead of [CLS], e.g. the first tokens of a pronoun and two names. For a per-token
    layout, these are the first subwords of all words to label, even if the labels are unknown."""

    @functools.cached_property
    def size(self) -> int:
        """The number of tokens of all sequences."""
        return sum(len(ids) for ids in self.ids)


@dataclasses.dataclass(frozen=True)
class RowShape:
    """The shape of the packed rows of a data set."""

    layout: LabelLayout
    """The label arrays."""
    length: int
    """L, the length of a row in tokens."""
    features: int
    """U, the maximum number of features in a row."""
    candidates: int = 1
    """The maximum number of sequences of a feature. A row has room for P = U x candidates sequences."""

    @property
    def slots(self) -> int:
        """P, the maximum number of sequences in a row."""
        return self.features * self.candidates


def row_shape(features: Sequence[Feature], layout: LabelLayout) -> RowShape:
    """Returns the shape of rows for `features`. The length of the rows is the smallest length in `ROW_LENGTHS` that fits the
    longest feature. If no length fits, it is a multiple of 128. The rows have room for twice the average number of features per
    row, because more features hardly ever fit."""
    longest = max(feature.size for feature in features)
    length = next((length for length in ROW_LENGTHS if length >= longest), -(-longest // 128) * 128)
    mean = sum(feature.size for feature in features) / len(features)
    return RowShape(layout, length, round(2 * length / mean), max(len(feature.ids) for feature in features))


def pack_features(features: Sequence[Feature], shape: RowShape) -> list[list[int]]:
    """Packs `features` by best-fit decreasing, with at most `shape.features` features in a row. Returns the indices of the
    features in each row."""
    return pack_sizes([feature.size for feature in features], shape)


def pack_sizes(sizes: Sequence[int], shape: RowShape) -> list[list[int]]:
    """Packs features with these numbers of tokens as `pack_features` does."""
    rows = best_fit(sizes, lambda n: shape.length, lambda length: shape.features)
    return [members for _, members in rows]


def assemble_features(
    features: Sequence[Feature], rows: Sequence[Sequence[int]], count: int, shape: RowShape, pad_id: int
) -> Batch:
    """Returns a batch of `count` rows. `rows[r]` has the indices of the `features` in row r. The rows after these are empty.

    The arrays of the batch:

        input_ids, token_type_ids,    int32 [B, L]
        position_ids, sequence_ids
        cls_positions                 int32 [B, P]
        read_positions                int32 [B, U, n], if the layout has read positions
        labels                        [B, U, ...] or [B, L]
        label_weights                 float32 [B, U] or [B, L]; 1 where there is a target, otherwise 0
        word_starts                   int32 [B, L], if the layout is per token; 1 at the first piece of each word to label

    The tokens in slot p of a row have the sequence id p + 1.
    """
    L, P, layout = shape.length, shape.slots, shape.layout
    names = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
    batch: Batch = {name: np.zeros((count, L), np.int32) for name in names}
    batch["input_ids"][:] = pad_id
    batch["cls_positions"] = np.zeros((count, P), np.int32)
    width = L if layout.per_token else shape.features
    labels: np.ndarray = np.zeros((count, width, *layout.shape), layout.dtype)
    weights = np.zeros((count, width), np.float32)
    if layout.per_token:
        batch["word_starts"] = np.zeros((count, L), np.int32)
    if layout.read_positions:
        batch["read_positions"] = np.zeros((count, shape.features, layout.read_positions), np.int32)
    for r, members in enumerate(rows):
        column = 0
        for u, i in enumerate(members):
            feature, start = features[i], column
            for candidate, (ids, types) in enumerate(zip(feature.ids, feature.types, strict=True)):
                slot, end = u * shape.candidates + candidate, column + len(ids)
                batch["input_ids"][r, column:end] = ids
                batch["token_type_ids"][r, column:end] = types
                batch["position_ids"][r, column:end] = np.arange(len(ids))
                batch["sequence_ids"][r, column:end] = slot + 1
                batch["cls_positions"][r, slot] = column
                column = end
            if feature.read_positions is not None and layout.per_token:
                batch["word_starts"][r, start + feature.read_positions] = 1
            elif feature.read_positions is not None:
                batch["read_positions"][r, u] = start + feature.read_positions
            if feature.target is None:
                continue
            if layout.per_token:
                has_label = feature.target >= 0
                labels[r, start:column] = np.where(has_label, feature.target, 0)
                weights[r, start:column] = has_label
            else:
                labels[r, u] = feature.target + (start if layout.are_positions else 0)
                weights[r, u] = 1
    return batch | {"labels": labels, "label_weights": weights}


def feature_logits(
    logits: Float[np.ndarray, "B _ C"], features: Sequence[Feature], rows: Sequence[Sequence[int]], shape: RowShape
) -> list[Float[np.ndarray, " ..."]]:
    """Returns the logits of each of the `features` of a batch, in the order of the features.

    `logits` are float32. Their shape depends on the layout: [B, U, C], [B, L, C] per token, or [B, P, 1] per candidate. The
    logits of a feature are then [C], [tokens, C] or [candidates]. `rows` has the indices of the features in each row of the
    batch.
    """
    layout = shape.layout
    found: dict[int, np.ndarray] = {}
    for r, members in enumerate(rows):
        column = 0
        for u, i in enumerate(members):
            if layout.logits_per_token:
                found[i] = logits[r, column : column + features[i].size]
            elif layout.logits_per_candidate:
                first = u * shape.candidates
                found[i] = logits[r, first : first + len(features[i].ids), 0]
            else:
                found[i] = logits[r, u]
            column += features[i].size
    return [found[i] for i in range(len(features))]
