from __future__ import annotations

import random
import re
import string

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.scores import (
    exact_match,
    find_threshold,
    normalise,
    question_scores,
    squad1_scores,
    squad2_scores,
    word_f1,
)

TEXTS = ("the cat", "Cat!", "a black cat", "cat cat", "dog", "The", "", "in 1990", "1990", "an", "U.S.", "the U S", "black cats")


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat\tsat.", "cat sat"),
        ("a-b", "ab"),  # punctuation leaves no space, so the article inside is not one
        ("A. Lincoln", "lincoln"),
        ("anthem then the panda", "anthem then panda"),
        ("the, an; a", ""),
        ("“quoted” – 5 %", "“quoted” – 5"),  # ASCII punctuation only
        ("l'été the_end", "lété theend"),
        ("É a É", "é é"),
        ("a\u00a0b", "b"),
    ],
)
def test_normalising_lowers_and_drops_punctuation_then_articles(text, normal):
    assert normalise(text) == normal
    assert exact_match(text, normal)


def test_f1_compares_bags_of_words():
    assert word_f1("the black cat", "cat, black") == 1.0
    assert word_f1("cat cat dog", "cat") == 2 * (1 / 3) * 1 / (1 / 3 + 1)
    assert word_f1("cat cat", "cat cat cat") == 2 * 1 * (2 / 3) / (1 + 2 / 3)
    assert word_f1("cat", "dog") == word_f1("the", "a") == word_f1("", "cat") == 0.0


def test_squad_1_uses_the_best_gold_answer_and_counts_missing_predictions():
    gold = {"a": ["black cat", "cat"], "b": ["dog"], "c": ["1990", "in 1990"]}
    # a: equal to the second; b: two words, one correct, F1 2/3; c: not answered
    found = squad1_scores(gold, {"a": "The cat", "b": "big dog", "other": "x"})
    assert found == {"exact_match": 100 / 3, "f1": 100 * (1 + 2 * 0.5 / 1.5) / 3}
    # for two empty answers, 1.1 returns a match and an F1 of 0
    assert squad1_scores({"a": ["the"]}, {"a": "A."}) == {"exact_match": 100.0, "f1": 0.0}


def test_squad_1_refuses_questions_without_answers():
    for gold in ({}, {"a": ["x"], "b": []}):
        with pytest.raises(ValueError, match=r"no questions|'b' has no gold answer"):
            squad1_scores(gold, {})


def words(text: str) -> list[str]:
    kept = "".join(" " if c.isspace() else c for c in text.lower() if c not in set(string.punctuation))
    return [word for word in re.split(r"\s+", kept) if word and word not in {"a", "an", "the"}]


def slow_pair(said: str, true: str) -> tuple[int, float]:
    """Computes (exact, F1) as in 2.0."""
    own, gold = words(said), words(true)
    rest, same = list(gold), 0
    for word in own:
        if word in rest:
            rest.remove(word)
            same += 1
    if not own or not gold:
        return int(own == gold), float(own == gold)
    precision, recall = same / len(own), same / len(gold)
    return int(own == gold), 2 * precision * recall / (precision + recall) if same else 0.0


def questions(draw: random.Random) -> tuple[dict[str, list[str]], dict[str, str], dict[str, float]]:
    """Returns gold answers, predictions, and numbers on a grid so that many are equal."""
    count = draw.randint(1, 12)
    gold = {f"q{i}": draw.choices(TEXTS, k=draw.choice((0, 0, 1, 3))) for i in range(count)}
    said = {q: draw.choice((*answers, draw.choice(TEXTS))) for q, answers in gold.items()}
    order = draw.sample(sorted(gold), count)
    return gold, said, {q: draw.randint(-3, 3) / 3 for q in order}


def per_question(gold: dict[str, list[str]], said: dict[str, str]) -> dict[str, tuple[int, float]]:
    """Returns the best (exact, F1) over the gold answers that are not empty, or over "" if there is none."""
    found = {}
    for q, answers in gold.items():
        pairs = [slow_pair(said[q], answer) for answer in [a for a in answers if words(a)] or [""]]
        found[q] = max(p[0] for p in pairs), max(p[1] for p in pairs)
    return found


def mean(values: list[float]) -> float:
    return 100 * sum(values) / len(values)


def slow_scores(gold, said, no_answer, threshold) -> dict[str, float]:
    own = per_question(gold, said)
    own = {q: (float(not gold[q]),) * 2 if no_answer[q] > threshold else own[q] for q in gold}
    expected = {}
    kinds = {"": list(gold), "HasAns_": [q for q in gold if gold[q]], "NoAns_": [q for q in gold if not gold[q]]}
    for prefix, group in kinds.items():
        if group:
            expected |= {f"{prefix}{name}": mean([own[q][i] for q in group]) for i, name in enumerate(("exact", "f1"))}
            expected[f"{prefix}total"] = len(group)
    return expected


def test_squad_2_splits_questions_by_whether_they_have_an_answer():
    gold = {"a": ["black cat", "cat"], "b": [], "c": [], "d": ["the"]}
    # nothing is left of d's answer after normalisation: only "" is correct
    found = squad2_scores(gold, {"a": "big cat", "b": "", "c": "dog", "d": "an"})
    # a is nearest to "cat", F1 2/3
    by_hand = {"exact": 50.0, "f1": 100 * (2 / 3 + 1 + 0 + 1) / 4, "total": 4}
    by_hand |= {"HasAns_exact": 50.0, "HasAns_f1": 100 * (2 / 3 + 1) / 2, "HasAns_total": 2}
    assert found == pytest.approx({**by_hand, "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2})


def test_squad_2_is_the_mean_over_every_question_and_each_kind():
    draw = random.Random(0)
    for _ in range(300):
        gold, said, no_answer = questions(draw)
        threshold = draw.choice((-2.0, -1 / 3, 0.0, 0.5, 1.0))
        plain = squad2_scores(gold, said)
        assert plain == slow_scores(gold, said, dict.fromkeys(gold, 0.0), 1.0)
        found = squad2_scores(gold, said, no_answer, threshold)
        best = {name: found.pop(name) for name in list(found) if name.startswith("best_")}
        assert found == slow_scores(gold, said, no_answer, threshold)
        assert best.keys() == {"best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"}
        for name in ("exact", "f1"):
            own = question_scores(gold, said, exact=name == "exact")
            assert (best[f"best_{name}"], best[f"best_{name}_thresh"]) == find_threshold(own, gold, said, no_answer)


def test_the_official_threshold_search_accepts_predictions_one_by_one():
    gold = {"a": ["cat"], "b": [], "c": ["dog"], "d": []}
    said = {"a": "cat", "b": "cat", "c": "dog", "d": "dog"}
    margins = {"a": 0.1, "b": 0.3, "c": 0.6, "d": 0.9}
    own = question_scores(gold, said, exact=True)
    # from 2 correct ("" throughout): 3 with a, 2 with b, 3 with c, 2 with d; the first best one is kept
    assert find_threshold(own, gold, said, margins) == (75.0, 0.1)
    assert find_threshold(own, gold, said, {**margins, "b": 0.7}) == (100.0, 0.6)
    # "" throughout is best
    assert find_threshold(own, gold, said, {"b": 0.1, "d": 0.2, "a": 0.3, "c": 0.4}) == (50.0, 0.0)


def test_the_official_threshold_search_covers_every_prefix():
    draw = random.Random(1)
    for _ in range(300):
        gold, said, no_answer = questions(draw)
        own = per_question(gold, said)
        order = sorted(no_answer, key=lambda q: no_answer[q])  # equal ones in their original order
        for exact in (True, False):
            totals = []
            for k in range(len(order) + 1):
                answered = sum(own[q][not exact] for q in order[:k] if gold[q])
                left = sum(not gold[q] and not (q in order[:k] and said[q]) for q in order)
                totals.append(answered + left)
            best, threshold = find_threshold(question_scores(gold, said, exact=exact), gold, said, no_answer)
            assert best == pytest.approx(100 * max(totals) / len(gold), abs=1e-9)
            firsts = [k for k, total in enumerate(totals) if total > max(totals) - 1e-9]
            assert threshold == (no_answer[order[firsts[0] - 1]] if firsts[0] else 0.0)


def test_the_attainable_threshold_is_the_best_and_gives_its_score():
    draw = random.Random(2)
    better = 0
    for _ in range(60):
        gold, said, no_answer = questions(draw)
        for name in ("exact", "f1"):
            own = question_scores(gold, said, exact=name == "exact")
            best, threshold = find_threshold(own, gold, said, no_answer, attainable=True)
            assert squad2_scores(gold, said, no_answer, threshold)[name] == pytest.approx(best, abs=1e-9)
            every = [slow_scores(gold, said, no_answer, t)[name] for t in (-9.0, *no_answer.values())]
            assert best == pytest.approx(max(every), abs=1e-9)
            official = find_threshold(own, gold, said, no_answer)[1]
            better += best > squad2_scores(gold, said, no_answer, official)[name] + 1e-9
    assert better  # the grid makes the official threshold fail


def test_a_threshold_ignores_numbers_of_other_questions():
    gold, said = {"a": ["cat"], "b": []}, {"a": "cat", "b": "x"}
    own = question_scores(gold, said, exact=True)
    for attainable in (False, True):
        assert find_threshold(own, gold, said, {"z": -1.0, "a": 0.2, "b": 0.4}, attainable=attainable) == (100.0, 0.2)


def test_the_default_threshold_is_a_fixed_probability():
    gold = {"a": ["cat"], "b": ["cat"]}
    assert squad2_scores(gold, dict.fromkeys(gold, "cat"), {"a": 1.0, "b": 1.5})["exact"] == 50.0


def test_squad_2_requires_a_prediction_and_a_number_for_every_question():
    gold = {"a": ["cat"], "b": [], "c": []}
    with pytest.raises(UserError, match=r"2 of 3 questions have no prediction, the first is 'b'"):
        squad2_scores(gold, {"a": "cat"})
    with pytest.raises(UserError, match=r"1 of 3 questions have no no-answer probability, the first is 'c'"):
        squad2_scores(gold, dict.fromkeys("abc", ""), {"a": 0.0, "b": np.inf})
    with pytest.raises(ValueError, match="no questions"):
        squad2_scores({}, {})
