"""Figures are written as files, whatever texts they contain."""

from __future__ import annotations

import pathlib
import re
import warnings
import xml.dom.minidom
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from bert_jax.interface.drawing import LONGEST, label, plain, rendered
from bert_jax.interface.flags import FIGURE_FORMATS
from bert_jax.training.curves import draw_sweep, draw_task_curves

HOSTILE = [
    "$x^{$", "$5 and $10", r"a_b^c\frac{}", "{", r"\$", "%", "日本語", "😀", "אב", "a\0b\x01\x1b[31m", "\t", "\ud800", "\ufffe",
    "-->", "_hidden", "<b>&", "x" * 100_000,
]  # fmt: skip


def figure_of(*texts: str) -> Figure:
    """Returns a figure with texts in all possible places."""
    figure = Figure(layout="constrained")
    figure.suptitle("\n".join(texts))
    figure.supxlabel(texts[0])
    left, right = figure.subplots(1, 2)
    left.set_title(texts[0])
    left.set_xticks(range(len(texts)), texts)
    for i, text in enumerate(texts):
        left.plot([0, i], [1, 2], label=label(text))
        left.annotate(text, (i, 1))
    left.legend()
    right.barh([text[:50] for text in texts], range(len(texts)))
    figure.colorbar(right.imshow(np.eye(2)), ax=right, label=texts[0])
    return figure


@pytest.mark.parametrize("form", FIGURE_FORMATS)
def test_a_figure_can_show_any_text(form: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = rendered(figure_of(*HOSTILE), form, tight=form != "png")
    assert len(drawn) > 1_000
    assert drawn.startswith({"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[form])
    if form == "svg":
        xml.dom.minidom.parseString(drawn)


def test_texts_are_drawn_literally_not_as_mathematics():
    figure = Figure()
    drawn = [figure.text(0.5, 0.5, text) for text in ("$a_b$", r"\$", "a" * (LONGEST + 1), "b\0", "c" * LONGEST)]
    rendered(figure)
    assert [text.get_text() for text in drawn] == ["$a_b$", r"\$", "a" * (LONGEST - 1) + "…", "b\ufffd", "c" * LONGEST]
    assert not any(text.get_parse_math() for text in drawn)
    assert LONGEST == 200
    widths = [text.get_window_extent().width for text in (figure.text(0, 0, "$a$", parse_math=False), drawn[0])]
    assert widths[1] > widths[0]  # "_b" is drawn too, in the size of the other letters


def test_tick_labels_made_while_drawing_are_not_mathematics():
    figure = Figure()
    axes = figure.subplots()
    axes.barh(["$a_b$", "c"], [1, 2])
    rendered(figure)
    assert [(tick.get_text(), tick.get_parse_math()) for tick in axes.get_yticklabels()] == [("$a_b$", False), ("c", False)]


def test_a_caption_is_drawn_once_for_all_formats():
    figure = Figure(layout="constrained")
    for form in FIGURE_FORMATS:
        rendered(figure, form, tight=True, caption="runs/$m_1")
    assert [text.get_text() for text in figure.texts].count("runs/$m_1") == 1


def test_an_image_has_the_size_of_its_figure_unless_it_is_cropped():
    figure = Figure(figsize=(2, 1), dpi=100)
    figure.text(0.5, 0.5, "a")
    whole, cropped = (rendered(figure, tight=tight) for tight in (False, True))
    sizes = [[int.from_bytes(image[at : at + 4], "big") for at in (16, 20)] for image in (whole, cropped, rendered(figure))]
    assert sizes[0] == sizes[2] == [200, 100]
    assert sizes[1][0] < 100


def test_equal_figures_are_equal_files():
    def drawn(form: str) -> bytes:
        figure = Figure(figsize=(2, 1))
        figure.subplots().plot([0, 1], marker="o", label="a")
        figure.legend()
        return rendered(figure, form)

    for form in ("png", "svg"):
        assert drawn(form) == drawn(form)


def test_a_short_text_is_not_changed():
    assert plain("a line\nand another, in 日本語") == "a line\nand another, in 日本語"
    assert (label("a_b"), label("_b").strip()) == ("a_b", "_b")


def test_curves_and_sweeps_are_drawn_with_any_names(tmp_path: pathlib.Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.0, "dev/f1": 0.5}\n')
    names = [text[:500] for text in HOSTILE]
    baselines = dict.fromkeys(names, 0.25)
    title = " ".join(names)
    draw_task_curves(tmp_path / "metrics.jsonl", tmp_path / "a.png", title=title, metric="dev/$x^{$", baselines=baselines)
    draw_sweep(tmp_path / "b.png", title=title, metric="dev/f1", settings=[(n, [0.5]) for n in names], baselines=baselines)
    assert all((tmp_path / name).stat().st_size > 1_000 for name in ("a.png", "b.png"))


def test_curves_are_drawn_in_each_of_the_formats(tmp_path: pathlib.Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.0, "dev/f1": 0.5}\n')
    shown: dict[str, Any] = {"title": "a run", "metric": "dev/f1", "baselines": {}}
    draw_task_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png", **shown, formats=("svg", "png"))
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "curves.svg", "curves.png"}
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    xml.dom.minidom.parse(str(tmp_path / "curves.svg"))


def test_figures_are_written_in_one_module():
    package = pathlib.Path(__file__).parents[2] / "bert_jax"
    found = [path for path in package.rglob("*.py") if re.search(r"savefig\(|print_png", path.read_text())]
    assert found == [package / "interface" / "drawing.py"]
