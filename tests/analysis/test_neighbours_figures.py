"""The tables, figures and lines of `neighbours` for made-up results."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest
from matplotlib.figure import Figure

from bert_jax.analysis.folder import Folder
from bert_jax.analysis.named_array import NamedArray
from bert_jax.analysis.neighbours.command import print_missing, print_nearest, print_pieces
from bert_jax.analysis.neighbours.figures import (
    Measure,
    draw,
    layers_figure,
    senses_figure,
    summary,
    write_neighbours,
    write_pieces,
)
from bert_jax.analysis.neighbours.measure import NearPiece, Neighbours, Occurrences, WordPieces
from tests.looked_at import assert_as_looked_at

LAYERS = [0, 2]


def vectors(sides: list[int], length: float) -> np.ndarray:
    """Returns [layer, word, 3]: vectors near the axes with these numbers, a little apart, and farther apart in the second
    layer."""
    place = np.eye(3)[sides] * length
    off = np.arange(len(sides))[:, None] ** 1.5 * np.array([0.01, 0.02, 0.03]) * length
    return np.stack([place + off, place - off[::-1] * 2]).astype(np.float32)


def array(values: np.ndarray, name: str) -> NamedArray:
    axes = {"layer": LAYERS, name: range(1, values.shape[1] + 1), "dimension": range(1, 4)}
    return NamedArray(values, axes)


MARKED = ("the [bank] of", "a [river] here", "no [bank] at all")
BANK = Occurrences(
    "bank", 9, tuple(f"bank {i}" for i in range(8)), array(vectors([0, 1, 1, 0, 1, 0, 1, 1], 2.0), "occurrence"), (0, 2)
)
RIVER = Occurrences("river", 1, ("one [river]" + " and so on" * 12,), array(vectors([1], 3.0), "occurrence"), (1,))
MISSING = Occurrences("sea", 0, (), array(np.zeros((2, 0, 3), np.float32), "occurrence"), ())
FOUND = Neighbours(
    marked=MARKED,
    vectors=array(vectors([0, 1, 0], 5.0), "marked"),
    cosines=NamedArray(
        np.array([[[0.9, 0.5], [0.75, np.nan], [0.25, 0.125]], [[0.8, 0.6], [0.375, np.nan], [0.0, -0.5]]], np.float32),
        {"layer": LAYERS, "marked": range(1, 4), "rank": [1, 2]},
    ),
    contexts={
        (s, q, r): f"{'ab'[s]} {'xyz'[q]} {r}" for s, q, r in itertools.product(range(2), range(3), range(2)) if (q, r) != (1, 1)
    },
    random=NamedArray(np.array([0.5, 0.25]), {"layer": LAYERS}),
    words=40,
    windows=3,
    occurrences=(BANK, RIVER, MISSING),
)
PIECES = [
    WordPieces("bank", ("ba", "##nk"), 1.5, (NearPiece("shore", 0.75, 2.0), NearPiece("##s", 0.5, 0.25)), 98),
    WordPieces("sea", ("sea",), 0.5, tuple(NearPiece(f"p{i}", 0.9 - i / 10, 1.0) for i in range(9)), 99),
]

TABLES = {
    "pieces.tsv": """\
word pieces norm rank piece cosine piece_norm n
bank ba_##nk 1.5 1 shore 0.75 2 98
bank ba_##nk 1.5 2 ##s 0.5 0.25 98
""",
    "neighbours.tsv": """\
marked layer rank cosine random context n
the_[bank]_of 0 1 0.9 0.5 a_x_0 40
the_[bank]_of 0 2 0.5 0.5 a_x_1 40
the_[bank]_of 2 1 0.8 0.25 b_x_0 40
the_[bank]_of 2 2 0.6 0.25 b_x_1 40
a_[river]_here 0 1 0.75 0.5 a_y_0 40
a_[river]_here 2 1 0.375 0.25 b_y_0 40
no_[bank]_at_all 0 1 0.25 0.5 a_z_0 40
no_[bank]_at_all 0 2 0.125 0.5 a_z_1 40
no_[bank]_at_all 2 1 0 0.25 b_z_0 40
no_[bank]_at_all 2 2 -0.5 0.25 b_z_1 40
""",
}


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a.astype(float) @ b / np.linalg.norm(a.astype(float)) / np.linalg.norm(b.astype(float)))


def written(folder: Folder) -> dict[str, str]:
    return {path.name: path.read_text().replace(" ", "_").replace("\t", " ") for path in folder.path.glob("*.tsv")}


@pytest.mark.usefixtures("figures")
def test_the_tables_have_every_number(tmp_path: pathlib.Path):
    write_pieces(folder := Folder(tmp_path), PIECES[:1])
    words = write_neighbours(folder, FOUND, 2)
    assert [own.word for own in words] == ["bank", "river"]
    assert [path.name for path in folder.written if path.suffix == ".png"] == ["layers.png", "senses.png"]
    tables = written(folder)
    measures, senses = ([line.split(" ") for line in tables.pop(name).splitlines()] for name in ("layers.tsv", "senses.tsv"))
    assert tables == TABLES
    expected = [["measure", "layer", "cosine", "n"]]
    labels = [2, 1, 1, 2, 1, 2, 1, 1]  # the five near the second axis are the first sense
    for s, layer in enumerate(LAYERS):
        points, marked = BANK.vectors.values[s], FOUND.vectors.values[s]
        pairs = [*itertools.combinations(range(8), 2)]
        some = {
            "any two": pairs,
            "two of the same sense": [(i, j) for i, j in pairs if labels[i] == labels[j]],
            "two of different senses": [(i, j) for i, j in pairs if labels[i] != labels[j]],
        }
        rows = [("any two words", FOUND.random.values[s], 780)]
        rows += [
            (f"bank: {name}", np.mean([cosine(points[i], points[j]) for i, j in own]), len(own)) for name, own in some.items()
        ]
        for i, text in enumerate(MARKED):
            rows.append((f"{text}: the nearest", FOUND.cosines.values[s, i, 0], 1))
            rows += [(f"{MARKED[j]} | {text}", cosine(marked[i], marked[j]), 1) for j in range(i)]
        expected += [[name.replace(" ", "_"), str(layer), f"{value:.6g}", str(n)] for name, value, n in rows]
    assert measures[0] == expected[0]
    for row, other in zip(measures[1:], expected[1:], strict=True):
        assert (row[0], row[1], row[3]) == (other[0], other[1], other[3])
        assert float(row[2]) == pytest.approx(float(other[2]), abs=2e-5)
    header, *rows = senses
    assert header == ["word", "layer", "occurrence", "sense", "x", "y", "share", "context", "n"]
    kinds = [(word, layer, number, sense, context[:8], n) for word, layer, number, sense, _, _, _, context, n in rows]
    assert kinds == [
        (word, str(layer), *rest)
        for word, number, of in (("bank", 8, labels), ("river", 1, [1]))
        for layer in LAYERS
        for rest in [
            *((str(i + 1), str(of[i]), f"bank_{i}" if word == "bank" else "one_[riv", str(number)) for i in range(number)),
            *(("", "", text.replace(" ", "_")[:8], str(number)) for text in MARKED if word in text),
        ]
    ]
    by_place = [(float(x), float(y), float(share or "nan")) for _, _, _, _, x, y, share, _, _ in rows]
    expected_places = [
        (*point, own.shares[s]) for own in words for s in range(2) for point in [*own.points[s].tolist(), *own.marked[s].tolist()]
    ]
    np.testing.assert_allclose(by_place, expected_places, rtol=1e-4, atol=1e-6)
    assert draw(FOUND, BANK, 1).senses.tolist() == [1] * 8


@pytest.mark.usefixtures("figures")
def test_words_without_a_sentence_have_no_neighbour_table_and_missing_words_no_senses(tmp_path: pathlib.Path):
    shape = (2, 0, 3)
    empty = dataclasses.replace(
        FOUND, marked=(), vectors=array(np.zeros(shape, np.float32), "marked"), contexts={}, occurrences=(MISSING,)
    )
    assert write_neighbours(folder := Folder(tmp_path), empty, 2) == []
    assert written(folder).keys() == {"layers.tsv"}


def test_the_terminal_shows_nearest_words_senses_and_missing_words(capsys: pytest.CaptureFixture[str]):
    print_pieces(PIECES)
    print_nearest(FOUND)
    for own in (BANK, RIVER, dataclasses.replace(BANK, n=8)):
        print("\n".join(summary(draw(FOUND, own, 2))))
    assert (
        print_missing(dataclasses.replace(FOUND, occurrences=(*FOUND.occurrences, dataclasses.replace(RIVER, n=0))), "x.txt") == 1
    )
    said, problems = capsys.readouterr()
    assert problems == "error: 'sea' is not in x.txt, so it has no senses; give another text or word\n"
    assert (
        said
        == f"""\
bank (ba ##nk): shore 0.750, ##s 0.500
sea: p0 0.900, p1 0.800, p2 0.700, p3 0.600, p4 0.500, p5 0.400, p6 0.300, p7 0.200
layer 2: the mean cosine of any two words is 0.250
the [bank] of
  0.800  b x 0
  0.600  b x 1
a [river] here
  0.375  b y 0
no [bank] at all
  0.000  b z 0
  -0.500  b z 1
bank: 9 occurrences, 8 of them drawn at random
  sense 1 (5): bank 4
  sense 2 (3): bank 3
river: 1 occurrence
  sense 1 (1): {RIVER.contexts[0]}
bank: 8 occurrences
  sense 1 (5): bank 4
  sense 2 (3): bank 3
"""
    )


def test_the_three_nearest_words_are_shown(capsys: pytest.CaptureFixture[str]):
    cosines = NamedArray(np.zeros((1, 1, 4), np.float32), {"layer": [0], "marked": [1], "rank": range(4)})
    contexts = {(0, 0, r): f"context {r}" for r in range(4)}
    random = NamedArray(np.array([0.5]), {"layer": [0]})
    print_nearest(dataclasses.replace(FOUND, marked=MARKED[:1], cosines=cosines, contexts=contexts, random=random))
    assert capsys.readouterr().out.count("context") == 3


def many_layers() -> Figure:
    """Returns six layers, which make two rows of panels, and twelve clusters, for which there are only ten colours."""
    values = np.repeat(FOUND.vectors.values, 3, axis=0)
    marked = NamedArray(values, {"layer": range(6), "marked": range(1, 4), "dimension": range(1, 4)})
    values = np.repeat(vectors([0, 1, 2] * 4, 2.0), 3, axis=0)
    own = NamedArray(values, {"layer": range(6), "occurrence": range(1, 13), "dimension": range(1, 4)})
    bank = dataclasses.replace(BANK, n=12, contexts=tuple(f"bank {i}" for i in range(12)), vectors=own)
    found = dataclasses.replace(FOUND, vectors=marked, random=NamedArray(np.zeros(6), {"layer": range(6)}))
    return senses_figure(found, [draw(found, bank, 12)])


MEASURES = [
    Measure("any two words", 0, 0.5, 1_770), Measure("x" * 101, 0, 0.25, 1), Measure("y" * 102, 0, 0.75, 1),
    Measure("any two words", 3, 0.25, 1_770), Measure("x" * 101, 3, 0.125, 2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("neighbours_layers", lambda: layers_figure(MEASURES)),
        ("neighbours_senses", lambda: senses_figure(FOUND, [draw(FOUND, own, 2) for own in (BANK, RIVER)])),
        ("neighbours_senses_of_six_layers", many_layers),
    ],
)
def test_every_figure_equals_its_golden_description(name: str, figure: type[Figure]):
    assert_as_looked_at(figure(), name)
