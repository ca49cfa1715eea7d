"""The makers' figures for a device, which on some TPUs is half of a chip."""

from __future__ import annotations

import os

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
        ("NVIDIA H200 NVL", 4800),
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


def test_the_cores_of_a_machine_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 5} if process == 0 else set())
    assert hardware.available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # not Linux
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert hardware.available_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert hardware.available_cores() == 1


def test_each_core_has_the_vector_memory_of_its_generation():
    """In MiB, from the compiler."""
    of_size = {16: ("TPU v2", "TPU v3", "TPU v4"), 64: ("TPU v5", "TPU7x"), 128: ("TPU v5 lite", "TPU v6 lite")}
    assert {kind: size for size, kinds in of_size.items() for kind in kinds} == hardware.VMEM


@pytest.mark.parametrize(("other", "kind"), [("TPU v5e", "TPU v5 lite"), ("TPU v5p", "TPU v5"), ("TPU v6e", "TPU v6 lite")])
def test_all_figures_are_known_under_both_names_of_a_generation(other: str, kind: str):
    for figure in (hardware.find_chip, hardware.peak_flops, hardware.memory_bandwidth, hardware.vector_memory):
        assert figure(other) == figure(kind) is not None
