"""One table from the model's axis names to mesh axes, and the shardings that follow from it."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.terminal import UserError

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

BATCH = PartitionSpec(("data", "fsdp"))
"""Every array of a batch is split along its rows."""


def parameter_shardings(boxed: Any, mesh: Mesh) -> Any:
    """NamedShardings for a tree of boxed (abstract) parameters, as `abstract_parameters` gives them.

    Raises UserError naming the parameter, the dimension and the axis where a dimension does not divide over its mesh axis.
    """
    specs = nn.logical_to_mesh(nn.get_partition_spec(boxed), RULES)

    def check(path: Any, shape: Any, spec: PartitionSpec) -> NamedSharding:
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

    return jax.tree_util.tree_map_with_path(check, nn.unbox(boxed), specs, is_leaf=lambda x: isinstance(x, jax.ShapeDtypeStruct))


def state_shardings(state: Any, params_shardings: Any, mesh: Mesh) -> Any:
    """Shardings of a whole `TrainState` (abstract): every subtree shaped like the parameters is laid out as they are, the
    rest repeated."""
    structure: Any = jax.tree.structure(params_shardings)
    replicated = NamedSharding(mesh, PartitionSpec())

    def is_params(tree: Any) -> bool:
        return jax.tree.structure(tree) == structure

    return jax.tree.map(lambda tree: params_shardings if is_params(tree) else replicated, state, is_leaf=is_params)


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
            f"{name}={rows} does not divide over {row_multiple(mesh)} devices along data x fsdp"
            + (f" times {accumulation} microbatches" if accumulation > 1 else "")
            + f"; nearest: {near}"
        )
