"""The steps of an experiment whose cost is asked for: each lowers its program and says how often it is taken."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence

import jax

from bert_jax.configs.files import read_experiment
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import CorpusConfig, PretrainingExperiment
from bert_jax.configs.sections import section
from bert_jax.corpus.files import JsonObject
from bert_jax.corpus.store import open_corpus
from bert_jax.costs.report import Step
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.interop.locate import find_model_directory
from bert_jax.pretraining.inferred_settings import infer_settings
from bert_jax.programs.lowered import (
    StepProgram,
    costliest_run,
    evaluation_step,
    finetuning_step,
    model_config_to_finetune,
    pretraining_step,
    with_overrides,
)


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

    def lower(self, devices: Sequence[jax.Device]) -> StepProgram:
        """Its program for those devices."""
        if isinstance(self.experiment, FinetuningExperiment):
            return finetuning_step(self.experiment, model_config_to_finetune(self.model), devices)
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

    def changed(self, changes: JsonObject) -> Case:
        """With other values for dotted keys of the experiment. Raises UserError where it is none with them."""
        return dataclasses.replace(self, experiment=with_overrides(self.experiment, changes))

    def batch_key(self, name: str) -> str:
        """The key of the experiment that sets `name` ("batch_size", "accumulation") for this step."""
        groups = {"train": f"phases.{self.phase}", "eval": "evaluation", "finetune": "training"}
        return f"{groups[self.kind]}.{name}"

    def batch_of(self, rows: int) -> JsonObject:
        """The key that gives its batch so many rows, with its value; of a sweep over batch sizes, all that are larger become
        that one."""
        sizes = self.experiment.sweep.batch_sizes if isinstance(self.experiment, FinetuningExperiment) else ()
        if sizes:
            return {"sweep.batch_sizes": tuple(sorted({min(size, rows) for size in sizes}))}
        return {self.batch_key("batch_size"): rows}


def kind_of(values: JsonObject) -> type[PretrainingExperiment] | type[FinetuningExperiment]:
    """Whose experiment an experiment file describes: `pretrain`'s, or, where it names a task, `finetune`'s."""
    return FinetuningExperiment if "task" in values else PretrainingExperiment


def cases(given: str, overrides: Sequence[tuple[str, str]], options: argparse.Namespace, flag: str = "config") -> list[Case]:
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
    values, notes = infer_settings(
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


def vocabulary_size(values: JsonObject) -> int | None:
    """Of the experiment's corpus, None where that is not on this machine."""
    corpus = section(CorpusConfig, values.get("corpus", {}), "config.corpus")
    return open_corpus(corpus.directory).vocabulary.size if pathlib.Path(corpus.directory).is_dir() else None


def require_saveable(given: str, kind: str, options: argparse.Namespace) -> None:
    """Raises UserError where --save asks for programs that nothing could load."""
    if options.save and kind != "train":
        raise UserError(
            f"--save={options.save} keeps training steps for `pretrain --compiled`, and nothing loads the {kind} step of "
            f"{given}; leave it out"
        )


def say(line: str) -> None:
    """Progress, which is not part of the report."""
    print(line, file=sys.stderr, flush=True)
