"""Gradients when the state is spread over the data axis: every device keeps and updates a part of each array.

ZeRO (arXiv:1910.02054, section 5.2) as explicit collectives in a `jax.shard_map` over "data": the parameters are gathered in the
dtype of the products, one layer at a time while the one before is computed, and of the summed gradients each device keeps its
part. Left to the partitioner, constraints on the same arrays become products in small pieces (12 % of a v5e's peak), or programs
that its compiler does not finish.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int, Integer, Num, UInt32

from bert_jax.model.config import ModelConfig
from bert_jax.model.encoder import stacked_layers, unstacked_layers, with_layers
from bert_jax.sharding.mesh import torus_dimensions
from bert_jax.sharding.rules import data_axis_spec, data_dimension, rules_inside_shard_map, supports_zero
from bert_jax.training.losses import Sums
from bert_jax.training.objectives import Batch, Objective, Params
from bert_jax.training.steps import Gradients, gradients

MANY = 64
"""Chips over which XLA no longer gathers at once; over 16 it does."""


def gradients_over_data(shardings: Any, mesh: Mesh, config: ModelConfig, reduce_dtype: str) -> Gradients:
    """`gradients` for parameters laid out by `shardings` (a tree of NamedSharding); what it gives is laid out as they are.

    Kernels are gathered in `config.dtype`, those of a layer when it is needed, or the whole stack for a loop over layers
    (`config.scan_unroll`); tables too, but what a word learns from each of its places adds up in float32.
    Gradients of arrays that are spread are summed over the devices in `reduce_dtype`, the others (biases, LayerNorm) in float32.
    """
    if not supports_zero(mesh):
        return gradients
    unstacked, dtype = not config.scan_unroll, jnp.dtype(config.dtype)
    on_cpu = mesh.devices.flat[0].platform == "cpu"  # whose compiler aborts on sums in bfloat16 here (jax 0.10.2)
    rings = rings_along_data(mesh)
    specs = jax.tree.map(lambda s: data_axis_spec(s.spec), shardings)
    dimensions = jax.tree.map(lambda s: data_dimension(s.spec), shardings)

    def of_parts(layers: int) -> Any:
        one = functools.partial(jax.tree.map, lambda dimension: max(dimension - 1, -1))
        return with_layers(dimensions, lambda stack: [one(stack)] * layers)

    def gather(path: tuple[Any, ...], array: Num[Array, " ..."], dimension: int) -> Num[Array, " ..."]:
        name, spread = path[-1].key, dimension >= 0
        if name == "kernel" or (name == "embedding" and spread):
            array = array.astype(dtype)
        for ring in reversed(rings) if spread else ():
            array = jax.lax.all_gather(array, "data", axis=dimension, tiled=True, axis_index_groups=ring)
        return array.astype(jnp.float32) if name == "embedding" else array  # so is its gradient, then

    def reduce(gradient: Num[Array, " ..."], dimension: int) -> Num[Array, " ..."]:
        if dimension < 0:
            return jax.lax.psum(gradient.astype(jnp.float32), "data")
        narrow = gradient.astype(reduce_dtype)
        if on_cpu:
            narrow = narrow.astype(jnp.float32)
        for ring in rings:
            narrow = jax.lax.psum_scatter(narrow, "data", scatter_dimension=dimension, tiled=True, axis_index_groups=ring)
        return narrow.astype(jnp.float32)

    def over_data(
        objective: Objective,
        params: Params,
        batch: Batch,
        counts: Sums,
        seed: int | Integer[Array, ""],
        step: Int[Array, ""],
        accumulation: int,
    ) -> tuple[Params, Sums]:
        def local(
            params: Params, batch: Batch, counts: Sums, seed: UInt32[Array, ""], step: Int[Array, ""]
        ) -> tuple[Params, Sums]:
            parts, split = params, dimensions
            if unstacked:
                parts = unstacked_layers(params)
                split = of_parts(len(parts["encoder"]["layers"]))
            with nn.logical_axis_rules(rules_inside_shard_map("data")):
                whole = jax.tree_util.tree_map_with_path(gather, parts, split)
                grads, sums = gradients(objective, whole, batch, counts, seed, step, accumulation)
            grads = jax.tree.map(reduce, grads, split)
            return stacked_layers(grads) if unstacked else grads, jax.lax.psum(sums, "data")

        spread = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(specs, PartitionSpec("data"), PartitionSpec(), PartitionSpec(), PartitionSpec()),
            out_specs=(specs, PartitionSpec()),
            axis_names={"data"},
            check_vma=False,
        )
        return spread(params, batch, counts, jnp.asarray(seed, jnp.uint32), step)

    return over_data


def rings_along_data(mesh: Mesh) -> list[list[list[int]] | None]:
    """For each side of the box of chips that the data axis runs through, slowest first, the groups of places on that axis that
    stand in a line: a collective over one after the other is one over all. [None] is all places at once.

    Over `MANY` chips at once XLA sends sums to all in place of parts, twice the bytes. In the plane of v5e and v6e going
    along one side after the other pays (BERT-Large, 256 rows on v5e:8x8, estimated: 49.4 to 47.5 ms of 128 tokens, 67.4 to 61.0
    of 512); in a box a sum to all has the links of three dimensions at once, and is sooner done (v5p:4x4x4: 56.2 and 58.0 ms).
    """
    sides = torus_dimensions(list(mesh.devices[:, 0, 0]))
    if mesh.size < MANY or len(sides) != 2 or math.prod(sides) < mesh.size:
        return [None]
    places = np.arange(mesh.size).reshape(sides)
    return [np.moveaxis(places, k, -1).reshape(-1, side).tolist() for k, side in enumerate(sides)]
