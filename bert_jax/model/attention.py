"""Self-attention between the tokens of one example: plain, exact, and aware of packed rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.model.config import AttentionKernel, ModelConfig
from bert_jax.model.kernels.attention_plan import MASKED_SCORE
from bert_jax.model.layers import Dense, Dropout, Seed, dropout, gather_positions
from bert_jax.model.matmul import batched_matmul
from bert_jax.model.positions import acts_on, make_positions
from bert_jax.model.tokens import Layer, Tokens

INTERMEDIATES = "intermediates"
"""Flax's collection for what a model computes beside its outputs. Nothing is stored there unless a caller makes it mutable."""
CACHE = "cache"
"""Flax's collection for the keys and values of earlier tokens."""


def attention_mask(query_ids: Int[Array, "B Q"], key_ids: Int[Array, "B L"]) -> Bool[Array, "B 1 Q L"]:
    """The attention mask: True where the key belongs to the example of the query.

    The `sequence_ids` of the queries and of the keys are 0 on padding and 1..P on packed examples, so a packed
    row's mask is block-diagonal. Padding attends to padding: its softmax stays finite, and no other token attends to it.
    """
    return (query_ids[:, :, None] == key_ids[:, None, :])[:, None, :, :]


def not_later(query_positions: Int[Array, "_ Q"], length: int) -> Bool[Array, "_ 1 Q L"]:
    """The mask of left-to-right attention: True where the key, one of the `length` tokens of the row, is the query or stands
    before it. `query_positions` are the positions of the queries in their rows."""
    keys = jnp.arange(length, dtype=query_positions.dtype)[None, None, :]
    return (keys <= query_positions[:, :, None])[:, None, :, :]


def dot_product_attention(
    query: Float[Array, "B H Q K"],
    key: Float[Array, "B H L K"],
    value: Float[Array, "B H L K"],
    mask: Bool[Array, "B 1 Q L"],
    settings: Dropout,
    one_cpu: bool = False,
) -> Float[Array, "B H Q K"]:
    """softmax(Q K^T / sqrt(K)) V with dropout on the probabilities (paper section 3.1, "Attention Is All You Need" section 3.2).

    `settings` is the dropout of the probabilities, with the positions of the queries if only selected tokens are queries. The
    softmax runs in float32. `one_cpu` as in `matmul`.
    """
    return weighted_sum(exponentials(query, key, mask, one_cpu), value, settings, one_cpu)


def exponentials(
    query: Float[Array, "B H Q K"],
    key: Float[Array, "B H L K"],
    mask: Bool[Array, "B 1 Q L"],
    one_cpu: bool = False,
    adjust: Callable[[Float[Array, "B H Q L"]], Float[Array, "B H Q L"]] | None = None,
) -> Float[Array, "B H Q L"]:
    """exp(score - the query's largest score), float32: the attention weights before the division by their sum over the keys.
    `adjust` changes the scores, before the mask."""
    scale = query.shape[-1] ** -0.5
    scores = batched_matmul(query * jnp.asarray(scale, query.dtype), key, (-1, -1), one_cpu).astype(jnp.float32)
    scores = jnp.where(mask, scores if adjust is None else adjust(scores), MASKED_SCORE)
    return jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))


def weighted_sum(
    weights: Float[Array, "B H Q L"],
    value: Float[Array, "B H L K"],
    settings: Dropout,
    one_cpu: bool = False,
) -> Float[Array, "B H Q K"]:
    """The mean of the values by `weights` (`exponentials`), with dropout.

    The division by the sum of the weights comes after the product with V: a pass over [Q, K] instead of one over [Q, L], in the
    backward pass too.
    """
    kept = dropout(weights, settings).astype(value.dtype)
    context = batched_matmul(kept, value, (-1, -2), one_cpu)
    return (context / weights.sum(-1, keepdims=True)).astype(value.dtype)


class SelfAttention(nn.Module):
    """Multi-head self-attention with its output projection, without the residual and its LayerNorm.

    Only the tokens that are read out (`Tokens.queried`) are queries; all tokens are keys and values. Where the collection
    INTERMEDIATES is mutable, the plain implementation stores the attention weights there: see `bert.attention_weights`. Where
    CACHE is mutable, `x` holds only the tokens that are read out, and the keys and values of all tokens are kept there: see
    `decoding.py`.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B _ D"], tokens: Tokens, dropout_seed: Seed | None, layer: Layer
    ) -> Float[Array, "B Q D"]:
        """The projected context of each query."""
        c, dtype, queried = self.config, jnp.dtype(self.config.dtype), tokens.queried
        heads = (c.num_heads, c.head_width)

        def project(name: str, x: Float[Array, "B L D"]) -> Float[Array, "B L H K"]:
            axes = ("embed", "heads", "head_width")
            return Dense((c.hidden_size,), heads, axes, c.initializer_range, dtype, c.target, name=name)(x)

        positions: Any = None
        if acts_on(c, "queries_and_keys") or acts_on(c, "scores"):
            positions = make_positions(c, name="positions")
        settings = tokens.dropout(c.attention_dropout, dropout_seed)
        cached = self.is_mutable_collection(CACHE)
        source = x if queried is None or cached else gather_positions(x, queried)
        query, key, value = (project(name, y) for name, y in (("query", source), ("key", x), ("value", x)))
        if acts_on(c, "queries_and_keys"):
            seen = tokens.only(queried) if cached and queried is not None else tokens
            query, key = positions.queries_and_keys(query, key, seen, layer)
        kernel: AttentionKernel | None = c.kernel("attention") if queried is None else None  # kernels compute every query
        if kernel is not None and kernel.computes(c, x.shape[1]):
            query, key, value = (y.reshape(x.shape) for y in (query, key, value))
            context = kernel((query, key, value), tokens.sequence_ids, num_heads=c.num_heads, dropout=settings)
            context = context.reshape(*x.shape[:2], *heads)
        else:
            query, key, value = (y.swapaxes(1, 2) for y in (query, key, value))
            if cached and queried is not None:
                key, value = (self._kept(name, new, queried[0, 0]) for name, new in (("keys", key), ("values", value)))
            mask = attention_mask(tokens.query_sequence_ids, tokens.sequence_ids)
            if c.direction == "left_to_right":
                length = tokens.sequence_ids.shape[1]
                mask &= not_later(jnp.arange(length)[None] if queried is None else queried, length)
            adjust = functools.partial(positions.scores, tokens=tokens, layer=layer) if acts_on(c, "scores") else None
            weights = exponentials(query, key, mask, c.target.one_cpu, adjust)
            if self.is_mutable_collection(INTERMEDIATES):
                self.sow(INTERMEDIATES, "weights", weights / weights.sum(-1, keepdims=True))
            context = weighted_sum(weights, value, settings, c.target.one_cpu).swapaxes(1, 2)
        axes = ("heads", "head_width", "embed")
        output = Dense(heads, (c.hidden_size,), axes, c.initializer_range, dtype, c.target, name="output")
        return output(context)

    def _kept(self, name: str, new: Float[Array, "B H Q K"], start: Int[Array, ""]) -> Float[Array, "B H L K"]:
        """The array `name` of the cache with the `new` tokens from column `start` on."""
        kept: Array = jax.lax.dynamic_update_slice_in_dim(self.get_variable(CACHE, name), new, start, axis=2)
        self.put_variable(CACHE, name, kept)
        return kept
