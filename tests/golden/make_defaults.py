"""Writes experiment_defaults.json: the defaults of every key of an experiment, on which every user's runs depend.

    python -m tests.golden.make_defaults

Run it after a deliberate change of a default, and review the difference. `tests/configs/test_defaults.py` compares.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import StudyExperiment

GOLDEN = pathlib.Path(__file__).with_name("experiment_defaults.json")


def defaults() -> dict[str, Any]:
    """Returns the values of experiments that set as little as possible."""
    task = {"name": "t", "experiment": "e"}
    order = {"order": "a > b"}
    study = {"title": "t", "arms": [{"name": "a"}, {"name": "b"}], "tasks": [task], "expected": [order]}
    made = {
        "pretraining": PretrainingExperiment.from_dict({"phases": [{"steps": 1}]}).to_dict(),
        "finetuning": FinetuningExperiment.from_dict({"init_from": "m"}).to_dict(),
        "study": StudyExperiment.from_dict(study).to_dict(),
    }
    return json.loads(json.dumps(made))


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(defaults(), indent=1) + "\n", encoding="utf-8")
