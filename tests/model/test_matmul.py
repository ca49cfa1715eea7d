"""Matrix products and their gradients, compared with float64. On a CPU, products in bfloat16 really run in bfloat16."""

from __future__ import annotations

import itertools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, NamedSharding, PartitionSpec

from bert_jax.model.heads.pretraining_heads import decode
from bert_jax.model.kernels import dispatch
from bert_jax.model.layers import batched_matmul, dense, matmul, precision, transposed_matmul
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.kernels import resolve
from bert_jax.sharding.mesh import make_mesh
from tests.random_rows import TINY, largest_difference

AXES = list(itertools.product((-1, -2), (-1, -2)))
WITHIN = {"float32": 1e-5, "bfloat16": 2**-8}
"""The tolerance relative to the largest element: float32 sums of 200 terms, and one rounding to bfloat16."""


def operands(leading: tuple[int, ...], m: int, k: int, n: int, axes: tuple[int, int]) -> list[np.ndarray]:
    """Returns standard normal a and b as float32, rounded to bfloat16 so that they are the same in either dtype."""
    rng = np.random.default_rng(m * k * n)
    shapes = ((m, k) if axes[0] == -1 else (k, m), (k, n) if axes[1] == -2 else (n, k))
    return [rng.normal(size=(*leading, *shape)).astype(jnp.bfloat16).astype(np.float32) for shape in shapes]


def in_numpy(a: np.ndarray, b: np.ndarray, axes: tuple[int, int]) -> np.ndarray:
    left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
    left = left if axes[0] == -1 else left.swapaxes(-1, -2)
    return left @ (right if axes[1] == -2 else right.swapaxes(-1, -2))


SHAPES = [((), 1, 1, 1), ((), 2, 200, 1), ((), 1, 64, 130), ((), 64, 7, 31), ((2, 3), 13, 64, 5)]


@pytest.mark.parametrize("one_cpu", [True, False])
@pytest.mark.parametrize("swaps", [False, True])  # XLA once chose a layout for swapped axes that it could not run
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_equal_numpy_for_any_summed_axes(dtype: str, swaps: bool, one_cpu: bool):
    cases = [(shape, axes, operands(*shape, axes)) for shape, axes in itertools.product(SHAPES, AXES)]

    @jax.jit
    def products(pairs: list[list[np.ndarray]]) -> list[jax.Array]:
        found = [matmul(a, b, axes, one_cpu) for (a, b), (_, axes, _) in zip(pairs, cases, strict=True)]
        return [x.swapaxes(-1, -2) if swaps else x for x in found]

    for got, (shape, axes, (a, b)) in zip(products([[x.astype(dtype) for x in pair] for *_, pair in cases]), cases, strict=True):
        expected = in_numpy(a, b, axes)
        expected = expected.swapaxes(-1, -2) if swaps else expected
        assert got.dtype == dtype
        assert np.abs(expected - np.asarray(got, np.float64)).max() <= WITHIN[dtype] * np.abs(expected).max(), (shape, axes)


def test_products_of_bfloat16_are_summed_in_float32():
    a, b = operands((), 3, 4_096, 3, (-1, -2))
    got = matmul(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), (-1, -2), True, jnp.float32)
    assert np.abs(in_numpy(a, b, (-1, -2)) - np.asarray(got)).max() < 1e-3  # sums in bfloat16 would be off by tenths


@pytest.mark.parametrize("axes", [(-1, -1), (-1, -2)])
def test_batched_products_have_the_gradients_of_the_plain_expression(axes):
    a, b = operands((2, 3), 5, 8, 7, axes)
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 5, 7)), jnp.float32)

    def plain(a, b):
        return ((a @ (b if axes[1] == -2 else b.swapaxes(-1, -2))) * weight).sum()

    def ours(a, b):
        return (batched_matmul(a, b, axes, True) * weight).sum()

    wanted, found = jax.jit(lambda *pair: [jax.grad(of, (0, 1))(*pair) for of in (plain, ours)])(a, b)
    assert largest_difference(wanted, found) < 1e-5


@pytest.mark.parametrize(("inner", "outer"), [(5, 9), (9, 5)])
def test_a_dense_layer_has_the_gradients_of_the_plain_expression(inner, outer):
    rng = np.random.default_rng(0)
    x, w, b = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((7, inner), (inner, outer), (outer,)))
    weight = jnp.asarray(rng.normal(size=(7, outer)), jnp.float32)

    def gradients(layer):
        return jax.jit(jax.grad(lambda x, w, b: (layer(x, w, b) * weight).sum(), (0, 1, 2)))(x, w, b)

    plain, found = gradients(lambda x, w, b: x @ w + b[None, :]), gradients(lambda x, w, b: dense(x, w, b, True))
    assert largest_difference(plain, found) < 1e-6


@pytest.mark.skipif("amx_bf16" not in pathlib.Path("/proc/cpuinfo").read_text(), reason="this CPU does not multiply bfloat16")
def test_a_cpu_with_bfloat16_instructions_multiplies_in_bfloat16():
    x, w, b = (jnp.ones(shape, jnp.bfloat16) for shape in ((512, 256), (256, 1_024), (1_024,)))
    q = jnp.ones((8, 4, 128, 64), jnp.bfloat16)

    def loss(x, w, b, q):
        scores = batched_matmul(q, q, (-1, -1), True)
        return jnp.square(dense(x, w, b, True)).sum() + jnp.square(batched_matmul(scores, q, (-1, -2), True)).sum()

    program = jax.jit(jax.grad(loss, (0, 1, 2, 3))).lower(x, w, b, q).compile().as_text()
    dtypes = dict(re.findall(r"%([\w.]+) = (\w+)\[", program))
    products = [operand for pair in re.findall(r" dot\(%([\w.]+), %([\w.]+)\)", program) for operand in pair]
    large = [name for name in products if dtypes[name] != "f32"]
    assert len(large) >= 2 * (3 + 6)  # forward, and two more in each backward pass
    assert len(products) - len(large) <= 2  # the sum over rows that is the bias's gradient


def test_bfloat16_products_gather_nothing_over_several_devices():
    mesh = make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])
    shapes = {"x": ((64, 32), ("data", None)), "w": ((32, 48), (None, "tensor")), "b": ((48,), ("tensor",))}
    arrays = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(*axes)))
        for shape, axes in shapes.values()
    ]
    with jax.set_mesh(mesh):
        gradients = jax.jit(jax.grad(lambda x, w, b: jnp.square(dense(x, w, b, False)).astype(jnp.float32).sum(), (0, 1, 2)))
        program = gradients.lower(*arrays).compile().as_text()
    assert "all-reduce" in program
    assert "all-gather" not in program


@pytest.mark.parametrize("one_cpu", [True, False])
def test_only_programs_for_one_cpu_have_products_with_fixed_layouts(one_cpu: bool):
    def loss(x, w, b, q):
        scores = batched_matmul(batched_matmul(q, q, (-1, -1), one_cpu), q, (-1, -2), one_cpu)
        logits = decode(x, w.T, b.astype(jnp.float32), one_cpu)
        return sum(y.astype(jnp.float32).sum() for y in (dense(x, w, b, one_cpu), logits, scores))

    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((8, 4), (4, 6), (6,), (2, 3, 5, 4))]
    program = str(jax.make_jaxpr(jax.grad(loss, (0, 1, 2, 3)))(*shapes))
    assert ("in_rows" in program) == one_cpu


def test_products_of_float32_are_not_rounded_on_tpus_and_gpus():
    assert precision(jnp.dtype("float32")) == jax.lax.Precision.HIGHEST
    assert precision(jnp.dtype("bfloat16")) is None


def test_the_narrower_array_is_transposed():
    for left, right in ((5, 9), (9, 5), (5, 5)):
        narrow, wide = min(left, right), max(left, right)
        shapes = [jax.ShapeDtypeStruct((7, width), jnp.float32) for width in (left, right)]
        program = str(jax.make_jaxpr(transposed_matmul, static_argnums=2)(*shapes, True))
        assert f"f32[{narrow},{wide}] = dot_general" in program
        assert f"f32[{narrow},7] = transpose[" in program
        assert (f"f32[{right},{left}] = dot_general" in program) == (left >= right)
        assert (f"f32[{left},{right}] = transpose[" in program) == (left > right)  # of the result


@pytest.mark.parametrize("widths", [(32, 256), (256, 32)])
def test_products_over_rows_do_not_transpose_their_first_operand_on_a_cpu(widths):
    shapes = [jax.ShapeDtypeStruct((64, width), jnp.float32) for width in widths]
    program = jax.jit(transposed_matmul, static_argnums=2).lower(*shapes, True).compile().as_text()
    assert re.findall(r" dot\(.*lhs_contracting_dims=\{(\d)\}", program) == ["1"]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_returning_a_product_does_not_change_other_results(dtype, axes):
    a, b = (x.astype(dtype) for x in operands((), 8, 16, 4, axes))
    other = jax.jit(lambda a, b: ((2 * a).T, matmul(a, b, axes, True, jnp.float32)))(a, b)[0]
    np.testing.assert_array_equal(np.asarray(1 * other, np.float32), 2 * np.asarray(a, np.float32).T)


def test_layouts_are_fixed_only_on_one_cpu():
    for devices in (1, 2):
        assert resolve(TINY, make_mesh(MeshConfig(), jax.devices()[:devices])).target.one_cpu == (devices == 1)
    for platform, kind in (("cpu", "cpu"), ("tpu", "TPU v5 lite")):
        device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
        assert dispatch.resolve(TINY, device).target.one_cpu == (platform == "cpu")
