"""Studies that are checked without training."""

from __future__ import annotations

from typing import Any

import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import StudyExperiment


def arms(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


def study(**values: Any) -> StudyExperiment:
    usual = {"title": "t", "arms": arms("a", "b"), "tasks": [{"name": "stsb", "experiment": "experiments/finetune/glue.py:stsb"}]}
    return StudyExperiment.from_dict(usual | values)


@pytest.fixture
def experiment() -> PretrainingExperiment:
    """Returns an experiment with two phases: 100 steps of 10 x 8 tokens, 50 of 4 x 32."""
    phases = [
        {"steps": 100, "batch_size": 10, "length": 8, "max_predictions": 2, "warmup_steps": 10},
        {"steps": 50, "batch_size": 4, "length": 32, "max_predictions": 2},
    ]
    return PretrainingExperiment.from_dict({"phases": phases})
