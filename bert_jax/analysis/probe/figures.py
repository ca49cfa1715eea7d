"""Writes the tables and figures of probes. Each figure shows the table with the same name."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bert_jax.analysis.folder import Folder
from bert_jax.analysis.named_array import NamedArray
from bert_jax.analysis.probe.measure import MIX, LabelProbes, ParserProbes, Probes, StructureProbes
from bert_jax.interface.drawing import BLUE, GREEN, ORANGE, name_axes, new_figure, panels
from bert_jax.interface.words import counted

FILES = ("labels.tsv", "labels.png", "mix.tsv", "structure.tsv", "structure.png", "parsers.tsv", "parsers.png")
LABELS = (
    "label", "probe", "accuracy", "deviation", "control", "control deviation", "selectivity", "selectivity deviation", "majority",
    "seeds", "n training", "n",
)  # fmt: skip


def write_probes(folder: Folder, found: Probes) -> None:
    """Writes the tables and figures of the probes that were trained."""
    if labels := found.labels:
        (mean, deviation), (gap, gap_deviation) = over_seeds(labels.accuracy), over_seeds(selectivity(labels))
        seeds = len(labels.accuracy["seed"])
        rows = (
            (label, probe, mean[i, 0, j], deviation[i, 0, j], mean[i, 1, j], deviation[i, 1, j], gap[i, j], gap_deviation[i, j],
             labels.majority.values[i], seeds, labels.n_training.values[i], labels.n.values[i])
            for i, label in enumerate(labels.accuracy["label"])
            for j, probe in enumerate(labels.accuracy["probe"])
        )  # fmt: skip
        folder.table("labels.tsv", LABELS, rows)
        folder.figure("labels.png", labels_figure(labels))
        weight, of_weight = over_seeds(labels.mix)
        mixes = (
            (label, layer, weight[i, j], of_weight[i, j], seeds, labels.n_training.values[i])
            for i, label in enumerate(labels.mix["label"])
            for j, layer in enumerate(labels.mix["layer"])
        )
        folder.table("mix.tsv", ("label", "layer", "weight", "deviation", "seeds", "n"), mixes)
    if structure := found.structure:
        header = ("score", "probe", "value", "deviation", "right-branching", "seeds", "n training", "n")
        value, of_value = over_seeds(structure.scores)
        chain, seeds = structure.right_branching.values, len(structure.scores["seed"])
        scores = (
            (score, probe, value[i, j], of_value[i, j], chain[i], seeds, structure.n_training, structure.n.values[i])
            for i, score in enumerate(structure.scores["score"])
            for j, probe in enumerate(structure.scores["probe"])
        )
        folder.table("structure.tsv", header, scores)
        folder.figure("structure.png", structure_figure(structure))
    if parsers := found.parsers:
        each = zip(parsers.accuracy["parser"], parsers.accuracy.values, strict=True)
        attached = ((parser, value, parsers.n_training, parsers.n) for parser, value in each)
        folder.table("parsers.tsv", ("parser", "attachment", "n training", "n"), attached)
        folder.figure("parsers.png", parsers_figure(parsers))


def over_seeds(array: NamedArray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (mean, standard deviation) over the last axis, the seeds. With one seed, the deviation is NaN."""
    values = np.asarray(array.values)
    count = values.shape[-1]
    deviation = values.std(-1, ddof=1) if count > 1 else np.full(values.shape[:-1], np.nan)
    return values.mean(-1), deviation


def selectivity(found: LabelProbes) -> NamedArray:
    """Returns [label, probe, seed]: the accuracy of the label minus the accuracy of its control task."""
    axes = {name: labels for name, labels in found.accuracy.axes.items() if name != "task"}
    return NamedArray(found.accuracy.values[:, 0] - found.accuracy.values[:, 1], axes)


def labels_figure(found: LabelProbes) -> Figure:
    """Draws a panel for each kind of label, with the accuracy, the control accuracy and the selectivity over the layers, and
    the baseline of word types."""
    labels = found.accuracy["label"]
    figure = new_figure(4.2 * len(labels) + 0.6, 3.8, "linear probes of labels, by layer (0: embeddings)")
    every = panels(figure, len(labels), len(labels), sharey=True)
    (mean, deviation), (gap, gap_deviation) = over_seeds(found.accuracy), over_seeds(selectivity(found))
    for i, (axes, label) in enumerate(zip(every, labels, strict=True)):
        _curve(axes, mean[i, 0], deviation[i, 0], BLUE, "accuracy")
        _curve(axes, mean[i, 1], deviation[i, 1], ORANGE, "control task")
        _curve(axes, gap[i], gap_deviation[i], GREEN, "selectivity")
        axes.axhline(found.majority.values[i], color="black", linewidth=0.8, linestyle=":", label="usual label of the word")
        axes.set_title(f"{label}: {counted(int(found.n.values[i]), 'word')}", fontsize=9, loc="left")
        _layers(axes, found.accuracy, "" if i else "share of words")
        axes.set_ylim(min(0.0, np.nanmin(gap) - 0.03), 1)
    figure.legend(*every[0].get_legend_handles_labels(), fontsize=7, loc="outside right upper", frameon=False)
    return figure


def structure_figure(found: StructureProbes) -> Figure:
    """Draws each score over the layers, and the same score for right-branching trees."""
    scores = found.scores["score"]
    figure = new_figure(3.2 * len(scores) + 0.6, 3.4, "structural probes, by layer (0: embeddings; dotted: right-branching)")
    mean, deviation = over_seeds(found.scores)
    for i, (axes, score) in enumerate(zip(panels(figure, len(scores), len(scores), sharey=True), scores, strict=True)):
        _curve(axes, mean[i], deviation[i], BLUE, str(score))
        axes.axhline(found.right_branching.values[i], color="black", linewidth=0.8, linestyle=":")
        noun = "edge" if score == "uuas" else "sentence"
        axes.set_title(f"{score}: {counted(int(found.n.values[i]), noun)}", fontsize=9, loc="left")
        _layers(axes, found.scores)
        axes.set_ylim(0, 1)
    return figure


def parsers_figure(found: ParserProbes) -> Figure:
    """Draws the fraction of words whose head each parser finds."""
    names = [str(name) for name in found.accuracy["parser"]]
    figure = new_figure(7.5, 0.4 * len(names) + 1.2, f"heads found by parsers, of {counted(found.n, 'word')}")
    axes = figure.subplots()
    colours = matplotlib.colormaps["Blues"](np.linspace(0.8, 0.3, len(names)))
    axes.barh(names, found.accuracy.values, color=colours)
    for row, value in enumerate(found.accuracy.values):
        axes.text(value, row, f" {100 * value:.1f} %", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    name_axes(axes, "share of words")
    axes.tick_params(labelsize=8)
    return figure


def _curve(axes: Axes, mean: np.ndarray, deviation: np.ndarray, colour: str, name: str) -> None:
    """Draws the layers as a line, with the mix as a separate point, and bars of one standard deviation."""
    places, errors = np.arange(len(mean)), np.nan_to_num(deviation)
    axes.errorbar(places[:-1], mean[:-1], errors[:-1], color=colour, marker="o", markersize=3, linewidth=1.2, label=name)
    axes.errorbar(places[-1:], mean[-1:], errors[-1:], color=colour, marker="D", markersize=5)


def _layers(axes: Axes, array: NamedArray, y: str = "") -> None:
    probes = [str(probe) for probe in array["probe"]]
    shown = [*range(0, len(probes) - 1, 1 if len(probes) < 16 else 4), len(probes) - 1]
    axes.set_xticks(shown, [probes[i] for i in shown])
    name_axes(axes, f"layer; {MIX}: learned mix", y)
