"""Lowers the steps of an experiment for a mesh of devices. The devices need not be attached. `aot` compiles the lowered steps.

A `Case` is one step of an experiment file, and knows how often the step is executed."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import PyTree

from bert_jax.configs.experiment_files import UNSET, dataclass_from_dict, read_experiment
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import CorpusConfig, PretrainingExperiment
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import MANIFEST, open_corpus, read_manifest
from bert_jax.data.corpus.verification import KEY
from bert_jax.data.rows import RowShape, assemble_features
from bert_jax.errors import UserError
from bert_jax.files import Json, JsonObject, read_object
from bert_jax.finetuning import program as finetuning
from bert_jax.finetuning.start import check_widths
from bert_jax.interface.words import counted
from bert_jax.interop import PARTS
from bert_jax.interop.directory import CONFIG
from bert_jax.interop.huggingface_config import config_from_json
from bert_jax.interop.locate import find_model_directory
from bert_jax.interop.names import REQUIRED_PARTS
from bert_jax.model.config import ModelConfig, published
from bert_jax.model.heads.bert_with_head import initial_label_parameters
from bert_jax.model.heads.head import TaskHead
from bert_jax.objectives.flops import forward_flops
from bert_jax.objectives.labels import LabelLoss
from bert_jax.objectives.model import unboxed
from bert_jax.objectives.objective import Teacher, abstract_rows
from bert_jax.pretraining.inferred_settings import infer_settings
from bert_jax.pretraining.program import (
    phase_row_flops,
    phase_step,
    pretraining_program,
    step_scalars,
    taught_objective,
    teacher_config,
)
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH, check_batch_size, parameter_shardings, row_multiple, with_shardings
from bert_jax.storage.fetching import fetched
from bert_jax.storage.paths import checked, is_remote
from bert_jax.tasks.task import task_head_class
from bert_jax.tpu.costs.step_report import Step
from bert_jax.training.steps import TrainState

# --------------------------------------------------------------------------------------------------------------------- the steps
Experiment = TypeVar("Experiment", bound=PretrainingExperiment | FinetuningExperiment)


@dataclasses.dataclass(frozen=True)
class StepProgram:
    """A lowered step."""

    lowered: jax.stages.Lowered
    mesh: Mesh
    state: TrainState | Mapping[str, PyTree[jax.ShapeDtypeStruct]]
    """A `TrainState`, or the parameters of an evaluation step, as abstract arrays with their shardings."""
    batch: Mapping[str, jax.ShapeDtypeStruct]
    """The batch, as abstract arrays with their shardings."""
    rows: int
    """The number of rows of the batch, over all devices."""
    length: int
    """The number of tokens in a row."""
    flops: float
    """The model FLOPs of the step over all devices, from `objectives/flops.py`. They include the FLOPs of a teacher."""
    teacher: Mapping[str, PyTree[jax.ShapeDtypeStruct]] | None = None
    """The parameters of the teacher of a distillation, as abstract arrays with their shardings."""
    scalars: Mapping[str, np.generic] = dataclasses.field(default_factory=dict)
    """The scalars of a pretraining step."""

    def arguments(self) -> dict[str, PyTree[jax.ShapeDtypeStruct]]:
        """Returns the arguments of the step by name: "parameters", "optimizer" (for a training step), "batch", and "teacher" if
        there is one."""
        teacher = {} if self.teacher is None else {"teacher": self.teacher}
        if isinstance(self.state, TrainState):
            return {"parameters": self.state.params, "optimizer": self.state.opt_state, "batch": self.batch} | teacher
        return {"parameters": self.state, "batch": self.batch}


def pretraining_step(experiment: PretrainingExperiment, phase: int, devices: Sequence[jax.Device]) -> StepProgram:
    """Returns the training step of a phase, the same function that `pretrain` jits, lowered for the experiment's mesh of
    `devices`."""
    mesh = make_mesh(experiment.mesh, devices)
    p = experiment.phases[phase]
    check_batch_size(f"config.phases.{phase}.batch_size", p.batch_size, p.accumulation, mesh)
    experiment, teacher = _with_described_teacher(experiment)
    program = pretraining_program(experiment, mesh, teacher)
    batch, scalars = _sharded_by_row(mesh, _rows(p.batch_size, experiment.example_config(phase))), step_scalars(experiment)
    lowered = _lower(mesh, phase_step(experiment, program, phase), *program.arguments(program.state, batch, scalars))
    flops = p.batch_size * phase_row_flops(experiment, phase, teacher.config if teacher else None)
    teacher_params = program.teacher.params if program.teacher else None
    return StepProgram(lowered, mesh, program.state, batch, p.batch_size, p.length, flops, teacher_params, scalars)


def _with_described_teacher(experiment: PretrainingExperiment) -> tuple[PretrainingExperiment, Teacher | None]:
    """Returns (the experiment, the teacher). The width of the teacher is filled in, and the parameters of the teacher are
    abstract arrays. Only the teacher's config.json is read. If there is no teacher, returns (the experiment, None)."""
    if not experiment.teacher:
        return experiment, None
    from bert_jax.training.teachers import make_teacher

    objective = taught_objective(experiment, teacher_config(_config_of(experiment.teacher), experiment))
    parts = unboxed(objective.model_parameters())
    shapes = {part: tree for part, tree in parts.items() if part in (*REQUIRED_PARTS, *PARTS)}
    named, key = f"config.teacher={experiment.teacher}", f"config.objective={experiment.objective}"
    teacher = make_teacher(objective, experiment.distillation, shapes, named, key)
    distillation = dataclasses.replace(experiment.distillation, teacher_width=objective.model.hidden_size)
    return dataclasses.replace(experiment, distillation=distillation), teacher


def _config_of(name: str) -> ModelConfig:
    """Returns the configuration of the model `name` (a directory, a workdir or a hub name)."""
    directory = find_model_directory(name)
    return config_from_json(read_object(directory / CONFIG, "copy the model again"), str(directory))


def evaluation_step(experiment: PretrainingExperiment, phase: int, devices: Sequence[jax.Device]) -> StepProgram:
    """Returns the evaluation step, which scores held-out rows of a phase's length. It has no backward pass, so it needs a third
    of the FLOPs of a training step."""
    mesh = make_mesh(experiment.mesh, devices)
    p, rows = experiment.phases[phase], experiment.evaluation.batch_size
    check_batch_size("config.evaluation.batch_size", rows, 1, mesh)
    program = pretraining_program(experiment, mesh)
    params = with_shardings(unboxed(program.parameters), parameter_shardings(program.parameters, mesh))
    examples = experiment.eval_config(phase)
    batch = _sharded_by_row(mesh, _rows(rows, examples))
    lowered = _lower(mesh, program.evaluation_step, params, batch)
    flops = forward_flops(experiment.trained_objective.flops(p.length, examples.max_predictions))
    return StepProgram(lowered, mesh, params, batch, rows, p.length, rows * flops)


def _rows(rows: int, examples: ExampleConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the abstract arrays of a batch with `rows` rows."""
    return abstract_rows(rows, examples.length, examples.max_predictions, examples.packed_examples, examples.targets)


def _sharded_by_row(mesh: Mesh, batch: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.ShapeDtypeStruct]:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, BATCH)), batch)


def _lower(mesh: Mesh, step: jax.stages.Wrapped, *arguments: PyTree[jax.ShapeDtypeStruct]) -> jax.stages.Lowered:
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        return step.lower(*arguments)


def finetuning_step(
    experiment: FinetuningExperiment, model: ModelConfig, devices: Sequence[jax.Device], rejected: Collection[str] = ()
) -> StepProgram:
    """Returns the training step of a task for the model configuration `model`. For a sweep, this is the step of the
    `costliest_run` on the devices of one run.

    The data is not read, so the number of rows is an upper bound. Each example of the batch counts as one row of the task's
    length. A row of multiple choice with four candidates is four times as long. With packing, a run needs fewer rows. For the
    teacher of a distillation, see `_task_teacher_config`; it does not use the `rejected` kernels."""
    run = costliest_run(experiment)
    mesh = make_mesh(run.mesh, devices[: run.sweep.devices_per_run] if experiment.side_by_side else devices)
    head, t = run.head_config(task_head_class(run.task).typical()), run.training
    config = run.model_config(model, mesh.devices.flat[0].platform)
    loss, teacher = LabelLoss(label_smoothing=t.label_smoothing), _described_task_teacher(run, model, head, mesh, rejected)
    finetuning.check_objective(run, config, head)
    program = finetuning.finetuning_program(run, config, head, loss, 1, mesh, teacher)
    candidates = head.typical_candidates
    shape = RowShape(head.layout, candidates * run.task.length, 2, candidates)
    multiple = row_multiple(mesh) * t.accumulation
    rows = -(-t.batch_size // multiple) * multiple
    batch: dict[str, Any] = dict(assemble_features([], [], rows, shape, 0))
    state, arrays = program.state, _sharded_by_row(mesh, batch)
    flops = finetuning.row_flops(program, shape)
    arguments = program.arguments(state, arrays, finetuning.step_scalars(run, 0))
    lowered = _lower(mesh, program.training_step(t.accumulation), *arguments)
    return StepProgram(lowered, mesh, state, arrays, rows, shape.length, rows * flops, teacher.params if teacher else None)


def _described_task_teacher(
    run: FinetuningExperiment, model: ModelConfig, head: TaskHead, mesh: Mesh, rejected: Collection[str]
) -> Teacher | None:
    """Returns the teacher of a run that fine-tunes `model`, with abstract arrays. Only its config.json is read. Returns None if
    there is no teacher."""
    if not run.distillation.teacher:
        return None
    from bert_jax.training.teachers import on_mesh

    config = _task_teacher_config(run, model).without_kernels(rejected)
    shapes = unboxed(jax.eval_shape(lambda: initial_label_parameters(config, head, jax.random.key(0))))
    return on_mesh(finetuning.task_teacher(run, config, head, shapes), mesh)


def _task_teacher_config(experiment: FinetuningExperiment, model: ModelConfig) -> ModelConfig:
    """Returns the configuration of the teacher of a task. If it is not in a local directory, or if it is not as wide as `model`
    and the loss compares hidden states, it is assumed to be like `model`."""
    distillation = experiment.distillation
    if not pathlib.Path(distillation.teacher).is_dir():
        return model
    config = _config_of(distillation.teacher)
    return model if distillation.hidden_weight and config.hidden_size != model.hidden_size else config


def costliest_run(experiment: FinetuningExperiment) -> FinetuningExperiment:
    """Returns the run of the sweep with the largest batch. If several runs have this batch size, returns the one with the most
    epochs."""
    return max(experiment.runs(), key=lambda run: (run.training.batch_size, run.training.epochs))


def model_config_to_finetune(name: str) -> ModelConfig:
    """Returns the model configuration of a published size, or of the model in a directory. Raises UserError if the directory
    has no config.json, or if the size is unknown."""
    directory = pathlib.Path(name)
    if (directory / "config.json").is_file():
        return config_from_json(read_object(directory / "config.json", "copy the model again"), name)
    if directory.exists():
        raise UserError(
            f"--model={name} has no config.json; give a directory of a Hugging Face model, or a published size such as large"
        )
    return ModelConfig(**published(name))


def with_overrides(experiment: Experiment, changes: Mapping[str, Json]) -> Experiment:
    """Returns the experiment with dotted keys such as `phases.0.accumulation` set to other values. Raises UserError if the
    result is not valid."""
    for key, value in changes.items():
        experiment = _replaced(experiment, key.split("."), value)
    experiment.validate()
    return experiment


def _replaced(node: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    name, rest = path[0], path[1:]
    if isinstance(node, tuple):
        return (*node[: int(name)], _replaced(node[int(name)], rest, value), *node[int(name) + 1 :])
    return dataclasses.replace(node, **{name: _replaced(getattr(node, name), rest, value)})


# ----------------------------------------------------------------------------------------------------------- the cases of a file
@dataclasses.dataclass(frozen=True)
class Case:
    """One step to compile."""

    config: str
    experiment: PretrainingExperiment | FinetuningExperiment
    kind: str
    phase: int
    model: str
    """The model from which fine-tuning starts: a published size or a directory."""
    examples: int | None
    """The number of examples in one pass over the data. Only needed if the number of steps depends on it."""
    rejected: Collection[str] = ()
    """The kernels that the teacher of a task does not use."""

    def without_kernels(self, rejected: Collection[str]) -> Case:
        """Returns the case without the `rejected` kernels. Only choices that are "auto" change."""
        model: Any = self.experiment.model.without_kernels(rejected)
        return dataclasses.replace(self, experiment=dataclasses.replace(self.experiment, model=model), rejected=rejected)

    def lower(self, devices: Sequence[jax.Device]) -> StepProgram:
        """Lowers the step for `devices`."""
        if isinstance(self.experiment, FinetuningExperiment):
            return finetuning_step(self.experiment, model_config_to_finetune(self.model), devices, self.rejected)
        make = evaluation_step if self.kind == "eval" else pretraining_step
        return make(self.experiment, self.phase, devices)

    def step(self, program: StepProgram) -> Step:
        """Returns the description of the step for the report."""
        name, (steps, covers) = f"phase {self.phase}, {self.kind} step", self._steps(program)
        if isinstance(self.experiment, FinetuningExperiment):
            runs = len(self.experiment.runs())
            name = f"finetune step of {self.model}" + (f" (1 of {counted(runs, 'run')})" if runs > 1 else "")
        mesh = dict(program.mesh.shape)
        return Step(name, self.config, self.kind, mesh, program.rows, program.length, program.flops, steps, covers)

    def _steps(self, program: StepProgram) -> tuple[int | None, str]:
        """Returns (the number of executions of the step, the work that these executions cover). The number is None if it
        depends on data that is not given."""
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
        """The number of microbatches in a step."""
        if isinstance(self.experiment, FinetuningExperiment):
            return self.experiment.training.accumulation
        return self.experiment.phases[self.phase].accumulation if self.kind == "train" else 1

    def changed(self, changes: JsonObject) -> Case:
        """Returns the case with dotted keys of the experiment set to other values. Raises UserError if the experiment is then
        invalid."""
        return dataclasses.replace(self, experiment=with_overrides(self.experiment, changes))

    def batch_key(self, name: str) -> str:
        """Returns the key of the experiment that sets `name` ("batch_size" or "accumulation") for this step."""
        groups = {"train": f"phases.{self.phase}", "eval": "evaluation", "finetune": "training"}
        return f"{groups[self.kind]}.{name}"

    def batch_override(self, rows: int) -> JsonObject:
        """Returns {dotted key that sets the batch: the value for `rows` rows}. In a sweep, all batch sizes above `rows` are
        reduced to `rows`."""
        sizes = self.experiment.sweep.batch_sizes if isinstance(self.experiment, FinetuningExperiment) else ()
        if sizes:
            return {"sweep.batch_sizes": tuple(sorted({min(size, rows) for size in sizes}))}
        return {self.batch_key("batch_size"): rows}


def experiment_class(values: JsonObject) -> type[PretrainingExperiment] | type[FinetuningExperiment]:
    """Returns the experiment class for the values of an experiment file. With a task, this is fine-tuning, otherwise
    pretraining."""
    return FinetuningExperiment if "task" in values else PretrainingExperiment


def cases(given: str, overrides: Sequence[tuple[str, str]], options: argparse.Namespace, flag: str = "config") -> list[Case]:
    """Returns the steps to compile for the experiment file `given`, which `--config` or another `flag` names. Raises UserError
    if a flag does not apply to this experiment."""
    values = read_experiment(given, overrides, experiment_class, flag)
    if experiment_class(values) is FinetuningExperiment:
        if options.step not in (None, "finetune"):
            raise UserError(
                f"--step={options.step} does not apply to {given}, a fine-tuning experiment; leave it out (the only step of "
                "fine-tuning is finetune)"
            )
        if options.phase is not None:
            raise UserError(
                f"--phase={options.phase} does not apply to {given}, a fine-tuning experiment without phases; leave it out"
            )
        require_saveable(given, "finetune", options)
        named = values.get("init_from")
        experiment = FinetuningExperiment.from_dict(values | {"init_from": named or "any"})
        here = pathlib.Path(experiment.init_from).is_dir()
        model = options.model or (str(find_model_directory(experiment.init_from)) if here else "base")
        if named and not (here or options.model):
            say(f"config.init_from={named} is not on this machine, so base is estimated; aot --model names another model")
        if teacher := experiment.distillation.teacher:
            student, local = model_config_to_finetune(model), pathlib.Path(teacher).is_dir()
            if local and (here or options.model):
                check_widths(experiment, _config_of(teacher), student)
            if _task_teacher_config(experiment, student) is student:
                why = f"is not as wide as {model}" if local else "is not on this machine"
                say(f"config.distillation.teacher={teacher} {why}, so a teacher like the model is estimated")
        return [Case(given, experiment, "finetune", 0, model, options.rows)]
    if options.step == "finetune":
        raise UserError(
            f"--step=finetune does not apply to {given}, a pretraining experiment; give one of experiments/finetune/"
        )
    kind = options.step or "train"
    require_saveable(given, kind, options)
    if options.rows is not None and kind == "train":
        raise UserError(f"--rows={options.rows} does not apply to {given}, whose number of steps is fixed; leave it out")
    keys = {key for key, text in overrides if text != UNSET}
    values, notes = infer_settings(values, keys, vocabulary_size=vocabulary_size(values), download=False)
    for note in notes:
        say(note)
    pretraining = PretrainingExperiment.from_dict(values)
    phases = range(len(pretraining.phases))
    if options.phase is not None and options.phase not in phases:
        raise UserError(f"--phase={options.phase} does not exist in {given}; give a phase from 0 to {len(phases) - 1}")
    chosen = phases if options.phase is None else [options.phase]
    return [Case(given, pretraining, kind, phase, options.model, options.rows) for phase in chosen]


def vocabulary_size(values: JsonObject) -> int | None:
    """Returns the vocabulary size of the experiment's corpus, or None if the corpus is not on this machine. If the corpus is in
    a bucket, only its manifest is downloaded."""
    corpus = dataclass_from_dict(CorpusConfig, values.get("corpus", {}), "config.corpus")
    directory = checked(str(corpus.directory), KEY)
    if is_remote(directory):
        return int(read_manifest(fetched(f"{directory}/{MANIFEST}", KEY).parent)["vocabulary"]["size"])
    return open_corpus(directory).vocabulary.size if pathlib.Path(directory).is_dir() else None


def require_saveable(given: str, kind: str, options: argparse.Namespace) -> None:
    """Raises UserError if --save is given for a step other than a training step, because no command can load such a step."""
    if options.save and kind != "train":
        raise UserError(
            f"--save={options.save} saves training steps for `pretrain --compiled`, and no command loads the {kind} step of "
            f"{given}; leave it out"
        )


def say(line: str) -> None:
    """Prints a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)
