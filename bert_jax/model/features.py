"""The features that task heads read besides the last layer and the pooler: other layers, other tokens, an LSTM over the
tokens."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.layers import Dense, gather_positions, named, truncated_normal
from bert_jax.model.products import precision


def chosen_layers(
    last: Float[Array, "B L D"], hidden_states: Float[Array, "S B L D"], layers: str
) -> Float[Array, "B L I"]:
    """The features of every token for the values of `TaskHead.layers` without trained weights, the rows of the paper's Table 7.

    "all" are the N layers without the embeddings. Sums are float32.
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
        """The weighted sum of `states`."""
        weights = self.param("weights", named(nn.initializers.zeros, None), (self.count,))
        gamma = self.param("gamma", named(nn.initializers.ones), ())
        shares = gamma * jax.nn.softmax(weights)
        return jnp.einsum("S,SBLD->BLD", shares, states.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


def concat_pooling(
    x: Float[Array, "B L I"], cls: Float[Array, "B P I"], sequence_ids: Int[Array, "B L"]
) -> Float[Array, "B P 3*I"]:
    """The concatenation of [CLS], the mean and the maximum over the tokens of each text, float32 (arXiv:1801.06146, section 3.3).

    cls: the vectors of the [CLS]s, or the `final_states` of an LSTM over the tokens, as in ULMFiT. The tokens of text p
    have the sequence id p + 1. Mean and maximum of a text without tokens are zero.
    """
    texts = cls.shape[1] + 1  # padding is segment 0

    def mean_and_maximum(x: Float[Array, "L I"], ids: Int[Array, " L"]) -> Float[Array, "P 2*I"]:
        counts = jax.ops.segment_sum(jnp.ones_like(x[:, :1]), ids, texts)
        mean = jax.ops.segment_sum(x, ids, texts) / jnp.maximum(counts, 1.0)
        return jnp.concatenate([mean, jnp.where(counts > 0, jax.ops.segment_max(x, ids, texts), 0.0)], axis=-1)[1:]

    over_tokens = jax.vmap(mean_and_maximum)(x.astype(jnp.float32), sequence_ids)
    return jnp.concatenate([cls.astype(jnp.float32), over_tokens], axis=-1)


def final_states(x: Float[Array, "B L O"], first: Int[Array, "B P"], sequence_ids: Int[Array, "B L"]) -> Float[Array, "B P O"]:
    """The final states of both directions of an LSTM over each text, concatenated: the forward half of `x` at the last token and
    the backward half at the first.

    x: the outputs of `Lstm`. first: the position of the first token of each text. The tokens of text p have the sequence id
    p + 1. A slot without a text has a finite vector without meaning.
    """
    forward, backward = jnp.split(x, 2, axis=-1)
    both = gather_positions(forward, last_positions(sequence_ids, first.shape[1])), gather_positions(backward, first)
    return jnp.concatenate(both, axis=-1)


def last_positions(sequence_ids: Int[Array, "B L"], texts: int) -> Int[Array, "B {texts}"]:
    """The position of the last token of each text; the tokens of text p have the sequence id p + 1. 0 for a slot without a
    text."""
    positions = jnp.arange(sequence_ids.shape[1], dtype=jnp.int32)
    last = jax.vmap(lambda ids: jax.ops.segment_max(positions, ids, texts + 1)[1:])(sequence_ids)  # padding is segment 0
    return jnp.maximum(last, 0)


def mention_features(marked: Float[Array, "B P 3 I"]) -> Float[Array, "B P 5*I"]:
    """The concatenation of m0, mA, mB, m0 * mA and m0 * mB, where m0, mA, mB are the hidden states of a pronoun and two names."""
    m0, ma, mb = (marked[:, :, i].astype(jnp.float32) for i in range(3))
    return jnp.concatenate([m0, ma, mb, m0 * ma, m0 * mb], axis=-1)


class Lstm(nn.Module):
    """A two-layer bidirectional LSTM over the tokens of each text, float32.

    The state is reset where `sequence_ids` change, in both directions, so a text is independent of other texts and of padding.
    A constant 1 is added to the bias of the forget gate (Jozefowicz et al. 2015, section 2.2).
    """

    width: int

    @nn.compact
    def __call__(self, x: Float[Array, "B L I"], sequence_ids: Int[Array, "B L"]) -> Float[Array, "B L O"]:
        """The concatenated outputs of both directions for each token, O = 2 W."""
        w = self.width
        x = x.astype(jnp.float32)
        for name, axis in (("lower", "embed"), ("upper", None)):
            inputs = (x.shape[-1],)
            axes = (axis, None, None, None)
            projected = Dense(inputs, (2, 4, w), axes, inputs[0] ** -0.5, jnp.dtype(jnp.float32), name=f"{name}_input")(x)
            kernel = Recurrence(w, name=f"{name}_recurrence")()
            time_major = projected.reshape(*x.shape[:2], 2, 4 * w).swapaxes(0, 1)
            ids = sequence_ids.T[..., None]
            forward = recurrence(time_major[:, :, 0], carried(ids), kernel[0])
            backward = recurrence(time_major[::-1, :, 1], carried(ids[::-1]), kernel[1])[::-1]
            x = jnp.concatenate([forward, backward], axis=-1).swapaxes(0, 1)
        return x


class Recurrence(nn.Module):
    """The recurrent kernels of both directions: from the previous output to the four gates."""

    width: int

    @nn.compact
    def __call__(self) -> Float[Array, "2 W O"]:
        """The recurrent kernels of both directions, O = 4 W."""
        w = self.width
        kernel = self.param("kernel", named(truncated_normal(w**-0.5), None, None, None, None), (2, w, 4, w))
        return kernel.reshape(2, w, 4 * w)


def carried(ids: Int[Array, "L B 1"]) -> Float[Array, "L B 1"]:
    """1 where a token belongs to the same text as the token before it, else 0; float32."""
    first = jnp.zeros(ids[:1].shape, bool)
    return jnp.concatenate([first, ids[1:] == ids[:-1]]).astype(jnp.float32)


@jax.custom_vjp
def recurrence(
    inputs: Float[Array, "L B O"], keep: Float[Array, "L B 1"], kernel: Float[Array, "W O"]
) -> Float[Array, "L B W"]:
    """The outputs h of an LSTM.

    inputs: the products of the inputs with their kernel, for the gates i, f, g, o; O = 4 W. keep: 0 where the state is reset.

    The backward pass computes the gradient of the kernel as one product over all time steps. Automatic differentiation adds to
    the whole gradient at every step (2.8 times slower at W = 768 on a CPU).
    """
    return _recurrence_forward(inputs, keep, kernel)[0]


def _recurrence_forward(
    inputs: Float[Array, "L B O"], keep: Float[Array, "L B 1"], kernel: Float[Array, "W O"]
) -> tuple[Float[Array, "L B W"], tuple[Float[Array, " ..."], ...]]:
    def step(carry: tuple[Array, Array], x: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        (h, c), (projected, keep) = carry, x
        gates = projected + jnp.matmul(h * keep, kernel, precision=precision(h.dtype))
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f + 1.0), jnp.tanh(g), jax.nn.sigmoid(o)
        c = f * c * keep + i * g
        h = o * jnp.tanh(c)
        return (h, c), (h, c, jnp.concatenate([i, f, g, o], axis=-1))

    start = jnp.zeros((inputs.shape[1], kernel.shape[0]), inputs.dtype)
    _, (h, c, gates) = jax.lax.scan(step, (start, start), (inputs, keep))
    return h, (h, c, gates, keep, kernel)


def _recurrence_backward(
    residual: tuple[Float[Array, " ..."], ...], dh: Float[Array, "L B W"]
) -> tuple[Float[Array, "L B O"], None, Float[Array, "W O"]]:
    h, c, gates, keep, kernel = residual
    h_before, c_before = (jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]]) * keep for x in (h, c))
    back = kernel.T

    def step(carry: tuple[Array, Array], x: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        (dh_after, dc_after), (dh, c, c_before, gates, keep) = carry, x
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        dh, tanh_c = dh + dh_after, jnp.tanh(c)
        dc = dc_after + dh * o * (1 - tanh_c * tanh_c)
        di, df, dg, do = dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g), dh * tanh_c * o * (1 - o)
        dgates = jnp.concatenate([di, df, dg, do], axis=-1)
        return (jnp.matmul(dgates, back, precision=precision(dgates.dtype)) * keep, dc * f * keep), dgates

    end = jnp.zeros_like(h[0])
    _, dinputs = jax.lax.scan(step, (end, end), (dh, c, c_before, gates, keep), reverse=True)
    dkernel = jnp.einsum("LBW,LBO->WO", h_before, dinputs, precision=precision(h.dtype))
    return dinputs, None, dkernel


recurrence.defvjp(_recurrence_forward, _recurrence_backward)
