"""The rules from the model's logical axis names to mesh axes, and the shardings derived from them."""

from __future__ import annotations

import math
from typing import TypeAlias

import flax.linen as nn
import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from bert_jax.errors import UserError
from bert_jax.interface.words import counted

Shardings: TypeAlias = PyTree[NamedSharding]
AbstractArrays: TypeAlias = PyTree[jax.ShapeDtypeStruct]

RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = (
    ("batch", ("data", "fsdp")),
    ("length", None),
    ("vocab", "tensor"),
    ("heads", "tensor"),
    ("head_width", None),
    ("mlp", "tensor"),
    ("embed", "fsdp"),
    ("embed_out", None),
    ("norm", None),
    ("layers", None),
)
"""Rules for parameters. Kernels are split over `fsdp` along the model width, and over `tensor` along heads, feed-forward width
or vocabulary. LayerNorm and biases of width D are replicated, because D numbers per device are too few for a collective."""

ACTIVATION_RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = tuple(
    (name, None if name == "embed" else axes) for name, axes in RULES
)
"""Rules for activations. Rows are split over `data` and `fsdp`. The model width is not split, since `fsdp` splits the rows."""

MIN_ZERO_SIZE = 2**15
"""Arrays with fewer elements per layer stay replicated over "data", since a collective would cost more than it saves."""

BATCH = PartitionSpec(dict(RULES)["batch"])
"""Every array of a batch is split along its first dimension, the rows."""


def parameter_shardings(boxed: PyTree[nn.Partitioned], mesh: Mesh) -> Shardings:
    """Returns the NamedShardings of a tree of boxed (abstract) parameters, as `abstract_parameters` returns it.

    Raises UserError if a dimension is not divisible by its mesh axis. The error names the parameter, the dimension and the
    axis.
    """
    names = nn.get_partition_spec(boxed)
    specs = nn.logical_to_mesh(names, RULES)

    def check(
        path: tuple[jax.tree_util.DictKey, ...], shape: jax.ShapeDtypeStruct, spec: PartitionSpec, named: PartitionSpec
    ) -> NamedSharding:
        for size, axis, logical in zip(shape.shape, spec, named, strict=False):
            if axis is not None and size % mesh.shape[axis]:
                name = "/".join(key.key for key in path)
                multiple = math.lcm(128, mesh.shape[axis])
                remedy = f"set model.vocab_multiple={multiple}" if logical == "vocab" else f"choose a mesh.{axis} that divides it"
                raise UserError(
                    f"parameter {name} has a dimension of {size}, which is not divisible by mesh.{axis}={mesh.shape[axis]}; "
                    f"{remedy}"
                )
        return NamedSharding(mesh, spec)

    # If a mesh is set, nn.unbox would apply a sharding constraint to these shapes, as if they were arrays.
    shapes = jax.tree.map(lambda box: box.unbox(apply_constraint=False), boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))
    return jax.tree_util.tree_map_with_path(check, shapes, specs, names, is_leaf=lambda x: isinstance(x, jax.ShapeDtypeStruct))


def state_shardings(state: AbstractArrays, params: AbstractArrays, shardings: Shardings, mesh: Mesh) -> Shardings:
    """Returns the shardings of an abstract state, e.g. a train state with any optimizer. The parameters in the state have the
    shapes `params` and these `shardings`.

    An array with the shape of a parameter is sharded like that parameter. If several parameters have this shape, the array is
    sharded like the parameter whose path is the end of the array's path. If no path matches, the first parameter with this
    shape is used. All other arrays are replicated."""
    by_path: dict[tuple[tuple[str, ...], tuple[int, ...]], NamedSharding] = {}
    by_shape: dict[tuple[int, ...], NamedSharding] = {}
    for (path, array), sharding in zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(shardings), strict=True):
        by_path[tuple(map(str, path)), array.shape] = sharding
        by_shape.setdefault(array.shape, sharding)
    replicated = NamedSharding(mesh, PartitionSpec())

    def place(path: tuple[jax.tree_util.DictKey, ...], array: jax.ShapeDtypeStruct) -> NamedSharding:
        keys = tuple(map(str, path))
        same = (by_path[keys[i:], array.shape] for i in range(len(keys)) if (keys[i:], array.shape) in by_path)
        return next(same, by_shape.get(array.shape, replicated))

    return jax.tree_util.tree_map_with_path(place, state)


def supports_zero(mesh: Mesh) -> bool:
    """Returns whether the state can be sharded over "data" (ZeRO). ZeRO runs the step in a `jax.shard_map` over "data". This is
    not supported if both `fsdp` and `tensor` split arrays, because XLA's partitioner then aborts on an embedding lookup (jax
    0.10.2). The state is already sharded in this case."""
    return mesh.shape["data"] > 1 and sum(size > 1 for axis, size in mesh.shape.items() if axis != "data") <= 1


def zero_shardings(shardings: Shardings, abstract: AbstractArrays, mesh: Mesh) -> Shardings:
    """Adds "data" to the `shardings` of parameters, so that every device stores and updates a part of each parameter (ZeRO,
    arXiv:1910.02054). `abstract` holds the shapes.

    An array is split along the first dimension that is not split yet and is divisible by the size of "data". The dimension of
    stacked layers is skipped. An array keeps its sharding if there is no such dimension, or if the array has fewer than
    MIN_ZERO_SIZE elements per layer. The last dimension is the worst choice, since it fills the lanes of a TPU.
    """
    parts = mesh.shape["data"]
    if not supports_zero(mesh):
        return shardings

    def spread(path: tuple[jax.tree_util.DictKey, ...], sharding: NamedSharding, array: jax.ShapeDtypeStruct) -> NamedSharding:
        stacked = any(key.key == "layers" for key in path)
        spec = [axis if axis and mesh.shape[axis] > 1 else None for axis in sharding.spec]
        free = [d for d in range(stacked, array.ndim) if spec[d] is None and array.shape[d] % parts == 0]
        if not free or math.prod(array.shape[stacked:]) < MIN_ZERO_SIZE:
            return sharding
        spec[free[0]] = "data"
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree_util.tree_map_with_path(spread, shardings, abstract)


def data_dimension(spec: PartitionSpec) -> int:
    """Returns the dimension that `zero_shardings` has split over "data", or -1 if it has split none."""
    return next((d for d, axis in enumerate(spec) if axis == "data"), -1)


def data_axis_spec(spec: PartitionSpec) -> PartitionSpec:
    """Returns `spec` with only the axis "data", for a `jax.shard_map` that is manual over "data"."""
    return PartitionSpec(*("data" if axis == "data" else None for axis in spec))


def rules_inside_shard_map(manual: str) -> tuple[tuple[str, str | tuple[str, ...] | None], ...]:
    """Returns ACTIVATION_RULES without the mesh axis `manual`, for code inside a `jax.shard_map` over this axis. Such code must
    not name the axis."""

    def left(axes: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        return tuple(axis for axis in axes if axis != manual) if isinstance(axes, tuple) else axes

    return tuple((name, left(axes)) for name, axes in ACTIVATION_RULES)


def automatic_axes() -> set[str]:
    """Returns the axes of the ambient mesh that are not manual. XLA cannot split a Pallas or Triton kernel over them, so the
    kernel needs a `jax.shard_map` over these axes. Returns no axes on a single device."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {axis for axis, kind in axes if kind != AxisType.Manual} if mesh.size > 1 else set()


def mesh_axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the mesh axes in one entry of a PartitionSpec."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def shard_count(axes: tuple[str, ...]) -> int:
    """Returns the number of shards of a dimension split over `axes` in the ambient mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[axis] for axis in axes)


def drop_indivisible_axes(spec: PartitionSpec, sizes: tuple[int, ...]) -> PartitionSpec:
    """Removes manual axes from `spec`, and axes whose size does not divide the dimension. `sizes` has the size of each
    dimension. Devices along the removed axes repeat the work."""
    there, entries = automatic_axes(), []
    for entry, size in zip(spec, sizes, strict=True):
        axes = tuple(axis for axis in mesh_axes(entry) if axis in there)
        entries.append(axes if size % shard_count(axes) == 0 else None)
    return PartitionSpec(*entries)


def parameter_shards(mesh: Mesh) -> int:
    """Returns the largest number of parts into which RULES split a parameter. ZeRO can split each part again, over "data"."""
    axes = {axis for name, entry in RULES if name != "batch" for axis in mesh_axes(entry)}
    return math.prod(mesh.shape[axis] for axis in axes)


def row_multiple(mesh: Mesh) -> int:
    """Returns the number of shards of a batch's rows. Batch sizes must be a multiple of this number."""
    return math.prod(mesh.shape[axis] for axis in BATCH[0])


def check_batch_size(name: str, rows: int, accumulation: int, mesh: Mesh) -> None:
    """Raises UserError if `rows` is not divisible by the number of devices times microbatches. The error names the nearest
    possible sizes."""
    multiple = row_multiple(mesh) * accumulation
    if rows % multiple:
        below, above = rows // multiple * multiple, -(-rows // multiple) * multiple
        near = f"{below} or {above}" if below else f"{above}"
        raise UserError(
            f"{name}={rows} is not divisible by {counted(row_multiple(mesh), 'device')} along {' x '.join(BATCH[0])}"
            + (f" times {accumulation} microbatches" if accumulation > 1 else "")
            + f"; nearest: {near}"
        )


def with_shardings(abstract: AbstractArrays, shardings: Shardings) -> AbstractArrays:
    """Returns the ShapeDtypeStructs of `abstract` with `shardings`."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)
