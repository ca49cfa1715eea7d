"""The jitted steps of pretraining, and the layout of its state over a mesh."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.metrics.throughput import model_row_flops
from bert_jax.model.pretraining import abstract_parameters, initial_parameters
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
from bert_jax.training.objectives import PRETRAINING, Objective
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.schedules import piecewise
from bert_jax.training.spikes import judge, new_watched_state
from bert_jax.training.steps import TrainState, UpdateRule, eval_step, gradient_norms, new_state, train_step


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

    def training_step(self, phase: int) -> jax.stages.Wrapped:
        """The jitted training step of a phase; see `jitted_train_step`."""
        return jitted_train_step(self.experiment, phase, self.optimizer, self.shardings, self.mesh)

    def gradient_norms(self, phase: int) -> jax.stages.Wrapped:
        """The jitted `training.steps.gradient_norms` of a phase, (state, batch) -> (norms, sums), replicated on every device."""
        rule = update_rule(self.experiment, phase, self.optimizer, self.shardings, self.mesh)
        shardings = self.shardings, NamedSharding(self.mesh, BATCH)
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        return jax.jit(functools.partial(gradient_norms, rule=rule), in_shardings=shardings, out_shardings=everywhere)

    def begin(self, parameters: PyTree[jax.Array] | None = None) -> TrainState:
        """The state before step 0 on the mesh, with these `parameters`, or with random ones drawn from the experiment's seed."""
        if parameters is None:
            return jax.jit(functools.partial(initial_state, self.experiment, self.optimizer), out_shardings=self.shardings)()
        make = functools.partial(state_maker(self.experiment), optimizer=self.optimizer)
        return jax.jit(make, out_shardings=self.shardings)(parameters)


def pretraining_program(experiment: PretrainingExperiment, mesh: Mesh) -> PretrainingProgram:
    """The optimizer and the state layout of `experiment` on `mesh`; allocates no arrays."""
    optimizer = make_optimizer(experiment.optimizer, nn.unbox(trained_parameters(experiment)))
    abstract, shardings = state_layout(experiment, optimizer, mesh)
    return PretrainingProgram(experiment, mesh, optimizer, with_shardings(abstract, shardings), shardings)


def check_batch_sizes(experiment: PretrainingExperiment, mesh: Mesh) -> None:
    """Raises UserError where the batch size of a phase or of the evaluation is not divisible among the devices of `mesh`."""
    for i, phase in enumerate(experiment.phases):
        check_batch_size(f"config.phases.{i}.batch_size", phase.batch_size, phase.accumulation, mesh)
    check_batch_size("config.evaluation.batch_size", experiment.evaluation.batch_size, 1, mesh)


def initial_state(experiment: PretrainingExperiment, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before step 0, with random parameters; it depends on the seed only, not on the mesh."""
    key = jax.random.key(experiment.seed)
    parameters = nn.unbox(initial_parameters(experiment.model, key, next_sentence=experiment.next_sentence))
    return state_maker(experiment)(parameters, optimizer)


def state_maker(experiment: PretrainingExperiment) -> Callable[..., TrainState]:
    """The function that makes the state before the first step from parameters and an `optimizer`: with the counts of spikes where
    there is a policy for them."""
    return new_state if experiment.spikes.policy == "none" else new_watched_state


def trained_parameters(experiment: PretrainingExperiment) -> dict[str, PyTree[nn.Partitioned]]:
    """The boxed abstract parameters of a run. A run without sentence pairs has neither pooler nor next-sentence head."""
    return abstract_parameters(experiment.model, next_sentence=experiment.next_sentence)


def state_layout(
    experiment: PretrainingExperiment, optimizer: optax.GradientTransformation, mesh: Mesh
) -> tuple[TrainState, TrainState]:
    """The abstract state, and the NamedSharding of each of its arrays on `mesh`; allocates no arrays."""
    return _layout(experiment, trained_parameters(experiment), optimizer, mesh)


def former_layout(experiment: PretrainingExperiment, mesh: Mesh) -> TrainState | None:
    """The layout of states saved by earlier versions, in which runs without pairs had an untrained pooler and next-sentence head;
    None for a run with pairs."""
    if experiment.next_sentence:
        return None
    boxed = abstract_parameters(experiment.model)
    optimizer = make_optimizer(experiment.optimizer, nn.unbox(boxed))
    return with_shardings(*_layout(experiment, boxed, optimizer, mesh))


def _layout(
    experiment: PretrainingExperiment, boxed: PyTree[nn.Partitioned], optimizer: optax.GradientTransformation, mesh: Mesh
) -> tuple[TrainState, TrainState]:
    abstract = jax.eval_shape(functools.partial(state_maker(experiment), optimizer=optimizer), nn.unbox(boxed))
    params = parameter_shardings(boxed, mesh)
    if experiment.mesh.zero_sharding:
        params = zero_shardings(params, abstract.params, mesh)
    return abstract, state_shardings(abstract, params, mesh)


def jitted_train_step(
    experiment: PretrainingExperiment, phase: int, optimizer: optax.GradientTransformation, shardings: TrainState, mesh: Mesh
) -> jax.stages.Wrapped:
    """The jitted training step of a phase, (state, batch) -> (state, sums) on `mesh`; the memory of the old state is donated."""
    step = functools.partial(train_step, rule=update_rule(experiment, phase, optimizer, shardings, mesh))
    return jax.jit(step, in_shardings=(shardings, NamedSharding(mesh, BATCH)), out_shardings=(shardings, None), donate_argnums=0)


def update_rule(
    experiment: PretrainingExperiment, phase: int, optimizer: optax.GradientTransformation, shardings: TrainState, mesh: Mesh
) -> UpdateRule:
    """The rule by which the steps of a phase turn a batch into an update on `mesh`."""
    return UpdateRule(
        gradients=gradients_over_data(shardings.params, mesh, experiment.model, experiment.mesh.reduce_dtype),
        objective=objective_of(experiment),
        optimizer=optimizer,
        learning_rate=piecewise(experiment.schedules()),
        seed=experiment.seed,
        clip_norm=experiment.optimizer.clip_norm,
        accumulation=experiment.phases[phase].accumulation,
        learning_rate_multipliers=layerwise_rates(experiment),
        judge=judge(experiment.spikes) if experiment.spikes.policy != "none" else None,
    )


def layerwise_rates(experiment: PretrainingExperiment) -> Callable[[jax.Array], PyTree[jax.Array]] | None:
    """`learning_rate_multipliers` for the experiment's layer_decay; None without one."""
    if (decay := experiment.optimizer.layer_decay) == 1.0:
        return None
    boxed = trained_parameters(experiment)
    # not nn.unbox, which inside a mesh constrains the shardings of arrays, and these are shapes
    shapes = jax.tree.map(lambda box: box.value, boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))
    return learning_rate_multipliers(shapes, decay=decay)


def objective_of(experiment: PretrainingExperiment) -> Objective:
    """The objective of the run: `PretrainingExperiment.objective_name`."""
    name = experiment.objective_name
    settings = {"skip_gram": experiment.skip_gram} if name == "skip_gram" else {}
    return PRETRAINING[name](experiment.model, next_sentence=experiment.next_sentence, **settings)


def jitted_eval_step(experiment: PretrainingExperiment, mesh: Mesh) -> jax.stages.Wrapped:
    """The jitted evaluation step, (parameters, batch) -> sums; the sums are replicated on every device of `mesh`."""
    scored = functools.partial(eval_step, objective=objective_of(experiment))
    return jax.jit(scored, out_shardings=NamedSharding(mesh, PartitionSpec()))


def phase_row_flops(experiment: PretrainingExperiment, i: int) -> float:
    """Model FLOPs of the forward and backward pass of one row of a phase."""
    phase = experiment.phases[i]
    return model_row_flops(experiment.model, phase.length, phase.max_predictions)


def flops_left(experiment: PretrainingExperiment, step: int) -> float:
    """Model FLOPs of all steps after `step`."""
    starts = experiment.phase_starts()
    return sum(
        max(0, end - max(start, step)) * phase.batch_size * phase_row_flops(experiment, i)
        for i, (phase, start, end) in enumerate(zip(experiment.phases, starts, starts[1:], strict=False))
    )
