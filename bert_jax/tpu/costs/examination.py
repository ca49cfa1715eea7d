"""Compiles one step for a slice. If the step fits, reports its cost. Otherwise reports how much memory it needs, and settings
with which it would fit."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable

import jax

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.hardware import GIB
from bert_jax.model.config import REMAT
from bert_jax.sharding.device_errors import DoesNotFit
from bert_jax.sharding.mesh import shard_further
from bert_jax.sharding.rules import parameter_shards, row_multiple
from bert_jax.tpu.costs.compiler import Compiler, calibrate
from bert_jax.tpu.costs.memory import local_bytes, program_memory, used_bytes
from bert_jax.tpu.costs.step_report import record, refused
from bert_jax.tpu.costs.topologies import Topology
from bert_jax.tpu.programs import Case, StepProgram, say
from bert_jax.training.compilation import save_program


def examine(case: Case, compiler: Compiler, options: argparse.Namespace) -> JsonObject:
    """Returns the record of one step. If the step fits, the record has its cost. Otherwise it has the memory that the step
    needs, and settings with which the step fits. Raises UserError if the compiler refuses the program for a reason other than
    memory."""
    topology = compiler.topology
    program = case.lower(compiler.devices)
    step, arguments = case.step(program), program.arguments()
    say(f"compiling {step.name} of {case.config} for {topology.name} ...")
    try:
        compiled = compiler.compile(program.lowered)
    except DoesNotFit as error:

        def measure(changes: JsonObject) -> tuple[bool, int]:
            return attempt(compiler, lambda: case.changed(changes).lower(compiler.devices).lowered)

        found = [] if options.no_remedies else remedies(case, program, error, topology, measure)
        return refused(step, topology, error, {name: local_bytes(tree) for name, tree in arguments.items()}, found)
    except Exception as error:
        if not is_refusal(error):
            raise
        raise UserError(f"the TPU compiler refuses {step.name} for {topology.name}: {str(error).splitlines()[0]}") from error
    devices = list(program.mesh.devices.flat)
    memory = program_memory(compiled.memory, compiled.module, arguments, topology.device_memory)
    about = record(step, topology, compiler.estimate(compiled, devices), memory, calibrate(compiler), compiled.seconds)
    if options.save:
        about["saved"] = str(save_program(options.save, program.lowered, compiled.executable, devices))
    return about


Measure = Callable[[JsonObject], tuple[bool, int]]
"""(changes of settings) -> (whether a step fits with them, the bytes per device that it then needs, 0 if unknown)."""


def remedies(case: Case, program: StepProgram, error: DoesNotFit, topology: Topology, measure: Measure) -> list[str]:
    """Returns settings with which the step `program` of `case` fits. To verify a setting, `measure` compiles the step with it.
    In these compilations, the loop over layers has one layer per iteration, which compiles fast. If the experiment does not
    allow a loop, the layers stay as they are."""
    given, mesh = case.experiment, program.mesh
    loop: JsonObject = {"model.scan_layers": True}
    try:
        case.changed(loop)
    except UserError:
        loop = {}
    parts = row_multiple(mesh)
    trains = case.kind != "eval"
    k = case.accumulation
    per_device = program.rows // parts
    limit = error.has or topology.device_memory
    parameters, optimizer = (program.arguments().get(name, ()) for name in ("parameters", "optimizer"))
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(parameters)) / parameter_shards(mesh)
    kept = local_bytes(parameters) + local_bytes(optimizer)  # does not depend on the number of rows

    say("it does not fit; searching for the largest batch ...")
    most = largest(
        lambda n: measure(loop | case.batch_override(n * k * parts)), Size(0, kept), Size(per_device // k, error.needs), limit
    )
    recomputing = [{"model.remat": how} for how in REMAT if trains and how not in ("none", given.model.remat)]
    accumulating = [
        {case.batch_key("accumulation"): n}
        for n in range(k + 1, per_device + 1)
        if trains and per_device % n == 0 and per_device <= n * most.rows
    ]
    sharding = [
        {f"mesh.{axis}": size for axis, size in sizes.items()}
        for times in (2**j for j in range(1, 20))
        if (sizes := shard_further(given.mesh, mesh, times))
        # sharding saves at most the memory of the parameters, the gradients and the optimizer state
        and error.needs - (2 * whole + local_bytes(optimizer)) * (1 - 1 / times) < limit
    ]
    found = []
    for title, trials in (("accumulation", accumulating[:3]), ("remat", recomputing), ("sharding", sharding)):
        if trials:
            say(f"it does not fit; trying {title} ...")
        for changes in trials:  # in order of preference
            fits, size = measure(loop | changes)
            if fits:
                found.append(f"{as_flags(changes)} ({size / GIB:.1f} GiB)")
                break
    if most.rows:
        batch = most.rows * k * parts
        each = batch / case.step(program).chips(topology)
        rows = f"{each:g} {'row' if each == 1 else 'rows'} per chip"
        found.append(f"{as_flags(case.batch_override(batch))}, the largest batch, {rows} ({most.bytes / GIB:.1f} GiB)")
    return found


def as_flags(changes: JsonObject) -> str:
    """Formats the changes as flags of the command line."""
    return " ".join(f"--config.{key}={list(x) if isinstance(x, tuple) else x}".replace(" ", "") for key, x in changes.items())


# -------------------------------------------------------------------------------------------------------------------- the search
CLOSE = 128
"""Up to twice this many rows per device, the search for the largest batch is exact to a row. Above, it is approximate, to save
compilations."""


def is_refusal(error: BaseException) -> bool:
    """Returns whether an exception means that the compiler refuses a program. Pallas wraps the refusal of a kernel in its own
    exception."""
    return isinstance(error, jax.errors.JaxRuntimeError) or isinstance(error.__cause__, jax.errors.JaxRuntimeError)


def attempt(compiler: Compiler, lower: Callable[[], jax.stages.Lowered]) -> tuple[bool, int]:
    """Compiles `lower()`. Returns (whether the program fits, the bytes per device that it needs). The bytes are 0 if unknown.
    Invalid experiments, and programs that the compiler refuses for a reason other than memory, count as not fitting."""
    try:
        return True, used_bytes(compiler.compile(lower()).memory)
    except DoesNotFit as error:
        return False, int(error.needs)
    except Exception as error:
        if isinstance(error, UserError) or is_refusal(error):
            return False, 0
        raise


@dataclasses.dataclass(frozen=True)
class Size:
    """A batch with `rows` rows per device. `bytes` is the memory per device that it needs (0 if unknown)."""

    rows: int
    bytes: float


def largest(measure: Callable[[int], tuple[bool, float]], fits: Size, does_not: Size, limit: float) -> Size:
    """Returns the largest batch that fits. The search starts with `fits`, a batch that fits, and `does_not`, a larger batch
    that does not fit. `measure(rows)` returns (whether a batch with `rows` rows fits, the bytes that it needs). `limit` is the
    number of available bytes.

    The search is a bisection in which two of three steps interpolate. Bytes grow about linearly with rows, so the next
    candidate is the point where the line through both ends crosses the limit. The search compiles three or four programs
    instead of log2(rows). The result is exact up to 2 * CLOSE rows. Above, it may be too small by the fraction 1/CLOSE."""
    low, high, tried = fits, does_not, 0
    while high.rows - low.rows > max(1, low.rows // CLOSE):
        cut = (low.rows + high.rows) // 2
        if tried % 3 < 2 and low.bytes < limit < high.bytes:
            share = (limit - low.bytes) / (high.bytes - low.bytes)
            cut = low.rows + round(share * (high.rows - low.rows))
        cut = min(max(cut, low.rows + 1), high.rows - 1)
        good, size = measure(cut)
        low, high = (Size(cut, size), high) if good else (low, Size(cut, size))
        tried += 1
    return low
