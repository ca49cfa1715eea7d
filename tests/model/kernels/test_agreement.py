"""The comparison of a kernel with the plain path accepts correct kernels, and names each kind of fault."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from bert_jax.model.kernels import agreement, attention_tpu, residual_norm_tpu
from bert_jax.model.kernels.agreement import RATE, Case, Comparison, Figure, compare, plain_attention
from bert_jax.model.kernels.attention import unsupported_heads
from bert_jax.model.kernels.attention_plan import BLOCK, TpuPlan
from bert_jax.model.kernels.residual_norm import unsupported_width
from bert_jax.model.layers import Dropout

PLAIN = Case(2, 21, 2, 64, "float32")
DROPPED = Case(1, 64, 1, 128, "float32", RATE)
WINDOW = Case(1, 150, 1, 128, "float32", radius=20)
DROPPED_WINDOW = dataclasses.replace(WINDOW, rate=RATE)
SOME = Case(2, 140, 1, 128, "float32", queries=50)
TURNED = Case(1, 40, 1, 128, "float32", rotated=True)
NORM = Case(1, 40, 1, 128, "float32", RATE)
Kernel = Callable[..., Any]


@pytest.mark.parametrize(
    ("operation", "platform", "cases"),
    [
        ("attention", "tpu", (DROPPED_WINDOW, SOME, TURNED)),
        ("attention", "gpu", (Case(1, 40, 1, 16, "float32", RATE, radius=5),)),
        ("residual_norm", "tpu", (dataclasses.replace(NORM, pre=True),)),
    ],
)
def test_the_kernels_agree_with_the_plain_path(operation: str, platform: str, cases: tuple[Case, ...]):
    found = compare(operation, platform, cases, interpret=True)
    assert found.reason == ""
    assert found.worst is not None
    measured = {figure.quantity for figure in found.figures}
    assert "values" in measured
    assert any("dropout of the backward pass" in quantity for quantity in measured)


def faults(operation: str, *cases: Case) -> list[str]:
    """Returns the quantities in which the TPU kernel disagrees, in the order of the figures."""
    found = compare(operation, "tpu", cases, interpret=True)
    assert found.failure == ""
    assert (found.reason == "") == (not found.faults)
    return [figure.quantity for figure in found.faults]


def test_a_kernel_without_dropout_scaling_is_found(monkeypatch: pytest.MonkeyPatch):
    right = attention_tpu.forward

    def unscaled(plan: Any, inputs: Any) -> Any:
        context, sums = right(plan, inputs)
        return context * (1 - plan.rate), sums

    monkeypatch.setattr(attention_tpu, "forward", unscaled)
    assert "scale of dropout" in faults("attention", DROPPED)


def test_a_kernel_with_another_dropout_mask_in_its_backward_pass_is_found(monkeypatch: pytest.MonkeyPatch):
    right = attention_tpu.backward

    def otherwise(plan: Any, inputs: Any, *others: Any) -> Any:
        *arrays, seeds = inputs
        return right(plan, (*arrays, seeds.at[0].add(1)), *others)

    monkeypatch.setattr(attention_tpu, "backward", otherwise)
    found = faults("attention", DROPPED)
    assert found == [f"dropout of the backward pass (slope along {name})" for name in ("query", "key", "value")]


def test_a_kernel_that_attends_to_other_examples_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention_tpu, "_mask", lambda *_: lambda q, k, scores: scores)
    found = compare("attention", "tpu", (PLAIN,), interpret=True)
    assert "values" in [figure.quantity for figure in found.faults]
    assert f"the kernel disagrees with the plain path here: values off by {100 * found.faults[0].error:.2g} %" in found.reason
    assert "in 2 x 21 tokens, width 2 x 64, float32" in found.reason


def test_a_wrong_or_missing_window_is_found(monkeypatch: pytest.MonkeyPatch):
    right = TpuPlan.of
    for wrong in (19, None):

        def plan(*arguments: Any, wrong: int | None = wrong, **settings: Any) -> TpuPlan:
            return dataclasses.replace(right(*arguments, **settings), radius=wrong)

        monkeypatch.setattr(TpuPlan, "of", plan)
        assert faults("attention", WINDOW) == ["values", *(f"gradient of {name}" for name in ("query", "key", "value"))]


def test_a_residual_norm_with_another_dropout_mask_in_its_backward_pass_is_found(monkeypatch: pytest.MonkeyPatch):
    right = residual_norm_tpu.backward
    monkeypatch.setattr(residual_norm_tpu, "backward", lambda plan, words, *others: right(plan, words + np.uint32(1), *others))
    assert faults("residual_norm", NORM) == ["gradient of y", "dropout of the backward pass (slope along y)"]


def stand_in(change: Callable[..., Any]) -> Kernel:
    """Returns a kernel that is plain attention modified by `change`. The arguments of `change` are the function (query, key,
    value, ids, dropout) -> context, and the arguments of that function."""

    def kernel(qkv: Any, ids: Any, *, num_heads: int, dropout: Dropout, **_: Any) -> Any:
        def attend(query: Any, key: Any, value: Any, ids: Any, dropout: Dropout) -> Any:
            return plain_attention((query, key, value), ids, num_heads, dropout)

        return change(attend, *qkv, ids, dropout)

    return kernel


def without_gradient(attend: Kernel, query: Any, key: Any, *others: Any) -> Any:
    return attend(query, jax.lax.stop_gradient(key), *others)


def without_last(attend: Kernel, *arguments: Any) -> Any:
    return attend(*arguments).at[:, -1].set(0)


def into_padding(attend: Kernel, query: Any, key: Any, value: Any, ids: Any, dropout: Dropout) -> Any:
    return attend(query, key, value, jnp.where(ids == 0, 3, ids), dropout)


def not_a_number(attend: Kernel, *arguments: Any) -> Any:
    context = attend(*arguments)
    return context + jnp.zeros_like(context).at[0, 0, 0].set(np.nan)


def with_dropout(attend: Kernel, query: Any, key: Any, value: Any, ids: Any, dropout: Dropout, **changes: Any) -> Any:
    return attend(query, key, value, ids, dataclasses.replace(dropout, **changes))


@pytest.mark.parametrize(
    ("change", "case", "expected"),
    [
        (without_gradient, PLAIN, {"gradient of key"}),
        (without_last, PLAIN, {"values", "gradient of query", "gradient of key", "gradient of value"}),
        (into_padding, PLAIN, {"values", "gradient of query", "gradient of key", "gradient of value"}),
        (not_a_number, PLAIN, {"values"}),
        (functools.partial(with_dropout, rate=0.35), DROPPED, {"spread of dropout"}),
        (functools.partial(with_dropout, seed=None), DROPPED, {"spread of dropout", "equal masks of two rows, heads or seeds"}),
        (functools.partial(with_dropout, seed=jnp.uint32(3)), DROPPED, {"equal masks of two rows, heads or seeds"}),
    ],
    ids=["gradient", "odd length", "padding", "not a number", "another rate", "no dropout", "one mask for all steps"],
)
def test_other_faults_are_named(change: Kernel, case: Case, expected: set[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agreement, "fused_attention", stand_in(change))
    assert set(faults("attention", case)) == expected


def test_a_kernel_that_does_not_compile_gives_a_reason_with_its_case(monkeypatch: pytest.MonkeyPatch):
    def refused(*_: Any, **__: Any) -> Any:
        devices.append(jax.config.jax_default_device)
        raise ValueError(messages[len(devices) - 1])

    devices: list[Any] = []
    messages = ("Mosaic cannot lower this\nwith a second line", "", "")
    monkeypatch.setattr(agreement, "fused_attention", refused)
    for told in ("Mosaic cannot lower this", ""):
        found = compare("attention", "tpu", (PLAIN,))
        assert found.reason == f"the kernel does not run here: ValueError: {told} ({PLAIN})"
    assert compare("attention", "tpu", device=jax.local_devices()[3]).reason.endswith(f"({agreement.ATTENTION_CASES[0]})")
    assert compare("residual_norm", "tpu", (PLAIN,)).failure, "without `interpret` it runs only on TPUs"
    assert devices == [jax.local_devices()[n] for n in (0, 0, 3)]


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
    assert str(WINDOW) == "1 x 150 tokens, width 128, float32, window of 41"


QKV, NORMED = "values gradient of query key value", "values gradient of x y scale bias"


@pytest.mark.parametrize(
    ("operation", "platform", "dtype", "rate", "checks"),
    [
        ("attention", "tpu", "float32", 0.0, {"differences": QKV}),
        ("attention", "tpu", "float32", RATE, {"masks": "", "slopes": "query key value"}),
        ("attention", "tpu", "bfloat16", RATE, {"masks": "", "slopes": "value"}),
        ("attention", "gpu", "bfloat16", RATE, {"differences": QKV, "masks": "", "slopes": "value"}),
        ("residual_norm", "tpu", "float32", 0.0, {"differences": NORMED}),
        ("residual_norm", "tpu", "float32", RATE, {"differences": NORMED, "slopes": "y"}),
        ("residual_norm", "tpu", "bfloat16", RATE, {"differences": NORMED}),
    ],
)  # fmt: skip
def test_measured_quantities_depend_on_dtype_dropout_and_masks(
    operation: str, platform: str, dtype: str, rate: float, checks: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    """bfloat16 rounds small differences away. Only the slope along the values can still be measured, because any step along them
    is exact."""
    case, seen = Case(1, 16, 1, 128, dtype, rate), {}

    def differences(of: Case, names: Any, *_: Any) -> list[Figure]:
        assert of == case
        seen["differences"] = " ".join(dict.fromkeys(" ".join(names).split()))
        return []

    def masks(of: Case, *_: Any) -> list[Figure]:
        assert of == case
        seen["masks"] = ""
        return []

    def slopes(of: Case, function: Any, arrays: Any, names: Any, measured: Any, linear: str = "") -> list[Figure]:
        assert of == case
        assert len(names) == len(arrays) - 1
        assert linear in (*measured, "")
        seen["slopes"] = " ".join(measured)
        return []

    for name, check in (("_differences", differences), ("_mask_figures", masks), ("_slope_figures", slopes)):
        monkeypatch.setattr(agreement, name, check)
    assert compare(operation, platform, (case,)) == Comparison(())
    assert seen == checks


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
    same = list(agreement._differences(case, ("values", "gradient"), jnp.positive, jnp.positive, ones))
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
    figures = list(agreement._slope_figures(NORM, function, arrays, ("x", "y"), ("y", "x"), linear="y"))
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
