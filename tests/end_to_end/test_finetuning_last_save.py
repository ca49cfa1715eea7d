"""A fine-tuning run whose last checkpoint cannot be saved still exports its model, alone or in a sweep, and reports it."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import re
from typing import Any

import pytest

from bert_jax.interop.huggingface import import_model
from tests.end_to_end import forked
from tests.end_to_end.forked import Commands
from tests.end_to_end.runs import checkpoints
from tests.end_to_end.test_finetuning_recovery import command

LAST_STEP = 12
"""The last step of two epochs."""
SPOILT = "seed-1"
"""The suffix of the name of the run whose last save fails, in the sweep."""


def fail_the_last_save() -> None:
    """Fills the disk only for the state after the last step, and in the run `lost` only for the best weights."""
    from orbax.checkpoint import CheckpointManager

    save = CheckpointManager.save

    def failing(self: CheckpointManager, step: int, *arguments: Any, **named: Any) -> bool:
        run = self.directory.parent
        is_spoilt = run.name.endswith(SPOILT) or run.parent.name != "runs"
        is_lost = run.name == "lost" and self.directory.name == "best"
        if is_lost or (step == LAST_STEP and self.directory.name == "checkpoints" and is_spoilt):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(self, step, *arguments, **named)

    CheckpointManager.save = failing  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def spoilt(toys: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Trains a single run on dev examples that are all alike, a sweep of two and the run `lost`, one after another in one
    process."""
    base = tmp_path_factory.mktemp("last_save")
    short = ("--config.training.epochs=2", "--config.checkpoints.every=5")
    (base / "alike.csv").write_text("text,label\n" + "it was fine,good\nit was fine,poor\n" * 8)
    alike = f"--config.task.own.dev={base / 'alike.csv'}"
    asked = {"run": (alike,), "sweep": ("--config.sweep.seeds=[0, 1]",), "lost": ()}
    commands = [command(toys, base / name, *short, *flags) for name, flags in asked.items()]
    return Commands(base, dict(zip(asked, forked.run(base, *commands, prepare=fail_the_last_save), strict=True)))


def test_a_run_whose_last_save_fails_exports_its_model_and_fails(spoilt: Commands):
    done, workdir = spoilt.ends["run"], spoilt.base / "run"
    assert done.status == 2, done.output
    assert f"error: the checkpoint of step {LAST_STEP} could not be saved in" in done.output
    assert "No space left on device" in done.output
    assert "Traceback" not in done.output
    assert checkpoints(workdir)[-1] == 10
    found = json.loads((workdir / "results.json").read_text())
    assert (found["steps"], found["failed_saves_since_last_start"]) == (LAST_STEP, 1)
    assert import_model(workdir).head is not None
    assert (workdir / "predictions" / "dev.tsv").is_file()
    assert found["degenerate"], "the same answer to all examples"
    assert re.search(r"dev: .* \(degenerate\); use another seed or a smaller learning rate", done.output)


def test_unsaved_best_weights_are_exported_before_the_error(spoilt: Commands):
    done, workdir = spoilt.ends["lost"], spoilt.base / "lost"
    assert done.status == 2, done.output
    (said,) = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert "No space left on device" in said
    assert said.endswith(f"The best weights so far are in {workdir / 'model'}")
    assert import_model(workdir).head is not None


def test_a_sweep_with_a_failed_last_save_exports_the_best_model_names_the_run_and_fails(spoilt: Commands):
    done, workdir = spoilt.ends["sweep"], spoilt.base / "sweep"
    assert done.status == 2, done.output
    (said,) = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert said.startswith("error: 1 of 2 runs finished but could not save everything. ")
    assert f"{SPOILT}: the checkpoint of step {LAST_STEP} could not be saved in" in said
    assert "seed-0: " not in said
    assert "Traceback" not in done.output
    summary = json.loads((workdir / "results.json").read_text())
    assert [(run["seed"], run["failed_saves_since_last_start"]) for run in summary["runs"]] == [(0, 0), (1, 1)]
    assert import_model(workdir).head is not None
