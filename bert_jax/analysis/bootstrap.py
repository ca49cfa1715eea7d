"""Computes bootstrap intervals in one pass and in constant memory. Whole sentences, or other units, are resampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64, Num

CONFIDENCE = 0.95
"""The coverage of every interval."""


def poisson_weights(seed: int, units: Sequence[int] | Int64[np.ndarray, " units"], replicates: int) -> Num[np.ndarray, "units _"]:
    """Returns how often each replicate draws each unit, float32 [units, replicates]. The counts follow a Poisson distribution
    with mean 1.

    For many units, these counts approach the counts of sampling with replacement (Hanley and MacGibbon 2006,
    doi:10.1016/j.cmpb.2006.04.006). A unit gets the same weights in every call, so the replicates of two results from the same
    units can be paired."""
    drawn = [np.random.Generator(np.random.Philox(key=[seed, int(unit)])).poisson(1.0, replicates) for unit in units]
    return np.array(drawn, np.float32).reshape(len(drawn), replicates)


class ResampledSums:
    """Accumulates sums over units, and the same sums for each replicate of a bootstrap. Each unit contributes an array of shape
    `shape`.

    >>> sums = ResampledSums((2,), seed=0, replicates=1000)
    >>> sums.add([0, 1], np.array([[3, 4], [1, 5]]))         # 3 of 4 and 1 of 5 dependents were found
    >>> interval(sums.replicates[0] / sums.replicates[1])
    """

    def __init__(self, shape: tuple[int, ...], *, seed: int, replicates: int):
        self._seed = seed
        self.sums: Float64[np.ndarray, " *shape"] = np.zeros(shape)
        self.replicates: Float64[np.ndarray, " *shape _"] = np.zeros((*shape, replicates))

    def add(self, units: Sequence[int] | Int64[np.ndarray, " units"], values: Num[np.ndarray, "units *shape"]) -> None:
        """Adds `values[i]` for the unit `units[i]`. The values of a unit may be added in several calls."""
        weights = poisson_weights(self._seed, units, self.replicates.shape[-1])
        self.sums += values.sum(0)
        self.replicates += np.tensordot(values.astype(np.float32), weights, axes=(0, 0))


def interval(
    replicates: Float64[np.ndarray, "*shape replicates"], confidence: float = CONFIDENCE
) -> tuple[Float64[np.ndarray, " *shape"], Float64[np.ndarray, " *shape"]]:
    """Returns the percentile interval (low, high) over the last axis. Replicates that are NaN are ignored. If all replicates
    are NaN, the interval is NaN."""
    tail = (1 - confidence) / 2
    known = ~np.isnan(replicates).all(-1)
    ends = np.full((2, *replicates.shape[:-1]), np.nan)
    ends[:, known] = np.nanquantile(replicates[known], (tail, 1 - tail), axis=-1)
    return np.asarray(ends[0]), np.asarray(ends[1])
