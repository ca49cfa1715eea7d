"""The scores of constant predictions: a model that learned anything has to exceed them.

The most frequent label of the training set may be rare in the evaluated split, where another constant prediction then scores
higher. So the baseline is the better of both, and states which of them it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

Constant = tuple[str, Mapping[str, float]]
"""The name of a constant prediction, and its scores."""


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The scores of the best constant prediction for a split; empty if no example has a label."""

    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The scores of the constant prediction, with the names of `Task.scores`."""
    named: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The task's metric by a description of the rule: the constant prediction, and a better rule if the task has one."""

    @property
    def bar(self) -> float:
        """The highest of `named`."""
        return max(self.named.values())


def constant_baseline(metric: str, split: str, usual: Constant, others: Iterable[Constant]) -> Baseline:
    """The better by `metric` of two: `usual`, the most frequent label of training, and the best of `others` on this split."""
    name, scores = usual
    other_name, other = max(others, key=lambda constant: constant[1][metric], default=usual)
    rule = f"{name} for all, most frequent in training"
    if other[metric] > scores[metric]:
        rule, scores = f"{other_name} for all, best on {split}", other
    return Baseline(scores, {rule: scores[metric]})
