"""Tables and pictures of `compare`; each picture shows the table of its name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bert_jax.analysis.compare.masked import Predictions
from bert_jax.analysis.compare.measure import Comparison, matched
from bert_jax.analysis.folder import Folder, new_figure
from bert_jax.interface.words import counted

FILES = (
    "heads.tsv", "divergences.tsv", "divergences.png", "moved.tsv", "moved.png", "layers.tsv", "layers.png", "predictions.tsv",
    "differences.tsv",
)  # fmt: skip
_NAMES = 40
"""With more heads than this, the axes of the picture name layers alone."""


def write_comparison(folder: Folder, found: Comparison) -> None:
    """Writes all tables and pictures; those of heads only where words were read for them, those of predictions where there are
    any, `moved` where both models have the same heads."""
    if found.n_divergence:
        header = ("head", "match", "distance", "nearest", "nearest_distance", "mean_distance", "n")
        folder.table("heads.tsv", header, head_rows(found))
        folder.table("divergences.tsv", ("head", "other", "divergence", "distance", "matched", "n"), divergence_rows(found))
        folder.picture("divergences.png", divergences_figure(found))
        if found.same_shape:
            folder.table("moved.tsv", ("head", "layer", "number", "distance", "n"), moved_rows(found))
            folder.picture("moved.png", moved_figure(found))
    folder.table("layers.tsv", ("layer", "other", "cka", "biased_cka", "n"), layer_rows(found))
    folder.picture("layers.png", layers_figure(found))
    if found.predictions:
        folder.table("predictions.tsv", ("measure", "value", "n"), prediction_rows(found.predictions))
        if found.predictions.differences:
            rows = ((each.context, each.own, each.other, each.kl, 1) for each in found.predictions.differences)
            folder.table("differences.tsv", ("context", "first", "second", "kl", "n"), rows)


def distances(found: Comparison) -> Float64[np.ndarray, "heads _"]:
    """The Jensen-Shannon distances, roots of the divergences, between the heads of both models."""
    return np.sqrt(found.divergence.values)


def head_rows(found: Comparison) -> Iterator[tuple[object, ...]]:
    """A row for each head of the first model: its partner, its nearest head, and the mean distance to all heads."""
    every, partners = distances(found), matched(found.divergence.values)
    names, others = found.divergence["head"], found.divergence["other"]
    for i, name in enumerate(names):
        partner, near = partners.get(i), int(every[i].argmin())
        own = ("", float("nan")) if partner is None else (others[partner], every[i, partner])
        yield name, *own, others[near], every[i, near], every[i].mean(), found.n_divergence


def divergence_rows(found: Comparison) -> Iterator[tuple[object, ...]]:
    """A row for each head of one model and head of the other."""
    every, partners = distances(found), matched(found.divergence.values)
    for i, name in enumerate(found.divergence["head"]):
        for j, other in enumerate(found.divergence["other"]):
            matches = "yes" if partners.get(i) == j else "no"
            yield name, other, found.divergence.values[i, j], every[i, j], matches, found.n_divergence


def moved_rows(found: Comparison) -> Iterator[tuple[object, ...]]:
    """A row for each head: its distance to the head of the same name."""
    for i, name in enumerate(found.divergence["head"]):
        layer, _, number = str(name).partition("-")
        yield name, layer, number, distances(found)[i, i], found.n_divergence


def layer_rows(found: Comparison) -> Iterator[tuple[object, ...]]:
    """A row for each layer of one model and layer of the other."""
    for i, layer in enumerate(found.cka["layer"]):
        for j, other in enumerate(found.cka["other"]):
            yield layer, other, found.cka.values[i, j], found.biased_cka.values[i, j], found.words


def prediction_rows(found: Predictions) -> Iterator[tuple[object, ...]]:
    """A row for each measure."""
    yield "accuracy of the first", found.accuracy, found.n
    yield "accuracy of the second", found.other_accuracy, found.n
    yield "agreement", found.agreement, found.n
    if not np.isnan(found.kl):
        yield "KL(first | second)", found.kl, found.n
        yield "KL(second | first)", found.other_kl, found.n


def divergences_figure(found: Comparison) -> Figure:
    """The distances between all heads of both models; dots are the heads that are matched."""
    every = distances(found)
    title = f"Jensen-Shannon distances between heads ({counted(found.n_divergence, 'word')}); dots: matched"
    figure = new_figure(8.6, 7.6, title)
    axes = figure.subplots()
    image = axes.imshow(every, cmap="viridis", vmin=0.0, aspect="auto")
    partners = matched(found.divergence.values)
    axes.plot([*partners.values()], [*partners], "o", markersize=2.5, color="#ff5030")
    for axis, names in ((axes.yaxis, found.divergence["head"]), (axes.xaxis, found.divergence["other"])):
        whole = len(names) <= _NAMES
        shown = [i for i, name in enumerate(names) if whole or str(name).endswith("-1")]
        axis.set_ticks(shown, [str(names[i]) for i in shown], fontsize=7, rotation=90 if axis is axes.xaxis and whole else 0)
    axes.set_ylabel("head of the first model", fontsize=8)
    axes.set_xlabel("head of the second model", fontsize=8)
    figure.colorbar(image, ax=axes, label="distance").ax.tick_params(labelsize=7)
    return figure


def moved_figure(found: Comparison) -> Figure:
    """The distance of every head to the head of the same name, as a grid of layers and heads."""
    own = np.diag(distances(found))
    layers = len({str(name).partition("-")[0] for name in found.divergence["head"]})
    grid = own.reshape(layers, -1)
    title = f"distance between heads of the same name ({counted(found.n_divergence, 'word')})"
    figure = new_figure(0.5 * grid.shape[1] + 2.5, 0.4 * layers + 1.6, title)
    axes = figure.subplots()
    image = axes.imshow(grid, cmap="Blues", vmin=0.0, aspect="auto")
    _grid(axes, grid)
    axes.set_xticks(range(grid.shape[1]), [str(i) for i in range(1, grid.shape[1] + 1)], fontsize=7)
    axes.set_yticks(range(layers), [str(i) for i in range(1, layers + 1)], fontsize=7)
    axes.set_xlabel("head", fontsize=8)
    axes.set_ylabel("layer", fontsize=8)
    figure.colorbar(image, ax=axes).ax.tick_params(labelsize=7)
    return figure


def _grid(axes: Axes, values: Float64[np.ndarray, "*shape"], light_below: float | None = None) -> None:
    """Writes the numbers into the cells: white below `light_below`, or where it is None above half of the largest."""
    for (i, j), value in np.ndenumerate(values):
        light = value > values.max() / 2 if light_below is None else value < light_below
        axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6, color="white" if light else "black")


def layers_figure(found: Comparison) -> Figure:
    """The unbiased CKA of all layers of both models."""
    values = found.cka.values
    title = f"linear CKA of layers, unbiased ({counted(found.words, 'word')})"
    figure = new_figure(0.55 * values.shape[1] + 2.2, 0.45 * values.shape[0] + 1.6, title)
    axes = figure.subplots()
    image = axes.imshow(values, cmap="magma", vmin=0.0, vmax=1.0, aspect="auto", origin="lower")
    _grid(axes, values, light_below=0.6)
    axes.set_xticks(range(values.shape[1]), [str(layer) for layer in found.cka["other"]], fontsize=7)
    axes.set_yticks(range(values.shape[0]), [str(layer) for layer in found.cka["layer"]], fontsize=7)
    axes.set_xlabel("layer of the second model (0: the embeddings)", fontsize=8)
    axes.set_ylabel("layer of the first model", fontsize=8)
    figure.colorbar(image, ax=axes).ax.tick_params(labelsize=7)
    return figure
