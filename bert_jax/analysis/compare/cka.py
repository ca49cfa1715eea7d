"""Computes the linear centred kernel alignment (CKA) of the layers of two models from sums over words.

The estimate of Kornblith et al. 2019 ("Similarity of Neural Network Representations Revisited", arXiv:1905.00414) compares the
vectors X [n, D] and Y [n, I] of the same n words. CKA = HSIC(X, Y) / sqrt(HSIC(X, X) HSIC(Y, Y)), where HSIC(X, Y) = |X'Y|^2 /
(n - 1)^2 for centred columns. This estimate is biased, so with few words two unrelated layers look similar. The unbiased
estimate is from Song et al. 2012 ("Feature Selection via Dependence Maximization", section 2.2). It is also computed from sums
over words. Both estimates use all words exactly, and memory does not grow with the number of words."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

Sums = Mapping[str, Float64[np.ndarray, " ..."]]
_EXACT = jax.lax.Precision.HIGHEST


def cross_sums(x: Float[Array, "S R D"], y: Float[Array, "_ R I"]) -> dict[str, Float[Array, " ..."]]:
    """Computes the sums over R for every layer x of one model and every layer y of the other model. Rows of zeros contribute
    nothing.

    products [S, T, D, I]: x y'; norms [S, T]: |x|^2 |y|^2; left [S, T, D]: x |y|^2; right [S, T, I]: y |x|^2.
    """
    a, b = (x**2).sum(-1), (y**2).sum(-1)
    return {
        "products": jnp.moveaxis(jnp.tensordot(x, y, axes=((1,), (1,)), precision=_EXACT), 2, 1),
        "norms": jnp.matmul(a, b.T, precision=_EXACT),
        "left": jnp.moveaxis(jnp.matmul(jnp.moveaxis(x, 1, 2), b.T[None], precision=_EXACT), 2, 1),
        "right": jnp.tensordot(a, y, axes=((1,), (1,)), precision=_EXACT),
    }


def own_sums(x: Float[Array, "S R D"]) -> dict[str, Float[Array, " ..."]]:
    """Returns the `cross_sums` of each layer with itself: products [S, D, D], norms [S], left and right [S, D]. Also returns
    total [S, D], the sum of x."""
    found = jax.vmap(lambda one: jax.tree.map(lambda array: array.squeeze((0, 1)), cross_sums(one[None], one[None])))(x)
    return {**found, "total": x.sum(1)}


def hsic(sums: Sums, x: Float64[np.ndarray, " D"], y: Float64[np.ndarray, " I"], traces: tuple[float, float], n: float) -> float:
    """Returns the unbiased HSIC of two layers from sums over n words. `sums` are the `cross_sums` of the two layers, `x` and
    `y` are the sums of their vectors, and `traces` are the sums of their squared norms."""
    product = sums["products"]
    together = (product**2).sum() - sums["norms"]
    apart = ((x**2).sum() - traces[0]) * ((y**2).sum() - traces[1]) / ((n - 1) * (n - 2))
    rows = x @ product @ y - x @ sums["left"] - y @ sums["right"] + sums["norms"]
    return float(together + apart - 2 / (n - 2) * rows) / (n * (n - 3))


def biased_hsic(sums: Sums, x: Float64[np.ndarray, " D"], y: Float64[np.ndarray, " I"], n: float) -> float:
    """Returns HSIC as defined in the paper."""
    return float(((sums["products"] - np.outer(x, y) / n) ** 2).sum()) / (n - 1) ** 2


def alignments(own: Sums, other: Sums, cross: Sums, n: float) -> tuple[Float64[np.ndarray, "S _"], Float64[np.ndarray, "S _"]]:
    """Returns (unbiased CKA, CKA as in the paper) for every layer of one model and every layer of the other model. Values are
    NaN if there are fewer than four words, or if a layer has the same vector for all words."""
    models = (own, other)
    traces = [np.trace(sums["products"], axis1=1, axis2=2) for sums in models]
    found = np.full((2, len(traces[0]), len(traces[1])), np.nan)
    if n < 4:
        return found[0], found[1]
    selves = []
    for sums, trace in zip(models, traces, strict=True):
        layers = range(len(trace))
        totals = sums["total"]
        parts = [{name: sums[name][i] for name in ("products", "norms", "left", "right")} for i in layers]
        unbiased = [hsic(parts[i], totals[i], totals[i], (trace[i], trace[i]), n) for i in layers]
        biased = [biased_hsic(parts[i], totals[i], totals[i], n) for i in layers]
        selves.append((np.array(unbiased), np.array(biased)))
    for i in range(len(traces[0])):
        for j in range(len(traces[1])):
            part = {name: cross[name][i, j] for name in ("products", "norms", "left", "right")}
            x, y = own["total"][i], other["total"][j]
            found[0, i, j] = hsic(part, x, y, (float(traces[0][i]), float(traces[1][j])), n)
            found[1, i, j] = biased_hsic(part, x, y, n)
    with np.errstate(invalid="ignore", divide="ignore"):
        lengths = [np.sqrt(np.outer(selves[0][kind], selves[1][kind])) for kind in (0, 1)]
        return found[0] / lengths[0], found[1] / lengths[1]
