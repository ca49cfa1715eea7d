"""Generates tokens one at a time: continues texts with a left-to-right model, and translates sources with an encoder-decoder.
It decodes greedily, by sampling, or by beam search.

All loops run on the device and stop when every text has ended. They return the same tokens as `generate` of transformers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from bert_jax.errors import UserError
from bert_jax.model.cached_decoding import (
    DecodingCache,
    TargetCache,
    continue_targets,
    empty_cache,
    read_targets,
    read_tokens,
    start_targets,
    with_room,
)
from bert_jax.model.config import ModelConfig
from bert_jax.model.tokens import Tokens

NEVER = -1e9
"""The score of hypotheses that must not be chosen. Before the first token, all beams of a text except one have this score.
Places for ended hypotheses have this score while they are empty."""


@dataclasses.dataclass(frozen=True)
class Decoding:
    """The rule by which the next token is chosen."""

    end_id: int
    """The token that ends a text, [SEP]."""
    pad_id: int
    """The token that follows the end of a text until all texts of the batch have ended."""
    sample: bool = False
    """Whether to sample tokens by their probability. False: the most probable token is chosen."""
    top_k: int = 0
    """Samples from this many of the most probable tokens. 0: samples from all tokens."""
    nucleus: bool = False
    """Samples from the most probable tokens whose probabilities sum to `top_p` (arXiv:1904.09751)."""
    beams: int = 1
    """The number of hypotheses of the beam search; 1: no beam search."""
    gnmt_penalty: bool = False
    """Divides the log-probability of a hypothesis of n tokens by ((5 + n) / 6)^`length_penalty`, like GNMT (Wu et al.,
    arXiv:1609.08144, equation 14) and the Transformer of 2017. False: divides the log-probability by n^`length_penalty`,
    like transformers."""
    early_stopping: bool = False
    """Ends the search of a text when `beams` hypotheses have ended, like `early_stopping=True` in transformers. False: ends the
    search when no running hypothesis is expected to beat the worst ended hypothesis."""
    barred: tuple[int, ...] = ()
    """Tokens that are never chosen, like `bad_words_ids` in transformers."""
    forced_end: bool = False
    """If a text reaches the limit, its last token is `end_id`, like `forced_eos_token_id` in transformers."""
    renormalise: bool = False
    """In beam search, normalises the probabilities over the tokens that can be chosen, like `renormalize_logits` in
    transformers. False: normalises the probabilities over all tokens."""
    pieces: int | None = None
    """The size of the vocabulary. Ids from this number on are never chosen. None: all ids can be chosen."""


def check_beams(beams: int, pieces: int) -> None:
    """Raises UserError if a vocabulary of this many `pieces` has no room for `beams` beams, since each step selects the
    2 `beams` most probable pieces (`_most_probable`)."""
    if 2 * beams > pieces:
        raise UserError(f"--beams={beams} must be at most {pieces // 2:,}, half the size of the vocabulary")


class Prompts(NamedTuple):
    """B texts to continue, padded on the left."""

    ids: Int[Array, "B T"]
    real: Bool[Array, "B T"]
    keys: Key[Array, " B"]
    """The random key of each text."""


class Knobs(NamedTuple):
    """Numbers that can change without compiling the program again."""

    limit: Int[Array, ""] | Int[Array, " B"] | int
    """The maximum number of new tokens, at most `room`: one number for all texts, or one number per text."""
    temperature: Float[Array, ""] | float = 1.0
    """Before tokens are sampled, the logits are divided by this number."""
    top_p: Float[Array, ""] | float = 1.0
    length_penalty: Float[Array, ""] | float = 1.0
    """The exponent of the length penalty (see `Decoding.gnmt_penalty`)."""


class Search(NamedTuple):
    """The settings of a decoding loop, and the functions that it calls at each step."""

    knobs: Knobs
    decoding: Decoding
    room: int
    """The number of columns for new tokens."""
    read: Callable[[Int[Array, " X"], Any], tuple[Float[Array, "X V"], Any]]
    """(the last token of each hypothesis, cache) -> (the logits of the next token, cache)."""
    reorder: Callable[[Any, Int[Array, "B W"]], Any] = lambda cache, parents: cache
    """(cache, parents) -> the cache of the new hypotheses. The new hypothesis w of text b continues the old hypothesis
    `parents[b][w]`."""


class Continued(NamedTuple):
    """The new tokens of B texts."""

    ids: Int[Array, "B N"]
    """The new tokens, including the token that ends the text. Padding follows."""
    log_probability: Float[Array, " B"]
    """The sum of the natural log-probabilities of the new tokens. The temperature is not applied."""
    score: Float[Array, " B"] | None = None
    """The score by which beam search ranks hypotheses: the log-probability divided by the length penalty."""


@functools.partial(jax.jit, static_argnames=("config", "decoding", "room"))
def continued(
    params: Mapping[str, Any], prompts: Prompts, knobs: Knobs, *, config: ModelConfig, decoding: Decoding, room: int
) -> Continued:
    """Returns up to `knobs.limit` new tokens for each text. `room` is the number of columns for new tokens. A new
    program is compiled for each value of `room`."""
    rows, length = prompts.ids.shape
    cache = empty_cache(config, rows, length + room)
    logits, cache = read_tokens(params, config, cache, prompts.ids, prompts.real)

    def read(ids: Int[Array, " B"], cache: DecodingCache) -> tuple[Float[Array, "B V"], DecodingCache]:
        return read_tokens(params, config, cache, ids[:, None], jnp.ones((len(ids), 1), bool))

    def reorder(cache: DecodingCache, parents: Int[Array, "B W"]) -> DecodingCache:
        return _select_rows(cache, (jnp.arange(rows)[:, None] * decoding.beams + parents).reshape(-1))

    search = Search(knobs, decoding, room, read, reorder)
    if decoding.beams == 1:
        return _one_by_one(logits, cache, prompts.keys, search)
    repeated = jnp.repeat(jnp.arange(rows), decoding.beams)
    return _beam_search(logits[repeated], _select_rows(cache, repeated), search)


def translated(
    params: Mapping[str, Any],
    source: Tokens,
    knobs: Knobs,
    *,
    config: ModelConfig,
    decoding: Decoding,
    start_id: int,
    room: int,
) -> Continued:
    """Translates each source with an encoder-decoder. Returns the tokens after `start_id`: at most `knobs.limit` tokens, and at
    most `room`.

    The cost of a decoder step grows with the length of its cache. So the first cache has room for 1.5 times as many tokens as
    the longest source, which is enough for most targets. When this cache is full, it is replaced by a cache for `room` tokens.
    """
    shapes: Any = {"config": config, "decoding": decoding, "room": room}
    length = source.ids.shape[1]
    sizes = sorted({min(length + length // 2, room), room})
    state = _before_targets(params, source, start_id=start_id, first_room=sizes[0], **shapes)
    for size in sizes:
        if size > sizes[0]:
            state = _with_room(state, size=size)
        state = _until_full(params, state, knobs, **shapes)
        if not state.goes_on:
            break
    return state.texts()


@functools.partial(jax.jit, static_argnames=("config", "decoding", "start_id", "first_room", "room"))
def _before_targets(
    params: Mapping[str, Any],
    source: Tokens,
    *,
    config: ModelConfig,
    decoding: Decoding,
    start_id: int,
    first_room: int,
    room: int,
) -> _Texts | _Beams:
    """Returns the state of the loop before the first token of each target."""
    rows, width = len(source.ids), decoding.beams
    cache = start_targets(params, config, source, width, first_room)
    if width == 1:
        keys = jax.random.split(jax.random.key(0), rows)  # these keys are only used for sampling
        return _no_texts(keys, cache, start_id, decoding, room)
    return _no_beams(rows, cache, start_id, decoding, room)


@functools.partial(jax.jit, static_argnames=("config", "decoding", "room"))
def _until_full(
    params: Mapping[str, Any], state: _Texts | _Beams, knobs: Knobs, *, config: ModelConfig, decoding: Decoding, room: int
) -> _Texts | _Beams:
    """Continues the targets until all targets have ended or the cache is full. Returns the state."""

    def read(ids: Int[Array, " X"], cache: TargetCache) -> tuple[Float[Array, "X V"], TargetCache]:
        logits, cache = read_targets(params, config, cache, ids.reshape(-1, decoding.beams))
        return logits.reshape(len(ids), -1), cache

    search, size = Search(knobs, decoding, room, read, continue_targets), state.cache.origins.shape[-1]
    step = functools.partial(_next_tokens if decoding.beams == 1 else _next_beams, search=search)
    found: _Texts | _Beams = jax.lax.while_loop(lambda state: state.goes_on & (state.number < size), step, state)
    return found


@functools.partial(jax.jit, static_argnames=("size",))
def _with_room(state: _Texts | _Beams, size: int) -> _Texts | _Beams:
    return state._replace(cache=with_room(state.cache, size))


# ------------------------------------------------------------------------------------------------------ one token after another
class _Texts(NamedTuple):
    """B texts. Each step of the loop adds one token to each text."""

    number: Int[Array, ""]  # the number of tokens so far
    last: Int[Array, " B"]  # the token to read next
    cache: Any
    text: Continued
    ended: Bool[Array, " B"]
    goes_on: Bool[Array, ""]
    keys: Key[Array, " B"]

    def texts(self) -> Continued:
        return self.text


def _no_texts(keys: Key[Array, " B"], cache: Any, start_id: int, decoding: Decoding, room: int) -> _Texts:
    rows = len(keys)
    empty = Continued(jnp.full((rows, room), decoding.pad_id, jnp.int32), jnp.zeros(rows))
    start = jnp.full(rows, start_id, jnp.int32)
    return _Texts(jnp.int32(0), start, cache, empty, jnp.zeros(rows, bool), jnp.bool_(True), keys)


def _one_by_one(
    logits: Float[Array, "B V"], cache: Any, keys: Key[Array, " B"], search: Search
) -> Continued:
    """Chooses one token per text at each step. `logits` are the logits of the first new token."""
    state = _with_tokens(_no_texts(keys, cache, search.decoding.pad_id, search.decoding, search.room), logits, search)
    state = jax.lax.while_loop(lambda state: state.goes_on, functools.partial(_next_tokens, search=search), state)
    return state.text


def _next_tokens(state: _Texts, search: Search) -> _Texts:
    logits, cache = search.read(state.last, state.cache)
    return _with_tokens(state._replace(cache=cache), logits, search)


def _with_tokens(state: _Texts, logits: Float[Array, "B V"], search: Search) -> _Texts:
    """Appends the token chosen by `logits` to each text."""
    number, knobs, decoding = state.number, search.knobs, search.decoding
    allowed = _ended_at_limit(logits, number + 1, search)
    chosen = next_tokens(allowed, jax.vmap(jax.random.fold_in, (0, None))(state.keys, number), knobs, decoding)
    scores = jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[:, None], axis=1).squeeze(1)
    chosen = jnp.where(state.ended, decoding.pad_id, chosen)
    total = state.text.log_probability + jnp.where(state.ended, 0.0, scores)
    ended = state.ended | (chosen == decoding.end_id)
    goes_on = (number + 1 < jnp.max(jnp.asarray(knobs.limit))) & ~ended.all()
    text = Continued(state.text.ids.at[:, number].set(chosen), total)
    return _Texts(number + 1, chosen, state.cache, text, ended, goes_on, state.keys)


def next_tokens(logits: Float[Array, "B V"], keys: Key[Array, " B"], knobs: Knobs, decoding: Decoding) -> Int[Array, " B"]:
    """Returns the next token of each text: the most probable token, or a sampled token."""
    logits = _of_pieces(logits, decoding)
    if not decoding.sample:
        return logits.argmax(1).astype(jnp.int32)
    allowed = allowed_logits(logits / knobs.temperature, knobs, decoding)
    return jax.vmap(jax.random.categorical)(keys, allowed).astype(jnp.int32)


def _of_pieces(scores: Float[Array, "... V"], decoding: Decoding) -> Float[Array, "... V"]:
    """Returns `scores`, with -inf for barred ids and for ids outside the vocabulary."""
    if decoding.barred:
        scores = scores.at[..., jnp.array(decoding.barred)].set(-jnp.inf)
    if decoding.pieces is None or decoding.pieces >= scores.shape[-1]:
        return scores
    return jnp.where(jnp.arange(scores.shape[-1]) < decoding.pieces, scores, -jnp.inf)


def allowed_logits(logits: Float[Array, "B V"], knobs: Knobs, decoding: Decoding) -> Float[Array, "B V"]:
    """Returns `logits` with -inf for tokens that must not be sampled. First, only the `top_k` most probable tokens are kept.
    Then only the nucleus is kept.

    The nucleus is the smallest set of most probable tokens whose probabilities sum to at least `top_p`. It has at least one
    token."""
    if decoding.top_k:
        least = jax.lax.top_k(logits, min(decoding.top_k, logits.shape[1]))[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if decoding.nucleus:
        ascending = jnp.sort(logits, axis=1)
        outside = jnp.cumsum(jax.nn.softmax(ascending), axis=1) <= 1 - knobs.top_p
        least = jnp.where(outside, jnp.inf, ascending).min(1, keepdims=True)
        least = jnp.minimum(least, ascending[:, -1:])  # the most probable token is kept for any top_p
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return logits


# ---------------------------------------------------------------------------------------------------------------- beam search
class _Beams(NamedTuple):
    """The hypotheses of B texts, W beams each."""

    number: Int[Array, ""]  # the number of tokens of the running hypotheses
    last: Int[Array, "B W"]  # the last token of each running hypothesis, which is read next
    ids: Int[Array, "B W N"]  # the tokens of the running hypotheses, best first
    scores: Float[Array, "B W"]  # the log-probabilities of the running hypotheses
    ended_ids: Int[Array, "B W N"]  # the best hypotheses that have ended
    ended_scores: Float[Array, "B W"]  # the log-probabilities of the ended hypotheses, divided by the length penalty
    ended_totals: Float[Array, "B W"]  # the log-probabilities of the ended hypotheses
    has_ended: Bool[Array, "B W"]
    may_improve: Bool[Array, " B"]  # whether a running hypothesis may still beat an ended hypothesis
    goes_on: Bool[Array, ""]
    cache: Any

    def texts(self) -> Continued:
        """Returns the best hypothesis of each text."""
        return Continued(self.ended_ids[:, 0], self.ended_totals[:, 0], self.ended_scores[:, 0])


def _ended_at_limit(scores: Float[Array, "X V"], number: Int[Array, ""], search: Search) -> Float[Array, "X V"]:
    """Returns the `scores` of token `number` (counted from 1). With `forced_end`, if a text is at its limit, the end token gets
    the score 0 and all other tokens get -inf."""
    if not search.decoding.forced_end:
        return scores
    limits = jnp.broadcast_to(jnp.asarray(search.knobs.limit), (len(scores) // search.decoding.beams,))
    last = jnp.repeat(number >= limits, search.decoding.beams)[:, None]
    end = (jnp.arange(scores.shape[1]) == search.decoding.end_id)[None]
    return jnp.where(last, jnp.where(end, 0.0, -jnp.inf), scores)


def _beam_search(logits: Float[Array, "X V"], cache: Any, search: Search) -> Continued:
    """Beam search as transformers does it by default. Each step finds the 2 W best continuations of a text. If a continuation
    ends the text and is among the W best, it competes with the hypotheses that ended earlier. The next step continues the W
    best continuations that do not end the text. The score of a running hypothesis is its log-probability divided by the length
    penalty of its length so far. The search of a text ends when its best running hypothesis scores lower than its worst ended
    hypothesis.
    """
    rows = len(logits) // search.decoding.beams
    state = _extended(_no_beams(rows, cache, search.decoding.pad_id, search.decoding, search.room), logits, search)
    state = jax.lax.while_loop(lambda state: state.goes_on, functools.partial(_next_beams, search=search), state)
    return state.texts()


def _no_beams(rows: int, cache: Any, start_id: int, decoding: Decoding, room: int) -> _Beams:
    width = decoding.beams
    start = jnp.full((rows, width), start_id, jnp.int32)
    nothing = jnp.full((rows, width, room), decoding.pad_id, jnp.int32)
    first = jnp.broadcast_to(jnp.where(jnp.arange(width) == 0, 0.0, NEVER), (rows, width))
    return _Beams(
        jnp.int32(0), start, nothing, first, nothing, jnp.full((rows, width), NEVER), jnp.full((rows, width), NEVER),
        jnp.zeros((rows, width), bool),
        jnp.ones(rows, bool), jnp.bool_(True), cache,
    )  # fmt: skip


def _next_beams(state: _Beams, search: Search) -> _Beams:
    logits, cache = search.read(state.last.reshape(-1), state.cache)
    return _extended(state._replace(cache=cache), logits, search)


def _extended(state: _Beams, logits: Float[Array, "X V"], search: Search) -> _Beams:
    """Appends one token to each hypothesis. `logits` are [B W, V]."""
    knobs, decoding = search.knobs, search.decoding
    rows, width = state.scores.shape
    scores, tokens = _most_probable(logits, state.number + 1, search)
    total = (scores.reshape(rows, width, -1) + state.scores[:, :, None]).reshape(rows, -1)
    scores, chosen = jax.lax.top_k(total, 2 * width)
    parents, tokens = chosen // (2 * width), jnp.take_along_axis(tokens.reshape(rows, -1), chosen, axis=1)
    ids = _of(state.ids, parents).at[:, :, state.number].set(tokens)
    number = state.number + 1
    ends = (tokens == decoding.end_id) | (number >= jnp.broadcast_to(jnp.asarray(knobs.limit), (rows,)))[:, None]

    running, order = jax.lax.top_k(jnp.where(ends, scores + NEVER, scores), width)
    length = number.astype(jnp.float32)
    penalty = ((5.0 + length) / 6.0 if decoding.gnmt_penalty else length) ** knobs.length_penalty
    counts = ends & (jnp.arange(2 * width) < width)[None]
    takes_more = state.may_improve
    if decoding.early_stopping:
        takes_more &= ~state.has_ended.all(1)
    candidates = scores / penalty + jnp.where(counts, 0.0, NEVER) + jnp.where(takes_more, 0.0, NEVER)[:, None]
    merged = jnp.concatenate([state.ended_scores, candidates], axis=1)
    ended_scores, best = jax.lax.top_k(merged, width)
    ended_totals = _of(jnp.concatenate([state.ended_totals, scores], axis=1), best)
    ended_ids = _of(jnp.concatenate([state.ended_ids, ids], axis=1), best)
    has_ended = _of(jnp.concatenate([state.has_ended, counts], axis=1), best)

    worst = jnp.where(has_ended, ended_scores.min(1, keepdims=True), NEVER)
    may_improve = state.may_improve & (running[:, :1] / penalty > worst).any(1)
    goes_on = may_improve.any() & ~ends.all()
    if decoding.early_stopping:
        goes_on &= ~has_ended.all()
    return _Beams(
        number, _of(tokens, order), _of(ids, order), running, ended_ids, ended_scores, ended_totals, has_ended, may_improve,
        goes_on, search.reorder(state.cache, _of(parents, order)),
    )  # fmt: skip


def _most_probable(
    logits: Float[Array, "X V"], number: Int[Array, ""], search: Search
) -> tuple[Float[Array, "X C"], Int[Array, "X C"]]:
    """Returns the 2 W most probable next tokens of each hypothesis, as (log-probabilities, tokens). `number` is the position of
    the next token, counted from 1. With `forced_end`, only the end token is possible at the limit of a text.

    These tokens are enough to find the 2 W best continuations of a text. Log-probabilities are only computed for these tokens,
    so the softmax over all words is not stored."""
    decoding = search.decoding
    allowed = _of_pieces(logits, decoding)
    best, tokens = _largest(allowed, 2 * decoding.beams)
    logits = allowed if decoding.renormalise else logits
    largest = logits.max(1, keepdims=True)
    best = best - largest - jnp.log(jnp.exp(logits - largest).sum(1, keepdims=True))
    best = jnp.where(jnp.isnan(best), jnp.nan, best)  # `top_k` would rank a NaN with a sign, such as inf - inf, below -inf
    if decoding.forced_end:
        limits = jnp.broadcast_to(jnp.asarray(search.knobs.limit), (len(logits) // decoding.beams,))
        last = jnp.repeat(number >= limits, decoding.beams)[:, None]
        first = jnp.arange(2 * decoding.beams) == 0
        best, tokens = jnp.where(last, jnp.where(first, 0.0, -jnp.inf), best), jnp.where(last, decoding.end_id, tokens)
    return best, tokens


GROUP = 32
"""The number of neighbouring words in a group. `_largest` first computes the maximum of each group. To find the 8 largest of
8,000 words in 128 rows, one core of an AMD EPYC takes 0.36 ms with groups of 32, 0.44 ms with groups of 16 or 80, and
1.68 ms with `top_k` of all words."""


def _largest(x: Float[Array, "X V"], count: int) -> tuple[Float[Array, "X C"], Int[Array, "X C"]]:
    """Returns the same as `jax.lax.top_k(x, count)`: the largest values and their columns.

    The largest values are in the `count` groups with the largest maxima. The groups are read from left to right, so that among
    equal values the leftmost come first."""
    rows, columns = x.shape
    groups = -(-columns // GROUP)
    if groups <= count:
        values, chosen = jax.lax.top_k(x, count)
        return values, chosen
    grouped = jnp.pad(x, ((0, 0), (0, groups * GROUP - columns)), constant_values=-jnp.inf).reshape(rows, groups, GROUP)
    largest = jnp.sort(jax.lax.top_k(grouped.max(2), count)[1], axis=1)
    candidates = jnp.take_along_axis(grouped, largest[:, :, None], axis=1).reshape(rows, count * GROUP)
    values, places = jax.lax.top_k(candidates, count)
    return values, jnp.take_along_axis(largest, places // GROUP, axis=1) * GROUP + places % GROUP


def _of(array: Array, chosen: Int[Array, "B C"]) -> Array:
    """Returns the `chosen` hypotheses of each text, from `array` [B, W, ...]."""
    return jnp.take_along_axis(array, chosen.reshape(*chosen.shape, *(1,) * (array.ndim - 2)), axis=1)


def _select_rows(cache: DecodingCache, rows: Int[Array, " X"]) -> DecodingCache:
    """Returns the cache with the given rows, in their order."""
    layers, tokens = jax.tree.map(lambda x: x[rows], (cache.layers, cache.tokens))
    return dataclasses.replace(cache, layers=layers, tokens=tokens)
