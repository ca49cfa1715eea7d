"""Figures in words: everything that their makers set, down to the width of a line, without drawing."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import matplotlib.colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from bert_jax.metrics import plots

Described = dict[str, Any]


def colour(of: Any) -> str:
    return matplotlib.colors.to_hex(of)


def numbers(values: Any) -> list[float]:
    return [round(float(value), 5) for value in values]


def text(of: Text) -> Described:
    x, y = of.get_position()
    return {
        "text": of.get_text(),
        "at": numbers((x, y)),
        "size": of.get_fontsize(),
        "weight": of.get_fontweight(),
        "colour": colour(of.get_color()),
        "aligned": [of.get_ha(), of.get_va()],
    }


def line(of: Line2D) -> Described:
    return {
        "label": str(of.get_label()),
        "x": numbers(of.get_xdata()),
        "y": numbers(of.get_ydata()),
        "colour": colour(of.get_color()),
        "width": of.get_linewidth(),
        "dashes": str(of._dash_pattern),
        "marker": [str(of.get_marker()), of.get_markersize()],
        "alpha": of.get_alpha(),
        "clipped": of.get_clip_on(),
    }


def ticks(axis: Any) -> Described:
    labels, grid = axis.get_major_ticks()[0].label1, axis.get_gridlines()[0]
    locator = axis.get_major_locator()
    return {
        "label": text(axis.label),
        "at": numbers(axis.get_ticklocs()),
        "locator": [type(locator).__name__, getattr(locator, "_nbins", None), getattr(locator, "_integer", None)],
        "shows": [axis.get_major_formatter()(value, 0) for value in (0.125, 1234.0)],
        "names": [label.get_text() for label in axis.get_ticklabels()],
        "size": labels.get_fontsize(),
        "colour": colour(labels.get_color()),
        "length": axis.get_ticklines()[0].get_markersize(),
        "grid": [grid.get_visible(), colour(grid.get_color()), grid.get_linewidth()],
    }


def panel(axes: Axes) -> Described:
    if not axes.axison:
        return {"off": True}
    legend = axes.get_legend()
    return {
        "titles": [text(title) for title in (axes._left_title, axes.title) if title.get_text()],
        "above": round(float(axes.titleOffsetTrans.get_matrix()[1, 2]), 3),
        "limits": [numbers(axes.get_xlim()), numbers(axes.get_ylim())],
        "x": ticks(axes.xaxis),
        "y": ticks(axes.yaxis),
        "below": axes.get_axisbelow(),
        "edges": {name: [spine.get_visible(), colour(spine.get_edgecolor())] for name, spine in axes.spines.items()},
        "lines": [line(one) for one in axes.lines],
        "texts": [text(one) for one in axes.texts],
        "legend": legend and [legend.get_frame_on(), [text(one) for one in legend.get_texts()]],
    }


def described(figure: Figure) -> Described:
    return {
        "size": numbers(figure.get_size_inches()),
        "dots": figure.dpi,
        "layout": type(figure.get_layout_engine()).__name__,
        "title": text(figure._suptitle),
        "panels": [panel(axes) for axes in figure.axes],
    }


def drawn(draw: Callable[[pathlib.Path], object]) -> Described:
    """The figure that `draw` would save."""
    figures: list[Figure] = []
    with mock.patch.object(plots, "_save", lambda figure, picture: figures.append(figure)):
        draw(pathlib.Path("x.png"))
    (figure,) = figures
    return described(figure)


def pictures(directory: pathlib.Path) -> dict[str, Described]:
    """Every kind of picture of `metrics/plots.py`, from made-up records that are written to `directory`."""
    metrics, few = directory / "metrics.jsonl", directory / "few.jsonl"

    def record(step: int) -> dict[str, float]:
        values = {"step": step, "train/mlm_loss": 9 - step / 50 + 0.3 * (step % 3), "train/mlm_accuracy": step / 400 % 0.25}
        values |= {"train/nsp_accuracy": 0.5 + step % 7 / 50, "train/learning_rate": 1e-4 * (1 - step / 300)}
        values |= {"train/loss": 2 - step / 100, "dev/f1": 0.5 + step / 400}
        if step % 40 == 0:
            values |= {"heldout/mlm_loss": 8 - step / 60, "heldout/unigram_loss": 7.5 - step // 81 / 4}
            values |= {"heldout/mlm_accuracy": step / 450, "heldout/unigram_accuracy": 0.06 - step // 81 / 100}
            values |= {"heldout/nsp_accuracy": 0.6 + step / 900, "heldout/nsp_majority_accuracy": 0.5 + step // 81 / 100}
        return values

    metrics.write_text("".join(f"{json.dumps(record(step))}\n" for step in range(5, 205, 5)))
    few.write_text("".join(f'{{"step": {step}, "heldout/mlm_loss": 1.5}}\n' for step in (5, 100, 200)))
    bars = {"'O' for all": 0.25, "the most frequent": 0.5, "chance": 0.125}
    phases = [(0, "length 128"), (80, "length 512")]
    runs = [("batch 16", [0.6, 0.75]), ("batch 32", []), ("batch 64, 3 epochs", [0.5]), *[(f"{i}", [0.5]) for i in range(5)]]

    def bare(axes: Axes) -> None:
        axes.set_title("one of four")
        axes.plot([0, 1], [1, 2])

    return {
        "curves": drawn(lambda picture: plots.draw_curves(metrics, picture, title="a run", phases=phases)),
        "curves up to the end of a phase": drawn(
            lambda picture: plots.draw_curves(few, picture, title="a run", phases=[(0, "length 128"), (200, "length 512")])
        ),
        "curves of one phase": drawn(lambda picture: plots.draw_curves(few, picture, title="a run", phases=phases[:1])),
        "task": drawn(lambda picture: plots.draw_task_curves(metrics, picture, title="a task", metric="dev/f1", baselines=bars)),
        "sweep": drawn(lambda picture: plots.draw_sweep(picture, title="runs", metric="dev/f1", settings=runs, baselines=bars)),
        "sweep of one": drawn(
            lambda picture: plots.draw_sweep(picture, title="runs", metric="dev/f1", settings=runs[:1], baselines={})
        ),
        "panels": drawn(lambda picture: plots.draw_panels(picture, "panels", [bare] * 4, size=(4.0, 3.0))),
    }


def lines_of(found: dict[str, Described]) -> list[str]:
    """A line of JSON for everything that is set: [picture, number of the panel or -1, what, its value]."""
    return [
        json.dumps([name, number, what, value])
        for name, picture in found.items()
        for number, part in enumerate([{**picture, "panels": len(picture["panels"])}, *picture["panels"]], -1)
        for what, value in part.items()
    ]
