"""The scores of an objective: names, formulas, display and baselines.

Sums are divided at the end, so means are exact even if batches and processes have different numbers of tokens.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int, Num

Formula: TypeAlias = Callable[[Mapping[str, float]], float | None]
"""A function of the scores computed so far, by name. It returns a further score, or None if that score cannot be computed."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A score, which is the quotient of two sums, and the way in which logs and figures show the score."""

    numerator: str
    denominator: str
    title: str = ""
    """The name in log lines and figures. It is filled in from the key in `Objective.scores`."""
    unit: str = ""
    """The text after the title in the figure, such as "(nats per predicted token)"."""
    shown: bool = True
    """Whether log lines and the figure show the score. metrics.jsonl and results.json always contain it."""
    baseline: str = ""
    """The name of the baseline score shown next to it."""
    baseline_title: str = ""
    """A description of the baseline, e.g. "word frequency alone"."""
    from_zero: bool = False
    """Whether the axis of the score's figure starts at 0."""

    @property
    def is_share(self) -> bool:
        """Whether the score is a fraction, such as an accuracy. Fractions are shown in percent."""
        return self.title.lower().endswith(("accuracy", "rate", "share"))

    def text(self, value: float) -> str:
        """Formats title and value, e.g. "MLM accuracy 18.4 %"."""
        return f"{self.title} {100 * value:.1f} %" if self.is_share else f"{self.title} {value:.3f}"


def score_name(title: str) -> str:
    """Converts a title to the score's name in metrics.jsonl and results.json: "mlm_loss" for "MLM loss"."""
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")


# -------------------------------------------------------------------------------------------------------------------- formulas
def perplexity(loss: float) -> float:
    """Returns exp(loss), or infinity if exp would overflow."""
    return math.exp(loss) if loss < 700 else math.inf if loss >= 700 else math.nan


class ReadScores(dict[str, float]):
    """Scores for a trial of a formula, which record what the formula reads."""

    def __init__(self, scores: Mapping[str, float], optional: Collection[str]):
        """`get` and `in` may also read the `optional` names."""
        super().__init__(scores)
        self._optional = optional
        self.missing: list[str] = []
        """The names that the formula reads by index although they are not scores."""
        self.absent: list[str] = []
        """The other names for which the formula asks although they are not scores."""
        self.has_found = False
        """Whether the formula reads a score."""

    def __bool__(self) -> bool:
        return True  # a formula may return None without reading if there are no scores

    def __getitem__(self, name: str) -> float:
        if super().__contains__(name):
            self.has_found = True
            return super().__getitem__(name)
        self.missing.append(name)
        return 1.0

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        self.has_found |= found
        if not found and name not in self._optional:
            self.absent.append(str(name))
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a score, or `default` if it does not exist."""
        if name in self:
            return self[name]
        return default


def perplexity_formula(name: str) -> Formula:
    """Returns the formula exp(score `name`)."""
    return lambda scores: perplexity(scores[name]) if name in scores else None


def sum_formula(*names: str) -> Formula:
    """Returns the formula for the sum of the scores `names` that exist."""
    return lambda scores: sum((scores.get(name, 0.0) for name in names), 0.0) if scores else None


# ------------------------------------------------------------------------------------------------------------------- baselines
@dataclasses.dataclass(frozen=True)
class Majority:
    """The accuracy of always giving the more frequent of two answers, computed from sums over the held-out rows."""

    ones: str
    """The name of the sum that counts one of the answers."""
    of: str
    """The name of the sum that counts all answers."""
    title: str = "one answer for all"

    def value(self, sums: Mapping[str, float]) -> float | None:
        """Returns the fraction of the more frequent answer, or None without data."""
        total = float(sums.get(self.of, 0.0))
        share = float(sums[self.ones]) / total if total else None
        return None if share is None else max(share, 1.0 - share)


def majority_baseline(ones: str, of: str) -> Majority:
    """Returns the baseline that always gives the more frequent of two answers. The sum `ones` counts one of the answers, and the
    sum `of` counts all."""
    return Majority(ones, of)


@dataclasses.dataclass(frozen=True)
class EvalRows:
    """The held-out rows of an evaluation, for baselines computed from them."""

    predicted: Int[np.ndarray, "R _"]
    """The target ids that `Objective.predicted` returns; -1 where unused."""
    labels: Int[np.ndarray, "R P"]
    """"nsp_labels"; -1 where there is no pair."""
    train: Any
    """The `Corpus` of the training split of the phase, or of a block of the split. Its token counts are those of the whole
    split."""
    plan: Any
    """The `EpochPlan` of an epoch of `train`."""
    words: int | None = None
    """The number of predicted words if whole words are predicted, otherwise None. The predictions are the pieces of these
    words."""


def unigram_baseline(target_counts: Num[np.ndarray, " V"], targets: Int[np.ndarray, " ..."]) -> dict[str, float]:
    """Returns the accuracy and loss of the unigram distribution, which ignores the context. A model that does not beat this
    baseline has learned nothing.

    `target_counts` holds how often each token is a target in training. `targets` holds the ids of all targets on held-out rows,
    -1 where unused. The accuracy is reached by always predicting the most frequent target. The loss is the cross-entropy with
    add-one (Laplace) smoothing, which is finite for tokens without a count."""
    vocabulary = target_counts.shape[0]
    used = np.asarray(targets)[np.asarray(targets) >= 0]
    if not used.size:
        raise ValueError("there are no targets, so the unigram baseline is undefined")
    found = np.bincount(used, minlength=vocabulary)
    if found.shape[0] > vocabulary:
        raise ValueError(f"target {used.max()} is outside the vocabulary of {vocabulary} counts")
    smoothed = target_counts.astype(np.float64) + 1.0
    log_probability = np.log(smoothed) - np.log(smoothed.sum())
    return {
        "unigram_accuracy": float(found[target_counts.argmax()] / used.size),
        "unigram_loss": float(-(found @ log_probability) / used.size),
    }


def next_sentence_baseline(labels: Int[np.ndarray, " ..."]) -> dict[str, float]:
    """Returns the NSP accuracy of always predicting the more frequent label, or {} if there is no example. The labels are 0
    (next sentence), 1 (random sentence) and -1 (no example). A model that does not beat this accuracy has learned nothing about
    NSP."""
    used = np.asarray(labels)[np.asarray(labels) >= 0]
    if not used.size:
        return {}
    return {"nsp_majority_accuracy": float(np.bincount(used).max() / used.size)}


def target_counts(corpus: Any, plan: Any, predictions_of_last: float = 1.0) -> Float[np.ndarray, " V"]:
    """Returns how often each token is a target in an epoch, up to a constant factor. `corpus` is the `Corpus` of the training
    split.

    Words count as often as they occur. [UNK] is never a target. If next tokens are predicted, each [SEP] is a target too. The
    counts of the corpus do not include [SEP], so the count of [SEP] is computed from `plan`. `predictions_of_last` is how often
    the last [SEP] of a text is predicted, relative to other tokens. It is 1/2 in a biLM, which predicts the last [SEP] in only
    one direction."""
    counts = corpus.token_counts.astype(np.float64)
    counts[corpus.vocabulary.unk_id] = 0.0
    if plan.config.kind.predicts_separators:
        lengths, separators = plan.lengths().astype(np.int64), plan.config.special_tokens - 1
        predicted = plan.config.predictions(lengths) / (lengths - 1)  # the fraction of the tokens after [CLS]
        words = (predicted * (lengths - 1 - separators)).sum()
        times = separators - 1.0 + predictions_of_last
        counts[corpus.vocabulary.sep_id] = counts.sum() * times * predicted.sum() / words
    return counts
