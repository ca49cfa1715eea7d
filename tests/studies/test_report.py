"""The tables of a study's report."""

from __future__ import annotations

from bert_jax.studies.report import expected_rows


def outcome(*means: float | None) -> dict[str, object]:
    pairs = [{"mean": mean, "verdict": "not beyond chance"} for mean in means]
    return {"order": "a > b > c", "task": "stsb", "came_out": ["a"], "holds": False, "pairs": pairs}


def test_an_order_whose_arms_are_not_all_measured_is_not_called_missed():
    rows = expected_rows({"expected": [outcome(None, 0.1), outcome(-0.1, 0.1)]})
    assert [row[3] for row in rows[1:]] == ["not measured yet", "missed"]
