"""The empty stack of layers of a static model. Its word vectors are trained by skip-gram (`objectives/skip_gram.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.model.config import ModelConfig
from bert_jax.model.encoder import WholeRows
from bert_jax.model.layers import Seed
from bert_jax.model.tokens import Tokens


class NoLayers(WholeRows):
    """A stack of zero layers. The word vectors are the only hidden state."""

    objectives: ClassVar[Mapping[str, str]] = {"both": "skip_gram"}

    @classmethod
    def products(cls, config: ModelConfig, length: int) -> int | None:
        """Returns 0."""
        return 0

    def __call__(
        self, x: Float[Array, "B L D"], tokens: Tokens, seed: Seed | None
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """Returns (`x`, outputs of N = 0 layers)."""
        return x, jnp.zeros((0, *x.shape), x.dtype)
