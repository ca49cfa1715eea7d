"""The devices of a topology and a TPU compiler, both without libtpu: positions of chips, and programs that a test gives."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import topologies as jax_topologies

from bert_jax.tpu.costs.topologies import Topology


@dataclasses.dataclass(frozen=True)
class Place:
    """The attributes of a device of a compiler that does not number slices."""

    device_kind: str
    coords: tuple[int, ...]
    """Three, as on TPUs; the last is 0 on a two-dimensional slice."""
    platform: str = "tpu"


@dataclasses.dataclass(frozen=True)
class PlaceInSlice(Place):
    """The attributes of a device with the number of its slice."""

    slice_index: int = 0


def devices_of(topology: Topology) -> list[Any]:
    """Returns every device of every slice, a chip's devices next to each other, the last dimension fastest."""
    kind, shape = topology.chip.kind, (*topology.shape, 1, 1)[:3]
    chips = [PlaceInSlice(kind, tuple(c), slice_index=s) for s in range(topology.slices) for c in np.ndindex(*shape)]
    return [chip for chip in chips for _ in range(topology.chip.devices)]


def unnumbered(topology: Topology) -> list[Any]:
    """Returns the same devices as `devices_of`, without the numbers of their slices."""
    return [Place(device.device_kind, device.coords) for device in devices_of(topology)]


@dataclasses.dataclass
class StatisticsWithoutPeak:
    """The type of `jax.stages.Compiled.memory_analysis()` of other compilers."""

    argument_size_in_bytes: int = 10 * 2**20
    output_size_in_bytes: int = 9 * 2**20
    alias_size_in_bytes: int = 8 * 2**20
    temp_size_in_bytes: int = 5 * 2**20
    generated_code_size_in_bytes: int = 2**20


@dataclasses.dataclass
class Statistics(StatisticsWithoutPeak):
    """The type of `jax.stages.Compiled.memory_analysis()` of the TPU compiler."""

    peak_memory_in_bytes: int = 14 * 2**20


@dataclasses.dataclass
class Executable:
    """A program for a TPU: its text and its memory. All else is that of a program without arguments for a CPU."""

    text: str
    memory: Statistics = dataclasses.field(default_factory=Statistics)
    cpu: jax.stages.Compiled | None = None

    def as_text(self) -> str:
        return self.text

    def memory_analysis(self) -> Statistics:
        return self.memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cpu, name)


@dataclasses.dataclass(frozen=True)
class Description:
    """The type of `jax.experimental.topologies.get_topology_desc()`."""

    devices: list[Any]


def described(name: str, platform: str, **options: Any) -> Description:
    """Returns as many CPU devices as a slice of this name has chips."""
    return Description(jax.devices()[: math.prod(int(side) for side in name.partition(":")[2].split("x"))])


def install_compiler(
    monkeypatch: pytest.MonkeyPatch, compile: Callable[[jax.stages.Lowered], Executable], patch: int = 1
) -> None:
    """Installs a libtpu of the version that JAX needs, with the last number `patch`. Its devices are CPU devices of this process,
    and it compiles a program to what `compile` returns or raises."""
    (needed,) = re.findall(r"libtpu==([\d.]+)\.\*", " ".join(importlib.metadata.requires("jax") or ()))
    find, version = importlib.util.find_spec, importlib.metadata.version
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: True if name == "libtpu" else find(name, *more))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{needed}.{patch}" if name == "libtpu" else version(name))
    monkeypatch.setattr(jax_topologies, "get_topology_desc", described)
    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
