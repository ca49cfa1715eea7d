"""Continues texts with a left-to-right model, one token at a time: greedy, sampled, or by beam search.

All loops run on the device and stop when every text has ended. The tokens are the same as those of transformers' `generate`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from bert_jax.model.config import ModelConfig
from bert_jax.model.decoding import DecodingCache, empty_cache, read_tokens

NEVER = -1e9
"""The score of beams before the first token and of unfinished texts, which are never chosen."""


@dataclasses.dataclass(frozen=True)
class Decoding:
    """The decoding settings that affect the compiled program."""

    end_id: int
    """The token that ends a text, [SEP]."""
    pad_id: int
    """Fills texts that ended before others."""
    sample: bool = False
    """Whether to sample tokens; False takes the most probable one."""
    top_k: int = 0
    """Samples from this many tokens; 0: from all."""
    nucleus: bool = False
    """Whether to sample from the most probable tokens whose probabilities sum to `top_p` (arXiv:1904.09751)."""
    beams: int = 1
    """The number of hypotheses of beam search; 1: no beam search."""
    pieces: int | None = None
    """The size of the vocabulary, if the model may have more logits; None: all ids can be chosen."""


class Prompts(NamedTuple):
    """B texts to continue, padded on their left."""

    ids: Int[Array, "B T"]
    real: Bool[Array, "B T"]
    keys: Key[Array, " B"]
    """The PRNG key of each text."""


class Knobs(NamedTuple):
    """The decoding settings that do not affect the compiled program."""

    limit: Int[Array, ""] | int
    """The maximum number of new tokens, at most `room`."""
    temperature: Float[Array, ""] | float = 1.0
    """Divides the logits before sampling."""
    top_p: Float[Array, ""] | float = 1.0
    length_penalty: Float[Array, ""] | float = 1.0
    """The score of a hypothesis is its log-probability divided by its length to this power."""


class Search(NamedTuple):
    """The settings and the step of the loops of a compiled program."""

    knobs: Knobs
    decoding: Decoding
    room: int
    """The number of columns for new tokens."""
    read: Callable[[Int[Array, " B"], DecodingCache], tuple[Float[Array, "B V"], DecodingCache]]
    """(the next token of each text, cache) -> (next-token logits, cache)."""


class Continued(NamedTuple):
    """The new tokens of B texts."""

    ids: Int[Array, "B N"]
    """The new tokens including the end token, then padding."""
    log_probability: Float[Array, " B"]
    """The natural log-probability of the new tokens, without temperature."""
    score: Float[Array, " B"] | None = None
    """With beam search, the score of the hypothesis: the log-probability divided by the length to the power `length_penalty`."""


@functools.partial(jax.jit, static_argnames=("config", "decoding", "room"))
def continued(
    params: Mapping[str, Any], prompts: Prompts, knobs: Knobs, *, config: ModelConfig, decoding: Decoding, room: int
) -> Continued:
    """Generates up to `knobs.limit` new tokens per text. `room` is the number of new columns, a shape of the compiled program."""
    rows, length = prompts.ids.shape
    cache = empty_cache(config, rows, length + room)
    logits, cache = read_tokens(params, config, cache, prompts.ids, prompts.real)

    def read(ids: Int[Array, " B"], cache: DecodingCache) -> tuple[Float[Array, "B V"], DecodingCache]:
        return read_tokens(params, config, cache, ids[:, None], jnp.ones((len(ids), 1), bool))

    search = Search(knobs, decoding, room, read)
    return _beam_search(logits, cache, search) if decoding.beams > 1 else _one_by_one(logits, cache, prompts.keys, search)


# ------------------------------------------------------------------------------------------------------ one token after another
def _one_by_one(
    logits: Float[Array, "B V"], cache: DecodingCache, keys: Key[Array, " B"], search: Search
) -> Continued:
    """Generates the most probable or a sampled token each time, starting from `logits`."""
    pad, rows = search.decoding.pad_id, len(logits)

    def add(number: Int[Array, ""], logits: Float[Array, "B V"], text: Continued, ended: Bool[Array, " B"]) -> Any:
        chosen = next_tokens(logits, jax.vmap(jax.random.fold_in, (0, None))(keys, number), search.knobs, search.decoding)
        scores = jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[:, None], axis=1).squeeze(1)
        chosen = jnp.where(ended, pad, chosen)
        total = text.log_probability + jnp.where(ended, 0.0, scores)
        return Continued(text.ids.at[:, number].set(chosen), total), ended | (chosen == search.decoding.end_id)

    def goes_on(state: Any) -> Bool[Array, ""]:
        number, _, _, ended = state
        return (number < search.knobs.limit) & ~ended.all()

    def step(state: Any) -> Any:
        number, cache, text, ended = state
        logits, cache = search.read(text.ids[:, number - 1], cache)
        return number + 1, cache, *add(number, logits, text, ended)

    empty = Continued(jnp.full((rows, search.room), pad, jnp.int32), jnp.zeros(rows))
    state = (jnp.int32(1), cache, *add(jnp.int32(0), logits, empty, jnp.zeros(rows, bool)))
    text: Continued = jax.lax.while_loop(goes_on, step, state)[2]
    return text


def next_tokens(logits: Float[Array, "B V"], keys: Key[Array, " B"], knobs: Knobs, decoding: Decoding) -> Int[Array, " B"]:
    """Returns the next token of each text, the most probable or a sampled one."""
    logits = _of_pieces(logits, decoding)
    if not decoding.sample:
        return logits.argmax(1).astype(jnp.int32)
    allowed = allowed_logits(logits / knobs.temperature, knobs, decoding)
    return jax.vmap(jax.random.categorical)(keys, allowed).astype(jnp.int32)


def _of_pieces(scores: Float[Array, "... V"], decoding: Decoding) -> Float[Array, "... V"]:
    """Sets the scores of ids without a piece to -inf."""
    if decoding.pieces is None or decoding.pieces >= scores.shape[-1]:
        return scores
    return jnp.where(jnp.arange(scores.shape[-1]) < decoding.pieces, scores, -jnp.inf)


def allowed_logits(logits: Float[Array, "B V"], knobs: Knobs, decoding: Decoding) -> Float[Array, "B V"]:
    """Sets the logits of tokens beyond the `top_k` most probable ones, and then of those outside of the nucleus, to -inf.

    The nucleus is the most probable tokens until their probabilities reach `top_p`, and at least one.
    """
    if decoding.top_k:
        least = jax.lax.top_k(logits, min(decoding.top_k, logits.shape[1]))[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if decoding.nucleus:
        ascending = jnp.sort(logits, axis=1)
        outside = jnp.cumsum(jax.nn.softmax(ascending), axis=1) <= 1 - knobs.top_p
        least = jnp.where(outside, jnp.inf, ascending).min(1, keepdims=True)
        least = jnp.minimum(least, ascending[:, -1:])  # the most probable token stays for any top_p
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return logits


# ---------------------------------------------------------------------------------------------------------------- beam search
class _Beams(NamedTuple):
    """The hypotheses of B texts, W beams each."""

    number: Int[Array, ""]  # tokens of the running hypotheses
    ids: Int[Array, "B W N"]  # of the running ones, best first
    scores: Float[Array, "B W"]  # their log-probabilities
    ended_ids: Int[Array, "B W N"]  # the best ones that have ended
    ended_scores: Float[Array, "B W"]  # divided by the length penalty
    ended_totals: Float[Array, "B W"]  # their log-probabilities
    has_ended: Bool[Array, "B W"]
    may_improve: Bool[Array, " B"]  # whether a running hypothesis may still beat those that have ended
    goes_on: Bool[Array, ""]
    cache: DecodingCache


def _beam_search(logits: Float[Array, "B V"], cache: DecodingCache, search: Search) -> Continued:
    """Performs beam search like transformers' default. Among the 2 W best continuations, those within the best W that end the
    text compete with the finished hypotheses; the best W others continue. A text is done when its best running hypothesis, with
    the length penalty of its current length, is worse than its worst finished one."""
    rows, width = len(logits), search.decoding.beams
    nothing = jnp.full((rows, width, search.room), search.decoding.pad_id, jnp.int32)
    first = jnp.broadcast_to(jnp.where(jnp.arange(width) == 0, 0.0, NEVER), (rows, width))
    state = _Beams(
        jnp.int32(0), nothing, first, nothing, jnp.full((rows, width), NEVER), jnp.full((rows, width), NEVER),
        jnp.zeros((rows, width), bool),
        jnp.ones(rows, bool), jnp.bool_(True), _select_rows(cache, jnp.repeat(jnp.arange(rows), width)),
    )  # fmt: skip
    state = _extended(state, jnp.repeat(logits, width, axis=0), search)

    def step(state: _Beams) -> _Beams:
        logits, cache = search.read(state.ids[:, :, state.number - 1].reshape(-1), state.cache)
        return _extended(state._replace(cache=cache), logits, search)

    state = jax.lax.while_loop(lambda state: state.goes_on, step, state)
    return Continued(state.ended_ids[:, 0], state.ended_totals[:, 0], state.ended_scores[:, 0])


def _extended(state: _Beams, logits: Float[Array, "X V"], search: Search) -> _Beams:
    """Extends the hypotheses by one token, from `logits` [B W, V]."""
    knobs, decoding = search.knobs, search.decoding
    rows, width = state.scores.shape
    vocabulary = logits.shape[1]
    probable = _of_pieces(jax.nn.log_softmax(logits), decoding)
    total = (probable.reshape(rows, width, -1) + state.scores[:, :, None]).reshape(rows, -1)
    scores, chosen = jax.lax.top_k(total, 2 * width)
    parents, tokens = chosen // vocabulary, (chosen % vocabulary).astype(jnp.int32)
    ids = _of(state.ids, parents).at[:, :, state.number].set(tokens)
    number = state.number + 1
    ends = (tokens == decoding.end_id) | (number >= knobs.limit)

    running, order = jax.lax.top_k(jnp.where(ends, scores + NEVER, scores), width)
    penalty = number.astype(jnp.float32) ** knobs.length_penalty
    counts = ends & (jnp.arange(2 * width) < width)[None]
    candidates = scores / penalty + jnp.where(counts, 0.0, NEVER) + jnp.where(state.may_improve, 0.0, NEVER)[:, None]
    merged = jnp.concatenate([state.ended_scores, candidates], axis=1)
    ended_scores, best = jax.lax.top_k(merged, width)
    ended_totals = _of(jnp.concatenate([state.ended_totals, scores], axis=1), best)
    ended_ids = _of(jnp.concatenate([state.ended_ids, ids], axis=1), best)
    has_ended = _of(jnp.concatenate([state.has_ended, counts], axis=1), best)

    worst = jnp.where(has_ended, ended_scores.min(1, keepdims=True), NEVER)
    may_improve = state.may_improve & (running[:, :1] / penalty > worst).any(1)
    sources = (jnp.arange(rows)[:, None] * width + _of(parents, order)).reshape(-1)
    return _Beams(
        number, _of(ids, order), running, ended_ids, ended_scores, ended_totals, has_ended, may_improve,
        may_improve.any() & ~ends.all(), _select_rows(state.cache, sources),
    )  # fmt: skip


def _of(array: Array, chosen: Int[Array, "B C"]) -> Array:
    """Returns the hypotheses `chosen` of each text, from `array` [B, W, ...]."""
    return jnp.take_along_axis(array, chosen.reshape(*chosen.shape, *(1,) * (array.ndim - 2)), axis=1)


def _select_rows(cache: DecodingCache, rows: Int[Array, " X"]) -> DecodingCache:
    """Selects rows of the cache, in the given order."""
    layers, tokens = jax.tree.map(lambda x: x[rows], (cache.layers, cache.tokens))
    return dataclasses.replace(cache, layers=layers, tokens=tokens)
