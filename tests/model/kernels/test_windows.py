"""Attention within a window, in every implementation that skips keys out of reach, equals plain attention with a band as its
mask."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.attention import attention_by_head
from bert_jax.model.kernels import attention_plan
from bert_jax.model.layers import Dropout
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from tests.model.attention_cases import (
    BFLOAT16_WITHIN,
    FLOAT32_WITHIN,
    RATE,
    SEED,
    arrays,
    fused,
    largest_error,
    on_mesh,
    packed,
    plain,
    results,
)


def by_head(ids: Any, heads: int, rate: float = 0.0, radius: int | None = None, one_cpu: bool = False) -> Any:
    """Calls `attention_by_head` on arrays [B, L, D]."""
    dropout = Dropout(rate, jnp.uint32(SEED) if rate else None)

    def attend(*qkv: Any) -> Any:
        b, length, width = qkv[0].shape
        query, key, value = (x.reshape(b, length, heads, width // heads).swapaxes(1, 2) for x in qkv)
        context = attention_by_head(query, key, value, ids, dropout, one_cpu, radius)
        return context.swapaxes(1, 2).reshape(b, length, width)

    return attend


FORMS = {
    "XLA": lambda ids, heads, rate, radius: by_head(ids, heads, rate, radius),
    "XLA on one CPU": lambda ids, heads, rate, radius: by_head(ids, heads, rate, radius, one_cpu=True),
    "GPU": lambda ids, heads, rate, radius: fused(ids, heads, rate, platform="gpu", radius=radius),
    "TPU": lambda ids, heads, rate, radius: fused(ids, heads, rate, platform="tpu", radius=radius),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("b", "length", "heads", "head_width", "radius", "rate"),
    [
        (2, 300, 2, 32, 64, 0.0),
        (1, 150, 1, 64, 7, 0.0),  # a radius that does not fill a block
        (1, 200, 2, 32, 130, 0.0),  # wider than a block of queries
        (2, 51, 2, 16, 4, 0.0),
        (2, 40, 1, 32, 300, 0.0),  # wider than the row
        (2, 200, 2, 32, 20, RATE),
    ],
)
def test_a_window_is_a_band_of_the_mask(form: str, b: int, length: int, heads: int, head_width: int, radius: int, rate: float):
    if form == "TPU" and rate:
        pytest.skip("the TPU's kernel has dropout masks of its own")
    ids, inputs = packed(b, length), arrays(b, length, heads * head_width)
    found = results(FORMS[form](ids, heads, rate, radius), *inputs)
    assert largest_error(found, results(plain(ids, heads, rate, radius=radius), *inputs)) < FLOAT32_WITHIN


@pytest.mark.parametrize("form", FORMS)
def test_the_error_of_bfloat16_is_within_its_rounding(form: str):
    ids, inputs = packed(2, 200), arrays(2, 200, 128, "bfloat16")
    exact = results(plain(ids, 2, radius=20), *(x.astype(jnp.float32) for x in inputs))
    within = BFLOAT16_WITHIN * (2 if "XLA" in form else 1)  # XLA's program rounds the scores too
    for a, b in zip(results(FORMS[form](ids, 2, 0.0, 20), *inputs), exact, strict=True):
        assert np.sqrt(np.square(a - b).mean() / np.square(b).mean()) < within


@pytest.mark.parametrize("form", FORMS)
def test_a_token_at_the_radius_is_seen_and_the_next_one_is_not(form: str):
    ids, inputs = jnp.ones((1, 256), jnp.int32), arrays(1, 256, 64)[:3]
    attend = FORMS[form](ids, 2, 0.0, 64)
    moved = [x.at[0, 100].add(3.0) for x in inputs[1:]]
    changed = np.asarray(jnp.abs(attend(inputs[0], *moved) - attend(*inputs)).max(-1))[0] > 0
    assert np.flatnonzero(changed).tolist() == list(range(100 - 64, 100 + 65))


def test_attention_by_head_equals_all_heads_at_once_with_dropout():
    for length, rate in ((130, 0.0), (64, RATE)):
        ids, inputs = packed(3, length), arrays(3, length, 64)
        found = results(by_head(ids, 2, rate, one_cpu=True), *inputs)
        assert largest_error(found, results(plain(ids, 2, rate), *inputs)) < FLOAT32_WITHIN


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_eight_devices_see_the_window_of_one_device(platform: str):
    ids, inputs = packed(4, 140), arrays(4, 140, 2 * 32)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    found = on_mesh(mesh, fused(ids, 2, platform=platform, radius=9), inputs)
    assert largest_error(found, results(plain(ids, 2, radius=9), *inputs)) < FLOAT32_WITHIN


@pytest.mark.parametrize(("radius", "length"), [(20, 128), (20, 500), (64, 513), (150, 640), (600, 500)])
def test_the_tpu_kernel_skips_blocks_outside_of_the_window(radius: int, length: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention_plan, "BLOCK", 128)  # short enough to interpret several
    ids, inputs = packed(1, length), arrays(1, length, 64)
    found = results(fused(ids, 2, radius=radius), *inputs)
    assert largest_error(found, results(plain(ids, 2, radius=radius), *inputs)) < FLOAT32_WITHIN


@pytest.mark.parametrize("length", [128, 384])
def test_the_tpu_kernel_shares_dropout_masks_between_both_passes_of_a_window(length: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention_plan, "BLOCK", 128)
    ids, (query, key, value, gradient) = jnp.ones((1, length), jnp.int32), arrays(1, length, 64)
    attend = fused(ids, 2, RATE, radius=20)
    _, _, _, of_value = results(attend, query, key, value, gradient)
    # the context is linear in the values, so its slope along their gradient is the square of that gradient
    moved = (attend(query, key, value + of_value) - attend(query, key, value)).astype(jnp.float32)
    assert float((moved * gradient).sum()) == pytest.approx(float(np.square(of_value).sum()), rel=1e-4)


def test_a_window_costs_its_keys_and_not_the_row():
    def flops(length: int) -> float:
        shapes = [jax.ShapeDtypeStruct((1, length, 32), jnp.float32)] * 3
        ids = jnp.ones((1, length), jnp.int32)
        found = jax.jit(by_head(ids, 1, radius=16)).lower(*shapes).compile().cost_analysis()
        return float(found["flops"])

    assert flops(2048) / flops(512) < 4.2
