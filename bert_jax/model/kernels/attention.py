"""Attention of an encoder in one kernel, forward and backward; nothing of size length x length touches memory."""

from __future__ import annotations

import functools
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, Num, UInt32

from bert_jax.model.kernels import attention_gpu, attention_plan, attention_tpu
from bert_jax.model.kernels.attention_gpu import GpuPlan
from bert_jax.model.kernels.attention_plan import LANES, Plan
from bert_jax.model.kernels.dispatch import unsupported_heads
from bert_jax.model.layers import Seed
from bert_jax.sharding.rules import automatic_axes, axes_of, drop_indivisible_axes, first_row, shard_count

SAVED = "fused_attention"
"""What `jax.checkpoint` calls the results of the forward kernel: a policy that keeps them spares the backward pass the kernel."""
AXES = ("batch", "length", "heads")
"""The logical axes of query, key, value and context [B, L, D]; D = H K is split by whole heads."""


def fused_attention(
    query: Float[Array, "B L D"],
    key: Float[Array, "B L D"],
    value: Float[Array, "B L D"],
    sequence_ids: Int[Array, "B L"],
    *,
    num_heads: int,
    dropout_rate: float,
    dropout_seed: Seed | None,
    platform: str = "tpu",
    interpret: bool = False,
) -> Float[Array, "B L D"]:
    """softmax(Q K^T / sqrt(K)) V with dropout on the probabilities: what `dot_product_attention` computes, on a TPU or GPU.

    query, key and value are in bfloat16 or float32, as the projections give them, with D = H K; sequence_ids are equal where a
    token may look at another; dropout_seed is None for evaluation; platform is "tpu" or "gpu". Returns the context.

    The softmax runs in float32; products take their inputs as they are and add up in float32. The backward pass draws the bits
    of dropout again; it keeps the context and one float32 per query and head. Under a mesh each device runs the kernel on its
    own rows and heads. On a GPU dropout is that of plain attention, bit for bit, on any mesh. On a TPU it decides by 16 random
    bits of the chip's generator: its rate is `dropout_rate` rounded to a multiple of 2**-16 (0.1 is 0.100006), what is kept is
    scaled for that, and each device has dropout of its own. `interpret` runs the kernel on any platform, slowly, for tests; the
    TPU's with a counter hash in place of the generator.

    Raises ValueError for heads that the platform's kernel does not compute; `dispatch.choose_attention` says what runs where.
    """
    reason = unsupported_heads(platform, query.shape[2] // num_heads, query.dtype)
    if reason:
        raise ValueError(reason)
    rate = 0.0 if dropout_seed is None else dropout_rate
    seed = jnp.uint32(0) if dropout_seed is None else dropout_seed.astype(jnp.uint32)
    place = jnp.stack([seed, jnp.uint32(first_row(query.shape[0]))])
    spec = nn.logical_to_mesh_axes(AXES) or PartitionSpec(None, None, None)
    spec = drop_indivisible_axes(spec, (query.shape[0], query.shape[1], num_heads))
    rows, heads = axes_of(spec[0]), axes_of(spec[2])

    def local(
        query: Float[Array, "B L D"],
        key: Float[Array, "B L D"],
        value: Float[Array, "B L D"],
        ids: Int[Array, "B L"],
        place: UInt32[Array, " 2"],
    ) -> Float[Array, "B L D"]:
        first = place[1] + _index(rows) * np.uint32(query.shape[0])
        own_heads = num_heads // shard_count(heads)
        attend = {"tpu": _on_tpu, "gpu": _on_gpu}[platform]
        return attend(query, key, value, ids, place[0], first, _index(heads), num_heads, own_heads, rate, interpret)

    split = automatic_axes()
    if not split:
        return local(query, key, value, sequence_ids, place)
    in_specs = (spec, spec, spec, PartitionSpec(spec[0], None), PartitionSpec())
    return jax.shard_map(local, in_specs=in_specs, out_specs=spec, axis_names=split, check_vma=False)(
        query, key, value, sequence_ids, place
    )


def _index(axes: tuple[str, ...]) -> UInt32[Array, ""]:
    """Which part of an array that is split over these axes is this device's."""
    return jnp.uint32(jax.lax.axis_index(axes) if axes else 0)


def _on_tpu(
    query: Float[Array, "B L D"],
    key: Float[Array, "B L D"],
    value: Float[Array, "B L D"],
    ids: Int[Array, "B L"],
    seed: Seed,
    first: UInt32[Array, ""],
    heads_shard: UInt32[Array, ""],
    all_heads: int,
    heads: int,
    rate: float,
    interpret: bool,
) -> Float[Array, "B L D"]:
    """Pads the row to whole tiles and the heads to whole groups, and calls the kernels. `first` is the place of the first row in
    the whole batch, `heads_shard` says which part of all heads these are."""
    b, length, width = query.shape
    head_width = width // heads
    long, lanes = attention_plan.padded_length(length), max(LANES, head_width)
    groups = -(-width // lanes)
    plan = Plan(b, long, groups, head_width, round(rate * 65536) / 65536, interpret)
    all_groups = -(-all_heads * head_width // lanes)
    seeds = jnp.stack([seed, first, np.uint32(groups) * heads_shard, jnp.uint32(all_groups)])
    words = jax.lax.bitcast_convert_type(seeds, jnp.int32)
    arrays = (_padded(x, long, groups * lanes) for x in (query, key, value))
    return _attend(plan, *arrays, _padded_ids(ids, long).reshape(b, 1, long), words)[:, :length, :width]


def _on_gpu(
    query: Float[Array, "B L D"],
    key: Float[Array, "B L D"],
    value: Float[Array, "B L D"],
    ids: Int[Array, "B L"],
    seed: Seed,
    first: UInt32[Array, ""],
    heads_shard: UInt32[Array, ""],
    _: int,
    heads: int,
    rate: float,
    interpret: bool,
) -> Float[Array, "B L D"]:
    """Pads the row to whole blocks, and calls the kernels."""
    b, length, width = query.shape
    long = attention_gpu.padded_length(length)
    plan = GpuPlan(b, long, heads, width // heads, rate, interpret)
    seeds = jnp.stack([seed, first, np.uint32(heads) * heads_shard])
    arrays = (_padded(x, long, width) for x in (query, key, value))
    return _attend(plan, *arrays, _padded_ids(ids, long), seeds)[:, :length]


def _padded(x: Float[Array, "B L D"], length: int, width: int) -> Float[Array, "B {length} {width}"]:
    return jnp.pad(x, ((0, 0), (0, length - x.shape[1]), (0, width - x.shape[2])))


def _padded_ids(ids: Int[Array, "B L"], length: int) -> Int[Array, "B {length}"]:
    """`ids` of a longer row, whose added tokens see each other alone."""
    return jnp.pad(ids, ((0, 0), (0, length - ids.shape[1])), constant_values=-1)


def _kernels(plan: Plan | GpuPlan) -> types.ModuleType:
    """The module whose `forward` and `backward` follow such a plan."""
    return attention_gpu if isinstance(plan, GpuPlan) else attention_tpu


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    plan: Plan | GpuPlan,
    query: Float[Array, "B L D"],
    key: Float[Array, "B L D"],
    value: Float[Array, "B L D"],
    ids: Int[Array, "B ..."],
    seeds: Num[Array, " _"],
) -> Float[Array, "B L D"]:
    return _kernels(plan).forward(plan, query, key, value, ids, seeds)[0]


def _attend_forward(
    plan: Plan | GpuPlan,
    query: Float[Array, "B L D"],
    key: Float[Array, "B L D"],
    value: Float[Array, "B L D"],
    ids: Int[Array, "B ..."],
    seeds: Num[Array, " _"],
) -> tuple[Float[Array, "B L D"], tuple[Num[Array, " ..."], ...]]:
    context, sums = (checkpoint_name(x, SAVED) for x in _kernels(plan).forward(plan, query, key, value, ids, seeds))
    return context, (query, key, value, ids, seeds, context, sums)


def _attend_backward(
    plan: Plan | GpuPlan, residuals: tuple[Num[Array, " ..."], ...], gradient: Float[Array, "B L D"]
) -> tuple[Float[Array, "B L D"] | None, ...]:
    query, key, value, ids, seeds, context, sums = residuals
    return (*_kernels(plan).backward(plan, query, key, value, ids, seeds, context, sums, gradient), None, None)


_attend.defvjp(_attend_forward, _attend_backward)
