"""The sums between two log lines, and the end of a run that diverged."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.training.config import SpikeConfig
from bert_jax.training.loop import LossSpike, StepSums


def of_step(loss: float, skipped_in_a_row: int = 0) -> dict[str, np.float32]:
    return {"loss": np.float32(loss), "skipped_in_a_row": np.float32(skipped_in_a_row)}


def rows(step: int) -> dict[str, np.ndarray]:
    return {"input_ids": np.full((2, 3), step)}


def test_every_step_is_in_one_window(tmp_path: pathlib.Path):
    sums = StepSums(3, tmp_path, rows)
    sums.check(0)  # before the first step there is nothing to check
    assert sums.take() == {}
    for step in (1, 2, 3):
        sums.add(step, of_step(step))
    assert sums.take()["loss"] == 6
    sums.add(4, of_step(4))
    assert sums.take()["loss"] == 4
    assert sums.take() == {}


def test_a_run_ends_one_step_after_too_many_steps_that_are_not_finite(tmp_path: pathlib.Path):
    sums = StepSums(3, tmp_path, rows)
    sums.add(8, of_step(1, 2))
    sums.add(9, of_step(1, 3))
    says = r"in 3 steps in a row, up to step 9 .*The last batch is in .*nonfinite-step-9-process-0\.npz"
    with pytest.raises(UserError, match=says):
        sums.add(10, of_step(1, 0))
    (kept,) = tmp_path.iterdir()
    with np.load(kept) as batch:
        np.testing.assert_array_equal(batch["input_ids"], rows(8)["input_ids"])  # step 9 used the rows of step 8


def test_the_error_explains_why_the_batch_was_not_saved(tmp_path: pathlib.Path):
    sums = StepSums(3, tmp_path / "gone", rows)
    sums.add(9, of_step(1, 3))
    with pytest.raises(
        UserError,
        match=r"could not be written to .*nonfinite-step-9-process-0\.npz \(No such file or "
        r"directory\)",
    ):
        sums.check(9)


@pytest.mark.parametrize(
    ("policy", "in_a_row", "spikes", "raises"),
    [
        ("none", 3, 9, None),
        ("skip", 3, 4, None),
        ("skip", 3, 5, UserError),
        ("rollback", 3, 2, None),
        ("rollback", 3, 3, LossSpike),
        ("rollback", 3, 9, LossSpike),
        ("rollback", 7, 6, None),
        ("rollback", 7, 7, LossSpike),
    ],
)
def test_a_series_of_spikes_fails_the_run_or_rolls_it_back(
    policy: str, in_a_row: int, spikes: int, raises: type[Exception] | None, tmp_path: pathlib.Path
):
    """The limit of 5 steps (`abort_after_skipped`) does not end a run that rolls back."""
    sums = StepSums(5, tmp_path, rows, SpikeConfig(policy=policy, in_a_row=in_a_row))
    sums.add(8, of_step(1) | {"spikes_in_a_row": np.float32(spikes)})
    if raises is None:
        sums.check(8)
        return
    with pytest.raises(raises) as error:
        sums.check(8)
    if raises is UserError:
        assert f"in {spikes} steps in a row, up to step 8 (config.abort_after_skipped)" in str(error.value)
    else:
        assert error.value.args == LossSpike(8, spikes).args
