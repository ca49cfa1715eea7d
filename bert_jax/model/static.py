"""The layers of a static model: none. Its word vectors are trained by skip-gram (`training/skip_gram.py`)."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.config import ModelConfig
from bert_jax.model.layers import Seed, gather_positions


class NoLayers(nn.Module):
    """The word vectors as the only hidden state."""

    config: ModelConfig

    def __call__(
        self, x: Float[Array, "B L D"], sequence_ids: Int[Array, "B L"], seed: Seed | None
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """(`x`, no outputs of layers: N is 0)."""
        return x, jnp.zeros((0, *x.shape), x.dtype)

    def at(
        self,
        positions: Int[Array, "B Q"],
        x: Float[Array, "B L D"],
        sequence_ids: Int[Array, "B L"],
        seed: Seed | None,
    ) -> Float[Array, "B Q D"]:
        """`x` at `positions`."""
        return gather_positions(x, positions)
