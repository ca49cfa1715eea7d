"""Matrix products and their gradients: summed in float32 whatever they multiply, and each in the form its platform runs fastest.

In float32 a product is asked for at full precision, since a TPU or GPU would otherwise quietly round its inputs.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num


def precision(dtype: jnp.dtype) -> jax.lax.Precision | None:
    """The precision to ask of a matrix product whose inputs are `dtype`."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def platform() -> str:
    """The kind of device a program is traced for: that of the ambient mesh (`jax.set_mesh`), else of this machine."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def on_one_cpu() -> bool:
    """Whether a program is traced for a single device, and that is a CPU."""
    return platform() == "cpu" and jax.sharding.get_abstract_mesh().size <= 1


def multiply(
    a: Float[Array, "*shape _ _"], b: Float[Array, "*shape _ _"], axes: tuple[int, int], out_dtype: DTypeLike | None = None
) -> Float[Array, "*shape _ _"]:
    """The products of `a` and `b` summed over axis `axes[0]` (-1 or -2) of `a` and `axes[1]` of `b`: a matrix product where the
    axes are (-1, -2).

    The leading axes are the same; the result is in `out_dtype`, or in that of `a`. A CPU multiplies bfloat16 several times
    faster than float32 where it has the instructions (AMX: 1,000 GFLOP/s and more on two cores, where float32 reaches 280), but
    XLA calls on them only for float32 results, and only if all lies in memory row by row as it is multiplied; any other product
    of bfloat16 is one of float32 with conversions around it. Over several devices it is left at that: XLA gathers an array from
    all of them before it looks how it lies.
    """
    out_dtype = a.dtype if out_dtype is None else out_dtype
    if a.dtype == jnp.bfloat16 and on_one_cpu():
        a, axes = (a, axes) if axes[0] == -1 else (a.swapaxes(-1, -2), (-1, axes[1]))
        return in_rows(_dot(in_rows(a), in_rows(b), axes, jnp.float32)).astype(out_dtype)
    return _dot(a, b, axes, out_dtype)


def _dot(
    a: Float[Array, "*shape _ _"], b: Float[Array, "*shape _ _"], axes: tuple[int, int], out_dtype: DTypeLike
) -> Float[Array, "*shape _ _"]:
    batch = tuple(range(a.ndim - 2))
    contracted = ((a.ndim + axes[0],), (b.ndim + axes[1],))
    return jax.lax.dot_general(a, b, (contracted, (batch, batch)), precision=precision(a.dtype), preferred_element_type=out_dtype)


def in_rows(x: Num[Array, "*shape"]) -> Num[Array, "*shape"]:
    """`x` with its last axis contiguous in memory, whatever it was made of and goes into."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def batched(
    a: Float[Array, "*shape _ _"], b: Float[Array, "*shape _ _"], axes: tuple[int, int]
) -> Float[Array, "*shape _ _"]:
    """`multiply`, whose gradients are such products too; axes[0] is -1."""
    return multiply(a, b, axes)


def _batched_backward(
    axes: tuple[int, int], operands: tuple[Float[Array, " ..."], Float[Array, " ..."]], g: Float[Array, " ..."]
) -> tuple[Float[Array, " ..."], Float[Array, " ..."]]:
    a, b = operands
    if axes[1] == -1:
        return multiply(g, b, (-1, -2)), multiply(g, a, (-2, -2))
    return multiply(g, b, (-1, -1)), multiply(a, g, (-2, -2))


batched.defvjp(lambda a, b, axes: (batched(a, b, axes), (a, b)), _batched_backward)


@jax.custom_vjp
def affine(x: Float[Array, "R I"], kernel: Float[Array, "I O"], bias: Float[Array, " O"]) -> Float[Array, "R O"]:
    """x @ kernel + bias, with a backward pass that is kind to a CPU.

    XLA's own derivative makes two slow programs there. It transposes whichever operand of the kernel's gradient comes first, so
    here the narrower one is put first (a 16 MB copy less per feed-forward layer at 4,096 rows and width 256); and it sums the
    bias gradient column by column, so here that is a product with a row of ones (45 ms less for the 30,522 columns of the MLM
    head).
    """
    return multiply(x, kernel, (-1, -2)) + bias[None]


def _affine_backward(
    operands: tuple[Float[Array, "R I"], Float[Array, "I O"]], g: Float[Array, "R O"]
) -> tuple[Float[Array, "R I"], Float[Array, "I O"], Float[Array, " O"]]:
    x, kernel = operands
    return multiply(g, kernel, (-1, -1)), over_rows(x, g), sum_rows(g)


affine.defvjp(lambda x, kernel, bias: (affine(x, kernel, bias), (x, kernel)), _affine_backward)


def over_rows(a: Float[Array, "R I"], b: Float[Array, "R O"]) -> Float[Array, "I O"]:
    """The sum over rows of the outer products of `a` and `b`; the narrower one is the operand transposed."""
    if a.shape[1] <= b.shape[1]:
        return multiply(a, b, (-2, -2))
    return multiply(b, a, (-2, -2)).T


def sum_rows(x: Float[Array, "R O"]) -> Float[Array, " O"]:
    """The sum over rows, accumulated in float32: a product with rows of ones where that is the fastest sum. A TPU wants eight of
    them: of one it makes a sum again, which takes a pass over x (0.17 ms for [8192, 1024] on a v5e, where the product is hidden
    behind others)."""

    def product(rows: int, x: Float[Array, "R O"]) -> Float[Array, " O"]:
        return multiply(jnp.ones((rows, x.shape[0]), x.dtype), x, (-1, -2))[0]

    cpu, tpu = (functools.partial(product, rows) for rows in (1, 8))
    return jax.lax.platform_dependent(x, cpu=cpu, tpu=tpu, default=lambda x: x.sum(0))
