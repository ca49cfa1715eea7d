"""The TPU kernels of `fused_residual_norm` and `fused_pre_norm`. Each kernel reads its arrays once and writes its results once.

A grid step computes a block of rows in pieces of 16 rows, which stay in the vector registers from load to store. Dropout uses
the random words of `layers.random_words`. The caller passes a word for every row, and the kernel hashes this word with the
index of each column. The random words arrive along the lanes, [1, block]. The kernel transposes the words to the sublanes and
repeats each word in every lane.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike
from jaxtyping import Array, Float, UInt32

from bert_jax.model.layers import COLUMN, hash_word

Ref = Any
"""A reference to an array on the chip that Pallas passes to a kernel."""
Rows = Any
"""A range of rows, `pl.ds(start, size)`."""

LANES = 128
PIECE = 16
"""The number of rows in a piece, which is the height of a bfloat16 tile."""
UNROLL = 4
"""The number of pieces whose instructions the compiler may interleave. While one piece waits for the sums along its rows,
another piece can be computed."""
BYTES_PER_STEP = 8 << 20
"""The maximum bytes of the four arrays in a grid step. Each array counts twice, because one copy is used while the next is
transferred."""
WIDEST = 1024
"""The largest width at which a piece fits in the registers. Pieces of width 2,048 spill, so that an element takes four times as
many cycles on v4."""


@dataclasses.dataclass(frozen=True)
class NormPlan:
    """The blocks of one call on one device."""

    rows: int
    """A multiple of 128."""
    width: int
    """A multiple of 128."""
    row_bytes: int
    rate: float
    """The dropout rate. 0: no dropout."""
    epsilon: float
    interpret: bool
    adds: bool = True
    """Whether a y is added to x."""
    returns_sum: bool = False
    """Whether the sum is a result too (pre-norm). If so, the backward pass receives the gradient of the sum."""

    @property
    def block(self) -> int:
        """The number of rows in a grid step. It is the largest multiple of 128 that divides `rows` and fits in
        `BYTES_PER_STEP`, but at least 128."""
        tiles, most = self.rows // LANES, BYTES_PER_STEP // (8 * LANES * self.row_bytes)
        return LANES * max(n for n in range(1, tiles + 1) if tiles % n == 0 and n <= max(1, most))


def forward(
    plan: NormPlan,
    words: UInt32[Array, " R"],
    x: Float[Array, "R D"],
    y: Float[Array, "R D"] | None,
    scale: Float[Array, " D"],
    bias: Float[Array, " D"],
) -> tuple[Float[Array, "R D"], Float[Array, "R D"]]:
    """Computes z = x + dropout(y) and LayerNorm(z) in the dtype of x. If y is None, z is x."""
    if y is None:
        return x, _call(plan, _forward_kernel, words, [x, scale, bias], results=1)[0]
    z, out = _call(plan, _forward_kernel, words, [x, y, scale, bias], results=2)
    return z, out


def backward(
    plan: NormPlan,
    words: UInt32[Array, " R"],
    z: Float[Array, "R D"],
    g: Float[Array, "R D"],
    scale: Float[Array, " D"],
    of_sum: Float[Array, "R D"] | None = None,
) -> tuple[Float[Array, "R D"], Float[Array, "R D"], Float[Array, " D"], Float[Array, " D"]]:
    """Returns the gradients of x, y, scale and bias. The last two are float32.

    `words` and `scale` are the arguments of `forward`, and `z` is its first result. `g` is the gradient of LayerNorm(z). With
    `returns_sum`, `of_sum` is the gradient of z."""
    read = [z, g] if of_sum is None else [z, g, of_sum]
    *arrays, sums = _call(plan, _backward_kernel, words, [*read, scale], results=2 if plan.rate else 1, sums=2)
    dscale, dbias = sums.sum(0)
    return arrays[0], arrays[-1], dscale, dbias


def _call(
    plan: NormPlan,
    kernel: Callable[..., None],
    words: UInt32[Array, " R"],
    inputs: Sequence[Float[Array, " ..."]],
    results: int,
    sums: int = 0,
) -> Sequence[Float[Array, " ..."]]:
    """Runs `kernel` on every block of rows of `inputs`, which are arrays [R, D] followed by vectors [D].

    Returns `results` arrays [R, D] in the dtype of the first input. If `sums` is not 0, also returns a float32 array [grid
    steps, sums, D] with sums over the rows of each block.
    """
    block, width, steps = plan.block, plan.width, plan.rows // plan.block
    wide = pl.BlockSpec((block, width), lambda i: (i, 0))
    whole = pl.BlockSpec((1, width), lambda i: (0, 0))
    of_sums = [pl.BlockSpec((1, sums, width), lambda i: (i, 0, 0))] if sums else []
    drawn = [words.reshape(steps, 1, block)] if plan.rate else []
    return pl.pallas_call(
        functools.partial(kernel, plan),
        grid=(steps,),
        in_specs=[pl.BlockSpec((1, 1, block), lambda i: (i, 0, 0))] * len(drawn)
        + [wide if x.ndim == 2 else whole for x in inputs],
        out_specs=[wide] * results + of_sums,
        out_shape=[jax.ShapeDtypeStruct((plan.rows, width), inputs[0].dtype)] * results
        + [jax.ShapeDtypeStruct((steps, sums, width), jnp.float32)] * len(of_sums),
        scratch_shapes=[pltpu.VMEM((8, width), jnp.float32)] * sums + [pltpu.VMEM((block, LANES), jnp.int32)] * len(drawn),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=plan.interpret,
    )(*drawn, *(x if x.ndim == 2 else x.astype(jnp.float32).reshape(1, width) for x in inputs))


def _dropout(plan: NormPlan, refs: tuple[Ref, ...]) -> tuple[Callable[[Rows, Array], Array], tuple[Ref, ...]]:
    """Returns (a dropout function, the references of the kernel that are not for dropout).

    The function takes the rows of a piece and a float32 array [PIECE, width]. It returns the array with the dropped elements
    set to zero. With dropout, the first of `refs` holds the random words, and the last is scratch memory for these words.
    """
    if not plan.rate:
        return lambda rows, x: x, refs
    words, *others, turned = refs
    lane = jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), 1) * COLUMN.astype(np.int32)
    for i in range(0, plan.block, LANES):
        turned[i : i + LANES] = jnp.broadcast_to(words[0, :, i : i + LANES].astype(jnp.int32), (LANES, LANES)).T + lane

    def drop(rows: Rows, x: Float[Array, "R D"]) -> Float[Array, "R D"]:
        first = turned[rows].astype(jnp.uint32)
        with np.errstate(over="ignore"):
            steps = [np.uint32(column) * COLUMN for column in range(0, plan.width, LANES)]
        kept = hash_word(jnp.concatenate([first + step for step in steps], axis=1)) >= np.uint32(round(plan.rate * 2**32))
        return jnp.where(kept, x, 0.0)

    return drop, tuple(others)


def _forward_kernel(plan: NormPlan, *refs: Ref) -> None:
    """Computes z = x + dropout(y) and LayerNorm(z) for a block of rows. Pallas passes the references by position."""
    drop, others = _dropout(plan, refs)
    if plan.adds:
        x, y, scale, bias, z, out = others
    else:
        z, scale, bias, out = others

    def piece(rows: Rows) -> None:
        if plan.adds:
            total = x[rows].astype(jnp.float32) + drop(rows, y[rows].astype(jnp.float32) * _inverse(plan, y.dtype))
            z[rows] = total.astype(z.dtype)
        deviation, centred = _statistics(plan, z[rows].astype(jnp.float32))
        out[rows] = (centred * deviation * scale[...] + bias[...]).astype(out.dtype)

    _each_piece(plan, piece)


def _backward_kernel(plan: NormPlan, *refs: Ref) -> None:
    """Computes the gradients of x and y for a block of rows, and the block's sums of the gradients of scale and bias. Without
    dropout, x and y have the same gradient, which is written once."""
    drop, (z, g, *others) = _dropout(plan, refs)
    of_sum = others.pop(0) if plan.returns_sum else None
    scale, *gradients, sums, of_scale, of_bias = others
    of_scale[...], of_bias[...] = jnp.zeros_like(of_scale), jnp.zeros_like(of_bias)

    def piece(rows: Rows) -> None:
        deviation, centred = _statistics(plan, z[rows].astype(jnp.float32))
        gradient = g[rows].astype(jnp.float32)
        of_bias[...] += _eights(gradient)
        gradient *= deviation
        of_scale[...] += _eights(gradient * centred)
        gradient *= scale[...]
        along = (gradient * centred).mean(-1, keepdims=True) * jnp.square(deviation)
        dz = gradient - gradient.mean(-1, keepdims=True) - centred * along
        if of_sum is not None:
            dz += of_sum[rows].astype(jnp.float32)
        gradients[0][rows] = dz.astype(z.dtype)
        if plan.rate:
            gradients[1][rows] = drop(rows, dz * _inverse(plan, z.dtype)).astype(z.dtype)

    _each_piece(plan, piece)
    sums[0] = jnp.concatenate([of[...].sum(0, keepdims=True) for of in (of_scale, of_bias)])


def _eights(x: Float[Array, "R D"]) -> Float[Array, "8 D"]:
    """Sums the rows of a piece that share a sublane. This takes one addition per tile."""
    return x.reshape(PIECE // 8, 8, -1).sum(0)


def _inverse(plan: NormPlan, dtype: DTypeLike) -> np.float32:
    """Returns 1 / (1 - rate), rounded to `dtype`. Dropout multiplies the elements that it keeps by this factor."""
    return np.float32(np.asarray(1.0 / (1.0 - plan.rate), dtype))


def _statistics(plan: NormPlan, z: Float[Array, "R D"]) -> tuple[Float[Array, "R 1"], Float[Array, "R D"]]:
    """Returns (1 / the standard deviation of each row, z minus the mean of each row), float32."""
    centred = z - z.mean(-1, keepdims=True)
    return jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + plan.epsilon), centred


def _each_piece(plan: NormPlan, do: Callable[[Rows], None]) -> None:
    def one(i: Array, _: None) -> None:
        do(pl.ds(pl.multiple_of(i * PIECE, PIECE), PIECE))

    jax.lax.fori_loop(0, plan.block // PIECE, one, None, unroll=UNROLL)
