"""LayerNorm(x + dropout(y)), the residual of a post-norm block, as one kernel for the forward pass and one for the backward
pass. Each kernel makes one pass over memory. For a pre-norm block, the forward kernel also returns the sum."""

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
"""The logical axes of x, y and the result. The width is not sharded."""
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
    """Computes LayerNorm(x + dropout(y)) with a TPU kernel. `plain_residual_norm` computes the same function. The dropout mask
    is the same on any mesh.

    x and y are in bfloat16 or float32. The arithmetic is float32. The sum, the result and the gradients are rounded to the
    dtype of x. The sum and the random dropout word of each row are saved for the backward pass, which computes the dropout mask
    again. Each device of `spread` runs the kernels on its own rows. `interpret` is for tests. It runs the kernels on any
    platform, but slowly.

    Raises ValueError if the width or the dtype is not supported. To choose an implementation first,
    call `dispatch.resolve`.
    """
    return _with_sum(False, x, y, norm, dropout, spread, interpret)[1]


def fused_pre_norm(
    x: Float[Array, "B L D"],
    y: Float[Array, "B L D"] | None,
    norm: NormParameters,
    dropout: Dropout,
    *,
    spread: Spread = on_one_device,
    interpret: bool = False,
) -> tuple[Float[Array, "B L D"], Float[Array, "B L D"]]:
    """Computes (z, LayerNorm(z)) for z = x + dropout(y), with the kernels of `fused_residual_norm`. If y is None, z is x."""
    return _with_sum(True, x, y, norm, dropout, spread, interpret)


def _with_sum(
    returns_sum: bool,
    x: Float[Array, "B L D"],
    y: Float[Array, "B L D"] | None,
    norm: NormParameters,
    dropout: Dropout,
    spread: Spread,
    interpret: bool,
) -> tuple[Float[Array, "B L D"], Float[Array, "B L D"]]:
    """Computes z = x + dropout(y) and LayerNorm(z). If `returns_sum` is False, the gradient of z is ignored."""
    reason = unsupported_width(x.shape[2], x.dtype)
    if reason:
        raise ValueError(reason)
    rate, words = 0.0, jnp.zeros(x.shape[:2], jnp.uint32)
    if dropout.seed is not None and y is not None:
        rate, words = dropout.rate, row_words(dropout.seed, x.shape[:2], dropout.positions, dropout.rows)
    parts = spread({"batch": x.shape[0], "length": x.shape[1]})
    call = _Call(rate, norm.epsilon, interpret, parts, y is not None, returns_sum)
    bias = jnp.zeros(x.shape[2]) if norm.bias is None else norm.bias
    return _residual_norm(call, (words, x, y, norm.scale, bias))


def unsupported_width(width: int, dtype: DTypeLike) -> str | None:
    """Returns the reason, as a clause, if the fused residual norm does not support rows of this width and dtype. Otherwise
    returns None."""
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
    adds: bool
    """Whether the call has a y."""
    returns_sum: bool

    def plan(self, x: Float[Array, "B L D"]) -> NormPlan:
        """Returns the plan of the kernels for the rows of one device."""
        batch, length, width = x.shape
        rows = -(-batch * length // LANES) * LANES
        row_bytes = width * x.dtype.itemsize
        return NormPlan(rows, width, row_bytes, self.rate, self.epsilon, self.interpret, self.adds, self.returns_sum)


Inputs = tuple[UInt32[Array, "B L"], Float[Array, "B L D"], Float[Array, "B L D"] | None, Float[Array, " D"], Float[Array, " D"]]
"""(the random dropout word of each row, x, y or None, scale, bias)."""
Results = tuple[Float[Array, "B L D"], Float[Array, "B L D"]]
"""(x + dropout(y), LayerNorm(x + dropout(y)))."""
Residuals = tuple[UInt32[Array, "B L"], Float[Array, "B L D"], Float[Array, " D"]]
"""The arrays that are saved for the backward pass: (the random words, x + dropout(y), the scale)."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _residual_norm(call: _Call, inputs: Inputs) -> Results:
    return _forward(call, inputs)[0]


def _forward(call: _Call, inputs: Inputs) -> tuple[Results, Residuals]:
    words, x, y, scale, bias = inputs

    def local(words: Array, scale: Array, bias: Array, x: Array, *y: Array) -> tuple[Array, ...]:
        plan = call.plan(x)
        flat_words, flat_x, *flat_y = (_flat(array, plan) for array in (words, x, *y))
        z, out = residual_norm_tpu.forward(plan, flat_words, flat_x, flat_y[0] if y else None, scale, bias)
        return (_like(x, z), _like(x, out)) if y else (_like(x, out),)

    arrays = (x,) if y is None else (x, y)
    on_all = call.parts.on_each_device(local, [AXES[:2], WHOLE, WHOLE, *(AXES for _ in arrays)], [AXES for _ in arrays])
    *z, out = on_all(words, scale, bias, *arrays)
    z = z[0] if z else x
    return (z, out), (words, z, scale)


def _backward(
    call: _Call, residuals: Residuals, gradients: Results
) -> tuple[tuple[Float[Array, " ..."] | None, ...]]:
    def local(words: Array, scale: Array, z: Array, gradient: Array, *of_sum: Array) -> tuple[Array, ...]:
        plan = call.plan(z)
        flat_words, flat_z, flat_gradient = (_flat(array, plan) for array in (words, z, gradient))
        flat_of_sum = _flat(of_sum[0], plan) if of_sum else None
        dx, dy, *sums = residual_norm_tpu.backward(plan, flat_words, flat_z, flat_gradient, scale, flat_of_sum)
        return _like(z, dx), *((_like(z, dy),) if call.adds else ()), *sums

    words, z, scale = residuals
    of_sum, gradient = gradients
    arrays = (z, gradient, of_sum) if call.returns_sum else (z, gradient)
    results = [AXES] * (2 if call.adds else 1)
    on_all = call.parts.on_each_device(
        local, [AXES[:2], WHOLE, *(AXES for _ in arrays)], [*results, WHOLE, WHOLE], sums=2
    )
    dx, *dy, of_scale, of_bias = on_all(words, scale, *arrays)
    return ((None, dx, dy[0] if dy else None, of_scale, of_bias),)


_residual_norm.defvjp(_forward, _backward)


def _flat(x: Shaped[Array, "B L *shape"], plan: NormPlan) -> Shaped[Array, "R *shape"]:
    """Flattens the first two axes of `x` into one axis, and pads it with zeros to the plan's rows."""
    flat = x.reshape(-1, *x.shape[2:])
    return jnp.pad(flat, ((0, plan.rows - len(flat)), *((0, 0),) * (flat.ndim - 1)))


def _like(x: Float[Array, "B L D"], flat: Float[Array, "R D"]) -> Float[Array, "B L D"]:
    """Removes the padding of `flat` and restores the shape of `x`. This is the inverse of `_flat`."""
    return flat[: x.shape[0] * x.shape[1]].reshape(x.shape)
