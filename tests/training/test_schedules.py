from __future__ import annotations

import functools
import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interface.python_files import file_errors_explained
from bert_jax.training import SCHEDULES
from bert_jax.training.schedules import Span, piecewise, rate_by


def original(step: int, peak: float, warmup: int, total: int, power: float) -> float:
    """Computes optimization.py of google-research/bert in plain Python: polynomial decay from step 0, overridden during
    warmup."""
    decayed = peak * (1 - min(step, total) / total) ** power
    return peak * step / warmup if step < warmup else decayed


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_rate_equals_the_original_at_every_step(power):
    schedule = Span(schedule="original", start=0, steps=1000, warmup_steps=100, peak=1e-4, decay_power=power)
    steps = np.arange(0, 1001, 7, dtype=np.int32)
    ours = jax.jit(jax.vmap(schedule.rate()))(steps)
    np.testing.assert_allclose(ours, [original(step, 1e-4, 100, 1000, power) for step in steps.tolist()], rtol=1e-5, atol=1e-12)


def test_the_rate_starts_at_zero_and_drops_at_the_end_of_the_warmup():
    schedule = Span(schedule="original", start=0, steps=1000, warmup_steps=100, peak=1.0)
    assert float(schedule.rate()(jnp.int32(0))) == 0.0
    assert float(schedule.rate()(jnp.int32(99))) == pytest.approx(0.99)
    assert float(schedule.rate()(jnp.int32(100))) == pytest.approx(0.9)


def test_no_warmup_starts_at_the_peak():
    assert float(Span(schedule="original", start=0, steps=10, warmup_steps=0, peak=1.0).rate()(jnp.int32(0))) == 1.0


def test_each_schedule_counts_from_its_own_start():
    rate = piecewise(
        [
            Span(schedule="original", start=0, steps=100, warmup_steps=10, peak=1.0),
            Span(schedule="original", start=100, steps=50, warmup_steps=5, peak=2.0),
        ]
    )
    assert float(rate(jnp.int32(99))) == pytest.approx(0.01)
    assert float(rate(jnp.int32(100))) == 0.0
    assert float(rate(jnp.int32(104))) == pytest.approx(1.6)
    assert float(rate(jnp.int32(125))) == pytest.approx(1.0)


def test_the_decay_ends_at_the_end_rate():
    schedule = Span(schedule="original", start=0, steps=10, warmup_steps=0, peak=1.0, end_learning_rate=0.1)
    for step in (10, 11, 25):  # beyond, too
        assert float(schedule.rate()(jnp.int32(step))) == pytest.approx(0.1)
    assert float(schedule.rate()(jnp.int32(5))) == pytest.approx(0.55)


# ------------------------------------------------------------------------------------------------------- schedules by their names


LONGEST = np.arange(1_002, dtype=np.int32)


@functools.partial(jax.jit, static_argnums=0)
def rates_at(name, step, steps, warmup_steps, peak):
    rate = rate_by(name, "config.training.schedule", ("warmup_steps",))
    return jax.vmap(lambda step: rate(step, steps, peak, {"warmup_steps": warmup_steps}))(step)


def rates(name: str, steps: int, warmup_steps: int, peak: float) -> list[float]:
    """Returns the rate at every step and at two steps after the last, from traced scalars."""
    return rates_at(name, LONGEST, np.int32(steps), np.int32(warmup_steps), np.float32(peak)).tolist()[: steps + 2]


@pytest.mark.parametrize(("steps", "warmup_steps"), [(100, 10), (345, 34), (7, 0), (5, 5), (1, 0), (6, 1)])
@pytest.mark.parametrize("name", ["linear", "constant", "original"])
def test_schedules_equal_the_published_formulas_at_every_step(name, steps, warmup_steps):
    """The formulas are transformers' linear and constant schedules with warmup, and the original's, in plain Python."""

    def published(step: int) -> float:
        if name == "original":
            return original(step, 3e-5, warmup_steps, steps, 1.0)
        if step < warmup_steps:
            return 3e-5 * step / max(1, warmup_steps)
        return 3e-5 if name == "constant" else 3e-5 * max(0.0, (steps - step) / max(1, steps - warmup_steps))

    found = rates(name, steps, warmup_steps, 3e-5)
    np.testing.assert_allclose(found, [published(step) for step in range(steps + 2)], rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(("steps", "cut_fraction"), [(100, 0.1), (1000, 0.25), (40, 0.5)])
def test_the_slanted_triangle_equals_equation_3_of_ulmfit(steps, cut_fraction):
    cut, ratio = int(steps * cut_fraction), 32

    def published(t: int) -> float:
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_fraction - 1))
        return 0.01 * (1 + p * (ratio - 1)) / ratio

    found = rates("slanted_triangular", steps, cut, 0.01)[:-1]
    np.testing.assert_allclose(found, [published(t) for t in range(steps + 1)], rtol=1e-5)


def test_every_schedule_reaches_and_never_exceeds_its_peak():
    for name in SCHEDULES:
        found = rates(name, 100, 10, 2e-5)
        assert max(found) == pytest.approx(2e-5 * (0.9 if name == "original" else 1.0)), name  # the original jumps down
        assert min(found) >= 0.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_equal_in_pretraining_and_fine_tuning(name):
    """In pretraining the numbers are constants of the program. In fine-tuning they are traced, so that runs can share the
    program."""
    rate = Span(schedule=name, start=7, steps=100, warmup_steps=10, peak=2e-5).rate()
    pretraining = jax.jit(jax.vmap(rate))(jnp.arange(7, 7 + 102))
    np.testing.assert_allclose(pretraining, rates(name, 100, 10, 2e-5), rtol=1e-6, atol=1e-12)


OWN = """
import jax.numpy as jnp
def half(step, steps, warmup=0.5): return 0.5 + 0.0 * step / (warmup * steps)
def absolute(step, steps, peak, warmup_steps, decay_power): return 0.0 * step + peak + warmup_steps + decay_power
def needs(step, steps, cooldown): return 1.0
def ends(step, steps, end_fraction): return end_fraction
def fails(step, steps): return [][1]
def rows(step, steps): return jnp.ones(3)
def starts(step, steps, warmup=0.0): return jnp.minimum(step / (warmup * steps), 1.0)
def stops(step, steps): return 1.0 / jnp.asarray(steps - 1 - step)
def word(step, steps): return "high"
"""


def test_a_user_schedule_gets_the_keys_that_it_names(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)

    def span(name):
        return Span(schedule=f"{tmp_path}/mine.py:{name}", start=0, steps=10, warmup_steps=4, peak=2.0, decay_power=3.0)

    assert [float(span(name).rate()(jnp.int32(3))) for name in ("half", "absolute")] == [1.0, 9.0]
    for name, says in (
        ("needs", r"schedule=.*mine.py:needs needs cooldown, which no schedule gets; give it a default, or"),
        ("ends", "mine.py:ends needs end_fraction, which the experiment does not set; give it a default, or use one of warmup_"),
        ("fails", "raises IndexError; correct the file here:"),
        ("rows", r"mine.py:rows must return a number for a step, but returns an array of shape \(3,\)"),
        ("word", r"mine.py:word must return a number for a step, but returns 'high'"),
        ("starts", "schedule=.*mine.py:starts returns nan for step 0 of 10 steps, so the learning rate is not finite; correct"),
        ("stops", "mine.py:stops returns inf for step 9 of 10 steps"),
        ("haf", "has no 'haf'; did you mean 'half'"),
    ):
        with pytest.raises(UserError, match=says), file_errors_explained():
            span(name).rate()


def test_each_phase_may_name_its_schedule():
    rate = piecewise(
        [
            Span(schedule="constant", start=0, steps=10, warmup_steps=0, peak=1.0),
            Span(schedule="linear", start=10, steps=10, warmup_steps=0, peak=1.0),
        ]
    )
    assert [float(rate(jnp.int32(step))) for step in (5, 9, 10, 15)] == [1.0, 1.0, 1.0, 0.5]


# ----------------------------------------------------------------------------------------------------------- pieces of a schedule

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "schedules_golden.json").read_text())


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: "{decay} {warmup}-{stable}-{falling}".format(**case))
def test_a_constant_phase_and_a_decay_equal_the_wsd_schedule_of_transformers(case):
    steady = case["warmup"] + case["stable"]
    spans = [
        Span(schedule="constant", start=0, steps=steady, warmup_steps=case["warmup"], peak=1.0),
        Span(schedule=case["decay"], start=steady, steps=case["falling"], warmup_steps=0, peak=1.0),
    ]
    rate = jax.jit(jax.vmap(piecewise(spans[steady == 0 :])))
    found = rate(jnp.arange(len(case["factors"])))
    np.testing.assert_allclose(found, case["factors"], rtol=1e-5, atol=1e-7)


SHAPES = {
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "1-sqrt": lambda progress: 1 - math.sqrt(progress),
}


@pytest.mark.parametrize(("steps", "warmup_steps"), [(100, 10), (40, 0), (7, 6), (1, 0)])
@pytest.mark.parametrize("end", [None, 0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("name", SHAPES)
def test_a_decay_falls_by_its_closed_form_to_its_end_fraction(name, end, steps, warmup_steps):
    def expected(step):
        if step < warmup_steps:
            return 3e-4 * step / warmup_steps
        progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        least = end or 0.0
        return 3e-4 * (least + (1 - least) * SHAPES[name](progress))

    span = Span(schedule=name, start=5, steps=steps, warmup_steps=warmup_steps, peak=3e-4, end_fraction=end)
    found = np.asarray(jax.vmap(span.rate())(np.arange(5, 107, dtype=np.int32)))[: steps + 2]
    np.testing.assert_allclose(found, [expected(step) for step in range(steps + 2)], rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("end", [None, 0.25])
def test_a_phase_of_warmup_rises_from_0_to_its_end_fraction(end):
    rate = Span(schedule="warmup", start=100, steps=40, warmup_steps=0, peak=2.0, end_fraction=end).rate()
    found = [float(rate(jnp.int32(100 + step))) for step in (0, 1, 20, 39, 40)]
    np.testing.assert_allclose(found, [2.0 * (end or 1.0) * step / 40 for step in (0, 1, 20, 39, 40)], rtol=1e-6)


def test_schedule_pieces_continue_at_the_rate_of_the_previous_end():
    """These are ModernBERT's and Ettin's phases in small: warmup, constant, 1-sqrt to a half, 1-sqrt from there to 0.04."""
    rate = piecewise(
        [
            Span(schedule="warmup", start=0, steps=10, warmup_steps=0, peak=8e-4),
            Span(schedule="constant", start=10, steps=50, warmup_steps=0, peak=8e-4),
            Span(schedule="1-sqrt", start=60, steps=20, warmup_steps=0, peak=8e-4, end_fraction=0.5),
            Span(schedule="1-sqrt", start=80, steps=20, warmup_steps=0, peak=4e-4, end_fraction=0.04),
        ]
    )
    ends = {0: 0.0, 10: 8e-4, 59: 8e-4, 60: 8e-4, 80: 4e-4, 100: 1.6e-5, 1_000: 1.6e-5}
    assert [float(rate(jnp.int32(step))) for step in ends] == pytest.approx([*ends.values()], rel=1e-6)


@pytest.mark.parametrize("name", ["constant", "original", "slanted_triangular"])
def test_an_end_fraction_is_refused_for_schedules_without_one(name):
    key, phase = "config.phases.1.schedule", "config.phases.1"
    span = Span(schedule=name, key=key, phase=phase, start=0, steps=9, warmup_steps=0, peak=1.0, end_fraction=0.1)
    with pytest.raises(UserError, match=f"end_fraction=0.1 of config.phases.1 does not apply to config.phases.1.schedule={name}"):
        span.rate()


@pytest.mark.parametrize(("width", "warmup", "steps"), [(512, 4_000, 100_000), (1_024, 4_000, 300_000), (64, 7, 50), (64, 1, 50)])
def test_the_inverse_sqrt_schedule_equals_the_transformer_paper(width: int, warmup: int, steps: int):
    span = Span(schedule="inverse_sqrt", start=0, steps=steps, warmup_steps=warmup, peak=(width * warmup) ** -0.5)
    rate = span.rate()
    for done in (0, 1, 5, max(0, warmup - 2), warmup - 1, warmup, warmup + 1, 3 * warmup, steps - 1):
        step = done + 1
        paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert float(rate(jnp.int32(done))) == pytest.approx(paper, rel=1e-6)
    assert float(rate(jnp.int32(warmup - 1))) == pytest.approx((width * warmup) ** -0.5, rel=1e-6), "the peak"
