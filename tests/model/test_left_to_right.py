"""A left-to-right model does not see the tokens after the one that it reads."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from tests.random_rows import TINY, logits_of, outputs_of, random_batch, random_parameters

CAUSAL = dataclasses.replace(TINY, direction="left_to_right")


def all_logits(batch: dict[str, jax.Array], **fields) -> np.ndarray:
    """Returns the logits at every position of a batch without padding."""
    rows, length = batch["input_ids"].shape
    everywhere = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (rows, length))
    config = dataclasses.replace(CAUSAL, **fields)
    return np.asarray(outputs_of(config, random_parameters(config), batch | {"masked_positions": everywhere}, None)["mlm_logits"])


def test_a_prediction_depends_only_on_the_tokens_up_to_its_position():
    batch = random_batch(rows=2, padding=False)
    before = all_logits(batch)
    for place in (0, 7, 15):
        changed = batch | {"input_ids": batch["input_ids"].at[:, place].set(batch["input_ids"][:, place] % 50 + 6)}
        after = all_logits(changed)
        np.testing.assert_array_equal(after[:, :place], before[:, :place])
        assert (np.abs(after - before)[:, place:].max(-1) > 1e-3).all(), "the input has to change the prediction"


def test_the_masked_model_reads_both_sides_so_its_target_must_be_hidden():
    batch = random_batch(rows=2, padding=False)
    before = all_logits(batch, direction="both")
    after = all_logits(batch | {"input_ids": batch["input_ids"].at[:, 15].add(-1)}, direction="both")
    assert (np.abs(after - before)[:, 0].max(-1) > 1e-3).all()


def test_packed_examples_are_read_separately_from_left_to_right():
    batch = random_batch(rows=1, padding=False)
    packed = batch | {
        "sequence_ids": jnp.repeat(jnp.array([[1, 2]]), 8, axis=1),
        "position_ids": jnp.tile(jnp.arange(8), 2)[None],
    }
    halves = {name: x.reshape(2, 8) for name, x in packed.items() if x.shape == (1, 16)}
    alone = all_logits(
        batch | halves | {"sequence_ids": jnp.ones((2, 8), jnp.int32), "cls_positions": jnp.zeros((2, 1), jnp.int32)}
    )
    np.testing.assert_allclose(all_logits(packed).reshape(alone.shape), alone, atol=2e-5)


def test_training_logits_equal_the_full_model():
    """`logits` computes the last layer only at the predicted positions."""
    batch = random_batch(rows=2, padding=False)
    everywhere = {"masked_positions": batch["position_ids"]}
    chosen = np.asarray(logits_of(CAUSAL, random_parameters(CAUSAL), batch | everywhere, None)["mlm_logits"])
    np.testing.assert_allclose(chosen, all_logits(batch), atol=2e-5)
