"""The loss of a labelled task on packed rows (`data/rows.py`)."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bert_jax.data.rows import RowShape, assemble_features
from bert_jax.errors import UserError
from bert_jax.interface.named import require_call
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.bert_with_head import BertWithHead, initial_label_parameters
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.layers import Seed
from bert_jax.objectives.flops import task_row_flops
from bert_jax.objectives.losses import Sums
from bert_jax.objectives.model import Batch, Boxed, Model, Outputs, Params
from bert_jax.objectives.objective import COUNTED, RESERVED, Objective, gradient_flops
from bert_jax.objectives.scores import Formula, Score


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

    The gradients of the `frozen` subtrees of the parameters are zero and are not computed.

    A run fills in these four fields. The fields that a subclass adds are its settings (`config.objective_options`)."""

    config: ModelConfig
    head: TaskHead
    loss_settings: LabelLoss = LabelLoss()
    frozen: tuple[str, ...] = ()

    command: ClassVar[str] = "finetune"
    filled_in: ClassVar[tuple[str, ...]] = ("config", "head", "loss_settings", "frozen")
    hard_loss: ClassVar[tuple[str, str] | None] = ("loss", "weight")
    reads_unlabelled: ClassVar[bool] = False
    """Whether steps with labels alternate with steps on the text of `config.cross_view`, which has no labels."""
    scores: ClassVar[Mapping[str, Score | tuple[str, str] | Formula]] = {
        "loss": ("loss", "weight"),
        "accuracy": ("correct", "labels"),
    }

    _counted: ClassVar[tuple[str, ...]] = (*COUNTED, "examples")
    _reserved: ClassVar[frozenset[str]] = RESERVED - {"loss"}
    _packed_by: ClassVar[str] = ", which holds several texts"

    _keeps: ClassVar[tuple[str, ...]] = ()

    @property
    def model(self) -> Model:  # type: ignore[override]
        """The encoder of the run."""
        return Model(self.config, keeps=self._keeps)

    @property
    def temporary(self) -> tuple[str, ...]:  # type: ignore[override]
        """The parts of `training_parameters`, which are not exported."""
        return tuple(jax.eval_shape(self.training_parameters, jax.random.key(0)))

    def for_model(self, model: Model) -> Self:
        """Returns the objective with the configuration of this model, and with what the model `keeps`."""
        bound = copy.copy(self)
        object.__setattr__(bound, "config", model.config)
        object.__setattr__(bound, "_keeps", model.keeps)
        return bound

    def named_scores(self) -> dict[str, Score | Formula]:
        """Returns the scores by name, without the accuracy if the head has none."""
        found = super().named_scores()
        if not self.head.outputs.has_accuracy:
            return {name: score for name, score in found.items() if getattr(score, "numerator", "") != "correct"}
        return found

    def abstract_batch(self, rows: int, shape: RowShape | None = None) -> Mapping[str, Any]:  # type: ignore[override]
        """Returns the arrays of a batch with rows of this shape, without features."""
        shape = shape or RowShape(self.head.layout, 16, 2, self.head.typical_candidates)
        return assemble_features([], [], rows, shape, 0)

    def check(self, key: str) -> None:
        """Raises UserError like `Objective.check`, and if the class overrides what the exported head computes, or if a part of
        `training_parameters` has the name of a part of the model."""
        for method in ("parameters", "initial_parameters", "temporary", "logits"):
            if getattr(type(self), method) is not getattr(Labels, method):
                raise UserError(
                    f"{key} overrides {method}, but predictions are made with the model and the task's head alone; override sums "
                    "or output_sums, and make further parameters in training_parameters"
                )
        require_call(self.training_parameters, "key", f"{key}: training_parameters")
        taken = jax.eval_shape(lambda: initial_label_parameters(self.config, self.head, jax.random.key(0)))
        if same := sorted({*self.temporary} & {*taken}):
            raise UserError(f"{key}: training_parameters returns {same[0]!r}, a part of the model; give it another name")
        super().check(key)

    def initial_parameters(self, key: Key[Array, ""]) -> Boxed:
        """Returns the initial parameters of encoder and head, and the `training_parameters`."""
        return initial_label_parameters(self.config, self.head, key) | self.training_parameters(key)

    def training_parameters(self, key: Key[Array, ""]) -> Boxed:
        """Returns the initial values of further parts, which are trained and saved with the model, but not exported."""
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
        network = functools.partial(BertWithHead, head=self.head)
        return self.model.logits_of(network, self.trained(params), batch, seed)

    @jax.named_scope("loss")
    def output_sums(self, outputs: Outputs, batch: Batch) -> Sums:
        """Returns {"loss": the summed loss, "correct": the number of correct predictions}. A span is correct if both its start
        and its end are correct. For regression, "correct" is 0."""
        settings, head = self.loss_settings, self.head
        scores = head.answer_scores(outputs["logits"].astype(jnp.float32), batch)
        weights, labels = batch["label_weights"], batch["labels"]
        loss = head.loss(scores, labels, settings.label_smoothing, settings.class_weights)
        return {"loss": (weights * loss).sum(), "correct": (weights * head.correct(scores, labels)).sum()}

    def soft_loss(self, outputs: Outputs, taught: Outputs, batch: Batch, temperature: float) -> Float[Array, ""]:
        """Returns the summed loss against the teacher's predictions (see `Outputs.soft_loss` of `model/heads`), weighted like the
        loss on the labels."""
        scores, teacher_scores = (self.head.answer_scores(x["logits"].astype(jnp.float32), batch) for x in (outputs, taught))
        return (self.loss_weights(batch) * self.head.soft_loss(scores, teacher_scores, temperature)).sum()

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
        """Returns the model FLOPs of a training step per row of `shape`. If a user's class may compute more than this class, the
        matrix products in its gradient are counted too, and the larger number is returned."""
        known = task_row_flops(self.config, self.head, shape, frozen=bool(self.frozen))
        return max(known, gradient_flops(self, self.model, shape)) if self._may_compute_more() else known
