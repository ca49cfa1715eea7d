"""Tables and pictures of `coreference`; each picture shows the table of its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from bert_jax.analysis.coreference.measure import NEITHER, Antecedents, Best, CoreferenceScores, Rate
from bert_jax.analysis.folder import Folder, new_figure
from bert_jax.interface.words import counted

FILES = ("coreference.tsv", "coreference.png", "coreference_heads.tsv", "coreference_heads.png")
HEADER = (
    "group", "chooser", "kind", "accuracy", "low", "high", "gain", "gain_low", "gain_high", "on_choice", "n", "documents",
    "n_choice", "outside", "threshold",
)  # fmt: skip


def write_coreference(folder: Folder, found: CoreferenceScores, controls: Mapping[str, CoreferenceScores]) -> None:
    """Writes all tables and pictures."""
    folder.table("coreference.tsv", HEADER, best_rows(found, controls))
    folder.picture("coreference.png", best_figure(found, controls))
    folder.table("coreference_heads.tsv", ("head", "layer", "number", "group", "accuracy", "n"), head_rows(found.reported))
    folder.picture("coreference_heads.png", heads_figure(found.reported))


def best_rows(found: CoreferenceScores, controls: Mapping[str, CoreferenceScores]) -> Iterator[tuple[object, ...]]:
    """A row for the head and for each rule of each group, then for the head of each control."""
    for best in found.best:
        rates = [("head", best.head), *(("rule", rate) for rate in best.rules)]
        for kind, rate in rates:
            yield best.group, rate.chooser, kind, *_numbers(rate), *_counts(best)
        for name, control in controls.items():
            own = of_group(control, best.group)
            if own is not None:
                yield own.group, own.head.chooser, name, *_numbers(own.head), *_counts(own)


def of_group(found: CoreferenceScores, group: str) -> Best | None:
    """The best head of a group; None where there is none."""
    return next((best for best in found.best if best.group == group), None)


def _numbers(rate: Rate) -> tuple[float, ...]:
    return rate.accuracy, rate.low, rate.high, rate.gain, rate.gain_low, rate.gain_high, rate.on_choice


def _counts(best: Best) -> tuple[object, ...]:
    return best.n, best.documents, best.n_choice, best.outside, best.threshold


def head_rows(found: Antecedents) -> Iterator[tuple[object, ...]]:
    """A row for every head and group, over all documents."""
    for group, (accuracy, n) in _by_group(found).items():
        for name, value in zip(found.right["chooser"], accuracy, strict=False):
            layer, _, number = str(name).partition("-")
            yield name, layer, number, group, value, n


def _by_group(found: Antecedents) -> dict[str, tuple[np.ndarray, int]]:
    """Group -> (the accuracy of every head, n), without groups of no mention and without those that no name is right for."""
    n = found.n.values.sum(0)
    right = found.right.values[:, :, : found.heads].sum(0)
    groups = [(g, str(group)) for g, group in enumerate(found.n["group"]) if n[g] and group != NEITHER]
    return {group: (right[g] / n[g], int(n[g])) for g, group in groups}


def best_figure(found: CoreferenceScores, controls: Mapping[str, CoreferenceScores]) -> Figure:
    """For each group the accuracy of the chosen head, of the rules and of controls, with 95 % intervals."""
    names = ["head", *(rate.chooser for rate in found.best[0].rules), *controls]
    width = max(6.4, 1.2 + 1.5 * len(found.best))  # the title is 6.2 inches wide
    figure = new_figure(width, 4.2, "antecedents that are found, with 95 % intervals over documents")
    axes = figure.subplots()
    bar = 0.8 / len(names)
    for i, name in enumerate(names):
        rates = [_rate(best, name, i, controls) for best in found.best]
        places = [g + (i - (len(names) - 1) / 2) * bar for g, rate in enumerate(rates) if rate is not None]
        shown = [rate for rate in rates if rate is not None]
        heights = np.array([rate.accuracy for rate in shown])
        ends = np.clip([[rate.accuracy - rate.low, rate.high - rate.accuracy] for rate in shown], 0, None).T
        axes.bar(places, heights, bar, label=name, color=f"C{i}", yerr=ends, error_kw={"linewidth": 0.8})
        for x, rate in zip(places, shown, strict=True):
            if name == "head" or name in controls:
                low = rate.accuracy < 0.1  # the bar is too low for a name in it
                place, colour = (x, rate.high + 0.01 if low else 0.01), "black" if low else "white"
                axes.annotate(rate.chooser, place, rotation=90, fontsize=7, ha="center", va="bottom", color=colour)
    labels = [f"{best.group}\nn = {best.n:,}" for best in found.best]
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(0, 1)
    axes.set_ylabel("accuracy")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8, loc="outside right center", frameon=False)  # further up it would lie on the title
    return figure


def _rate(best: Best, name: str, i: int, controls: Mapping[str, CoreferenceScores]) -> Rate | None:
    if name in controls:
        own = of_group(controls[name], best.group)
        return None if own is None else own.head
    return best.head if i == 0 else best.rules[i - 1]


def heads_figure(found: Antecedents) -> Figure:
    """For each group the accuracy of all heads as a grid of layers and heads."""
    groups = _by_group(found)
    layers = sorted({int(str(name).partition("-")[0]) for name in found.right["chooser"][: found.heads]})
    columns = min(4, len(groups))
    rows = -(-len(groups) // columns)
    height = max(2.2, 0.24 * len(layers) + 1.0)
    documents = counted(len(found.n["document"]), "document")
    figure = new_figure(3.4 * columns + 0.4, height * rows + 0.6, f"antecedents that each head finds ({documents})")
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (group, (accuracy, n)) in zip(every, groups.items(), strict=False):
        grid = accuracy.reshape(len(layers), -1)
        image = axes.imshow(grid, aspect="auto", cmap="Blues", vmin=0.0, vmax=1.0)
        axes.set_title(f"{group}; n = {n:,}", fontsize=9, loc="left")
        axes.set_xticks(range(grid.shape[1]), [str(i + 1) for i in range(grid.shape[1])], fontsize=7)
        axes.set_yticks(range(len(layers)), [str(layer) for layer in layers], fontsize=7)
        axes.set_xlabel("head", fontsize=8)
        axes.set_ylabel("layer", fontsize=8)
        figure.colorbar(image, ax=axes).ax.tick_params(labelsize=7)
    for axes in every[len(groups) :]:
        axes.set_axis_off()
    return figure
