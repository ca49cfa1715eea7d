"""The problem types of task heads: classification, multi-label classification and regression.

For each type, `Outputs` defines the dtype and shape of labels, the training loss, the predictions from logits, and constant
baselines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Float64, Num, Shaped

from bert_jax.files import JsonObject

Label = str | float | tuple[str, ...]
"""A prediction in readable form. It is a label, a number, or several labels."""

EXCLUDED = -1e9
"""The logit of an answer that does not exist, such as a token of another sequence or a missing candidate."""


MOST_CONSTANTS = 10
"""This many of the most frequent labels are tried as constant predictions. The most frequent label alone is not enough, because
a metric such as the F1 of one class may be higher for a rarer label."""


class Outputs:
    """Classification into one of several labels, with a softmax. The other problem types are subclasses of this class."""

    name: ClassVar[str] = "classification"
    """`TaskHead.problem`."""
    dtype: ClassVar[type[np.generic]] = np.int32
    """The dtype of the labels in a batch."""
    takes_class_weights: ClassVar[bool] = True
    takes_smoothing: ClassVar[bool] = True
    has_accuracy: ClassVar[bool] = True
    """Whether a prediction is either correct or wrong, so that accuracy is defined."""

    def label_shape(self, labels: int) -> tuple[int, ...]:
        """Returns the shape of one label in a batch. `labels` is the number of labels of the head."""
        return ()

    def loss(
        self,
        scores: Float[Array, "*shape C"],
        labels: Num[Array, "*shape"],
        smoothing: float,
        class_weights: Sequence[float] = (),
    ) -> Float[Array, "*shape"]:
        """Returns the cross-entropy of float32 scores [..., C] against int32 labels [...].

        The fraction `smoothing` of the target is spread over all existing answers (Szegedy et al., arXiv:1512.00567, section
        7). Each of the C `class_weights` multiplies the terms of its class, including the smoothing terms, as in PyTorch's
        CrossEntropyLoss. () weighs all classes equally.
        """
        weighted = jax.nn.log_softmax(scores, axis=-1)
        if class_weights:
            weighted *= jnp.broadcast_to(jnp.asarray(class_weights, jnp.float32), weighted.shape)
        loss = -jnp.take_along_axis(weighted, labels[..., None], axis=-1)[..., 0]
        if smoothing:
            exists = scores > EXCLUDED / 2
            uniform = -jnp.where(exists, weighted, 0.0).sum(-1) / jnp.maximum(exists.sum(-1), 1)
            loss = (1 - smoothing) * loss + smoothing * uniform
        return loss

    def soft_loss(
        self, scores: Float[Array, "*shape C"], teacher_scores: Float[Array, "*shape C"], temperature: float
    ) -> Float[Array, "*shape"]:
        """Computes KL(teacher || student) of the probabilities softened by `temperature`, times temperature**2 (Hinton et al.,
        arXiv:1503.02531)."""
        return kl_divergence(teacher_scores, scores, temperature)

    def correct(self, scores: Float[Array, "*shape C"], labels: Num[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns 1 if the label has the highest of the C scores, otherwise 0, as float32."""
        return (scores.argmax(-1) == labels).astype(jnp.float32)

    def predictions(self, logits: Float[np.ndarray, "E C"]) -> Shaped[np.ndarray, "E ..."]:
        """Returns the predicted labels as int64 [E]. They are bool [E, C] for multi-label classification and float [E] for
        regression."""
        return logits.argmax(-1)

    def probabilities(self, logits: Float[np.ndarray, "*shape C"]) -> Float64[np.ndarray, "*shape C"] | None:
        """Returns the probability of each label in float64. Returns None for a regression."""
        return softmax(logits)

    def decode(self, prediction: Shaped[np.ndarray, " ..."] | np.generic, names: Sequence[str]) -> Label:
        """Converts one of the `predictions` to a label. `names` are the labels by id."""
        return names[int(prediction)]

    def answer(self, logits: Float[np.ndarray, " C"], names: Sequence[str]) -> JsonObject:
        """Returns the JSON answer of `predict`, with the most probable label and the probabilities of all labels."""
        p = softmax(logits)
        best = int(p.argmax())
        return {"label": names[best], "probability": float(p[best]), "probabilities": _by_name(names, p)}

    def constants(self, labels: Shaped[np.ndarray, "E ..."]) -> Shaped[np.ndarray, "_ ..."]:
        """Returns the candidates for the best constant prediction on `labels`. They have the format of `predictions` and are
        sorted by frequency, the most frequent one first."""
        return by_frequency(labels)[:MOST_CONSTANTS]


class MultiLabel(Outputs):
    """Multi-label classification. Any number of labels may apply, and each label has a sigmoid."""

    name = "multi_label"
    dtype = np.float32
    takes_class_weights = False

    def label_shape(self, labels: int) -> tuple[int, ...]:
        """Returns [C]. In a batch, a label that applies is 1, and other labels are 0."""
        return (labels,)

    def loss(
        self,
        scores: Float[Array, "*shape C"],
        labels: Num[Array, "*shape C"],
        smoothing: float,
        class_weights: Sequence[float] = (),
    ) -> Float[Array, "*shape"]:
        """Returns the binary cross-entropy of float32 scores against float32 labels, both [..., C], averaged over the C labels.
        There are no class weights."""
        return optax.sigmoid_binary_cross_entropy(scores, labels * (1 - smoothing) + smoothing / 2).mean(-1)

    def soft_loss(
        self, scores: Float[Array, "*shape C"], teacher_scores: Float[Array, "*shape C"], temperature: float
    ) -> Float[Array, "*shape"]:
        """Computes KL(teacher || student) of the outcomes "applies" and "does not apply", averaged over the C labels."""
        teacher, student = (jnp.stack([x, jnp.zeros_like(x)], -1) for x in (teacher_scores, scores))
        return kl_divergence(teacher, student, temperature).mean(-1)

    def correct(self, scores: Float[Array, "*shape C"], labels: Num[Array, "*shape C"]) -> Float[Array, "*shape"]:
        """Returns 1 if all C labels are predicted correctly, otherwise 0."""
        return ((scores >= 0) == (labels > 0.5)).all(-1).astype(jnp.float32)

    def predictions(self, logits: Float[np.ndarray, "E C"]) -> Bool[np.ndarray, "E C"]:
        """Returns True for labels with a probability of at least 0.5."""
        return logits >= 0

    def probabilities(self, logits: Float[np.ndarray, "*shape C"]) -> Float64[np.ndarray, "*shape C"] | None:
        """Returns the sigmoid of each logit, in float64."""
        return _sigmoid(logits)

    def decode(self, prediction: Shaped[np.ndarray, " ..."] | np.generic, names: Sequence[str]) -> Label:
        """Returns the names of the predicted labels."""
        return tuple(name for name, applies in zip(names, np.asarray(prediction), strict=True) if applies)

    def answer(self, logits: Float[np.ndarray, " C"], names: Sequence[str]) -> JsonObject:
        """Returns the labels with a probability of at least 0.5, and the probabilities of all labels."""
        probabilities = _by_name(names, _sigmoid(logits))
        return {"labels": [name for name, p in probabilities.items() if p >= 0.5], "probabilities": probabilities}

    def constants(self, labels: Shaped[np.ndarray, "E ..."]) -> Shaped[np.ndarray, "_ ..."]:
        """Returns the most frequent sets of labels, followed by the set with the highest micro F1."""
        return np.concatenate([super().constants(labels), best_label_set(labels)[np.newaxis]])


class Regression(Outputs):
    """Regression. The prediction is the first logit."""

    name = "regression"
    dtype = np.float32
    takes_class_weights = takes_smoothing = has_accuracy = False

    def loss(
        self,
        scores: Float[Array, "*shape C"],
        labels: Num[Array, "*shape"],
        smoothing: float,
        class_weights: Sequence[float] = (),
    ) -> Float[Array, "*shape"]:
        """Returns the squared error of float32 scores [..., 1] against float32 labels [...]."""
        return jnp.square(scores[..., 0] - labels)

    def soft_loss(
        self, scores: Float[Array, "*shape C"], teacher_scores: Float[Array, "*shape C"], temperature: float
    ) -> Float[Array, "*shape"]:
        """Returns the squared difference from the teacher's prediction."""
        return jnp.square(scores[..., 0] - teacher_scores[..., 0])

    def correct(self, scores: Float[Array, "*shape C"], labels: Num[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns 0, because accuracy is not defined for regression."""
        return jnp.zeros(labels.shape, jnp.float32)

    def predictions(self, logits: Float[np.ndarray, "E C"]) -> Float[np.ndarray, " E"]:
        """Returns the first logit of each example."""
        return logits[:, 0]

    def probabilities(self, logits: Float[np.ndarray, "*shape C"]) -> Float64[np.ndarray, "*shape C"] | None:
        """Returns None, because a regression has no probabilities."""
        return None

    def decode(self, prediction: Shaped[np.ndarray, " ..."] | np.generic, names: Sequence[str]) -> Label:
        """Returns the prediction as a float."""
        return float(prediction)

    def answer(self, logits: Float[np.ndarray, " C"], names: Sequence[str]) -> JsonObject:
        """Returns the prediction. If the head has several outputs, returns all values by name instead."""
        values = _by_name(names, logits)
        return {"value": float(logits[0])} if len(values) == 1 else {"values": values}

    def constants(self, labels: Shaped[np.ndarray, "E ..."]) -> Shaped[np.ndarray, "_ ..."]:
        """Returns the mean of `labels`."""
        return labels.mean(dtype=np.float64, keepdims=True)


OUTPUTS: Mapping[str, Outputs] = {outputs.name: outputs for outputs in (Outputs(), Regression(), MultiLabel())}
"""`Outputs` by `TaskHead.problem`."""


def softmax(logits: Float[np.ndarray, "*shape C"]) -> Float64[np.ndarray, "*shape C"]:
    """Returns the softmax over the last axis in float64. The result is nan if a logit is nan or positive infinity."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(np.float64(logits) - np.max(logits, axis=-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _sigmoid(logits: Float[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
    with np.errstate(over="ignore"):  # if exp overflows to infinity, the probability is 0
        return np.asarray(1 / (1 + np.exp(-np.float64(logits))))


def _by_name(names: Sequence[str], values: Float[np.ndarray, " C"]) -> dict[str, float]:
    return {name: float(x) for name, x in zip(names, values, strict=True)}


def by_frequency(labels: Shaped[np.ndarray, "E ..."]) -> Shaped[np.ndarray, "_ ..."]:
    """Returns the distinct labels [E], or the distinct rows of labels [E, C], sorted by frequency. The most frequent label
    comes first, and ties are sorted by value. Raises ValueError if there are no labels."""
    if not len(labels):
        raise ValueError("there are no labels to count")
    values, counts = np.unique(labels, axis=0, return_counts=True)
    return values[np.argsort(-counts, kind="stable")]


def best_label_set(labels: Shaped[np.ndarray, "E C"]) -> Bool[np.ndarray, " C"]:
    """Returns the best constant label set, bool [C]. It has the highest micro F1 if it is predicted for every row of the bool
    `labels`."""
    counts = labels.sum(0)
    order = np.argsort(-counts, kind="stable")
    sizes = np.arange(1, len(order) + 1)
    f1 = 2 * np.cumsum(counts[order]) / (sizes * len(labels) + counts.sum())
    chosen = np.zeros(len(order), bool)
    chosen[order[: sizes[f1.argmax()]]] = True
    return chosen


def kl_divergence(
    teacher_scores: Float[Array, "*shape C"], scores: Float[Array, "*shape C"], temperature: float
) -> Float[Array, "*shape"]:
    """Computes KL(teacher || student) of the probabilities softened by `temperature`, times temperature**2."""
    teacher, student = (jax.nn.log_softmax(x / temperature, axis=-1) for x in (teacher_scores, scores))
    return temperature**2 * (jnp.exp(teacher) * (teacher - student)).sum(-1)
