"""The official metrics of classification, regression and GAP: fractions in [-1, 1], never percent, but for the two losses; no
metric is ever nan.

Predictions and labels are arrays of one shape, integer [N] for classes and float [N] for values. Where they differ in shape, are
empty, or a label is not finite, every function raises ValueError.

The correlations are scipy's. The others are a few counts and one division each: scikit-learn gives the same numbers, which the
tests hold them to, but would add 57 MB in four packages and a second of import to every command that evaluates, and its log loss
clips at another probability than GAP's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from bert_jax.errors import UserError

Metric = Callable[[np.ndarray, np.ndarray], float]

ALIKE = "all answers are alike"


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of the N predictions that equal their labels."""
    predictions, labels = _paired(predictions, labels)
    return float(np.mean(predictions == labels))


def f1(predictions: np.ndarray, labels: np.ndarray, positive: int = 1) -> float:
    """F1 of one class (GLUE's MRPC and QQP: of 1); 0 where nothing is positive."""
    predictions, labels = _paired(predictions, labels)
    return _f1(predictions == positive, labels == positive)


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean of F1 over the classes that occur in the predictions or the labels (scikit-learn's average="macro")."""
    predictions, labels = _paired(predictions, labels)
    return float(np.mean([_f1(predictions == c, labels == c) for c in np.union1d(predictions, labels)]))


def micro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 over all N·C decisions of a multi-label task, bool [N, C]; 0 where nothing is positive."""
    predictions, labels = _paired(predictions, labels, dimensions=2)
    return _f1(predictions.astype(bool), labels.astype(bool))


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews correlation of any number of classes (Gorodkin 2004; GLUE's CoLA and AX).

    0 where the predictions or the labels hold one class only, where it is undefined, as in scikit-learn.
    """
    predictions, labels = _paired(predictions, labels)
    classes, flat = np.unique(np.concatenate([predictions, labels]), return_inverse=True)
    n = len(labels)
    said, true = (np.bincount(part, minlength=len(classes)) for part in (flat[:n], flat[n:]))
    # covariances times n squared, exact in Python's integers
    covariance = n * int(np.sum(predictions == labels)) - int(said @ true)
    spread = (n * n - int(said @ said)) * (n * n - int(true @ true))
    return covariance / spread**0.5 if spread else 0.0


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Correlation of values. 0 where it is undefined: constant predictions or labels, predictions that are nan or infinite."""
    return _correlation("pearsonr", predictions, labels)


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Correlation of ranks, equal values sharing the mean of theirs. 0 where it is undefined, as `pearson`."""
    return _correlation("spearmanr", predictions, labels)


def mean_squared_error(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Of values; infinite where a prediction is not finite."""
    predictions, labels = _paired(predictions, labels)
    if not np.isfinite(predictions).all():
        return float("inf")
    return float(np.mean((predictions.astype(np.float64) - labels) ** 2))


def log_loss(probabilities: np.ndarray, labels: np.ndarray, clip: float = 1e-15) -> float:
    """Mean cross-entropy in nats of float [N, C] against integer [N], as the GAP competition scored it.

    Rows are divided by their sums, then probabilities are clipped to [clip, 1 - clip], so that none costs more than -log(clip).
    ValueError where probabilities are negative, not finite or all zero, or a label is no column.
    """
    probabilities, labels = np.asarray(probabilities, np.float64), np.asarray(labels)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not labels.size:
        raise ValueError(f"probabilities {probabilities.shape} and labels {labels.shape} must be [N, C] and [N], N at least 1")
    if not 0 <= labels.min() <= labels.max() < probabilities.shape[1]:
        raise ValueError(f"labels in {labels.min()} to {labels.max()} of {probabilities.shape[1]} classes")
    sums = probabilities.sum(1, keepdims=True)
    if not (np.isfinite(sums).all() and (probabilities >= 0).all() and (sums > 0).all()):
        raise ValueError("probabilities must be finite and not negative, and no row all zero")
    chosen = (probabilities / sums)[np.arange(len(labels)), labels]
    return float(-np.log(np.clip(chosen, clip, 1 - clip)).mean())


# What GLUE reports of each task, in its order (Wang et al. 2019, table 1; AX: section 4). MNLI's two evaluation sets are scored
# one by one. The metric that a single number stands for is the one in the BERT paper's Table 1, but CoLA's: its caption calls
# it accuracy, its numbers are Matthews correlations.
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
    """Exactly the metrics that GLUE reports of a task. UserError where there is no such task."""
    return {name: metric(predictions, labels) for name, metric in _glue_metrics(task).items()}


def main_score(task: str) -> str:
    """The metric of `glue_scores` that stands for the task, by which runs are chosen: of MRPC and QQP F1, of STS-B Spearman's."""
    names = tuple(_glue_metrics(task))
    return "spearman" if "spearman" in names else names[0]


def degeneracy(predictions: np.ndarray, labels: np.ndarray) -> str:
    """What shows that a model answers the same whatever it is asked, as fine-tuning on few examples sometimes ends (paper section
    4.1); "" where nothing does.

    Integers: one class, though the labels hold several. Floats: a standard deviation below 1 % of the labels', or a value that is
    not finite.
    """
    predictions, labels = _paired(predictions, labels)
    if (labels == labels[0]).all():
        return ""
    if (predictions == predictions[0]).all():
        return ALIKE
    if not np.issubdtype(predictions.dtype, np.floating):
        return ""
    if not np.isfinite(predictions).all():
        return "some answers are not finite"
    nearly = bool(np.std(np.float64(predictions)) < 0.01 * np.std(np.float64(labels)))
    return "all answers are nearly alike, with less than 1 % of the labels' deviation" if nearly else ""


def gap_scores(predictions: np.ndarray, labels: np.ndarray, feminine: np.ndarray) -> dict[str, float]:
    """GAP as its gap_scorer.py counts it: every name of every example is one decision.

    predictions, labels: bool [N, 2], whether the pronoun refers to name A, and to name B; feminine: bool [N], of the pronouns.
    precision, recall and f1 are overall; masculine_f1 and feminine_f1 are 0 where a gender has no example. `bias` is feminine_f1
    / masculine_f1, absent where one of them is 0, as the official scorer then prints none.
    """
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
        raise UserError(f"no GLUE task is called {task!r}; the tasks are {', '.join(GLUE)}")
    return GLUE[task]


def _paired(predictions: np.ndarray, labels: np.ndarray, dimensions: int = 1) -> tuple[np.ndarray, np.ndarray]:
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or labels.ndim != dimensions or not labels.size:
        shape = "[N]" if dimensions == 1 else "[N, C]"
        raise ValueError(f"predictions {predictions.shape} and labels {labels.shape} must both be {shape}, and not empty")
    if not np.isfinite(labels).all():
        raise ValueError("a label is not finite")
    return predictions, labels


def _f1(said: np.ndarray, true: np.ndarray) -> float:
    """Of bool arrays of one shape; twice the hits over all that is positive, the harmonic mean of precision and recall."""
    positives = int(said.sum()) + int(true.sum())
    return 2 * int((said & true).sum()) / positives if positives else 0.0


def _correlation(name: str, predictions: np.ndarray, labels: np.ndarray) -> float:
    """A correlation of scipy.stats, in float64; 0 where it is undefined."""
    x, y = (values.astype(np.float64) for values in _paired(predictions, labels))
    if not np.isfinite(x).all() or (x == x[0]).all() or (y == y[0]).all():
        return 0.0
    from scipy import stats  # here, because it takes a second to import and only regression tasks need it

    with warnings.catch_warnings():  # of values that are nearly constant, which `degeneracy` reports
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float(getattr(stats, name)(x, y).statistic)
