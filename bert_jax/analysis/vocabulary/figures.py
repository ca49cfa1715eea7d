"""Writes the tables and figures of a vocabulary. Each figure shows the table with the same name."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import matplotlib
import matplotlib.ticker
import numpy as np
from matplotlib.figure import Figure

from bert_jax.analysis.folder import Folder
from bert_jax.analysis.vocabulary.measure import Piece, Splits, Vocabulary, groups
from bert_jax.interface.drawing import BLUE, ORANGE, new_figure
from bert_jax.interface.words import counted

FILES = (
    "vocabulary.tsv", "groups.tsv", "lengths.tsv", "lengths.png", "parameters.tsv", "parameters.png", "unseen.tsv", "splits.tsv",
    "words.txt",
)  # fmt: skip


def write_vocabulary(folder: Folder, found: Vocabulary) -> None:
    """Writes all tables and figures. unseen.tsv is written only if pieces were counted in a corpus."""
    size, tokens = len(found.pieces), found.corpus_tokens
    header = ("id", "piece", "kind", "script", "characters", "name", "count", "n")
    said = {True: "yes", False: "no", None: ""}
    pieces = (
        (p.id, p.piece, p.kind, p.script, len(p.text), said[p.is_name], "" if p.count is None else p.count, tokens or size)
        for p in found.pieces
    )
    folder.table("vocabulary.tsv", header, pieces)
    by_group = ((name, value, len(own), len(own) / size, examples(own), size) for name, value, own in groups(found))
    folder.table("groups.tsv", ("property", "value", "pieces", "share", "examples", "n"), by_group)
    whole, inside = lengths(found)
    totals = (whole.total(), inside.total())
    by_length = ((length, whole[length], inside[length], *totals) for length in range(1, max([*whole, *inside]) + 1))
    folder.table("lengths.tsv", ("characters", "begin words", "continue words", "n begin", "n continue"), by_length)
    folder.figure("lengths.png", lengths_figure(found))
    total = found.num_parameters
    arrays = ((part, name, size) for part, own in found.parameters.items() for name, size in own.items())
    by_array = ((part, name, size, size / total, total) for part, name, size in arrays)
    folder.table("parameters.tsv", ("part", "array", "parameters", "share", "n"), by_array)
    folder.figure("parameters.png", parameters_figure(found))
    if tokens is not None:
        unseen = ((p.id, p.piece, p.kind, p.script, tokens) for p in found.unseen)
        folder.table("unseen.tsv", ("id", "piece", "kind", "script", "n"), unseen)


def write_splits(folder: Folder, splits: Splits, new_words: int) -> None:
    """Writes the words that the vocabulary splits to splits.tsv. Writes the `new_words` most frequent of these words to
    words.txt, one per line, as `convert --add-tokens` reads them."""
    rows = ((one.word, " ".join(one.pieces), one.count, splits.words) for one in splits.split)
    folder.table("splits.tsv", ("word", "pieces", "count", "n"), rows)
    folder.write("words.txt", "".join(f"{one.word}\n" for one in splits.split[:new_words]).encode())


def examples(pieces: Sequence[Piece], most: int = 12) -> str:
    """Returns a few of `pieces`, evenly spaced, starting with the first."""
    step = max(1, len(pieces) // most)
    return " ".join(piece.piece for piece in pieces[::step][:most])


def lengths(found: Vocabulary) -> tuple[collections.Counter[int], collections.Counter[int]]:
    """Counts the pieces by their length in characters, separately for pieces that start words and pieces that continue them."""
    plain = [piece for piece in found.pieces if piece.kind != "reserved"]
    whole = collections.Counter(len(piece.text) for piece in plain if not piece.continues)
    return whole, collections.Counter(len(piece.text) for piece in plain if piece.continues)


def lengths_figure(found: Vocabulary) -> Figure:
    """Draws the lengths of pieces that start words and of pieces that continue them."""
    whole, inside = lengths(found)
    figure = new_figure(7.0, 3.6, f"lengths of {counted(whole.total() + inside.total(), 'piece')}")
    axes = figure.subplots()
    places = np.arange(1, max([*whole, *inside]) + 1)
    for shift, counts, name, colour in ((-0.2, whole, "begin words", BLUE), (0.2, inside, "continue words", ORANGE)):
        label = f"{name}: {sum(counts.values()):,}"
        axes.bar(places + shift, [counts[int(length)] for length in places], 0.4, label=label, color=colour)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    axes.set_xlabel("characters")
    axes.set_ylabel("pieces")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def parameters_figure(found: Vocabulary) -> Figure:
    """Draws the number of parameters of each part as a bar. The bar is divided into the arrays of the part."""
    parts = {part: arrays for part, arrays in found.parameters.items() if arrays}
    total, widest = found.num_parameters, max(sum(arrays.values()) for arrays in parts.values())
    figure = new_figure(9.0, 0.55 * len(parts) + 1.3, counted(total, "parameter"))
    axes = figure.subplots()
    shades = matplotlib.colormaps["Blues"](np.linspace(0.35, 0.85, 6))
    for row, arrays in enumerate(parts.values()):
        left = 0
        for i, (name, count) in enumerate(arrays.items()):
            axes.barh(row, count, left=left, color=shades[i % len(shades)], edgecolor="white")
            if count > 0.07 * widest:  # the bar has room for the name of the array
                axes.text(left + count / 2, row, name.replace("_embeddings", ""), ha="center", va="center", fontsize=8)
            left += count
        axes.text(left, row, f" {left:,} ({100 * left / total:.1f} %)", va="center", fontsize=8)
    axes.set_yticks(range(len(parts)), list(parts))
    axes.set_xlabel("parameters")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * widest)
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x / 1e6:g} M" if total > 1e6 else f"{x:,.0f}"))
    axes.spines[["top", "right"]].set_visible(False)
    return figure
