"""Which weights of a run are kept, when they are saved, when early stopping ends the run, and which are exported."""

from __future__ import annotations

import dataclasses
import errno
import functools
import logging
import pathlib
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import CheckpointManager

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.errors import UserError
from bert_jax.finetuning import best_weights
from bert_jax.finetuning.best_weights import BestWeights
from bert_jax.interop.huggingface import Model
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.runtime.goodput import GoodputRecorder
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.text_task import TextTask
from tests.random_rows import TINY

HEAD = SequenceHead(labels=("no", "yes"))


def job_in(directory: pathlib.Path, **selection: Any) -> Any:
    """Returns a run in `directory` that is evaluated after 2, 4, 6 and 8 steps."""
    experiment = FinetuningExperiment.from_dict({"init_from": "m", "selection": selection, "model": {"hidden_dropout": 0.25}})
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    abstract = jax.ShapeDtypeStruct((), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec()))
    return types.SimpleNamespace(
        experiment=experiment, run=types.SimpleNamespace(durable=lambda path: path, is_first=True), directory=directory,
        evaluations=frozenset({2, 4, 6, 8}), mesh=mesh, goodput=GoodputRecorder(),
        config=dataclasses.replace(TINY, hidden_dropout=0.0), head=HEAD,
        program=types.SimpleNamespace(
            state=types.SimpleNamespace(params={"w": abstract}), copy=functools.partial(jax.tree.map, jnp.copy)
        ),
    )  # fmt: skip


def weights(value: float) -> dict[str, jax.Array]:
    return {"w": jnp.float32(value)}


def kept(best: BestWeights) -> tuple[int, float, float]:
    """Returns (step, score, weight) of the best evaluation so far."""
    return int(best.found["step"]), float(best.found["score"]), float(best.found["params"]["w"])


def on_disk(directory: pathlib.Path) -> list[str]:
    return [path.name for path in (directory / "best").iterdir()]


def test_best_weights_are_restored_up_to_the_step_of_the_state(tmp_path: pathlib.Path):
    job = job_in(tmp_path)
    with BestWeights(job) as best:
        for step, score in ((2, 0.25), (6, 0.5)):
            best.offer(step, score, weights(step), {})
            best.ensure_saved()
            assert on_disk(tmp_path) == [str(step)]
    with BestWeights(job) as again:
        assert kept(again) == (6, 0.5, 6.0)
    with BestWeights(job, 6) as again:
        assert kept(again) == (6, 0.5, 6.0)
    with BestWeights(job, 4) as earlier:
        assert earlier.step is None


def test_an_error_of_the_run_reaches_the_checkpoints():
    """Their `__exit__` does not wait for other processes after a device error."""
    asked: list[Any] = []
    best: Any = BestWeights.__new__(BestWeights)
    best.checkpoints = types.SimpleNamespace(__exit__=lambda *given: asked.append(given))
    best.__exit__("kind", "error", "trace")
    assert asked == [("kind", "error", "trace")]


def test_without_any_evaluation_there_are_no_best_weights(tmp_path: pathlib.Path):
    with BestWeights(job_in(tmp_path, patience=1)) as best:
        assert best.step is None
        assert not best.ends_run(8)
        with pytest.raises(UserError, match=r"best holds no weights; start this run again in another --workdir"):
            _ = best.found
        best.ensure_saved()
    assert on_disk(tmp_path) == []


def test_weights_with_a_higher_score_replace_the_best_as_a_copy_and_are_saved(tmp_path: pathlib.Path):
    job = job_in(tmp_path)
    first = weights(2)
    with BestWeights(job) as best:
        best.offer(2, 0.1, first, {})
        assert best.found["params"]["w"] is not first["w"], "the next step donates the memory of the state"
        assert best.step == 2
        best.offer(4, 0.1, weights(4), {})  # as float32 it is the same score
        best.offer(6, 0.05, weights(6), {})
        assert kept(best) == (2, np.float32(0.1), 2.0)
        best.offer(8, 0.5, weights(8), {})
        assert kept(best) == (8, 0.5, 8.0)
    assert on_disk(tmp_path) == ["8"]
    assert job.goodput.totals()["seconds"]["saving"] > 0


def test_the_last_weights_count_as_best_on_request(tmp_path: pathlib.Path):
    with BestWeights(job_in(tmp_path, select="last")) as best:
        for step, score in ((4, 0.5), (6, 0.25), (6, 0.75), (2, 1.0)):
            best.offer(step, score, weights(step), {})
        assert kept(best) == (6, 0.25, 6.0)


@pytest.mark.parametrize(("patience", "ends"), [(0, []), (1, [6, 7, 8]), (2, [8])])
def test_early_stopping_counts_evaluations_without_improvement(tmp_path: pathlib.Path, patience: int, ends: list[int]):
    with BestWeights(job_in(tmp_path, patience=patience)) as best:
        best.offer(4, 0.5, weights(4), {})
        assert [step for step in range(9) if best.ends_run(step)] == ends


def test_a_single_process_saves_failed_best_weights_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def full(self: CheckpointManager, step: int, *_: Any, **__: Any) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse() -> None:
        raise UserError("disk full")

    with BestWeights(job_in(tmp_path)) as best:
        with monkeypatch.context() as patch:
            patch.setattr(CheckpointManager, "save", full)
            best.offer(4, 0.5, weights(4), {})
        best.ensure_saved()
        best.ensure_saved()
        assert on_disk(tmp_path) == ["4"]
        assert best.checkpoints.failures == 1
        monkeypatch.setattr(best.checkpoints, "finish", refuse)
        monkeypatch.setattr(best.checkpoints, "save", lambda *_: pytest.fail("other processes may not see it"))
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        best.ensure_saved()
        monkeypatch.undo()


@pytest.mark.parametrize("is_first", [True, False])
def test_the_export_has_the_configured_dropout_and_describes_its_weights(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
):
    written: list[Any] = []
    monkeypatch.setattr(best_weights, "on_host", lambda params, mesh: (params, mesh))
    monkeypatch.setattr(best_weights, "export_trained", lambda *given: written.append(given))
    job = job_in(tmp_path)
    job.run.is_first = is_first
    pairs = {"train": [TextExample("0", "a", "b")]}
    task = TextTask("toy", 8, HEAD, "accuracy", pairs, score=lambda split, said, true: {})
    untrained = frozenset({"pooler"})
    start = Model(params={}, config=TINY, tokenizer=None, head=None, untrained=untrained, other_fields={"a": 1})  # type: ignore[arg-type]
    best = BestWeights(job)
    best.offer(4, 0.5, weights(4), {})
    for job.data in (types.SimpleNamespace(task=task), types.SimpleNamespace(task=types.SimpleNamespace(name="other"))):
        best.export(tmp_path, start)
    assert len(written) == 2 * is_first
    for (directory, model, about, results, told), name, of_pairs in zip(written, ("toy", "other"), (True, None), strict=False):
        assert told.data.startswith(f"Fine-tuned on the task {name}")
        assert (directory, about, results) == (tmp_path, {"task": name, "step": 4}, None)
        assert model.params == (best.found["params"], job.mesh)
        assert (model.config.hidden_dropout, model.config.attention_dropout) == (0.25, job.experiment.model.attention_dropout)
        assert (model.head, model.of_pairs, model.untrained, model.other_fields) == (HEAD, of_pairs, frozenset(), {})


def test_logits_of_the_best_evaluation_are_reused_and_other_splits_are_evaluated_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    job, evaluated = job_in(tmp_path), list[str]()
    job.prefix, job.predicted = "seed-1  ", {}
    job.data = types.SimpleNamespace(features={"dev": "abc", "test": "ab"})
    job.logits = lambda params, split: (evaluated.append(split), f"{split} by {float(params['w'])}")[1]
    best = BestWeights(job)
    for step, score in ((2, 0.25), (4, 0.5), (6, 0.125)):
        best.offer(step, score, weights(step), {"dev": [np.float32(step)]})
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert best.logits("dev") == [4.0]
            assert best.logits("test") == "test by 4.0"
    assert evaluated == ["test"]
    assert caplog.messages == ["seed-1  evaluating the weights of step 4 on test: 2 examples"]
    best.offer(8, 0.75, weights(8), {"dev": [np.float32(8)]})
    assert best.logits("test") == "test by 8.0", "the logits belong to the best weights"


def test_the_model_card_has_the_scores_and_their_baselines(tmp_path):
    experiment = FinetuningExperiment.from_dict({"init_from": str(tmp_path / "start")})
    (tmp_path / "README.md").write_text("---\nlicense: mit\nlanguage: de\n---\n")
    start = Model(params={}, config=TINY, tokenizer=None, source=str(tmp_path))  # type: ignore[arg-type]
    results = {
        "steps": 9, "best_step": 6, "scores": {"dev": {"f1": 0.5, "accuracy": 0.75}}, "test_scores": {"test": {"f1": 0.25}},
        "baseline": {"dev": {"f1": 0.125}},
    }  # fmt: skip
    told = best_weights.training_section(experiment, "own/text", start, results)
    assert told.data == "Fine-tuned on the task own/text, starting from start."
    assert told.steps.startswith("9 steps of ")
    assert told.steps.endswith("; the weights are from step 6.")
    assert told.scores == [("dev f1", 0.5, 0.125), ("dev accuracy", 0.75, None), ("test f1", 0.25, None)]
    assert (told.license, told.language, told.base_model) == ("mit", "de", "")
    of_hub = FinetuningExperiment.from_dict({"init_from": "google-bert/bert-base-uncased"})
    assert best_weights.training_section(of_hub, "own/text", start, {}).base_model == "google-bert/bert-base-uncased"
    assert best_weights.training_section(experiment, "glue/mrpc", start, {}).language == "en"
