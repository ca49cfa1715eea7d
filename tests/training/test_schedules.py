from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training.schedules import Warmup, piecewise, warmup_then_decay


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
    assert float(warmup_then_decay(Warmup(start=0, steps=10, warmup_steps=0, peak=1.0, end=0.1), jnp.int32(10))) == pytest.approx(
        0.1
    )
