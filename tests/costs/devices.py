"""Devices of a topology without a compiler: places alone."""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.costs.topologies import Topology


@dataclasses.dataclass(frozen=True)
class Place:
    """What the network model asks of a device."""

    coords: tuple[int, ...]
    slice_index: int


def devices_of(topology: Topology) -> list[Place]:
    """Every chip of every slice, the last dimension fastest."""
    return [Place(tuple(c), s) for s in range(topology.slices) for c in np.ndindex(*topology.shape)]
