"""The words of a text that a vocabulary splits into pieces: those that are worth a piece of their own in a domain."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt64

from bert_jax.data.corpus.store import Corpus
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.errors import UserError

READ = 50_000_000
"""Tokens of a corpus that are read at most."""
SHORTEST = 3
"""Characters of a word that is listed: shorter ones are seldom terms."""
_FEWEST = 5  # times that a word occurs, to be listed
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, so its powers never vanish modulo 2^64


@dataclasses.dataclass(frozen=True)
class SplitWord:
    """A word of two or more pieces."""

    word: str
    pieces: tuple[str, ...]
    count: int
    """How often it is in the corpus."""


@dataclasses.dataclass(frozen=True)
class Splits:
    """The words of a corpus by the pieces that a vocabulary makes of them."""

    words: int
    """Words read, one-character marks among them."""
    pieces: int
    """Their pieces."""
    split: tuple[SplitWord, ...]
    """The words of two or more pieces that occur at least five times, the most frequent first."""

    @property
    def pieces_per_word(self) -> float:
        """The mean number of pieces of a word."""
        return self.pieces / max(self.words, 1)


def find_splits(corpus: Corpus, tokenizer: Tokenizer) -> Splits:
    """The split words in the first `READ` tokens of `corpus`, which `tokenizer` has made. Raises UserError for a tokenizer whose
    pieces do not mark the continuation of words by ##, to which no words can be added."""
    if tokenizer.vocabulary.kind != "wordpiece":
        raise UserError(f"words cannot be added to a {tokenizer.vocabulary.kind} vocabulary; train a new one on this text")
    words = pieces = 0
    counts = collections.Counter[int]()
    made_of: dict[int, tuple[int, ...]] = {}  # hash of a word -> its ids
    for ids in _parts(corpus):
        starts, sizes = _words(tokenizer.continuation_table[ids])
        words, pieces = words + len(starts), pieces + len(ids)
        several = np.flatnonzero(sizes > 1)
        hashes, first, times = np.unique(_hashes(ids, starts, sizes)[several], return_index=True, return_counts=True)
        for key, place, count in zip(hashes.tolist(), several[first].tolist(), times.tolist(), strict=True):
            counts[key] += count
            if key not in made_of:
                made_of[key] = tuple(ids[starts[place] : starts[place] + sizes[place]].tolist())
    listed = []
    for key, count in counts.items():
        names = tuple(tokenizer.pieces[i] for i in made_of[key])
        word = "".join(name.removeprefix("##") for name in names)
        if count >= _FEWEST and len(word) >= SHORTEST and word.isalpha():
            listed.append(SplitWord(word, names, count))
    return Splits(words, pieces, tuple(sorted(listed, key=lambda one: (-one.count, one.word))))


def _parts(corpus: Corpus) -> Iterator[Integer[np.ndarray, " T"]]:
    """The tokens of each shard, until `READ` of them are read."""
    left = READ
    for shard in corpus.tokens.shards:
        yield np.asarray(shard[:left])
        left = max(0, left - len(shard))


def _words(continues: Bool[np.ndarray, " T"]) -> tuple[Int64[np.ndarray, " W"], Int64[np.ndarray, " W"]]:
    """(the place at which each word begins, its number of pieces)."""
    starts = np.flatnonzero(~continues)
    return starts, np.diff(np.append(starts, len(continues)))


def _hashes(
    ids: Integer[np.ndarray, " T"], starts: Int64[np.ndarray, " W"], sizes: Int64[np.ndarray, " W"]
) -> UInt64[np.ndarray, " W"]:
    """A 64-bit polynomial hash of the ids of each word."""
    begin = len(ids) - int(sizes.sum())  # a shard begins with a word, unless it was cut
    offsets = np.arange(begin, len(ids)) - np.repeat(starts, sizes)
    powers = _MULTIPLIER ** np.arange(sizes.max(initial=0), dtype=np.uint64)
    terms = (ids[begin:].astype(np.uint64) + np.uint64(1)) * powers[offsets]
    return np.add.reduceat(terms, starts - begin)
