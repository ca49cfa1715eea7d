"""Sentences to chunks: which run of sentences each example is made from, for a whole epoch, from the sentence lengths alone.

The original (create_pretraining_data.py, `create_instances_from_document`) walks each document: it collects sentences until the
target length is reached or the document ends, gives a random number of them to A, and takes the rest as B, or, for a random next
segment, puts the rest back for the next chunk. So where a chunk starts depends on the coin of the one before.

Here the walk is turned inside out. For *every* sentence we compute, vectorised, the chunk that would start there and where the next
would start; all its random numbers are functions of the sentence's number. What is left to do in order is to follow the
`following` pointers from the first sentence of the corpus (the last chunk of a document points at the next document), one list
look-up a chunk: 60 ns, the same for one document of a million sentences as for a million documents of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bert_jax.examples.counter import below, chance, key_of, lower, random_bits
from bert_jax.examples.settings import ExampleConfig

_BLOCK = 1 << 16  # sentences at a time: temporaries of a few MB, which stay in the processor's cache
_TARGETS, _SPLITS = 1, 2  # purposes of random numbers


@dataclass(frozen=True)
class Chunks:
    """Some chunks, C of them, in corpus order; sentence and document numbers are those of the whole corpus."""

    start: np.ndarray  # int64 [C], first sentence
    split: np.ndarray  # int64 [C], first sentence after A
    end: np.ndarray  # int64 [C], first sentence after the chunk
    document: np.ndarray  # int64 [C]
    random_next: np.ndarray  # bool [C], B is to come from another document
    target: np.ndarray  # int64 [C], tokens wanted in A and B together


def walk(sentence_offsets: np.ndarray, document_offsets: np.ndarray, config: ExampleConfig, key: int) -> Iterator[Chunks]:
    """The chunks of one epoch, block by block in corpus order.

    Sentences and documents must not be empty (the store has none). The result does not depend on the size of a block.
    """
    sentences, cursor = len(sentence_offsets) - 1, 0
    for first in range(0, sentences, _BLOCK):
        last = min(first + _BLOCK, sentences)
        candidates, following, usable = _candidates(sentence_offsets, document_offsets, first, last, config, key)
        visited, cursor = _follow(following, first, cursor, last)
        chosen = visited[usable[visited]]
        yield Chunks(**{name: values[chosen] for name, values in vars(candidates).items()})


def _candidates(
    sentence_offsets: np.ndarray, document_offsets: np.ndarray, first: int, last: int, config: ExampleConfig, key: int
) -> tuple[Chunks, np.ndarray, np.ndarray]:
    """For each sentence in [first, last): the chunk that would start there, the start of the next one, whether the chunk is usable."""
    start = np.arange(first, last)
    document, document_end = _documents(document_offsets, first, last)
    target = _targets(document, config, key)

    # The sentence that reaches the target is the chunk's last. No chunk is longer than max_tokens sentences, since each has a token or
    # more, so the search needs little beyond `last`.
    window = sentence_offsets[first : last + config.max_tokens + 2]
    tokens = window - window[0]
    begin = tokens[: last - first]
    fewest = 2 if config.pairs == "paper" else 1
    end = first + np.searchsorted(tokens, begin + target)
    end = np.minimum(np.maximum(end, start + fewest), document_end)
    count = end - start

    if config.pairs == "none":
        cut = (tokens[end - first] - begin > config.max_tokens) & (count > 1)  # the last sentence does not fit: it also begins the next chunk
        split, random_next, usable = end, np.zeros(len(start), bool), np.ones(len(start), bool)
        following = end - cut
    else:
        bits = random_bits(key_of(key, _SPLITS), start)
        split = start + 1 + below(count - 1, bits)
        usable = count >= fewest
        random_next = (count == 1) | chance(0.5, lower(bits))
        following = np.where(random_next & usable, split, end)
    return Chunks(start, split, end, document, random_next, target), following, usable


def _documents(document_offsets: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 [last - first] twice: the document of each sentence in [first, last), and that document's end."""
    d0 = int(np.searchsorted(document_offsets, first, side="right")) - 1
    d1 = int(np.searchsorted(document_offsets, last, side="left"))
    sizes = np.diff(np.clip(document_offsets[d0 : d1 + 1], first, last))
    return np.repeat(np.arange(d0, d1), sizes), np.repeat(document_offsets[d0 + 1 : d1 + 1], sizes)


def _targets(document: np.ndarray, config: ExampleConfig, key: int) -> np.ndarray:
    """int64, the target length: that of a full row, or with `short_probability` uniform in [2, full]; one draw a document, as in the original."""
    bits = random_bits(key_of(key, _TARGETS), document)
    full = config.max_tokens
    short = 2 + below(full - 1, lower(bits))
    return np.where(chance(config.short_probability, bits), np.minimum(short, full), full)


def _follow(following: np.ndarray, first: int, cursor: int, last: int) -> tuple[np.ndarray, int]:
    """The sentences (relative to `first`) at which the walk stops from `cursor` until `last`, and where it goes on."""
    pointers, place, stop = (following - first).tolist(), cursor - first, last - first
    visited = []
    while place < stop:
        visited.append(place)
        place = pointers[place]
    return np.array(visited, np.int64), first + place
