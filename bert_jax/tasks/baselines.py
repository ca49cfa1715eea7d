"""What answers that look at no text score: the bar that a model has to pass to have learned anything.

The answer that is most frequent in training may be a rare one of the split that is scored, and then lies below what another
single answer scores there. So the bar is the better of the two, and says which of them it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

Constant = tuple[str, Mapping[str, float]]
"""The name of an answer, and what it scores when it is given to everything."""


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The scores of a single answer for a whole split; empty where no example has a label."""

    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Those of `Task.scores`."""
    named: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The task's metric by the words that say what scored it: of the single answer, and of a better rule where a task has one."""

    @property
    def bar(self) -> float:
        """The highest of `named`."""
        return max(self.named.values())


def constant_baseline(metric: str, split: str, usual: Constant, others: Iterable[Constant]) -> Baseline:
    """The better by `metric` of the `usual` answer, the most frequent of training, and the best of `others` on this split."""
    name, scores = usual
    other_name, other = max(others, key=lambda constant: constant[1][metric], default=usual)
    said = f"{name} for all, most frequent in training"
    if other[metric] > scores[metric]:
        said, scores = f"{other_name} for all, best on {split}", other
    return Baseline(scores, {said: scores[metric]})
