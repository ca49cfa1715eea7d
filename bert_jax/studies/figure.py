"""Draws `figure.png`. The figure shows the scores of every arm with their deviation. If a study has earlier states of a run, it
shows curves over the tokens read in pretraining, as in the paper's Figure 5."""

from __future__ import annotations

import functools
import itertools
import pathlib
from collections.abc import Sequence

import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes

from bert_jax.configs.study import StudyExperiment
from bert_jax.files import JsonObject
from bert_jax.interface.drawing import label
from bert_jax.interface.words import prefixed
from bert_jax.studies.report import eval_loss, score
from bert_jax.training.curves import BASELINE, EVAL, FAINT, INK, TRAIN, draw_panels

COLOURS = (EVAL, BASELINE, "#4d8b57", "#7a5195", "#555555", TRAIN)
MARKERS = ("o", "s", "^", "D", "v", "P")
EVAL_LOSS = ""
"""The column name for the held-out loss. The other columns are scores."""
_CUT = "the axis does not start at 0"


def draw(content: JsonObject, study: StudyExperiment, path: pathlib.Path, formats: Sequence[str] = ("png",)) -> None:
    """Draws the figure of a study. `content` is the content of `table.json`. If arms are states of the same run, they form a
    curve."""
    table = content["table"]
    title = table["title"] + (f" ({table['setting']})" if table["setting"] else "")
    columns = list(table["arms"][0]["scores"])
    if any(arm.at < 1 for arm in study.arms):
        panels = [functools.partial(_curves, table, study, column) for column in (*columns, EVAL_LOSS)]
        draw_panels(path, title, panels, size=(4.6, 3.4), formats=formats)
    else:
        panels = [functools.partial(_arms, table, column) for column in columns]
        draw_panels(path, title, panels, size=(4.6, 1.0 + 0.34 * len(table["arms"])), formats=formats)


def _arms(table: JsonObject, column: str, axes: Axes) -> None:
    """Draws the scores of a task with one row per arm. A row has a dot for each seed, and mean ± deviation."""
    axes.set_title(_title(table, column))
    for place, arm in enumerate(table["arms"]):
        found = arm["scores"][column]
        values = list(found["seeds"].values())
        axes.plot(values, [place] * len(values), "o", color=TRAIN, markersize=4, zorder=2)
        if found["mean"] is None:
            continue
        reach = [found["deviation"] or 0.0]
        axes.errorbar([found["mean"]], [place], xerr=reach, fmt="D", color=EVAL, markersize=5, capsize=3, zorder=3)
        if arm["name"] == table["reference"]:
            axes.axvline(found["mean"], color=BASELINE, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
    axes.set_yticks(range(len(table["arms"])), [arm["title"] for arm in table["arms"]], color=INK)
    axes.set_ylim(len(table["arms"]) - 0.5, -0.5)
    axes.margins(x=0.08)
    baseline = table["baselines"].get(column)
    if baseline is not None:
        axes.axvline(baseline, color=INK, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)
    said = [f"dotted: {_single(baseline)}"] if baseline is not None else []
    if axes.get_xlim()[0] > 0:
        said.append(_CUT)
    axes.set_xlabel("\n".join(said), color=INK, fontsize=8)  # a single line would overlap the next panel or the edge
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))  # with more ticks, numbers of four digits overlap
    axes.grid(axis="y", color=FAINT, linewidth=0.6)


def _curves(table: JsonObject, study: StudyExperiment, column: str, axes: Axes) -> None:
    """Draws one curve per run over the number of tokens read, with a bar for the deviation over seeds. The x axis is not the
    number of steps, because steps of different arms may have different numbers of tokens."""
    axes.set_title(_title(table, column))
    runs = [arm.name for arm in study.arms if not arm.shares]
    for run, colour, marker in zip(runs, itertools.cycle(COLOURS), itertools.cycle(MARKERS), strict=False):
        arms = [one for one in table["arms"] if study.trainer(study.arm(one["name"])).name == run and one["tokens"]]
        points: Sequence[tuple[float, float, float]] = sorted(point for arm in arms if (point := _point(arm, column)))
        if points:
            tokens, means, reach = np.transpose(points)
            style: JsonObject = {"color": colour, "marker": marker, "markersize": 4.5, "capsize": 3, "linewidth": 1.6}
            axes.errorbar(tokens, means, yerr=reach, label=label(study.arm(run).title), **style)
    if (baseline := table["baselines"].get(column)) is not None:
        axes.axhline(baseline, color=INK, linewidth=1.2, linestyle=(0, (1, 2)), label=_single(baseline), zorder=1)
    axes.set_xlabel("tokens read in pretraining", color=INK)
    if axes.get_ylim()[0] > 0:
        axes.set_ylabel(_CUT, color=INK, fontsize=8)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda tokens, _: prefixed(tokens)))
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)


def _single(baseline: float) -> str:
    return f"best single answer, {score(baseline)}"


def _point(arm: JsonObject, column: str) -> tuple[float, float, float] | None:
    """Returns (tokens, score, deviation) of an arm. For the held-out loss, returns (tokens, loss, 0). Returns None if the value
    was not measured."""
    if column == EVAL_LOSS:
        loss = eval_loss(arm)
        return (arm["tokens"], loss[1], 0.0) if loss else None
    found = arm["scores"][column]
    return None if found["mean"] is None else (arm["tokens"], found["mean"], found["deviation"] or 0.0)


def _title(table: JsonObject, column: str) -> str:
    if column == EVAL_LOSS:
        return "held-out loss"
    metric = table["tasks"].get(column, "").partition("/")[2]
    return f"{column}, {metric}" if metric else column
