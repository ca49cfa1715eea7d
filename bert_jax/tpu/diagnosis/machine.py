"""Records facts about one process: host, versions, the devices that JAX sees, the devices that the machine has, memory,
disks."""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import tempfile
import time

import jax

from bert_jax.files import JsonObject
from bert_jax.runtime.processes import process_facts
from bert_jax.storage.paths import cache_directory
from bert_jax.tpu.diagnosis import speed

ROOT = pathlib.Path("/")
"""The root of the file system."""


def record() -> JsonObject:
    """Returns the record of this process as JSON values. Sizes are in bytes. The devices are measured one after the other.

    The devices of a CPU share its cores, so only the first device is measured.
    """
    seen = jax.local_devices()
    measured = seen[:1] if seen[0].platform == "cpu" else seen
    return {
        "host": platform.node(),
        "facts": process_facts({}),
        "devices": [device_record(device) for device in measured],
        "seen": len(chips(seen)),
        "expected": expected_chips(seen[0].platform),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "host_memory": host_memory(),
        "disks": {name: free_disk(path) for name, path in (("cache", cache_directory()), ("temporary files", _temporary()))},
    }


def device_record(device: jax.Device) -> JsonObject:
    """Returns the kind, the free memory and the speed of one device. If the speed cannot be measured, e.g. for lack of memory,
    "error" has the reason."""
    stats = device.memory_stats() or {}
    has = stats.get("bytes_limit")
    try:
        rates = {"flops": speed.flops(device), "bandwidth": speed.bandwidth(device), "error": ""}
    except jax.errors.JaxRuntimeError as error:
        rates = {"flops": None, "bandwidth": None, "error": (str(error).splitlines() or ["?"])[0][:300]}
    return rates | {
        "id": device.id,
        "kind": device.device_kind,
        "platform": device.platform,
        "memory": has,
        "free": None if has is None else has - stats.get("bytes_in_use", 0),
    }


def chips(devices: list[jax.Device]) -> set[object]:
    """Returns one identifier per chip. The two cores of a TPU chip may be two devices with the same identifier."""
    return {tuple(device.coords) if device.platform == "tpu" else device.id for device in devices}


def expected_chips(used: str, root: pathlib.Path = ROOT) -> int | None:
    """Returns the number of accelerators of this machine, according to its device files below `root`. Returns None if an
    environment variable restricts the devices that JAX uses, or if the machine has no accelerators. `used` is the platform that
    JAX uses."""
    if any(
        os.environ.get(name) for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
    ):
        return None
    gpus = list((root / "proc/driver/nvidia/gpus").glob("*"))
    tpus = [*(root / "dev").glob("accel[0-9]*"), *(root / "dev/vfio").glob("[0-9]*")]
    there = gpus if used == "gpu" else tpus if used == "tpu" else [*gpus, *tpus]
    return len(there) or None


def host_memory(root: pathlib.Path = ROOT) -> int | None:
    """Returns the bytes of memory that programs on this machine can still allocate, or None if unknown. The system reports them
    in proc/meminfo below `root`."""
    try:
        lines = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def free_disk(path: pathlib.Path) -> int:
    """Returns the free bytes on the disk of `path`. The path itself need not exist."""
    return shutil.disk_usage(next(place for place in (path, *path.absolute().parents) if place.exists())).free


def _temporary() -> pathlib.Path:
    return pathlib.Path(tempfile.gettempdir())


def clock() -> float:
    """Returns the time of the clock of this machine, in seconds since 1970."""
    return time.time()
