"""However a run ends, the same command continues it, and it ends like the uninterrupted run."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import signal
from typing import Any

import numpy as np
import pytest

from bert_jax.runtime.goodput import read_goodput
from tests.end_to_end import forked
from tests.end_to_end.conftest import Ended, command
from tests.end_to_end.forked import Done, Started
from tests.end_to_end.runs import (
    BRIEF_STEPS,
    LAST_STEP,
    assert_same_weights,
    checkpoints,
    contents,
    free_port,
    last_step,
    learned,
    records,
    weights,
)
from tests.profiles import host_events, profiled_steps

WITHIN_ROUNDING = 2e-3  # relative to the largest weight of each array, after 24 steps with another order of summation


def copy_of(run: Ended, name: str) -> pathlib.Path:
    return shutil.copytree(run.workdir, run.workdir.with_name(name))


def assert_equal_within_rounding(workdir: pathlib.Path, wanted: pathlib.Path) -> None:
    ours, theirs = weights(workdir), weights(wanted)
    for name in theirs:
        if not name.endswith("key.bias"):  # the loss does not depend on it, so only rounding changes it
            assert np.abs(ours[name] - theirs[name]).max() < WITHIN_ROUNDING * np.abs(theirs[name]).max(), name
    for a, b in zip(learned(workdir), learned(wanted), strict=True):
        assert a.keys() == b.keys()
        assert a["step"] == b["step"]
        name = "train/loss" if "train/loss" in a else "eval/loss"
        assert a[name] == pytest.approx(b[name], rel=1e-3)


def test_the_kills_hit_the_beginning_and_the_middle_of_the_run(killed: Ended, finished: dict[str, Done]):
    assert finished["begun"].status == killed.status == -signal.SIGKILL
    assert "resuming" not in killed.output
    assert 6 <= last_step(killed.workdir) < LAST_STEP


def test_moving_the_workdir_ends_the_run_and_moving_it_back_resumes_it(
    uninterrupted: Ended, hindered: Ended, restarts: dict[str, Done]
):
    end = restarts["moved"]
    assert end.status == 2, end.output
    assert f"error: --workdir={hindered.workdir} was moved or removed while the run was using it; put it back" in end.output
    assert restarts["moved back"].status == 0, "the run made its workdir again"
    assert_same_weights(hindered.workdir, uninterrupted.workdir)


def test_a_damaged_checkpoint_is_skipped_for_the_previous_one(uninterrupted: Ended, late: Ended, hindered: Ended):
    before, newest = checkpoints(late.workdir)[-2:]
    assert f"the checkpoint of step {newest} cannot be read (" in hindered.output
    assert f"resuming from step {before}" in hindered.output
    assert "Traceback" not in hindered.output
    assert (hindered.workdir / "checkpoints" / "unreadable" / str(newest)).is_dir()
    assert learned(hindered.workdir) == learned(uninterrupted.workdir)
    assert_same_weights(hindered.workdir, uninterrupted.workdir)


def test_a_run_whose_last_save_fails_exports_its_model_and_fails(uninterrupted: Ended, hindered: Ended):
    assert hindered.status == 2, hindered.output
    assert f"error: the checkpoint of step {LAST_STEP} could not be saved in" in hindered.output
    assert "No space left on device" in hindered.output
    assert "Traceback" not in hindered.output
    assert LAST_STEP not in checkpoints(hindered.workdir)
    assert_same_weights(hindered.workdir, uninterrupted.workdir)
    assert json.loads((hindered.workdir / "results.json").read_text())["failed_saves_since_last_start"] == 1


def test_sigterm_saves_immediately_and_sets_the_exit_status(killed: Ended, late: Ended):
    assert late.status == 143, late.output
    steps = checkpoints(late.workdir)
    assert steps[-1] == last_step(late.workdir)
    assert f"stopped at step {steps[-1]} of {LAST_STEP}, saved; the same command resumes" in late.output
    assert f"resuming from step {checkpoints(killed.workdir)[-1]}" in late.output


def test_losses_and_weights_after_kills_and_a_sigterm_equal_the_uninterrupted_run(
    uninterrupted: Ended, late: Ended, continued: Ended
):
    assert f"resuming from step {checkpoints(late.workdir)[-1]}" in continued.output
    assert learned(continued.workdir) == learned(uninterrupted.workdir)  # the loss of every step, so the rows of every step too
    assert_same_weights(continued.workdir, uninterrupted.workdir)


def test_a_profile_holds_its_steps_and_changes_no_weight(uninterrupted: Ended, continued: Ended):
    assert profiled_steps(continued.workdir / "profile") == [19, 20]
    assert "saving" in {name for name, _ in host_events(continued.workdir / "profile")}  # after step 20
    assert f"xprof --logdir={continued.workdir / 'profile'}" in continued.output
    assert_same_weights(continued.workdir, uninterrupted.workdir)


def goodput(workdir: pathlib.Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((workdir / "results.json").read_text())["ledger"]
    return found


def test_goodput_of_a_killed_run_covers_all_time_since_its_first_start(continued: Ended):
    found, lines = goodput(continued.workdir), read_goodput(continued.workdir / "ledger.jsonl")
    assert found["starts"] == 4
    assert [line["start"] for line in lines] == sorted(line["start"] for line in lines)
    spent = found["seconds"]
    happened = ("training", "repeated_steps", "compiling", "evaluating", "saving", "restoring", "other", "between_starts")
    assert [name for name in happened if not spent[name] > 0] == []
    ended = records(continued.workdir)[-1]["time"]  # of the last evaluation; the model is exported after it
    since_the_first_start = ended - lines[0]["began"]
    assert since_the_first_start - 1 < sum(spent.values()) < since_the_first_start + 30
    assert found["goodput"] == pytest.approx(spent["training"] / sum(spent.values()), abs=1e-4)
    assert f"goodput {100 * found['goodput']:.1f} % of " in continued.output


def test_goodput_of_an_uninterrupted_run_has_one_start_and_no_repeated_steps(uninterrupted: Ended):
    found = goodput(uninterrupted.workdir)
    assert found["starts"] == 1
    assert (found["seconds"]["repeated_steps"], found["seconds"]["between_starts"]) == (0, 0)
    assert found["seconds"]["training"] > 0


def test_restarting_a_finished_run_changes_nothing(uninterrupted: Ended, finished: dict[str, Done]):
    said = f"all {LAST_STEP} steps are done; see {uninterrupted.workdir / 'results.json'}\n"
    assert finished["restarted"] == Done(0, said)
    assert contents(uninterrupted.workdir.with_name("after")) == contents(uninterrupted.workdir.with_name("before"))
    assert finished["restarted without checkpoints"] == Done(0, said.replace("uninterrupted", "bare"))
    assert learned(uninterrupted.workdir.with_name("bare")) == learned(uninterrupted.workdir)


def test_a_run_killed_before_its_results_is_evaluated_and_exported_without_training(uninterrupted: Ended, evaluated: Ended):
    assert evaluated.status == 0, evaluated.output
    own, whole = (json.loads((run.workdir / "results.json").read_text()) for run in (evaluated, uninterrupted))
    assert (own["eval"], own["steps"]) == (whole["eval"], whole["steps"])
    assert learned(evaluated.workdir) == learned(uninterrupted.workdir)
    assert_same_weights(evaluated.workdir, uninterrupted.workdir)


def pair(experiment: pathlib.Path, workdir: pathlib.Path, *arguments: str) -> list[Started]:
    flags = [f"--coordinator=127.0.0.1:{free_port()}", "--processes=2", "--start-timeout=120", *arguments]
    return [forked.start(experiment.parent, command(experiment, workdir, *flags, f"--process={i}")) for i in range(2)]


def test_a_run_resumes_in_two_processes_with_its_weights_divided_among_their_devices(
    experiment: pathlib.Path, uninterrupted: Ended, late: Ended
):
    workdir = copy_of(late, "two_processes")
    ends = [run.end()[0] for run in pair(experiment, workdir, "--config.mesh.fsdp=2")]
    assert [end.status for end in ends] == [0, 0], ends
    output, other = (end.output for end in ends)
    assert "devices: 2 x cpu, mesh data 1 x fsdp 2 x tensor 1" in output
    assert "step " not in other, "only the first process talks"
    assert_equal_within_rounding(workdir, uninterrupted.workdir)  # among other checks, metrics.jsonl has every step once
    assert len(list((workdir / "tensorboard").iterdir())) == 1
    assert checkpoints(workdir)[-1] == LAST_STEP


def test_a_full_disk_is_reported_at_every_checkpoint_and_fails_the_run_at_its_end(
    brief: pathlib.Path, briefs: dict[str, Done]
):
    workdir = brief.with_name("full")
    status, output = dataclasses.astuple(briefs["full"])
    assert status == 2, output
    assert "the checkpoint of step 4 could not be saved (File too large); training continues" in output
    assert f"step {BRIEF_STEPS}/{BRIEF_STEPS}" in output
    assert "3 CHECKPOINTS IN A ROW COULD NOT BE SAVED" in output
    assert f"error: cannot write a model to {workdir / 'model'}: File too large; " in output  # it is above the limit too
    assert "No other directory could be written either: " in output
    assert "Traceback" not in output
    assert last_step(workdir) == BRIEF_STEPS
    failed = [record.get("checkpoints/failed_saves_in_a_row") for record in records(workdir)]
    assert [count for count in failed if count] == [1, 2, 3, 4]
    assert checkpoints(workdir) == []
