"""The official metrics of all tasks except entities (`entity_scores`), and the scores of constant predictions.

The scores of classification, regression and GAP are fractions in [-1, 1] rather than percent, except the two losses. No metric
is ever nan. Predictions and labels are arrays of the same shape, int [E] for classes or float [E] for a regression. Every
function raises ValueError if the shapes differ, if the arrays are empty, or if a label is not finite.

The scores of SQuAD are in percent. They are identical to the official scripts evaluate-v1.1.py and evaluate-v2.0.py to the last
digit. Gold answers are `{question id: texts}`. A question without an answer (2.0) has no texts. The questions are in the order
of the data set, because the last digit of a float sum depends on this order. Predictions are `{question id: text}`, where ""
means "no answer". Predictions for unknown questions are ignored. Two libraries have these metrics but are not used: evaluate
downloads the official scripts at run time, and torchmetrics has only 1.1 and needs PyTorch.

A model that has learned anything must score higher than constant predictions. The most frequent label of the training set may
be rare in the evaluated split, and another constant prediction may score higher there. The baseline is therefore the better of
these two predictions, with its name.

The correlations are computed by scipy. Each of the other metrics needs only a few counts and a division. scikit-learn gives the
same numbers (the tests compare both), but it would add 57 MB in four packages, and a second of import time to every command
that evaluates. scikit-learn's log loss also clips at a different probability than the log loss of GAP."""

from __future__ import annotations

import dataclasses
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interface.words import counted

Constant = tuple[str, Mapping[str, float]]
"""The name of a constant prediction, and its scores."""


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The scores of the best constant prediction for a split. They are empty if no example has a label."""

    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The scores of the constant prediction, with the same names as in `Task.scores`."""
    named: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The value of the task's main metric for each rule. One rule is the constant prediction. For token tasks, another rule
    predicts each word's most frequent label in training."""

    @property
    def bar(self) -> float:
        """The highest score in `named`."""
        return max(self.named.values())


def constant_baseline(metric: str, split: str, usual: Constant, others: Iterable[Constant]) -> Baseline:
    """Returns the baseline with the higher `metric`. It is either `usual`, the most frequent label in training, or the best of
    `others` on this split."""
    name, scores = usual
    other_name, other = max(others, key=lambda constant: constant[1][metric], default=usual)
    rule = f"{name} for all, most frequent in training"
    if other[metric] > scores[metric]:
        rule, scores = f"{other_name} for all, best on {split}", other
    return Baseline(scores, {rule: scores[metric]})


Metric = Callable[[np.ndarray, np.ndarray], float]

ALIKE = "all predictions are the same"


def scorer(metrics: Mapping[str, Metric]) -> Callable[[str, np.ndarray, np.ndarray], dict[str, float]]:
    """Returns a function that takes a split, predictions and labels, and returns the scores. It uses the same `metrics` for
    every split."""
    return lambda split, predictions, labels: {name: metric(predictions, labels) for name, metric in metrics.items()}


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns the fraction of the predictions that equal their labels."""
    predictions, labels = _paired(predictions, labels)
    return float(np.mean(predictions == labels))


def f1(predictions: np.ndarray, labels: np.ndarray, positive: int = 1) -> float:
    """Returns F1 of the class `positive` (1 in GLUE's MRPC and QQP), or 0 if neither predictions nor labels contain this
    class."""
    predictions, labels = _paired(predictions, labels)
    return _f1(predictions == positive, labels == positive)


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean of F1 over the classes that occur in the predictions or the labels (scikit-learn's average="macro")."""
    predictions, labels = _paired(predictions, labels)
    return float(np.mean([_f1(predictions == c, labels == c) for c in np.unique([predictions, labels])]))


def macro_precision(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean precision over the classes that occur in the predictions or the labels (scikit-learn's average="macro").
    A class that is never predicted has precision 0."""
    return _mean_share(*_paired(predictions, labels))


def macro_recall(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean recall over the same classes as `macro_precision`. A class without examples has recall 0."""
    predictions, labels = _paired(predictions, labels)
    return _mean_share(labels, predictions)


def _mean_share(these: np.ndarray, others: np.ndarray) -> float:
    """For each class, computes which fraction of the examples with this class in `these` also have this class in `others`.
    Returns the mean over all classes."""
    classes = [(these == c, others == c) for c in np.unique([these, others])]
    return float(np.mean([(own & other).sum() / max(own.sum(), 1) for own, other in classes]))


def micro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns F1 over all decisions of a multi-label task, bool [E, C], or 0 if nothing is positive."""
    predictions, labels = _paired(predictions, labels, dimensions=2)
    return _f1(predictions.astype(bool), labels.astype(bool))


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns the Matthews correlation for any number of classes (Gorodkin 2004; GLUE's CoLA and AX).

    Returns 0 if all predictions or all labels are the same class, since the correlation is then undefined (as in
    scikit-learn)."""
    predictions, labels = _paired(predictions, labels)
    classes, flat = np.unique(np.concatenate([predictions, labels]), return_inverse=True)
    n = labels.size
    predicted, true = (np.bincount(part, minlength=len(classes)) for part in (flat[:n], flat[n:]))
    # Covariance and variances are multiplied by n squared, so that they are exact integers in Python.
    covariance = n * int(np.sum(predictions == labels)) - int(predicted @ true)
    variances = (n * n - int(predicted @ predicted)) * (n * n - int(true @ true))
    return covariance / variances**0.5 if variances else 0.0


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns the Pearson correlation, or 0 if it is undefined (constant predictions or labels, non-finite predictions)."""
    return _correlation("pearsonr", predictions, labels)


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns the Spearman rank correlation, with mean ranks for ties, or 0 if it is undefined (as in `pearson`)."""
    return _correlation("spearmanr", predictions, labels)


def mean_squared_error(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean squared error. It is infinite if a prediction is not finite."""
    predictions, labels = _paired(predictions, labels)
    if not np.isfinite(predictions).all():
        return float("inf")
    return float(np.mean((predictions.astype(np.float64) - labels) ** 2))


def log_loss(probabilities: np.ndarray, labels: np.ndarray, clip: float = 1e-15) -> float:
    """Returns the mean cross-entropy (nats) between probabilities, float [E, C], and labels, int [E], as in the GAP
    competition.

    Rows are normalised to a sum of 1. Probabilities are then clipped to [clip, 1 - clip], so no example has a loss above
    -log(clip). Raises ValueError if probabilities are negative or not finite, if a row is all zero, or if a label is outside
    [0, C)."""
    probabilities, labels = np.asarray(probabilities, np.float64), np.asarray(labels)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not labels.size:
        raise ValueError(f"probabilities {probabilities.shape} and labels {labels.shape} must be [E, C] and [E], E at least 1")
    if not 0 <= labels.min() <= labels.max() < probabilities.shape[1]:
        raise ValueError(f"labels are {labels.min()} to {labels.max()}, but there are only {probabilities.shape[1]} classes")
    sums = probabilities.sum(1, keepdims=True)
    if not (np.isfinite(sums).all() and (probabilities >= 0).all() and (sums > 0).all()):
        raise ValueError("probabilities must be finite and not negative, and no row may be all zero")
    chosen = (probabilities / sums)[np.arange(len(labels)), labels]
    return float(-np.log(np.clip(chosen, clip, 1 - clip)).mean())


# The metrics that GLUE reports for each task, in GLUE's order (Wang et al. 2019, table 1, and section 4 for AX). MNLI's two
# evaluation sets are scored separately. `main_score` is the metric in Table 1 of the BERT paper. The caption of this table says
# "accuracy" for CoLA, but the scores are Matthews correlations.
GLUE: dict[str, dict[str, Metric]] = {
    "cola": {"matthews": matthews},
    "sst2": {"accuracy": accuracy},
    "mrpc": {"f1": f1, "accuracy": accuracy},
    "stsb": {"pearson": pearson, "spearman": spearman},
    "qqp": {"f1": f1, "accuracy": accuracy},
    "mnli": {"accuracy": accuracy},
    "qnli": {"accuracy": accuracy},
    "rte": {"accuracy": accuracy},
    "wnli": {"accuracy": accuracy},
    "ax": {"matthews": matthews},
}


def glue_scores(task: str, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns the metrics that GLUE reports for a task. Raises UserError for an unknown task."""
    return {name: metric(predictions, labels) for name, metric in _glue_metrics(task).items()}


def main_score(task: str) -> str:
    """Returns the name of the metric in `glue_scores` that selects models. It is F1 for MRPC and QQP, and Spearman's
    correlation for STS-B. The other tasks have only one metric."""
    names = tuple(_glue_metrics(task))
    return "spearman" if "spearman" in names else names[0]


def degeneracy(predictions: np.ndarray, labels: np.ndarray) -> str:
    """Returns a description of degenerate predictions, or "" for all other predictions. Degenerate predictions hardly depend on
    the input, as in some fine-tuning runs on few examples (paper section 4.1).

    Predictions are degenerate if all are the same although the labels differ. In a regression, they are also degenerate if a
    prediction is not finite, or if the predictions are nearly the same and in no useful order. They are nearly the same if
    their standard deviation is below 1 % of the labels' standard deviation. They are in no useful order if Spearman's
    correlation is within three standard errors of 0. Nearly equal predictions in the right order are not degenerate, since the
    correlations ignore scale."""
    predictions, labels = _paired(predictions, labels)
    if (labels == labels[0]).all():
        return ""
    if (predictions == predictions[0]).all():
        return ALIKE
    if not np.issubdtype(predictions.dtype, np.floating):
        return ""
    if not np.isfinite(predictions).all():
        return "some predictions are not finite"
    if np.std(np.float64(predictions)) >= 0.01 * np.std(np.float64(labels)):
        return ""
    if abs(spearman(predictions, labels)) > 3 / (len(labels) - 1) ** 0.5:
        return ""
    return "all predictions are nearly the same: their standard deviation is below 1 % of the labels'"


def gap_scores(predictions: np.ndarray, labels: np.ndarray, feminine: np.ndarray) -> dict[str, float]:
    """Returns GAP's metrics, counted as in gap_scorer.py. Each of the two names in an example is one decision.

    predictions, labels: bool [E, 2], whether the pronoun refers to name A, and to name B. feminine: bool [E], whether the
    pronoun is feminine. The scores precision, recall and f1 are over all examples. masculine_f1 and feminine_f1 are 0 if a
    gender has no example. `bias` is feminine_f1 / masculine_f1. The bias is left out if one of the two F1 is 0, since the
    official scorer then prints no bias."""
    predictions, labels = (part.astype(bool) for part in _paired(predictions, labels, dimensions=2))
    feminine = np.asarray(feminine, bool)
    if labels.shape != (len(feminine), 2):
        raise ValueError(f"labels {labels.shape} must be [{len(feminine)}, 2]: two names for each pronoun")
    hits = int(np.sum(predictions & labels))
    scores = {
        "precision": hits / max(1, int(predictions.sum())),
        "recall": hits / max(1, int(labels.sum())),
        "f1": _f1(predictions, labels),
        "masculine_f1": _f1(predictions[~feminine], labels[~feminine]),
        "feminine_f1": _f1(predictions[feminine], labels[feminine]),
    }
    if scores["masculine_f1"] and scores["feminine_f1"]:
        scores["bias"] = scores["feminine_f1"] / scores["masculine_f1"]
    return scores


def _glue_metrics(task: str) -> dict[str, Metric]:
    if task not in GLUE:
        raise UserError(f"unknown GLUE task {task!r}; the tasks are {', '.join(GLUE)}")
    return GLUE[task]


def _paired(predictions: np.ndarray, labels: np.ndarray, dimensions: int = 1) -> tuple[np.ndarray, np.ndarray]:
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or labels.ndim != dimensions or not labels.size:
        shape = "[E]" if dimensions == 1 else "[E, C]"
        raise ValueError(f"predictions {predictions.shape} and labels {labels.shape} must both be {shape}, and not empty")
    if not np.isfinite(labels).all():
        raise ValueError("a label is not finite")
    return predictions, labels


def _f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns F1 (the harmonic mean of precision and recall) for two bool arrays of the same shape, or 0 if nothing is
    positive."""
    positives = int(predictions.sum()) + int(labels.sum())
    return 2 * int((predictions & labels).sum()) / positives if positives else 0.0


def _correlation(name: str, predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns a correlation of scipy.stats in float64, or 0 if it is undefined."""
    x, y = (values.astype(np.float64) for values in _paired(predictions, labels))
    if not np.isfinite(x).all() or (x == x[0]).all() or (y == y[0]).all():
        return 0.0
    from scipy import stats  # scipy is imported here, because this takes a second and only regression tasks need it

    with warnings.catch_warnings():  # `degeneracy` reports nearly constant predictions
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float(getattr(stats, name)(x, y).statistic)


Gold = Mapping[str, Sequence[str]]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower-cases `text` and removes ASCII punctuation, the articles a, an, the, and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> bool:
    """Returns whether two answers are equal after `normalise`."""
    return normalise(prediction) == normalise(gold)


def word_f1(prediction: str, gold: str) -> float:
    """Returns F1 of two bags of normalised words, or 0 if a bag is empty. This is the rule of SQuAD 1.1. SQuAD 2.0 gives 1 if
    both bags are empty."""
    predicted, true = normalise(prediction).split(), normalise(gold).split()
    shared = sum((Counter(predicted) & Counter(true)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(true)
    return 2 * precision * recall / (precision + recall)


def squad1_scores(gold: Gold, predictions: Mapping[str, str]) -> dict[str, float]:
    """Returns the metrics of SQuAD 1.1, "exact_match" and "f1". The score of a question is the maximum over its gold answers.
    The metrics are the means over all questions.

    A question without a prediction scores 0. Raises ValueError if there are no questions, or if a question has no gold answer.
    """
    _require_questions(gold)
    unanswerable = [question for question, answers in gold.items() if not answers]
    if unanswerable:
        raise ValueError(f"question {unanswerable[0]!r} has no gold answer, which SQuAD 1.1 requires")
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
    """Returns the metrics of SQuAD 2.0: "exact", "f1" and "total". They are also computed for the questions with an answer
    (with the prefix "HasAns_") and without an answer ("NoAns_"), if there are such questions.

    no_answer: for every question, the probability that the question has no answer, or a monotonic function of this probability
    such as `Answer.no_answer_margin`. If `no_answer` is given, predictions must be the texts of the best spans, never "". A
    prediction is then replaced by "" if `no_answer` of the question exceeds `threshold`. The results of `find_threshold` are
    also added: "best_exact", "best_exact_thresh", "best_f1" and "best_f1_thresh". Raises UserError for a question without a
    prediction or without `no_answer`.
    """
    _require_questions(gold)
    for name, values in (("prediction", predictions), ("no-answer probability", no_answer)):
        if values is not None and (missing := [question for question in gold if question not in values]):
            raise UserError(
                f"{len(missing)} of {counted(len(gold), 'question')} have no {name}, the first is {missing[0]!r}; give one "
                f"{name} for each question"
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
    """Returns {question id: score} for `find_threshold`. The score is the exact match or F1 of SQuAD 2.0, in [0, 1], before any
    threshold.

    Gold answers that are empty after `normalise` are ignored. If no gold answer is left, "" is used as the gold answer."""
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
    """Returns the best mean score in percent, and the smallest threshold of `no_answer` that gives this score. The prediction
    for a question is "" if `no_answer` is above the threshold.

    scores: the `question_scores`. The official search starts with "" for every question. It then accepts the predictions one by
    one, starting with the lowest `no_answer`. It has three errors, which `attainable` corrects: (1) If several questions have
    the same `no_answer`, the search may accept only some of them, and report a score that no threshold gives. (2) If "" is the
    best answer to every question, the search reports the threshold 0. This threshold gives these answers only if all values are
    above 0. (3) If a question has no answer, a prediction such as "the" loses a point, although it normalises to "". Use
    `attainable` for a threshold to predict with. `squad2_scores` at this threshold gives the reported score."""
    order = [question for question in sorted(no_answer, key=no_answer.__getitem__) if question in scores]
    current: float = sum(not answers for answers in gold.values())
    # A threshold below all values gives "" for every question.
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
