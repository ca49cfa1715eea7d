"""The plan of an epoch has the spans and labels of the examples in every row. It is computed from the sentence lengths only.

No tokens are read. At length 128, a plan takes 0.4 microseconds and 25 bytes per row. The steps, in the order of this file:

    epoch_chunks    sentences -> chunks, the consecutive sentences from which each example is made
    make_pairs      chunks -> the token spans of the segments A and B, truncated to the length of a row
    plan_epoch      runs both steps (`document_spans`), and packs the examples into rows (`example_packing.py`)
    Blocks          the parts of a large corpus, each with its own plan

**Chunks.** The original (create_pretraining_data.py, `create_instances_from_document`) goes through each document. It collects
sentences up to the target length or the end of the document. A random number of these sentences become A. The remaining
sentences become B. If B is a random segment instead, the remaining sentences start the next chunk. The start of a chunk
therefore depends on the random decision of the previous chunk.

In this module all steps are vectorised. For *every* sentence, two things are computed: the chunk that would start with this
sentence, and the start of the chunk after it. The random numbers depend only on the index of the sentence (the target length
depends on the index of the document). Pointer jumping then finds the chunks of the epoch. The number of rounds is the logarithm
of the chunk count of the longest document, so one document of a million sentences takes no longer than many small documents.

In addition to pairs="original" there are
- "paper": The next segment is random with probability exactly 1/2. Therefore a chunk has at least two sentences, even if this
  exceeds the target length. If a single sentence is left over at the end of a document, it is not used (0.3 % of Wikipedia's
  tokens at length 128).
- "successive": A chunk has at least two sentences, as with "paper", but the second segment always follows the first.
- "none": An example has one segment. A sentence that does not fit is truncated and also starts the next chunk. Rows are full
  and no token is lost, but 15 % of Wikipedia's tokens occur twice in an epoch at length 128.

The kind of rows (`kinds_of_rows.py`) chooses how examples are made. With targets="translated" an example is a document of a
parallel corpus, where A is a text and B its translation. A row has room for L tokens of texts and L tokens of translations. A
pair is left out if one side does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt16

from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import BLOCK_TOKENS, Corpus, ShardedOffsets
from bert_jax.data.counter_rng import bernoulli, lower_half, make_key, random_bits, uniform_integers
from bert_jax.data.example_packing import pack_rows, permutation
from bert_jax.errors import UserError
from bert_jax.interface.words import counted

SEGMENTS = 16
"""Segments per block. A segment has 2^25 tokens (80 MB of a corpus), so that the corpus is read in long contiguous parts."""
_BLOCK = 1 << 15  # sentences at a time, so that temporaries of 256 KB stay in the processor's cache

# The last number of the key of a random stream. The first line is for an epoch, the second for chunks and pairs, the third for
# blocks. `example_packing.py` uses 7 and 8.
_PAIRS_KEY, _ROWS_KEY, _MASKS_KEY = 1, 2, 3
_TARGETS, _SPLITS, _OTHER_DOCUMENT, _OTHER_START, _CUT_A, _CUT_B = 1, 2, 3, 4, 5, 6
_BLOCK_KEY, _SEGMENTS_KEY, _ORDER_KEY = 9, 10, 11

_MORE_EVAL = "rerun the corpus command with a larger --eval-fraction (nothing is tokenised again)"
Lengths = TypeVar("Lengths", int, Int64[np.ndarray, " E"])


@dataclass(frozen=True)
class Chunks:
    """Chunks in corpus order. Sentences and documents have indices in the whole corpus."""

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
    """Yields the chunks of an epoch, block by block in corpus order.

    Sentences and documents must not be empty. (A corpus has no empty ones.) The chunks do not depend on the block size.
    """
    sentences, cursor = len(sentence_offsets) - 1, 0
    for first in range(0, sentences, _BLOCK):
        last = min(first + _BLOCK, sentences)
        candidates, following, usable = _candidates(sentence_offsets, document_offsets, first, last, config, key)
        begins = document_offsets[np.searchsorted(document_offsets, first) : np.searchsorted(document_offsets, last)]
        visited = _visited(following - first, np.append(begins, min(cursor, last)) - first)
        if len(visited):
            cursor = int(following[visited[-1]])  # the start of the first chunk of the next block, inside a document
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
    """Returns, for each sentence in [first, last), the chunk that starts with it, the start of the next chunk, and whether the
    chunk becomes an example."""
    start = np.arange(first, last)
    document, document_end, target = _documents(document_offsets, first, last, config, key)

    # The sentence that reaches the target length is the last sentence of the chunk. A sentence has at least one token, so a
    # chunk has at most max_tokens sentences. The search therefore needs at most max_tokens sentences after `last`.
    window = sentence_offsets[first : last + config.max_tokens]
    tokens = window - window[0]
    begin = tokens[: last - first]
    fewest = 1 if config.pairs in ("original", "none") else 2
    end = first + np.searchsorted(tokens, begin + target)
    end = np.minimum(np.maximum(end, start + fewest), document_end)
    count = end - start

    if config.pairs == "none":
        cut = (tokens[end - first] - begin > config.max_tokens) & (count > 1)  # the last sentence does not fit
        split, random_next, usable = end, np.zeros(len(start), bool), np.ones(len(start), bool)
        following = end - cut  # a truncated sentence also starts the next chunk
    else:
        bits = random_bits(make_key(key, _SPLITS), start)
        split = start + 1 + uniform_integers(count - 1, bits)
        usable = count >= fewest
        random_next = (count == 1) | bernoulli(0.5, lower_half(bits))
        random_next &= config.pairs != "successive"
        following = np.where(random_next & usable, split, end)
    return Chunks(start, split, end, document, random_next, target), following, usable


def _documents(
    document_offsets: Int64[np.ndarray, " document_bounds"], first: int, last: int, config: ExampleConfig, key: int
) -> tuple[Int64[np.ndarray, " sentences"], Int64[np.ndarray, " sentences"], Int64[np.ndarray, " sentences"]]:
    """Returns, for every sentence in [first, last), its document, the end of the document, and the target length.

    The target length is a full row. With probability `short_probability`, it is drawn uniformly from [2, full] instead. As in
    the original, it is drawn once per document.
    """
    d0 = int(np.searchsorted(document_offsets, first, side="right")) - 1
    d1 = int(np.searchsorted(document_offsets, last, side="left"))
    documents = np.arange(d0, d1)
    bits = random_bits(make_key(key, _TARGETS), documents)
    full = config.max_tokens
    shorter = np.minimum(2 + uniform_integers(full - 1, lower_half(bits)), full)
    targets = np.where(bernoulli(config.short_probability, bits), shorter, full)
    sizes = np.diff(np.clip(document_offsets[d0 : d1 + 1], first, last))
    return np.repeat(documents, sizes), np.repeat(document_offsets[d0 + 1 : d1 + 1], sizes), np.repeat(targets, sizes)


def _visited(following: Int64[np.ndarray, " sentences"], starts: Int64[np.ndarray, " _"]) -> Int64[np.ndarray, " chosen"]:
    """Returns the positions that are reached from `starts` by following the pointers `following`, in ascending order. A pointer
    past the last position ends a path.

    The algorithm is pointer jumping (Wyllie 1979). After round k, `reached` is True for all positions that are fewer than 2**k
    steps away, and `jump` takes 2**k steps at once.
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


@dataclass(frozen=True)
class Pairs:
    """E examples as spans of the corpus's token ids (21 bytes per example). In a parallel corpus, B is the translation of A. In
    other corpora, B is empty if pairs="none"."""

    a_start: Int64[np.ndarray, " E"]
    b_start: Int64[np.ndarray, " E"]
    a_length: UInt16[np.ndarray, " E"]
    b_length: UInt16[np.ndarray, " E"]
    random_next: Bool[np.ndarray, " E"]


def make_pairs(
    chunks: Chunks,
    sentence_offsets: Int64[np.ndarray, " sentence_bounds"],
    document_offsets: Int64[np.ndarray, " document_bounds"],
    config: ExampleConfig,
    key: int,
) -> Pairs:
    """Returns the spans of each chunk's example. `key` and the index of the chunk's first sentence determine all random
    decisions."""
    a_start = sentence_offsets[chunks.start]
    b_start = sentence_offsets[chunks.split]
    a_length = b_start - a_start
    if config.pairs == "none":
        # If a chunk has several sentences and the last one does not fit, it is truncated here, and it starts the next chunk in
        # full. If a single sentence is longer than a row, a window at a random position is used. Over several epochs, the
        # windows cover the whole sentence.
        cut = np.maximum(a_length - config.max_tokens, 0)
        front = uniform_integers(cut + 1, random_bits(make_key(key, _CUT_A), chunks.start))
        a_start, a_length = a_start + np.where(chunks.end - chunks.start == 1, front, 0), a_length - cut
        b_start, b_length = a_start, np.zeros_like(a_length)
    else:
        b_length = sentence_offsets[chunks.end] - b_start
        where = np.flatnonzero(chunks.random_next)
        b_start[where], b_length[where] = _random_segments(chunks, where, a_length, sentence_offsets, document_offsets, key)
        cut_a, cut_b = truncation(a_length, b_length, config.max_tokens)
        a_start += _cut_at_front(cut_a, make_key(key, _CUT_A), chunks.start)
        b_start += _cut_at_front(cut_b, make_key(key, _CUT_B), chunks.start)
        a_length, b_length = a_length - cut_a, b_length - cut_b
    return Pairs(a_start, b_start, a_length.astype(np.uint16), b_length.astype(np.uint16), chunks.random_next)


def document_spans(
    sentence_offsets: Int64[np.ndarray, " sentence_bounds"],
    document_offsets: Int64[np.ndarray, " document_bounds"],
    config: ExampleConfig,
    key: int,
) -> Pairs:
    """Returns the spans of the examples that are made from the chunks of an epoch."""
    chunks = epoch_chunks(sentence_offsets, document_offsets, config, key)
    parts = [make_pairs(some, sentence_offsets, document_offsets, config, key) for some in chunks]
    return Pairs(**{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Pairs)})


def translations(
    sentence_offsets: Int64[np.ndarray, " sentence_bounds"],
    document_offsets: Int64[np.ndarray, " document_bounds"],
    config: ExampleConfig,
) -> Pairs:
    """Returns the documents of a parallel corpus whose two sides both fit into a row. Each side includes its [SEP]."""
    first = document_offsets[:-1]
    bounds = [sentence_offsets[first + side] for side in range(3)]
    lengths = np.diff(bounds, axis=0)
    fits = lengths.max(axis=0) <= config.max_tokens
    a, b = lengths[:, fits].astype(np.uint16)
    return Pairs(bounds[0][fits], bounds[1][fits], a, b, np.zeros(int(fits.sum()), bool))


def _random_segments(
    chunks: Chunks,
    where: Int64[np.ndarray, " chosen"],
    a_length: Int64[np.ndarray, " chunks"],
    sentence_offsets: Int64[np.ndarray, " sentence_bounds"],
    document_offsets: Int64[np.ndarray, " document_bounds"],
    key: int,
) -> tuple[Int64[np.ndarray, " chosen"], Int64[np.ndarray, " chosen"]]:
    """Returns (start, length) in tokens of one random segment for each chunk with an index in `where`. The segment comes from
    another document.

    Another document and a sentence in it are drawn uniformly. The segment starts with this sentence and continues until A and B
    reach the target length or the document ends. The original draws a document up to ten times, until it is not the chunk's own
    document. It uses the last drawn document in any case. If there are few documents, some "random" segments of the original
    are therefore from the same document.
    """
    start, own = chunks.start[where], chunks.document[where]
    other = uniform_integers(len(document_offsets) - 2, random_bits(make_key(key, _OTHER_DOCUMENT), start))
    other += other >= own
    first, end = document_offsets[other], document_offsets[other + 1]
    sentence = first + uniform_integers(end - first, random_bits(make_key(key, _OTHER_START), start))
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
    """Returns, for each `goal`, the first i in [low, high) with offsets[i] >= goal, or high if there is none.

    This is a binary search, vectorised over the short ranges [low, high), which are contiguous in memory. `np.searchsorted`
    over a large corpus misses the cache in most of its 26 steps. For 40 million sentences, it took 10 of the 17 seconds of a
    plan."""
    while (low < high).any():
        middle = (low + high) >> 1
        reached = offsets[middle] >= goal
        low, high = np.where(reached, low, np.minimum(middle + 1, high)), np.where(reached, middle, high)
    return high


def truncation(a_length: Lengths, b_length: Lengths, max_tokens: int) -> tuple[Lengths, Lengths]:
    """Returns how many tokens to remove from A and from B, so that A and B together have at most `max_tokens`.

    `a_length` and `b_length` are two arrays of lengths, or two ints. The result is the same as in the original
    (create_pretraining_data.py, and `_truncate_seq_pair` of run_classifier.py). The original removes one token at a time from
    the longer segment, or from B if both segments are equally long."""
    excess = np.maximum(a_length + b_length - max_tokens, 0)
    level_a = np.minimum(excess, np.maximum(a_length - b_length, 0))
    level_b = np.minimum(excess, np.maximum(b_length - a_length, 0))
    rest = excess - level_a - level_b
    return level_a + rest // 2, level_b + (rest + 1) // 2


def _cut_at_front(cut: Int64[np.ndarray, " E"], key: np.uint64, counter: Int64[np.ndarray, " E"]) -> Int64[np.ndarray, " E"]:
    """Returns how many of the `cut` tokens are removed at the front. Each token is removed at the front with probability 1/2,
    and otherwise at the end, so the result is the number of ones in `cut` random bits."""
    front = np.zeros(len(cut), np.int64)
    where, left, word = np.flatnonzero(cut), cut[cut > 0], 0
    while len(where):
        bits = random_bits(make_key(int(key), word), counter[where])
        bits >>= np.maximum(64 - left, 0).astype(np.uint64)
        front[where] += np.bitwise_count(bits)
        left = left - 64
        where, left, word = where[left > 0], left[left > 0], word + 1
    return front


@dataclass(frozen=True)
class EpochPlan:
    """The examples of an epoch in rows of at most P examples, as a function of (corpus, config, seed, epoch)."""

    config: ExampleConfig
    pairs: Pairs  # the examples in corpus order
    rows: Int[np.ndarray, "plan_rows P"]  # the indices of the examples in each row, followed by -1 in unused slots
    mask_key: np.uint64  # an example's masks depend on this key and on the example's index, not on the row

    @property
    def num_rows(self) -> int:
        """The number of rows of the epoch."""
        return len(self.rows)

    @property
    def num_examples(self) -> int:
        """The number of examples of the epoch."""
        return len(self.pairs.a_start)

    def lengths(self) -> UInt16[np.ndarray, " E"]:
        """Returns the number of tokens of each example, including special tokens."""
        return self.config.kind.lengths(self.pairs, self.config)

    def summary(self) -> dict[str, float]:
        """Returns statistics for the log. `packing_efficiency` is the minimum number of rows that could hold all tokens,
        divided by the actual number of rows."""
        tokens = self.config.kind.num_tokens(self.pairs, self.config)
        places = self.num_rows * self.config.length
        return {
            "rows": self.num_rows,
            "examples": self.num_examples,
            "examples_per_row": self.num_examples / self.num_rows,
            "random_next_fraction": float(self.pairs.random_next.mean()),
            "padding_fraction": 1 - tokens / places,
            "packing_efficiency": -(-tokens // self.config.length) / self.num_rows,
        }


def plan_epoch(corpus: Corpus, config: ExampleConfig, *, seed: int, epoch: int) -> EpochPlan:
    """Returns the plan of `epoch`. With `duplicates=k`, the epochs e and e + k have the same examples and masks, but in a
    different order.

    Raises UserError if the corpus yields no examples.
    """
    check_corpus(corpus, config)
    version = epoch % config.duplicates if config.duplicates else epoch
    key = int(make_key(seed, version, _PAIRS_KEY))
    pairs = config.kind.spans(*corpus.joined_offsets(), config, key)
    if not len(pairs.a_start) and config.kind.parallel:
        raise UserError(
            f"no pair of the {corpus.split} split ({_sizes(corpus)}) fits into rows of {counted(config.length, 'token')}; "
            "raise length to make the rows longer"
        )
    if not len(pairs.a_start):
        raise UserError(
            f"no example can be made from the {corpus.split} split ({_sizes(corpus)}): with pairs={config.pairs!r}, a "
            "document needs at least two sentences; put one sentence on each line and a blank line between documents, or set "
            "pairs='none'"
        )
    lengths = config.kind.lengths(pairs, config)
    rows = pack_rows(lengths, config.length, config.packed_examples, int(make_key(seed, epoch, _ROWS_KEY)))
    return EpochPlan(config, pairs, rows, make_key(seed, version, _MASKS_KEY))


def check_corpus(corpus: Corpus, config: ExampleConfig) -> None:
    """Raises UserError if the corpus yields no examples."""
    if corpus.num_documents < 1:
        more = _MORE_EVAL if corpus.split == "eval" else "build the corpus from more text"
        raise UserError(f"the {corpus.split} split of the corpus is empty ({_sizes(corpus)}); {more}")
    if config.kind.parallel and corpus.languages is None:
        raise UserError(
            f"the corpus {corpus.directory or ''} holds documents, but translation needs pairs of a text and its translation; "
            "build a corpus of pairs with python -m bert_jax.corpus --source=parallel:GLOB.en:GLOB.de"
        )
    if config.pairs in ("original", "paper") and corpus.num_documents < 2:
        raise UserError(
            f"the {corpus.split} split has only {_sizes(corpus)}, but next sentence prediction needs at least two documents, "
            "because a random segment comes from another document; "
            + (f"{_MORE_EVAL}, or " if corpus.split == "eval" else "put blank lines between the documents of the text, or ")
            + "set pairs='none'"
        )


def _sizes(corpus: Corpus) -> str:
    return f"{counted(corpus.num_documents, 'document')}, {counted(corpus.num_sentences, 'sentence')}"


class Blocks:
    """The blocks of a corpus in training order. Block n is the block with index n % count in epoch n // count.

    A corpus of at most `block_tokens` tokens is a single block. With `duplicates=k` (ExampleConfig), the epochs e and e + k
    have the same blocks, but in a different order.
    """

    def __init__(self, corpus: Corpus, seed: int, duplicates: int = 0, block_tokens: int = BLOCK_TOKENS):
        self._corpus, self._seed, self._duplicates = corpus, seed, duplicates
        self.count = max(1, -(-corpus.num_tokens // block_tokens))
        """The number of blocks of an epoch."""
        self._sentences, self._documents = (
            offsets if isinstance(offsets, ShardedOffsets) else ShardedOffsets([offsets])
            for offsets in (corpus.sentence_offsets, corpus.document_offsets)
        )

    def at(self, block: int) -> tuple[Corpus, int, int]:
        """Returns (texts, seed, epoch) of a block, the arguments of `plan_epoch`."""
        epoch, place = divmod(block, self.count)
        if self.count == 1:
            return self._corpus, self._seed, epoch
        number = int(permutation(self.count, make_key(self._seed, epoch, _ORDER_KEY), np.int64)[place])
        version = epoch % self._duplicates if self._duplicates else epoch
        every = permutation(self.count * SEGMENTS, make_key(self._seed, version, _SEGMENTS_KEY), np.int64)
        part = self._corpus.part([self.documents(segment) for segment in sorted(every[number :: self.count].tolist())])
        return part, int(make_key(self._seed, number, _BLOCK_KEY)), epoch

    def documents(self, segment: int) -> tuple[int, int]:
        """Returns the range [first, last) of the documents that start in the segment. Every document starts in exactly one
        segment."""
        return self._first_document(segment), self._first_document(segment + 1)

    def require_documents(self) -> None:
        """Raises UserError if the documents are so long that a block may be empty. This is the case if no document starts in
        more than half of the segments (at most 256 segments are checked). If the check passes, the probability that a block is
        empty is at most 2^-16."""
        if self.count == 1:
            return
        every = self.count * SEGMENTS
        looked_at = range(0, every, -(-every // 256))
        empty = sum(first == last for first, last in map(self.documents, looked_at))
        if 2 * empty > len(looked_at):
            tokens = self._corpus.num_tokens
            raise UserError(
                f"documents of the {self._corpus.split} split are too long to be mixed: {counted(tokens, 'token')} are in "
                f"{counted(self._corpus.num_documents, 'document')}. Of {len(looked_at)} parts with "
                f"{counted(tokens // every, 'token')} each, {empty} contain no document start; separate documents by blank "
                "lines in the text, or give another layout (python -m bert_jax.corpus --help), and rebuild the corpus"
            )

    def _first_document(self, segment: int) -> int:
        """Returns the index of the first document that starts at or after the start of the segment."""
        token = segment * self._corpus.num_tokens // (self.count * SEGMENTS)
        return self._documents.first_reaching(self._sentences.first_reaching(token))
