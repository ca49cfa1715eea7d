"""Writes the tables and figures of `coreference`. Each figure shows the table with the same name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from bert_jax.analysis.coreference.documents import NEITHER
from bert_jax.analysis.coreference.measure import Antecedents, Best, CoreferenceScores
from bert_jax.analysis.folder import Folder
from bert_jax.interface.drawing import heat_map, name_axes, new_figure, panels
from bert_jax.interface.words import counted

FILES = ("coreference.tsv", "coreference.png", "coreference_heads.tsv", "coreference_heads.png")
HEADER = (
    "group", "chooser", "kind", "accuracy", "low", "high", "gain", "gain_low", "gain_high", "on_choice", "n", "documents",
    "n_choice", "outside", "threshold",
)  # fmt: skip


def write_coreference(folder: Folder, found: CoreferenceScores, controls: Mapping[str, CoreferenceScores]) -> None:
    """Writes all tables and figures."""
    folder.table("coreference.tsv", HEADER, _best_rows(found, controls))
    folder.figure("coreference.png", best_figure(found, controls))
    heads = (
        (name, *str(name).split("-"), group, value, n)
        for group, (accuracy, n) in _by_group(found.reported).items()
        for name, value in zip(found.reported.right["chooser"], accuracy, strict=False)
    )
    folder.table("coreference_heads.tsv", ("head", "layer", "number", "group", "accuracy", "n"), heads)
    folder.figure("coreference_heads.png", heads_figure(found.reported))


def _best_rows(found: CoreferenceScores, controls: Mapping[str, CoreferenceScores]) -> Iterator[tuple[object, ...]]:
    """Yields the rows of each group: a row for the chosen head, a row for each rule, and a row for the chosen head of each
    control."""
    for best in found.best:
        rates = [("head", best, best.head), *(("rule", best, rate) for rate in best.rules)]
        others = ((name, best_in_group(control, best.group)) for name, control in controls.items())
        rates += [(name, own, own.head) for name, own in others if own is not None]
        for kind, own, rate in rates:
            numbers = rate.accuracy, rate.low, rate.high, rate.gain, rate.gain_low, rate.gain_high, rate.on_choice
            counts = own.n, own.documents, own.n_choice, own.outside, own.threshold
            yield own.group, rate.chooser, kind, *numbers, *counts


def best_in_group(found: CoreferenceScores, group: str) -> Best | None:
    """Returns the best head of a group, or None if the group has no best head."""
    return next((best for best in found.best if best.group == group), None)


def _by_group(found: Antecedents) -> dict[str, tuple[np.ndarray, int]]:
    """Returns (accuracy of every head, n) for each group. The group NEITHER and groups without mentions are left out."""
    n = found.n.values.sum(0)
    right = found.right.values[:, :, : found.heads].sum(0)
    groups = [(g, str(group)) for g, group in enumerate(found.n["group"]) if n[g] and group != NEITHER]
    return {group: (right[g] / n[g], int(n[g])) for g, group in groups}


def best_figure(found: CoreferenceScores, controls: Mapping[str, CoreferenceScores]) -> Figure:
    """Draws the accuracy of the chosen head, of the rules and of the controls for each group, with 95 % intervals."""
    names = ["head", *(rate.chooser for rate in found.best[0].rules), *controls]
    width = max(6.4, 1.2 + 1.5 * len(found.best))  # the title is 6.2 inches wide
    figure = new_figure(width, 4.2, "antecedents that are found, with 95 % intervals over documents")
    axes = figure.subplots()
    bar = 0.8 / len(names)
    for i, name in enumerate(names):
        if name in controls:
            own = [best_in_group(controls[name], best.group) for best in found.best]
            rates = [None if best is None else best.head for best in own]
        else:
            rates = [best.head if i == 0 else best.rules[i - 1] for best in found.best]
        shown = [(g + (i - (len(names) - 1) / 2) * bar, rate) for g, rate in enumerate(rates) if rate is not None]
        ends = np.clip([[rate.accuracy - rate.low, rate.high - rate.accuracy] for _, rate in shown], 0, None).T
        heights = [rate.accuracy for _, rate in shown]
        axes.bar([x for x, _ in shown], heights, bar, label=name, color=f"C{i}", yerr=ends, error_kw={"linewidth": 0.8})
        for x, rate in shown if name == "head" or name in controls else ():
            low = rate.accuracy < 0.1  # the bar is too short for the name of the head
            place, colour = (x, rate.high + 0.01 if low else 0.01), "black" if low else "white"
            axes.annotate(rate.chooser, place, rotation=90, fontsize=7, ha="center", va="bottom", color=colour)
    axes.set_xticks(range(len(found.best)), [f"{best.group}\nn = {best.n:,}" for best in found.best])
    axes.set_ylim(0, 1)
    name_axes(axes, y="accuracy")
    figure.legend(fontsize=8, loc="outside right center", frameon=False)  # at the top, the legend would overlap the title
    return figure


def heads_figure(found: Antecedents) -> Figure:
    """Draws a grid of layers and heads for each group, with the accuracy of each head."""
    groups = _by_group(found)
    layers = sorted({int(str(name).partition("-")[0]) for name in found.right["chooser"][: found.heads]})
    columns = min(4, len(groups))
    height = max(2.2, 0.24 * len(layers) + 1.0) * -(-len(groups) // columns) + 0.6
    documents = counted(len(found.n["document"]), "document")
    figure = new_figure(3.4 * columns + 0.4, height, f"antecedents that each head finds ({documents})")
    for axes, (group, (accuracy, n)) in zip(panels(figure, len(groups), columns), groups.items(), strict=True):
        grid = accuracy.reshape(len(layers), -1)
        heat_map(axes, grid, layers, range(1, grid.shape[1] + 1), y="layer", x="head", vmax=1.0)
        axes.set_title(f"{group}; n = {n:,}", fontsize=9, loc="left")
    return figure
