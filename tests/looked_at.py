"""Describes the data of figures line by line: names, numbers and their axes, to be compared with a description that somebody has
looked at.

Sizes, fonts and colours carry no information and are left out. Nothing is laid out or rendered, so comparing a figure takes a few
milliseconds.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import Collection, LineCollection
from matplotlib.figure import Figure, FigureBase
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator

GOLDEN = pathlib.Path(__file__).parent / "golden" / "figures"
PINNED = re.search(r"^matplotlib==(\S+)", (pathlib.Path(__file__).parents[1] / "requirements.txt").read_text(), re.MULTILINE)


def assert_as_looked_at(figure: Figure, name: str) -> None:
    """Fails if the figure differs from golden/figures/NAME.txt, which describes it as the pinned matplotlib draws it.

    After an intended change: look at the figure, remove the file, run the test twice, and read the difference.
    """
    assert_lines_as_looked_at(lines_of(figure), name)


def assert_lines_as_looked_at(found: list[str], name: str) -> None:
    """Fails if these lines, e.g. of a terminal, differ from golden/figures/NAME.txt."""
    path = GOLDEN / f"{name}.txt"
    if not path.exists():
        path.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
        pytest.fail(f"{path} is made anew: look at what it describes, and run this again")
    assert found == path.read_text(encoding="utf-8").splitlines(), f"differs from {path.name} (see {__name__})"


def lines_of(figure: Figure) -> list[str]:
    """Returns the lines of a figure. Skips the test under another version of matplotlib, whose ticks and defaults may differ."""
    assert PINNED
    if matplotlib.__version__ != PINNED[1]:
        pytest.skip(f"figures are described as matplotlib {PINNED[1]} makes them; this is {matplotlib.__version__}")
    return list(described(figure))


def described(figure: FigureBase) -> Iterator[str]:
    """Yields the lines of a figure and of everything in it."""
    for name, text in (("title", figure._suptitle), ("x", figure._supxlabel), ("y", figure._supylabel)):
        if text is not None:
            yield f"{name} {text.get_text()!r}"
    for legend in figure.legends:
        yield f"legend {[text.get_text() for text in legend.get_texts()]}"
    for axes in figure.axes if not figure.subfigs else ():
        yield from _axes(axes)
    for part in figure.subfigs:
        yield "part"
        yield from described(part)


def _axes(axes: Axes) -> Iterator[str]:
    title = axes.get_title("left") or axes.get_title()
    if axes.get_label() == "<colorbar>":
        yield f"colours {axes.get_ylabel()!r} {_numbers(axes.get_ylim())}"
        return
    if axes.axison:
        named = [("x", axes.xaxis, axes.get_xlim()), ("y", axes.yaxis, axes.get_ylim())]
        sides = [f"{name} {axis.label.get_text()!r} {axis.get_scale()} {_numbers(limits)}" for name, axis, limits in named]
        yield f"axes {title!r}, {', '.join(sides)}"
        for name, axis, _ in named:
            names = [label.get_text() for label in axis.get_ticklabels()]
            if isinstance(axis.get_major_locator(), FixedLocator) and any(names):
                yield f"  {name} names {dict(zip(axis.get_ticklocs().tolist(), names, strict=False))}"
    elif axes.get_children():
        yield f"no axes {title!r}"
    if legend := axes.get_legend():
        yield f"  legend {[text.get_text() for text in legend.get_texts()]}"
    yield from (f"  line {_label(line)}{_pairs(line.get_xydata())}" for line in axes.lines)
    for image in axes.images:
        yield f"  image {_numbers(image.get_clim())} {_pairs(image.get_array())}"
    for patch in axes.patches:
        if isinstance(patch, Rectangle):
            yield f"  bar {_label(patch)}{_numbers((*patch.get_xy(), patch.get_width(), patch.get_height()))}"
        else:
            yield f"  patch {_label(patch)}{_pairs(patch.get_path().transformed(patch.get_patch_transform()).vertices)}"
    for group in axes.collections:
        yield f"  {type(group).__name__} {_label(group)}{_of_group(group)}"
    yield from (f"  text {text.get_text()!r} {_numbers(text.get_position())}" for text in axes.texts if text.get_text())


def _of_group(group: Collection) -> str:
    if isinstance(group, LineCollection):
        return " | ".join(_pairs(segment) for segment in group.get_segments())
    return " | ".join(_pairs(path.vertices) for path in group.get_paths()) + f" at {_pairs(group.get_offsets())}"


def _label(artist: Any) -> str:
    label = str(artist.get_label())
    return "" if label.startswith("_") else f"{label!r} "


def _numbers(values: Any) -> str:
    return "[" + " ".join(f"{float(value) + 0:.4g}" for value in values) + "]"


def _pairs(values: Any) -> str:
    return " ".join(_numbers(row) for row in np.atleast_2d(np.ma.filled(values, np.nan)))
