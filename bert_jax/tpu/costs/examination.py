"""Compiles one step for a slice, and reports its cost, or its excess memory and the settings with which it would fit."""

from __future__ import annotations

import argparse

import jax

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.model.config import REMATERIALISATIONS
from bert_jax.sharding.out_of_memory import DoesNotFit
from bert_jax.sharding.rules import row_multiple
from bert_jax.tpu.costs.calibration import calibrate
from bert_jax.tpu.costs.cases import Case, say
from bert_jax.tpu.costs.compiling import Compiler
from bert_jax.tpu.costs.memory import local_bytes, memory_of
from bert_jax.tpu.costs.remedies import Size, Trial, first_that_fits, is_refusal, largest_batch
from bert_jax.tpu.costs.report import GIB, record, refused
from bert_jax.tpu.lowered import StepProgram
from bert_jax.training.saved_programs import save_program


def examine(case: Case, compiler: Compiler, options: argparse.Namespace) -> JsonObject:
    """The record of one step: its cost, or its excess memory and remedies. Raises UserError for a program that the compiler
    refuses for a reason other than memory."""
    topology = compiler.topology
    program = case.lower(compiler.devices)
    step, arguments = case.step(program), program.arguments()
    say(f"compiling {step.name} of {case.config} for {topology.name} ...")
    try:
        compiled = compiler.compile(program.lowered)
    except DoesNotFit as error:
        found = [] if options.no_remedies else remedies(case, compiler, program, error)
        return refused(step, topology, error, {name: local_bytes(tree) for name, tree in arguments.items()}, found)
    except Exception as error:
        if not is_refusal(error):
            raise
        raise UserError(f"the TPU compiler refuses {step.name} for {topology.name}: {str(error).splitlines()[0]}") from error
    devices = list(program.mesh.devices.flat)
    memory = memory_of(compiled.memory, compiled.module, arguments, topology.device_memory)
    about = record(step, topology, compiled, compiler.estimate(compiled, devices), memory, calibrate(compiler))
    if options.save:
        about["saved"] = str(save_program(options.save, program.lowered, compiled.executable, devices))
    return about


def remedies(case: Case, compiler: Compiler, program: StepProgram, error: DoesNotFit) -> list[str]:
    """The settings with which a step fits, each verified by a compilation with one layer per trip of the loop over layers, which
    is fast to compile."""
    devices, given, mesh = compiler.devices, case.experiment, program.mesh.shape
    looped = case.changed({"model.scan_unroll": 1})
    parts = row_multiple(program.mesh)
    trains = case.kind != "eval"
    k = case.accumulation
    per_device = program.rows // parts
    limit = error.has or compiler.topology.device_memory
    parameters, optimizer = (program.arguments().get(name, ()) for name in ("parameters", "optimizer"))
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(parameters)) / mesh["fsdp"] / mesh["tensor"]

    def trial(changes: JsonObject) -> Trial:
        return Trial(flags_of(changes), lambda: looped.changed(changes).lower(devices).lowered)

    say("it does not fit; searching for the largest batch ...")
    most = largest_batch(
        compiler,
        lambda n: looped.changed(case.batch_of(n * k * parts)).lower(devices).lowered,
        local_bytes(parameters) + local_bytes(optimizer),
        Size(per_device // k, error.needs),
        limit,
    )
    recomputing = [
        trial({"model.rematerialisation": how})
        for how in REMATERIALISATIONS
        if trains and how not in ("none", given.model.rematerialisation)
    ]
    accumulating = [
        trial({case.batch_key("accumulation"): n})
        for n in range(k + 1, per_device + 1)
        if trains and per_device % n == 0 and per_device <= n * most.rows
    ]
    sharding = [
        trial({"mesh.fsdp": n} | ({} if given.mesh.data == -1 else {"mesh.data": -1}))
        for n in (mesh["fsdp"] * 2**j for j in range(1, 20))
        if program.mesh.size % (n * mesh["tensor"]) == 0
        # sharding can remove no more than the parameters, their gradients and the optimizer state
        and error.needs - (2 * whole + local_bytes(optimizer)) * (1 - mesh["fsdp"] / n) < limit
    ]
    found = []
    for title, trials in (("accumulation", accumulating[:3]), ("rematerialisation", recomputing), ("sharding", sharding)):
        if trials:
            say(f"it does not fit; trying {title} ...")
        if remedy := first_that_fits(compiler, trials):
            found.append(f"{remedy.flags} ({remedy.bytes / GIB:.1f} GiB)")
    if most.rows:
        batch = most.rows * k * parts
        each = batch / case.step(program).chips(compiler.topology)
        rows = f"{each:g} {'row' if each == 1 else 'rows'} per chip"
        found.append(f"{flags_of(case.batch_of(batch))}, the largest batch, {rows} ({most.bytes / GIB:.1f} GiB)")
    return found


def flags_of(changes: JsonObject) -> str:
    """The changes as flags of the command line."""
    return " ".join(f"--config.{key}={list(x) if isinstance(x, tuple) else x}".replace(" ", "") for key, x in changes.items())
