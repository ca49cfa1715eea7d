"""The head for text classification and regression (paper Figure 4a, b). It reads the pooled [CLS] of a text or pair, the last
token, or the result of an LSTM over the tokens."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.data.rows import LabelLayout
from bert_jax.model.heads.head import Pooling, TaskHead
from bert_jax.model.layers import gather_positions
from bert_jax.model.tokens import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceHead(TaskHead):
    """Predicts one label, several labels or a number for each text, with logits [B, P, C]."""

    kind = "sequence"
    has_labels = True
    settings = ("problem", "pooling", "lstm")
    reads_pairs = True
    action = "classify"
    command = 'classify --model={} "A text."'
    original_variable = "output_weights"  # run_classifier.py
    typical_labels = 3

    @property
    def reads_pooler(self) -> bool:
        """Whether the input is the output of the pooler."""
        return self.pooling == "pooler" and not self.lstm

    @property
    def layout(self) -> LabelLayout:
        """labels int32 [B, P]. They are float32 [B, P] for regression and float32 [B, P, C] for multi-label classification."""
        return LabelLayout(shape=self.outputs.label_shape(len(self.labels)), dtype=self.outputs.dtype)

    def input_width(self, hidden_size: int) -> int:
        """O, the width of the layer's input."""
        return super().input_width(hidden_size) * (3 if self.pooling == "concat" else 1)

    def positions(self, batch: Batch) -> Int[Array, "B Q"]:
        """Returns the positions of the [CLS] tokens, or of the last tokens."""
        if self.pooling == "last_token":
            return last_positions(batch["sequence_ids"], batch["cls_positions"].shape[1])
        return super().positions(batch)

    def inputs(self, tokens: Float[Array, "B L I"], batch: Batch, pooler: Pooling) -> Float[Array, "B _ O"]:
        """Computes the input of the layer from the features of all tokens. The input is the pooled [CLS], the last token, or
        the final states of the LSTM. With pooling="concat", it is the `concat_pooling` of the final states, or of the unpooled
        [CLS] if there is no LSTM."""
        if self.reads_pooler or self.pooling == "last_token":
            return super().inputs(tokens, batch, pooler)
        ids, cls = batch["sequence_ids"], batch["cls_positions"]
        one = final_states(tokens, cls, ids) if self.lstm else gather_positions(tokens, cls)
        return concat_pooling(tokens, one, ids) if self.pooling == "concat" else one


def concat_pooling(
    x: Float[Array, "B L I"], cls: Float[Array, "B P I"], sequence_ids: Int[Array, "B L"]
) -> Float[Array, "B P 3*I"]:
    """Returns, for each text, the concatenation of [CLS], the mean over the tokens and the maximum over the tokens, in float32
    (arXiv:1801.06146, section 3.3).

    `cls` has the vectors of the [CLS] tokens or, as in ULMFiT, the `final_states` of an LSTM. The tokens of text p have
    sequence id p + 1. If a text has no tokens, the mean and the maximum are zero.
    """
    texts = cls.shape[1] + 1  # padding is segment 0

    def mean_and_maximum(x: Float[Array, "L I"], ids: Int[Array, " L"]) -> Float[Array, "P 2*I"]:
        counts = jax.ops.segment_sum(jnp.ones_like(x[:, :1]), ids, texts)
        mean = jax.ops.segment_sum(x, ids, texts) / jnp.maximum(counts, 1.0)
        return jnp.concatenate([mean, jnp.where(counts > 0, jax.ops.segment_max(x, ids, texts), 0.0)], axis=-1)[1:]

    over_tokens = jax.vmap(mean_and_maximum)(x.astype(jnp.float32), sequence_ids)
    return jnp.concatenate([cls.astype(jnp.float32), over_tokens], axis=-1)


def final_states(x: Float[Array, "B L O"], first: Int[Array, "B P"], sequence_ids: Int[Array, "B L"]) -> Float[Array, "B P O"]:
    """Returns the concatenated final states of a bidirectional LSTM for each text. These are the forward half of `x` at the
    last token and the backward half at the first token.

    `x` has the outputs of `Lstm`, and `first` has the position of the first token of each text. The tokens of text p have
    sequence id p + 1. The vectors of empty slots are finite but meaningless.
    """
    forward, backward = jnp.split(x, 2, axis=-1)
    both = gather_positions(forward, last_positions(sequence_ids, first.shape[1])), gather_positions(backward, first)
    return jnp.concatenate(both, axis=-1)


def last_positions(sequence_ids: Int[Array, "B L"], texts: int) -> Int[Array, "B {texts}"]:
    """Returns the position of the last token of each text. The tokens of text p have sequence id p + 1. Empty slots have
    position 0."""
    positions = jnp.arange(sequence_ids.shape[1], dtype=jnp.int32)
    last = jax.vmap(lambda ids: jax.ops.segment_max(positions, ids, texts + 1)[1:])(sequence_ids)  # padding is segment 0
    return jnp.maximum(last, 0)
