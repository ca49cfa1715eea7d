"""Draws the attention of one text, or of a translation: an overview of all heads, a single head, and an alignment."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from bert_jax.analysis.attention.measure import Alignment, Attention, Text, TranslationAttention
from bert_jax.analysis.windows import Kind
from bert_jax.interface.drawing import BLUE, ORANGE, new_figure

COLOURS = (BLUE, ORANGE)
"""The colours of the words of the first text and the second text, or of the source and the target."""
SPECIAL = "#8a9099"
NAMES = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder on encoder"}
"""Maps each part of the attention to its name in titles."""
MOST_LINES = 80
"""Maximum number of words or pieces for which the figure draws lines."""
LEAST = 0.01
"""No lines are drawn for smaller weights."""


def overview_figure(found: Attention, *, in_words: bool = True) -> Figure:
    """Draws the heat maps of all heads, with layers from top to bottom. Darkness is the square root of the weight."""
    weights = found.weights(in_words).values
    layers, heads = weights.shape[:2]
    title = f"{NAMES[found.part] if found.part else 'attention of every head'}: rows attend to columns"
    figure = new_figure(0.85 * heads + 0.6, 0.85 * layers + 0.8, title)
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
    """Draws one head as lines from the words on the left to the words on the right, and as a heat map. Long texts get only the
    heat map."""
    weights = found.weights(in_words).sel(layer=layer, head=head).values
    rows, columns = _labels(found.rows, in_words), _labels(found.columns, in_words)
    count = max(len(rows[0]), len(columns[0]))
    side = max(3.6, min(14.0, 0.2 * count + 1.2))
    with_lines = count <= MOST_LINES
    title = f"{NAMES[found.part]}, head {layer}-{head}" if found.part else f"head {layer}-{head}"
    figure = new_figure(side * (1.75 if with_lines else 1.0), side + 0.4, title)
    axes = figure.subplots(1, 2 if with_lines else 1, squeeze=False, width_ratios=[0.7, 1] if with_lines else [1])[0]
    if with_lines:
        _draw_lines(axes[0], weights, rows, columns)
    _draw_map(axes[-1], weights, rows, columns)
    return figure


def alignment_figure(found: TranslationAttention, alignment: Alignment) -> Figure:
    """Draws the attention of a decoder layer, averaged over its heads. The rows are the words of the target, and the columns
    are the words of the source. A dot marks the source word of each target word."""
    rows, columns = _labels(found.cross.rows), _labels(found.cross.columns)
    side = max(3.6, min(14.0, 0.2 * max(len(rows[0]), len(columns[0])) + 1.2))
    figure = new_figure(side, side + 0.4, f"alignment: the mean of the heads of layer {alignment.layer}")
    axes = figure.subplots()
    _draw_map(axes, alignment.weights.values, rows, columns)
    axes.set_title("target (rows) to source (columns)", fontsize=9)
    targets, sources = zip(*alignment.pairs, strict=True)
    axes.plot(sources, targets, "o", color=ORANGE, markersize=4)
    return figure


Labels = tuple[list[str], list[str]]
"""The words or pieces of a text, and a colour for each."""


def _labels(text: Text, in_words: bool = True) -> Labels:
    of_word = [
        SPECIAL if kind in (Kind.CLS, Kind.SEP) else COLOURS[segment]
        for kind, segment in zip(text.kinds, text.segments, strict=True)
    ]
    return [*text.labels(in_words)], of_word if in_words else [of_word[word] for word in text.word_of_token]


def _draw_lines(axes: Axes, weights: Float32[np.ndarray, "_ _"], rows: Labels, columns: Labels) -> None:
    sources, targets = np.nonzero(weights >= LEAST)
    order = weights[sources, targets].argsort()
    segments = [((0, i), (1, j)) for i, j in zip(sources[order], targets[order], strict=True)]
    shades = [(rows[1][i], float(weights[i, j])) for i, j in zip(sources[order], targets[order], strict=True)]
    axes.add_collection(LineCollection(segments, colors=shades, linewidths=1.4))
    count = max(len(rows[0]), len(columns[0]))
    size = 8 if count <= 40 else 6
    for i in range(count):
        for (labels, colours), x, side in ((rows, -0.03, "right"), (columns, 1.03, "left")):
            if i < len(labels):
                axes.text(x, i, labels[i], ha=side, va="center", fontsize=size, color=colours[i])
    axes.set_xlim(-0.7, 1.7)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_title("from (left) to (right)", fontsize=9)
    axes.set_axis_off()


def _draw_map(axes: Axes, weights: Float32[np.ndarray, "_ _"], rows: Labels, columns: Labels) -> None:
    image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=max(0.05, float(weights.max())))
    size = 8 if max(len(rows[0]), len(columns[0])) <= 40 else 5
    for (labels, colours), axis, rotation in ((columns, axes.xaxis, 90), (rows, axes.yaxis, 0)):
        chosen = range(0, len(labels), max(1, len(labels) // 100))
        axis.set_ticks(list(chosen), [labels[i] for i in chosen], fontsize=size, rotation=rotation)
        for i, tick in zip(chosen, axis.get_ticklabels(), strict=True):
            tick.set_color(colours[i])
    axes.tick_params(length=0)
    axes.set_title("from (rows) to (columns)", fontsize=9)
    axes.figure.colorbar(image, ax=axes, shrink=0.7).ax.tick_params(labelsize=7)
