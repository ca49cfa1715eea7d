from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training.schedules import FINETUNING, Warmup, piecewise, warmup_then_decay


def original(step: int, peak: float, warmup: int, total: int, power: float) -> float:
    """optimization.py of google-research/bert in plain Python: polynomial decay from step 0, overridden during warmup."""
    decayed = peak * (1 - min(step, total) / total) ** power
    return peak * step / warmup if step < warmup else decayed


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_rate_is_the_originals_at_every_step(power):
    schedule = Warmup(start=0, steps=1000, warmup_steps=100, peak=1e-4, power=power)
    ours = [float(warmup_then_decay(schedule, jnp.int32(step))) for step in range(0, 1001, 7)]
    np.testing.assert_allclose(
        ours, [original(step, 1e-4, 100, 1000, power) for step in range(0, 1001, 7)], rtol=1e-5, atol=1e-12
    )


def test_the_first_step_has_rate_zero_and_the_end_of_the_warmup_jumps_down():
    schedule = Warmup(start=0, steps=1000, warmup_steps=100, peak=1.0)
    assert float(warmup_then_decay(schedule, jnp.int32(0))) == 0.0
    assert float(warmup_then_decay(schedule, jnp.int32(99))) == pytest.approx(0.99)
    assert float(warmup_then_decay(schedule, jnp.int32(100))) == pytest.approx(0.9)


def test_no_warmup_starts_at_the_peak():
    assert float(warmup_then_decay(Warmup(start=0, steps=10, warmup_steps=0, peak=1.0), jnp.int32(0))) == 1.0


def test_each_schedule_of_an_experiment_counts_from_its_own_start():
    rate = piecewise(
        [Warmup(start=0, steps=100, warmup_steps=10, peak=1.0), Warmup(start=100, steps=50, warmup_steps=5, peak=2.0)]
    )
    assert float(rate(jnp.int32(99))) == pytest.approx(0.01)
    assert float(rate(jnp.int32(100))) == 0.0
    assert float(rate(jnp.int32(104))) == pytest.approx(1.6)
    assert float(rate(jnp.int32(125))) == pytest.approx(1.0)


def test_the_decay_ends_at_the_end_rate():
    schedule = Warmup(start=0, steps=10, warmup_steps=0, peak=1.0, end=0.1)
    for step in (10, 11, 25):  # beyond, too
        assert float(warmup_then_decay(schedule, jnp.int32(step))) == pytest.approx(0.1)
    assert float(warmup_then_decay(schedule, jnp.int32(5))) == pytest.approx(0.55)


# ------------------------------------------------------------------------------------------------------ schedules of fine-tuning


def rates(name: str, steps: int, warmup_steps: int, peak: float) -> list[float]:
    """The rate at every step and at two after the last, from scalars that are traced."""
    schedule = jax.vmap(FINETUNING[name], in_axes=(0, None, None, None))
    return jax.jit(schedule)(jnp.arange(steps + 2), jnp.int32(steps), jnp.int32(warmup_steps), jnp.float32(peak)).tolist()


@pytest.mark.parametrize(("steps", "warmup_steps"), [(100, 10), (345, 34), (7, 0), (5, 5), (1, 0), (6, 1)])
@pytest.mark.parametrize("name", ["linear", "constant", "original"])
def test_schedules_are_the_published_formulas_at_every_step(name, steps, warmup_steps):
    """transformers' linear and constant schedules with warmup, and the original's, in plain Python."""

    def published(step: int) -> float:
        if name == "original":
            return original(step, 3e-5, warmup_steps, steps, 1.0)
        if step < warmup_steps:
            return 3e-5 * step / max(1, warmup_steps)
        return 3e-5 if name == "constant" else 3e-5 * max(0.0, (steps - step) / max(1, steps - warmup_steps))

    found = rates(name, steps, warmup_steps, 3e-5)
    np.testing.assert_allclose(found, [published(step) for step in range(steps + 2)], rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(("steps", "cut_fraction"), [(100, 0.1), (1000, 0.25), (40, 0.5)])
def test_the_slanted_triangle_is_ulmfits_equation_3(steps, cut_fraction):
    cut, ratio = int(steps * cut_fraction), 32

    def published(t: int) -> float:
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_fraction - 1))
        return 0.01 * (1 + p * (ratio - 1)) / ratio

    found = rates("slanted_triangular", steps, cut, 0.01)[:-1]
    np.testing.assert_allclose(found, [published(t) for t in range(steps + 1)], rtol=1e-5)


def test_every_schedule_reaches_its_peak_and_never_passes_it():
    for name in FINETUNING:
        found = rates(name, 100, 10, 2e-5)
        assert max(found) == pytest.approx(2e-5 * (0.9 if name == "original" else 1.0)), name  # the original jumps down
        assert min(found) >= 0.0
