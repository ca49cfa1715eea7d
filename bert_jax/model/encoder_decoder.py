"""The Transformer of "Attention Is All You Need" (Vaswani et al., arXiv:1706.03762). A decoder reads the output of an encoder and
predicts the next token of the target.

The encoder is the same as in the other models. A decoder layer has causal self-attention, attention on the encoder's output, and
a feed-forward. The settings in `Architecture` apply to decoder layers as they do to encoder layers. The parameter tree has the
parts "embeddings", "encoder", "decoder" and "lm_head"."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bert_jax.model.attention import INTERMEDIATES, CrossAttention, SelfAttention
from bert_jax.model.bert import Bert
from bert_jax.model.config import ModelConfig
from bert_jax.model.embeddings import Embeddings, check_ids
from bert_jax.model.encoder import (
    ACTIVATION_AXES,
    Encoder,
    FeedForward,
    attention_products,
    feed_forward_products,
    layer_seeds,
)
from bert_jax.model.heads.pretraining_heads import word_logits
from bert_jax.model.layers import Norm, ResidualNorm, Seed, dropout, hash_word, parameter
from bert_jax.model.tokens import Batch, Layer, Tokens

DECODER_SEED = np.uint32(0x6465636F)
""""deco" in ASCII. It is combined with the seed of a step to make the dropout seed of the decoder."""


class SourceEncoder(Encoder):
    """The encoder of an encoder-decoder."""

    objectives: ClassVar[Mapping[str, str]] = {"both": "translation"}


class DecoderBlock(nn.Module):
    """One layer of the decoder (arXiv:1706.03762, section 3.1). It has self-attention on the tokens so far, attention on the
    encoder's output, and a feed-forward, each with a residual sum and a norm."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B Q D"],
        tokens: Tokens,
        seed: Seed | None,
        layer: Layer,
        encoded: Float[Array, "B source D"] | None,
        source: Tokens,
    ) -> Float[Array, "B Q D"]:
        """Returns the hidden states of the tokens of `x` after the layer. `encoded` is the encoder's output at the tokens
        `source`."""
        c = self.config
        seeds = layer_seeds(seed, layer, 5)
        rate = c.hidden_dropout if c.attention_output_dropout is None else c.attention_output_dropout
        sublayers: dict[str, Callable[[Array], Array]] = {
            "attention": lambda x: SelfAttention(c, name="attention")(x, tokens, seeds[0], layer),
            "cross_attention": lambda x: CrossAttention(c, name="cross_attention")(x, tokens, seeds[1], encoded, source),
            "feed_forward": FeedForward(c, name="feed_forward"),
        }
        for (name, sublayer), word in zip(sublayers.items(), seeds[2:], strict=True):
            settings = tokens.dropout(c.hidden_dropout if name == "feed_forward" else rate, word)
            if c.norm_placement == "post":
                x = ResidualNorm(c, name=f"{name}_layer_norm")(x, sublayer(x), settings)
            else:
                x = x + dropout(sublayer(Norm(c, name=f"{name}_layer_norm")(x)), settings)
        return nn.with_logical_constraint(x, ACTIVATION_AXES)


class Decoder(Encoder):
    """The layers of a decoder (`ModelConfig.decoder_config`). If the target has its own vocabulary, the decoder also has its
    own word embeddings."""

    block: ClassVar[type[nn.Module]] = DecoderBlock
    decodes: ClassVar[bool] = True
    own_table: bool = False

    def setup(self) -> None:
        """Declares the layers and, if the target has its own vocabulary, its embeddings."""
        super().setup()
        if self.own_table:
            self.embeddings = Embeddings(self.config)


class LanguageModelHead(nn.Module):
    """The logits of every target word, float32. They are the logits of the paper's softmax plus `final_logits_bias`. The
    softmax is tied to the target's word embeddings unless `tied_decoder` is False. As in transformers, the bias is not trained.
    It is zero in a new model."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], table: Float[Array, "V D"] | None) -> Float[Array, "B L V"]:
        """Returns the logits of the next word for each vector of `x`."""
        shape = (self.config.padded_vocab_size,)
        bias = parameter(self, "final_logits_bias", nn.initializers.zeros, ("vocab",), shape)
        return word_logits(self, x, table, jax.lax.stop_gradient(bias))


class EncoderDecoder(Bert):
    """The whole model of `config.encoder = "encoder_decoder"`: the encoder, the decoder and its softmax."""

    word_head: ClassVar[str] = "lm_head"

    @classmethod
    def head_products(cls, config: ModelConfig, length: int, predictions: int, negatives: int) -> int:
        """Returns M N' (8 D^2 + 2 D F + 2 (L + M) D) for N' decoder layers that read the encoder's output, and M D V for the
        softmax, for a translation of M tokens."""
        width, words = config.hidden_size, config.decoder_vocab_size or config.vocab_size
        of_layer = 2 * attention_products(config) + feed_forward_products(config) + 2 * (length + predictions) * width
        return predictions * (config.decoder_layers * of_layer + width * words)

    def setup(self) -> None:
        """Declares the encoder, the decoder and the softmax."""
        super().setup()
        target = self.config.decoder_config
        self.decoder = Decoder(target, own_table=bool(self.config.decoder_vocab_size))
        self.lm_head = LanguageModelHead(target)

    @property
    def target_embeddings(self) -> Embeddings:
        """Returns the embeddings of the target. Source and target share them unless the target has its own vocabulary."""
        table: Embeddings = self.decoder.embeddings if self.config.decoder_vocab_size else self.embeddings
        return table

    def __call__(self, batch: Batch, dropout_seed: Seed | None = None) -> dict[str, Float[Array, " ..."]]:
        """Returns "logits" float32 [B, L, V], the encoder's hidden states ("last" and "hidden_states") and the decoder's hidden
        states ("decoder_last" and "decoder_hidden_states"). `Tokens.of` and `Tokens.for_decoder` read the inputs from the
        batch."""
        source, target = Tokens.of(batch), Tokens.for_decoder(batch)
        encoded, hidden_states = self.encode(source, dropout_seed)
        last, states = self.decode(target, encoded, source, dropout_seed)
        return {
            "logits": self.word_logits(last), "last": encoded, "hidden_states": hidden_states, "decoder_last": last,
            "decoder_hidden_states": states,
        }  # fmt: skip

    def decode(
        self, target: Tokens, encoded: Float[Array, "B source D"], source: Tokens, dropout_seed: Seed | None = None
    ) -> tuple[Float[Array, "B L D"], Float[Array, "S B L D"]]:
        """Returns (output of the decoder's last layer, hidden states). The hidden states are the embeddings of the target, then
        the output of every decoder layer."""
        check_ids(self.config.decoder_config, input_ids=target.ids, position_ids=target.positions)
        seed = None if dropout_seed is None else hash_word(dropout_seed ^ DECODER_SEED)
        x = self.target_embeddings(target, None if seed is None else hash_word(seed), untrained_start=True)
        last, layers = self.decoder(x, target, seed, encoded, source)
        return last, jnp.concatenate([x[None], layers])

    def word_logits(self, hidden: Float[Array, "B L D"]) -> Float[Array, "B L V"]:
        """Returns the logits of the next token, float32, for each of the decoder's outputs `hidden`."""
        return self.lm_head(hidden, self.target_embeddings.word_embeddings.embedding)


# --------------------------------------------------------------------------------------- functions that take a model's parameters
def encode(params: Mapping[str, Any], config: ModelConfig, source: Tokens) -> Float[Array, "B source D"]:
    """Returns the encoder's output at every token of the source, without dropout."""
    return cast(Array, EncoderDecoder(config).apply({"params": params}, source, method="encode")[0])


class AttentionMaps(NamedTuple):
    """The attention weights of each layer, float32, without dropout. The weights sum to 1 over the last axis."""

    encoder: tuple[Float[Array, "B H source source"], ...]
    decoder: tuple[Float[Array, "B H L L"], ...]
    cross: tuple[Float[Array, "B H L source"], ...]
    """[row, head, target token, source token that it attends to]."""


def attention_maps(params: Mapping[str, Any], config: ModelConfig, batch: Batch) -> AttentionMaps:
    """Returns the attention weights of the encoder, of the decoder, and of the decoder on the encoder's output. The plain
    implementation computes them, as in `bert.attention_weights`."""
    plain = dataclasses.replace(config.plain(), remat="none", scan_layers=False)
    _, stored = EncoderDecoder(plain).apply({"params": params}, batch, mutable=[INTERMEDIATES])
    encoder, decoder = (stored[INTERMEDIATES][part] for part in ("encoder", "decoder"))
    return AttentionMaps(encoder["attention_weights"], decoder["attention_weights"], decoder["cross_attention_weights"])
