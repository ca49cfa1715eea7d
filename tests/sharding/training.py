"""Trains a tiny run on any mesh, with the functions that `bert_jax.pretrain` uses."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from bert_jax.data.batches import to_device
from bert_jax.pretraining.program import pretraining_program, step_scalars
from bert_jax.pretraining.start import initial_parameters
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.steps import Program
from tests.random_rows import TINY, drawn_parameters, random_batch

ROWS = 16
DROPPING = dataclasses.replace(TINY, num_heads=4, hidden_dropout=0.1, attention_dropout=0.1, scan_layers=True)  # compiled quickly


def experiment_on(mesh: MeshConfig, *, accumulation: int = 1, optimizer: str = "bert_adam") -> PretrainingExperiment:
    """Returns the experiment, with dropout and a rate that is large enough for three steps to move every parameter."""
    phase = PhaseConfig(
        steps=10, length=16, batch_size=ROWS, max_predictions=4, accumulation=accumulation, learning_rate=1e-3, warmup_steps=2
    )
    return PretrainingExperiment(seed=5, model=DROPPING, optimizer=OptimizerConfig(name=optimizer), phases=(phase,), mesh=mesh)


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


def train(experiment: PretrainingExperiment, devices: int = 8) -> tuple[Any, list[dict[str, float]]]:
    """Returns the state after three steps, and the sums of each step."""
    program, sums = program_of(experiment, devices), []
    state = jax.device_put(state_with(drawn_parameters(experiment.model, experiment.seed), program), program.shardings)
    step = program.training_step(experiment.phases[0].accumulation)
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(program.mesh):
        for _ in range(3):
            batch = {name: np.asarray(value) for name, value in random_batch(int(state.step), rows=ROWS).items()}
            state, these = step(state, to_device(batch, program.mesh, BATCH), step_scalars(experiment))
            sums.append({name: float(value) for name, value in these.items()})
    return state, sums
