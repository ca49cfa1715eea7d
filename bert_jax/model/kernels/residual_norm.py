"""The residual of a post-LayerNorm block in one kernel, one pass over memory each way: LayerNorm(x + dropout(y))."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Shaped, UInt32

from bert_jax.model.kernels import residual_norm_tpu
from bert_jax.model.kernels.dispatch import unsupported_width
from bert_jax.model.kernels.residual_norm_tpu import LANES, NormPlan
from bert_jax.model.layers import Dropout, NormParameters, row_words
from bert_jax.sharding.rules import automatic_axes, axes_of, drop_indivisible_axes

AXES = ("batch", "length", None)
"""The logical axes of x, y and the result: their width stays whole."""


def fused_residual_norm(
    x: Float[Array, "B L D"],
    y: Float[Array, "B L D"],
    norm: NormParameters,
    dropout: Dropout,
    *,
    interpret: bool = False,
) -> Float[Array, "B L D"]:
    """LayerNorm(x + dropout(y)) by a TPU kernel: the result of `plain_residual_norm`, with the same dropout mask on any mesh.

    x and y are in bfloat16 or float32. All arithmetic is in float32; the sum and the result are rounded to the dtype of x, and so
    are the gradients. The sum is kept for the backward pass, which draws the random words of dropout again. Under a mesh each
    device runs the kernels on its own rows. `interpret` runs them on any platform, slowly, for tests.

    Raises ValueError for a width or dtype without a kernel; `dispatch.choose_residual_norm` chooses the implementation.
    """
    reason = unsupported_width(x.shape[2], x.dtype)
    if reason:
        raise ValueError(reason)
    rate, words = 0.0, jnp.zeros(x.shape[:2], jnp.uint32)
    if dropout.seed is not None:
        rate, words = dropout.rate, row_words(dropout.seed, x.shape[:2], dropout.positions, dropout.rows)
    spec = drop_indivisible_axes(nn.logical_to_mesh_axes(AXES) or PartitionSpec(None, None, None), x.shape)
    call = _Call(rate, norm.epsilon, interpret, spec[0], frozenset(automatic_axes()))
    return _residual_norm(call, (words, x, y, norm.scale, norm.bias))


@dataclasses.dataclass(frozen=True)
class _Call:
    """The settings of one call, the same in its forward and its backward pass."""

    rate: float
    epsilon: float
    interpret: bool
    rows: tuple[str, ...] | None
    """The mesh axes over which rows are split, an entry of a PartitionSpec."""
    split: frozenset[str]
    """The mesh axes that are not manual yet; none on a single device."""

    def plan(self, x: Float[Array, "B L D"]) -> NormPlan:
        """The plan of the kernels for the rows of one device."""
        batch, length, width = x.shape
        rows = -(-batch * length // LANES) * LANES
        return NormPlan(rows, width, width * x.dtype.itemsize, self.rate, self.epsilon, self.interpret)

    def on_each_device(self, function: Callable, arrays: int, vectors: int, results: int, sums: int) -> Callable:
        """`function` on the rows of every device.

        It takes as many arrays [B, L, ...] and vectors [D] as the numbers `arrays` and `vectors` say, and returns `results`
        arrays and `sums` vectors.
        """
        if not self.split:
            return function
        wide, whole = PartitionSpec(self.rows), PartitionSpec()
        return jax.shard_map(
            function,
            in_specs=(wide,) * arrays + (whole,) * vectors,
            out_specs=(wide,) * results + (whole,) * sums,
            axis_names=set(self.split),
            check_vma=False,
        )


Inputs = tuple[UInt32[Array, "B L"], Float[Array, "B L D"], Float[Array, "B L D"], Float[Array, " D"], Float[Array, " D"]]
"""The random word of each row for dropout, x, y, scale and bias."""
Residuals = tuple[UInt32[Array, "B L"], Float[Array, "B L D"], Float[Array, " D"]]
"""The arrays that the backward pass reads: the random words, x + dropout(y), and the scale."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _residual_norm(call: _Call, inputs: Inputs) -> Float[Array, "B L D"]:
    return _forward(call, inputs)[0]


def _forward(call: _Call, inputs: Inputs) -> tuple[Float[Array, "B L D"], Residuals]:
    def local(words: Array, x: Array, y: Array, scale: Array, bias: Array) -> tuple[Array, Array]:
        plan = call.plan(x)
        z, out = residual_norm_tpu.forward(plan, _flat(words, plan), _flat(x, plan), _flat(y, plan), scale, bias)
        return _like(x, z), _like(x, out)

    z, out = call.on_each_device(local, 3, 2, 2, 0)(*inputs)
    words, *_, scale, _ = inputs
    return out, (words, z, scale)


def _backward(
    call: _Call, residuals: Residuals, gradient: Float[Array, "B L D"]
) -> tuple[tuple[Float[Array, " ..."] | None, ...]]:
    def local(words: Array, z: Array, gradient: Array, scale: Array) -> tuple[Array, ...]:
        plan = call.plan(z)
        flat_words, flat_z, flat_gradient = (_flat(array, plan) for array in (words, z, gradient))
        dx, dy, *sums = residual_norm_tpu.backward(plan, flat_words, flat_z, flat_gradient, scale)
        if call.split and call.rows:
            sums = jax.lax.psum(sums, axes_of(call.rows))
        return _like(z, dx), _like(z, dy), *sums

    words, z, scale = residuals
    return ((None, *call.on_each_device(local, 3, 1, 2, 2)(words, z, gradient, scale)),)


_residual_norm.defvjp(_forward, _backward)


def _flat(x: Shaped[Array, "B L *shape"], plan: NormPlan) -> Shaped[Array, "R *shape"]:
    """`x` with the tokens of all rows along one axis, padded with zeros to the rows of the plan."""
    flat = x.reshape(-1, *x.shape[2:])
    return jnp.pad(flat, ((0, plan.rows - len(flat)), *((0, 0),) * (flat.ndim - 1)))


def _like(x: Float[Array, "B L D"], flat: Float[Array, "R D"]) -> Float[Array, "B L D"]:
    """The inverse of `_flat`, in the shape of `x`."""
    return flat[: x.shape[0] * x.shape[1]].reshape(x.shape)
