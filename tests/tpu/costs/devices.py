"""Devices of a topology without a compiler: places alone."""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.tpu.costs.topologies import Topology


@dataclasses.dataclass(frozen=True)
class Place:
    """What the network model asks of a device."""

    coords: tuple[int, ...]
    """Three, as TPUs have them; the last is 0 on a two-dimensional slice."""
    slice_index: int


def devices_of(topology: Topology) -> list[Place]:
    """Every device of every slice, those of a chip together, the last dimension fastest."""
    shape = (*topology.shape, 1, 1)[:3]
    chips = [Place(tuple(c), s) for s in range(topology.slices) for c in np.ndindex(*shape)]
    return [chip for chip in chips for _ in range(topology.chip.devices)]
