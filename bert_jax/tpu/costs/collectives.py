"""Models the time of a collective on the network of a slice, and the bytes that the collective moves.

A slice is a grid of chips with a link to each neighbour in each of its two or three dimensions. `Topology.rings` shows which
dimensions wrap around. Slices communicate over the network cards of their hosts. The model assumes the following times for a
group of n chips and an array of b bytes. (This is the array on each chip before a reduce-scatter or after an all-gather.)

    all-gather, reduce-scatter   b (n-1)/n / W          W: the rate of a chip's links along the dimensions that the group
    all-reduce                   2 b (n-1)/n / W           spans, in both directions on a ring, in one direction on a line
    all-to-all                   through the narrowest cut of the longest dimension
    collective-permute           b / w                  w: the rate of one link, ICI_EFFICIENCY of its published rate

Each hop adds ICI_LATENCY. Between slices, each chip sends its part of the array through its share of the network card, before
or after the transfer inside the slice. The model assumes that groups share no links, that all chips start a collective at the
same time, and that nothing else uses the network."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

import jax
import numpy as np

from bert_jax.hardware import DCN_LATENCY, ICI_EFFICIENCY, ICI_LATENCY
from bert_jax.tpu.costs.hlo import Instruction
from bert_jax.tpu.costs.topologies import Topology

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One execution of a collective on one chip."""

    kind: str
    payload: float
    """b, in bytes."""
    sent: float
    """The bytes that the chip sends to chips of its own slice and of other slices."""
    sent_between_slices: float
    seconds: float
    group: int
    """n, in devices."""


def first_replica_group(text: str) -> list[int] | None:
    """Returns the partitions of the first group in `replica_groups=...`, in any of XLA's notations. Returns None if the group
    has all partitions."""
    if found := re.match(r"\{\{([\d,]*)\}", text):
        return [int(n) for n in found[1].split(",") if n] or None
    if found := re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        shape, dimensions, order = (_integers(part) for part in found.groups(default=""))
        ids = np.arange(math.prod(dimensions)).reshape(dimensions)
        return [int(n) for n in (ids.transpose(order) if order else ids).reshape(shape)[0].ravel()]
    if found := re.match(r"mesh\[([^\]]*)\](?:, device_ids=\(?\[([\d,]*)\](?:T\(([\d,]+)\))?\)?)? ?\{([^}]*)\}", text):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", found[1])}
        named = re.findall(r"'([^']+)'", found[4])
        ids = np.arange(math.prod(sizes.values()))
        if found[2]:
            ids = ids.reshape(_integers(found[2]))
            ids = ids.transpose(_integers(found[3])) if found[3] else ids
        ids = ids.reshape(tuple(sizes.values()))
        return [int(n) for n in ids[tuple(slice(None) if name in named else 0 for name in sizes)].ravel()]
    return None


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)


def transfer(
    kind: str, instruction: Instruction, operand_bytes: float, topology: Topology, devices: Sequence[jax.Device]
) -> Transfer:
    """Returns the cost of the collective `instruction`. `operand_bytes` is the size of all its operands together. `devices` are
    the devices of the mesh in flat order."""
    group = first_replica_group(instruction.attribute("replica_groups")) or list(range(len(devices)))
    if kind == "collective-permute":
        return _permute(operand_bytes, topology)
    n = len(group)
    payload = operand_bytes * (n if kind == "all-gather" else 1)
    members = [devices[i] for i in group]
    slices = len({_slice(device) for device in members})
    inner = n // slices
    inside = [device for device in members if _slice(device) == _slice(members[0])]
    times = _passes(kind)
    links, hops = _links(inside, topology)
    if kind == "all-to-all":
        seconds = payload * _cut(inside, topology) / topology.chip.link_bandwidth / ICI_EFFICIENCY
    else:
        seconds = times * payload * (inner - 1) / inner / links
    seconds += times * hops * ICI_LATENCY
    between = 0.0
    if slices > 1:
        between = times * payload / inner * (slices - 1) / slices
        seconds += _crossing_seconds(kind, between, topology)
    return Transfer(kind, payload, _sent(kind, operand_bytes, n), between, seconds, n)


def between_slices(sent: Instruction, size: float, topology: Topology) -> Transfer:
    """Returns the cost of a `send` of `size` bytes to the corresponding chips of the other slices, together with the `recv` of
    the result. If a collective crosses slices, the compiler replaces the crossing part by a `send` and a `recv` with the name
    of the collective. A run-time library executes them."""
    found = re.search(r'_xla_megascale_transfer_type="(\w+)"', sent.text)
    kind = (found[1] if found else "send").lower().replace("_", "-")
    slices = topology.slices
    payload = size * (slices if kind == "all-gather" else 1)
    crossing = _sent(kind, size, slices)
    seconds = _crossing_seconds(kind, crossing, topology)
    return Transfer(f"{kind} between slices", payload, crossing, crossing, seconds, slices)


def _passes(kind: str) -> int:
    """Returns the number of times that the payload is sent. An all-reduce sends it twice, in a reduce-scatter and an
    all-gather."""
    return 2 if kind == "all-reduce" else 1


def _sent(kind: str, size: float, n: int) -> float:
    """Returns the bytes that each of `n` members sends. `size` is the bytes of a member's operands. In an all-gather, a member
    sends its operands to all other members. In a collective-permute, it sends them to one other member."""
    if kind == "all-gather":
        return size * (n - 1)
    return _passes(kind) * size * (n - 1) / n if kind in KINDS and kind != "collective-permute" else size


def _crossing_seconds(kind: str, crossing: float, topology: Topology) -> float:
    """Returns the seconds in which each device sends `crossing` bytes to other slices. The devices of a chip share the chip's
    part of the network card."""
    return crossing * topology.chip.devices / topology.chip.network_bandwidth + _passes(kind) * DCN_LATENCY


def _slice(device: jax.Device) -> int | None:
    """Returns the index of the device's slice, or None. The compiler does not number slices if there is only one."""
    return getattr(device, "slice_index", None)


def _permute(size: float, topology: Topology) -> Transfer:
    seconds = size / topology.chip.link_bandwidth / ICI_EFFICIENCY + ICI_LATENCY
    return Transfer("collective-permute", size, size, 0.0, seconds, 2)


def _extents(members: Sequence[jax.Device]) -> list[int]:
    """Returns the number of different coordinates of the members in each dimension of the slice."""
    coordinates = np.array([device.coords for device in members])
    return [len(set(column)) for column in coordinates.T]


def _links(members: Sequence[jax.Device], topology: Topology) -> tuple[float, int]:
    """Returns (the bytes per second that a chip can send along the dimensions that the members span, the hops to the farthest
    member)."""
    width, hops = 0, 0
    for extent, size, ring in zip(_extents(members), topology.shape, topology.rings, strict=False):
        if extent > 1:
            closed = ring and extent == size
            width += 2 if closed else 1
            hops += extent // 2 if closed else extent - 1
    if not width:  # the members are the two halves of one chip
        return topology.chip.bandwidth, 0
    return width * topology.chip.link_bandwidth * ICI_EFFICIENCY, hops


def _cut(members: Sequence[jax.Device], topology: Topology) -> float:
    """Returns the load of a link in the middle of the longest dimension in an all-to-all, as a fraction of the bytes of one
    chip."""
    spans = zip(_extents(members), topology.shape, topology.rings, strict=False)
    return max((extent / (8 if ring and extent == size else 4) for extent, size, ring in spans if extent > 1), default=0.0)
