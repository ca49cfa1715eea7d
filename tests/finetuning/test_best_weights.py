"""Which weights of a run are kept, when they are saved, when early stopping ends the run, and which are exported."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from orbax.checkpoint import CheckpointManager

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.errors import UserError
from bert_jax.finetuning import best_weights
from bert_jax.finetuning.best_weights import BestWeights, text_settings
from bert_jax.finetuning.data import read_features
from bert_jax.finetuning.job import Job
from bert_jax.interop.huggingface import Model, import_model
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.tasks.config import OwnDataConfig, TaskConfig
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.text_task import TextTask
from tests.finetuning import jobs as tiny
from tests.interop.tiny import as_model, make_model, make_vocabulary
from tests.random_features import HEADS, random_label_parameters, shapes_of
from tests.random_rows import TINY

HEAD = SequenceHead(labels=("no", "yes"))


def job_in(directory: pathlib.Path, **selection: Any) -> Job:
    """Returns a run in `directory` that is evaluated after 2, 4, 6 and 8 steps."""
    return tiny.job_in(directory, selection=selection, training={"batch_size": 10})


def weights(value: float) -> Any:
    shapes = shapes_of(HEADS["sequence"], tiny.CONFIG)
    return jax.device_put(jax.tree.map(lambda x: np.full(x.shape, value, x.dtype), shapes))


def kept(best: BestWeights) -> tuple[int, float, float]:
    """Returns (step, score, weight) of the best evaluation so far."""
    (value,) = {float(x.ravel()[0]) for x in map(np.asarray, jax.tree.leaves(best.found["params"]))}
    return int(best.found["step"]), float(best.found["score"]), value


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
        assert best.found["params"]["pooler"]["dense"]["bias"] is not first["pooler"]["dense"]["bias"], (
            "the next step donates the memory of the state"
        )
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

    job = job_in(tmp_path)
    with BestWeights(job) as best:
        with monkeypatch.context() as patch:
            patch.setattr(CheckpointManager, "save", full)
            best.offer(4, 0.5, weights(4), {})
        with monkeypatch.context() as patch:  # another process may not have seen the failure
            patch.setattr(jax, "process_count", lambda: 2)
            best.ensure_saved()
        assert on_disk(tmp_path) == []
        best.ensure_saved()
        best.ensure_saved()
        assert on_disk(tmp_path) == ["4"]
        assert best.checkpoints.failures == 1
        job.run.watchdog.skip(-1e6)  # a million seconds later
        assert "in the work after saving a checkpoint" in job.run.watchdog.hang(), "a slow save counts as progress"


@pytest.mark.parametrize("is_first", [True, False])
def test_the_export_has_the_configured_dropout_and_describes_its_weights(tmp_path: pathlib.Path, is_first: bool):
    vocabulary = make_vocabulary(tmp_path / "vocabulary", cased=False)
    params, config = make_model(vocabulary, num_layers=1, hidden_dropout=0.5)
    start = dataclasses.replace(as_model(params, config, vocabulary), untrained=frozenset({"pooler"}), other_fields={"a": 1})
    pairs = {split: [TextExample("0", "a", "b", "no")] for split in ("train", "dev")}
    task = TextTask("toy", 8, HEAD, "f1", pairs, score=lambda split, said, true: {"f1": 0.5})
    data = read_features(task, start)
    job = tiny.job_in(
        tmp_path, run=tiny.run_in(tmp_path, is_first), start=start, inputs={"data": data}, model={"hidden_dropout": 0.25}
    )
    trained = random_label_parameters(HEAD, job.config)
    files = {"task.name": {"path": "/house/of/ada/mine.py", "sha256": "0123456789abcdef", "source": "NAMES = ()"}}
    (tmp_path / "config.json").write_text(json.dumps({"written_by": "bert_jax 1 finetune", "files": files}))
    with BestWeights(job) as best:
        best.offer(4, 0.5, trained, {})
        best.export(tmp_path, start)
    assert (tmp_path / "model").exists() == is_first
    if is_first:
        model = import_model(tmp_path / "model")
        jax.tree.map(np.testing.assert_array_equal, model.params, {name: trained[name] for name in model.params})
        assert model.params.keys() == trained.keys()
        assert (model.config.hidden_dropout, model.config.attention_dropout) == (0.25, job.experiment.model.attention_dropout)
        assert (model.head, model.of_pairs, model.untrained) == (HEAD, True, frozenset())
        written = json.loads((tmp_path / "model" / "config.json").read_text())
        assert "a" not in written
        assert {"task": "toy", "step": 4, "files": files}.items() <= written["bert_jax"].items()
        card = (tmp_path / "model" / "README.md").read_text()
        assert "Fine-tuned on the task toy" in card
        assert "With the user's files: config.task.name mine.py (0123456789ab)." in card


def test_the_settings_with_which_texts_were_read_are_recorded():
    own = OwnDataConfig(train="a.csv", quotes=True, separator="|", delimiter="\\t", context="passage")
    config = TaskConfig(own=own, max_question=32)
    of_table = {"delimiter": "\t", "separator": "|"}
    assert text_settings(config, "own/span", SpanHead()) == {
        "columns": {"context": "passage"},
        "reading": {**of_table, "length": 128, "max_question": 32},
    }
    choices = TaskConfig(own=OwnDataConfig(first_choice=1))
    assert text_settings(choices, "own/choice", ChoiceHead()) == {"columns": {}, "reading": {"first_choice": 1}}
    assert text_settings(config, "own/sequence", HEAD) == {"columns": {}, "reading": of_table}
    config = TaskConfig(length=64, doc_stride=9, max_question=8, max_answer=7, n_best=5)
    of_answers = {"length": 64, "doc_stride": 9, "max_question": 8, "max_answer": 7, "n_best": 5}
    assert text_settings(config, "squad/v1.1", SpanHead()) == {"columns": {}, "reading": of_answers}
    of_answers |= {"may_be_unanswerable": True, "no_answer_threshold": -1.5}
    assert text_settings(config, "squad/v2.0", SpanHead(), unanswerable=True, threshold=-1.5)["reading"] == of_answers


def test_logits_of_the_best_evaluation_are_reused_and_other_splits_are_evaluated_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    features = {**tiny.FEATURES, "test": tiny.FEATURES["dev"][:2]}
    job = tiny.job_in(tmp_path, tmp_path / "seed-1", features=features)
    with BestWeights(job) as best:
        for step, score in ((2, 0.25), (4, 0.5), (6, 0.125)):
            best.offer(step, score, weights(step / 64), {"dev": [np.float32(step)]})
        with caplog.at_level(logging.INFO, logger="bert_jax"):
            for _ in range(2):
                assert best.logits("dev") == [4.0]
                first = best.logits("test")
        said = [message for message in caplog.messages if "compil" not in message]
        assert said == ["seed-1  evaluating the weights of step 4 on test: 2 examples"]
        np.testing.assert_allclose(first, job.logits(weights(4 / 64), "test"))
        best.offer(8, 0.75, weights(-8 / 64), {"dev": [np.float32(8)]})
        assert not np.allclose(first, best.logits("test")), "the logits belong to the best weights"


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
    tasks = ("glue/mrpc", "pos", "mine")
    languages = {task: best_weights.training_section(experiment, task, start, {}).language for task in tasks}
    assert languages == {"glue/mrpc": "en", "pos": "de", "mine": "de"}, "a treebank or the user's own task may be in any language"
