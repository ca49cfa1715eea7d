"""The batches of a phase of pretraining, and the memory that they take."""

from __future__ import annotations

import types
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.configs.memory_advice import require_training_memory
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.model.config import published
from bert_jax.pretraining import evaluation, splits
from bert_jax.pretraining.splits import PhaseBatches
from bert_jax.sharding import device_errors
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh


class Source:
    """Rows that contain the step and the part of the batch for which they were made."""

    def __init__(self, *settings: Any):
        self.settings = settings

    def at(self, step: int, shard: Any) -> dict[str, Any]:
        zeros = np.zeros((1, 2), np.int32)
        return {"input_ids": zeros + step, "token_type_ids": zeros, "position_ids": zeros, "shard": np.array([shard])}


def test_a_phase_starts_at_its_first_row_with_its_own_seed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(splits, "BatchSource", Source)
    lengths = [{"steps": 3, "length": 32, "batch_size": 8}, {"steps": 4, "length": 64, "batch_size": 4}]
    values = {"corpus": {"directory": "corpus"}, "model": published("tiny"), "phases": lengths, "seed": 5}
    experiment, corpus = PretrainingExperiment.from_dict(values), object()
    first, second = (PhaseBatches(experiment, index, corpus, (2, 4)) for index in (0, 1))  # type: ignore[arg-type]
    assert [int(first.rows(step)["input_ids"][0, 0]) for step in (0, 2)] == [0, 2]
    assert [int(second.rows(step)["input_ids"][0, 0]) for step in (3, 6)] == [0, 3]
    assert second.rows(3)["shard"].tolist() == [[2, 4]]
    later = PhaseBatches(experiment, 1, corpus, skipped_batches=9)  # type: ignore[arg-type]
    assert int(later.rows(5)["input_ids"][0, 0]) == 2 + 9
    assert later.rows(5)["shard"].tolist() == [[0, 1]], "the whole batch"
    with pytest.raises(UserError, match=r"input_ids holds 30522, outside \[0, 30522\)"):
        first.rows(30_522)
    settings: Any = (first.source, second.source)
    (train, examples, rows, seed), (*_, other_seed) = settings[1].settings, settings[0].settings
    assert (train, examples.length, rows) == (corpus, 64, 4)
    assert seed != other_seed


def test_a_batch_that_cannot_fit_is_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device_errors, "host_memory", lambda: 1 << 30)
    mesh = make_mesh(MeshConfig(), jax.devices()[:2])
    for size, accumulation, fits in ((8, 1, True), (65_536, 1, False), (65_536, 1_024, True)):
        second = {"steps": 4, "length": 64, "batch_size": size, "accumulation": accumulation}
        values = {"model": published("tiny"), "phases": [{"steps": 3, "length": 32, "batch_size": 8}, second]}
        experiment = PretrainingExperiment.from_dict(values)
        if fits:
            require_training_memory(experiment, 1, mesh)
            continue
        says = r"training step of phase 1 does not fit in memory: it needs 15\d\.\d\d GiB of host memory, but there are 1\.00 GiB"
        with pytest.raises(UserError, match=says) as raised:
            require_training_memory(experiment, 1, mesh)
        assert "--config.phases.1.accumulation=2" in str(raised.value)


def test_an_evaluation_that_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch):
    rows = {"masked_targets": np.zeros((4_096, 20), np.int32), "nsp_labels": np.zeros((4_096, 1), np.int32)}
    monkeypatch.setattr(evaluation, "eval_batches", lambda *settings, row_multiple: iter([rows]))
    monkeypatch.setattr(device_errors, "host_memory", lambda: 1 << 30)
    train: Any = types.SimpleNamespace(token_counts=np.ones(30_522), vocabulary=types.SimpleNamespace(unk_id=1, sep_id=2))
    splits: Any = types.SimpleNamespace(train=train, eval="held out")
    values = {"model": published("tiny"), "phases": [{"steps": 3, "length": 32}], "evaluation": {"batch_size": 100_000}}
    experiment = PretrainingExperiment.from_dict(values)
    program: Any = types.SimpleNamespace(mesh=make_mesh(MeshConfig(), jax.devices()[:1]))
    plan: Any = types.SimpleNamespace(config=experiment.example_config(0))
    with pytest.raises(UserError, match=r"the evaluation of phase 0 does not fit in memory: it needs 9\.38 GiB of host memory"):
        evaluation.Evaluation(experiment, program, 0, splits, types.SimpleNamespace(), plan)  # type: ignore[arg-type]
