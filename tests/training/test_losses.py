"""The pretraining loss as the mean over a batch, from sums and counts."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training.losses import batch_counts, loss_sums, pretraining_loss, row_losses


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


def test_the_losses_of_rows_are_means_over_their_own_targets_and_sum_up_to_that_of_the_batch():
    rng = np.random.default_rng(0)
    targets, labels = np.array([[3, 0, -1], [5, -1, -1], [-1, -1, -1]]), np.array([[1], [0], [-1]])
    outputs = {"mlm_logits": jnp.asarray(rng.normal(size=(3, 4, 7)), jnp.float32)}  # one slot more than there are targets
    outputs["nsp_logits"] = jnp.asarray(rng.normal(size=(3, 1, 2)), jnp.float32)
    batch = {"masked_targets": jnp.asarray(targets), "nsp_labels": jnp.asarray(labels)}
    batch["sequence_ids"] = jnp.ones((3, 8), jnp.int32)
    found, sums = row_losses(outputs, batch), loss_sums(outputs, batch)
    assert float(found["mlm_loss"] @ jnp.array([2.0, 1.0, 0.0])) == pytest.approx(float(sums["mlm_loss"]), rel=1e-5)
    assert float(found["nsp_loss"].sum()) == pytest.approx(float(sums["nsp_loss"]), rel=1e-5)
    assert float(found["mlm_loss"][2]) == float(found["nsp_loss"][2]) == 0
    assert float(batch_counts(batch)["mlm_targets"]) == 3
    assert row_losses({"mlm_logits": outputs["mlm_logits"]}, batch).keys() == {"mlm_loss"}
