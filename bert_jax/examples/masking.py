"""Masked language modelling: the choice of the predicted tokens, and their replacements in the input.

All functions process E examples at once, before packing, so packed and unpacked examples have the same masks. Random numbers are
arguments, as keys or bits. The rules are those of the original (create_pretraining_data.py, `create_masked_lm_predictions`);
docstrings state the differences.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Int32, Integer, UInt16, UInt64

from bert_jax.corpus.tokenizer import Tokenizer, VocabularyInfo
from bert_jax.examples.config import ExampleConfig
from bert_jax.examples.counter_rng import lower_half, random_bits_32, rehash, uniform_integers

UNUSED = np.uint16(0xFFFF)  # fills the positions of examples that have fewer predicted tokens than the array has columns
_NEVER = np.uint64(2**64 - 1)
_PLACEHOLDER = re.compile(r"\[unused\d+\]|<unused\d+>|</?s>")


@dataclass(frozen=True)
class MaskingTables:
    """The tables of a vocabulary that masking needs."""

    mask_id: int
    legal_ids: Int32[np.ndarray, " legal"]  # the possible random replacements: neither special tokens nor placeholders
    continuation: Bool[np.ndarray, " V"] | None = None  # whether an id is a `##` piece; only for whole-word masking


def masking_tables(vocabulary: VocabularyInfo, tokenizer: Tokenizer | None = None) -> MaskingTables:
    """The tables of a vocabulary. Without its tokenizer, placeholders such as [unused7] are legal, and `continuation` is None."""
    illegal = set(vocabulary.special_ids)
    if tokenizer:
        pieces = enumerate(tokenizer.pieces)
        illegal |= {i for i, piece in pieces if _PLACEHOLDER.fullmatch(piece) or piece in tokenizer.added}
    legal = np.setdiff1d(np.arange(vocabulary.size, dtype=np.int32), np.array(sorted(illegal), np.int32))
    return MaskingTables(vocabulary.mask_id, legal, tokenizer.continuation_table if tokenizer else None)


def choose_tokens(
    key: UInt64[np.ndarray, "E 1"], candidates: Bool[np.ndarray, "E L"], counts: Int[np.ndarray, " E"], width: int
) -> UInt16[np.ndarray, "E {width}"]:
    """The positions of `counts` random candidates of each example, ascending, then `UNUSED`.

    `key` is the key of the random numbers of each example, `candidates` is True where a token may be predicted, and `counts` is
    at most the number of candidates and at most `width`.

    The candidates with the smallest random numbers are chosen. For sorting, the lower bits of these numbers are replaced by the
    position, which leaves 25 random bits at length 128 and 23 at 512; ties, where the left one is chosen, are negligible.
    """
    size = candidates.shape[1]
    place = np.uint32((1 << (size - 1).bit_length()) - 1)  # the bits that hold a position
    keys = random_bits_32(key, size) & ~place | np.arange(size, dtype=np.uint32)
    np.copyto(keys, 0xFFFFFFFF, where=~candidates)
    keys.sort(axis=1)
    positions = (keys[:, :width] & place).astype(np.uint16)
    positions[np.arange(width) >= counts[:, np.newaxis]] = UNUSED
    positions.sort(axis=1)
    return positions


def choose_whole_words(
    key: UInt64[np.ndarray, "E 1"],
    candidates: Bool[np.ndarray, "E L"],
    continues: Bool[np.ndarray, "E L"],
    counts: Int[np.ndarray, " E"],
    width: int,
) -> UInt16[np.ndarray, "E {width}"]:
    """As `choose_tokens`, but for whole words; `continues` is True for tokens that continue the word of the token before them.

    As in the original, words are taken in random order until the count is reached; a word that would exceed the count is skipped,
    and smaller words may follow. So an example may have fewer predicted tokens than its count, even none. (In the original a `##`
    piece directly after [SEP] belongs to the last word before it; here words end with their segment.)

    A cumulative sum finds the first word that does not fit. The room that is left can only shrink, so all later words that are
    larger are removed at once; a few such rounds are enough for every example.
    """
    size = candidates.shape[1]
    positions = np.arange(size, dtype=np.int32)
    begins = ~(continues & candidates)
    begins[:, 1:] |= ~candidates[:, :-1]
    heads = np.maximum.accumulate(np.where(begins, positions, 0), axis=1)
    following = np.full(begins.shape, size, np.int32)  # the position at which the next word begins
    following[:, :-1] = np.minimum.accumulate(np.where(begins, positions, size)[:, :0:-1], axis=1)[:, ::-1]

    # Sort keys for words in random order with their pieces together: 32 random bits, 16 for the position of the head (the first
    # piece), 16 for that of the piece.
    keys = np.take_along_axis(random_bits_32(key, size), heads, axis=1).astype(np.uint64) << np.uint64(32)
    keys |= (heads << 16 | positions).view(np.uint32)
    np.copyto(keys, _NEVER, where=~candidates)
    keys.sort(axis=1)
    is_candidate = keys != _NEVER
    piece, head = np.where(is_candidate, keys & np.uint64(0xFFFF), 0).astype(np.int32), keys.astype(np.uint32) >> np.uint32(16)
    is_head = (piece == head) & is_candidate
    weight = np.where(is_head, np.take_along_axis(following - positions, piece, axis=1), 0)  # the size of a word at its head

    unsettled = np.arange(len(weight))
    while len(unsettled):
        part = weight[unsettled]
        total = np.cumsum(part, axis=1, dtype=np.int32)
        over = total > counts[unsettled, np.newaxis]
        exceeds = over.any(axis=1)
        unsettled, part, total, over = unsettled[exceeds], part[exceeds], total[exceeds], over[exceeds]
        first = np.argmax(over, axis=1)[:, np.newaxis]
        room = counts[unsettled, np.newaxis] - np.take_along_axis(total - part, first, axis=1)
        weight[unsettled] = np.where((positions >= first) & (part > room), 0, part)

    word = np.maximum.accumulate(np.where(is_head, positions, 0), axis=1)  # the sorted position of the head of each piece
    taken = (np.take_along_axis(weight, word, axis=1) > 0) & is_candidate
    chosen = np.where(taken, piece, UNUSED).astype(np.uint16)
    chosen.sort(axis=1)
    return np.ascontiguousarray(chosen[:, :width])


def replace_tokens(
    tokens: Integer[np.ndarray, "*shape"], bits: UInt64[np.ndarray, "*shape"], config: ExampleConfig, tables: MaskingTables
) -> Integer[np.ndarray, "*shape"]:
    """The replacements of the predicted `tokens`, independent of each other: [MASK], a random legal token, or the token itself.

    The original draws random tokens from the whole vocabulary, 3 % of which are special or [unusedN]; here only legal ids are
    drawn.
    """
    fate = bits >> np.uint64(32)
    masked = fate < np.uint64(round(config.mask_probability * 2**32))
    replaced = fate < np.uint64(round((config.mask_probability + config.random_probability) * 2**32))
    random_tokens = tables.legal_ids[uniform_integers(len(tables.legal_ids), lower_half(rehash(bits)))]
    return np.where(masked, np.int32(tables.mask_id), np.where(replaced, random_tokens, tokens))
