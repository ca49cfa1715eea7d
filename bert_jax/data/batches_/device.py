"""Transfer of numpy batches to global jax.Arrays."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int64, Num

from bert_jax.data.assemble import Batch
from bert_jax.errors import UserError


def to_device(batch: Batch, mesh: Mesh, batch_axes: PartitionSpec) -> dict[str, Num[Array, "_ ..."]]:
    """Global arrays, sharded by rows over the mesh axes `batch_axes`, from this process's part of the batch (`process_shard`).

    The number of rows must be divisible by the size of these axes; `sharding.rules.check_batch_size` checks it before the first
    batch.
    """
    _, count = process_shard(mesh, batch_axes)
    rows = len(next(iter(batch.values()))) * count
    sharding = NamedSharding(mesh, batch_axes)
    return {
        name: jax.make_array_from_process_local_data(sharding, array, (rows, *array.shape[1:])) for name, array in batch.items()
    }


def process_shard(mesh: Mesh, batch_axes: PartitionSpec) -> tuple[int, int]:
    """(index, count) of the part of every batch that this process assembles. It may differ from (process_index, process_count):
    processes that differ only on the tensor axis hold the same rows.
    """
    ways = _ways(mesh, batch_axes)
    pieces: dict[int, set[int]] = {}
    piece_of: dict[jax.Device, tuple[slice]] = dict(NamedSharding(mesh, batch_axes).devices_indices_map((ways,)))
    for device, (piece,) in piece_of.items():
        pieces.setdefault(device.process_index, set()).update(range(ways)[piece])
    return _part_of(jax.process_index(), pieces)


def process_rows(mesh: Mesh, batch_axes: PartitionSpec, rows: int) -> Int64[np.ndarray, " B"]:
    """The rows, of the `rows` rows of a global array, that this process holds; ascending, as `to_device` expects them. They need
    not be contiguous."""
    pieces: dict[jax.Device, tuple[slice]] = dict(NamedSharding(mesh, batch_axes).devices_indices_map((rows,)))
    own = [range(rows)[piece] for device, (piece,) in pieces.items() if device.process_index == jax.process_index()]
    return np.unique(np.concatenate([np.array(piece) for piece in own]))


def _part_of(process: int, pieces: dict[int, set[int]]) -> tuple[int, int]:
    """(index, count) of the part of `process`, given the `pieces` of the batch that each process holds.

    The pieces of a process need not be contiguous (on a TPU the mesh follows the interconnect): the rows of its part are then
    scattered in the global array. The global batch has the same rows, in another order. Raises UserError if the parts of two
    processes overlap or differ in size.
    """
    parts = sorted({frozenset(part) for part in pieces.values()}, key=min)
    if sum(map(len, parts)) != len(frozenset.union(*parts)) or len({len(part) for part in parts}) != 1:
        raise UserError(
            f"the mesh gives the processes overlapping or unequal parts of the batch ({sorted(map(sorted, parts))}); "
            "choose sizes of the axes that divide the devices of one host, or are multiples of them"
        )
    return parts.index(frozenset(pieces[process])), len(parts)


def _ways(mesh: Mesh, batch_axes: PartitionSpec) -> int:
    return math.prod(mesh.shape[axis] for axis in _axes(batch_axes))


def _axes(batch_axes: PartitionSpec) -> tuple[str, ...]:
    """The mesh axes that split the rows."""
    first = batch_axes[0] if len(batch_axes) else None
    if first is None:
        return ()
    return tuple(first) if isinstance(first, tuple | list) else (first,)
