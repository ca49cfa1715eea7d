"""A left-to-right model does not see the tokens after the one that it reads."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.random_rows import TINY, logits_of, outputs_of, random_batch, random_parameters

CAUSAL = dataclasses.replace(TINY, direction="left_to_right", scan_layers=True)


def all_logits(batch: dict[str, Any]) -> np.ndarray:
    """Returns the logits at every position of two rows."""
    everywhere = {"masked_positions": np.tile(np.arange(16, dtype=np.int32), (2, 1))}
    return np.asarray(outputs_of(CAUSAL, random_parameters(CAUSAL), batch | everywhere, None)["mlm_logits"])


def test_a_prediction_depends_only_on_the_tokens_up_to_its_position():
    batch = random_batch(rows=2, padding=False)
    before = all_logits(batch)
    for place in (0, 7, 15):
        changed = batch | {"input_ids": batch["input_ids"].at[:, place].set(batch["input_ids"][:, place] % 50 + 6)}
        after = all_logits(changed)
        np.testing.assert_array_equal(after[:, :place], before[:, :place])
        assert (np.abs(after - before)[:, place:].max(-1) > 1e-3).all(), "the input has to change the prediction"


def test_packed_examples_are_read_separately_from_left_to_right():
    batch = {name: np.asarray(x) for name, x in random_batch(rows=2, padding=False).items()}
    ids, columns = np.repeat(np.array([[1, 2]] * 2, np.int32), 8, axis=1), np.tile(np.arange(8, dtype=np.int32), (2, 2))
    packed = batch | {"sequence_ids": ids, "position_ids": columns}
    halves = {name: np.pad(packed[name][0].reshape(2, 8), ((0, 0), (0, 8))) for name in ("input_ids", "token_type_ids")}
    alone = all_logits(packed | halves | {"sequence_ids": 2 - ids})[:, :8]
    np.testing.assert_allclose(all_logits(packed)[0].reshape(alone.shape), alone, atol=2e-5)


def test_training_logits_equal_the_full_model():
    """`logits` computes the last layer only at the predicted positions, unless the layers are in a loop."""
    batch = random_batch(rows=2, padding=False)
    backwards, config = {"masked_positions": batch["position_ids"][:, ::-1]}, dataclasses.replace(CAUSAL, scan_layers=False)
    chosen = np.asarray(logits_of(config, random_parameters(CAUSAL), batch | backwards, None)["mlm_logits"])
    np.testing.assert_allclose(chosen[:, ::-1], all_logits(batch), atol=2e-5)
