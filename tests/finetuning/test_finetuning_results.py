"""The content of a fine-tuning run's results.json, and the settings that a run infers from its data."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import shutil
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax import finetune
from bert_jax.configs.finetuning import FinetuningExperiment, HeadOverrides
from bert_jax.data.corpus.store import MANIFEST
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune import results
from bert_jax.finetuning.best_weights import BestWeights
from bert_jax.finetuning.data import check_tags, fingerprints, open_unlabelled, read_features
from bert_jax.finetuning.job import Inputs, Job, evaluation_steps
from bert_jax.finetuning.start import config_fingerprint
from bert_jax.finetuning.sweep import RunResult
from bert_jax.interop.huggingface import Model, export_model, import_model
from bert_jax.interop.huggingface_config import own_fields
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.examples import TextExample, WordsExample
from bert_jax.tasks.text_task import TextTask
from bert_jax.training.steps import TrainState
from tests.bad_inputs.damage import weight
from tests.end_to_end.runs import build_corpus
from tests.finetuning.jobs import CONFIG, job_in, run_in
from tests.interop.tiny import as_model, make_model, make_vocabulary
from tests.random_features import HEADS, random_label_parameters


def counted(split: str, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return {"f1": float(np.mean(predictions == labels)), "length": len(split)}


def toy(unlabelled: tuple[str, ...] = ("test",), name: str = "toy", **changed: tuple[str, ...]) -> TextTask:
    """Returns a task of pairs that has two dev splits and one without labels; `changed` has the texts of some splits."""
    texts = {split: (f"the {split}", "the capital of france") for split in ("train", "dev", "dev_other", "test")} | changed
    splits = {
        split: [TextExample(str(i), text, "river", None if split in unlabelled else "ab"[i % 2]) for i, text in enumerate(some)]
        for split, some in texts.items()
    }
    return TextTask(name, 24, SequenceHead(labels=("a", "b")), "f1", splits, counted)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the directory of a model of one layer."""
    base = tmp_path_factory.mktemp("results")
    vocabulary = make_vocabulary(base / "vocabulary", cased=False)
    params, config = make_model(vocabulary, num_layers=1)
    export_model(base / "model", as_model(params, config, vocabulary))
    return base / "model"


@pytest.fixture(scope="module")
def start(directory: pathlib.Path) -> Model:
    return import_model(directory)


def test_dev_splits_are_scored_with_their_baselines(start: Model):
    found = read_features(toy(), start)
    splits = ["train", "dev", "dev_other", "test"]
    assert (found.dev, list(found.features), found.pad_id) == (["dev", "dev_other"], splits, start.tokenizer.pad_id)
    assert (found.scored_tests, read_features(toy(()), start).scored_tests) == ([], ["test"])
    assert {split: baseline.scores["length"] for split, baseline in found.baselines.items()} == {"dev": 3, "dev_other": 9}
    longest = max(feature.size for features in found.features.values() for feature in features)
    assert found.shape.length >= longest


def test_pairs_have_no_segments_in_a_left_to_right_model(start: Model):
    """Its features differ from those of another model only in their token types."""
    config = dataclasses.replace(start.config, direction="left_to_right")
    with_segments, found = (read_features(toy(), one) for one in (start, dataclasses.replace(start, config=config)))
    assert found.features.keys() == with_segments.features.keys()
    assert any(max(x) == 1 for features in with_segments.features.values() for feature in features for x in feature.types)
    for split, features in found.features.items():
        for feature, usual in zip(features, with_segments.features[split], strict=True):
            assert [x.tolist() for x in feature.ids] == [x.tolist() for x in usual.ids]
            assert [x.tolist() for x in feature.types] == [[0] * len(x) for x in usual.ids]


@pytest.mark.parametrize(
    ("teacher", "student", "says"),
    [
        ({}, {"direction": "left_to_right"}, "teacher=t has a token type for the second text of a pair, unlike .*; name a "),
        ({"direction": "left_to_right"}, {}, "teacher=t has no token type for the second text of a pair, unlike "),
        ({"type_vocab_size": 1}, {}, "teacher=t has no token type for the second text"),
        ({}, {"type_vocab_size": 0}, ""),
        ({"type_vocab_size": 0}, {"direction": "left_to_right"}, ""),
        ({"encoder": "static", "num_layers": 0}, {"direction": "left_to_right"}, ""),
        ({"direction": "left_to_right"}, {"direction": "left_to_right"}, ""),
    ],
)
def test_a_teacher_that_reads_pairs_in_another_way_than_the_student_is_refused(
    start: Model, teacher: dict[str, Any], student: dict[str, Any], says: str
):
    theirs, own = (dataclasses.replace(start, config=dataclasses.replace(start.config, **some)) for some in (teacher, student))
    theirs, task = dataclasses.replace(theirs, source="t"), toy()
    texts = {split: [dataclasses.replace(one, text_b=None) for one in some] for split, some in task.splits.items()}
    read_features(dataclasses.replace(task, splits=texts), own, theirs)
    with pytest.raises(UserError, match=says) if says else contextlib.nullcontext():
        read_features(task, own, theirs)


@pytest.mark.parametrize(
    ("split", "says"),
    [("train", "no training example of toy has a label"), ("dev_other", "no example of toy, dev_other, has")],
)
def test_an_unlabelled_train_or_dev_split_is_refused(start: Model, split: str, says: str):
    with pytest.raises(UserError, match=says):
        read_features(toy((split,)), start)


def test_tags_that_are_converted_to_iob2_suit_its_crf():
    task: Any = types.SimpleNamespace(name="toy", splits={"train": [WordsExample("0", ("in", "oslo"), ("O", "I-A"), 0)]})
    experiment = FinetuningExperiment(head=HeadOverrides(crf="iob2"), task=TaskConfig(name="own/token", scheme="IOB2"))
    check_tags(experiment, task)
    with pytest.raises(UserError, match="the first is 'oslo', I-A"):
        check_tags(dataclasses.replace(experiment, task=TaskConfig(name="own/token", scheme="IOB1")), task)


def test_fingerprints_distinguish_splits_examples_and_models(directory: pathlib.Path, tmp_path: pathlib.Path):
    other = shutil.copytree(directory, tmp_path / "other")
    weight("other", lambda x: x + 1)(tmp_path)
    same = shutil.copytree(directory, tmp_path / "same")
    alone, taught = (
        FinetuningExperiment.from_dict({"init_from": str(directory), "distillation": {"teacher": teacher}})
        for teacher in ("", str(other))
    )
    assert fingerprints(alone, toy()).keys() == {"examples", "init_from", "init_from_config", "init_from_tokenizer"}
    found = fingerprints(taught, toy())
    moved = fingerprints(dataclasses.replace(taught, init_from=str(same)), toy())
    assert moved == found
    for name, key, value in (("config", "layer_norm_eps", 0.25), ("tokenizer_config", "do_lower_case", False)):
        file = same / f"{name}.json"
        text = file.read_text()
        file.write_text(json.dumps(json.loads(text) | {key: value}))
        corrected = fingerprints(dataclasses.replace(taught, init_from=str(same)), toy())
        assert [key for key in found if corrected[key] != found[key]] == [f"init_from_{name.removesuffix('_config')}"]
        file.write_text(text)
    norms = []
    for place in (tmp_path / "norm.py", same / "norm.py"):  # one content at two paths
        place.write_text("def norm(x, epsilon): return x\n")
        own = own_fields(dataclasses.replace(CONFIG, norm=f"{place}:norm"), None)
        (same / "config.json").write_text(json.dumps(json.loads((directory / "config.json").read_text()) | {"bert_jax": own}))
        norms.append(config_fingerprint(str(same)))
    assert norms[0] == norms[1] != found["init_from_config"]
    assert found["init_from"] != found["teacher"]
    changed = [toy(dev=("a",)), toy(train=("the train", "changed")), toy(dev_other=("the capital of france", "the dev_other"))]
    changed.append(dataclasses.replace(toy(), splits={x.replace("test", "exam"): some for x, some in toy().splits.items()}))
    digests = {fingerprints(alone, task)["examples"] for task in [toy(), *changed]}
    assert found["examples"] in digests
    assert len(digests) == 5


def test_unlabelled_text_needs_the_vocabulary_of_the_model_and_a_head_that_tags(start: Model, tmp_path: pathlib.Path):
    corpus = build_corpus(tmp_path / "corpus")
    own = load_tokenizer(corpus / "tokenizer")
    lstm = dataclasses.replace(start, tokenizer=own, config=dataclasses.replace(start.config, encoder="bilm"), source="m")
    one = FinetuningExperiment.from_dict({"init_from": "m", "cross_view": {"corpus": str(corpus)}})
    head = TokenHead(labels=("a", "b"), layers="last", lstm=8)
    assert open_unlabelled(FinetuningExperiment.from_dict({"init_from": "m"}), head, lstm) is None
    opened = open_unlabelled(one, head, lstm)
    assert opened is not None
    assert opened.num_sentences > 100
    with pytest.raises(UserError, match=r"^config\.cross_view\.corpus=.* has a different vocabulary than m; build"):
        open_unlabelled(one, head, dataclasses.replace(lstm, tokenizer=start.tokenizer))
    with pytest.raises(UserError, match=r"^config\.cross_view needs two independent LSTM directions"):
        open_unlabelled(one, head, dataclasses.replace(start, tokenizer=own))


def test_a_run_that_resumes_notices_another_unlabelled_corpus(directory: pathlib.Path, tmp_path: pathlib.Path):
    one = FinetuningExperiment.from_dict({"init_from": str(directory), "cross_view": {"corpus": str(tmp_path)}})
    found = []
    for manifest in (b"", b"a", b"b"):
        (tmp_path / MANIFEST).write_bytes(manifest)
        found.append(fingerprints(one, toy())["cross_view"])
    assert found == [hashlib.sha256(manifest).hexdigest() for manifest in (b"", b"a", b"b")]


@pytest.mark.parametrize(
    ("per_epoch", "wanted"),
    [(1, {10, 20, 30}), (2, {5, 10, 15, 20, 25, 30}), (3, {3, 7, 10, 13, 17, 20, 23, 27, 30}), (100, set(range(1, 31)))],
)
def test_evaluations_are_evenly_spaced_and_end_with_the_epoch(per_epoch: int, wanted: set[int]):
    assert evaluation_steps(3, 10, per_epoch) == wanted


def test_results_have_the_numbers_of_the_run_and_the_scores_of_its_best_weights(start: Model, tmp_path: pathlib.Path):
    right, alike = [np.float32([1, 0]), np.float32([0, 1])], [np.float32([1, 0])] * 2

    state = TrainState(np.int32(77), {}, (), np.int32(4), np.int32(0))  # type: ignore[arg-type]
    best = BestWeights(job_in(tmp_path))
    best.offer(44, 0.5, random_label_parameters(HEADS["sequence"], CONFIG), {})

    def found(task: TextTask, logits: Mapping[str, list[np.ndarray]], seconds: float = 1.0) -> dict[str, Any]:
        training = {"learning_rate": 0.125, "batch_size": 2, "epochs": 7}
        given: dict[str, Any] = {"inputs": {"data": read_features(task, start)}, "start": start, "seed": 5, "training": training}
        return results(job_in(tmp_path, devices=2, **given), state, best, logits, seconds)

    task = toy()
    of_run = found(task, {"dev": right, "dev_other": alike}, 12.345)
    assert (of_run.pop("jax"), of_run.pop("devices")) == (jax.__version__, "2 x cpu")
    assert of_run == {
        "task": "toy",
        "metric": "f1",
        "test_scores": {},
        "published": [],
        "scores": {"dev": {"f1": 1.0, "length": 3}, "dev_other": {"f1": 0.5, "length": 9}},
        "baseline": {"dev": {"f1": 0.5, "length": 3}, "dev_other": {"f1": 0.5, "length": 9}},
        "baseline_answers": {split: dict(task.baseline(split).named) for split in ("dev", "dev_other")},
        "degenerate": False,
        "best_step": 44,
        "steps": 77,
        "steps_per_epoch": 1,
        "skipped_steps": 4,
        "seed": 5,
        "learning_rate": 0.125,
        "batch_size": 2,
        "epochs": 7,
        "seconds_since_last_start": 12.3,
    }
    tested = found(toy((), "sick/entailment"), {"dev": alike, "dev_other": right, "test": right})
    assert (list(tested["scores"]), tested["test_scores"]) == (["dev", "dev_other"], {"test": {"f1": 1.0, "length": 4}})
    assert tested["degenerate"] is True
    accuracies = {row["system"]: row["scores"]["accuracy"] for row in tested["published"]}
    wanted = {
        "LangPro": 0.8135,
        "ccg2lambda": 0.8313,
        "ccg2lambda, learned phrases": 0.8423,
        "MonaLog": 0.7556,
        "LangPro, learned relations": 0.8435,
        "BERT base": 0.867,
        "NeuralLog": 0.903,
    }
    assert accuracies.items() >= wanted.items()
    files = {"task.name": {"path": "/house/of/ada/mine.py", "sha256": "0123", "source": "NAMES = ()"}}
    (tmp_path / "config.json").write_text(json.dumps({"written_by": "bert_jax 1 finetune", "files": files}))
    assert found(task, {"dev": right, "dev_other": alike})["files"] == files
    best.ensure_saved()


class Exported(contextlib.nullcontext["Exported"]):
    """The `BestWeights` of a run whose logits are the same on every split."""

    def __init__(self, job: Job):
        super().__init__(self)

    def export(self, directory: pathlib.Path, *_: object) -> None:
        (directory / "model").mkdir(exist_ok=True)

    def logits(self, split: str) -> list[np.ndarray]:
        return [np.float32([1, 0]), np.float32([0, 1])]


def test_a_run_is_done_only_when_all_of_its_predictions_are_written(
    start: Model, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(finetune, "BestWeights", Exported)
    run, data = run_in(tmp_path), read_features(toy(), start)
    ended = RunResult(job_in(tmp_path, run=run).experiment, tmp_path, {})
    inputs = Inputs(data, start)
    (tmp_path / "results.json").write_text("{}")
    def blocked(self: TextTask, directory: pathlib.Path, split: str, logits: Any) -> list[pathlib.Path]:
        (directory / "dev_other.tsv").mkdir(exist_ok=True)
        return whole(self, directory, split, logits)

    whole = TextTask.write_predictions
    with monkeypatch.context() as patch:
        patch.setattr(TextTask, "write_predictions", blocked)
        with pytest.raises(UserError, match=r"dev_other\.tsv cannot be written .*; free space and rerun the command"):
            finetune.finish(ended, jax.devices(), run, inputs, {})
    assert (tmp_path / "model").is_dir()
    assert not finetune.is_done(run)
    finetune.finish(ended, jax.devices(), run, inputs, {})
    assert finetune.is_done(run)
    assert {path.name for path in (tmp_path / "predictions").iterdir()} == {"dev.tsv", "dev_other.tsv", "test.tsv"}


@pytest.mark.parametrize("writes", [True, False], ids=["files", "no files"])
def test_a_run_in_a_bucket_is_done_only_when_all_of_its_predictions_are_uploaded(
    start: Model, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, writes: bool
):
    """The files are uploaded one by one, and there are no empty directories. A task may write no files."""
    monkeypatch.setattr(finetune, "BestWeights", Exported)
    if not writes:
        monkeypatch.setattr(TextTask, "write_predictions", lambda *_: [])
    workdir, bucket = tmp_path / "run", tmp_path / "bucket"
    workdir.mkdir()
    mirror = types.SimpleNamespace(durable=lambda path: bucket / path.relative_to(workdir))
    run, inputs = run_in(workdir), Inputs(read_features(toy(), start), start)
    (workdir / "results.json").write_text('{"seed": 3}')
    shutil.copytree(workdir, bucket)
    finetune.finish(RunResult(job_in(workdir, run=run).experiment, workdir, {}), jax.devices(), run, inputs, {})
    assert finetune.is_done(run)
    (bucket / "model").mkdir()
    names = ["dev.tsv", "dev_other.tsv", "test.tsv"] if writes else []
    for name in [*names, "results.json"]:
        assert not finetune.is_done(dataclasses.replace(run, mirror=mirror))
        copied = pathlib.Path("predictions" if name in names else "", name)
        (bucket / copied).parent.mkdir(exist_ok=True)
        shutil.copy(workdir / copied, bucket / copied)
    assert finetune.is_done(dataclasses.replace(run, mirror=mirror))
    (bucket / "predictions" / "test.tsv").unlink(missing_ok=True)
    assert finetune.is_done(dataclasses.replace(run, mirror=mirror)) != writes
    assert json.loads((workdir / "results.json").read_text()) == {"seed": 3, "prediction_files": names}
