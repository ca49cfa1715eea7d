"""BERT with its pretraining heads."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from bert_jax.model.bert import Bert
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads import MaskedLanguageModelHead, NextSentenceHead
from bert_jax.model.layers import Seed, gather_positions
from bert_jax.model.products import platform

INPUTS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids", "masked_positions", "cls_positions")
"""The arrays of a batch that the model reads, in the order of its arguments."""


class BertForPreTraining(Bert):
    """The model of the paper with its masked-language-model and next-sentence heads; without `next_sentence` the encoder and the
    masked-language-model head alone, for rows without pairs, on which nothing would train the pooler and the other head.

    `sequence_ids` are 0 on padding and 1..P on packed examples; to train, give a `dropout_seed`. Returns a dict:

        mlm_logits float32 [B, M, V]        nsp_logits float32 [B, P, 2]        pooled [B, P, D]   (the last two: `next_sentence`)
        last [B, L, D]                      hidden_states [S, B, L, D]: the embeddings, then every layer

    XLA drops the entries nobody reads, so returning all of them costs nothing. Eager calls refuse ids outside their tables;
    compiled ones cannot, so what feeds them calls `check_ids` first.
    """

    next_sentence: bool = True

    def setup(self) -> None:
        """Declares the encoder and the two heads."""
        super().setup()
        self.mlm_head = MaskedLanguageModelHead(self.config)
        self.nsp_head = NextSentenceHead(self.config)

    def __call__(
        self,
        input_ids: Int[Array, "B L"],
        token_type_ids: Int[Array, "B L"],
        position_ids: Int[Array, "B L"],
        sequence_ids: Int[Array, "B L"],
        masked_positions: Int[Array, "B M"],
        cls_positions: Int[Array, "B P"],
        dropout_seed: Seed | None = None,
    ) -> dict[str, Float[Array, " ..."]]:
        """The logits of both objectives, and the hidden states that they come from."""
        last, hidden_states = self.encode(input_ids, token_type_ids, position_ids, sequence_ids, dropout_seed)
        logits = self.masked_logits(last, masked_positions)
        outputs = {"mlm_logits": logits, "last": last, "hidden_states": hidden_states}
        if not self.next_sentence:
            return outputs
        pooled = self.pool(last, cls_positions)
        return outputs | {"nsp_logits": self.nsp_head(pooled), "pooled": pooled}

    def logits(
        self,
        input_ids: Int[Array, "B L"],
        token_type_ids: Int[Array, "B L"],
        position_ids: Int[Array, "B L"],
        sequence_ids: Int[Array, "B L"],
        masked_positions: Int[Array, "B M"],
        cls_positions: Int[Array, "B P"],
        dropout_seed: Seed | None = None,
    ) -> dict[str, Float[Array, " ..."]]:
        """The logits alone, as training wants them: the last layer is computed only where a head reads it.

        mlm_logits float32 [B, Q, V]: Q is M, or on a TPU M in `whole_tiles`, and those beyond M mean nothing; nsp_logits float32
        [B, P, 2].
        """
        inputs = (input_ids, token_type_ids, position_ids, sequence_ids, dropout_seed)
        asked, cls_count = whole_tiles(masked_positions), cls_positions.shape[1]
        table = self.embeddings.word_embeddings
        if not self.next_sentence:
            return {"mlm_logits": self.mlm_head(self.encode_at(asked, *inputs), table.embedding)}
        positions = whole_tiles(jnp.concatenate([asked, cls_positions], axis=1))
        read = self.encode_at(positions, *inputs)
        masked, cls, _ = jnp.split(read, [asked.shape[1], asked.shape[1] + cls_count], axis=1)
        return {
            "mlm_logits": self.mlm_head(masked, table.embedding),
            "nsp_logits": self.nsp_head(self.pooler(cls)),
        }

    def masked_logits(self, last: Float[Array, "B L D"], masked_positions: Int[Array, "B M"]) -> Float[Array, "B M V"]:
        """The logits of the masked-language-model head at some positions, float32, from the output of the last layer."""
        return self.mlm_head(gather_positions(last, masked_positions), self.embeddings.word_embeddings.embedding)


def whole_tiles(positions: Int[Array, "B M"]) -> Int[Array, "B Q"]:
    """`positions`, on a TPU with zeros up to a multiple of the 8 rows of its tiles.

    An array [B, Q, D] is then [R, D] as it lies in memory, where 77 rows in 80 would be moved: passes over the logits (of
    BERT-Large 0.5 ms each), and minutes of compilation.
    """
    missing = -positions.shape[1] % 8 if platform() == "tpu" else 0
    return jnp.pad(positions, ((0, 0), (0, missing)))


def initial_parameters(config: ModelConfig, key: Key[Array, ""], *, next_sentence: bool = True) -> dict[str, Any]:
    """Fresh float32 parameters, each boxed with its logical axis names (`flax.linen.unbox` strips them).

    Without `next_sentence` there is no "pooler" and no "nsp_head"; the others are the same numbers.
    """
    ids = jnp.zeros((1, 1), jnp.int32)
    return BertForPreTraining(config, next_sentence).init(key, ids, ids, ids, ids, ids, ids)["params"]


def abstract_parameters(config: ModelConfig, *, next_sentence: bool = True) -> dict[str, Any]:
    """The boxed shapes of `initial_parameters`, computed without memory."""
    return jax.eval_shape(lambda: initial_parameters(config, jax.random.key(0), next_sentence=next_sentence))


def count_parameters(config: ModelConfig, *, heads: bool = False, next_sentence: bool = True) -> int:
    """Parameters of the encoder with its pooler: 109,482,240 for Base; with `heads`, those of the pretraining heads too; without
    `next_sentence`, neither those of the pooler nor of its head."""
    counted = nn.unbox(abstract_parameters(config, next_sentence=next_sentence))
    if not heads:
        counted = {name: counted[name] for name in ("embeddings", "encoder", "pooler") if name in counted}
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(counted))
