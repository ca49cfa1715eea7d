"""However a fine-tuning run or a sweep ends, the same command continues it, and it ends like the uninterrupted run."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re
import resource
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
from tests.end_to_end.conftest import ASKED, copying
from tests.end_to_end.forked import Command, Crash, Done, Signal, Started, Surroundings
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
KILLS = (
    "a best and no state",
    "a best newer than the state, which is being saved",
    "a state and its best",
    "in the last evaluation",
    "no results yet",
    "no model yet",
)
LAST_STEP = 60
IMPROVING = (3, 6, 12)
"""The steps of a run with CAREFUL whose evaluations count as the best so far (see `given_improvements`). Two evaluations without
a better one end the run at step 18."""
SLOW = ("/checkpoints/8", "/best/12$")
"""A state that takes three seconds to save, one for each of its parts and one for itself, since a copy has to be made in that
time; and best weights that appear a second late."""
SMALL_FILES = 24_000
"""A file size in bytes: more than the text files of a run, less than the list of a state's arrays (32 kB; how its numbers are
spread over files differs from one save to the next)."""
SWEEP = (
    "--config.training.epochs=2",
    "--config.sweep.seeds=[0, 1]",
    "--config.checkpoints.every=5",
    "--config.log_every=1",
)
STEPS = 12
"""The number of steps of each run of the sweep."""
EPOCHS = 2000
"""The epochs of a sweep that is asked to stop long before its end."""
SAVE = "bert_jax.training.loop:Saver.save"
WITHIN_ROUNDING = 2e-3  # relative to the largest weight of each array, as for pretraining


def command(data: pathlib.Path, workdir: pathlib.Path, *flags: str) -> list[str]:
    """Returns the command of a run on `data`'s model and tables."""
    places = [f"--workdir={workdir}", f"--config.init_from={data}/model"]
    tables = [f"--config.task.own.{split}={data}/{split}.csv" for split in ("train", "dev")]
    return ["finetune", f"--config={EXPERIMENT}", *replacing([*places, *tables, *SMALL, THAWING], *flags)]


def runs_of(workdir: pathlib.Path, epochs: int = 2) -> list[pathlib.Path]:
    return [workdir / "runs" / f"batch-16_rate-0.004_epochs-{epochs}_seed-{seed}" for seed in (0, 1)]


def given_improvements() -> None:
    """Fixes which evaluations of a run count as better, in the process of the run. Otherwise this would depend on the last digits
    of their scores, which another CPU rounds differently; now everything happens at known steps."""
    best_weights.better = lambda experiment, step, score, best: step in IMPROVING


@dataclasses.dataclass(frozen=True)
class Runs:
    """Two runs of one configuration, one of them killed again and again while its inputs were moved."""

    base: pathlib.Path
    """The directory of all workdirs."""
    whole: pathlib.Path
    killed: pathlib.Path
    ends: dict[str, Done]
    """How each start of the killed run ended, in order, and other runs of the same process."""
    early: pathlib.Path
    """The workdir of the killed run after the SIGTERM."""


@pytest.fixture(scope="module")
def runs(toys: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The runs share a process, and with it programs, see `Crash`. A sweep is the last of them, and killed with SIGKILL."""
    base = tmp_path_factory.mktemp("recovery")
    names = ("moved", "early", "whole", "diverged", "full", "sweep")
    moved, early, whole, diverged, full, sweep = (base / name for name in names)
    moved.mkdir()
    for name in ("train.csv", "dev.csv"):
        shutil.copy(toys / name, moved)
    shutil.copytree(toys / "model", moved / "model")
    commands: dict[str, Command] = {}
    place = base / "started"

    def start(name: str, death: Signal) -> None:
        nonlocal place
        if isinstance(death, Crash):
            death = dataclasses.replace(death, source=place, target=base / name.replace(" ", "_"))
        data = moved if "stopped" in commands else toys
        commands.update({f"armed: {name}": death.arm, name: command(data, place, *CAREFUL)})
        place = death.target if isinstance(death, Crash) else place

    start("a best and no state", Crash(SAVE, argument=4, once_there=("best/3",)))
    newer = Crash(SAVE, argument=8, after=True, once_there=("checkpoints/4", "best/6"))
    start("a best newer than the state, which is being saved", newer)
    start("stopped", Signal(ASKED, argument=9, number=signal.SIGTERM))
    commands["copied"] = copying(place, early)
    start("a state and its best", Crash(SAVE, argument=12, after=True, once_there=("checkpoints/12",)))
    start("in the last evaluation", Crash("bert_jax.finetuning.finetuning_log:FinetuningLog.evaluation", argument=18))
    start("no results yet", Crash("bert_jax.finetune:write_results"))
    commands["without curves"] = (place / "curves.png").unlink
    start("no model yet", Crash("bert_jax.finetuning.best_weights:BestWeights.export"))
    diverges = ("--config.training.learning_rate=1e30", "--config.training.epochs=1")
    aborts = (*diverges, "--config.abort_after_skipped=3", "--config.checkpoints.every=1")
    reached = f"{runs_of(sweep)[1]}/checkpoints/5"
    commands |= {
        "the last": command(moved, place, *CAREFUL),
        "whole": command(toys, whole, *CAREFUL),
        "copied again": copying(whole, base / "before"),
        "restarted": command(toys, whole, *CAREFUL),
        "refused": command(toys, whole, *CAREFUL, "--config.task.own.dev=nowhere.csv"),
        "diverged": command(toys, diverged, *diverges),
        "diverged again": command(toys, diverged, *diverges),
        "aborted": command(toys, base / "aborted", *aborts),
        "copied once more": copying(early, full),
        "a full disk": Surroundings(file_size=SMALL_FILES).enter,
        "full": command(toys, full, *CAREFUL),
        "an empty disk": functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2),
        "armed at last": Signal(ASKED, call=STEPS + 8, once_there=(reached,)).arm,
        "a sweep": command(toys, sweep, *SWEEP),
    }
    ends = forked.commands_run(base, commands, prepare=given_improvements, slow=SLOW).ends
    assert ends["whole"].status == 0, ends["whole"].output
    return Runs(base, whole, place, ends, early)


def test_the_reference_run_stops_early_with_its_best_step_before_the_last(runs: Runs):
    """Otherwise the tests below would compare too little."""
    found = results(runs.whole)
    (score,) = [record["dev/accuracy"] for record in records(runs.whole) if record["step"] == 12 and "dev/accuracy" in record]
    assert found["scores"]["dev"]["accuracy"] == pytest.approx(score, rel=1e-6)
    assert (found["best_step"], found["steps"]) == (12, 18)  # two evaluations without an improvement
    assert found["steps"] < LAST_STEP


def test_every_kill_hits_its_intended_moment(runs: Runs):
    statuses = {name: runs.ends[name].status for name in KILLS}
    assert statuses == dict.fromkeys(KILLS, -signal.SIGKILL), runs.ends
    assert (runs.ends["stopped"].status, runs.ends["the last"].status) == (128 + signal.SIGTERM, 0), runs.ends
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
    assert (runs.killed / "curves.png").read_bytes().startswith(b"\x89PNG")  # although it was removed after the last step


def test_a_checkpoint_is_never_saved_before_its_best_weights(runs: Runs):
    """A continued run does not evaluate the weights of its checkpoint again. In this run, the best weights are written
    a second later than the checkpoint."""
    assert "dev after step 12" in runs.ends["a state and its best"].output
    assert (runs.base / "a_state_and_its_best/best/12").is_dir()
    assert "resuming from step 12" in runs.ends["in the last evaluation"].output


def test_a_full_disk_is_reported_and_earlier_saves_survive(runs: Runs):
    workdir = runs.base / "full"
    status, output = dataclasses.astuple(runs.ends["full"])
    assert status == 2, output
    assert "resuming from step 9" in output
    # Many writes fail, and any of them may be the one that is reported.
    assert re.search(r"the checkpoint of step \d+ could not be saved \(File too large\); training continues", output), output
    assert f"error: cannot write a model to {workdir}/model: File too large; " in output, output
    assert "No other directory could be written either: " in output
    assert "Traceback" not in output
    assert contents(workdir / "checkpoints/9") == contents(runs.early / "checkpoints/9")
    # earlier weights, or better ones for which there was space
    assert any(path.name.isdigit() for path in (workdir / "best").iterdir())
    assert not (workdir / "model").exists()


def test_a_run_with_too_few_finite_steps_fails_and_exports_nothing(runs: Runs):
    """The run has too few steps to reach `abort_after_skipped`, and fails at its end. Started again, it ends in the same way."""
    for name in ("diverged", "diverged again"):
        end = runs.ends[name]
        assert end.status == 2, end.output
        says = r"error: only [012] of 6 steps changed the weights, because .* not finite\. No model is exported"
        assert re.search(says, end.output), end.output
    workdir = runs.base / "diverged"
    assert not (workdir / "model").exists()
    assert not (workdir / "results.json").exists()


def test_restarting_a_finished_run_changes_nothing(runs: Runs):
    assert runs.ends["restarted"] == Done(0, f"this run is done; see {runs.whole / 'results.json'} and {runs.whole / 'model'}\n")
    assert contents(runs.whole) == contents(runs.base / "before")


def test_a_diverged_run_saves_its_batch_and_ends_without_traceback(runs: Runs):
    status, output = dataclasses.astuple(runs.ends["aborted"])
    assert status == 2
    assert "error: the loss, the gradient or the learning rate was not finite in 3 steps in a row" in output
    assert "lower the learning rate" in output
    assert "Traceback" not in output
    workdir = runs.base / "aborted"
    assert len(list(workdir.glob("nonfinite-step-*.npz"))) == 1
    assert not (workdir / "results.json").exists()


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
    says = refused(f"--config.init_from={tmp_path / 'model'}")
    assert re.search(r"fingerprints\.init_from +stored ", says)
    assert re.search(r"fingerprints\.init_from_config +stored ", says)


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


def test_a_refusal_is_one_line_with_exit_status_2(runs: Runs):
    end = runs.ends["refused"]
    assert end.status == 2
    assert end.output.startswith("error: nowhere.csv (looked for in ")
    assert end.output.count("\n") == 1
    assert contents(runs.whole) == contents(runs.base / "before")


# ------------------------------------------------------------------------------------------------------------ sweeps of two seeds
@dataclasses.dataclass(frozen=True)
class Sweeps:
    """Sweeps with the same runs. One trains them one after another; it was killed during the second run, and continued on two
    devices. Another trains them side by side on two devices. The third trains them in two processes, which had trained a longer
    sweep before that; one of them was asked to stop."""

    killed: pathlib.Path
    together: pathlib.Path
    apart: pathlib.Path
    asked: pathlib.Path
    ends: dict[str, Done]
    ends_of_second_process: dict[str, Done]


@pytest.fixture(scope="module")
def sweeps(toys: pathlib.Path, runs: Runs) -> Sweeps:
    base, killed = runs.base, runs.base / "sweep"
    together, apart, asked = (base / name for name in ("together", "apart", "asked"))
    long = command(toys, asked, *replacing(SWEEP, f"--config.training.epochs={EPOCHS}"))
    shared = {"asked": long, "apart": command(toys, apart, *SWEEP)}
    alone: dict[str, Command] = {
        "together": command(toys, together, *SWEEP),
        "copied": copying(killed, base / "sweep-before"),
        "resumed": command(toys, killed, *SWEEP),
        "copied again": copying(killed, base / "sweep-done"),
        "restarted": command(toys, killed, *SWEEP),
        "changed": command(toys, killed, *SWEEP, "--config.training.label_smoothing=0.1"),
    }
    first, second = pair(base, *shared.values(), also=[*alone.values()], devices=(2, 1))
    first.wait_until(lambda: all(last_step(directory) >= 5 for directory in runs_of(asked, EPOCHS)))
    second.process.terminate()  # SIGTERM
    ends = dict(zip([*shared, *alone], first.end(), strict=True))
    return Sweeps(killed, together, apart, asked, ends, dict(zip(shared, second.end(), strict=True)))


def pair(
    base: pathlib.Path, *commands: Sequence[str], also: Sequence[Command] = (), devices: Sequence[int] = (1, 1)
) -> list[Started]:
    """Starts two processes with these numbers of devices, which run the commands together. The first process also runs others."""
    ports = [f"--coordinator=127.0.0.1:{free_port()}" for _ in commands]
    several = [[*one, port, "--processes=2", "--start-timeout=120"] for one, port in zip(commands, ports, strict=True)]
    lines = [[[*one, f"--process={i}"] for one in several] for i in range(2)]
    first = forked.start(base, *lines[0], *also, devices=devices[0], prepare=given_improvements)
    return [first, forked.start(base, *lines[1], devices=devices[1], prepare=given_improvements)]


def test_a_killed_sweep_resumes_its_run_and_repeats_no_other(runs: Runs, sweeps: Sweeps):
    assert (runs.ends["a sweep"].status, sweeps.ends["resumed"].status) == (-signal.SIGKILL, 0), sweeps.ends
    first, second = runs_of(sweeps.killed)
    assert f"{second.name}  resuming from step 5" in sweeps.ends["resumed"].output
    assert first.name not in sweeps.ends["resumed"].output
    files = [contents(runs_of(workdir)[0]) for workdir in (runs.base / "sweep-before", sweeps.killed)]
    before, after = ({name: data for name, data in one.items() if not name.startswith(("best", "checkpoints"))} for one in files)
    assert after == before


def test_parallel_sequential_and_resumed_sweeps_give_the_same_runs(sweeps: Sweeps):
    assert sweeps.ends["together"].status == 0, sweeps.ends
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


def test_a_finished_sweep_refuses_another_configuration(sweeps: Sweeps):
    done, changed = sweeps.ends["restarted"], sweeps.ends["changed"]
    assert done == Done(0, f"this run is done; see {sweeps.killed / 'results.json'} and {sweeps.killed / 'model'}\n")
    assert changed.status == 2
    assert "training.label_smoothing  stored 0.0, given 0.1" in changed.output
    assert contents(sweeps.killed) == contents(sweeps.killed.with_name("sweep-done"))


# ------------------------------------------------------------------------------------------------------------- several processes
def test_two_processes_share_a_sweep_and_write_the_files_of_one_process(sweeps: Sweeps):
    end, other = sweeps.ends["apart"], sweeps.ends_of_second_process["apart"]
    assert end.status == other.status == 0, (end, other)
    assert "2 processes for 2 runs; this process trains 1" in end.output
    assert [f"{one.name}  {STEPS} steps" in end.output for one in runs_of(sweeps.apart)] == [True, False]
    assert results(sweeps.apart) | {"runs": []} == results(sweeps.together) | {"runs": []}
    for one, whole in zip(runs_of(sweeps.apart), runs_of(sweeps.together), strict=True):
        assert results(one) == results(whole)
        assert learned(one) == learned(whole)
    assert_same_weights(sweeps.apart, sweeps.together)


def test_sigterm_to_one_of_two_processes_saves_and_stops_both(sweeps: Sweeps):
    end, other = sweeps.ends["asked"], sweeps.ends_of_second_process["asked"]
    assert end.status == other.status == 128 + signal.SIGTERM, (end, other)
    assert "saved; the same command resumes" in end.output
    for directory in runs_of(sweeps.asked, EPOCHS):
        assert checkpoints(directory)[-1] == last_step(directory)


def test_two_processes_train_the_same_model_as_one(toys: pathlib.Path, sweeps: Sweeps, tmp_path: pathlib.Path):
    """Both processes train the run that is the best of `sweeps.together`."""
    workdir, best = tmp_path / "two", json.loads((sweeps.together / "results.json").read_text())["best_run"]
    run = command(toys, workdir, *replacing(SWEEP, f"--config.sweep.seeds=[{best[-1]}]"))
    ends = [process.end()[0] for process in pair(toys, run)]
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
