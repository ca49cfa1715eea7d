"""The held-out scores of a pretraining run."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import types
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.batches import eval_batches
from bert_jax.data.config import ExampleConfig
from bert_jax.data.corpus.store import Corpus, TokenStore
from bert_jax.errors import UserError
from bert_jax.pretraining import evaluation
from bert_jax.pretraining.program import pretraining_program
from bert_jax.pretraining.splits import PhaseBatches
from bert_jax.runtime.goodput import TimeCategory
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from tests.data.corpora import FIRST, corpus_from_arrays, corpus_of, random_documents, vocabulary
from tests.random_rows import drawn_parameters

VOCABULARY = 9
SPECIALS = types.SimpleNamespace(unk_id=0, sep_id=5)
TARGETS = np.array([[1, 2], [3, -1], [1, 8], [8, 8], [0, -1], [1, 1], [-1, -1], [-1, -1]], np.int32)
"""Two batches of four rows, in which the last two rows are empty."""


def plan_of(experiment: PretrainingExperiment) -> Any:
    return types.SimpleNamespace(config=experiment.example_config(0))


class Watched:
    """A watchdog and a goodput recorder that record their calls."""

    def __init__(self) -> None:
        self.alive_in: list[str] = []
        self.timed: list[TimeCategory] = []

    def alive(self, doing: str) -> None:
        self.alive_in.append(doing)

    @contextlib.contextmanager
    def during(self, category: TimeCategory) -> Iterator[None]:
        self.timed.append(category)
        yield


def step() -> jax.stages.Wrapped:
    """Returns an evaluation step in which the loss of every target is the parameter times the target."""

    def sums(params: jax.Array, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        targets, labels = batch["masked_targets"], batch["nsp_labels"]
        found = {"mlm_targets": targets >= 0, "mlm_loss": params * jnp.maximum(targets, 0), "mlm_correct": targets == 1}
        found |= {"nsp_examples": labels >= 0, "nsp_loss": params * (labels == 0), "nsp_correct": labels == 0}
        return {name: array.sum(dtype=jnp.float32) for name, array in found.items()}

    return jax.jit(sums)


def test_scores_are_means_over_all_rows_for_any_batches_and_devices(monkeypatch: pytest.MonkeyPatch):
    shown: list[Any] = []

    @contextlib.contextmanager
    def progress(*about: Any) -> Iterator[Any]:
        assert about == ("held-out rows", "rows", True)
        yield lambda done, total: shown.append((done, total))

    monkeypatch.setattr(evaluation, "evaluation_progress", progress)
    train, eval_split = training_and_eval()
    sizes = {"vocab_size": train.vocabulary.size, "hidden_size": 8, "num_heads": 2, "intermediate_size": 8, "num_layers": 1}
    phases = [{"steps": 1, "length": 32, "batch_size": 4, "max_predictions": 5}] * 2
    params = None
    found: list[dict[str, float]] = []
    for batch_size, devices in ((8, 2), (24, 1)):
        values = {"model": sizes, "phases": phases, "evaluation": {"rows": 22, "batch_size": batch_size}}
        experiment = PretrainingExperiment.from_dict(values)
        mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
        program = pretraining_program(experiment, mesh)
        splits: Any = types.SimpleNamespace(train=train, eval=eval_split)
        watched = Watched()
        run: Any = types.SimpleNamespace(is_first=True, watchdog=watched, goodput=watched)
        run.compiling = lambda goodput: goodput.during(TimeCategory.COMPILING)
        params = params or drawn_parameters(experiment.model)
        plan = PhaseBatches(experiment, 1, train).source.plan(0)
        evaluate = evaluation.Evaluation(experiment, program, 1, splits, run, plan)
        with jax.set_mesh(mesh):
            found.append(evaluate(params))
            assert evaluate(params) == found[-1]
        assert watched.timed == [TimeCategory.COMPILING], "the step is compiled once"
        assert watched.alive_in == 2 * (24 // batch_size) * ["evaluation"]
        assert shown == 2 * [(min(done, 22), 22) for done in range(batch_size, 25, batch_size)]
        shown.clear()
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0].keys() >= {"mlm_loss", "mlm_accuracy", "unigram_loss", "nsp_loss", "nsp_accuracy", "nsp_majority_accuracy"}


def test_held_out_rows_equal_those_of_earlier_versions():
    assert evaluation.EVAL_SEED == 20_181_011


def test_word_perplexity_equals_a_loop_over_words(monkeypatch: pytest.MonkeyPatch):
    """There are three words of one, two and three pieces; pieces 6 to 8 continue words. The loss of a target is half the
    target."""
    words = [[2], [3, 6], [4, 7, 8]]
    targets = np.array([[2, 3, 6], [4, 7, 8], [-1, -1, -1], [-1, -1, -1]], np.int32)
    whole = {"masked_targets": targets, "nsp_labels": np.full((4, 1), -1, np.int32)}
    batches = [{name: rows[first : first + 2] for name, rows in whole.items()} for first in (0, 2)]
    continuation = np.arange(VOCABULARY) >= 6
    numbers: list[list[int]] = []
    monkeypatch.setattr(evaluation, "eval_batches", lambda *settings, row_multiple: iter(batches))
    monkeypatch.setattr(evaluation, "corpus_masking_tables", lambda corpus: f"tables of {corpus}")

    def plan_epoch(corpus: str, examples: ExampleConfig, *, seed: int, epoch: int) -> Any:
        assert (corpus, examples.length, seed, epoch) == ("held out", 8, evaluation.EVAL_SEED, 0)
        return types.SimpleNamespace(num_rows=2)

    def begun(corpus: Any, plan: Any, rows: Any, batch: dict[str, np.ndarray], tables: Any) -> np.ndarray:
        assert (corpus, plan.num_rows, tables) == ("held out", 2, "tables of held out")
        numbers.append(rows.tolist())
        return (batch["masked_targets"] >= 0) & ~continuation[batch["masked_targets"]]

    monkeypatch.setattr(evaluation, "words_begun", begun)
    monkeypatch.setattr(evaluation, "plan_epoch", plan_epoch)
    train = types.SimpleNamespace(token_counts=np.ones(VOCABULARY, np.int64), vocabulary=SPECIALS)
    splits: Any = types.SimpleNamespace(train=train, eval="held out")
    watched = Watched()
    run: Any = types.SimpleNamespace(is_first=True, watchdog=watched, goodput=watched)
    run.compiling = lambda goodput: goodput.during(TimeCategory.COMPILING)
    for masking in ("words", "whole_words", "tokens"):
        values = {"examples": {"masking": masking}, "phases": [{"steps": 1, "length": 8, "max_predictions": 3}]}
        experiment, mesh = PretrainingExperiment.from_dict(values), make_mesh(MeshConfig(), jax.devices()[:1])
        program: Any = types.SimpleNamespace(mesh=mesh, evaluation_step=step(), gathered=lambda x: x, is_new=lambda *_: True)
        found = evaluation.Evaluation(experiment, program, 0, splits, run, plan_of(experiment))(jnp.float32(0.5))
        of_words = [sum(0.5 * piece for piece in word) for word in words]
        assert found["perplexity"] == pytest.approx(math.exp(sum(of_words) / 6))
        wanted = None if masking == "tokens" else pytest.approx(math.exp(sum(of_words) / len(words)))
        assert found.get("word_perplexity") == wanted
    assert numbers == 2 * [[0, 1], [1, 1]], "the empty rows after the last one have its number"


def test_rows_in_which_only_the_first_piece_is_predicted_are_evaluated(monkeypatch: pytest.MonkeyPatch):
    targets = np.array([[0, -1], [-1, 0], [-1, -1], [-1, -1]], np.int32)
    batch = {"masked_targets": targets, "nsp_labels": np.full((4, 1), -1, np.int32)}
    monkeypatch.setattr(evaluation, "eval_batches", lambda *settings, row_multiple: iter([batch]))
    train = types.SimpleNamespace(token_counts=np.ones(VOCABULARY, np.int64), vocabulary=SPECIALS)
    splits: Any = types.SimpleNamespace(train=train, eval="held out")
    experiment = PretrainingExperiment.from_dict({"phases": [{"steps": 1, "length": 8, "max_predictions": 3}]})
    program: Any = types.SimpleNamespace(mesh=make_mesh(MeshConfig(), jax.devices()[:1]))
    run: Any = types.SimpleNamespace()
    assert evaluation.Evaluation(experiment, program, 0, splits, run, plan_of(experiment))._count == 2


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
        ("bert", {"length": 48, "max_predictions": 8}, {"pairs": "none"}),
        ("next_token", {"length": 32, "max_predictions": 31}, {"pairs": "none"}),
        ("next_token", {"length": 64, "max_predictions": 20}, {"pairs": "none"}),
        ("next_token", {"length": 64, "max_predictions": 63, "packed_examples": 3}, {"pairs": "none"}),
        ("bilm", {"length": 32, "max_predictions": 31}, {"pairs": "none"}),
        ("bilm", {"length": 64, "max_predictions": 20, "packed_examples": 2}, {"pairs": "none"}),
        ("skip_gram", {"length": 32, "max_predictions": 31}, {"pairs": "none"}),
    ],
)
def test_the_unigram_baseline_uses_frequencies_of_training_predictions(
    objective: str, phase: dict[str, int], examples: dict[str, str]
):
    """By brute force: all predictions of six training epochs are counted, and these frequencies predict all held-out targets."""
    train, eval_split = training_and_eval()
    model = {"vocab_size": train.vocabulary.size, **MODELS[objective]}
    values = {"model": model, "examples": examples, "phases": [{"steps": 1, "batch_size": 16, **phase}]}
    experiment = PretrainingExperiment.from_dict(values)
    program: Any = types.SimpleNamespace(mesh=make_mesh(MeshConfig(), jax.devices()[:1]))
    splits: Any = types.SimpleNamespace(train=train, eval=eval_split)
    source = PhaseBatches(experiment, 0, train).source
    evaluate = evaluation.Evaluation(experiment, program, 0, splits, types.SimpleNamespace(), source.plan(0))  # type: ignore[arg-type]
    found = evaluate._baseline
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


def test_the_next_sentence_baseline_exists_only_for_pairs():
    train, eval_split = training_and_eval()
    found = {}
    for objective, model in MODELS.items():
        pairs = "original" if objective == "bert" else "none"
        phase = {"steps": 1, "length": 32, "max_predictions": 5}
        values = {"model": {"vocab_size": train.vocabulary.size, **model}, "examples": {"pairs": pairs}, "phases": [phase]}
        experiment = PretrainingExperiment.from_dict(values)
        program: Any = types.SimpleNamespace(mesh=make_mesh(MeshConfig(), jax.devices()[:1]))
        splits: Any = types.SimpleNamespace(train=train, eval=eval_split)
        plan = PhaseBatches(experiment, 0, train).source.plan(0)
        run: Any = types.SimpleNamespace()
        found[objective] = set(evaluation.Evaluation(experiment, program, 0, splits, run, plan)._baseline)
    words = {"unigram_accuracy", "unigram_loss"}
    assert found == {"bert": words | {"nsp_majority_accuracy"}, "next_token": words, "bilm": words, "skip_gram": set()}


@pytest.mark.parametrize(("objective", "length"), [*((objective, 3) for objective in MODELS), ("skip_gram", 4)])
def test_the_shortest_rows_are_evaluated_or_refused(objective: str, length: int):
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
    program = pretraining_program(experiment, mesh)
    splits: Any = types.SimpleNamespace(train=train, eval=eval_split)
    watched = Watched()
    run: Any = types.SimpleNamespace(is_first=True, watchdog=watched, goodput=watched)
    run.compiling = lambda goodput: contextlib.nullcontext()
    plan = PhaseBatches(experiment, 0, train).source.plan(0)
    evaluate = evaluation.Evaluation(experiment, program, 0, splits, run, plan)
    params = {name: part for name, part in drawn_parameters(experiment.model).items() if name not in ("pooler", "nsp_head")}
    with jax.set_mesh(mesh):
        scores = evaluate(params)
    measure = "mlm" if objective == "bert" else objective
    assert np.isfinite(scores[f"{measure}_loss"])
    assert 0 <= scores[f"{measure}_accuracy"] <= 1


@pytest.mark.parametrize("objective", MODELS)
def test_held_out_rows_without_predictions_are_refused(objective: str):
    train, eval_split = training_and_eval()
    unknown = TokenStore((np.full_like(eval_split.tokens.shards[0], 100),), eval_split.tokens.bounds)
    words = dataclasses.replace(eval_split, tokens=unknown)
    sizes = {"vocab_size": train.vocabulary.size, "hidden_size": 8, "num_heads": 2, "intermediate_size": 8, "num_layers": 1}
    phase = {"steps": 1, "length": 8, "batch_size": 4, "max_predictions": 1}
    values = {"model": {**sizes, **MODELS[objective]}, "examples": {"pairs": "none", "masked_fraction": 0.1}, "phases": [phase]}
    experiment = PretrainingExperiment.from_dict(values)
    program: Any = types.SimpleNamespace(mesh=make_mesh(MeshConfig(), jax.devices()[:1]))
    splits: Any = types.SimpleNamespace(train=train, eval=words)
    plan = PhaseBatches(experiment, 0, train).source.plan(0)
    if objective != "bert":  # the other objectives predict the [SEP]s
        evaluation.Evaluation(experiment, program, 0, splits, types.SimpleNamespace(), plan)  # type: ignore[arg-type]
        return
    with pytest.raises(UserError, match=r"the held-out rows of 8 tokens have nothing to predict: their tokens are unknown"):
        evaluation.Evaluation(experiment, program, 0, splits, types.SimpleNamespace(), plan)  # type: ignore[arg-type]
