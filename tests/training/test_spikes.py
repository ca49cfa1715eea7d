"""Steps whose loss is a spike."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.training.config import SpikeConfig
from bert_jax.training.loop import LossSpike
from bert_jax.training.spikes import WatchedTrainState, is_spike, new_watched_state, spike_filter
from tests.random_rows import program_for
from tests.training.test_steps import Quadratic

CONFIG = SpikeConfig(policy="skip", window=10, deviations=4.0)
ADAM = optax.scale_by_adam()


@pytest.fixture(scope="module")
def fresh() -> WatchedTrainState:
    params = {"layers": {"kernel": np.float32([[1, 2, 3], [-1, 0, 1]])}, "bias": np.ones(4, np.float32)}
    return jax.jit(functools.partial(new_watched_state, optimizer=ADAM))(params)


def judged(state: WatchedTrainState, losses: list[float], starts: Sequence[int] = ()) -> tuple[list[bool], WatchedTrainState]:
    """Returns which losses change the weights, and the state after the last."""
    found = []
    decide = jax.jit(spike_filter(CONFIG, starts))
    bare = dataclasses.replace(state, params={}, opt_state=())
    for loss in losses:
        keeps, bare, _ = decide(bare, jnp.float32(loss), jnp.isfinite(jnp.float32(loss)))
        bare = dataclasses.replace(bare, step=bare.step + 1)
        found.append(bool(keeps))
    return found, bare


def test_a_loss_far_above_the_moving_mean_is_a_spike_and_not_averaged(fresh):
    rng = np.random.default_rng(0)
    usual = (5 + 0.1 * rng.normal(size=30)).tolist()
    assert judged(fresh, [*usual[:9], 9.0])[0] == [True] * 10  # too few losses to decide
    kept, state = judged(fresh, [*usual, 9.0, 9.0, usual[0], 9.0, float("nan")])
    assert kept == [True] * 30 + [False, False, True, False, False]
    assert (int(state.spikes), int(state.spikes_in_a_row), int(state.losses)) == (3, 0, 31)
    mean, variance = usual[0], 0.0  # by hand: moving averages that decay by 1 - 1/window
    for loss in [*usual[1:], usual[0]]:
        mean, variance = mean + 0.1 * (loss - mean), 0.9 * (variance + 0.1 * (loss - mean) ** 2)
    assert float(state.loss_mean) == pytest.approx(mean, rel=1e-5)
    assert float(state.loss_variance) == pytest.approx(variance, rel=1e-3)


@pytest.mark.parametrize("first", [9.0, float("nan")])
def test_the_higher_losses_of_a_new_phase_are_not_spikes(first: float, fresh: WatchedTrainState):
    kept, state = judged(fresh, [5.0] * 20 + [first] + [9.0] * 10, starts=(12, 20))
    assert kept == [True] * 20 + [first == 9.0] + [True] * 10
    assert (int(state.losses), float(state.loss_mean), int(state.spikes)) == (10 + (first == 9.0), 9.0, 0)
    assert judged(state, [20.0], starts=(12, 20))[0] == [False]


def test_counters_are_integers_and_averages_floats(fresh):
    floats = {"loss_mean", "loss_variance"}
    names = {field.name for field in dataclasses.fields(fresh)} - {"params", "opt_state"}
    assert {name: str(getattr(fresh, name).dtype) for name in names} == {
        name: "float32" if name in floats else "int32" for name in names
    }
    assert not any(getattr(fresh, name) for name in names)


@pytest.mark.parametrize(
    ("losses", "variance", "loss", "spike"),
    [
        (50, 0.25, 6.0, False),  # four deviations above a mean of 4
        (50, 0.25, 6.001, True),
        (10, 0.25, 6.001, True),
        (9, 0.25, 6.001, False),  # too few losses to decide
        (50, 0.0, 4.159, False),  # a deviation counts as at least a hundredth of the mean
        (50, 0.0, 4.161, True),
    ],
)
def test_the_spike_limit_is_a_number_of_deviations_above_the_mean(losses, variance, loss, spike, fresh):
    state = dataclasses.replace(fresh, losses=jnp.int32(losses), loss_mean=jnp.float32(4.0), loss_variance=jnp.float32(variance))
    assert bool(is_spike(state, jnp.float32(loss), CONFIG)) == spike


def test_the_rollback_error_names_its_step():
    assert str(LossSpike(120, 3)) == "3 spikes in a row up to step 120"


def test_falling_losses_and_rounding_are_not_spikes(fresh):
    assert all(judged(fresh, np.linspace(10, 2, 60).tolist())[0])
    assert all(judged(fresh, [5.0] * 20 + [5.1] + [5.0] * 5)[0])


def test_a_spike_changes_no_weight_and_does_not_count_as_skipped(fresh):
    quiet = dataclasses.replace(fresh, losses=jnp.int32(50), loss_mean=jnp.float32(0.1))
    program = program_for(Quadratic(), ADAM, spike_filter=spike_filter(CONFIG))
    rows = np.random.default_rng(0).standard_normal((8, 2, 3), np.float32)
    batch = {"x": rows, "y": np.ones((8, 4), np.float32), "used": np.ones(8, np.float32)}
    step = jax.jit(functools.partial(program.train_step, scalars={"seed": np.uint32(3)}))
    assert bool(is_spike(quiet, jnp.float32(8), CONFIG))
    after, sums = step(quiet, batch)
    jax.tree.map(np.testing.assert_array_equal, (quiet.params, quiet.opt_state), (after.params, after.opt_state))
    assert {name: float(sums[name]) for name in ("steps", "spikes", "spikes_in_a_row", "skipped", "loss")} == {
        "steps": 0, "spikes": 1, "spikes_in_a_row": 1, "skipped": 0, "loss": 0,
    }  # fmt: skip
    assert (int(after.step), int(after.spikes), int(after.skipped)) == (1, 1, 0)
    moved, sums = step(fresh, batch)
    assert float(sums["spikes"]) == 0
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(fresh.params), jax.tree.leaves(moved.params), strict=True))
