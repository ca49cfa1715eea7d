"""Figures of the makers' data sheets for one JAX device, to compare measured ones with; None where none is known."""

from __future__ import annotations

from bert_jax.hardware import CHIPS, Chip, peak_flops

GPU_BANDWIDTH = {
    "NVIDIA A100-SXM4-40GB": 1.555e12,
    "NVIDIA A100-SXM4-80GB": 2.039e12,
    "NVIDIA A100 80GB PCIe": 1.935e12,
    "NVIDIA H100 80GB HBM3": 3.35e12,
    "NVIDIA H100 PCIe": 2.0e12,
    "NVIDIA H100 NVL": 3.9e12,
    "NVIDIA H200": 4.8e12,
    "NVIDIA L4": 0.3e12,
    "NVIDIA L40S": 0.864e12,
    "NVIDIA A10": 0.6e12,
}
"""Bytes a second between a GPU and its memory, by `device_kind` (NVIDIA's data sheets)."""


def chip_of(kind: str) -> Chip | None:
    """The TPU generation of a `device_kind`."""
    return next((chip for chip in CHIPS.values() if chip.kind == kind), None)


def flops(kind: str) -> float | None:
    """bf16 operations a second."""
    return peak_flops(kind)


def bandwidth(kind: str) -> float | None:
    """Bytes a second between a device and its memory."""
    chip = chip_of(kind)
    return chip.bandwidth / chip.devices if chip else GPU_BANDWIDTH.get(kind)


def links(kind: str) -> float | None:
    """Bytes a second that a TPU device sends over all links of its chip together."""
    chip = chip_of(kind)
    return chip.links * chip.link_bandwidth / chip.devices if chip else None
