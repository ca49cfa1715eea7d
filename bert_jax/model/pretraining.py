"""BERT with the two pretraining heads."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.bert import Bert
from bert_jax.model.heads import MaskedLanguageModelHead, NextSentenceHead
from bert_jax.model.layers import Array, gather_positions
from bert_jax.model.products import platform
from bert_jax.model.settings import ModelConfig

INPUTS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids", "masked_positions", "cls_positions")
"""The arrays of a batch that the model reads, in the order of its arguments."""


class BertForPreTraining(Bert):
    """The model of the paper with its masked-language-model and next-sentence heads.

    Call with int32 arrays

        input_ids, token_type_ids, position_ids, sequence_ids [B, L]    masked_positions [B, M]    cls_positions [B, P]

    (`sequence_ids`: 0 on padding, 1..P on packed examples) and, to train, a `dropout_seed` uint32 scalar. Returns a dict:

        mlm_logits float32 [B, M, V]        nsp_logits float32 [B, P, 2]        pooled [B, P, D]
        last [B, L, D]                      hidden_states [N+1, B, L, D]: the embeddings, then every layer

    XLA drops the entries nobody reads, so returning all of them costs nothing. Eager calls refuse ids outside their tables;
    compiled ones cannot, so what feeds them calls `check_ids` first.
    """

    def setup(self) -> None:
        super().setup()
        self.mlm_head = MaskedLanguageModelHead(self.config)
        self.nsp_head = NextSentenceHead(self.config)

    def __call__(
        self,
        input_ids: Array,
        token_type_ids: Array,
        position_ids: Array,
        sequence_ids: Array,
        masked_positions: Array,
        cls_positions: Array,
        dropout_seed: Array | None = None,
    ) -> dict[str, Array]:
        last, hidden_states = self.encode(input_ids, token_type_ids, position_ids, sequence_ids, dropout_seed)
        pooled = self.pool(last, cls_positions)
        return {
            "mlm_logits": self.masked_logits(last, masked_positions),
            "nsp_logits": self.nsp_head(pooled),
            "pooled": pooled,
            "last": last,
            "hidden_states": hidden_states,
        }

    def logits(
        self,
        input_ids: Array,
        token_type_ids: Array,
        position_ids: Array,
        sequence_ids: Array,
        masked_positions: Array,
        cls_positions: Array,
        dropout_seed: Array | None = None,
    ) -> dict[str, Array]:
        """The two logits alone, as training wants them: the last layer is computed only where a head reads it.

        mlm_logits float32 [B, M', V]: on a TPU M' is M in `whole_tiles`, and those beyond M mean nothing.
        """
        asked, cls_count = whole_tiles(masked_positions), cls_positions.shape[1]
        positions = whole_tiles(jnp.concatenate([asked, cls_positions], axis=1))
        read = self.encode_at(positions, input_ids, token_type_ids, position_ids, sequence_ids, dropout_seed)
        masked, cls, _ = jnp.split(read, [asked.shape[1], asked.shape[1] + cls_count], axis=1)
        return {
            "mlm_logits": self.mlm_head(masked, self.embeddings.word_embeddings.embedding),
            "nsp_logits": self.nsp_head(self.pooler(cls)),
        }

    def masked_logits(self, last: Array, masked_positions: Array) -> Array:
        """last [B, L, D] at masked_positions int32 [B, M] -> float32 logits [B, M, V]."""
        return self.mlm_head(gather_positions(last, masked_positions), self.embeddings.word_embeddings.embedding)


def whole_tiles(positions: Array) -> Array:
    """int32 [B, Q]; on a TPU with zeros up to a multiple of the 8 rows of its tiles.

    What is [B, Q, D] is then [B Q, D] as it lies in memory, where 77 rows in 80 would be moved: passes over the logits (of
    BERT-Large 0.5 ms each), and minutes of compilation.
    """
    missing = -positions.shape[1] % 8 if platform() == "tpu" else 0
    return jnp.pad(positions, ((0, 0), (0, missing)))


def initial_parameters(config: ModelConfig, key: Array) -> dict[str, Any]:
    """Fresh float32 parameters, each boxed with its logical axis names (`flax.linen.unbox` strips them)."""
    ids = jnp.zeros((1, 1), jnp.int32)
    return BertForPreTraining(config).init(key, ids, ids, ids, ids, ids, ids)["params"]


def abstract_parameters(config: ModelConfig) -> dict[str, Any]:
    """The boxed shapes of `initial_parameters`, computed without memory."""
    return jax.eval_shape(lambda: initial_parameters(config, jax.random.key(0)))


def count_parameters(config: ModelConfig, *, heads: bool = False) -> int:
    """Parameters of the encoder with its pooler: 109,482,240 for Base; with `heads`, those of both pretraining heads too."""
    counted = nn.unbox(abstract_parameters(config))
    names = ("embeddings", "encoder", "pooler") + (("mlm_head", "nsp_head") if heads else ())
    return sum(int(np.prod(leaf.shape)) for name in names for leaf in jax.tree.leaves(counted[name]))
