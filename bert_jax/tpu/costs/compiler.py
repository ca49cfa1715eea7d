"""Compiles a lowered program for a topology, and collects the memory statistics, the text and the kernel schedules.

To calibrate the estimates, the same method estimates two programs of known speed: a matrix product and an addition.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from bert_jax.files import read_record, write_json
from bert_jax.sharding.device_errors import DoesNotFit
from bert_jax.storage.paths import cache_directory
from bert_jax.tpu.costs.estimate import Estimate, Estimator
from bert_jax.tpu.costs.hlo import Module, parse
from bert_jax.tpu.costs.kernel_cycles import Schedule, kernel_schedules
from bert_jax.tpu.costs.memory import Statistics
from bert_jax.tpu.costs.topologies import Topology, prepare_compiler, require_compiler, silence, topology_devices


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program compiled for the chips of a topology."""

    executable: jax.stages.Compiled
    module: Module
    """The optimized HLO module."""
    seconds: float
    """The time of the compilation, in seconds."""
    schedules: Mapping[str, Schedule]
    """Kernel body -> schedule, for the Pallas kernels of the program."""

    @property
    def text(self) -> str:
        """The optimized module as HLO text."""
        return str(self.executable.as_text())

    @property
    def memory(self) -> Statistics:
        """The result of `jax.stages.Compiled.memory_analysis()`: bytes per device of arguments, results, temporaries and
        code."""
        return cast(Statistics, self.executable.memory_analysis())


class Compiler:
    """The TPU compiler for one topology. A process loads the library of the compiler only once.

    Raises UserError if the compiler is not installed, if this JAX needs a different version of the compiler, or if the compiler
    does not know the topology.
    """

    def __init__(self, topology: Topology):
        self.version = require_compiler()
        prepare_compiler()
        self.topology = topology
        self.devices: Sequence[jax.Device] = topology_devices(topology)

    def compile(self, lowered: jax.stages.Lowered) -> Compiled:
        """Compiles `lowered`. Raises `DoesNotFit` if the program needs more memory than a device has."""
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
        return Compiled(executable, module, seconds, kernel_schedules(module, self.topology, self.version))

    def estimate(self, compiled: Compiled, devices: Sequence[jax.Device] | None = None) -> Estimate:
        """Returns the estimate for one execution. `devices` are in the flat order of the mesh."""
        return Estimator(compiled.module, compiled.schedules, self.topology, devices or self.devices).estimate()


# --------------------------------------------------------------------------------------------------------------- the calibration
SIDE = 8_192
"""The side of the two square bfloat16 matrices that are multiplied. The product is 1.1e12 operations on arrays of 134 MB. Real
chips reach over 90 % of peak."""
STREAMED = 2**28
"""The number of elements of each of the two float32 arrays that are added. The addition reads 2.1 GB and writes 1.1 GB. Real
chips reach over 80 % of the bandwidth."""


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The estimated rates of two programs, as fractions of the rates in the data sheet. Real chips run these programs at nearly
    the rates in the data sheet."""

    matmul: float
    """The rate of the matrix product, as a fraction of the peak FLOP/s."""
    stream: float
    """The rate of the addition, as a fraction of the memory bandwidth."""


def calibrate(compiler: Compiler, cache: pathlib.Path | None = None) -> Calibration:
    """Returns the calibration of a chip. It is cached on disk for each version of the compiler and of the method."""
    chip = compiler.topology.chip
    cache = cache or cache_directory() / "calibration"
    kept = cache / f"{chip.name}-{compiler.version}-2.json"
    if fields := read_record(kept):
        return Calibration(**fields)
    matrix, row = ((SIDE, SIDE), jnp.bfloat16), ((STREAMED,), jnp.float32)
    product = _seconds(compiler, lambda a, b: a @ b, matrix, matrix)
    stream = _seconds(compiler, lambda a, b: a + b, row, row)
    found = Calibration(
        2 * SIDE**3 / product / (chip.peak_flops / chip.devices), 12 * STREAMED / stream / (chip.bandwidth / chip.devices)
    )
    cache.mkdir(parents=True, exist_ok=True)
    write_json(kept, dataclasses.asdict(found))
    return found


def _seconds(compiler: Compiler, function: Callable[..., jax.Array], *arrays: tuple[tuple[int, ...], DTypeLike]) -> float:
    """Returns the estimated time of `function` on one device, in seconds."""
    one = NamedSharding(Mesh(np.array(compiler.devices[:1]), ("x",)), PartitionSpec())
    arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=one) for shape, dtype in arrays]
    return compiler.estimate(compiler.compile(jax.jit(function).lower(*arguments))).seconds
