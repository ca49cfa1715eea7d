"""Published scores of other systems, which results of the same task and split stand beside."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Published:
    """The scores of a system on a split, as fractions, and the table that they are from."""

    system: str
    split: str
    source: str
    scores: Mapping[str, float]


_NEURALLOG = "Chen et al. 2021, arXiv:2105.14167, Table 3"

PUBLISHED: Mapping[str, tuple[Published, ...]] = {
    "sick/entailment": (
        Published("BERT base", "test", _NEURALLOG, {"precision": 0.868, "recall": 0.854, "accuracy": 0.867}),
        Published("NeuralLog", "test", _NEURALLOG, {"precision": 0.880, "recall": 0.876, "accuracy": 0.903}),
    ),
}
"""By the name of the task. The source does not state how it averages precision and recall over the labels; ours are macro
averages."""
