"""Self-attention between the tokens of an example, and the attention of a decoder on its source. Rows may be packed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from bert_jax.errors import UserError
from bert_jax.model.config import AttentionKernel, ModelConfig
from bert_jax.model.kernels import MASKED_SCORE
from bert_jax.model.layers import (
    COLUMN,
    Dense,
    Dropout,
    Seed,
    batched_matmul,
    dropout,
    gather_positions,
    hash_word,
    initializer,
    row_words,
    same_shape,
)
from bert_jax.model.positions import acts_on, make_positions
from bert_jax.model.tokens import Layer, Tokens

INTERMEDIATES = "intermediates"
"""The Flax collection of attention weights. They are stored only if the caller makes the collection mutable."""
CACHE = "cache"
"""The Flax collection of the keys and values of earlier tokens."""


def attention_mask(query_ids: Int[Array, "B Q"], key_ids: Int[Array, "B L"]) -> Bool[Array, "B 1 Q L"]:
    """Returns the attention mask: True if the key and the query belong to the same example.

    Sequence ids are 0 on padding and 1..P on packed examples, so the mask of a packed row is block-diagonal. Padding attends
    only to padding, which keeps the softmax of padding finite.
    """
    return (query_ids[:, :, None] == key_ids[:, None, :])[:, None, :, :]


def not_later(query_positions: Int[Array, "_ Q"], length: int) -> Bool[Array, "_ 1 Q L"]:
    """Returns the mask of left-to-right attention: True if the key is the query's own token or an earlier token. The keys are
    the `length` tokens of a row, and `query_positions` are the positions of the queries."""
    keys = jnp.arange(length, dtype=query_positions.dtype)[None, None, :]
    return (keys <= query_positions[:, :, None])[:, None, :, :]


def near(query_columns: Int[Array, "_ Q"], length: int, radius: int) -> Bool[Array, "_ 1 Q L"]:
    """Returns the mask of a sliding layer: True if the key is at most `radius` tokens (inclusive) before or after the query.
    The keys are the `length` tokens of a row, and `query_columns` are the columns of the queries."""
    keys = jnp.arange(length, dtype=query_columns.dtype)[None, None, :]
    return (jnp.abs(keys - query_columns[:, :, None]) <= radius)[:, None, :, :]


def dot_product_attention(
    query: Float[Array, "B H Q K"],
    key: Float[Array, "B H L K"],
    value: Float[Array, "B H L K"],
    mask: Bool[Array, "B 1 Q L"],
    settings: Dropout,
    one_cpu: bool = False,
) -> Float[Array, "B H Q K"]:
    """Computes softmax(Q K^T / sqrt(K)) V with dropout on the probabilities (paper section 3.1, "Attention Is All You Need"
    section 3.2).

    `settings` is the dropout of the probabilities. If only some tokens are queries, `settings` also holds their positions. The
    softmax runs in float32. `one_cpu` is explained in `matmul`."""
    return weighted_sum(exponentials(query, key, mask, one_cpu), value, settings, one_cpu)


def exponentials(
    query: Float[Array, "B H Q K"],
    key: Float[Array, "B H L K"],
    mask: Bool[Array, "B 1 Q L"],
    one_cpu: bool,
    adjust: Callable[[Float[Array, "B H Q L"]], Float[Array, "B H Q L"]] | None = None,
) -> Float[Array, "B H Q L"]:
    """Returns the attention weights before normalisation, which are exp(score - largest score of the query), float32. `adjust`
    modifies the scores before the mask is applied."""
    scale = query.shape[-1] ** -0.5
    scores = batched_matmul(query * jnp.asarray(scale, query.dtype), key, (-1, -1), one_cpu).astype(jnp.float32)
    scores = jnp.where(mask, scores if adjust is None else adjust(scores), MASKED_SCORE)
    return jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))


def weighted_sum(
    weights: Float[Array, "B H Q L"],
    value: Float[Array, "B H L K"],
    settings: Dropout,
    one_cpu: bool,
) -> Float[Array, "B H Q K"]:
    """Averages the values with unnormalised `weights` (from `exponentials`), with dropout.

    The product with V is divided by the sum of the weights at the end. Normalising the weights first would divide an array [Q,
    L] instead of [Q, K], which is slower, in the backward pass too.
    """
    kept = dropout(weights, settings).astype(value.dtype)
    context = batched_matmul(kept, value, (-1, -2), one_cpu)
    return (context / weights.sum(-1, keepdims=True)).astype(value.dtype)


def attention_by_head(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H L K"],
    value: Float[Array, "B H L K"],
    sequence_ids: Int[Array, "B L"],
    settings: Dropout,
    one_cpu: bool,
    radius: int | None,
) -> Float[Array, "B H L K"]:
    """Computes `dot_product_attention` between all tokens, one head at a time on a single CPU device. With a `radius`, queries
    are processed in blocks. Each block only reads the keys that its window reaches, so the cost grows with the window instead
    of the row.

    On a single CPU device, the heads are computed one after another, and the backward pass recomputes the attention weights.
    The weights of one head fit in the cache, but the weights of all heads would pass through memory a dozen times. The order of
    the heads does not affect the dropout mask.
    """
    rate, words = 0.0, jnp.zeros(query.shape[:3], jnp.uint32)
    if settings.seed is not None:
        rate, words = settings.rate, row_words(settings.seed, query.shape[:3], rows=settings.rows)

    def head(
        query: Float[Array, "L K"], key: Float[Array, "L K"], value: Float[Array, "L K"], ids: Int[Array, " L"], words: Array
    ) -> Float[Array, "L K"]:
        places = jnp.arange(len(ids), dtype=jnp.int32)
        if radius is None:
            blocked = around = with_one_block
        else:
            blocked, around = functools.partial(in_blocks, radius=radius), functools.partial(with_neighbours, radius=radius)
        of_queries, of_keys = blocked(places), around(places)  # [N, C], [N, W]
        mask = blocked(ids, -1)[:, :, None] == around(ids, -2)[:, None, :]
        if radius is not None:
            mask &= abs(of_queries[:, :, None] - of_keys[:, None, :]) <= radius
        weights = exponentials(blocked(query)[:, None], around(key)[:, None], mask[:, None], one_cpu)
        kept = weights
        if rate:
            columns = of_keys.astype(jnp.uint32)[:, None, None, :] * COLUMN
            drawn = hash_word(blocked(words)[:, None, :, None] + columns) >= np.uint32(round(rate * 2**32))
            kept = jnp.where(drawn, weights * np.asarray(1.0 / (1.0 - rate), weights.dtype), jnp.zeros((), weights.dtype))
        context = batched_matmul(kept.astype(value.dtype), around(value)[:, None], (-1, -2), one_cpu)
        context = (context / weights.sum(-1, keepdims=True)).astype(value.dtype)
        return context.reshape(-1, context.shape[-1])[: len(ids)]

    if not one_cpu:
        return jax.vmap(jax.vmap(head, (0, 0, 0, None, 0)))(query, key, value, sequence_ids, words)
    b, h = query.shape[:2]
    *qkv, words = (x.reshape(b * h, *x.shape[2:]) for x in (query, key, value, words))
    arrays = (*qkv, jnp.repeat(sequence_ids, h, axis=0), words)
    context = jax.lax.map(lambda arrays: jax.checkpoint(head)(*arrays), arrays)
    return context.reshape(query.shape)


LONG = 256
"""The smallest row length at which a single CPU device computes attention head by head. All heads at once and head by head were
compared on two cores with four heads of width 64, in float32 with dropout 0.1. Forward and backward took 259 and 149 ms at 8 x
512, and 433 and 352 ms at 4 x 1,024. The forward pass alone took 83 and 32 ms at 8 x 512, and 157 and 54 ms at 4 x 1,024. In
short rows, head by head is slower: the forward pass took 7 and 17 ms at 32 x 128."""
BLOCK = 128
"""The maximum number of queries in a block of sliding-window attention."""


def with_one_block(x: Shaped[Array, "L *_"], fill: int = 0) -> Shaped[Array, "1 L *_"]:
    """Returns all tokens as one block."""
    return x[None]


def in_blocks(x: Shaped[Array, "L *_"], fill: int = 0, *, radius: int) -> Shaped[Array, "N C *_"]:
    """Splits the tokens into blocks of about `radius` tokens, but at most BLOCK. The last block is padded with `fill`."""
    block = min(BLOCK, -(-max(radius, 1) // 16) * 16)
    x = jnp.pad(x, ((0, -len(x) % block), *((0, 0),) * (x.ndim - 1)), constant_values=fill)
    return x.reshape(-1, block, *x.shape[1:])


def with_neighbours(x: Shaped[Array, "L *_"], fill: int = 0, *, radius: int) -> Shaped[Array, "N W *_"]:
    """Returns each block of `in_blocks` together with the blocks on both sides that its window reaches."""
    x = in_blocks(x, fill, radius=radius)
    sides, blocks = -(-radius // x.shape[1]), len(x)
    x = jnp.pad(x, ((sides, sides), *((0, 0),) * (x.ndim - 1)), constant_values=fill)
    return jnp.concatenate([x[i : i + blocks] for i in range(2 * sides + 1)], axis=1)


class SelfAttention(nn.Module):
    """Multi-head self-attention with its output projection, without the residual and its LayerNorm.

    Queries are computed only for the tokens in `Tokens.queried`, but all tokens are keys and values. If the collection
    INTERMEDIATES is mutable, the plain implementation stores the attention weights in it (see `bert.attention_weights`). If
    CACHE is mutable, `x` holds only the queried tokens, and CACHE has the keys and values of all tokens (`cached_decoding.py`).
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B _ D"], tokens: Tokens, dropout_seed: Seed | None, layer: Layer
    ) -> Float[Array, "B Q D"]:
        """Returns the projected context of each query."""
        c, read = self.config, tokens.queried
        queried = read
        positions: Any = None
        if acts_on(c, "queries_and_keys") or acts_on(c, "scores"):
            positions = make_positions(c, name="positions")
        cached = self.is_mutable_collection(CACHE)
        radius = c.sliding_radius if layer.kind == "sliding" else None
        kernel: AttentionKernel | None = None if cached else c.kernel("attention")
        if kernel is not None and not kernel.computes(c, x.shape[1], queried is not None, tokens.visible is not None):
            kernel = None
        if kernel is not None and radius is not None:  # the kernel makes windows from column indices, so it needs all queries
            tokens, queried = tokens.reading(None), None
        settings = tokens.dropout(c.attention_dropout, dropout_seed)
        source = x if queried is None or cached else gather_positions(x, queried)
        query = projection(c, c.num_heads, name="query")(source)
        key, value = (projection(c, c.key_value_heads, name=name)(x) for name in ("key", "value"))
        rotates = kernel is not None and kernel.rotates(c)
        if acts_on(c, "queries_and_keys") and not rotates:
            seen = tokens.only(queried) if cached and queried is not None else tokens
            turned = positions.queries_and_keys(query, key, seen, layer)
            what = f"queries_and_keys of config.model.positions={c.positions}"
            if not isinstance(turned, tuple | list) or len(turned) != 2:
                raise UserError(f"{what} must return a pair, the queries and the keys")
            query, key = (same_shape(what, x, y).astype(x.dtype) for x, y in zip((query, key), turned, strict=True))
        each = c.num_heads // c.key_value_heads  # query heads per key head
        by_head = queried is None and tokens.visible is None and not cached and c.direction == "both"
        by_head &= not acts_on(c, "scores")
        by_head &= not self.is_mutable_collection(INTERMEDIATES)
        by_head &= x.shape[1] > 4 * radius if radius is not None else c.target.one_cpu and x.shape[1] >= LONG
        if kernel is not None:
            qkv = [y.reshape(*y.shape[:2], -1) for y in (query, _repeated(key, each, 2), _repeated(value, each, 2))]
            given: Any = {"num_heads": c.num_heads, "dropout": settings, "radius": radius, "queried": queried}
            if rotates:
                given["angles"] = positions.angles(tokens, layer)
            context = kernel(tuple(qkv), tokens.sequence_ids, **given)
            if read is not None and queried is None:
                context = gather_positions(context, read)
            context = context.reshape(*context.shape[:2], c.num_heads, c.head_width)
        elif by_head:
            query, key, value = (y.swapaxes(1, 2) for y in (query, _repeated(key, each, 2), _repeated(value, each, 2)))
            context = attention_by_head(query, key, value, tokens.sequence_ids, settings, c.target.one_cpu, radius)
            context = context.swapaxes(1, 2)
        else:
            query, key, value = (y.swapaxes(1, 2) for y in (query, key, value))
            if cached and queried is not None:
                key, value = (self._kept(name, new, queried[0, 0]) for name, new in (("keys", key), ("values", value)))
            mask = attention_mask(tokens.query_sequence_ids, tokens.sequence_ids)
            length = tokens.sequence_ids.shape[1]
            columns = jnp.arange(length)[None] if queried is None else queried
            if c.direction == "left_to_right":
                mask &= not_later(columns, length)
            if radius is not None:
                mask &= near(columns, length, radius)
            if tokens.visible is not None:
                mask &= tokens.visible[:, None]

            def adjust(scores: Float[Array, "B H Q L"]) -> Float[Array, "B H Q L"]:
                what = f"scores of config.model.positions={c.positions}"
                return same_shape(what, scores, positions.scores(scores, tokens, layer))

            context = _attended(self, (query, key, value), mask, settings, adjust if acts_on(c, "scores") else None)
        return output_projection(c)(context)

    def _kept(self, name: str, new: Float[Array, "B G Q K"], start: Int[Array, ""]) -> Float[Array, "B G L K"]:
        """Writes `new` tokens into the cached array `name` from column `start` on, and returns the array."""
        kept: Array = jax.lax.dynamic_update_slice_in_dim(self.get_variable(CACHE, name), new, start, axis=2)
        self.put_variable(CACHE, name, kept)
        return kept


class CrossAttention(nn.Module):
    """Multi-head attention of a decoder's tokens on the output of the encoder ("Attention Is All You Need", section 3.2.3), with
    its output projection, without the residual and its LayerNorm.

    In packed rows, a target token only attends to the source of its own pair. If INTERMEDIATES is mutable, the weights are stored
    there, as in `SelfAttention`. If CACHE is mutable, the keys and values of the source are read from it."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B Q D"],
        tokens: Tokens,
        dropout_seed: Seed | None,
        encoded: Float[Array, "B source D"] | None,
        source: Tokens,
    ) -> Float[Array, "B Q D"]:
        """Returns the projected context of each token of `x`, which holds only the queried tokens of `tokens`."""
        c = self.config
        query = projection(c, c.num_heads, name="query")(x).swapaxes(1, 2)
        key: Any
        value: Any
        if self.has_variable(CACHE, "keys"):
            key, value = self.get_variable(CACHE, "keys"), self.get_variable(CACHE, "values")
        else:
            assert encoded is not None, "without a cache the keys and values are computed from the encoder's output"
            key, value = (projection(c, c.key_value_heads, name=x)(encoded).swapaxes(1, 2) for x in ("key", "value"))
        mask = attention_mask(tokens.query_sequence_ids, source.sequence_ids)
        settings = tokens.dropout(c.attention_dropout, dropout_seed)
        return output_projection(c)(_attended(self, (query, key, value), mask, settings))


def source_keys_and_values(
    params: Mapping[str, Any], config: ModelConfig, encoded: Float[Array, "B source D"]
) -> dict[str, Float[Array, "B G source K"]]:
    """Returns the "keys" and "values" of a source, which `CrossAttention` with the same parameters can read from CACHE."""
    layer, found = projection(config, config.key_value_heads, parent=None), dict[str, Any]()
    for name in ("key", "value"):
        projected: Any = layer.apply({"params": params[name]}, encoded)
        found[f"{name}s"] = projected.swapaxes(1, 2)
    return found


def projection(config: ModelConfig, heads: int, **module: Any) -> Dense:
    """Returns the layer [B, L, D] -> [B, L, `heads`, K] that computes queries, keys or values. `module` is Flax's argument
    `name` or `parent`."""
    c, axes = config, ("embed", "heads", "head_width")
    shape, dtype = (heads, c.head_width), jnp.dtype(c.dtype)
    return Dense((c.hidden_size,), shape, axes, initializer(c), dtype, c.target, use_bias=c.attention_bias, **module)


def output_projection(config: ModelConfig) -> Dense:
    """Returns the output projection of an attention layer, [B, L, H, K] -> [B, L, D]. The layer is named "output"."""
    c, axes, init = config, ("heads", "head_width", "embed"), initializer(config, into_residual=True)
    shape, dtype = (c.num_heads, c.head_width), jnp.dtype(c.dtype)
    return Dense(shape, (c.hidden_size,), axes, init, dtype, c.target, use_bias=c.attention_bias, name="output")


def _attended(
    module: SelfAttention | CrossAttention,
    qkv: tuple[Float[Array, "B H Q K"], Float[Array, "B G L K"], Float[Array, "B G L K"]],
    mask: Bool[Array, "B 1 Q L"],
    settings: Dropout,
    adjust: Callable[[Float[Array, "B H Q L"]], Float[Array, "B H Q L"]] | None = None,
) -> Float[Array, "B Q H K"]:
    """Computes the context of each query with plain XLA operations. If INTERMEDIATES is mutable, `module` stores the weights in
    it."""
    c, (query, key, value) = module.config, qkv
    each = c.num_heads // c.key_value_heads
    weights = exponentials(query, _repeated(key, each, 1), mask, c.target.one_cpu, adjust)
    if module.is_mutable_collection(INTERMEDIATES):
        module.sow(INTERMEDIATES, "weights", weights / weights.sum(-1, keepdims=True))
    return weighted_sum(weights, _repeated(value, each, 1), settings, c.target.one_cpu).swapaxes(1, 2)


def _repeated(x: Float[Array, "B _ _ K"], times: int, axis: int) -> Float[Array, "B _ _ K"]:
    """Repeats each key or value head along `axis`, once per query head that reads it."""
    return x if times == 1 else jnp.repeat(x, times, axis)
