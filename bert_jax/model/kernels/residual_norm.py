"""LayerNorm(x + dropout(y)), the residual of a post-norm block, in one kernel with one pass over memory in each direction."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped, UInt32

from bert_jax.model.kernels import DTYPES, Parts, Spread, on_one_device, residual_norm_tpu
from bert_jax.model.kernels.residual_norm_tpu import LANES, WIDEST, NormPlan
from bert_jax.model.layers import Dropout, NormParameters, row_words

AXES = ("batch", "length", None)
"""The logical axes of x, y and the result: their width stays whole."""
WHOLE = (None,)


def fused_residual_norm(
    x: Float[Array, "B L D"],
    y: Float[Array, "B L D"],
    norm: NormParameters,
    dropout: Dropout,
    *,
    spread: Spread = on_one_device,
    interpret: bool = False,
) -> Float[Array, "B L D"]:
    """Computes LayerNorm(x + dropout(y)) with a TPU kernel, like `plain_residual_norm`, with the same dropout mask on any mesh.

    x and y are in bfloat16 or float32. The arithmetic is float32; the sum, the result and the gradients are rounded to the dtype
    of x. The sum is saved for the backward pass, which draws the random words of dropout again. Each device of `spread` runs the
    kernels on its own rows. `interpret` runs them on any platform, slowly, for tests.

    Raises ValueError for an unsupported width or dtype; `dispatch.choose_residual_norm` selects the implementation.
    """
    reason = unsupported_width(x.shape[2], x.dtype)
    if reason:
        raise ValueError(reason)
    rate, words = 0.0, jnp.zeros(x.shape[:2], jnp.uint32)
    if dropout.seed is not None:
        rate, words = dropout.rate, row_words(dropout.seed, x.shape[:2], dropout.positions, dropout.rows)
    call = _Call(rate, norm.epsilon, interpret, spread({"batch": x.shape[0], "length": x.shape[1]}))
    return _residual_norm(call, (words, x, y, norm.scale, norm.bias))


def unsupported_width(width: int, dtype: DTypeLike) -> str | None:
    """Returns why the fused residual norm does not support rows of that width and dtype, as a clause, or None if it does."""
    if jnp.dtype(dtype).name not in DTYPES:
        return f"the fused residual norm supports bfloat16 and float32, not {jnp.dtype(dtype).name}"
    if width % LANES or width > WIDEST:
        return f"the fused residual norm needs a width that is a multiple of {LANES} up to {WIDEST:,}, not {width:,}"
    return None


@dataclasses.dataclass(frozen=True)
class _Call:
    """The settings of one call, shared by the forward and backward pass."""

    rate: float
    epsilon: float
    interpret: bool
    parts: Parts

    def plan(self, x: Float[Array, "B L D"]) -> NormPlan:
        """Returns the plan of the kernels for the rows of one device."""
        batch, length, width = x.shape
        rows = -(-batch * length // LANES) * LANES
        return NormPlan(rows, width, width * x.dtype.itemsize, self.rate, self.epsilon, self.interpret)


Inputs = tuple[UInt32[Array, "B L"], Float[Array, "B L D"], Float[Array, "B L D"], Float[Array, " D"], Float[Array, " D"]]
"""The random word of each row for dropout, x, y, scale and bias."""
Residuals = tuple[UInt32[Array, "B L"], Float[Array, "B L D"], Float[Array, " D"]]
"""The arrays saved for the backward pass: the random words, x + dropout(y), and the scale."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _residual_norm(call: _Call, inputs: Inputs) -> Float[Array, "B L D"]:
    return _forward(call, inputs)[0]


def _forward(call: _Call, inputs: Inputs) -> tuple[Float[Array, "B L D"], Residuals]:
    def local(words: Array, x: Array, y: Array, scale: Array, bias: Array) -> tuple[Array, Array]:
        plan = call.plan(x)
        z, out = residual_norm_tpu.forward(plan, _flat(words, plan), _flat(x, plan), _flat(y, plan), scale, bias)
        return _like(x, z), _like(x, out)

    z, out = call.parts.on_each_device(local, [AXES[:2], AXES, AXES, WHOLE, WHOLE], [AXES, AXES])(*inputs)
    words, *_, scale, _ = inputs
    return out, (words, z, scale)


def _backward(
    call: _Call, residuals: Residuals, gradient: Float[Array, "B L D"]
) -> tuple[tuple[Float[Array, " ..."] | None, ...]]:
    def local(words: Array, z: Array, gradient: Array, scale: Array) -> tuple[Array, ...]:
        plan = call.plan(z)
        flat_words, flat_z, flat_gradient = (_flat(array, plan) for array in (words, z, gradient))
        dx, dy, *sums = residual_norm_tpu.backward(plan, flat_words, flat_z, flat_gradient, scale)
        return _like(z, dx), _like(z, dy), *sums

    words, z, scale = residuals
    found = call.parts.on_each_device(local, [AXES[:2], AXES, AXES, WHOLE], [AXES, AXES, WHOLE, WHOLE], sums=2)
    return ((None, *found(words, z, gradient, scale)),)


_residual_norm.defvjp(_forward, _backward)


def _flat(x: Shaped[Array, "B L *shape"], plan: NormPlan) -> Shaped[Array, "R *shape"]:
    """Flattens the tokens of all rows of `x` into one axis, padded with zeros to the plan's rows."""
    flat = x.reshape(-1, *x.shape[2:])
    return jnp.pad(flat, ((0, plan.rows - len(flat)), *((0, 0),) * (flat.ndim - 1)))


def _like(x: Float[Array, "B L D"], flat: Float[Array, "R D"]) -> Float[Array, "B L D"]:
    """Inverts `_flat`, to the shape of `x`."""
    return flat[: x.shape[0] * x.shape[1]].reshape(x.shape)
