"""What a picture shows, as text: each artist of a figure with its place, its numbers, its size and its colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator


def described(figure: Figure) -> list[str]:
    """A line for each artist of a figure, in the order in which they were made. The figure need not have been drawn."""
    width, height = figure.get_size_inches()
    size = f"figure of {width:.4g} x {height:.4g} inches, {figure.dpi} dots per inch"
    return [size, *_figure_texts(figure), *(line for axes in figure.axes for line in _axes(axes))]


def _figure_texts(figure: Figure) -> Iterator[str]:
    for text in figure.texts:
        yield f"  {_text(text)}"
    for legend in figure.legends:
        names = [(text.get_text(), text.get_fontsize()) for text in legend.get_texts()]
        frame = "framed" if legend.get_frame_on() else "bare"
        yield f"  legend {names}, {frame}, at {legend._loc}, outside {legend._outside_loc}"


def _axes(axes: Axes) -> Iterator[str]:
    place = ", ".join(f"{value:.3g}" for value in axes.get_position().bounds)
    name = axes.get_label().strip("<>") or "axes"
    if not axes.axison:
        yield f"{name} at {place}, without axes, {_limits(axes)}"
    else:
        spines = [side for side, spine in axes.spines.items() if spine.get_visible()]
        yield f"{name} at {place}, {_limits(axes)}, aspect {axes.get_aspect()} {axes.get_adjustable()}, spines {spines}"
        yield from _ticks(axes)
    for text in (axes.title, axes._left_title, axes._right_title, axes.xaxis.label, axes.yaxis.label):
        if text.get_text():
            yield f"  {_text(text)}"
    if (above := axes.titleOffsetTrans.to_values()[5] * 72 / axes.figure.dpi) != 6:
        yield f"  title {above:.3g} points above"
    for image in axes.get_images():
        limits = ", ".join(f"{value:.4g}" for value in image.get_clim())
        yield f"  image {_numbers(image.get_array())} in {image.get_cmap().name} from {limits}, origin {image.origin}"
    for line in axes.get_lines():
        style = f"{line.get_linewidth()} {line.get_linestyle()} {line.get_marker()} {line.get_markersize()}"
        yield f"  line {_numbers(line.get_xdata())} {_numbers(line.get_ydata())} {_colour(line)} {style}"
    for patch in axes.patches:
        yield f"  bar {_numbers(patch.get_bbox().bounds)} {to_hex(patch.get_facecolor())}"
    for lines in axes.collections if name == "axes" else ():
        for part, colour in zip(lines.get_segments(), np.atleast_2d(lines.get_color()).repeat(9, 0), strict=False):
            yield f"  stroke {_numbers(part)} {to_hex(colour, keep_alpha=True)} {lines.get_linewidth()}"
    for text in axes.texts:
        yield f"  {_text(text)}"


def _limits(axes: Axes) -> str:
    return " ".join(f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in (("x", axes.get_xlim()), ("y", axes.get_ylim())))


def _ticks(axes: Axes) -> Iterator[str]:
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        given = axis.get_tick_params()
        shown = {key: given[key] for key in ("labelsize", "length", "labelbottom", "left") if key in given}
        if not isinstance(axis.get_major_locator(), FixedLocator):
            yield f"  {name} ticks {shown}"
            continue
        labels = axis.get_ticklabels()
        ticks = [f"{_short(place)} {label.get_text()!r}" for place, label in zip(axis.get_ticklocs(), labels, strict=False)]
        yield f"  {name} ticks {shown} {', '.join(ticks)}; {', '.join(dict.fromkeys(map(_style, labels)))}"
        if len({*map(_style, labels)}) > 1:
            yield f"    {' '.join(map(_colour, labels))}"


def _text(text: Text) -> str:
    where = text.xyann if isinstance(text, Annotation) else ()
    place = [*map(_short, text.get_position() if not where else (*text.xy, *where))]
    clip = f" clip {text.get_annotation_clip()} {text.anncoords}" if isinstance(text, Annotation) else ""
    return f"{text.get_text()!r} at {' '.join(place)} {_style(text)}{clip}"


def _style(text: Text) -> str:
    kind = f"{text.get_ha()} {text.get_va()} {text.get_fontweight()}"
    return f"{_colour(text)} {text.get_fontsize():.3g} {text.get_rotation():.3g} {kind}"


def _colour(artist: Any) -> str:
    return to_hex(artist.get_color())


def _short(number: Any) -> str:
    return f"{round(float(number), 9) + 0.0:.4g}" if isinstance(number, float | int | np.number) else str(number)


def _numbers(values: Any) -> str:
    array = np.asarray(values, float)
    rows: Sequence[Any] = array if array.ndim > 1 else [array]
    return "[" + "; ".join(" ".join(map(_short, np.ravel(row))) for row in rows) + "]"
