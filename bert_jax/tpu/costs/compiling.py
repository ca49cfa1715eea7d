"""Compiles a lowered program for a topology, and collects the compiler's memory statistics, text and kernel schedules."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import cast

import jax

from bert_jax.sharding.out_of_memory import DoesNotFit
from bert_jax.tpu.costs.estimate import Estimate, Estimator
from bert_jax.tpu.costs.hlo import Module, parse
from bert_jax.tpu.costs.kernels import Schedule, schedules_of
from bert_jax.tpu.costs.memory import Statistics
from bert_jax.tpu.costs.topologies import Topology, devices_of, prepare_compiler, require_compiler, silence


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program compiled for the chips of a topology."""

    executable: jax.stages.Compiled
    module: Module
    """The optimized HLO module."""
    seconds: float
    """The time that compilation took."""
    schedules: Mapping[str, Schedule]
    """The schedules of its Pallas kernels, by kernel body."""

    @property
    def text(self) -> str:
        """The optimized module as HLO text."""
        return str(self.executable.as_text())

    @property
    def memory(self) -> Statistics:
        """`jax.stages.Compiled.memory_analysis()`: bytes per device of arguments, results, temporaries and code."""
        return cast(Statistics, self.executable.memory_analysis())


class Compiler:
    """The TPU compiler for one topology; its library is loaded once in a process.

    Raises UserError where the compiler is not installed, has another version than this JAX needs, or does not know the topology.
    """

    def __init__(self, topology: Topology):
        self.version = require_compiler()
        prepare_compiler()
        self.topology = topology
        self.devices: Sequence[jax.Device] = devices_of(topology)

    def compile(self, lowered: jax.stages.Lowered) -> Compiled:
        """Compiles `lowered`. Raises `DoesNotFit` where it needs more memory than a device has."""
        start = time.monotonic()
        try:
            with silence():
                executable = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise DoesNotFit.from_message(str(error)) from error
        seconds = time.monotonic() - start
        module = parse(executable.as_text() or "")
        return Compiled(executable, module, seconds, schedules_of(module, self.topology, self.version))

    def estimate(self, compiled: Compiled, devices: Sequence[jax.Device] | None = None) -> Estimate:
        """The estimate for one execution; `devices` are in the flat order of the mesh."""
        return Estimator(compiled.module, compiled.schedules, self.topology, devices or self.devices).estimate()
