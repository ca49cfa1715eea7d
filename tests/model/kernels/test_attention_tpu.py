"""The fused TPU kernels, interpreted on a CPU, equal plain attention, forward and backward, with the same dropout mask in
both."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.kernels.attention_plan import TpuPlan
from bert_jax.model.kernels.fused_attention import fused_attention
from bert_jax.model.kernels.rotary_tpu import RotaryPlan, rotated
from bert_jax.model.layers import Dropout
from bert_jax.model.positions import Angles, rotary_angles, rotate
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from tests.model.attention_cases import (
    BFLOAT16_WITHIN,
    FLOAT32_WITHIN,
    RATE,
    SEED,
    arrays,
    columns,
    expected,
    fused,
    largest_error,
    on_mesh,
    packed,
    results,
    split_by_hand,
)
from tests.model.kernels.blocks import blocks_outside, calls


@functools.cache
def of_two_rows() -> tuple[Any, Any]:
    """Returns the ids and the attention of two rows that are computed in one grid step, in two tiles of keys."""
    ids = packed(2, 200)
    return ids, fused(ids, 1)


def test_context_and_gradients_equal_plain_attention():
    """67 heads of 32 are 17 groups of lanes, the last of them not full. Each is a grid step, since 17 is a prime number."""
    ids, inputs = packed(1, 100), arrays(1, 100, 67 * 32)
    assert TpuPlan.of(inputs[0].shape, 67, 0.0, interpret=True).step == (1, 1)
    assert largest_error(results(fused(ids, 67), *inputs), expected(ids, 67, inputs)) < FLOAT32_WITHIN
    (ids, attend), inputs = of_two_rows(), arrays(2, 200, 128)
    assert largest_error(results(attend, *inputs), expected(ids, 1, inputs)) < FLOAT32_WITHIN


def test_selected_queries_equal_the_same_queries_among_all(short_blocks: None):
    """Two blocks of queries, and three of keys."""
    length, queries = 300, 200
    ids, (query, key, value, gradient), at = packed(1, length), arrays(1, length, 2 * 64), columns(1, length, queries)
    some = np.take_along_axis(np.asarray(query), np.asarray(at)[..., None], axis=1)
    inputs = (some, key, value, gradient[:, :queries])
    found = results(fused(ids, 2, queried=at), *inputs)
    assert largest_error(found, expected(ids, 2, inputs, queried=at)) < FLOAT32_WITHIN


def test_attention_rotates_queries_and_keys_by_their_places():
    """The gradients of rotated queries and keys are the gradients of the others, rotated back."""
    length, theta, width = 50, 100.0, 128
    ids, (query, key, value, gradient) = packed(1, length), arrays(1, length, width)
    places, at = jnp.arange(length, dtype=jnp.int32)[None], columns(1, length, 11)

    @jax.jit
    def turned(x: Any, at: Any) -> Any:
        return rotate(x[:, :, None], at, theta, True)[:, :, 0]

    def inside(query: Any, key: Any, value: Any) -> Any:
        angles = Angles(*(rotary_angles(x, theta, width) for x in (at, places)), True)
        return fused(ids, 1, queried=at, angles=angles)(query, key, value)

    inputs = (query[:, :11], key, value, gradient[:, :11])
    context, *wanted = expected(ids, 1, (turned(inputs[0], at), turned(key, places), *inputs[2:]), queried=at)
    wanted[:2] = (turned(jnp.float32(x), -where) for x, where in zip(wanted[:2], (at, places), strict=True))
    assert largest_error(results(inside, *inputs), [context, *map(np.asarray, wanted)]) < FLOAT32_WITHIN


def test_the_kernel_rotates_the_pairs_of_every_head_and_gradients_back():
    x, gradient, *_ = arrays(1, 20, 192)
    places = jnp.arange(20, dtype=jnp.int32)[None]

    @jax.jit
    def run(x: Any, gradient: Any) -> tuple[list[Any], list[Any]]:
        found, wanted = [], []
        for width, interleaved in ((64, True), (32, False)):
            plan, heads = RotaryPlan(width, interleaved, interpret=True), (1, 20, 192 // width, width)
            factors = plan.factors(rotary_angles(places, 100.0, width))
            out, back = jax.vjp(lambda x, plan=plan, factors=factors: rotated(plan, x, *factors), x)
            found += [out, *back(gradient)]
            wanted += [rotate(y.reshape(heads), at, 100.0, interleaved) for y, at in ((x, places), (gradient, -places))]
        return found, [y.reshape(x.shape) for y in wanted]

    assert largest_error(*jax.device_get(run(x, gradient))) < FLOAT32_WITHIN


@pytest.mark.parametrize(
    ("shape", "dtype", "grid", "rows"),
    [
        ((8, 1_024, 768), "bfloat16", 8, 8_192),  # a block takes 8 MiB: two copies of two arrays in bfloat16 and two in float32
        ((1, 1_100, 384), "bfloat16", 2, 2_048),  # the largest power of two that fits
        ((1, 40, 96), "float32", 1, 48),
    ],
)
def test_rotation_reads_blocks_of_rows_that_fit_on_the_chip(shape: tuple[int, ...], dtype: str, grid: int, rows: int):
    factors = jax.ShapeDtypeStruct((*shape[:2], 128), jnp.float32)
    plan = RotaryPlan(32, interleaved=False, interpret=False)
    program = jax.make_jaxpr(functools.partial(rotated, plan))(jax.ShapeDtypeStruct(shape, dtype), factors, factors)
    (call,) = calls(program.jaxpr)
    assert (call.params["grid_mapping"].grid, call.outvars[0].aval.shape[0]) == ((grid,), rows)
    assert blocks_outside(program.jaxpr) == []


def test_the_error_of_bfloat16_is_within_its_rounding():
    ids, inputs = packed(1, 128), arrays(1, 128, 128, "bfloat16")
    exact = expected(ids, 2, inputs)
    for a, b in zip(results(fused(ids, 2), *inputs), exact, strict=True):
        assert np.sqrt(np.square(a - b).mean() / np.square(b).mean()) < BFLOAT16_WITHIN


def test_scores_far_from_zero_neither_overflow_nor_leak_between_examples():
    (ids, attend), (query, key, value, gradient) = of_two_rows(), arrays(2, 200, 128)
    found = results(attend, query * 30, key * 30, value, gradient)
    assert all(np.isfinite(x).all() for x in found)
    elsewhere = np.asarray(ids) != 2
    other = np.where(elsewhere[..., None], value, np.float32(1e4))
    changed = results(attend, query * 30, key * 30, other, gradient)[0]
    assert (changed[elsewhere] == found[0][elsewhere]).all()


@functools.cache
def masks() -> list[np.ndarray]:
    """Returns the dropout masks [B, H, L, T] of two seeds: with equal scores, a context is the mask applied to the values, which
    are columns of one-hots here. Each row has 17 grid steps of two groups of one head."""
    b, length, heads, width = 2, 128, 34, 128
    zero, ids = np.zeros((b, length, heads * width), np.float32), np.ones((b, length), np.int32)
    assert TpuPlan.of(zero.shape, heads, RATE, interpret=True).step == (1, 2)
    attend = jax.jit(lambda seed, value: fused(ids, heads, RATE, seed)(zero, zero, value))
    shown = np.tile(np.eye(length, dtype=np.float32), (b, 1, heads))
    found = []
    for seed in (SEED, SEED + 1):
        kept = np.asarray(attend(seed, shown)).reshape(b, length, heads, width).transpose(0, 2, 1, 3) * length * (1 - RATE)
        assert np.allclose(kept, kept.round(), atol=1e-4)
        found.append(kept.round())
    return found


def test_dropout_has_its_rate_everywhere_and_scales_kept_scores():
    kept, _ = masks()
    deviation = (RATE * (1 - RATE) / kept.size) ** 0.5
    assert set(np.unique(kept)) == {0.0, 1.0}
    assert abs(kept.mean() - (1 - RATE)) < 4 * deviation
    for axis in range(4):  # every row, head, query and key has its own mask
        means = kept.mean(axis=tuple(a for a in range(4) if a != axis))
        assert np.abs(means - (1 - RATE)).max() < 5 * deviation * len(means) ** 0.5


def test_rows_heads_grid_steps_halves_and_seeds_drop_independently():
    kept, others = (mask - (1 - RATE) for mask in masks())
    units = [*kept.reshape(-1, 128, 128), others[0, 0], *(np.roll(kept[0, 0], n, axis=1) for n in (1, 64))]
    flat = np.stack(units).reshape(len(units), -1)
    alike = np.abs(flat @ flat.T / flat.shape[1]) * (1 - np.eye(len(units)))
    assert alike.max() < 5 * RATE * (1 - RATE) / 128  # five deviations of a mean over 128 x 128 independent products


def slopes(length: int, heads: int, queried: Any) -> tuple[list[float], list[float]]:
    """Returns how much the loss changes along the gradient of values, queries and keys: computed by the backward pass, and by
    forward passes.

    For a fixed mask attention is a smooth function. If the backward pass drew another mask, its gradient would not be the slope.
    """
    ids, (query, key, value, gradient) = packed(1, length), arrays(1, length, 64 * heads)
    query, gradient = query[:, : queried.shape[1]], gradient[:, : queried.shape[1]]
    attend = fused(ids, heads, RATE, queried=queried)
    _, of_query, of_key, of_value = results(attend, query, key, value, gradient)

    def loss(query: Any, key: Any, value: Any) -> Any:
        return (results(attend, query, key, value, gradient)[0] * gradient).sum()

    backward, forward = [float((of_value * value).sum())], [float(loss(query, key, value))]  # linear in the values
    for slope, which in ((of_query, 0), (of_key, 1)):
        step = 3e-3 * slope / np.sqrt(np.square(slope).mean())
        ahead, behind = ([query, key], [query, key])
        ahead[which], behind[which] = ahead[which] + step, behind[which] - step
        backward.append(float((slope * step).sum()))
        forward.append(float(loss(*ahead, value) - loss(*behind, value)) / 2)
    return backward, forward


def test_both_passes_share_the_dropout_masks_of_several_blocks_and_heads(short_blocks: None):
    """`test_agreement.py` has a row of one block."""
    backward, forward = slopes(250, 2, columns(1, 250, 140))
    assert backward[0] == pytest.approx(forward[0], rel=1e-4)
    assert forward[1:] == pytest.approx(backward[1:], rel=5e-3)


def test_a_mesh_computes_selected_queries_like_one_device():
    """`test_attention_gpu.py` has an indivisible batch."""
    ids, (query, key, value, gradient), at = packed(4, 60), arrays(4, 60, 2 * 64), columns(4, 60, 20)
    inputs = [query[:, :20], key, value, gradient[:, :20]]
    some, mesh = fused(ids, 2, queried=at), make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    assert largest_error(on_mesh(mesh, some, inputs), expected(ids, 2, inputs, queried=at)) < FLOAT32_WITHIN


def test_every_device_of_a_mesh_drops_differently_also_if_rows_are_split_by_hand():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    one_row, zero, ids = arrays(1, 64, 64)[2], np.zeros((4, 64, 256), np.float32), np.ones((4, 64), np.int32)
    inputs = [zero, zero, np.tile(one_row, (4, 1, 4))]
    attend = functools.partial(fused, heads=4, rate=RATE)
    context = split_by_hand(mesh, attend, inputs, ids)
    units = context.reshape(4, 64, 4, 64).transpose(0, 2, 1, 3).reshape(16, -1)
    assert all(np.abs(a - b).max() > 1e-3 for i, a in enumerate(units) for b in units[:i])


def test_every_block_of_a_long_row_has_its_own_dropout_mask(short_blocks: None):
    rate, width, length = 0.5, 128, 256
    still, ids = np.zeros((1, length, width), np.float32), np.ones((1, length), np.int32)
    attend = jax.jit(fused(ids, 1, rate, seed=5))
    masks = []
    for block in (0, 1):  # values that show which keys of one block a query has kept
        shown = np.roll(np.eye(length, width, dtype=np.float32), block * width, axis=0)[None]
        kept = np.asarray(attend(still, still, shown)[0]) != 0
        masks += [kept[:width], kept[width:]]
    for i, mask in enumerate(masks):
        assert abs(mask.mean() - (1 - rate)) < 0.02
        for other in masks[:i]:
            assert abs((mask == other).mean() - 0.5) < 0.02, "two blocks have the same mask"


def gradients(query: Any, key: Any, value: Any, ids: Any, seed: Any) -> Any:
    """Returns the program of two heads' attention with dropout on a TPU: a forward pass and a backward pass."""

    def loss(*qkv: Any) -> Any:
        return fused_attention(qkv, ids, num_heads=2, dropout=Dropout(0.9, seed)).astype(jnp.float32).sum()

    return jax.grad(loss, (0, 1, 2))(query, key, value)


@pytest.mark.parametrize(
    ("length", "dtype", "tiles", "grid", "mib"),
    [
        (256, "bfloat16", 2 * 2 * 2, (1, 1), 16),  # two rows of two heads, two tiles of keys each
        (1_024, "float32", 2 * 4 * 2, (2, 1), 8 + 0.5 + 16),
    ],
)
def test_a_tpu_program_draws_16_bits_per_score_from_the_hardware_generator(
    length: int, dtype: str, tiles: int, grid: tuple[int, int], mib: float
):
    """At a rate of 0.9 a score is dropped if its word is below 58,982 of 65,536."""
    x = ((2, length, 128), dtype)
    arrays = [jax.ShapeDtypeStruct(*like) for like in (x, x, x, ((2, length), "int32"), ((), "uint32"))]
    traced = jax.jit(gradients).trace(*arrays)
    assert traced.lower(lowering_platforms=("tpu",)).as_text().count("custom_call @tpu_custom_call") == 2
    text = str(traced.jaxpr)
    assert text.count("prng_seed ") == 2  # a stream for the only block of each kernel, or within its loops
    assert text.count("= prng_random_bits[shape=(64, 256)]") == 2 * tiles
    threshold = 58_982 * 65_536 - 2**31
    assert len(re.findall(rf"bool\[64,256\] = ge \w+ {threshold}:", text)) == 2 * 2 * tiles
    assert len(re.findall(r"i32\[64,256\] = shift_left \w+ 16:", text)) == 2 * tiles
    assert text.count(f"grid={grid}") == text.count("dimension_semantics=('parallel', 'parallel')") == 2
    assert text.count(f"vmem_limit_bytes={round(mib * 2**20)},") == 2
    assert blocks_outside(traced.jaxpr.jaxpr) == []
