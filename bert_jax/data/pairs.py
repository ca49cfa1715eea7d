"""Segment pairs: the spans of A and B of each chunk in the token store, truncated to the length of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int64, UInt16

from bert_jax.data.chunks import Chunks
from bert_jax.data.config import ExampleConfig
from bert_jax.data.counter_rng import key_of, random_bits, uniform_integers

_OTHER_DOCUMENT, _OTHER_START, _CUT_A, _CUT_B = 3, 4, 5, 6  # the last part of keys; 1 and 2 are in chunks.py

Lengths = TypeVar("Lengths", int, Int64[np.ndarray, " E"])


@dataclass(frozen=True)
class Pairs:
    """E examples as spans of the corpus's token ids, with 21 bytes per example. With pairs="none" B is empty."""

    a_start: Int64[np.ndarray, " E"]
    b_start: Int64[np.ndarray, " E"]
    a_length: UInt16[np.ndarray, " E"]
    b_length: UInt16[np.ndarray, " E"]
    random_next: Bool[np.ndarray, " E"]


def pairs_of(
    chunks: Chunks,
    sentence_offsets: Int64[np.ndarray, " sentence_bounds"],
    document_offsets: Int64[np.ndarray, " document_bounds"],
    config: ExampleConfig,
    key: int,
) -> Pairs:
    """The spans of the example of each chunk; `key` and the number of its first sentence determine all random decisions."""
    a_start = sentence_offsets[chunks.start]
    b_start = sentence_offsets[chunks.split]
    a_length = b_start - a_start
    if config.pairs == "none":
        # The last of several sentences is truncated at the end of the row, and begins the next row. A single sentence that is
        # longer than a row is read in a window at a random place, so that all of it is read over several epochs.
        cut = np.maximum(a_length - config.max_tokens, 0)
        front = uniform_integers(cut + 1, random_bits(key_of(key, _CUT_A), chunks.start))
        a_start, a_length = a_start + np.where(chunks.end - chunks.start == 1, front, 0), a_length - cut
        b_start, b_length = a_start, np.zeros_like(a_length)
    else:
        b_length = sentence_offsets[chunks.end] - b_start
        where = np.flatnonzero(chunks.random_next)
        b_start[where], b_length[where] = _random_segments(chunks, where, a_length, sentence_offsets, document_offsets, key)
        cut_a, cut_b = truncation(a_length, b_length, config.max_tokens)
        a_start += _half_of(cut_a, key_of(key, _CUT_A), chunks.start)
        b_start += _half_of(cut_b, key_of(key, _CUT_B), chunks.start)
        a_length, b_length = a_length - cut_a, b_length - cut_b
    return Pairs(a_start, b_start, a_length.astype(np.uint16), b_length.astype(np.uint16), chunks.random_next)


def _random_segments(
    chunks: Chunks,
    where: Int64[np.ndarray, " chosen"],
    a_length: Int64[np.ndarray, " chunks"],
    sentence_offsets: Int64[np.ndarray, " sentence_bounds"],
    document_offsets: Int64[np.ndarray, " document_bounds"],
    key: int,
) -> tuple[Int64[np.ndarray, " chosen"], Int64[np.ndarray, " chosen"]]:
    """Start and length in tokens of a segment from another document, for the chunks `where`.

    Another document and a sentence in it are drawn uniformly; the segment has at least this sentence, and further ones until A
    and B reach the target length or the document ends. (The original draws up to ten documents, and then takes the last of them
    even if it is that of the chunk: with few documents, some "random" segments are from the same document.)
    """
    start, own = chunks.start[where], chunks.document[where]
    other = uniform_integers(len(document_offsets) - 2, random_bits(key_of(key, _OTHER_DOCUMENT), start))
    other += other >= own
    first, end = document_offsets[other], document_offsets[other + 1]
    sentence = first + uniform_integers(end - first, random_bits(key_of(key, _OTHER_START), start))
    wanted = np.maximum(chunks.target[where] - a_length[where], 1)
    token = sentence_offsets[sentence]
    stop = _first_reaching(sentence_offsets, token + wanted, sentence + 1, np.minimum(sentence + wanted, end))
    return token, sentence_offsets[stop] - token


def _first_reaching(
    offsets: Int64[np.ndarray, " sentence_bounds"],
    goal: Int64[np.ndarray, " chosen"],
    low: Int64[np.ndarray, " chosen"],
    high: Int64[np.ndarray, " chosen"],
) -> Int64[np.ndarray, " chosen"]:
    """For each `goal` the first i in [low, high) with offsets[i] >= goal; high if there is none.

    A vectorised binary search in the short ranges [low, high), which are contiguous in memory. `np.searchsorted` over a large
    corpus would miss the cache in most of its 26 steps, which took 10 of the 17 seconds of a plan for 40 million sentences.
    """
    while (low < high).any():
        middle = (low + high) >> 1
        reached = offsets[middle] >= goal
        low, high = np.where(reached, low, np.minimum(middle + 1, high)), np.where(reached, middle, high)
    return high


def truncation(a_length: Lengths, b_length: Lengths, max_tokens: int) -> tuple[Lengths, Lengths]:
    """The numbers of tokens to remove from A and from B so that both have at most `max_tokens` together.

    a_length, b_length: two arrays of lengths, or two ints. The result is that of the original (create_pretraining_data.py, and
    `_truncate_seq_pair` of run_classifier.py), which removes one token at a time from the longer segment, or from B if both are
    equally long.
    """
    excess = np.maximum(a_length + b_length - max_tokens, 0)
    level_a = np.minimum(excess, np.maximum(a_length - b_length, 0))
    level_b = np.minimum(excess, np.maximum(b_length - a_length, 0))
    rest = excess - level_a - level_b
    return level_a + rest // 2, level_b + (rest + 1) // 2


def _half_of(
    cut: Int64[np.ndarray, " E"], key: np.uint64, counter: Int64[np.ndarray, " E"]
) -> Int64[np.ndarray, " E"]:
    """The number of the `cut` tokens that are removed at the front; each is with probability 1/2: the ones among `cut` random
    bits."""
    front = np.zeros(len(cut), np.int64)
    where, left, word = np.flatnonzero(cut), cut[cut > 0], 0
    while len(where):
        bits = random_bits(key_of(int(key), word), counter[where])
        bits >>= np.maximum(64 - left, 0).astype(np.uint64)
        front[where] += np.bitwise_count(bits)
        left = left - 64
        where, left, word = where[left > 0], left[left > 0], word + 1
    return front
