"""The LSTM recurrence over the tokens of texts, in one or two directions, and the LSTM of task heads.

Arrays are time-major, [L, B, ...]. In the right-to-left direction, arrays are reversed in time. F is the width of a cell, and O
= 4 F is the width of its gates i, f, g, o together. W is the width of the output, which is F or the width of the projection
(Sak et al., arXiv:1402.1128).
"""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from bert_jax.model.attention import INTERMEDIATES
from bert_jax.model.config import Target
from bert_jax.model.layers import Dense, parameter, precision, truncated_normal


class Direction(NamedTuple):
    """The inputs and the weights of one direction."""

    inputs: Float[Array, "L B O"]
    """The products of the inputs and their kernel, plus the bias, float32."""
    keep: Float[Array, "L B 1"]
    """0 if the state is reset before the token, as for the first token of a text, otherwise 1; float32."""
    kernel: Float[Array, "W O"]
    """Maps the previous output to the gates, in the dtype of the products. States and gates are float32."""
    projection: Float[Array, "F W"] | None = None
    """Maps the cell's output to the layer's output. None: the cell's output is the layer's output."""


def time_major(x: Shaped[Array, "B L *shape"], direction: int) -> Shaped[Array, "L B *shape"]:
    """Makes `x` time-major, and reverses time in direction 1 (right to left)."""
    return x.swapaxes(0, 1)[:: 1 - 2 * direction]


def batch_major(x: Shaped[Array, "L B *shape"], direction: int) -> Shaped[Array, "B L *shape"]:
    """The inverse of `time_major`."""
    return x[:: 1 - 2 * direction].swapaxes(0, 1)


def carried(ids: Int[Array, "L B"]) -> Float[Array, "L B 1"]:
    """Returns 1 if a token belongs to the same text as the token before it, otherwise 0; float32."""
    first = jnp.zeros(ids[:1].shape, bool)
    return jnp.concatenate([first, ids[1:] == ids[:-1]]).astype(jnp.float32)[..., None]


@jax.custom_vjp
def recurrence(directions: tuple[Direction, ...]) -> tuple[Float[Array, "L B W"], ...]:
    """Computes the outputs h of an LSTM in each direction, float32. A constant 1 is added to the forget gate (Jozefowicz et al.
    2015, section 2.2).

    A single loop over time computes all directions, so that the directions run in parallel. Separate loops would run one after
    another. The backward pass computes the gradients of the kernels as one product over all time steps. Automatic
    differentiation would update the whole gradient at every step, which is 2.8 times slower at W = 768 on a CPU.
    """
    return _forward(directions)[0]


class _Trace(NamedTuple):
    """The results of one direction that are saved for the backward pass."""

    h: Float[Array, "L B W"]
    """The outputs."""
    m: Float[Array, "L B F"]
    """The outputs of the cell, before the projection."""
    c: Float[Array, "L B F"]
    """The states of the cell."""
    gates: Float[Array, "L B O"]


def product(x: Float[Array, "B I"], kernel: Float[Array, "I _"]) -> Float[Array, "B _"]:
    """Multiplies x by the kernel in the kernel's dtype, accumulating in float32."""
    return jnp.matmul(x.astype(kernel.dtype), kernel, precision=precision(kernel.dtype), preferred_element_type=jnp.float32)


def _activations(x: Float[Array, "B O"]) -> Float[Array, "B O"]:
    """Computes the gates from their inputs `x` in one pass. The activation is tanh for g, and the sigmoid (1 + tanh(x / 2)) / 2
    for i, f and o."""
    slope, forget = (
        np.repeat(np.array(of_gate, np.float32), x.shape[1] // 4)[None] for of_gate in ([0.5, 0.5, 1, 0.5], [0, 1, 0, 0])
    )
    return jnp.tanh((x + forget) * slope) * slope + (1 - slope)


def _gates(gates: Float[Array, "L B O"], t: Int[Array, ""]) -> list[Float[Array, "B F"]]:
    """Returns the gates i, f, g, o of step `t`.

    Each gate is sliced separately. On a CPU, XLA does not vectorise loops over the parts of a joint slice (15 us instead of 3 us
    per gate in the backward pass, at 32 rows of width 256).
    """
    _, rows, width = gates.shape
    return [jax.lax.dynamic_slice(gates, (t, 0, n * (width // 4)), (1, rows, width // 4))[0] for n in range(4)]


def cell(
    inputs: Float[Array, "B O"], memory: Float[Array, "B F"]
) -> tuple[Float[Array, "B F"], Float[Array, "B F"], Float[Array, "B O"]]:
    """Returns (the output of a cell, its new state, the gates) from the inputs of the gates and the previous state."""
    gates = _activations(inputs)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    memory = f * memory + i * g
    return o * jnp.tanh(memory), memory, gates


def _forward(
    directions: tuple[Direction, ...],
) -> tuple[tuple[Float[Array, "L B W"], ...], tuple[tuple[Direction, ...], tuple[_Trace, ...]]]:
    def advance(state: tuple[Array, ...], t: Int[Array, ""], of: Direction) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        (h, c, gates), keep = state, of.keep[t]
        m, c, now = cell(gates[t] + keep * product(h, of.kernel), c * keep)
        h = m if of.projection is None else product(m, of.projection)
        return (h, c, jax.lax.dynamic_update_index_in_dim(gates, now, t, 0)), (h, m, c)

    def step(states: list[tuple[Array, ...]], t: Int[Array, ""]) -> tuple[list[tuple[Array, ...]], list[tuple[Array, ...]]]:
        found = [advance(state, t, of) for state, of in zip(states, directions, strict=True)]
        return [state for state, _ in found], [outputs for _, outputs in found]

    def start(of: Direction) -> tuple[Array, ...]:
        rows, (outputs, gates) = of.inputs.shape[1], of.kernel.shape
        return jnp.zeros((rows, outputs)), jnp.zeros((rows, gates // 4)), of.inputs  # the gates overwrite the inputs

    states, outputs = jax.lax.scan(step, [start(of) for of in directions], jnp.arange(directions[0].inputs.shape[0]))
    traces = tuple(_Trace(h, m, c, gates) for (h, m, c), (_, _, gates) in zip(outputs, states, strict=True))
    return tuple(trace.h for trace in traces), (directions, traces)


def _backward(
    residual: tuple[tuple[Direction, ...], tuple[_Trace, ...]], dh: tuple[Float[Array, "L B W"], ...]
) -> tuple[tuple[Direction, ...]]:
    directions, traces = residual

    # Kernels are transposed once, because a CPU would otherwise transpose them at every step, which takes 1.4 times as long.
    transposed = [
        of._replace(kernel=of.kernel.T, projection=None if of.projection is None else of.projection.T) for of in directions
    ]

    def cell(
        after: tuple[Array, ...], t: Int[Array, ""], of: Direction, trace: _Trace, dh: Float[Array, "L B W"]
    ) -> tuple[tuple[Array, ...], tuple[Array, Array]]:
        (dh_after, dc_after, c), keep = after, of.keep[t]
        i, f, g, o = _gates(trace.gates, t)
        c_before = trace.c[jnp.maximum(t - 1, 0)]  # the value does not matter at t = 0, where keep is 0
        dh_now, tanh_c = dh[t] + dh_after, jnp.tanh(c)
        dm = dh_now if of.projection is None else product(dh_now, of.projection)
        dc = dc_after + dm * o * (1 - tanh_c * tanh_c)
        di, df, dg, do = dc * g * i * (1 - i), dc * c_before * keep * f * (1 - f), dc * i * (1 - g * g), dm * tanh_c * o * (1 - o)
        dgates = jnp.concatenate([di, df, dg, do], axis=-1)
        return (product(dgates, of.kernel) * keep, dc * f * keep, c_before), (dgates, dh_now)

    def step(after: list[tuple[Array, ...]], t: Int[Array, ""]) -> tuple[list[tuple[Array, ...]], list[tuple[Array, Array]]]:
        found = [cell(state, t, *rest) for state, rest in zip(after, zip(transposed, traces, dh, strict=True), strict=True)]
        return [state for state, _ in found], [gradients for _, gradients in found]

    end: list[tuple[Array, ...]] = [(jnp.zeros_like(trace.h[0]), jnp.zeros_like(trace.c[0]), trace.c[-1]) for trace in traces]
    _, found = jax.lax.scan(step, end, jnp.arange(dh[0].shape[0]), reverse=True)
    return (tuple(_gradients(*args) for args in zip(directions, traces, found, strict=True)),)


def _gradients(of: Direction, trace: _Trace, found: tuple[Float[Array, "L B O"], Float[Array, "L B W"]]) -> Direction:
    """Computes the gradients of one direction from the gradients of its gates and outputs at every time step."""
    dgates, dh = found

    def over_time(x: Float[Array, "L B I"], y: Float[Array, "L B _"], like: Float[Array, "I _"]) -> Float[Array, "I _"]:
        x, y = (a.reshape(-1, a.shape[-1]).astype(like.dtype) for a in (x, y))
        product = jnp.matmul(x.T, y, precision=precision(like.dtype), preferred_element_type=jnp.float32)
        return product.astype(like.dtype)

    dprojection = None if of.projection is None else over_time(trace.m, dh, of.projection)
    return Direction(dgates, jnp.zeros_like(of.keep), over_time(before(trace.h) * of.keep, dgates, of.kernel), dprojection)


def before(x: Float[Array, "L B I"]) -> Float[Array, "L B I"]:
    """Shifts `x` by one time step. The first step becomes 0."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])


recurrence.defvjp(_forward, _backward)


class Lstm(nn.Module):
    """A two-layer bidirectional LSTM over the tokens of each text, float32.

    In both directions, the state is reset where `sequence_ids` change. Texts therefore do not depend on each other or on
    padding."""

    width: int
    target: Target

    @nn.compact
    def __call__(self, x: Float[Array, "B L I"], sequence_ids: Int[Array, "B L"]) -> Float[Array, "B L O"]:
        """Returns the concatenated outputs of both directions for each token, O = 2 W. The outputs of both layers are stored in
        INTERMEDIATES if it is mutable."""
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
            self.sow(INTERMEDIATES, name, x)
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
