"""The held-out scores of a pretraining run."""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.metrics.ledger import Activity
from bert_jax.metrics.scores import unigram_baseline
from bert_jax.pretraining import evaluation
from bert_jax.sharding.mesh import MeshConfig, make_mesh

ROWS, BATCH_SIZE, VOCABULARY = 6, 4, 9
TARGETS = np.array([[1, 2], [3, -1], [1, 8], [8, 8], [0, -1], [1, 1], [-1, -1], [-1, -1]], np.int32)
LABELS = np.array([[0], [1], [1], [1], [0], [1], [-1], [-1]], np.int32)
"""Of two batches of four rows: the last two rows are empty."""


class Watched:
    """A watchdog and a ledger that note their calls."""

    def __init__(self) -> None:
        self.alive_in: list[str] = []
        self.timed: list[Activity] = []

    def alive(self, doing: str) -> None:
        self.alive_in.append(doing)

    @contextlib.contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        self.timed.append(activity)
        yield


def heldout_rows(shard: tuple[int, int]) -> Iterator[dict[str, np.ndarray]]:
    for i in (0, BATCH_SIZE):
        rows = slice(i + shard[0], i + BATCH_SIZE, shard[1])
        yield {"masked_targets": TARGETS[rows], "nsp_labels": LABELS[rows]}


def step_of(experiment: PretrainingExperiment, mesh: Mesh) -> jax.stages.Wrapped:
    """An evaluation step whose loss of every target is the parameter times the target."""
    assert mesh.size == len(experiment.phases)

    def sums(params: jax.Array, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        targets, labels = batch["masked_targets"], batch["nsp_labels"]
        found = {"mlm_targets": targets >= 0, "mlm_loss": params * jnp.maximum(targets, 0), "mlm_correct": targets == 1}
        found |= {"nsp_examples": labels >= 0, "nsp_loss": params * (labels == 0), "nsp_correct": labels == 0}
        return {name: array.sum(dtype=jnp.float32) for name, array in found.items()}

    return jax.jit(sums)


def test_the_scores_are_means_over_all_rows_beside_baselines_and_the_step_is_compiled_once(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    shown: list[tuple[int, int]] = []

    def heldout(*settings: Any) -> Iterator[dict[str, np.ndarray]]:
        asked.append(settings)
        return heldout_rows(settings[5] if len(settings) > 5 else (0, 1))

    @contextlib.contextmanager
    def progress(what: str, is_shown: bool) -> Iterator[Any]:
        assert (what, is_shown) == ("held-out rows", True)
        yield lambda done, total: shown.append((done, total))

    monkeypatch.setattr(evaluation, "heldout_batches", heldout)
    monkeypatch.setattr(evaluation, "evaluation_progress", progress)
    monkeypatch.setattr(evaluation, "jitted_eval_step", step_of)
    monkeypatch.setattr(evaluation, "trained_parameters", lambda experiment: experiment.seed)
    monkeypatch.setattr(evaluation, "parameter_shardings", lambda boxed, mesh: NamedSharding(mesh, PartitionSpec()))
    demands: list[Any] = []

    @contextlib.contextmanager
    def fits(demand: Any) -> Iterator[None]:
        demand()
        yield

    monkeypatch.setattr(evaluation, "fits_in_memory", fits)
    monkeypatch.setattr(evaluation, "evaluation_demand", lambda *about: demands.append(about))
    mesh = make_mesh(MeshConfig(), jax.devices()[:2])
    phases = [{"steps": 1, "length": 8, "max_predictions": 2}, {"steps": 1, "length": 16, "max_predictions": 4}]
    values = {"phases": phases, "evaluation": {"batch_size": BATCH_SIZE, "rows": 100}, "seed": 3}
    experiment = PretrainingExperiment.from_dict(values)
    counts = np.arange(VOCABULARY)
    train = types.SimpleNamespace(token_counts=counts)
    program: Any = types.SimpleNamespace(experiment=experiment, mesh=mesh)
    corpora: Any = types.SimpleNamespace(train=train, heldout="held out")
    watched = Watched()
    run: Any = types.SimpleNamespace(is_first=True, watchdog=watched, ledger=watched)
    run.compiling = lambda ledger: ledger.during(Activity.COMPILING)
    evaluate = evaluation.HeldoutEvaluation(program, 1, corpora, run)
    found = evaluate(jnp.float32(0.5))

    used = TARGETS[TARGETS >= 0]
    assert found["mlm_loss"] == pytest.approx(0.5 * used.mean())
    assert found["mlm_accuracy"] == pytest.approx((used == 1).mean())
    assert found["nsp_accuracy"] == pytest.approx(2 / ROWS)
    assert found["nsp_majority_accuracy"] == pytest.approx(4 / ROWS)
    assert found | unigram_baseline(counts, TARGETS) == found
    assert evaluate(jnp.float32(1.0))["mlm_loss"] == pytest.approx(used.mean())
    settings = ("held out", experiment.example_config(1), BATCH_SIZE, 100, evaluation.HELDOUT_SEED)
    assert asked == [settings, (*settings, (0, 1)), (*settings, (0, 1))]
    assert shown == 2 * [(BATCH_SIZE, ROWS), (ROWS, ROWS)]
    assert watched.timed == [Activity.COMPILING]
    assert watched.alive_in == 4 * ["evaluation"]
    assert demands == 2 * [(experiment, 1, mesh)]


def test_held_out_rows_are_the_same_as_in_earlier_versions():
    assert evaluation.HELDOUT_SEED == 20_181_011


def test_the_loss_of_a_word_is_that_of_its_pieces(monkeypatch: pytest.MonkeyPatch):
    """Of the targets, 1 and 8 continue words."""
    continuation = np.isin(np.arange(VOCABULARY), [1, 8])
    monkeypatch.setattr(evaluation, "tables_of", lambda corpus: types.SimpleNamespace(continuation=continuation))
    beginning = np.count_nonzero(np.isin(TARGETS, [0, 2, 3]))
    found = evaluation._tokens_per_word(TARGETS, None, "words")
    assert found == np.count_nonzero(TARGETS >= 0) / beginning
    assert evaluation._tokens_per_word(TARGETS, None, "tokens") is None
    assert evaluation._tokens_per_word(np.array([[1, 8, -1]]), None, "words") == 2  # of a word whose beginning is not predicted


def test_the_perplexity_of_words_is_that_of_a_loop_over_words(monkeypatch: pytest.MonkeyPatch):
    """Three words of one, two and three pieces; pieces 6 to 8 continue words. The loss of a target is half the target."""
    words = [[2], [3, 6], [4, 7, 8]]
    targets = np.array([[2, 3, 6], [4, 7, 8], [-1, -1, -1], [-1, -1, -1]], np.int32)
    batch = {"masked_targets": targets, "nsp_labels": np.full((4, 1), -1, np.int32)}
    continuation = np.arange(VOCABULARY) >= 6
    monkeypatch.setattr(evaluation, "heldout_batches", lambda *settings: iter([batch]))
    monkeypatch.setattr(evaluation, "jitted_eval_step", step_of)
    monkeypatch.setattr(evaluation, "trained_parameters", lambda experiment: 0)
    monkeypatch.setattr(evaluation, "parameter_shardings", lambda boxed, mesh: NamedSharding(mesh, PartitionSpec()))
    monkeypatch.setattr(evaluation, "tables_of", lambda corpus: types.SimpleNamespace(continuation=continuation))
    train = types.SimpleNamespace(token_counts=np.ones(VOCABULARY, np.int64))
    corpora: Any = types.SimpleNamespace(train=train, heldout="held out")
    watched = Watched()
    run: Any = types.SimpleNamespace(is_first=True, watchdog=watched, ledger=watched)
    run.compiling = lambda ledger: ledger.during(Activity.COMPILING)
    for masking in ("words", "whole_words", "tokens"):
        values = {"examples": {"masking": masking}, "phases": [{"steps": 1, "length": 8, "max_predictions": 3}]}
        program: Any = types.SimpleNamespace(
            experiment=PretrainingExperiment.from_dict(values), mesh=make_mesh(MeshConfig(), jax.devices()[:1])
        )
        found = evaluation.HeldoutEvaluation(program, 0, corpora, run)(jnp.float32(0.5))
        of_words = [sum(0.5 * piece for piece in word) for word in words]
        assert found["perplexity"] == pytest.approx(math.exp(sum(of_words) / 6))
        wanted = None if masking == "tokens" else pytest.approx(math.exp(sum(of_words) / len(words)))
        assert found.get("word_perplexity") == wanted


def test_the_baseline_of_word_frequencies_is_for_what_predicts_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluation, "heldout_batches", lambda *settings: heldout_rows((0, 1)))
    monkeypatch.setattr(evaluation, "jitted_eval_step", lambda experiment, mesh: None)
    monkeypatch.setattr(evaluation, "trained_parameters", lambda experiment: 0)
    monkeypatch.setattr(evaluation, "parameter_shardings", lambda boxed, mesh: None)
    corpora: Any = types.SimpleNamespace(train=types.SimpleNamespace(token_counts=np.ones(VOCABULARY)), heldout="held out")
    found = {}
    for encoder in ("bilm", "static"):
        model = {"encoder": encoder, "num_layers": 2 * (encoder == "bilm")}
        values = {"model": model, "examples": {"pairs": "none"}, "phases": [{"steps": 1, "length": 8, "max_predictions": 2}]}
        program: Any = types.SimpleNamespace(
            experiment=PretrainingExperiment.from_dict(values), mesh=make_mesh(MeshConfig(), jax.devices()[:1])
        )
        found[encoder] = evaluation.HeldoutEvaluation(program, 0, corpora, types.SimpleNamespace())._baseline.keys()  # type: ignore[arg-type]
    assert found == {
        "bilm": {"nsp_majority_accuracy", "unigram_accuracy", "unigram_loss"},
        "static": {"nsp_majority_accuracy"},
    }
