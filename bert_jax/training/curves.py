"""Draws `curves.png`, the learning curves of a run, from its `metrics.jsonl`."""

from __future__ import annotations

import functools
import itertools
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bert_jax.files import JsonObject, write_bytes
from bert_jax.interface.drawing import label, rendered
from bert_jax.interface.flags import in_formats
from bert_jax.objectives.scores import Score
from bert_jax.runtime.workdir import read_metrics

log = logging.getLogger(__name__)

TRAIN, EVAL, BASELINE, INK, FAINT = "#9db7d9", "#1f4e9c", "#c4622d", "#333333", "#d9d9d9"
EVAL_STYLE: JsonObject = {"color": EVAL, "linewidth": 1.8, "marker": "o", "markersize": 3.5, "clip_on": False}
"""The style of held-out scores, a line with dots. The axes do not clip the dots."""

Records = Sequence[JsonObject]
Panel = Callable[[Axes, Records], None]

# The window of the running mean, as a fraction of the number of training points. The mean is drawn over the noisy values.
SMOOTHED = 1 / 20


def draw_curves(
    metrics: pathlib.Path,
    path: pathlib.Path,
    scores: Mapping[str, Score],
    *,
    title: str,
    phases: Sequence[tuple[int, str]] = (),
    formats: Sequence[str] = ("png",),
) -> bool:
    """Draws a panel for each score in `scores` (`Objective.shown_scores`) with the baseline of the score, and a panel for the
    learning rate. `path` ends in .png. Files in other `formats` are written next to it. Returns False if there is nothing to
    draw.

    `phases` holds (first step, label) of every phase. A vertical line marks the start of each phase after the first. Baselines
    are drawn separately for each phase, since each phase has its own held-out rows."""
    records = _read(metrics, path)
    starts = [start for start, _ in phases]
    panels: list[tuple[str, Panel]] = [
        *((name, functools.partial(_plot_score, starts=starts, name=name, score=score)) for name, score in scores.items()),
        ("learning_rate", _learning_rate),
    ]
    present = {name.rpartition("/")[2] for record in records for name in record}
    panels = [(name, draw) for name, draw in panels if name in present]
    if not panels:
        return False
    _draw(records, [draw for _, draw in panels], path, title, formats, phases=phases)
    return True


def draw_task_curves(
    metrics: pathlib.Path,
    path: pathlib.Path,
    *,
    title: str,
    metric: str,
    baselines: Mapping[str, float],
    formats: Sequence[str] = ("png",),
) -> bool:
    """Draws the fine-tuning loss, `metric` (such as "dev/f1") with the `baselines`, and the learning rate. Returns False if there
    is nothing to draw."""
    records = _read(metrics, path)

    def loss(axes: Axes, records: Records) -> None:
        axes.set_title("training loss")
        _plot_training_and_eval(axes, records, "loss", "{:.3f}".format)

    def score(axes: Axes, records: Records) -> None:
        axes.set_title(metric.replace("/", " "))
        steps, values = series(records, metric)
        if steps.size:
            axes.plot(steps, values, **EVAL_STYLE, label=f"best {values.max():.4g}")
        _plot_baselines(axes, baselines)

    if not records:
        return False
    _draw(records, [loss, score, _learning_rate], path, title, formats)
    return True


def _read(metrics: pathlib.Path, path: pathlib.Path) -> Records:
    """Returns the records from which `path` is drawn. If they cannot be read at the moment, logs a warning and returns an empty
    list, since a plot must not end a run."""
    try:
        return read_metrics(metrics)
    except OSError as error:
        log.warning("%s could not be drawn (%s)", path, error.strerror or error)
        return []


def draw_sweep(
    path: pathlib.Path,
    *,
    title: str,
    metric: str,
    settings: Sequence[tuple[str, Sequence[float]]],
    baselines: Mapping[str, float],
    formats: Sequence[str] = ("png",),
) -> None:
    """Draws the score of every run of a sweep as a dot, the mean of each setting as a bar, and the `baselines` as lines.

    `settings` holds (label, scores of all seeds) for each setting.
    """
    figure = Figure(figsize=(max(5.6, 0.7 * len(settings) + 2.0), 4.2), layout="constrained", dpi=120)
    figure.suptitle(title, fontsize=13, color=INK, x=0.012, ha="left", fontweight="bold")
    axes = figure.subplots()
    for place, (_, scores) in enumerate(settings):
        axes.plot([place] * len(scores), scores, "o", color=EVAL, markersize=4, alpha=0.7)
        if scores:
            axes.plot([place - 0.3, place + 0.3], [np.mean(scores)] * 2, color=TRAIN, linewidth=2.5)
    _plot_baselines(axes, baselines)
    axes.set_title(metric.replace("/", " "))
    _format_axes(axes, last=len(settings), phases=())
    axes.set_xlim(-0.7, len(settings) - 0.3)
    axes.set_xlabel("")
    axes.set_xticks(range(len(settings)), [label for label, _ in settings], fontsize=8, color=INK)
    _save(figure, path, formats)


def draw_panels(
    path: pathlib.Path,
    title: str,
    panels: Sequence[Callable[[Axes], None]],
    *,
    size: tuple[float, float],
    formats: Sequence[str] = ("png",),
) -> None:
    """Draws `panels`, three per row, into one file per format. `size` is the width and height of a panel in inches."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + 0.5), layout="constrained", dpi=120)
    figure.suptitle(title, fontsize=13, color=INK, x=0.012, ha="left", fontweight="bold")
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, draw in zip(every, panels, strict=False):
        draw(axes)
        axes.tick_params(colors=INK, length=3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.set_title(axes.get_title(), fontsize=11, color=INK)
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    _save(figure, path, formats)


def _draw(
    records: Records,
    panels: Sequence[Panel],
    path: pathlib.Path,
    title: str,
    formats: Sequence[str],
    phases: Sequence[tuple[int, str]] = (),
) -> None:
    """Draws the panels, two per row, into one file per format."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.6 * columns, 3.4 * rows + 0.5), layout="constrained", dpi=120)
    figure.suptitle(title, fontsize=13, color=INK, x=0.012, ha="left", fontweight="bold")
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, draw in zip(every, panels, strict=False):
        draw(axes, records)
        _format_axes(axes, last=max(record["step"] for record in records), phases=phases)
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    _save(figure, path, formats)


def _save(figure: Figure, path: pathlib.Path, formats: Sequence[str]) -> None:
    """Writes each file atomically. If a file cannot be written, logs a warning instead of raising an error, since a plot must
    not end a run."""
    for name, form in zip(in_formats(path.name, formats), formats, strict=True):
        try:
            write_bytes(path.with_name(name), rendered(figure, form))
        except OSError as error:
            log.warning("%s could not be drawn (%s)", path.with_name(name), error.strerror)


def series(records: Records, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns (steps int64 [n], values float64 [n]) of the metric `name`, without null values."""
    points = [(record["step"], record[name]) for record in records if record.get(name) is not None]
    return np.array([step for step, _ in points], np.int64), np.array([value for _, value in points], np.float64)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Returns the running mean over `window` values centred on each value. Near the ends the window shrinks on both sides, so the
    mean does not lag."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    here = np.arange(len(values))
    reach = np.minimum(np.minimum(here, len(values) - 1 - here), window // 2)
    return (sums[here + reach + 1] - sums[here - reach]) / (2 * reach + 1)


def merge_short_windows(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merges every logging window that is shorter than half the median length into the next window. A stop, an evaluation or
    the end of a phase cuts a window short. The mean of a short window is over few batches, so it would look like a spike.

    `steps` (int [n], ascending) holds the last step of each window, and `values` (float [n]) holds the mean of each window.
    Returns the steps and values of the merged windows.
    """
    if not steps.size:
        return steps, values
    lengths = np.diff(steps, prepend=0)
    least = np.median(lengths) / 2
    kept: list[tuple[int, float, int]] = []  # (last step, sum of the values, number of steps) of a window
    for step, length, value in zip(steps.tolist(), lengths.tolist(), values.tolist(), strict=True):
        if kept and kept[-1][2] < least:
            _, total, count = kept.pop()
            kept.append((step, total + length * value, count + length))
        else:
            kept.append((step, length * value, length))
    if len(kept) > 1 and kept[-1][2] < least:  # no window follows, so the last window is merged into the one before it
        step, total, count = kept.pop()
        kept[-1] = (step, kept[-1][1] + total, kept[-1][2] + count)
    return np.array([step for step, _, _ in kept]), np.array([total / max(count, 1) for _, total, count in kept])


def _percent(share: float, position: int | None = None) -> str:
    return f"{100 * share:.3g} %"


def _plot_score(axes: Axes, records: Records, starts: Sequence[int], name: str, score: Score) -> None:
    show = _percent if score.is_share else "{:.3f}".format
    axes.set_title(f"{score.title} {score.unit}".rstrip())
    _plot_training_and_eval(axes, records, name, show)
    if score.baseline:
        _plot_eval_baseline(axes, records, f"eval/{score.baseline}", score.baseline_title, show, starts)
    if score.from_zero:
        axes.set_ylim(bottom=0)
    if score.is_share:
        axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(_percent))


def _learning_rate(axes: Axes, records: Records) -> None:
    axes.set_title("learning rate")
    _plot_line(axes, *series(records, "train/learning_rate"), color=EVAL, linewidth=1.8)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:.3g}"))


def _plot_training_and_eval(axes: Axes, records: Records, name: str, show: Callable[[float], str]) -> None:
    """Plots the training values as a pale line under their running mean. Held-out values are dots joined by a dark line, and
    the legend shows the last held-out value."""
    steps, values = merge_short_windows(*series(records, f"train/{name}"))
    if steps.size:
        axes.plot(steps, values, color=TRAIN, linewidth=0.7, alpha=0.6)
        _plot_line(axes, steps, smooth(values, int(SMOOTHED * len(values))), color=TRAIN, linewidth=2.0, label="training")
    steps, values = series(records, f"eval/{name}")
    if steps.size:
        axes.plot(steps, values, **EVAL_STYLE, label=f"held out, {show(values[-1])}")


def _plot_line(axes: Axes, steps: np.ndarray, values: np.ndarray, **style: Any) -> None:
    """Plots a line. A single point is plotted as a dot, since a line would not show it."""
    if len(steps) == 1:
        style |= {"marker": "o", "markersize": 5, "clip_on": False}
    axes.plot(steps, values, **style)


def _plot_eval_baseline(
    axes: Axes, records: Records, name: str, label: str, show: Callable[[float], str], starts: Sequence[int] = ()
) -> None:
    """Plots a baseline that was measured on the held-out rows of each phase, as a horizontal line over the steps of the
    phase."""
    steps, values = series(records, name)
    if not values.size:
        return
    last = max(record["step"] for record in records)
    begins = [0, *(start for start in starts if 0 < start < steps[-1])]
    spans = []
    for begin, end in itertools.pairwise([*begins, last]):
        own = values[(steps > begin) & (steps <= end)] if begin else values[steps <= end]
        spans += [(begin, end, float(own[-1]))] if own.size else []
    shown = list(dict.fromkeys(show(value) for _, _, value in spans))
    for i, (begin, end, value) in enumerate(spans):
        text = f"{label}, {', then '.join(shown)}" if i == 0 else None
        axes.plot([begin, end], [value, value], color=BASELINE, linewidth=1.5, linestyle=(0, (4, 2)), label=text)


def _plot_baselines(axes: Axes, baselines: Mapping[str, float]) -> None:
    """Plots each baseline as a horizontal line over the whole width."""
    dashes = itertools.cycle([(0, (4, 2)), (0, (1, 2))])
    for (name, value), style in zip(baselines.items(), dashes, strict=False):
        axes.axhline(value, color=BASELINE, linewidth=1.5, linestyle=style, label=label(f"{name}, {value:.4g}"))


def _format_axes(axes: Axes, last: int, phases: Sequence[tuple[int, str]]) -> None:
    title = axes.get_title()
    axes.set_title("")
    axes.set_title(title, fontsize=11, color=INK, loc="left", pad=18 if len(phases) > 1 else 8)  # space for the phase labels
    axes.set_xlim(0, last)
    axes.set_xlabel("step", color=INK)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.tick_params(colors=INK, length=3)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    for start, name in phases:
        if 0 < start < last:
            axes.axvline(start, color=INK, linewidth=0.9, linestyle=":")
        if start < last and len(phases) > 1:
            place = axes.get_xaxis_transform()
            axes.text(start, 1.015, name, transform=place, fontsize=8, color=INK, va="bottom", ha="left")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)
