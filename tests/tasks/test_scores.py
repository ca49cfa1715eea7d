from __future__ import annotations

import json
import math
import pathlib

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks import scores

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "scores_golden.json").read_text())
EXACT = 1e-12
CORRELATIONS = (scores.pearson, scores.spearman)


@pytest.mark.parametrize("kind", ["classes", "values", "several"])
def test_metrics_equal_scikit_learn_and_scipy(kind):
    for case in GOLDEN[kind]:
        said, true = np.array(case["predictions"]), np.array(case["labels"])
        names = case.keys() - {"predictions", "labels"}
        assert {name: getattr(scores, name)(said, true) for name in names} == pytest.approx(
            {name: case[name] for name in names}, abs=EXACT
        )


def test_the_log_loss_equals_scikit_learn_and_is_clipped():
    for case in GOLDEN["losses"]:
        assert scores.log_loss(case["probabilities"], case["labels"]) == pytest.approx(case["log_loss"], rel=1e-12)
    assert scores.log_loss([[1, 0, 0]], [1]) == pytest.approx(15 * math.log(10))
    assert scores.log_loss([[1, 0, 0]], [1], clip=0.01) == pytest.approx(-math.log(0.01))
    assert scores.log_loss([[1, 0, 0]], [0], clip=0.01) == pytest.approx(-math.log(0.99))
    # each row is divided by its sum
    assert scores.log_loss([[2, 6], [3, 1]], [0, 0]) == pytest.approx(-(math.log(1 / 4) + math.log(3 / 4)) / 2)


@pytest.mark.parametrize(
    ("probabilities", "labels"),
    [([[0.5, 0.5]], [2]), ([[0.5, 0.5]], [-1]), ([[0, 0]], [0]), ([[1.5, -0.5]], [0]), ([[math.nan, 1]], [0]), ([[1]], [0, 0])],
)
def test_log_loss_requires_a_distribution_over_the_labels(probabilities, labels):
    with pytest.raises(ValueError, match=r"labels|probabilities"):
        scores.log_loss(probabilities, labels)


def test_binary_scores_follow_from_the_four_counts():
    rng = np.random.default_rng(0)
    for _ in range(300):
        said, true = rng.integers(0, 2, (2, int(rng.integers(1, 12))))
        pairs = list(zip(said.tolist(), true.tolist(), strict=True))
        tp, fp, fn, tn = (pairs.count(pair) for pair in ((1, 1), (1, 0), (0, 1), (0, 0)))
        assert scores.accuracy(said, true) == (tp + tn) / len(pairs)
        precision, recall = (tp / (tp + wrong) if tp + wrong else 0.0 for wrong in (fp, fn))
        assert scores.f1(said, true) == pytest.approx(2 * precision * recall / (precision + recall) if tp else 0.0)
        assert scores.f1(1 - said, 1 - true, positive=0) == scores.f1(said, true)
        spread = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        assert scores.matthews(said, true) == pytest.approx((tp * tn - fp * fn) / spread**0.5 if spread else 0.0)


def test_correlations_ignore_scale_and_shift():
    rng = np.random.default_rng(1)
    for _ in range(50):
        x, y = rng.normal(size=(2, 9))
        r, rho = (correlation(x, y) for correlation in CORRELATIONS)
        assert scores.pearson(x, y) == scores.pearson(y, x) == pytest.approx(np.corrcoef(x, y)[0, 1])
        for scale in (1e-200, -3.0, 1e200):
            assert scores.pearson(scale * x, y) == pytest.approx(math.copysign(1, scale) * r)
        assert scores.spearman(np.exp(x), y) == pytest.approx(rho)
        assert scores.pearson(2 * x + 1, x) == pytest.approx(1.0)
        assert scores.spearman(-(x**3), x) == pytest.approx(-1.0)


def test_the_mean_squared_error_is_infinite_if_a_prediction_is_not_finite():
    said, true = np.float32([1.0, 2.5, -1.0]), np.array([3.0, 2.0, -1.0])
    assert scores.mean_squared_error(said, true) == (4 + 0.25) / 3
    assert scores.mean_squared_error(np.array([1.0, math.nan]), true[:2]) == math.inf
    with pytest.raises(ValueError, match="not finite"):
        scores.mean_squared_error(true[:2], np.array([1.0, math.inf]))


def test_equal_values_share_the_mean_of_their_ranks():
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: covariance 4.5, squares 4.5 and 5
    assert scores.spearman([0, 7, 7, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize("said", [[0.1] * 7, [math.nan, *range(6)], [math.inf, *range(6)], [math.nan] * 7])
def test_an_undefined_correlation_is_zero(correlation, said):
    assert correlation(np.array(said), np.arange(7.0)) == 0.0
    assert correlation(np.arange(7.0), np.full(7, 0.3)) == 0.0
    assert correlation([1.0], [2.0]) == 0.0


def test_macro_precision_and_recall_are_means_over_the_classes_of_labels_or_predictions():
    predictions, labels = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1])
    assert scores.macro_precision(predictions, labels) == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert scores.macro_recall(predictions, labels) == pytest.approx((1 + 1 / 3 + 0) / 3)


MACRO = (scores.macro_f1, scores.macro_precision, scores.macro_recall)
METRICS = (scores.accuracy, scores.f1, *MACRO, scores.matthews, *CORRELATIONS, scores.degeneracy)


@pytest.mark.parametrize("metric", METRICS)
def test_metrics_refuse_unequal_lengths(metric):
    for said, true in (([], []), ([1, 0], [1]), ([[1]], [[1]]), ([1, 0], [[1, 0]])):
        with pytest.raises(ValueError, match=r"must both be \[E\]"):
            metric(np.array(said), np.array(true))
    with pytest.raises(ValueError, match="not finite"):
        metric(np.array([0.0, 1.0]), np.array([0.0, math.nan]))


def test_multi_label_predictions_have_two_axes():
    with pytest.raises(ValueError, match=r"\[E, C\]"):
        scores.micro_f1(np.array([1, 0]), np.array([1, 0]))
    with pytest.raises(ValueError, match="not finite"):
        scores.micro_f1(np.array([[0.0, 1.0]]), np.array([[0.0, math.nan]]))


# GLUE's table of tasks and metrics, written out again; the main metric comes first
GLUE = {
    "cola": ("matthews",),
    "sst2": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "stsb": ("spearman", "pearson"),
    "qqp": ("f1", "accuracy"),
    "mnli": ("accuracy",),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
    "ax": ("matthews",),
}


def test_every_glue_task_has_exactly_its_metrics():
    said, true = np.array([0, 1, 1, 0, 1, 1]), np.array([0, 1, 0, 0, 1, 0])
    by_hand = {"accuracy": 4 / 6, "f1": 2 / 3, "matthews": 4 / math.sqrt(64)}  # tp 2, fp 2, fn 0, tn 2
    by_hand |= {"pearson": 0.5, "spearman": 0.5}  # with two classes, both are Matthews'
    assert scores.GLUE.keys() == GLUE.keys()
    for task, names in GLUE.items():
        assert scores.glue_scores(task, said, true) == pytest.approx({name: by_hand[name] for name in names})
        assert scores.main_score(task) == names[0]


@pytest.mark.parametrize("asked", [scores.main_score, lambda task: scores.glue_scores(task, np.ones(1), np.ones(1))])
def test_an_unknown_task_is_refused_with_the_known_ones(asked):
    with pytest.raises(UserError, match=r"'sst-2'.* cola, sst2, "):
        asked("sst-2")


def test_only_constant_predictions_are_degenerate():
    labels, values = np.array([0, 1, 1, 0]), np.array([0.0, 5.0, 2.0, 3.0])
    assert scores.degeneracy(np.ones(4, int), labels)
    assert not scores.degeneracy(np.array([1, 1, 1, 0]), labels)
    assert not scores.degeneracy(np.ones(4, int), np.ones(4, int))
    assert not scores.degeneracy(np.ones(1, int), np.ones(1, int))
    for collapsed in (np.full(4, 2.5), 2.5 + 0.009 * values, np.array([1, 2, 3, math.nan])):
        assert scores.degeneracy(collapsed, values)
    assert not scores.degeneracy(2.5 + 0.011 * values, values)


def test_nearly_equal_answers_are_not_called_equal():
    values = np.array([0.0, 5.0, 2.0, 3.0])
    same = scores.degeneracy(np.full(4, 2.5), values), scores.degeneracy(np.ones(4, int), np.arange(4))
    assert same == ("all predictions are the same",) * 2
    assert "nearly the same" in scores.degeneracy(2.5 + 0.009 * values, values)
    assert "not finite" in scores.degeneracy(np.array([1, 2, 3, math.nan]), values)


def test_a_regression_that_orders_the_examples_is_not_degenerate():
    """As after a short run on 1,500 pairs: a standard deviation of 0.2 % of the labels', and a Spearman correlation of 0.25."""
    rng = np.random.default_rng(0)
    labels, noise = rng.uniform(0, 5, 1_500), rng.uniform(0, 5, 1_500)
    ordered = 2.5 + 0.002 * (0.25 * labels + 0.97 * noise)
    assert scores.spearman(ordered, labels) == pytest.approx(0.25, abs=0.05)
    assert not scores.degeneracy(ordered, labels)
    assert not scores.degeneracy(5 - ordered, labels), "reversed answers depend on the text too"
    assert "nearly the same" in scores.degeneracy(2.5 + 0.002 * noise, labels)
    assert not scores.degeneracy(2.5 + 0.02 * noise, labels), "answers that differ may be wrong"


@pytest.mark.parametrize(("reversed_values", "degenerate"), [(71, False), (72, True)])
def test_three_standard_errors_make_an_order_useful(reversed_values: int, degenerate: bool):
    """The standard error over 101 examples is 0.1. Reversing 71 or 72 of them leaves a correlation of 0.305 or 0.276."""
    labels = np.arange(101.0)
    said = np.concatenate([labels[:reversed_values][::-1], labels[reversed_values:]])
    assert bool(scores.degeneracy(2.5 + 1e-3 * said, labels)) is degenerate


def test_nearly_constant_values_have_a_correlation_without_a_warning():
    assert scores.pearson(1e8 + np.array([0.0, 1e-6, 2e-6]), np.arange(3.0)) == pytest.approx(1.0, abs=1e-3)


def slow_gap(said, true, feminine):
    """Computes the counts of the official scorer, one decision after the other: (precision, recall, F1) of both, masculine and
    feminine."""
    rows = []
    for genders in ((False, True), (False,), (True,)):
        tp = fp = fn = 0
        for own, gold, gender in zip(said.tolist(), true.tolist(), feminine.tolist(), strict=True):
            for a, b in zip(own, gold, strict=True):
                if gender in genders:
                    tp, fp, fn = tp + (a and b), fp + (a and not b), fn + (b and not a)
        precision, recall = (100.0 * tp / (tp + wrong) if tp + wrong else 0.0 for wrong in (fp, fn))
        rows.append((precision, recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0))
    return rows


def test_gap_counts_two_decisions_per_example():
    said = np.array([[1, 0], [0, 0], [0, 1], [1, 0]], bool)
    true = np.array([[1, 0], [0, 1], [1, 0], [1, 0]], bool)
    # masculine: a hit and a miss, F1 2/3; feminine: a wrong name (one false positive, one miss) and a hit, F1 1/2
    found = scores.gap_scores(said, true, np.array([False, False, True, True]))
    by_hand = {"precision": 2 / 3, "recall": 1 / 2, "f1": 4 / 7, "masculine_f1": 2 / 3, "feminine_f1": 1 / 2, "bias": 3 / 4}
    assert found == pytest.approx(by_hand)


def test_gap_equals_the_official_scorer():
    rng = np.random.default_rng(2)
    without = 0
    for _ in range(200):
        n = int(rng.integers(1, 10))
        said, true, feminine = rng.random((n, 2)) < 0.4, rng.random((n, 2)) < 0.4, rng.random(n) < 0.5
        overall, masculine, feminine_row = slow_gap(said, true, feminine)
        expected = dict(zip(("precision", "recall", "f1"), overall, strict=True))
        expected |= {"masculine_f1": masculine[2], "feminine_f1": feminine_row[2]}
        expected = {name: percent / 100 for name, percent in expected.items()}
        if masculine[2] and feminine_row[2]:
            expected["bias"] = feminine_row[2] / masculine[2]
        without += "bias" not in expected
        assert scores.gap_scores(said, true, feminine) == pytest.approx(expected)
    assert 0 < without < 200


def test_gap_requires_two_names_and_a_gender_for_each_example():
    for shape, genders in (((3, 3), 3), ((3, 2), 2)):
        with pytest.raises(ValueError, match="two names"):
            scores.gap_scores(np.ones(shape, bool), np.ones(shape, bool), np.ones(genders, bool))
