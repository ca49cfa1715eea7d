"""Computes means, deviations and paired differences over seeds, and compares expected orders with the results."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

import scipy.stats

from bert_jax.configs.study import OrderConfig

LEVEL = 0.95
BySeed = Mapping[int, float]
"""Seed -> score, for every seed that is done."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """The mean of paired differences over `n` seeds, with the interval of the mean. The mean is None if there are no seeds. The
    interval is None if there are fewer than two seeds."""

    mean: float | None
    low: float | None
    high: float | None
    n: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval is above 0 or below 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def mean(values: Sequence[float]) -> float | None:
    """Returns the mean, or None if there are no values."""
    return statistics.fmean(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """Returns the sample standard deviation, or None if there are fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def paired(ours: BySeed, theirs: BySeed, level: float = LEVEL) -> Difference:
    """Returns the mean of the differences `ours` - `theirs` over the seeds that both have. The interval of the mean is the t
    interval, mean ± t(n - 1) s / sqrt(n) (Student 1908, "The Probable Error of a Mean"). If the deviation is 0, the interval
    has width 0."""
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    n, middle = len(differences), mean(differences)
    if middle is None or n < 2:
        return Difference(middle, None, None, n)
    half = float(scipy.stats.t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(differences) / math.sqrt(n)
    return Difference(middle, middle - half, middle + half, n)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A pair of arms. The arm `higher` was expected to score above the arm `lower`."""

    higher: str
    lower: str
    difference: Difference

    @property
    def verdict(self) -> str:
        """The verdict is "as expected" or "opposite" if the interval excludes 0. If the interval contains 0, or if there is
        only one seed, it is "undecided". If there are no scores, it is "not measured"."""
        if self.difference.mean is None:
            return "not measured"
        if not self.difference.excludes_zero:
            return "undecided"
        return "as expected" if self.difference.mean > 0 else "opposite"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An expected order of arms on one task, and the measured order."""

    order: str
    task: str
    came_out: tuple[str, ...]
    """The arms of the order, sorted by their mean scores, the highest first."""
    pairs: tuple[Comparison, ...]
    """All pairs of an arm in one rank and an arm in the next rank."""

    @property
    def holds(self) -> bool:
        """Whether all means are in the expected order."""
        return all(pair.difference.mean is not None and pair.difference.mean > 0 for pair in self.pairs)


def outcome(expected: OrderConfig, task: str, scores: Mapping[str, BySeed]) -> Outcome:
    """Compares an expected order with the results on a task. `scores` maps an arm to its scores by seed."""
    named = [name for rank in expected.ranks for name in rank]
    means = {name: mean([*scores.get(name, {}).values()]) for name in named}
    order = sorted((name for name in named if means[name] is not None), key=lambda name: -(means[name] or 0.0))
    pairs = [
        Comparison(higher, lower, paired(scores.get(higher, {}), scores.get(lower, {})))
        for above, below in itertools.pairwise(expected.ranks)
        for higher, lower in itertools.product(above, below)
    ]
    return Outcome(expected.order, task, tuple(order), tuple(pairs))
