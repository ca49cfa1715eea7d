"""One table of rules from the model's logical axis names to mesh axes, and the shardings computed from it."""

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
"""Rules for parameters: kernels are split over `fsdp` along the model width and over `tensor` along heads, feed-forward width or
vocabulary; LayerNorm and biases of width D are replicated (D numbers a device, too few for a collective)."""

ACTIVATION_RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = tuple(
    (name, None if name == "embed" else axes) for name, axes in RULES
)
"""Rules for activations: rows are split over `data` and `fsdp`; the model width is not split, since `fsdp` splits the rows."""

MIN_ZERO_SIZE = 2**15
"""Elements per layer below which an array stays replicated: a collective would cost more than it saves."""

BATCH = PartitionSpec(dict(RULES)["batch"])
"""Every array of a batch is split along its rows, the first dimension."""


def parameter_shardings(boxed: PyTree[nn.Partitioned], mesh: Mesh) -> Shardings:
    """Returns the NamedShardings of a tree of boxed (abstract) parameters, the output of `abstract_parameters`.

    Raises UserError, naming the parameter, the dimension and the axis, if a dimension is not divisible by its mesh axis.
    """
    names = nn.get_partition_spec(boxed)
    specs = nn.logical_to_mesh(names, RULES)

    def check(
        path: tuple[jax.tree_util.DictKey, ...], shape: jax.ShapeDtypeStruct, spec: PartitionSpec, named: PartitionSpec
    ) -> NamedSharding:
        for size, axis, logical in zip(shape.shape, spec, named, strict=False):
            if axis is not None and size % mesh.shape[axis]:
                name = "/".join(key.key for key in path)
                remedy = "set model.vocab_multiple=128" if logical == "vocab" else f"choose a mesh.{axis} that divides it"
                raise UserError(
                    f"parameter {name} has a dimension of {size} that does not divide over mesh.{axis}={mesh.shape[axis]}; "
                    f"{remedy}"
                )
        return NamedSharding(mesh, spec)

    # nn.unbox would apply a sharding constraint to these shapes, as if they were arrays, when a mesh is set
    shapes = jax.tree.map(lambda box: box.unbox(apply_constraint=False), boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))
    return jax.tree_util.tree_map_with_path(check, shapes, specs, names, is_leaf=lambda x: isinstance(x, jax.ShapeDtypeStruct))


def state_shardings(state: AbstractArrays, params: AbstractArrays, shardings: Shardings, mesh: Mesh) -> Shardings:
    """Returns the shardings of an abstract state, such as a training state with any optimizer, whose parameters have the shapes
    `params` and the `shardings`.

    An array of the shape of a parameter is sharded like that parameter: like the one whose path its own path ends with, else like
    the first of its shape. All other arrays are replicated.
    """
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
    """Returns whether the state can be sharded over "data" (ZeRO): the step then runs in a `jax.shard_map` over "data". False if
    two of the other axes split arrays, as `fsdp` and `tensor` may: XLA's partitioner then aborts on an embedding lookup (jax
    0.10.2), and the state is sharded already."""
    return mesh.shape["data"] > 1 and sum(size > 1 for axis, size in mesh.shape.items() if axis != "data") <= 1


def zero_shardings(shardings: Shardings, abstract: AbstractArrays, mesh: Mesh) -> Shardings:
    """Returns the `shardings` of parameters with "data" added, so that every device stores and updates a part of each parameter
    (ZeRO, arXiv:1910.02054). `abstract` holds the shapes.

    An array is split along its first unsplit dimension divisible by the size of "data", the stacked layers excepted. An array
    without such a dimension, or with fewer than MIN_ZERO_SIZE elements per layer, keeps its sharding. The last dimension is the
    worst choice, since it fills the lanes of a TPU.
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
    """Returns the dimension that `zero_shardings` has split over "data"; -1 if none."""
    return next((d for d, axis in enumerate(spec) if axis == "data"), -1)


def data_axis_spec(spec: PartitionSpec) -> PartitionSpec:
    """`spec` without every axis but "data": the spec for a `jax.shard_map` that is manual over "data" alone."""
    return PartitionSpec(*("data" if axis == "data" else None for axis in spec))


def rules_inside_shard_map(manual: str) -> tuple[tuple[str, str | tuple[str, ...] | None], ...]:
    """ACTIVATION_RULES without the mesh axis `manual`, for code inside a `jax.shard_map` over it, which must not name that
    axis."""

    def left(axes: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        return tuple(axis for axis in axes if axis != manual) if isinstance(axes, tuple) else axes

    return tuple((name, left(axes)) for name, axes in ACTIVATION_RULES)


def automatic_axes() -> set[str]:
    """Returns the axes of the ambient mesh that are not manual. XLA cannot split a Pallas or Triton kernel over them, so the
    kernel needs a `jax.shard_map` over them. Empty on one device."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {axis for axis, kind in axes if kind != AxisType.Manual} if mesh.size > 1 else set()


def mesh_axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the mesh axes in one entry of a PartitionSpec."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def shard_count(axes: tuple[str, ...]) -> int:
    """Returns the product of the sizes of `axes` in the ambient mesh: the number of parts of a dimension split over them."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[axis] for axis in axes)


def drop_indivisible_axes(spec: PartitionSpec, sizes: tuple[int, ...]) -> PartitionSpec:
    """`spec` without manual axes and without axes that do not divide the dimension in `sizes`; devices along those repeat the
    work."""
    there, entries = automatic_axes(), []
    for entry, size in zip(spec, sizes, strict=True):
        axes = tuple(axis for axis in mesh_axes(entry) if axis in there)
        entries.append(axes if axes and size % shard_count(axes) == 0 else None)
    return PartitionSpec(*entries)


def row_multiple(mesh: Mesh) -> int:
    """Returns the number of parts that the rows of a batch are split into; a batch size must be a multiple of it."""
    return math.prod(mesh.shape[axis] for axis in BATCH[0])


def check_batch_size(name: str, rows: int, accumulation: int, mesh: Mesh) -> None:
    """Raises UserError, with the nearest possible sizes, if `rows` is not divisible by the devices and
    microbatches."""
    multiple = row_multiple(mesh) * accumulation
    if rows % multiple:
        below, above = rows // multiple * multiple, -(-rows // multiple) * multiple
        near = f"{below} or {above}" if below else f"{above}"
        raise UserError(
            f"{name}={rows} does not divide over {counted(row_multiple(mesh), 'device')} along {' x '.join(BATCH[0])}"
            + (f" times {accumulation} microbatches" if accumulation > 1 else "")
            + f"; nearest: {near}"
        )


def with_shardings(abstract: AbstractArrays, shardings: Shardings) -> AbstractArrays:
    """Returns the ShapeDtypeStructs of `abstract` with `shardings`."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)
