"""The GPU kernels of fused attention, in Triton. Scores are computed tile by tile and stay in the registers of a thread block.

Each program of the grid handles a block of one head of one row. The forward kernel and the query-gradient kernel hold a block
of queries and loop over the keys, with a running softmax in float32. The kernel of the key and value gradients holds a block of
keys and loops over the queries. Both backward kernels recompute the scores, so the backward pass takes 7 products instead of 5.
In return, no program adds to the result of another program, so the results do not depend on the order of execution.

Dropout uses the same random words as plain attention (`layers.random_words` with the shape [B, H, L, L] of the whole batch).
The masks are therefore the same on one device and on any mesh. The hash takes about 10 integer operations per score.

cuDNN is not used for two reasons. `jax.nn.dot_product_attention(implementation="cudnn")` has no dropout, which the paper's
recipe needs. It would also require the mask of a packed row as an array of length x length. Mosaic GPU, the other GPU compiler
of Pallas, needs Hopper or later. JAX 0.11 warns that a later version will remove Triton."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, UInt32

from bert_jax.model.kernels import MASKED_SCORE
from bert_jax.model.kernels.attention_plan import LOG2E, Inputs, Placement, Results
from bert_jax.model.layers import COLUMN, dot, hash_word, row_words

HEAD_WIDTHS = (16, 32, 64, 128)
"""The supported head widths."""
SHORTEST = 16
"""The smallest size of a matrix dimension that Triton can multiply."""
TILE = 64
"""Rows longer than this are padded to a multiple of this length."""
Ref = Any
"""A reference to an array in memory that Pallas passes to a kernel."""
Positions = Any
"""Contiguous positions of a row, `pl.ds(start, size)`."""
State = TypeVar("State")


@dataclasses.dataclass(frozen=True)
class Tiles:
    """The tile sizes and the number of warps of a program."""

    held: int
    """The number of positions (queries or keys) that a program holds, a power of two."""
    passed: int
    """The number of positions (keys or queries) per loop iteration, a power of two."""
    warps: int
    """The number of groups of 32 threads in a program."""


@dataclasses.dataclass(frozen=True)
class GpuPlan:
    """The shapes and settings of one call on one device, shared by the forward and backward pass."""

    rows: int
    length: int
    """The padded length (see `padded_length`)."""
    heads: int
    head_width: int
    rate: float
    """The dropout rate. 0: no dropout."""
    radius: int | None
    """The largest distance at which a query sees a key. None: no limit."""
    interpret: bool

    @classmethod
    def of(cls, shape: tuple[int, ...], heads: int, rate: float, radius: int | None = None, *, interpret: bool) -> GpuPlan:
        """Returns the plan for queries of `shape` [rows, length, heads x head width]."""
        rows, length, width = shape
        return cls(rows, padded_length(length), heads, width // heads, rate, radius, interpret)

    @property
    def width(self) -> int:
        """The number of columns of the arrays, which hold all heads."""
        return self.heads * self.head_width

    @property
    def query_length(self) -> int:
        """The padded number of queries. It is the padded length, because every token is a query."""
        return self.length

    @property
    def ids_shapes(self) -> list[tuple[int, ...]]:
        """The shape of the sequence ids that the kernels read."""
        return [(self.rows, self.length)]

    def seeds(self, place: Placement) -> UInt32[Array, " 3"]:
        """Returns the dropout seed, the index of the device's first row in the whole batch, and the index of its first head."""
        return jnp.stack([place.seed, place.first_row, np.uint32(self.heads) * place.heads_shard])

    @property
    def scale(self) -> float:
        """The factor of the scores, K**-0.5 times log2(e). It includes log2(e) because the hardware computes 2**x."""
        return self.head_width**-0.5 * LOG2E


def tiles(length: int, head_width: int, dtype: DTypeLike) -> Tiles:
    """Returns the tiles of all three kernels.

    Ten tile sizes from 32 x 64 to 128 x 128 with 4 or 8 warps were measured on an H200. 64 x 64 with 4 warps was at most 6 %
    slower than the fastest choice for each kernel at lengths 128 and 512 (bfloat16, head width 64, dropout 0.1). At length 512,
    on compute capabilities 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0, the chosen kernels spill no registers (in float32 at most 20
    bytes) and fit in the shared memory (72 of 99 KiB on 8.6, 8.9 and 12.0; 129 of 227 KiB on 10.0). float32 products do not use
    the matrix unit and need many more registers."""
    side = 32 if jnp.dtype(dtype) == jnp.float32 else 64
    side = min(side, length & -length)  # the largest power of two that divides the length
    return Tiles(side, side, 4 if head_width < 128 else 8)


def padded_length(length: int) -> int:
    """Rounds `length` up to whole tiles. A `length` of at most one tile is rounded up to a power of two."""
    return -(-length // TILE) * TILE if length > TILE else max(SHORTEST, 1 << (length - 1).bit_length())


def forward(plan: GpuPlan, inputs: Inputs) -> Results:
    """Returns the context [B, L, D] and log2 of the softmax sums, float32 [B, H, L], which `backward` needs."""
    *qkv, (ids,), seeds = inputs
    query, *_ = qkv
    wide, sums = _shapes(plan, query.dtype)
    call = _call(plan, _forward_kernel, "sums", ["block", "row", "row"], [("block", wide), ("sums", sums)])
    context, total = call(*_words(plan, seeds), ids, *(x.reshape(wide.shape) for x in qkv))
    return context.reshape(query.shape), total


def backward(plan: GpuPlan, inputs: Inputs, results: Results, gradient: Float[Array, "B L D"]) -> list[Float[Array, "B L D"]]:
    """Returns the gradients of query, key and value. `inputs` and `results` are the inputs and results of `forward`, and
    `gradient` is the gradient of the context."""
    *qkv, (ids,), seeds = inputs
    query, *_ = qkv
    context, sums = results
    wide, _ = _shapes(plan, query.dtype)
    arrays = [x.reshape(wide.shape) for x in (*qkv, gradient)]
    # The sum over keys of weight x gradient equals the dot product of the context and its gradient. The kernels divide by 1 -
    # rate at the end.
    products = arrays[3].astype(jnp.float32) * context.reshape(wide.shape).astype(jnp.float32)
    drift = products.sum(-1).swapaxes(1, 2) * (1.0 - plan.rate)
    of_query = _call(plan, _query_kernel, "sums", ["block", "row", "row", "block", "sums", "sums"], [("block", wide)])
    names = ["row", "block", "block", "row", "all sums", "all sums"]
    of_key = _call(plan, _key_kernel, "all sums", names, 2 * [("block", wide)])
    read = (*_words(plan, seeds), ids, *arrays, sums, drift)
    return [x.reshape(query.shape) for x in (*of_query(*read), *of_key(*read))]


def _shapes(plan: GpuPlan, dtype: DTypeLike) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Returns two shapes. [B, L, H, K] is the shape of query, key, value, context and their gradients. [B, H, L] is the shape
    of the softmax sums."""
    b, length, heads = plan.rows, plan.length, plan.heads
    return (
        jax.ShapeDtypeStruct((b, length, heads, plan.head_width), dtype),
        jax.ShapeDtypeStruct((b, heads, length), jnp.float32),
    )


def _words(plan: GpuPlan, seeds: UInt32[Array, " 3"]) -> list[UInt32[Array, "B H L"]]:
    """Returns the base words of `layers.random_words`, one word for every query of these rows and heads. Returns [] without
    dropout.

    The words are computed outside the kernels. Inside a kernel, every thread would compute the words that it needs, and the
    hash would take twice as many instructions.
    """
    if not plan.rate:
        return []
    return [row_words(seeds[0], (plan.rows, plan.heads, plan.length), first=(seeds[1], seeds[2]))]


@dataclasses.dataclass(frozen=True)
class Program:
    """One program of a kernel's grid. It holds the settings and references that all three kernels share."""

    plan: GpuPlan
    tiles: Tiles
    words: Ref | None
    """The random words of the queries that the program reads. None without dropout."""
    ids: Ref
    """The sequence ids of the row, [L]."""

    @property
    def held(self) -> Positions:
        """The positions that the program holds."""
        return pl.ds(pl.program_id(0) * self.tiles.held, self.tiles.held)

    def loop(self, body: Callable[[Positions, State], State], state: State) -> State:
        """Applies state = body(positions, state) to each tile of `tiles.passed` positions in order, and returns the final
        state. Without a radius, the loop visits all tiles of the row. With a radius, it visits only the tiles that the
        program's block `held` can reach."""
        step, radius = self.tiles.passed, self.plan.radius
        start: Any = 0
        stop: Any = self.plan.length // step
        if radius is not None:
            start = jnp.maximum(self.held.start - radius, 0) // step
            stop = jnp.minimum((self.held.start + self.tiles.held - 1 + radius) // step + 1, stop)
        return jax.lax.fori_loop(start, stop, lambda i, state: body(pl.ds(i * step, step), state), state)

    def seen(self, rows: Positions, columns: Positions) -> Bool[Array, "_ _"]:
        """Returns the attention mask of a tile of scores. It is True if the two positions belong to the same example and are
        within the radius."""
        same: Array = self.ids[rows][:, None] == self.ids[columns][None, :]
        if self.plan.radius is None:
            return same
        distance = _numbers(rows).astype(jnp.int32)[:, None] - _numbers(columns).astype(jnp.int32)[None, :]
        return same & (abs(distance) <= self.plan.radius)

    def read_words(self, of: Positions | slice = slice(None)) -> UInt32[Array, " _"] | None:
        """Returns the random words of these queries, or None without dropout."""
        return None if self.words is None else self.words[of]

    def kept(self, words: UInt32[Array, " _"] | None, keys: Positions, transposed: bool) -> Bool[Array, "_ _"] | None:
        """Returns the dropout mask of a tile of scores [queries, keys], or [keys, queries] if `transposed`. Returns None
        without dropout."""
        if words is None:
            return None
        columns = _numbers(keys) * COLUMN
        tile = words[None, :] + columns[:, None] if transposed else words[:, None] + columns[None, :]
        return hash_word(tile) >= np.uint32(round(self.plan.rate * 2**32))


def _call(
    plan: GpuPlan, kernel: Callable, words: str, inputs: list[str], outputs: list[tuple[str, jax.ShapeDtypeStruct]]
) -> Callable:
    """Returns a function that runs `kernel` over the grid of blocks, heads and rows.

    The function takes the random words (with dropout), the sequence ids, and an array for each of `inputs`. `words`, `inputs`
    and `outputs` name the part of each array that a program gets. For an array [B, L, H, K], the part is the program's "block"
    or the whole "row". For an array [B, H, L], the part is the "sums" of the block or "all sums" of the row.
    """
    name = kernel.__name__.removeprefix("_").removesuffix("_kernel")
    cut = tiles(plan.length, plan.head_width, outputs[0][1].dtype)
    block, length, width = cut.held, plan.length, plan.head_width
    specs = {
        "block": pl.BlockSpec((None, block, None, width), lambda i, h, b: (b, i, h, 0)),
        "row": pl.BlockSpec((None, length, None, width), lambda i, h, b: (b, 0, h, 0)),
        "sums": pl.BlockSpec((None, None, block), lambda i, h, b: (b, h, i)),
        "all sums": pl.BlockSpec((None, None, length), lambda i, h, b: (b, h, 0)),
    }

    def run(*refs: Ref) -> None:
        # Pallas passes the references by position. The inputs come first, then the outputs.
        drawn, ids, *others = refs if plan.rate else (None, *refs)
        kernel(Program(plan, cut, drawn, ids), others[: len(inputs)], others[len(inputs) :])

    return pl.pallas_call(
        run,
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


def _numbers(positions: Positions) -> UInt32[Array, " _"]:
    """Returns `positions` as an array of indices."""
    return jnp.asarray(positions.start, jnp.uint32) + jax.lax.iota(jnp.uint32, positions.size)


def _zeroed(x: Float[Array, "*shape"], kept: Bool[Array, "*shape"] | None) -> Float[Array, "*shape"]:
    """Sets the elements of `x` to zero where `kept` is False. Returns `x` unchanged if `kept` is None."""
    return x if kept is None else jnp.where(kept, x, 0.0)


def _forward_kernel(program: Program, inputs: Sequence[Ref], outputs: Sequence[Ref]) -> None:
    """Computes the context of a block of queries. The references are query and context [block, K], key and value [L, K], and
    sums [block]."""
    query, key, value = inputs
    context, sums = outputs
    plan, held = program.plan, program.held
    of_query, words = query[...], program.read_words()

    def visit_keys(keys: Positions, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        before, total, out = state
        scores = dot(of_query, key[keys], (-1, -1)) * plan.scale
        scores = jnp.where(program.seen(held, keys), scores, MASKED_SCORE)
        highest = jnp.maximum(before, scores.max(axis=1))
        weights, shrink = jnp.exp2(scores - highest[:, None]), jnp.exp2(before - highest)
        kept = _zeroed(weights, program.kept(words, keys, transposed=False)).astype(value.dtype)
        out = out * shrink[:, None] + dot(kept, value[keys], (-1, -2))
        return highest, total * shrink + weights.sum(axis=1), out

    zeros = jnp.zeros((program.tiles.held,), jnp.float32)
    start = (zeros + 2 * MASKED_SCORE, zeros, jnp.zeros((program.tiles.held, plan.head_width), jnp.float32))
    highest, total, out = program.loop(visit_keys, start)
    sums[...] = highest + jnp.log(total) * LOG2E
    context[...] = (out * (1.0 / (total * (1.0 - plan.rate)))[:, None]).astype(context.dtype)


def _query_kernel(program: Program, inputs: Sequence[Ref], outputs: Sequence[Ref]) -> None:
    """Computes the gradient of a block of queries. The references are query, gradient and of_query [block, K], key and value
    [L, K], and sums and drift [block]."""
    query, key, value, gradient, sums, drift = inputs
    (of_query,) = outputs
    plan, held = program.plan, program.held
    q, g, total, flow, words = query[...], gradient[...], sums[...], drift[...], program.read_words()

    def visit_keys(keys: Positions, out: Array) -> Array:
        k = key[keys]
        scores = dot(q, k, (-1, -1)) * plan.scale - total[:, None]
        weights = jnp.exp2(jnp.where(program.seen(held, keys), scores, MASKED_SCORE))
        of_weights = _zeroed(dot(g, value[keys], (-1, -1)), program.kept(words, keys, transposed=False))
        return out + dot((weights * (of_weights - flow[:, None])).astype(k.dtype), k, (-1, -2))

    out = program.loop(visit_keys, jnp.zeros(q.shape, jnp.float32))
    of_query[...] = (out * (plan.head_width**-0.5 / (1.0 - plan.rate))).astype(of_query.dtype)


def _key_kernel(program: Program, inputs: Sequence[Ref], outputs: Sequence[Ref]) -> None:
    """Computes the gradients of a block of keys and values. The references are key, value, of_key and of_value [block, K],
    query and gradient [L, K], and sums and drift [L]. Tiles of scores are [keys, queries], so that the products need not
    transpose the tiles."""
    query, key, value, gradient, sums, drift = inputs
    of_key, of_value = outputs
    plan, held = program.plan, program.held
    k, v = key[...], value[...]

    def visit_queries(queries: Positions, state: tuple[Array, Array]) -> tuple[Array, Array]:
        q, g = query[queries], gradient[queries]
        scores = dot(k, q, (-1, -1)) * plan.scale - sums[queries][None, :]
        weights = jnp.exp2(jnp.where(program.seen(held, queries), scores, MASKED_SCORE))
        kept = program.kept(program.read_words(queries), held, transposed=True)
        of_weights = _zeroed(dot(v, g, (-1, -1)), kept)
        of_scores = (weights * (of_weights - drift[queries][None, :])).astype(q.dtype)
        return state[0] + dot(of_scores, q, (-1, -2)), state[1] + dot(_zeroed(weights, kept).astype(g.dtype), g, (-1, -2))

    zeros = jnp.zeros(k.shape, jnp.float32)
    of_k, of_v = program.loop(visit_queries, (zeros, zeros))
    of_key[...] = (of_k * (plan.head_width**-0.5 / (1.0 - plan.rate))).astype(of_key.dtype)
    of_value[...] = (of_v * (1.0 / (1.0 - plan.rate))).astype(of_value.dtype)
