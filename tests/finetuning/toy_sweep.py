"""Sweeps of runs that train nothing: each leaves the files of a run, with a score that depends on its seed."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.finetuning.best_weights import BEST
from bert_jax.finetuning.sweep import RunResult
from bert_jax.runtime.interruptions import Preemption, Watchdog
from bert_jax.runtime.launch import Run

SCORES = {1: 0.5, 2: 0.875, 3: 0.25, 4: 0.875}
"""The scores by seed."""


def experiment(**sweep_values: Any) -> FinetuningExperiment:
    return FinetuningExperiment.from_dict({"init_from": "m", "sweep": {"devices_per_run": 8, **sweep_values}})


def run_in(workdir: pathlib.Path) -> Run:
    return Run(workdir, True, Preemption(), Watchdog(workdir))


def results_of(one: FinetuningExperiment, score: float, **fields: Any) -> dict[str, Any]:
    t = one.training
    return {
        "metric": "f1",
        "scores": {"dev": {"accuracy": 0.0, "f1": score}, "dev_other": {"f1": 9.0}},
        "baseline": {"dev": {"f1": 0.125}},
        "baseline_answers": {"dev": {"most frequent answer": 0.125}},
        "degenerate": False,
        "seed": one.seed,
        "batch_size": t.batch_size,
        "learning_rate": t.learning_rate,
        "epochs": t.epochs,
    } | fields


def trained(one: FinetuningExperiment, directory: pathlib.Path, score: float, **fields: Any) -> dict[str, Any]:
    """Writes the files that a run leaves: its best weights, a state, and its results."""
    for folder in (BEST, "checkpoints"):
        (directory / folder / "5").mkdir(parents=True)
    results = results_of(one, score, **fields)
    (directory / "results.json").write_text(json.dumps(results))
    return results


def by_seed(one: FinetuningExperiment, directory: pathlib.Path, devices: Sequence[jax.Device]) -> dict[str, Any]:
    return trained(one, directory, SCORES[one.seed])


class Finished:
    """A `finish` that records its arguments."""

    def __init__(self) -> None:
        self.runs: list[RunResult] = []
        self.devices: Sequence[jax.Device] = ()

    def __call__(self, result: RunResult, devices: Sequence[jax.Device]) -> None:
        assert (result.directory / BEST).is_dir(), "its weights are gone"
        self.devices = devices
        self.runs.append(result)

    @property
    def seed(self) -> int:
        (run,) = self.runs
        return run.experiment.seed


def summary_of(workdir: pathlib.Path) -> dict[str, Any]:
    return json.loads((workdir / "results.json").read_text())
