"""The record of a process: which devices it measures, their free memory, and the accelerators of the machine."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import pytest

from bert_jax.tpu.diagnosis import machine, speed


@dataclasses.dataclass(frozen=True)
class Core:
    """A core of a TPU chip with two cores, each of which is a device."""

    id: int
    stats: dict[str, int] | None
    flops: float | str
    """FLOP/s, or the error of the measurement."""
    platform: str = "tpu"
    device_kind: str = "TPU v3"

    @property
    def coords(self) -> list[int]:
        return [self.id // 2, 0, 0]

    def memory_stats(self) -> dict[str, int] | None:
        return self.stats


def flops(core: Any) -> float:
    if isinstance(core.flops, str):
        raise jax.errors.JaxRuntimeError(core.flops)
    return float(core.flops)


def test_every_core_of_a_tpu_is_measured_or_has_a_reason(monkeypatch: pytest.MonkeyPatch):
    cores = [Core(0, None, 1e12), Core(1, {"bytes_limit": 10}, "no room\nmore"),
             Core(2, {"bytes_limit": 10, "bytes_in_use": 4}, ""), Core(3, {}, "x" * 400)]  # fmt: skip
    monkeypatch.setattr(jax, "local_devices", lambda: cores)
    monkeypatch.setattr(speed, "flops", flops)
    monkeypatch.setattr(speed, "bandwidth", lambda core: 2e9)
    found = machine.record()
    assert found["seen"] == 2, "two devices are a chip"
    assert found["facts"].keys() >= {"python", "jax", "commit", "code"}
    devices = found["devices"]
    assert [device["id"] for device in devices] == [0, 1, 2, 3]
    assert {(device["kind"], device["platform"]) for device in devices} == {("TPU v3", "tpu")}
    assert [(device["memory"], device["free"]) for device in devices] == [(None, None), (10, 10), (10, 6), (None, None)]
    assert [device["flops"] for device in devices] == [1e12, None, None, None]
    assert [device["bandwidth"] for device in devices] == [2e9, None, None, None]
    assert [device["error"] for device in devices] == ["", "no room", "?", "x" * 300]


RESTRICTIONS = ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")


def test_accelerators_are_counted_by_their_device_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    for name in RESTRICTIONS:
        monkeypatch.delenv(name, raising=False)
    assert [machine.expected_chips(used, tmp_path) for used in ("cpu", "gpu", "tpu")] == [None] * 3
    for path in ("proc/driver/nvidia/gpus/0", "dev/accel0", "dev/accel1", "dev/vfio/3", "dev/vfio/vfio", "dev/accelerator"):
        (tmp_path / path).mkdir(parents=True)
    assert [machine.expected_chips(used, tmp_path) for used in ("cpu", "gpu", "tpu")] == [4, 1, 3]
    for name in RESTRICTIONS:
        with monkeypatch.context() as patch:
            patch.setenv(name, "0")
            assert machine.expected_chips("tpu", tmp_path) is None, "as many as JAX was configured to use"


def test_host_memory_is_the_available_memory_of_the_system(tmp_path: pathlib.Path):
    assert machine.host_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    file = tmp_path / "proc" / "meminfo"
    file.write_text("MemTotal:       100 kB\nMemAvailable:    40 kB\nOther: a:b\n")
    assert machine.host_memory(tmp_path) == 40 * 1024
    file.write_text("MemTotal: 100 kB\n")
    assert machine.host_memory(tmp_path) is None
