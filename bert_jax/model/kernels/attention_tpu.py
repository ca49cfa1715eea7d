"""The TPU kernels of fused attention. The scores of a row stay on the chip.

All intermediate matrices are transposed. Keys are along the sublanes, and queries are along the lanes. The products are:

    scores  K Q^T [keys, queries]     context^T = V^T P     dQ^T = K^T dS     dK^T = Q^T dS^T     dV^T = dO^T P^T

The softmax statistics are therefore rows [1, queries], which broadcast for free. In every product with a matrix of scores, the
scores are stationary in the matrix unit while the 64 rows of a head stream through the unit. Without the transposition, all 512
rows of scores would stream through and fill only 64 of 128 columns of the result. On v5e, a product would then take 490
instruction bundles instead of 250.

With a window (`TpuPlan.radius`), only the blocks and tiles within reach are computed. A row of 8,192 with 12 heads of 64,
forward and backward on a v5e, takes 0.41 ms with a radius of 64 and 5.94 ms without (estimated as the bundles of a block times
the number of blocks). JAX's own `splash_attention` takes 3 ms with the window, because its grid has a step for each head and
block.

A head is selected by zeroing the other heads' lanes. The contraction is 128 deep anyway, so two heads of width 64 share a block
in the layout of the projections, without a copy. The products of the next tiles are issued before the exponentials of the
current tile. The compiler's scheduler mostly keeps the order of the program, so these products run during the exponentials.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from bert_jax.model.kernels import MASKED_SCORE
from bert_jax.model.kernels.attention_plan import KEYS, LANES, LOG2E, Inputs, Results, TpuPlan, vmem_bytes
from bert_jax.model.layers import dot, hash_word, random_words

Ref = Any
"""A reference to an array on the chip that Pallas passes to a kernel."""
Positions = Any
"""Contiguous positions of a row, either a slice or `pl.ds(start, size)`."""
Index = int | Int[Array, ""]
"""The index of a block. It is a loop index, or the constant 0 if there is only one block."""
Item = TypeVar("Item")
Made = TypeVar("Made")
State = TypeVar("State")
Refs = TypeVar("Refs", "ForwardRefs", "BackwardRefs")

AHEAD_FORWARD, AHEAD_BACKWARD = 4, 2
"""The first products of a tile are issued this many tiles ahead."""
VMEM_LEAST = 16 << 20
"""The minimum bytes of vector memory that a kernel requests. Every chip has this much. A kernel requests more only if it needs
more, because XLA keeps its own arrays in the remaining memory."""


def forward(plan: TpuPlan, inputs: Inputs) -> Sequence[Float[Array, " ..."]]:
    """Returns the context [B, Q, D] and log2 of the softmax sums, float32 [B, G, J, Q], which `backward` needs."""
    *qkv, ids, seeds = inputs
    of_queries, of_keys, statistics = _specs(plan)
    read, written = [of_queries, of_keys, of_keys], [of_queries, statistics]
    return _call(plan, _forward_kernel, read, written, [])(seeds, ids, *qkv)


def backward(plan: TpuPlan, inputs: Inputs, results: Results, gradient: Float[Array, "B Q D"]) -> Sequence[Float[Array, "B _ D"]]:
    """Returns the gradients of query, key and value. `inputs` and `results` are the inputs and results of `forward`, and
    `gradient` is the gradient of the context."""
    *qkv, ids, seeds = inputs
    context, sums = results
    of_queries, of_keys, statistics = _specs(plan)
    scratch = [pltpu.VMEM((plan.query_length, plan.lanes), jnp.float32)] if plan.blocks > 1 else []
    read, written = [of_queries, of_keys, of_keys, of_queries, of_queries, statistics], [of_queries, of_keys, of_keys]
    call = _call(plan, _backward_kernel, read, written, scratch)
    return call(seeds, ids, *qkv, context, gradient, sums)


def _specs(plan: TpuPlan) -> tuple[tuple, tuple, tuple]:
    """Returns (block, index map, shape) three times: for arrays [B, Q, D], for arrays [B, L, D], and for the softmax sums."""
    rows, groups = plan.step

    def wide(length: int) -> tuple:
        return (rows, length, groups * plan.lanes), lambda b, g: (b, 0, g), (plan.rows, length, plan.groups * plan.lanes)

    shape = (plan.groups, plan.heads, plan.query_length)
    sums = (rows, groups, *shape[1:]), lambda b, g: (b, g, 0, 0), (plan.rows, *shape)
    return wide(plan.query_length), wide(plan.length), sums


def _call(plan: TpuPlan, kernel: Callable, inputs: list, outputs: list, scratch: list) -> Callable:
    """Returns a function that runs `kernel` over the grid of rows and groups. The function takes the seeds, the sequence ids
    and further arrays.

    `inputs` holds a block spec (from `_specs`) for each further array, and `outputs` holds one for each result.
    """
    rows, groups = plan.step

    def call(
        seeds: Int[Array, " 4"], ids: Sequence[Int[Array, "B 1 _"]], *arrays: Float[Array, " ..."]
    ) -> Sequence[Float[Array, " ..."]]:
        query, *_ = arrays
        return pl.pallas_call(
            functools.partial(kernel, plan),
            grid=(plan.rows // rows, plan.groups // groups),
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.SMEM),
                *(pl.BlockSpec((rows, *shape), lambda b, g: (b, 0, 0)) for _, *shape in plan.ids_shapes),
                *(pl.BlockSpec(block, index) for block, index, _ in inputs),
            ],
            out_specs=[pl.BlockSpec(block, index) for block, index, _ in outputs],
            out_shape=[jax.ShapeDtypeStruct(s, query.dtype if len(s) == 3 else jnp.float32) for _, _, s in outputs],
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel"),
                vmem_limit_bytes=max(VMEM_LEAST, vmem_bytes(plan, query.dtype)),
            ),
            interpret=plan.interpret,
        )(seeds, *ids, *arrays)

    return call


class RandomBits:
    """The random bits of dropout. Each grid step has one random stream. If a row has several blocks of scores, each block has
    its own stream instead.

    The upper and the lower half of a 32-bit word each decide whether one score is kept, so rates are multiples of 2**-16. On
    the chip the words come from the hardware generator, which has its own instruction slot. A counter hash would take 20 vector
    operations per score, more than everything else together, so only interpreted kernels use it.
    """

    def __init__(self, plan: TpuPlan, seeds: Ref):
        self.plan, self.drawn = plan, 0
        rows, groups = plan.step
        seed, first_row, first_group, all_groups = (seeds[i].astype(jnp.uint32) for i in range(4))
        row, group = pl.program_id(0) * rows, pl.program_id(1) * groups
        self.seed = seed
        self.step = (first_row + row.astype(jnp.uint32)) * all_groups + first_group + group.astype(jnp.uint32)

    def start(self, unit: int, i: Index, j: Index) -> None:
        """Starts the random stream for block (i, j) of the `Unit` with index `unit`. If a row has only one block, the first
        call starts the stream of the whole grid step, and later calls do nothing."""
        if not self.plan.rate or (self.plan.blocks * self.plan.query_blocks == 1 and self.drawn):
            return
        stream = (unit * self.plan.blocks + i) * self.plan.blocks + j
        self.word = hash_word(hash_word(self.seed + self.step) + jnp.asarray(stream, jnp.uint32))
        if not self.plan.interpret:
            pltpu.prng_seed(self.word.astype(jnp.int32))

    def draw(self, shape: tuple[int, ...]) -> Callable[[Array], Array]:
        """Draws a dropout mask of this `shape`. Returns a function that sets the dropped elements of an array of this `shape`
        to zero."""
        if not self.plan.rate:
            return lambda x: x
        self.drawn += 1
        half = shape[0] // 2
        words = self._words((half, shape[1]))
        threshold = np.int32(round(self.plan.rate * 65536) * 65536 - (1 << 31))
        upper, lower = words >= threshold, (words << 16) >= threshold

        def zeroed(x: Float[Array, "_ _"]) -> Float[Array, "_ _"]:
            return jnp.concatenate([jnp.where(upper, x[:half], 0.0), jnp.where(lower, x[half:], 0.0)], axis=0)

        return zeroed

    def _words(self, shape: tuple[int, int]) -> Int[Array, "_ _"]:
        if not self.plan.interpret:
            return pltpu.prng_random_bits(shape)
        return random_words(hash_word(self.word + np.uint32(self.drawn)), shape).astype(jnp.int32)


def _each_head(plan: TpuPlan, x: Float[Array, "L D"]) -> list[Float[Array, "L D"]]:
    """Returns one copy of `x` [L, lanes] for each head of a group. In each copy, the lanes of the other heads are zero."""
    if plan.heads == 1:
        return [x]
    lane, width = jax.lax.broadcasted_iota(jnp.int32, (1, plan.lanes), 1), plan.head_width
    return [jnp.where((lane >= h * width) & (lane < (h + 1) * width), x, jnp.zeros((), x.dtype)) for h in range(plan.heads)]


def _mask(
    unit: Unit, queries: Positions, keys: Positions, shift: int, there: Array | None
) -> Callable[[int, int, Array], Array]:
    """Returns a function (first query, first key, scores) -> scores that masks a tile of a block. The block of keys is `shift`
    blocks after the block of queries. If `there` is False, one of the two blocks is outside the row, and all scores are
    masked."""
    plan, of_queries, ids = unit.plan, unit.query_ids[:, queries], unit.key_ids[:, keys]
    row = ids if there is None else jnp.where(there, ids, -2)
    down = jnp.broadcast_to(row, (LANES, plan.block)).T
    of_keys = jnp.concatenate([down] * (plan.queries // LANES), axis=1)

    def masked(q: int, k: int, scores: Array) -> Array:
        same = of_keys[k : k + KEYS] == of_queries[:, q : q + plan.queries]
        if plan.radius is not None:
            key, query = (jax.lax.broadcasted_iota(jnp.int32, (KEYS, plan.queries), axis) for axis in (0, 1))
            same &= jnp.abs(key - query + np.int32(shift * plan.block + k - q)) <= plan.radius
        return jnp.where(same, scores, MASKED_SCORE)

    return masked


def _ahead(items: list[Item], by: int, start: Callable[[Item], Made]) -> Iterator[tuple[Item, Made]]:
    """Yields (item, start(item)) for each item. `start` is called `by` items ahead."""
    started = [start(item) for item in items[:by]]
    for i, item in enumerate(items):
        if i + by < len(items):
            started.append(start(items[i + by]))
        yield item, started.pop(0)


def _loop(times: int, body: Callable[[Index, State], State], state: State) -> State:
    """Applies body(i, state) for each i and returns the final state. If there is only one iteration, it runs without a loop,
    with the constant i = 0."""
    return body(0, state) if times == 1 else jax.lax.fori_loop(0, times, body, state)


def _seen(plan: TpuPlan, i: Index, sign: int, body: Callable[[Index, State, int, Array | None], State], state: State) -> State:
    """Applies body(j, state, shift, there) to each block j that block `i` sees, and returns the final state. Block `i` sees all
    blocks, or with a radius only the blocks within reach. `sign` is 1 if `i` is a block of queries and -1 if it is a block of
    keys. `shift` is the offset in blocks from the queries to the keys. `there` is False if block j is outside the row."""
    if plan.radius is None:
        others = plan.blocks if sign == 1 else plan.query_blocks
        return _loop(others, lambda j, state: body(j, state, 0, None), state)
    if plan.blocks == 1:
        return body(0, state, 0, None)
    for shift in plan.shifts:
        j = jnp.asarray(i + sign * shift)
        state = body(jnp.clip(j, 0, plan.blocks - 1), state, shift, (j >= 0) & (j < plan.blocks))
    return state


def _span(block: int, i: Index) -> Positions:
    """Returns the positions of the block with index `i`, if every block has `block` positions."""
    return slice(0, block) if isinstance(i, int) else pl.ds(pl.multiple_of(i * block, block), block)


def _scaled(plan: TpuPlan, query: Float[Array, "Q D"]) -> Float[Array, "Q D"]:
    """Scales `query` by K**-0.5 log2(e). The factor log2(e) is needed because the hardware's only exponential is 2**x."""
    return query * np.asarray(plan.head_width**-0.5 * LOG2E, query.dtype)


@dataclasses.dataclass(frozen=True)
class Unit:
    """One group of heads in one row. A grid step computes one unit after another."""

    plan: TpuPlan
    random: RandomBits
    number: int
    """The index of the unit in the grid step."""
    key_ids: Ref
    """The sequence ids of the row, [1, L]."""
    query_ids: Ref
    """The sequence ids of the row's queries, [1, Q]. Equal to `key_ids` if every token is a query."""


class ForwardRefs(NamedTuple):
    """The references of the forward kernel. They refer to the arrays of a grid step, or to the arrays of one unit, which lack
    the leading axes."""

    query: Ref
    key: Ref
    value: Ref
    context: Ref
    sums: Ref


class BackwardRefs(NamedTuple):
    """The references of the backward kernel. They refer to the arrays of a grid step, or to the arrays of one unit, which
    lack the leading axes."""

    query: Ref
    key: Ref
    value: Ref
    context: Ref
    gradient: Ref
    sums: Ref
    of_query: Ref
    of_key: Ref
    of_value: Ref


def _units(plan: TpuPlan, seeds: Ref, ids: Sequence[Ref], refs: Refs) -> Iterator[tuple[Unit, Refs]]:
    """Yields each unit of a grid step with the unit's parts of `refs`. The parts have shape [Q or L, lanes], or [heads, Q] for
    the sums."""
    random = RandomBits(plan, seeds)
    rows, groups = plan.step
    for row in range(rows):
        for group in range(groups):
            wide, statistics = (row, slice(None), pl.ds(group * plan.lanes, plan.lanes)), (row, group)
            parts = {name: ref.at[statistics if name == "sums" else wide] for name, ref in refs._asdict().items()}
            of_row = Unit(plan, random, row * plan.groups + group, ids[0].at[row], ids[-1].at[row])
            yield of_row, refs._replace(**parts)


def _forward_kernel(plan: TpuPlan, seeds: Ref, *refs: Ref) -> None:
    """Computes the context and the sums of a grid step. Pallas passes the references by position. The sequence ids come first,
    then the fields of `ForwardRefs`."""
    count = len(plan.ids_shapes)
    for unit, parts in _units(plan, seeds, refs[:count], ForwardRefs(*refs[count:])):
        _forward_unit(unit, parts)


def _forward_unit(unit: Unit, refs: ForwardRefs) -> None:
    """Computes the context and the sums of a unit."""
    plan, random = unit.plan, unit.random
    query, key, value, context, sums = refs
    h_w = plan.head_width

    def visit_queries(i: Index, _: None) -> None:
        queries = _span(plan.query_block, i)
        heads = _each_head(plan, _scaled(plan, query[queries]))

        def visit_keys(j: Index, state: dict, shift: int, there: Array | None) -> dict:
            random.start(unit.number, i, j)
            keys = _span(plan.block, j)
            of_key, of_value, masked = key[keys], value[keys].T, _mask(unit, queries, keys, shift, there)

            def scores(tile: tuple[int, int, int]) -> Array:
                q, k, h = tile
                return dot(of_key[k : k + KEYS], heads[h][q : q + plan.queries], (-1, -1))

            for (q, k, h), raw in _ahead(plan.tiles(shift), AHEAD_FORWARD, scores):
                tile = masked(q, k, raw)
                highest, before = tile.max(axis=0, keepdims=True), state.get((q, h))
                if before is not None:
                    highest = jnp.maximum(highest, before[0])
                weights = jnp.exp2(tile - highest)
                total = weights.sum(axis=0, keepdims=True)
                kept = random.draw(weights.shape)(weights).astype(of_value.dtype)
                out = dot(of_value[h * h_w : (h + 1) * h_w, k : k + KEYS], kept, (-1, -2))
                if before is not None:
                    shrink = jnp.exp2(before[0] - highest)
                    total, out = total + before[1] * shrink, out + before[2] * shrink
                state = state | {(q, h): (highest, total, out)}
            return state

        state = _seen(plan, i, 1, visit_keys, _initial_state(plan) if plan.blocks > 1 else {})
        contexts = []
        for h in range(plan.heads):
            of_head = [state[q, h] for q in range(0, plan.query_block, plan.queries)]
            highest, total, out = (jnp.concatenate(parts, axis=1) for parts in zip(*of_head, strict=True))
            sums[h : h + 1, queries] = highest + jnp.log2(total)
            contexts.append(out * (1.0 / (total * (1.0 - plan.rate))))
        context[queries] = jnp.concatenate(contexts, axis=0).T.astype(context.dtype)

    _loop(plan.query_blocks, visit_queries, None)


def _initial_state(plan: TpuPlan) -> dict:
    """Returns the initial running maximum, sum and context for a block of queries, before the first block of keys."""
    row = jnp.zeros((1, plan.queries), jnp.float32)
    start = (row + 2 * MASKED_SCORE, row, jnp.zeros((plan.head_width, plan.queries), jnp.float32))
    return {(q, h): start for q in range(0, plan.query_block, plan.queries) for h in range(plan.heads)}


def _backward_kernel(plan: TpuPlan, seeds: Ref, *refs: Ref) -> None:
    """Computes the gradients of query, key and value of a grid step.

    Pallas passes the references by position. The sequence ids come first, then the fields of `BackwardRefs`. If a row has
    several blocks of keys, a reference to scratch memory follows.
    """
    first = len(plan.ids_shapes)
    last = first + len(BackwardRefs._fields)
    named, scratch = BackwardRefs(*refs[first:last]), refs[last:]
    for unit, parts in _units(plan, seeds, refs[:first], named):
        _backward_unit(unit, parts, *scratch)


def _backward_unit(unit: Unit, refs: BackwardRefs, scratch: Ref = None) -> None:
    """Computes the gradients of a unit. If a row has several blocks of keys, `scratch` [Q, lanes] accumulates the query
    gradient over these blocks."""
    plan = unit.plan
    scale = plan.head_width**-0.5 / (1.0 - plan.rate)
    if scratch is not None:
        scratch[...] = jnp.zeros_like(scratch)

    def visit_keys(j: Index, _: None) -> None:
        keys = _span(plan.block, j)

        def visit_queries(i: Index, totals: dict, shift: int, there: Array | None) -> dict:
            unit.random.start(unit.number, i, j)
            queries = _span(plan.query_block, i)
            masked = _mask(unit, queries, keys, shift, there)
            totals = totals | _backward_block(unit, refs, queries, keys, plan.tiles(shift), masked, totals)
            of_query = _whole(plan, totals, "query", plan.query_block, plan.queries).T
            if scratch is None:
                refs.of_query[...] = (of_query * scale).astype(refs.query.dtype)
            else:
                scratch[queries] += of_query
            return {at: x for at, x in totals.items() if at[0] != "query"}

        zeros = jnp.zeros((plan.head_width, KEYS), jnp.float32)
        empty = {(name, k, h): zeros for name in ("key", "value") for k in range(0, plan.block, KEYS) for h in range(plan.heads)}
        totals = _seen(plan, j, -1, visit_queries, empty if plan.query_blocks > 1 else {})
        refs.of_key[keys] = (_whole(plan, totals, "key", plan.block, KEYS).T * scale).astype(refs.key.dtype)
        of_value = _whole(plan, totals, "value", plan.block, KEYS).T * (1.0 / (1.0 - plan.rate))
        refs.of_value[keys] = of_value.astype(refs.value.dtype)

    _loop(plan.blocks, visit_keys, None)
    if scratch is not None:
        refs.of_query[...] = (scratch[...] * scale).astype(refs.query.dtype)


def _whole(plan: TpuPlan, parts: dict, name: str, block: int, size: int) -> Array:
    """Returns the gradient `name` of a block, [lanes, block]. The gradient is concatenated from its `parts` [head width,
    size]."""
    none = jnp.zeros((plan.head_width, size), jnp.float32)  # for queries that see no key in the block
    starts = range(0, block, size)
    heads = [jnp.concatenate([parts.get((name, x, h), none) for x in starts], axis=1) for h in range(plan.heads)]
    return jnp.concatenate(heads, axis=0)


def _backward_block(
    unit: Unit,
    refs: BackwardRefs,
    queries: Positions,
    keys: Positions,
    tiles: list[tuple[int, int, int]],
    masked: Callable[[int, int, Array], Array],
    totals: dict,
) -> dict:
    """Returns `totals` with the gradients of a block added. The dictionary maps ("query" | "key" | "value", first position,
    head) -> float32 [head width, positions]."""
    plan = unit.plan
    h_w, totals = plan.head_width, dict(totals)
    q_rows, k_rows, g_rows = refs.query[queries], refs.key[keys], refs.gradient[queries]
    v_rows, q_down, k_down, g_down = refs.value[keys], q_rows.T, k_rows.T, g_rows.T
    q_heads, g_heads = _each_head(plan, _scaled(plan, q_rows)), _each_head(plan, g_rows)
    sums_of_queries = refs.sums[:, queries]
    products = g_down.astype(jnp.float32) * refs.context[queries].T.astype(jnp.float32)
    # The sum over keys of weight x gradient equals the dot product of the context and its gradient. `scale` divides by 1 - rate
    # at the end.
    drift = [products[h * h_w : (h + 1) * h_w].sum(axis=0, keepdims=True) * (1.0 - plan.rate) for h in range(plan.heads)]

    def start(tile: tuple[int, int, int]) -> tuple[Array, Array]:
        q, k, h = tile
        here = slice(q, q + plan.queries)
        return dot(k_rows[k : k + KEYS], q_heads[h][here], (-1, -1)), dot(v_rows[k : k + KEYS], g_heads[h][here], (-1, -1))

    def add(at: tuple[str, int, int], x: Array) -> None:
        totals[at] = totals[at] + x if at in totals else x

    for (q, k, h), (scores, of_weights) in _ahead(tiles, AHEAD_BACKWARD, start):
        lanes, head = slice(q, q + plan.queries), slice(h * h_w, (h + 1) * h_w)
        weights = jnp.exp2(masked(q, k, scores - sums_of_queries[h : h + 1, lanes]))
        zeroed = unit.random.draw(weights.shape)
        kept = zeroed(weights).astype(q_down.dtype)
        of_scores = (weights * (zeroed(of_weights) - drift[h][:, lanes])).astype(q_down.dtype)
        add(("value", k, h), dot(g_down[head, lanes], kept, (-1, -1)))
        add(("key", k, h), dot(q_down[head, lanes], of_scores, (-1, -1)))
        add(("query", q, h), dot(k_down[head, k : k + KEYS], of_scores, (-1, -2)))
    return totals
