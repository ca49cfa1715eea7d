"""The head for extractive question answering (paper Figure 4c). Every token has a start logit and an end logit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from bert_jax.data.rows import LabelLayout
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.outputs import EXCLUDED
from bert_jax.model.tokens import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanHead(TaskHead):
    """Predicts the first and the last token of an answer, with logits [B, L, 2]."""

    kind = "span"
    settings = ("lstm", "mix_at")
    per_token = True
    has_dropout = False  # run_squad.py and transformers have no dropout here
    action = "answer questions"
    command = "answer --model={} --input=FILE"
    original_variable = "cls/squad/output_weights"  # run_squad.py

    @property
    def num_outputs(self) -> int:
        """C = 2, for start and end."""
        return 2

    @property
    def layout(self) -> LabelLayout:
        """labels int32 [B, P, 2]. They are the positions of the answer's first and last token in the row."""
        return LabelLayout(shape=(2,), are_positions=True, logits_per_token=True)

    def answer_scores(self, logits: Float[Array, "B _ C"], batch: Batch) -> Float[Array, "B ..."]:
        """Returns the logits [B, L, 2] as [B, P, 2, L]. Tokens of other sequences have the logit EXCLUDED."""
        slots = jnp.arange(1, batch["label_weights"].shape[1] + 1, dtype=jnp.int32)
        own = batch["sequence_ids"][:, None, :] == slots[None, :, None]  # [B, P, L]
        return jnp.where(own[:, :, None, :], logits.swapaxes(1, 2)[:, None], EXCLUDED)

    def loss(
        self,
        scores: Float[Array, "B ..."],
        labels: Num[Array, "B ..."],
        smoothing: float,
        class_weights: Sequence[float] = (),
    ) -> Float[Array, "B ..."]:
        """Returns the mean of the start loss and the end loss, [B, P]."""
        return super().loss(scores, labels, smoothing, class_weights).mean(-1)

    def soft_loss(
        self, scores: Float[Array, "*shape"], teacher_scores: Float[Array, "*shape"], temperature: float
    ) -> Float[Array, "B ..."]:
        """Returns the mean of the distillation losses for start and end, [B, P]."""
        return super().soft_loss(scores, teacher_scores, temperature).mean(-1)

    def correct(self, scores: Float[Array, "B ..."], labels: Num[Array, "B ..."]) -> Float[Array, "B ..."]:
        """Returns 1 if both start and end are correct, otherwise 0, [B, P]."""
        return super().correct(scores, labels).min(-1)
