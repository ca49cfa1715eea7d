"""Analyser: the measurements of this folder, called from Python on a loaded model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from bert_jax.analysis.attention.measure import (
    Attention,
    TranslationAttention,
    read_attention,
    read_translation_attention,
)
from bert_jax.analysis.compare.aligned import paired_windows
from bert_jax.analysis.compare.flags import Comparing
from bert_jax.analysis.compare.measure import Comparison, compare_models
from bert_jax.analysis.coreference.flags import Coreference
from bert_jax.analysis.coreference.measure import CoreferenceScores, score_coreference
from bert_jax.analysis.coreference.readers import open_texts
from bert_jax.analysis.dependencies.flags import Dependencies
from bert_jax.analysis.dependencies.measure import DependencyScores, score_dependencies
from bert_jax.analysis.heads.flags import Heads
from bert_jax.analysis.heads.measure import HeadStatistics, measure_heads
from bert_jax.analysis.neighbours.flags import Neighbouring
from bert_jax.analysis.neighbours.measure import Neighbours, WordPieces, find_neighbours, nearest_pieces
from bert_jax.analysis.probe.annotated import AnnotatedFile
from bert_jax.analysis.probe.flags import Probing
from bert_jax.analysis.probe.measure import Probes, measure_probes, silent_stage
from bert_jax.analysis.reading import Note, Show, Treebank, in_silence, line_progress, progress_through, stage_progress
from bert_jax.analysis.vocabulary.measure import Vocabulary, read_vocabulary
from bert_jax.analysis.windows import Window, read_window, read_windows
from bert_jax.errors import UserError
from bert_jax.interop.conversion import load_model
from bert_jax.prediction.engine import Engine

MOST_TOKENS = 4096
"""Maximum number of tokens in a batch per device. It is low because the maps of all layers and heads are in memory at once."""


class Analyser:
    """A loaded model, analysed on all devices of this machine.

    The results are arrays with named axes (`NamedArray`). The `figures.py` of each folder draws the results as matplotlib
    figures, and `attention.page.attention_page` turns a list of `Attention` into an HTML page.

    If `show_progress` is True, the progress is printed to standard error, with the remaining time if the total is known. Texts
    may be any iterable and are read one by one.

    >>> analyser = Analyser.load("runs/quickstart/model")
    >>> analyser.attention("The cat sat on the mat.").words.sel(layer=1, head=2).values     # float32 [from, to]
    >>> found = analyser.heads(open("texts.txt"))
    >>> found.statistics.sel(statistic="previous", layer=2, head=1).values
    """

    def __init__(self, engine: Engine, *, show_progress: bool = False):
        engine.tokens = min(engine.tokens, MOST_TOKENS)
        self.engine = engine
        self.show_progress = show_progress

    @classmethod
    def load(cls, model: str | os.PathLike[str], *, show_progress: bool = False) -> Analyser:
        """Loads a Hugging Face directory, an original checkpoint, a workdir or a model from the hub. Raises UserError for
        anything else."""
        return cls(Engine(load_model(model)), show_progress=show_progress)

    def heads(self, texts: Iterable[str], **options: Any) -> HeadStatistics:
        """Returns the statistics of all heads over texts of any number and length. `options` are the fields of `Heads`.

        Texts without tokens are left out. Raises UserError if no text has tokens.
        """
        with self._reading(texts) as (read, say):
            return measure_heads(self.engine, self._windows(read), Heads(**options), say)

    def neighbours(self, words: Sequence[str], texts: Iterable[str], **options: Any) -> Neighbours:
        """Returns the words of `texts` that are nearest to words in context, such as "the [bank] of the river". Also returns
        all occurrences of `words` in these texts. See `find_neighbours`. `options` are the fields of `Neighbouring`."""
        with self._reading(texts) as (read, say):
            return find_neighbours(self.engine, words, self._windows(read), Neighbouring(**options), say)

    def nearest_pieces(self, words: Sequence[str], count: int = 10) -> list[WordPieces]:
        """Returns the pieces nearest to each word by the cosine of their input embeddings. See `neighbours/measure.py`."""
        return nearest_pieces(self.engine.model, words, count)

    def attention(self, text: str, text_b: str | None = None) -> Attention:
        """Returns the attention weights of all layers and heads for a text, or for a pair.

        Raises UserError if a text has no tokens, or if the texts have more tokens than the position table.
        """
        return read_attention(self.engine, read_window(self.engine, text, text_b))

    def translation_attention(self, source: str, target: str | None = None) -> TranslationAttention:
        """Returns the attention weights of an encoder-decoder for a source and a target. See `read_translation_attention`.
        Without a target, the model translates the source."""
        return read_translation_attention(self.engine, source, target)

    def dependencies(
        self, treebank: str | os.PathLike[str], choose: str | os.PathLike[str] | None = None, **options: Any
    ) -> DependencyScores:
        """Returns the heads that find the relations of a CoNLL-U file. `options` are the fields of `Dependencies`.

        Heads and offsets are chosen on the treebank `choose`. If `choose` is None, they are chosen on every other sentence of
        `treebank`, starting with the first. Raises UserError if a file has no sentence with a tree.
        """
        reported = Treebank(treebank, needs_heads=True)
        choosing = None if choose is None else Treebank(choose, needs_heads=True)
        return score_dependencies(self.engine, reported, choosing, Dependencies(**options), self._show)

    def coreference(
        self, path: str | os.PathLike[str], choose: str | os.PathLike[str] | None = None, **options: Any
    ) -> CoreferenceScores:
        """Returns the heads that find the antecedents of mentions in a file of CoNLL-U with `Entity=`, CoNLL-2012 or GAP.
        `options` are the fields of `Coreference`.

        Heads are chosen on the file `choose`. If `choose` is None, they are chosen on every other document of `path`, starting
        with the first. Raises UserError if no mention in a file has an antecedent.
        """
        choosing = None if choose is None else open_texts(choose)
        return score_coreference(self.engine, open_texts(path), choosing, Coreference(**options), self._show)

    def probes(
        self, training: str | os.PathLike[str], evaluation: str | os.PathLike[str], column: int = -1, **options: Any
    ) -> Probes:
        """Trains probes of labels, trees and heads on one file of annotated words and scores them on another file. `options`
        are the fields of `Probing`.

        The files are CoNLL-U (.conllu), or CoNLL with tags in `column`. Raises UserError if a file cannot be read, or lacks the
        annotation that the probes need.
        """
        files = AnnotatedFile(training, column), AnnotatedFile(evaluation, column)
        progress = stage_progress if self.show_progress else silent_stage
        return measure_probes(self.engine, *files, Probing(**options), progress)

    def vocabulary(
        self,
        corpus: str | os.PathLike[str] | None = None,
        names: Collection[str] | None = None,
        *,
        with_splits: bool = False,
    ) -> Vocabulary:
        """Returns the pieces of the vocabulary and the parameters of the model. See `read_vocabulary`."""
        directory = None if corpus is None else os.fspath(corpus)
        return read_vocabulary(self.engine.model, directory, names, with_splits=with_splits)

    def compare(self, other: Analyser, texts: Iterable[str], **options: Any) -> Comparison:
        """Returns the differences between this model and the model of `other` on the words of `texts`. See `compare_models`.
        `options` are the fields of `Comparing`."""
        with self._reading(texts) as (read, say):
            pairs = (
                pair
                for text in read
                if self.engine.model.tokenizer.encode(text)
                for pair in paired_windows(self.engine, other.engine, text)
            )
            return compare_models(self.engine, other.engine, pairs, Comparing(**options), say)

    def _windows(self, texts: Iterable[str]) -> Iterator[Window]:
        for text in texts:
            if self.engine.model.tokenizer.encode(text):
                yield from read_windows(self.engine, text)

    @property
    def _show(self) -> Show:
        return line_progress if self.show_progress else in_silence

    @contextlib.contextmanager
    def _reading(self, texts: Iterable[str]) -> Iterator[tuple[Iterable[str], Note]]:
        """Yields `texts` and a function that receives progress messages. Raises UserError if `texts` is a string, which would
        be read as a list of characters."""
        if isinstance(texts, str):
            raise UserError("texts is one text, not a list of texts; give [text]")
        if self.show_progress:
            with progress_through(texts) as reading:
                yield reading
        else:
            yield texts, lambda note: None
