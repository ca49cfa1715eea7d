"""Notes of the calls of a pretraining run whose parts are replaced."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from tests.random_rows import TINY

EXPERIMENT = PretrainingExperiment.from_dict(
    PretrainingExperiment(
        model=TINY, phases=(PhaseConfig(steps=6, length=32), PhaseConfig(steps=3, length=32)), log_every=2
    ).to_dict()
    | {"evaluation": {"every": 3}, "checkpoints": {"every": 4, "keep_at": [5]}}
)
Notes = list[Any]


class Notebook:
    """Notes calls: `notebook.says("saved")(1)` notes ("saved", 1) and returns `result`."""

    def __init__(self) -> None:
        self.notes: Notes = []

    def says(self, what: str, result: Any = None) -> Callable[..., Any]:
        def note(*about: Any, **named: Any) -> Any:
            self.notes.append((what, *about, *named.values()))
            return result(*about, **named) if callable(result) else result

        return note

    @contextlib.contextmanager
    def during(self, activity: Any) -> Iterator[None]:
        self.notes.append(str(activity))
        yield
        self.notes.append(f"end of {activity}")


def state_of(step: int, **numbers: int) -> Any:
    return types.SimpleNamespace(step=step, skipped=0, params=f"weights {step}", **numbers)
