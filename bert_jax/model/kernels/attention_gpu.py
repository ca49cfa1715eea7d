"""The GPU kernels of fused attention, through Triton: scores live in the registers of a block of threads, tile by tile.

One program of the grid takes one head of one row. Forward and for the gradient of the queries it holds a block of queries and
passes over the keys, with a running softmax in float32; for the gradients of keys and values it holds a block of keys and
passes over the queries. Scores are computed anew in both backward kernels (7 products instead of 5), so no program adds to what
another wrote: results do not depend on the order in which programs run.

Dropout is that of `layers.random_words` on the whole batch's [B, H, L, L], word for word: masks are those of plain attention,
and the same on one device and on any mesh. A word is about 10 integer operations a score.

Why not cuDNN: `jax.nn.dot_product_attention(implementation="cudnn")` takes no dropout, and the paper's recipe drops attention
weights; and who may look at whom in a packed row would be a mask of length x length. Why not Pallas' other GPU compiler,
Mosaic GPU: it needs Hopper or later. JAX 0.11 warns that it will drop Triton one day.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax.model.kernels.attention_plan import LOG2E, MASKED_SCORE
from bert_jax.model.layers import COLUMN, hash_word, row_words
from bert_jax.model.products import precision

HEAD_WIDTHS = (16, 32, 64, 128)
"""Widths of a head that the kernels compute."""
SHORTEST = 16
"""The smallest side of a matrix that Triton multiplies."""
TILE = 64
"""Rows longer than this are padded to multiples of it."""
Ref = Any
"""A reference to an array in memory, as Pallas hands it to a kernel."""
Positions = Any
"""Neighbouring positions of a row, `pl.ds(start, size)`."""
State = TypeVar("State")


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How a kernel cuts up a row."""

    held: int
    """Positions that a program holds, queries or keys; a power of two."""
    passed: int
    """Positions that pass by at a time; a power of two."""
    warps: int
    """Groups of 32 threads of a program."""


@dataclasses.dataclass(frozen=True)
class GpuPlan:
    """What the kernels of one call have in common."""

    rows: int
    length: int
    """As `padded_length` makes it."""
    heads: int
    head_width: int
    rate: float
    """Dropout rate; 0 for none."""
    interpret: bool

    @property
    def scale(self) -> float:
        """What products of queries and keys are multiplied by: scores are in units of log 2, as the hardware's exponential is."""
        return self.head_width**-0.5 * LOG2E


def tiles(kernel: str, length: int, head_width: int, dtype: DTypeLike) -> Tiles:
    """What compiles without spilling registers (20 bytes at most, in float32) and with the shared memory that there is (72 of
    99 KiB on 8.6, 8.9 and 12.0; 129 of 227 on 10.0), for compute capabilities 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0 at length 512;
    none of it was timed. Products of float32 take no matrix unit, and many more registers."""
    if jnp.dtype(dtype) == jnp.float32:
        cut = Tiles(32, 32, 4 if head_width <= 64 else 8)
    elif head_width > 64:
        cut = Tiles(64, 64, 8)
    else:
        cut = Tiles(64, 64, 4) if kernel == "key" else Tiles(128, 64, 8)
    divisor = length & -length  # the largest power of two
    return Tiles(min(cut.held, divisor), min(cut.passed, divisor), cut.warps)


def padded_length(length: int) -> int:
    """`length` rounded up to whole tiles; a short row to a power of two."""
    return -(-length // TILE) * TILE if length > TILE else max(SHORTEST, 1 << (length - 1).bit_length())


def forward(
    plan: GpuPlan,
    query: Float[Array, "B L D"],
    key: Float[Array, "B L D"],
    value: Float[Array, "B L D"],
    ids: Int[Array, "B L"],
    seeds: UInt32[Array, " 3"],
) -> tuple[Float[Array, "B L D"], Float[Array, "B H L"]]:
    """The context and, for `backward`, log2 of the sums of the softmax, float32. `seeds` are the dropout seed, and the places of
    the first row and of the first head among all."""
    wide, sums = _shapes(plan, query.dtype)
    call = _call(plan, _forward_kernel, "sums", ["block", "row", "row"], [("block", wide), ("sums", sums)])
    context, total = call(*_words(plan, seeds), ids, *(x.reshape(wide.shape) for x in (query, key, value)))
    return context.reshape(query.shape), total


def backward(
    plan: GpuPlan,
    query: Float[Array, "B L D"],
    key: Float[Array, "B L D"],
    value: Float[Array, "B L D"],
    ids: Int[Array, "B L"],
    seeds: UInt32[Array, " 3"],
    context: Float[Array, "B L D"],
    sums: Float[Array, "B H L"],
    gradient: Float[Array, "B L D"],
) -> tuple[Float[Array, "B L D"], Float[Array, "B L D"], Float[Array, "B L D"]]:
    """The gradients of query, key and value, from the arguments and results of `forward` and the gradient of the context."""
    wide, _ = _shapes(plan, query.dtype)
    arrays = [x.reshape(wide.shape) for x in (query, key, value, gradient)]
    # sum over keys of weights x their gradient = context . its gradient; (1 - rate) because the kernels divide by it at the end
    products = arrays[3].astype(jnp.float32) * context.reshape(wide.shape).astype(jnp.float32)
    drift = products.sum(-1).swapaxes(1, 2) * (1.0 - plan.rate)
    of_query = _call(plan, _query_kernel, "sums", ["block", "row", "row", "block", "sums", "sums"], [("block", wide)])
    names = ["row", "block", "block", "row", "all sums", "all sums"]
    of_key = _call(plan, _key_kernel, "all sums", names, 2 * [("block", wide)])
    inputs = (*_words(plan, seeds), ids, *arrays, sums, drift)
    q, k, v = (x.reshape(query.shape) for x in (*of_query(*inputs), *of_key(*inputs)))
    return q, k, v


def _shapes(plan: GpuPlan, dtype: DTypeLike) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """[B, L, H, K], and the softmax's sums."""
    b, length, heads = plan.rows, plan.length, plan.heads
    return (
        jax.ShapeDtypeStruct((b, length, heads, plan.head_width), dtype),
        jax.ShapeDtypeStruct((b, heads, length), jnp.float32),
    )


def _words(plan: GpuPlan, seeds: UInt32[Array, " 3"]) -> list[UInt32[Array, "B H L"]]:
    """For every query of these rows and heads the word from which `random_words` makes those of its scores, if there
    is dropout. In a kernel they would be computed by every thread that needs them, which doubles the hash's instructions."""
    if not plan.rate:
        return []
    return [row_words(seeds[0], (plan.rows, plan.heads, plan.length), first=(seeds[1], seeds[2]))]


def _call(
    plan: GpuPlan, kernel: Callable, words: str, inputs: list[str], outputs: list[tuple[str, jax.ShapeDtypeStruct]]
) -> Callable:
    """A kernel over the grid of blocks, heads and rows, which is given of each array its block or its whole row; `words` only if
    there is dropout."""
    name = kernel.__name__.removeprefix("_").removesuffix("_kernel")
    cut = tiles(name, plan.length, plan.head_width, outputs[0][1].dtype)
    block, length, width = cut.held, plan.length, plan.head_width
    specs = {
        "block": pl.BlockSpec((None, block, None, width), lambda i, h, b: (b, i, h, 0)),
        "row": pl.BlockSpec((None, length, None, width), lambda i, h, b: (b, 0, h, 0)),
        "sums": pl.BlockSpec((None, None, block), lambda i, h, b: (b, h, i)),
        "all sums": pl.BlockSpec((None, None, length), lambda i, h, b: (b, h, 0)),
    }
    return pl.pallas_call(
        functools.partial(kernel, plan, cut) if plan.rate else functools.partial(kernel, plan, cut, None),
        grid=(length // block, plan.heads, plan.rows),
        in_specs=[
            *([specs[words]] if plan.rate else []),
            pl.BlockSpec((None, length), lambda i, h, b: (b, 0)),
            *(specs[name] for name in inputs),
        ],
        out_specs=[specs[name] for name, _ in outputs],
        out_shape=[shape for _, shape in outputs],
        compiler_params=triton.CompilerParams(num_warps=cut.warps, num_stages=2),
        interpret=plan.interpret,
        name=f"attention_{name}",
    )


def _held(cut: Tiles) -> Positions:
    """The positions of this program's block."""
    return pl.ds(pl.program_id(0) * cut.held, cut.held)


def _pass_by(plan: GpuPlan, cut: Tiles, body: Callable[[Positions, State], State], state: State) -> State:
    """body(positions, state) for all positions of a row, some at a time."""
    return jax.lax.fori_loop(0, plan.length // cut.passed, lambda i, state: body(pl.ds(i * cut.passed, cut.passed), state), state)


def _places(positions: Positions) -> UInt32[Array, " _"]:
    """The numbers of `positions`."""
    return jnp.asarray(positions.start, jnp.uint32) + jax.lax.iota(jnp.uint32, positions.size)


def _read(words: Ref | None, of: Positions | slice = slice(None)) -> UInt32[Array, " _"] | None:
    """The words in a ref, if there is one."""
    return None if words is None else words[of]


def _kept(
    plan: GpuPlan, words: UInt32[Array, " _"] | None, keys: Positions, transposed: bool
) -> Bool[Array, "_ _"] | None:
    """What dropout keeps of a tile of scores [queries, keys], or [keys, queries]; None is all."""
    if words is None:
        return None
    columns = _places(keys) * COLUMN
    tile = words[None, :] + columns[:, None] if transposed else words[:, None] + columns[None, :]
    return hash_word(tile) >= np.uint32(round(plan.rate * 2**32))


def _zeroed(x: Float[Array, "*shape"], kept: Bool[Array, "*shape"] | None) -> Float[Array, "*shape"]:
    return x if kept is None else jnp.where(kept, x, 0.0)


def _product(a: Float[Array, "_ _"], b: Float[Array, "_ _"], over: tuple[int, int]) -> Float[Array, "_ _"]:
    """a b summed over axis `over[0]` of a and `over[1]` of b, accumulated in float32."""
    contract = (((over[0],), (over[1],)), ((), ()))
    return jax.lax.dot_general(a, b, contract, precision=precision(a.dtype), preferred_element_type=jnp.float32)


def _forward_kernel(
    plan: GpuPlan, cut: Tiles, words: Ref | None, ids: Ref, query: Ref, key: Ref, value: Ref, context: Ref, sums: Ref
) -> None:
    """A block of queries: query, context refs [block, K]; key, value [L, K]; ids [L]; sums [block]."""
    held = _held(cut)
    of_query, of_queries, word = query[...], ids[held], _read(words)

    def of_keys(keys: Positions, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        before, total, out = state
        scores = _product(of_query, key[keys], (1, 1)) * plan.scale
        scores = jnp.where(of_queries[:, None] == ids[keys][None, :], scores, MASKED_SCORE)
        highest = jnp.maximum(before, scores.max(axis=1))
        weights, shrink = jnp.exp2(scores - highest[:, None]), jnp.exp2(before - highest)
        kept = _zeroed(weights, _kept(plan, word, keys, transposed=False)).astype(value.dtype)
        out = out * shrink[:, None] + _product(kept, value[keys], (1, 0))
        return highest, total * shrink + weights.sum(axis=1), out

    nothing = jnp.zeros((cut.held,), jnp.float32)
    start = (nothing + 2 * MASKED_SCORE, nothing, jnp.zeros((cut.held, plan.head_width), jnp.float32))
    highest, total, out = _pass_by(plan, cut, of_keys, start)
    sums[...] = highest + jnp.log(total) * LOG2E
    context[...] = (out * (1.0 / (total * (1.0 - plan.rate)))[:, None]).astype(context.dtype)


def _query_kernel(
    plan: GpuPlan, cut: Tiles, words: Ref | None, ids: Ref, query: Ref, key: Ref, value: Ref, gradient: Ref, sums: Ref,
    drift: Ref, of_query: Ref,
) -> None:  # fmt: skip
    """The gradient of a block of queries: query, gradient, of_query refs [block, K]; key, value [L, K]; sums, drift [block]."""
    held = _held(cut)
    q, g, of_queries, total, flow, word = query[...], gradient[...], ids[held], sums[...], drift[...], _read(words)

    def of_keys(keys: Positions, out: Array) -> Array:
        k, same = key[keys], of_queries[:, None] == ids[keys][None, :]
        scores = _product(q, k, (1, 1)) * plan.scale - total[:, None]
        weights = jnp.exp2(jnp.where(same, scores, MASKED_SCORE))
        of_weights = _zeroed(_product(g, value[keys], (1, 1)), _kept(plan, word, keys, transposed=False))
        return out + _product((weights * (of_weights - flow[:, None])).astype(k.dtype), k, (1, 0))

    out = _pass_by(plan, cut, of_keys, jnp.zeros(q.shape, jnp.float32))
    of_query[...] = (out * (plan.head_width**-0.5 / (1.0 - plan.rate))).astype(of_query.dtype)


def _key_kernel(
    plan: GpuPlan, cut: Tiles, words: Ref | None, ids: Ref, query: Ref, key: Ref, value: Ref, gradient: Ref, sums: Ref,
    drift: Ref, of_key: Ref, of_value: Ref,
) -> None:  # fmt: skip
    """The gradients of a block of keys and their values: key, value, of_key, of_value refs [block, K]; query, gradient [L, K];
    sums, drift [L]. Tiles of scores are [keys, queries], so both products take them as they are."""
    held = _held(cut)
    k, v, of_keys = key[...], value[...], ids[held]

    def of_queries(queries: Positions, state: tuple[Array, Array]) -> tuple[Array, Array]:
        q, g, same = query[queries], gradient[queries], of_keys[:, None] == ids[queries][None, :]
        scores = _product(k, q, (1, 1)) * plan.scale - sums[queries][None, :]
        weights = jnp.exp2(jnp.where(same, scores, MASKED_SCORE))
        kept = _kept(plan, _read(words, queries), held, transposed=True)
        of_weights = _zeroed(_product(v, g, (1, 1)), kept)
        of_scores = (weights * (of_weights - drift[queries][None, :])).astype(q.dtype)
        return state[0] + _product(of_scores, q, (1, 0)), state[1] + _product(_zeroed(weights, kept).astype(g.dtype), g, (1, 0))

    zeros = jnp.zeros(k.shape, jnp.float32)
    of_k, of_v = _pass_by(plan, cut, of_queries, (zeros, zeros))
    of_key[...] = (of_k * (plan.head_width**-0.5 / (1.0 - plan.rate))).astype(of_key.dtype)
    of_value[...] = (of_v * (1.0 / (1.0 - plan.rate))).astype(of_value.dtype)
