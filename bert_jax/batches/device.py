"""numpy batches to global jax.Arrays."""

from __future__ import annotations

import math

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.examples.assemble import Batch
from bert_jax.terminal import UserError


def to_device(batch: Batch, mesh: Mesh, batch_axes: PartitionSpec) -> dict[str, jax.Array]:
    """The global arrays of which `batch` holds this process's rows (see `process_shard`), rows laid over the mesh axes of `batch_axes`."""
    _, count = process_shard(mesh, batch_axes)
    sharding = NamedSharding(mesh, batch_axes)
    check_batch_size(len(next(iter(batch.values()))) * count, mesh, batch_axes)
    return {
        name: jax.make_array_from_process_local_data(sharding, array, (len(array) * count, *array.shape[1:])) for name, array in batch.items()
    }


def check_batch_size(batch_size: int, mesh: Mesh, batch_axes: PartitionSpec) -> None:
    """UserError unless every device holds the same number of rows."""
    ways = math.prod(mesh.shape[axis] for axis in _axes(batch_axes))
    if batch_size % ways:
        near = sorted({max(ways, batch_size // ways * ways), -(-batch_size // ways) * ways})
        raise UserError(
            f"batch_size={batch_size} does not divide over the mesh: axes {', '.join(f'{axis}={mesh.shape[axis]}' for axis in _axes(batch_axes))} "
            f"split it {ways} ways; {' and '.join(map(str, near))} would do"
        )


def process_shard(mesh: Mesh, batch_axes: PartitionSpec) -> tuple[int, int]:
    """(index, count): which part of every batch this process is to hold.

    Hosts that a model axis joins hold the same rows; so this is not always (process_index, process_count).
    """
    ways = math.prod(mesh.shape[axis] for axis in _axes(batch_axes))
    pieces = NamedSharding(mesh, batch_axes).addressable_devices_indices_map((ways,))
    mine = sorted({piece[0].indices(ways)[0] for piece in pieces.values() if piece is not None})
    if mine != list(range(mine[0], mine[0] + len(mine))) or ways % len(mine) or mine[0] % len(mine):
        raise UserError(f"the mesh {dict(mesh.shape)} gives process {jax.process_index()} scattered parts of the batch {mine}; order the axes so that each host's devices are neighbours along {batch_axes}")
    return mine[0] // len(mine), ways // len(mine)


def _axes(batch_axes: PartitionSpec) -> tuple[str, ...]:
    """The mesh axes that split the rows."""
    first = batch_axes[0] if len(batch_axes) else None
    if first is None:
        return ()
    return tuple(first) if isinstance(first, (tuple, list)) else (first,)
