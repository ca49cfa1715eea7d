"""Devices of a topology without a compiler: only their positions."""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.tpu.costs.topologies import Topology


@dataclasses.dataclass(frozen=True)
class Place:
    """The attributes of a device that the network model uses."""

    coords: tuple[int, ...]
    """Three, as on TPUs; the last is 0 on a two-dimensional slice."""
    slice_index: int


def devices_of(topology: Topology) -> list[Place]:
    """Returns every device of every slice, a chip's devices next to each other, the last dimension fastest."""
    shape = (*topology.shape, 1, 1)[:3]
    chips = [Place(tuple(c), s) for s in range(topology.slices) for c in np.ndindex(*shape)]
    return [chip for chip in chips for _ in range(topology.chip.devices)]
