"""Studies that are checked without training, and one whose parts are played by a shell script."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bert_jax.configs.command_line import Flags, parse_flags
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import StudyExperiment
from bert_jax.runtime.interruptions import Preemption, Watchdog
from bert_jax.runtime.launch import Run
from bert_jax.studies import children
from bert_jax.studies.arms import Checked, check
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.text_task import SequenceHead, TextTask
from tests.end_to_end import tiny_study
from tests.end_to_end.runs import build_corpus, write_experiment
from tests.end_to_end.toy_tasks import own_texts

HEAD = SequenceHead(labels=("a", "b"))


def arms(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


def study(**values: Any) -> StudyExperiment:
    usual = {"title": "t", "arms": arms("a", "b"), "tasks": [{"name": "stsb", "experiment": "experiments/finetune/glue.py:stsb"}]}
    return StudyExperiment.from_dict(usual | values)


def text_task(name: str = "toy", *splits: str, metric: str = "accuracy") -> TextTask:
    """Returns a task of texts with one example in each split, and one score."""
    examples = {split: [TextExample("0", "it", label="a")] for split in splits or ("train", "dev")}
    return TextTask(name, 8, HEAD, metric, examples, score=lambda split, predictions, labels: {metric: 0.5})


@pytest.fixture
def experiment() -> PretrainingExperiment:
    """Returns an experiment with two phases: 100 steps of 10 x 8 tokens, 50 of 4 x 32."""
    phases = [
        {"steps": 100, "batch_size": 10, "length": 8, "max_predictions": 2, "warmup_steps": 10},
        {"steps": 50, "batch_size": 4, "length": 32, "max_predictions": 2},
    ]
    return PretrainingExperiment.from_dict({"phases": phases})


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the values of a study of a tiny model on a real corpus and the texts of a user."""
    directory = tmp_path_factory.mktemp("tiny_study")
    own_texts(directory)
    experiment = write_experiment(directory / "experiment.py", build_corpus(directory / "corpus"))
    return tiny_study.values(experiment, directory) | {"expected": []}


@pytest.fixture(scope="session")
def checked(tiny: dict[str, Any]) -> Checked:
    """Returns a checked study of the arms a and b with the seeds 3 and 8."""
    return check(StudyExperiment.from_dict(tiny | {"arms": arms("a", "b"), "seeds": [3, 8]}))


@pytest.fixture
def flags(tiny: dict[str, Any], tmp_path: pathlib.Path) -> Flags:
    """Returns the flags of the study in the workdir `root`."""
    file = tiny_study.write(tmp_path / "study.py", tiny)
    (tmp_path / "root").mkdir()
    line = [f"--config={file}", f"--workdir={tmp_path / 'root'}", "--hang-seconds=7", "--changed-files"]
    return parse_flags("study", "", line, schema=StudyExperiment)


def run_in(workdir: pathlib.Path, **parts: Any) -> Run:
    """Returns the run of a study in a local directory, which no signal has asked to stop."""
    return Run(workdir, True, Preemption(), Watchdog(workdir), **parts)


SCORES = {"scores": {"dev": {"accuracy": 0.75}}, "metric": "accuracy", "baseline": {"dev": {"accuracy": 0.5}}}
RESULTS: Mapping[str, dict[str, Any]] = {
    "pretrain": {"steps": 6, "parameters": 11, "eval": {"mlm_loss": 3.0}, "skipped_steps": 0},
    "finetune": {**SCORES, "ledger": {"seconds": {"training": 20.0}}},
}
"""The results of a part by its command."""


@pytest.fixture
def played(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], pathlib.Path]:
    """Returns a function that makes a shell script the Python of the children of a study, and returns a file with the commands
    that have run, and their workdirs. The script has the variables `command` and `workdir`; it writes checkpoints and results
    before it runs the given lines."""
    monkeypatch.setattr(children, "POLL", 0.01)
    script, ran = tmp_path / "python", tmp_path / "ran.txt"
    for command, results in RESULTS.items():
        (tmp_path / f"{command}.json").write_text(json.dumps(results))
    monkeypatch.setattr(sys, "executable", str(script))

    def play(lines: str = "") -> pathlib.Path:
        body = [
            "#!/bin/sh", "shift 3", 'command=$1; for flag; do case "$flag" in --workdir=*) workdir="${flag#*=}";; esac; done',
            f'echo "$command $workdir" >> "{ran}"; echo "$@"',
            '[ -z "$workdir" ] || mkdir -p "$workdir/checkpoints"',
            f'[ -z "$workdir" ] || cp "{tmp_path}/$command.json" "$workdir/results.json"',
            lines,
        ]  # fmt: skip
        script.write_text("\n".join(body) + "\n")
        script.chmod(0o755)
        return ran

    return play
