"""The model saved at a step of a pretraining run: which checkpoint is read, and which tokenizer it has."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.pretraining import results
from bert_jax.pretraining.results import load_checkpointed_model, model_of_last
from bert_jax.sharding.config import MeshConfig
from tests.random_rows import TINY

EXPERIMENT = PretrainingExperiment(
    model=TINY, phases=(PhaseConfig(steps=9_000, length=32),), mesh=MeshConfig(data=2, fsdp=2, tensor=2)
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records the requests to the checkpoints, which are at steps 1,000 and 2,000; nothing is really restored."""
    calls: list[Any] = []

    def restore(step: int, layout: Any) -> Any:
        calls.append((step, layout))
        return types.SimpleNamespace(params={"mlm_head": "weights", "distillation": "its projection"})

    @contextlib.contextmanager
    def checkpoints(directory: pathlib.Path, *, read_only: bool) -> Iterator[Any]:
        calls.append((directory, read_only))
        yield types.SimpleNamespace(steps=[1_000, 2_000], restore=restore)

    def program(experiment: PretrainingExperiment, mesh: Any) -> Any:
        return types.SimpleNamespace(state=(experiment, mesh))

    monkeypatch.setattr(results, "Checkpoints", checkpoints)
    monkeypatch.setattr(results, "pretraining_program", program)
    monkeypatch.setattr(results, "on_host", lambda params, mesh: {**params, "on": mesh})
    monkeypatch.setattr(results, "load_tokenizer", lambda directory: ("tokenizer of", directory))
    monkeypatch.setattr(results, "local_corpus", lambda directory: ("local_corpus", directory))
    of_split = [types.SimpleNamespace(tokenizer=("tokenizer of", split)) for split in ("train", "eval")]
    monkeypatch.setattr(results, "open_splits", lambda directory: of_split if directory[0] == "local_corpus" else None)
    return calls


def workdir_of(directory: pathlib.Path, *folders: str) -> pathlib.Path:
    config = EXPERIMENT.to_dict() | {"written_by": "bert_jax 1 pretrain", "corpus_fingerprint": "a"}
    (directory / "config.json").write_text(json.dumps(config))
    for folder in folders:
        (directory / folder).mkdir()
    return directory


def test_the_model_of_a_step_is_loaded_with_its_tokenizer(asked, tmp_path):
    workdir = workdir_of(tmp_path, "checkpoints")
    found: Any = load_checkpointed_model(workdir, 2_000)
    (directory, read_only), (step, (experiment, mesh)) = asked
    assert (directory, read_only, step) == (workdir / "checkpoints", True, 2_000)
    assert experiment == dataclasses.replace(PretrainingExperiment.from_dict(EXPERIMENT.to_dict()), mesh=MeshConfig())
    assert list(mesh.devices.flat) == jax.devices()[:1]
    assert found.params == {"mlm_head": "weights"}
    assert (found.config, found.tokenizer) == (TINY, ("tokenizer of", "train"))
    (workdir / "model").mkdir()
    assert load_checkpointed_model(workdir, 1_000).tokenizer == ("tokenizer of", workdir / "model")


def test_a_step_without_a_checkpoint_is_refused_with_the_available_steps(asked, tmp_path):
    with pytest.raises(UserError, match=r"--step=7: .* has no checkpoint of that step; .*keep_at='\[7\]'"):
        load_checkpointed_model(workdir_of(tmp_path), 7)
    with pytest.raises(UserError, match=r"--step=7: .* has no checkpoint of that step \(it has steps 1,000, 2,000\)"):
        load_checkpointed_model(workdir_of(tmp_path, "checkpoints"), 7)
    with pytest.raises(UserError, match=r"--from=.*there holds no run"):
        load_checkpointed_model(tmp_path / "there", 7)


def test_the_last_checkpoints_are_averaged_and_their_steps_named(asked, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.interop.surgery.average", list)
    workdir = workdir_of(tmp_path, "checkpoints")
    models: Any
    for count, wanted in ((2, [1_000, 2_000]), (1, [2_000])):
        models, steps = model_of_last(workdir, count)
        assert steps == wanted
        assert [model.source for model in models] == [f"step {step:,} of {workdir}" for step in wanted]
    with pytest.raises(UserError, match=r"^--last=3: .* only has 2 checkpoints; average fewer, or train with .*keep=3$"):
        model_of_last(workdir, 3)


def test_the_model_of_a_step_has_the_settings_of_the_phase_that_ended_with_it(asked, tmp_path, monkeypatch):
    phases: list[int] = []
    monkeypatch.setattr(PretrainingExperiment, "for_phase", lambda self, phase: phases.append(phase) or self)
    values = EXPERIMENT.to_dict()
    first = values["phases"][0]
    workdir = workdir_of(tmp_path, "checkpoints")
    for end, step in ((1_000, 1_000), (999, 1_000), (1_000, 2_000)):
        config = values | {"phases": [first | {"steps": end}, first], "written_by": "bert_jax 1 pretrain"}
        (workdir / "config.json").write_text(json.dumps(config))
        load_checkpointed_model(workdir, step)
    assert phases == [0, 1, 1]


def test_a_tokenizer_in_a_bucket_is_fetched_without_the_folders_of_the_model(asked, tmp_path, monkeypatch):
    workdir = workdir_of(tmp_path, "checkpoints", "model")
    monkeypatch.setattr(results, "is_remote", lambda directory: directory == workdir)
    monkeypatch.setattr(results, "fetched", lambda *given, deep: (*given, deep))
    assert load_checkpointed_model(workdir, 1_000).tokenizer == ("tokenizer of", (f"{workdir}/model", "--from", False))
