"""Rows for tests of fused attention, attention in NumPy as their reference, and functions that return the results of both."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.kernels.fused_attention import fused_attention
from bert_jax.model.layers import Dropout, dropout
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
    return [jnp.asarray(random.normal(size=(b, length, width)).astype(np.float32), dtype) for _ in range(4)]


def packed(b: int, length: int, examples: int = 3) -> Any:
    """Returns sequence_ids of rows with up to `examples` examples of random lengths, and a seventh of padding."""
    ids = np.sort(np.random.default_rng(length).integers(1, examples + 1, (b, length)), axis=1)
    ids[:, length - length // 7 :] = 0
    return jnp.asarray(ids.astype(np.int32), jnp.int32)


def columns(b: int, length: int, queries: int) -> Any:
    """Returns increasing columns for this many queries; the last three are 0, as in a padded batch."""
    random = np.random.default_rng(queries)
    drawn = np.sort([random.choice(length, queries, replace=False) for _ in range(b)], axis=1)
    drawn[:, queries - 3 :] = 0
    return jnp.asarray(drawn.astype(np.int32), jnp.int32)


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


def expected(
    ids: Any, heads: int, inputs: Sequence[Any], rate: float = 0.0, radius: int | None = None, queried: Any = None
) -> list[np.ndarray]:
    """Returns the `results` of attention, computed by NumPy in float64, with the dropout mask of plain attention. If there are
    `queried` columns, only these are queries, and the query and the gradient have only these."""
    query, key, value, gradient = (np.asarray(x, np.float64) for x in inputs)
    length, head_width = key.shape[1], key.shape[2] // heads
    split = [x.reshape(*x.shape[:2], heads, head_width).swapaxes(1, 2) for x in (query, key, value, gradient)]
    query, key, value, gradient = split
    ids, at = np.asarray(ids), np.arange(length)[None] if queried is None else np.asarray(queried)
    mask = np.take_along_axis(ids, np.broadcast_to(at, (len(ids), at.shape[1])), axis=1)[:, :, None] == ids[:, None, :]
    if radius is not None:
        mask &= abs(at[:, :, None] - np.arange(length)) <= radius
    scores = np.where(mask[:, None], query @ key.swapaxes(2, 3) / head_width**0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    kept = _kept(weights.shape, rate) if rate else np.ones(())
    of_weights = kept * (gradient @ value.swapaxes(2, 3))
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True)) / head_width**0.5
    shown = kept * weights
    found = shown @ value, of_scores @ key, of_scores.swapaxes(2, 3) @ query, shown.swapaxes(2, 3) @ gradient
    return [x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1) for x in found]


@functools.cache
def _kept(shape: tuple[int, ...], rate: float) -> np.ndarray:
    """Returns 0 for the elements of this shape that dropout with the seed SEED drops, and the factor of the others."""
    return np.asarray(jax.jit(lambda: dropout(jnp.ones(shape), Dropout(rate, jnp.uint32(SEED))))(), np.float64)


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


def split_by_hand(mesh: Any, attend: Any, inputs: list[Any], ids: Any) -> np.ndarray:
    """Returns the context if `attend(ids)` computes query, key and value in rows that are explicitly split over the mesh axis
    "data", while the compiler handles the other axes."""
    rows = jax.sharding.PartitionSpec("data")

    def part(ids: Any, *qkv: Any) -> Any:
        return attend(ids, rows=own_rows(len(ids), 1))(*qkv)

    whole = jax.shard_map(part, in_specs=rows, out_specs=rows, axis_names={"data"}, check_vma=False)
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        return np.asarray(jax.jit(whole)(ids, *inputs))
