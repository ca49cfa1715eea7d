"""The remedies in an error are settings that the run accepts and that need less memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.configs.experiment_files import split_overrides
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.memory_advice import (
    evaluation_advice,
    finetuning_advice,
    kept_layers,
    least_bytes,
    pretraining_advice,
    scoring_advice,
    state_advice,
)
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.batches import LabelledBatches
from bert_jax.data.rows import Feature, LabelLayout, row_shape
from bert_jax.model.config import ModelConfig
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import check_batch_size


def experiment(batch_size: int = 256, accumulation: int = 2, **values: Any) -> PretrainingExperiment:
    phase = {"steps": 1, "length": 128, "batch_size": batch_size, "accumulation": accumulation}
    return PretrainingExperiment.from_dict({"phases": [phase, phase], **values})


def flags(remedies: Any) -> dict[str, str]:
    """Returns the settings named in remedies."""
    return dict(split_overrides([word for remedy in remedies for word in remedy.split() if "=" in word])[0])


def batches_of(rows: int) -> LabelledBatches:
    """Returns batches of this many rows, with a text in each."""
    ids, types = np.full(128, 7, np.int32), np.zeros(128, np.int32)
    texts = [Feature(number, (ids,), (types,), np.array(0)) for number in range(rows)]
    return LabelledBatches(texts, row_shape(texts, LabelLayout()), rows, 0, epochs=1, row_multiple=1, pad_id=0)


def test_advice_names_the_batch_and_the_settings_that_reduce_memory():
    whole = experiment()
    memory = pretraining_advice(whole, 1, make_mesh(whole.mesh))
    assert memory.what == "the training step of phase 1"
    assert memory.batch == "256 rows of 128 tokens per step, 32 per device (config.phases.1.batch_size=256, accumulation=2)"
    assert list(memory.remedies) == [
        "--config.phases.1.accumulation=4",
        "--config.model.remat=full",
        "--config.mesh.fsdp=2",
        "--config.phases.1.batch_size=128 (in another --workdir, because it changes the trained model)",
    ]
    assert "`python -m bert_jax.aot --config=FILE --topology=v5e:4x4 --phase=1`" in memory.notes
    assert "The workdir is unchanged" in memory.notes


@pytest.mark.parametrize("mesh", [{}, {"fsdp": 2}, {"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}, {"data": 1, "fsdp": 8}])
@pytest.mark.parametrize(("batch_size", "accumulation"), [(48, 1), (48, 2), (48, 6), (120, 5), (8, 1), (16, 2)])
def test_a_run_accepts_the_advised_settings(mesh: dict[str, int], batch_size: int, accumulation: int):
    whole = experiment(batch_size, accumulation, mesh=mesh)
    now = make_mesh(whole.mesh)
    advised = flags(pretraining_advice(whole, 0, now).remedies)
    advised |= flags(evaluation_advice(whole, 0, now).remedies)
    rows, parts = int(advised.get("phases.0.batch_size", batch_size)), int(advised.get("phases.0.accumulation", accumulation))
    check_batch_size("fewer", rows, accumulation, now)
    check_batch_size("more microbatches", batch_size, parts, now)
    check_batch_size("evaluation", int(advised["evaluation.batch_size"]), 1, now)
    sizes = {axis: int(advised[f"mesh.{axis}"]) for axis in ("data", "fsdp") if f"mesh.{axis}" in advised}
    assert make_mesh(MeshConfig(**{**mesh, **sizes})).shape["fsdp"] >= now.shape["fsdp"]


@pytest.mark.parametrize(("batch_size", "accumulation"), [(48, 1), (48, 2), (48, 6), (120, 5), (8, 1), (16, 2), (16, 1), (72, 3)])
def test_more_microbatches_or_at_most_half_the_batch_is_advised(batch_size: int, accumulation: int):
    whole = experiment(batch_size, accumulation, evaluation={"batch_size": batch_size})
    advised = flags(pretraining_advice(whole, 1, make_mesh(whole.mesh)).remedies)
    per_device = batch_size // 8
    more = [n for n in range(1, per_device + 1) if n >= 2 * accumulation and per_device % n == 0]
    fewer = [rows for rows in range(1, batch_size + 1) if 2 * rows <= batch_size and rows % (8 * accumulation) == 0]
    assert advised.get("phases.1.accumulation") == (str(more[0]) if more else None)
    assert advised.get("phases.1.batch_size") == (str(fewer[-1]) if fewer else None)
    scored = flags(evaluation_advice(whole, 1, make_mesh(whole.mesh)).remedies)
    rows = range(8, batch_size // 2 + 1, 8)
    assert scored.get("evaluation.batch_size") == (str(rows[-1]) if rows else None)


@pytest.mark.parametrize(
    ("rows", "accumulation", "batch_size", "advised"),
    [
        (3, 1, 2, {"batch_size": "1"}),
        (4, 1, 1, {"accumulation": "2"}),
        (12, 3, 8, {"accumulation": "6", "batch_size": "4"}),
        (11, 3, 1, {}),
    ],
)
def test_a_tasks_step_is_divided_as_long_as_every_device_has_a_row(
    rows: int, accumulation: int, batch_size: int, advised: dict[str, str]
):
    training = {"batch_size": batch_size, "accumulation": accumulation}
    task = FinetuningExperiment.from_dict({"init_from": "m", "training": training})
    found = flags(finetuning_advice(task, batches_of(rows), 128, make_mesh(task.mesh, jax.devices()[:2])).remedies)
    assert {key.removeprefix("training."): value for key, value in found.items() if key.startswith("training.")} == advised


def test_a_given_data_axis_is_halved_when_parameters_are_sharded():
    for mesh, advised in (
        ({"data": 8}, {"mesh.data": "4", "mesh.fsdp": "2"}),
        ({"data": 4, "tensor": -1}, {"mesh.data": "2", "mesh.fsdp": "2"}),
        ({"fsdp": 2}, {"mesh.fsdp": "4"}),
        ({}, {"mesh.fsdp": "2"}),
    ):
        whole = experiment(mesh=mesh)
        memory = state_advice(whole, make_mesh(whole.mesh))
        assert flags(memory.remedies) == advised
        assert memory.what == "the state (parameters and optimizer)"
        assert "--topology=v5e:4x4` whether" in memory.notes
    scored = scoring_advice(
        FinetuningExperiment.from_dict({"init_from": "m"}), 64, 384, make_mesh(MeshConfig(), jax.devices()[:2])
    )
    assert scored.batch == "64 rows of 384 tokens per step, 32 per device"
    assert scored.remedies[0] == "--config.mesh.fsdp=2"


def test_settings_in_use_are_not_advised():
    whole = experiment(8, 1, model={"remat": "full"}, mesh={"data": 1, "fsdp": 8}, evaluation={"batch_size": 8})
    mesh = make_mesh(whole.mesh)
    assert not pretraining_advice(whole, 0, mesh).remedies
    assert not evaluation_advice(whole, 0, mesh).remedies
    assert not state_advice(whole, mesh).remedies


def test_evaluation_advice_names_the_evaluation_batch():
    whole = experiment()
    memory = evaluation_advice(whole, 0, make_mesh(whole.mesh, jax.devices()[:1]))
    assert memory.batch == "256 rows of 128 tokens per step, 256 per device (config.evaluation.batch_size=256)"
    assert list(memory.remedies) == ["--config.evaluation.batch_size=128"]
    assert "--step=eval --phase=0`" in memory.notes


def test_the_least_memory_of_a_step_is_that_of_hidden_states_and_logits():
    mesh = make_mesh(MeshConfig(), jax.devices()[:2])
    model = ModelConfig(num_layers=3, hidden_size=24, num_heads=3, vocab_size=100, dtype="bfloat16")
    hidden = 5 * 24 * 2  # bytes of a layer in a row
    assert least_bytes(model, 8, 5, 7, mesh) == 4 * (hidden + 4 * 7 * 100)
    assert least_bytes(model, 8, 5, 0, mesh, 3) == 4 * 3 * hidden
    static = ModelConfig(encoder="static", num_layers=0, hidden_size=24, vocab_size=100)
    assert least_bytes(static, 2, 5, 7, mesh) == 5 * 24 * 4, "its loss does not compute the logits of all words"
    layers = [kept_layers(dataclasses.replace(model, remat=remat)) for remat in ("none", "full")]
    assert [*layers, kept_layers(static)] == [3, 1, 1]


def test_task_advice_names_the_rows_and_the_keys_of_fine_tuning():
    task = FinetuningExperiment.from_dict({"init_from": "m", "training": {"batch_size": 32}, "task": {"length": 384}})
    memory = finetuning_advice(task, batches_of(24), 384, make_mesh(task.mesh, jax.devices()[:2]))
    assert memory.batch == "24 rows of 384 tokens per step, 12 per device (config.training.batch_size=32, accumulation=1)"
    assert list(memory.remedies) == [
        "--config.training.accumulation=2",
        "--config.model.remat=full",
        "--config.mesh.fsdp=2",
        "--config.training.batch_size=16 (in another --workdir, because it changes the trained model)",
        "--config.task.length below 384 (in another --workdir, because it changes the trained model)",
    ]
    assert "`python -m bert_jax.aot --config=FILE --topology=v5e:4x4 --model=base`" in memory.notes


def test_few_remedies_remain_for_one_row_per_device_and_a_frozen_encoder():
    values = {"init_from": "m", "training": {"batch_size": 1, "freeze_encoder": True}}
    task = FinetuningExperiment.from_dict(values)
    mesh = make_mesh(task.mesh, jax.devices()[:1])
    (remedy,) = finetuning_advice(task, batches_of(1), 128, mesh).remedies
    assert remedy.startswith("--config.task.length below 128")
    assert list(scoring_advice(task, 64, 128, mesh).remedies) == [remedy]
