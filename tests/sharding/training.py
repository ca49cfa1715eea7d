"""Trains a tiny run on any mesh, with the functions that `bert_jax.pretrain` uses."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from bert_jax.data.batches import to_device
from bert_jax.data.config import ExampleConfig
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.distillation import PROJECTION
from bert_jax.pretraining.program import pretraining_program, step_scalars, teacher_config
from bert_jax.pretraining.start import initial_parameters
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH
from bert_jax.training.steps import Program
from tests.random_rows import TINY, drawn_parameters, random_batch, random_parameters, teacher_of

ROWS = 16
DROPPING = dataclasses.replace(TINY, num_heads=4, hidden_dropout=0.1, attention_dropout=0.1, scan_layers=True)  # compiled quickly


def experiment_on(mesh: MeshConfig) -> PretrainingExperiment:
    """Returns the experiment, with dropout."""
    phase = PhaseConfig(steps=10, length=16, batch_size=ROWS, max_predictions=4, learning_rate=1e-3, warmup_steps=2)
    return PretrainingExperiment(seed=5, model=DROPPING, phases=(phase,), mesh=mesh)


def few_arrays_on(mesh: MeshConfig) -> PretrainingExperiment:
    """Returns the experiment with a biLM, which has few arrays, but stacked ones too."""
    model = dataclasses.replace(DROPPING, encoder="bilm", attention_dropout=0.0)
    return dataclasses.replace(experiment_on(mesh), model=model, examples=ExampleConfig(pairs="none"))


def state_with(params: Any, program: Program) -> Any:
    """Returns a state before step 0 as numpy arrays, without compiling anything for it: all but the parameters are zero."""
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), program.state)
    return dataclasses.replace(zeros, params=jax.device_get(params))


def begun(experiment: PretrainingExperiment, program: Program) -> Any:
    """Returns the state before step 0 of the run."""
    return program.init_state(functools.partial(initial_parameters, experiment))


@functools.cache
def program_of(experiment: PretrainingExperiment, devices: int = 8) -> Program:
    """Returns the program, whose step is compiled once for all tests that train in this way."""
    return pretraining_program(experiment, make_mesh(experiment.mesh, jax.devices()[:devices]))


def by_gradient(program: Program) -> Program:
    """Returns the program with steps that subtract the clipped gradient itself: they take a third less time to compile."""
    return dataclasses.replace(program, optimizer=optax.identity(), learning_rate=lambda step, scalars: 1.0)


def moved(before: Any, after: Any) -> Any:
    """Returns how far a step has moved each parameter."""
    return jax.tree.map(np.subtract, *jax.device_get((before.params, after.params)))


def train_by_a_teacher(mesh_config: MeshConfig, devices: int = 8) -> tuple[Any, Any, dict[str, float]]:
    """Returns (the state after a step of a distillation from a wider teacher, how far it moves each parameter, its sums)."""
    wide = dataclasses.replace(DROPPING, hidden_size=24)
    of_teacher = random_parameters(wide, 1)
    distillation = PretrainingDistillation(hidden_weight=0.5, teacher_width=24)
    experiment = dataclasses.replace(experiment_on(mesh_config), teacher="any", distillation=distillation)
    mesh = make_mesh(mesh_config, jax.devices()[:devices])
    teacher = teacher_of(teacher_config(wide, experiment), of_teacher)
    program = by_gradient(pretraining_program(experiment, mesh, teacher))
    kernel = np.random.default_rng(0).normal(0, 0.25, (16, 24)).astype(np.float32)
    first = state_with({**drawn_parameters(experiment.model, experiment.seed), PROJECTION: {"kernel": kernel}}, program)
    batch = {name: np.asarray(value) for name, value in random_batch(rows=ROWS).items()}
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        state = jax.device_put(first, program.shardings)
        arguments = program.arguments(state, to_device(batch, mesh, BATCH), step_scalars(experiment))
        state, sums = program.training_step(1)(*arguments)
    return state, moved(first, state), {name: float(value) for name, value in sums.items()}
