"""A run rolls back to a checkpoint before a spike of its loss."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from bert_jax.data.batches import BatchSource
from bert_jax.errors import UserError
from bert_jax.training.config import SpikeConfig
from bert_jax.training.loop import LossSpike
from bert_jax.training.spikes import Rollback
from tests.end_to_end import forked
from tests.end_to_end.conftest import command
from tests.end_to_end.runs import BRIEF_STEPS, assert_same_weights, records, results

POLICY = ("policy=rollback", "window=4", "deviations=2.0", "in_a_row=3", "rollback_steps=0")
FLAGS = (*(f"--config.spikes.{setting}" for setting in POLICY), "--config.evaluation.every=100")
BAD = range(9, 12)
"""The batches in which every word to predict is [SEP]."""


def _change_batches(change: Callable[[BatchSource, int, Callable[..., Any]], dict[str, np.ndarray]]) -> None:
    made = BatchSource.at

    @functools.wraps(made)
    def changed(source: BatchSource, step: int, *shard: Any) -> dict[str, np.ndarray]:
        return change(source, step, functools.partial(made, source, *(), shard=shard[0] if shard else (0, 1)))

    BatchSource.at = changed  # type: ignore[method-assign]


def spoil() -> None:
    """Spoils the BAD batches."""

    def spoilt(source: BatchSource, step: int, make: Callable[..., Any]) -> dict[str, np.ndarray]:
        batch: dict[str, np.ndarray] = make(step)
        if step in BAD:
            batch["masked_targets"] = np.where(batch["masked_targets"] >= 0, 3, -1).astype(np.int32)
        return batch

    _change_batches(spoilt)


def take_later_batches() -> None:
    """Replaces each batch from the ninth on by the batch of four steps later."""

    def later(source: BatchSource, step: int, make: Callable[..., Any]) -> dict[str, np.ndarray]:
        return make(step if step < 8 else step + 4)

    _change_batches(later)


def test_a_rollback_trains_as_if_the_bad_batches_did_not_exist(brief, tmp_path):
    """Batches 9 to 11 are bad, so steps 10 to 12 are spikes: the run rolls back to the checkpoint of step 8 and continues with
    batch 12."""
    (end,) = forked.run(tmp_path, command(brief, tmp_path / "bad", *FLAGS), prepare=spoil)
    assert end.status == 0, end.output
    said = "spiked in 3 steps in a row up to step 12: rolling back to step 8 and skipping 4 batches (rollback 1 of at most 3)"
    assert said in end.output
    found = results(tmp_path / "bad")
    assert [found[name] for name in ("rollbacks", "skipped_batches", "skipped_steps")] == [1, 4, 0]
    steps = [record["step"] for record in records(tmp_path / "bad") if "train/loss" in record]
    assert steps == list(range(1, BRIEF_STEPS + 1))
    goodput = json.loads((tmp_path / "bad" / "results.json").read_text())["ledger"]
    assert goodput["seconds"]["repeated_steps"] > 0
    (control,) = forked.run(tmp_path, command(brief, tmp_path / "control", *FLAGS), prepare=take_later_batches)
    assert control.status == 0, control.output
    assert results(tmp_path / "control")["rollbacks"] == 0
    assert_same_weights(tmp_path / "bad", tmp_path / "control")


def test_a_run_fails_after_the_maximum_number_of_rollbacks_and_names_the_step():
    config, nothing = SpikeConfig(policy="rollback", max_rollbacks=0), cast(Any, None)
    with pytest.raises(UserError, match=r"rolled back 0 times \(config.spikes.max_rollbacks\); .* --replay=120"):
        Rollback(config, nothing, nothing, nothing, nothing)(nothing, LossSpike(120, 3))
