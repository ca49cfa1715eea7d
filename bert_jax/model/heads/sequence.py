"""The head for text classification and regression (paper Figure 4a, b), on the pooled [CLS] of a text or pair, on its last token,
or on an LSTM over its tokens."""

from __future__ import annotations

import dataclasses

from jaxtyping import Array, Float, Int

from bert_jax.data.rows import LabelLayout
from bert_jax.model.features import concat_pooling, final_states, last_positions
from bert_jax.model.heads.head import Pooling, TaskHead
from bert_jax.model.layers import gather_positions
from bert_jax.model.tokens import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceHead(TaskHead):
    """One label, several labels or a number per text: logits [B, P, C]."""

    kind = "sequence"
    has_labels = True
    settings = ("problem", "pooling", "lstm")
    reads_pairs = True
    action = "classify"
    architecture = "BertForSequenceClassification"
    module = "classifier"
    original_variable = "output_weights"  # run_classifier.py
    typical_labels = 3

    @property
    def reads_pooler(self) -> bool:
        """Whether the input is the output of the pooler."""
        return self.pooling == "pooler" and not self.lstm

    @property
    def layout(self) -> LabelLayout:
        """labels int32 [B, P]; float32 [B, P] for regression, float32 [B, P, C] for multi-label classification."""
        return LabelLayout(shape=self.outputs.label_shape(len(self.labels)), dtype=self.outputs.dtype)

    def input_width(self, hidden_size: int) -> int:
        """O, the width of the input of the layer."""
        return super().input_width(hidden_size) * (3 if self.pooling == "concat" else 1)

    def positions(self, batch: Batch) -> Int[Array, "B Q"]:
        """Returns the positions of the [CLS] tokens, or of the last tokens."""
        if self.pooling == "last_token":
            return last_positions(batch["sequence_ids"], batch["cls_positions"].shape[1])
        return super().positions(batch)

    def inputs(self, tokens: Float[Array, "B L I"], batch: Batch, pooler: Pooling) -> Float[Array, "B _ O"]:
        """Computes the input of the layer from the features of all tokens: the pooled [CLS], the last token, the final states of
        the LSTM, or `concat_pooling` starting with the unpooled [CLS] or with these states."""
        if self.reads_pooler or self.pooling == "last_token":
            return super().inputs(tokens, batch, pooler)
        ids, cls = batch["sequence_ids"], batch["cls_positions"]
        one = final_states(tokens, cls, ids) if self.lstm else gather_positions(tokens, cls)
        return concat_pooling(tokens, one, ids) if self.pooling == "concat" else one
