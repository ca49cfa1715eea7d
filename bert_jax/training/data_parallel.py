"""Computes gradients with ZeRO. The state is sharded over the data axis, and every device holds and updates a part of each
array.

ZeRO (arXiv:1910.02054, section 5.2) is implemented with explicit collectives in a `jax.shard_map` over "data". Parameters are
gathered in the dtype of the matrix products. The parameters of each layer are gathered while the layer before it is computed.
Gradients are reduce-scattered. Sharding constraints are not used, because XLA's partitioner then splits the matrix products
into small pieces (12 % of a v5e's peak) or makes programs that never finish compiling."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Num, UInt32

from bert_jax.model.config import ModelConfig
from bert_jax.model.encoder import stacked_layers, unstacked_layers
from bert_jax.objectives.losses import Sums
from bert_jax.objectives.model import Batch, Params
from bert_jax.objectives.objective import Objective
from bert_jax.sharding.config import DATA
from bert_jax.sharding.mesh import devices_along, torus_dimensions
from bert_jax.sharding.rules import data_axis_spec, data_dimension, rules_inside_shard_map
from bert_jax.training.steps import Gradients, StepSeed, gradients

ALL_REDUCE_FROM = 64
"""With this many chips or more, XLA lowers a reduce-scatter over all chips to an all-reduce. With 16 chips, it keeps the
reduce-scatter."""


Rings: TypeAlias = Sequence[list[list[int]] | None]
"""The `axis_index_groups` of collectives that run one after another. None is one group of all chips."""


def gradients_over_data(
    shardings: Any, mesh: Mesh, config: ModelConfig, reduce_dtype: str, rings: Rings | None = None
) -> Gradients:
    """Returns a version of `gradients` for parameters sharded by `shardings` (a tree of NamedSharding). The gradients are sharded
    in the same way.

    Kernels are gathered in `config.dtype`. With `config.scan_layers`, all layers are gathered before the scan. Otherwise, each
    layer is gathered when it is computed. Embedding tables are gathered in the same dtype, but their gradients are accumulated
    over tokens in float32. Gradients of sharded arrays are summed over devices in `reduce_dtype`. Gradients of all other arrays
    (biases, LayerNorm) are summed in float32. The mesh must support ZeRO (`supports_zero`). `rings` are the groups of chips that
    exchange arrays (default: `rings_along_data`)."""
    unstacked, dtype = not config.scan_layers, jnp.dtype(config.dtype)
    on_cpu = mesh.devices.flat[0].platform == "cpu"  # XLA's CPU compiler aborts on a reduce-scatter in bfloat16 (jax 0.10.2)
    rings = rings_along_data(mesh) if rings is None else rings
    specs = jax.tree.map(lambda s: data_axis_spec(s.spec), shardings)
    dimensions = jax.tree.map(lambda s: data_dimension(s.spec), shardings)

    def unstacked_dimensions() -> Any:
        one = functools.partial(jax.tree.map, lambda dimension: max(dimension - 1, -1))
        layers = {"encoder": config.num_layers, "decoder": config.decoder_layers}
        stacks = {name: dimensions[name] for name in layers if "layers" in dimensions.get(name, {})}
        return {**dimensions, **{n: {**stack, "layers": [one(stack["layers"])] * layers[n]} for n, stack in stacks.items()}}

    def gather(path: tuple[Any, ...], array: Num[Array, " ..."], dimension: int) -> Num[Array, " ..."]:
        name, sharded = path[-1].key, dimension >= 0
        if name == "kernel" or (name == "embedding" and sharded):
            array = array.astype(dtype)
        for ring in reversed(rings) if sharded else ():
            array = jax.lax.all_gather(array, DATA, axis=dimension, tiled=True, axis_index_groups=ring)
        return array.astype(jnp.float32) if name == "embedding" else array  # float32 makes the gradient float32 too

    def reduce(gradient: Num[Array, " ..."], dimension: int) -> Num[Array, " ..."]:
        if dimension < 0:
            return jax.lax.psum(gradient.astype(jnp.float32), DATA)
        narrow = gradient.astype(reduce_dtype)
        if on_cpu:
            narrow = narrow.astype(jnp.float32)
        for ring in rings:
            narrow = jax.lax.psum_scatter(narrow, DATA, scatter_dimension=dimension, tiled=True, axis_index_groups=ring)
        return narrow.astype(jnp.float32)

    def over_data(
        objective: Objective, params: Params, batch: Batch, counts: Sums, step_seed: StepSeed, accumulation: int
    ) -> tuple[Params, Sums]:
        def local(params: Params, batch: Batch, counts: Sums, step_seed: StepSeed) -> tuple[Params, Sums]:
            parts, sharded_dimensions = params, dimensions
            batch = batch | {"rows": own_rows(len(batch["input_ids"]), accumulation)}
            if unstacked:
                parts = unstacked_layers(params)
                sharded_dimensions = unstacked_dimensions()
            with nn.logical_axis_rules(rules_inside_shard_map(DATA)):
                whole = jax.tree_util.tree_map_with_path(gather, parts, sharded_dimensions)
                grads, sums = gradients(objective, whole, batch, counts, step_seed, accumulation)
            grads = jax.tree.map(reduce, grads, sharded_dimensions)
            return stacked_layers(grads) if unstacked else grads, jax.lax.psum(sums, DATA)

        on_each_device = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(specs, PartitionSpec(DATA), PartitionSpec(), PartitionSpec()),
            out_specs=(specs, PartitionSpec()),
            axis_names={DATA},
            check_vma=False,
        )
        return on_each_device(params, batch, counts, step_seed._replace(seed=jnp.asarray(step_seed.seed, jnp.uint32)))

    return over_data


def own_rows(rows: int, accumulation: int) -> UInt32[Array, " B"]:
    """Returns the index of each of the `rows` rows on this device. Rows are counted over all devices of a microbatch. The index
    determines the random masks of the row (see `Tokens.rows`)."""
    own = jax.lax.broadcasted_iota(jnp.uint32, (rows,), 0) // np.uint32(accumulation)
    return jax.lax.axis_index(DATA).astype(jnp.uint32) * np.uint32(rows // accumulation) + own


def rings_along_data(mesh: Mesh) -> Rings:
    """Returns the `axis_index_groups` of collectives over the data axis. The chips along this axis form a box, and each
    dimension of the box has its own groups. The groups of the slowest dimension come first. Running the collectives over one
    dimension after another gives the same result as one collective over all chips. [None] means one collective over all chips.

    With `ALL_REDUCE_FROM` or more chips in one collective, XLA lowers a reduce-scatter to an all-reduce, which sends twice the
    bytes. On the two-dimensional slices of v5e and v6e, collectives over one dimension after another are faster. For BERT-Large
    with 256 rows on v5e:8x8, the estimated time of a step falls from 49.4 to 47.5 ms with 128 tokens, and from 67.4 to 61.0 ms
    with 512. On three-dimensional slices, the all-reduce uses the links of three dimensions at once and is faster (v5p:4x4x4:
    56.2 ms against 58.0 ms).
    """
    sides = torus_dimensions(devices_along(mesh, DATA))
    if mesh.size < ALL_REDUCE_FROM or len(sides) != 2 or math.prod(sides) < mesh.size:
        return [None]
    indices = np.arange(mesh.size).reshape(sides)
    return [np.moveaxis(indices, k, -1).reshape(-1, side).tolist() for k, side in enumerate(sides)]
