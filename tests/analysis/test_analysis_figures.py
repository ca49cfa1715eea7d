"""Tables and figures of made-up results."""

from __future__ import annotations

import argparse
import dataclasses
import itertools

import numpy as np
import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

from bert_jax.analysis.attention.figures import alignment_figure, head_figure
from bert_jax.analysis.command import open_folder
from bert_jax.analysis.compare.figures import divergences_figure, write_comparison
from bert_jax.analysis.dependencies.figures import dependencies_figure
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.heads.figures import plane_figure, tree_figure, write_heads
from bert_jax.analysis.neighbours.figures import Measure, layers_figure
from bert_jax.errors import UserError
from bert_jax.interface.drawing import name_points, rendered
from tests.analysis.made_up import WRITES, attention, comparison, dependency_scores, head_statistics, translation, written
from tests.looked_at import assert_lines_as_looked_at


@pytest.mark.parametrize("name", WRITES)
def test_tables_and_figures_equal_the_golden_descriptions(name, tmp_path):
    assert_lines_as_looked_at(written(name, tmp_path), name)


class Renamed(Folder):
    """A folder in which every text of a figure is replaced before it is drawn."""

    text = "_$x^{$日本\0\ud800"

    def figure(self, name: str, figure: Figure) -> None:
        for axis in figure.findobj(Axis):
            axis.set_ticks(axis.get_ticklocs(), [self.text] * len(axis.get_ticklocs()))
        for text in figure.findobj(Text):
            text.set_text(self.text)
        super().figure(name, figure)


def test_figures_are_drawn_with_any_texts(tmp_path):
    folder = Renamed(tmp_path)
    WRITES["dependencies"](folder)
    folder.figure("alignment.png", alignment_figure(translation(), translation().alignment(2)))
    assert all(path.stat().st_size for path in folder.written)


def test_relations_and_words_of_any_characters_are_drawn(tmp_path):
    relation = r"nsubj:$x^{$日本$\frac{"
    found = dependency_scores(2, 2)
    best = tuple(dataclasses.replace(each, relation=relation) for each in found.best)
    axes = {name: (relation, *labels[1:]) if name == "relation" else labels for name, labels in found.accuracy.axes.items()}
    accuracy = dataclasses.replace(found.accuracy, axes=axes)
    (tmp_path / "a.png").write_bytes(rendered(dependencies_figure(dataclasses.replace(found, best=best, accuracy=accuracy), 1)))
    text = dataclasses.replace(attention().rows, words=(relation,) * 5)
    words = dataclasses.replace(attention(), rows=text, columns=text)
    for figure in (head_figure(words, 1, 1), cosines_figure_of(relation)):
        assert len(rendered(figure, tight=True)) > 1_000


def cosines_figure_of(word: str) -> Figure:
    """Draws the cosines of a word in context."""
    return layers_figure([Measure(f"{word}: any two", layer, 0.5, 3) for layer in range(3)])


def test_figures_are_written_in_the_requested_formats_with_the_name_of_the_model(tmp_path):
    flags = argparse.Namespace(model="m" * 100, output=tmp_path, format=("svg", "html", "pdf"))
    folder = open_folder(flags, (), (), "other")
    assert folder.caption == f"…{'m' * 60} | other"
    assert open_folder(argparse.Namespace(**{**vars(flags), "model": "m" * 60}), ()).caption == "m" * 60
    folder.figure("tree.png", tree_figure(head_statistics(2, 2)))
    assert [path.name for path in folder.written] == ["tree.svg", "tree.pdf"]
    assert (tmp_path / "tree.pdf").read_bytes().startswith(b"%PDF")


def test_an_unsupported_figure_format_is_refused_before_measuring(tmp_path):
    (tmp_path / "tree.pdf").mkdir()
    Folder(tmp_path, ("tree.png", "tree.tsv"))
    with pytest.raises(UserError, match=r"tree.pdf cannot be written: Is a directory"):
        Folder(tmp_path, ("tree.png", "tree.tsv"), formats=("png", "pdf"))


def test_the_colours_of_layers_have_a_legend():
    for figure in (tree_figure(head_statistics(3, 2)), plane_figure(head_statistics(3, 2))):
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["layer 1", "layer 2", "layer 3"]
        colours = [dot.get_color() for dot in legend.legend_handles]
        assert len({*colours}) == 3


def test_point_labels_overlap_neither_each_other_nor_points():
    """This holds even if many points are at one place, as with equal heads."""
    crowd = np.random.default_rng(0).normal(0, [[0.3]] * 50 + [[1e-3]] * 60, (110, 2))
    figure = Figure(figsize=(5.0, 4.0), layout="constrained", dpi=120)
    axes = figure.subplots()
    axes.plot(*crowd.T, "o", markersize=5)
    name_points(axes, crowd, [f"{i // 12}-{i % 12}" for i in range(110)], ["black"] * 110)
    figure.draw_without_rendering()
    names = [text for text in axes.texts if text.get_text()]
    boxes = [Text.get_window_extent(text) for text in names]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    dots = axes.transData.transform(crowd)
    assert not any(box.contains(*dot) for box in boxes for dot in dots)
    assert all(axes.bbox.containsx(x) and axes.bbox.containsy(y) for box in boxes for x, y in (box.min, box.max))
    assert 50 < len(names) < 110, "names without a free place are left out"
    apart = figure.subplots()
    name_points(apart, np.array([[0.0, 0.0], [1.0, 1.0]]), ["a", "b"], ["black"] * 2)
    assert [text.get_text() for text in apart.texts] == ["a", "b"], "only a name that is farther away has a line to its point"


def test_no_files_are_written_for_missing_measurements(tmp_path):
    tables = {"heads", "distances"}
    for heads, n, further in ((2, 1, {"divergences", "tree", "plane"}), (2, 0, set()), (1, 1, set())):
        folder = Undrawn(tmp_path / f"{heads} {n}")
        write_heads(folder, dataclasses.replace(head_statistics(1, heads), n_divergence=n))
        assert {path.stem for path in folder.written} == tables | further
    folder = Undrawn(tmp_path / "compared")
    write_comparison(folder, dataclasses.replace(comparison((1, 2), (1, 2), None), n_divergence=0))
    assert [path.name for path in folder.written] == ["layers.tsv", "layers.png"]


class Undrawn(Folder):
    """A folder that writes only the number of axes of each figure."""

    def figure(self, name: str, figure: Figure) -> None:
        self.write(name, bytes(len(figure.axes)))


@pytest.mark.parametrize(
    ("words", "side", "size"),
    [(9, 3.6, 8), (13, 3.8, 8), (40, 9.2, 8), (41, 9.4, 6), (80, 14.0, 6)],
)
def test_more_words_give_a_larger_figure_with_smaller_letters(words, side, size):
    figure = head_figure(attention(words), 1, 1)
    np.testing.assert_allclose(figure.get_size_inches(), (1.75 * side, side + 0.4))
    lines, heat_map, _ = figure.axes
    assert {text.get_fontsize() for text in lines.texts} == {size}
    assert len(lines.texts) == 2 * len(heat_map.get_xticklabels()) == 2 * words
    assert {tick.get_fontsize() for tick in heat_map.get_xticklabels()} == {size if words <= 40 else 5}


@pytest.mark.parametrize(("words", "step"), [(81, 1), (199, 1), (200, 2)])
def test_a_head_with_too_many_words_for_lines_is_a_map_with_at_most_200_labels(words, step):
    figure = head_figure(attention(words), 1, 1)
    np.testing.assert_allclose(figure.get_size_inches(), (14.0, 14.4))
    heat_map, _ = figure.axes
    assert heat_map.get_xticks().tolist() == heat_map.get_yticks().tolist() == list(range(0, words, step))


def test_the_accuracy_of_a_head_that_its_dependents_do_not_attend_to_is_a_square():
    lines = dependencies_figure(dependency_scores(4, 7), 30).axes[1].lines
    assert [line.get_marker() for line in lines if line.get_marker() in "os"] == ["o", "s"]


def test_more_than_40_heads_are_labelled_only_by_the_first_of_each_layer():
    axes = divergences_figure(comparison((4, 10), (3, 14), None)).axes[0]
    assert len(axes.get_yticks()) == 40
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1-1", "2-1", "3-1"]
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0}
    axes = divergences_figure(comparison((1, 41), (4, 10), None)).axes[0]
    assert ([label.get_text() for label in axes.get_yticklabels()], len(axes.get_xticks())) == (["1-1"], 40)
