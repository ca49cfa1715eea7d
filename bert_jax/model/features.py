"""What a labelled head reads beside the last layer and the pooler: other layers, other tokens, and an LSTM over them.

Axis letters beside those of `layers.py`: I width of a token's features, W width of an LSTM's direction.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.model.layers import Array, Dense, named, truncated_normal
from bert_jax.model.products import precision


def chosen_layers(last: Array, hidden_states: Array, layers: str) -> Array:
    """last [B, L, D] and hidden_states [N+1, B, L, D] as `TaskHead.layers` without weights says -> [B, L, I].

    The rows of the paper's Table 7; "all" are the N layers without the embeddings. Sums are float32.
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
    raise ValueError(f"layers={layers!r} is no choice without weights")


class LayerMix(nn.Module):
    """gamma * sum of softmax(weights)_j h_j over `count` hidden states [count, B, L, D] -> float32 [B, L, D] (arXiv:1802.05365,
    equation 1). It starts as their mean."""

    count: int

    @nn.compact
    def __call__(self, states: Array) -> Array:
        """states [count, B, L, D] -> float32 [B, L, D]."""
        weights = self.param("weights", named(nn.initializers.zeros, None), (self.count,))
        gamma = self.param("gamma", named(nn.initializers.ones), ())
        shares = gamma * jax.nn.softmax(weights)
        return jnp.einsum("N,NBLD->BLD", shares, states.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


def concat_pooling(x: Array, cls: Array, sequence_ids: Array) -> Array:
    """[CLS], mean and maximum over each text's tokens, float32 [B, P, 3 I] (arXiv:1801.06146, section 3.3).

    x [B, L, I], cls [B, P, I] the [CLS]s; text p is where sequence_ids int32 [B, L] are p + 1. Without a token both are zero.
    """
    texts = cls.shape[1] + 1  # and padding, which is number 0

    def mean_and_maximum(x: Array, ids: Array) -> Array:
        counts = jax.ops.segment_sum(jnp.ones_like(x[:, :1]), ids, texts)
        mean = jax.ops.segment_sum(x, ids, texts) / jnp.maximum(counts, 1.0)
        return jnp.concatenate([mean, jnp.where(counts > 0, jax.ops.segment_max(x, ids, texts), 0.0)], axis=-1)[1:]

    over_tokens = jax.vmap(mean_and_maximum)(x.astype(jnp.float32), sequence_ids)
    return jnp.concatenate([cls.astype(jnp.float32), over_tokens], axis=-1)


def mention_features(marked: Array) -> Array:
    """The hidden states m0, mA, mB of a pronoun and two names, [B, P, 3, I] -> m0, mA, mB, m0 * mA, m0 * mB [B, P, 5 I]."""
    m0, ma, mb = (marked[:, :, i].astype(jnp.float32) for i in range(3))
    return jnp.concatenate([m0, ma, mb, m0 * ma, m0 * mb], axis=-1)


class Lstm(nn.Module):
    """A two-layer bidirectional LSTM over the tokens of each text: x [B, L, I] -> float32 [B, L, 2 W].

    It starts anew where sequence_ids int32 [B, L] change, in both directions, so it sees neither its neighbours nor padding. The
    forget gate has a bias of 1 beside its own (Jozefowicz et al. 2015, section 2.2).
    """

    width: int

    @nn.compact
    def __call__(self, x: Array, sequence_ids: Array) -> Array:
        """x [B, L, I], sequence_ids int32 [B, L] -> float32 [B, L, 2 W]."""
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
    """The kernels [2, W, 4 W] from a direction's last output to its gates."""

    width: int

    @nn.compact
    def __call__(self) -> Array:
        """The recurrent kernel of both directions, float32 [2, W, 4 W]."""
        w = self.width
        kernel = self.param("kernel", named(truncated_normal(w**-0.5), None, None, None, None), (2, w, 4, w))
        return kernel.reshape(2, w, 4 * w)


def carried(ids: Array) -> Array:
    """ids [L, B, 1] -> float32 [L, B, 1], 1 where a token is of the same text as the one before it."""
    first = jnp.zeros(ids[:1].shape, bool)
    return jnp.concatenate([first, ids[1:] == ids[:-1]]).astype(jnp.float32)


@jax.custom_vjp
def recurrence(inputs: Array, keep: Array, kernel: Array) -> Array:
    """The outputs h [L, B, W] of an LSTM that meets `inputs` [L, B, 4 W], what the gates i, f, g, o get from outside.

    `keep` [L, B, 1] is 0 where it starts anew; kernel [W, 4 W]. The backward pass sums the kernel's gradient over time in one
    product: XLA's own adds to all of it at every step (2.8 times slower at W = 768 on a CPU).
    """
    return _recurrence_forward(inputs, keep, kernel)[0]


def _recurrence_forward(inputs: Array, keep: Array, kernel: Array) -> tuple[Array, tuple[Array, ...]]:
    def step(carry: tuple[Array, Array], x: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        (h, c), (outside, keep) = carry, x
        gates = outside + jnp.matmul(h * keep, kernel, precision=precision(h.dtype))
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f + 1.0), jnp.tanh(g), jax.nn.sigmoid(o)
        c = f * c * keep + i * g
        h = o * jnp.tanh(c)
        return (h, c), (h, c, jnp.concatenate([i, f, g, o], axis=-1))

    start = jnp.zeros((inputs.shape[1], kernel.shape[0]), inputs.dtype)
    _, (h, c, gates) = jax.lax.scan(step, (start, start), (inputs, keep))
    return h, (h, c, gates, keep, kernel)


def _recurrence_backward(residual: tuple[Array, ...], dh: Array) -> tuple[Array, None, Array]:
    h, c, gates, keep, kernel = residual
    h_before, c_before = (jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]]) * keep for x in (h, c))
    back = kernel.T

    def step(carry: tuple[Array, Array], x: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        (dh_after, dc_after), (dh, c, c_before, gates, keep) = carry, x
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        dh, squashed = dh + dh_after, jnp.tanh(c)
        dc = dc_after + dh * o * (1 - squashed * squashed)
        slopes = [dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g), dh * squashed * o * (1 - o)]
        dgates = jnp.concatenate(slopes, axis=-1)
        return (jnp.matmul(dgates, back, precision=precision(dgates.dtype)) * keep, dc * f * keep), dgates

    end = jnp.zeros_like(h[0])
    _, dinputs = jax.lax.scan(step, (end, end), (dh, c, c_before, gates, keep), reverse=True)
    dkernel = jnp.einsum("LBW,LBG->WG", h_before, dinputs, precision=precision(h.dtype))
    return dinputs, None, dkernel


recurrence.defvjp(_recurrence_forward, _recurrence_backward)
