"""The kernels of LayerNorm(x + dropout(y)), interpreted on a CPU: the same result and gradients as the plain modules, with the
same masks."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals
from jax.sharding import AbstractDevice, PartitionSpec

from bert_jax.model.config import ModelConfig
from bert_jax.model.kernels import residual_norm_tpu
from bert_jax.model.kernels.dispatch import resolve
from bert_jax.model.kernels.residual_norm import fused_pre_norm, fused_residual_norm, unsupported_width
from bert_jax.model.kernels.residual_norm_tpu import UNROLL, NormPlan
from bert_jax.model.layers import Dropout, NormParameters, dropout
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.kernels import over_mesh
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES, rules_inside_shard_map
from bert_jax.training.data_parallel import own_rows
from tests.model.attention_cases import largest_error
from tests.model.kernels.blocks import blocks_outside, calls
from tests.model.lowbias32 import rate_at_a_word

EPSILON = 1e-12
FLOAT32_WITHIN = 1e-6  # relative to the largest element
BFLOAT16_WITHIN = 2**-8  # root mean square, relative: the unit of bfloat16
RATE = rate_at_a_word(seed=7, axes=3)  # the seed of `fused`


def fused(
    x: Any,
    y: Any,
    scale: Any,
    bias: Any,
    seed: Any = 7,
    rate: float = RATE,
    positions: Any = None,
    epsilon: float = EPSILON,
    rows: Any = None,
) -> Any:
    settings = Dropout(rate, None if seed is None else jnp.uint32(seed), positions, rows)
    return fused_residual_norm(x, y, NormParameters(scale, bias, epsilon), settings, spread=over_mesh, interpret=True)


def expected(
    arrays: Sequence[Any], seed: Any = 7, epsilon: float = EPSILON, adds: bool = True, of_sum: Any = None
) -> list[np.ndarray]:
    """Returns the `results` of the plain modules, computed by NumPy in float64, without y if not `adds`. `of_sum` is a gradient
    of the sum."""
    x, y, scale, bias, gradient = (np.asarray(a, np.float64) for a in arrays)
    kept = kept_elements(x.shape, seed) * adds
    total = x + kept * y
    centred = total - total.mean(-1, keepdims=True)
    by = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    normed, of_normed = centred * by, gradient * scale
    of_total = by * (of_normed - of_normed.mean(-1, keepdims=True) - normed * (of_normed * normed).mean(-1, keepdims=True))
    of_total = of_total if of_sum is None else of_total + np.asarray(of_sum, np.float64)
    return [normed * scale + bias, of_total, kept * of_total, (gradient * normed).sum((0, 1)), gradient.sum((0, 1))]


@functools.cache
def kept_elements(shape: tuple[int, ...], seed: Any) -> np.ndarray:
    """Returns 0 for the elements that dropout drops, and the factor of the others."""
    if seed is None:
        return np.ones(shape)
    return np.asarray(jax.jit(lambda: dropout(jnp.ones(shape), Dropout(RATE, jnp.uint32(seed))))(), np.float64)


def inputs(b: int, length: int, width: int, dtype: str = "float32") -> list[Any]:
    """Returns x, y, scale, bias and a gradient of the result; x is far from zero, as residuals become."""
    random = np.random.default_rng(b * length + width)
    x, y, g = (random.normal(size=(b, length, width)).astype(np.float32) for _ in range(3))
    scale, bias = (jnp.asarray(random.normal(size=width).astype(np.float32), jnp.float32) for _ in range(2))
    return [jnp.asarray(x + 1, dtype), jnp.asarray(y, dtype), scale, bias, jnp.asarray(g, dtype)]


def results(norm: Any, arrays: list[Any]) -> list[np.ndarray]:
    """Returns the result and the gradients of x, y, scale and bias, in float32. Only the first call for a function and its
    shapes compiles a program."""
    found = _results(norm, *arrays)
    assert [a.dtype for a in found] == [a.dtype for a in (arrays[0], *arrays[:4])]
    return [np.asarray(a, np.float32) for a in found]


@functools.partial(jax.jit, static_argnums=0)
def _results(norm: Any, *arrays: Any) -> Any:
    out, derive = jax.vjp(norm, *arrays[:-1])
    return (out, *derive(arrays[-1]))


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the smallest blocks of rows, so that arrays that are small enough to interpret have several."""
    monkeypatch.setattr(residual_norm_tpu, "BYTES_PER_STEP", 1)


def test_result_gradients_and_masks_equal_the_plain_modules(short_steps: None, monkeypatch: pytest.MonkeyPatch):
    """The rows do not fill their two blocks; the loop is unrolled, as on a chip."""
    monkeypatch.setattr(residual_norm_tpu, "UNROLL", UNROLL)
    arrays = inputs(3, 50, 256)
    found, wanted = results(fused, arrays), expected(arrays)
    assert largest_error(found, wanted) < FLOAT32_WITHIN
    assert ((found[2] == 0) == (wanted[2] == 0)).all()
    assert (found[2] == 0).any()


@pytest.mark.parametrize(("adds", "with_bias"), [(True, True), (False, False)])
def test_pre_norm_returns_the_sum_and_its_norm(adds: bool, with_bias: bool, short_steps: None):
    x, y, scale, bias, g = inputs(3, 50, 256)
    settings, of_sum = Dropout(RATE, jnp.uint32(7)), jnp.roll(g, 1, axis=0)

    @jax.jit
    def run(x: Any, y: Any, scale: Any, bias: Any) -> Any:
        def norm(x: Any, y: Any, scale: Any, bias: Any) -> Any:
            given = NormParameters(scale, bias if with_bias else None, EPSILON)
            return fused_pre_norm(x, y if adds else None, given, settings, spread=over_mesh, interpret=True)

        out, derive = jax.vjp(norm, x, y, scale, bias)
        return (*out, *derive((of_sum, g)))

    normed, *wanted = expected([x, y, scale, bias * with_bias, g], adds=adds, of_sum=of_sum)
    total = np.asarray(x, np.float64) + kept_elements(x.shape, 7) * np.asarray(y) * adds
    there = (True, True, True, adds, True, with_bias)
    pairs = zip(run(x, y, scale, bias), (total, normed, *wanted), there, strict=True)
    found, wanted = zip(*((np.asarray(a), b) for a, b, one in pairs if one), strict=True)
    assert largest_error(found, wanted) < FLOAT32_WITHIN


def test_a_rate_of_zero_drops_nothing_and_epsilon_is_added_to_the_variance_of_rows_near_and_far_from_zero():
    norm, (x, *others) = functools.partial(fused, rate=0.0, epsilon=0.5), inputs(2, 4, 128)
    assert largest_error(results(norm, [x, *others]), expected([x, *others], None, 0.5)) < FLOAT32_WITHIN
    far = [x + 1000, *others]
    found, wanted = results(norm, far), expected(far, None, 0.5)
    assert largest_error(found, wanted) < 1e-4  # a float32 near 1,000 is a multiple of 6e-5
    assert np.abs(found[0] - wanted[0]).max() < 1e-3


def test_bfloat16_is_within_its_rounding_and_drops_the_same_elements():
    arrays = inputs(2, 64, 256, "bfloat16")
    found, exact = results(fused, arrays), expected(arrays)
    for a, b in zip(found, exact, strict=True):
        assert np.sqrt(np.square(a - b).mean() / np.square(b).mean()) < BFLOAT16_WITHIN
    assert ((found[2] == 0) == (exact[2] == 0)).all()


def test_selected_tokens_equal_the_same_tokens_among_all():
    x, y, *vectors, g = inputs(2, 64, 128)
    positions = np.array([[3, 0, 63], [5, 6, 7]], np.int32)
    some = [np.take_along_axis(np.asarray(a), positions[..., None], axis=1) for a in (x, y, expected([x, y, *vectors, g])[0])]
    found = jax.jit(fused)(*some[:2], *vectors, positions=positions)
    assert largest_error([np.asarray(found)], some[2:]) < FLOAT32_WITHIN


def test_a_mesh_computes_and_drops_like_one_device_even_for_an_indivisible_batch():
    arrays = inputs(3, 20, 128)
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        found = results(fused, arrays)
    alone = expected(arrays)
    assert largest_error(found, alone) < FLOAT32_WITHIN
    assert ((found[2] == 0) == (alone[2] == 0)).all()


def by_hand(x: Any, y: Any, scale: Any, bias: Any) -> Any:
    """Runs `fused` on rows that are explicitly split over the mesh axis "data", while the compiler handles the other axes."""
    rows, whole = PartitionSpec("data"), PartitionSpec()

    def part(*arrays: Any) -> Any:
        with nn.logical_axis_rules(rules_inside_shard_map("data")):
            return fused(*arrays, rows=own_rows(len(arrays[0]), 1))

    return jax.shard_map(part, in_specs=(rows, rows, whole, whole), out_specs=rows, axis_names={"data"}, check_vma=False)(
        x, y, scale, bias
    )


def test_explicitly_split_rows_give_the_same_results():
    arrays = inputs(8, 20, 128)
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        found = results(by_hand, arrays)
    alone = expected(arrays)
    assert largest_error(found, alone) < FLOAT32_WITHIN
    assert ((found[2] == 0) == (alone[2] == 0)).all()


def test_a_mesh_computes_pre_norm_like_one_device_and_exchanges_only_the_gradients_of_scale_and_bias():
    x, y, scale, bias, g = inputs(8, 20, 128)
    settings = Dropout(RATE, jnp.uint32(7))
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    rows, whole = (jax.sharding.NamedSharding(mesh, spec) for spec in (PartitionSpec(("data", "fsdp")), PartitionSpec()))

    def norm(x: Any, y: Any, scale: Any, bias: Any) -> Any:
        return fused_pre_norm(x, y, NormParameters(scale, bias, EPSILON), settings, spread=over_mesh, interpret=True)

    @functools.partial(jax.jit, in_shardings=(rows, rows, whole, whole, rows), out_shardings=(*[rows] * 4, whole, whole))
    def run(x: Any, y: Any, scale: Any, bias: Any, g: Any) -> Any:
        out, derive = jax.vjp(norm, x, y, scale, bias)
        return (*out, *derive((g, 2 * g)))

    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        compiled = run.lower(x, y, scale, bias, g).compile()
        found = compiled(*map(jax.device_put, (x, y, scale, bias, g), (rows, rows, whole, whole, rows)))
    total = np.asarray(x, np.float64) + kept_elements(x.shape, 7) * np.asarray(y)
    wanted = [total, *expected([x, y, scale, bias, 2 * g], of_sum=g)]
    assert largest_error(list(map(np.asarray, found)), wanted) < FLOAT32_WITHIN
    program = compiled.as_text()
    collectives = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    exchanged = re.findall(rf"= (.*?) (?:{collectives})(?:-start)?\(", program)
    sizes = [size for result in exchanged for size in re.findall(r"\w+\[([\d,]*)\]", result)]
    assert sizes == ["128", "128"]


def test_only_the_sum_and_one_number_per_row_are_kept_for_the_backward_pass(capsys: pytest.CaptureFixture):
    x, y, scale, bias, _ = inputs(2, 64, 128, "bfloat16")
    print_saved_residuals(fused, x, y, scale, bias)
    kept = re.findall(r"^(\w+\[[\d,]*\])", capsys.readouterr().out, re.MULTILINE)
    assert sorted(kept) == ["bf16[2,64,128]", "f32[128]", "u32[2,64]"]


@pytest.mark.parametrize("seed", [7, None])
def test_every_block_of_a_grid_step_is_inside_its_array(seed: Any, short_steps: None):
    norm = functools.partial(fused, seed=seed)
    shapes = [((6, 128, 384), "float32")] * 2 + [((384,), "float32")] * 2
    program = jax.make_jaxpr(lambda *arrays: jax.vjp(norm, *arrays)[1](arrays[0]))(*(jax.ShapeDtypeStruct(*x) for x in shapes))
    assert [call.params["grid_mapping"].grid for call in calls(program.jaxpr)] == [(6,), (6,)]
    assert blocks_outside(program.jaxpr) == []


@pytest.mark.parametrize(
    ("rows", "row_bytes", "block"),
    [(8192, 2048, 512), (128 * 67, 2048, 128), (1280, 4096, 256), (128, 256, 128), (128 * 192, 1536, 512), (1280, 256, 1280)],
)
def test_blocks_divide_the_rows_and_fit_on_the_chip(rows: int, row_bytes: int, block: int):
    """Four arrays of a block, with two copies of each, take at most 8 MiB."""
    assert NormPlan(rows, row_bytes // 2, row_bytes, RATE, EPSILON, False).block == block


@pytest.mark.parametrize(
    ("width", "dtype", "reason"),
    [
        (1024, "bfloat16", None),
        (1024, "float32", None),
        (128, "float32", None),
        (96, "bfloat16", "a multiple of 128 up to 1,024, not 96"),
        (1152, "bfloat16", "a multiple of 128 up to 1,024, not 1,152"),
        (1024, "float16", "bfloat16 and float32, not float16"),
    ],
)
def test_unsupported_kernels_are_refused_with_the_reason(width: int, dtype: str, reason: str | None):
    found = unsupported_width(width, dtype)
    assert found is None if reason is None else reason in str(found)
    if reason:
        x = jnp.zeros((1, 8, width), dtype)
        with pytest.raises(ValueError, match=re.escape(reason)):
            fused_residual_norm(x, x, NormParameters(jnp.ones(width), jnp.zeros(width), EPSILON), Dropout(0.1, None))


@pytest.mark.parametrize(("platform", "reason"), [("tpu", None), ("cpu", "needs a TPU, and this is a cpu")])
def test_the_kernel_is_chosen_on_tpus(platform: str, reason: str | None):
    config = ModelConfig(hidden_size=1024, num_heads=16, dtype="bfloat16")
    chip = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform=platform)
    target = resolve(config, chip, 1, over_mesh).target
    assert target.residual_norm is not None if reason is None else reason in target.no_residual_norm
