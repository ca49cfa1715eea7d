"""The comparison of a kernel with the plain path accepts correct kernels, and names each kind of fault."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from bert_jax.model.kernels import agreement
from bert_jax.model.kernels.agreement import RATE, Case, Comparison, Figure, compare, plain_attention
from bert_jax.model.kernels.attention_plan import BLOCK
from bert_jax.model.kernels.fused_attention import unsupported_heads
from bert_jax.model.kernels.residual_norm import unsupported_width
from bert_jax.model.layers import Dropout, NormParameters, dropout, normalise

PLAIN = Case(2, 21, 2, 64, "float32")
DROPPED = Case(1, 64, 1, 128, "float32", RATE)
ROUNDED = dataclasses.replace(DROPPED, dtype="bfloat16")
WINDOW = Case(1, 120, 1, 128, "float32", radius=20)
DROPPED_WINDOW = dataclasses.replace(WINDOW, rate=RATE)
SOME = Case(1, 120, 1, 128, "float32", queries=50)
TURNED = Case(1, 16, 1, 128, "float32", rotated=True)
GPU = Case(1, 40, 1, 16, "float32", RATE, radius=5)
NORM = Case(1, 40, 1, 128, "float32", RATE)
ROUNDED_NORM = dataclasses.replace(NORM, dtype="bfloat16")
PRE_NORM = dataclasses.replace(NORM, pre=True)
Kernel = Callable[..., Any]

GRADIENTS = [f"gradient of {name}" for name in ("query", "key", "value")]
MASKS = ["scale of dropout", "spread of dropout", "equal masks of two rows, heads or seeds"]
SLOPES = [f"dropout of the backward pass (slope along {name})" for name in ("query", "key", "value")]
NORMED = ["values", *(f"gradient of {name}" for name in ("x", "y", "scale", "bias"))]
SLOPE = "dropout of the backward pass (slope along y)"
MEASURED = {
    PLAIN: ["values", *GRADIENTS],
    WINDOW: ["values", *GRADIENTS],
    SOME: ["values", *GRADIENTS],
    TURNED: ["values", *GRADIENTS],
    DROPPED: [*MASKS, *SLOPES],
    DROPPED_WINDOW: [*MASKS, *SLOPES],
    ROUNDED: [*MASKS, SLOPES[2]],
    GPU: ["values", *GRADIENTS, *MASKS, *SLOPES],
    NORM: [*NORMED, SLOPE],
    ROUNDED_NORM: NORMED,
    PRE_NORM: [*NORMED, SLOPE, *(f"{name} (with the sum)" for name in NORMED * 2)],
}
"""The quantities of a case. A kernel on a TPU has masks of its own, so with dropout its results equal no other's. bfloat16 rounds
small differences away, so only the slope along the values is measured, because any step along them is exact."""


def compared(operation: str, platform: str, cases: Sequence[Case], **settings: Any) -> Comparison:
    """Returns the comparison, which has all quantities of the cases."""
    found = compare(operation, platform, cases, **settings)
    assert found.failure == ""
    assert [(figure.case, figure.quantity) for figure in found.figures] == [(str(x), name) for x in cases for name in MEASURED[x]]
    return found


@pytest.mark.parametrize(
    ("operation", "platform", "cases"),
    [
        ("attention", "tpu", (DROPPED_WINDOW, SOME, TURNED)),
        ("attention", "gpu", (GPU,)),
        ("residual_norm", "tpu", (PRE_NORM,)),
    ],
)
def test_the_kernels_agree_with_the_plain_path(operation: str, platform: str, cases: tuple[Case, ...]):
    found = compared(operation, platform, cases, interpret=True)
    assert found.reason == ""
    assert found.worst is not None


def kernel(change: Callable[..., Any]) -> Kernel:
    """Returns a kernel that is plain attention modified by `change`. The arguments of `change` are the function (query, key,
    value, ids, dropout, radius) -> context, and the arguments of that function."""

    def attention(qkv: Any, ids: Any, *, num_heads: int, dropout: Dropout, radius: int | None, **_: Any) -> Any:
        def attend(query: Any, key: Any, value: Any, ids: Any, dropout: Dropout, radius: int | None) -> Any:
            return plain_attention((query, key, value), ids, num_heads, dropout, radius)

        return change(attend, *qkv, ids, dropout, radius)

    return attention


def without_gradient(attend: Kernel, query: Any, key: Any, *others: Any) -> Any:
    return attend(query, jax.lax.stop_gradient(key), *others)


def without_last(attend: Kernel, *arguments: Any) -> Any:
    return attend(*arguments).at[:, -1].set(0)


def into_padding(attend: Kernel, query: Any, key: Any, value: Any, ids: Any, *others: Any) -> Any:
    return attend(query, key, value, jnp.where(ids == 0, 3, ids), *others)


def into_other_examples(attend: Kernel, query: Any, key: Any, value: Any, ids: Any, *others: Any) -> Any:
    return attend(query, key, value, jnp.ones_like(ids), *others)


def not_a_number(attend: Kernel, *arguments: Any) -> Any:
    context = attend(*arguments)
    return context + jnp.zeros_like(context).at[0, 0, 0].set(np.nan)


def with_window(attend: Kernel, *arguments: Any, radius: int | None) -> Any:
    return attend(*arguments[:-1], radius)


def with_dropout(
    attend: Kernel, query: Any, key: Any, value: Any, ids: Any, dropout: Dropout, *others: Any, **changes: Any
) -> Any:
    return attend(query, key, value, ids, dataclasses.replace(dropout, **changes), *others)


def unscaled(attend: Kernel, *arguments: Any) -> Any:
    return attend(*arguments) * (1 - RATE)


def another_backward_pass(forward: Kernel, backward: Kernel) -> Kernel:
    """Returns `forward` with the gradients of `backward`."""
    function = jax.custom_vjp(forward)
    function.defvjp(lambda *inputs: (forward(*inputs), inputs), lambda inputs, gradient: jax.vjp(backward, *inputs)[1](gradient))
    return function


def another_mask(dropout: Dropout) -> Dropout:
    assert dropout.seed is not None
    return dataclasses.replace(dropout, seed=dropout.seed + np.uint32(1))


def another_mask_backwards(attend: Kernel, query: Any, key: Any, value: Any, ids: Any, dropout: Dropout, *others: Any) -> Any:
    passes = (lambda *qkv, of=of: attend(*qkv, ids, of, *others) for of in (dropout, another_mask(dropout)))
    return another_backward_pass(*passes)(query, key, value)


@pytest.mark.parametrize(
    ("change", "case", "expected"),
    [
        (without_gradient, PLAIN, ["gradient of key"]),
        (without_last, PLAIN, ["values", *GRADIENTS]),
        (into_padding, PLAIN, ["values", *GRADIENTS]),
        (into_other_examples, PLAIN, ["values", *GRADIENTS]),
        (not_a_number, PLAIN, ["values"]),
        (functools.partial(with_window, radius=19), WINDOW, ["values", *GRADIENTS]),
        (functools.partial(with_window, radius=None), WINDOW, ["values", *GRADIENTS]),
        (functools.partial(with_dropout, rate=0.35), DROPPED, ["spread of dropout"]),
        (functools.partial(with_dropout, seed=None), DROPPED, MASKS[1:]),
        (functools.partial(with_dropout, seed=jnp.uint32(3)), ROUNDED, MASKS[2:]),
        (unscaled, DROPPED, MASKS[:2]),
        (another_mask_backwards, DROPPED, SLOPES),
    ],
    ids=[
        "gradient", "odd length", "padding", "other examples", "not a number", "narrow window", "no window", "another rate",
        "no dropout", "one mask for all steps", "scale", "another mask backwards",
    ],
)  # fmt: skip
def test_each_fault_of_attention_is_named(change: Kernel, case: Case, expected: list[str]):
    found = compared("attention", "tpu", (case,), kernel=kernel(change))
    assert [figure.quantity for figure in found.faults] == expected
    assert found.reason.startswith(f"the kernel disagrees with the plain path here: {found.faults[0]}")


@pytest.mark.parametrize(("case", "expected"), [(NORM, ["gradient of y", SLOPE]), (ROUNDED_NORM, ["gradient of y"])])
def test_a_residual_norm_with_another_dropout_mask_in_its_backward_pass_is_found(case: Case, expected: list[str]):
    def norm(x: Any, y: Any, parameters: NormParameters, settings: Dropout, **_: Any) -> Any:
        passes = (functools.partial(dropout, settings=of) for of in (settings, another_mask(settings)))
        return normalise(x + another_backward_pass(*passes)(y), parameters)

    assert [figure.quantity for figure in compared("residual_norm", "tpu", (case,), kernel=norm).faults] == expected


@pytest.mark.parametrize("message", ["Mosaic cannot lower this", ""])
def test_a_kernel_that_does_not_compile_gives_a_reason_with_its_case(message: str):
    def refused(*_: Any, **__: Any) -> Any:
        raise ValueError(f"{message}\nwith a second line" if message else "")

    found = compare("attention", "tpu", (PLAIN,), kernel=refused)
    assert found.reason == f"the kernel does not run here: ValueError: {message} ({PLAIN})"
    assert compare("attention", "tpu", kernel=refused).reason.endswith(f"({agreement.ATTENTION_CASES[0]})")
    assert compare("residual_norm", "tpu", (PLAIN,)).failure, "without `interpret` it runs only on TPUs"


def test_a_kernel_runs_on_the_given_device():
    devices: list[Any] = []

    def refused(*_: Any, **__: Any) -> Any:
        devices.append(jax.config.jax_default_device)
        raise ValueError

    for settings in ({}, {"device": jax.local_devices()[3]}):
        compare("attention", "tpu", (PLAIN,), kernel=refused, **settings)
    assert devices == [jax.local_devices()[n] for n in (0, 3)]


def test_a_reason_shows_three_figures_and_counts_the_others():
    wrong = tuple(Figure("a case", f"quantity {i}", 0.5, 0.01) for i in range(5))
    right = Figure("a case", "another", 0.01, 0.01)
    for faults, end in ((5, "; and 2 more"), (4, "; and 1 more"), (3, "")):
        found = Comparison((*wrong[:faults], right))
        assert found.reason.count("off by 50 %, at most 1 %, in a case") == 3
        assert found.reason.endswith(f"in a case{end}")
    assert Comparison((right,)).reason == ""


def test_the_worst_figure_is_the_closest_to_or_above_its_limit():
    far, close = Figure("a case", "far", 0.5, 1.0), Figure("a case", "close", 0.02, 0.03)
    above, no_number = Figure("a case", "above", 0.0011, 0.001), Figure("a case", "not a number", float("nan"), 1.0)
    assert Comparison((far, close)).worst == close
    assert Comparison((far, above, close)).worst == above
    assert Comparison((far, no_number, close)).worst == no_number
    assert Comparison(()).worst is None


def test_a_case_is_described_by_its_heads_and_dropout():
    assert str(NORM) == "1 x 40 tokens, width 128, float32, dropout 0.25"
    assert str(PLAIN) == "2 x 21 tokens, width 2 x 64, float32"
    assert str(WINDOW) == "1 x 120 tokens, width 128, float32, window of 41"


def test_selected_queries_and_rotation_are_compared_only_on_a_tpu():
    assert compare("attention", "gpu", (SOME, TURNED), interpret=True) == Comparison(())


def test_the_masks_of_a_window_are_judged_by_the_number_of_keys_that_a_query_sees():
    """A query that sees fewer keys deviates more, by the root of their number."""
    case, patterns = Case(1, 64, 1, 16, "float32", RATE), scipy.linalg.hadamard(64)[1:9].astype(np.float32)
    sees = np.array([sum(abs(query - key) <= 5 for key in range(64)) for query in range(64)])

    def figures(case: Case, scale: Any) -> list[float]:
        def attend(dropout: Dropout) -> Any:
            context = 1 + jnp.asarray(patterns / 4 * scale, jnp.float32)[dropout.seed - 7]
            return lambda query, key, value: jnp.broadcast_to(context[None, :, None], value.shape)

        return [x for figure in agreement._mask_figures(case, attend) for x in (figure.error, figure.limit)]

    found = figures(dataclasses.replace(case, radius=5), (64 / sees) ** 0.5)
    assert found == pytest.approx(figures(case, 1.0), abs=1e-5)


@pytest.mark.parametrize(("dtype", "limit", "unit"), [("float32", 1e-4, 0.0), ("bfloat16", 0.05, 2**-8)])
def test_limits_cover_rounding_and_six_deviations_of_random_masks(dtype: str, limit: float, unit: float):
    """The unit is 8 seeds, 3 rows and 2 heads, with 64 kept or dropped keys at a rate of 1/4: the variance of a mean is 1/192."""
    case = Case(3, 64, 2, 16, dtype, RATE)
    patterns = scipy.linalg.hadamard(64)[1:49].reshape(8, 3, 2, 64).astype(np.float32)  # orthogonal, each with mean 0
    patterns[7, 2, 1, :32] = patterns[0, 1, 0, :32]  # half of another's

    def attend(dropout: Dropout) -> Any:
        def context(query: Any, key: Any, value: Any) -> Any:
            heads = 1.5 + jnp.asarray(patterns)[dropout.seed - 7].transpose(0, 2, 1)[..., None] / 4  # exact in bfloat16
            wide = jnp.where(jnp.arange(16) == 0, jnp.broadcast_to(heads, (3, 64, 2, 16)), 0.0)
            return (wide.reshape(3, 64, 32) * value).astype(dtype)

        return context

    scale, spread, equal = agreement._mask_figures(case, attend)
    mean = 0.5 + patterns.mean() / 4
    variance = np.square(patterns / 4 + 0.5).mean()
    assert scale == Figure(str(case), "scale of dropout", pytest.approx(mean), pytest.approx(6 * (1 / 192 / 3_072) ** 0.5 + unit))
    assert spread.error == pytest.approx((variance * 192) ** 0.5 - 1)
    assert spread.limit == pytest.approx(6 / 6_144**0.5 + 2 * unit)
    of_two = np.abs(np.corrcoef(patterns.reshape(48, 64)) - np.eye(48)).max()
    assert equal == Figure(str(case), "equal masks of two rows, heads or seeds", pytest.approx(of_two), 6 / 8)
    ones = [jnp.ones((2, 3), dtype)] * 2
    same = list(agreement._differences(case, ("values", "gradient"), agreement._with_gradients(jnp.positive), jnp.positive, ones))
    assert same == [Figure(str(case), name, 0.0, limit) for name in ("values", "gradient")]


def test_a_difference_is_the_worst_vectors_relative_error():
    wanted = np.array([[3.0, 4.0], [0.0, 0.1]])
    size = (25.01 / 4) ** 0.5
    assert agreement._worst_vector(wanted + np.array([[0.5, 0.0], [0.0, 0.0]]), wanted) == pytest.approx(0.1)
    off = np.array([[0.5, 0.0], [0.3, 0.4]])
    assert agreement._worst_vector(wanted + off, wanted) == pytest.approx(0.125**0.5 / size)


@pytest.mark.parametrize(("of_x", "of_y"), [(1.0, 1.0), (1.1, 0.9)])
def test_a_slope_is_off_by_the_factor_of_its_gradient(of_x: float, of_y: float):
    @jax.custom_vjp
    def function(x: Any, y: Any) -> Any:
        return jnp.sin(x) + 3 * y

    function.defvjp(lambda x, y: (function(x, y), x), lambda x, gradient: (of_x * jnp.cos(x) * gradient, of_y * 3 * gradient))
    arrays = list(jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 8)), jnp.float32))
    run = agreement._with_gradients(function)
    figures = list(agreement._slope_figures(NORM, run, arrays, ("x", "y"), ("y", "x"), linear="y"))
    for figure, name, factor in zip(figures, "yx", (of_y, of_x), strict=True):
        quantity = f"dropout of the backward pass (slope along {name})"
        assert figure == Figure(str(NORM), quantity, pytest.approx(abs(1 / factor - 1), abs=1e-3), 0.03)


def test_cases_cover_every_kind_of_row_dtype_dropout_and_window():
    for cases in (agreement.ATTENTION_CASES, agreement.NORM_CASES):
        assert {case.dtype for case in cases} == {"float32", "bfloat16"}
        assert any(case.length % 2 for case in cases)
        assert any(case.rate for case in cases)
    assert agreement.ATTENTION_CASES[2].length > BLOCK
    assert any(case.rotated for case in agreement.ATTENTION_CASES)
    assert any(case.queries for case in agreement.ATTENTION_CASES)
    assert any(case.pre for case in agreement.NORM_CASES)
    windows = [case for case in agreement.ATTENTION_CASES if case.radius is not None]
    assert {bool(case.rate) for case in windows} == {True, False}
    assert all(case.length > BLOCK > case.radius for case in windows)
    assert max(case.length for case in windows) > 2 * BLOCK, "a block with one on both sides"
    for case in agreement.ATTENTION_CASES:
        for platform in ("tpu", "gpu"):
            assert unsupported_heads(platform, case.head_width, case.dtype) is None
    for case in agreement.NORM_CASES:
        assert case.heads == 1
        assert unsupported_width(case.head_width, case.dtype) is None
    for rows, padded in ((2, 1), (3, 2), (1, 1)):
        ids = np.asarray(agreement.packed_ids(rows, 51))
        assert (ids == 0).sum(1).tolist() == [7] * padded + [0] * (rows - padded)
        assert all(set(row[row > 0]) == {1, 2, 3} for row in ids)
        assert (np.diff(ids[:, :44]) >= 0).all()
