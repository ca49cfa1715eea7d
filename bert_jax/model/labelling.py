"""BERT with what a labelled task adds (paper sections 4 and 5.3, Figure 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from bert_jax.model.bert import Bert
from bert_jax.model.config import HeadConfig, ModelConfig
from bert_jax.model.features import concat_pooling, mention_features
from bert_jax.model.heads import LabelHead
from bert_jax.model.layers import Array, gather_positions, mix

INPUTS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
HEAD_SEED = np.uint32(0x68656164)


class BertForLabels(Bert):
    """The encoder with a sequence, token, span, choice or mention head.

    Call with a batch of int32 arrays and, to train, a `dropout_seed` uint32 scalar:

        input_ids, token_type_ids, position_ids, sequence_ids [B, L]: 0 on padding, p + 1 on text p of the row
        cls_positions [B, P], for a sequence or choice head      marks [B, P, 3], for a mention head: a pronoun and two names

    Returns a dict:

        logits float32: [B, P, C] of a sequence, choice or mention head, [B, L, C] of a token or span head
        last [B, L, D]        hidden_states [N+1, B, L, D]

    The candidates of a choice are texts of their own: C is 1, and the caller lays them side by side. A slot without a text has
    finite logits that mean nothing.
    """

    head: HeadConfig

    def setup(self) -> None:
        """Declares the encoder and the head, under the name of its kind."""
        super().setup()
        setattr(self, self.head.part, LabelHead(self.config, self.head))

    def __call__(self, batch: Mapping[str, Array], dropout_seed: Array | None = None) -> dict[str, Array]:
        """The logits of a batch, and the hidden states that they come from."""
        ids, types, positions, sequence_ids = (batch[name] for name in INPUTS)
        last, hidden_states = self.encode(ids, types, positions, sequence_ids, dropout_seed)
        tokens = self.features(last, hidden_states, sequence_ids)
        seed = None if dropout_seed is None else mix(dropout_seed ^ HEAD_SEED)
        return {"logits": self.answer(tokens, batch, seed), "last": last, "hidden_states": hidden_states}

    def logits(self, batch: Mapping[str, Array], dropout_seed: Array | None = None) -> Array:
        """The logits alone, as training wants them: the last layer is computed only where the head reads it."""
        if not self.head.reads_last_at_positions:
            return self(batch, dropout_seed)["logits"]
        ids, types, positions, sequence_ids = (batch[name] for name in INPUTS)
        read = self.encode_at(self._positions(batch), ids, types, positions, sequence_ids, dropout_seed)
        seed = None if dropout_seed is None else mix(dropout_seed ^ HEAD_SEED)
        return getattr(self, self.head.part)(self._at_positions(read), seed)

    def features(self, last: Array, hidden_states: Array, sequence_ids: Array) -> Array:
        """What the head reads of every token [B, L, E], from what `encode` gives."""
        return getattr(self, self.head.part).features(last, hidden_states, sequence_ids)

    def answer(self, tokens: Array, batch: Mapping[str, Array], dropout_seed: Array | None = None) -> Array:
        """The logits, from the features of tokens [B, L, E]; of `batch` only what says where texts are, so that rows may also be
        laid end to end [1, B * L, E]."""
        if self.head.per_token:
            x = tokens
        elif self.head.pooling == "concat":
            x = concat_pooling(tokens, gather_positions(tokens, batch["cls_positions"]), batch["sequence_ids"])
        else:
            x = self._at_positions(gather_positions(tokens, self._positions(batch)))
        return getattr(self, self.head.part)(x, dropout_seed)

    def _positions(self, batch: Mapping[str, Array]) -> Array:
        """Where a head that reads few tokens reads them, int32 [B, P], of a mention head [B, 3 P]."""
        if self.head.kind == "mention":
            return batch["marks"].reshape(len(batch["marks"]), -1)
        return batch["cls_positions"]

    def _at_positions(self, read: Array) -> Array:
        """The tokens at `_positions` [B, P or 3 P, E] -> what the head's own layer reads [B, P, J]."""
        if self.head.kind == "mention":
            return mention_features(read.reshape(len(read), -1, 3, read.shape[-1]))
        return self.pooler(read)


def initial_label_parameters(config: ModelConfig, head: HeadConfig, key: Array) -> dict[str, Any]:
    """Fresh float32 parameters, each boxed with its logical axis names; without a pooler if the head does not
    read it."""
    ids = jnp.zeros((1, 1), jnp.int32)
    batch = dict.fromkeys((*INPUTS, "cls_positions"), ids) | {"marks": jnp.zeros((1, 1, 3), jnp.int32)}
    return BertForLabels(config, head).init(key, batch)["params"]
