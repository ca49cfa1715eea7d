"""The stack of post-LayerNorm Transformer blocks, one set of stacked parameters for all layers."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.attention import SelfAttention
from bert_jax.model.layers import Array, Dense, LayerNorm, activation, dropout, mix
from bert_jax.model.settings import ModelConfig

ACTIVATION_AXES = ("batch", "length", "embed")


class FeedForward(nn.Module):
    """Two Dense layers with the activation between: [B, L, D] -> [B, L, F] -> [B, L, D]."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        c, dtype = self.config, jnp.dtype(self.config.dtype)
        wide = Dense((c.hidden_size,), (c.intermediate_size,), ("embed", "mlp"), c.initializer_range, dtype, name="intermediate")(
            x
        )
        wide = nn.with_logical_constraint(wide, ("batch", "length", "mlp"))
        wide = activation(c.activation)(wide)
        return Dense((c.intermediate_size,), (c.hidden_size,), ("mlp", "embed"), c.initializer_range, dtype, name="output")(wide)


class Block(nn.Module):
    """One Transformer layer of the paper, normalised after each residual: the carry of the loop over layers is x [B, L, D]."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Array, layer: Array, mask: Array, seed: Array | None) -> tuple[Array, Array]:
        c = self.config
        seeds = [None] * 3 if seed is None else [mix(seed + layer * np.uint32(8) + np.uint32(i)) for i in range(1, 4)]
        y = SelfAttention(c, name="attention")(x, mask, seeds[0])
        x = LayerNorm(c.layer_norm_epsilon, name="attention_layer_norm")(x + dropout(y, c.hidden_dropout, seeds[1]))
        y = FeedForward(c, name="feed_forward")(x)
        x = LayerNorm(c.layer_norm_epsilon, name="feed_forward_layer_norm")(x + dropout(y, c.hidden_dropout, seeds[2]))
        x = nn.with_logical_constraint(x, ACTIVATION_AXES)
        return x, x


def rematerialised(block: type[nn.Module], how: str) -> type[nn.Module]:
    """`block` with its backward pass recomputing what `ModelConfig.rematerialisation` says."""
    if how == "none":
        return block
    policy = jax.checkpoint_policies.dots_saveable if how == "dots" else jax.checkpoint_policies.nothing_saveable
    return nn.remat(block, policy=policy, prevent_cse=False)


class Encoder(nn.Module):
    """N blocks applied in turn: x [B, L, D] -> (last [B, L, D], every layer's output [N, B, L, D]).

    Parameters carry a leading layer axis N whatever `scan_unroll` is, so checkpoints do not depend on how the loop is compiled.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Array, mask: Array, seed: Array | None) -> tuple[Array, Array]:
        c = self.config
        loop = nn.scan(
            rematerialised(Block, c.rematerialisation),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast),
            length=c.num_layers,
            unroll=c.scan_unroll or c.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return loop(c, name="layers")(x, jnp.arange(c.num_layers, dtype=jnp.uint32), mask, seed)
