"""Tables and pictures of the heads' statistics; each picture shows the table of its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import matplotlib
import numpy as np
import scipy.cluster.hierarchy
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bert_jax.analysis.divergence import plane, tree
from bert_jax.analysis.folder import Folder, new_figure
from bert_jax.analysis.heads.statistics import HeadStatistics
from bert_jax.interface.figures import name_points
from bert_jax.interface.words import counted

TITLES = {
    "entropy": "entropy (nats)",
    "cls": "to [CLS]",
    "sep": "to [SEP]",
    "punctuation": "to punctuation",
    "self": "to itself",
    "previous": "to the word before",
    "next": "to the word after",
}
FILES = (
    "heads.tsv", "heads.png", "distances.tsv", "distances.png", "divergences.tsv", "tree.tsv", "tree.png", "plane.tsv",
    "plane.png",
)  # fmt: skip


def write_heads(folder: Folder, found: HeadStatistics) -> None:
    """Writes all tables and pictures. Of a model with one head, or without a divergence, there is neither tree nor plane."""
    folder.table("heads.tsv", ("head", "layer", "number", "statistic", "value", "uniform", "n"), statistic_rows(found))
    folder.picture("heads.png", statistics_figure(found))
    folder.table("distances.tsv", ("head", "layer", "number", "distance", "value", "uniform", "n"), distance_rows(found))
    folder.picture("distances.png", distances_figure(found))
    names, n = found.divergence["head"], found.n_divergence
    if len(names) < 2 or not n:
        return
    divergence = found.divergence.values
    pairs = ((a, b) for a in range(len(names)) for b in range(a))
    rows = ((names[b], names[a], divergence[a, b], np.sqrt(divergence[a, b]), n) for a, b in pairs)
    folder.table("divergences.tsv", ("head", "other", "divergence", "distance", "n"), rows)
    folder.table("tree.tsv", ("cluster", "of", "and", "distance", "heads", "n"), _tree_rows(names, tree(divergence), n))
    folder.picture("tree.png", tree_figure(found))
    points = plane(divergence)
    folder.table("plane.tsv", ("head", "x", "y", "n"), ((name, *point, n) for name, point in zip(names, points, strict=True)))
    folder.picture("plane.png", plane_figure(found))


def statistic_rows(found: HeadStatistics) -> Iterator[tuple[object, ...]]:
    """A row for each statistic of each head."""
    array = found.statistics
    for s, statistic in enumerate(array["statistic"]):
        for i, layer in enumerate(array["layer"]):
            for j, head in enumerate(array["head"]):
                value, uniform, n = array.values[s, i, j], found.uniform.values[s], found.n.values[s]
                yield f"{layer}-{head}", layer, head, statistic, value, uniform, n


def distance_rows(found: HeadStatistics) -> Iterator[tuple[object, ...]]:
    """A row for each distance of each head."""
    array = found.profile
    for i, layer in enumerate(array["layer"]):
        for j, head in enumerate(array["head"]):
            for d, distance in enumerate(array["distance"]):
                value, uniform, n = array.values[d, i, j], found.uniform_profile.values[d], found.n_profile.values[d]
                yield f"{layer}-{head}", layer, head, distance, value, uniform, n


def _tree_rows(names: Sequence[object], linked: Float64[np.ndarray, "_ 4"], n: int) -> Iterator[tuple[object, ...]]:
    clusters = [*names, *(f"cluster {i}" for i in range(1, len(linked) + 1))]
    for i, (a, b, distance, size) in enumerate(linked):
        yield clusters[len(names) + i], clusters[int(a)], clusters[int(b)], distance, int(size), n


def statistics_figure(found: HeadStatistics) -> Figure:
    """For each statistic the heads as a grid of layers and heads, and the value of a head that attends to all words alike."""
    array = found.statistics
    layers, heads = array["layer"], array["head"]
    height = max(2.2, 0.24 * len(layers) + 1.0)
    figure = new_figure(13.0, 2 * height + 0.6, f"what heads attend to: means over {counted(int(found.n.values[0]), 'word')}")
    every = figure.subplots(2, 4).ravel()
    for s, (axes, statistic) in enumerate(zip(every, array["statistic"], strict=False)):
        top = None if statistic == "entropy" else 1.0
        image = axes.imshow(array.values[s], aspect="auto", cmap="Blues", vmin=0.0, vmax=top)
        axes.set_title(f"{TITLES[str(statistic)]}; uniform {found.uniform.values[s]:.2g}", fontsize=9, loc="left")
        axes.set_xticks(range(len(heads)), [str(head) for head in heads], fontsize=7)
        axes.set_yticks(range(len(layers)), [str(layer) for layer in layers], fontsize=7)
        axes.set_xlabel("head", fontsize=8)
        axes.set_ylabel("layer", fontsize=8)
        figure.colorbar(image, ax=axes).ax.tick_params(labelsize=7)
    every[-1].set_axis_off()
    return figure


def distances_figure(found: HeadStatistics) -> Figure:
    """The mean attention to the word at each distance: a line for each head, a panel for each layer."""
    array = found.profile
    layers, distances = array["layer"], [int(distance) for distance in array["distance"]]
    columns = min(4, len(layers))
    rows = -(-len(layers) // columns)
    figure = new_figure(3.2 * columns + 0.6, 2.3 * rows + 0.6, "attention to the word at a distance")
    figure.supxlabel("distance in words (negative: before)", fontsize=8)
    figure.supylabel("mean attention", fontsize=8)
    every = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    colours = matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, len(array["head"])))
    for i, (axes, layer) in enumerate(zip(every, layers, strict=False)):
        for j, head in enumerate(array["head"]):
            axes.plot(distances, array.values[:, i, j], color=colours[j], linewidth=1.0, label=f"head {head}")
        axes.plot(distances, found.uniform_profile.values, color="black", linewidth=0.8, linestyle=":", label="uniform")
        axes.set_title(f"layer {layer}", fontsize=9, loc="left")
        axes.tick_params(labelsize=7)
        axes.set_ylim(0, 1)
        axes.tick_params(labelbottom=i + columns >= len(layers))  # where no panel is below it
    for axes in every[len(layers) :]:
        axes.set_axis_off()
    figure.legend(*every[0].get_legend_handles_labels(), fontsize=7, loc="outside right upper", frameon=False)
    return figure


def tree_figure(found: HeadStatistics) -> Figure:
    """The dendrogram of the heads; a name has the colour of its layer."""
    names = [str(name) for name in found.divergence["head"]]
    drawn = scipy.cluster.hierarchy.dendrogram(tree(found.divergence.values), no_plot=True, labels=names)
    title = f"Jensen-Shannon distances between heads, average linkage ({counted(found.n_divergence, 'word')})"
    figure = new_figure(max(6.0, 0.14 * len(names) + 1.5), 4.6, title)
    axes = figure.subplots()
    for x, y in zip(drawn["icoord"], drawn["dcoord"], strict=True):
        axes.plot(x, y, color="#555555", linewidth=0.9)
    axes.set_xticks(5.0 + 10.0 * np.arange(len(names)), drawn["ivl"], rotation=90, fontsize=7)
    axes.set_ylabel("distance")
    axes.set_ylim(bottom=0)
    _clean(axes)
    colours = _colours(found)
    for label in axes.get_xticklabels():
        label.set_color(colours[label.get_text()])
    _name_layers(figure, found)
    return figure


def plane_figure(found: HeadStatistics) -> Figure:
    """The heads as points whose distances are as near as possible to theirs; the colour is that of the layer."""
    points, colours = plane(found.divergence.values), _colours(found)
    figure = new_figure(8.0, 7.0, f"heads by their Jensen-Shannon distances ({counted(found.n_divergence, 'word')})")
    axes = figure.subplots()
    names = [str(name) for name in found.divergence["head"]]
    for name, (x, y) in zip(names, points, strict=True):
        axes.plot(x, y, "o", color=colours[name], markersize=5)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("first direction of the plane (distance)", fontsize=8)
    axes.set_ylabel("second direction (distance)", fontsize=8)
    _clean(axes)
    _name_layers(figure, found)
    name_points(axes, points, names, [colours[name] for name in names])
    return figure


def _name_layers(figure: Figure, found: HeadStatistics) -> None:
    """Draws the legend of the colours."""
    by_layer = {str(name).partition("-")[0]: colour for name, colour in _colours(found).items()}
    dots = [Line2D([], [], marker="o", linestyle="", color=colour, markersize=5) for colour in by_layer.values()]
    names = [f"layer {layer}" for layer in by_layer]
    figure.legend(dots, names, fontsize=7, loc="outside right upper", frameon=False)


def _colours(found: HeadStatistics) -> dict[str, str]:
    """The colour of each head, by its layer."""
    layers = found.statistics["layer"]
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(layers)))
    by_layer = {str(layer): to_hex(shade) for layer, shade in zip(layers, shades, strict=True)}
    return {str(name): by_layer[str(name).partition("-")[0]] for name in found.divergence["head"]}


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
