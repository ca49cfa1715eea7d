"""The comparison of loss curves: both implementations compute the same function, and the statistic is correct."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from tests.benchmarks.benchmark_loss_curves import as_plain, beginning, our_curves, part_as_large, plain_curves, smoothed, welch
from tests.random_rows import TINY, random_batch


@pytest.mark.slow  # three programs are compiled: 20 s
def test_plain_linen_and_our_model_train_equally_from_the_same_weights():
    phase = {"steps": 6, "length": 16, "batch_size": 8, "max_predictions": 4, "learning_rate": 1e-2, "warmup_steps": 2}
    shape = {name: getattr(TINY, name) for name in TINY.__dataclass_fields__} | {"initializer_range": 0.5}
    experiment = PretrainingExperiment.from_dict({"model": shape, "optimizer": {"name": "adamw"}, "phases": [phase]})
    batches = [{name: np.asarray(x) for name, x in random_batch(seed).items()} for seed in range(6)]
    ours = our_curves(experiment, [0], batches)[0]
    with jax.numpy_rank_promotion("allow"):  # Linen's layers broadcast their biases
        plain = plain_curves(experiment, [0], batches, as_plain(beginning(experiment)(0).params, experiment.model))[0]
    assert np.ptp(ours) > 0.5
    np.testing.assert_allclose(ours, plain, rtol=1e-4)


def test_the_p_value_counts_permutations_of_the_runs():
    a, b = np.array([[0.0], [1.0]]), np.array([[10.0], [11.0]])
    assert part_as_large(a, b) == pytest.approx(2 / 6)  # only this split and its mirror image
    a, b = np.array([[0.0], [10.0]]), np.array([[1.0], [11.0]])
    assert part_as_large(a, b) == pytest.approx(4 / 6)  # 0 and 11 against 10 and 1 have equal means


def test_t_is_the_difference_divided_by_its_standard_error():
    a, b = np.array([[1.0], [3.0]]), np.array([[2.0], [4.0], [6.0]])
    t, error = welch(a, b)
    assert error[0] == pytest.approx((2 / 2 + 4 / 3) ** 0.5)
    assert t[0] == pytest.approx(-2 / error[0])


def test_smoothing_averages_the_steps_up_to_a_mark():
    np.testing.assert_array_equal(smoothed(np.arange(8.0)[None], [4, 8], 2), [[2.5, 6.5]])
