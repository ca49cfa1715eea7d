"""The bootstrap over sentences (or any units that are drawn together), in one pass and in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64, Num

CONFIDENCE = 0.95
"""Of every interval."""


def poisson_weights(seed: int, units: Sequence[int] | Int64[np.ndarray, " units"], replicates: int) -> Num[np.ndarray, "units _"]:
    """Returns the number of times that each replicate draws each unit: Poisson numbers of mean 1, float32 [units, replicates].

    They take the place of the counts of a sample with replacement, which are Poisson in the limit of many units (Hanley and
    MacGibbon 2006, doi:10.1016/j.cmpb.2006.04.006). A unit has the same weights wherever it occurs, so that two results from the
    same units are resampled in pairs.
    """
    drawn = [np.random.Generator(np.random.Philox(key=[seed, int(unit)])).poisson(1.0, replicates) for unit in units]
    return np.array(drawn, np.float32).reshape(len(drawn), replicates)


class ResampledSums:
    """Sums over units of `shape` numbers each, and the same sums in each replicate of a bootstrap over the units.

    >>> sums = ResampledSums((2,), seed=0, replicates=1000)
    >>> sums.add([0, 1], np.array([[3, 4], [1, 5]]))         # of 4 and of 5 dependents, 3 and 1 were found
    >>> interval(sums.replicates[0] / sums.replicates[1])
    """

    def __init__(self, shape: tuple[int, ...], *, seed: int, replicates: int):
        self._seed = seed
        self.sums: Float64[np.ndarray, " *shape"] = np.zeros(shape)
        self.replicates: Float64[np.ndarray, " *shape _"] = np.zeros((*shape, replicates))

    def add(self, units: Sequence[int] | Int64[np.ndarray, " units"], values: Num[np.ndarray, "units *shape"]) -> None:
        """Adds the numbers of units. The numbers of one unit may arrive in several calls."""
        weights = poisson_weights(self._seed, units, self.replicates.shape[-1])
        self.sums += values.sum(0)
        self.replicates += np.tensordot(values.astype(np.float32), weights, axes=(0, 0))


def interval(
    replicates: Float64[np.ndarray, "*shape replicates"], confidence: float = CONFIDENCE
) -> tuple[Float64[np.ndarray, " *shape"], Float64[np.ndarray, " *shape"]]:
    """Returns (low, high) of the percentile interval over the last axis. Replicates that are NaN are left out; if all are NaN, so
    is the interval."""
    tail = (1 - confidence) / 2
    known = ~np.isnan(replicates).all(-1)
    ends = np.full((2, *replicates.shape[:-1]), np.nan)
    ends[:, known] = np.nanquantile(replicates[known], (tail, 1 - tail), axis=-1)
    return np.asarray(ends[0]), np.asarray(ends[1])
