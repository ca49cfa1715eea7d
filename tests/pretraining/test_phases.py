"""The rows of a phase of pretraining."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.model.config import published
from bert_jax.pretraining import evaluation, phases
from bert_jax.sharding import out_of_memory
from bert_jax.sharding.mesh import MeshConfig, make_mesh


class Source:
    """Rows that hold the step and the part of the batch that they were made for."""

    def __init__(self, *settings: Any):
        self.settings = settings

    def plan(self, block: int) -> str:
        return f"plan {block} of {self.settings[0]}"

    def at(self, step: int, shard: Any) -> dict[str, Any]:
        zeros = np.zeros((1, 2), np.int32)
        return {"input_ids": zeros + step, "token_type_ids": zeros, "position_ids": zeros, "shard": shard}


def test_the_rows_of_a_phase_begin_with_its_first_step_and_are_of_its_own_seed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(phases, "BatchSource", Source)
    monkeypatch.setattr(phases, "HeldoutEvaluation", lambda *settings: settings)
    monkeypatch.setattr(phases, "process_shard", lambda mesh, spec: (mesh.size, spec))
    monkeypatch.setattr(phases, "to_device", lambda batch, mesh, spec: ("on", mesh, spec, batch["input_ids"][0, 0]))
    monkeypatch.setattr(phases, "compiled", lambda *arguments, **settings: (arguments, settings))
    mesh = make_mesh(MeshConfig(), jax.devices()[:2])
    lengths = [{"steps": 3, "length": 32, "batch_size": 8}, {"steps": 4, "length": 64, "batch_size": 4}]
    values = {"corpus": {"directory": "corpus"}, "model": published("tiny"), "phases": lengths, "seed": 5}
    program: Any = types.SimpleNamespace(experiment=PretrainingExperiment.from_dict(values), mesh=mesh)
    corpora: Any = types.SimpleNamespace(train="tokens", verification=None)
    program.training_step, program.arguments, program.state = "step {}".format, lambda *arguments: arguments, "layout"
    compiling: list[Any] = []
    run: Any = types.SimpleNamespace(compiled="saved", ledger="ledger")
    run.compiling = lambda ledger: compiling.append(ledger) or contextlib.nullcontext()
    first, second = (phases.Phase(program, index, corpora, run) for index in (0, 1))
    assert (first.start, first.end, second.start, second.end) == (0, 3, 3, 7)
    assert [int(first.rows(step)["input_ids"][0, 0]) for step in (0, 2)] == [0, 2]
    assert [int(second.rows(step)["input_ids"][0, 0]) for step in (3, 6)] == [0, 3]
    assert second.rows(3)["shard"] == (2, phases.BATCH)
    assert int(phases.Phase(program, 1, corpora, run, passed_over=9).rows(5)["input_ids"][0, 0]) == 2 + 9
    assert second.evaluate == (program, 1, corpora, run, "plan 0 of tokens")
    with pytest.raises(UserError, match=r"input_ids holds 30522, outside \[0, 30522\)"):
        first.rows(30_522)
    found: Any = second.compile(5, must_be_saved=True)
    assert found == (
        ("step 1", "layout", ("on", mesh, phases.BATCH, 2)),
        {"mesh": mesh, "saved": "saved", "must_be_saved": True},
    )
    assert compiling == ["ledger"]
    (train, examples, rows, seed), (*_, other_seed) = second.source.settings, first.source.settings
    assert (train, examples.length, rows) == ("tokens", 64, 4)
    assert seed != other_seed


def test_a_batch_that_cannot_fit_is_refused_before_anything_is_compiled_in_a_later_phase_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(phases, "BatchSource", Source)
    monkeypatch.setattr(phases, "HeldoutEvaluation", lambda *settings: settings)
    monkeypatch.setattr(out_of_memory, "host_memory", lambda: 1 << 30)
    mesh = make_mesh(MeshConfig(), jax.devices()[:2])
    corpora: Any = types.SimpleNamespace(train="tokens", verification=None)
    for size, accumulation, fits in ((8, 1, True), (65_536, 1, False), (65_536, 1_024, True)):
        second = {"steps": 4, "length": 64, "batch_size": size, "accumulation": accumulation}
        values = {"model": published("tiny"), "phases": [{"steps": 3, "length": 32, "batch_size": 8}, second]}
        program: Any = types.SimpleNamespace(experiment=PretrainingExperiment.from_dict(values), mesh=mesh)
        if fits:
            phases.Phase(program, 0, corpora, types.SimpleNamespace())  # type: ignore[arg-type]
            continue
        says = r"training step of phase 1 does not fit in memory: it needs 15\d\.\d\d GiB of host memory, and there are 1\.00 GiB"
        with pytest.raises(UserError, match=says) as raised:
            phases.Phase(program, 0, corpora, types.SimpleNamespace())  # type: ignore[arg-type]
        assert "--config.phases.1.accumulation=2" in str(raised.value)


def test_an_evaluation_that_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch):
    rows = {"masked_targets": np.zeros((4_096, 20), np.int32), "nsp_labels": np.zeros((4_096, 1), np.int32)}
    monkeypatch.setattr(evaluation, "heldout_batches", lambda *settings, row_multiple: iter([rows]))
    monkeypatch.setattr(out_of_memory, "host_memory", lambda: 1 << 30)
    train: Any = types.SimpleNamespace(token_counts=np.ones(30_522), vocabulary=types.SimpleNamespace(unk_id=1, sep_id=2))
    corpora: Any = types.SimpleNamespace(train=train, heldout="held out")
    values = {"model": published("tiny"), "phases": [{"steps": 3, "length": 32}], "evaluation": {"batch_size": 100_000}}
    experiment = PretrainingExperiment.from_dict(values)
    program: Any = types.SimpleNamespace(experiment=experiment, mesh=make_mesh(MeshConfig(), jax.devices()[:1]))
    plan: Any = types.SimpleNamespace(config=experiment.example_config(0))
    with pytest.raises(UserError, match=r"the evaluation of phase 0 does not fit in memory: it needs 9\.38 GiB of host memory"):
        evaluation.HeldoutEvaluation(program, 0, corpora, types.SimpleNamespace(), plan)  # type: ignore[arg-type]
