"""The makers' figures: of a device, which on some TPUs is a half of a chip."""

from __future__ import annotations

import pytest

from bert_jax.tpu.diagnosis import published


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
def test_the_bandwidth_of_a_device_is_that_of_its_data_sheet(kind: str, gigabytes: float):
    assert published.bandwidth(kind) == pytest.approx(gigabytes * 1e9)


def test_links_and_operations_are_those_of_a_device_and_unknown_for_others():
    assert published.links("TPU v5") == 6 * 100e9
    assert published.links("TPU7x") == 6 * 100e9 / 2
    assert published.flops("TPU7x") == 2307e12 / 2
    assert published.links("NVIDIA H200") is None
    assert (published.bandwidth("cpu"), published.flops("cpu"), published.links("cpu"), published.chip_of("cpu")) == (None,) * 4
