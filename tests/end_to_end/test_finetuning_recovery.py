"""However a fine-tuning run or a sweep ends, the same command continues it, and it ends like the uninterrupted run."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from bert_jax import finetune
from bert_jax.errors import UserError
from bert_jax.finetuning import best_weights
from tests.end_to_end import forked
from tests.end_to_end.conftest import Ended
from tests.end_to_end.forked import Done, Signal, Started, Surroundings
from tests.end_to_end.runs import (
    REPOSITORY,
    assert_same_weights,
    checkpoints,
    contents,
    free_port,
    last_step,
    learned,
    records,
    results,
    weights,
)
from tests.end_to_end.toy_tasks import write_model
from tests.flags import replacing

EXPERIMENT = REPOSITORY / "experiments" / "finetune" / "own_text.py"
SMALL = (
    "--config.task.length=32",
    "--config.training.batch_size=16",
    "--config.training.learning_rate=4e-3",
    "--config.training.warmup_fraction=0.0",
    "--config.model.scan_layers=true",
)
THAWING = "--config.training.gradual_unfreezing=true"
"""Used in all runs on `toys`, so that they share compiled programs."""
CAREFUL = (
    "--config.training.epochs=10",
    "--config.selection.per_epoch=2",
    "--config.selection.patience=2",
    "--config.checkpoints.every=4",
    "--config.log_every=3",
)
"""Everything that could make a continued run differ: layers that thaw, the best of several evaluations, early stopping.
Evaluations come every 3 steps, states every 4."""
LAST_STEP = 60
IMPROVING = (3, 6, 12, 18, 24)
"""The steps of a run with CAREFUL whose evaluations count as the best so far (see `given_improvements`). Two evaluations without
a better one end the run at step 30."""
SMALL_FILES = 24_000
"""A file size in bytes: more than the text files of a run, less than the list of a state's arrays (32 kB; how its numbers are
spread over files differs from one save to the next)."""
WITHIN_ROUNDING = 2e-3  # relative to the largest weight of each array, as for pretraining


def command(data: pathlib.Path, workdir: pathlib.Path, *flags: str) -> list[str]:
    """Returns the command of a run on `data`'s model and tables."""
    places = [f"--workdir={workdir}", f"--config.init_from={data}/model"]
    tables = [f"--config.task.own.{split}={data}/{split}.csv" for split in ("train", "dev")]
    return ["finetune", f"--config={EXPERIMENT}", *replacing([*places, *tables, *SMALL, THAWING], *flags)]


def given_improvements() -> None:
    """Fixes which evaluations of a run count as better, in the process of the run. Otherwise this would depend on the last digits
    of their scores, which another CPU rounds differently; now everything happens at known steps."""
    best_weights.better = lambda experiment, step, score, best: step in IMPROVING


@dataclasses.dataclass(frozen=True)
class Runs:
    """Two runs of one configuration, one of them killed again and again while its inputs were moved."""

    whole: pathlib.Path
    killed: pathlib.Path
    ends: dict[str, Done]
    """How each start of the killed run ended, in order."""
    best: dict[str, list[int]]
    """The steps of the best weights that were on the disk after each start."""
    early: pathlib.Path
    """The workdir of the killed run after the SIGTERM."""
    diverged: pathlib.Path
    """The workdir of a run whose weights are soon not finite."""
    ends_of_diverged: Sequence[Done]
    aborted: Ended
    """The same with fewer steps that may be skipped."""


@pytest.fixture(scope="module")
def runs(toys: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    base = tmp_path_factory.mktemp("recovery")
    moved = base / "moved"
    moved.mkdir()
    for name in ("train.csv", "dev.csv"):
        shutil.copy(toys / name, moved)
    shutil.copytree(toys / "model", moved / "model")
    workdir, early = base / "killed", base / "early"
    deaths = {
        "a best and no state": Signal("bert_jax.training.loop:Saver.save", argument=4, once_there=(f"{workdir}/best/3",)),
        "a best newer than the state, which is being saved": Signal(
            "bert_jax.training.loop:Saver.save",
            argument=8,
            after=True,
            once_there=(f"{workdir}/checkpoints/4", f"{workdir}/best/6"),
        ),
        "stopped": Signal("bert_jax.runtime.interruptions:Preemption.requested", argument=9, number=signal.SIGTERM),
        "a state and its best": Signal(
            "bert_jax.training.loop:Saver.save", argument=24, after=True, once_there=(f"{workdir}/checkpoints/24",)
        ),
        "in the last evaluation": Signal("bert_jax.finetuning.finetuning_log:FinetuningLog.evaluation", argument=30),
        "no results yet": Signal("bert_jax.finetune:write_results"),
        "no model yet": Signal("bert_jax.finetuning.best_weights:BestWeights.export"),
    }
    ends, best = {}, {}
    for name, death in deaths.items():
        data, late = (moved, "/best/24") if early.exists() else (toys, "/checkpoints/8")
        (ends[name],) = forked.run(toys, command(data, workdir, *CAREFUL), at=death, prepare=given_improvements, slow=late)
        best[name] = [int(path.name) for path in (workdir / "best").iterdir() if path.name.isdigit()]
        if name == "stopped":
            shutil.copytree(workdir, early)
    diverges = ("--config.training.learning_rate=1e30", "--config.training.epochs=1")
    commands = [command(moved, workdir, *CAREFUL), command(toys, base / "whole", *CAREFUL)]
    commands += [command(toys, base / "diverged", *diverges)] * 2
    commands += [command(toys, base / "aborted", *diverges, "--config.abort_after_skipped=3", "--config.checkpoints.every=1")]
    ends["the last"], whole, *diverged, aborted = forked.run(toys, *commands, prepare=given_improvements)  # sharing programs
    assert whole.status == 0, whole.output
    aborted = Ended(base / "aborted", *dataclasses.astuple(aborted))
    return Runs(base / "whole", workdir, ends, best, early, base / "diverged", diverged, aborted)


def test_the_reference_run_stops_early_with_its_best_step_before_the_last(runs: Runs):
    """Otherwise the tests below would compare too little."""
    found = results(runs.whole)
    (score,) = [record["dev/accuracy"] for record in records(runs.whole) if record["step"] == 24 and "dev/accuracy" in record]
    assert found["scores"]["dev"]["accuracy"] == pytest.approx(score, rel=1e-6)
    assert (found["best_step"], found["steps"]) == (24, 30)  # two evaluations without an improvement
    assert found["steps"] < LAST_STEP


def test_every_kill_hits_its_intended_moment(runs: Runs):
    statuses = {name: end.status for name, end in runs.ends.items()}
    killed = dict.fromkeys(statuses, -signal.SIGKILL)
    assert statuses == killed | {"stopped": 128 + signal.SIGTERM, "the last": 0}, runs.ends
    assert 6 in runs.best["a best newer than the state, which is being saved"]
    assert "resuming from step 4" in runs.ends["stopped"].output


def test_the_logged_learning_rate_is_the_applied_one(runs: Runs):
    """Each line has the rate of the last step before it. The rate falls from the peak at the first step to near 0 at the
    last."""
    rates = {record["step"]: record["train/learning_rate"] for record in records(runs.whole) if "train/learning_rate" in record}
    assert set(rates) >= {3, 4, 6}
    for step, rate in rates.items():
        assert rate == pytest.approx(4e-3 * (1 - (step - 1) / LAST_STEP), rel=1e-5)


def test_sigterm_saves_immediately_and_reports_the_step(runs: Runs):
    assert f"stopped at step 9 of {LAST_STEP}, saved; the same command resumes" in runs.ends["stopped"].output
    assert checkpoints(runs.early)[-1] == 9
    assert "resuming from step 9" in runs.ends["a state and its best"].output


def test_scores_metrics_and_weights_after_kills_equal_the_uninterrupted_run(runs: Runs):
    assert results(runs.killed) == results(runs.whole)
    assert learned(runs.killed) == learned(runs.whole)
    assert_same_weights(runs.killed, runs.whole)
    for path in (runs.whole / "predictions").iterdir():
        assert (runs.killed / "predictions" / path.name).read_bytes() == path.read_bytes()


def test_a_checkpoint_is_never_saved_before_its_best_weights(runs: Runs):
    """A continued run does not evaluate the weights of its checkpoint again. In this run, the best weights are written
    a second later than the checkpoint."""
    assert "dev after step 24" in runs.ends["a state and its best"].output
    assert 24 in runs.best["a state and its best"]
    assert "resuming from step 24" in runs.ends["in the last evaluation"].output


def test_a_full_disk_is_reported_and_earlier_saves_survive(toys: pathlib.Path, runs: Runs, tmp_path: pathlib.Path):
    workdir = shutil.copytree(runs.early, tmp_path / "full")
    saved = contents(workdir / "checkpoints/9")
    (end,) = forked.run(toys, command(toys, workdir, *CAREFUL), around=Surroundings(file_size=SMALL_FILES))
    status, output = dataclasses.astuple(end)
    assert status == 2, output
    assert "resuming from step 9" in output
    # Many writes fail, and any of them may be the one that is reported.
    assert re.search(r"the checkpoint of step \d+ could not be saved \(File too large\); training continues", output), output
    assert f"error: cannot write a model to {workdir}/model: File too large; " in output, output
    assert "No other directory could be written either: " in output
    assert "Traceback" not in output
    assert contents(workdir / "checkpoints/9") == saved
    # earlier weights, or better ones for which there was space
    assert any(path.name.isdigit() for path in (workdir / "best").iterdir())
    assert not (workdir / "model").exists()


def test_a_run_with_too_few_finite_steps_fails_and_exports_nothing(runs: Runs):
    """The run has too few steps to reach `abort_after_skipped`, and fails at its end. Started again, it ends in the same way."""
    for end in runs.ends_of_diverged:
        assert end.status == 2, end.output
        says = r"error: only [012] of 6 steps changed the weights, because .* not finite\. No model is exported"
        assert re.search(says, end.output), end.output
    assert not (runs.diverged / "model").exists()
    assert not (runs.diverged / "results.json").exists()


def test_restarting_a_finished_run_changes_nothing(toys: pathlib.Path, runs: Runs):
    before = contents(runs.whole)
    (end,) = forked.run(toys, command(toys, runs.whole, *CAREFUL))
    assert end == Done(0, f"this run is done; see {runs.whole / 'results.json'} and {runs.whole / 'model'}\n")
    assert contents(runs.whole) == before


def test_a_diverged_run_saves_its_batch_and_ends_without_traceback(runs: Runs):
    end = runs.aborted
    assert end.status == 2
    assert "error: the loss or the gradient was not finite in 3 steps in a row" in end.output
    assert "lower the learning rate" in end.output
    assert "Traceback" not in end.output
    assert len(list(end.workdir.glob("nonfinite-step-*.npz"))) == 1
    assert not (end.workdir / "results.json").exists()


# ----------------------------------------------------------------------------------------------- another run in the same workdir
@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, toys: pathlib.Path, runs: Runs) -> Iterator[Callable[..., str]]:
    """Returns refused(*flags), which adds the flags to those of a finished run and returns the error of the command. Checks that
    no file of that run has changed."""
    before = contents(runs.whole)

    def ask(*flags: str) -> str:
        monkeypatch.setattr(sys, "argv", command(toys, runs.whole, *CAREFUL, *flags))
        with pytest.raises(UserError) as error:
            finetune.main()
        return str(error.value)

    yield ask
    assert contents(runs.whole) == before


def test_another_configuration_is_refused_with_both_values(refused: Callable[..., str]):
    says = refused("--config.training.label_smoothing=0.1", "--config.seed=4")
    assert "training.label_smoothing  stored 0.0, given 0.1" in says
    assert "seed                      stored 0, given 4" in says
    assert "name another --workdir" in says


def test_changed_data_under_the_same_name_is_refused(refused: Callable[..., str], toys: pathlib.Path, tmp_path: pathlib.Path):
    (tmp_path / "train.csv").write_text((toys / "train.csv").read_text().replace("poor", "good", 1))
    says = refused(f"--config.task.own.train={tmp_path / 'train.csv'}")
    assert "fingerprints.examples  stored " in says
    assert "fingerprints.init_from" not in says


def test_another_model_under_the_same_name_is_refused(refused: Callable[..., str], tmp_path: pathlib.Path):
    write_model(tmp_path / "model", initializer_range=0.5, num_layers=1)
    assert "fingerprints.init_from  stored " in refused(f"--config.init_from={tmp_path / 'model'}")


def test_data_that_was_moved_and_saved_again_counts_as_unchanged(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    toys: pathlib.Path,
    runs: Runs,
    tmp_path: pathlib.Path,
):
    """A byte order mark, other line ends, quotes around all cells, and blank rows do not matter."""
    shutil.copytree(toys / "model", tmp_path / "model")
    for name in ("train.csv", "dev.csv"):
        rows = [line.split(",") for line in (toys / name).read_text().splitlines()]
        text = "\r\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + f"{text}\r\n\r\n".encode())
    workdir = shutil.copytree(runs.whole, tmp_path / "run")
    monkeypatch.setattr(sys, "argv", command(tmp_path, workdir, *CAREFUL))
    assert finetune.main() == 0
    assert "this run is done; see " in capsys.readouterr().err


def test_a_refusal_is_one_line_with_exit_status_2(toys: pathlib.Path, runs: Runs):
    before = contents(runs.whole)
    (end,) = forked.run(toys, command(toys, runs.whole, *CAREFUL, "--config.task.own.dev=nowhere.csv"))
    assert end.status == 2
    assert end.output.startswith("error: nowhere.csv (looked for in ")
    assert end.output.count("\n") == 1
    assert contents(runs.whole) == before


# ------------------------------------------------------------------------------------------------------------ sweeps of two seeds
SWEEP = (
    "--config.training.epochs=2",
    "--config.sweep.seeds=[0, 1]",
    "--config.checkpoints.every=5",
    "--config.log_every=1",
)
STEPS = 12
"""The number of steps of each run."""


@dataclasses.dataclass(frozen=True)
class Sweeps:
    """Two sweeps with the same runs. One trains its runs side by side. The other trains them one after another; it was killed
    during the second run, and continued."""

    together: pathlib.Path
    killed: pathlib.Path
    first: dict[str, bytes]
    """The files in the directory of the first run when the second sweep was killed."""
    ends: Sequence[Done]


@pytest.fixture(scope="module")
def sweeps(toys: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Sweeps:
    base = tmp_path_factory.mktemp("sweeps")
    together, killed = base / "together", base / "killed"
    ends = forked.run(toys, command(toys, together, *SWEEP), devices=2)
    reached = f"{runs_of(killed)[1]}/checkpoints/5"
    death = Signal("bert_jax.runtime.interruptions:Preemption.requested", call=STEPS + 8, once_there=(reached,))
    ends += forked.run(toys, command(toys, killed, *SWEEP), at=death)
    first = contents(runs_of(killed)[0])
    ends += forked.run(toys, command(toys, killed, *SWEEP))
    return Sweeps(together, killed, first, ends)


def runs_of(workdir: pathlib.Path) -> list[pathlib.Path]:
    return [workdir / "runs" / f"batch-16_rate-0.004_epochs-2_seed-{seed}" for seed in (0, 1)]


def test_a_killed_sweep_resumes_its_run_and_repeats_no_other(sweeps: Sweeps):
    assert [end.status for end in sweeps.ends] == [0, -signal.SIGKILL, 0], sweeps.ends
    first, second = runs_of(sweeps.killed)
    assert f"{second.name}  resuming from step 5" in sweeps.ends[-1].output
    assert first.name not in sweeps.ends[-1].output
    left = {name: data for name, data in sweeps.first.items() if not name.startswith(("best", "checkpoints"))}
    assert {name: data for name, data in contents(first).items() if not name.startswith(("best", "checkpoints"))} == left


def test_parallel_sequential_and_resumed_sweeps_give_the_same_runs(sweeps: Sweeps):
    assert results(sweeps.killed) | {"runs": []} == results(sweeps.together) | {"runs": []}
    for one, other in zip(runs_of(sweeps.killed), runs_of(sweeps.together), strict=True):
        assert results(one) == results(other)
        assert learned(one) == learned(other)
        assert last_step(one) == STEPS
    assert_same_weights(sweeps.killed, sweeps.together)


def test_a_sweep_compares_its_runs_and_keeps_only_the_best_weights(sweeps: Sweeps):
    found = json.loads((sweeps.together / "results.json").read_text())
    scores = [results(run)["scores"]["dev"]["accuracy"] for run in runs_of(sweeps.together)]
    (setting,) = found["settings"]
    assert found["metric"] == "dev/accuracy"
    assert setting["mean"] == pytest.approx(np.mean(scores))
    assert setting["std"] == pytest.approx(np.std(scores, ddof=1))
    best = runs_of(sweeps.together)[int(np.argmax(scores))]
    assert found["best_run"] == best.name
    assert [run for run in runs_of(sweeps.together) if (run / "best").exists()] == [best]
    assert not any((run / "checkpoints").exists() for run in runs_of(sweeps.together))
    assert (sweeps.together / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (sweeps.together / "predictions" / "dev.tsv").exists()


def test_a_finished_sweep_refuses_another_configuration(toys: pathlib.Path, sweeps: Sweeps):
    before = contents(sweeps.killed)
    again = command(toys, sweeps.killed, *SWEEP)
    done, other = forked.run(toys, again, [*again, "--config.training.label_smoothing=0.1"])
    assert done == Done(0, f"this run is done; see {sweeps.killed / 'results.json'} and {sweeps.killed / 'model'}\n")
    assert other.status == 2
    assert "training.label_smoothing  stored 0.0, given 0.1" in other.output
    assert contents(sweeps.killed) == before


# ------------------------------------------------------------------------------------------------------------- several processes
def pair(data: pathlib.Path, workdir: pathlib.Path, *flags: str) -> list[Started]:
    """Two processes of one sweep."""
    flags += (f"--coordinator=127.0.0.1:{free_port()}", "--processes=2", "--start-timeout=120")
    return [forked.start(data, command(data, workdir, *replacing(SWEEP, *flags), f"--process={i}")) for i in range(2)]


def test_two_processes_share_a_sweep_and_write_the_files_of_one_process(
    toys: pathlib.Path, sweeps: Sweeps, tmp_path: pathlib.Path
):
    workdir = tmp_path / "apart"
    ends = [run.end()[0] for run in pair(toys, workdir)]
    assert [end.status for end in ends] == [0, 0], ends
    output = ends[0].output
    assert "2 processes for 2 runs; this process trains 1" in output
    assert [f"{one.name}  {STEPS} steps" in output for one in runs_of(workdir)] == [True, False]
    assert results(workdir) | {"runs": []} == results(sweeps.together) | {"runs": []}
    for one, whole in zip(runs_of(workdir), runs_of(sweeps.together), strict=True):
        assert results(one) == results(whole)
        assert learned(one) == learned(whole)
    assert_same_weights(workdir, sweeps.together)


def test_sigterm_to_one_of_two_processes_saves_and_stops_both(toys: pathlib.Path, tmp_path: pathlib.Path):
    workdir = tmp_path / "asked"
    first, second = pair(toys, workdir, "--config.training.epochs=2000")
    directories = [workdir / "runs" / f"batch-16_rate-0.004_epochs-2000_seed-{seed}" for seed in (0, 1)]
    first.wait_until(lambda: all(last_step(directory) >= 5 for directory in directories))
    second.process.terminate()  # SIGTERM
    ends = [run.end()[0] for run in (first, second)]
    assert [end.status for end in ends] == [128 + signal.SIGTERM] * 2, ends
    assert "saved; the same command resumes" in ends[0].output
    for directory in directories:
        assert checkpoints(directory)[-1] == last_step(directory)


def test_two_processes_train_the_same_model_as_one(toys: pathlib.Path, sweeps: Sweeps, tmp_path: pathlib.Path):
    """Both processes train the run that is the best of `sweeps.together`."""
    workdir, best = tmp_path / "two", json.loads((sweeps.together / "results.json").read_text())["best_run"]
    ends = [run.end()[0] for run in pair(toys, workdir, f"--config.sweep.seeds=[{best[-1]}]")]
    assert [end.status for end in ends] == [0, 0], ends
    output, other = (end.output for end in ends)
    assert "devices: 2 x cpu" in output
    assert "step " not in other, "only the first process talks"
    whole = sweeps.together / "runs" / best
    assert [record["step"] for record in learned(workdir)] == [record["step"] for record in learned(whole)]
    losses, wanted = ([record["train/loss"] for record in learned(run) if "train/loss" in record] for run in (workdir, whole))
    np.testing.assert_allclose(losses, wanted, rtol=1e-3)
    assert results(workdir)["scores"]["dev"]["accuracy"] == pytest.approx(results(whole)["scores"]["dev"]["accuracy"], abs=0.03)
    ours, theirs = weights(workdir), weights(sweeps.together)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        if not name.endswith("key.bias"):  # it has no effect on the loss, so only rounding moves it
            assert np.abs(ours[name] - theirs[name]).max() <= WITHIN_ROUNDING * np.abs(theirs[name]).max(), name  # 0 if frozen
