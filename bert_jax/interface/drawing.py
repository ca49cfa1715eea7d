r"""Draws matplotlib figures and renders them as PNG, PDF or SVG, with all text drawn literally.

The text in figures consists of words, labels, relations, questions and file names. The characters `$`, `_`, `^` and `\` in this
text are not mathematics. If the font lacks a character, the command must not fail at the end of its work."""

from __future__ import annotations

import io
import itertools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import Formatter

BLUE, ORANGE, GREEN = "#1f4e9c", "#b5541c", "#2f7d4f"
LONGEST = 200
"""The maximum number of characters of a text, since an image is as wide as its longest text."""
_CAPTION = "caption"
_AROUND = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
_RINGS = (5, 10, 16, 24, 34)
"""Distances of a name from its point, in points of 1/72 inch."""
_UNDRAWN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def plain(text: str) -> str:
    """Replaces control characters and half surrogate pairs by U+FFFD, and cuts `text` to LONGEST characters."""
    text = _UNDRAWN.sub("\ufffd", text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}\u2026"


def label(text: str) -> str:
    """Changes `text` so that a legend shows it. matplotlib omits labels that start with "_"."""
    return f"\u2009{text}" if text.startswith("_") else text


def new_figure(width: float, height: float, title: str) -> Figure:
    """Returns a figure of this size (inches). The figure needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12, x=0.012, ha="left", fontweight="bold")
    return figure


def panels(figure: Any, count: int, across: int, **settings: Any) -> list[Axes]:
    """Returns `count` axes, with `across` axes per row. The rest of the last row is empty."""
    every = figure.subplots(-(-count // across), across, squeeze=False, **settings).ravel()
    for axes in every[count:]:
        axes.set_axis_off()
    return list(every[:count])


def name_axes(axes: Axes, x: str = "", y: str = "") -> None:
    """Labels the axes in small letters, and removes the frame at the top and the right."""
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def heat_map(
    axes: Axes,
    values: np.ndarray,
    rows: Mapping[int, object] | Sequence[object],
    columns: Mapping[int, object] | Sequence[object],
    *,
    y: str,
    x: str,
    is_light: Callable[[float], bool] | None = None,
    label: str = "",
    **settings: Any,
) -> None:
    """Draws `values` as colours with a scale. All rows and columns are named. If `rows` or `columns` is a mapping, only the
    indices in the mapping are named.

    is_light: if given, each value is written in its cell. The text is white if is_light(value) is true, and black otherwise.
    """
    image = axes.imshow(values, aspect="auto", **{"cmap": "Blues", "vmin": 0.0, **settings})
    for axis, names, what in ((axes.yaxis, rows, y), (axes.xaxis, columns, x)):
        named = names if isinstance(names, Mapping) else dict(enumerate(names))
        axis.set_ticks([*named], [str(name) for name in named.values()], fontsize=7)
        axis.set_label_text(what, fontsize=8)
    for (i, j), value in np.ndenumerate(values) if is_light else ():
        colour = "white" if is_light(value) else "black"  # type: ignore[misc]
        axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6, color=colour)
    axes.figure.colorbar(image, ax=axes, label=label).ax.tick_params(labelsize=7)


def rendered(figure: Figure, form: str = "png", *, tight: bool = False, caption: str = "") -> bytes:
    """Renders the figure as a PNG, PDF or SVG file, according to `form`. Characters that the font lacks, such as ideographs, are
    drawn as boxes.

    tight: crop the image to its content. caption: a small line at the bottom right, e.g. the name of the model.
    """
    if caption and not any(text.get_gid() == _CAPTION for text in figure.texts):
        right, below = (0.99, -0.01) if tight else (0.995, 0.005)
        figure.text(right, below, caption, fontsize=7, color="#777777", ha="right", va="top" if tight else "bottom", gid=_CAPTION)
    for axis in figure.findobj(Axis):
        for formatter in (axis.get_major_formatter(), axis.get_minor_formatter()):
            _draw_plainly(formatter)
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(plain(text.get_text()))
    file = io.BytesIO()
    # Tick labels are made while the figure is drawn. Files contain no date, so that equal figures give equal files.
    settings: Any = {"text.parse_math": False, "text.usetex": False, "svg.hashsalt": "bert_jax", "pdf.fonttype": 42}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="matplotlib")
        warnings.filterwarnings("ignore", message="Glyph .* missing from|.* does not support .* natively|constrained_layout not")
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
        figure.savefig(file, format=form, dpi=figure.dpi, bbox_inches="tight" if tight else None, metadata=metadata)
    return file.getvalue()


def name_points(axes: Axes, points: np.ndarray, names: Sequence[str], colours: Sequence[str], size: float = 7) -> None:
    """Labels each point with its name. The name is next to the point, or farther away at the end of a line, and does not cover
    other names or points. Names that fit nowhere are omitted. Call this function after drawing everything else.

    points: float [n, 2] in data coordinates. size: the font size.
    """
    figure = axes.figure.get_figure(root=True)
    figure.draw_without_rendering()  # fixes the positions of the points
    pixel = figure.dpi / 72
    centres = axes.transData.transform(points)
    dots = np.concatenate([centres - 3 * pixel, centres + 3 * pixel], axis=1)  # boxes: left, bottom, right, top
    room = np.concatenate([axes.bbox.min, axes.bbox.max])
    taken = np.zeros((0, 4))
    for number, (point, name, colour) in enumerate(zip(points, names, colours, strict=True)):
        text = axes.annotate(
            plain(name), tuple(point), xytext=(0, 0), textcoords="offset points", fontsize=size, color=colour,
            ha="center", va="center", parse_math=False,
        )  # fmt: skip
        half = np.array(text.get_window_extent().size) / 2
        others = np.concatenate([taken, np.delete(dots, number, axis=0)])
        for ring, side in itertools.product(_RINGS, _AROUND):
            middle = centres[number] + side * (half + ring * pixel / np.hypot(*side))
            box = np.concatenate([middle - half, middle + half])
            inside = (box[:2] >= room[:2]).all() and (box[2:] <= room[2:]).all()
            if inside and not ((box[:2] < others[:, 2:]) & (others[:, :2] < box[2:])).all(1).any():
                taken = np.concatenate([taken, box[None]])
                text.xyann = tuple(np.round((middle - centres[number]) / pixel, 1))
                if ring > _RINGS[0]:
                    axes.annotate(
                        "", tuple(point), xytext=text.xyann, textcoords="offset points",
                        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkA": size / 2, "shrinkB": 2},
                    )  # fmt: skip
                break
        else:
            text.remove()


def _draw_plainly(formatter: Formatter) -> None:
    """Passes the tick labels of `formatter` through `plain`."""
    shown = formatter.format_ticks
    formatter.format_ticks = lambda values: [plain(text) for text in shown(values)]  # type: ignore[method-assign]
