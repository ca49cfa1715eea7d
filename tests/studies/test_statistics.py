"""Means, intervals and expected orders, and the sentences about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

from bert_jax.configs.study import OrderConfig
from bert_jax.studies import report, words
from bert_jax.studies.statistics import outcome, paired

HIGH = {0: 0.80, 1: 0.82, 2: 0.81}
LOW = {0: 0.70, 1: 0.73, 2: 0.70}
NOISY = {0: 0.60, 1: 0.99, 2: 0.81}


def test_the_interval_is_that_of_the_paired_t_test():
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


def test_an_expected_order_holds_by_its_means_and_is_shown_by_its_intervals():
    found = outcome(OrderConfig(order="a > b > c"), "stsb", {"a": HIGH, "b": LOW, "c": NOISY})
    assert not found.holds
    assert found.came_out == ("a", "c", "b")
    assert [pair.verdict for pair in found.pairs] == ["as expected", "undecided"]
    turned = outcome(OrderConfig(order="b > a, c"), "stsb", {"a": HIGH, "b": LOW, "c": NOISY})
    assert [(pair.higher, pair.lower, pair.verdict) for pair in turned.pairs] == [("b", "a", "opposite"), ("b", "c", "undecided")]


def table(seeds: int = 3, **values: Any) -> dict[str, Any]:
    """The table of a study with two arms, as `studies.table.table` gives it."""
    interval = (
        {"mean": -0.1, "low": -0.12, "high": -0.08, "n": 3} if seeds > 1 else {"mean": -0.1, "low": None, "high": None, "n": 1}
    )
    pair = {"higher": "a", "lower": "b", "verdict": "as expected", **interval, "mean": 0.1}
    common = {"steps": 10, "tokens": 1_000_000, "flops": 1e12, "parameters": 11_300_000, "paper": {}, "one_answer": {"stsb": 0}}
    common["failed"] = {"stsb": 0}
    found = {"mean": 0.8, "deviation": 0.01, "seeds": {}}
    arms = [
        {**common, "name": "a", "title": "A", "heldout": {"mlm_loss": 3.0}, "scores": {"stsb": found}, "minus_reference": {}},
        {
            **common,
            "name": "b",
            "title": "B",
            "heldout": {"lm_loss": 4.0},
            "scores": {"stsb": found},
            "minus_reference": {"stsb": interval},
        },
    ]
    order = {"order": "a > b", "task": "stsb", "holds": True, "came_out": ["a", "b"], "pairs": [pair]}
    study = {"title": "T", "setting": "laptop", "equal": "tokens", "amount": 1e6, "seeds": list(range(seeds)), "restarts": 1}
    study |= {"reference": "a", "tasks": {"stsb": "dev/spearman"}, "baselines": {"stsb": 0.0}, "arms": arms, "paper": ""}
    return study | {"expected": [order]} | values


def test_the_sentences_say_what_is_shown_and_what_is_not():
    said = " ".join(words.findings(table()))
    for part in (
        "Of 1 difference to A, 1 has a paired 95 % interval that excludes 0: B on stsb (-0.100)",
        "differences smaller than that are not seen",
        "Expected on stsb: a > b; the means are in this order; 1 of 1 pair beyond chance.",
        "the mean over 3 pretrained models",
        "at most 11.3 M parameters read at most 1 M tokens; the paper's BERT-Base has 110 M and read 128 G",
        "The held-out losses (lm, mlm) are of different predictions: they do not compare between arms.",
    ):
        assert part in said
    assert "With one seed there is no interval" in " ".join(words.findings(table(seeds=1)))
    assert words.budget(table()).startswith("Equal tokens: every arm reads 1 M tokens")
    assert words.budget(table(equal="seconds", amount=1800)).startswith("Equal wall-clock: every arm trains for 30m00s")


def test_chance_is_told_in_plain_numbers_and_runs_that_failed_are_named():
    wide = table(restarts=5)
    _, other = wide["arms"]
    other |= {"minus_reference": {f"task {i}": other["minus_reference"]["stsb"] for i in range(240)}, "failed": {"stsb": 2}}
    said = " ".join(words.findings(wide))
    assert "by chance alone 12 would." in said
    assert "Runs that failed, and count in no mean: B on stsb (2 of 15)." in said
    assert "same answer" not in said


def test_the_text_of_a_table_has_the_columns_of_its_header():
    content = {"table": table(), "measured": {"a": {"training_seconds": 65.0}, "b": {}}}
    text = report.markdown(content)
    assert "| A | 1 M | 1m05s | 1 T | 11.3 M | 3.000 (mlm) | 0.800 ± 0.010 |" in text
    assert "| B | -0.100 (-0.120 to -0.080) |" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in rows[:4]}) == 1
    assert "0.800 ± 0.010" in report.plain(content)
