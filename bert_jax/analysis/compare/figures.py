"""Writes the tables and figures of `compare`. Each figure shows the table with the same name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float64
from matplotlib.figure import Figure

from bert_jax.analysis.compare.masked import Predictions
from bert_jax.analysis.compare.measure import Comparison, matched
from bert_jax.analysis.folder import Folder
from bert_jax.interface.drawing import heat_map, new_figure
from bert_jax.interface.words import counted

FILES = (
    "heads.tsv", "divergences.tsv", "divergences.png", "moved.tsv", "moved.png", "layers.tsv", "layers.png", "predictions.tsv",
    "differences.tsv",
)  # fmt: skip
_NAMES = 40
"""If there are more heads than this, the axes of the figure name only the layers."""


def write_comparison(folder: Folder, found: Comparison) -> None:
    """Writes all tables and figures. The tables of heads are written only if divergences were measured. The table of moved
    heads also requires that both models have the same heads. The tables of predictions are written only if there are
    predictions."""
    if n := found.n_divergence:
        every, partners = distances(found), matched(found.divergence.values)
        names, others = found.divergence["head"], found.divergence["other"]
        header = ("head", "match", "distance", "nearest", "nearest_distance", "mean_distance", "n")
        own = [(others[partners[i]], every[i, partners[i]]) if i in partners else ("", np.nan) for i in range(len(names))]
        near = every.argmin(1)
        rows = ((name, *own[i], others[near[i]], every[i, near[i]], every[i].mean(), n) for i, name in enumerate(names))
        folder.table("heads.tsv", header, rows)
        rows = (
            (name, other, found.divergence.values[i, j], every[i, j], "yes" if partners.get(i) == j else "no", n)
            for i, name in enumerate(names)
            for j, other in enumerate(others)
        )
        folder.table("divergences.tsv", ("head", "other", "divergence", "distance", "matched", "n"), rows)
        folder.figure("divergences.png", divergences_figure(found))
        if found.same_shape:
            moved = ((name, *str(name).split("-"), every[i, i], n) for i, name in enumerate(names))
            folder.table("moved.tsv", ("head", "layer", "number", "distance", "n"), moved)
            folder.figure("moved.png", moved_figure(found))
    layers = (
        (layer, other, found.cka.values[i, j], found.biased_cka.values[i, j], found.words)
        for i, layer in enumerate(found.cka["layer"])
        for j, other in enumerate(found.cka["other"])
    )
    folder.table("layers.tsv", ("layer", "other", "cka", "biased_cka", "n"), layers)
    folder.figure("layers.png", layers_figure(found))
    if found.predictions:
        folder.table("predictions.tsv", ("measure", "value", "n"), prediction_rows(found.predictions))
        if found.predictions.differences:
            differences = ((each.context, each.own, each.other, each.kl, 1) for each in found.predictions.differences)
            folder.table("differences.tsv", ("context", "first", "second", "kl", "n"), differences)


def distances(found: Comparison) -> Float64[np.ndarray, "heads _"]:
    """Returns the Jensen-Shannon distances between the heads of both models. They are the square roots of the divergences."""
    return np.sqrt(found.divergence.values)


def prediction_rows(found: Predictions) -> Iterator[tuple[str, float, int]]:
    """Yields a row for each measure of the predictions."""
    yield "accuracy of the first", found.accuracy, found.n
    yield "accuracy of the second", found.other_accuracy, found.n
    yield "agreement", found.agreement, found.n
    if not np.isnan(found.kl):
        yield "KL(first | second)", found.kl, found.n
        yield "KL(second | first)", found.other_kl, found.n


def divergences_figure(found: Comparison) -> Figure:
    """Draws the distances between all heads of both models. Dots mark the matched heads."""
    title = f"Jensen-Shannon distances between heads ({counted(found.n_divergence, 'word')}); dots: matched"
    figure = new_figure(8.6, 7.6, title)
    axes = figure.subplots()
    rows, columns = (
        {i: name for i, name in enumerate(names) if len(names) <= _NAMES or str(name).endswith("-1")}
        for names in (found.divergence["head"], found.divergence["other"])
    )
    labels: dict[str, Any] = {"y": "head of the first model", "x": "head of the second model", "label": "distance"}
    heat_map(axes, distances(found), rows, columns, **labels, cmap="viridis")
    axes.tick_params(axis="x", rotation=90 if len(found.divergence["other"]) <= _NAMES else 0)
    partners = matched(found.divergence.values)
    axes.plot([*partners.values()], [*partners], "o", markersize=2.5, color="#ff5030")
    return figure


def moved_figure(found: Comparison) -> Figure:
    """Draws a grid of layers and heads with the distance of each head to the head of the same name in the other model."""
    layers = len({str(name).partition("-")[0] for name in found.divergence["head"]})
    grid = np.diag(distances(found)).reshape(layers, -1)
    title = f"distance between heads of the same name ({counted(found.n_divergence, 'word')})"
    figure = new_figure(0.5 * grid.shape[1] + 2.5, 0.4 * layers + 1.6, title)
    half, numbers = grid.max() / 2, [range(1, size + 1) for size in grid.shape]
    heat_map(figure.subplots(), grid, *numbers, y="layer", x="head", is_light=lambda value: value > half)
    return figure


def layers_figure(found: Comparison) -> Figure:
    """Draws the unbiased CKA of all layers of both models."""
    cka = found.cka
    title = f"linear CKA of layers, unbiased ({counted(found.words, 'word')})"
    figure = new_figure(0.55 * cka.shape[1] + 2.2, 0.45 * cka.shape[0] + 1.6, title)
    axes, x = figure.subplots(), "layer of the second model (0: the embeddings)"
    colours: dict[str, Any] = {"is_light": lambda value: value < 0.6, "cmap": "magma", "vmax": 1.0, "origin": "lower"}
    heat_map(axes, cka.values, cka["layer"], cka["other"], y="layer of the first model", x=x, **colours)
    return figure
