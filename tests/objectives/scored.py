"""Objectives for the smallest models, by the prefix of the names of their sums."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.random_rows import TINY, objective_for

MODELS: dict[str, dict[str, Any]] = {
    "mlm": {},
    "next_token": {"direction": "left_to_right"},
    "bilm": {"encoder": "bilm"},
    "skip_gram": {"encoder": "static", "num_layers": 0},
}
ONE_LAYER = dataclasses.replace(TINY, num_layers=1)


def objective_of(measure: str, pairs: bool = True) -> Any:
    """Returns the objective whose sums begin with `measure`."""
    return objective_for(dataclasses.replace(ONE_LAYER, **MODELS[measure]), pairs)
