"""The steps of `pretrain` and `finetune`, lowered for a mesh of described devices, which need not be attached; `aot` compiles
them."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import PyTree

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.rows import RowShape, assemble_features
from bert_jax.errors import UserError
from bert_jax.files import Json, read_object
from bert_jax.finetuning.program import ProgramSettings, shared, training_program
from bert_jax.interop.huggingface_config import config_from_json
from bert_jax.interop.locate import CONFIG, find_model_directory
from bert_jax.model.config import ModelConfig, published
from bert_jax.model.pretraining import abstract_parameters
from bert_jax.objectives.distillation import TEACHER_PARTS, Teacher
from bert_jax.objectives.flops import forward_flops, task_row_flops
from bert_jax.objectives.labels import LabelLoss
from bert_jax.objectives.objective import abstract_rows
from bert_jax.pretraining.program import (
    jitted_eval_step,
    phase_row_flops,
    pretraining_program,
    taught_config,
    trained_parameters,
)
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH, check_batch_size, parameter_shardings, row_multiple, with_shardings
from bert_jax.tasks.registry import head_class
from bert_jax.training.steps import TrainState

Experiment = TypeVar("Experiment", bound=PretrainingExperiment | FinetuningExperiment)


@dataclasses.dataclass(frozen=True)
class StepProgram:
    """One step, lowered."""

    lowered: jax.stages.Lowered
    mesh: Mesh
    state: TrainState | Mapping[str, PyTree[jax.ShapeDtypeStruct]]
    """Abstract arrays with their shardings: a `TrainState`, or the parameters of an evaluation step."""
    batch: Mapping[str, jax.ShapeDtypeStruct]
    """Abstract arrays with their shardings."""
    rows: int
    """Rows of the batch, over all devices."""
    length: int
    """Tokens of a row."""
    flops: float
    """Model FLOPs of the step over all devices, by `objectives/flops.py`; with those of a teacher that is part of the step."""
    teacher: Mapping[str, PyTree[jax.ShapeDtypeStruct]] | None = None
    """The parameters of the teacher of a distillation in pretraining, abstract with their shardings."""

    def arguments(self) -> dict[str, PyTree[jax.ShapeDtypeStruct]]:
        """The arguments of the step by name: "parameters", "optimizer" (of a training step), "batch", and "teacher" where there
        is one."""
        taught = {} if self.teacher is None else {"teacher": self.teacher}
        if isinstance(self.state, TrainState):
            return {"parameters": self.state.params, "optimizer": self.state.opt_state, "batch": self.batch} | taught
        return {"parameters": self.state, "batch": self.batch}


def pretraining_step(experiment: PretrainingExperiment, phase: int, devices: Sequence[jax.Device]) -> StepProgram:
    """The training step of a phase, the same function that `pretrain` jits, lowered for the experiment's mesh of `devices`."""
    mesh = make_mesh(experiment.mesh, devices)
    p = experiment.phases[phase]
    check_batch_size(f"config.phases.{phase}.batch_size", p.batch_size, p.accumulation, mesh)
    experiment, teacher = _with_described_teacher(experiment)
    program = pretraining_program(experiment, mesh, teacher)
    batch = _sharded_by_row(mesh, abstract_rows(p.batch_size, p.length, p.max_predictions, p.packed_examples))
    lowered = _lower(mesh, program.training_step(phase), *program.arguments(program.state, batch))
    flops = p.batch_size * phase_row_flops(experiment, phase, teacher.config if teacher else None)
    taught = program.teacher.params if program.teacher else None
    return StepProgram(lowered, mesh, program.state, batch, p.batch_size, p.length, flops, taught)


def _with_described_teacher(experiment: PretrainingExperiment) -> tuple[PretrainingExperiment, Teacher | None]:
    """(the experiment with the width of its teacher, the teacher with shapes for parameters), from the teacher's config.json
    alone; (the experiment, None) without one."""
    if not experiment.teacher:
        return experiment, None
    directory = find_model_directory(experiment.teacher)
    config = config_from_json(read_object(directory / CONFIG, "copy the model again"), str(directory))
    config = taught_config(config, experiment)
    boxed = abstract_parameters(config)
    shapes = nn.unbox({part: boxed[part] for part in TEACHER_PARTS})
    distillation = dataclasses.replace(experiment.distillation, teacher_width=config.hidden_size)
    return dataclasses.replace(experiment, distillation=distillation), Teacher(config, shapes)


def evaluation_step(experiment: PretrainingExperiment, phase: int, devices: Sequence[jax.Device]) -> StepProgram:
    """The step that scores held-out rows of a phase's length. It has a third of a training step's FLOPs: no backward pass."""
    mesh = make_mesh(experiment.mesh, devices)
    p, rows = experiment.phases[phase], experiment.evaluation.batch_size
    check_batch_size("config.evaluation.batch_size", rows, 1, mesh)
    boxed = trained_parameters(experiment)
    params = with_shardings(nn.unbox(boxed), parameter_shardings(boxed, mesh))
    batch = _sharded_by_row(mesh, abstract_rows(rows, p.length, p.max_predictions, p.packed_examples))
    lowered = _lower(mesh, jitted_eval_step(experiment, mesh), params, batch)
    return StepProgram(lowered, mesh, params, batch, rows, p.length, rows * forward_flops(phase_row_flops(experiment, phase)))


def _sharded_by_row(mesh: Mesh, batch: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.ShapeDtypeStruct]:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, BATCH)), batch)


def _lower(mesh: Mesh, step: jax.stages.Wrapped, *arguments: PyTree[jax.ShapeDtypeStruct]) -> jax.stages.Lowered:
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        return step.lower(*arguments)


def finetuning_step(experiment: FinetuningExperiment, model: ModelConfig, devices: Sequence[jax.Device]) -> StepProgram:
    """The training step of a task for the model configuration `model`; for a sweep, the step of its `costliest_run`, on the
    devices of one run.

    The data is not read, so the number of rows is an upper bound: one row of the task's length for every example of the batch
    (four times the length for multiple choice with four candidates), while packing needs fewer. With a teacher, its predictions
    are part of the batch; the teacher itself is not part of the step.
    """
    run = costliest_run(experiment)
    mesh = make_mesh(run.mesh, devices[: run.sweep.devices_per_run] if experiment.side_by_side else devices)
    head, t, d = run.head_config(head_class(run.task).typical()), run.training, run.distillation
    config = run.model_config(model, mesh.devices.flat[0].platform)
    taught = {name: getattr(d, name) for name in ("temperature", "soft_weight", "hidden_weight")} if d.teacher else {}
    loss = LabelLoss(label_smoothing=t.label_smoothing, **taught)
    unfreeze_every = int(t.gradual_unfreezing)
    settings = ProgramSettings(
        model=config, head=head, loss=loss, optimizer=run.optimizer, training=shared(t), unfreeze_every=unfreeze_every
    )
    program = training_program(settings, mesh)
    candidates = head.typical_candidates
    shape = RowShape(head.layout, candidates * run.task.length, 2, candidates)
    multiple = row_multiple(mesh) * t.accumulation
    rows = -(-t.batch_size // multiple) * multiple
    batch: dict[str, Any] = dict(assemble_features([], [], rows, shape, 0))
    if d.teacher:
        batch["teacher_logits"] = jax.eval_shape(program.logits, program.abstract.params, batch)
    if d.hidden_weight:
        states = (rows, config.num_layers + 1, shape.length, config.hidden_size)
        batch["teacher_hidden_states"] = jax.ShapeDtypeStruct(states, config.dtype)
    scalars = {"steps": np.int32(0), "warmup_steps": np.int32(0), "peak": np.float32(0), "seed": np.uint32(0)}
    state, arrays = with_shardings(program.abstract, program.shardings), _sharded_by_row(mesh, batch)
    flops = task_row_flops(config, head, shape, frozen=t.freeze_encoder)
    lowered = _lower(mesh, program.train, state, arrays, scalars)
    return StepProgram(lowered, mesh, state, arrays, rows, shape.length, rows * flops)


def costliest_run(experiment: FinetuningExperiment) -> FinetuningExperiment:
    """The run of the experiment's sweep with the largest batch, and among those the run with the most epochs."""
    return max(experiment.runs(), key=lambda run: (run.training.batch_size, run.training.epochs))


def model_config_to_finetune(name: str) -> ModelConfig:
    """The model configuration of a published size, or of the model in a directory. Raises UserError for a directory without
    config.json and for an unknown size."""
    directory = pathlib.Path(name)
    if (directory / "config.json").is_file():
        return config_from_json(read_object(directory / "config.json", "copy the model again"), name)
    if directory.exists():
        raise UserError(f"--model={name} holds no config.json; give a Hugging Face directory, or a published size such as large")
    return ModelConfig(**published(name))  # type: ignore[arg-type]


def with_overrides(experiment: Experiment, changes: Mapping[str, Json]) -> Experiment:
    """The experiment with other values for dotted keys such as `phases.0.accumulation`. Raises UserError where the changed
    experiment is not valid."""
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
