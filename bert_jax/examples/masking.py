"""Masks: which tokens of each example to predict, and what the model sees in their place.

All functions work on E examples at once, each by itself, wherever it stands in its row: packed and unpacked examples get equal masks. Bits are
handed in. The rules are the original's (create_pretraining_data.py, `create_masked_lm_predictions`); differences are said where they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from bert_jax.corpus.tokenizer import Tokenizer, VocabularyInfo
from bert_jax.examples.counter import below, lower, rehash
from bert_jax.examples.settings import ExampleConfig

UNUSED = np.uint16(0xFFFF)  # in place of a position where an example has fewer masks than the widest
_NEVER = np.uint64(2**64 - 1)
_PLACEHOLDER = re.compile(r"\[unused\d+\]|<unused\d+>|</?s>")


@dataclass(frozen=True)
class MaskingTables:
    """What masking must know of the vocabulary."""

    mask_id: int
    legal_ids: np.ndarray  # int32, what the RANDOM share is drawn from: every id that is neither special nor a placeholder
    continuation: np.ndarray | None = None  # bool [V], `##` pieces; only whole-word masking needs it


def masking_tables(vocabulary: VocabularyInfo, tokenizer: Tokenizer | None = None) -> MaskingTables:
    """The tables of a vocabulary; without its tokenizer, placeholders such as [unused7] count as legal and whole-word masking is out."""
    illegal = set(vocabulary.special_ids)
    if tokenizer:
        illegal |= {i for i, piece in enumerate(tokenizer.pieces) if _PLACEHOLDER.fullmatch(piece)}
    legal = np.setdiff1d(np.arange(vocabulary.size, dtype=np.int32), np.array(sorted(illegal), np.int32))
    return MaskingTables(vocabulary.mask_id, legal, tokenizer.continuation_table if tokenizer else None)


def choose(bits: np.ndarray, candidates: np.ndarray, counts: np.ndarray, width: int) -> np.ndarray:
    """uint16 [E, width], ascending positions of the chosen tokens, then `UNUSED`.

    bits: uint64 [E, C]; candidates: bool [E, C], where masks may fall; counts: int [E], how many are wanted, no more than there are
    candidates nor than `width`. Chosen are the `count` candidates with the smallest random keys.
    """
    positions = np.arange(bits.shape[1], dtype=np.uint64)
    keys = np.where(candidates, bits & ~np.uint64(UNUSED) | positions, _NEVER)
    if width < keys.shape[1]:
        keys = np.partition(keys, width - 1, axis=1)[:, :width]
    keys = np.sort(keys, axis=1)
    chosen = np.where(np.arange(keys.shape[1]) < counts[:, np.newaxis], keys, _NEVER).astype(np.uint16)
    return _fit(np.sort(chosen, axis=1), width)


def choose_words(bits: np.ndarray, candidates: np.ndarray, begins: np.ndarray, counts: np.ndarray, width: int) -> np.ndarray:
    """As `choose`, but whole words; begins: bool [E, C], where a word begins and at every position that is no candidate.

    As in the original: words in random order until the count is reached; a word that would exceed it is skipped, and smaller ones may
    follow. So an example may get fewer masks than its count, in the extreme none. (There, a `##` piece right after [SEP] joins
    the last word before it; here words end with their segment.)

    The words before the first that does not fit are found by a running sum. What room is left then only shrinks, so all later words larger than
    it are struck out together, and a few such rounds settle every example.
    """
    size = bits.shape[1]
    positions = np.arange(size)
    heads = np.maximum.accumulate(np.where(begins, positions, 0), axis=1)
    following = np.full(begins.shape, size)  # where the next word begins
    following[:, :-1] = np.minimum.accumulate(np.where(begins, positions, size)[:, :0:-1], axis=1)[:, ::-1]

    # Words in random order, their pieces side by side: 34 random bits, the head's position, the piece's position.
    keys = np.take_along_axis(bits, heads, axis=1) >> np.uint64(30) << np.uint64(30)
    keys |= (heads << 15 | positions).astype(np.uint64)
    keys = np.sort(np.where(candidates, keys, _NEVER), axis=1)
    piece, head = (keys & np.uint64(0x7FFF)).astype(np.int64), (keys >> np.uint64(15) & np.uint64(0x7FFF)).astype(np.int64)
    is_head = (piece == head) & (keys != _NEVER)
    piece[keys == _NEVER] = 0
    weight = np.where(is_head, np.take_along_axis(following - positions, piece, axis=1), 0)  # a word's size at its first piece

    unsettled = np.arange(len(bits))
    while len(unsettled):
        part = weight[unsettled]
        total = np.cumsum(part, axis=1)
        over = total > counts[unsettled, np.newaxis]
        exceeds = over.any(axis=1)
        unsettled, part, total, over = unsettled[exceeds], part[exceeds], total[exceeds], over[exceeds]
        first = np.argmax(over, axis=1)[:, np.newaxis]
        room = counts[unsettled, np.newaxis] - np.take_along_axis(total - part, first, axis=1)
        weight[unsettled] = np.where((positions >= first) & (part > room), 0, part)

    word = np.maximum.accumulate(np.where(is_head, positions, 0), axis=1)  # where in sorted order each piece's word begins
    taken = (np.take_along_axis(weight, word, axis=1) > 0) & (keys != _NEVER)
    return _fit(np.sort(np.where(taken, piece, UNUSED).astype(np.uint16), axis=1), width)


def replace(tokens: np.ndarray, bits: np.ndarray, config: ExampleConfig, tables: MaskingTables) -> np.ndarray:
    """int32, what stands in place of the chosen `tokens`, each for itself: [MASK], a random legal token, or the token.

    The original draws random tokens from the whole vocabulary, so that 3 % of them are special or [unusedN]; here from the legal ids.
    """
    fate = bits >> np.uint64(32)
    masked = fate < np.uint64(round(config.mask_probability * 2**32))
    replaced = fate < np.uint64(round((config.mask_probability + config.random_probability) * 2**32))
    random_tokens = tables.legal_ids[below(len(tables.legal_ids), lower(rehash(bits)))]
    return np.where(masked, np.int32(tables.mask_id), np.where(replaced, random_tokens, tokens))


def _fit(positions: np.ndarray, width: int) -> np.ndarray:
    """[E, width]: columns beyond the last position cut off, or `UNUSED` ones added."""
    missing = max(0, width - positions.shape[1])
    return np.pad(positions[:, :width], ((0, 0), (0, missing)), constant_values=UNUSED) if missing else positions[:, :width]
