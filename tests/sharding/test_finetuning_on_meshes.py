"""Fine-tuning on a mesh gives the results of one device, with the functions that `bert_jax.finetune` uses."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.data.batches import EvaluationBatches, LabelledBatches, evaluation_rows, to_device
from bert_jax.data.rows import row_shape
from bert_jax.finetuning.program import finetuning_program
from bert_jax.objectives.labels import LabelLoss
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH, row_multiple
from bert_jax.training.steps import Program
from tests.random_features import HEADS, LAYOUTS, random_features, random_label_parameters
from tests.random_rows import TINY, largest_difference
from tests.sharding.training import state_with

MESHES = {1: MeshConfig(), 8: MeshConfig(data=2, fsdp=2, tensor=2)}
CONFIG = dataclasses.replace(TINY, num_layers=1)
FEATURES = {kind: random_features(kind, 60, seed=3) for kind in ("sequence", "mention")}
STEPS = 3
PARAMETERS_WITHIN = 2e-4  # relative to each array's largest, as in pretraining: Adam's first steps amplify rounding
SUMS_WITHIN = 2e-6


def experiment_on(mesh: MeshConfig) -> FinetuningExperiment:
    """Returns the experiment with dropout and layer-wise rates."""
    values = {
        "init_from": "m",
        "seed": 5,
        "training": {"batch_size": 40, "learning_rate": 1e-3, "layer_decay": 0.7, "schedule": "constant"},
    }
    return dataclasses.replace(FinetuningExperiment.from_dict(values), mesh=mesh)


def program_on(devices: int, kind: str) -> tuple[Program, jax.sharding.Mesh]:
    experiment = experiment_on(MESHES[devices])
    mesh = make_mesh(experiment.mesh, jax.devices()[:devices])
    config = experiment.model_config(CONFIG, "cpu")
    return finetuning_program(experiment, config, HEADS[kind], LabelLoss(), 2, mesh), mesh


@functools.cache
def trained(devices: int) -> tuple[Any, list[dict[str, float]]]:
    """Returns the state after three steps, which end an epoch and start the next, and the sums of each step."""
    kind = "sequence"
    program, mesh = program_on(devices, kind)
    shape = row_shape(FEATURES[kind], LAYOUTS[kind])
    batches = LabelledBatches(FEATURES[kind], shape, 40, 5, epochs=2, row_multiple=8, pad_id=0)
    scalars = {"steps": np.int32(6), "warmup_steps": np.int32(0), "peak": np.float32(1e-3), "seed": np.uint32(5)}
    first, sums = state_with(random_label_parameters(HEADS[kind], CONFIG), program), []
    state = jax.device_put(first, program.shardings)
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        for step in range(STEPS):
            state, these = program.training_step(1)(state, to_device(batches.at(step), mesh, BATCH), scalars)
            sums.append({key: float(value) for key, value in these.items()})
    return state, sums


def test_a_mesh_trains_as_one_device_with_dropout():
    (state, sums), (state_of_one, sums_of_one) = trained(8), trained(1)
    for step, (a, b) in enumerate(zip(sums_of_one, sums, strict=True)):
        for key in a:
            assert b[key] == pytest.approx(a[key], rel=SUMS_WITHIN if step == 0 else 100 * SUMS_WITHIN), (step, key)
    assert [these["examples"] for these in sums] == [40, 20, 40]
    assert int(state.step) == STEPS
    assert largest_difference(state_of_one.params, state.params) < PARAMETERS_WITHIN
    for slot in ("mu", "nu"):
        ours, theirs = (getattr(s.opt_state[0], slot) for s in (state_of_one, state))
        assert largest_difference(ours, theirs) < 100 * SUMS_WITHIN


def test_each_device_holds_only_its_shard_of_parameters_and_optimizer_state():
    state, _ = trained(8)
    d, heads = CONFIG.hidden_size, CONFIG.num_heads
    for tree in (state.params, state.opt_state[0].mu, state.opt_state[0].nu):
        attention = tree["encoder"]["layers"]["attention"]
        for array, shape in (
            (tree["sequence_head"]["dense"]["kernel"], (d // 2, 3)),
            (attention["query"]["kernel"], (CONFIG.num_layers, d // 2, heads // 2, CONFIG.head_width)),
        ):
            assert {shard.data.shape for shard in array.addressable_shards} == {shape}


def test_evaluation_on_a_mesh_gives_the_logits_of_one_device():
    kind = "mention"
    shape, params = row_shape(FEATURES[kind], LAYOUTS[kind]), random_label_parameters(HEADS[kind], CONFIG)

    def logits_on(devices: int) -> list[np.ndarray]:
        program, mesh = program_on(devices, kind)
        rows = min(32, evaluation_rows(shape, "cpu", row_multiple(mesh)))
        spread = jax.device_put(params, program.shardings.params)
        with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
            return EvaluationBatches(FEATURES[kind], shape, rows, 0).logits(
                lambda batch: np.asarray(program.evaluation_step(spread, to_device(batch, mesh, BATCH)))
            )

    for mine, theirs in zip(logits_on(8), logits_on(1), strict=True):
        assert mine.shape == (3,)
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
