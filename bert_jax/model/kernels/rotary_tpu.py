"""The TPU kernel of rotary positions. It reads queries or keys once and writes them once, in the layout of the projections.

Without the kernel, XLA rotates [B, L, H, K] in a layout with the length along the lanes, because half a head does not fill the
lanes. XLA copies the arrays to this layout and back. These copies take 15 of the 105 ms of a ModernBERT-base step with rows of
1,024 tokens on a v5e."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from bert_jax.model.kernels.attention_plan import LANES

Ref = Any
"""A reference to an array on the chip that Pallas passes to a kernel."""

PIECE = 16
"""The number of rows in a piece, which is the height of a bfloat16 tile. A piece stays in the vector registers from load to
store."""
UNROLL = 4
BYTES_PER_STEP = 8 << 20
"""The maximum bytes of the arrays in a grid step. Each array counts twice, because one copy is used while the next is
transferred."""


@dataclasses.dataclass(frozen=True)
class RotaryPlan:
    """The settings of one call."""

    head_width: int
    """A divisor of 128."""
    interleaved: bool
    """Whether a pair consists of two neighbouring dimensions (`ModelConfig.rotary_pairing`). If False, a pair consists of
    dimensions i and i + K/2."""
    interpret: bool

    @property
    def apart(self) -> int:
        """The distance between the two dimensions of a pair."""
        return 1 if self.interleaved else self.head_width // 2

    def factors(self, angles: Float[Array, "B Q _"]) -> tuple[Float[Array, "B Q _"], Float[Array, "B Q _"]]:
        """Returns two arrays [B, Q, 128] from the angles of the pairs in one head. The first array has the factor of each lane.
        The second array has the factor of the other dimension in the lane's pair."""
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        heads = (jnp.stack(x, -1 if self.interleaved else -2) for x in ((cos, cos), (-sin, sin)))
        own, partner = (jnp.tile(x.reshape(*cos.shape[:2], -1), (1, 1, LANES // self.head_width)) for x in heads)
        return own, partner


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def rotated(
    plan: RotaryPlan, x: Float[Array, "B Q D"], own: Float[Array, "B Q _"], partner: Float[Array, "B Q _"]
) -> Float[Array, "B Q D"]:
    """Rotates `x` as `positions.rotate` does, with float32 arithmetic. `own` and `partner` are the factors of
    `RotaryPlan.factors`."""
    width = -(-x.shape[2] // LANES) * LANES
    size = 2 * 2 * width * x.dtype.itemsize + 2 * 2 * 4 * LANES
    most = max(PIECE, 1 << ((BYTES_PER_STEP // size).bit_length() - 1))
    rows = -(-x.shape[0] * x.shape[1] // PIECE) * PIECE
    block = min(most, rows)
    rows = -(-rows // block) * block

    def flat(x: Float[Array, "B Q _"], width: int) -> Float[Array, "R _"]:
        x = x.reshape(-1, x.shape[2])
        return jnp.pad(x, ((0, rows - len(x)), (0, width - x.shape[1])))

    def spec(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((block, width), lambda i: (i, 0))

    found = pl.pallas_call(
        functools.partial(_kernel, plan),
        grid=(rows // block,),
        in_specs=[spec(width), spec(LANES), spec(LANES)],
        out_specs=spec(width),
        out_shape=jax.ShapeDtypeStruct((rows, width), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=plan.interpret,
        name="rotary",
    )(flat(x, width), flat(own, LANES), flat(partner, LANES))
    return found[: x.shape[0] * x.shape[1], : x.shape[2]].reshape(x.shape)


def _forward(plan: RotaryPlan, x: Array, own: Array, partner: Array) -> tuple[Array, tuple[Array, Array]]:
    return rotated(plan, x, own, partner), (own, partner)


def _backward(plan: RotaryPlan, factors: tuple[Array, Array], gradient: Array) -> tuple[Array | None, ...]:
    """Rotates the gradient back."""
    own, partner = factors
    return rotated(plan, gradient, own, -partner), None, None


rotated.defvjp(_forward, _backward)


def _kernel(plan: RotaryPlan, x: Ref, own: Ref, partner: Ref, out: Ref) -> None:
    """Rotates a block of rows."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (PIECE, LANES), 1)
    is_first = (lane // plan.apart) % 2 == 0

    def piece(i: Array, _: None) -> None:
        rows = pl.ds(pl.multiple_of(i * PIECE, PIECE), PIECE)
        factor, other = own[rows], partner[rows]
        for start in range(0, x.shape[1], LANES):
            lanes = slice(start, start + LANES)
            wide = x[rows, lanes].astype(jnp.float32)
            partners = jnp.where(
                is_first, pltpu.roll(wide, LANES - plan.apart, axis=1), pltpu.roll(wide, plan.apart, axis=1)
            )
            out[rows, lanes] = (wide * factor + partners * other).astype(out.dtype)

    jax.lax.fori_loop(0, x.shape[0] // PIECE, piece, None, unroll=min(UNROLL, x.shape[0] // PIECE))
