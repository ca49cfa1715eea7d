"""Makes the program of a fine-tuning run from its experiment and task."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.objectives import OBJECTIVE
from bert_jax.data.rows import Feature, RowShape
from bert_jax.errors import UserError
from bert_jax.interface.named import is_in_file
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.head import TaskHead
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.labels import LabelLoss, Labels
from bert_jax.objectives.model import Model, unboxed
from bert_jax.objectives.objective import Teacher
from bert_jax.sharding.kernels import resolve
from bert_jax.tasks.task import Task
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.layerwise_rates import learning_rate_multipliers
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.schedules import rate_by, require_finite
from bert_jax.training.steps import Program, Scalars

if TYPE_CHECKING:  # only runs with a teacher need this module
    from bert_jax.objectives.distillation import TaskDistillation

Array = jax.Array


def finetuning_program(
    experiment: FinetuningExperiment,
    config: ModelConfig,
    head: TaskHead,
    loss: LabelLoss,
    steps_per_epoch: int,
    mesh: Mesh,
    teacher: Teacher | None = None,
) -> Program:
    """Returns the program that fine-tunes a model of this `config` with a task `head`, for epochs of `steps_per_epoch` steps.
    The arrays of the `teacher` are on the `mesh` (`training.teachers.on_mesh`).

    The program is cached. Runs share a program if they differ only in settings that do not affect it, as most runs of a sweep
    do."""
    training, labels = experiment.training, task_objective(experiment, config, head, loss)
    return _program(
        labels,
        experiment.optimizer,
        training.schedule,
        training.layer_decay,
        training.crf_multiplier if head.has_crf else 1.0,
        steps_per_epoch if training.gradual_unfreezing else 0,
        mesh,
        task_distillation(experiment, labels) if teacher else None,
        teacher,
    )


def task_objective(experiment: FinetuningExperiment, config: ModelConfig, head: TaskHead, loss: LabelLoss) -> Labels:
    """Returns the objective of `experiment` for a model of this `config` with a task `head`, without a teacher."""
    frozen = ("embeddings", "encoder") if experiment.training.freeze_encoder else ()
    kind = experiment.read_objective({"objective": experiment.objective})
    return kind(config, head, loss, frozen, **experiment.objective_options)


def check_objective(experiment: FinetuningExperiment, config: ModelConfig, head: TaskHead) -> None:
    """Raises UserError if an objective from a user's file breaks the contract of an objective (see `Labels.check`)."""
    if is_in_file(experiment.objective):
        loss = LabelLoss(label_smoothing=experiment.training.label_smoothing)
        labels = task_objective(experiment, config, head, loss)
        objective = task_distillation(experiment, labels) if experiment.distillation.teacher else labels
        objective.check(f"{OBJECTIVE}={experiment.objective}")


@functools.cache  # the cache stays small, since each parallel run has only one mesh
def _program(
    labels: Labels,
    optimizer: OptimizerConfig,
    schedule: str,
    layer_decay: float,
    crf_multiplier: float,
    unfreeze_every: int,
    mesh: Mesh,
    distillation: TaskDistillation | None,
    teacher: Teacher | None,
) -> Program:
    parameters = labels.abstract_parameters()
    model = Model(resolve(labels.config, mesh))
    labels = labels.for_model(model)
    return Program(
        objective=distillation.for_model(model) if distillation else labels,
        parameters=parameters,
        mesh=mesh,
        optimizer=make_optimizer(optimizer, parameters),
        learning_rate=learning_rate(schedule),
        clip_norm=optimizer.clip_norm,
        learning_rate_multipliers=learning_rate_multipliers(
            unboxed(parameters),
            decay=layer_decay,
            frozen=labels.frozen,
            unfreeze_every=unfreeze_every,
            crf_multiplier=crf_multiplier,
        ),
        teacher=teacher,
        logits=labels.logits,
    )


def learning_rate(schedule: str) -> Callable[[Array, Scalars], Array]:
    """Returns the function (step, scalars) -> learning rate of the `schedule` in `config.training.schedule`. Raises UserError if
    the schedule cannot be used."""
    scheduled = rate_by(schedule, "config.training.schedule", ("warmup_steps",))

    def rate(step: Array, scalars: Scalars) -> Array:
        return scheduled(step, scalars["steps"], scalars["peak"], {"warmup_steps": scalars["warmup_steps"]})

    if is_in_file(schedule):  # raises UserError for a wrong result, before anything is compiled
        kinds = {"steps": jnp.int32, "warmup_steps": jnp.int32, "peak": jnp.float32}
        scalars = {name: jax.ShapeDtypeStruct((), kind) for name, kind in kinds.items()}
        jax.eval_shape(rate, jax.ShapeDtypeStruct((), jnp.int32), scalars)
    return rate


def step_scalars(experiment: FinetuningExperiment, steps: int) -> dict[str, np.generic]:
    """Returns the scalars of a run of `steps` steps. Raises UserError if the learning rate of a user's schedule is not finite."""
    scalars: dict[str, np.generic] = {
        "steps": np.int32(steps),
        "warmup_steps": np.int32(round(experiment.training.warmup_fraction * steps)),
        "peak": np.float32(experiment.training.learning_rate),
        "seed": np.uint32(experiment.seed),
    }
    if steps and is_in_file(schedule := experiment.training.schedule):
        rate, given = learning_rate(schedule), {name: jnp.asarray(value) for name, value in scalars.items()}
        require_finite(lambda step: rate(step, given), steps, f"config.training.schedule={schedule}")
    return scalars


BALANCED = (0.0,)
"""The value of `class_weights` that balances the labels."""


def check_label_loss(experiment: FinetuningExperiment, task: Task) -> None:
    """Raises UserError if class weights or label smoothing are set for a head that does not support them, or if the number of
    class weights differs from the number of labels."""
    weights, labels = experiment.training.class_weights, task.head.labels
    if weights and not (task.head.outputs.takes_class_weights and labels):
        raise UserError(
            f"config.training.class_weights is for tasks that choose one of several labels, but {task.name} does not; "
            "leave it out"
        )
    if weights and weights != BALANCED and len(weights) != len(labels):
        raise UserError(
            f"config.training.class_weights has {counted(len(weights), 'number')}, but {task.name} has "
            f"{counted(len(labels), 'label')} "
            f"({', '.join(labels)}); give one for each, or a single 0 to balance them"
        )
    if experiment.training.label_smoothing and not task.head.outputs.takes_smoothing:
        raise UserError(f"config.training.label_smoothing is for classification, but {task.name} is a regression; set it to 0")


def label_loss(experiment: FinetuningExperiment, task: Task, features: Sequence[Feature]) -> LabelLoss:
    """Returns the experiment's loss settings for these training `features`. Raises UserError like `check_label_loss`."""
    check_label_loss(experiment, task)
    weights, labels = experiment.training.class_weights, task.head.labels
    if weights == BALANCED:
        targets = np.concatenate([np.ravel(one.target) for one in features if one.target is not None])
        counts = np.bincount(targets[targets >= 0].astype(np.int64), minlength=len(labels))
        weights = tuple(float(counts.sum() / (len(labels) * max(count, 1))) for count in counts)
    return LabelLoss(label_smoothing=experiment.training.label_smoothing, class_weights=weights)


def task_teacher(
    experiment: FinetuningExperiment, config: ModelConfig, head: TaskHead, params: Mapping[str, PyTree]
) -> Teacher:
    """Returns the teacher of a task with this `config`, `head` and these parameters, which may be shapes. Raises UserError if it
    lacks parameters that the objective of `experiment` reads."""
    from bert_jax.training.teachers import make_teacher  # only runs with a teacher need this module

    labels = task_objective(experiment, config, head, LabelLoss())
    settings, named = task_distillation(experiment, labels).distillation, experiment.distillation.teacher
    return make_teacher(labels, settings, params, f"config.distillation.teacher={named}", f"{OBJECTIVE}={experiment.objective}")


def task_distillation(experiment: FinetuningExperiment, labels: Labels) -> TaskDistillation:
    """Returns the objective `labels` of a student with the terms of `config.distillation`."""
    from bert_jax.objectives.distillation import TaskDistillation  # only runs with a teacher need this module

    d = experiment.distillation
    settings = PretrainingDistillation(temperature=d.temperature, soft_weight=d.soft_weight, hidden_weight=d.hidden_weight)
    return TaskDistillation(labels, settings)


def row_flops(program: Program, shape: RowShape) -> float:
    """Returns the model FLOPs of a training step per row of `shape`, including the teacher's forward pass."""
    objective: Any = program.objective if program.teacher is None else program.objective.with_teacher(program.teacher)
    return float(objective.task_flops(shape))
