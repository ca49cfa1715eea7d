"""The recurrence of long short-term memory (LSTM) over the tokens of texts, in one or two directions.

The arrays are time-major, [L, B, ...], and those of the direction from right to left are reversed in time. O = 4 F are the gates
i, f, g, o of a cell of width F; W is the width of the output: F, or that of the projection (Sak et al., arXiv:1402.1128).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from bert_jax.model.products import precision


class Direction(NamedTuple):
    """The inputs and the weights of one direction."""

    inputs: Float[Array, "L B O"]
    """The products of the inputs with their kernel, plus the bias; float32."""
    keep: Float[Array, "L B 1"]
    """0 where the state is reset, else 1; float32."""
    kernel: Float[Array, "W O"]
    """From the previous output to the gates. Its dtype is that of the products; states and gates are float32."""
    projection: Float[Array, "F W"] | None = None
    """From the output of the cell to that of the layer; None where both are the same."""


def time_major(x: Shaped[Array, "B L *shape"], direction: int) -> Shaped[Array, "L B *shape"]:
    """`x` time-major, and reversed in time in direction 1, which reads from right to left."""
    return x.swapaxes(0, 1)[:: 1 - 2 * direction]


def batch_major(x: Shaped[Array, "L B *shape"], direction: int) -> Shaped[Array, "B L *shape"]:
    """The inverse of `time_major`."""
    return x[:: 1 - 2 * direction].swapaxes(0, 1)


def carried(ids: Int[Array, "L B"]) -> Float[Array, "L B 1"]:
    """1 where a token belongs to the same text as the token before it, else 0; float32."""
    first = jnp.zeros(ids[:1].shape, bool)
    return jnp.concatenate([first, ids[1:] == ids[:-1]]).astype(jnp.float32)[..., None]


@jax.custom_vjp
def recurrence(directions: tuple[Direction, ...]) -> tuple[Float[Array, "L B W"], ...]:
    """The outputs h of an LSTM in each direction, float32. A constant 1 is added to the forget gate (Jozefowicz et al. 2015,
    section 2.2).

    One loop over time computes all directions, which do not wait for each other; of two loops in a row the second waits for the
    first. The backward pass computes the gradients of the kernels as one product over all time steps. Automatic differentiation
    adds to the whole gradient at every step (2.8 times slower at W = 768 on a CPU).
    """
    return _forward(directions)[0]


class _Trace(NamedTuple):
    """The results of a direction that the backward pass reads."""

    h: Float[Array, "L B W"]
    """The outputs."""
    m: Float[Array, "L B F"]
    """The outputs of the cell, before the projection."""
    c: Float[Array, "L B F"]
    """The states of the cell."""
    gates: Float[Array, "L B O"]


def _product(x: Float[Array, "B I"], kernel: Float[Array, "I _"]) -> Float[Array, "B _"]:
    """x times kernel in the dtype of the kernel, accumulated in float32."""
    return jnp.matmul(x.astype(kernel.dtype), kernel, precision=precision(kernel.dtype), preferred_element_type=jnp.float32)


def _forward(
    directions: tuple[Direction, ...],
) -> tuple[tuple[Float[Array, "L B W"], ...], tuple[tuple[Direction, ...], tuple[_Trace, ...]]]:
    def cell(state: tuple[Array, Array], inputs: Array, keep: Array, of: Direction) -> _Trace:
        h, c = state
        gates = inputs + _product(h * keep, of.kernel)
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f + 1.0), jnp.tanh(g), jax.nn.sigmoid(o)
        c = f * c * keep + i * g
        m = o * jnp.tanh(c)
        return _Trace(m if of.projection is None else _product(m, of.projection), m, c, jnp.concatenate([i, f, g, o], axis=-1))

    def step(states: list[tuple[Array, Array]], xs: list[tuple[Array, Array]]) -> tuple[list[tuple[Array, Array]], list[_Trace]]:
        found = [cell(state, *x, of) for state, x, of in zip(states, xs, directions, strict=True)]
        return [(trace.h, trace.c) for trace in found], found

    def start(of: Direction) -> tuple[Array, Array]:
        rows, (outputs, gates) = of.inputs.shape[1], of.kernel.shape
        return jnp.zeros((rows, outputs)), jnp.zeros((rows, gates // 4))

    xs = [(of.inputs, of.keep) for of in directions]
    traces = tuple(jax.lax.scan(step, [start(of) for of in directions], xs)[1])
    return tuple(trace.h for trace in traces), (directions, traces)


def _backward(
    residual: tuple[tuple[Direction, ...], tuple[_Trace, ...]], dh: tuple[Float[Array, "L B W"], ...]
) -> tuple[tuple[Direction, ...]]:
    directions, traces = residual

    def cell(after: tuple[Array, Array], x: tuple[Array, ...], of: Direction) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        (dh_after, dc_after), (dh, c, c_before, gates, keep) = after, x
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        dh, tanh_c = dh + dh_after, jnp.tanh(c)
        dm = dh if of.projection is None else _product(dh, of.projection.T)
        dc = dc_after + dm * o * (1 - tanh_c * tanh_c)
        di, df, dg, do = dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g), dm * tanh_c * o * (1 - o)
        dgates = jnp.concatenate([di, df, dg, do], axis=-1)
        return (_product(dgates, of.kernel.T) * keep, dc * f * keep), (dgates, dh)

    def step(
        after: list[tuple[Array, Array]], xs: list[tuple[Array, ...]]
    ) -> tuple[list[tuple[Array, Array]], list[tuple[Array, Array]]]:
        found = [cell(state, x, of) for state, x, of in zip(after, xs, directions, strict=True)]
        return [state for state, _ in found], [gradients for _, gradients in found]

    xs: list[tuple[Array, ...]] = [
        (grad, trace.c, before(trace.c) * of.keep, trace.gates, of.keep)
        for of, trace, grad in zip(directions, traces, dh, strict=True)
    ]
    end = [(jnp.zeros_like(trace.h[0]), jnp.zeros_like(trace.c[0])) for trace in traces]
    _, found = jax.lax.scan(step, end, xs, reverse=True)
    return (tuple(_gradients(*args) for args in zip(directions, traces, found, strict=True)),)


def _gradients(of: Direction, trace: _Trace, found: tuple[Float[Array, "L B O"], Float[Array, "L B W"]]) -> Direction:
    """The gradients of one direction, from those of its gates and outputs at every time step."""
    dgates, dh = found

    def over_time(x: Float[Array, "L B I"], y: Float[Array, "L B _"], like: Float[Array, "I _"]) -> Float[Array, "I _"]:
        x, y = (a.reshape(-1, a.shape[-1]).astype(like.dtype) for a in (x, y))
        product = jnp.matmul(x.T, y, precision=precision(like.dtype), preferred_element_type=jnp.float32)
        return product.astype(like.dtype)

    dprojection = None if of.projection is None else over_time(trace.m, dh, of.projection)
    return Direction(dgates, jnp.zeros_like(of.keep), over_time(before(trace.h) * of.keep, dgates, of.kernel), dprojection)


def before(x: Float[Array, "L B I"]) -> Float[Array, "L B I"]:
    """`x` one time step earlier; 0 at the first."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])


recurrence.defvjp(_forward, _backward)
