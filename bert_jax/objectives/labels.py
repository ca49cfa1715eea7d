"""The loss of a labelled task on packed rows (`data/rows.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.bert_with_head import BertWithHead, initial_label_parameters
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.layers import Seed
from bert_jax.objectives.flops import task_row_flops
from bert_jax.objectives.losses import Sums
from bert_jax.objectives.model import Batch, Boxed, Model, Outputs, Params
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.scores import Formula, Score

if TYPE_CHECKING:
    from bert_jax.data.rows import RowShape


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelLoss:
    """The settings of the loss of a labelled task."""

    label_smoothing: float = 0.0
    """The fraction of the target probability that is spread over all labels (Szegedy et al., arXiv:1512.00567, section 7)."""
    class_weights: tuple[float, ...] = ()
    """The weight of each label. The loss is a weighted mean, as in PyTorch's CrossEntropyLoss. As in PyTorch, the weight of a
    label also multiplies its part of the label smoothing. Without class weights, all labels have equal weight."""


@dataclasses.dataclass(frozen=True)
class Labels(Objective):
    """The loss of the task head `head` on a model of this `config`.

    The gradients of the `frozen` subtrees of the parameters are zero and are not computed."""

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

    def outputs(self, params: Params, batch: Batch, seed: Seed | None) -> Outputs:
        """Returns the "logits" of the head. The last layer is computed only where the head reads it."""
        model, variables = BertWithHead(self.config, self.head), {"params": self.trained(params)}
        return {"logits": cast(Array, model.apply(variables, batch, seed, method="logits"))}

    @jax.named_scope("loss")
    def output_sums(self, outputs: Outputs, batch: Batch) -> Sums:
        """Returns {"loss": the summed loss, "correct": the number of correct predictions}. A span is correct if both its start
        and its end are correct. For regression, "correct" is 0."""
        settings, head = self.loss_settings, self.head
        scores = head.answer_scores(outputs["logits"].astype(jnp.float32), batch)
        weights, labels = batch["label_weights"], batch["labels"]
        loss = head.loss(scores, labels, settings.label_smoothing, settings.class_weights)
        return {"loss": (weights * loss).sum(), "correct": (weights * head.correct(scores, labels)).sum()}

    def counts(self, batch: Batch) -> Sums:
        """Returns "weight" (the sum of weights, by which the loss is divided), "labels", "examples" (labelled features),
        "tokens" and "rows" (packed rows)."""
        return {
            "weight": self.loss_weights(batch).sum(),
            "labels": batch["label_weights"].sum(),
            "examples": self.head.feature_counts(batch).sum().astype(jnp.float32),
            "tokens": (batch["sequence_ids"] != 0).sum().astype(jnp.float32),
            "rows": jnp.float32(len(batch["sequence_ids"])),
        }

    def loss(self, sums: Sums, counts: Sums) -> Float[Array, ""]:
        """Returns the weighted mean loss."""
        return sums["loss"] / jnp.maximum(counts["weight"], 1e-6)

    def loss_weights(self, batch: Batch) -> Float[Array, "B _"]:
        """Returns the weight of every label's loss: its label weight times its class weight."""
        if not self.loss_settings.class_weights:
            return batch["label_weights"]
        return batch["label_weights"] * jnp.asarray(self.loss_settings.class_weights, jnp.float32)[batch["labels"]]

    def task_flops(self, shape: RowShape) -> float:
        """Returns the model FLOPs of a training step per row of `shape`."""
        return task_row_flops(self.config, self.head, shape, frozen=bool(self.frozen))
