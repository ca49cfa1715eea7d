"""A run whose last checkpoint cannot be saved still exports its model, and reports it."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import shutil
from typing import Any

from tests.end_to_end import forked
from tests.end_to_end.conftest import Ended, command
from tests.end_to_end.runs import LAST_STEP, assert_same_weights, checkpoints


def fail_the_last_save() -> None:
    """Fills the disk only for the checkpoint of the last step."""
    from orbax.checkpoint import CheckpointManager

    save = CheckpointManager.save

    def failing(self: CheckpointManager, step: int, *arguments: Any, **named: Any) -> bool:
        if step == LAST_STEP:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(self, step, *arguments, **named)

    CheckpointManager.save = failing  # type: ignore[method-assign]


def test_a_run_whose_last_save_fails_exports_its_model_and_fails(experiment: pathlib.Path, late: Ended, uninterrupted: Ended):
    workdir = shutil.copytree(late.workdir, late.workdir.with_name("last_save_failed"))
    (done,) = forked.run(experiment.parent, command(experiment, workdir), prepare=fail_the_last_save)
    assert done.status == 2, done.output
    assert f"error: the checkpoint of step {LAST_STEP} could not be saved in" in done.output
    assert "No space left on device" in done.output
    assert "Traceback" not in done.output
    assert LAST_STEP not in checkpoints(workdir)
    assert_same_weights(workdir, uninterrupted.workdir)
    assert json.loads((workdir / "results.json").read_text())["failed_saves_since_last_start"] == 1
