"""The content of a fine-tuning run's results.json, and the settings that a run infers from its data."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import types
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.data.corpus.store import MANIFEST
from bert_jax.errors import UserError
from bert_jax.finetune import results
from bert_jax.finetuning import data
from bert_jax.finetuning.data import fingerprints, read_features
from bert_jax.finetuning.job import evaluation_steps
from bert_jax.model.config import ModelConfig
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.tasks.scores import Baseline
from tests.data.corpora import corpus_of
from tests.random_features import HEADS, random_features


class Toy:
    """A task whose scores are sums of the logits; it has two dev splits and one without labels."""

    name, metric, head = "toy", "f1", HEADS["sequence"]

    def __init__(self, unlabelled: tuple[str, ...] = ("test",)):
        self.splits = {split: (f"{split} 1", f"{split} 2") for split in ("train", "dev", "dev_other", "test")}
        self._unlabelled = unlabelled

    def features(self, split: str, tokenizer: Any) -> list[Any]:
        found = random_features("sequence", 2, seed=len(split), longest=8 if split == "train" else 12)
        return [dataclasses.replace(one, target=None) for one in found] if split in self._unlabelled else found

    def baseline(self, split: str) -> Baseline:
        rule = f"best on {split}"
        return Baseline() if split in self._unlabelled else Baseline({"f1": 0.25, "accuracy": len(split)}, {rule: 0.25})

    def scores(self, split: str, logits: Any) -> dict[str, float]:
        return {"f1": float(np.sum(logits)), "length": len(split)}

    def degeneracy(self, split: str, logits: Any) -> str:
        return "one label alone" if split == "dev" and np.sum(logits) == 0 else ""


START: Any = types.SimpleNamespace(tokenizer=types.SimpleNamespace(pad_id=3), config=ModelConfig())
WHOLE = FinetuningExperiment.from_dict(
    {"init_from": "m", "seed": 5, "training": {"learning_rate": 0.125, "batch_size": 2, "epochs": 7}}
)


def test_dev_splits_are_scored_with_their_baselines():
    task: Any = Toy()
    found = read_features(task, START)
    assert (found.dev, list(found.features), found.pad_id) == (["dev", "dev_other"], ["train", "dev", "dev_other", "test"], 3)
    assert (found.scored_tests, read_features(Toy(()), START).scored_tests) == ([], ["test"])
    assert {split: baseline.scores["accuracy"] for split, baseline in found.baselines.items()} == {"dev": 3, "dev_other": 9}
    longest = max(feature.size for features in found.features.values() for feature in features)
    assert found.shape.length >= longest  # of every split, not only of train


def test_pairs_have_no_segments_in_a_left_to_right_model():
    """Its features differ from those of another model only in their token types."""
    task: Any = Toy()
    start: Any = types.SimpleNamespace(tokenizer=START.tokenizer, config=ModelConfig(direction="left_to_right"))
    with_segments, found = read_features(task, START), read_features(task, start)
    assert found.features.keys() == with_segments.features.keys()
    assert any(max(x) == 1 for features in with_segments.features.values() for feature in features for x in feature.types)
    for split, features in found.features.items():
        for feature, usual in zip(features, with_segments.features[split], strict=True):
            assert [x.tolist() for x in feature.ids] == [x.tolist() for x in usual.ids]
            assert [x.tolist() for x in feature.types] == [[0] * len(x) for x in usual.ids]


@pytest.mark.parametrize(
    ("split", "says"),
    [("train", "no training example of toy has a label"), ("dev_other", "no example of toy, dev_other, has")],
)
def test_an_unlabelled_train_or_dev_split_is_refused(split: str, says: str):
    task: Any = Toy((split,))
    with pytest.raises(UserError, match=says):
        read_features(task, START)


def test_fingerprints_distinguish_splits_examples_and_models(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data, "weights_fingerprint", lambda model: f"weights of {model}")
    taught = FinetuningExperiment.from_dict({"init_from": "m", "distillation": {"teacher": "t"}})
    first: Any = Toy()
    assert fingerprints(WHOLE, first).keys() == {"examples", "init_from"}
    found = fingerprints(taught, first)
    assert (found["init_from"], found["teacher"]) == ("weights of m", "weights of t")
    changed = [{"dev": ("a",)}, {"train": ("train 1", "train 3")}, {"dev_other": ("dev_other 2", "dev_other 1")}]
    digests = {found["examples"]}
    for splits in changed:
        task: Any = Toy()
        task.splits |= splits
        digests.add(fingerprints(WHOLE, task)["examples"])
    renamed: Any = Toy()
    renamed.splits = {split.replace("test", "exam"): examples for split, examples in renamed.splits.items()}
    digests.add(fingerprints(WHOLE, renamed)["examples"])
    assert len(digests) == 5


def test_unlabelled_text_needs_sentences_in_the_vocabulary_of_the_model(monkeypatch: pytest.MonkeyPatch):
    opened, asked = [corpus_of([[3, 2]])], list[Any]()
    monkeypatch.setattr(data, "open_corpus", lambda directory: (asked.append(directory), opened[0])[1])
    monkeypatch.setattr(data, "check_views", lambda *model, frozen: asked.append((*model, frozen)))
    start: Any = types.SimpleNamespace(
        tokenizer=types.SimpleNamespace(vocabulary=opened[0].vocabulary), config=ModelConfig(), source="m"
    )
    head = HEADS["token"]
    assert data.open_unlabelled(WHOLE, head, start) is None
    for frozen in (False, True):
        asked.clear()
        one = FinetuningExperiment.from_dict(
            {"init_from": "m", "cross_view": {"corpus": "text"}, "training": {"freeze_encoder": frozen}}
        )
        assert data.open_unlabelled(one, head, start) is opened[0]
        assert asked == [pathlib.Path("text"), (start.config, one.head_config(head), frozen)]
    for changed, says in (
        ({"vocabulary": dataclasses.replace(opened[0].vocabulary, sha256="other")}, "has a different vocabulary than m; build"),
        ({"languages": ("de", "en")}, "holds texts and their translations; build a corpus of texts only"),
        ({"sentence_offsets": np.zeros(1, np.int64)}, "has no sentence to train on; build it with a smaller --eval-fraction"),
    ):
        opened[0] = dataclasses.replace(corpus_of([[3, 2]]), **changed)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=rf"^config\.cross_view\.corpus=text {says}"):
            data.open_unlabelled(one, head, start)


def test_a_run_that_resumes_notices_another_unlabelled_corpus(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data, "weights_fingerprint", lambda model: f"weights of {model}")
    one = FinetuningExperiment.from_dict({"init_from": "m", "cross_view": {"corpus": str(tmp_path)}})
    task: Any = Toy()
    found = []
    for manifest in (b"", b"a", b"b"):
        (tmp_path / MANIFEST).write_bytes(manifest)
        found.append(fingerprints(one, task)["cross_view"])
    assert found == [hashlib.sha256(manifest).hexdigest() for manifest in (b"", b"a", b"b")]


@pytest.mark.parametrize(
    ("per_epoch", "wanted"),
    [(1, {10, 20, 30}), (2, {5, 10, 15, 20, 25, 30}), (3, {3, 7, 10, 13, 17, 20, 23, 27, 30}), (100, set(range(1, 31)))],
)
def test_evaluations_are_evenly_spaced_and_end_with_the_epoch(per_epoch: int, wanted: set[int]):
    assert evaluation_steps(3, 10, per_epoch) == wanted


def test_results_have_the_numbers_of_the_run_and_the_scores_of_its_best_weights():
    task: Any = Toy()
    job: Any = types.SimpleNamespace(
        data=read_features(task, START),
        experiment=WHOLE,
        batches=types.SimpleNamespace(steps_per_epoch=11),
        mesh=make_mesh(MeshConfig(), jax.devices()[:2]),
    )
    state: Any = types.SimpleNamespace(step=np.int32(77), skipped=np.int32(4))
    best: Any = types.SimpleNamespace(step=44)
    logits = {"dev": [np.float32([0.5, 1.0])], "dev_other": [np.float32([0.0])]}
    found = results(job, state, best, logits, 12.345)
    assert (found.pop("jax"), found.pop("devices")) == (jax.__version__, "2 x cpu")
    assert found == {
        "task": "toy",
        "metric": "f1",
        "test_scores": {},
        "published": [],
        "scores": {"dev": {"f1": 1.5, "length": 3}, "dev_other": {"f1": 0.0, "length": 9}},
        "baseline": {"dev": {"f1": 0.25, "accuracy": 3}, "dev_other": {"f1": 0.25, "accuracy": 9}},
        "baseline_answers": {"dev": {"best on dev": 0.25}, "dev_other": {"best on dev_other": 0.25}},
        "degenerate": False,
        "best_step": 44,
        "steps": 77,
        "steps_per_epoch": 11,
        "skipped_steps": 4,
        "seed": 5,
        "learning_rate": 0.125,
        "batch_size": 2,
        "epochs": 7,
        "seconds_since_last_start": 12.3,
    }
    logits["dev"] = [np.float32([0.0])]
    task.name = "sick/entailment"
    compared = results(job, state, best, logits | {"test": [np.float32([2.0])]}, 1.0)
    assert (list(compared["scores"]), compared["test_scores"]) == (["dev", "dev_other"], {"test": {"f1": 2.0, "length": 4}})
    accuracies = {row["system"]: row["scores"]["accuracy"] for row in compared["published"]}
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
    assert results(job, state, best, logits, 1.0)["degenerate"] is True
