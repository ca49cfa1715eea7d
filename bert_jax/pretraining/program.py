"""The jitted steps of pretraining, and the layout of its state over a mesh."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from bert_jax.configs.pretraining import OBJECTIVE, PretrainingExperiment
from bert_jax.errors import UserError, nearest
from bert_jax.interface.named import file_of, is_in_file
from bert_jax.interface.python_files import file_errors_explained
from bert_jax.interop.huggingface_config import ARCHITECTURES
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.pretraining import word_head
from bert_jax.model.pretraining import abstract_parameters
from bert_jax.objectives.distillation import Distillation, Teacher
from bert_jax.objectives.model import Batch, Params, unboxed
from bert_jax.objectives.objective import Objective
from bert_jax.sharding.kernels import resolve
from bert_jax.sharding.rules import (
    BATCH,
    check_batch_size,
    parameter_shardings,
    state_shardings,
    with_shardings,
    zero_shardings,
)
from bert_jax.training.data_parallel import gradients_over_data
from bert_jax.training.layerwise_rates import learning_rate_multipliers
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.schedules import piecewise
from bert_jax.training.spikes import new_watched_state, spike_filter
from bert_jax.training.steps import TrainState, UpdateRule, eval_step, gradient_norms, new_state, train_step

AbstractOrArray = jax.Array | jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class PretrainingProgram:
    """The optimizer, state layout and jitted steps of a pretraining run on a mesh."""

    experiment: PretrainingExperiment
    mesh: Mesh
    optimizer: optax.GradientTransformation
    state: TrainState
    """The shapes of the `TrainState`, with the sharding of each array."""
    shardings: TrainState
    """The shardings alone, a tree like the state."""
    teacher: Teacher | None = None
    """The teacher of a distillation, with its arrays on the mesh."""

    def training_step(self, phase: int) -> jax.stages.Wrapped:
        """The jitted training step of a phase; see `jitted_train_step`."""
        experiment, optimizer = self._of_phase(phase)
        return jitted_train_step(experiment, phase, optimizer, self.shardings, self.mesh, self.teacher)

    def _of_phase(self, phase: int) -> tuple[PretrainingExperiment, optax.GradientTransformation]:
        """The experiment of a phase and its optimizer, whose state is the same in all phases."""
        experiment = self.experiment.of_phase(phase)
        if experiment.optimizer == self.experiment.optimizer:
            return experiment, self.optimizer
        return experiment, make_optimizer(experiment.optimizer, trained_parameters(experiment))

    def gradient_norms(self, phase: int) -> jax.stages.Wrapped:
        """The jitted `training.steps.gradient_norms` of a phase, from the arguments of the training step to (norms, sums),
        replicated on every device."""
        experiment, optimizer = self._of_phase(phase)
        rule = update_rule(experiment, phase, optimizer, self.shardings, self.mesh)
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        function, shardings = _taught(gradient_norms, rule, self.experiment, self.shardings, self.mesh, self.teacher)
        return jax.jit(function, in_shardings=shardings, out_shardings=everywhere)

    def arguments(self, state: TrainState, batch: Mapping[str, AbstractOrArray]) -> tuple[Any, ...]:
        """The arguments of the jitted steps: the state, the batch and, in a distillation, the teacher's parameters."""
        return (state, batch) if self.teacher is None else (state, batch, self.teacher.params)

    def begin(self, parameters: PyTree[jax.Array] | None = None) -> TrainState:
        """The state before step 0 on the mesh, with these `parameters`, or with random ones drawn from the experiment's seed."""
        if parameters is None:
            return jax.jit(functools.partial(initial_state, self.experiment, self.optimizer), out_shardings=self.shardings)()

        def make(parameters: PyTree[jax.Array]) -> TrainState:
            return state_maker(self.experiment)(_initial_parameters(self.experiment) | parameters, self.optimizer)

        return jax.jit(make, out_shardings=self.shardings)(parameters)


def pretraining_program(
    experiment: PretrainingExperiment, mesh: Mesh, teacher: Teacher | None = None
) -> PretrainingProgram:
    """The optimizer and the state layout of `experiment` on `mesh`; allocates no arrays except those of a `teacher`, which only
    distillation steps need."""
    check_objective(experiment)
    optimizer = make_optimizer(experiment.optimizer, trained_parameters(experiment))
    abstract, shardings = state_layout(experiment, optimizer, mesh)
    state = with_shardings(abstract, shardings)
    if teacher is not None:
        teacher = _on_mesh(dataclasses.replace(teacher, config=taught_config(teacher.config, experiment)), mesh)
    return PretrainingProgram(experiment, mesh, optimizer, state, shardings, teacher)


EXPORTED = ("BertModel", "BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel", "BertForNextSentencePrediction")
"""The classes of transformers as which a pretrained model can be exported (`Objective.exported`)."""


def check_objective(experiment: PretrainingExperiment) -> None:
    """Raises UserError if the objective of a user's file breaks its contract; the message names the violation."""
    if not is_in_file(experiment.objective):
        return
    key, objective = f"config.objective={experiment.objective}", experiment.trained_objective
    with file_errors_explained(file_of(experiment.objective), OBJECTIVE):
        objective.check(key)
        exported, parts = objective.exported, objective.model_parameters().keys()
    if exported is None:
        return
    if exported not in EXPORTED:
        raise UserError(
            f"{key}: exported={exported!r} is not a class that this project writes: {nearest(exported, EXPORTED)}; None exports "
            "the encoder alone"
        )
    needed = [word_head(experiment.model) if part == "mlm_head" else part for part in ARCHITECTURES[exported]]
    if lacking := [part for part in needed if part not in parts]:
        raise UserError(
            f"{key}: exported={exported!r} needs the parameters {lacking[0]}, which the objective does not have; add them, or "
            "set exported=None for the encoder alone"
        )


def _on_mesh(teacher: Teacher, mesh: Mesh) -> Teacher:
    """`teacher` with its arrays, or their shapes, sharded over `mesh` like a student's without ZeRO."""
    shardings = _teacher_shardings(teacher, mesh)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(teacher.params)):
        return dataclasses.replace(teacher, params=with_shardings(teacher.params, shardings))
    return dataclasses.replace(teacher, params=jax.jit(lambda params: params, out_shardings=shardings)(teacher.params))


def taught_config(config: ModelConfig, experiment: PretrainingExperiment) -> ModelConfig:
    """The teacher's architecture, computed as the student is, in `distillation.dtype`; nothing of it is computed again."""
    student = dataclasses.replace(experiment.model, remat="none")
    return dataclasses.replace(
        student.with_architecture(config.architecture), dtype=experiment.distillation.dtype or student.dtype
    )


def _teacher_shardings(teacher: Teacher, mesh: Mesh) -> PyTree[NamedSharding]:
    boxed = abstract_parameters(teacher.config)
    return parameter_shardings({part: boxed[part] for part in teacher.params}, mesh)


def check_batch_sizes(experiment: PretrainingExperiment, mesh: Mesh) -> None:
    """Raises UserError where the batch size of a phase or of the evaluation is not divisible among the devices of `mesh`."""
    for i, phase in enumerate(experiment.phases):
        check_batch_size(f"config.phases.{i}.batch_size", phase.batch_size, phase.accumulation, mesh)
    check_batch_size("config.evaluation.batch_size", experiment.evaluation.batch_size, 1, mesh)


def initial_state(experiment: PretrainingExperiment, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before step 0, with random parameters; it depends on the seed only, not on the mesh."""
    return state_maker(experiment)(_initial_parameters(experiment), optimizer)


def _initial_parameters(experiment: PretrainingExperiment) -> dict[str, PyTree[jax.Array]]:
    found: dict[str, PyTree[jax.Array]] = nn.unbox(
        experiment.trained_objective.initial_parameters(jax.random.key(experiment.seed))
    )
    return found


def state_maker(experiment: PretrainingExperiment) -> Callable[..., TrainState]:
    """The function that makes the state before the first step from parameters and an `optimizer`: with the counts of spikes where
    there is a policy for them."""
    return new_state if experiment.spikes.policy == "none" else new_watched_state


def trained_parameters(experiment: PretrainingExperiment) -> dict[str, PyTree[nn.Partitioned]]:
    """The boxed abstract parameters of a run: the encoder's and the ones that its objective adds."""
    return experiment.trained_objective.abstract_parameters()


def state_layout(
    experiment: PretrainingExperiment, optimizer: optax.GradientTransformation, mesh: Mesh
) -> tuple[TrainState, TrainState]:
    """The abstract state, and the NamedSharding of each of its arrays on `mesh`; allocates no arrays."""
    boxed = trained_parameters(experiment)
    abstract = jax.eval_shape(functools.partial(state_maker(experiment), optimizer=optimizer), nn.unbox(boxed))
    params = parameter_shardings(boxed, mesh)
    if experiment.mesh.zero_sharding:
        params = zero_shardings(params, abstract.params, mesh)
    return abstract, state_shardings(abstract, abstract.params, params, mesh)


def jitted_train_step(
    experiment: PretrainingExperiment,
    phase: int,
    optimizer: optax.GradientTransformation,
    shardings: TrainState,
    mesh: Mesh,
    teacher: Teacher | None = None,
) -> jax.stages.Wrapped:
    """The jitted training step of a phase, (state, batch) -> (state, sums) on `mesh`; the memory of the old state is donated.

    With a `teacher`, its parameters are a third argument.
    """
    rule = update_rule(experiment, phase, optimizer, shardings, mesh)
    step, inputs = _taught(train_step, rule, experiment, shardings, mesh, teacher)
    return jax.jit(step, in_shardings=inputs, out_shardings=(shardings, None), donate_argnums=0)


def _taught(
    function: Callable[..., Any],
    rule: UpdateRule,
    experiment: PretrainingExperiment,
    shardings: TrainState,
    mesh: Mesh,
    teacher: Teacher | None,
) -> tuple[Callable[..., Any], tuple[PyTree[NamedSharding], ...]]:
    """(`function` of `training/steps.py` with its rule, the shardings of its arguments); with a `teacher`, its parameters are the
    last argument, and the objective of the rule compares with it."""
    inputs = shardings, NamedSharding(mesh, BATCH)
    if teacher is None:
        return functools.partial(function, rule=rule), inputs
    config, objective = resolve(teacher.config, mesh), rule.objective
    assert isinstance(objective, Distillation), "the experiment names a teacher"

    def taught(state: TrainState, batch: Batch, params: Params) -> Any:
        return function(state, batch, rule=dataclasses.replace(rule, objective=objective.with_teacher(Teacher(config, params))))

    return taught, (*inputs, _teacher_shardings(teacher, mesh))


def update_rule(
    experiment: PretrainingExperiment, phase: int, optimizer: optax.GradientTransformation, shardings: TrainState, mesh: Mesh
) -> UpdateRule:
    """The rule by which the steps of a phase turn a batch into an update on `mesh`."""
    return UpdateRule(
        gradients=gradients_over_data(shardings.params, mesh, experiment.model, experiment.mesh.reduce_dtype),
        objective=objective_on(experiment, mesh),
        optimizer=optimizer,
        learning_rate=piecewise(experiment.schedules()),
        seed=experiment.seed,
        clip_norm=experiment.optimizer.clip_norm,
        accumulation=experiment.phases[phase].accumulation,
        learning_rate_multipliers=layerwise_rates(experiment),
        spike_filter=spike_filter(experiment.spikes) if experiment.spikes.policy != "none" else None,
    )


def layerwise_rates(experiment: PretrainingExperiment) -> Callable[[jax.Array], PyTree[jax.Array]] | None:
    """`learning_rate_multipliers` for the experiment's layer_decay; None without one."""
    if (decay := experiment.optimizer.layer_decay) == 1.0:
        return None
    return learning_rate_multipliers(unboxed(trained_parameters(experiment)), decay=decay)


def objective_on(experiment: PretrainingExperiment, mesh: Mesh) -> Objective:
    """The objective of the run for its model on `mesh`, with the kernels that it calls there."""
    objective = experiment.trained_objective
    return objective.for_model(dataclasses.replace(objective.model, config=resolve(experiment.model, mesh)))


def jitted_eval_step(experiment: PretrainingExperiment, mesh: Mesh) -> jax.stages.Wrapped:
    """The jitted evaluation step, (parameters, batch) -> sums; the sums are replicated on every device of `mesh`."""
    scored = functools.partial(eval_step, objective=objective_on(experiment, mesh))
    return jax.jit(scored, out_shardings=NamedSharding(mesh, PartitionSpec()))


def phase_row_flops(experiment: PretrainingExperiment, i: int, teacher: ModelConfig | None = None) -> float:
    """Model FLOPs of the forward and backward pass of one row of a phase, with the forward pass of a `teacher`."""
    phase, objective = experiment.phases[i], experiment.trained_objective
    if teacher is not None and isinstance(objective, Distillation):
        objective = objective.with_teacher(Teacher(teacher, {}))
    return objective.flops(phase.length, phase.max_predictions)


def flops_left(experiment: PretrainingExperiment, step: int, teacher: ModelConfig | None = None) -> float:
    """Model FLOPs of all steps after `step`, including a `teacher`'s."""
    starts = experiment.phase_starts()
    return sum(
        max(0, end - max(start, step)) * phase.batch_size * phase_row_flops(experiment, i, teacher)
        for i, (phase, start, end) in enumerate(zip(experiment.phases, starts, starts[1:], strict=False))
    )
