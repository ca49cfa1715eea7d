"""The losses of labelled tasks as sums that add; batches and logits are those of packed rows (`examples/labelled.py`).

R rows, L tokens, P slots (sequences) of a row, U units, C labels; a choice has P = U x candidates.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from bert_jax.model.config import HeadConfig
from bert_jax.training.losses import Sums

Array = jax.Array
Batch = dict[str, Array]

EXCLUDED = -1e9
"""The logit of a label that is none: a token of another sequence, a candidate that is not there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelLoss:
    """How answers are judged in training."""

    label_smoothing: float = 0.0
    """This share of the target is spread over all labels (Szegedy et al., arXiv:1512.00567, section 7)."""
    class_weights: tuple[float, ...] = ()
    """A factor for the loss of each label; the mean is over the weights, as PyTorch's. () is 1 for all."""
    temperature: float = 1.0
    soft_weight: float = 0.0
    """Distillation (Hinton et al., arXiv:1503.02531): the share of the loss that compares with the teacher's logits, both divided
    by `temperature`, times its square; the rest compares with the labels."""
    hidden_weight: float = 0.0
    """And this much of the mean squared difference of hidden states (FitNets, arXiv:1412.6550; all layers as in patient
    distillation, arXiv:1908.09355)."""


def label_counts(batch: Batch, head: HeadConfig, settings: LabelLoss) -> Sums:
    """What the loss is divided by, and the labels, the examples ("rows", as of a peer that packs none), the tokens and the packed
    rows (float32 scalars)."""
    weights = batch["label_weights"]
    units = batch["sequence_ids"].max(axis=1) if head.kind == "token" else weights  # its slots are its units, numbered from 1
    return {
        "weight": (weights * _class_weights(batch, settings)).sum(),
        "labels": weights.sum(),
        "rows": units.sum().astype(jnp.float32),
        "tokens": (batch["sequence_ids"] != 0).sum().astype(jnp.float32),
        "packed_rows": jnp.float32(len(batch["sequence_ids"])),
    }


def label_loss_sums(logits: Array, batch: Batch, head: HeadConfig, settings: LabelLoss) -> Sums:
    """The summed loss, and the correct answers (of a span: both ends; of regression: 0), float32 scalars."""
    scores = answer_scores(logits.astype(jnp.float32), batch, head)
    weights, labels = batch["label_weights"], batch["labels"]
    loss = _loss(scores, labels, head, settings)
    if "teacher_logits" in batch:
        taught = answer_scores(batch["teacher_logits"].astype(jnp.float32), batch, head)
        soft = _soft_loss(scores, taught, head, settings.temperature)
        loss = (1.0 - settings.soft_weight) * loss + settings.soft_weight * soft
    weighted = weights * _class_weights(batch, settings) * loss
    return {"loss": weighted.sum(), "correct": (weights * _correct(scores, labels, head)).sum()}


def answer_scores(logits: Array, batch: Batch, head: HeadConfig) -> Array:
    """Logits laid out as the answers to choose from, the last axis, with EXCLUDED where there is none.

    sequence, mention [R, P, C]; token [R, L, C]; span [R, L, 2] -> [R, P, 2, L], over the tokens of each sequence; choice
    [R, P, 1] -> [R, U, candidates].
    """
    if head.kind == "span":
        slots = jnp.arange(1, batch["label_weights"].shape[1] + 1, dtype=jnp.int32)
        own = batch["sequence_ids"][:, None, :] == slots[None, :, None]  # [R, P, L]
        return jnp.where(own[:, :, None, :], logits.swapaxes(1, 2)[:, None], EXCLUDED)
    if head.kind == "choice":
        units = batch["label_weights"].shape[1]
        there = (batch["cls_positions"] > 0).at[:, 0].set(True)
        return jnp.where(there, logits[..., 0], EXCLUDED).reshape(logits.shape[0], units, -1)
    return logits


def hidden_state_difference(hidden_states: Array, batch: Batch) -> Array:
    """The mean squared difference between the student's states [N+1, R, L, D] and the teacher's of the same width, summed over
    the tokens; a float32 scalar.

    Batch: teacher_hidden_states [R, N+1, L, D], of a deeper teacher those of the layers that `spread_layers` names.
    """
    theirs = batch["teacher_hidden_states"].swapaxes(0, 1)
    difference = jnp.square(hidden_states.astype(jnp.float32) - theirs.astype(jnp.float32)).mean((0, 3))  # [R, L]
    return jnp.where(batch["sequence_ids"] != 0, difference, 0.0).sum()


def spread_layers(teacher: int, student: int) -> tuple[int, ...]:
    """Which of the teacher's states 0..N each of the student's states 0..M is compared with: evenly spread, ends to ends."""
    return tuple(round(layer * teacher / student) for layer in range(student + 1))


def _loss(scores: Array, labels: Array, head: HeadConfig, settings: LabelLoss) -> Array:
    """The loss of every label, in the shape of the batch's label_weights."""
    if head.problem == "regression":
        return jnp.square(scores[..., 0] - labels)
    smoothing = settings.label_smoothing
    if head.problem == "multi_label":
        return optax.sigmoid_binary_cross_entropy(scores, labels * (1 - smoothing) + smoothing / 2).mean(-1)
    log_p = jax.nn.log_softmax(scores, axis=-1)
    loss = -jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]
    if smoothing:
        there = scores > EXCLUDED / 2
        uniform = -jnp.where(there, log_p, 0.0).sum(-1) / jnp.maximum(there.sum(-1), 1)
        loss = (1 - smoothing) * loss + smoothing * uniform
    return loss.mean(-1) if head.kind == "span" else loss  # of a span, start and end


def _soft_loss(scores: Array, taught: Array, head: HeadConfig, temperature: float) -> Array:
    """KL(teacher || student) of the softened answers times temperature squared; of regression the squared difference."""
    if head.problem == "regression":
        return jnp.square(scores[..., 0] - taught[..., 0])
    if head.problem == "multi_label":
        both = jnp.stack([taught, jnp.zeros_like(taught)], -1), jnp.stack([scores, jnp.zeros_like(scores)], -1)
        return _divergence(*both, temperature).mean(-1)
    loss = _divergence(taught, scores, temperature)
    return loss.mean(-1) if head.kind == "span" else loss


def _divergence(taught: Array, scores: Array, temperature: float) -> Array:
    theirs, own = (jax.nn.log_softmax(x / temperature, axis=-1) for x in (taught, scores))
    return temperature**2 * (jnp.exp(theirs) * (theirs - own)).sum(-1)


def _correct(scores: Array, labels: Array, head: HeadConfig) -> Array:
    if head.problem == "regression":
        return jnp.zeros(labels.shape, jnp.float32)
    if head.problem == "multi_label":
        return ((scores > 0) == (labels > 0.5)).all(-1).astype(jnp.float32)
    right = (scores.argmax(-1) == labels).astype(jnp.float32)
    return right.min(-1) if head.kind == "span" else right


def _class_weights(batch: Batch, settings: LabelLoss) -> Array:
    """Every label's factor, in the shape of label_weights."""
    if not settings.class_weights:
        return jnp.ones_like(batch["label_weights"])
    return jnp.asarray(settings.class_weights, jnp.float32)[batch["labels"]]
