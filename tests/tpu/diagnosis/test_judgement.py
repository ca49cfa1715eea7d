"""The sentences about faulty processes, from the records of all processes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bert_jax.tpu.diagnosis.judgement import Check, as_json, judge, report, slow

KIND, PEAK, HBM = "TPU v5 lite", 197e12, 819e9


def process(host: str, kind: str = KIND, platform: str = "tpu") -> dict[str, Any]:
    """Returns the record of a healthy host with four chips."""
    devices = [
        {
            "id": i,
            "kind": kind,
            "platform": platform,
            "memory": 16 << 30,
            "free": 15 << 30,
            "flops": 0.92 * PEAK,
            "bandwidth": 0.85 * HBM,
            "error": "",
        }
        for i in range(4)
    ]
    return {
        "host": host,
        "facts": {"python": "3.12", "jax": "0.10.2", "libtpu": "0.0.42.1", "flax": "absent", "code": "aa", "config.seed": "0"},
        "devices": devices,
        "seen": 4,
        "expected": 4,
        "cores": 112,
        "host_memory": 400 << 30,
        "disks": {"cache": 50 << 30, "temporary files": 50 << 30},
        "links": 90e9,
        "links_of_all": 80e9,
        "kernels": {"attention": {"reason": "", "figures": [{"quantity": "values", "error": 1e-6, "limit": 1e-4}]}},
        "clock": 1e9,
    }


@pytest.fixture
def pod() -> list[dict[str, Any]]:
    return [process(f"host-{i}") for i in range(3)]


def faults(processes: list[dict[str, Any]], chips: int | None = None) -> list[str]:
    return [f"{check.name}: {fault}" for check in judge(processes, chips) for fault in check.faults]


def test_a_healthy_slice_has_figures_and_no_fault(pod: list[dict[str, Any]]):
    checks = judge(pod, 12)
    assert [fault for check in checks for fault in check.faults] == []
    texts = {check.name: check.text for check in checks}
    assert texts["devices"] == "12 x TPU v5 lite in 3 processes"
    assert texts["matmul"] == "181 T to 181 TFLOP/s in bfloat16 per device, each alone, 92 % of the published 197 TFLOP/s"
    assert texts["bandwidth"].endswith("85 % of the published 819 GB/s")
    assert "80 GB/s among all devices; up to 200 GB/s published" in texts["links"]
    assert texts["versions"] == "python 3.12, jax 0.10.2, libtpu 0.0.42.1, code aa; equal in 3 processes"
    assert texts["memory"] == "15.0 GiB free of the 16.0 GiB per device that JAX may take"
    assert texts["clocks"] == "differ by at most 0.00 s"
    assert texts["disk"] == "cache 50.0 GiB free, temporary files 50.0 GiB free"
    assert texts["links"].startswith("90 GB/s among the devices of a process; 80 GB/s")
    assert "closest: values off by 0.0001 %, at most 0.01 %" in texts["kernel"]


def change(pod: list[dict[str, Any]], path: str, value: Any) -> None:
    """Sets a dotted key of the records: "1.devices.2.flops"."""
    node: Any = pod
    *parts, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    for part in parts:
        node = node[part]
    node[last] = value


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (
            "1.devices.2.flops",
            0.6 * PEAK,
            "matmul: device 2 of process 1 (host-1) reaches 118 TFLOP/s (matmul), 65 % of the median",
        ),
        (
            "2.devices.0.bandwidth",
            0.6 * HBM,
            "bandwidth: device 0 of process 2 (host-2) reaches 491 GB/s (bandwidth), 71 % of the",
        ),
        ("0.seen", 3, "devices: process 0 (host-0) has 4 chips, but JAX sees 3; end other programs that use them"),
        ("1.devices.3.error", "out of memory", "devices: device 3 of process 1 (host-1) cannot be measured: out of memory; end"),
        ("2.links", 20e9, "links: the links between the devices of process 2 (host-2) reach 20 GB/s, 22 % of the median"),
        ("1.clock", 1e9 + 34, "clocks: the clock of process 1 (host-1) is 34.0 s ahead of the others; synchronize it by NTP"),
        ("1.clock", 1e9 - 2.5, "clocks: the clock of process 1 (host-1) is 2.5 s behind the others"),
        ("2.disks.temporary files", (2 << 30) - 1, "disk: the disk for the temporary files of process 2 (host-2) has 2.0 GiB"),
        (
            "0.links_of_all",
            19e9,
            "links: a sum over all devices reaches 9.5 % of the published 200 GB/s; run on one slice instead of several",
        ),
        ("1.devices.2.kind", "TPU v4", "devices: the devices are of 2 kinds (TPU v4, TPU v5 lite); a run needs devices of one"),
        ("2.facts.flax", "0.12", "versions: flax is 0.12 in process 2 (host-2), and absent elsewhere"),
        ("1.disks.cache", 1 << 30, "disk: the disk for the cache of process 1 (host-1) has 1.0 GiB free; free at least 2.0 GiB"),
        ("2.facts.jax", "0.9", "versions: jax is 0.9 in process 2 (host-2), and 0.10.2 elsewhere; copy the same checkout"),
        ("0.facts.code", "bb", "versions: code is bb in process 0 (host-0), and aa elsewhere"),
        (
            "1.kernels.attention.reason",
            "the kernel disagrees",
            "kernel: process 1 (host-1): model.attention: the kernel disagrees; 'auto' uses the plain path instead",
        ),
    ],
)
def test_the_differing_process_or_device_is_named(pod: list[dict[str, Any]], path: str, value: Any, says: str):
    change(pod, path, value)
    assert any(fault.startswith(says) for fault in faults(pod)), faults(pod)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("1.clock", 1e9 + 2),
        ("1.disks.cache", 2 << 30),
        ("0.links_of_all", 20e9),
        ("1.kernels.attention.figures", [{"quantity": "values", "error": None, "limit": 1e-4}]),
    ],
)
def test_values_at_the_limit_are_not_faults(pod: list[dict[str, Any]], path: str, value: Any):
    change(pod, path, value)
    assert faults(pod) == []


def test_a_slice_at_the_limit_of_published_figures_is_not_a_fault(pod: list[dict[str, Any]]):
    for one in pod:
        for device in one["devices"]:
            device.update(flops=0.5 * PEAK, bandwidth=0.5 * HBM)
    assert faults(pod) == []


def test_a_device_is_slow_below_a_fraction_of_the_median_of_the_others():
    assert slow({"a": 50.0, "b": 100.0, "c": 100.0}, 0.5) == []
    assert slow({"a": 49.0, "b": 100.0, "c": 102.0}, 0.5) == [("a", 49.0, 101.0)]
    assert slow({"a": 1.0}, 0.5) == []


def test_all_values_that_differ_from_the_majority_are_listed(pod: list[dict[str, Any]]):
    change(pod, "0.facts.jax", "0.9")
    pod += [process(f"host-{i}") for i in range(3, 13)]
    for i in range(2, 10):
        change(pod, f"{i}.facts.flax", "0.12")
    change(pod, "10.facts.flax", "0.11")
    pod += [process(f"host-{i}") for i in range(13, 24)]
    versions = judge(pod)[0]
    shown = ", ".join(f"process {i} (host-{i})" for i in range(2, 10))
    assert versions.faults[1].startswith(f"flax is 0.11, 0.12 in {shown} and 1 more, and absent elsewhere; copy")
    assert versions.text == "python 3.12, jax 0.9, libtpu 0.0.42.1, code aa"
    change(pod, "10.facts.flax", "absent")
    assert judge(pod)[0].faults[1].startswith(f"flax is 0.12 in {shown}, and absent elsewhere; copy")


def test_a_device_that_cannot_be_measured_has_no_rate(pod: list[dict[str, Any]]):
    for i in range(4):
        change(pod, f"1.devices.{i}.error", "out of memory")
    texts = {check.name: check.text for check in judge(pod)}
    assert texts["matmul"].startswith("181 T to")
    assert len(faults(pod)) == 4
    texts = {check.name: check.text for check in judge(pod[1:2])}
    assert (texts["matmul"], texts["bandwidth"]) == ("not measured", "not measured")


def test_single_devices_and_processes_are_not_compared():
    alone = process("laptop")
    alone["devices"] = alone["devices"][:1]
    texts = {check.name: check.text for check in judge([alone | {"links_of_all": None, "expected": None}])}
    assert texts["matmul"] == "181 TFLOP/s in bfloat16, 92 % of the published 197 TFLOP/s"
    assert texts["versions"].endswith("code aa")
    sent = "up to 200 GB/s published over all links of a chip (sent per device in a sum)"
    assert texts["links"] == f"90 GB/s among the devices of a process; {sent}"
    texts = {check.name: check.text for check in judge([alone | {"links": None}])}
    assert texts["links"] == f"80 GB/s among all devices; {sent}"
    gpu = process("server", kind="NVIDIA L4", platform="gpu")
    assert {check.name: check.text for check in judge([gpu])}["links"] == (
        "90 GB/s among the devices of a process; 80 GB/s among all devices (sent per device in a sum)"
    )


def test_the_smallest_device_memory_is_shown_or_that_of_the_machine_on_a_cpu(pod: list[dict[str, Any]]):
    change(pod, "1.devices.2.free", 3 << 30)
    change(pod, "2.devices.0.free", None)
    assert judge(pod)[5].text == "3.0 GiB free of the 16.0 GiB per device that JAX may take"
    for one in pod:
        for device in one["devices"]:
            device["free"] = None
    change(pod, "2.host_memory", 7 << 30)
    change(pod, "1.host_memory", None)
    assert judge(pod)[5].text == "7.0 GiB free on the machine"
    for i in range(3):
        change(pod, f"{i}.host_memory", None)
    assert judge(pod)[5].text == "unknown on this system"


def test_the_worst_figure_of_a_kernel_is_shown(pod: list[dict[str, Any]]):
    figures = [
        {"quantity": "values", "error": 1e-3, "limit": 1e-1},
        {"quantity": "gradients", "error": 5e-4, "limit": 1e-3},
        {"quantity": "nothing", "error": None, "limit": 1e-6},
    ]
    change(pod, "1.kernels.attention.figures", figures)
    (kernel,) = [check for check in judge(pod) if check.name == "kernel"]
    assert kernel.text == ("attention agrees with the plain path in 1 figure; closest: gradients off by 0.05 %, at most 0.1 %")
    for i in range(3):
        change(pod, f"{i}.kernels.attention", {"reason": ""})
    (kernel,) = [check for check in judge(pod) if check.name == "kernel"]
    assert kernel.text == "attention agrees with the plain path in 0 figures"
    change(pod, "2.kernels.attention.reason", "it disagrees")
    (kernel,) = [check for check in judge(pod) if check.name == "kernel"]
    assert kernel.text == "attention disagrees with the plain path"


def test_the_disk_with_least_space_is_shown(pod: list[dict[str, Any]]):
    change(pod, "1.disks.cache", 5 << 30)
    assert judge(pod)[-1].text == "cache 5.0 GiB free, temporary files 50.0 GiB free"
    change(pod, "2.disks.cache", 1 << 30)
    assert "of process 2 (host-2)" in judge(pod)[-1].faults[0]


def test_a_uniformly_slow_slice_is_found_by_published_figures(pod: list[dict[str, Any]]):
    for one in pod:
        for device in one["devices"]:
            device["flops"] = 0.3 * PEAK
    found = faults(pod)
    assert len(found) == 12
    assert "reaches 59.1 TFLOP/s (matmul), 30 % of the published 197 TFLOP/s" in found[0]


def test_missing_chips_are_reported(pod: list[dict[str, Any]]):
    assert any("12 chips seen, but --chips=16" in fault for fault in faults(pod, 16))
    change(pod, "1.seen", 2)
    change(pod, "1.expected", None)
    assert any("most processes see 4 chips, but process 1 (host-1) has 2" in fault for fault in faults(pod))


def test_accelerators_unused_by_jax_are_reported():
    alone = process("laptop", kind="cpu", platform="cpu") | {"expected": 2, "kernels": {}, "links": None, "links_of_all": None}
    found = faults([alone])
    assert found == [
        "devices: this machine (laptop) has 2 accelerators, but JAX runs on the CPU; install JAX for them: BERT_JAX_DEVICE=tpu "
        "(or "
        "cuda13, cuda12) tpu_scripts/run.sh doctor"
    ]
    texts = {check.name: check.text for check in judge([alone])}
    assert texts["devices"] == "4 x cpu (112 cores) in 1 process"
    assert texts["kernel"] == "there is none for a cpu: XLA compiles everything"
    assert texts["matmul"] == "181 T to 181 TFLOP/s in float32 per device, each alone"
    names = [check.name for check in judge([alone])]
    assert "clocks" not in names
    assert "links" not in names


def test_a_cpu_is_slow_only_at_half_the_speed_of_the_others(pod: list[dict[str, Any]]):
    pod = [process(f"host-{i}", kind="cpu", platform="cpu") | {"expected": None} for i in range(3)]
    for one in pod:
        one["devices"] = one["devices"][:1]
    fast = copy.deepcopy(pod)
    change(pod, "1.devices.0.flops", 0.6 * 0.92 * PEAK)
    assert faults(pod) == []
    change(fast, "1.devices.0.flops", 0.4 * 0.92 * PEAK)
    assert "40 % of the median of the others" in faults(fast)[0]


def test_the_report_marks_checks_and_numbers_their_faults():
    checks = [Check("disk", "50 GiB"), Check("clocks", "34 s", ("set it.", "twice.")), Check("links", "1 GB/s", ("slow.",))]
    assert report(checks) == [
        "ok     disk         50 GiB",
        "FAULT  clocks       34 s",
        "FAULT  links        1 GB/s",
        "",
        "3 faults:",
        "  1. set it.",
        "  2. twice.",
        "  3. slow.",
    ]
    assert report(checks[:1])[-1] == "all is well"
    assert as_json(checks, [])["well"] is False
    found = as_json(checks[:1], [{"host": "a"}])
    assert (found["well"], found["processes"]) == (True, [{"host": "a"}])
    assert found["checks"] == [{"name": "disk", "text": "50 GiB", "faults": ()}]
