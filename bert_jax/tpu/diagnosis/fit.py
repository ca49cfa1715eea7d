"""Whether the steps of an experiment fit in the memory of the devices at hand; a measured step beside the estimate of `aot`."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp

from bert_jax.configs.memory_advice import pretraining_demand
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.files import parse_json
from bert_jax.interface.words import duration, prefixed
from bert_jax.runtime.gathering import gather_json
from bert_jax.sharding.out_of_memory import DoesNotFit, shortage_of
from bert_jax.storage.checks import require_room
from bert_jax.storage.paths import Place
from bert_jax.tpu.costs.cases import Case, cases
from bert_jax.tpu.costs.memory import Statistics, used_bytes
from bert_jax.tpu.diagnosis.checks import Check
from bert_jax.tpu.diagnosis.machine import host_memory
from bert_jax.tpu.diagnosis.published import chip_of
from bert_jax.tpu.lowered import StepProgram
from bert_jax.training.steps import TrainState
from bert_jax.training.throughput import utilisation

LONGEST = 20.0
"""Seconds of a step, as the measured FLOP/s let expect them, beyond which none is run."""
STEPS = 3
ESTIMATE_SECONDS = 900
"""After which the estimate is given up; it compiles the step for the slice."""


def fit_checks(
    given: str, overrides: Sequence[tuple[str, str]], flops: float, workdir: Place | None, *, estimated: bool
) -> list[Check]:
    """A check of each step of the experiment file `given`: whether it fits, and its time. Compiles the steps.

    `flops` is the measured rate of all devices together. With a `workdir`, its disk must have room for a checkpoint. With
    `estimated`, on TPUs the first process also runs `aot` for this slice. Every process has to call this function.
    """
    options = argparse.Namespace(step=None, phase=None, model=None, rows=None, save=None)
    return [_check(case, overrides, flops, workdir, estimated) for case in cases(given, overrides, options)]


def _check(case: Case, overrides: Sequence[tuple[str, str]], flops: float, workdir: Place | None, estimated: bool) -> Check:
    name = f"phase {case.phase}" if isinstance(case.experiment, PretrainingExperiment) else "step"
    program = case.lower(jax.devices())
    if workdir is not None and isinstance(program.state, TrainState):
        try:
            require_room(workdir, sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(program.state)))
        except UserError as error:
            return Check(name, case.config, (str(error),))
    try:
        executable = program.lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        shortage = shortage_of(error)
        if shortage is None:
            raise
        return Check(name, f"{case.config} does not fit", (too_large(case, program, shortage),))
    needs, free = step_bytes(cast(Statistics, executable.memory_analysis())), least_free()
    text = f"{case.config}: {needs / 2**30:.2f}" + (f" of {free / 2**30:.2f} GiB per device" if free else " GiB per device")
    if free is not None and needs > free:
        space = "host memory" if jax.default_backend() == "cpu" else "hbm"
        return Check(name, f"{text}, which is too much", (too_large(case, program, DoesNotFit(needs, free, space)),))
    if not isinstance(case.experiment, PretrainingExperiment):
        return Check(name, f"{text}, fits")
    expected = program.flops / flops
    if expected > LONGEST:
        return Check(name, f"{text}, fits; a step would take {duration(expected)} or more, so none was run")
    seconds = step_seconds(program, executable)
    speed = prefixed(program.flops / seconds, "FLOP/s")
    text += f", fits; a step takes {seconds:.3g} s, {program.rows / seconds:,.0f} rows/s, {speed}"
    share = utilisation(program.flops / seconds, jax.devices()[0].device_kind, jax.device_count())
    text += f" ({100 * share:.0f} % of peak)" if share else ""
    return Check(name, text + (_beside(case, overrides) if estimated else ""))


def step_bytes(statistics: Statistics) -> int:
    """Bytes per device that a step takes. The peak that the compiler reports has everything in it on TPUs alone; elsewhere it is
    the sum of arguments, results and temporaries."""
    if jax.default_backend() == "tpu":
        return used_bytes(statistics)
    s = statistics
    return s.argument_size_in_bytes + s.output_size_in_bytes - s.alias_size_in_bytes + s.temp_size_in_bytes


def too_large(case: Case, program: StepProgram, shortage: DoesNotFit) -> str:
    """The sentence about a step that does not fit, with the flags that make it smaller."""
    if isinstance(case.experiment, PretrainingExperiment):
        return pretraining_demand(case.experiment, case.phase, program.mesh).sentence(shortage)
    return (
        f"the training step does not fit in memory: it {shortage}; lower --config.training.batch_size below {program.rows}, or "
        f"set --config.training.accumulation={2 * case.accumulation}"
    )


def least_free() -> float | None:
    """Free bytes of the device of all processes that has least; for CPU devices their share of the machine's free memory."""
    free: list[float] = []
    for device in jax.local_devices():
        if stats := device.memory_stats():
            free.append(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
        elif (host := host_memory()) is not None:
            free.append(host / jax.local_device_count())
    known = [record["free"] for record in gather_json({"free": min(free, default=None)})]
    return min((size for size in known if size is not None), default=None)


def step_seconds(program: StepProgram, executable: jax.stages.Compiled) -> float:
    """The seconds of a training step of zeros, the shortest of some. The time does not depend on the values."""

    def zeros(tree: object) -> object:
        shardings = jax.tree.map(lambda x: x.sharding, tree)
        return jax.jit(lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree), out_shardings=shardings)()

    state, batch = zeros(program.state), zeros(program.batch)
    teacher = () if program.teacher is None else (zeros(program.teacher),)
    spent = []
    for _ in range(STEPS + 1):  # the first one is slower
        start = time.perf_counter()
        state, sums = executable(state, batch, *teacher)
        jax.block_until_ready(sums)
        spent.append(time.perf_counter() - start)
    return min(spent[1:])


# ----------------------------------------------------------------------------------------------------------- the estimate of aot
def slice_name(devices: Sequence[jax.Device]) -> str | None:
    """The slice that TPU devices form, in the notation of `aot --topology`; None for other devices, and for parts of a slice."""
    chip = chip_of(devices[0].device_kind)
    if devices[0].platform != "tpu" or chip is None:
        return None
    slices = {getattr(device, "slice_index", None) for device in devices}
    places = {(getattr(device, "slice_index", None), *device.coords) for device in devices}
    sides = [1 + max(device.coords[axis] for device in devices) for axis in range(chip.dimensions)]
    several = f"{len(slices)}x" if len(slices) > 1 else ""
    return f"{several}{chip.name}:{'x'.join(map(str, sides))}" if math.prod(sides) * len(slices) == len(places) else None


def _beside(case: Case, overrides: Sequence[tuple[str, str]]) -> str:
    """The estimate of `aot` for this slice, as the end of a sentence; "" for devices without one."""
    name = slice_name(jax.devices())
    if name is None:
        return ""
    found = gather_json({"text": estimate(case, overrides, name) if jax.process_index() == 0 else ""})
    return str(found[0]["text"])


def estimate(case: Case, overrides: Sequence[tuple[str, str]], topology: str) -> str:
    """`aot`'s time of a step on a slice, as the end of a sentence, computed in a process of its own that does not see the TPU."""
    flags = [f"--config={case.config}", *(f"--config.{key}={text}" for key, text in overrides)]
    command = [sys.executable, "-m", "bert_jax.aot", *flags, f"--topology={topology}", f"--phase={case.phase}"]
    hidden = ("TPU_", "MEGASCALE_", "CLOUD_TPU_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)} | {"JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(
            [*command, "--json", "--no-remedies"],
            capture_output=True,
            text=True,
            env=environment,
            timeout=ESTIMATE_SECONDS,
            check=True,
        )
        step = parse_json(done.stdout)["experiments"][0]["steps"][0]
        return f"; aot estimates {step['seconds']:.3g} s on {topology}, at least {step['roofline_seconds']:.3g} s"
    except subprocess.CalledProcessError as error:
        return f"; aot has no estimate ({(error.stderr.strip().splitlines() or ['?'])[-1][:200]})"
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError) as error:
        return f"; aot has no estimate ({type(error).__name__})"
