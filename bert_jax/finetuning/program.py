"""Makes the program of a fine-tuning run from its experiment and task. Also computes the outputs of a teacher."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from bert_jax.configs.finetuning import FinetuningExperiment, TrainingConfig
from bert_jax.data.rows import Feature
from bert_jax.errors import UserError
from bert_jax.interface.named import is_in_file
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.bert_with_head import BertWithHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.objectives.cross_view import CrossView
from bert_jax.objectives.labels import LabelLoss, Labels, teacher_layers
from bert_jax.objectives.model import unboxed
from bert_jax.sharding.kernels import resolve
from bert_jax.sharding.rules import BATCH
from bert_jax.tasks.task import Task
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.layerwise_rates import learning_rate_multipliers
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.schedules import rate_by
from bert_jax.training.steps import Program, Scalars

Array = jax.Array


def finetuning_program(
    experiment: FinetuningExperiment, config: ModelConfig, head: TaskHead, loss: LabelLoss, steps_per_epoch: int, mesh: Mesh
) -> Program:
    """Returns the program that fine-tunes a model of this `config` with a task `head`, for epochs of `steps_per_epoch` steps.

    The program is cached. Runs share a program if they differ only in settings that do not affect it, as most runs of a sweep
    do."""
    training = experiment.training
    neutral: dict[str, Any] = {name: getattr(TrainingConfig(), name) for name in NOT_COMPILED}
    unfreeze_every = steps_per_epoch if training.gradual_unfreezing else 0
    return _program(
        config,
        head,
        loss,
        experiment.optimizer,
        dataclasses.replace(training, **neutral),
        unfreeze_every,
        mesh,
        CrossView if experiment.cross_view.corpus else Labels,
    )


NOT_COMPILED = ("epochs", "batch_size", "learning_rate", "warmup_fraction", "class_weights", "label_smoothing")
"""The fields of `TrainingConfig` that do not affect the program, or affect it only through `LabelLoss`."""


@functools.cache  # the cache stays small, since each parallel run has only one mesh
def _program(
    config: ModelConfig,
    head: TaskHead,
    loss: LabelLoss,
    optimizer: OptimizerConfig,
    training: TrainingConfig,
    unfreeze_every: int,
    mesh: Mesh,
    kind: type[Labels],
) -> Program:
    frozen = ("embeddings", "encoder") if training.freeze_encoder else ()
    objective = kind(resolve(config, mesh), head, loss, frozen)
    parameters = jax.eval_shape(lambda: kind(config, head).initial_parameters(jax.random.key(0)))
    return Program(
        objective=objective,
        parameters=parameters,
        mesh=mesh,
        optimizer=make_optimizer(optimizer, parameters),
        learning_rate=learning_rate(training.schedule),
        clip_norm=optimizer.clip_norm,
        learning_rate_multipliers=learning_rate_multipliers(
            unboxed(parameters),
            decay=training.layer_decay,
            frozen=frozen,
            unfreeze_every=unfreeze_every,
            crf_multiplier=training.crf_multiplier if head.has_crf else 1.0,
        ),
        logits=objective.logits,
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
    """Returns the scalars of a run of `steps` steps."""
    return {
        "steps": np.int32(steps),
        "warmup_steps": np.int32(round(experiment.training.warmup_fraction * steps)),
        "peak": np.float32(experiment.training.learning_rate),
        "seed": np.uint32(experiment.seed),
    }


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
    weights, labels, d = experiment.training.class_weights, task.head.labels, experiment.distillation
    if weights == BALANCED:
        targets = np.concatenate([np.ravel(one.target) for one in features if one.target is not None])
        counts = np.bincount(targets[targets >= 0].astype(np.int64), minlength=len(labels))
        weights = tuple(float(counts.sum() / (len(labels) * max(count, 1))) for count in counts)
    distilled = bool(d.teacher)
    return LabelLoss(
        label_smoothing=experiment.training.label_smoothing,
        class_weights=weights,
        temperature=d.temperature if distilled else 1.0,
        soft_weight=d.soft_weight if distilled else 0.0,
        hidden_weight=d.hidden_weight if distilled else 0.0,
    )


Teach = Callable[[dict[str, Array]], dict[str, Array]]


def teaching(teacher: Model | None, experiment: FinetuningExperiment, student_layers: int, mesh: Mesh) -> Teach:
    """Returns a function that adds the teacher's outputs to a batch. It adds "teacher_logits" and, if the loss compares hidden
    states, "teacher_hidden_states" [R, N+1, L, D], where the student has N layers. Without a teacher, it adds nothing."""
    if teacher is None or teacher.head is None:
        return lambda batch: batch
    config, head = resolve(teacher.config, mesh), teacher.head
    rows, whole = NamedSharding(mesh, BATCH), NamedSharding(mesh, PartitionSpec())
    params = jax.device_put(teacher.params, whole)
    layers = np.array(teacher_layers(config.num_layers, student_layers))
    compares = experiment.distillation.hidden_weight > 0

    @functools.partial(jax.jit, in_shardings=(whole, rows), out_shardings=rows)
    def teacher_outputs(params: PyTree[jax.Array], batch: dict[str, Array]) -> dict[str, Array]:
        outputs: Any = BertWithHead(config, head).apply({"params": params}, batch)
        found = {"teacher_logits": outputs["logits"]}
        return found | ({"teacher_hidden_states": outputs["hidden_states"][layers].swapaxes(0, 1)} if compares else {})

    return lambda batch: batch | teacher_outputs(params, batch)
