"""Compiles a step for a TPU slice, without a TPU: whether it fits, how long it takes, what it costs.

    python -m bert_jax.aot --config=experiments/pretrain/bert_large.py --topology=v5e:8x8 --price=1.2
    python -m bert_jax.aot --config=experiments/pretrain/bert_large.py --topology=4xv5e:16x16 --phase=1 --config.mesh.fsdp=16
    python -m bert_jax.aot --config=experiments/finetune/squad.py:v1.1 --model=large --topology=v5e:2x2 --rows=87599

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
from annotated_types import Interval

from bert_jax.configs.files import read_experiment
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.overrides import flag_for, split_overrides
from bert_jax.configs.pretraining import CorpusConfig, PretrainingExperiment
from bert_jax.configs.sections import section
from bert_jax.corpus.store import open_corpus
from bert_jax.costs.calibration import calibrate
from bert_jax.costs.compiling import Compiler, DoesNotFit
from bert_jax.costs.fit import Size, Trial, first_that_fits, is_refusal, largest_batch
from bert_jax.costs.memory import local_bytes, memory_of
from bert_jax.costs.report import GIB, Step, comparisons, record, refusal, refused, text, totals, totals_text
from bert_jax.costs.topologies import parse_topology
from bert_jax.errors import UserError, nearest
from bert_jax.interface.command import require_stdout, run_verb
from bert_jax.interface.flags import FlagParser
from bert_jax.interface.ranges import COUNT, MOST, InRange
from bert_jax.interface.words import counted
from bert_jax.interop.locate import find_model_directory
from bert_jax.model.config import REMATERIALISATIONS
from bert_jax.pretraining.inferred_settings import settled
from bert_jax.programs.lowered import (
    StepProgram,
    costliest_run,
    evaluation_step,
    finetuning_step,
    pretraining_step,
    shape_to_finetune,
    with_keys,
)
from bert_jax.programs.saved import save_program
from bert_jax.runtime.log_setup import quiet_libraries

STEPS = ("train", "eval", "finetune")

SLICES, ROWS, PHASE = (InRange(int, interval) for interval in (Interval(ge=1, le=2**16), COUNT, Interval(ge=0, le=MOST)))
PRICE = InRange(float, Interval(ge=0, le=1e9))


def parse(argv: Sequence[str]) -> tuple[Any, list[tuple[str, str]], list[tuple[str, str]]]:
    """(options, overrides of --config, overrides of every --against)."""
    parser = flag_parser()
    overrides, rest = split_overrides(argv)
    others, rest = split_overrides(rest, "against")
    options = parser.parse_args(rest)
    for flag, example in (("config", "experiments/pretrain/bert_base.py"), ("topology", "v5e:4x4")):
        if not getattr(options, flag):
            raise UserError(f"--{flag} is missing, for example --{flag}={example}; see {parser.prog} --help")
    if options.step and options.step not in STEPS:
        raise UserError(f"--step={options.step} is unknown: {nearest(options.step, STEPS)}")
    if others and not options.against:
        raise UserError(f"--against.{others[0][0]} sets a key of --against, which is not given; add --against=FILE")
    return options, overrides, others


def flag_parser() -> FlagParser:
    """The flags of the verb, but for those that set a key of a configuration."""
    parser = FlagParser(prog="python -m bert_jax.aot", description=__doc__)
    parser.elsewhere = lambda argument: flag_for(argument, PretrainingExperiment) or flag_for(argument, FinetuningExperiment)
    parser.add_argument("--config", metavar="FILE[:ARG]", help="experiment file")
    parser.add_argument("--config.KEY", dest="_", metavar="VALUE", help="sets one key, as in the other verbs")
    parser.add_argument("--topology", metavar="[Nx]NAME", help="v5e:4x4, v5p:4x4x4; 4xv5e:16x16 is four slices")
    parser.add_argument("--slices", type=SLICES, metavar="N", help="the same as the prefix of --topology")
    parser.add_argument("--step", metavar="|".join(STEPS), help="which step (train; finetune where the file is a task's)")
    parser.add_argument("--phase", type=PHASE, metavar="N", help="this phase alone, from 0 (all, and their sum)")
    parser.add_argument("--model", help="what finetune starts from: a size or a directory (init_from, else base)")
    parser.add_argument("--against", action="append", default=[], metavar="FILE[:ARG]", help="another experiment beside it")
    parser.add_argument("--against.KEY", dest="_", metavar="VALUE", help="sets one key of those")
    parser.add_argument("--rows", type=ROWS, metavar="N", help="counts a pass over N held-out rows, or all epochs of N examples")
    parser.add_argument("--price", type=PRICE, metavar="P", help="of a chip-hour, in any currency")
    parser.add_argument("--save", type=pathlib.Path, metavar="DIR", help="keeps the programs for `pretrain --compiled=DIR`")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--no-remedies", action="store_true", help="does not look for what would make it fit")
    return parser


@dataclasses.dataclass(frozen=True)
class Case:
    """One step to compile."""

    config: str
    experiment: PretrainingExperiment | FinetuningExperiment
    kind: str
    phase: int
    model: str
    """What fine-tuning starts from."""
    examples: int | None
    """Of one pass, where the number of steps depends on it."""

    def lower(self, devices: Sequence[Any]) -> StepProgram:
        """Its program for those devices."""
        if isinstance(self.experiment, FinetuningExperiment):
            return finetuning_step(self.experiment, shape_to_finetune(self.model), devices)
        make = evaluation_step if self.kind == "eval" else pretraining_step
        return make(self.experiment, self.phase, devices)

    def step(self, program: StepProgram) -> Step:
        """What the report says of it."""
        name, (steps, covers) = f"phase {self.phase}, {self.kind} step", self._steps(program)
        if isinstance(self.experiment, FinetuningExperiment):
            runs = len(self.experiment.runs())
            name = "finetune step" + (f" (1 of {counted(runs, 'run')})" if runs > 1 else "")
        mesh = dict(program.mesh.shape)
        return Step(name, self.config, self.kind, mesh, program.rows, program.length, program.flops, steps, covers)

    def _steps(self, program: StepProgram) -> tuple[int | None, str]:
        """How often the step is taken, None where only the data can say, and what that covers."""
        if isinstance(self.experiment, PretrainingExperiment) and self.kind == "train":
            return self.experiment.phases[self.phase].steps, "experiment"
        if self.examples is None:
            return None, ""
        if isinstance(self.experiment, PretrainingExperiment):
            return -(-self.examples // program.rows), f"1 pass, {counted(self.examples, 'row')}"
        t = costliest_run(self.experiment).training
        return t.epochs * -(-self.examples // t.batch_size), f"{counted(t.epochs, 'epoch')}, {counted(self.examples, 'example')}"

    @property
    def accumulation(self) -> int:
        """Microbatches of a step."""
        if isinstance(self.experiment, FinetuningExperiment):
            return self.experiment.training.accumulation
        return self.experiment.phases[self.phase].accumulation if self.kind == "train" else 1

    def changed(self, changes: Mapping[str, Any]) -> Case:
        """With other values for dotted keys of the experiment. Raises UserError where it is none with them."""
        return dataclasses.replace(self, experiment=with_keys(self.experiment, changes))

    def batch_key(self, name: str) -> str:
        """The key of the experiment that sets `name` ("batch_size", "accumulation") for this step."""
        groups = {"train": f"phases.{self.phase}", "eval": "evaluation", "finetune": "training"}
        return f"{groups[self.kind]}.{name}"

    def batch_of(self, rows: int) -> dict[str, Any]:
        """The key that gives its batch so many rows, with its value; of a sweep over batch sizes, all that are larger become
        that one."""
        sizes = self.experiment.sweep.batch_sizes if isinstance(self.experiment, FinetuningExperiment) else ()
        if sizes:
            return {"sweep.batch_sizes": tuple(sorted({min(size, rows) for size in sizes}))}
        return {self.batch_key("batch_size"): rows}


def kind_of(values: Mapping[str, Any]) -> type[PretrainingExperiment] | type[FinetuningExperiment]:
    """Whose experiment an experiment file describes: `pretrain`'s, or, where it names a task, `finetune`'s."""
    return FinetuningExperiment if "task" in values else PretrainingExperiment


def cases(given: str, overrides: Sequence[tuple[str, str]], options: Any, flag: str = "config") -> list[Case]:
    """The steps of one experiment file that are asked for with `--config` or another `flag`."""
    values = read_experiment(given, overrides, kind_of, flag)
    if kind_of(values) is FinetuningExperiment:
        if options.step not in (None, "finetune"):
            raise UserError(f"--step={options.step}, but {given} is a task's experiment, with a step of its own; leave it out")
        if options.phase is not None:
            raise UserError(f"--phase={options.phase}, but {given} is a task's experiment, which has no phases; leave it out")
        require_saveable(given, "finetune", options)
        experiment = FinetuningExperiment.from_dict(values | {"init_from": values.get("init_from") or "any"})
        here = pathlib.Path(experiment.init_from).is_dir()
        model = options.model or (str(find_model_directory(experiment.init_from)) if here else "base")
        return [Case(given, experiment, "finetune", 0, model, options.rows)]
    if options.step == "finetune":
        raise UserError(f"--step=finetune, but {given} pretrains; give an experiment of experiments/finetune/")
    kind = options.step or "train"
    require_saveable(given, kind, options)
    if options.rows is not None and kind == "train":
        raise UserError(f"--rows={options.rows}, but {given} says itself how many steps pretraining takes; leave it out")
    values, notes = settled(
        values, {key for key, _ in overrides}, vocabulary_size=vocabulary_size(values), download=False
    )
    for note in notes:
        say(note)
    pretraining = PretrainingExperiment.from_dict(values)
    phases = range(len(pretraining.phases))
    if options.phase is not None and options.phase not in phases:
        raise UserError(f"--phase={options.phase}: {given} has the phases 0 to {len(phases) - 1}")
    chosen = phases if options.phase is None else [options.phase]
    return [Case(given, pretraining, kind, phase, options.model, options.rows) for phase in chosen]


def vocabulary_size(values: Mapping[str, Any]) -> int | None:
    """Of the experiment's corpus, None where that is not on this machine."""
    corpus = section(CorpusConfig, values.get("corpus", {}), "config.corpus")
    return open_corpus(corpus.directory).vocabulary.size if pathlib.Path(corpus.directory).is_dir() else None


def require_saveable(given: str, kind: str, options: Any) -> None:
    """Raises UserError where --save asks for programs that nothing could load."""
    if options.save and kind != "train":
        raise UserError(
            f"--save={options.save} keeps training steps for `pretrain --compiled`, and nothing loads the {kind} step of "
            f"{given}; leave it out"
        )


def examine(case: Case, compiler: Compiler, options: Any) -> dict[str, Any]:
    """The record of one step: what it costs, or by how much it does not fit and what would help. Raises UserError for a program
    that the compiler refuses for another reason."""
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
    """What would make a step fit, each found by compiling it so, with one layer a trip of the loop (which compiles fast)."""
    devices, given, mesh = compiler.devices, case.experiment, program.mesh.shape
    looped = case.changed({"model.scan_unroll": 1})
    parts = mesh["data"] * mesh["fsdp"]
    trains = case.kind != "eval"
    k = case.accumulation
    per_device = program.rows // parts
    limit = error.has or compiler.topology.device_memory
    parameters, optimizer = (program.arguments().get(name, ()) for name in ("parameters", "optimizer"))
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(parameters)) / mesh["fsdp"] / mesh["tensor"]

    def trial(changes: Mapping[str, Any]) -> Trial:
        return Trial(flags_of(changes), lambda: looped.changed(changes).lower(devices).lowered)

    say("it does not fit; looking for the largest batch ...")
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
        # whole parameters, their gradients and the optimizer are all that it can take away
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
        rows = f"{each:g} {'row' if each == 1 else 'rows'} a chip"
        found.append(f"{flags_of(case.batch_of(batch))}, {rows}, the most ({most.bytes / GIB:.1f} GiB)")
    return found


def flags_of(changes: Mapping[str, Any]) -> str:
    """As one gives them on the command line."""
    return " ".join(f"--config.{key}={list(x) if isinstance(x, tuple) else x}".replace(" ", "") for key, x in changes.items())


def say(line: str) -> None:
    """Progress, which is not part of the report."""
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """The verb."""
    options, overrides, others = parse(sys.argv[1:])
    require_stdout("open it, or send it to a file with >FILE")
    quiet_libraries()
    topology = parse_topology(options.topology, options.slices)
    wanted = [cases(options.config, overrides, options)] + [cases(given, others, options, "against") for given in options.against]
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
        if len(fitting) == len(group):
            said.append(totals_text(fitting, options.price))
    if len(found) > 1:
        said += comparisons(found)
    saved = [one["saved"] for group in found for one in group if one.get("saved")]
    return [*said, *([f"saved: {', '.join(saved)}"] if saved else [])]


if __name__ == "__main__":
    run_verb(main)
