"""The baseline of every kind of task: the better of the most frequent answer in training and the best single answer on the
split."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bert_jax.model.heads.outputs import MOST_CONSTANTS, best_label_set, by_frequency
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.tasks.choice_task import ChoiceTask
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.examples import ChoiceExample, PronounExample, QuestionExample, TextExample, WordsExample
from bert_jax.tasks.mention_task import MentionTask
from bert_jax.tasks.scores import Baseline, accuracy, constant_baseline, f1, micro_f1
from bert_jax.tasks.span_task import SpanTask
from bert_jax.tasks.text_task import TextTask
from bert_jax.tasks.token_task import TokenTask


def texts(labels: str, **fields) -> TextTask:
    """Returns texts with the labels "nny|yn" of training and dev; n is "no", y is "yes"."""
    names = {"n": "no", "y": "yes"}
    parts = zip(("train", "dev"), labels.split("|"), strict=True)
    splits = {split: [TextExample(str(i), "a", label=names[c]) for i, c in enumerate(part)] for split, part in parts}
    given = {"metric": "accuracy", "score": lambda split, said, true: {"accuracy": accuracy(said, true)}} | fields
    return TextTask(name="toy", length=8, head=SequenceHead(labels=("no", "yes")), splits=splits, **given)


def test_the_baseline_is_the_best_single_answer_of_dev_if_that_is_higher():
    """Of 12 dev texts, 5 have the label that is most frequent in training: 0.417, but another single answer scores 0.583."""
    found = texts("nnnyy|nnnnnyyyyyyy").baseline("dev")
    assert found.scores == {"accuracy": pytest.approx(7 / 12)}
    assert found.named == {"'yes' for all, best on dev": found.scores["accuracy"]}
    usual = texts("nnnyy|nnnnnnny").baseline("dev")
    assert usual.named == {"'no' for all, most frequent in training": 7 / 8}
    assert usual.bar == 7 / 8


def test_the_baseline_is_the_best_answer_by_the_metric_of_the_task():
    positive = texts("nny|nnny", metric="f1", score=lambda split, said, true: {"f1": f1(said, true)})
    assert positive.baseline("dev") == Baseline({"f1": 0.4}, {"'yes' for all, best on dev": 0.4})


def test_ties_take_the_training_answer():
    assert list(texts("nny|ny").baseline("dev").named) == ["'no' for all, most frequent in training"]
    assert constant_baseline("x", "dev", ("a", {"x": 1.0}), []).named == {"a for all, most frequent in training": 1.0}


def test_the_baseline_of_choices_is_a_position():
    def examples(places: str) -> list[ChoiceExample]:
        return [ChoiceExample(str(i), "a", ("b", "c", "d"), int(place)) for i, place in enumerate(places)]

    found = ChoiceTask("toy", 8, {"train": examples("001"), "dev": examples("0222")}, first_choice=1).baseline("dev")
    assert found == Baseline({"accuracy": 0.75}, {"candidate 3 for all, best on dev": 0.75})


def test_the_baseline_of_pronouns_is_a_name():
    def examples(labels: str) -> list[PronounExample]:
        names = {"a": "A", "b": "B", "n": "neither"}
        return [PronounExample(str(i), "x", "she", 0, "A", 0, "B", 0, names[c], "feminine") for i, c in enumerate(labels)]

    found = MentionTask("toy", 8, {"train": examples("nnna"), "dev": examples("abbn")}).baseline("dev")
    assert found.scores["f1"] == pytest.approx(2 * 2 / (4 + 3))  # 4 predicted, 3 true, 2 of them right; "neither" has an F1 of 0
    assert list(found.named) == ["'B' for all, best on dev"]


def test_tagging_has_a_single_tag_and_a_usual_tag_baseline():
    def examples(*tags: str) -> list[WordsExample]:
        return [WordsExample("0", tuple(f"w{i}" for i in range(len(tags))), tags, 0)]

    splits = {"train": examples("NOUN", "NOUN", "VERB"), "dev": examples("NOUN", "VERB", "VERB", "VERB")}
    task = TokenTask("toy", TaskConfig(name="pos"), splits, ("NOUN", "VERB"), has_entities=False)
    found = task.baseline("dev")
    assert (found.scores["accuracy"], found.scores["word_accuracy"]) == (0.75, 0.5)
    assert found.named == {"'VERB' for all, best on dev": 0.75, "each word's most frequent label in training": 0.5}


def test_of_many_tags_the_most_frequent_ones_are_tried():
    rare = tuple(f"A{i}" for i in range(MOST_CONSTANTS))
    splits = {
        "train": [WordsExample("0", ("w",), ("Z",), 0)],
        "dev": [WordsExample("0", ("v",) * (len(rare) + 2), (*rare, "B", "B"), 0)],
    }
    task = TokenTask("toy", TaskConfig(name="pos"), splits, ("B", "Z", *rare), has_entities=False)
    assert next(iter(task.baseline("dev").named)) == "'B' for all, best on dev"


def test_the_baseline_of_questions_is_a_text_or_no_answer():
    def examples(*texts: str) -> list[QuestionExample]:
        return [
            QuestionExample(str(i), "who", "Paris, Lyon", ((text, None),) if text else (), not text)
            for i, text in enumerate(texts)
        ]

    def bar(train: list[QuestionExample], dev: list[QuestionExample]) -> Baseline:
        splits = {"train": train, "dev": dev}
        impossible = any(example.is_impossible for example in dev)
        return SpanTask("toy", TaskConfig(name="squad/v2.0"), splits, impossible).baseline("dev")

    found = bar(examples("Paris", "Paris", "Lyon"), examples("Lyon", "the lyon", "Paris"))
    assert (found.scores["f1"], list(found.named)) == (pytest.approx(200 / 3), ["'Lyon' for all, best on dev"])
    most = [text for text in ("red", "blue", "green") for _ in range(2)]  # only the three most frequent answers are tried
    found = bar(examples("red"), examples(*most, "red blue green"))
    assert found.named == {"'red' for all, most frequent in training": pytest.approx(100 * (2 + 0.5) / 7)}
    shared = bar(examples("red"), examples("sea blue", "sea blue", "blue", *(f"{text} blue" for text in ("sky", "ink", "dark"))))
    assert list(shared.named) == ["'blue' for all, best on dev"], "less frequent, but a part of all answers"
    spellings = QuestionExample("0", "who", "the Red", (("the Red", None), ("red", None)), False)
    assert list(bar([spellings], [spellings]).named) == ["'the Red' for all, most frequent in training"]
    found = bar(examples("Paris", "Paris", ""), examples("", "", "Paris"))
    assert (found.scores["f1"], list(found.named)) == (pytest.approx(200 / 3), ["no answer for all, best on dev"])


def test_the_multi_label_baseline_is_the_best_constant_set():
    rng = np.random.default_rng(0)
    for labels in (rng.random((6, 4)) < p for p in (0.1, 0.3, 0.5, 0.8)):
        if not labels.any():
            continue
        every = [np.array(said) for said in itertools.product([False, True], repeat=4)]
        best = max(micro_f1(np.broadcast_to(said, labels.shape), labels) for said in every)
        assert micro_f1(np.broadcast_to(best_label_set(labels), labels.shape), labels) == pytest.approx(best)


def test_answers_are_sorted_by_frequency_then_value():
    assert by_frequency(np.array([2, 1, 1, 2, 0])).tolist() == [1, 2, 0]
    assert by_frequency(np.array([[1, 0], [0, 1], [0, 1]])).tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ValueError, match="no labels"):
        by_frequency(np.array([], int))
