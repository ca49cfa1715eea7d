"""Figures from the data sheets of accelerators: the peak FLOP/s of each JAX device, and the rates of each TPU generation. The
rates are per chip, because prices are per chip. This module also counts the cores of this machine."""

from __future__ import annotations

import dataclasses
import os
import re

GB, GIB = 10**9, 2**30

OTHER_NAMES = {"TPU v5e": "TPU v5 lite", "TPU v5p": "TPU v5", "TPU v6e": "TPU v6 lite"}
"""Other names that JAX accepts for a `device_kind` -> the name in the tables of this module."""

# Peak bf16 FLOP/s of one JAX device, from the manufacturers' data sheets (dense, without sparsity). On TPU v2, v3 and 7x, each
# of the two cores of a chip is a device. A name matches if `jax.Device.device_kind` starts with it and the match ends at the
# end of a word. The longest match is used.
PEAKS = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,  # v5p
    "TPU v6 lite": 918e12,
    "TPU7x": 2307e12 / 2,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA A10": 125e12,
}


def peak_flops(device_kind: str) -> float | None:
    """Returns the bf16 peak of one device in FLOP/s, or None if the device is not listed or is a part of a GPU (MIG)."""
    if " MIG " in device_kind:
        return None
    kind = OTHER_NAMES.get(device_kind, device_kind)
    known = [name for name in PEAKS if re.match(rf"{re.escape(name)}(?!\w)", kind)]
    return PEAKS[max(known, key=len)] if known else None


VMEM = {"TPU v2": 16, "TPU v3": 16, "TPU v4": 16, "TPU v5 lite": 128, "TPU v5": 64, "TPU v6 lite": 128, "TPU7x": 64}
"""The vector memory of a core in MiB, by `device_kind`."""


def vector_memory(device_kind: str) -> int:
    """Returns the vector memory of a core in MiB. For unknown kinds, this is the smallest value in `VMEM`."""
    return VMEM.get(OTHER_NAMES.get(device_kind, device_kind), min(VMEM.values()))


@dataclasses.dataclass(frozen=True)
class Chip:
    """One TPU generation. Rates are peaks per chip. A *device* of JAX is a chip, except on v7x. There, each of the two cores of
    a chip is a device."""

    name: str
    library_name: str
    """The name of the generation in the compiler."""
    kind: str
    """JAX's `device_kind`."""
    memory_bytes: int
    """Bytes of HBM."""
    bandwidth: float
    """Bytes per second between HBM and the cores."""
    clock: float
    """Cycles per second of the matrix units, computed from `peak_flops`."""
    cores: int
    matrix_units: int
    """Matrix units per core. A unit that starts two products of `matrix_width` x `matrix_width` per cycle counts twice."""
    matrix_width: int
    links: int
    """The number of inter-chip links (ICI) per chip, two for each dimension of the torus."""
    link_bandwidth: float
    """Bytes per second over one link in one direction."""
    network_bandwidth: float
    """Bytes per second between slices, per chip. Slices communicate over the network cards of their hosts, and the chips of a
    host share its cards."""
    devices: int = 1
    """JAX devices per chip."""
    config: str | None = None
    """The compiler's name of the mode that uses both cores as one device. None if this mode is the default."""

    @property
    def peak_flops(self) -> float:
        """Peak bf16 FLOP/s. A multiply-add counts as two operations."""
        return PEAKS[self.kind] * self.devices

    @property
    def dimensions(self) -> int:
        """The number of dimensions of the torus."""
        return self.links // 2

    @property
    def whole_ring(self) -> int:
        """A dimension is a ring with a wrap-around link if its length is a multiple of this number. In two-dimensional pods,
        only a full side of 16 chips is a ring. In three-dimensional pods, every dimension built from cubes of 4 x 4 x 4 chips
        is a ring."""
        return 16 if self.dimensions == 2 else 4


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "v4", "TPU v4", 32 * GIB, 1228 * GB, 1.05e9, 2, 4, 128, 6, 50 * GB, 25 / 8 * GB, config="megacore"),
        Chip("v5e", "v5e", "TPU v5 lite", 16 * GIB, 819 * GB, 1.5e9, 1, 4, 128, 4, 50 * GB, 25 / 8 * GB),
        Chip("v5p", "v5p", "TPU v5", 95 * GIB, 2765 * GB, 1.75e9, 2, 4, 128, 6, 100 * GB, 50 / 8 * GB),
        Chip("v6e", "v6e", "TPU v6 lite", 32 * GIB, 1638 * GB, 1.75e9, 1, 4, 256, 4, 100 * GB, 100 / 8 * GB),
        Chip("v7x", "tpu7x", "TPU7x", 192 * GIB, 7380 * GB, 2.2e9, 2, 4, 256, 6, 100 * GB, 100 / 8 * GB, devices=2),
    )
}
"""The figures are published by Google Cloud (cloud.google.com/tpu/docs, the page of each generation; read in 2026): HBM, its
bandwidth, and ICI and network bandwidth per chip. The bf16 peaks are in `PEAKS`. The network bandwidth of v4 is not published.
It is assumed to be the same as for v5e. The clocks are computed from the peaks: peak = clock x cores x matrix units x 2 x
width^2. The two units of v6e and v7x count twice, because each of them starts two products per cycle."""

DCN_LATENCY = 20e-6
"""The latency of one exchange between slices, in seconds (assumed)."""
ICI_LATENCY = 1e-6
"""The latency from a chip to a neighbouring chip, in seconds (assumed)."""
ICI_EFFICIENCY = 0.9
"""The fraction of a link's published rate that large messages reach (assumed)."""

GPU_BANDWIDTH = {
    "NVIDIA A100-SXM4-40GB": 1.555e12,
    "NVIDIA A100-SXM4-80GB": 2.039e12,
    "NVIDIA A100 80GB PCIe": 1.935e12,
    "NVIDIA H100 80GB HBM3": 3.35e12,
    "NVIDIA H100 PCIe": 2.0e12,
    "NVIDIA H100 NVL": 3.9e12,
    "NVIDIA H200": 4.8e12,
    "NVIDIA H200 NVL": 4.8e12,
    "NVIDIA L4": 0.3e12,
    "NVIDIA L40S": 0.864e12,
    "NVIDIA A10": 0.6e12,
}
"""Bytes per second between a GPU and its memory, by `device_kind` (NVIDIA's data sheets)."""


def find_chip(device_kind: str) -> Chip | None:
    """Returns the TPU generation of a `device_kind`, or None for other devices."""
    kind = OTHER_NAMES.get(device_kind, device_kind)
    return next((chip for chip in CHIPS.values() if chip.kind == kind), None)


def memory_bandwidth(device_kind: str) -> float | None:
    """Returns the bytes per second between one device and its memory, or None if the device is unknown."""
    chip = find_chip(device_kind)
    return chip.bandwidth / chip.devices if chip else GPU_BANDWIDTH.get(device_kind)


def link_bandwidth(device_kind: str) -> float | None:
    """Returns the bytes per second that a TPU device can send over all its links together, or None for other devices."""
    chip = find_chip(device_kind)
    return chip.links * chip.link_bandwidth / chip.devices if chip else None


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
