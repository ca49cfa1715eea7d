"""The encoder without a task head: embeddings, layers and pooler. BERT's predecessors use it too."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from bert_jax.errors import UserError
from bert_jax.interface.named import is_in_file
from bert_jax.model import encoder_classes
from bert_jax.model.attention import INTERMEDIATES
from bert_jax.model.config import ModelConfig
from bert_jax.model.embeddings import check_ids
from bert_jax.model.heads.pretraining_heads import Pooler
from bert_jax.model.layers import Seed, gather_positions, hash_word
from bert_jax.model.tokens import Batch, Tokens


class Bert(nn.Module):
    """Embeddings, encoder and pooler. Models with heads inherit from this class, so their parameter trees have these parts in
    common.

    The parameters of a part are needed only if the part is called. The encoder can therefore be used without the pooler.
    """

    word_head: ClassVar[str] = "mlm_head"
    """The part of the parameters that predicts the words of a text."""
    config: ModelConfig

    @classmethod
    def head_products(cls, config: ModelConfig, length: int, predictions: int, negatives: int) -> int:
        """Returns the multiply-adds in the forward pass of the pretraining head, for `predictions` words in a row of `length`
        tokens. In skip-gram, the row also has `negatives`. This class has no such head, so the number is 0."""
        return 0

    def setup(self) -> None:
        """Declares embeddings, encoder and pooler."""
        embeddings, encoder = encoder_classes(self.config)
        self.embeddings, self.encoder = embeddings(self.config), encoder(self.config)
        self.pooler = Pooler(self.config)

    def encode(
        self, tokens: Tokens, dropout_seed: Seed | None = None
    ) -> tuple[Float[Array, "B L D"], Float[Array, "S B L D"]]:
        """Returns (output of the last layer, hidden states). The hidden states are the embeddings and the output of every layer.

        Outside jit, raises UserError for ids that are not in their embedding tables.
        """
        embedded = self._embed(tokens, dropout_seed)
        last, layers = self._checked(embedded, self.encoder(embedded, tokens, dropout_seed))
        return last, jnp.concatenate([embedded[None], layers])

    def _checked(
        self, embedded: Float[Array, "B L D"], returned: Any
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"]]:
        """Returns the result of the encoder. Raises UserError if a user's own encoder has returned arrays of the wrong
        shapes."""
        if is_in_file(self.config.encoder):
            shapes = [embedded.shape, (self.config.num_layers, *embedded.shape)]
            if not isinstance(returned, tuple) or [getattr(x, "shape", None) for x in returned] != shapes:
                found = jax.tree.map(lambda x: getattr(x, "shape", x), returned)
                raise UserError(
                    f"config.model.encoder={self.config.encoder} returns arrays of the shapes {found}; it must return the output "
                    f"of the last layer and of all layers, {shapes[0]} and {shapes[1]}"
                )
        last, layers = returned
        return last, layers

    def logits(self, batch: Batch, dropout_seed: Seed | None = None) -> Any:
        """Returns only the logits, for training. By default, they are the "logits" of a whole pass."""
        return {"logits": self(batch, dropout_seed)["logits"]}

    def logits_and_states(self, batch: Batch, dropout_seed: Seed | None = None) -> dict[str, Float[Array, " ..."]]:
        """Returns the logits of the method `logits` and the "hidden_states" of the encoder, from one encoding."""
        outputs: dict[str, Array] = self(batch, dropout_seed)
        return outputs

    def encode_queried(self, tokens: Tokens, dropout_seed: Seed | None = None) -> Float[Array, "B Q D"]:
        """Returns the output of the last layer at `tokens.queried` only. This is cheaper than computing it for all tokens (see
        `Encoder.queried`)."""
        return self.encoder.queried(self._embed(tokens, dropout_seed), tokens, dropout_seed)

    def _embed(self, tokens: Tokens, dropout_seed: Seed | None) -> Float[Array, "B L D"]:
        check_ids(self.config, input_ids=tokens.ids, token_type_ids=tokens.types, position_ids=tokens.positions)
        return self.embeddings(tokens, None if dropout_seed is None else hash_word(dropout_seed))

    def pool(self, last: Float[Array, "B L D"], cls_positions: Int[Array, "B P"]) -> Float[Array, "B P D"]:
        """Applies the pooler to the last layer's output at the [CLS] of each sequence."""
        return self.pooler(gather_positions(last, cls_positions))


def attention_weights(
    params: Mapping[str, PyTree[jax.Array]], config: ModelConfig, tokens: Tokens
) -> tuple[Float[Array, "B H L L"], ...]:
    """Returns the attention weights of each layer, without dropout: float32 [row, head, query, key].

    The weights sum to 1 over the last axis. Tokens do not attend to other sequences or to padding. Padding attends only to
    padding. The plain implementation is always used, since the fused kernels never hold all weights. Raises UserError for a
    model without attention.
    """
    if not config.has_attention:
        raise UserError(without_attention(config))
    plain = dataclasses.replace(config.plain(), remat="none", scan_layers=False)
    _, stored = Bert(plain).apply({"params": params}, tokens, method="encode", mutable=[INTERMEDIATES])
    if "attention_weights" not in stored.get(INTERMEDIATES, {}).get("encoder", {}):  # a user's own layers have no attention
        raise UserError(without_attention(config))
    weights: tuple[Float[Array, "B H L L"], ...] = stored[INTERMEDIATES]["encoder"]["attention_weights"]
    return weights


def without_attention(config: ModelConfig) -> str:
    """Returns the error message for a model that has no attention, if its attention weights are requested."""
    return f"a model with encoder={config.encoder} has no attention; use a Transformer"
