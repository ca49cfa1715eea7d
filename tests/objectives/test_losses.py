"""The pretraining loss as the mean over a batch, from sums and counts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractDevice, Mesh

from bert_jax.model.kernels import dispatch
from bert_jax.objectives.losses import correct_predictions, cross_entropy, smoothed_cross_entropy
from bert_jax.objectives.objective import Objective
from tests.objectives.scored import objective_of
from tests.random_rows import TINY, largest_difference, objective_for, program_for, random_batch, random_parameters


@pytest.mark.parametrize(
    ("sums", "loss"),
    [
        ({"mlm_loss": 12.0, "nsp_loss": 3.0}, 12 / 8 + 3 / 4),
        ({"mlm_loss": 12.0}, 12 / 8),
    ],
)
def test_the_loss_is_the_mean_over_targets_and_the_mean_over_pairs(sums: dict[str, float], loss: float):
    counts = {"mlm_targets": jnp.float32(8), "nsp_examples": jnp.float32(4)}
    given = {name: jnp.float32(value) for name, value in sums.items()}
    assert float(objective_of("mlm").loss(given, counts)) == loss


def test_a_batch_without_targets_or_pairs_has_zero_loss():
    zero = jnp.float32(0)
    found = objective_of("mlm").loss({"mlm_loss": zero, "nsp_loss": zero}, {"mlm_targets": zero, "nsp_examples": zero})
    assert float(found) == 0


@pytest.mark.parametrize(
    ("sums", "counts", "loss"),
    [
        ({"mlm_loss": 3.0, "nsp_loss": 2.0}, {"mlm_targets": 1.0, "nsp_examples": 1.0}, 5.0),
        ({"bilm_loss": 3.0}, {"bilm_targets": 1.0, "mlm_targets": 9.0}, 3.0),
    ],
)
def test_a_single_target_is_divided_by_one(sums, counts, loss):
    measure = next(name.removesuffix("_loss") for name in sums)
    given = ({name: np.float32(value) for name, value in numbers.items()} for numbers in (sums, counts))
    assert float(objective_of(measure).loss(*given)) == loss


def plain_loss(logits, targets, weights):
    """Computes the loss by automatic differentiation of its definition."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    return (weights * jnp.where(targets >= 0, -chosen, 0.0)).sum()


def test_the_derivative_of_cross_entropy_equals_automatic_differentiation():
    rng = np.random.default_rng(0)
    logits, weights = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2, 3, 5), (2, 3)))
    targets = jnp.asarray([[0, 4, -1], [2, -1, 1]], jnp.int32)
    found = jax.jit(jax.grad(lambda x: (weights * cross_entropy(x, targets)).sum()))(logits)
    np.testing.assert_allclose(found, jax.jit(jax.grad(plain_loss))(logits, targets, weights), atol=1e-6)
    assert not np.any(found[0, 2])


def test_a_prediction_is_correct_if_its_target_has_the_largest_logit():
    logits = np.random.default_rng(1).normal(size=(2, 6, 4)).astype(np.float32)
    logits[0, :2, 0] = 9.0
    best = logits.argmax(-1)
    assert {0, 1, 2, 3} <= set(best.ravel())
    targets = np.where(np.arange(6) % 3 == 0, -1, np.where(np.arange(6) % 3 == 1, best, (best + 1) % 4))
    assert {-1, 0} <= set(targets[best == 0])  # a target that is ignored is not the first class
    found = jax.jit(correct_predictions)(logits, targets.astype(np.int32))
    np.testing.assert_array_equal(found, targets == best)


def test_counts_leave_out_padding():
    batch = {
        "masked_targets": np.int32([[3, 0, -1], [5, -1, -1], [-1, -1, -1]]),
        "nsp_labels": np.int32([[1, 0], [0, 1], [-1, -1]]),
        "sequence_ids": np.int32([[1, 1, 2, 2], [1, 1, 1, 0], [0, 0, 0, 0]]),
    }
    objective = objective_of("mlm")
    found, usual = jax.jit(lambda batch: (objective.counts(batch), Objective.counts(objective, batch)))(batch)
    assert found == {"mlm_targets": 3, "nsp_examples": 4, "tokens": 7, "rows": 2}
    assert usual == {"masked": 3, "pairs": 4, "tokens": 7, "rows": 2}


@pytest.mark.parametrize("encoder", ["transformer", "bilm"])
def test_tpu_padding_does_not_change_sums_or_losses(encoder: str):
    """A program for a TPU computes more slots than the batch has. The additional slots predict nothing."""
    model, batch = dataclasses.replace(TINY, encoder=encoder, num_layers=1), random_batch(rows=4)
    assert batch["masked_positions"].shape[1] % 8
    chip = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    for_tpu = objective_for(dispatch.resolve(model, chip))
    program = program_for(for_tpu, optax.identity(), mesh=Mesh(np.array([chip]), ("data",)))
    params, plain = random_parameters(model), objective_for(model)
    both = jax.jit(lambda p, b: [program.evaluate(p, b), plain.sums(p, b, None) | plain.counts(b)])
    found, wanted = both(params, batch)
    assert found.keys() == wanted.keys()
    assert largest_difference(found, wanted) < 1e-4


SMOOTHED = {
    0.0: (1.8341784601645414, 0.004693690645378567, -0.18483841764532882),
    0.1: (1.9541515641126106, 0.0018365478138092667, -0.16769556048810944),
    0.3: (2.1940977422064263, -0.0038777384330735865, -0.13340984650150414),
}
"""Smoothing -> the loss of the logits below according to LabelSmoother of transformers 5.24, and two numbers of its gradient,
float64."""


@pytest.mark.parametrize("padding", [0, 5])
def test_label_smoothing_equals_transformers_without_padding_columns(padding: int):
    n = np.arange(42.0).reshape(2, 3, 7)
    logits = np.pad(np.sin(1.7 * n) * 2 + np.cos(n), ((0, 0), (0, 0), (0, padding)), constant_values=-1e9)
    targets = np.int32([[1, 6, -1], [0, 3, 3]])

    @jax.jit
    def means(logits: Any) -> Any:
        def mean(logits: Any, smoothing: float) -> Any:
            return smoothed_cross_entropy(logits, targets, smoothing, 7).sum() / 5

        return {smoothing: jax.value_and_grad(mean)(logits, smoothing) for smoothing in SMOOTHED}

    found = jax.device_get(means(logits.astype(np.float32)))
    for smoothing, (expected, first, last) in SMOOTHED.items():
        loss, gradient = found[smoothing]
        assert float(loss) == pytest.approx(expected, rel=2e-7)
        assert float(gradient[0, 1, 0]) == pytest.approx(first, abs=2e-8)
        assert float(gradient[0, 1, 6]) == pytest.approx(last, abs=2e-8)
        assert not gradient[0, 2].any(), "an ignored target has no gradient"
        assert not gradient[..., 7:].any()
        np.testing.assert_allclose(gradient.sum(-1), 0.0, atol=1e-7)
