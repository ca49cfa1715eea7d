"""Matrix products and their gradients. They are accumulated in float32 and computed in the form that is fastest on each
platform.

float32 products use the highest precision, since TPUs and GPUs round float32 inputs by default.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num


def precision(dtype: jnp.dtype) -> jax.lax.Precision | None:
    """Returns the `precision` argument for a matrix product of `dtype` inputs."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def matmul(
    a: Float[Array, "*shape _ _"],
    b: Float[Array, "*shape _ _"],
    axes: tuple[int, int],
    one_cpu: bool,
    out_dtype: DTypeLike | None = None,
) -> Float[Array, "*shape _ _"]:
    """Contracts axis `axes[0]` (-1 or -2) of `a` with axis `axes[1]` of `b`. (-1, -2) is an ordinary matrix product.

    Leading axes are batch axes of equal size. The result has `out_dtype`, by default the dtype of `a`.

    XLA's fast CPU products require row-major operands. With `one_cpu` (`config.Target.one_cpu`), this function makes the
    operands row-major in two cases. The first case is bfloat16. CPUs with AMX multiply row-major bfloat16 operands several
    times faster than float32 operands (at least 1,000 GFLOP/s on two cores, compared with 280). If the operands have other
    layouts, XLA converts the product to float32. The second case is a transposed `a`, as in the gradient of a kernel. XLA would
    compute this product with Eigen, which reads whole columns. This is slow if the width of the array is a power of two,
    because the elements of a column then share few cache sets. The gradient of a table of 8,192 words from 4,096 rows of width
    256 takes 42 ms instead of 220 ms on two cores of an AMD EPYC. For a table of 30,522 words, there is no difference. With
    several CPU devices, this function leaves the layouts to XLA, because XLA would gather an array from all devices to fix its
    layout."""
    out_dtype = a.dtype if out_dtype is None else out_dtype
    if (a.dtype == jnp.bfloat16 or axes[0] == -2) and one_cpu:
        a, axes = (a, axes) if axes[0] == -1 else (a.swapaxes(-1, -2), (-1, axes[1]))
        return in_rows(dot(in_rows(a), in_rows(b), axes)).astype(out_dtype)
    return dot(a, b, axes, out_dtype)


def dot(
    a: Float[Array, "*shape _ _"], b: Float[Array, "*shape _ _"], axes: tuple[int, int], out_dtype: DTypeLike = jnp.float32
) -> Float[Array, "*shape _ _"]:
    """Computes the product of `matmul` in a form that XLA and Pallas accept on any platform."""
    batch = tuple(range(a.ndim - 2))
    contracted = ((a.ndim + axes[0],), (b.ndim + axes[1],))
    return jax.lax.dot_general(a, b, (contracted, (batch, batch)), precision=precision(a.dtype), preferred_element_type=out_dtype)


@jax.jit
def in_rows(x: Num[Array, "*shape"]) -> Num[Array, "*shape"]:
    """Constrains `x` to a row-major layout.

    If a program returns the array of `with_layout_constraint` directly, jax 0.10 lets XLA choose the layouts of all results of
    the program. If such a result is not row-major, the next program misreads it as its transpose. This function is therefore
    wrapped in its own `jit`, which costs nothing once compiled."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def batched_matmul(
    a: Float[Array, "*shape _ _"], b: Float[Array, "*shape _ _"], axes: tuple[int, int], one_cpu: bool
) -> Float[Array, "*shape _ _"]:
    """Computes `matmul` with gradients that also use `matmul`. axes[0] must be -1."""
    return matmul(a, b, axes, one_cpu)


def _batched_backward(
    axes: tuple[int, int], one_cpu: bool, operands: tuple[Float[Array, " ..."], Float[Array, " ..."]], g: Float[Array, " ..."]
) -> tuple[Float[Array, " ..."], Float[Array, " ..."]]:
    a, b = operands
    if axes[1] == -1:
        return matmul(g, b, (-1, -2), one_cpu), matmul(g, a, (-2, -2), one_cpu)
    return matmul(g, b, (-1, -1), one_cpu), matmul(a, g, (-2, -2), one_cpu)


batched_matmul.defvjp(lambda a, b, axes, one_cpu: (batched_matmul(a, b, axes, one_cpu), (a, b)), _batched_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def dense(
    x: Float[Array, "R I"], kernel: Float[Array, "I O"], bias: Float[Array, " O"], one_cpu: bool
) -> Float[Array, "R O"]:
    """Computes x @ kernel + bias, with a backward pass that is fast on a CPU.

    Automatic differentiation is slow on a CPU for two reasons. XLA transposes the first operand of the kernel's gradient, so this
    function puts the narrower operand first (which saves a copy of 16 MB per feed-forward layer at 4,096 rows and width 256). XLA
    sums the bias gradient column by column, so this function multiplies by a row of ones (which saves 45 ms for the 30,522
    columns of the MLM head).
    """
    return matmul(x, kernel, (-1, -2), one_cpu) + bias[None]


def _dense_backward(
    one_cpu: bool, operands: tuple[Float[Array, "R I"], Float[Array, "I O"]], g: Float[Array, "R O"]
) -> tuple[Float[Array, "R I"], Float[Array, "I O"], Float[Array, " O"]]:
    x, kernel = operands
    return matmul(g, kernel, (-1, -1), one_cpu), transposed_matmul(x, g, one_cpu), sum_rows(g, one_cpu)


dense.defvjp(lambda x, kernel, bias, one_cpu: (dense(x, kernel, bias, one_cpu), (x, kernel)), _dense_backward)


def transposed_matmul(a: Float[Array, "R I"], b: Float[Array, "R O"], one_cpu: bool) -> Float[Array, "I O"]:
    """Computes a.T @ b, transposing the narrower operand."""
    if a.shape[1] <= b.shape[1]:
        return matmul(a, b, (-2, -2), one_cpu)
    return matmul(b, a, (-2, -2), one_cpu).T


def sum_rows(x: Float[Array, "R O"], one_cpu: bool) -> Float[Array, " O"]:
    """Sums over rows in float32. On CPUs and TPUs this is a product with rows of ones, which is faster than a reduction.

    On a TPU there are eight rows of ones, because XLA turns a product with one row into a reduction. A reduction takes a pass
    over x (0.17 ms for [8192, 1024] on a v5e), while a product overlaps with other operations.
    """

    def product(rows: int, x: Float[Array, "R O"]) -> Float[Array, " O"]:
        return matmul(jnp.ones((rows, x.shape[0]), x.dtype), x, (-1, -2), one_cpu)[0]

    cpu, tpu = (functools.partial(product, rows) for rows in (1, 8))
    return jax.lax.platform_dependent(x, cpu=cpu, tpu=tpu, default=lambda x: x.sum(0))
