"""Next-token logits of a left-to-right model or of a decoder, with a cache of the keys and values of earlier tokens.

With the cache, only the new token of a text is computed instead of the whole text. Shorter texts are padded on the left. All
texts therefore end in the same column, and all rows write to the same columns of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from bert_jax.model.attention import CACHE, source_keys_and_values
from bert_jax.model.config import ModelConfig
from bert_jax.model.embeddings import Embeddings
from bert_jax.model.encoder import Block, layer_kinds
from bert_jax.model.encoder_decoder import DecoderBlock, LanguageModelHead, encode
from bert_jax.model.heads.pretraining_heads import MaskedLanguageModelHead
from bert_jax.model.layers import Norm
from bert_jax.model.tokens import ARRAYS, Layer, Tokens


@struct.dataclass
class DecodingCache:
    """The keys and values of B texts in S columns, of which `used` are filled. For N layers, the cache holds 2 N B G S K
    numbers in the dtype of the products."""

    layers: tuple[dict[str, Float[Array, "B G S K"]], ...]
    """The "keys" and "values" of each layer. Unused columns are 0."""
    tokens: Tokens
    """The tokens in all columns, [B, S]. The sequence id is 1 for a token, and 0 for padding and for unused columns."""
    used: Int[Array, ""]
    """The number of filled columns."""


def empty_cache(config: ModelConfig, rows: int, columns: int) -> DecodingCache:
    """Returns an empty cache for `rows` texts of at most `columns` tokens including padding."""
    empty = jnp.zeros((rows, config.key_value_heads, columns, config.head_width), config.dtype)
    layers = tuple({"keys": empty, "values": empty} for _ in range(config.num_layers))
    nothing = jnp.zeros((rows, columns), jnp.int32)
    return DecodingCache(layers, Tokens(nothing, nothing, nothing, nothing), jnp.int32(0))


def read_tokens(
    params: Mapping[str, Any], config: ModelConfig, cache: DecodingCache, ids: Int[Array, "B T"], real: Bool[Array, "B T"]
) -> tuple[Float[Array, "B V"], DecodingCache]:
    """Reads T more tokens of each text. Returns (next-token logits, float32; the updated cache).

    `params` must contain an `mlm_head` and a list of layers (`encoder.unstacked_layers`). `real` is False for left padding, so
    it must be True for the last token of every text. The cache needs at least T free columns.
    """
    columns = cache.used + jnp.arange(ids.shape[1], dtype=jnp.int32)[None]
    is_token = real.astype(jnp.int32)
    before = cache.tokens.sequence_ids.sum(1, keepdims=True)  # the number of tokens so far, without padding
    positions = jnp.maximum(before + jnp.cumsum(is_token, axis=1) - 1, 0)
    new = Tokens(ids, jnp.zeros_like(ids), positions, is_token)
    together = {
        field: jax.lax.dynamic_update_slice_in_dim(getattr(cache.tokens, field), getattr(new, field), cache.used, axis=1)
        for field in ARRAYS
    }
    tokens = Tokens(**together, queried=jnp.broadcast_to(columns, ids.shape))
    embeddings = params["embeddings"]
    x: Any = Embeddings(config).apply({"params": embeddings}, new, None)
    layers = []
    for number, (layer, kept) in enumerate(zip(params["encoder"]["layers"], cache.layers, strict=True)):
        state = {"params": layer, CACHE: {"attention": kept}}
        here = Layer(jnp.uint32(number), *layer_kinds(config)[number])
        x, changed = Block(config, parent=None).apply(state, x, tokens, None, here, mutable=[CACHE])
        layers.append(dict(changed[CACHE]["attention"]))
    if config.final_norm:
        x = Norm(config).apply({"params": params["encoder"].get("final_layer_norm", {})}, x)
    table = embeddings["word_embeddings"]["embedding"]
    logits: Any = MaskedLanguageModelHead(config).apply({"params": params["mlm_head"]}, x[:, -1:], table)
    return logits[:, 0], DecodingCache(tuple(layers), tokens.reading(None), cache.used + ids.shape[1])


@struct.dataclass
class TargetCache:
    """The state of beam search, with W hypotheses for each of B sources. Each hypothesis has at most N tokens, of which `used`
    have been read.

    The keys and values of all hypotheses of a source share one row. Token n of all W hypotheses is in the columns n W to n W +
    W - 1. If a hypothesis continues another hypothesis, no keys or values are copied. The new hypothesis reads the columns of
    its ancestors instead (`origins`). In the attention on the source, the W hypotheses are W queries."""

    layers: tuple[dict[str, Float[Array, "B G _ K"]], ...]
    """The "keys" and "values" of each layer, in N W columns."""
    cross: tuple[dict[str, Float[Array, "B G source K"]], ...]
    """The keys and values of the source in each layer."""
    source: Tokens
    origins: Int[Array, "B W N"]
    """The index that each hypothesis, or its ancestor, had when each token of the hypothesis was read."""
    used: Int[Array, ""]
    """The number of tokens that have been read."""


def start_targets(params: Mapping[str, Any], config: ModelConfig, source: Tokens, beams: int, tokens: int) -> TargetCache:
    """Encodes the source. Returns a cache without target tokens, for targets of at most `tokens` tokens including the start
    token.

    `params` are the parameters of an encoder-decoder with its layers as lists (`encoder.unstacked_layers`)."""
    encoded = encode(params, config, source)
    decoder, rows = config.decoder_config, len(source.ids)
    empty = jnp.zeros((rows, decoder.key_value_heads, tokens * beams, decoder.head_width), decoder.dtype)
    stack = params["decoder"]["layers"]
    return TargetCache(
        tuple({"keys": empty, "values": empty} for _ in stack),
        tuple(source_keys_and_values(layer["cross_attention"], decoder, encoded) for layer in stack),
        source,
        jnp.zeros((rows, beams, tokens), jnp.int32),
        jnp.int32(0),
    )


def read_targets(
    params: Mapping[str, Any], config: ModelConfig, cache: TargetCache, ids: Int[Array, "B W"]
) -> tuple[Float[Array, "B W V"], TargetCache]:
    """Reads one more token of each hypothesis. Returns (the logits of the next token, float32; the updated cache)."""
    c, (rows, beams, tokens) = config.decoder_config, cache.origins.shape
    own, used = jnp.arange(beams, dtype=jnp.int32), cache.used
    origins = cache.origins.at[:, :, used].set(own[None])
    earlier = (jnp.arange(tokens) <= used)[None, None, :, None]
    visible = ((origins[..., None] == own[None, None, None]) & earlier).reshape(rows, beams, tokens * beams)
    columns = jnp.broadcast_to(jnp.arange(tokens * beams, dtype=jnp.int32)[None], (rows, tokens * beams))
    ones, zeros = jnp.ones_like(columns), jnp.zeros_like(columns)
    queried = jnp.broadcast_to((used * beams + own)[None], ids.shape)
    every = Tokens(zeros, zeros, columns // beams, ones, queried, visible)
    new = Tokens(ids, jnp.zeros_like(ids), jnp.broadcast_to(used, ids.shape), jnp.ones_like(ids))
    embeddings = params["decoder"]["embeddings"] if config.decoder_vocab_size else params["embeddings"]
    x: Any = Embeddings(c).apply({"params": embeddings}, new, None)
    layers = []
    stack = zip(params["decoder"]["layers"], cache.layers, cache.cross, strict=True)
    for number, (layer, kept, cross) in enumerate(stack):
        state = {"params": layer, CACHE: {"attention": kept, "cross_attention": cross}}
        here = Layer(jnp.uint32(number))
        x, changed = DecoderBlock(c, parent=None).apply(state, x, every, None, here, None, cache.source, mutable=[CACHE])
        layers.append(dict(changed[CACHE]["attention"]))
    if c.final_norm:
        x = Norm(c).apply({"params": params["decoder"].get("final_layer_norm", {})}, x)
    table = embeddings["word_embeddings"]["embedding"]
    logits: Any = LanguageModelHead(c).apply({"params": params["lm_head"]}, x, table)
    return logits, TargetCache(tuple(layers), cache.cross, cache.source, origins, used + 1)


def continue_targets(cache: TargetCache, parents: Int[Array, "B W"]) -> TargetCache:
    """Returns a cache in which each hypothesis continues one of the `parents`, which are hypotheses of the same source."""
    return cache.replace(origins=jnp.take_along_axis(cache.origins, parents[:, :, None], axis=1))  # type: ignore[attr-defined]


def with_room(cache: TargetCache, tokens: int) -> TargetCache:
    """Returns a copy of the cache with room for `tokens` tokens of each target. The tokens of `cache` come first, and the other
    columns are empty."""
    more = tokens - cache.origins.shape[2]

    def padded(x: Array, columns: int) -> Array:
        return jnp.pad(x, ((0, 0),) * 2 + ((0, columns),) + ((0, 0),) * (x.ndim - 3))

    layers = jax.tree.map(lambda x: padded(x, more * cache.origins.shape[1]), cache.layers)
    return cache.replace(layers=layers, origins=padded(cache.origins, more))  # type: ignore[attr-defined]
