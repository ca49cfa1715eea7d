"""The content of a pretraining run's results.json."""

from __future__ import annotations

import dataclasses
import platform
import types
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.model.config import published
from bert_jax.model.pretraining import ParameterCounts
from bert_jax.objectives.distillation import PROJECTION
from bert_jax.pretraining import results as module
from bert_jax.pretraining.results import exported_parts, results, trained_model
from bert_jax.training.spikes import WatchedTrainState


@pytest.mark.parametrize(("baseline", "times"), [(0.25, 2.0), (0.0, None)])
def test_a_baseline_of_zero_leaves_the_ratio_to_it_undefined(baseline, times):
    values = {"corpus": {"directory": "corpus"}, "model": published("tiny"), "phases": [{"steps": 3}]}
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("data",))
    experiment = PretrainingExperiment.from_dict(values)
    state = types.SimpleNamespace(step=np.int32(3), skipped=np.int32(0))
    splits = types.SimpleNamespace(train=types.SimpleNamespace(vocabulary=types.SimpleNamespace(sha256="5e0c")))
    found = results(experiment, mesh, state, {"mlm_accuracy": 0.5, "unigram_accuracy": baseline}, splits, 1.0)
    assert found["times_unigram_accuracy"] == times


@pytest.mark.parametrize("policy", ["none", "skip"])
def test_results_have_the_numbers_of_the_last_state(policy, monkeypatch):
    def count(model, parts):
        return ParameterCounts(model.num_layers, 10, 20 * len(parts))

    monkeypatch.setattr(module, "count_parameters", count)
    values = {"model": published("tiny"), "phases": [{"steps": 3}], "spikes": {"policy": policy}}
    experiment, mesh = PretrainingExperiment.from_dict(values), Mesh(np.asarray(jax.devices()[:2]), ("data",))
    numbers = {"step": 9, "skipped": 2, "spikes": 4, "rollbacks": 5, "skipped_batches": 6}
    state = types.SimpleNamespace(**numbers)
    if policy != "none":
        fields = {field.name: numbers.get(field.name, 0) for field in dataclasses.fields(WatchedTrainState)}
        state = WatchedTrainState(**fields)
    splits = types.SimpleNamespace(train=types.SimpleNamespace(vocabulary=types.SimpleNamespace(sha256="5e0c")))
    found = results(experiment, mesh, state, {"mlm_accuracy": 0.5}, splits, 12.3456)
    assert found == {
        "steps": 9,
        "skipped_steps": 2,
        **({} if policy == "none" else {"spikes": 4, "rollbacks": 5, "skipped_batches": 6}),
        "parameters": 2,
        "fixed_parameters": 10,
        "padded_parameters": 100,
        "eval": {"mlm_accuracy": 0.5},
        "times_unigram_accuracy": None,
        "vocabulary_sha256": "5e0c",
        "seconds_since_last_start": 12.3,
        "devices": "2 x cpu",
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def test_the_projection_of_a_distillation_is_not_exported():
    experiment = PretrainingExperiment.from_dict({"model": published("tiny"), "phases": [{"steps": 3}]})
    tokenizer = types.SimpleNamespace()
    found = trained_model(experiment, {"mlm_head": 1, PROJECTION: 2}, tokenizer)
    assert (found.params, found.config, found.tokenizer) == ({"mlm_head": 1}, experiment.model, tokenizer)


@pytest.mark.parametrize(
    ("exported", "temporary", "parts"),
    [
        (None, (), set()),
        ("BertForMaskedLM", (), {"mlm_head"}),
        ("BertForMaskedLM", ("mlm_head",), set()),
        ("BertForPreTraining", (), {"mlm_head", "pooler", "nsp_head"}),
        ("BertForNextSentencePrediction", (), {"pooler", "nsp_head"}),
    ],
)
def test_a_model_is_exported_with_the_parts_of_its_class(exported, temporary, parts):
    objective: Any = types.SimpleNamespace(exported=exported, temporary=temporary)
    config = PretrainingExperiment.from_dict({"model": published("tiny"), "phases": [{"steps": 3}]}).model
    assert exported_parts(objective, config) == {"embeddings", "encoder", *parts}


def test_the_model_card_has_the_data_and_length_of_the_training(tmp_path):
    phases = [{"steps": 3, "batch_size": 4, "length": 64}, {"steps": 2, "batch_size": 2, "length": 128}]
    values = {"model": published("tiny"), "phases": phases, "corpus": {"directory": "runs/mine"}, "init_from": "lab/base"}
    train = types.SimpleNamespace(num_tokens=1200, num_documents=7, directory=tmp_path)
    experiment = PretrainingExperiment.from_dict(values)
    scores = {"mlm_accuracy": 0.5, "unigram_accuracy": 0.25}
    found = module.training_section(
        experiment, types.SimpleNamespace(train=train), scores
    )  # without settings and without the initial model
    assert found.data == "Pretrained on 1,200 tokens in 7 documents of mine."
    assert found.steps == "Steps: 3 of 4 rows of 64 tokens, 2 of 2 rows of 128 tokens, starting from base."
    files: Any = {"optimizer.name": {"path": "/house/of/ada/mine.py", "sha256": "0123456789abcdef"}}
    with_files = module.training_section(experiment, types.SimpleNamespace(train=train), scores, files)  # type: ignore[arg-type]
    assert with_files.steps == f"{found.steps} With the user's files: config.optimizer.name mine.py (0123456789ab)."
    assert found.scores == [("held-out mlm_accuracy", 0.5, 0.25)]
    assert (found.language, found.base_model) == ("", "lab/base")
    (tmp_path / "settings.json").write_text('{"sources": ["embedded"]}')
    assert module.training_section(experiment, types.SimpleNamespace(train=train), scores).language == "en"


@pytest.mark.parametrize("init_from", ["start", ""])
def test_the_card_names_the_licence_and_language_of_the_model_that_training_started_from(tmp_path, monkeypatch, init_from):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "config.json").write_text("{}")
    (tmp_path / "start" / "model.safetensors").touch()
    (tmp_path / "start" / "README.md").write_text("---\nlicense: mit\nlanguage: de\n---\nOurs.\n")
    values = {"model": published("tiny"), "phases": [{"steps": 3}], "init_from": init_from}
    train = types.SimpleNamespace(num_tokens=1, num_documents=1, directory=None)
    experiment = PretrainingExperiment.from_dict(values)
    found = module.training_section(experiment, types.SimpleNamespace(train=train), {})  # type: ignore[arg-type]
    assert (found.license, found.language) == (("mit", "de") if init_from else ("", ""))
