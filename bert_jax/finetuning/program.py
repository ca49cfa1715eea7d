"""The jitted functions of a fine-tuning run: the training step, the logits, and the teacher."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from bert_jax.configs.finetuning import FinetuningExperiment, TrainingConfig
from bert_jax.data.rows import Feature
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.bert_with_head import BertWithHead, initial_label_parameters
from bert_jax.model.heads.head import TaskHead
from bert_jax.objectives.labels import LabelLoss, Labels, teacher_layers
from bert_jax.objectives.losses import Sums
from bert_jax.sharding.kernels import resolve
from bert_jax.sharding.rules import BATCH, parameter_shardings, state_shardings
from bert_jax.tasks.task import Task
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.layerwise_rates import learning_rate_multipliers
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.schedules import rate_by
from bert_jax.training.steps import TrainState, UpdateRule, new_state, train_step

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Program:
    """The jitted functions that runs share which differ only in scalar hyperparameters, seeds and data."""

    config: ModelConfig
    head: TaskHead
    objective: Labels
    abstract: TrainState
    """The abstract state."""
    shardings: TrainState
    begin: Callable[[PyTree[jax.Array]], TrainState]
    """Parameters -> the state before step 0."""
    copy: jax.stages.Wrapped
    """Parameters -> a copy of them, which outlives the state: a step donates its memory. One program, not one for each array."""
    train: jax.stages.Wrapped
    """The jitted training step, (state, batch, scalars) -> (state, sums); the memory of the old state is donated."""
    logits: jax.stages.Wrapped
    """The jitted forward pass, (parameters, batch) -> logits, replicated on every device."""
    _compiled: set[tuple[str | int, ...]] = dataclasses.field(default_factory=set, repr=False)

    def is_new(self, function: str, batch: Mapping[str, np.ndarray]) -> bool:
        """Whether `function` ("train" or "logits") has not been called with the shapes of `batch` before, and has to be
        compiled."""
        key = (function, *batch["input_ids"].shape)
        seen = key in self._compiled
        self._compiled.add(key)
        return not seen


def program_of(
    experiment: FinetuningExperiment, start: Model, task: Task, features: Sequence[Feature], steps_per_epoch: int, mesh: Mesh
) -> Program:
    """The program of a run that fine-tunes the model `start` on `features`."""
    settings = ProgramSettings(
        model=experiment.model_config(start.config, mesh.devices.flat[0].platform),
        head=experiment.head_config(task.head),
        loss=label_loss(experiment, task, features),
        optimizer=experiment.optimizer,
        training=shared(experiment.training),
        unfreeze_every=steps_per_epoch if experiment.training.gradual_unfreezing else 0,
    )
    return training_program(settings, mesh)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """All settings that the compiled functions depend on, apart from the mesh."""

    model: ModelConfig
    head: TaskHead
    loss: LabelLoss
    optimizer: OptimizerConfig
    training: TrainingConfig
    """With neutral values in the other fields; see `shared`."""
    unfreeze_every: int
    """The steps after which gradual unfreezing trains a further layer; 0 trains all layers from the start."""


@functools.cache  # few entries: one mesh for each run that trains in parallel
def training_program(settings: ProgramSettings, mesh: Mesh) -> Program:
    """The program for these settings on `mesh`; cached, so that the runs of a sweep share compiled functions."""
    config, head, training = settings.model, settings.head, settings.training
    resolved = resolve(config, mesh)
    boxed = jax.eval_shape(lambda: initial_label_parameters(config, head, jax.random.key(0)))
    shapes = nn.unbox(boxed)
    optimizer = make_optimizer(settings.optimizer, boxed)
    frozen = ("embeddings", "encoder") if training.freeze_encoder else ()
    factors = learning_rate_multipliers(
        shapes,
        decay=training.layer_decay,
        frozen=frozen,
        unfreeze_every=settings.unfreeze_every,
        crf_multiplier=training.crf_multiplier if head.has_crf else 1.0,
    )
    objective = Labels(resolved, head, settings.loss, frozen)
    scheduled = rate_by(training.schedule, "config.training.schedule")
    begin = functools.partial(new_state, optimizer=optimizer)
    abstract = jax.eval_shape(begin, shapes)
    shardings = state_shardings(abstract, abstract.params, parameter_shardings(boxed, mesh), mesh)

    def train(state: TrainState, batch: dict[str, Array], scalars: Mapping[str, Array]) -> tuple[TrainState, Sums]:
        def learning_rate(step: Array) -> Array:
            return scheduled(step, scalars["steps"], scalars["peak"], {"warmup_steps": scalars["warmup_steps"]})

        rule = UpdateRule(
            objective=objective,
            optimizer=optimizer,
            learning_rate=learning_rate,
            clip_norm=settings.optimizer.clip_norm,
            seed=scalars["seed"],
            accumulation=training.accumulation,
            learning_rate_multipliers=factors,
        )
        return train_step(state, batch, rule=rule)

    def logits(params: PyTree[jax.Array], batch: Mapping[str, Array]) -> Array:
        outputs: Any = BertWithHead(resolved, head).apply({"params": params}, batch)
        return outputs["logits"]

    rows, whole = NamedSharding(mesh, BATCH), NamedSharding(mesh, PartitionSpec())
    return Program(
        config,
        head,
        objective,
        abstract,
        shardings,
        jax.jit(begin, out_shardings=shardings),
        jax.jit(functools.partial(jax.tree.map, jnp.copy), out_shardings=shardings.params),
        jax.jit(train, in_shardings=(shardings, rows, whole), out_shardings=(shardings, None), donate_argnums=0),
        jax.jit(logits, in_shardings=(shardings.params, rows), out_shardings=whole),
    )


NOT_COMPILED = ("epochs", "batch_size", "learning_rate", "warmup_fraction", "class_weights", "label_smoothing")
"""The fields of `TrainingConfig` that do not affect the compiled step, or do by way of `LabelLoss`."""


def shared(training: TrainingConfig) -> TrainingConfig:
    """The settings with the defaults in the fields that are `NOT_COMPILED`."""
    neutral: dict[str, Any] = {name: getattr(TrainingConfig(), name) for name in NOT_COMPILED}
    return dataclasses.replace(training, **neutral)


def label_loss(experiment: FinetuningExperiment, task: Task, features: Sequence[Feature]) -> LabelLoss:
    """The loss settings of the experiment for these training `features`. Raises UserError unless the class weights are one per
    label."""
    weights, labels, d = experiment.training.class_weights, task.head.labels, experiment.distillation
    takes = task.head.outputs.takes_class_weights and bool(labels)
    if takes and weights == (0.0,):
        targets = np.concatenate([np.ravel(one.target) for one in features if one.target is not None])
        counts = np.bincount(targets[targets >= 0].astype(np.int64), minlength=len(labels))
        weights = tuple(float(counts.sum() / (len(labels) * max(count, 1))) for count in counts)
    if weights and not takes:
        raise UserError(f"config.training.class_weights is for tasks that choose one of several labels, and {task.name} is none")
    if weights and len(weights) != len(labels):
        raise UserError(
            f"config.training.class_weights has {counted(len(weights), 'number')}, but {task.name} has "
            f"{counted(len(labels), 'label')} "
            f"({', '.join(labels)}); give one for each, or a single 0 to balance them"
        )
    if experiment.training.label_smoothing and not task.head.outputs.takes_smoothing:
        raise UserError(f"config.training.label_smoothing is for classification, and {task.name} is a regression; set it to 0")
    taught = bool(d.teacher)
    return LabelLoss(
        label_smoothing=experiment.training.label_smoothing,
        class_weights=weights,
        temperature=d.temperature if taught else 1.0,
        soft_weight=d.soft_weight if taught else 0.0,
        hidden_weight=d.hidden_weight if taught else 0.0,
    )


Teach = Callable[[dict[str, Array]], dict[str, Array]]


def teaching(teacher: Model | None, experiment: FinetuningExperiment, student_layers: int, mesh: Mesh) -> Teach:
    """A function that adds the teacher's outputs to a batch: "teacher_logits", and, where the loss compares them,
    "teacher_hidden_states" [R, N+1, L, D] of as many of its layers as the student has. Without a teacher it adds nothing."""
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
