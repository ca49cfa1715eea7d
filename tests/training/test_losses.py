"""The pretraining loss as the mean over a batch, from sums and counts."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from bert_jax.training.losses import pretraining_loss


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
    assert float(pretraining_loss(given, counts)) == loss


def test_a_batch_without_targets_or_pairs_has_the_loss_0():
    zero = jnp.float32(0)
    found = pretraining_loss({"mlm_loss": zero, "nsp_loss": zero}, {"mlm_targets": zero, "nsp_examples": zero})
    assert float(found) == 0
