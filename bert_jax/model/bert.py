"""BERT without a head: embeddings, encoder and pooler; its predecessors in the same frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree, Shaped

from bert_jax.errors import UserError
from bert_jax.model.attention import INTERMEDIATES
from bert_jax.model.bilm import BiLstm
from bert_jax.model.config import ModelConfig
from bert_jax.model.embeddings import Embeddings, WordEmbeddings, check_ids
from bert_jax.model.encoder import Encoder
from bert_jax.model.heads.pretraining import Pooler
from bert_jax.model.layers import Seed, gather_positions, hash_word
from bert_jax.model.static import NoLayers

INPUTS = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
"""The arrays of a batch that the encoder reads, int32 [B, L]; `sequence_ids` is 0 on padding and 1..P on packed sequences."""
Batch = Mapping[str, Shaped[Array, " ..."]]
"""The arrays of a batch by name: INPUTS, and those that a head reads."""


ENCODERS: Mapping[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "transformer": (Embeddings, Encoder),
    "bilm": (WordEmbeddings, BiLstm),
    "static": (WordEmbeddings, NoLayers),
}
"""`ModelConfig.encoder` -> the modules of embeddings and layers, with the methods of `Embeddings` and `Encoder`."""


def natural_objective(config: ModelConfig) -> str:
    """The name of the objective that trains a model of this configuration where none is named: its encoder says which."""
    _, layers = ENCODERS[config.encoder]
    names: Mapping[str, str] = layers.objectives  # type: ignore[attr-defined]
    return names[config.direction]


class Bert(nn.Module):
    """Embeddings, encoder and pooler. Models with heads inherit from it, so that all of them share one parameter tree.

    A part needs parameters only where its method is called: the encoder without its pooler is this module too.
    """

    config: ModelConfig

    def setup(self) -> None:
        """Declares embeddings, encoder and pooler."""
        embeddings, encoder = ENCODERS[self.config.encoder]
        self.embeddings, self.encoder = embeddings(self.config), encoder(self.config)
        self.pooler = Pooler(self.config)

    def encode(
        self, batch: Batch, dropout_seed: Seed | None = None
    ) -> tuple[Float[Array, "B L D"], Float[Array, "S B L D"]]:
        """(output of the last layer, hidden states: the embeddings, then the output of every layer).

        Reads the arrays INPUTS of `batch`. Raises UserError, outside jit, for ids beyond their tables.
        """
        embedded = self._embed(batch, dropout_seed)
        last, layers = self.encoder(embedded, batch["sequence_ids"], dropout_seed)
        return last, jnp.concatenate([embedded[None], layers])

    def encode_at(
        self, positions: Int[Array, "B Q"], batch: Batch, dropout_seed: Seed | None = None
    ) -> Float[Array, "B Q D"]:
        """The output of the last layer at `positions` alone, which takes less computation: see `Encoder.at`."""
        return self.encoder.at(positions, self._embed(batch, dropout_seed), batch["sequence_ids"], dropout_seed)

    def _embed(self, batch: Batch, dropout_seed: Seed | None) -> Float[Array, "B L D"]:
        ids = {name: batch[name] for name in ("input_ids", "token_type_ids", "position_ids")}
        check_ids(self.config, **ids)
        return self.embeddings(**ids, seed=None if dropout_seed is None else hash_word(dropout_seed))

    def pool(self, last: Float[Array, "B L D"], cls_positions: Int[Array, "B P"]) -> Float[Array, "B P D"]:
        """The pooler's vector for each sequence, from the output of the last layer at its [CLS]."""
        return self.pooler(gather_positions(last, cls_positions))


def attention_weights(
    params: Mapping[str, PyTree[jax.Array]], config: ModelConfig, batch: Batch
) -> tuple[Float[Array, "B H L L"], ...]:
    """The attention weights of each layer, float32: [row, head, the token that attends, the token attended to], without dropout.

    They sum to 1 over the last axis. No token attends to another sequence or to padding; padding attends to padding. The plain
    implementation computes them, whatever `config` asks for: the kernels never hold them as a whole. Raises UserError for a model
    without attention.
    """
    if config.encoder != "transformer":
        raise UserError(f"a model with encoder={config.encoder} has no attention; name a Transformer")
    plain = dataclasses.replace(config, attention="plain", rematerialisation="none", scan_unroll=0)
    _, stored = Bert(plain).apply({"params": params}, batch, method="encode", mutable=[INTERMEDIATES])
    weights: tuple[Float[Array, "B H L L"], ...] = stored[INTERMEDIATES]["encoder"]["attention_weights"]
    return weights
