"""Sweeps whose runs are divided among independent processes."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import pytest

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.errors import HUNG, UserError
from bert_jax.finetuning.best_weights import BEST
from bert_jax.finetuning.sweep import sweep
from bert_jax.runtime.processes import Processes, ProcessesLost, RunShard
from tests.finetuning.toy_sweep import SCORES, Finished, by_seed, experiment, run_in, summary_of
from tests.runtime.connected import group


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws no figures."""
    monkeypatch.setattr("bert_jax.finetuning.sweep.draw_sweep", lambda path, **shown: None)


def test_independent_processes_train_their_runs_and_the_first_compares_all(tmp_path, caplog):
    """There are four runs, one of which fails, and three processes, here as threads."""
    caplog.set_level(logging.INFO)
    whole, finish = experiment(seeds=[1, 2, 3, 4], devices_per_run=0), Finished()
    trained_by: dict[int, list[int]] = {}

    def process(one_of_three: Processes) -> int:
        def train(one: FinetuningExperiment, directory: pathlib.Path, devices: Sequence[jax.Device]) -> dict[str, Any]:
            trained_by.setdefault(one_of_three.index, []).append(one.seed)
            if one.seed == 3:
                raise UserError("diverged")
            return by_seed(one, directory, devices)

        run = run_in(tmp_path)
        with one_of_three.shard_runs(tmp_path, lambda: None) as shard:
            return sweep(whole, dataclasses.replace(run, shard=shard), train, finish)

    with group() as three:
        assert three.all(process) == [0, 0, 0]
    assert trained_by == {0: [1, 4], 1: [2], 2: [3]}
    assert {f"3 processes for 4 runs; this process trains {count}" for count in (1, 2)} <= set(caplog.messages)
    assert finish.seed == 2
    assert [path.parent.name for path in tmp_path.glob(f"runs/*/{BEST}")] == [whole.runs()[1].name]
    summary = summary_of(tmp_path)
    assert [r["seed"] for r in summary["runs"]] == [1, 2, 3, 4]
    (setting,) = summary["settings"]
    assert (setting["runs"], setting["failed"], setting["best"]) == (4, 1, SCORES[2])


class Apart:
    """The shard of one of two processes: every second run. `found` replaces `gather`."""

    def __init__(self, index: int, found: Callable[..., Any] = lambda own, waiting: [own]):
        self.index, self.count, self.gather = index, 2, found
        self.told = 0

    def select(self, items: Sequence[Any]) -> Sequence[Any]:
        return items[self.index :: 2]

    def tell_stopped(self) -> None:
        self.told += 1


def swept(directory: pathlib.Path, shard: Any, train: Any = by_seed, finish: Any = None, **changed: Any) -> int:
    """Returns the exit status of a sweep of four runs with this shard."""
    directory.mkdir(exist_ok=True)
    whole = experiment(seeds=[1, 2, 3, 4], devices_per_run=0)
    run = dataclasses.replace(run_in(directory), shard=shard, **changed)
    return sweep(whole, run, train, finish or Finished())


def test_each_of_several_processes_reports_its_runs(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    swept(tmp_path / "two", Apart(1))
    assert caplog.messages[0] == "2 processes for 4 runs; this process trains 2"
    assert not (tmp_path / "two" / "metrics.jsonl").exists(), "in a bucket, nobody would remove it if the start is refused"
    caplog.clear()
    swept(tmp_path / "one", RunShard())
    assert not [said for said in caplog.messages if "this process trains" in said]


def test_a_stopped_process_stops_the_others(tmp_path):
    shard = Apart(0)
    assert swept(tmp_path, shard, train=lambda one, directory, devices: None) == 143
    assert shard.told == 1


def test_the_first_process_reports_its_waiting_and_can_be_stopped(tmp_path):
    asked: list[Any] = []
    watchdog = types.SimpleNamespace(alive=asked.append)
    preemption = types.SimpleNamespace(exit_status=143, requested=lambda: not asked.append("asked"))
    finish = Finished()

    def gather(own: Any, waiting: Callable[[], bool]) -> None:
        assert waiting()

    parts: dict[str, Any] = {"watchdog": watchdog, "preemption": preemption}
    assert swept(tmp_path / "a", Apart(0, gather), finish=finish, **parts) == 143
    assert asked == ["waiting for the runs of the other processes", "asked"]
    assert swept(tmp_path / "b", Apart(1, lambda own, waiting: None), finish=finish) == 0, "its part is done"
    assert finish.runs == []


def test_a_process_reports_lost_processes_and_can_be_restarted(tmp_path, caplog):
    def gather(own: Any, waiting: Callable[[], bool]) -> None:
        raise ProcessesLost("process 1 is lost")

    assert swept(tmp_path, Apart(0, gather)) == HUNG
    assert caplog.messages[-1].startswith("process 1 is lost; rerun the same command on all processes")
