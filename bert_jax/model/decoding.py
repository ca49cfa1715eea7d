"""Next-token logits of a left-to-right model, with a cache of the keys and values of earlier tokens.

With the cache, a new token costs one row instead of the whole text. Shorter texts are padded on the left, so that all texts end
in the same column and all rows write the same columns of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from bert_jax.model.attention import CACHE
from bert_jax.model.config import ModelConfig
from bert_jax.model.embeddings import Embeddings
from bert_jax.model.encoder import Block, layer_kinds
from bert_jax.model.heads.pretraining import MaskedLanguageModelHead
from bert_jax.model.layers import Norm
from bert_jax.model.tokens import ARRAYS, Layer, Tokens


@struct.dataclass
class DecodingCache:
    """The keys and values of B texts, with `used` of S columns filled. It holds 2 N B S D numbers in the dtype of the
    products."""

    layers: tuple[dict[str, Float[Array, "B G S K"]], ...]
    """The "keys" and "values" of each layer; 0 in unused columns."""
    tokens: Tokens
    """All columns, [B, S]. The sequence id is 1 for a token, 0 for padding and unused columns."""
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

    `params` must contain an `mlm_head` and a list of layers (`encoder.unstacked_layers`). `real` is False for left padding; the
    last token of every text must be real. The cache needs at least T free columns.
    """
    columns = cache.used + jnp.arange(ids.shape[1], dtype=jnp.int32)[None]
    is_token = real.astype(jnp.int32)
    before = cache.tokens.sequence_ids.sum(1, keepdims=True)  # tokens so far, without padding
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
