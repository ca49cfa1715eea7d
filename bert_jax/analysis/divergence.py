"""Computes Jensen-Shannon divergences between heads, the dendrogram of the heads, and their coordinates in the plane."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import scipy.cluster.hierarchy
import scipy.spatial.distance
from jaxtyping import Array, Float, Float64

from bert_jax.prediction.packing import power_of_two


def sampled_sources(
    maps: Float[Array, "N B H Z Z"], sources: Float[Array, "B Z"], most: int
) -> tuple[Float[Array, "heads R Z"], Float[Array, "B _"]]:
    """Chooses about `most` evenly spaced columns of each row. Returns two arrays for these columns: the attention of all heads
    from these columns, and 1 if a column has a word, otherwise 0. Attention from a column without a word is set to zero.

    `sources` is 1 if a column has a word.
    """
    layers, _, heads, _, columns = maps.shape
    step = max(1, columns // power_of_two(most))
    chosen, own = maps[:, :, :, step // 2 :: step], sources[:, step // 2 :: step]
    weighted = jnp.moveaxis(chosen * own[None, :, None, :, None], 2, 1)
    return weighted.reshape(layers * heads, -1, columns), own


def mixture_entropies(maps: Float[Array, "heads R Z"]) -> Float[Array, "_ heads"]:
    """Returns [k, i]: the entropy of (p_i + p_j) / 2 summed over R, in nats. Head j is k places after head i, counted
    cyclically.

    Every pair of heads is covered once, or twice if k is half the number of heads. For k = 0, these are the entropies of the
    single heads.
    """

    def mixed(k: Array) -> Float[Array, " heads"]:
        return entropies((maps + jnp.roll(maps, -k, axis=0)) / 2)

    return jax.lax.map(mixed, jnp.arange(maps.shape[0] // 2 + 1))


def cross_entropies(maps: Float[Array, "heads R Z"], others: Float[Array, "_ R Z"]) -> Float[Array, "_ heads"]:
    """Returns [j, i]: the entropy of (p_i + q_j) / 2 summed over R, in nats. i is a head of the first model, and j is a head of
    the second."""
    return jax.lax.map(lambda other: entropies((maps + other[None]) / 2), others)


def entropies(maps: Float[Array, "heads R Z"]) -> Float[Array, " heads"]:
    """Returns the entropy of each head summed over R, in nats."""
    return jax.scipy.special.entr(maps).sum((1, 2))


def crosswise(
    mixtures: Float64[np.ndarray, "_ heads"], own: Float64[np.ndarray, " heads"], others: Float64[np.ndarray, " _"]
) -> Float64[np.ndarray, "heads _"]:
    """Returns the Jensen-Shannon divergence between every head and every head of another model. `mixtures` has the
    `cross_entropies` of the heads, and `own` and `others` have their entropies."""
    return np.maximum(mixtures.T - (own[:, None] + others[None, :]) / 2, 0.0)


def symmetric(mixtures: Float64[np.ndarray, "_ heads"]) -> Float64[np.ndarray, "heads heads"]:
    """Returns the Jensen-Shannon divergence H((p + q) / 2) - (H(p) + H(q)) / 2 of each pair of heads. `mixtures` are the
    `mixture_entropies` of the heads."""
    count = mixtures.shape[1]
    own = mixtures[0]
    divergences = np.zeros((count, count))
    for k in range(1, len(mixtures)):
        here = np.arange(count)
        other = (here + k) % count
        found = mixtures[k] - (own[here] + own[other]) / 2
        divergences[here, other] = divergences[other, here] = np.maximum(found, 0.0)
    return divergences


def tree(divergence: Float64[np.ndarray, "heads heads"]) -> Float64[np.ndarray, "_ 4"]:
    """Returns the average-linkage tree of heads, in the format of scipy's `linkage`. The distance between two heads is the
    square root of their divergence."""
    condensed = scipy.spatial.distance.squareform(np.sqrt(divergence))
    return np.asarray(scipy.cluster.hierarchy.linkage(condensed, "average"), np.float64)


def plane(divergence: Float64[np.ndarray, "heads heads"]) -> Float64[np.ndarray, "heads 2"]:
    """Returns points in the plane whose distances approximate the square roots of the divergences (classical multidimensional
    scaling)."""
    count = len(divergence)
    centring = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-0.5 * centring @ divergence @ centring)
    points = np.zeros((count, 2))
    for axis in range(min(2, count)):
        column = vectors[:, -1 - axis]
        column = column * np.sign(column[np.abs(column).argmax()])  # the sign of an eigenvector is arbitrary
        points[:, axis] = column * np.sqrt(max(values[-1 - axis], 0.0))
    return points
