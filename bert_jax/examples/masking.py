"""Masks for assembled rows: which tokens to predict, and what the model sees in their place. Pure; the bits are handed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bert_jax.examples.counter import below, lower, rehash
from bert_jax.examples.settings import ExampleConfig

if TYPE_CHECKING:
    from bert_jax.corpus.store import Corpus

NEVER = np.uint64(2**64 - 1)
_COLUMN = np.uint64(0xFFFF)  # lower bits of a key: the column it belongs to


@dataclass(frozen=True)
class MaskingTables:
    """What masking must know of the vocabulary."""

    mask_id: int
    legal_ids: np.ndarray  # int32, replacements for the RANDOM share: every id that is neither special nor [unusedN]
    continuation: np.ndarray | None  # bool [V], True for `##` pieces; for whole-word masking


def masking_tables(corpus: Corpus, config: ExampleConfig) -> MaskingTables:
    """The tables of the corpus's vocabulary."""
    vocabulary = corpus.vocabulary
    special = [vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id]
    legal = np.setdiff1d(np.arange(vocabulary.size, dtype=np.int32), special)
    return MaskingTables(vocabulary.mask_id, legal, None)


def choose(keys: np.ndarray, candidates: np.ndarray, counts: np.ndarray, max_predictions: int) -> np.ndarray:
    """int64 [B, M], ascending columns of the chosen tokens, then L where unused.

    keys: uint64 [B, L], random, the example's place in the row (0..P-1) in the upper 8 bits and the column in the lower 16; `NEVER`
    where no mask may fall. candidates, counts: int64 [B, P], how many keys each example has and how many to choose.
    Within a row the sorted keys hold the examples one after another, each in random order: the first `count` of each are chosen.
    """
    rows, length = keys.shape
    if counts.shape[1] == 1:  # the smallest M are enough, in order since a row takes only its first `count`
        keys = np.partition(keys, max_predictions - 1, axis=1)[:, :max_predictions] if max_predictions < length else keys
    keys = np.sort(keys, axis=1)
    source, used = _slots(candidates, counts, max_predictions)
    columns = np.take_along_axis(keys, source, axis=1) & _COLUMN
    columns = np.where(used, columns, length).astype(np.int64)
    columns.sort(axis=1)
    return columns


def choose_words(keys: np.ndarray, heads: np.ndarray, candidates: np.ndarray, counts: np.ndarray, max_predictions: int) -> np.ndarray:
    """As `choose`, but whole words. heads: int64 [B, L], the column of the first piece of the word that each token belongs to.

    As in the original: words in random order; one that would exceed the count is skipped and smaller ones may still follow. The words
    that fit before the first skip are found by a running sum; what is left then only shrinks, so every later word larger than that is
    out as well, and a few such rounds settle all rows together.
    """
    raise NotImplementedError


def _slots(candidates: np.ndarray, counts: np.ndarray, max_predictions: int) -> tuple[np.ndarray, np.ndarray]:
    """For each of M slots of a row: the place in its sorted keys that fills it (int64 [B, M]), and whether one does (bool [B, M])."""
    slots = np.arange(max_predictions)
    if counts.shape[1] == 1:
        return np.broadcast_to(slots, (len(counts), max_predictions)), slots < counts
    runs = np.concatenate([counts, max_predictions - counts.sum(1, keepdims=True)], axis=1)
    shift = np.cumsum(candidates, 1) - candidates - (np.cumsum(counts, 1) - counts)
    shift = np.concatenate([shift, np.full((len(counts), 1), -max_predictions)], axis=1)
    source = slots + np.repeat(shift.ravel(), runs.ravel()).reshape(len(counts), max_predictions)
    return np.maximum(source, 0), source >= 0


def replace(tokens: np.ndarray, bits: np.ndarray, config: ExampleConfig, tables: MaskingTables) -> np.ndarray:
    """What stands in place of the chosen `tokens` (any shape): [MASK], a random legal token, or the token itself.

    The original draws random tokens from the whole vocabulary, [PAD] and [unused7] included; here from the legal ids.
    """
    fate = bits >> np.uint64(32)
    masked = fate < np.uint64(round(config.mask_probability * 2**32))
    touched = fate < np.uint64(round((config.mask_probability + config.random_probability) * 2**32))
    random_tokens = tables.legal_ids[below(len(tables.legal_ids), lower(rehash(bits)))]
    return np.where(masked, np.int32(tables.mask_id), np.where(touched, random_tokens, tokens))
