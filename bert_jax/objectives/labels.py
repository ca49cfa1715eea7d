"""The loss of a labelled task on packed rows (`data/rows.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.bert_with_head import BertWithHead, initial_label_parameters
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.layers import Seed
from bert_jax.objectives.losses import Sums
from bert_jax.objectives.model import Batch, Boxed, Model, Params
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.scores import Formula, Score


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelLoss:
    """The settings of the loss of a labelled task."""

    label_smoothing: float = 0.0
    """The fraction of the target probability that is spread over all labels (Szegedy et al., arXiv:1512.00567, section 7)."""
    class_weights: tuple[float, ...] = ()
    """The weight of each label. The loss is a weighted mean, as in PyTorch's CrossEntropyLoss. As in PyTorch, the weight of a
    label also multiplies its part of the label smoothing. Without class weights, all labels have equal weight."""
    temperature: float = 1.0
    """The divisor of the student's and the teacher's logits in the distillation loss. The loss is multiplied by
    temperature**2."""
    soft_weight: float = 0.0
    """The weight of the distillation loss (Hinton et al., arXiv:1503.02531). The loss on the labels has the weight 1 -
    soft_weight."""
    hidden_weight: float = 0.0
    """The weight of an additional loss. This loss is the mean squared difference between the hidden states of student and
    teacher (FitNets, arXiv:1412.6550). The difference is taken over all layers, as in patient distillation
    (arXiv:1908.09355)."""


@dataclasses.dataclass(frozen=True)
class Labels(Objective):
    """The loss of the task head `head` on a model of this `config`.

    The gradients of the `frozen` subtrees of the parameters are zero and are not computed. If the batch holds "teacher_logits"
    (in the shape of the logits) or "teacher_hidden_states" [B, S, L, D], the loss includes the distillation terms of `LabelLoss`.
    """

    config: ModelConfig
    head: TaskHead
    loss_settings: LabelLoss = LabelLoss()
    frozen: tuple[str, ...] = ()

    scores: ClassVar[Mapping[str, Score | tuple[str, str] | Formula]] = {
        "loss": ("loss", "weight"),
        "accuracy": ("correct", "labels"),
    }

    def initial_parameters(self, key: Key[Array, ""]) -> Boxed:
        """Returns the initial parameters of encoder and head, and the `training_parameters`."""
        return initial_label_parameters(self.config, self.head, key) | self.training_parameters(key)

    def training_parameters(self, key: Key[Array, ""]) -> Boxed:
        """Returns the initial values of the `temporary` parts, which are only needed for training."""
        return {}

    def trained(self, params: Params) -> Params:
        """Returns the parameters, with gradients stopped at the `frozen` parts."""
        return {part: jax.lax.stop_gradient(tree) if part in self.frozen else tree for part, tree in params.items()}

    def parameters(self, model: Model, key: Key[Array, ""]) -> Boxed:
        """Returns the initial parameters of the head (with the pooler, if the head reads it) and the `training_parameters`."""
        made = self.initial_parameters(key)
        return {part: tree for part, tree in made.items() if part not in ("embeddings", "encoder")}

    def logits(self, params: Params, batch: Batch) -> Float[Array, "B ..."]:
        """Returns the logits of the head, without dropout."""
        outputs = BertWithHead(self.config, self.head).apply({"params": params}, batch)
        return cast(dict[str, Array], outputs)["logits"]

    @jax.named_scope("loss")
    def output_sums(self, logits: Float[Array, "B _ C"], batch: Batch) -> Sums:
        """Returns {"loss": the summed loss, "correct": the number of correct predictions}. A span is correct if both its start
        and its end are correct. For regression, "correct" is 0."""
        settings, head = self.loss_settings, self.head
        scores = head.answer_scores(logits.astype(jnp.float32), batch)
        weights, labels = batch["label_weights"], batch["labels"]
        loss = head.loss(scores, labels, settings.label_smoothing, settings.class_weights)
        if "teacher_logits" in batch:
            teacher_scores = head.answer_scores(batch["teacher_logits"].astype(jnp.float32), batch)
            soft = head.soft_loss(scores, teacher_scores, settings.temperature)
            loss = (1.0 - settings.soft_weight) * loss + settings.soft_weight * _class_weights(batch, settings) * soft
        return {"loss": (weights * loss).sum(), "correct": (weights * head.correct(scores, labels)).sum()}

    def sums(self, params: Params, batch: Batch, seed: Seed | None) -> Sums:
        """Returns the summed loss, the correct predictions, and the difference from a teacher's hidden states."""
        model, variables = BertWithHead(self.config, self.head), {"params": self.trained(params)}
        if "teacher_hidden_states" not in batch:
            return self.output_sums(cast(Array, model.apply(variables, batch, seed, method="logits")), batch)
        outputs = cast(dict[str, Array], model.apply(variables, batch, seed))
        total = self.output_sums(outputs["logits"], batch)
        return total | {"hidden_difference": hidden_state_difference(outputs["hidden_states"], batch)}

    def counts(self, batch: Batch) -> Sums:
        """Returns "weight" (the sum of weights, by which the loss is divided), "labels", "examples" (labelled features),
        "tokens" and "rows" (packed rows)."""
        weights = batch["label_weights"]
        return {
            "weight": (weights * _class_weights(batch, self.loss_settings)).sum(),
            "labels": weights.sum(),
            "examples": self.head.feature_counts(batch).sum().astype(jnp.float32),
            "tokens": (batch["sequence_ids"] != 0).sum().astype(jnp.float32),
            "rows": jnp.float32(len(batch["sequence_ids"])),
        }

    def loss(self, sums: Sums, counts: Sums) -> Float[Array, ""]:
        """Returns the weighted mean loss plus the weighted difference from a teacher's hidden states."""
        loss = sums["loss"] / jnp.maximum(counts["weight"], 1e-6)
        if "hidden_difference" in sums:
            loss += self.loss_settings.hidden_weight * sums["hidden_difference"] / jnp.maximum(counts["tokens"], 1.0)
        return loss


def hidden_state_difference(hidden_states: Float[Array, "S B L D"], batch: Batch) -> Float[Array, ""]:
    """Returns the mean squared difference between the hidden states of the student and the teacher, float32. It is averaged
    over the hidden states and dimensions of each token, and summed over the tokens. Both models have hidden states of the same
    width.

    The batch holds teacher_hidden_states [B, S, L, D], selected by `teacher_layers` if the teacher has more layers.
    """
    theirs = batch["teacher_hidden_states"].swapaxes(0, 1)
    difference = jnp.square(hidden_states.astype(jnp.float32) - theirs.astype(jnp.float32)).mean((0, 3))  # [B, L]
    return jnp.where(batch["sequence_ids"] != 0, difference, 0.0).sum()


def teacher_layers(teacher: int, student: int) -> tuple[int, ...]:
    """Returns the indices of the teacher's hidden states to compare with, one index for each hidden state of the student. The
    indices are evenly spaced, from the embeddings to the last layer."""
    return tuple(round(layer * teacher / student) for layer in range(student + 1))


def _class_weights(batch: Batch, settings: LabelLoss) -> Float[Array, "B _"]:
    """Returns the class weight of every label, in the shape of label_weights."""
    if not settings.class_weights:
        return jnp.ones_like(batch["label_weights"])
    return jnp.asarray(settings.class_weights, jnp.float32)[batch["labels"]]
