"""The content of a pretraining run's results.json."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import platform
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.corpus.verification import Verifications
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.card import Training, model_card
from bert_jax.model.config import published
from bert_jax.model.pretraining import count_parameters
from bert_jax.objectives.distillation import PROJECTION
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.pretraining.results import (
    exported_parts,
    load_checkpointed_model,
    model_of_last,
    results,
    trained_model,
    training_section,
)
from bert_jax.pretraining.splits import Splits
from bert_jax.training.spikes import WatchedTrainState
from bert_jax.training.steps import TrainState
from tests.data.corpora import corpus_of
from tests.end_to_end.runs import VOCABULARY

CORPUS = corpus_of([[200]] * 6)


def splits_of(train: Corpus = CORPUS, of_phases: Mapping[int, Corpus] | None = None) -> Splits:
    return Splits(train, CORPUS, Verifications([]), of_phases or {})


def state_with(kind: type[TrainState], **numbers: int) -> TrainState:
    """Returns a state of one weight with these counts; all others are 0."""
    fields: Any = {field.name: np.int32(numbers.get(field.name, 0)) for field in dataclasses.fields(kind)}
    return kind(**fields)


@pytest.mark.parametrize(("baseline", "times"), [(0.25, 2.0), (0.0, None)])
def test_a_baseline_of_zero_leaves_the_ratio_to_it_undefined(baseline, times):
    values = {"corpus": {"directory": "corpus"}, "model": published("tiny"), "phases": [{"steps": 3}]}
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("data",))
    experiment = PretrainingExperiment.from_dict(values)
    scores = {"mlm_accuracy": 0.5, "unigram_accuracy": baseline}
    found = results(experiment, mesh, state_with(TrainState, step=3), scores, splits_of(), 1.0)
    assert found["times_unigram_accuracy"] == times


@pytest.mark.parametrize("policy", ["none", "skip"])
def test_results_have_the_numbers_of_the_last_state(policy):
    values = {"model": published("tiny"), "phases": [{"steps": 3}], "spikes": {"policy": policy}}
    experiment, mesh = PretrainingExperiment.from_dict(values), Mesh(np.asarray(jax.devices()[:2]), ("data",))
    state = state_with(
        TrainState if policy == "none" else WatchedTrainState, step=9, skipped=2, spikes=4, rollbacks=5, skipped_batches=6
    )
    splits = splits_of(dataclasses.replace(CORPUS, vocabulary=dataclasses.replace(CORPUS.vocabulary, sha256="5e0c")))
    found = results(experiment, mesh, state, {"mlm_accuracy": 0.5}, splits, 12.3456)
    parameters = count_parameters(experiment.model, experiment.trained_objective.model_parameters())
    assert found == {
        "steps": 9,
        "skipped_steps": 2,
        **({} if policy == "none" else {"spikes": 4, "rollbacks": 5, "skipped_batches": 6}),
        "parameters": parameters.trained,
        "fixed_parameters": 0,
        "padded_parameters": parameters.padded,
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
    tokenizer = load_tokenizer(VOCABULARY, lowercase=True)
    found = trained_model(experiment, {"mlm_head": 1, PROJECTION: 2}, tokenizer)
    assert (found.params, found.config, found.tokenizer) == ({"mlm_head": 1}, experiment.model, tokenizer)


@pytest.mark.parametrize(("positions", "discriminator"), [("learned", 2), ("rotary", None)])
def test_the_discriminator_is_exported_with_an_encoder_that_electra_supports(positions, discriminator):
    objective = "experiments/extensions/replaced_tokens.py:ReplacedTokens"
    model = published("tiny") | {"positions": positions}
    experiment = PretrainingExperiment.from_dict({"objective": objective, "model": model, "phases": [{"steps": 3}]})
    params = {"encoder": 1, "discriminator": 2, "generator": 3}
    found = trained_model(experiment, params, load_tokenizer(VOCABULARY, lowercase=True))
    assert (found.params, found.discriminator) == ({"encoder": 1}, discriminator)


@pytest.mark.parametrize(
    ("exported", "temporary", "parts"),
    [
        (None, (), set()),
        ("BertForMaskedLM", (), {"mlm_head"}),
        ("BertForMaskedLM", ("mlm_head",), set()),
        ("BertForPreTraining", (), {"mlm_head", "pooler", "nsp_head"}),
        ("BertForNextSentencePrediction", (), {"pooler", "nsp_head"}),
        ("ElectraForPreTraining", (), {"discriminator"}),
    ],
)
def test_a_model_is_exported_with_the_parts_of_its_class(exported, temporary, parts):
    objective = type("Mine", (MlmNsp,), {"exported": exported, "temporary": temporary})()
    config = PretrainingExperiment.from_dict({"model": published("tiny"), "phases": [{"steps": 3}]}).model
    assert exported_parts(objective, config) == {"embeddings", "encoder", *parts}


def test_the_model_card_has_the_data_and_length_of_the_training(tmp_path):
    phases = [{"steps": 3, "batch_size": 4, "length": 64}, {"steps": 2, "batch_size": 2, "length": 128}]
    values = {"model": published("tiny"), "phases": phases, "corpus": {"directory": "runs/mine"}, "init_from": "lab/base"}
    train = dataclasses.replace(CORPUS, directory=tmp_path)
    experiment = PretrainingExperiment.from_dict(values)
    phase = experiment.phases[0]
    scores = {"mlm_accuracy": 0.5, "unigram_accuracy": 0.25}
    found = training_section(experiment, splits_of(train), scores)  # without settings and without the initial model
    assert found.data == "Pretrained on 1,200 tokens in 6 documents of mine."
    assert found.steps == "Steps: 3 of 4 rows of 64 tokens, 2 of 2 rows of 128 tokens, starting from base."
    files: Any = {"optimizer.name": {"path": "/house/of/ada/mine.py", "sha256": "0123456789abcdef"}}
    with_files = training_section(experiment, splits_of(train), scores, files)
    assert with_files.steps == f"{found.steps} With the user's files: config.optimizer.name mine.py (0123456789ab)."
    branch = dataclasses.replace(experiment, init_from="", init_state="runs/trunk@2")
    assert training_section(branch, splits_of(train), scores).steps.endswith("of 128 tokens, starting from trunk@2.")
    assert found.scores == [("held-out mlm_accuracy", 0.5, 0.25)]
    assert (found.language, found.base_model) == ("", "lab/base")
    (tmp_path / "settings.json").write_text('{"sources": ["embedded"]}')
    assert training_section(experiment, splits_of(train), scores).language == "en"
    other = dataclasses.replace(corpus_of([[100]] * 3), directory=tmp_path / "other")
    of_phase = dataclasses.replace(experiment, phases=(phase, dataclasses.replace(phase, corpus="runs/theirs")))
    found = training_section(of_phase, splits_of(train, {1: other}), scores)
    assert found.data == "Pretrained on 1,500 tokens in 9 documents of mine and theirs."
    assert found.language == "", "the other corpus may have any language"
    found = training_section(of_phase, splits_of(train, {0: other, 1: other}), scores)
    assert found.data.startswith("Pretrained on 300 tokens in 3 documents of ")


@pytest.mark.parametrize("init_from", ["start", ""])
def test_the_card_names_the_licence_and_language_of_the_model_that_training_started_from(tmp_path, monkeypatch, init_from):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "config.json").write_text("{}")
    (tmp_path / "start" / "model.safetensors").touch()
    (tmp_path / "start" / "README.md").write_text("---\nlicense: mit\nlanguage: de\n---\nOurs.\n")
    values = {"model": published("tiny"), "phases": [{"steps": 3}], "init_from": init_from}
    experiment = PretrainingExperiment.from_dict(values)
    found = training_section(experiment, splits_of(), {})
    assert (found.license, found.language) == (("mit", "de") if init_from else ("", ""))
    if init_from:  # a card that a run wrote
        model = trained_model(experiment, dict.fromkeys(("encoder", "mlm_head"), np.ones(1)), load_tokenizer(VOCABULARY))
        (tmp_path / "start" / "README.md").write_text(model_card(model, Training(base_model="lab/base")))
        assert training_section(experiment, splits_of(), {}).base_model == "lab/base"


def test_a_run_without_checkpoints_has_no_model_of_a_step_on_any_number_of_devices(tmp_path: pathlib.Path):
    experiment = PretrainingExperiment.from_dict({"model": published("tiny"), "phases": [{"steps": 3}], "mesh": {"tensor": 64}})
    (tmp_path / "config.json").write_text(json.dumps(experiment.to_dict() | {"written_by": "bert_jax 1 pretrain"}))
    with pytest.raises(UserError, match=r"--step=7: .* has no checkpoint of that step; .*keep_at='\[7\]'"):
        load_checkpointed_model(tmp_path, 7)
    assert not (tmp_path / "checkpoints").exists()


def test_a_mean_of_checkpoints_does_not_include_states_that_were_kept_on_their_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """The steps 10 and 20 are from `checkpoints.keep_at`, and 47 was saved at a stop. The saves of steps 60 and 70 failed."""
    values = {"model": published("tiny"), "phases": [{"steps": 80}], "checkpoints": {"every": 10, "keep_at": [10, 20]}}
    config = PretrainingExperiment.from_dict(values).to_dict() | {"written_by": "bert_jax 1 pretrain"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for step in (10, 20, 40, 47, 50, 80):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    with pytest.raises(UserError, match=r"--last=5: .* between steps 20 and 40, .*; give --last=4, or .*checkpoints.keep=5"):
        model_of_last(tmp_path, 5)
    monkeypatch.setattr("bert_jax.pretraining.results.pretraining_program", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # these checkpoints are accepted, and the program would restore them
        model_of_last(tmp_path, 4)
