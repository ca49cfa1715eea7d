"""The parts of a pretraining run's program."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from bert_jax.configs.pretraining import EvaluationConfig, PhaseConfig, PretrainingExperiment
from bert_jax.data.config import ExampleConfig
from bert_jax.errors import UserError
from bert_jax.objectives.skip_gram import SkipGram
from bert_jax.pretraining.program import (
    check_batch_sizes,
    check_objective,
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
    if program.spike_filter:
        state = new_watched_state({}, optax.identity())
        state = dataclasses.replace(state, losses=jnp.int32(500), loss_mean=jnp.float32(1.0))
        for step, keeps in ((9, False), (10, True), (11, False)):  # the second phase starts after step 10
            found = program.spike_filter(dataclasses.replace(state, step=jnp.int32(step)), jnp.float32(2), jnp.bool(True))
            assert bool(found[0]) == keeps


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


@pytest.mark.parametrize(
    ("phase", "evaluated", "devices", "key"),
    [
        (3, 3, 1, ""),
        (4, 6, 2, ""),
        (3, 6, 2, "phases.1.batch_size"),
        (4, 3, 2, "evaluation.batch_size"),
    ],
)
def test_the_rows_of_every_phase_and_of_the_evaluation_must_divide_among_the_devices(phase, evaluated, devices, key):
    phases = (EXPERIMENT.phases[0], dataclasses.replace(EXPERIMENT.phases[1], batch_size=phase))
    experiment = dataclasses.replace(EXPERIMENT, phases=phases, evaluation=EvaluationConfig(batch_size=evaluated))
    if not key:
        check_batch_sizes(experiment, mesh_of(experiment, devices))
        return
    with pytest.raises(UserError, match=rf"^config\.{key}=3 "):
        check_batch_sizes(experiment, mesh_of(experiment, devices))


def experiment_with(exported, parts, checked) -> Any:
    """Returns an experiment with a user's objective that has these parts."""
    objective = types.SimpleNamespace(check=checked.append, exported=exported, model_parameters=lambda: parts)
    return types.SimpleNamespace(objective="mine.py:Mine", trained_objective=objective, model=EXPERIMENT.model)


@pytest.fixture
def model() -> Any:
    return EXPERIMENT.trained_objective.abstract_parameters()


@pytest.mark.parametrize(
    ("exported", "parts", "says"),
    [
        (None, set(), ""),
        ("BertForMaskedLM", {"mlm_head"}, ""),
        ("BertForMaskedLM", set(), "exported='BertForMaskedLM' needs the parameters mlm_head, which the objective"),
        ("BertForPreTraining", {"mlm_head", "nsp_head"}, "exported='BertForPreTraining' needs the parameters pooler, which"),
        ("ElectraForPreTraining", {"mlm_head"}, "exported='ElectraForPreTraining' needs the parameters discriminator, which"),
        ("BertForMaskedLn", {"mlm_head"}, "exported='BertForMaskedLn' is not a class that this project writes: did you mean"),
    ],
)
def test_a_user_objective_must_have_the_parts_of_its_exported_class(model, exported, parts, says):
    checked: list[str] = []
    experiment = experiment_with(exported, {part: model[part] for part in ("embeddings", "encoder", *parts)}, checked)
    if says:
        with pytest.raises(UserError, match=f"^config.objective=mine.py:Mine: {says}"):
            check_objective(experiment)
    else:
        check_objective(experiment)
    assert checked == ["config.objective=mine.py:Mine"]
    experiment.objective = "bert"
    check_objective(experiment)
    assert len(checked) == 1, "the project's own objectives are tested"


@pytest.mark.parametrize(
    ("exported", "part", "bias", "says"),
    [
        ("BertForMaskedLM", "mlm_head", {"bias": 0, "own": 0}, "adds mlm_head/layer_norm/own, so mlm_head cannot be"),
        ("BertForMaskedLM", "mlm_head", {}, "lacks mlm_head/layer_norm/bias"),
        (None, "embeddings", {"bias": "word_embeddings"}, "changes the shape of embeddings/layer_norm/bias"),
        (None, "mlm_head", {}, ""),
    ],
)
def test_the_exported_parts_of_a_user_objective_must_have_the_arrays_of_the_model(model, exported, part, bias, says):
    scale = model[part]["layer_norm"]["scale"]
    wide = model["embeddings"]["word_embeddings"]["embedding"]
    norm = {"scale": scale, **{name: wide if value else scale for name, value in bias.items()}}
    experiment = experiment_with(exported, {**model, part: {**model[part], "layer_norm": norm}}, [])
    if not says:
        return check_objective(experiment)
    with pytest.raises(UserError, match=f"^config.objective=mine.py:Mine: the method parameters {says}"):
        check_objective(experiment)
    return None
