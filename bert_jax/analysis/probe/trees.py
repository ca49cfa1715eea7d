"""Distances and depths in trees, and how well predicted ones agree with them (Hewitt and Manning 2019, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse.csgraph
import scipy.stats
from jaxtyping import Bool, Float, Float64, Int64

LENGTHS = range(5, 51)
"""Rank correlations are averaged over sentences of one length, and these averages over the lengths from 5 to 50."""


def tree_distances(heads: Sequence[int]) -> Float64[np.ndarray, "words words"]:
    """The number of edges between any two words of a tree with one root."""
    ancestors = np.zeros((len(heads), len(heads)))  # [word, ancestor], the word itself among them
    for word in range(len(heads)):
        at = word
        while at >= 0:
            ancestors[word, at] = 1
            at = heads[at]
    sizes = ancestors.sum(1)
    return np.asarray(sizes[:, None] + sizes[None] - 2 * ancestors @ ancestors.T)


def spanning_tree(distances: Float[np.ndarray, "words words"]) -> set[tuple[int, int]]:
    """The edges (a, b), a < b, of the tree over all words with the least sum of distances."""
    positive = np.triu(distances - distances.min() + 1.0, 1)  # an edge of 0 counts as none; a constant changes no tree
    a, b = scipy.sparse.csgraph.minimum_spanning_tree(positive).nonzero()
    return {(int(i), int(j)) for i, j in zip(a, b, strict=True)}


def found_edges(
    distances: Float[np.ndarray, "A words words"], heads: Sequence[int], punctuation: Sequence[bool]
) -> tuple[Int64[np.ndarray, " A"], int]:
    """(edges of the tree that each spanning tree has too, edges of the tree), without punctuation: the two counts of UUAS."""
    kept = [word for word, mark in enumerate(punctuation) if not mark]
    places = {word: place for place, word in enumerate(kept)}
    pairs = ((places[word], places[heads[word]]) for word in kept if heads[word] in places)
    edges = {(min(pair), max(pair)) for pair in pairs}
    if not edges:
        return np.zeros(len(distances), np.int64), 0
    trees = (spanning_tree(own) for own in distances[:, kept][:, :, kept])
    return np.array([len(edges & tree) for tree in trees]), len(edges)


def rank_correlations(
    a: Float[np.ndarray, "*shape words"], b: Float[np.ndarray, "*#shape words"]
) -> Float64[np.ndarray, "*shape"]:
    """Spearman's correlations over the last axis; NaN where one of them is constant."""
    ranks = [scipy.stats.rankdata(x, axis=-1) for x in (a, b)]
    x, y = (rank - rank.mean(-1, keepdims=True) for rank in ranks)
    with np.errstate(invalid="ignore"):
        return np.asarray((x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1)))


def root_is_found(
    depths: Float[np.ndarray, "A words"], heads: Sequence[int], punctuation: Sequence[bool]
) -> Bool[np.ndarray, " A"]:
    """Whether the word with the least depth, punctuation left out, is the root."""
    least = np.where(np.asarray(punctuation)[None], np.inf, depths).argmin(-1)
    return least == heads.index(-1)


def mean_over_lengths(
    lengths: Sequence[int], correlations: Sequence[Float[np.ndarray, " A"]]
) -> tuple[Float64[np.ndarray, " A"], int]:
    """(the mean over LENGTHS of the mean of the correlations of sentences of each length, the number of these sentences)."""
    chosen = [length for length in LENGTHS if length in lengths]
    if not chosen:
        return np.full(correlations[0].shape if len(correlations) else 1, np.nan), 0
    own = np.array(lengths)
    every = np.stack(correlations)
    means = [every[own == length].mean(0) for length in chosen]
    return np.mean(means, axis=0), int(np.isin(own, chosen).sum())


class TreeScores:
    """The scores of the distances and depths that some probes predict, sentence by sentence."""

    def __init__(self) -> None:
        self._found: list[Int64[np.ndarray, " A"]] = []
        self._roots: list[Bool[np.ndarray, " A"]] = []
        self._distances: list[Float64[np.ndarray, " A"]] = []
        self._depths: list[Float64[np.ndarray, " A"]] = []
        self._lengths: list[int] = []
        self._edges = 0

    def add(
        self,
        distances: Float[np.ndarray, "A words words"],
        depths: Float[np.ndarray, "A words"],
        heads: Sequence[int],
        punctuation: Sequence[bool],
    ) -> None:
        """Counts a sentence: its distances and depths by each probe, its tree."""
        true = tree_distances(heads)
        found, edges = found_edges(distances, heads, punctuation)
        self._found.append(found)
        self._edges += edges
        self._roots.append(root_is_found(depths, heads, punctuation))
        self._lengths.append(len(heads))
        # a probe whose distances are all equal orders nothing: its correlation counts as 0
        self._distances.append(np.nan_to_num(rank_correlations(distances, true[None])).mean(-1))
        self._depths.append(np.nan_to_num(rank_correlations(depths, true[None, heads.index(-1)])))

    def results(self) -> dict[str, tuple[Float64[np.ndarray, " A"], int]]:
        """(value of each probe, n) of each score: UUAS over edges, the distances' correlation over sentences, the share of roots
        that are found over sentences, the depths' correlation over sentences; NaN where n is 0."""
        with np.errstate(invalid="ignore"):
            uuas = np.sum(self._found, axis=0) / np.float64(self._edges)
        return {
            "uuas": (uuas, self._edges),
            "distance correlation": mean_over_lengths(self._lengths, self._distances),
            "root accuracy": (np.mean(self._roots, axis=0), len(self._roots)),
            "depth correlation": mean_over_lengths(self._lengths, self._depths),
        }


def chain(count: int) -> tuple[Float64[np.ndarray, "words words"], Float64[np.ndarray, " words"]]:
    """The distances and depths of a right-branching tree, in which the head of each word is the word before it."""
    places = np.arange(count, dtype=np.float64)
    return np.abs(places[:, None] - places[None]), places
