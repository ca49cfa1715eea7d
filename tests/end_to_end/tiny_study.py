"""A study that takes seconds: two arms of one pretrained model, two seeds, one task."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bert_jax import study
from bert_jax.studies import children
from bert_jax.studies.figure import draw
from tests.end_to_end import forked

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TITLE = "A tiny study"


def values(experiment: pathlib.Path, toys: pathlib.Path) -> dict[str, Any]:
    """Returns the study's values, on the corpus of `experiment` and the tables of `toys`."""
    own = {"train": str(toys / "train.csv"), "dev": str(toys / "dev.csv")}
    row = {"steps": 6, "length": 32, "batch_size": 8, "max_predictions": 5, "learning_rate": 3e-3, "warmup_steps": 2}
    return {
        "title": TITLE,
        "corpus": str(experiment.parent / "corpus"),
        "data": str(toys),
        "pretraining": str(experiment),
        "pretrain": {"model": {"num_layers": 1}, "phases": [row], "evaluation": {"rows": 8, "batch_size": 8}},
        "finetune": {
            "task": {"own": own, "length": 16},
            "training": {"batch_size": 16, "epochs": 2, "learning_rate": 1e-2},
            "model": {"scan_layers": True, "hidden_dropout": 0.0},
            "checkpoints": {"every": 8},
        },
        "arms": [
            {"name": "bert", "paper": {"MNLI-m": 84.4}},
            {"name": "half", "label": "after half of the steps", "shares": "bert", "at": 0.5},
        ],
        "tasks": [{"name": "own", "experiment": str(REPOSITORY / "experiments" / "finetune" / "own_text.py")}],
        "seeds": [0, 1],
        "evaluations": 2,
        "expected": [{"order": "bert > half"}],
        "paper": "Table 5",
    }


def write(path: pathlib.Path, content: dict[str, Any]) -> pathlib.Path:
    """Writes the study file with these values."""
    path.write_text(f"def get_config():\n    return {content!r}\n")
    return path


def in_one_process() -> None:
    """Runs the parts of studies in the process of the study itself, since starting a process takes longer than a part. A kill of
    the study also kills the part, as with separate processes. Only the figure with the scores of all arms is drawn: a study
    draws after each part, which also takes longer than most parts."""

    def run_here(command: Sequence[str], log: pathlib.Path, watch: Callable[[], bool]) -> int:
        log.parent.mkdir(parents=True, exist_ok=True)
        watch()
        with said_to(log):
            return forked._do(command)

    def draw_whole(content: dict[str, Any], *rest: Any) -> None:
        scores = [score for arm in content["table"]["arms"] for score in arm["scores"].values()]
        if all(len(score["seeds"]) == len(content["table"]["seeds"]) for score in scores):
            draw(content, *rest)

    children.run_alone = run_here
    study.draw = draw_whole


@contextlib.contextmanager
def said_to(log: pathlib.Path) -> Iterator[None]:
    """Redirects the output of this process to a file."""
    kept = [os.dup(number) for number in (1, 2)]
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
