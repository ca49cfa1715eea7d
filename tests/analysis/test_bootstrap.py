from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from bert_jax.analysis.bootstrap import ResampledSums, interval, poisson_weights


@pytest.fixture
def units() -> np.ndarray:
    """Returns [unit, 2]: the hits and dependents of 300 sentences."""
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, 300)
    return np.stack([rng.binomial(counts, rng.beta(2, 1, 300)), counts], axis=1)


def test_the_interval_of_a_fraction_equals_scipy(units):
    sums = ResampledSums((2,), seed=0, replicates=4000)
    sums.add(np.arange(len(units)), units)
    ours = interval(sums.replicates[0] / sums.replicates[1])
    expected = scipy.stats.bootstrap(
        (units[:, 0], units[:, 1]),
        lambda hits, counts, axis=-1: hits.sum(axis) / counts.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=4000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    width = expected.high - expected.low
    assert ours == pytest.approx((expected.low, expected.high), abs=0.1 * width)


def test_replicates_do_not_depend_on_how_units_are_divided(units):
    weights = poisson_weights(7, range(len(units)), 50)
    assert weights.shape == (300, 50)
    assert weights.mean() == pytest.approx(1, abs=0.05)
    assert weights.var() == pytest.approx(1, abs=0.05)
    expected = np.zeros((2, 50))
    for unit in range(300):
        for replicate in range(50):
            expected[:, replicate] += weights[unit, replicate] * units[unit]
    sums = ResampledSums((2,), seed=7, replicates=50)
    half = units // 2
    sums.add(np.arange(200, 300), units[200:])
    sums.add(np.arange(200), half[:200])
    sums.add(np.arange(200), (units - half)[:200])
    np.testing.assert_allclose(sums.replicates, expected, rtol=1e-6)
    np.testing.assert_array_equal(sums.sums, units.sum(0))
    assert (poisson_weights(8, range(300), 50) != weights).any()


def test_replicates_without_a_number_are_left_out_of_an_interval():
    low, high = interval(np.array([[0.0, np.nan, 1.0], [np.nan, np.nan, np.nan]]), confidence=0.5)
    np.testing.assert_array_equal([low, high], [[0.25, np.nan], [0.75, np.nan]])
