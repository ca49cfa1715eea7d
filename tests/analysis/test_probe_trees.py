"""Distances, depths, spanning trees and rank correlations of trees."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse.csgraph
import scipy.stats

from bert_jax.analysis.probe.structural import (
    TreeScores,
    chain,
    found_edges,
    mean_over_lengths,
    rank_correlations,
    root_is_found,
    spanning_tree,
    tree_distances,
)


def random_heads(rng: np.random.Generator, count: int) -> list[int]:
    """Returns a random tree over words in a random order."""
    order = rng.permutation(count)
    heads = [-1] * count
    for i in range(1, count):
        heads[order[i]] = int(order[rng.integers(i)])
    return heads


def lightest_tree(distances: np.ndarray) -> set[tuple[int, int]]:
    """Returns the edges of the minimum spanning tree, by trying all sets of n - 1 edges."""
    count = len(distances)
    pairs = list(itertools.combinations(range(count), 2))
    best: tuple[float, set[tuple[int, int]]] = (np.inf, set())
    for edges in itertools.combinations(pairs, count - 1):
        reached = {0}
        for _ in edges:
            reached |= {word for edge in edges if reached & {*edge} for word in edge}
        weight = sum(float(distances[edge]) for edge in edges)
        if len(reached) == count and weight < best[0]:
            best = (weight, {*edges})
    return best[1]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_spanning_tree_is_the_lightest_of_all_trees(count):
    rng = np.random.default_rng(count)
    for _ in range(5):
        distances = rng.random((count, count))
        distances += distances.T
        np.fill_diagonal(distances, 0)
        assert spanning_tree(distances) == lightest_tree(distances)
        distances[distances < 0.6] = 0  # a distance of 0 is an edge, not a missing one
        assert len(spanning_tree(distances)) == count - 1


def test_tree_distances_are_shortest_paths_and_restore_the_tree():
    rng = np.random.default_rng(1)
    for count in (1, 2, 7, 20):
        heads = random_heads(rng, count)
        edges = np.zeros((count, count))
        for word, head in enumerate(heads):
            edges[word, head] = head >= 0
        distances = tree_distances(heads)
        np.testing.assert_array_equal(distances, scipy.sparse.csgraph.shortest_path(edges, directed=False))
        if count > 1:
            assert spanning_tree(distances) == {(min(e), max(e)) for e in enumerate(heads) if e[1] >= 0}


def test_attachment_counts_edges_without_punctuation():
    heads = [1, -1, 1, 2, 1]  # the last word is a mark
    distances = np.stack([tree_distances(heads), chain(5)[0]])
    found, edges = found_edges(distances, heads, [False] * 4 + [True])
    assert (found.tolist(), edges) == ([3, 3], 3)
    found, edges = found_edges(distances, heads, [False, True, False, False, False])  # the head of three words
    assert (found.tolist(), edges) == ([1, 1], 1)
    assert found_edges(distances, heads, [True] * 4 + [False])[1] == 0


def test_rank_correlations_equal_scipy_with_ties():
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 4, (3, 9)).astype(float), rng.random((3, 9))
    expected = [scipy.stats.spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(rank_correlations(a, b), expected, atol=1e-12)
    assert np.isnan(rank_correlations(np.ones(4), np.arange(4.0)))


def test_correlations_are_averaged_by_length_and_then_over_the_lengths_from_5_to_50():
    lengths = [4, 5, 5, 50, 51]
    values = [np.array([x, 0.0]) for x in (1.0, 0.2, 0.4, 0.9, 1.0)]
    mean, n = mean_over_lengths(lengths, values)
    assert mean.tolist() == pytest.approx([(0.3 + 0.9) / 2, 0.0])
    assert n == 3
    mean, n = mean_over_lengths([4], values[:1])
    assert np.isnan(mean).tolist() == [True, True]
    assert n == 0
    mean, n = mean_over_lengths([], [])
    assert (np.isnan(mean).tolist(), n) == ([True], 0)


def test_the_root_is_the_word_of_least_depth_without_punctuation():
    depths = np.array([[2.0, 1.0, 0.5], [0.0, 1.0, 3.0]])
    assert root_is_found(depths, [1, -1, 1], [False, False, True]).tolist() == [True, False]


def test_a_right_branching_sentence_scores_fully_for_the_chain_only():
    scores = TreeScores()
    distances, depths = chain(6)
    heads = [-1, 0, 1, 2, 3, 4]
    scores.add(np.stack([distances, -distances]), np.stack([depths, -depths]), heads, [False] * 6)
    scores.add(np.stack([distances[:2, :2], np.zeros((2, 2))]), np.zeros((2, 2)), heads[:2], [False] * 2)  # too short to rank
    results = scores.results()
    assert {name: n for name, (_, n) in results.items()} == {
        "uuas": 6, "distance correlation": 1, "root accuracy": 2, "depth correlation": 1,
    }  # fmt: skip
    assert results["uuas"][0].tolist() == pytest.approx([1.0, 1 / 6])  # the edge with the largest distance joins two words
    assert results["distance correlation"][0].tolist() == pytest.approx([1.0, -1.0])
    assert results["root accuracy"][0].tolist() == [1.0, 0.5]
    assert results["depth correlation"][0].tolist() == pytest.approx([1.0, -1.0])
