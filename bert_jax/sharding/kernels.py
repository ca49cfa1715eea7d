"""Kernels over a mesh. `resolve` chooses a model's kernels once, when a run starts. Each device calls them on its own rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, UInt32

from bert_jax.model.config import ModelConfig, Resolved
from bert_jax.model.kernels import Axes, Parts, dispatch
from bert_jax.sharding.rules import automatic_axes, drop_indivisible_axes, mesh_axes, shard_count


def resolve(config: ModelConfig, mesh: Mesh | AbstractMesh) -> Resolved:
    """Returns `config` with its kernels for a program on `mesh`, e.g. a training step. The devices need not be attached.

    Raises UserError if `config` requires a kernel that cannot run.
    """
    chip = mesh.abstract_mesh.abstract_device
    assert chip is not None, "a mesh has devices"
    return dispatch.resolve(config, chip, mesh.size, over_mesh)


def over_mesh(sizes: Mapping[str, int]) -> Parts:
    """Returns the distribution of a kernel call over the ambient mesh, for logical axes with these `sizes`.

    The current logical rules split the call along the mesh axes that are not manual yet. A mesh axis is only used if its size
    divides the logical axis. Devices along the other mesh axes repeat the work.

    The ambient mesh is read when the call is traced. `resolve` cannot pass its mesh instead, because a `jax.shard_map` inside
    another one (`data_parallel.py`) must use the ambient mesh, in which some axes are manual. JAX traces a program again for
    another ambient mesh.
    """
    split = automatic_axes()
    if not split:
        return Parts()
    spec = nn.logical_to_mesh_axes(tuple(sizes)) or PartitionSpec(*(None for _ in sizes))
    spec = drop_indivisible_axes(spec, tuple(sizes.values()))
    return _MeshParts(tuple(zip(sizes, map(mesh_axes, spec), strict=True)), frozenset(split))


@dataclasses.dataclass(frozen=True)
class _MeshParts(Parts):
    """A kernel call distributed over the ambient mesh with `jax.shard_map`, since XLA cannot split a Pallas or Triton
    kernel."""

    axes: tuple[tuple[str, tuple[str, ...]], ...]
    """Each logical axis, with the mesh axes that split it."""
    split: frozenset[str]
    """The mesh axes that are not manual yet."""

    def index(self, axis: str) -> UInt32[Array, ""]:
        """Returns the index of this device's shard of a logical axis. Call it in code that runs on each device."""
        along = dict(self.axes)[axis]
        return jnp.uint32(jax.lax.axis_index(along) if along else 0)

    def count(self, axis: str) -> int:
        """Returns the number of shards of a logical axis."""
        return shard_count(dict(self.axes)[axis])

    def on_each_device(
        self, function: Callable[..., Any], inputs: Sequence[Axes], outputs: Sequence[Axes], sums: int = 0
    ) -> Callable[..., Any]:
        """Returns `function`, applied on each device of the mesh inside a `jax.shard_map`."""
        every = tuple(axis for _, along in self.axes for axis in along)

        def local(*arrays: Array) -> tuple[Array, ...]:
            found = tuple(function(*arrays))
            whole, partial = found[: len(found) - sums], found[len(found) - sums :]
            return (*whole, *jax.lax.psum(partial, every))

        return jax.shard_map(
            local,
            in_specs=tuple(map(self._spec, inputs)),
            out_specs=tuple(map(self._spec, outputs)),
            axis_names=set(self.split),
            check_vma=False,
        )

    def _spec(self, axes: Axes) -> PartitionSpec:
        along = dict(self.axes)
        return PartitionSpec(*(along.get(axis, ()) or None if axis else None for axis in axes))
