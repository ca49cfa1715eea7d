"""The optimizer, the schedule and the log sink of experiments/extensions, used as a user does, through the command line with
files outside the package: killed and continued, on one device and on eight."""

from __future__ import annotations

import csv
import json
import pathlib
import shutil
from typing import Any

import pytest

from tests.end_to_end import forked
from tests.end_to_end.conftest import ASKED, command
from tests.end_to_end.forked import Signal
from tests.end_to_end.runs import REPOSITORY, assert_same_weights, learned, records

EXTENSIONS = REPOSITORY / "experiments" / "extensions"
SHORT = ("--config.steps=20", "--config.evaluation.every=20", "--config.checkpoints.every=4", "--config.log_every=1")


@pytest.fixture(scope="module")
def flags(experiment: pathlib.Path) -> tuple[str, ...]:
    """Returns the flags that name a user's copies of the three files."""
    mine = experiment.parent / "mine"
    mine.mkdir()
    for name in ("muon.py", "wsd.py", "csv_log.py"):
        shutil.copy(EXTENSIONS / name, mine / name)
    return (
        *SHORT,
        f"--config.optimizer.name={mine}/muon.py:muon",
        f"--config.phases.0.schedule={mine}/wsd.py:warmup_stable_decay",
        f"--config.log.sinks=tensorboard,{mine}/csv_log.py:Csv",
    )


def table(workdir: pathlib.Path) -> list[tuple[int, str, float]]:
    with (workdir / "log.csv").open() as file:
        return [(int(row["step"]), row["name"], float(row["value"])) for row in csv.DictReader(file)]


@pytest.mark.parametrize("devices", [1, 8])
def test_a_killed_run_with_user_files_resumes_bit_for_bit(experiment: pathlib.Path, flags: tuple[str, ...], devices: int):
    whole, killed = (experiment.parent / f"{name}-{devices}" for name in ("own", "own-killed"))

    def run(workdir: pathlib.Path, **how: Any) -> forked.Done:
        return forked.run(experiment.parent, command(experiment, workdir, *flags), devices=devices, **how)[0]

    done = run(whole)
    assert done.status == 0, done.output
    run(killed, at=Signal(ASKED, argument=10, once_there=(f"{killed}/checkpoints/8",)))
    done = run(killed)
    assert done.status == 0, done.output
    assert "resuming from step 8" in done.output
    assert_same_weights(killed, whole)
    assert learned(killed) == learned(whole)

    rates = {record["step"]: record["train/learning_rate"] for record in records(whole) if "train/learning_rate" in record}
    steps = 12  # of the first phase: 14 of 24, shortened to 20
    assert (rates[1], rates[7]) == (0, pytest.approx(3e-3))
    assert rates[steps] == pytest.approx(3e-3 * (1 - ((steps - 1 - 0.8 * steps) / (0.2 * steps)) ** 0.5), rel=1e-4)
    written = [
        (record["step"], name, value)
        for record in map(json.loads, (killed / "metrics.jsonl").read_text().splitlines())
        for name, value in record.items()
        if name != "step"
    ]
    assert table(killed) == written


def test_fine_tuning_accepts_the_same_three_files(toys: pathlib.Path, flags: tuple[str, ...]):
    mine = {flag.partition("=")[0].removeprefix("--config."): flag.partition("=")[2] for flag in flags}
    data = tuple(f"--config.task.own.{split}={toys}/{split}.csv" for split in ("train", "dev"))
    task = ("--config=experiments/finetune/own_text.py", f"--config.init_from={toys}/model", *data)
    own = (
        f"--config.optimizer.name={mine['optimizer.name']}",
        f"--config.training.schedule={mine['phases.0.schedule']}",
        f"--config.log.sinks={mine['log.sinks']}",
    )
    workdir = toys / "own"
    small = ("--config.task.length=32", "--config.training.batch_size=8", "--config.training.epochs=1")
    short = ("--config.log_every=1", *small, f"--workdir={workdir}")
    (done,) = forked.run(toys, ["finetune", *task, *own, *short])
    assert done.status == 0, done.output
    assert {step for step, _, _ in table(workdir)} == {record["step"] for record in records(workdir)}
    rates = [record["train/learning_rate"] for record in records(workdir) if "train/learning_rate" in record]
    assert 0 < rates[-1] < max(rates)


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--config.optimizer.name=muon", "config.optimizer.name='muon' is not one of bert_adam, adamw, lamb, stable_adamw"),
        ("--config.phases.0.schedule=cosinus", "config.phases.0.schedule='cosinus' is not one of nothing, original, linear"),
        ("--config.optimizer.name=MINE/muon.py:mun", "muon.py has no 'mun'; did you mean 'muon'?"),
        ("--config.phases.1.schedule=MINE/wsd.py", "does not name an object in the file; write config.phases.1.schedule="),
        ("--config.log.sinks=wandb", "config.log.sinks names wandb, whose package is not installed; `pip install wandb`"),
    ],
)  # fmt: skip
def test_an_unusable_file_is_refused_in_one_sentence(experiment: pathlib.Path, flags: tuple[str, ...], flag: str, says: str):
    flag = flag.replace("MINE", str(experiment.parent / "mine"))
    workdir = experiment.parent / "refused"
    (done,) = forked.run(experiment.parent, command(experiment, workdir, *SHORT, flag))
    assert done.status == 2, done.output
    assert says in done.output
    assert "Traceback" not in done.output
    shutil.rmtree(workdir, ignore_errors=True)
