"""The record of a process: which devices it measures, their free memory, and the accelerators of the machine."""

from __future__ import annotations

import os
import pathlib
import types
from typing import Any

import jax
import pytest

from bert_jax.tpu.diagnosis import machine


def device(number: int, platform: str = "tpu", stats: dict[str, int] | None = None) -> Any:
    return types.SimpleNamespace(
        id=number, platform=platform, device_kind="a kind", coords=[number // 2, 0, 0], memory_stats=lambda: stats
    )


def test_every_device_is_measured_but_only_the_first_of_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    monkeypatch.setattr(machine, "device_record", lambda device: device.id)
    monkeypatch.setattr(machine, "process_facts", lambda config: ("facts", config))
    monkeypatch.setattr(machine, "expected_chips", lambda used: f"those of a {used}")
    monkeypatch.setattr(machine, "host_memory", lambda: 7)
    monkeypatch.setattr(machine, "free_disk", lambda path: path)
    monkeypatch.setattr(machine, "cache_directory", lambda: tmp_path)
    seen = [device(i) for i in range(4)]
    monkeypatch.setattr(machine.jax, "local_devices", lambda: seen)
    found = machine.record()
    assert (found["devices"], found["seen"], found["expected"]) == ([0, 1, 2, 3], 2, "those of a tpu"), "two devices are a chip"
    assert (found["facts"], found["host_memory"]) == (("facts", {}), 7)
    assert found["disks"]["cache"] == tmp_path
    assert found["cores"] in (os.cpu_count(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None)
    seen = [device(i, "cpu") for i in range(4)]
    found = machine.record()
    assert (found["devices"], found["seen"], found["expected"]) == ([0], 4, "those of a cpu")


def test_a_machine_may_give_a_process_a_part_of_its_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "device_record", lambda device: None)
    monkeypatch.setattr(machine, "process_facts", dict)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 9)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda process: {5, 6} if process == 0 else set(), raising=False)
    assert machine.record()["cores"] == 2
    monkeypatch.delattr(machine.os, "sched_getaffinity")
    assert machine.record()["cores"] == 9


@pytest.mark.parametrize(
    ("stats", "memory", "free"),
    [(None, None, None), ({"bytes_limit": 10}, 10, 10), ({"bytes_limit": 10, "bytes_in_use": 4}, 10, 6)],
)
def test_free_memory_is_the_unused_memory(
    stats: dict[str, int] | None, memory: int | None, free: int | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine.speed, "flops", lambda device: 1.0)
    monkeypatch.setattr(machine.speed, "bandwidth", lambda device: 2.0)
    assert machine.device_record(device(3, stats=stats)) == {
        "flops": 1.0, "bandwidth": 2.0, "error": "", "id": 3, "kind": "a kind", "platform": "tpu", "memory": memory, "free": free,
    }  # fmt: skip


@pytest.mark.parametrize(("message", "says"), [("no room\nmore", "no room"), ("", "?"), ("x" * 400, "x" * 300)])
def test_a_device_that_cannot_be_measured_has_a_reason(message: str, says: str, monkeypatch: pytest.MonkeyPatch):
    def fails(device: Any) -> float:
        raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr(machine.speed, "flops", fails)
    found = machine.device_record(device(3))
    assert (found["flops"], found["bandwidth"], found["error"]) == (None, None, says)


@pytest.fixture
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Returns a directory that replaces the root of the file system."""
    monkeypatch.setattr(machine.pathlib, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_accelerators_are_counted_by_their_device_files(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    assert [machine.expected_chips(used) for used in ("cpu", "gpu", "tpu")] == [None] * 3
    for path in ("proc/driver/nvidia/gpus/0", "dev/accel0", "dev/accel1", "dev/vfio/3", "dev/vfio/vfio", "dev/accelerator"):
        (root / path).mkdir(parents=True)
    assert [machine.expected_chips(used) for used in ("cpu", "gpu", "tpu")] == [4, 1, 3]
    for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "0")
            assert machine.expected_chips("tpu") is None, "as many as JAX was configured to use"


def test_host_memory_is_the_available_memory_of_the_system(root: pathlib.Path):
    assert machine.host_memory() is None
    (root / "proc").mkdir()
    file = root / "proc" / "meminfo"
    file.write_text("MemTotal:       100 kB\nMemAvailable:    40 kB\nOther: a:b\n")
    assert machine.host_memory() == 40 * 1024
    file.write_text("MemTotal: 100 kB\n")
    assert machine.host_memory() is None


def test_the_disk_of_a_missing_directory_is_found(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=path))
    assert machine.free_disk(tmp_path / "a" / "b") == tmp_path
    assert machine.free_disk(tmp_path) == tmp_path
