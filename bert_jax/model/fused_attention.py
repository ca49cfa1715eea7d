"""Attention of an encoder in one kernel, forward and backward; nothing of size length x length touches memory."""

from __future__ import annotations

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, PartitionSpec

from bert_jax.model import attention_kernels
from bert_jax.model.attention_plan import LANES, Plan, padded_length, unfit
from bert_jax.model.layers import Array

SAVED = "fused_attention"
"""What `jax.checkpoint` calls the results of the forward kernel: a policy that keeps them spares the backward pass the kernel."""
AXES = ("batch", "length", "heads")
"""The logical axes of query, key, value and context [B, L, H K]."""


def fused_attention(
    query: Array,
    key: Array,
    value: Array,
    sequence_ids: Array,
    *,
    num_heads: int,
    dropout_rate: float,
    dropout_seed: Array | None,
    interpret: bool = False,
) -> Array:
    """softmax(Q K^T / sqrt(K)) V with dropout on the probabilities: what `dot_product_attention` computes, on a TPU.

    query, key, value [B, L, H K] in bfloat16 or float32, as the projections give them; sequence_ids int32 [B, L], equal where a
    token may look at another; dropout_seed uint32 scalar, or None for evaluation. Returns the context [B, L, H K].

    The softmax runs in float32; products take their inputs as they are and add up in float32. Dropout decides by 16 random
    bits: its rate is `dropout_rate` rounded to a multiple of 2**-16 (0.1 is 0.100006), and what is kept is scaled for that.
    The backward pass draws the same bits again; it keeps the context and one float32 per query and head. Under a mesh each
    device runs the kernel on its own rows and heads, with dropout of its own. `interpret` runs the kernel on any
    platform, slowly, for tests, with a counter hash in place of the chip's generator.

    Raises ValueError where `unfit` gives a reason; `attention_choice.unsupported` knows what runs where.
    """
    reason = unfit(query.shape[2] // num_heads, query.dtype)
    if reason:
        raise ValueError(reason)
    rate = 0.0 if dropout_seed is None else round(dropout_rate * 65536) / 65536
    seed = jnp.zeros((), jnp.uint32) if dropout_seed is None else dropout_seed.astype(jnp.uint32)
    spec = nn.logical_to_mesh_axes(AXES) or PartitionSpec(None, None, None)
    spec = _divisible(spec, (query.shape[0], query.shape[1], num_heads))
    rows, heads = (_axes(spec[0]), _axes(spec[2]))

    def local(query: Array, key: Array, value: Array, ids: Array, seed: Array) -> Array:
        first = [jax.lax.axis_index(axes) if axes else 0 for axes in (rows, heads)]
        own_heads = num_heads // _size(heads)
        return _on_one_device(query, key, value, ids, seed, first[0], first[1], num_heads, own_heads, rate, interpret)

    split = _automatic_axes()
    if not split:
        return local(query, key, value, sequence_ids, seed)
    in_specs = (spec, spec, spec, PartitionSpec(spec[0], None), PartitionSpec())
    return jax.shard_map(local, in_specs=in_specs, out_specs=spec, axis_names=split, check_vma=False)(
        query, key, value, sequence_ids, seed
    )


def _axes(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _automatic_axes() -> set[str]:
    """Axes of the ambient mesh over which XLA would have to split the kernel, which it cannot; none where there is one device."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {axis for axis, kind in axes if kind != AxisType.Manual} if mesh.size > 1 else set()


def _size(axes: tuple[str, ...]) -> int:
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[axis] for axis in axes)


def _divisible(spec: PartitionSpec, sizes: tuple[int, ...]) -> PartitionSpec:
    """`spec` without the mesh axes that are not there, or that a dimension does not divide over: those devices repeat the
    work."""
    there, entries = _automatic_axes(), []
    for entry, size in zip(spec, sizes, strict=True):
        axes = tuple(axis for axis in _axes(entry) if axis in there)
        entries.append(axes if axes and size % _size(axes) == 0 else None)
    return PartitionSpec(*entries)


def _on_one_device(
    query: Array, key: Array, value: Array, ids: Array, seed: Array, rows_shard: Any, heads_shard: Any,
    all_heads: int, heads: int, rate: float, interpret: bool,
) -> Array:  # fmt: skip
    """Pads the row to whole tiles and the heads to whole groups, and calls the kernels."""
    b, length, width = query.shape
    head_width = width // heads
    long, lanes = padded_length(length), max(LANES, head_width)
    groups = -(-width // lanes)

    def padded(x: Array) -> Array:
        return jnp.pad(x, ((0, 0), (0, long - length), (0, groups * lanes - width)))

    ids = jnp.pad(ids, ((0, 0), (0, long - length)), constant_values=-1).reshape(b, 1, long)
    plan = Plan(b, long, groups, head_width, rate, interpret)
    all_groups = -(-all_heads * head_width // lanes)
    seeds = [seed, np.uint32(b) * jnp.uint32(rows_shard), np.uint32(groups) * jnp.uint32(heads_shard), np.uint32(all_groups)]
    words = jax.lax.bitcast_convert_type(jnp.stack([jnp.asarray(s, jnp.uint32) for s in seeds]), jnp.int32)
    return _attend(plan, padded(query), padded(key), padded(value), ids, words)[:, :length, :width]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, query: Array, key: Array, value: Array, ids: Array, seeds: Array) -> Array:
    return attention_kernels.forward(plan, query, key, value, ids, seeds)[0]


def _attend_forward(plan: Plan, query: Array, key: Array, value: Array, ids: Array, seeds: Array) -> tuple[Array, tuple]:
    context, sums = (checkpoint_name(x, SAVED) for x in attention_kernels.forward(plan, query, key, value, ids, seeds))
    return context, (query, key, value, ids, seeds, context, sums)


def _attend_backward(plan: Plan, residuals: tuple, gradient: Array) -> tuple:
    query, key, value, ids, seeds, context, sums = residuals
    return (*attention_kernels.backward(plan, query, key, value, ids, seeds, context, sums, gradient), None, None)


_attend.defvjp(_attend_forward, _attend_backward)
