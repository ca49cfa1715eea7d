"""The head of token classification (paper Figure 4d): a layer on every token."""

from __future__ import annotations

import dataclasses

from jaxtyping import Array, Num

from bert_jax.examples.labelled import LabelLayout
from bert_jax.heads.head import TaskHead
from bert_jax.model.bert import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenHead(TaskHead):
    """A label for every token: logits [B, L, C]."""

    kind = "token"
    has_labels = True
    settings = ("lstm",)
    per_token = True
    action = "tag words"
    architecture = "BertForTokenClassification"
    module = "classifier"
    typical_labels = 9

    @property
    def layout(self) -> LabelLayout:
        """labels int32 [B, L]."""
        return LabelLayout(per_token=True, logits_per_token=True)

    def feature_counts(self, batch: Batch) -> Num[Array, "B ..."]:
        """The number of sequences in each row, [B]: each sequence is a feature, and their ids start at 1."""
        return batch["sequence_ids"].max(axis=1)
