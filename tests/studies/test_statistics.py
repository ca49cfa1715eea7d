"""Means, intervals and expected orders."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from bert_jax.configs.study import OrderConfig
from bert_jax.studies.statistics import Difference, deviation, mean, outcome, paired

HIGH = {0: 0.80, 1: 0.82, 2: 0.81}
LOW = {0: 0.70, 1: 0.73, 2: 0.70}
NOISY = {0: 0.60, 1: 0.99, 2: 0.81}


def test_the_interval_equals_the_paired_t_test():
    found = paired(HIGH, NOISY)
    expected = scipy.stats.ttest_rel([*HIGH.values()], [*NOISY.values()]).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(np.mean([*HIGH.values()]) - np.mean([*NOISY.values()]))
    assert not found.excludes_zero
    assert paired(HIGH, LOW).excludes_zero


def test_only_seeds_of_both_are_paired_and_one_has_no_interval():
    found = paired(HIGH, {2: 0.71, 3: 0.1})
    assert (found.mean, found.low, found.n) == (pytest.approx(0.1), None, 1)
    assert paired(HIGH, {}).mean is None
    two = paired(HIGH, {0: 0.7, 2: 0.9})
    expected = scipy.stats.ttest_rel([0.8, 0.81], [0.7, 0.9]).confidence_interval(0.95)
    assert (two.low, two.high, two.n) == (pytest.approx(expected.low), pytest.approx(expected.high), 2)


def test_an_interval_that_ends_at_0_does_not_exclude_it():
    assert [Difference(0.0, low, high, 2).excludes_zero for low, high in ((0.0, 0.5), (-0.5, 0.0), (0.1, 0.2), (-0.2, -0.1))] == [
        False, False, True, True,
    ]  # fmt: skip


def test_a_deviation_needs_at_least_two_values():
    assert deviation([1.0, 2.0]) == pytest.approx(np.std([1.0, 2.0], ddof=1))
    assert deviation([1.0]) is deviation([]) is mean([]) is None


def test_an_expected_order_holds_by_means_and_is_significant_by_intervals():
    found = outcome(OrderConfig(order="a > b > c"), "stsb", {"a": HIGH, "b": LOW, "c": NOISY})
    assert not found.holds
    assert found.came_out == ("a", "c", "b")
    assert [pair.verdict for pair in found.pairs] == ["as expected", "undecided"]
    turned = outcome(OrderConfig(order="b > a, c"), "stsb", {"a": HIGH, "b": LOW, "c": NOISY})
    assert [(pair.higher, pair.lower, pair.verdict) for pair in turned.pairs] == [("b", "a", "opposite"), ("b", "c", "undecided")]


def test_equal_means_have_no_order_and_a_mean_of_0_is_last():
    same = outcome(OrderConfig(order="a > b"), "stsb", {"a": HIGH, "b": HIGH})
    assert not same.holds
    assert outcome(OrderConfig(order="a > b"), "stsb", {"a": HIGH, "b": LOW}).holds
    none = outcome(OrderConfig(order="zero > a > c > d"), "stsb", {"zero": {0: 0.0}, "a": {0: 0.5}, "c": {0: 0.7}})
    assert none.came_out == ("c", "a", "zero")  # d is not measured
    assert (none.order, none.task, none.holds) == ("zero > a > c > d", "stsb", False)
    assert none.pairs[-1].verdict == "not measured"
