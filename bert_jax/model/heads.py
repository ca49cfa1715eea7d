"""What is asked of the encoder: the masked words and whether B follows A (paper section 3.1), or a task's labels (section 4)."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.errors import UserError
from bert_jax.model.config import HeadConfig, ModelConfig
from bert_jax.model.features import LayerMix, Lstm, chosen_layers
from bert_jax.model.layers import Array, Dense, LayerNorm, activation, dropout, named, spread, truncated_normal
from bert_jax.model.products import multiply, over_rows, sum_rows

PADDED_LOGIT = -1e9
"""The logit of a padded vocabulary row: its probability and its gradient are exactly zero in float32."""


class Pooler(nn.Module):
    """tanh(W h + b) of each example's [CLS]: [B, P, D] -> [B, P, D]."""

    config: ModelConfig

    @nn.compact
    def __call__(self, cls: Array) -> Array:
        """tanh of a Dense layer: [B, P, D] -> [B, P, D]."""
        d = self.config.hidden_size
        return jnp.tanh(
            Dense((d,), (d,), ("embed", "embed_out"), self.config.initializer_range, jnp.dtype(self.config.dtype), name="dense")(
                cls
            )
        )


@jax.custom_vjp
def decode(x: Array, table: Array, bias: Array) -> Array:
    """x [R, D] against every word of table [V, D], plus bias float32 [V] -> float32 logits [R, V]."""
    logits = multiply(x, table, (-1, -1), jnp.float32)
    return logits + spread(bias, 1)


def _decode_backward(residual: tuple[Array, Array], g: Array) -> tuple[Array, Array, Array]:
    x, table = residual
    narrow = g.astype(x.dtype)
    dx = multiply(narrow, table, (-1, -2))
    return dx, over_rows(narrow, x), sum_rows(g)


decode.defvjp(lambda x, table, bias: (decode(x, table, bias), (x, table)), _decode_backward)


class MaskedLanguageModelHead(nn.Module):
    """Hidden states at the masked positions [B, M, D] and the word table [V, D] -> float32 logits [B, M, V].

    The decoder is the word-embedding table itself (or, with `tied_decoder` off, one of its own) plus a bias per word; only
    gathered positions reach it, since at 15 % masking the other 85 % of the largest product of a small BERT would be thrown
    away.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, masked: Array, table: Array) -> Array:
        """masked [B, M, D], table [V, D] -> float32 logits [B, M, V]."""
        c, dtype = self.config, jnp.dtype(self.config.dtype)
        x = Dense((c.hidden_size,), (c.hidden_size,), ("embed", "embed_out"), c.initializer_range, dtype, name="transform")(
            masked
        )
        x = LayerNorm(c.layer_norm_epsilon, name="layer_norm")(activation(c.activation)(x))
        bias = self.param("bias", named(nn.initializers.zeros, "vocab"), (c.padded_vocab_size,))
        if not c.tied_decoder:
            shape = (c.padded_vocab_size, c.hidden_size)
            table = self.param("decoder", named(truncated_normal(c.initializer_range), "vocab", "embed"), shape)
        logits = decode(x.reshape(-1, c.hidden_size), table.astype(dtype), bias).reshape(*x.shape[:2], -1)
        if c.padded_vocab_size > c.vocab_size:
            real = jnp.arange(c.padded_vocab_size) < c.vocab_size
            logits = jnp.where(spread(real, 2), logits, PADDED_LOGIT)
        return nn.with_logical_constraint(logits, ("batch", None, "vocab"))


class NextSentenceHead(nn.Module):
    """Pooled [B, P, D] -> float32 logits [B, P, 2]; 0 is "B follows A", 1 is "B is random" (the original's labels)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, pooled: Array) -> Array:
        """pooled [B, P, D] -> float32 logits [B, P, 2]."""
        c = self.config
        return Dense((c.hidden_size,), (2,), ("embed", None), c.initializer_range, jnp.dtype(jnp.float32), name="dense")(
            pooled.astype(jnp.float32)
        )


class LabelHead(nn.Module):
    """The one layer of a labelled task, [..., J] -> float32 logits [..., C], and what `HeadConfig` sets before it.

    Raises UserError for four layers to be read where there are fewer.
    """

    config: ModelConfig
    head: HeadConfig

    def setup(self) -> None:
        """Declares the layer, and the mix of layers and the LSTM where `head` asks for them."""
        c, head = self.config, self.head
        if head.layers.startswith("last_four") and c.num_layers < 4:
            raise UserError(f"head.layers={head.layers!r} needs 4 layers, and the model has {c.num_layers}; choose another")
        if mixed := head.mixed_layers(c.num_layers):
            self.mix = LayerMix(mixed)
        if head.lstm:
            self.lstm = Lstm(head.lstm)
        width, axis = head.input_width(c.hidden_size), None if head.lstm else "embed"
        self.dense = Dense((width,), (head.num_outputs,), (axis, None), c.initializer_range, jnp.dtype(jnp.float32))

    def features(self, last: Array, hidden_states: Array, sequence_ids: Array) -> Array:
        """What it reads of a token: last [B, L, D], hidden_states [N+1, B, L, D], sequence_ids [B, L] -> [B, L, I or 2 W]."""
        if mixed := self.head.mixed_layers(self.config.num_layers):
            x = self.mix(hidden_states[-mixed:])
        else:
            x = chosen_layers(last, hidden_states, self.head.layers)
        return self.lstm(x, sequence_ids) if self.head.lstm else x

    def __call__(self, x: Array, dropout_seed: Array | None) -> Array:
        """Logits of `x` after dropout, [..., J] -> float32 [..., C]."""
        usual = 0.0 if self.head.kind == "span" else self.config.hidden_dropout  # run_squad.py, and transformers, have none
        x = dropout(x.astype(jnp.float32), usual if self.head.dropout is None else self.head.dropout, dropout_seed)
        return self.dense(x)
