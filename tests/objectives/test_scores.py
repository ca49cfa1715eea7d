from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from bert_jax.data.config import ExampleConfig
from bert_jax.data.plan import EpochPlan, plan_epoch
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.distillation import Distillation
from bert_jax.objectives.scores import (
    EvalRows,
    majority_baseline,
    next_sentence_baseline,
    perplexity,
    target_counts,
    unigram_baseline,
)
from bert_jax.objectives.translation import Translation
from tests.data.corpora import corpus_from_arrays, vocabulary
from tests.objectives.scored import objective_of


def test_means_are_over_targets_not_over_batches():
    uneven = [
        {"mlm_loss": 30.0, "mlm_correct": 1, "mlm_targets": 10, "nsp_loss": 2.0, "nsp_correct": 1, "nsp_examples": 4},
        {"mlm_loss": 2.0, "mlm_correct": 5, "mlm_targets": 6, "nsp_loss": 1.0, "nsp_correct": 1, "nsp_examples": 1},
    ]
    scores = objective_of("mlm").summarise({key: sum(batch[key] for batch in uneven) for key in uneven[0]})
    assert scores == pytest.approx(
        {"mlm_loss": 2.0, "perplexity": math.e**2, "mlm_accuracy": 6 / 16, "nsp_loss": 0.6, "nsp_accuracy": 0.4, "loss": 2.6}
    )


@pytest.mark.parametrize("nsp", [{}, {"nsp_loss": 0.0, "nsp_correct": 0, "nsp_examples": 0}])
def test_scores_without_targets_are_undefined(nsp: dict[str, float]):
    scores = objective_of("mlm").summarise({"mlm_loss": 3.0, "mlm_correct": 1, "mlm_targets": 2, **nsp})
    assert set(scores) == {"mlm_loss", "perplexity", "mlm_accuracy", "loss"}
    assert scores["loss"] == scores["mlm_loss"]
    assert objective_of("mlm").summarise({}) == objective_of("mlm").summarise({"mlm_loss": 3.0, "mlm_correct": 1}) == {}


def test_perplexity_does_not_overflow():
    assert perplexity(1e4) == perplexity(700.5) == perplexity(700.0) == math.inf
    assert perplexity(699.5) == math.exp(699.5)
    assert math.isnan(perplexity(math.nan))


def test_unigram_baseline_equals_an_explicit_unigram_model():
    counts = np.array([0, 5, 90, 4])
    targets = np.array([[2, 2, -1], [1, 3, 0]])
    baseline = unigram_baseline(counts, targets)
    probability = (counts + 1) / (counts + 1).sum()
    assert baseline["unigram_accuracy"] == pytest.approx(2 / 5)
    assert baseline["unigram_loss"] == pytest.approx(-np.mean([math.log(probability[t]) for t in (2, 2, 1, 3, 0)]))


def test_unigram_baseline_rejects_targets_it_cannot_score():
    with pytest.raises(ValueError, match="no targets"):
        unigram_baseline(np.ones(4), np.full(3, -1))
    with pytest.raises(ValueError, match="target 4 is outside the vocabulary of 4"):
        unigram_baseline(np.ones(4), np.array([4]))


CORPUS = corpus_from_arrays(
    np.uint32([1, 0, 1, 2, 0, 1, 2, 0, 1]),  # two documents of two sentences, with three unknown words
    np.array([0, 1, 3, 5, 9]),
    np.array([0, 2, 4]),
    dataclasses.replace(vocabulary(4), unk_id=0, sep_id=3),
)
ALL = ExampleConfig(length=16, max_predictions=15, targets="next", pairs="none", short_probability=0.0)
"""One text per document, in which every token is predicted."""


def plan_of(config: ExampleConfig, **changed: Any) -> EpochPlan:
    return plan_epoch(CORPUS, dataclasses.replace(config, **changed), seed=0, epoch=0)


MASKED = plan_of(ALL, targets="masked", max_predictions=14)


def test_unknown_words_are_no_targets_and_every_text_ends_with_one():
    """The texts have 3 and 6 words. A pair also has a [SEP] in its middle."""
    for pairs, inner in (("none", 0), ("successive", 1)):
        plan = plan_of(ALL, pairs=pairs)
        np.testing.assert_allclose(target_counts(CORPUS, plan), [0, 4, 2, 6 * (inner + 1) * 2 / 9])
        np.testing.assert_allclose(target_counts(CORPUS, plan, 0.5), [0, 4, 2, 6 * (inner + 0.5) * 2 / 9])
        rows = EvalRows(np.array([[3, 1, -1]]), np.full((1, 1), -1), CORPUS, plan)
        for measure, of_last in (("next_token", 1.0), ("bilm", 0.5)):  # a biLM predicts the last [SEP] in one of two directions
            wanted = unigram_baseline(target_counts(CORPUS, plan, of_last), rows.predicted)
            assert objective_of(measure).eval_scores(rows) == wanted
    assert target_counts(CORPUS, MASKED).tolist() == [0, 4, 2, 0]


def test_a_text_counts_by_the_fraction_of_its_tokens_that_is_predicted():
    """Four tokens of each text are predicted, of four and of seven."""
    found = target_counts(CORPUS, plan_of(ALL, max_predictions=4))
    np.testing.assert_allclose(found, [0, 4, 2, 6 * (1 + 4 / 7) / (3 + 6 * 4 / 7)])


def test_perplexity_per_word_has_the_loss_of_all_pieces_of_a_word():
    for words, pieces in ((0, 4), (1, 4), (2, 2)):
        rows = EvalRows(np.array([[1, 2], [2, 1], [-1, -1]]), np.full((3, 1), -1), CORPUS, MASKED, words)
        found: Any = objective_of("mlm").eval_scores(rows)["word_perplexity"]
        assert found({"mlm_loss": 0.5}) == pytest.approx(math.exp(0.5 * pieces))
        assert found({}) is None


def test_the_next_sentence_baseline_is_the_better_constant_answer():
    assert next_sentence_baseline(np.array([[0, 1, -1], [1, 1, -1]])) == {"nsp_majority_accuracy": 0.75}
    assert next_sentence_baseline(np.array([0, 0, 0, 1])) == {"nsp_majority_accuracy": 0.75}
    assert next_sentence_baseline(np.full((2, 3), -1)) == {}


@pytest.mark.parametrize("measure", ["next_token", "bilm", "skip_gram"])
def test_objectives_have_their_own_score_names_and_perplexity_if_they_predict_words(measure: str):
    scores = objective_of(measure).summarise({f"{measure}_loss": 30.0, f"{measure}_correct": 4, f"{measure}_targets": 10})
    wanted = {f"{measure}_loss": 3.0, f"{measure}_accuracy": 0.4, "loss": 3.0}
    assert scores == pytest.approx(wanted if measure == "skip_gram" else wanted | {"perplexity": math.e**3})


def test_the_loss_may_consist_of_pairs_only():
    scores = objective_of("mlm").summarise({"nsp_loss": 3.0, "nsp_correct": 1, "nsp_examples": 2})
    assert scores == {"nsp_loss": 1.5, "nsp_accuracy": 0.5, "loss": 1.5}


def test_distillation_scores_are_means_outside_of_the_loss():
    sums = {"mlm_loss": 30.0, "mlm_correct": 4, "mlm_targets": 10, "tokens": 50, "read_tokens": 40}
    taught = {"soft_loss": 5.0, "hidden_difference": 8.0, "attention_divergence": 2.0}
    scores = Distillation(objective_of("mlm"), PretrainingDistillation()).summarise(sums | taught)
    assert (scores["soft_loss"], scores["hidden_difference"], scores["attention_divergence"]) == (0.5, 0.2, 0.05)
    assert scores["loss"] == 3.0


def test_log_lines_and_figures_show_losses_and_accuracies_but_no_terms_of_the_loss():
    plain = objective_of("mlm")
    shown = {"mlm_loss": False, "mlm_accuracy": True, "nsp_accuracy": False}  # whether its axis starts at 0
    for objective in (plain, Distillation(plain, PretrainingDistillation())):
        assert {name: score.from_zero for name, score in objective.shown_scores().items()} == shown
    assert Translation().shown_scores().keys() == {"translation_loss", "translation_accuracy"}


def test_a_majority_baseline_is_the_share_of_the_more_frequent_answer():
    baseline = majority_baseline("yes", "all")
    assert [baseline.value({"yes": yes, "all": 8}) for yes in (2, 6)] == [0.75, 0.75]
    assert baseline.value({"yes": 2}) is baseline.value({"yes": 0, "all": 0}) is None
