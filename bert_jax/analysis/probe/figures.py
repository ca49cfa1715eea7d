"""The tables and pictures of probes; each picture shows the table of its name."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bert_jax.analysis.folder import Folder, new_figure
from bert_jax.analysis.named import NamedArray
from bert_jax.analysis.probe.measure import MIX, LabelProbes, ParserProbes, Probes, StructureProbes
from bert_jax.interface.words import counted

FILES = ("labels.tsv", "labels.png", "mix.tsv", "structure.tsv", "structure.png", "parsers.tsv", "parsers.png")
LABELS = (
    "label", "probe", "accuracy", "deviation", "control", "control deviation", "selectivity", "selectivity deviation", "majority",
    "seeds", "n training", "n",
)  # fmt: skip


def write_probes(folder: Folder, found: Probes) -> None:
    """Writes the tables and pictures of the probes that were trained."""
    if found.labels:
        folder.table("labels.tsv", LABELS, label_rows(found.labels))
        folder.picture("labels.png", labels_figure(found.labels))
        folder.table("mix.tsv", ("label", "layer", "weight", "deviation", "seeds", "n"), mix_rows(found.labels))
    if found.structure:
        header = ("score", "probe", "value", "deviation", "right-branching", "seeds", "n training", "n")
        folder.table("structure.tsv", header, structure_rows(found.structure))
        folder.picture("structure.png", structure_figure(found.structure))
    if found.parsers:
        folder.table("parsers.tsv", ("parser", "attachment", "n training", "n"), parser_rows(found.parsers))
        folder.picture("parsers.png", parsers_figure(found.parsers))


def over_seeds(array: NamedArray) -> tuple[np.ndarray, np.ndarray]:
    """(the mean over the seeds, their standard deviation, which is NaN for one seed); the seeds are the last axis."""
    values = np.asarray(array.values)
    count = values.shape[-1]
    deviation = values.std(-1, ddof=1) if count > 1 else np.full(values.shape[:-1], np.nan)
    return values.mean(-1), deviation


def selectivity(found: LabelProbes) -> NamedArray:
    """[label, probe, seed]: the accuracy of the label less that of its control task."""
    axes = {name: labels for name, labels in found.accuracy.axes.items() if name != "task"}
    return NamedArray(found.accuracy.values[:, 0] - found.accuracy.values[:, 1], axes)


def label_rows(found: LabelProbes) -> Iterator[tuple[object, ...]]:
    """A row for each kind of label and each probe."""
    (mean, deviation), (gap, gap_deviation) = over_seeds(found.accuracy), over_seeds(selectivity(found))
    seeds = len(found.accuracy["seed"])
    for i, label in enumerate(found.accuracy["label"]):
        counts = (found.majority.values[i], seeds, found.n_training.values[i], found.n.values[i])
        for j, probe in enumerate(found.accuracy["probe"]):
            both = (mean[i, 0, j], deviation[i, 0, j], mean[i, 1, j], deviation[i, 1, j])
            yield label, probe, *both, gap[i, j], gap_deviation[i, j], *counts


def mix_rows(found: LabelProbes) -> Iterator[tuple[object, ...]]:
    """A row for each kind of label and each layer."""
    mean, deviation = over_seeds(found.mix)
    for i, label in enumerate(found.mix["label"]):
        for j, layer in enumerate(found.mix["layer"]):
            yield label, layer, mean[i, j], deviation[i, j], len(found.mix["seed"]), found.n_training.values[i]


def structure_rows(found: StructureProbes) -> Iterator[tuple[object, ...]]:
    """A row for each score and each probe."""
    mean, deviation = over_seeds(found.scores)
    seeds = len(found.scores["seed"])
    for i, score in enumerate(found.scores["score"]):
        for j, probe in enumerate(found.scores["probe"]):
            counts = (found.right_branching.values[i], seeds, found.n_training, found.n.values[i])
            yield score, probe, mean[i, j], deviation[i, j], *counts


def parser_rows(found: ParserProbes) -> Iterator[tuple[object, ...]]:
    """A row for each parser and baseline."""
    for parser, value in zip(found.accuracy["parser"], found.accuracy.values, strict=True):
        yield parser, value, found.n_training, found.n


def labels_figure(found: LabelProbes) -> Figure:
    """For each kind of label the curves of accuracy and control over the layers, and the baseline of word types."""
    labels = found.accuracy["label"]
    figure = new_figure(4.2 * len(labels) + 0.6, 3.8, "linear probes of labels, by layer (0: embeddings)")
    every = figure.subplots(1, len(labels), squeeze=False, sharey=True)[0]
    (mean, deviation), (gap, gap_deviation) = over_seeds(found.accuracy), over_seeds(selectivity(found))
    for i, (axes, label) in enumerate(zip(every, labels, strict=True)):
        _curve(axes, mean[i, 0], deviation[i, 0], "#1f4e9c", "accuracy")
        _curve(axes, mean[i, 1], deviation[i, 1], "#b5541c", "control task")
        _curve(axes, gap[i], gap_deviation[i], "#2f7d4f", "selectivity")
        axes.axhline(found.majority.values[i], color="black", linewidth=0.8, linestyle=":", label="usual label of the word")
        axes.set_title(f"{label}: {counted(int(found.n.values[i]), 'word')}", fontsize=9, loc="left")
        _layers(axes, found.accuracy)
        axes.set_ylim(min(0.0, np.nanmin(gap) - 0.03), 1)
    every[0].set_ylabel("share of words", fontsize=8)
    figure.legend(*every[0].get_legend_handles_labels(), fontsize=7, loc="outside right upper", frameon=False)
    return figure


def structure_figure(found: StructureProbes) -> Figure:
    """For each score the curve over the layers and the value of right-branching trees."""
    scores = found.scores["score"]
    figure = new_figure(3.2 * len(scores) + 0.6, 3.4, "structural probes, by layer (0: embeddings; dotted: right-branching)")
    every = figure.subplots(1, len(scores), sharey=True)
    mean, deviation = over_seeds(found.scores)
    for i, (axes, score) in enumerate(zip(every, scores, strict=True)):
        _curve(axes, mean[i], deviation[i], "#1f4e9c", str(score))
        axes.axhline(found.right_branching.values[i], color="black", linewidth=0.8, linestyle=":")
        noun = "edge" if score == "uuas" else "sentence"
        axes.set_title(f"{score}: {counted(int(found.n.values[i]), noun)}", fontsize=9, loc="left")
        _layers(axes, found.scores)
        axes.set_ylim(0, 1)
    return figure


def parsers_figure(found: ParserProbes) -> Figure:
    """The share of the words whose head is found, by parser."""
    names = [str(name) for name in found.accuracy["parser"]]
    figure = new_figure(7.5, 0.4 * len(names) + 1.2, f"parsers: the head is found of {counted(found.n, 'word')}")
    axes = figure.subplots()
    colours = matplotlib.colormaps["Blues"](np.linspace(0.8, 0.3, len(names)))
    axes.barh(names, found.accuracy.values, color=colours)
    for row, value in enumerate(found.accuracy.values):
        axes.text(value, row, f" {100 * value:.1f} %", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of words", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return figure


def _curve(axes: Axes, mean: np.ndarray, deviation: np.ndarray, colour: str, name: str) -> None:
    """The layers as a line, and the mix as a point beside them; bars of one standard deviation."""
    places = np.arange(len(mean))
    errors = np.nan_to_num(deviation)
    axes.errorbar(places[:-1], mean[:-1], errors[:-1], color=colour, marker="o", markersize=3, linewidth=1.2, label=name)
    axes.errorbar(places[-1:], mean[-1:], errors[-1:], color=colour, marker="D", markersize=5)


def _layers(axes: Axes, array: NamedArray) -> None:
    probes = [str(probe) for probe in array["probe"]]
    step = 1 if len(probes) < 16 else 4
    shown = [*range(0, len(probes) - 1, step), len(probes) - 1]
    axes.set_xticks(shown, [probes[i] for i in shown])
    axes.set_xlabel(f"layer; {MIX}: learned mix", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
