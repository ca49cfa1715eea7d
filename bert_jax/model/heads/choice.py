"""The head for multiple choice (paper section 4.4). It has a score for each candidate, with a softmax over the candidates."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.data.rows import LabelLayout
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.outputs import EXCLUDED
from bert_jax.model.tokens import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceHead(TaskHead):
    """Chooses between several candidates. Each candidate is a sequence. The logits are [B, P, 1] with P = U x candidates."""

    kind = "choice"
    action = "choose"
    command = "choose --model={} --input=FILE"
    typical_candidates = 4

    @property
    def num_outputs(self) -> int:
        """C = 1, because a candidate has one score."""
        return 1

    @property
    def reads_pooler(self) -> bool:
        """True, because the input is the pooled [CLS] of each candidate."""
        return True

    @property
    def layout(self) -> LabelLayout:
        """labels int32 [B, U]. A label is the index of the right candidate."""
        return LabelLayout(logits_per_candidate=True)

    def answer_scores(self, logits: Float[Array, "B _ C"], batch: Batch) -> Float[Array, "B ..."]:
        """Returns the logits [B, P, 1] as [B, U, candidates]. Candidates that do not exist have the logit EXCLUDED."""
        features = batch["label_weights"].shape[1]
        exists = (batch["cls_positions"] > 0).at[:, 0].set(True)
        return jnp.where(exists, logits[..., 0], EXCLUDED).reshape(logits.shape[0], features, -1)
