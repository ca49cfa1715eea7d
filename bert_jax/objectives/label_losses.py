"""The losses of labelled tasks, as sums over a batch of packed rows (`data/rows.py`)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from bert_jax.model.heads.head import TaskHead
from bert_jax.objectives.losses import Sums

Batch = dict[str, Num[Array, "B ..."]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelLoss:
    """The settings of the loss of a labelled task."""

    label_smoothing: float = 0.0
    """The share of the target probability that is distributed over all labels (Szegedy et al., arXiv:1512.00567, section 7)."""
    class_weights: tuple[float, ...] = ()
    """The weight of each label. The loss is the weighted mean of PyTorch's CrossEntropyLoss, with label smoothing too: a label's
    weight also multiplies its share of the smoothing. () is weight 1 for all."""
    temperature: float = 1.0
    """The divisor of the student's and the teacher's logits in the distillation loss, which is multiplied by its square."""
    soft_weight: float = 0.0
    """The weight of the distillation loss (Hinton et al., arXiv:1503.02531); that of the labels' loss is 1 - soft_weight."""
    hidden_weight: float = 0.0
    """The weight of the mean squared difference between the hidden states of student and teacher, which is added (FitNets,
    arXiv:1412.6550; over all layers as in patient distillation, arXiv:1908.09355)."""


def label_counts(batch: Batch, head: TaskHead, settings: LabelLoss) -> Sums:
    """The counts of a batch, float32 scalars: "weight", the sum of the weights, which the loss is divided by; "labels";
    "examples", the features with a label; "tokens"; "rows", packed."""
    weights = batch["label_weights"]
    return {
        "weight": (weights * _class_weights(batch, settings)).sum(),
        "labels": weights.sum(),
        "examples": head.feature_counts(batch).sum().astype(jnp.float32),
        "tokens": (batch["sequence_ids"] != 0).sum().astype(jnp.float32),
        "rows": jnp.float32(len(batch["sequence_ids"])),
    }


@jax.named_scope("loss")  # its name in a profile
def label_loss_sums(logits: Float[Array, "B _ C"], batch: Batch, head: TaskHead, settings: LabelLoss) -> Sums:
    """{"loss": the summed loss, "correct": the number of correct predictions}, float32 scalars. A span is correct if both ends
    are; for a regression "correct" is 0."""
    scores = head.answer_scores(logits.astype(jnp.float32), batch)
    weights, labels = batch["label_weights"], batch["labels"]
    loss = head.loss(scores, labels, settings.label_smoothing, settings.class_weights)
    if "teacher_logits" in batch:
        teacher_scores = head.answer_scores(batch["teacher_logits"].astype(jnp.float32), batch)
        soft = head.soft_loss(scores, teacher_scores, settings.temperature)
        loss = (1.0 - settings.soft_weight) * loss + settings.soft_weight * _class_weights(batch, settings) * soft
    return {"loss": (weights * loss).sum(), "correct": (weights * head.correct(scores, labels)).sum()}


def hidden_state_difference(hidden_states: Float[Array, "S B L D"], batch: Batch) -> Float[Array, ""]:
    """The mean squared difference between the student's hidden states and the teacher's of the same width, summed over the
    tokens; float32.

    The batch holds teacher_hidden_states [B, S, L, D]; if the teacher has more layers, those that `teacher_layers` selects.
    """
    theirs = batch["teacher_hidden_states"].swapaxes(0, 1)
    difference = jnp.square(hidden_states.astype(jnp.float32) - theirs.astype(jnp.float32)).mean((0, 3))  # [B, L]
    return jnp.where(batch["sequence_ids"] != 0, difference, 0.0).sum()


def teacher_layers(teacher: int, student: int) -> tuple[int, ...]:
    """For each hidden state of the student, the number of the teacher's hidden state that it is compared with: evenly spaced, the
    embeddings with the embeddings and the last layer with the last layer."""
    return tuple(round(layer * teacher / student) for layer in range(student + 1))


def _class_weights(batch: Batch, settings: LabelLoss) -> Float[Array, "B _"]:
    """The class weight of every label, in the shape of label_weights."""
    if not settings.class_weights:
        return jnp.ones_like(batch["label_weights"])
    return jnp.asarray(settings.class_weights, jnp.float32)[batch["labels"]]
