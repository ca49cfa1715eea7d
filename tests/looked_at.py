"""Pictures in words, line by line: what is drawn where, in which style, as it was when somebody last looked at it.

Nothing is laid out or rendered, so that comparing a picture takes a few milliseconds.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib import colors
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection
from matplotlib.figure import Figure, FigureBase
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text

GOLDEN = pathlib.Path(__file__).parent / "golden" / "pictures"
PINNED = re.search(r"^matplotlib==(\S+)", (pathlib.Path(__file__).parents[1] / "requirements.txt").read_text(), re.MULTILINE)


def assert_as_looked_at(figure: Figure, name: str) -> None:
    """Fails where the figure is not the one in golden/pictures/NAME.txt, as the pinned matplotlib makes it.

    Where a change is meant: look at the picture, remove the file, run the test twice, and read the difference.
    """
    assert_lines_as_looked_at(lines_of(figure), name)


def assert_lines_as_looked_at(found: list[str], name: str) -> None:
    """Fails where these lines, such as those on a terminal, are not those in golden/pictures/NAME.txt."""
    path = GOLDEN / f"{name}.txt"
    if not path.exists():
        path.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
        pytest.fail(f"{path} is made anew: look at what it describes, and run this again")
    assert found == path.read_text(encoding="utf-8").splitlines(), f"not as in {path.name} (see {__name__})"


def lines_of(figure: Figure) -> list[str]:
    """The lines of a figure. Skips the test under another matplotlib, whose ticks and defaults may differ."""
    assert PINNED
    if matplotlib.__version__ != PINNED[1]:
        pytest.skip(f"pictures are described as matplotlib {PINNED[1]} makes them; this is {matplotlib.__version__}")
    return list(described(figure))


def described(figure: FigureBase) -> Iterator[str]:
    """The lines of a figure, and of those in it."""
    if isinstance(figure, Figure):
        yield f"figure {_numbers(figure.get_size_inches())} at {figure.dpi:g} dpi, {type(figure.get_layout_engine()).__name__}"
    for text in (figure._suptitle, figure._supxlabel, figure._supylabel):
        if text is not None:
            yield f"  {_artist(text)}"
    for legend in figure.legends:
        yield from _legend(legend)
    for axes in figure.axes if not figure.subfigs else ():
        yield from _axes(axes)
    for part in figure.subfigs:
        yield "part"
        yield from described(part)


def _axes(axes: Axes) -> Iterator[str]:
    if not axes.axison:
        yield "no axes"
        if not axes.get_children():
            return
    yield f"axes {axes.get_label()} limits {_numbers(axes.get_xlim())} {_numbers(axes.get_ylim())}".rstrip()
    yield f"  aspect {axes.get_aspect()} {axes.get_adjustable()}, margins {_numbers(axes.margins())}"
    yield f"  spines {' '.join(f'{n}:{_colour(s.get_edgecolor())}' for n, s in axes.spines.items() if s.get_visible())}"
    yield from (f"  title {_artist(title)}" for title in (axes._left_title, axes.title, axes._right_title) if title.get_text())
    yield from _axis("x", axes.xaxis)
    yield from _axis("y", axes.yaxis)
    for artist in axes.get_children():
        if isinstance(artist, Legend):
            yield from _legend(artist)
        elif artist in axes.texts or isinstance(artist, Line2D | Collection | AxesImage) or artist in axes.patches:
            yield f"  {_artist(artist)}"


def _axis(name: str, axis: Axis) -> Iterator[str]:
    ticks, locator, formatter = axis.get_major_ticks(), axis.get_major_locator(), axis.get_major_formatter()
    tick = ticks[0] if ticks else axis._get_tick(major=True)
    grid = f", grid {_style(tick.gridline)}" if tick.gridline.get_visible() else ""
    kind = f"{type(locator).__name__} {getattr(locator, '_nbins', '')} {getattr(locator, '_integer', '')}".rstrip()
    shown = [formatter(value, 0) for value in (0.25, 1_234.0, 2.5e6)]
    yield f"  {name} {_artist(axis.label)} {axis.get_scale()}, {kind}, shows {shown}"
    names = [label.get_text() for label in axis.get_ticklabels()]
    yield f"    ticks {_numbers(axis.get_ticklocs())} {names if any(names) else ''}".rstrip()
    style = tick.label1
    seen = "" if style.get_visible() else "hidden, "
    yield f"    {seen}size {style.get_fontsize():g} {_colour(style.get_color())} length {tick.tick1line.get_markersize():g}{grid}"


def _legend(legend: Legend) -> Iterator[str]:
    place = legend._loc_real if hasattr(legend, "_loc_real") else legend._loc
    yield f"  legend at {place} {legend._outside_loc}, frame {legend.get_frame_on()}, columns {legend._ncols}"
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        style = _style(handle) if isinstance(handle, Line2D) else type(handle).__name__
        yield f"    {text.get_text()!r} {text.get_fontsize():g} {_colour(text.get_color())} {style}"


def _artist(artist: Artist) -> str:
    if isinstance(artist, Text):
        place = (*artist.xyann, *artist.xy) if isinstance(artist, Annotation) else artist.get_position()
        where = f"{_numbers(place)} {artist.get_ha()} {artist.get_va()} {artist.get_rotation():g}"
        return f"{artist.get_text()!r} {artist.get_fontsize():g} {artist.get_fontweight()} {_colour(artist.get_color())} {where}"
    order = f"z {artist.get_zorder():g}"
    if isinstance(artist, Line2D):
        return f"line {_pairs(artist.get_xydata())} {_style(artist)} {order} {artist.get_label()!r}"
    if isinstance(artist, AxesImage):
        colour = f"{artist.get_cmap().name} {_numbers(artist.get_clim())}"
        return f"image {colour} {_pairs(artist.get_array())} {_numbers(artist.get_extent())} {order}"
    if isinstance(artist, Collection):
        paths = [_pairs(path.vertices) for path in artist.get_paths()]
        colour = [_colour(one) for one in artist.get_edgecolor()], [_colour(one) for one in artist.get_facecolor()]
        offsets = _pairs(artist.get_offsets())
        return f"{type(artist).__name__} {paths} at {offsets} {colour} {_numbers(artist.get_linewidth())} {order}"
    assert isinstance(artist, Patch)
    corners = _pairs(artist.get_path().transformed(artist.get_patch_transform()).vertices)
    colour = f"{_colour(artist.get_facecolor())} {_colour(artist.get_edgecolor())}"
    return f"patch {corners} {colour} {artist.get_linewidth():g} {order} {artist.get_label()!r}"


def _style(line: Line2D) -> str:
    dashes = line._dash_pattern[1]
    marker = f"{line.get_marker()} {line.get_markersize():g} {_colour(line.get_markeredgecolor())}"
    faint = "" if line.get_alpha() is None else f" alpha {line.get_alpha():g}"
    drawn = line.get_linestyle() if dashes is None else f"dashes {line._dash_pattern[0]:g} {_numbers(dashes)}"
    return f"{_colour(line.get_color())} {line.get_linewidth():g} {drawn} {marker}{faint}"


def _colour(colour: Any) -> str:
    try:
        return colors.to_hex(colour, keep_alpha=True)
    except ValueError:
        return str(colour)


def _numbers(values: Any) -> str:
    return "[" + " ".join(f"{float(value) + 0:.4g}" for value in values) + "]"


def _pairs(values: Any) -> str:
    return " ".join(_numbers(row) for row in np.atleast_2d(np.ma.filled(values, np.nan)))
