"""The head of tasks with one answer for a text or a pair of texts (paper Figure 4a, b): a layer on the pooled [CLS]."""

from __future__ import annotations

import dataclasses

from jaxtyping import Array, Float

from bert_jax.examples.labelled import LabelLayout
from bert_jax.heads.head import Batch, Pooling, TaskHead
from bert_jax.model.features import concat_pooling
from bert_jax.model.layers import gather_positions


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceHead(TaskHead):
    """A label, several labels or a value for each text: logits [B, P, C]."""

    kind = "sequence"
    has_labels = True
    settings = ("problem", "pooling")
    reads_pairs = True
    question = "classify"
    architecture = "BertForSequenceClassification"
    module = "classifier"
    original_variable = "output_weights"  # run_classifier.py
    typical_labels = 3

    @property
    def reads_pooler(self) -> bool:
        """Whether its input is the pooled [CLS]."""
        return self.pooling == "pooler"

    @property
    def layout(self) -> LabelLayout:
        """labels int32 [B, P], of a regression float32, of several labels float32 [B, P, C]."""
        return LabelLayout(shape=self.outputs.label_shape(len(self.labels)), dtype=self.outputs.dtype)

    def input_width(self, hidden_size: int) -> int:
        """O, the width of what the layer itself reads."""
        return self.token_width(hidden_size) * (1 if self.reads_pooler else 3)

    def inputs(self, tokens: Float[Array, "B L I"], batch: Batch, pooler: Pooling) -> Float[Array, "B _ O"]:
        """What the layer reads from the features of all tokens."""
        if self.reads_pooler:
            return super().inputs(tokens, batch, pooler)
        return concat_pooling(tokens, gather_positions(tokens, batch["cls_positions"]), batch["sequence_ids"])
