"""plan.json: the steps of every arm, from the budget or from the speed of a short run."""

from __future__ import annotations

import json
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bert_jax.configs.pretraining import PretrainingExperiment, with_steps
from bert_jax.errors import UserError
from bert_jax.interface import python_files
from bert_jax.studies.arms import pretraining_values
from bert_jax.studies.calibration import Measurement, Run, awaited_plan, measured_speed, plan, planned
from tests.studies.conftest import study

RATES = {2: 1.0, 4: 100.0, 6: 90.0, 8: 100.0, 10: 90.0, 12: 500.0, 14: 1.0, 16: 8.0, 20: 6.0, 24: 8.0}
"""Rows per second at the steps of a run with 12 steps per phase; with 2 steps per log line, the first line of a phase is slow. If
it counted, the medians would be 95 and 7 instead of 100 and 8."""


def no_run(command: Sequence[str], log_file: pathlib.Path, title: str) -> None:
    raise AssertionError(f"{title} runs")


def write_rates(workdir: pathlib.Path, rates: Mapping[int, float]) -> None:
    workdir.mkdir(parents=True)
    lines = [json.dumps({"step": step, "train/rows_per_second": rate}) + "\n" for step, rate in rates.items()]
    (workdir / "metrics.jsonl").write_text("".join([*lines, '{"step": 18, "eval/loss": 1.0}\n']))


def test_the_speed_is_the_median_of_a_short_run_without_its_first_lines(
    tmp_path: pathlib.Path, experiment: PretrainingExperiment
):
    made = study(
        budget={"equal": "seconds", "seconds": 1, "calibration_steps": 12}, arms=[{"name": "a", "pretrain": {"seed": 5}}]
    )
    arm, local = made.arms[0], tmp_path / "local"
    started: list[Any] = []

    def run(command: Any, log: pathlib.Path, title: str) -> None:
        started.append((command, log, title))
        write_rates(tmp_path / "a" / "calibration-0" / "12-12", RATES)

    assert measured_speed(made, arm, experiment, Measurement(tmp_path, local, run)) == [10 / 100, 4 / 8]
    file, workdir = local / "a" / "calibration-0.py", tmp_path / "a" / "calibration-0" / "12-12"
    flags = ["pretrain", f"--config={file}", f"--workdir={workdir}"]
    assert started == [(flags, local / "a" / "calibration-0.log", "a, calibration")]
    assert not workdir.parent.exists()
    asked = python_files.load(str(file), "--config")
    assert (asked["log_every"], asked["checkpoints"]) == (2, {"every": 24})
    assert asked["evaluation"] == {"every": 24, "rows": 256, "batch_size": 256}
    own = pretraining_values(made, arm)
    assert asked["phases"] == with_steps(own, [12, 12])["phases"]
    assert asked["model"] == own["model"]
    assert asked["seed"] == 5


def test_a_fast_arm_is_measured_for_a_sixtieth_of_the_budget_up_to_30_seconds(
    tmp_path: pathlib.Path, experiment: PretrainingExperiment
):
    asked: list[Any] = []

    def run(command: Any, log: pathlib.Path, title: str) -> None:
        counts = [phase["steps"] for phase in python_files.load(str(log.with_suffix(".py")), "--config")["phases"]]
        asked.append(counts)
        ends = {counts[0]: 1_000.0 if len(asked) % 2 else 500.0, sum(counts): 10.0}  # rows/s: 10 and 4 rows per step
        write_rates(tmp_path / "a" / "calibration-3" / "-".join(map(str, counts)), ends)

    for seconds in (120, 36_000):
        made = study(budget={"equal": "seconds", "seconds": seconds, "calibration_steps": 12})
        assert measured_speed(made, made.arms[0], experiment, Measurement(tmp_path, tmp_path, run, index=3)) == [0.02, 0.4]
    assert asked == [[12, 12], [200, 12], [12, 12], [3_000, 75]]


def test_a_run_too_short_to_measure_a_speed_is_refused(tmp_path: pathlib.Path, experiment: PretrainingExperiment):
    made = study(budget={"equal": "seconds", "seconds": 1, "calibration_steps": 5})

    def run(command: Any, log: pathlib.Path, title: str) -> None:
        assert python_files.load(str(log.with_suffix(".py")), "--config")["log_every"] == 1
        write_rates(tmp_path / "a" / "calibration-0" / "5-5", {3: 1.0})

    says = "calibration_steps=5 is too small to measure the speed of the arm 'a'; raise it, for example to 60"
    with pytest.raises(UserError, match=says):
        measured_speed(made, made.arms[0], experiment, Measurement(tmp_path, tmp_path, run))


def timed(started: list[str]) -> Run:
    """Returns a `run` that notes the titles of runs and leaves the files of one with 0.1 and 0.4 seconds per step."""

    def run(command: Sequence[str], log_file: pathlib.Path, title: str) -> None:
        started.append(title)
        workdir = next(flag.partition("=")[2] for flag in command if flag.startswith("--workdir="))
        write_rates(pathlib.Path(workdir), {120: 100.0, 240: 10.0})

    return run


def test_the_speed_is_measured_only_for_equal_seconds_and_new_arms(
    tmp_path: pathlib.Path, experiment: PretrainingExperiment, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, logger="bert_jax")
    started: list[str] = []
    arms = [{"name": "a"}, {"name": "b", "continues": "a"}]
    made = study(budget={"equal": "seconds", "seconds": 60}, arms=arms)
    here = Measurement(tmp_path, tmp_path / "local", timed(started))
    assert plan(made, {"a": experiment, "b": experiment}, here) == {"a": [200, 100], "b": [100, 50]}
    assert started == ["a, calibration"]
    assert caplog.messages == ["a: 100 ms, 400 ms a step"]
    stored = json.loads((tmp_path / "plan.json").read_text())["arms"]
    assert {name: (entry["steps"], entry["seconds_per_step"]) for name, entry in stored.items()} == {
        "a": ([200, 100], [0.1, 0.4]),
        "b": ([100, 50], None),
    }
    here = Measurement(tmp_path, tmp_path / "local", no_run)
    assert plan(made, {"a": experiment, "b": experiment}, here) == {"a": [200, 100], "b": [100, 50]}


def test_the_other_processes_keep_the_machine_busy_until_the_speed_is_measured(
    tmp_path: pathlib.Path, experiment: PretrainingExperiment
):
    arms = [{"name": "a"}, {"name": "b"}, {"name": "c", "continues": "a"}, {"name": "d"}]
    made = study(budget={"equal": "seconds", "seconds": 60}, arms=arms)
    every = dict.fromkeys("abcd", experiment)
    trained: list[str] = []
    train = timed(trained)

    def run(command: Sequence[str], log_file: pathlib.Path, title: str) -> None:
        train(command, log_file, title)
        if len(trained) == 5:  # process 0 has measured in the meantime
            plan(made, every, Measurement(tmp_path, tmp_path, timed([])))

    def wait() -> None:
        raise AssertionError("waits although another process is measuring")

    steps = awaited_plan(made, every, Measurement(tmp_path, tmp_path, run, index=2), wait)
    assert steps == {"a": [200, 100], "b": [200, 100], "c": [100, 50], "d": [200, 100]}
    assert [title.partition(",")[0] for title in trained] == ["d", "a", "b", "d", "a"]


def test_the_other_processes_wait_for_a_plan_that_needs_no_speed(tmp_path: pathlib.Path, experiment: PretrainingExperiment):
    waits = iter([lambda: {}, lambda: plan(study(), {"a": experiment}, Measurement(tmp_path, tmp_path, no_run))])

    def wait() -> None:
        next(waits)()

    here = Measurement(tmp_path, tmp_path, no_run, index=1)
    assert awaited_plan(study(), {"a": experiment}, here, wait) == {"a": [100, 50]}
    assert next(waits, None) is None


@pytest.mark.parametrize("text", ["", "[1]", '{"arms": 3}', "{}"])
def test_an_unreadable_plan_is_replaced(tmp_path: pathlib.Path, experiment: PretrainingExperiment, text: str):
    (tmp_path / "plan.json").write_text(text)
    assert planned(study(), {"a": experiment}, tmp_path) == {}


def test_a_plan_that_cannot_be_read_is_not_replaced(tmp_path: pathlib.Path, experiment: PretrainingExperiment):
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(IsADirectoryError):
        planned(study(), {"a": experiment}, tmp_path)


def test_a_changed_arm_is_another_configuration(tmp_path: pathlib.Path, experiment: PretrainingExperiment):
    plan(study(), {"a": experiment, "b": experiment}, Measurement(tmp_path, tmp_path, no_run))
    for arm in ({"name": "b", "pretrain": {"seed": 3}}, {"name": "b", "continues": "a"}):
        other = study(arms=[{"name": "a"}, arm])
        assert planned(other, {"a": experiment}, tmp_path) == {"a": [100, 50]}
        with pytest.raises(UserError, match="has the steps of the arm 'b' for a different configuration or budget"):
            planned(other, {"b": experiment}, tmp_path)


def test_a_plan_is_made_once_and_another_budget_is_refused(tmp_path: pathlib.Path, experiment: PretrainingExperiment):
    made = study(budget={"equal": "tokens", "tokens": 7_200})
    both = {"a": experiment, "b": experiment}
    first = plan(made, {"a": experiment}, Measurement(tmp_path, tmp_path, no_run))
    assert plan(made, both, Measurement(tmp_path, tmp_path, no_run)) == {"a": first["a"], "b": [50, 25]}
    other = study(budget={"equal": "tokens", "tokens": 14_400})
    with pytest.raises(UserError, match="has the steps of the arm 'a' for a different configuration or budget; name another"):
        plan(other, both, Measurement(tmp_path, tmp_path, no_run))


def test_a_plan_is_kept_if_the_corpus_has_moved(tmp_path: pathlib.Path, experiment: PretrainingExperiment):
    here, there = (study(corpus=corpus, budget={"equal": "tokens", "tokens": 7_200}) for corpus in ("here", "there"))
    first = plan(here, {"a": experiment}, Measurement(tmp_path, tmp_path, no_run))
    assert planned(there, {"a": experiment}, tmp_path) == first
