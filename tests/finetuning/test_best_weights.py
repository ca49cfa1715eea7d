"""Which weights of a run are kept, when they are saved, when early stopping ends the run, and what is exported of them."""

from __future__ import annotations

import dataclasses
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

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.errors import UserError
from bert_jax.finetuning import best_weights
from bert_jax.finetuning.best_weights import BestWeights
from bert_jax.interop.huggingface import Model
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.runtime.goodput import Activity
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.text_task import TextTask
from tests.notes import Notes
from tests.random_rows import TINY

DIRECTORY = pathlib.Path("runs") / "seed-1"
HEAD = SequenceHead(labels=("no", "yes"))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """What the checkpoints of the best weights are asked, where none are found."""
    notes = Notes()

    class Checkpoints:
        def __init__(self, place: str, *, keep: int):
            notes.append(f"{place}, {keep}")
            self.restored: Any = None
            self.saved: dict[int, Any] = {}
            self.__exit__ = notes.of("exit")  # type: ignore[method-assign,assignment]
            self.broken = False

        def restore_latest(self, layout: Any, until: int | None) -> Any:
            self.layout = layout
            notes.append(f"until {until}")

        def save(self, step: int, best: Any) -> None:
            notes.append(f"save {step}")
            self.saved[step] = best

        def finish(self) -> None:
            notes.append("finish")
            if self.broken:
                raise UserError("disk full")

    monkeypatch.setattr(best_weights, "Checkpoints", Checkpoints)
    return notes


def job_of(notes: Notes, **selection: Any) -> Any:
    """A run that is evaluated after 2, 4, 6 and 8 steps."""
    experiment = FinetuningExperiment.from_dict({"init_from": "m", "selection": selection, "model": {"hidden_dropout": 0.25}})
    run = types.SimpleNamespace(durable=lambda path: f"durable {path}", is_first=True)
    return types.SimpleNamespace(
        experiment=experiment, run=run, directory=DIRECTORY, evaluations=frozenset({2, 4, 6, 8}),
        state=types.SimpleNamespace(params="abstract"), mesh=make_mesh(MeshConfig(), jax.devices()[:1]),
        ledger=types.SimpleNamespace(during=notes.block("during")),
        program=types.SimpleNamespace(
            config=dataclasses.replace(TINY, hidden_dropout=0.0), head=HEAD, copy=functools.partial(jax.tree.map, jnp.copy)
        ),
    )  # fmt: skip


def weights(value: float) -> dict[str, jax.Array]:
    return {"w": jnp.float32(value)}


def kept(best: BestWeights) -> tuple[int, float, float]:
    """(step, score, weight) of the best evaluation so far."""
    return int(best.found["step"]), float(best.found["score"]), float(best.found["params"]["w"])


def test_the_best_are_read_from_a_folder_of_their_own_up_to_the_step_of_the_state(notes: Notes):
    job = job_of(notes)
    best: Any = BestWeights(job, 6)
    BestWeights(job)
    place = f"durable {DIRECTORY / 'best'}"
    assert notes == [f"{place}, 1", "until 6", f"{place}, 1", "until None"]
    layout = best.checkpoints.layout
    assert layout.pop("params") == "abstract"
    whole = NamedSharding(job.mesh, PartitionSpec())
    assert {name: (x.shape, x.dtype, x.sharding) for name, x in layout.items()} == {
        "score": ((), jnp.float32, whole),
        "step": ((), jnp.int32, whole),
    }


def test_an_error_inside_the_block_is_told_to_the_checkpoints(notes: Notes):
    best = BestWeights(job_of(notes))
    error = ValueError("x")
    with best as entered:
        assert entered is best
    best.__exit__(ValueError, error, None)
    assert notes[2:] == ["exit None None None", f"exit {ValueError} x None"]


def test_without_any_evaluation_there_are_no_best_weights(notes: Notes):
    best = BestWeights(job_of(notes, patience=1))
    assert best.step is None
    assert not best.ends_run(8)
    with pytest.raises(UserError, match=r"seed-1.best holds no weights; start this run again in another --workdir"):
        _ = best.found
    best.ensure_saved()
    assert notes[2:] == ["finish"]


def test_weights_with_a_higher_score_replace_the_best_as_a_copy_and_are_saved(notes: Notes):
    best: Any = BestWeights(job_of(notes))
    first = weights(2)
    best.offer(2, 0.1, first, {})
    assert best.found["params"]["w"] is not first["w"], "the next step donates the memory of the state"
    assert best.step == 2
    best.offer(4, 0.1, weights(4), {})  # as float32 it is the same score
    best.offer(6, 0.05, weights(6), {})
    assert kept(best) == (2, np.float32(0.1), 2.0)
    best.offer(8, 0.5, weights(8), {})
    assert kept(best) == (8, 0.5, 8.0)
    during = f"during {Activity.SAVING}"
    assert notes[2:] == [during, "save 2", "end of during", during, "save 8", "end of during"]
    assert best.checkpoints.saved[8] is best.found


def test_the_last_weights_are_the_best_where_that_is_asked_for(notes: Notes):
    best = BestWeights(job_of(notes, select="last"))
    for step, score in ((4, 0.5), (6, 0.25), (6, 0.75), (2, 1.0)):
        best.offer(step, score, weights(step), {})
    assert kept(best) == (6, 0.25, 6.0)


@pytest.mark.parametrize(("patience", "ends"), [(0, []), (1, [6, 7, 8]), (2, [8])])
def test_a_run_ends_after_so_many_evaluations_without_an_improvement(notes: Notes, patience: int, ends: list[int]):
    best = BestWeights(job_of(notes, patience=patience))
    best.offer(4, 0.5, weights(4), {})
    assert [step for step in range(9) if best.ends_run(step)] == ends


def test_best_weights_whose_save_failed_are_saved_again_by_a_process_that_is_alone(notes: Notes, monkeypatch: pytest.MonkeyPatch):
    best: Any = BestWeights(job_of(notes))
    best.checkpoints.broken = True
    best.ensure_saved()
    assert notes[2:] == ["finish"]
    best.offer(4, 0.5, weights(4), {})
    best.ensure_saved()
    assert notes[-2:] == ["finish", "save 4"]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    best.ensure_saved()
    assert notes[-1] == "finish"


@pytest.mark.parametrize("is_first", [True, False])
def test_the_export_has_the_dropout_of_the_configuration_and_says_what_the_weights_are(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, is_first: bool
):
    written: list[Any] = []
    monkeypatch.setattr(best_weights, "on_host", lambda params, mesh: (params, mesh))
    monkeypatch.setattr(best_weights, "export_trained", lambda *given: written.append(given))
    job = job_of(notes)
    job.run.is_first = is_first
    pairs = {"train": [TextExample("0", "a", "b")]}
    task = TextTask("toy", 8, HEAD, "accuracy", pairs, score=lambda split, said, true: {})
    untrained = frozenset({"pooler"})
    start = Model(params={}, config=TINY, tokenizer=None, head=None, untrained=untrained, other_fields={"a": 1})  # type: ignore[arg-type]
    best = BestWeights(job)
    best.offer(4, 0.5, weights(4), {})
    for job.data in (types.SimpleNamespace(task=task), types.SimpleNamespace(task=types.SimpleNamespace(name="other"))):
        best.export(DIRECTORY, start)
    assert len(written) == 2 * is_first
    for (directory, model, about, results, told), name, of_pairs in zip(written, ("toy", "other"), (True, None), strict=False):
        assert told.data.startswith(f"Fine-tuned on the task {name}")
        assert (directory, about, results) == (DIRECTORY, {"task": name, "step": 4}, None)
        assert model.params == (best.found["params"], job.mesh)
        assert (model.config.hidden_dropout, model.config.attention_dropout) == (0.25, job.experiment.model.attention_dropout)
        assert (model.head, model.of_pairs, model.untrained, model.other_fields) == (HEAD, of_pairs, frozenset(), {})


def test_the_logits_are_those_of_the_evaluation_that_won_and_other_splits_are_evaluated_once(
    notes: Notes, caplog: pytest.LogCaptureFixture
):
    job = job_of(notes)
    job.prefix, job.predicted = "seed-1  ", {}
    job.data = types.SimpleNamespace(features={"dev": "abc", "test": "ab"})
    job.logits = lambda params, split: (notes.append(f"evaluate {split}"), f"{split} by {float(params['w'])}")[1]
    best = BestWeights(job)
    for step, score in ((2, 0.25), (4, 0.5), (6, 0.125)):
        best.offer(step, score, weights(step), {"dev": [np.float32(step)]})
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert best.logits("dev") == [4.0]
            assert best.logits("test") == "test by 4.0"
    assert [note for note in notes if note.startswith("evaluate")] == ["evaluate test"]
    assert caplog.messages == ["seed-1  evaluating the weights of step 4 on test: 2 examples"]
    best.offer(8, 0.75, weights(8), {"dev": [np.float32(8)]})
    assert best.logits("test") == "test by 8.0", "the logits of weights that another evaluation beats are forgotten"


def test_the_card_of_the_model_has_the_scores_beside_their_baselines(tmp_path):
    experiment = FinetuningExperiment.from_dict({"init_from": str(tmp_path / "start")})
    (tmp_path / "README.md").write_text("---\nlicense: mit\nlanguage: de\n---\n")
    start = Model(params={}, config=TINY, tokenizer=None, source=str(tmp_path))  # type: ignore[arg-type]
    results = {
        "steps": 9, "best_step": 6, "scores": {"dev": {"f1": 0.5, "accuracy": 0.75}}, "test_scores": {"test": {"f1": 0.25}},
        "baseline": {"dev": {"f1": 0.125}},
    }  # fmt: skip
    told = best_weights.training_of(experiment, "own/text", start, results)
    assert told.data == "Fine-tuned on the task own/text, starting from start."
    assert told.steps.startswith("9 steps of ")
    assert told.steps.endswith("; the weights are those of step 6.")
    assert told.scores == [("dev f1", 0.5, 0.125), ("dev accuracy", 0.75, None), ("test f1", 0.25, None)]
    assert (told.license, told.language) == ("mit", "de")
    assert best_weights.training_of(experiment, "glue/mrpc", start, {}).language == "en"
