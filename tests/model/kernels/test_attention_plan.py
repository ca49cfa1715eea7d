"""The block sizes of the TPU attention kernels, and the offsets by which a device finds its dropout words."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from bert_jax.model.kernels import MASKED_SCORE, attention_tpu
from bert_jax.model.kernels.attention_plan import (
    Placement,
    TpuPlan,
    divides_lanes,
    padded_length,
    rotates_heads,
    vmem_bytes,
)

MIB = 1 << 20


def plan_of(rows: int, length: int, heads: int, head_width: int, rate: float = 0.0) -> TpuPlan:
    return TpuPlan.of((rows, length, heads * head_width), heads, rate, interpret=True)


@pytest.mark.parametrize(
    ("length", "padded", "blocks", "queries"),
    [
        (1, 128, 1, 128),
        (128, 128, 1, 128),
        (129, 256, 1, 256),
        (384, 384, 1, 384),
        (512, 512, 1, 256),
        (513, 1_024, 2, 256),
        (8_192, 8_192, 16, 256),
    ],
)
def test_a_row_is_padded_to_whole_tiles_and_beyond_512_to_whole_blocks(length: int, padded: int, blocks: int, queries: int):
    plan = plan_of(2, length, 4, 64)
    assert (padded_length(length), plan.length, plan.blocks, plan.queries) == (padded, padded, blocks, queries)
    tiles = [(q, k, h) for q in range(0, min(padded, 512), queries) for k in range(0, min(padded, 512), 128) for h in (0, 1)]
    assert plan.tiles() == tiles


@pytest.mark.parametrize(
    ("length", "queries", "padded"),
    [(512, 1, 128), (512, 129, 256), (512, 300, 384), (513, 1, 256), (1_024, 315, 512), (8_192, 257, 512), (8_192, 513, 1_024)],
)
def test_queries_at_some_tokens_fill_tiles_of_256_if_a_row_has_several_blocks(length: int, queries: int, padded: int):
    plan = TpuPlan.of((2, length, 256), 4, 0.0, queried=queries, interpret=True)
    assert plan.query_length == padded


@pytest.mark.parametrize(
    ("heads", "head_width", "groups", "lanes", "heads_of_a_group"),
    [(4, 64, 2, 128, 2), (3, 64, 2, 128, 2), (8, 16, 1, 128, 8), (9, 16, 2, 128, 8), (2, 128, 2, 128, 1), (3, 256, 3, 256, 1)],
)
def test_heads_share_groups_of_128_lanes_or_have_a_wider_group_each(
    heads: int, head_width: int, groups: int, lanes: int, heads_of_a_group: int
):
    plan = plan_of(1, 128, heads, head_width)
    assert (plan.groups, plan.lanes, plan.heads, plan.width) == (groups, lanes, heads_of_a_group, groups * lanes)


@pytest.mark.parametrize(
    ("rows", "length", "heads", "head_width", "step"),
    [
        (32, 128, 16, 64, (2, 8)),  # BERT-Large: 16 units of 2 heads x 128 x 128 are 2**19 scores
        (64, 128, 4, 32, (8, 1)),  # 8 units of 4 heads
        (64, 128, 1, 128, (16, 1)),  # 16 units take 8 MiB, with half of the scores
        (36, 128, 1, 128, (12, 1)),  # 18 rows would take more
        (6, 128, 3, 64, (6, 2)),
        (32, 256, 16, 64, (1, 4)),  # with several rows, only all groups together
        (4, 512, 16, 64, (1, 1)),
        (4, 512, 4, 256, (1, 2)),
        (4, 8_192, 16, 64, (1, 1)),  # one unit, however large
    ],
)
def test_a_grid_step_has_at_most_half_a_million_scores_and_8_mib_unless_it_is_one_unit(
    rows: int, length: int, heads: int, head_width: int, step: tuple[int, int]
):
    assert plan_of(rows, length, heads, head_width).step == step


@pytest.mark.parametrize(
    ("length", "heads", "head_width", "dtype", "mib"),
    [
        (512, 16, 64, "bfloat16", 2 + 4),
        (512, 16, 64, "float32", 4 + 16),
        (128, 16, 64, "bfloat16", 8 + 4),  # 16 units
        (512, 2, 256, "bfloat16", 8 + 8),  # two units, and twice as many registers
        (1_024, 16, 64, "bfloat16", 4 + 0.5 + 4),  # the queries' gradient is accumulated over two blocks
        (4_096, 16, 64, "float32", 32 + 2 + 16),
    ],
)
def test_the_vector_memory_counts_arrays_sums_and_spilled_registers(
    length: int, heads: int, head_width: int, dtype: str, mib: float
):
    assert vmem_bytes(plan_of(32, length, heads, head_width), dtype) == mib * MIB


def test_heads_are_rotated_in_pairs_and_whole_heads_fill_the_lanes():
    assert [width for width in range(1, 400) if rotates_heads(width)] == [2, 4, 8, 16, 32, 64, 128]


def test_head_widths_divide_or_fill_the_lanes():
    assert [width for width in range(1, 400) if divides_lanes(width)] == [16, 32, 64, 128, 256, 384]


def test_a_dropout_rate_is_a_multiple_of_a_65536th():
    assert plan_of(1, 128, 1, 64, rate=0.1).rate == 6_554 / 65_536
    assert plan_of(1, 128, 1, 64, rate=0.9).rate == 58_982 / 65_536


def test_a_device_gets_its_first_row_and_first_group():
    place = Placement(jnp.uint32(2**32 - 1), jnp.uint32(5), jnp.uint32(3), heads_shards=4)
    # three of twelve heads need two groups, so row 5 of the last of four devices ends where row 6 of the first begins
    assert plan_of(2, 128, 3, 64).seeds(place).tolist() == [-1, 5, 3 * 2, 4 * 2]
    assert plan_of(2, 128, 3, 128).seeds(place).tolist() == [-1, 5, 3 * 3, 12]


def test_every_score_is_above_the_maximum_before_the_first_block():
    state = attention_tpu._initial_state(plan_of(1, 1_024, 2, 64))
    assert state.keys() == {(q, h) for q in (0, 256) for h in (0, 1)}
    for highest, total, context in state.values():
        assert highest.shape == total.shape == (1, 256)
        assert context.shape == (64, 256)
        assert highest.max() < MASKED_SCORE
        assert not total.any()
