"""Chunks of an epoch: the consecutive sentences from which each example is made, from the sentence lengths alone.

The original (create_pretraining_data.py, `create_instances_from_document`) goes through each document: it collects sentences up
to the target length or the end of the document, takes a random number of them as A, and takes the rest as B or, for a random next
segment, returns the rest to the next chunk. So the start of a chunk depends on the random decision of the chunk before it.

Here all steps are vectorised. For *every* sentence the chunk that would start there and the start of the next chunk are computed;
the random numbers are functions of the sentence's number. Pointer jumping then finds the chunks of the epoch, in a number of
rounds that is the logarithm of the largest number of chunks of a document: one document of a million sentences takes no longer
than many small ones.

Besides pairs="original" there are
- "paper": a random next segment with probability 1/2 exactly. A chunk therefore has at least two sentences, if necessary beyond
  the target length, and a last sentence of a document that is left over is not used (0.3 % of Wikipedia's tokens at length 128).
- "none": one segment. A sentence that does not fit is truncated, and also begins the next chunk: rows are full and no token is
  lost, but at length 128 15 % of Wikipedia's tokens occur twice in an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from bert_jax.data.config import ExampleConfig
from bert_jax.data.counter_rng import bernoulli, key_of, lower_half, random_bits, uniform_integers

_BLOCK = 1 << 15  # sentences at a time: temporaries of 256 KB stay in the processor's cache
_TARGETS, _SPLITS = 1, 2  # the last part of the keys of random numbers


@dataclass(frozen=True)
class Chunks:
    """Chunks in corpus order; sentence and document numbers are those of the whole corpus."""

    start: Int64[np.ndarray, " chunks"]  # the first sentence
    split: Int64[np.ndarray, " chunks"]  # the first sentence after A
    end: Int64[np.ndarray, " chunks"]  # the first sentence after the chunk
    document: Int64[np.ndarray, " chunks"]
    random_next: Bool[np.ndarray, " chunks"]  # whether B comes from another document
    target: Int64[np.ndarray, " chunks"]  # the target length of A and B together, in tokens


def epoch_chunks(
    sentence_offsets: Int64[np.ndarray, " sentence_bounds"],
    document_offsets: Int64[np.ndarray, " document_bounds"],
    config: ExampleConfig,
    key: int,
) -> Iterator[Chunks]:
    """The chunks of an epoch, block by block in corpus order.

    Sentences and documents must not be empty (the store has no empty ones). The result does not depend on the size of a block.
    """
    sentences, cursor = len(sentence_offsets) - 1, 0
    for first in range(0, sentences, _BLOCK):
        last = min(first + _BLOCK, sentences)
        candidates, following, usable = _candidates(sentence_offsets, document_offsets, first, last, config, key)
        begins = document_offsets[np.searchsorted(document_offsets, first) : np.searchsorted(document_offsets, last)]
        visited = _visited(following - first, np.append(begins, min(cursor, last)) - first)
        if len(visited):
            cursor = int(following[visited[-1]])  # the first chunk of the next block starts here, inside a document
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
    """For each sentence in [first, last): the chunk that starts there, the start of the next chunk, and whether it gives an
    example."""
    start = np.arange(first, last)
    document, document_end, target = _documents(document_offsets, first, last, config, key)

    # The sentence that reaches the target length is the last of the chunk. A sentence has at least one token, so a chunk has at
    # most max_tokens sentences, and the search needs no more of them beyond `last`.
    window = sentence_offsets[first : last + config.max_tokens]
    tokens = window - window[0]
    begin = tokens[: last - first]
    fewest = 2 if config.pairs == "paper" else 1
    end = first + np.searchsorted(tokens, begin + target)
    end = np.minimum(np.maximum(end, start + fewest), document_end)
    count = end - start

    if config.pairs == "none":
        cut = (tokens[end - first] - begin > config.max_tokens) & (count > 1)  # the last sentence does not fit
        split, random_next, usable = end, np.zeros(len(start), bool), np.ones(len(start), bool)
        following = end - cut  # a sentence that was truncated also begins the next chunk
    else:
        bits = random_bits(key_of(key, _SPLITS), start)
        split = start + 1 + uniform_integers(count - 1, bits)
        usable = count >= fewest
        random_next = (count == 1) | bernoulli(0.5, lower_half(bits))
        following = np.where(random_next & usable, split, end)
    return Chunks(start, split, end, document, random_next, target), following, usable


def _documents(
    document_offsets: Int64[np.ndarray, " document_bounds"], first: int, last: int, config: ExampleConfig, key: int
) -> tuple[Int64[np.ndarray, " sentences"], Int64[np.ndarray, " sentences"], Int64[np.ndarray, " sentences"]]:
    """For every sentence in [first, last): its document, the end of this document, and the target length.

    The target length is that of a full row, or with probability `short_probability` uniform in [2, full]: one draw for each
    document, as in the original.
    """
    d0 = int(np.searchsorted(document_offsets, first, side="right")) - 1
    d1 = int(np.searchsorted(document_offsets, last, side="left"))
    documents = np.arange(d0, d1)
    bits = random_bits(key_of(key, _TARGETS), documents)
    full = config.max_tokens
    shorter = np.minimum(2 + uniform_integers(full - 1, lower_half(bits)), full)
    targets = np.where(bernoulli(config.short_probability, bits), shorter, full)
    sizes = np.diff(np.clip(document_offsets[d0 : d1 + 1], first, last))
    return np.repeat(documents, sizes), np.repeat(document_offsets[d0 + 1 : d1 + 1], sizes), np.repeat(targets, sizes)


def _visited(
    following: Int64[np.ndarray, " sentences"], starts: Int64[np.ndarray, " _"]
) -> Int64[np.ndarray, " chosen"]:
    """The positions, ascending, that are reached from `starts` by the pointers `following`; a pointer beyond the end stops.

    Pointer jumping (Wyllie 1979): after round k all positions within 2**k steps are reached, and `jump` takes 2**k steps at once.
    """
    size = len(following)
    jump = np.append(np.minimum(following, size), size)
    reached = np.zeros(len(jump), bool)
    reached[starts] = True
    here, before = np.flatnonzero(reached), 0
    while len(here) > before:
        before = len(here)
        reached[jump[here]] = True
        jump = jump[jump]
        here = np.flatnonzero(reached)
    return np.flatnonzero(reached[:size])
