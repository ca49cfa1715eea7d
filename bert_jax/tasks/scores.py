"""The official metrics of classification, regression and GAP: fractions in [-1, 1] rather than percent, except the two losses; no
metric is ever nan.

Predictions and labels are arrays of the same shape: int [E] for classes, float [E] for a regression. Every function raises
ValueError if their shapes differ, if they are empty, or if a label is not finite.

The correlations are scipy's. The others are a few counts and one division each: scikit-learn gives the same numbers (the tests
compare both), but would add 57 MB in four packages and a second of import to every command that evaluates, and its log loss clips
at another probability than GAP's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import numpy as np

from bert_jax.errors import UserError

Metric = Callable[[np.ndarray, np.ndarray], float]

ALIKE = "all predictions are the same"


def scorer(metrics: Mapping[str, Metric]) -> Callable[[str, np.ndarray, np.ndarray], dict[str, float]]:
    """A function (split, predictions, labels) -> the scores by `metrics`, which are the same for every split."""
    return lambda split, predictions, labels: {name: metric(predictions, labels) for name, metric in metrics.items()}


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of the predictions that equal their labels."""
    predictions, labels = _paired(predictions, labels)
    return float(np.mean(predictions == labels))


def f1(predictions: np.ndarray, labels: np.ndarray, positive: int = 1) -> float:
    """F1 of the class `positive` (1 in GLUE's MRPC and QQP); 0 if neither predictions nor labels contain it."""
    predictions, labels = _paired(predictions, labels)
    return _f1(predictions == positive, labels == positive)


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean of F1 over the classes that occur in the predictions or the labels (scikit-learn's average="macro")."""
    predictions, labels = _paired(predictions, labels)
    return float(np.mean([_f1(predictions == c, labels == c) for c in np.unique([predictions, labels])]))


def macro_precision(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean over the classes that occur in the predictions or the labels of the fraction of its predictions that are correct,
    0 for a class that is never predicted (scikit-learn's average="macro")."""
    return _mean_share(*_paired(predictions, labels))


def macro_recall(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean over the same classes of the fraction of its examples that are predicted correctly, 0 for one without examples."""
    predictions, labels = _paired(predictions, labels)
    return _mean_share(labels, predictions)


def _mean_share(these: np.ndarray, others: np.ndarray) -> float:
    """The mean over all classes of the share of the examples that `these` put in the class that `others` put there too."""
    classes = [(these == c, others == c) for c in np.unique([these, others])]
    return float(np.mean([(own & other).sum() / max(own.sum(), 1) for own, other in classes]))


def micro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 over all decisions of a multi-label task, bool [E, C]; 0 if nothing is positive."""
    predictions, labels = _paired(predictions, labels, dimensions=2)
    return _f1(predictions.astype(bool), labels.astype(bool))


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews correlation for any number of classes (Gorodkin 2004; GLUE's CoLA and AX).

    0 if all predictions or all labels are the same class, where it is undefined (as in scikit-learn).
    """
    predictions, labels = _paired(predictions, labels)
    classes, flat = np.unique(np.concatenate([predictions, labels]), return_inverse=True)
    n = labels.size
    predicted, true = (np.bincount(part, minlength=len(classes)) for part in (flat[:n], flat[n:]))
    # covariance and variances times n squared: exact in Python's integers
    covariance = n * int(np.sum(predictions == labels)) - int(predicted @ true)
    variances = (n * n - int(predicted @ predicted)) * (n * n - int(true @ true))
    return covariance / variances**0.5 if variances else 0.0


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson correlation. 0 where it is undefined: constant predictions or labels, predictions that are nan or infinite."""
    return _correlation("pearsonr", predictions, labels)


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Spearman rank correlation; equal values have the mean of their ranks. 0 where it is undefined, as `pearson`."""
    return _correlation("spearmanr", predictions, labels)


def mean_squared_error(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean squared error; infinite if a prediction is not finite."""
    predictions, labels = _paired(predictions, labels)
    if not np.isfinite(predictions).all():
        return float("inf")
    return float(np.mean((predictions.astype(np.float64) - labels) ** 2))


def log_loss(probabilities: np.ndarray, labels: np.ndarray, clip: float = 1e-15) -> float:
    """Mean cross-entropy in nats of probabilities float [E, C] against labels int [E], as in the GAP competition.

    Rows are normalised to a sum of 1, then probabilities are clipped to [clip, 1 - clip], so no example costs more than
    -log(clip). Raises ValueError for probabilities that are negative, not finite or all zero, and for labels outside [0, C).
    """
    probabilities, labels = np.asarray(probabilities, np.float64), np.asarray(labels)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not labels.size:
        raise ValueError(f"probabilities {probabilities.shape} and labels {labels.shape} must be [E, C] and [E], E at least 1")
    if not 0 <= labels.min() <= labels.max() < probabilities.shape[1]:
        raise ValueError(f"labels in {labels.min()} to {labels.max()} of {probabilities.shape[1]} classes")
    sums = probabilities.sum(1, keepdims=True)
    if not (np.isfinite(sums).all() and (probabilities >= 0).all() and (sums > 0).all()):
        raise ValueError("probabilities must be finite and not negative, and no row all zero")
    chosen = (probabilities / sums)[np.arange(len(labels)), labels]
    return float(-np.log(np.clip(chosen, clip, 1 - clip)).mean())


# The metrics that GLUE reports for each task, in its order (Wang et al. 2019, table 1; AX: section 4); MNLI's two evaluation sets
# are scored separately. `main_score` is the metric in the BERT paper's Table 1, whose caption calls CoLA's Matthews correlation
# accuracy.
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
    """The metrics that GLUE reports for a task. Raises UserError for an unknown task."""
    return {name: metric(predictions, labels) for name, metric in _glue_metrics(task).items()}


def main_score(task: str) -> str:
    """The metric among `glue_scores` by which models are selected: F1 for MRPC and QQP, Spearman's correlation for STS-B."""
    names = tuple(_glue_metrics(task))
    return "spearman" if "spearman" in names else names[0]


def degeneracy(predictions: np.ndarray, labels: np.ndarray) -> str:
    """A description of degenerate predictions, which hardly depend on the input, as after some fine-tuning runs on few examples
    (paper section 4.1); "" if there is no sign of it.

    Signs, if the labels differ: all predictions are the same; or, of a regression, a prediction is not finite, or their standard
    deviation is below 1 % of that of the labels and they do not order the examples either: Spearman's correlation is within three
    standard errors of 0. Nearly equal predictions in the right order are not degenerate, since the correlations ignore scale.
    """
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
    if len(labels) > 1 and abs(spearman(predictions, labels)) > 3 / (len(labels) - 1) ** 0.5:
        return ""
    return "all predictions are nearly the same: their standard deviation is below 1 % of that of the labels"


def gap_scores(predictions: np.ndarray, labels: np.ndarray, feminine: np.ndarray) -> dict[str, float]:
    """GAP's metrics, as gap_scorer.py counts them: every name of every example is one decision.

    predictions, labels: bool [E, 2], whether the pronoun refers to name A, and to name B; feminine: bool [E], its gender.
    precision, recall and f1 are overall; masculine_f1 and feminine_f1 are 0 if a gender has no example. `bias` is feminine_f1 /
    masculine_f1, absent if one of them is 0, as the official scorer then prints none.
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
        shape = "[E]" if dimensions == 1 else "[E, C]"
        raise ValueError(f"predictions {predictions.shape} and labels {labels.shape} must both be {shape}, and not empty")
    if not np.isfinite(labels).all():
        raise ValueError("a label is not finite")
    return predictions, labels


def _f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1, the harmonic mean of precision and recall, of two bool arrays of the same shape; 0 if nothing is positive."""
    positives = int(predictions.sum()) + int(labels.sum())
    return 2 * int((predictions & labels).sum()) / positives if positives else 0.0


def _correlation(name: str, predictions: np.ndarray, labels: np.ndarray) -> float:
    """A correlation of scipy.stats, in float64; 0 where it is undefined."""
    x, y = (values.astype(np.float64) for values in _paired(predictions, labels))
    if not np.isfinite(x).all() or (x == x[0]).all() or (y == y[0]).all():
        return 0.0
    from scipy import stats  # here, because it takes a second to import and only regression tasks need it

    with warnings.catch_warnings():  # `degeneracy` reports nearly constant predictions
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float(getattr(stats, name)(x, y).statistic)
