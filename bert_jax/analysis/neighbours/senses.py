"""The occurrences of one word in a text as points in the plane, and as clusters: its senses."""

from __future__ import annotations

import numpy as np
import scipy.cluster.hierarchy
from jaxtyping import Float, Float64, Int

Vectors = Float[np.ndarray, "words D"]


def unit(vectors: Float[np.ndarray, "*shape D"]) -> Float64[np.ndarray, "*shape D"]:
    """The vectors at length 1; 0 stays 0."""
    exact = np.asarray(vectors, np.float64)
    return np.asarray(exact / np.maximum(np.linalg.norm(exact, axis=-1, keepdims=True), 1e-12))


def principal_plane(
    vectors: Vectors, marked: Float[np.ndarray, "_ D"]
) -> tuple[Float64[np.ndarray, "words 2"], Float64[np.ndarray, "_ 2"], float]:
    """(the first two principal components of the vectors at length 1, the points of `marked` in the same plane, the share of the
    variance that the plane holds, NaN without a variance).

    Distances between vectors of length 1 are sqrt(2 - 2 cosine).
    """
    points = unit(vectors)
    middle = points.mean(0, keepdims=True)
    _, sizes, axes = np.linalg.svd(points - middle, full_matrices=False)
    axes = axes[:2]
    largest = axes[np.arange(len(axes)), np.abs(axes).argmax(1)]
    axes = np.pad(axes * np.sign(largest)[:, None], ((0, 2 - len(axes)), (0, 0)))  # an axis has no direction of its own
    total = float((sizes**2).sum())
    share = float((sizes[:2] ** 2).sum()) / total if total > 1e-12 else float("nan")
    return (points - middle) @ axes.T, (unit(marked) - middle) @ axes.T, share


def clusters(vectors: Vectors, count: int) -> Int[np.ndarray, " words"]:
    """The number of each vector's cluster, from 1 for the largest: `count` clusters at most of Ward's method on the vectors at
    length 1 (Ward 1963, as scipy's `linkage`)."""
    if len(vectors) < 2:
        return np.ones(len(vectors), np.int64)
    joined = scipy.cluster.hierarchy.linkage(unit(vectors), "ward")
    labels = scipy.cluster.hierarchy.fcluster(joined, count, "maxclust")
    names, sizes = np.unique(labels, return_counts=True)
    order = {int(name): place for place, name in enumerate(names[np.argsort(-sizes, kind="stable")], 1)}
    return np.array([order[int(label)] for label in labels], np.int64)


def cohesion(vectors: Vectors, labels: Int[np.ndarray, " words"]) -> dict[str, tuple[float, int]]:
    """The mean cosine of two different vectors and the number of pairs, of "any" cluster, of the "same", of "other" ones; the
    mean of no pair is NaN."""
    points = unit(vectors)
    upper = np.triu_indices(len(points), 1)
    cosines, same = (points @ points.T)[upper], labels[upper[0]] == labels[upper[1]]
    chosen = {"any": np.ones_like(same), "same": same, "other": ~same}
    return {name: (float(cosines[some].mean()) if some.any() else float("nan"), int(some.sum())) for name, some in chosen.items()}


def middles(vectors: Vectors, labels: Int[np.ndarray, " words"]) -> dict[int, int]:
    """The number of the vector with the largest cosine to the mean of its cluster, for each cluster."""
    points = unit(vectors)
    found = {}
    for label in np.unique(labels).tolist():
        own = np.flatnonzero(labels == label)
        found[label] = int(own[np.argmax(points[own] @ points[own].mean(0))])
    return found
