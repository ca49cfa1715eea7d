"""The answers of task heads, computed from their logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.model.heads import head_classes, make_head
from bert_jax.model.heads.outputs import OUTPUTS


def test_a_regression_returns_a_number_or_a_value_by_name_for_several_outputs():
    answer = OUTPUTS["regression"].answer
    assert answer(np.float32([1.5]), ("score",)) == {"value": 1.5}
    assert answer(np.float32([1.5, -2.0]), ("a", "b")) == {"values": {"a": 1.5, "b": -2.0}}


def test_a_classification_returns_the_best_label_and_every_probability():
    found = OUTPUTS["classification"].answer(np.log(np.float32([0.2, 0.7, 0.1])), ("a", "b", "c"))
    assert found["label"] == "b"
    np.testing.assert_allclose(list(found["probabilities"].values()), [0.2, 0.7, 0.1], rtol=1e-6)


def test_multi_label_answers_have_the_labels_of_probability_at_least_one_half():
    found = OUTPUTS["multi_label"].answer(np.float32([0.0, -0.1, 2.0]), ("a", "b", "c"))
    assert found["labels"] == ["a", "c"]


def test_a_label_applies_from_probability_one_half_in_predictions_and_answers():
    outputs, logits = OUTPUTS["multi_label"], np.float32([[0.0, -0.1, 0.1, 2.0]])
    predicted = outputs.predictions(logits)
    np.testing.assert_array_equal(predicted, [[True, False, True, True]])
    assert list(outputs.decode(predicted[0], ("a", "b", "c", "d"))) == outputs.answer(logits[0], ("a", "b", "c", "d"))["labels"]


def test_the_ten_most_frequent_labels_are_tried_as_constant_predictions():
    labels = np.repeat(np.arange(15), np.arange(1, 16))
    assert OUTPUTS["classification"].constants(labels).tolist() == list(range(14, 4, -1))
    assert OUTPUTS["regression"].constants(np.float32([1, 2, 6])).tolist() == [3.0]


def test_typical_heads_have_the_labels_and_candidates_of_the_paper_and_gap():
    found = {kind: (len(head.typical().labels), head.typical_candidates) for kind, head in head_classes().items()}
    assert found == {"sequence": (3, 1), "token": (9, 1), "span": (0, 1), "choice": (0, 4), "mention": (3, 1)}


@pytest.mark.parametrize(
    ("kind", "fields", "is_plain", "at_positions", "unit"),
    [
        ("sequence", {}, True, True, "text"),
        ("sequence", {"pooling": "last_token"}, False, True, "text"),
        ("sequence", {"pooling": "concat"}, False, False, "text"),
        ("sequence", {"layers": "second_to_last"}, False, False, "text"),
        ("sequence", {"lstm": 4}, False, False, "text"),
        ("token", {}, True, False, "token"),
        ("token", {"crf": "free"}, False, False, "token"),
        ("mention", {}, True, True, "position"),
    ],
)
def test_a_head_knows_what_it_reads(kind: str, fields: dict[str, Any], is_plain: bool, at_positions: bool, unit: str):
    head = make_head(kind, labels=("a", "b"), **fields)
    assert (head.is_plain, head.reads_last_at_positions, head.results_per) == (is_plain, at_positions, unit)
    assert head.has_same_outputs(make_head(kind, labels=("a", "b")))
    assert not head.has_same_outputs(make_head(kind, labels=("a", "c")))


def test_an_unknown_kind_of_head_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"head\.kind='sequenc' is not one of .*; did you mean 'sequence'"):
        make_head("sequenc")
