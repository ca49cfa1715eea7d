"""Masked language modelling: chooses the predicted tokens, and replaces them in the input.

All functions process E examples at once, before packing, so packed and unpacked examples have the same masks. Random numbers are
passed as arguments, either as keys or as bits. The rules follow the original (create_pretraining_data.py,
`create_masked_lm_predictions`). The docstrings state the differences.

`config.examples.masking` names the mask policy. It is one of `data.MASKING`, or a function in the user's own file. A policy
handles one `Example` at a time:

    def entities(example, rate, rng):  # a pure function of its arguments
        return positions
    entities.whole_words = True        # if it predicts all subwords of a word together

The policies of this module handle all `Examples` at once, which is faster (see `of_all`).
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64, Integer, UInt16, UInt64

from bert_jax.data import MASKING
from bert_jax.data.config import ExampleConfig
from bert_jax.data.counter_rng import hash_bits, lower_half, random_bits, random_bits_32, uniform_integers
from bert_jax.data.tokenizers.tokenizer import Tokenizer, VocabularyInfo
from bert_jax.errors import UserError
from bert_jax.interface.named import is_in_file, load_named

KEY = "config.examples.masking"
UNUSED = np.uint16(0xFFFF)  # fills unused columns of the positions
_NEVER = np.uint64(2**64 - 1)
_PLACEHOLDER = re.compile(r"\[unused\d+\]|<unused\d+>|</?s>")


@dataclass(frozen=True)
class MaskingTables:
    """The properties of a vocabulary that masking needs, as tables."""

    mask_id: int
    legal_ids: Int32[np.ndarray, " legal"]  # the possible random replacements, without special tokens and placeholders
    continuation: Bool[np.ndarray, " V"] | None = None  # whether an id is a `##` subword; None: the corpus stores word starts
    pieces: tuple[str, ...] = ()  # the readable subwords, for users' policies
    spell: Callable[[Sequence[int]], str] | None = None  # the text of a word, given its ids; also for users' policies


@functools.lru_cache(maxsize=4)  # the eval set is evaluated many times
def masking_tables(vocabulary: VocabularyInfo, tokenizer: Tokenizer | None = None) -> MaskingTables:
    """Returns the tables of a vocabulary. If no tokenizer is given, placeholders such as [unused7] are legal and `continuation`
    is None. `continuation` is also None if the subwords do not show whether they continue a word."""
    illegal = set(vocabulary.special_ids)
    if tokenizer:
        pieces = enumerate(tokenizer.pieces)
        illegal |= {i for i, piece in pieces if tokenizer.is_added(piece) or _PLACEHOLDER.fullmatch(piece)}
    legal = np.setdiff1d(np.arange(vocabulary.size, dtype=np.int32), np.array(sorted(illegal), np.int32))
    if tokenizer is None:
        return MaskingTables(vocabulary.mask_id, legal)
    continuation = None if tokenizer.marks_words else tokenizer.continuation_table
    return MaskingTables(vocabulary.mask_id, legal, continuation, tuple(tokenizer.tokens(range(tokenizer.size))), tokenizer.word)


@dataclass(frozen=True)
class Examples:
    """E examples before packing, one per row. They are the input of the policies of this module."""

    config: ExampleConfig
    tables: MaskingTables
    key: UInt64[np.ndarray, "E 1"]  # each example's key for random numbers
    length: Int64[np.ndarray, " E"]  # includes the special tokens
    ids: Integer[np.ndarray, "E L"]  # arbitrary at padding
    candidates: Bool[np.ndarray, "E L"]  # the tokens that may be predicted
    word_starts: Callable[[], Bool[np.ndarray, "E L"]] | None = None  # reads from the corpus whether a candidate begins a word

    @property
    def counts(self) -> Int64[np.ndarray, " E"]:
        """The number of tokens to predict: `masked_fraction` of the tokens, but at most the number of candidates."""
        return np.minimum(self.config.predictions(self.length), np.count_nonzero(self.candidates, axis=1))

    @property
    def continues(self) -> Bool[np.ndarray, "E L"]:
        """Whether a token continues the word of the token before it."""
        if self.word_starts is not None:
            return ~self.word_starts()
        assert self.tables.continuation is not None, "masking words needs the vocabulary's continuation table"
        return self.tables.continuation[self.ids]


Chosen = tuple[UInt16[np.ndarray, "E M"], UInt64[np.ndarray, "E M"] | None]
"""The result of a policy: the positions to predict (ascending, then UNUSED), and the random bits that decide each replacement.
If the bits are None, they are drawn independently for each position."""
Policy = Callable[[Examples], Chosen]


def choose(examples: Examples) -> Chosen:
    """Chooses the positions to predict with the policy in the configuration."""
    policy = _policy(name := examples.config.masking)
    return _choose_one_by_one(examples, policy) if takes_one_example(name) else policy(examples)


def takes_one_example(name: str) -> bool:
    """Returns whether the policy `name` handles one `Example` at a time."""
    return not getattr(_policy(name), "of_all", False)


def masks_whole_words(name: str) -> bool:
    """Returns whether the policy `name` declares that it predicts all subwords of a word together."""
    return getattr(_policy(name), "whole_words", False)


@functools.lru_cache(maxsize=8)  # a run reads the file only once, even if the file changes later
def _policy(name: str) -> Callable[..., Any]:
    policy: Callable[..., Any] = load_named(name, MASKING, KEY)
    if is_in_file(name) or not getattr(policy, "of_all", False):
        try:
            inspect.signature(policy).bind(None, None, None)
        except (TypeError, ValueError) as error:
            wanted = f"def {name.rpartition(':')[2]}(example, rate, rng)"
            raise UserError(f"{KEY}={name} is not a function of three arguments ({error}); write `{wanted}`") from error
    return policy


def of_all(*, whole_words: bool = True, by_length: bool = True) -> Callable[[Policy], Policy]:
    """Declares that a policy of this package handles all examples at once. `whole_words`: it predicts all subwords of a word
    together. `by_length`: it predicts no more than `Examples.counts` tokens of an example. Otherwise, the limit is
    `ExampleConfig.most_pieces`."""

    def declared(policy: Policy) -> Policy:
        vars(policy).update(of_all=True, whole_words=whole_words, by_length=by_length)
        return policy

    return declared


@of_all(whole_words=False)
def mask_tokens(examples: Examples) -> Chosen:
    """Chooses single subwords, as in the paper."""
    config = examples.config
    return choose_tokens(examples.key, examples.candidates, examples.counts, config.max_predictions, config.length), None


@of_all()
def mask_whole_words(examples: Examples) -> Chosen:
    """Chooses all subwords of a word together, until `masked_fraction` of the subwords is reached, as in the original."""
    width = examples.config.max_predictions
    return choose_whole_words(examples.key, examples.candidates, examples.continues, examples.counts, width), None


@of_all(by_length=False)
def mask_words(examples: Examples) -> Chosen:
    """Chooses `masked_fraction` of the words, so that long words are drawn as often as short ones."""
    config, most = examples.config, examples.config.most_pieces(examples.length)
    width, words = config.max_predictions, config.predicted_words
    return choose_whole_words(examples.key, examples.candidates, examples.continues, most, width, words), None


@of_all()
def mask_spans(examples: Examples) -> Chosen:
    """Chooses spans of whole words, as in SpanBERT. The lengths have a geometric distribution, and each span has one kind of
    replacement."""
    width = examples.config.max_predictions
    positions, firsts = choose_spans(examples.key, examples.candidates, examples.continues, examples.counts, width)
    return positions, random_bits(hash_bits(examples.key), firsts)


@dataclass(frozen=True)
class Example:
    """One example before packing. It is the argument of a mask policy that handles one example at a time.

    `policy(example, rate, rng)` returns a sequence of positions to predict, the most important positions first. The positions
    must be in `words`. If there are more than `limit` positions, the last ones are dropped. `rate` is `masked_fraction`. `rng`
    is a numpy generator that depends only on the seed, the epoch and the example. The policy must be a pure function of its
    arguments, since a resumed run recomputes each batch.
    """

    ids: Int32[np.ndarray, " _"]
    """The token ids, with [CLS] and [SEP]."""
    pieces: tuple[str, ...]
    """The subwords with these ids. "##ing" continues a word. In SentencePiece and byte-level BPE, "▁the" begins a word."""
    words: tuple[tuple[int, ...], ...]
    """The positions of each word that may be predicted, in the order of the words. They exclude [CLS], [SEP] and [UNK]."""
    limit: int
    """The maximum number of positions. It is `max_predictions` or, if rows are packed, a part of `max_predictions` that is
    proportional to the example's length."""
    spell: Callable[[Sequence[int]], str]
    """Returns the text of one word, given the ids of the word."""

    def text(self, word: tuple[int, ...]) -> str:
        """Returns the text of one of the `words`."""
        return self.spell([int(self.ids[i]) for i in word]).removeprefix("##").lstrip("\u2581")


def _choose_one_by_one(examples: Examples, policy: Callable[[Example, float, np.random.Generator], Any]) -> Chosen:
    """Chooses positions with a policy that handles one example at a time. Raises UserError if the policy does not return
    integers, or if it returns a position that may not be predicted."""
    config, tables = examples.config, examples.tables
    assert tables.spell is not None, "such a mask policy needs the tokenizer"
    most, begins = config.most_pieces(examples.length), _word_bounds(examples.candidates, examples.continues)[0]
    positions = np.full((len(examples.ids), config.max_predictions), UNUSED, np.uint16)
    for i, length in enumerate(examples.length.tolist()):
        ids, allowed = examples.ids[i, :length].astype(np.int32), np.flatnonzero(examples.candidates[i])
        cuts = np.flatnonzero(begins[i, allowed])[1:]
        words = tuple(tuple(word.tolist()) for word in np.split(allowed, cuts)) if len(allowed) else ()
        example = Example(ids, tuple(tables.pieces[token] for token in ids.tolist()), words, int(most[i]), tables.spell)
        rng = np.random.Generator(np.random.Philox(key=int(examples.key[i, 0])))
        returned = policy(example, config.masked_fraction, rng)
        try:
            chosen = list(dict.fromkeys(map(operator.index, returned)))
        except TypeError as error:
            raise UserError(f"{KEY}={config.masking} returned {returned!r:.60}, not a sequence of integers") from error
        if wrong := set(chosen).difference(allowed.tolist()):
            place = min(wrong)
            what = f"the token {example.pieces[place]!r}" if 0 <= place < length else "outside the example"
            raise UserError(
                f"{KEY}={config.masking} returned the position {place} ({what}) for an example with {length} tokens; return "
                "only positions in example.words"
            )
        kept = sorted(chosen[: example.limit])
        positions[i, : len(kept)] = kept
    return positions, None


def choose_tokens(
    key: UInt64[np.ndarray, "E 1"],
    candidates: Bool[np.ndarray, "E W"],
    counts: Int[np.ndarray, " E"],
    width: int,
    length: int | None = None,
) -> UInt16[np.ndarray, "E _"]:
    """Chooses `counts` random candidates of each example. Returns the positions of the candidates in ascending order, followed
    by `UNUSED`. The result has `width` columns, or fewer columns if `candidates` has fewer.

    `key` has a key for random numbers for each example. `candidates` is True if a token may be predicted. It has at most
    `length` columns, where `length` is the length of a row. If `length` is given, the choice does not depend on the number of
    columns. `counts` is at most the number of candidates and at most `width`.

    The candidates with the smallest random numbers are chosen. For sorting, the position of each candidate replaces the lower
    bits of its random number. This leaves 25 random bits at length 128 and 23 at length 512. If two random numbers are equal,
    which is rare, the candidate on the left is chosen."""
    size = candidates.shape[1]
    width, length = min(width, size), size if length is None else length
    place = np.uint32((1 << (length - 1).bit_length()) - 1)  # the bits that hold a position
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
    word_counts: Callable[[Int[np.ndarray, " E"]], Int[np.ndarray, " E"]] | None = None,
) -> UInt16[np.ndarray, "E _"]:
    """Chooses random whole words, and otherwise works like `choose_tokens`. `continues` is True for tokens that continue the
    word of the previous token.

    As in the original, words are taken in random order until the count is reached. A word that would exceed the count is
    skipped, and smaller words may follow. An example may therefore have fewer predicted tokens than its count, or even none.
    There is one difference. In the original, a `##` subword directly after [SEP] belongs to the last word before [SEP]. Here,
    a word ends at the end of its segment.

    `word_counts` also limits the number of words. It is a function from the number of words to the number of predicted words.

    A cumulative sum finds the first word that does not fit. The remaining room can only shrink, so this word and all later
    words that are larger than the room are removed at once. A few such rounds are enough for every example.
    """
    size = candidates.shape[1]
    positions = np.arange(size, dtype=np.int32)
    begins, following = _word_bounds(candidates, continues)
    heads = np.maximum.accumulate(np.where(begins, positions, 0), axis=1)

    # These sort keys put the words in random order and keep the pieces of a word together. A key has 32 random bits, 16 bits
    # for the position of the head (the first piece of the word), and 16 bits for the position of the piece.
    keys = np.take_along_axis(random_bits_32(key, size), heads, axis=1).astype(np.uint64) << np.uint64(32)
    keys |= (heads << 16 | positions).view(np.uint32)
    np.copyto(keys, _NEVER, where=~candidates)
    keys.sort(axis=1)
    is_candidate = keys != _NEVER
    piece, head = np.where(is_candidate, keys & np.uint64(0xFFFF), 0).astype(np.int32), keys.astype(np.uint32) >> np.uint32(16)
    is_head = piece == head  # never True at a non-candidate
    weight = np.where(is_head, np.take_along_axis(following - positions, piece, axis=1), 0)  # the size of each word, at its head
    if word_counts:
        rank = np.cumsum(is_head, axis=1)
        weight[rank > word_counts(rank[:, -1])[:, np.newaxis]] = 0

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

    word = np.maximum.accumulate(np.where(is_head, positions, 0), axis=1)  # the sorted position of each subword's head
    taken = (np.take_along_axis(weight, word, axis=1) > 0) & is_candidate
    chosen = np.where(taken, piece, UNUSED).astype(np.uint16)
    chosen.sort(axis=1)
    return np.ascontiguousarray(chosen[:, :width])


def choose_spans(
    key: UInt64[np.ndarray, "E 1"],
    candidates: Bool[np.ndarray, "E L"],
    continues: Bool[np.ndarray, "E L"],
    counts: Int[np.ndarray, " E"],
    width: int,
) -> tuple[UInt16[np.ndarray, "E _"], UInt16[np.ndarray, "E _"]]:
    """Chooses spans of whole words until the count is reached (SpanBERT, arXiv:1907.10529, section 3.1). Returns (positions as in
    `choose_whole_words`, the first position of the span that contains each position).

    A span begins at a random unmasked word that fits in the remaining room, and has a random number of words (`span_lengths`).
    The span ends early at the end of its segment, at [UNK], at a masked word, or before a word that would exceed the count
    (SpanBERT cuts this word). Every example therefore reaches its count, unless all remaining words are larger than the room.
    Two spans may touch.

    Each round adds a span to every example that has room left. It uses the next random number of the example's key.
    """
    columns = np.arange(candidates.shape[1], dtype=np.int32)
    begins, following = _word_bounds(candidates, continues)
    firsts = np.full(candidates.shape, UNUSED, np.uint16)
    words = np.where(begins & candidates, following - columns, 0)  # the size of each word that may be masked, at its head
    unsettled, room, draw = np.arange(len(words)), counts.astype(np.int32), 0
    while True:
        fits = (words > 0) & (words <= room[:, np.newaxis])
        choices = np.count_nonzero(fits, axis=1)
        goes_on = choices > 0
        if not goes_on.any():
            break
        if not goes_on.all():
            unsettled, words, room, fits, choices = (x[goes_on] for x in (unsettled, words, room, fits, choices))
        bits = random_bits(key[unsettled, 0], np.full(len(unsettled), draw))
        start = np.argmax(np.cumsum(fits, axis=1, dtype=np.int32) > uniform_integers(choices, bits)[:, np.newaxis], axis=1)
        end, more = start.copy(), span_lengths(lower_half(bits))
        for _ in range(_SPAN_WORDS):
            there = np.minimum(end, len(columns) - 1)
            size = np.where(end < len(columns), words[np.arange(len(words)), there], 0)
            grows = (more > 0) & (end - start + size <= room)
            more = np.where(grows, more - 1, 0)
            end += np.where(grows, size, 0)
        row, column = np.nonzero((columns >= start[:, np.newaxis]) & (columns < end[:, np.newaxis]))
        firsts[unsettled[row], column] = start[row]
        words[row, column] = 0
        room, draw = room - (end - start).astype(np.int32), draw + 1
    positions = np.where(firsts != UNUSED, columns, UNUSED).astype(np.uint16)
    positions.sort(axis=1)
    positions = np.ascontiguousarray(positions[:, :width])
    used = positions != UNUSED
    return positions, np.where(used, np.take_along_axis(firsts, np.where(used, positions, 0), axis=1), UNUSED)


def span_lengths(bits: UInt64[np.ndarray, "*shape"]) -> Int64[np.ndarray, "*shape"]:
    """Returns random span lengths in words, from the upper 32 of `bits`. The lengths have a geometric distribution with p =
    0.2, restricted to 1 to 10. Their mean is 3.8."""
    return 1 + np.searchsorted(_SPAN_BOUNDS, bits >> np.uint64(32), side="right").astype(np.int64)


_SPAN_WORDS = 10  # the maximum number of words of a span
_SPAN_BOUNDS = np.cumsum(0.8 ** np.arange(_SPAN_WORDS))
_SPAN_BOUNDS = np.rint(_SPAN_BOUNDS[:-1] / _SPAN_BOUNDS[-1] * 2**32).astype(np.uint64)


def _word_bounds(
    candidates: Bool[np.ndarray, "E L"], continues: Bool[np.ndarray, "E L"]
) -> tuple[Bool[np.ndarray, "E L"], Int32[np.ndarray, "E L"]]:
    """Returns, for each position, (whether a word begins there, the position at which the next word begins). A token that is
    not a candidate counts as a word."""
    size = candidates.shape[1]
    positions = np.arange(size, dtype=np.int32)
    begins = ~(continues & candidates)
    begins[:, 1:] |= ~candidates[:, :-1]
    following = np.full(begins.shape, size, np.int32)
    following[:, :-1] = np.minimum.accumulate(np.where(begins, positions, size)[:, :0:-1], axis=1)[:, ::-1]
    return begins, following


def replace_tokens(
    tokens: Integer[np.ndarray, "*shape"],
    bits: UInt64[np.ndarray, "*shape"],
    config: ExampleConfig,
    tables: MaskingTables,
    decisions: UInt64[np.ndarray, "*shape"] | None = None,
) -> Integer[np.ndarray, "*shape"]:
    """Returns the replacements of the predicted `tokens`. A replacement is [MASK], a random legal token, or the token itself.

    The upper halves of `decisions` (default: `bits`) decide between these three kinds, so tokens with equal upper halves get
    the same kind of replacement. Random tokens are drawn independently, from `bits`.

    The original draws random tokens from the whole vocabulary, including special tokens and [unusedN], which make up 3 % of it.
    Here only legal ids are drawn.
    """
    decision = (bits if decisions is None else decisions) >> np.uint64(32)
    masked = decision < np.uint64(round(config.mask_probability * 2**32))
    replaced = decision < np.uint64(round((config.mask_probability + config.random_probability) * 2**32))
    random_tokens = tables.legal_ids[uniform_integers(len(tables.legal_ids), lower_half(hash_bits(bits)))]
    return np.where(masked, np.int32(tables.mask_id), np.where(replaced, random_tokens, tokens))
