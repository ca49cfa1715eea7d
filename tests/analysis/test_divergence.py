"""Sampled words, entropies of mixtures and coordinates of heads, on a few numbers."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.stats

from bert_jax.analysis.divergence import mixture_entropies, plane, sampled_sources


@pytest.mark.parametrize(("most", "columns"), [(3, [1, 3, 5, 7, 9]), (2, [2, 7]), (16, [*range(10)]), (1, [5])])
def test_sampled_words_are_evenly_spaced_and_columns_without_a_word_are_empty(most, columns):
    rng = np.random.default_rng(0)
    maps, sources = rng.random((2, 3, 4, 10, 10)).astype(np.float32), np.ones((3, 10), np.float32)
    sources[1, 5:8] = 0
    chosen, own = jax.jit(sampled_sources, static_argnums=2)(maps, sources, most)
    np.testing.assert_array_equal(own, sources[:, columns])
    expected = maps[:, :, :, columns] * sources[None, :, None, columns, None]
    for layer in range(2):
        for head in range(4):
            np.testing.assert_array_equal(chosen[4 * layer + head], expected[layer, :, head].reshape(-1, 10))


@pytest.mark.parametrize("heads", [1, 4, 5])
def test_mixtures_are_computed_for_every_two_heads_once(heads):
    maps = np.random.default_rng(1).dirichlet(np.ones(3), (heads, 2)).astype(np.float32)
    found = np.asarray(jax.jit(mixture_entropies)(maps))
    assert found.shape == (heads // 2 + 1, heads)
    for k in range(len(found)):
        for i in range(heads):
            mixed = scipy.stats.entropy((maps[i] + maps[(i + k) % heads]) / 2, axis=-1).sum()
            assert float(found[k, i]) == pytest.approx(mixed, abs=1e-5)


def test_coordinates_have_two_dimensions_and_their_largest_number_is_positive():
    for seed in range(8):
        points = np.random.default_rng(seed).normal(size=(5, 2))
        squares = ((points[:, None] - points) ** 2).sum(-1)
        placed = plane(squares)
        assert placed.shape == (5, 2)
        assert (placed[np.abs(placed).argmax(0), [0, 1]] > 0).all()
        np.testing.assert_allclose(((placed[:, None] - placed) ** 2).sum(-1), squares, atol=1e-9)
    np.testing.assert_array_equal(plane(np.zeros((1, 1))), [[0, 0]])
