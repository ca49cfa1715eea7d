"""Writes the tables and the figure of `dependencies`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bert_jax.analysis.bootstrap import interval
from bert_jax.analysis.dependencies.measure import DIRECTIONS, Best, DependencyScores
from bert_jax.analysis.dependencies.published_heads import PUBLISHED_COLUMNS, published_rows
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.heads.measure import head_names
from bert_jax.interface.drawing import BLUE, ORANGE, name_axes, new_figure
from bert_jax.interface.words import counted

FILES = (
    "dependencies.tsv", "dependencies.png", "dependency_heads.tsv", "dependency_offsets.tsv", "dependency_controls.tsv",
    "published.tsv", "dependency_windows.tsv", "windows.tsv",
)  # fmt: skip
BEST_COLUMNS = (
    "relation", "head", "layer", "number", "direction", "accuracy", "low", "high", "offset", "baseline", "gain", "gain_low",
    "gain_high", "accuracy_choosing", "n_choosing", "n",
)  # fmt: skip
CONTROL_COLUMNS = (
    "relation", "control", "head", "direction", "accuracy", "low", "high", "offset", "baseline", "beaten_by", "beaten_low",
    "beaten_high", "n_control", "n",
)  # fmt: skip


def write_dependencies(folder: Folder, found: DependencyScores, controls: Mapping[str, DependencyScores], least: int) -> None:
    """Writes all tables. If some relations have at least `least` dependents, also writes the figure of these relations."""
    rows = (
        (one.relation, one.name, one.layer, one.head, one.direction, one.accuracy, one.low, one.high, f"{one.offset:+}",
         one.baseline, one.accuracy - one.baseline, one.gain_low, one.gain_high, one.chosen_at, one.n_choosing, one.n)
        for one in found.best
    )  # fmt: skip
    folder.table("dependencies.tsv", BEST_COLUMNS, rows)
    header = ("relation", "head", "layer", "number", "direction", "accuracy_choosing", "n_choosing", "accuracy", "n")
    relations, directions, layers, heads = (found.accuracy[axis] for axis in found.accuracy.axes)
    n, n_choosing = found.n.values, found.n_choosing.values
    by_head = (
        (relations[r], f"{layers[i]}-{heads[j]}", layers[i], heads[j], directions[d], found.choosing.values[r, d, i, j],
         n_choosing[r], value, n[r])
        for (r, d, i, j), value in np.ndenumerate(found.accuracy.values)
        if n[r] or n_choosing[r]
    )  # fmt: skip
    folder.table("dependency_heads.tsv", header, by_head)
    offsets = found.baseline["offset"]
    by_offset = ((relations[r], f"{offsets[o]:+}", at, n[r]) for (r, o), at in np.ndenumerate(found.baseline.values) if n[r])
    folder.table("dependency_offsets.tsv", ("relation", "offset", "accuracy", "n"), by_offset)
    folder.table("published.tsv", PUBLISHED_COLUMNS, published_rows(found))
    if controls:
        compared = (
            (best.relation, name, own.name, own.direction, own.accuracy, own.low, own.high, f"{own.offset:+}", own.baseline,
             best.accuracy - own.accuracy, *beaten(found, control, best.relation), own.n, best.n)
            for best in found.best
            for name, control in controls.items()
            for own in control.best
            if own.relation == best.relation
        )  # fmt: skip
        folder.table("dependency_controls.tsv", CONTROL_COLUMNS, compared)
    if frequent(found, least):
        folder.figure("dependencies.png", dependencies_figure(found, least))


def write_fits(folder: Folder, found: DependencyScores) -> None:
    """Writes how many dependents of each relation have their head within the window of the sliding layers."""
    rows = ((name, near, n) for name, near, n in zip(found.n["relation"], found.near.values, found.n.values, strict=True) if n)
    folder.table("dependency_windows.tsv", ("relation", "within_window", "n"), rows)


def frequent(found: DependencyScores, least: int) -> list[Best]:
    """Returns the relations with at least `least` dependents."""
    return [best for best in found.best if best.n >= least]


def beaten(found: DependencyScores, control: DependencyScores, relation: str) -> tuple[float, float]:
    """Returns the interval of an accuracy difference: the accuracy of the head chosen for a relation, minus the accuracy of the
    head that was chosen on the control."""
    differences = found.replicates.sel(relation=relation).values - control.replicates.sel(relation=relation).values
    low, high = interval(differences)
    return float(low), float(high)


def dependencies_figure(found: DependencyScores, least: int) -> Figure:
    """Draws the accuracy of each head for each relation as a heat map, in the direction that `heat_map` picks. Next to the heat
    map are the chosen heads with their intervals, and the chosen offsets."""
    rows = frequent(found, least)
    layers, heads = found.accuracy["layer"], found.accuracy["head"]
    title = f"heads against dependency relations: {counted(found.sentences, 'sentence')}; heads chosen on "
    title += f"{found.sentences_choosing:,} others"
    figure = new_figure(5.2 + 0.085 * len(layers) * len(heads), 1.4 + 0.2 * len(rows), title)
    left, right = figure.subplots(1, 2, width_ratios=[max(2.0, 0.075 * len(layers) * len(heads)), 3.4], sharey=True)
    image = left.imshow(heat_map(found, rows), aspect="auto", cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
    left.set_xticks(np.arange(len(layers)) * len(heads), [f"{layer}-1" for layer in layers], fontsize=7)
    for boundary in range(1, len(layers)):
        left.axvline(boundary * len(heads) - 0.5, color="#999999", linewidth=0.5)
    names = head_names(len(layers), len(heads))
    for y, best in enumerate(rows):
        left.plot(names.index(best.name), y, "o", color=ORANGE, markersize=3)
    left.set_yticks(range(len(rows)), [f"{best.relation} ({best.n:,})" for best in rows], fontsize=7)
    left.set_xlabel("head (dot: the chosen head)", fontsize=8)
    figure.colorbar(image, ax=left, location="left", shrink=0.6).ax.tick_params(labelsize=7)
    _draw_intervals(right, rows)
    return figure


def heat_map(found: DependencyScores, rows: Sequence[Best]) -> Float64[np.ndarray, "_ heads"]:
    """Returns the accuracy of every head for each relation in `rows`. For each relation and head, the direction is used that
    was better on the sentences on which heads were chosen."""
    at = [list(found.accuracy["relation"]).index(best.relation) for best in rows]
    better = found.choosing.values[at].argmax(1)[:, None]
    return np.take_along_axis(found.accuracy.values[at], better, 1).reshape(len(rows), -1)


def _draw_intervals(axes: Axes, rows: Sequence[Best]) -> None:
    for y, best in enumerate(rows):
        axes.plot((best.low, best.high), (y, y), color=BLUE, linewidth=1.2)
        axes.plot(best.accuracy, y, "o" if best.direction == DIRECTIONS[0] else "s", color=BLUE, markersize=4)
        axes.plot(best.baseline, y, "|", color="black", markersize=8)
        axes.annotate(f"{best.name}  {best.offset:+}", (1.02, y), fontsize=7, va="center", annotation_clip=False)
    axes.annotate("head, offset", (1.02, -0.8), fontsize=7, va="center", annotation_clip=False)
    axes.set_xlim(0, 1)
    name_axes(axes, "accuracy with its 95 % interval; |: best offset\n(square: head -> dependent)")
    axes.tick_params(left=False)
