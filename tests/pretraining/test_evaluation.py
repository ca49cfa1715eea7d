"""The held-out scores of a pretraining run."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
import optax
import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.batches import BatchSource, eval_batches
from bert_jax.data.corpus.store import Corpus, TokenStore
from bert_jax.data.corpus.verification import Verifications
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.model.config import published
from bert_jax.objectives.scores import unigram_baseline
from bert_jax.pretraining import evaluation
from bert_jax.pretraining.program import pretraining_program
from bert_jax.pretraining.splits import PhaseBatches, Splits
from bert_jax.runtime.interruptions import Preemption, Watchdog
from bert_jax.runtime.launch import Run
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.training.steps import Program
from tests.data.corpora import FIRST, corpus_from_arrays, corpus_of, random_documents, vocabulary
from tests.end_to_end.runs import VOCABULARY
from tests.random_rows import drawn_parameters, program_for


@pytest.fixture
def run(tmp_path: pathlib.Path) -> Run:
    return Run(tmp_path, True, Preemption(), Watchdog(tmp_path, floor=0.0, start=0.0))


def evaluation_of(
    experiment: PretrainingExperiment,
    splits: tuple[Corpus, Corpus],
    run: Run,
    program: Program | None = None,
    of_phases: Mapping[int, Corpus] | None = None,
    source: BatchSource | None = None,
) -> evaluation.Evaluation:
    """Returns the evaluation of the last phase. Only a call needs a `program` with the parameters."""
    program = program or program_for(experiment.trained_objective, optax.sgd(1.0))
    phase, found = len(experiment.phases) - 1, Splits(*splits, Verifications([]), of_phases or {})
    source = source or PhaseBatches(experiment, phase, found.for_phase(phase)).source
    return evaluation.Evaluation(experiment, program, phase, found, run, source)


def in_words(corpus: Corpus) -> Corpus:
    """Returns the same corpus in pieces of words, most of which are single letters."""
    tokenizer = load_tokenizer(VOCABULARY, lowercase=True)
    ids = (5 + (corpus.tokens.shards[0].astype(np.int64) - FIRST) % (tokenizer.size - 5)).astype(np.uint32)
    offsets = np.asarray(corpus.sentence_offsets), np.asarray(corpus.document_offsets)
    found = corpus_from_arrays(ids, *offsets, tokenizer.vocabulary)
    return dataclasses.replace(found, tokenizer=tokenizer, split=corpus.split)


def test_scores_are_means_over_all_rows_for_any_batches_and_devices(run: Run, monkeypatch: pytest.MonkeyPatch):
    """The losses of a word are added, so a word is less probable than each of its pieces."""
    splits = tuple(map(in_words, training_and_eval()))
    train, eval_split = splits
    sizes = {"vocab_size": train.vocabulary.size, "hidden_size": 8, "num_heads": 2, "intermediate_size": 8, "num_layers": 1}
    phases = [{"steps": 1, "length": 32, "batch_size": 4, "max_predictions": 5}] * 2
    values = {"model": sizes, "phases": phases, "examples": {"masking": "whole_words"}}
    params = None
    found: list[dict[str, float]] = []
    for batch_size, devices in ((8, 2), (24, 1)):
        experiment = PretrainingExperiment.from_dict(values | {"evaluation": {"rows": 22, "batch_size": batch_size}})
        mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
        params = params or drawn_parameters(experiment.model)
        evaluate = evaluation_of(experiment, (train, eval_split), run, pretraining_program(experiment, mesh))
        with jax.set_mesh(mesh), monkeypatch.context() as planned:
            planned.setattr("bert_jax.data.batches.plan_epoch", None)  # an evaluation does not plan the held-out split again
            found.append(evaluate(params))
            compiling = run.goodput.record()["seconds"]["compiling"]
            assert evaluate(params) == found[-1]
        assert run.goodput.record()["seconds"]["compiling"] == compiling, "the step is compiled once"
        assert " in evaluation (" in run.watchdog.hang(), "each batch is progress"
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0].keys() >= {"mlm_loss", "mlm_accuracy", "unigram_loss", "nsp_loss", "nsp_accuracy", "nsp_majority_accuracy"}

    assert train.tokenizer is not None
    whole = eval_batches(eval_split, experiment.example_config(1), 8, 22, evaluation.EVAL_SEED)
    predicted = [train.tokenizer.pieces[i] for i in predictions(whole, "bert")]
    words = sum(not piece.startswith("##") for piece in predicted)
    assert 0 < words < len(predicted)
    assert np.log(found[0]["word_perplexity"]) == pytest.approx(np.log(found[0]["perplexity"]) * len(predicted) / words)
    tokens = PretrainingExperiment.from_dict(values | {"examples": {"masking": "tokens"}})
    assert "word_perplexity" not in evaluation_of(tokens, (train, eval_split), run)._formulas


def test_held_out_rows_equal_those_of_earlier_versions():
    assert evaluation.EVAL_SEED == 20_181_011


def training_and_eval() -> tuple[Corpus, Corpus]:
    """Returns two splits of Zipf-distributed tokens in texts of skewed lengths, some of one token; 1 in 25 is [UNK]."""
    splits = []
    for seed, documents in ((1, random_documents(120, seed=1)), (2, random_documents(30, seed=2))):
        corpus = corpus_of(documents)
        rng = np.random.default_rng(seed)
        ids = FIRST + np.minimum(rng.zipf(1.2, corpus.num_tokens) - 1, 59).astype(np.uint32)
        ids[rng.random(len(ids)) < 0.04] = corpus.vocabulary.unk_id
        info = vocabulary(FIRST + 60)
        offsets = np.asarray(corpus.sentence_offsets), np.asarray(corpus.document_offsets)
        splits.append(corpus_from_arrays(ids, *offsets, info))
    train, eval_split = splits
    return train, dataclasses.replace(eval_split, split="eval", token_counts=train.token_counts)


def predictions(batches: Iterable[dict[str, np.ndarray]], objective: str) -> list[int]:
    """Yields every id that a model of this objective predicts, in a loop over rows and positions."""
    asked = []
    for batch in batches:
        for row in range(len(batch["input_ids"])):
            ids = [*batch["sequence_ids"][row].tolist(), 0, 0]
            positions, targets = batch["masked_positions"][row].tolist(), batch["masked_targets"][row].tolist()
            for position, target in zip(positions, targets, strict=True):
                if target >= 0:
                    asked += [target] * (2 if objective == "bilm" and ids[position + 2] == ids[position] else 1)
    return asked


MODELS: dict[str, dict[str, Any]] = {
    "bert": {},
    "next_token": {"direction": "left_to_right"},
    "bilm": {"encoder": "bilm", "num_layers": 2},
    "skip_gram": {"encoder": "static", "num_layers": 0},
}


@pytest.mark.parametrize(
    ("objective", "phase", "examples"),
    [
        ("bert", {"length": 48, "max_predictions": 8}, {"pairs": "original"}),
        ("next_token", {"length": 64, "max_predictions": 63}, {"pairs": "none"}),
        ("bilm", {"length": 64, "max_predictions": 20, "packed_examples": 2}, {"pairs": "none"}),
        ("skip_gram", {"length": 32, "max_predictions": 31}, {"pairs": "none"}),
    ],
)
def test_the_unigram_baseline_uses_frequencies_of_training_predictions(
    objective: str, phase: dict[str, int], examples: dict[str, str], run: Run
):
    """By brute force: all predictions of six training epochs are counted, and these frequencies predict all held-out targets."""
    train, eval_split = training_and_eval()
    model = {"vocab_size": train.vocabulary.size, **MODELS[objective]}
    values = {"model": model, "examples": examples, "phases": [{"steps": 1, "batch_size": 16, **phase}]}
    experiment = PretrainingExperiment.from_dict(values)
    source = PhaseBatches(experiment, 0, train).source
    found = evaluation_of(experiment, (train, eval_split), run)._baseline
    if objective == "skip_gram":
        assert not found
        return
    epochs = [source.at(step) for step in range(6 * source.rows_per_epoch // 16)]
    counts = np.bincount(predictions(epochs, objective), minlength=train.vocabulary.size)
    counts = counts * (train.token_counts[FIRST:].sum() / counts[FIRST:].sum())  # add-one smoothing as for the corpus
    rows = eval_batches(eval_split, experiment.example_config(0), 16, None, evaluation.EVAL_SEED)
    asked = np.array(predictions(rows, objective))
    frequency = (counts + 1) / (counts + 1).sum()
    assert found["unigram_loss"] == pytest.approx(-np.log(frequency[asked]).mean(), abs=0.02)
    assert found["unigram_accuracy"] == (asked == counts.argmax()).mean()
    corpus_alone = (train.token_counts + 1) / (train.token_counts + 1).sum()
    if objective != "bert":  # the corpus has no [SEP]
        assert -np.log(corpus_alone[asked]).mean() > found["unigram_loss"] + 0.1


def test_the_baselines_of_a_phase_with_its_own_corpus_are_those_of_this_corpus(run: Run):
    train, eval_split = training_and_eval()
    other = dataclasses.replace(train, token_counts=np.append(train.token_counts[:FIRST], train.token_counts[FIRST:][::-1]))
    model, phase = {"vocab_size": train.vocabulary.size}, {"steps": 1, "length": 32, "max_predictions": 5}
    values = {"model": model, "phases": [phase, {**phase, "corpus": "other"}], "evaluation": {"rows": 8, "batch_size": 8}}
    experiment = PretrainingExperiment.from_dict(values)
    found = evaluation_of(experiment, (train, eval_split), run, of_phases={1: other})._baseline
    assert found == evaluation_of(experiment, (other, eval_split), run)._baseline
    assert found != evaluation_of(experiment, (train, eval_split), run)._baseline


def test_the_baseline_of_a_translation_counts_the_translations_of_a_block(run: Run):
    """By brute force: the targets in all rows of the first of three blocks predict the held-out targets."""
    corpus = dataclasses.replace(corpus_of([[1 + n % 5, 1 + n % 7] for n in range(90)]), languages=("en", "de"))
    model, phase = published("transformer_base") | {"vocab_size": corpus.vocabulary.size}, {"steps": 1, "length": 24}
    values = {"model": model, "examples": {"pairs": "none", "packed_examples": 6}, "phases": [phase]}
    experiment = PretrainingExperiment.from_dict(values)
    source = BatchSource(corpus, experiment.example_config(0), 1, 0, block_tokens=corpus.num_tokens // 3 + 1)
    rows, (held_out,) = source.plan(0).num_rows, eval_batches(corpus, experiment.eval_config(0), 99, None, evaluation.EVAL_SEED)
    assert source.rows_per_epoch == 3 * rows
    targets = np.concatenate([source.at(row)["targets"] for row in range(rows)])
    counts = np.bincount(targets[targets >= 0], minlength=corpus.vocabulary.size)
    found = evaluation_of(experiment, (corpus, corpus), run, source=source)._baseline
    assert found == unigram_baseline(counts, held_out["targets"])


def test_the_next_sentence_baseline_exists_only_for_pairs(run: Run):
    train, eval_split = training_and_eval()
    found = {}
    for objective, model in MODELS.items():
        pairs = "original" if objective == "bert" else "none"
        phase = {"steps": 1, "length": 32, "max_predictions": 5}
        values = {"model": {"vocab_size": train.vocabulary.size, **model}, "examples": {"pairs": pairs}, "phases": [phase]}
        experiment = PretrainingExperiment.from_dict(values)
        found[objective] = set(evaluation_of(experiment, (train, eval_split), run)._baseline)
    words = {"unigram_accuracy", "unigram_loss"}
    assert found == {"bert": words | {"nsp_majority_accuracy"}, "next_token": words, "bilm": words, "skip_gram": set()}


@pytest.mark.parametrize(("objective", "length"), [*((objective, 3) for objective in MODELS), ("skip_gram", 4)])
def test_the_shortest_rows_are_evaluated_or_refused(objective: str, length: int, run: Run):
    """The test covers every kind of model on the shortest rows that it can read, with one or two tokens between [CLS] and
    [SEP]."""
    train, eval_split = training_and_eval()
    sizes = {"vocab_size": train.vocabulary.size, "hidden_size": 8, "num_heads": 2, "intermediate_size": 8, "num_layers": 1}
    predictions = 1 if objective == "bert" else length - 1
    values = {
        "model": {**sizes, **MODELS[objective]},
        "examples": {"pairs": "none"},
        "phases": [{"steps": 1, "length": length, "batch_size": 4, "max_predictions": predictions}],
        "evaluation": {"rows": 8, "batch_size": 8},
    }
    if (objective, length) == ("skip_gram", 3):
        with pytest.raises(UserError, match=r"config\.phases\.0\.length=3 leaves room for one token .*; set it to at least 4"):
            PretrainingExperiment.from_dict(values)
        return
    experiment = PretrainingExperiment.from_dict(values)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    evaluate = evaluation_of(experiment, (train, eval_split), run, pretraining_program(experiment, mesh))
    params = {name: part for name, part in drawn_parameters(experiment.model).items() if name not in ("pooler", "nsp_head")}
    with jax.set_mesh(mesh):
        scores = evaluate(params)
    measure = "mlm" if objective == "bert" else objective
    assert np.isfinite(scores[f"{measure}_loss"])
    assert 0 <= scores[f"{measure}_accuracy"] <= 1


@pytest.mark.parametrize("objective", MODELS)
def test_held_out_rows_without_predictions_are_refused(objective: str, run: Run):
    train, eval_split = training_and_eval()
    unknown = TokenStore((np.full_like(eval_split.tokens.shards[0], 100),), eval_split.tokens.bounds)
    words = dataclasses.replace(eval_split, tokens=unknown)
    sizes = {"vocab_size": train.vocabulary.size, "hidden_size": 8, "num_heads": 2, "intermediate_size": 8, "num_layers": 1}
    phase = {"steps": 1, "length": 8, "batch_size": 4, "max_predictions": 1}
    values = {"model": {**sizes, **MODELS[objective]}, "examples": {"pairs": "none", "masked_fraction": 0.1}, "phases": [phase]}
    experiment = PretrainingExperiment.from_dict(values)
    if objective != "bert":  # the other objectives predict the [SEP]s
        evaluation_of(experiment, (train, words), run)
        return
    with pytest.raises(UserError, match=r"the held-out rows of 8 tokens have nothing to predict: their tokens are unknown"):
        evaluation_of(experiment, (train, words), run)
