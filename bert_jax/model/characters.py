"""Word vectors from the characters of a word: convolutions, highway layers and a projection (Kim et al., arXiv:1508.06615; ELMo).

A table with the bytes of each subword is stored with the parameters and never trained, so the model needs no other file to
compute its vectors. ELMo uses 2,048 filters over words of 50 characters. The sizes here are smaller, because subwords are
shorter than words."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from bert_jax.model.config import ModelConfig
from bert_jax.model.layers import Dense, parameter, truncated_normal

BYTES = 20
"""The number of symbols per subword. They are a start symbol, at most 18 bytes of UTF-8, an end symbol, and padding."""
SYMBOLS = 259
BEGIN, END, PADDING = 256, 257, 258
SYMBOL_WIDTH = 16
FILTERS = {1: 32, 2: 32, 3: 64, 4: 64, 5: 64}
"""Filter width in symbols -> number of filters."""
HIGHWAYS = 2


def piece_symbols(pieces: Sequence[str], rows: int) -> Float32[np.ndarray, "V _"]:
    """Returns the symbols of each subword, float32 [`rows`, BYTES]. Rows beyond the vocabulary are padding."""
    found = np.full((rows, BYTES), PADDING, np.float32)
    for row, piece in zip(found, pieces, strict=False):
        symbols = [BEGIN, *piece.encode()[: BYTES - 2], END]
        row[: len(symbols)] = symbols
    return found


class CharacterCnn(nn.Module):
    """Computes the vector of each subword from its symbols."""

    config: ModelConfig

    @nn.compact
    def __call__(self, ids: Int[Array, "B L"]) -> Float[Array, "B L I"]:
        """Returns the vectors of `ids`, of width `word_width`."""
        c, dtype = self.config, jnp.dtype(self.config.dtype)
        fixed = parameter(self, "symbols", nn.initializers.constant(PADDING), (None, None), (c.padded_vocab_size, BYTES))
        table = parameter(self, "embedding", truncated_normal(SYMBOL_WIDTH**-0.5), (None, None), (SYMBOLS, SYMBOL_WIDTH))
        x = table[jax.lax.stop_gradient(fixed).astype(jnp.int32)[ids]].astype(dtype)  # [B, L, BYTES, SYMBOL_WIDTH]
        found = []
        for width, filters in FILTERS.items():
            inputs = width * SYMBOL_WIDTH
            windows = jnp.concatenate([x[:, :, n : BYTES - width + 1 + n] for n in range(width)], axis=-1)
            init = truncated_normal(inputs**-0.5)
            convolved = Dense((inputs,), (filters,), (None, None), init, dtype, c.target, name=f"filters_{width}")(windows)
            found.append(jax.nn.relu(convolved.max(axis=2)))
        y = jnp.concatenate(found, axis=-1)
        wide = y.shape[-1]
        init = truncated_normal(wide**-0.5)
        for n in range(HIGHWAYS):
            both = Dense((wide,), (2, wide), (None, None, None), init, dtype, c.target, name=f"highway_{n}")(y)
            gate = jax.nn.sigmoid(both[..., 0, :] - 2.0)  # the layer starts near the identity
            y = gate * jax.nn.relu(both[..., 1, :]) + (1 - gate) * y
        return Dense((wide,), (c.word_width,), (None, "embed"), init, dtype, c.target, name="projection")(y)


def character_products(width: int) -> int:
    """Returns the multiply-adds of `CharacterCnn` per subword: convolutions, highway layers and projection."""
    wide = sum(FILTERS.values())
    filters = sum((BYTES - size + 1) * size * SYMBOL_WIDTH * count for size, count in FILTERS.items())
    return filters + HIGHWAYS * 2 * wide**2 + wide * width
