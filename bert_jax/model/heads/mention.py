"""The head for pronoun resolution (GAP, Webster et al. 2018). It reads the first tokens of a pronoun and two names."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.data.rows import LabelLayout
from bert_jax.model.heads.head import Pooling, TaskHead
from bert_jax.model.tokens import Batch

MENTIONS = 3
"""The number of mentions: the pronoun and two names."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MentionHead(TaskHead):
    """Predicts the label of a pronoun (A, B or neither), with logits [B, P, C]. transformers has no class with this head."""

    kind = "mention"
    has_labels = True
    action = "resolve pronouns"
    command = "resolve --model={} --input=FILE"
    typical_labels = 3

    @property
    def layout(self) -> LabelLayout:
        """labels int32 [B, P]; read_positions int32 [B, P, 3]."""
        return LabelLayout(read_positions=MENTIONS)

    def input_width(self, hidden_size: int) -> int:
        """O, the width of the layer's input."""
        return 5 * self.token_width(hidden_size)

    def positions(self, batch: Batch) -> Int[Array, "B Q"]:
        """Returns the positions of the first tokens of the three mentions, int32 [B, 3 P]."""
        return batch["read_positions"].reshape(len(batch["read_positions"]), -1)

    def inputs_at(self, tokens: Float[Array, "B Q I"], pooler: Pooling) -> Float[Array, "B P O"]:
        """Returns the concatenation of m0, mA, mB, m0 * mA and m0 * mB, [B, P, 5 I]. m0, mA and mB are the hidden states of the
        pronoun and the two names, taken from the tokens [B, 3 P, I]."""
        marked = tokens.reshape(len(tokens), -1, MENTIONS, tokens.shape[-1])
        m0, ma, mb = (marked[:, :, i].astype(jnp.float32) for i in range(MENTIONS))
        return jnp.concatenate([m0, ma, mb, m0 * ma, m0 * mb], axis=-1)
