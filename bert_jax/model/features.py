"""Features of task heads other than the last layer and the pooler: mixes of layers, pooling over tokens, and an LSTM."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.config import Target
from bert_jax.model.layers import Dense, gather_positions, parameter, truncated_normal
from bert_jax.model.lstm import Direction, batch_major, carried, recurrence, time_major


def chosen_layers(
    last: Float[Array, "B L D"], hidden_states: Float[Array, "S B L D"], layers: str
) -> Float[Array, "B L I"]:
    """Returns the features of every token for the values of `TaskHead.layers` that have no trained weights (Table 7 of the
    paper).

    "all" means the N layers without the embeddings. Sums are float32.
    """
    match layers:
        case "last":
            return last
        case "second_to_last":
            return hidden_states[-2]
        case "embeddings":
            return hidden_states[0]
        case "last_four_sum":
            return hidden_states[-4:].astype(jnp.float32).sum(0)
        case "all_sum":
            return hidden_states[1:].astype(jnp.float32).sum(0)
        case "last_four_concat":
            return jnp.concatenate(list(hidden_states[-4:]), axis=-1)
    raise ValueError(f"layers={layers!r} is unknown, or has trained weights (see LayerMix)")


class LayerMix(nn.Module):
    """The scalar mix of ELMo: gamma * sum of softmax(weights)_j h_j over `count` hidden states, float32 (arXiv:1802.05365,
    equation 1). Its initial value is the mean of the hidden states."""

    count: int

    @nn.compact
    def __call__(self, states: Float[Array, "S B L D"]) -> Float[Array, "B L D"]:
        """Returns the weighted sum of `states`."""
        weights = parameter(self, "weights", nn.initializers.zeros, (None,), (self.count,))
        gamma = parameter(self, "gamma", nn.initializers.ones, (), ())
        shares = gamma * jax.nn.softmax(weights)
        return jnp.einsum("S,SBLD->BLD", shares, states.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


def concat_pooling(
    x: Float[Array, "B L I"], cls: Float[Array, "B P I"], sequence_ids: Int[Array, "B L"]
) -> Float[Array, "B P 3*I"]:
    """Returns the concatenation of [CLS], the mean and the maximum over the tokens of each text, float32 (arXiv:1801.06146,
    section 3.3).

    cls: the vectors of the [CLS] tokens, or the `final_states` of an LSTM, as in ULMFiT. The tokens of text p have sequence id p
    + 1. Mean and maximum of a text without tokens are zero.
    """
    texts = cls.shape[1] + 1  # padding is segment 0

    def mean_and_maximum(x: Float[Array, "L I"], ids: Int[Array, " L"]) -> Float[Array, "P 2*I"]:
        counts = jax.ops.segment_sum(jnp.ones_like(x[:, :1]), ids, texts)
        mean = jax.ops.segment_sum(x, ids, texts) / jnp.maximum(counts, 1.0)
        return jnp.concatenate([mean, jnp.where(counts > 0, jax.ops.segment_max(x, ids, texts), 0.0)], axis=-1)[1:]

    over_tokens = jax.vmap(mean_and_maximum)(x.astype(jnp.float32), sequence_ids)
    return jnp.concatenate([cls.astype(jnp.float32), over_tokens], axis=-1)


def mean_pooling(x: Float[Array, "B L I"], sequence_ids: Int[Array, "B L"], texts: int) -> Float[Array, "B {texts} I"]:
    """Returns the mean over the tokens of each text, float32. The tokens of text p have sequence id p + 1; empty slots are
    zero."""

    def mean(x: Float[Array, "L I"], ids: Int[Array, " L"]) -> Float[Array, "P I"]:
        sums, counts = (jax.ops.segment_sum(y, ids, texts + 1)[1:] for y in (x, jnp.ones_like(x[:, :1])))  # padding is segment 0
        return sums / jnp.maximum(counts, 1.0)

    return jax.vmap(mean)(x.astype(jnp.float32), sequence_ids)


def final_states(x: Float[Array, "B L O"], first: Int[Array, "B P"], sequence_ids: Int[Array, "B L"]) -> Float[Array, "B P O"]:
    """Returns the final states of both directions of an LSTM over each text, concatenated: the forward half of `x` at the last
    token and the backward half at the first.

    x: the outputs of `Lstm`. first: the position of the first token of each text. The tokens of text p have sequence id p + 1.
    Empty slots have a finite, meaningless vector.
    """
    forward, backward = jnp.split(x, 2, axis=-1)
    both = gather_positions(forward, last_positions(sequence_ids, first.shape[1])), gather_positions(backward, first)
    return jnp.concatenate(both, axis=-1)


def last_positions(sequence_ids: Int[Array, "B L"], texts: int) -> Int[Array, "B {texts}"]:
    """Returns the position of the last token of each text. The tokens of text p have sequence id p + 1; empty slots have position
    0."""
    positions = jnp.arange(sequence_ids.shape[1], dtype=jnp.int32)
    last = jax.vmap(lambda ids: jax.ops.segment_max(positions, ids, texts + 1)[1:])(sequence_ids)  # padding is segment 0
    return jnp.maximum(last, 0)


def mention_features(marked: Float[Array, "B P 3 I"]) -> Float[Array, "B P 5*I"]:
    """Returns the concatenation of m0, mA, mB, m0 * mA and m0 * mB, where m0, mA, mB are the hidden states of a pronoun and two
    names."""
    m0, ma, mb = (marked[:, :, i].astype(jnp.float32) for i in range(3))
    return jnp.concatenate([m0, ma, mb, m0 * ma, m0 * mb], axis=-1)


class Lstm(nn.Module):
    """A two-layer bidirectional LSTM over the tokens of each text, float32.

    The state is reset where `sequence_ids` change, in both directions, so texts do not depend on each other or on padding.
    `model/lstm.py` computes the recurrence.
    """

    width: int
    target: Target

    @nn.compact
    def __call__(self, x: Float[Array, "B L I"], sequence_ids: Int[Array, "B L"]) -> Float[Array, "B L O"]:
        """Returns the concatenated outputs of both directions for each token, O = 2 W."""
        w = self.width
        x = x.astype(jnp.float32)
        for name, axis in (("lower", "embed"), ("upper", None)):
            inputs = (x.shape[-1],)
            axes = (axis, None, None, None)
            init, dtype = truncated_normal(inputs[0] ** -0.5), jnp.dtype(jnp.float32)
            projected = Dense(inputs, (2, 4, w), axes, init, dtype, self.target, name=f"{name}_input")(x)
            kernel = Recurrence(w, name=f"{name}_recurrence")()
            projected = projected.reshape(*x.shape[:2], 2, 4 * w)
            directions = tuple(
                Direction(time_major(projected[:, :, n], n), carried(time_major(sequence_ids, n)), kernel[n]) for n in (0, 1)
            )
            x = jnp.concatenate([batch_major(h, n) for n, h in enumerate(recurrence(directions))], axis=-1)
        return x


class Recurrence(nn.Module):
    """The recurrent kernels of both directions, from the previous output to the four gates."""

    width: int

    @nn.compact
    def __call__(self) -> Float[Array, "2 W O"]:
        """Returns the recurrent kernels of both directions, O = 4 W."""
        w = self.width
        kernel = parameter(self, "kernel", truncated_normal(w**-0.5), (None,) * 4, (2, w, 4, w), (1, 2))
        return kernel.reshape(2, w, 4 * w)
