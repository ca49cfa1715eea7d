"""SQuAD's metrics in percent, equal to those of its official scripts evaluate-v1.1.py and evaluate-v2.0.py to the last digit.

Gold answers are `{question id: texts}`, without texts for a question without an answer (2.0), in the order of the data set, on
which the last digit of a float sum depends. Predictions are `{question id: text}`, "" for "no answer"; those for other questions
are ignored.

The libraries with these metrics download the official scripts at run time (evaluate), or have only 1.1 and need PyTorch
(torchmetrics).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interface.words import counted

Gold = Mapping[str, Sequence[str]]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """`text` in lower case, without ASCII punctuation and the articles a, an, the, with single spaces between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> bool:
    """Whether two answers are equal after `normalise`."""
    return normalise(prediction) == normalise(gold)


def word_f1(prediction: str, gold: str) -> float:
    """F1 of two bags of normalised words; 0 if one is empty (the rule of 1.1; 2.0 gives 1 if both are empty)."""
    predicted, true = normalise(prediction).split(), normalise(gold).split()
    shared = sum((Counter(predicted) & Counter(true)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(true)
    return 2 * precision * recall / (precision + recall)


def squad1_scores(gold: Gold, predictions: Mapping[str, str]) -> dict[str, float]:
    """The metrics of SQuAD 1.1, "exact_match" and "f1": the maximum over the gold answers of a question, averaged over questions.

    A question without a prediction scores 0. Raises ValueError if there is no question, or one without a gold answer.
    """
    _require_questions(gold)
    unanswerable = [question for question, answers in gold.items() if not answers]
    if unanswerable:
        raise ValueError(f"question {unanswerable[0]!r} has no gold answer; SQuAD 1.1 has none such")
    exact, f1 = 0, 0.0
    for question, answers in gold.items():
        if question in predictions:
            exact += max(exact_match(predictions[question], answer) for answer in answers)
            f1 += max(word_f1(predictions[question], answer) for answer in answers)
    return {"exact_match": 100.0 * exact / len(gold), "f1": 100.0 * f1 / len(gold)}


def squad2_scores(
    gold: Gold,
    predictions: Mapping[str, str],
    no_answer: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """The metrics of SQuAD 2.0: "exact", "f1" and "total", also with the prefixes "HasAns_" and "NoAns_" for the questions with
    and without an answer, if there are any.

    no_answer: for every question the probability that it has no answer, or a monotonic function of it such as
    `Answer.no_answer_margin`. Predictions should then be the texts of the best span, never "": if `no_answer` exceeds
    `threshold`, "" replaces the prediction. "best_exact", "best_exact_thresh", "best_f1" and "best_f1_thresh" are then the
    results of `find_threshold`. Raises UserError for a question without a prediction or without `no_answer`.
    """
    _require_questions(gold)
    for name, values in (("prediction", predictions), ("no-answer probability", no_answer)):
        if values is not None and (missing := [question for question in gold if question not in values]):
            raise UserError(
                f"no {name} for {len(missing)} of {counted(len(gold), 'question')}, first {missing[0]!r}; give one for each"
            )
    raw = {"exact": question_scores(gold, predictions, exact=True), "f1": question_scores(gold, predictions, exact=False)}
    final = raw
    if no_answer is not None:
        final = {
            name: {q: float(not gold[q]) if no_answer[q] > threshold else score for q, score in scores.items()}
            for name, scores in raw.items()
        }
    scores = _means(final, gold)
    for prefix, answerable in (("HasAns_", True), ("NoAns_", False)):
        if questions := [q for q in gold if bool(gold[q]) == answerable]:
            scores |= {prefix + name: score for name, score in _means(final, questions).items()}
    if no_answer is not None:
        for name, own in raw.items():
            scores[f"best_{name}"], scores[f"best_{name}_thresh"] = find_threshold(own, gold, predictions, no_answer)
    return scores


def question_scores(gold: Gold, predictions: Mapping[str, str], *, exact: bool) -> dict[str, float]:
    """{question id: exact match or F1, in [0, 1]} of 2.0 before any threshold, for `find_threshold`.

    Gold answers that are empty after `normalise` are ignored; if none remains, the gold answer is "".
    """
    scores = {}
    for question, answers in gold.items():
        prediction = predictions[question]
        texts = [answer for answer in answers if normalise(answer)] or [""]
        if exact:
            scores[question] = float(max(exact_match(prediction, text) for text in texts))
        elif texts == [""]:
            scores[question] = float(not normalise(prediction))
        else:
            scores[question] = max(word_f1(prediction, text) for text in texts)
    return scores


def find_threshold(
    scores: Mapping[str, float],
    gold: Gold,
    predictions: Mapping[str, str],
    no_answer: Mapping[str, float],
    *,
    attainable: bool = False,
) -> tuple[float, float]:
    """The best mean score in percent, and the smallest threshold of `no_answer` (above it "" is the prediction) that gives it.

    scores: the `question_scores`. The official search starts with "" for every question and then takes the predictions one by
    one, those with the lowest `no_answer` first. It has three errors, which `attainable` corrects. Between equal values of
    `no_answer` it may report a score that no threshold gives. If "" for every question is best, it reports the threshold 0, which
    is right only if all values are above 0. And a prediction such as "the" loses a point, although it normalises to "". Use
    `attainable` for a threshold to predict with; `squad2_scores` at this threshold gives the reported score.
    """
    order = [question for question in sorted(no_answer, key=no_answer.__getitem__) if question in scores]
    current: float = sum(not answers for answers in gold.values())
    # the threshold that gives "" for every question: all values are above it
    below = float(np.nextafter(no_answer[order[0]], -np.inf)) if attainable and order else 0.0
    best, threshold = current, below
    for i, question in enumerate(order):
        if gold[question]:
            current += scores[question]
        else:
            current += scores[question] - 1 if attainable else -bool(predictions[question])
        tied = i + 1 < len(order) and no_answer[order[i + 1]] == no_answer[question]
        if current > best and not (attainable and tied):
            best, threshold = current, no_answer[question]
    return 100.0 * best / len(scores), threshold


def _means(scores: Mapping[str, Mapping[str, float]], questions: Iterable[str]) -> dict[str, float]:
    questions = list(questions)
    means = {name: 100.0 * sum(own[q] for q in questions) / len(questions) for name, own in scores.items()}
    return means | {"total": len(questions)}


def _require_questions(gold: Gold) -> None:
    if not gold:
        raise ValueError("no questions: their scores are undefined")
