"""The pooler and the heads of pretraining: masked language modelling and next sentence prediction (paper section 3.1)."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.model.config import ModelConfig
from bert_jax.model.layers import (
    Dense,
    Norm,
    activation,
    initializer,
    matmul,
    parameter,
    sum_rows,
    transposed_matmul,
    with_leading_axes,
)

PADDED_LOGIT = -1e9
"""The logit of a padded vocabulary row. The probability and the gradient of such a row are exactly zero in float32."""


class Pooler(nn.Module):
    """The layers before a classifier. By default, they are tanh(W h + b), where h is the hidden state of [CLS]. With another
    `classifier_pooling`, they are the layers of the MLM head (ModernBERT). If the MLM head has no layers, they are a dense
    layer with GELU (EuroBERT)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, states: Float[Array, "B P D"]) -> Float[Array, "B P D"]:
        """Computes the pooled vectors from the hidden states."""
        c = self.config
        if c.classifier_pooling == "pooler":
            return jnp.tanh(_dense(c, "dense")(states))
        if c.mlm_head == "decoder":
            return activation("gelu")(_dense(c, "dense")(states))
        return Norm(c, name="layer_norm")(activation(c.activation)(_dense(c, "dense", use_bias=c.head_dense_bias)(states)))


def _dense(c: ModelConfig, name: str, *, use_bias: bool = True) -> Dense:
    """Returns a dense layer from D to D."""
    axes, width = ("embed", "embed_out"), (c.hidden_size,)
    return Dense(width, width, axes, initializer(c), jnp.dtype(c.dtype), c.target, use_bias=use_bias, name=name)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def decode(
    x: Float[Array, "R D"], table: Float[Array, "V D"], bias: Float[Array, " V"], one_cpu: bool
) -> Float[Array, "R V"]:
    """Returns the logits of every word in `table`, x @ table.T + bias, in float32."""
    logits = matmul(x, table, (-1, -1), one_cpu, jnp.float32)
    return logits + with_leading_axes(bias, 1)


def _decode_backward(
    one_cpu: bool, residual: tuple[Float[Array, "R D"], Float[Array, "V D"]], g: Float[Array, "R V"]
) -> tuple[Float[Array, "R D"], Float[Array, "V D"], Float[Array, " V"]]:
    x, table = residual
    narrow = g.astype(x.dtype)
    dx = matmul(narrow, table, (-1, -2), one_cpu)
    return dx, transposed_matmul(narrow, x, one_cpu), sum_rows(g, one_cpu)


decode.defvjp(lambda x, table, bias, one_cpu: (decode(x, table, bias, one_cpu), (x, table)), _decode_backward)


class MaskedLanguageModelHead(nn.Module):
    """Computes the float32 MLM logits from the hidden states at the masked positions and the word-embedding table.

    The decoder is the word-embedding table plus a bias per word. Without `tied_decoder`, the decoder has its own table. The
    logits are computed only at the masked positions, because they need the largest matrix product of a small BERT. With 15 %
    masking, 85 % of the logits at all positions would be unused."""

    config: ModelConfig

    @nn.compact
    def __call__(self, masked: Float[Array, "B M D"], table: Float[Array, "V D"]) -> Float[Array, "B M V"]:
        """Returns the logits of every word at the masked positions."""
        c = self.config
        if c.mlm_head == "decoder":
            return word_logits(self, masked, table)
        x = _dense(c, "transform", use_bias=c.head_dense_bias)(masked)
        return word_logits(self, Norm(c, name="layer_norm")(activation(c.activation)(x)), table)


def word_logits(
    head: nn.Module,
    x: Float[Array, "B M I"],
    table: Float[Array, "V I"] | None,
    fixed_bias: Float[Array, " V"] | None = None,
) -> Float[Array, "B M V"]:
    """Returns the logits of every word, x @ table.T + bias, in float32. The bias (if any) and an untied table are parameters of
    `head`. The argument `table` is only used if the decoder is tied. `fixed_bias` replaces the learned bias."""
    c: ModelConfig = head.config
    bias = jnp.zeros(c.padded_vocab_size)  # XLA removes the addition of zeros
    if fixed_bias is not None:
        bias = fixed_bias
    elif c.decoder_bias:
        bias = parameter(head, "bias", nn.initializers.zeros, ("vocab",), (c.padded_vocab_size,))
    shape = (c.padded_vocab_size, x.shape[-1])
    if not c.tied_decoder:
        table = parameter(head, "decoder", initializer(c), ("vocab", "embed"), shape)
    assert table is not None, "a tied decoder needs the word-embedding table"
    logits = decode(x.reshape(-1, x.shape[-1]), table.astype(jnp.dtype(c.dtype)), bias, c.target.one_cpu)
    logits = logits.reshape(*x.shape[:2], -1)
    if c.padded_vocab_size > c.vocab_size:
        real = jnp.arange(c.padded_vocab_size) < c.vocab_size
        logits = jnp.where(with_leading_axes(real, 2), logits, PADDED_LOGIT)
    return nn.with_logical_constraint(logits, ("batch", None, "vocab"))


class SoftmaxHead(nn.Module):
    """The softmax layer of an LSTM, which returns float32 logits of every word. The layer is tied to the word embeddings unless
    `tied_decoder` is False."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B M I"], table: Float[Array, "V I"] | None) -> Float[Array, "B M V"]:
        """Computes the logits of every word from each vector of `x`."""
        return word_logits(self, x, table)


class NextSentenceHead(nn.Module):
    """Computes the float32 logits of next sentence prediction. Label 0 is "B follows A" and label 1 is "B is random", as in the
    original code."""

    config: ModelConfig

    @nn.compact
    def __call__(self, pooled: Float[Array, "B P D"]) -> Float[Array, "B P 2"]:
        """Computes the logits of each example from the pooled vector."""
        c = self.config
        dtype = jnp.dtype(jnp.float32)
        dense = Dense((c.hidden_size,), (2,), ("embed", None), initializer(c), dtype, c.target, name="dense")
        return dense(pooled.astype(jnp.float32))
