"""Computes bootstrap intervals over sentences, or other units that are resampled together, in one pass and in constant memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64, Num

CONFIDENCE = 0.95
"""The coverage of every interval."""


def poisson_weights(seed: int, units: Sequence[int] | Int64[np.ndarray, " units"], replicates: int) -> Num[np.ndarray, "units _"]:
    """Returns how often each replicate draws each unit: Poisson numbers with mean 1, float32 [units, replicates].

    In the limit of many units, these are the counts of a sample with replacement (Hanley and MacGibbon 2006,
    doi:10.1016/j.cmpb.2006.04.006). A unit gets the same weights in every call, so two results from the same units can be
    compared as pairs."""
    drawn = [np.random.Generator(np.random.Philox(key=[seed, int(unit)])).poisson(1.0, replicates) for unit in units]
    return np.array(drawn, np.float32).reshape(len(drawn), replicates)


class ResampledSums:
    """Accumulates sums over units, each of which contributes `shape` numbers. The same sums are accumulated for each replicate of
    a bootstrap over the units.

    >>> sums = ResampledSums((2,), seed=0, replicates=1000)
    >>> sums.add([0, 1], np.array([[3, 4], [1, 5]]))         # 3 of 4 and 1 of 5 dependents were found
    >>> interval(sums.replicates[0] / sums.replicates[1])
    """

    def __init__(self, shape: tuple[int, ...], *, seed: int, replicates: int):
        self._seed = seed
        self.sums: Float64[np.ndarray, " *shape"] = np.zeros(shape)
        self.replicates: Float64[np.ndarray, " *shape _"] = np.zeros((*shape, replicates))

    def add(self, units: Sequence[int] | Int64[np.ndarray, " units"], values: Num[np.ndarray, "units *shape"]) -> None:
        """Adds `values[i]`, the numbers of the unit `units[i]`. The numbers of one unit may be added in several calls."""
        weights = poisson_weights(self._seed, units, self.replicates.shape[-1])
        self.sums += values.sum(0)
        self.replicates += np.tensordot(values.astype(np.float32), weights, axes=(0, 0))


def interval(
    replicates: Float64[np.ndarray, "*shape replicates"], confidence: float = CONFIDENCE
) -> tuple[Float64[np.ndarray, " *shape"], Float64[np.ndarray, " *shape"]]:
    """Returns (low, high) of the percentile interval over the last axis. Replicates that are NaN are ignored; if all are NaN, the
    interval is NaN."""
    tail = (1 - confidence) / 2
    known = ~np.isnan(replicates).all(-1)
    ends = np.full((2, *replicates.shape[:-1]), np.nan)
    ends[:, known] = np.nanquantile(replicates[known], (tail, 1 - tail), axis=-1)
    return np.asarray(ends[0]), np.asarray(ends[1])
