"""Sentences to chunks: which run of sentences each example is made from, for a whole epoch, from the sentence lengths alone.

The original (create_pretraining_data.py, `create_instances_from_document`) walks each document: it collects sentences until the
target length is reached or the document ends, gives a random number of them to A, and takes the rest as B or, for a random next
segment, puts the rest back for the next chunk. So where a chunk starts depends on the coin of the one before.

Here the walk is turned inside out. For *every* sentence we compute, vectorised, the chunk that would start there and where the
next one would; all its random numbers are functions of the sentence's number. Which of these chunks the walk visits is then
found by pointer jumping, in a number of rounds that is the logarithm of the longest walk: one document of a million sentences
costs no more than many small ones.

Besides pairs="original" there are
- "paper": random next with probability 1/2 exactly, whatever the chunk. So a chunk has two sentences at least, if need be
  beyond the target, and a document's last sentence that is left alone begins no example (0.3 % of Wikipedia's tokens at length
  128).
- "none": one segment. The sentence that does not fit is cut, and begins the next chunk too: rows are full and nothing is lost,
  but 15 % of Wikipedia's tokens come twice an epoch at length 128.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from bert_jax.examples.config import ExampleConfig
from bert_jax.examples.counter import below, chance, key_of, lower, random_bits

_BLOCK = 1 << 15  # sentences at a time: temporaries of 256 KB each, which stay in the processor's cache
_TARGETS, _SPLITS = 1, 2  # purposes of random numbers


@dataclass(frozen=True)
class Chunks:
    """Some chunks in corpus order; sentence and document numbers are those of the whole corpus."""

    start: Int64[np.ndarray, " chunks"]  # first sentence
    split: Int64[np.ndarray, " chunks"]  # first sentence after A
    end: Int64[np.ndarray, " chunks"]  # first sentence after the chunk
    document: Int64[np.ndarray, " chunks"]
    random_next: Bool[np.ndarray, " chunks"]  # B is to come from another document
    target: Int64[np.ndarray, " chunks"]  # tokens wanted in A and B together


def walk(
    sentence_offsets: Int64[np.ndarray, " sentence_bounds"],
    document_offsets: Int64[np.ndarray, " document_bounds"],
    config: ExampleConfig,
    key: int,
) -> Iterator[Chunks]:
    """The chunks of one epoch, block by block in corpus order.

    Sentences and documents must not be empty (the store has none). The result does not depend on the size of a block.
    """
    sentences, cursor = len(sentence_offsets) - 1, 0
    for first in range(0, sentences, _BLOCK):
        last = min(first + _BLOCK, sentences)
        candidates, following, usable = _candidates(sentence_offsets, document_offsets, first, last, config, key)
        begins = document_offsets[np.searchsorted(document_offsets, first) : np.searchsorted(document_offsets, last)]
        visited = _visited(following - first, np.append(begins, min(cursor, last)) - first)
        if len(visited):
            cursor = int(following[visited[-1]])  # where the walk enters the next block, in the midst of a document
        chosen = visited[usable[visited]]
        yield Chunks(**{name: values[chosen] for name, values in vars(candidates).items()})


def _candidates(
    sentence_offsets: Int64[np.ndarray, " sentence_bounds"],
    document_offsets: Int64[np.ndarray, " document_bounds"],
    first: int,
    last: int,
    config: ExampleConfig,
    key: int,
) -> tuple[Chunks, Int64[np.ndarray, " sentences"], Bool[np.ndarray, " sentences"]]:
    """For each sentence in [first, last): the chunk that would start there, where the next would, and whether it can be used."""
    start = np.arange(first, last)
    document, document_end, target = _documents(document_offsets, first, last, config, key)

    # The sentence that reaches the target is the chunk's last. No chunk is longer than max_tokens sentences, since each has a
    # token or more, so the search needs little beyond `last`.
    window = sentence_offsets[first : last + config.max_tokens + 2]
    tokens = window - window[0]
    begin = tokens[: last - first]
    fewest = 2 if config.pairs == "paper" else 1
    end = first + np.searchsorted(tokens, begin + target)
    end = np.minimum(np.maximum(end, start + fewest), document_end)
    count = end - start

    if config.pairs == "none":
        cut = (tokens[end - first] - begin > config.max_tokens) & (count > 1)  # what does not fit of the last sentence
        split, random_next, usable = end, np.zeros(len(start), bool), np.ones(len(start), bool)
        following = end - cut  # is not lost: that sentence also begins the next chunk
    else:
        bits = random_bits(key_of(key, _SPLITS), start)
        split = start + 1 + below(count - 1, bits)
        usable = count >= fewest
        random_next = (count == 1) | chance(0.5, lower(bits))
        following = np.where(random_next & usable, split, end)
    return Chunks(start, split, end, document, random_next, target), following, usable


def _documents(
    document_offsets: Int64[np.ndarray, " document_bounds"], first: int, last: int, config: ExampleConfig, key: int
) -> tuple[Int64[np.ndarray, " sentences"], Int64[np.ndarray, " sentences"], Int64[np.ndarray, " sentences"]]:
    """For every sentence in [first, last): its document, that document's end, and its target length.

    The target is that of a full row or, with `short_probability`, uniform in [2, full]: one draw a document, as in the original.
    """
    d0 = int(np.searchsorted(document_offsets, first, side="right")) - 1
    d1 = int(np.searchsorted(document_offsets, last, side="left"))
    documents = np.arange(d0, d1)
    bits = random_bits(key_of(key, _TARGETS), documents)
    full = config.max_tokens
    targets = np.where(chance(config.short_probability, bits), np.minimum(2 + below(full - 1, lower(bits)), full), full)
    sizes = np.diff(np.clip(document_offsets[d0 : d1 + 1], first, last))
    return np.repeat(documents, sizes), np.repeat(document_offsets[d0 + 1 : d1 + 1], sizes), np.repeat(targets, sizes)


def _visited(
    following: Int64[np.ndarray, " sentences"], starts: Int64[np.ndarray, " _"]
) -> Int64[np.ndarray, " chosen"]:
    """Ascending: all places that are reached from `starts` by following the pointers; one beyond the end leads nowhere.

    Pointer jumping (Wyllie 1979): after round k everything within 2**k steps is reached, and `jump` takes 2**k steps at once.
    """
    size = len(following)
    jump = np.append(np.minimum(following, size), size)
    reached = np.zeros(size + 1, bool)
    reached[starts] = True
    here, before = np.flatnonzero(reached), -1
    while len(here) > before:
        before = len(here)
        reached[jump[here]] = True
        jump = jump[jump]
        here = np.flatnonzero(reached)
    return np.flatnonzero(reached[:size])
