"""The makers' figures for a device, which on some TPUs is half of a chip."""

from __future__ import annotations

import pytest

from bert_jax import hardware


@pytest.mark.parametrize(
    ("kind", "gigabytes"),
    [
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H100 PCIe", 2000),
        ("NVIDIA H100 NVL", 3900),
        ("NVIDIA H200", 4800),
        ("NVIDIA L4", 300),
        ("NVIDIA L40S", 864),
        ("NVIDIA A10", 600),
        ("TPU v5 lite", 819),
        ("TPU7x", 7380 / 2),
    ],
)
def test_device_bandwidths_equal_their_data_sheets(kind: str, gigabytes: float):
    assert hardware.memory_bandwidth(kind) == pytest.approx(gigabytes * 1e9)


def test_links_and_peak_rates_are_known_only_for_listed_devices():
    assert hardware.link_bandwidth("TPU v5") == 6 * 100e9
    assert hardware.link_bandwidth("TPU7x") == 6 * 100e9 / 2
    assert hardware.peak_flops("TPU7x") == 2307e12 / 2
    assert hardware.link_bandwidth("NVIDIA H200") is None
    of_a_kind = (hardware.memory_bandwidth, hardware.peak_flops, hardware.link_bandwidth, hardware.find_chip)
    assert [figure("cpu") for figure in of_a_kind] == [None] * 4
