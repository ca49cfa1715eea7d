"""The TPU kernels of fused attention: the scores of a row live and die on the chip.

Everything between the first and the last product is kept transposed, keys down the sublanes and queries across the lanes:

    scores  K Q^T [keys, queries]     context^T = V^T P     dQ^T = K^T dS     dK^T = Q^T dS^T     dV^T = dO^T P^T

so the softmax's statistics are rows [1, queries], which cost nothing to spread, and in every product with a matrix of scores
that matrix is what the matrix unit holds still while the 64 rows of a head pass by. The other way round all 512 rows of
scores pass by and only 64 of 128 columns come out: on v5e a product takes 490 bundles then and 250 so.

A head is picked by zeros in the other heads' lanes: the contraction is 128 deep anyway, so two heads of width 64 sit in a
block as the projections left them, and nothing is moved. Tiles of scores are issued ahead of their use, since the compiler's
scheduler keeps nearly to the order of the program: products of the next tiles fill the time that the exponentials take.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from bert_jax.model.kernels.attention_plan import KEYS, LANES, LOG2E, MASKED_SCORE, Plan, vmem_bytes
from bert_jax.model.layers import hash_word, random_words
from bert_jax.model.products import precision

Ref = Any
"""A reference to an array on the chip, as Pallas hands it to a kernel."""
Positions = Any
"""Neighbouring positions of a row: a slice, or `pl.ds(start, size)`."""
Index = int | Int[Array, ""]
"""The number of a block: of a loop, or a constant where there is one block alone."""
Item = TypeVar("Item")
Made = TypeVar("Made")
State = TypeVar("State")

AHEAD_FORWARD, AHEAD_BACKWARD = 4, 2
"""Tiles whose first products are issued before they are needed."""
VMEM_LEAST = 16 << 20
"""Bytes that a kernel may take on any chip. It asks for more only where it needs more: XLA keeps its own arrays in the rest."""


def forward(
    plan: Plan,
    query: Float[Array, "B L D"],
    key: Float[Array, "B L D"],
    value: Float[Array, "B L D"],
    ids: Int[Array, "B 1 L"],
    seeds: Int[Array, " 4"],
) -> Sequence[Float[Array, " ..."]]:
    """The context [B, L, D] and, for `backward`, log2 of the sums of the softmax, float32 [B, G, J, L].

    `seeds` are the dropout seed, the places of the first row and of the first group among all, and the number of groups.
    """
    wide, statistics = _specs(plan)
    return _call(plan, _forward_kernel, 3 * [wide], [wide, statistics], [])(seeds, ids, query, key, value)


def backward(
    plan: Plan,
    query: Float[Array, "B L D"],
    key: Float[Array, "B L D"],
    value: Float[Array, "B L D"],
    ids: Int[Array, "B 1 L"],
    seeds: Int[Array, " 4"],
    context: Float[Array, "B L D"],
    sums: Float[Array, "B G J L"],
    gradient: Float[Array, "B L D"],
) -> Sequence[Float[Array, "B L D"]]:
    """The gradients of query, key and value, from the arguments and results of `forward` and the gradient of the context."""
    wide, statistics = _specs(plan)
    scratch = [pltpu.VMEM((plan.length, plan.lanes), jnp.float32)] if plan.blocks > 1 else []
    call = _call(plan, _backward_kernel, 5 * [wide] + [statistics], 3 * [wide], scratch)
    return call(seeds, ids, query, key, value, context, gradient, sums)


def _specs(plan: Plan) -> tuple[tuple, tuple]:
    """(block, index map, whole shape) of [B, L, D] and of the softmax's sums."""
    rows, groups = plan.step
    return (
        ((rows, plan.length, groups * plan.lanes), lambda b, g: (b, 0, g), (plan.rows, plan.length, plan.groups * plan.lanes)),
        ((rows, groups, plan.heads, plan.length), lambda b, g: (b, g, 0, 0), (plan.rows, plan.groups, plan.heads, plan.length)),
    )


def _call(plan: Plan, kernel: Callable, inputs: list, outputs: list, scratch: list) -> Callable:
    rows, groups = plan.step

    def call(seeds: Int[Array, " 4"], ids: Int[Array, "B 1 L"], *arrays: Float[Array, " ..."]) -> Sequence[Float[Array, " ..."]]:
        return pl.pallas_call(
            functools.partial(kernel, plan),
            grid=(plan.rows // rows, plan.groups // groups),
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.SMEM),
                pl.BlockSpec((rows, 1, plan.length), lambda b, g: (b, 0, 0)),
                *(pl.BlockSpec(block, index) for block, index, _ in inputs),
            ],
            out_specs=[pl.BlockSpec(block, index) for block, index, _ in outputs],
            out_shape=[jax.ShapeDtypeStruct(s, arrays[0].dtype if len(s) == 3 else jnp.float32) for _, _, s in outputs],
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel"),
                vmem_limit_bytes=max(VMEM_LEAST, vmem_bytes(plan, arrays[0].dtype)),
            ),
            interpret=plan.interpret,
        )(seeds, ids, *arrays)

    return call


class Dropout:
    """The bits that decide what is dropped: a stream a grid step (a stream a block where a row has several).

    A 32-bit word decides two scores, by its upper and its lower half, so a rate is a multiple of 2**-16. On the chip the words
    come from its own generator, which has an instruction slot to itself; a counter hash would take 20 of the vector unit's
    operations a score, more than all the rest. Interpreted, they come from that hash.
    """

    def __init__(self, plan: Plan, seeds: Ref):
        self.plan, self.drawn = plan, 0
        rows, groups = plan.step
        layer, first_row, first_group, all_groups = (seeds[i].astype(jnp.uint32) for i in range(4))
        row, group = pl.program_id(0) * rows, pl.program_id(1) * groups
        self.word_of_layer = layer
        self.step = (first_row + row.astype(jnp.uint32)) * all_groups + first_group + group.astype(jnp.uint32)

    def start(self, unit: int, i: Index, j: Index) -> None:
        """Begins the stream of a block (i, j) of a row and group, `unit`; where a row is one block, the step's only stream."""
        if not self.plan.rate or (self.plan.blocks == 1 and self.drawn):
            return
        stream = (unit * self.plan.blocks + i) * self.plan.blocks + j
        self.word = hash_word(hash_word(self.word_of_layer + self.step) + jnp.asarray(stream, jnp.uint32))
        if not self.plan.interpret:
            pltpu.prng_seed(self.word.astype(jnp.int32))

    def draw(self, shape: tuple[int, ...]) -> Callable[[Array], Array]:
        """A function that zeroes, of any number of arrays of that shape, the same elements."""
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


def _product(a: Float[Array, "_ _"], b: Float[Array, "_ _"], over: tuple[int, int]) -> Float[Array, "_ _"]:
    """a b summed over axis `over[0]` of a and `over[1]` of b, accumulated in float32."""
    contract = (((over[0],), (over[1],)), ((), ()))
    return jax.lax.dot_general(a, b, contract, precision=precision(a.dtype), preferred_element_type=jnp.float32)


def _each_head(plan: Plan, x: Float[Array, "L D"]) -> list[Float[Array, "L D"]]:
    """The lanes of a group for some tokens, once for each head, the other heads' lanes zero."""
    if plan.heads == 1:
        return [x]
    lane, width = jax.lax.broadcasted_iota(jnp.int32, (1, plan.lanes), 1), plan.head_width
    return [jnp.where((lane >= h * width) & (lane < (h + 1) * width), x, jnp.zeros((), x.dtype)) for h in range(plan.heads)]


def _same_example(plan: Plan, ids: Ref, queries: Positions, keys: Positions) -> Callable[[int, int, Array], Array]:
    """A function that masks the tile of scores at (query, key) of a block; ids [1, L]."""
    of_queries = ids[:, queries]
    down = jnp.broadcast_to(ids[:, keys], (LANES, plan.block)).T
    of_keys = jnp.concatenate([down] * (plan.queries // LANES), axis=1)

    def masked(q: int, k: int, scores: Array) -> Array:
        same = of_keys[k : k + KEYS] == of_queries[:, q : q + plan.queries]
        return jnp.where(same, scores, MASKED_SCORE)

    return masked


def _ahead(items: list[Item], by: int, start: Callable[[Item], Made]) -> Iterator[tuple[Item, Made]]:
    """(item, start(item)) for each, with `start` called `by` items early."""
    started = [start(item) for item in items[:by]]
    for i, item in enumerate(items):
        if i + by < len(items):
            started.append(start(items[i + by]))
        yield item, started.pop(0)


def _loop(times: int, body: Callable[[Index, State], State], state: State) -> State:
    """body(i, state) for each i; a single trip is no loop, and its `i` a constant."""
    return body(0, state) if times == 1 else jax.lax.fori_loop(0, times, body, state)


def _span(plan: Plan, i: Index) -> Positions:
    """The positions of block `i`."""
    return slice(0, plan.block) if isinstance(i, int) else pl.ds(pl.multiple_of(i * plan.block, plan.block), plan.block)


def _scaled(plan: Plan, query: Float[Array, "Q D"]) -> Float[Array, "Q D"]:
    """Queries whose products are scores in units of log 2, the only exponential that the hardware has."""
    return query * np.asarray(plan.head_width**-0.5 * LOG2E, query.dtype)


def _forward_kernel(plan: Plan, seeds: Ref, ids: Ref, query: Ref, key: Ref, value: Ref, context: Ref, sums: Ref) -> None:
    dropout = Dropout(plan, seeds)
    for row in range(query.shape[0]):
        for group in range(query.shape[2] // plan.lanes):
            at = (row, slice(None), pl.ds(group * plan.lanes, plan.lanes))
            arrays = (query.at[at], key.at[at], value.at[at], context.at[at], sums.at[row, group])
            _forward_row(plan, dropout, row * plan.groups + group, ids.at[row], *arrays)


def _forward_row(
    plan: Plan, dropout: Dropout, unit: int, ids: Ref, query: Ref, key: Ref, value: Ref, context: Ref, sums: Ref
) -> None:
    """One row of one group: query, key, value, context refs [L, lanes], ids [1, L], sums [heads, L]."""
    h_w = plan.head_width

    def of_queries(i: Index, _: None) -> None:
        queries = _span(plan, i)
        heads = _each_head(plan, _scaled(plan, query[queries]))

        def of_keys(j: Index, state: dict) -> dict:
            dropout.start(unit, i, j)
            keys = _span(plan, j)
            of_key, of_value, masked = key[keys], value[keys].T, _same_example(plan, ids, queries, keys)

            def scores(tile: tuple[int, int, int]) -> Array:
                q, k, h = tile
                return _product(of_key[k : k + KEYS], heads[h][q : q + plan.queries], (1, 1))

            for (q, k, h), raw in _ahead(plan.tiles, AHEAD_FORWARD, scores):
                tile = masked(q, k, raw)
                highest, before = tile.max(axis=0, keepdims=True), state.get((q, h))
                if before is not None:
                    highest = jnp.maximum(highest, before[0])
                weights = jnp.exp2(tile - highest)
                total = weights.sum(axis=0, keepdims=True)
                kept = dropout.draw(weights.shape)(weights).astype(of_value.dtype)
                out = _product(of_value[h * h_w : (h + 1) * h_w, k : k + KEYS], kept, (1, 0))
                if before is not None:
                    shrink = jnp.exp2(before[0] - highest)
                    total, out = total + before[1] * shrink, out + before[2] * shrink
                state = state | {(q, h): (highest, total, out)}
            return state

        state = _loop(plan.blocks, of_keys, _nothing_seen(plan) if plan.blocks > 1 else {})
        contexts = []
        for h in range(plan.heads):
            of_head = [state[q, h] for q in range(0, plan.block, plan.queries)]
            highest, total, out = (jnp.concatenate(parts, axis=1) for parts in zip(*of_head, strict=True))
            sums[h : h + 1, queries] = highest + jnp.log2(total)
            contexts.append(out * (1.0 / (total * (1.0 - plan.rate))))
        context[queries] = jnp.concatenate(contexts, axis=0).T.astype(context.dtype)

    _loop(plan.blocks, of_queries, None)


def _nothing_seen(plan: Plan) -> dict:
    row = jnp.zeros((1, plan.queries), jnp.float32)
    start = (row + 2 * MASKED_SCORE, row, jnp.zeros((plan.head_width, plan.queries), jnp.float32))
    return {(q, h): start for q in range(0, plan.block, plan.queries) for h in range(plan.heads)}


def _backward_kernel(
    plan: Plan, seeds: Ref, ids: Ref, query: Ref, key: Ref, value: Ref, context: Ref, gradient: Ref, sums: Ref,
    of_query: Ref, of_key: Ref, of_value: Ref, *scratch: Ref,
) -> None:  # fmt: skip
    dropout = Dropout(plan, seeds)
    for row in range(query.shape[0]):
        for group in range(query.shape[2] // plan.lanes):
            at = (row, slice(None), pl.ds(group * plan.lanes, plan.lanes))
            inputs = [x.at[at] for x in (query, key, value, context, gradient)]
            outputs = [x.at[at] for x in (of_query, of_key, of_value)]
            _backward_row(plan, dropout, row * plan.groups + group, ids.at[row], sums.at[row, group], inputs, outputs, *scratch)


def _backward_row(
    plan: Plan, dropout: Dropout, unit: int, ids: Ref, sums: Ref, inputs: list[Ref], outputs: list[Ref], scratch: Ref = None
) -> None:
    """One row of one group: `inputs` and `outputs` refs [L, lanes]; `scratch` [L, lanes] adds up the queries' gradient over the
    blocks of keys."""
    query, key, value, _, _ = inputs
    scale = plan.head_width**-0.5 / (1.0 - plan.rate)
    if scratch is not None:
        scratch[...] = jnp.zeros_like(scratch)

    def of_keys(j: Index, _: None) -> None:
        keys = _span(plan, j)

        def of_queries(i: Index, totals: dict) -> dict:
            dropout.start(unit, i, j)
            totals = totals | _backward_block(plan, dropout, ids, sums, inputs, _span(plan, i), keys, totals)
            of_query = _whole(plan, totals, "query", plan.queries).T
            if scratch is None:
                outputs[0][...] = (of_query * scale).astype(query.dtype)
            else:
                scratch[_span(plan, i)] += of_query
            return {at: x for at, x in totals.items() if at[0] != "query"}

        zeros = jnp.zeros((plan.head_width, KEYS), jnp.float32)
        empty = {(name, k, h): zeros for name in ("key", "value") for k in range(0, plan.block, KEYS) for h in range(plan.heads)}
        totals = _loop(plan.blocks, of_queries, empty if plan.blocks > 1 else {})
        outputs[1][keys] = (_whole(plan, totals, "key", KEYS).T * scale).astype(key.dtype)
        outputs[2][keys] = (_whole(plan, totals, "value", KEYS).T * (1.0 / (1.0 - plan.rate))).astype(value.dtype)

    _loop(plan.blocks, of_keys, None)
    if scratch is not None:
        outputs[0][...] = (scratch[...] * scale).astype(query.dtype)


def _whole(plan: Plan, parts: dict, name: str, size: int) -> Array:
    """[lanes, block] from its parts [head width, size]."""
    heads = [jnp.concatenate([parts[name, x, h] for x in range(0, plan.block, size)], axis=1) for h in range(plan.heads)]
    return jnp.concatenate(heads, axis=0)


def _backward_block(
    plan: Plan, dropout: Dropout, ids: Ref, sums: Ref, inputs: list[Ref], queries: Positions, keys: Positions, totals: dict
) -> dict:
    """Adds a block's share to `totals`: ("query" | "key" | "value", first position, head) -> [head width, positions]."""
    query, key, value, context, gradient = inputs
    h_w, totals = plan.head_width, dict(totals)
    q_rows, k_rows, g_rows = query[queries], key[keys], gradient[queries]
    v_rows, q_down, k_down, g_down = value[keys], q_rows.T, k_rows.T, g_rows.T
    q_heads, g_heads = _each_head(plan, _scaled(plan, q_rows)), _each_head(plan, g_rows)
    masked, sums_of_queries = _same_example(plan, ids, queries, keys), sums[:, queries]
    products = g_down.astype(jnp.float32) * context[queries].T.astype(jnp.float32)
    # sum over keys of weights x their gradient = context . its gradient; (1 - rate) because `scale` divides all by it at the end
    drift = [products[h * h_w : (h + 1) * h_w].sum(axis=0, keepdims=True) * (1.0 - plan.rate) for h in range(plan.heads)]

    def start(tile: tuple[int, int, int]) -> tuple[Array, Array]:
        q, k, h = tile
        here = slice(q, q + plan.queries)
        return _product(k_rows[k : k + KEYS], q_heads[h][here], (1, 1)), _product(v_rows[k : k + KEYS], g_heads[h][here], (1, 1))

    def add(at: tuple[str, int, int], x: Array) -> None:
        totals[at] = totals[at] + x if at in totals else x

    for (q, k, h), (scores, of_weights) in _ahead(plan.tiles, AHEAD_BACKWARD, start):
        lanes, head = slice(q, q + plan.queries), slice(h * h_w, (h + 1) * h_w)
        weights = jnp.exp2(masked(q, k, scores - sums_of_queries[h : h + 1, lanes]))
        zeroed = dropout.draw(weights.shape)
        kept = zeroed(weights).astype(q_down.dtype)
        of_scores = (weights * (zeroed(of_weights) - drift[h][:, lanes])).astype(q_down.dtype)
        add(("value", k, h), _product(g_down[head, lanes], kept, (1, 1)))
        add(("key", k, h), _product(q_down[head, lanes], of_scores, (1, 1)))
        add(("query", q, h), _product(k_down[head, k : k + KEYS], of_scores, (1, 0)))
    return totals
