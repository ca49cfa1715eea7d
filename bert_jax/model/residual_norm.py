"""The residual of a post-LayerNorm block: LayerNorm(x + dropout(y)), by a kernel or by XLA's program."""

from __future__ import annotations

import flax.linen as nn
from jaxtyping import Array, Float

from bert_jax.model.config import ModelConfig, ResidualNormKernel
from bert_jax.model.layers import Dropout, NormParameters, Seed, dropout, norm_parameters, normalise
from bert_jax.model.tokens import Tokens


def plain_residual_norm(
    x: Float[Array, "B L D"], y: Float[Array, "B L D"], norm: NormParameters, settings: Dropout
) -> Float[Array, "B L D"]:
    """LayerNorm(x + dropout(y)), compiled by XLA."""
    return normalise(x + dropout(y, settings), norm)


class ResidualNorm(nn.Module):
    """LayerNorm(x + dropout(y)). The kernel passes once over memory each way (BERT-Large, 8,192
    tokens on a v5e: 0.2 ms instead of 0.7, forward and backward)."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B Q D"], y: Float[Array, "B Q D"], seed: Seed | None, tokens: Tokens
    ) -> Float[Array, "B Q D"]:
        """LayerNorm(x + dropout(y)), where x and y hold the tokens that are read out."""
        c = self.config
        kernel: ResidualNormKernel | None = c.kernel("residual_norm")
        compute = kernel if kernel is not None and kernel.computes(c) else plain_residual_norm
        norm = norm_parameters(self, x.shape[-1], c.layer_norm_epsilon)
        return compute(x, y, norm, tokens.dropout(c.hidden_dropout, seed))
