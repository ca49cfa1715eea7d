"""The head of multiple choice (paper section 4.4): a score for each candidate, whose softmax is over the candidates."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.examples.labelled import LabelLayout
from bert_jax.heads.head import Batch, TaskHead
from bert_jax.heads.outputs import EXCLUDED


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceHead(TaskHead):
    """One of several candidates, each a sequence: logits [B, P, 1] with P = U x candidates."""

    kind = "choice"
    question = "choose"
    architecture = "BertForMultipleChoice"
    module = "classifier"
    typical_candidates = 4

    @property
    def num_outputs(self) -> int:
        """C, the outputs of the layer: one score."""
        return 1

    @property
    def reads_pooler(self) -> bool:
        """Whether its input is the pooled [CLS]."""
        return True

    @property
    def layout(self) -> LabelLayout:
        """labels int32 [B, U], the number of the right candidate."""
        return LabelLayout(logits_per_candidate=True)

    def answer_scores(self, logits: Float[Array, "B _ C"], batch: Batch) -> Float[Array, "B ..."]:
        """[B, P, 1] -> [B, U, candidates], EXCLUDED where an example has fewer."""
        features = batch["label_weights"].shape[1]
        exists = (batch["cls_positions"] > 0).at[:, 0].set(True)
        return jnp.where(exists, logits[..., 0], EXCLUDED).reshape(logits.shape[0], features, -1)
