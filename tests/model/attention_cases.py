"""Rows for tests of fused attention, a plain attention as their reference, and functions that return the results of both."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.attention import attention_mask, dot_product_attention
from bert_jax.model.kernels.attention import fused_attention
from bert_jax.model.layers import Dropout
from bert_jax.sharding.kernels import over_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES
from bert_jax.training.data_parallel import own_rows

SEED = np.uint32(7)
FLOAT32_WITHIN = 2e-6  # relative to the largest element
BFLOAT16_WITHIN = 2**-8  # root mean square, relative: the unit of bfloat16
RATE = 0.25


def arrays(b: int, length: int, width: int, dtype: str = "float32") -> list[Any]:
    """Returns query, key, value and a gradient of the context."""
    random = np.random.default_rng(b * length + width)
    return [jnp.asarray(random.normal(size=(b, length, width)), dtype) for _ in range(4)]


def packed(b: int, length: int, examples: int = 3) -> Any:
    """Returns sequence_ids of rows with up to `examples` examples of random lengths, and a seventh of padding."""
    ids = np.sort(np.random.default_rng(length).integers(1, examples + 1, (b, length)), axis=1)
    ids[:, length - length // 7 :] = 0
    return jnp.asarray(ids, jnp.int32)


def columns(b: int, length: int, queries: int) -> Any:
    """Returns increasing columns for this many queries; the last three are 0, as in a padded batch."""
    random = np.random.default_rng(queries)
    drawn = np.sort([random.choice(length, queries, replace=False) for _ in range(b)], axis=1)
    drawn[:, queries - 3 :] = 0
    return jnp.asarray(drawn, jnp.int32)


def fused(
    ids: Any,
    heads: int,
    rate: float = 0.0,
    seed: Any = SEED,
    platform: str = "tpu",
    rows: Any = None,
    radius: Any = None,
    queried: Any = None,
    angles: Any = None,
) -> Any:
    """Returns fused attention as a function of query, key and value, without dropout if the rate is 0."""
    dropout = Dropout(rate, jnp.asarray(seed, jnp.uint32) if rate else None, rows=rows)

    def attend(*qkv: Any) -> Any:
        return fused_attention(
            qkv,
            ids,
            num_heads=heads,
            dropout=dropout,
            platform=platform,
            spread=over_mesh,
            interpret=True,
            radius=radius,
            queried=queried,
            angles=angles,
        )

    return attend


def plain(ids: Any, heads: int, rate: float = 0.0, seed: Any = SEED, radius: int | None = None) -> Any:
    """Returns the same function, computed by `dot_product_attention`."""
    dropout = Dropout(rate, jnp.asarray(seed, jnp.uint32) if rate else None)

    def attend(*qkv: Any) -> Any:
        b, length, width = qkv[0].shape
        query, key, value = (x.reshape(b, length, heads, width // heads).swapaxes(1, 2) for x in qkv)
        mask = attention_mask(ids, ids)
        if radius is not None:
            places = np.arange(length)
            mask = mask & (abs(places[:, None] - places[None, :]) <= radius)[None, None]
        context = dot_product_attention(query, key, value, mask, dropout)
        return context.swapaxes(1, 2).reshape(b, length, width)

    return attend


def results(attend: Any, query: Any, key: Any, value: Any, gradient: Any) -> list[np.ndarray]:
    """Returns the context and the three gradients, in float32. Only the first call for a function compiles a program."""
    return [np.asarray(x) for x in _results(attend, query, key, value, gradient)]


@functools.partial(jax.jit, static_argnums=0)
def _results(attend: Any, query: Any, key: Any, value: Any, gradient: Any) -> Any:
    context, backward = jax.vjp(attend, query, key, value)
    return [x.astype(jnp.float32) for x in (context, *backward(gradient))]


def largest_error(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """Returns the largest error, relative to the largest element of each array."""
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, wanted, strict=True))


def on_mesh(mesh: Any, attend: Any, inputs: list[Any]) -> list[np.ndarray]:
    """Returns the `results` of a program that is sharded over `mesh`."""
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        return results(attend, *inputs)


def split_by_hand(mesh: Any, attend: Any, inputs: list[Any], ids: Any) -> list[np.ndarray]:
    """Returns the `results` if `attend(ids)` runs on rows that are explicitly split over the mesh axis "data", while the compiler
    handles the other axes."""
    rows = jax.sharding.PartitionSpec("data")

    def whole(query: Any, key: Any, value: Any) -> Any:
        def part(ids: Any, *qkv: Any) -> Any:
            return attend(ids, rows=own_rows(len(ids), 1))(*qkv)

        return jax.shard_map(part, in_specs=rows, out_specs=rows, axis_names={"data"}, check_vma=False)(ids, query, key, value)

    return on_mesh(mesh, whole, inputs)
