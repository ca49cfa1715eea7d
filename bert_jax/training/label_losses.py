"""The losses of labelled tasks as sums that add; batches and logits are those of packed rows (`examples/labelled.py`)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from bert_jax.heads.head import TaskHead
from bert_jax.training.losses import Sums

Batch = dict[str, Num[Array, "B ..."]]


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


def label_counts(batch: Batch, head: TaskHead, settings: LabelLoss) -> Sums:
    """What the loss is divided by, and the labels, the examples ("rows", as of a peer that packs none), the tokens and the packed
    rows (float32 scalars)."""
    weights = batch["label_weights"]
    return {
        "weight": (weights * _class_weights(batch, settings)).sum(),
        "labels": weights.sum(),
        "rows": head.feature_counts(batch).sum().astype(jnp.float32),
        "tokens": (batch["sequence_ids"] != 0).sum().astype(jnp.float32),
        "packed_rows": jnp.float32(len(batch["sequence_ids"])),
    }


def label_loss_sums(logits: Float[Array, "B _ C"], batch: Batch, head: TaskHead, settings: LabelLoss) -> Sums:
    """The summed loss, and the correct answers (of a span: both ends; of regression: 0), float32 scalars."""
    scores = head.answer_scores(logits.astype(jnp.float32), batch)
    weights, labels = batch["label_weights"], batch["labels"]
    loss = head.loss(scores, labels, settings.label_smoothing)
    if "teacher_logits" in batch:
        teacher_scores = head.answer_scores(batch["teacher_logits"].astype(jnp.float32), batch)
        soft = head.soft_loss(scores, teacher_scores, settings.temperature)
        loss = (1.0 - settings.soft_weight) * loss + settings.soft_weight * soft
    weighted = weights * _class_weights(batch, settings) * loss
    return {"loss": weighted.sum(), "correct": (weights * head.correct(scores, labels)).sum()}


def hidden_state_difference(hidden_states: Float[Array, "S B L D"], batch: Batch) -> Float[Array, ""]:
    """The mean squared difference between the student's hidden states and the teacher's of the same width, summed over the
    tokens; float32.

    The batch holds teacher_hidden_states [B, S, L, D], of a deeper teacher those of the layers that `spread_layers` names.
    """
    theirs = batch["teacher_hidden_states"].swapaxes(0, 1)
    difference = jnp.square(hidden_states.astype(jnp.float32) - theirs.astype(jnp.float32)).mean((0, 3))  # [B, L]
    return jnp.where(batch["sequence_ids"] != 0, difference, 0.0).sum()


def spread_layers(teacher: int, student: int) -> tuple[int, ...]:
    """The hidden state of the teacher that each hidden state of the student is compared with: evenly spread, ends to ends."""
    return tuple(round(layer * teacher / student) for layer in range(student + 1))


def _class_weights(batch: Batch, settings: LabelLoss) -> Float[Array, "B _"]:
    """Every label's factor, in the shape of label_weights."""
    if not settings.class_weights:
        return jnp.ones_like(batch["label_weights"])
    return jnp.asarray(settings.class_weights, jnp.float32)[batch["labels"]]
