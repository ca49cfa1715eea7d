"""Compiles a step for a TPU slice, without a TPU: whether it fits, how long it takes, what it costs.

    python -m bert_jax.aot --config=experiments/pretrain/bert_large.py --topology=v5e:8x8 --price=1.2
    python -m bert_jax.aot --config=experiments/pretrain/bert_large.py --topology=4xv5e:16x16 --phase=1 --config.mesh.fsdp=16
    python -m bert_jax.aot --config=experiments/finetune/squad.py:v1.1 --model=large --topology=v5e:2x2

The step is the very function that `pretrain` (or `finetune`) runs. Times are estimates: the sum of the compiler's own cycles with
the trips of loops, Pallas kernels from their schedules, and a model of the network (`bert_jax/costs/` says how, and the report
what is left out). Needs the TPU compiler, which runs on any CPU: the extra `tpu` of requirements.txt.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bert_jax import launch
from bert_jax.config import Experiment
from bert_jax.costs.calibration import calibrate
from bert_jax.costs.compiling import Compiler, DoesNotFit
from bert_jax.costs.fit import Size, Trial, first_that_fits, largest_batch
from bert_jax.costs.memory import local_bytes, memory_of
from bert_jax.costs.report import GIB, Step, comparison, record, text, totals, totals_text
from bert_jax.costs.topologies import parse_topology
from bert_jax.finetuning_config import FinetuningExperiment
from bert_jax.model.settings import REMATERIALISATIONS
from bert_jax.saved_programs import save_program
from bert_jax.step_programs import (
    StepProgram,
    evaluation_step,
    finetuning_step,
    pretraining_step,
    shape_to_finetune,
    with_mesh,
    with_model,
    with_phase,
)
from bert_jax.terminal import FlagParser, UserError, nearest, run_verb

STEPS = ("train", "eval", "finetune")


def parse(argv: Sequence[str]) -> tuple[Any, list[tuple[str, str]], list[tuple[str, str]]]:
    """(options, overrides of --config, overrides of every --against)."""
    parser = FlagParser(prog="python -m bert_jax.aot", description=__doc__)
    parser.add_argument("--config", metavar="FILE[:ARG]", help="experiment file")
    parser.add_argument("--config.KEY", dest="_", metavar="VALUE", help="sets one key, as in the other verbs")
    parser.add_argument("--topology", metavar="[Nx]NAME", help="v5e:4x4, v5p:4x4x4; 4xv5e:16x16 is four slices")
    parser.add_argument("--slices", type=int, help="the same as the prefix of --topology")
    parser.add_argument("--step", metavar="|".join(STEPS), help="which step (train; finetune where the file is a task's)")
    parser.add_argument("--phase", type=int, metavar="N", help="this phase alone, from 0 (all, and the sum over the experiment)")
    parser.add_argument("--model", default="base", help="what finetune starts from: a published size or a directory (base)")
    parser.add_argument("--against", action="append", default=[], metavar="FILE[:ARG]", help="another experiment beside it")
    parser.add_argument("--against.KEY", dest="_", metavar="VALUE", help="sets one key of those")
    parser.add_argument("--price", type=float, metavar="P", help="of a chip-hour, in any currency")
    parser.add_argument("--save", type=pathlib.Path, metavar="DIR", help="keeps the programs for `pretrain --compiled=DIR`")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--no-remedies", action="store_true", help="does not look for what would make it fit")
    overrides, rest = launch.split_overrides(argv)
    others, rest = launch.split_overrides(rest, "against")
    options = parser.parse_args(rest)
    for flag, example in (("config", "experiments/pretrain/bert_base.py"), ("topology", "v5e:4x4")):
        if getattr(options, flag) is None:
            raise UserError(f"--{flag} is missing, for example --{flag}={example}; see {parser.prog} --help")
    if options.step and options.step not in STEPS:
        raise UserError(f"--step={options.step} is unknown: {nearest(options.step, STEPS)}")
    if options.price is not None and options.price < 0:
        raise UserError(f"--price={options.price} must not be negative")
    if others and not options.against:
        raise UserError(f"--against.{others[0][0]} sets a key of --against, which is not given; add --against=FILE")
    return options, overrides, others


@dataclasses.dataclass(frozen=True)
class Case:
    """One step to compile."""

    config: str
    experiment: Experiment | FinetuningExperiment
    kind: str
    phase: int

    def lower(self, devices: Sequence[Any], options: Any) -> StepProgram:
        """Its program for those devices."""
        if isinstance(self.experiment, FinetuningExperiment):
            return finetuning_step(self.experiment, shape_to_finetune(options.model), devices)
        make = evaluation_step if self.kind == "eval" else pretraining_step
        return make(self.experiment, self.phase, devices)

    def step(self, program: StepProgram) -> Step:
        """What the report says of it."""
        pretraining = isinstance(self.experiment, Experiment)
        name = f"phase {self.phase}, {self.kind} step" if pretraining else "finetune step"
        training = isinstance(self.experiment, Experiment) and self.kind == "train"
        steps = self.experiment.phases[self.phase].steps if training else 0  # type: ignore[union-attr]
        mesh = dict(program.mesh.shape)
        return Step(name, self.config, self.kind, mesh, program.rows, program.length, program.flops, steps)


def kind_of(values: Mapping[str, Any]) -> type[Experiment] | type[FinetuningExperiment]:
    """Whose experiment an experiment file describes: `pretrain`'s, or, where it names a task, `finetune`'s."""
    return FinetuningExperiment if "task" in values else Experiment


def cases(given: str, overrides: Sequence[tuple[str, str]], options: Any) -> list[Case]:
    """The steps of one experiment file that are asked for."""
    values = launch.read_config(given, overrides, lambda config: kind_of(config).defaults())
    if kind_of(values) is FinetuningExperiment:
        if options.step not in (None, "finetune"):
            raise UserError(f"--step={options.step}, but {given} is a task's experiment, with a step of its own; leave it out")
        experiment = FinetuningExperiment.from_dict(values | {"init_from": values.get("init_from") or "any"})
        return [Case(given, experiment, "finetune", 0)]
    if options.step == "finetune":
        raise UserError(f"--step=finetune, but {given} pretrains; give an experiment of experiments/finetune/")
    pretraining = Experiment.from_dict(values)
    phases = range(len(pretraining.phases))
    if options.phase is not None and options.phase not in phases:
        raise UserError(f"--phase={options.phase}: {given} has the phases 0 to {len(phases) - 1}")
    chosen = phases if options.phase is None else [options.phase]
    return [Case(given, pretraining, options.step or "train", phase) for phase in chosen]


def examine(case: Case, compiler: Compiler, options: Any) -> dict[str, Any]:
    """The record of one step: what it costs, or by how much it does not fit and what would help. Raises UserError for a program
    that the compiler refuses for another reason."""
    topology = compiler.topology
    program = case.lower(compiler.devices, options)
    step = case.step(program)
    say(f"compiling {step.name} of {case.config} for {topology.name} ...")
    try:
        compiled = compiler.compile(program.lowered)
    except DoesNotFit as error:
        about = {"step": step.name, "steps": step.steps, "config": case.config, "topology": topology.name, "fits": False}
        about |= {"needs_bytes": error.needs, "has_bytes": error.has, "message": f"{error}"}
        about |= {"rows": step.rows, "rows_per_chip": step.rows / step.chips(topology), "length": step.length}
        return about | {"remedies": [] if options.no_remedies else remedies(case, compiler, program, error)}
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"the TPU compiler refuses {step.name} for {topology.name}: {str(error).splitlines()[0]}") from error
    devices = list(program.mesh.devices.flat)
    memory = memory_of(compiled.memory, compiled.module, program.arguments(), topology.device_memory)
    found = record(step, topology, compiled, compiler.estimate(compiled, devices), memory, calibrate(compiler))
    if options.save:
        found["saved"] = str(save_program(options.save, program.lowered, compiled.executable, devices))
    return found


def remedies(case: Case, compiler: Compiler, program: StepProgram, error: DoesNotFit) -> list[str]:
    """What would make a step fit, each found by compiling it so, with one layer a trip of the loop (which compiles fast)."""
    if not isinstance(case.experiment, Experiment) or case.kind != "train":
        return []
    experiment = with_model(case.experiment, scan_unroll=1)
    i, phase, devices = case.phase, case.experiment.phases[case.phase], compiler.devices
    parts = program.mesh.shape["data"] * program.mesh.shape["fsdp"]
    k, per_device = phase.accumulation, phase.batch_size // parts
    limit = error.has or compiler.topology.device_memory
    parameters, optimizer = (local_bytes(program.arguments()[name]) for name in ("parameters", "optimizer"))

    def trial(flags: str, changed: Experiment) -> Trial:
        return Trial(flags, lambda: pretraining_step(changed, i, devices).lowered)

    def with_rows(n: int) -> Any:
        return pretraining_step(with_phase(experiment, i, batch_size=n * k * parts), i, devices).lowered

    say("it does not fit; looking for the largest batch ...")
    most = largest_batch(compiler, with_rows, parameters + optimizer, Size(per_device // k, error.needs), limit)
    recomputing = [
        trial(f"--config.model.rematerialisation={how}", with_model(experiment, rematerialisation=how))
        for how in REMATERIALISATIONS
        if how not in ("none", experiment.model.rematerialisation)
    ]
    accumulating = [
        trial(f"--config.phases.{i}.accumulation={n}", with_phase(experiment, i, accumulation=n))
        for n in range(k + 1, per_device + 1)
        if per_device % n == 0 and per_device <= n * most.rows
    ]
    sharding = [
        trial(f"--config.mesh.fsdp={n}", with_mesh(experiment, data=-1, fsdp=n))
        for n in (program.mesh.shape["fsdp"] * 2**j for j in range(1, 20))
        if len(devices) % (n * program.mesh.shape["tensor"]) == 0
        # parameters, gradients and optimizer are all that it can take away
        and error.needs - (2 * parameters + optimizer) * (1 - program.mesh.shape["fsdp"] / n) < limit
    ]
    found = []
    for title, trials in (("accumulation", accumulating[:3]), ("rematerialisation", recomputing), ("sharding", sharding)):
        if trials:
            say(f"it does not fit; trying {title} ...")
        if remedy := first_that_fits(compiler, trials):
            found.append(f"{remedy.flags} ({remedy.bytes / GIB:.1f} GiB)")
    if most.rows:
        batch = most.rows * k * parts
        each = batch / compiler.topology.chips
        found.append(f"--config.phases.{i}.batch_size={batch}, {each:g} rows a chip, the most ({most.bytes / GIB:.1f} GiB)")
    return found


def refusal(found: dict[str, Any]) -> str:
    """The sentences for a step that does not fit."""
    lines = [
        f"{found['config']}, {found['step']}, on {found['topology']}: does not fit. It {found['message']} a device, "
        f"with {found['rows']:,} rows of {found['length']} tokens a step, {found['rows_per_chip']:g} a chip."
    ]
    if found["remedies"]:
        lines.append("Each of these makes it fit (compiled with model.scan_unroll=1):")
        lines += [f"    {remedy}" for remedy in found["remedies"]]
    else:
        lines.append("Take more chips, chips with more memory, or fewer rows.")
    return "\n".join(lines)


def say(line: str) -> None:
    """Progress, which is not part of the report."""
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """The verb."""
    options, overrides, others = parse(sys.argv[1:])
    launch.quiet_libraries()
    topology = parse_topology(options.topology, options.slices)
    wanted = [cases(options.config, overrides, options)] + [cases(given, others, options) for given in options.against]
    compiler = Compiler(topology)
    found = [[examine(case, compiler, options) for case in one] for one in wanted]
    if options.json:
        print(json.dumps(as_json(found, options)))
    else:
        print("\n\n".join(as_text(found, options)))
    return 0 if all(one["fits"] for group in found for one in group) else 1


def as_json(found: list[list[dict[str, Any]]], options: Any) -> dict[str, Any]:
    """One object for all experiments."""
    experiments = []
    for group in found:
        fitting = [one for one in group if one["fits"]]
        whole = totals(fitting, options.price) if len(fitting) == len(group) else None
        experiments.append({"config": group[0]["config"], "steps": group, "total": whole})
    return {"topology": found[0][0]["topology"], "experiments": experiments}


def as_text(found: list[list[dict[str, Any]]], options: Any) -> list[str]:
    """The paragraphs of the report."""
    said = []
    for group in found:
        said += [text(one) if one["fits"] else refusal(one) for one in group]
        fitting = [one for one in group if one["fits"]]
        if len(fitting) == len(group) and (table := totals_text(fitting, options.price)):
            said.append(table)
    if len(found) > 1:
        said += [comparison(list(pair)) for pair in zip(*found, strict=False) if pair[0]["fits"]]
    saved = [one["saved"] for group in found for one in group if one.get("saved")]
    return [*said, *([f"saved: {', '.join(saved)}"] if saved else [])]


if __name__ == "__main__":
    run_verb(main)
