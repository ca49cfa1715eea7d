"""Masks: which tokens of each example to predict, and what the model sees in their place.

All functions work on E examples at once, each by itself, wherever it stands in its row: packed and unpacked examples get equal
masks. Random numbers are handed in, as keys or bits. The rules are the original's (create_pretraining_data.py,
`create_masked_lm_predictions`); differences are said where they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Int32, Integer, UInt16, UInt64

from bert_jax.corpus.tokenizer import Tokenizer, VocabularyInfo
from bert_jax.examples.config import ExampleConfig
from bert_jax.examples.counter import below, halves, lower, rehash

UNUSED = np.uint16(0xFFFF)  # in place of a position where an example has fewer masks than the widest
_NEVER = np.uint64(2**64 - 1)
_PLACEHOLDER = re.compile(r"\[unused\d+\]|<unused\d+>|</?s>")


@dataclass(frozen=True)
class MaskingTables:
    """What masking must know of the vocabulary."""

    mask_id: int
    legal_ids: Int32[np.ndarray, " legal"]  # the RANDOM share is drawn from them: neither special tokens nor placeholders
    continuation: Bool[np.ndarray, " V"] | None = None  # `##` pieces; only whole-word masking needs it


def masking_tables(vocabulary: VocabularyInfo, tokenizer: Tokenizer | None = None) -> MaskingTables:
    """The tables of a vocabulary. Without its tokenizer, placeholders such as [unused7] are legal, and words are not known."""
    illegal = set(vocabulary.special_ids)
    if tokenizer:
        pieces = enumerate(tokenizer.pieces)
        illegal |= {i for i, piece in pieces if _PLACEHOLDER.fullmatch(piece) or piece in tokenizer.added}
    legal = np.setdiff1d(np.arange(vocabulary.size, dtype=np.int32), np.array(sorted(illegal), np.int32))
    return MaskingTables(vocabulary.mask_id, legal, tokenizer.continuation_table if tokenizer else None)


def choose(
    key: UInt64[np.ndarray, "E 1"], candidates: Bool[np.ndarray, "E L"], counts: Int[np.ndarray, " E"], width: int
) -> UInt16[np.ndarray, "E {width}"]:
    """Ascending positions of the chosen tokens, then `UNUSED`.

    `key` is that of each example's random numbers, `candidates` where masks may fall, `counts` how many are wanted: no more than
    there are candidates, nor than `width`.

    Chosen are the `count` candidates with the smallest random numbers. They are sorted with the position in their lower bits;
    that leaves 25 random bits at length 128 and 23 at 512, and ties, which go to the left, too rare to be measured.
    """
    size = candidates.shape[1]
    place = np.uint32((1 << (size - 1).bit_length()) - 1)  # the bits that hold a position
    keys = halves(key, size) & ~place | np.arange(size, dtype=np.uint32)
    np.copyto(keys, 0xFFFFFFFF, where=~candidates)
    keys.sort(axis=1)
    positions = (keys[:, :width] & place).astype(np.uint16)
    positions[np.arange(width) >= counts[:, np.newaxis]] = UNUSED
    positions.sort(axis=1)
    return positions


def choose_words(
    key: UInt64[np.ndarray, "E 1"],
    candidates: Bool[np.ndarray, "E L"],
    continues: Bool[np.ndarray, "E L"],
    counts: Int[np.ndarray, " E"],
    width: int,
) -> UInt16[np.ndarray, "E {width}"]:
    """As `choose`, but whole words; `continues` says which tokens continue the word of the token before them.

    As in the original: words in random order until the count is reached; a word that would exceed it is skipped, and smaller
    ones may follow. So an example may get fewer masks than its count, in the extreme none. (There, a `##` piece right after
    [SEP] joins the last word before it; here words end with their segment.)

    The words before the first that does not fit are found by a running sum. What room is left then only shrinks, so all later
    words larger than it are struck out together, and a few such rounds settle every example.
    """
    size = candidates.shape[1]
    positions = np.arange(size, dtype=np.int32)
    begins = ~(continues & candidates)
    begins[:, 1:] |= ~candidates[:, :-1]
    heads = np.maximum.accumulate(np.where(begins, positions, 0), axis=1)
    following = np.full(begins.shape, size, np.int32)  # where the next word begins
    following[:, :-1] = np.minimum.accumulate(np.where(begins, positions, size)[:, :0:-1], axis=1)[:, ::-1]

    # Words in random order, their pieces side by side: 32 random bits, 16 for the head's position, 16 for the piece's.
    keys = np.take_along_axis(halves(key, size), heads, axis=1).astype(np.uint64) << np.uint64(32)
    keys |= (heads << 16 | positions).view(np.uint32)
    np.copyto(keys, _NEVER, where=~candidates)
    keys.sort(axis=1)
    taking_part = keys != _NEVER
    piece, head = np.where(taking_part, keys & np.uint64(0xFFFF), 0).astype(np.int32), keys.astype(np.uint32) >> np.uint32(16)
    is_head = (piece == head) & taking_part
    weight = np.where(is_head, np.take_along_axis(following - positions, piece, axis=1), 0)  # a word's size at its first piece

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

    word = np.maximum.accumulate(np.where(is_head, positions, 0), axis=1)  # where in sorted order each piece's word begins
    taken = (np.take_along_axis(weight, word, axis=1) > 0) & taking_part
    chosen = np.where(taken, piece, UNUSED).astype(np.uint16)
    chosen.sort(axis=1)
    return np.ascontiguousarray(chosen[:, :width])


def replace(
    tokens: Integer[np.ndarray, "*shape"], bits: UInt64[np.ndarray, "*shape"], config: ExampleConfig, tables: MaskingTables
) -> Integer[np.ndarray, "*shape"]:
    """The ids in place of the chosen `tokens`, each for itself: [MASK], a random legal token, or the token.

    The original draws random tokens from the whole vocabulary, 3 % of which is special or [unusedN]; here from the legal ids.
    """
    fate = bits >> np.uint64(32)
    masked = fate < np.uint64(round(config.mask_probability * 2**32))
    replaced = fate < np.uint64(round((config.mask_probability + config.random_probability) * 2**32))
    random_tokens = tables.legal_ids[below(len(tables.legal_ids), lower(rehash(bits)))]
    return np.where(masked, np.int32(tables.mask_id), np.where(replaced, random_tokens, tokens))
