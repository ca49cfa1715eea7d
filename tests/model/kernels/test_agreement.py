"""The comparison of a kernel with the plain path passes right kernels, and finds each kind of fault by its name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.kernels import agreement, attention_tpu, residual_norm_tpu
from bert_jax.model.kernels.agreement import RATE, Case, Comparison, Figure, compare, plain_attention
from bert_jax.model.layers import Dropout

PLAIN = Case(2, 21, 2, 16, "float32")
DROPPED = Case(1, 64, 1, 64, "float32", RATE)
NORM = Case(1, 40, 1, 128, "float32", RATE)
Kernel = Callable[..., Any]


@pytest.mark.parametrize(
    ("operation", "platform", "cases"),
    [
        ("attention", "tpu", (DROPPED,)),
        ("attention", "gpu", (Case(1, 20, 1, 16, "float32", RATE),)),
        ("residual_norm", "tpu", (NORM,)),
    ],
)
def test_the_kernels_agree_with_the_plain_path(operation: str, platform: str, cases: tuple[Case, ...]):
    found = compare(operation, platform, cases, interpret=True)
    assert found.reason == ""
    assert found.worst is not None
    measured = {figure.quantity for figure in found.figures}
    if platform == "gpu" or operation == "residual_norm":
        assert "values" in measured, "they drop what the plain path drops"
    assert any("dropout of the backward pass" in quantity for quantity in measured)


def faults(operation: str, *cases: Case) -> list[str]:
    """The quantities in which the kernel of TPUs disagrees, in the order of the figures."""
    found = compare(operation, "tpu", cases, interpret=True)
    assert found.failure == ""
    assert (found.reason == "") == (not found.faults)
    return [figure.quantity for figure in found.faults]


def test_a_kernel_that_does_not_scale_what_dropout_keeps_is_found(monkeypatch: pytest.MonkeyPatch):
    right = attention_tpu.forward

    def unscaled(plan: Any, inputs: Any) -> Any:
        context, sums = right(plan, inputs)
        return context * (1 - plan.rate), sums

    monkeypatch.setattr(attention_tpu, "forward", unscaled)
    assert "scale of dropout" in faults("attention", DROPPED)


def test_a_kernel_whose_backward_pass_drops_other_elements_is_found(monkeypatch: pytest.MonkeyPatch):
    right = attention_tpu.backward

    def otherwise(plan: Any, inputs: Any, *others: Any) -> Any:
        *arrays, seeds = inputs
        return right(plan, (*arrays, seeds.at[0].add(1)), *others)

    monkeypatch.setattr(attention_tpu, "backward", otherwise)
    found = faults("attention", DROPPED)
    assert found == [f"dropout of the backward pass (slope along {name})" for name in ("query", "key", "value")]


def test_a_kernel_that_attends_to_other_examples_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention_tpu, "_same_example", lambda *_: lambda q, k, scores: scores)
    found = compare("attention", "tpu", (PLAIN,), interpret=True)
    assert "values" in [figure.quantity for figure in found.faults]
    assert f"the kernel disagrees with the plain path here: values off by {100 * found.faults[0].error:.2g} %" in found.reason
    assert "in 2 x 21 tokens, width 2 x 16, float32" in found.reason


def test_a_residual_norm_whose_backward_pass_drops_other_elements_is_found(monkeypatch: pytest.MonkeyPatch):
    right = residual_norm_tpu.backward
    monkeypatch.setattr(residual_norm_tpu, "backward", lambda plan, words, *others: right(plan, words + np.uint32(1), *others))
    assert faults("residual_norm", NORM) == ["gradient of y", "dropout of the backward pass (slope along y)"]


def stand_in(change: Callable[..., Any]) -> Kernel:
    """A kernel that is plain attention but for `change`, which is called with the attention (query, key, value, ids, dropout) ->
    context and its arguments."""

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
def test_every_other_fault_is_found_by_its_name(change: Kernel, case: Case, expected: set[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agreement, "fused_attention", stand_in(change))
    assert set(faults("attention", case)) == expected


def test_a_kernel_that_does_not_compile_is_no_error_but_a_reason_with_its_case(monkeypatch: pytest.MonkeyPatch):
    def refused(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("Mosaic cannot lower this\nwith a second line")

    monkeypatch.setattr(agreement, "fused_attention", refused)
    found = compare("attention", "tpu", (PLAIN,))
    assert found.reason == f"the kernel does not run here: NotImplementedError: Mosaic cannot lower this ({PLAIN})"


def test_a_reason_shows_three_figures_and_counts_the_others():
    wrong = tuple(Figure("a case", f"quantity {i}", 0.5, 0.01) for i in range(5))
    right = Figure("a case", "another", 0.001, 0.01)
    found = Comparison("attention", (*wrong, right))
    assert found.reason.count("off by 50 %, at most 1 %, in a case") == 3
    assert found.reason.endswith("; and 2 more")
    assert Comparison("attention", (right,)).reason == ""
    assert not Figure("a case", "not a number", float("nan"), 1.0).agrees


def test_cases_cover_packed_and_padded_rows_odd_lengths_both_dtypes_and_dropout():
    for cases in (agreement.ATTENTION_CASES, agreement.NORM_CASES):
        assert {case.dtype for case in cases} == {"float32", "bfloat16"}
        assert any(case.length % 2 for case in cases)
        assert any(case.rate for case in cases)
    ids = np.asarray(agreement.packed_ids(2, 51))
    assert (ids == 0).any(1).tolist() == [True, False]
    assert all(len(set(row[row > 0])) > 1 for row in ids)
