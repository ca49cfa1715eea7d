"""Attention within a window on a TPU, by JAX's own kernel: `jax.experimental.pallas.ops.tpu.splash_attention`.

It computes only the blocks of keys that a block of queries sees, so a layer costs its window and not the row. It has no dropout,
and models with windows are trained without (ModernBERT, arXiv:2412.13663).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jaxtyping import Array, Float, Int

from bert_jax.model.kernels.attention_plan import LANES

QUERIES = 512
"""The most queries of a block."""
KEYS = 256
"""The most keys of a block."""


def splash_attention(
    qkv: tuple[Float[Array, "B L D"], Float[Array, "B L D"], Float[Array, "B L D"]],
    sequence_ids: Int[Array, "B L"],
    num_heads: int,
    radius: int,
    saved: str,
    *,
    interpret: bool = False,
) -> Float[Array, "B L D"]:
    """Returns softmax(Q K^T / sqrt(K)) V over the keys of the query's sequence that are at most `radius` away.

    `saved` names the results of the forward pass for `jax.checkpoint`. `interpret` runs the kernel on any platform, slowly.
    """
    rows, length, width = qkv[0].shape
    block = min(QUERIES, -(-length // LANES) * LANES)
    padded = -(-length // block) * block
    keys = min(KEYS, block)
    keys = keys if padded % keys == 0 else LANES

    def by_head(x: Float[Array, "B L D"]) -> Float[Array, "B H L K"]:
        x = jnp.pad(x, ((0, 0), (0, padded - length), (0, 0)))
        return x.reshape(rows, padded, num_heads, width // num_heads).swapaxes(1, 2)

    query, key, value = map(by_head, qkv)
    ids = jnp.pad(sequence_ids, ((0, 0), (0, padded - length)), constant_values=-1)
    window = masks.LocalMask((padded, padded), (radius, radius), 0)
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([window] * num_heads),
        block_sizes=splash.BlockSizes(
            block_q=block, block_kv=keys, block_q_dkv=block, block_kv_dkv=keys, block_q_dq=block, block_kv_dq=keys
        ),
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=saved,
        interpret=interpret,
    )
    scale = (width // num_heads) ** -0.5
    context = jax.vmap(kernel)(query * jnp.asarray(scale, query.dtype), key, value, splash.SegmentIds(ids, ids))
    return context.swapaxes(1, 2).reshape(rows, padded, width)[:, :length]
