"""Attention within a window, in every implementation that skips keys out of reach, equals plain attention with a band as its
mask."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.attention import attention_by_head
from bert_jax.model.layers import Dropout
from tests.model.attention_cases import (
    BFLOAT16_WITHIN,
    FLOAT32_WITHIN,
    SEED,
    arrays,
    expected,
    fused,
    largest_error,
    packed,
    results,
)
from tests.model.lowbias32 import rate_at_a_word

RATE = rate_at_a_word(int(SEED), axes=4)


def by_head(ids: Any, heads: int, rate: float = 0.0, radius: int | None = None, one_cpu: bool = False) -> Any:
    """Calls `attention_by_head` on arrays [B, L, D]."""
    dropout = Dropout(rate, jnp.uint32(SEED) if rate else None)

    def attend(*qkv: Any) -> Any:
        b, length, width = qkv[0].shape
        query, key, value = (x.reshape(b, length, heads, width // heads).swapaxes(1, 2) for x in qkv)
        context = attention_by_head(query, key, value, ids, dropout, one_cpu, radius)
        return context.swapaxes(1, 2).reshape(b, length, width)

    return attend


@pytest.mark.parametrize(
    ("b", "length", "examples", "radius", "rate"),
    [
        (2, 100, 3, 17, RATE),
        (1, 300, 1, 129, 0.0),  # reaches one key of the block after the next
        (1, 40, 3, 300, 0.0),  # wider than the row
    ],
)
def test_a_window_is_a_band_of_the_mask(b: int, length: int, examples: int, radius: int, rate: float):
    ids, inputs = packed(b, length, examples), arrays(b, length, 2 * 64)
    found = results(by_head(ids, 2, rate, radius), *inputs)
    assert largest_error(found, expected(ids, 2, inputs, rate, radius)) < FLOAT32_WITHIN


def test_the_gpu_kernel_sees_the_band_of_a_window():
    """The radius reaches one key of the tile after the next. The second row has one example, the first has three."""
    ids, inputs = np.concatenate([packed(1, 100), packed(1, 100, 1)]), arrays(2, 100, 2 * 64)
    found = results(fused(ids, 2, RATE, platform="gpu", radius=33), *inputs)
    assert largest_error(found, expected(ids, 2, inputs, RATE, 33)) < FLOAT32_WITHIN


def test_the_error_of_bfloat16_is_within_its_rounding():
    ids, inputs = packed(2, 200), arrays(2, 200, 128, "bfloat16")
    exact = expected(ids, 2, inputs, radius=20)
    for a, b in zip(results(by_head(ids, 2, radius=20, one_cpu=True), *inputs), exact, strict=True):
        within = 2 * BFLOAT16_WITHIN  # the scores are rounded too
        assert np.sqrt(np.square(a - b).mean() / np.square(b).mean()) < within


def test_attention_by_head_equals_all_heads_at_once_with_dropout():
    ids, inputs = packed(3, 130), arrays(3, 130, 64)
    found = results(by_head(ids, 2, RATE, one_cpu=True), *inputs)
    assert largest_error(found, expected(ids, 2, inputs, RATE)) < FLOAT32_WITHIN


def test_the_tpu_kernel_sees_the_band_of_a_window(short_blocks: None):
    """The radius reaches one key of the block after the next."""
    radius, length = 129, 500
    ids, inputs = packed(1, length, 1), arrays(1, length, 128)
    found = results(fused(ids, 1, radius=radius), *inputs)
    assert largest_error(found, expected(ids, 1, inputs, radius=radius)) < FLOAT32_WITHIN


def test_the_tpu_kernel_shares_dropout_masks_between_both_passes_of_a_window(short_blocks: None):
    ids, (query, key, value, gradient) = np.ones((1, 384), np.int32), arrays(1, 384, 128)
    attend = fused(ids, 1, RATE, radius=20)
    context, _, _, of_value = results(attend, query, key, value, gradient)
    # the context is linear in the values, so its slope along their gradient is the square of that gradient
    moved = results(attend, query, key, value + of_value, gradient)[0] - context
    assert float((moved * gradient).sum()) == pytest.approx(float(np.square(of_value).sum()), rel=1e-4)


def test_a_window_costs_its_keys_and_not_the_row():
    def flops(length: int) -> float:
        shapes = [jax.ShapeDtypeStruct((1, length, 32), jnp.float32)] * 3
        ids = np.ones((1, length), np.int32)
        found = jax.jit(by_head(ids, 1, radius=16)).lower(*shapes).compile().cost_analysis()
        return float(found["flops"])

    assert flops(2048) / flops(512) < 4.2
