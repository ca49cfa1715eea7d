"""The layers of a static model: none. Its word vectors are trained by skip-gram (`objectives/skip_gram.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.model.encoder import WholeRows
from bert_jax.model.layers import Seed
from bert_jax.model.tokens import Tokens


class NoLayers(WholeRows):
    """The word vectors as the only hidden state."""

    objectives: ClassVar[Mapping[str, str]] = {"both": "skip_gram"}
    """`ModelConfig.direction` -> the objective that trains it where none is named."""

    def __call__(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """(`x`, no outputs of layers: N is 0)."""
        return x, jnp.zeros((0, *x.shape), x.dtype)
