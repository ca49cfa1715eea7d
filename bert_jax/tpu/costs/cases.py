"""The steps of an experiment whose cost `aot` estimates: each lowers its program and has its number of executions."""

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
from bert_jax.configs.sections import dataclass_from_dict
from bert_jax.data.corpus.integrity import MANIFEST
from bert_jax.data.corpus.staging import KEY
from bert_jax.data.corpus.store import open_corpus, read_manifest
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.words import counted
from bert_jax.interop.locate import find_model_directory
from bert_jax.pretraining.inferred_settings import infer_settings
from bert_jax.storage.fetching import fetched
from bert_jax.storage.paths import checked, is_remote
from bert_jax.tpu.costs.report import Step
from bert_jax.tpu.lowered import (
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
    """The model that fine-tuning starts from."""
    examples: int | None
    """Examples of one pass over the data, for steps whose number depends on it."""

    def lower(self, devices: Sequence[jax.Device]) -> StepProgram:
        """The step, lowered for `devices`."""
        if isinstance(self.experiment, FinetuningExperiment):
            return finetuning_step(self.experiment, model_config_to_finetune(self.model), devices)
        make = evaluation_step if self.kind == "eval" else pretraining_step
        return make(self.experiment, self.phase, devices)

    def step(self, program: StepProgram) -> Step:
        """The description of the step for the report."""
        name, (steps, covers) = f"phase {self.phase}, {self.kind} step", self._steps(program)
        if isinstance(self.experiment, FinetuningExperiment):
            runs = len(self.experiment.runs())
            name = "finetune step" + (f" (1 of {counted(runs, 'run')})" if runs > 1 else "")
        mesh = dict(program.mesh.shape)
        return Step(name, self.config, self.kind, mesh, program.rows, program.length, program.flops, steps, covers)

    def _steps(self, program: StepProgram) -> tuple[int | None, str]:
        """(the number of executions of the step, None where it depends on data that is not given; the work that these cover)."""
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
        """The case with other values for dotted keys of the experiment. Raises UserError where the experiment is then invalid."""
        return dataclasses.replace(self, experiment=with_overrides(self.experiment, changes))

    def batch_key(self, name: str) -> str:
        """The key of the experiment that sets `name` ("batch_size", "accumulation") for this step."""
        groups = {"train": f"phases.{self.phase}", "eval": "evaluation", "finetune": "training"}
        return f"{groups[self.kind]}.{name}"

    def batch_of(self, rows: int) -> JsonObject:
        """The dotted key, with its value, that sets the batch to `rows`; in a sweep, larger batch sizes are reduced to `rows`."""
        sizes = self.experiment.sweep.batch_sizes if isinstance(self.experiment, FinetuningExperiment) else ()
        if sizes:
            return {"sweep.batch_sizes": tuple(sorted({min(size, rows) for size in sizes}))}
        return {self.batch_key("batch_size"): rows}


def kind_of(values: JsonObject) -> type[PretrainingExperiment] | type[FinetuningExperiment]:
    """The experiment class for the values of an experiment file: fine-tuning where they have a task, else pretraining."""
    return FinetuningExperiment if "task" in values else PretrainingExperiment


def cases(given: str, overrides: Sequence[tuple[str, str]], options: argparse.Namespace, flag: str = "config") -> list[Case]:
    """The steps to compile of the experiment file `given` by `--config` or another `flag`. Raises UserError for flags that do not
    apply to it."""
    values = read_experiment(given, overrides, kind_of, flag)
    if kind_of(values) is FinetuningExperiment:
        if options.step not in (None, "finetune"):
            raise UserError(f"--step={options.step}, but {given} fine-tunes and has only the step finetune; leave it out")
        if options.phase is not None:
            raise UserError(f"--phase={options.phase}, but {given} fine-tunes and has no phases; leave it out")
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
        raise UserError(f"--rows={options.rows}, but {given} has the number of steps of pretraining; leave it out")
    values, notes = infer_settings(values, {key for key, _ in overrides}, vocabulary_size=vocabulary_size(values), download=False)
    for note in notes:
        say(note)
    pretraining = PretrainingExperiment.from_dict(values)
    phases = range(len(pretraining.phases))
    if options.phase is not None and options.phase not in phases:
        raise UserError(f"--phase={options.phase}: {given} has the phases 0 to {len(phases) - 1}")
    chosen = phases if options.phase is None else [options.phase]
    return [Case(given, pretraining, kind, phase, options.model, options.rows) for phase in chosen]


def vocabulary_size(values: JsonObject) -> int | None:
    """The vocabulary size of the experiment's corpus; None where the corpus is not on this machine. Of a corpus in a bucket the
    manifest alone is fetched."""
    corpus = dataclass_from_dict(CorpusConfig, values.get("corpus", {}), "config.corpus")
    directory = checked(str(corpus.directory), KEY)
    if is_remote(directory):
        return int(read_manifest(fetched(f"{directory}/{MANIFEST}", KEY).parent)["vocabulary"]["size"])
    return open_corpus(directory).vocabulary.size if pathlib.Path(directory).is_dir() else None


def require_saveable(given: str, kind: str, options: argparse.Namespace) -> None:
    """Raises UserError where --save is given for a step that no command can load."""
    if options.save and kind != "train":
        raise UserError(
            f"--save={options.save} saves training steps for `pretrain --compiled`, and no command loads the {kind} step of "
            f"{given}; leave it out"
        )


def say(line: str) -> None:
    """Prints a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)
