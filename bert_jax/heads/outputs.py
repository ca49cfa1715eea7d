"""The outputs of a task head by the problem they solve: one label of several, any number of labels, or a value.

`Outputs` says for each of them how labels are stored, the loss in training, how logits are read as predictions, and which
constant predictions a model has to beat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.corpus.files import JsonObject

Array = jax.Array
Label = str | float | tuple[str, ...]
"""A prediction as a person reads it: a label, a value, or several labels."""

EXCLUDED = -1e9
"""The logit of an answer that does not exist: a token of another sequence, a candidate that is not there."""


TRIED = 10
"""So many of the most frequent answers of a split are tried: a metric such as F1 of one class may be highest for a rarer one."""

class Outputs:
    """One label of several, by the softmax of the logits: classification. The other problems override it."""

    name: ClassVar[str] = "classification"
    """`TaskHead.problem`."""
    problem_type: ClassVar[str] = "single_label_classification"
    """transformers' name of it."""
    dtype: ClassVar[type[np.generic]] = np.int32
    """Of a label in a batch."""
    takes_class_weights: ClassVar[bool] = True
    takes_smoothing: ClassVar[bool] = True
    has_accuracy: ClassVar[bool] = True
    """Whether an answer is right or wrong, so that the share of right ones means something."""

    def label_shape(self, labels: int) -> tuple[int, ...]:
        """The shape of one label in a batch, with `labels` labels to choose from."""
        return ()

    def loss(self, scores: Array, labels: Array, smoothing: float) -> Array:
        """The cross-entropy of scores float32 [..., C] against labels int32 [...] -> float32 [...]; the share `smoothing` of the
        target is spread over all answers that exist (Szegedy et al., arXiv:1512.00567, section 7)."""
        log_p = jax.nn.log_softmax(scores, axis=-1)
        loss = -jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]
        if smoothing:
            exists = scores > EXCLUDED / 2
            uniform = -jnp.where(exists, log_p, 0.0).sum(-1) / jnp.maximum(exists.sum(-1), 1)
            loss = (1 - smoothing) * loss + smoothing * uniform
        return loss

    def soft_loss(self, scores: Array, teacher_scores: Array, temperature: float) -> Array:
        """KL(teacher || student) of the softened probabilities times temperature squared (Hinton et al., arXiv:1503.02531),
        from float32 [..., C] each -> float32 [...]."""
        return _divergence(teacher_scores, scores, temperature)

    def correct(self, scores: Array, labels: Array) -> Array:
        """1 where the highest score float32 [..., C] is that of the label [...], else 0: float32 [...]."""
        return (scores.argmax(-1) == labels).astype(jnp.float32)

    def predictions(self, logits: np.ndarray) -> np.ndarray:
        """Logits float64 [N, C] as labels: int64 [N] here, bool [N, C] of several labels, float64 [N] of a value."""
        return logits.argmax(-1)

    def probabilities(self, logits: np.ndarray) -> np.ndarray | None:
        """The probability of each label, float64 [..., C], from logits; None for a value."""
        return softmax(logits)

    def named(self, prediction: np.ndarray, names: Sequence[str]) -> Label:
        """One of `predictions` with the `names` of the labels."""
        return names[int(prediction)]

    def answer(self, logits: np.ndarray, names: Sequence[str]) -> JsonObject:
        """What `predict` says of logits [C]: the likeliest of the labels `names`, its probability, and that of each."""
        p = softmax(logits)
        best = int(p.argmax())
        return {"label": names[best], "probability": float(p[best]), "probabilities": _by_name(names, p)}

    def constants(self, labels: np.ndarray) -> Sequence[np.ndarray]:
        """Single predictions for all of `labels` (as `predictions` has them) that may score high, the most frequent first."""
        return list(by_frequency(labels)[:TRIED])


class SeveralLabels(Outputs):
    """Any number of the labels, each by the sigmoid of its logit: multi-label classification."""

    name = "multi_label"
    problem_type = "multi_label_classification"
    dtype = np.float32
    takes_class_weights = False

    def label_shape(self, labels: int) -> tuple[int, ...]:
        """[C], 1 for each label that applies."""
        return (labels,)

    def loss(self, scores: Array, labels: Array, smoothing: float) -> Array:
        """The mean binary cross-entropy over the labels: scores and labels float32 [..., C] -> float32 [...]."""
        return optax.sigmoid_binary_cross_entropy(scores, labels * (1 - smoothing) + smoothing / 2).mean(-1)

    def soft_loss(self, scores: Array, teacher_scores: Array, temperature: float) -> Array:
        """The mean over the labels of KL(teacher || student) of "applies" and "does not apply"."""
        theirs, own = (jnp.stack([x, jnp.zeros_like(x)], -1) for x in (teacher_scores, scores))
        return _divergence(theirs, own, temperature).mean(-1)

    def correct(self, scores: Array, labels: Array) -> Array:
        """1 where all labels are right."""
        return ((scores > 0) == (labels > 0.5)).all(-1).astype(jnp.float32)

    def predictions(self, logits: np.ndarray) -> np.ndarray:
        """Whether each label applies, bool [N, C]."""
        return logits >= 0

    def probabilities(self, logits: np.ndarray) -> np.ndarray | None:
        """The sigmoid of each logit, in float64."""
        return _sigmoid(logits)

    def named(self, prediction: np.ndarray, names: Sequence[str]) -> Label:
        """The names of the labels that apply."""
        return tuple(name for name, applies in zip(names, prediction, strict=True) if applies)

    def answer(self, logits: np.ndarray, names: Sequence[str]) -> JsonObject:
        """The labels whose probability is at least 0.5, and the probability of each."""
        probabilities = _by_name(names, _sigmoid(logits))
        return {"labels": [name for name, p in probabilities.items() if p >= 0.5], "probabilities": probabilities}

    def constants(self, labels: np.ndarray) -> Sequence[np.ndarray]:
        """The most frequent sets of labels, and the set with the highest micro F1."""
        return [*super().constants(labels), best_set(labels)]


class Value(Outputs):
    """A number, the first logit itself: regression."""

    name = "regression"
    problem_type = "regression"
    dtype = np.float32
    takes_class_weights = takes_smoothing = has_accuracy = False

    def loss(self, scores: Array, labels: Array, smoothing: float) -> Array:
        """The squared error: scores float32 [..., 1], labels float32 [...] -> float32 [...]."""
        return jnp.square(scores[..., 0] - labels)

    def soft_loss(self, scores: Array, teacher_scores: Array, temperature: float) -> Array:
        """The squared difference from the teacher's value."""
        return jnp.square(scores[..., 0] - teacher_scores[..., 0])

    def correct(self, scores: Array, labels: Array) -> Array:
        """0: no value is right or wrong."""
        return jnp.zeros(labels.shape, jnp.float32)

    def predictions(self, logits: np.ndarray) -> np.ndarray:
        """The values, float64 [N]."""
        return logits[:, 0]

    def probabilities(self, logits: np.ndarray) -> np.ndarray | None:
        """None."""
        return None

    def named(self, prediction: np.ndarray, names: Sequence[str]) -> Label:
        """The value."""
        return float(prediction)

    def answer(self, logits: np.ndarray, names: Sequence[str]) -> JsonObject:
        """The value, or of a head with several outputs their values by name."""
        values = _by_name(names, logits)
        return {"value": float(logits[0])} if len(values) == 1 else {"values": values}

    def constants(self, labels: np.ndarray) -> Sequence[np.ndarray]:
        """The mean."""
        return [labels.mean(dtype=np.float64)]


OUTPUTS: Mapping[str, Outputs] = {outputs.name: outputs for outputs in (Outputs(), Value(), SeveralLabels())}
"""By `TaskHead.problem`."""
PROBLEMS = tuple(OUTPUTS)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64; nan where a logit is nan or positive infinity."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(np.float64(logits) - np.max(logits, axis=-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # the probability is then 0
        return 1 / (1 + np.exp(-np.float64(logits)))


def _by_name(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    return {name: float(x) for name, x in zip(names, values, strict=True)}


def by_frequency(labels: np.ndarray) -> np.ndarray:
    """The distinct integers [n] of [N], or rows [n, C] of [N, C], the most frequent first, of equals the least. ValueError where
    there is none."""
    if not len(labels):
        raise ValueError("no labels: none is the most frequent")
    values, counts = np.unique(labels, axis=0, return_counts=True)
    return values[np.argsort(-counts, kind="stable")]


def best_set(labels: np.ndarray) -> np.ndarray:
    """bool [C]: the set of labels that has the highest micro F1 when it is said of every row of `labels`, bool [N, C]."""
    counts = labels.sum(0)
    order = np.argsort(-counts, kind="stable")
    sizes = np.arange(1, len(order) + 1)
    f1 = 2 * np.cumsum(counts[order]) / (sizes * len(labels) + counts.sum())
    chosen = np.zeros(len(order), bool)
    chosen[order[: sizes[f1.argmax()]]] = True
    return chosen


def _divergence(teacher_scores: Array, scores: Array, temperature: float) -> Array:
    theirs, own = (jax.nn.log_softmax(x / temperature, axis=-1) for x in (teacher_scores, scores))
    return temperature**2 * (jnp.exp(theirs) * (theirs - own)).sum(-1)
