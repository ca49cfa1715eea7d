"""The parts of a pretraining run's program."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import pytest

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from bert_jax.data.config import ExampleConfig
from bert_jax.objectives.skip_gram import SkipGram
from bert_jax.pretraining.program import (
    flops_left,
    phase_row_flops,
    pretraining_program,
    step_scalars,
)
from bert_jax.sharding.mesh import make_mesh
from bert_jax.training.config import SpikeConfig
from bert_jax.training.spikes import new_watched_state
from bert_jax.training.steps import new_state
from tests.random_rows import TINY

EXPERIMENT = PretrainingExperiment(
    model=dataclasses.replace(TINY, num_layers=1, scan_layers=True),
    phases=(PhaseConfig(steps=10, length=16, batch_size=8, max_predictions=4), PhaseConfig(steps=5, length=32, batch_size=2)),
)
ALONE = dataclasses.replace(EXPERIMENT, examples=ExampleConfig(pairs="none"))


def mesh_of(experiment: PretrainingExperiment, devices: int = 1) -> Any:
    return make_mesh(experiment.mesh, jax.devices()[:devices])


def test_the_remaining_flops_cover_the_rest_of_every_phase():
    first, second = (phase_row_flops(EXPERIMENT, index) for index in (0, 1))
    assert first != second
    left = {0: (10, 5), 4: (6, 5), 10: (0, 5), 12: (0, 3), 15: (0, 0), 16: (0, 0)}
    assert {step: flops_left(EXPERIMENT, step) for step in left} == {
        step: a * 8 * first + b * 2 * second for step, (a, b) in left.items()
    }


@pytest.mark.parametrize("policy", ["none", "skip", "rollback"])
def test_spikes_are_counted_if_there_is_a_policy(policy):
    experiment = dataclasses.replace(EXPERIMENT, spikes=SpikeConfig(policy=policy))
    program = pretraining_program(experiment, mesh_of(experiment))
    assert program.new_state is (new_state if policy == "none" else new_watched_state)
    assert (program.spike_filter is None) == (policy == "none") == (not hasattr(program.state, "spikes"))
    assert step_scalars(experiment) == {"seed": experiment.seed}


def test_the_settings_of_an_objective_reach_it():
    static = dataclasses.replace(
        ALONE, model=dataclasses.replace(TINY, encoder="static", num_layers=0), objective_options={"window": 3}
    )
    objective = static.trained_objective
    assert (objective, objective.model.config) == (SkipGram(window=3), static.model)
    assert static.to_dict()["objective_options"] == {"window": 3}
    values = {"examples": {"pairs": "none"}, "phases": [{"steps": 1}], "objective_options": {"window": 3}}
    made = PretrainingExperiment.from_dict({**values, "model": {"encoder": "static", "num_layers": 0}})
    assert made.objective_options == SkipGram(window=3).settings()
    assert PretrainingExperiment.from_dict(made.to_dict()) == made
