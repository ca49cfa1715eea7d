"""Writes the tables and figures of `neighbours`. Each figure shows the table with the same name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from jaxtyping import Float64, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bert_jax.analysis.folder import Folder
from bert_jax.analysis.neighbours.measure import (
    Neighbours,
    Occurrences,
    WordPieces,
    clusters,
    cohesion,
    middles,
    principal_plane,
    unit,
)
from bert_jax.interface.drawing import label, name_axes, new_figure, panels
from bert_jax.interface.words import counted

PIECES = "pieces.tsv"
FILES = (PIECES, "neighbours.tsv", "layers.tsv", "layers.png", "senses.tsv", "senses.png")
_ACROSS = 5
"""The number of panels in a row."""
_LEGEND = 110
"""The maximum number of characters of a context in a legend."""


class Measure(NamedTuple):
    """A mean cosine at one layer."""

    measure: str
    layer: int
    cosine: float
    n: int
    """The number of pairs of words."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """The occurrences of a word as points in the principal plane of each layer, with clusters of their vectors in the last
    layer."""

    word: str
    occurrences: Occurrences
    senses: Int[np.ndarray, " words"]
    points: tuple[Float64[np.ndarray, "words 2"], ...]
    """The points of each layer."""
    marked: tuple[Float64[np.ndarray, "_ 2"], ...]
    """The points of the words in context that are occurrences of `word`, for each layer."""
    shares: tuple[float, ...]
    """The fraction of the variance that each plane explains."""


def draw(found: Neighbours, occurrences: Occurrences, senses: int) -> Drawn:
    """Returns the occurrences of a word as points and as at most `senses` clusters. There must be at least one occurrence."""
    marked = found.vectors.values[:, list(occurrences.marked)]
    planes = [principal_plane(x, own) for x, own in zip(occurrences.vectors.values, marked, strict=True)]
    points, others, shares = zip(*planes, strict=True)
    labels = clusters(occurrences.vectors.values[-1], senses)
    return Drawn(occurrences.word, occurrences, labels, points, others, shares)


def write_pieces(folder: Folder, found: Sequence[WordPieces]) -> None:
    """Writes the table of the nearest pieces."""
    header = ("word", "pieces", "norm", "rank", "piece", "cosine", "piece_norm", "n")
    rows = (
        (word.word, " ".join(word.pieces), word.norm, rank, near.piece, near.cosine, near.norm, word.n)
        for word in found
        for rank, near in enumerate(word.nearest, 1)
    )
    folder.table(PIECES, header, rows)


def write_neighbours(folder: Folder, found: Neighbours, senses: int) -> list[Drawn]:
    """Writes the tables and figures of words in context. Returns the drawings of the words that occur in the text."""
    if found.marked:
        layers = found.cosines["layer"]
        near = sorted(found.contexts.items(), key=lambda item: (item[0][1], item[0][0], item[0][2]))
        rows = (
            (found.marked[q], layers[s], r + 1, found.cosines.values[s, q, r], found.random.values[s], context, found.words)
            for (s, q, r), context in near
        )
        folder.table("neighbours.tsv", ("marked", "layer", "rank", "cosine", "random", "context", "n"), rows)
    drawn = [draw(found, own, senses) for own in found.occurrences if own.contexts]
    measures = list(layer_measures(found, drawn))
    folder.table("layers.tsv", Measure._fields, measures)
    folder.figure("layers.png", layers_figure(measures))
    if drawn:
        folder.table(
            "senses.tsv", ("word", "layer", "occurrence", "sense", "x", "y", "share", "context", "n"), sense_rows(found, drawn)
        )
        folder.figure("senses.png", senses_figure(found, drawn))
    return drawn


def layer_measures(found: Neighbours, drawn: Sequence[Drawn]) -> Iterator[Measure]:
    """Yields the mean cosines of each layer. They are between any two words, between the occurrences of a word, between words
    in context, and between a word in context and its nearest word."""
    for s, name in enumerate(found.random["layer"]):
        layer = int(name)
        yield Measure("any two words", layer, float(found.random.values[s]), found.words * (found.words - 1) // 2)
        for own in drawn:
            pairs = cohesion(own.occurrences.vectors.values[s], own.senses)
            for which, title in (("any", "any two"), ("same", "two of the same sense"), ("other", "two of different senses")):
                cosine, n = pairs[which]
                if n:
                    yield Measure(f"{own.word}: {title}", layer, cosine, n)
        points = unit(found.vectors.values[s])
        for i, text in enumerate(found.marked):
            if (s, i, 0) in found.contexts:
                yield Measure(f"{text}: the nearest", layer, float(found.cosines.values[s, i, 0]), 1)
            for j in range(i):
                yield Measure(f"{found.marked[j]} | {text}", layer, float(points[i] @ points[j]), 1)


def sense_rows(found: Neighbours, drawn: Sequence[Drawn]) -> Iterator[tuple[object, ...]]:
    """Yields a row for each point of the figure. In the rows of words in context, the occurrence and the sense are empty."""
    for own in drawn:
        n = len(own.senses)
        for s, layer in enumerate(found.random["layer"]):
            share = own.shares[s]
            for i, (x, y) in enumerate(own.points[s].tolist()):
                yield own.word, layer, i + 1, own.senses[i], x, y, share, own.occurrences.contexts[i], n
            for (x, y), q in zip(own.marked[s].tolist(), own.occurrences.marked, strict=True):
                yield own.word, layer, "", "", x, y, share, found.marked[q], n


def layers_figure(measures: Sequence[Measure]) -> Figure:
    """Draws the mean cosines over the layers, with a line for each measure."""
    figure = new_figure(9.0, 5.0, "cosines by layer; compare them with the cosine of any two words")
    axes = figure.subplots()
    for name in dict.fromkeys(each.measure for each in measures):
        own = [each for each in measures if each.measure == name]
        base = name == "any two words"
        style = {"color": "black", "linewidth": 2.0} if base else {"linewidth": 1.2}
        line = [each.layer for each in own], [each.cosine for each in own]
        axes.plot(*line, marker="o", markersize=3, label=label(_short(f"{name} (n = {own[0].n:,})")), **style)
    axes.set_xticks(sorted({each.layer for each in measures}))
    name_axes(axes, "layer (0: the embeddings)", "cosine")
    figure.legend(fontsize=7, loc="outside lower left", frameon=False)
    return figure


def senses_figure(found: Neighbours, drawn: Sequence[Drawn]) -> Figure:
    """Draws the occurrences of each word in the plane, with a panel for each layer. Colours mark the senses, and stars mark the
    words in context."""
    layers = [int(layer) for layer in found.random["layer"]]
    rows = -(-len(layers) // _ACROSS)
    across = min(len(layers), _ACROSS)
    height = (2.6 * rows + 1.6) * len(drawn)
    figure = new_figure(2.7 * across + 0.4, height, "occurrences of a word by layer: principal components")
    parts = figure.subfigures(len(drawn), 1, squeeze=False)
    for part, own in zip(parts[:, 0], drawn, strict=True):
        every = panels(part, len(layers), across)
        for s, (axes, layer) in enumerate(zip(every, layers, strict=True)):
            share = f", {own.shares[s]:.0%} of the variance" if np.isfinite(own.shares[s]) else ""
            axes.set_title(f"{own.word}, layer {layer}{share}", fontsize=8, loc="left")
            _draw_points(axes, found, own, s)
        part.legend(*every[0].get_legend_handles_labels(), fontsize=7, loc="outside lower left", frameon=False)
    return figure


def _draw_points(axes: Axes, found: Neighbours, own: Drawn, s: int) -> None:
    colours = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
    middle = middles(own.occurrences.vectors.values[-1], own.senses)
    for sense, i in middle.items():
        chosen = own.points[s][own.senses == sense]
        title = _short(f"{sense} ({len(chosen)}): {own.occurrences.contexts[i]}")
        axes.plot(*chosen.T, "o", markersize=3.5, alpha=0.7, color=colours[(sense - 1) % len(colours)], label=title)
    for number, ((x, y), q) in enumerate(zip(own.marked[s].tolist(), own.occurrences.marked, strict=True), 1):
        title = _short(f"{number}: {found.marked[q]}")
        axes.plot(x, y, "*", markersize=11, color="black", markeredgecolor="white", label=title)
        axes.annotate(str(number), (x, y), xytext=(5, 3), textcoords="offset points", fontsize=8)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])


def _short(text: str) -> str:
    return text if len(text) <= _LEGEND else f"{text[: _LEGEND - 1]}\u2026"


def summary(own: Drawn) -> Iterator[str]:
    """Yields lines about a word: its count in the text, and the central occurrence of each sense."""
    kept = len(own.senses)
    sample = f", {kept:,} of them drawn at random" if kept < own.occurrences.n else ""
    yield f"{own.word}: {counted(own.occurrences.n, 'occurrence')}{sample}"
    for sense, i in middles(own.occurrences.vectors.values[-1], own.senses).items():
        yield f"  sense {sense} ({int((own.senses == sense).sum())}): {own.occurrences.contexts[i]}"
