"""One table from the model's axis names to mesh axes, and the shardings that follow from it."""

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
"""Parameters: kernels are split over `fsdp` along the model width and over `tensor` along heads, feed-forward width or
vocabulary; LayerNorm and biases of width D are whole everywhere (D numbers a device, not worth a collective)."""

ACTIVATION_RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = tuple(
    (name, None if name == "embed" else axes) for name, axes in RULES
)
"""Activations: rows over `data` and `fsdp`; their width stays whole, since `fsdp` already splits the rows."""

SMALL = 2**15
"""Numbers of a layer's array below which it is not worth a collective of its own."""

BATCH = PartitionSpec(("data", "fsdp"))
"""Every array of a batch is split along its rows."""


def parameter_shardings(boxed: PyTree[nn.Partitioned], mesh: Mesh) -> Shardings:
    """NamedShardings for a tree of boxed (abstract) parameters, as `abstract_parameters` gives them.

    Raises UserError naming the parameter, the dimension and the axis where a dimension does not divide over its mesh axis.
    """
    specs = nn.logical_to_mesh(nn.get_partition_spec(boxed), RULES)

    def check(path: tuple[jax.tree_util.DictKey, ...], shape: jax.ShapeDtypeStruct, spec: PartitionSpec) -> NamedSharding:
        for size, axis in zip(shape.shape, spec, strict=False):
            parts = mesh.shape[axis] if axis is not None else 1
            if size % parts:
                name = "/".join(key.key for key in path)
                remedy = (
                    "set model.vocab_multiple=128"
                    if "word_embeddings" in name or name == "mlm_head/bias"
                    else f"choose a mesh.{axis} that does"
                )
                raise UserError(
                    f"parameter {name} has a dimension of {size} that does not divide over mesh.{axis}={parts}; {remedy}"
                )
        return NamedSharding(mesh, spec)

    # not nn.unbox, which would constrain these shapes as if they were arrays where a mesh is set
    def shape(box: nn.Partitioned[jax.ShapeDtypeStruct] | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return box.unbox(apply_constraint=False) if isinstance(box, nn.Partitioned) else box

    shapes = jax.tree.map(shape, boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))
    return jax.tree_util.tree_map_with_path(check, shapes, specs, is_leaf=lambda x: isinstance(x, jax.ShapeDtypeStruct))


def state_shardings(state: AbstractArrays, params_shardings: Shardings, mesh: Mesh) -> Shardings:
    """Shardings of a whole `TrainState` (abstract): every subtree shaped like the parameters is laid out as they are, the
    rest repeated."""
    structure: object = jax.tree.structure(params_shardings)
    replicated = NamedSharding(mesh, PartitionSpec())

    def is_params(tree: PyTree) -> bool:
        return jax.tree.structure(tree) == structure

    return jax.tree.map(lambda tree: params_shardings if is_params(tree) else replicated, state, is_leaf=is_params)


def can_spread(mesh: Mesh) -> bool:
    """Whether steps on `mesh` run in a `jax.shard_map` over "data", as state that is spread needs. Not where `fsdp` and `tensor`
    both split arrays: XLA's partitioner then aborts on a lookup in a table (jax 0.10.2), and the state is in parts already."""
    return mesh.shape["data"] > 1 and 1 in (mesh.shape["fsdp"], mesh.shape["tensor"])


def spread_over_data(shardings: Shardings, abstract: AbstractArrays, mesh: Mesh) -> Shardings:
    """The `shardings` of parameters (`abstract` says their shapes) split over "data" as well, so that every device keeps and
    updates a part of each (ZeRO, arXiv:1910.02054).

    An array is split along its first dimension that is whole and divides over the axis, the layers aside; one that has none, or
    fewer than SMALL numbers a layer, stays as it is. The last dimension is the worst: it fills the lanes of a TPU.
    """
    parts = mesh.shape["data"]
    if not can_spread(mesh):
        return shardings

    def spread(path: tuple[jax.tree_util.DictKey, ...], sharding: NamedSharding, array: jax.ShapeDtypeStruct) -> NamedSharding:
        stacked = any(key.key == "layers" for key in path)
        spec = [axis if axis and mesh.shape[axis] > 1 else None for axis in sharding.spec]
        spec += [None] * (array.ndim - len(spec))
        free = [d for d in range(stacked, array.ndim) if spec[d] is None and array.shape[d] % parts == 0]
        if not free or math.prod(array.shape[stacked:]) < SMALL:
            return sharding
        spec[free[0]] = "data"
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree_util.tree_map_with_path(spread, shardings, abstract)


def data_dimension(spec: PartitionSpec) -> int:
    """The dimension that `spread_over_data` has split, -1 where none is."""
    return next((d for d, axis in enumerate(spec) if axis == "data"), -1)


def only_data(spec: PartitionSpec) -> PartitionSpec:
    """What a `jax.shard_map` over "data" alone is told of a spec."""
    return PartitionSpec(*("data" if axis == "data" else None for axis in spec))


def local_rules(manual: str) -> tuple[tuple[str, str | tuple[str, ...] | None], ...]:
    """ACTIVATION_RULES for what runs inside a `jax.shard_map` over the mesh axis `manual`, where it is no longer to be named."""

    def left(axes: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        return tuple(axis for axis in axes if axis != manual) if isinstance(axes, tuple) else axes

    return tuple((name, left(axes)) for name, axes in ACTIVATION_RULES)


def first_row(rows: int) -> int | jax.Array:
    """The place in the whole batch of the first of `rows` rows at hand: not 0 inside a `jax.shard_map` over its axes."""
    manual = jax.sharding.get_abstract_mesh().manual_axes
    axes = tuple(axis for axis in BATCH[0] if axis in manual)
    return jax.lax.axis_index(axes).astype("uint32") * rows if axes else 0


def automatic_axes() -> set[str]:
    """Axes of the ambient mesh over which XLA would have to split a kernel of ours, which it cannot; none where there is one
    device, or where a `jax.shard_map` has split it already."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {axis for axis, kind in axes if kind != AxisType.Manual} if mesh.size > 1 else set()


def axes_of(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes that an entry of a PartitionSpec names."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def parts_along(axes: tuple[str, ...]) -> int:
    """Into how many parts the ambient mesh splits what is split over these axes."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[axis] for axis in axes)


def divisible(spec: PartitionSpec, sizes: tuple[int, ...]) -> PartitionSpec:
    """`spec` without the mesh axes that are not there, or that a dimension does not divide over: those devices repeat the
    work."""
    there, entries = automatic_axes(), []
    for entry, size in zip(spec, sizes, strict=True):
        axes = tuple(axis for axis in axes_of(entry) if axis in there)
        entries.append(axes if axes and size % parts_along(axes) == 0 else None)
    return PartitionSpec(*entries)


def row_multiple(mesh: Mesh) -> int:
    """How many parts the rows of a batch are split into; a batch size must be a multiple of it."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def check_batch_size(name: str, rows: int, accumulation: int, mesh: Mesh) -> None:
    """Raises UserError naming the nearest sizes that do, unless `rows` divide over the mesh and the microbatches."""
    multiple = row_multiple(mesh) * accumulation
    if rows % multiple or rows < multiple:
        below, above = rows // multiple * multiple, -(-rows // multiple) * multiple
        near = f"{below} or {above}" if below else f"{above}"
        raise UserError(
            f"{name}={rows} does not divide over {counted(row_multiple(mesh), 'device')} along data x fsdp"
            + (f" times {accumulation} microbatches" if accumulation > 1 else "")
            + f"; nearest: {near}"
        )


def with_shardings(abstract: AbstractArrays, shardings: Shardings) -> AbstractArrays:
    """Shapes that also say where the arrays are to live."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)
