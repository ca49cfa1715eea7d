"""Writes the tables and figures of the heads' statistics. Each figure shows the table with the same name."""

from __future__ import annotations

import matplotlib
import numpy as np
import scipy.cluster.hierarchy
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bert_jax.analysis.divergence import plane, tree
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.heads.measure import HeadStatistics
from bert_jax.interface.drawing import heat_map, name_axes, name_points, new_figure, panels
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
    "plane.png", "windows.tsv",
)  # fmt: skip


def write_heads(folder: Folder, found: HeadStatistics) -> None:
    """Writes all tables and figures. The divergences, the tree and the plane are left out if the model has one head, or if no
    divergences were measured."""
    every = [(i, j, f"{layer}-{head}", layer, head) for i, layer in enumerate(found.statistics["layer"])
             for j, head in enumerate(found.statistics["head"])]  # fmt: skip
    rows = (
        (*head, statistic, found.statistics.values[s, i, j], found.uniform.values[s], found.n.values[s])
        for s, statistic in enumerate(found.statistics["statistic"])
        for i, j, *head in every
    )
    folder.table("heads.tsv", ("head", "layer", "number", "statistic", "value", "uniform", "n"), rows)
    folder.figure("heads.png", statistics_figure(found))
    rows = (
        (*head, distance, found.profile.values[d, i, j], found.uniform_profile.values[d], found.n_profile.values[d])
        for i, j, *head in every
        for d, distance in enumerate(found.profile["distance"])
    )
    folder.table("distances.tsv", ("head", "layer", "number", "distance", "value", "uniform", "n"), rows)
    folder.figure("distances.png", distances_figure(found))
    names, n, divergence = found.divergence["head"], found.n_divergence, found.divergence.values
    if len(names) < 2 or not n:
        return
    pairs = ((a, b) for a in range(len(names)) for b in range(a))
    apart = ((names[b], names[a], divergence[a, b], np.sqrt(divergence[a, b]), n) for a, b in pairs)
    folder.table("divergences.tsv", ("head", "other", "divergence", "distance", "n"), apart)
    linked = tree(divergence)
    clusters = [*names, *(f"cluster {i}" for i in range(1, len(linked) + 1))]
    joined = (
        (clusters[len(names) + i], clusters[int(a)], clusters[int(b)], distance, int(size), n)
        for i, (a, b, distance, size) in enumerate(linked)
    )
    folder.table("tree.tsv", ("cluster", "of", "and", "distance", "heads", "n"), joined)
    folder.figure("tree.png", tree_figure(found))
    points = zip(names, plane(divergence), strict=True)
    folder.table("plane.tsv", ("head", "x", "y", "n"), ((name, *point, n) for name, point in points))
    folder.figure("plane.png", plane_figure(found))


def statistics_figure(found: HeadStatistics) -> Figure:
    """Draws each statistic as a grid of layers and heads. The title of a grid has the value of a head that attends uniformly to
    all words."""
    array = found.statistics
    height = max(2.2, 0.24 * len(array["layer"]) + 1.0)
    figure = new_figure(13.0, 2 * height + 0.6, f"what heads attend to: means over {counted(int(found.n.values[0]), 'word')}")
    for s, (axes, statistic) in enumerate(zip(panels(figure, 7, 4), array["statistic"], strict=True)):
        top = None if statistic == "entropy" else 1.0
        heat_map(axes, array.values[s], array["layer"], array["head"], y="layer", x="head", vmax=top)
        axes.set_title(f"{TITLES[str(statistic)]}; uniform {found.uniform.values[s]:.2g}", fontsize=9, loc="left")
    return figure


def distances_figure(found: HeadStatistics) -> Figure:
    """Draws the mean attention to the word at each distance, with a panel for each layer and a line for each head."""
    array = found.profile
    layers, distances = array["layer"], [int(distance) for distance in array["distance"]]
    columns = min(4, len(layers))
    figure = new_figure(3.2 * columns + 0.6, 2.3 * -(-len(layers) // columns) + 0.6, "attention to the word at a distance")
    figure.supxlabel("distance in words (negative: before)", fontsize=8)
    figure.supylabel("mean attention", fontsize=8)
    every = panels(figure, len(layers), columns, sharex=True, sharey=True)
    colours = matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, len(array["head"])))
    for i, (axes, layer) in enumerate(zip(every, layers, strict=True)):
        for j, head in enumerate(array["head"]):
            axes.plot(distances, array.values[:, i, j], color=colours[j], linewidth=1.0, label=f"head {head}")
        axes.plot(distances, found.uniform_profile.values, color="black", linewidth=0.8, linestyle=":", label="uniform")
        axes.set_title(f"layer {layer}", fontsize=9, loc="left")
        axes.set_ylim(0, 1)
        axes.tick_params(labelsize=7, labelbottom=i + columns >= len(layers))  # labels only below the last panel of a column
    figure.legend(*every[0].get_legend_handles_labels(), fontsize=7, loc="outside right upper", frameon=False)
    return figure


def tree_figure(found: HeadStatistics) -> Figure:
    """Draws the dendrogram of the heads. The name of each head has the colour of its layer."""
    names = [str(name) for name in found.divergence["head"]]
    drawn = scipy.cluster.hierarchy.dendrogram(tree(found.divergence.values), no_plot=True, labels=names)
    title = f"Jensen-Shannon distances between heads, average linkage ({counted(found.n_divergence, 'word')})"
    figure = new_figure(max(6.0, 0.14 * len(names) + 1.5), 4.6, title)
    axes = figure.subplots()
    for x, y in zip(drawn["icoord"], drawn["dcoord"], strict=True):
        axes.plot(x, y, color="#555555", linewidth=0.9)
    axes.set_xticks(5.0 + 10.0 * np.arange(len(names)), drawn["ivl"], rotation=90, fontsize=7)
    axes.set_ylim(bottom=0)
    name_axes(axes, y="distance")
    colours = _colours(figure, found)
    for label in axes.get_xticklabels():
        label.set_color(colours[label.get_text()])
    return figure


def plane_figure(found: HeadStatistics) -> Figure:
    """Draws the heads as points, coloured by layer. The distances between points approximate the distances between heads as well
    as possible."""
    figure = new_figure(8.0, 7.0, f"heads by their Jensen-Shannon distances ({counted(found.n_divergence, 'word')})")
    axes, points, colours = figure.subplots(), plane(found.divergence.values), _colours(figure, found)
    for colour, (x, y) in zip(colours.values(), points, strict=True):
        axes.plot(x, y, "o", color=colour, markersize=5)
    axes.set_aspect("equal", adjustable="datalim")
    name_axes(axes, "first direction of the plane (distance)", "second direction (distance)")
    name_points(axes, points, [*colours], [*colours.values()])
    return figure


def _colours(figure: Figure, found: HeadStatistics) -> dict[str, str]:
    """Returns the colour of each head, which is the colour of its layer. Adds a legend of the layers to the figure."""
    layers = found.statistics["layer"]
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(layers)))
    by_layer = {str(layer): to_hex(shade) for layer, shade in zip(layers, shades, strict=True)}
    dots = [Line2D([], [], marker="o", linestyle="", color=colour, markersize=5) for colour in by_layer.values()]
    figure.legend(dots, [f"layer {layer}" for layer in by_layer], fontsize=7, loc="outside right upper", frameon=False)
    return {str(name): by_layer[str(name).partition("-")[0]] for name in found.divergence["head"]}
