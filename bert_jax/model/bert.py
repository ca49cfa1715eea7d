"""What every BERT has, whatever it is asked: embeddings, encoder and pooler."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from bert_jax.model.config import ModelConfig
from bert_jax.model.embeddings import Embeddings, check_ids
from bert_jax.model.encoder import Encoder
from bert_jax.model.heads import Pooler
from bert_jax.model.layers import Array, gather_positions, mix


class Bert(nn.Module):
    """The encoder with its pooler. Models with heads inherit from it, so that all of them share one parameter tree.

    A part whose method is never called needs no parameters: a bare encoder without a pooler is this module too.
    """

    config: ModelConfig

    def setup(self) -> None:
        """Declares embeddings, encoder and pooler."""
        self.embeddings = Embeddings(self.config)
        self.encoder = Encoder(self.config)
        self.pooler = Pooler(self.config)

    def encode(
        self,
        input_ids: Array,
        token_type_ids: Array,
        position_ids: Array,
        sequence_ids: Array,
        dropout_seed: Array | None = None,
    ) -> tuple[Array, Array]:
        """int32 [B, L] each -> (last [B, L, D], hidden_states [N+1, B, L, D]: the embeddings, then every layer).

        `sequence_ids` is 0 on padding and 1..P on packed examples. Raises UserError, outside jit, for ids beyond their tables.
        """
        embedded = self._embed(input_ids, token_type_ids, position_ids, dropout_seed)
        last, layers = self.encoder(embedded, sequence_ids, dropout_seed)
        return last, jnp.concatenate([embedded[None], layers])

    def encode_at(
        self,
        positions: Array,
        input_ids: Array,
        token_type_ids: Array,
        position_ids: Array,
        sequence_ids: Array,
        dropout_seed: Array | None = None,
    ) -> Array:
        """What `encode` gives as `last`, at `positions` int32 [B, Q] alone [B, Q, D], and for less: see `Encoder.at`."""
        embedded = self._embed(input_ids, token_type_ids, position_ids, dropout_seed)
        return self.encoder.at(positions, embedded, sequence_ids, dropout_seed)

    def _embed(self, input_ids: Array, token_type_ids: Array, position_ids: Array, dropout_seed: Array | None) -> Array:
        check_ids(self.config, input_ids=input_ids, token_type_ids=token_type_ids, position_ids=position_ids)
        return self.embeddings(input_ids, token_type_ids, position_ids, None if dropout_seed is None else mix(dropout_seed))

    def pool(self, last: Array, cls_positions: Array) -> Array:
        """last [B, L, D] at the [CLS]s, cls_positions int32 [B, P] -> [B, P, D]."""
        return self.pooler(gather_positions(last, cls_positions))
