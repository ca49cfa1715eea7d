"""Figures of the attention of one text: an overview of all heads, and a head in full."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from bert_jax.analysis.attention.measure import Attention
from bert_jax.analysis.windows import Kind
from bert_jax.interface.figures import BLUE, ORANGE, new_figure

COLOURS = (BLUE, ORANGE)
"""The colours of the words of the first and of the second text."""
SPECIAL = "#8a9099"
MOST_LINES = 80
"""Maximum number of words or pieces for which the figure draws lines."""
LEAST = 0.01
"""Smaller weights get no line."""


def overview_figure(found: Attention, *, in_words: bool = True) -> Figure:
    """Draws the heat maps of all heads, with layers from top to bottom. Darkness is the square root of the weight."""
    weights = (found.words if in_words else found.pieces).values
    layers, heads = weights.shape[:2]
    figure = new_figure(0.85 * heads + 0.6, 0.85 * layers + 0.8, "attention of every head: rows attend to columns")
    every = figure.subplots(layers, heads, squeeze=False)
    for layer in range(layers):
        for head in range(heads):
            axes = every[layer, head]
            axes.imshow(np.sqrt(weights[layer, head]), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{layer + 1}-{head + 1}", fontsize=7, pad=2)
    return figure


def head_figure(found: Attention, layer: int, head: int, *, in_words: bool = True) -> Figure:
    """Draws one head: lines from the words on the left to the words on the right, and the heat map. Long texts get only the heat
    map."""
    weights = (found.words if in_words else found.pieces).sel(layer=layer, head=head).values
    labels, colours = _labels(found, in_words)
    count = len(labels)
    side = max(3.6, min(14.0, 0.2 * count + 1.2))
    with_lines = count <= MOST_LINES
    figure = new_figure(side * (1.75 if with_lines else 1.0), side + 0.4, f"head {layer}-{head}")
    axes = figure.subplots(1, 2 if with_lines else 1, squeeze=False, width_ratios=[0.7, 1] if with_lines else [1])[0]
    if with_lines:
        _draw_lines(axes[0], weights, labels, colours)
    _draw_map(axes[-1], weights, labels, colours)
    return figure


def _labels(found: Attention, in_words: bool) -> tuple[list[str], list[str]]:
    """Returns the words or pieces, and a colour for each."""
    of_word = [
        SPECIAL if kind in (Kind.CLS, Kind.SEP) else COLOURS[segment]
        for kind, segment in zip(found.kinds, found.segments, strict=True)
    ]
    if in_words:
        return [*found.word_texts], of_word
    return [*found.tokens], [of_word[word] for word in found.word_of_token]


def _draw_lines(axes: Axes, weights: Float32[np.ndarray, "_ _"], labels: list[str], colours: list[str]) -> None:
    sources, targets = np.nonzero(weights >= LEAST)
    order = weights[sources, targets].argsort()
    segments = [((0, i), (1, j)) for i, j in zip(sources[order], targets[order], strict=True)]
    shades = [(colours[i], float(weights[i, j])) for i, j in zip(sources[order], targets[order], strict=True)]
    axes.add_collection(LineCollection(segments, colors=shades, linewidths=1.4))
    size = 8 if len(labels) <= 40 else 6
    for i, (label, colour) in enumerate(zip(labels, colours, strict=True)):
        axes.text(-0.03, i, label, ha="right", va="center", fontsize=size, color=colour)
        axes.text(1.03, i, label, ha="left", va="center", fontsize=size, color=colour)
    axes.set_xlim(-0.7, 1.7)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_title("from (left) to (right)", fontsize=9)
    axes.set_axis_off()


def _draw_map(axes: Axes, weights: Float32[np.ndarray, "_ _"], labels: list[str], colours: list[str]) -> None:
    image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=max(0.05, float(weights.max())))
    step = max(1, len(labels) // 100)
    chosen = range(0, len(labels), step)
    size = 8 if len(labels) <= 40 else 5
    axes.set_xticks(list(chosen), [labels[i] for i in chosen], rotation=90, fontsize=size)
    axes.set_yticks(list(chosen), [labels[i] for i in chosen], fontsize=size)
    for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
        for i, tick in zip(chosen, ticks, strict=True):
            tick.set_color(colours[i])
    axes.tick_params(length=0)
    axes.set_title("from (rows) to (columns)", fontsize=9)
    axes.figure.colorbar(image, ax=axes, shrink=0.7).ax.tick_params(labelsize=7)
