"""Made-up results of analyses, of the smallest shapes that show everything a figure can show."""

from __future__ import annotations

import dataclasses
import pathlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bert_jax.analysis.attention.figures import alignment_figure, head_figure, overview_figure
from bert_jax.analysis.attention.measure import Attention, Text, TranslationAttention
from bert_jax.analysis.compare.figures import write_comparison
from bert_jax.analysis.compare.masked import Difference, Predictions
from bert_jax.analysis.compare.measure import Comparison
from bert_jax.analysis.coreference.figures import write_coreference
from bert_jax.analysis.coreference.measure import Antecedents, Best, CoreferenceScores, Rate
from bert_jax.analysis.dependencies import measure as scores
from bert_jax.analysis.dependencies.figures import write_dependencies
from bert_jax.analysis.dependencies.measure import DIRECTIONS
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.heads.figures import tree_figure, write_heads
from bert_jax.analysis.heads.measure import STATISTICS, HeadStatistics, head_names
from bert_jax.analysis.named_array import NamedArray
from bert_jax.analysis.windows import Kind
from tests.looked_at import lines_of


class Written(Folder):
    """A folder whose figures are written as descriptions, one line per artist."""

    def figure(self, name: str, figure: Figure) -> None:
        """Writes the description of a figure."""
        self.write(name, "".join(f"{line}\n" for line in lines_of(figure)).encode())


def spread(*shape: int, by: int = 7, of: int = 101) -> np.ndarray:
    """Returns numbers from 0 to 1 such that close indices get distant values."""
    return (by * np.arange(1, np.prod(shape, dtype=int) + 1) % of / of).reshape(shape)


def _squares(count: int, others: int | None = None) -> np.ndarray:
    """Returns the squared distances of points in the plane, all different and below 0.23."""
    points = np.sqrt(spread(count + (others or 0), 2, by=17)) / 3
    first, second = (points, points) if others is None else (points[:count], points[count:])
    return ((first[:, None] - second) ** 2).sum(-1)


def head_statistics(layers: int, heads: int) -> HeadStatistics:
    statistic, distance = {"statistic": STATISTICS}, {"distance": range(-1, 2)}
    every: dict[str, Any] = {"layer": range(1, layers + 1), "head": range(1, heads + 1)}
    names = head_names(layers, heads)
    return HeadStatistics(
        statistics=NamedArray(spread(7, layers, heads), {**statistic, **every}),
        profile=NamedArray(spread(3, layers, heads, by=11), {**distance, **every}),
        uniform=NamedArray(spread(7, by=3), statistic),
        uniform_profile=NamedArray(spread(3, by=5), distance),
        n=NamedArray(np.arange(1_230, 1_237), statistic),
        n_profile=NamedArray(np.arange(40, 43), distance),
        divergence=NamedArray(_squares(len(names)), {"head": names, "other": names}),
        n_divergence=1_001,
        windows=9,
    )


def attention(words: int = 5) -> Attention:
    """Returns two layers of three heads for a pair of texts; the word "$1" has two pieces."""
    texts = ("[CLS]", "the", "$1", "[SEP]", *("b" for _ in range(words - 5)), "[SEP]")[:words]
    of_token = (0, 1, 2, *range(2, words))
    weights = spread(2, 3, words + 1, words + 1, by=37).astype(np.float32) / 15  # the largest is below 0.07
    weights[:, :, 1, 0] = 0.01
    every: dict[str, Any] = {"layer": range(1, 3), "head": range(1, 4)}
    text = Text(
        tokens=tuple(texts[word] + "#" * (i == 3) for i, word in enumerate(of_token)),
        words=texts,
        word_of_token=of_token,
        kinds=tuple(Kind.CLS if text == "[CLS]" else Kind.SEP if text == "[SEP]" else Kind.WORD for text in texts),
        segments=tuple(int(i > 3) for i in range(words)),
    )
    return Attention(
        model="work/runs/m",
        part="",
        pieces=NamedArray(weights, {**every, "from": range(words + 1), "to": range(words + 1)}),
        words=NamedArray(weights[:, :, 1:, 1:], {**every, "from": range(words), "to": range(words)}),
        rows=text,
        columns=text,
    )


def translation() -> TranslationAttention:
    """Returns two layers of three heads for a source of five words, one of them with two pieces, and a target of two words."""
    source = dataclasses.replace(attention().rows, segments=(0,) * 5)
    target = Text(("b", "##c", "$2", "</s>"), ("bc", "$2", "</s>"), (0, 0, 1, 2), (Kind.WORD, Kind.WORD, Kind.SEP), (1, 1, 1))
    every: dict[str, Any] = {"layer": range(1, 3), "head": range(1, 4)}

    def part(name: str, rows: Text, columns: Text) -> Attention:
        arrays = []
        for size in ((len(rows.tokens), len(columns.tokens)), (len(rows.words), len(columns.words))):
            weights = spread(2, 3, *size, by=41).astype(np.float32) / 15
            arrays.append(NamedArray(weights, {**every, "from": range(size[0]), "to": range(size[1])}))
        return Attention("runs/m", name, *arrays, rows, columns)

    return TranslationAttention(
        encoder=part("encoder", source, source),
        decoder=part("decoder", target, target),
        cross=part("cross", target, source),
        target="bc $2",
        is_translated=False,
    )


def comparison(own: tuple[int, int], other: tuple[int, int], predictions: Predictions | None) -> Comparison:
    """Returns a comparison of models with this many layers and heads."""
    names = [head_names(*own), head_names(*other)]
    divergence = _squares(len(names[0]), len(names[1]))
    divergence[0, 0], divergence[1, 1] = 0.25, 0.0625
    cka = spread(own[0] + 1, other[0] + 1, by=31)
    cka[0, 0] = 0.6
    layers = {"layer": range(own[0] + 1), "other": range(other[0] + 1)}
    return Comparison(
        divergence=NamedArray(divergence, {"head": names[0], "other": names[1]}),
        n_divergence=1_001,
        cka=NamedArray(cka, layers),
        biased_cka=NamedArray(spread(*cka.shape, by=43), layers),
        words=1_234,
        windows=9,
        predictions=predictions,
        missing="",
    )


PREDICTIONS = Predictions(55, 0.5, 0.4, 0.3, 0.2, 0.1, (Difference("a [b] c", "d", "e", 1.5), Difference("[f]", "g", "h", 1.25)))
OF_TWO_VOCABULARIES = Predictions(5, 0.5, 0.4, 0.3, np.nan, np.nan, ())


def dependency_scores(layers: int, heads: int, *, is_control: bool = False) -> scores.DependencyScores:
    """Returns scores of four relations: "dep" occurs only in the sentences for choosing heads, "flat" in neither part, and one
    control lacks "all"."""
    relations = ("all", "nsubj", "dep", "flat")
    n, n_choosing = np.array([1_300, 30, 0, 0]), np.array([1_100, 20, 7, 0])
    relation = {"relation": relations}
    every: dict[str, Any] = {**relation, "direction": DIRECTIONS, "layer": range(1, layers + 1), "head": range(1, heads + 1)}
    shape = (4, 2, layers, heads)
    best = [
        scores.Best(*("all", DIRECTIONS[0], 1, 2, 0.5, 0.4, 0.65, 1, 0.3, 0.05, 0.35), n=1_300, chosen_at=0.55, n_choosing=1_100),
        scores.Best(*("nsubj", DIRECTIONS[1], 2, 1, 0.7, 0.6, 0.9, -2, 0.8, -0.2, 0.1), n=30, chosen_at=0.75, n_choosing=20),
    ]
    return scores.DependencyScores(
        best=tuple(best[is_control:]),
        accuracy=NamedArray(spread(*shape), every),
        choosing=NamedArray(spread(*shape, by=13), every),
        baseline=NamedArray(spread(4, 3, by=19), {**relation, "offset": range(-1, 2)}),
        n=NamedArray(n, relation),
        n_choosing=NamedArray(n_choosing, relation),
        near=NamedArray(n // 2, relation),
        replicates=NamedArray(spread(4, 50, by=29 if is_control else 7), {**relation, "replicate": range(50)}),
        sentences=1_050,
        sentences_choosing=1_060,
        across=3,
    )


def coreference_scores() -> tuple[CoreferenceScores, CoreferenceScores]:
    """Returns (scores of five groups with mentions and two without; scores of a control that lacks one of them)."""
    groups = ("all", "pronoun", "neither", "proper", "common", "he", "it")
    names = {"document": ["a", "b"], "group": groups}
    n = np.array([[900, 30, 5, 11, 12, 0, 13], [800, 31, 6, 14, 0, 0, 15]])
    choosers = (*head_names(6, 2), "nearest", "same")
    right = (spread(2, 7, len(choosers)) * n[:, :, None]).astype(int)
    found = Antecedents(
        right=NamedArray(right, {**names, "chooser": choosers}),
        n=NamedArray(n, names),
        outside=NamedArray(n // 3, names),
        attention=None,
        heads=12,
        windows=4,
    )

    def rate(chooser: str, accuracy: float, at: float = 0.5) -> Rate:
        return Rate(chooser, accuracy, accuracy - 0.04, accuracy + 0.05, 0.01, -0.02, 0.03, at)

    first = Best("all", rate("1-2", 0.6), (rate("nearest", 0.3), rate("same", 0.4)), 1_700, 2, 1_600, 17, 0.25)
    second = Best("pronoun", rate("6-1", 0.1), (rate("nearest", 0.7), rate("same", 0.05)), 61, 2, 60, 0)
    control = Best("pronoun", rate("3-2", 0.08, 0.09), (rate("nearest", 0.7), rate("same", 0.05)), 62, 2, 59, 1)
    return CoreferenceScores((first, second), found, found), CoreferenceScores((control,), found, found)


def _write_attention(folder: Folder) -> None:
    found = attention()
    folder.figure("overview.png", overview_figure(found))
    folder.figure("head of words.png", head_figure(found, 2, 3))
    folder.figure("head of pieces.png", head_figure(found, 1, 2, in_words=False))
    folder.figure("overview of pieces.png", overview_figure(found, in_words=False))


def _write_translation(folder: Folder) -> None:
    found = translation()
    folder.figure("overview.png", overview_figure(found.cross))
    folder.figure("head of words.png", head_figure(found.cross, 2, 3))
    folder.figure("head of pieces.png", head_figure(found.encoder, 1, 2, in_words=False))
    folder.figure("alignment.png", alignment_figure(found, found.alignment(2)))


def _write_heads(folder: Folder) -> None:
    write_heads(folder, head_statistics(6, 2))
    folder.figure("tree of many.png", tree_figure(head_statistics(3, 11)))


def _write_coreference(folder: Folder) -> None:
    found, control = coreference_scores()
    write_coreference(folder, found, {"random-weights": control})


WRITES: dict[str, Callable[[Folder], None]] = {
    "attention": _write_attention,
    "attention_of_a_translator": _write_translation,
    "heads": _write_heads,
    "heads_of_one": lambda folder: write_heads(folder, head_statistics(1, 1)),
    "comparison": lambda folder: write_comparison(folder, comparison((2, 3), (2, 3), PREDICTIONS)),
    "comparison_of_shapes": lambda folder: write_comparison(folder, comparison((2, 1), (1, 3), OF_TWO_VOCABULARIES)),
    "dependencies": lambda folder: write_dependencies(
        folder, dependency_scores(4, 7), {"permuted-heads": dependency_scores(1, 2, is_control=True)}, least=30
    ),
    "dependencies_that_are_rare": lambda folder: write_dependencies(folder, dependency_scores(1, 2), {}, least=1_301),
    "coreference": _write_coreference,
}
"""The arguments of the writers of tables and figures, by the name of the golden file."""
ROWS = 24
"""A longer table is shown by its first rows, and a sum over all of them."""


def written(name: str, directory: pathlib.Path) -> list[str]:
    """Returns the lines that a writer in WRITES writes, one file after the other."""
    folder = Written(directory)
    WRITES[name](folder)
    return [line for path in folder.written for line in [f"==== {path.name}", *_shown(path.name, path.read_text())]]


def _shown(name: str, text: str) -> list[str]:
    lines = text.splitlines()
    if name.endswith(".png") or len(lines) <= ROWS:
        return lines
    return [*lines[:ROWS], f"... {len(lines)} lines, crc32 {zlib.crc32(text.encode())}"]
