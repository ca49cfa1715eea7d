"""The steps of the verbs as they are, lowered for a mesh of any devices, present or not: what `aot` compiles."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import PyTree

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.corpus.files import Json, read_object
from bert_jax.errors import UserError
from bert_jax.examples.labelled import RowShape, assemble_units
from bert_jax.interop.huggingface_config import config_from_json
from bert_jax.metrics.report import model_row_flops
from bert_jax.model.config import ModelConfig, published
from bert_jax.programs.finetuning import shared, training_program
from bert_jax.programs.pretraining import jitted_eval_step, phase_row_flops, pretraining_program, trained_parameters
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH, check_batch_size, parameter_shardings, row_multiple, with_shardings
from bert_jax.tasks.registry import head_class
from bert_jax.training.label_losses import LabelLoss
from bert_jax.training.steps import TrainState

Described = TypeVar("Described", bound=PretrainingExperiment | FinetuningExperiment)


@dataclasses.dataclass(frozen=True)
class StepProgram:
    """One step, lowered."""

    lowered: jax.stages.Lowered
    mesh: Mesh
    state: TrainState | Mapping[str, PyTree[jax.ShapeDtypeStruct]]
    """Abstract arrays with their shardings: a `TrainState`, or the parameters of an evaluation step."""
    batch: Mapping[str, jax.ShapeDtypeStruct]
    """Likewise."""
    rows: int
    """Of the batch, over all devices."""
    length: int
    flops: float
    """Model FLOPs of the step over all devices, by `metrics.report.row_flops`."""

    def arguments(self) -> dict[str, PyTree[jax.ShapeDtypeStruct]]:
        """What goes in, by what it is."""
        if isinstance(self.state, TrainState):
            return {"parameters": self.state.params, "optimizer": self.state.opt_state, "batch": self.batch}
        return {"parameters": self.state, "batch": self.batch}


def batch_shapes(rows: int, length: int, predictions: int, examples: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays of a pretraining batch, as `examples/assemble.py` makes them."""
    widths = dict.fromkeys(("input_ids", "token_type_ids", "position_ids", "sequence_ids"), length)
    widths |= dict.fromkeys(("masked_positions", "masked_targets"), predictions)
    widths |= dict.fromkeys(("cls_positions", "nsp_labels"), examples)
    return {name: jax.ShapeDtypeStruct((rows, width), jnp.int32) for name, width in widths.items()}


def pretraining_step(experiment: PretrainingExperiment, phase: int, devices: Sequence[jax.Device]) -> StepProgram:
    """The training step of a phase: the function that `pretrain` jits, on the experiment's mesh of `devices`."""
    mesh = make_mesh(experiment.mesh, devices)
    p = experiment.phases[phase]
    check_batch_size(f"config.phases.{phase}.batch_size", p.batch_size, p.accumulation, mesh)
    program = pretraining_program(experiment, mesh)
    batch = _on(mesh, batch_shapes(p.batch_size, p.length, p.max_predictions, p.packed_examples))
    lowered = _lower(mesh, program.training_step(phase), program.state, batch)
    flops = p.batch_size * phase_row_flops(experiment, phase)
    return StepProgram(lowered, mesh, program.state, batch, p.batch_size, p.length, flops)


def evaluation_step(experiment: PretrainingExperiment, phase: int, devices: Sequence[jax.Device]) -> StepProgram:
    """The step that scores held-out rows of a phase's length: forward alone, a third of a training step's FLOPs."""
    mesh = make_mesh(experiment.mesh, devices)
    p, rows = experiment.phases[phase], experiment.evaluation.batch_size
    check_batch_size("config.evaluation.batch_size", rows, 1, mesh)
    boxed = trained_parameters(experiment)
    params = with_shardings(nn.unbox(boxed), parameter_shardings(boxed, mesh))
    batch = _on(mesh, batch_shapes(rows, p.length, p.max_predictions, p.packed_examples))
    lowered = _lower(mesh, jitted_eval_step(experiment, mesh), params, batch)
    return StepProgram(lowered, mesh, params, batch, rows, p.length, rows * phase_row_flops(experiment, phase) / 3)


def _on(mesh: Mesh, batch: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.ShapeDtypeStruct]:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, BATCH)), batch)


def _lower(mesh: Mesh, step: jax.stages.Wrapped, *arguments: PyTree[jax.ShapeDtypeStruct]) -> jax.stages.Lowered:
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        return step.lower(*arguments)


def finetuning_step(experiment: FinetuningExperiment, model: ModelConfig, devices: Sequence[jax.Device]) -> StepProgram:
    """The step of a task, on a model of the shape `model`; of a sweep, that of its `costliest_run`, on the devices of a run.

    Its rows depend on the data, which is not read: one for every unit of the batch, of the task's length (of a choice with four
    candidates, of four times that), so more than packing needs. A teacher's answers are in the batch, the teacher is not.
    """
    run = costliest_run(experiment)
    mesh = make_mesh(run.mesh, devices[: run.sweep.devices_per_run] if experiment.side_by_side else devices)
    head, t, d = run.head_config(head_class(run.task).typical()), run.training, run.distillation
    config = run.model_config(model, mesh.devices.flat[0].platform)
    taught = {name: getattr(d, name) for name in ("temperature", "soft_weight", "hidden_weight")} if d.teacher else {}
    loss = LabelLoss(label_smoothing=t.label_smoothing, **taught)
    program = training_program(config, head, loss, run.optimizer, shared(t), int(t.gradual_unfreezing), mesh)
    candidates = head.typical_candidates
    shape = RowShape(head.layout, candidates * run.task.length, 2, candidates)
    multiple = row_multiple(mesh) * t.accumulation
    rows = -(-t.batch_size // multiple) * multiple
    batch: dict[str, Any] = dict(assemble_units([], [], rows, shape, 0))
    if d.teacher:
        batch["teacher_logits"] = jax.eval_shape(program.logits, program.abstract.params, batch)
    if d.hidden_weight:
        states = (rows, config.num_layers + 1, shape.length, config.hidden_size)
        batch["teacher_hidden_states"] = jax.ShapeDtypeStruct(states, config.dtype)
    scalars = {"steps": np.int32(0), "warmup_steps": np.int32(0), "peak": np.float32(0), "seed": np.uint32(0)}
    state, arrays = with_shardings(program.abstract, program.shardings), _on(mesh, batch)
    flops = model_row_flops(config, shape.length)
    flops /= 3 if t.freeze_encoder else 1  # forward alone
    lowered = _lower(mesh, program.train, state, arrays, scalars)
    return StepProgram(lowered, mesh, state, arrays, rows, shape.length, rows * flops)


def costliest_run(experiment: FinetuningExperiment) -> FinetuningExperiment:
    """The run of its sweep with most rows a step, and of those the one with most epochs."""
    return max(experiment.runs(), key=lambda run: (run.training.batch_size, run.training.epochs))


def shape_to_finetune(name: str) -> ModelConfig:
    """The shape of a published size, or of the model in a directory."""
    directory = pathlib.Path(name)
    if (directory / "config.json").is_file():
        return config_from_json(read_object(directory / "config.json", "copy the model again"), name)
    if directory.exists():
        raise UserError(f"--model={name} holds no config.json; give a Hugging Face directory, or a published size such as large")
    return ModelConfig(**published(name))  # type: ignore[arg-type]


def with_keys(experiment: Described, changes: Mapping[str, Json]) -> Described:
    """The experiment with other values for dotted keys such as `phases.0.accumulation`. Raises UserError where it is none with
    them."""
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
