"""The learning rates of pretraining by layer and step, as in ULMFiT."""

from __future__ import annotations

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from bert_jax.data.config import ExampleConfig
from bert_jax.pretraining.program import pretraining_program, step_scalars
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.steps import Program
from tests.random_rows import TINY

EXPERIMENT = PretrainingExperiment(
    model=dataclasses.replace(TINY, num_layers=3),
    examples=ExampleConfig(pairs="none"),
    optimizer=OptimizerConfig(schedule="slanted_triangular", layer_decay=0.5),
    phases=(PhaseConfig(steps=100, warmup_steps=10, learning_rate=0.32), PhaseConfig(steps=50, learning_rate=0.64)),
)


def program_of(experiment: PretrainingExperiment) -> Program:
    mesh = make_mesh(experiment.mesh, jax.devices()[:1])
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        return pretraining_program(experiment, mesh)


def test_the_rate_of_a_layer_is_the_rate_above_times_the_decay():
    factors = program_of(EXPERIMENT).learning_rate_multipliers
    assert factors is not None
    found = factors(jnp.int32(0))
    kernel = found["encoder"]["layers"]["attention"]["query"]["kernel"]
    np.testing.assert_allclose(np.ravel(kernel), [0.125, 0.25, 0.5])
    assert float(np.ravel(found["embeddings"]["word_embeddings"]["embedding"])[0]) == 0.5**4
    assert float(np.ravel(found["mlm_head"]["bias"])[0]) == 1.0
    assert program_of(dataclasses.replace(EXPERIMENT, optimizer=OptimizerConfig())).learning_rate_multipliers is None


def test_each_phase_is_a_slanted_triangle():
    program = program_of(EXPERIMENT)
    rate = functools.partial(program.learning_rate, scalars=step_scalars(EXPERIMENT))
    assert [round(float(rate(jnp.int32(step))), 4) for step in (0, 5, 10, 55, 100)] == [0.01, 0.165, 0.32, 0.165, 0.64]
    assert float(rate(jnp.int32(150))) == pytest.approx(0.02)
