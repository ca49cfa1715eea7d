"""The fused GPU kernels, interpreted on a CPU, equal plain attention including dropout; and the code that Triton gets for
them."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding

from bert_jax.model.kernels.attention_gpu import Tiles, padded_length, tiles
from bert_jax.model.kernels.fused_attention import fused_attention
from bert_jax.model.layers import Dropout
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from tests.model.attention_cases import (
    BFLOAT16_WITHIN,
    FLOAT32_WITHIN,
    SEED,
    arrays,
    expected,
    fused,
    largest_error,
    on_mesh,
    packed,
    results,
    split_by_hand,
)
from tests.model.kernels.blocks import blocks_outside
from tests.model.lowbias32 import rate_at_a_word

RATE = rate_at_a_word(int(SEED), axes=4)
on_gpu = functools.partial(fused, platform="gpu")




@functools.cache
def of_three_rows() -> tuple[Any, Any]:
    """Returns the ids and the attention of three rows with the same examples. Their last block is empty."""
    ids = np.tile(packed(1, 70), (3, 1))
    return ids, on_gpu(ids, 1)


def test_context_and_gradients_equal_plain_attention_with_the_same_dropout():
    ids, inputs = packed(2, 70), arrays(2, 70, 2 * 64)
    assert largest_error(results(on_gpu(ids, 2, RATE), *inputs), expected(ids, 2, inputs, RATE)) < FLOAT32_WITHIN
    (ids, attend), inputs = of_three_rows(), arrays(3, 70, 16)
    assert largest_error(results(attend, *inputs), expected(ids, 1, inputs)) < FLOAT32_WITHIN


def test_the_error_of_bfloat16_is_within_its_rounding():
    ids, inputs = packed(2, 128), arrays(2, 128, 128, "bfloat16")
    exact = expected(ids, 2, inputs, RATE)
    for a, b in zip(results(on_gpu(ids, 2, RATE), *inputs), exact, strict=True):
        assert np.sqrt(np.square(a - b).mean() / np.square(b).mean()) < BFLOAT16_WITHIN


def test_scores_far_from_zero_neither_overflow_nor_leak_between_examples():
    (ids, attend), (query, key, value, gradient) = of_three_rows(), map(np.asarray, arrays(1, 70, 16))
    elsewhere = np.asarray(ids[0]) != 2
    other = np.where(elsewhere[:, None], value, np.float32(1e4))
    queries, keys = (query, query, abs(query)), (key, key, -abs(key))  # all scores of the third row are low
    rows = ([30 * x for x in queries], [30 * x for x in keys], (value, other, value), (gradient,) * 3)
    found = results(attend, *(np.concatenate(row) for row in rows))
    assert all(np.isfinite(x).all() for x in found)
    assert (found[0][0, elsewhere] == found[0][1, elsewhere]).all()


def test_eight_devices_drop_like_one_device_even_for_an_indivisible_batch():
    ids, inputs = packed(1, 60), arrays(1, 60, 2 * 32)
    found = on_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)), on_gpu(ids, 2, RATE), inputs)
    assert largest_error(found, expected(ids, 2, inputs, RATE)) < FLOAT32_WITHIN


def test_rows_split_over_devices_drop_like_the_whole_batch():
    ids, inputs = packed(4, 60), arrays(4, 60, 2 * 32)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    found = split_by_hand(mesh, functools.partial(on_gpu, heads=2, rate=RATE), inputs[:3], ids)
    assert largest_error([found], expected(ids, 2, inputs, RATE)[:1]) < FLOAT32_WITHIN


def gradients(query: Any, key: Any, value: Any, ids: Any, seed: Any) -> Any:
    """Returns the program of two heads' attention with dropout: a forward pass and a backward pass."""

    def loss(*qkv: Any) -> Any:
        context = fused_attention(qkv, ids, num_heads=2, dropout=Dropout(0.1, seed), platform="gpu")
        return context.astype(jnp.float32).sum()

    return jax.grad(loss, (0, 1, 2))(query, key, value)


def inputs_of(length: int, head_width: int, dtype: str, sharding: Any = None) -> list[Any]:
    """Returns the inputs of `gradients` for two rows, as abstract arrays."""
    x = ((2, length, 2 * head_width), dtype)
    return [jax.ShapeDtypeStruct(*like, sharding=sharding) for like in (x, x, x, ((2, length), "int32"), ((), "uint32"))]


@pytest.mark.parametrize(
    ("length", "head_width", "dtype"),
    [(384, 128, "bfloat16"), (51, 16, "float32")],
)
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_a_cuda_program_has_three_kernels_and_no_square_attention_array(length: int, head_width: int, dtype: str):
    ampere = AbstractDevice(device_kind="NVIDIA A100-SXM4-40GB", num_cores=108, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=ampere)):
        traced = jax.jit(gradients).trace(*inputs_of(length, head_width, dtype))
        program = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("custom_call @__gpu$xla.gpu.triton") == 3
    assert re.findall(r"num_stages = (\d+)", program) == ["2"] * 3
    assert blocks_outside(traced.jaxpr.jaxpr) == []
    shapes = [shape.split("x")[:-1] for shape in re.findall(r"tensor<((?:\d+x)+)\w+>", program)]
    assert max(sum(int(size) >= length for size in shape) for shape in shapes) == 1


@pytest.mark.parametrize(
    ("head_width", "dtype", "found"),
    [
        (64, "bfloat16", Tiles(held=64, passed=64, warps=4)),
        (128, "bfloat16", Tiles(held=64, passed=64, warps=8)),
        (64, "float32", Tiles(held=32, passed=32, warps=4)),
        (128, "float32", Tiles(held=32, passed=32, warps=8)),
    ],
)
def test_tiles_are_those_that_compiled_without_spilling_registers(head_width: int, dtype: str, found: Tiles):
    assert tiles(512, head_width, dtype) == found
    for length in (16, 32, 64, 192, 320):
        assert tiles(length, head_width, dtype).held == min(found.held, math.gcd(length, 64))
        assert tiles(length, head_width, dtype).passed == min(found.passed, math.gcd(length, 64))


def test_a_row_is_padded_to_a_power_of_two_and_beyond_64_to_a_multiple_of_it():
    lengths = {1: 16, 16: 16, 17: 32, 51: 64, 64: 64, 65: 128, 129: 192, 512: 512}
    assert {length: padded_length(length) for length in lengths} == lengths


AMPERE = """
gpu_device_info {
  cuda_compute_capability { major: 8 minor: 0 } core_count: 108 fpus_per_core: 64 clock_rate_ghz: 1.41
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 166912 shared_memory_per_core: 167936
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  device_memory_size: 42505207808 memory_bandwidth: 1555200000000 l2_cache_size: 41943040
}
platform_name: "CUDA"
device_description_str: "NVIDIA A100-SXM4-40GB"
"""


def test_the_gpu_compiler_accepts_the_kernels():
    try:
        devices = topologies.get_topology_desc("", "cuda", target_config=AMPERE, topology="1x1x1").devices
    except NotImplementedError:
        pytest.skip("needs JAX's CUDA plugin, which compiles without a GPU")
    length = 512
    inputs = inputs_of(length, 64, "bfloat16", SingleDeviceSharding(devices[0]))
    compiled = jax.jit(gradients).lower(*inputs).compile()
    assert compiled.as_text().count('"__gpu$xla.gpu.triton"') == 3
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * 2 * length**2, "the scores of two rows and heads, one byte each"
