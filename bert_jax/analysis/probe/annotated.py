"""CoNLL-U or CoNLL files -> sentences with labels and trees, spread evenly over the file."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from bert_jax.analysis.treebank import Treebank
from bert_jax.errors import UserError, missing_path
from bert_jax.storage.formats import bare_name
from bert_jax.tasks.readers.conll import read_conll
from bert_jax.tasks.readers.conllu import Sentence

NO_LABEL = "_"
TAG = "tag"
"""The name of the labels of a CoNLL file."""


@dataclasses.dataclass(frozen=True)
class Annotated:
    """A sentence: its words, and a label for each word by the name of the kind of label."""

    words: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]]
    """"upos", "xpos" and "relation" of CoNLL-U, or "tag"; NO_LABEL where a word has none."""
    heads: tuple[int, ...] = ()
    """For each word the number of its head, from 0; -1 for the root. Empty where the file gives no tree with one root."""
    punctuation: tuple[bool, ...] = ()
    """For each word whether its universal part of speech is PUNCT; empty without heads."""


class AnnotatedFile:
    """The sentences of a CoNLL-U file (named .conllu, compressed or not), else of a CoNLL file with a tag in one column.

    Each iteration reads a CoNLL-U file anew; a CoNLL file is in memory. A sentence of CoNLL-U that cannot be read is told to
    `report` (default: standard error), counted in `failed` and left out. Raises UserError for a file that cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], column: int = -1, report: Callable[[str], object] | None = None):
        self.path = os.fspath(path)
        try:
            with pathlib.Path(self.path).open("rb") as file:
                self.file = os.fstat(file.fileno())
        except OSError as error:
            reason = f"{missing_path(self.path)} cannot be read: {error.strerror}"
            raise UserError(f"{reason}; name a CoNLL-U or a CoNLL file that you may read") from error
        self._treebank = Treebank(path, report=report) if is_conllu(self.path) else None
        self._tagged = [] if self._treebank else read_conll(path, tag=column)

    def __iter__(self) -> Iterator[Annotated]:
        if self._treebank is not None:
            yield from map(annotated, self._treebank)
        for sentence in self._tagged:
            yield Annotated(sentence.words, {TAG: sentence.labels or ()})

    @property
    def failed(self) -> int:
        """The number of sentences that could not be read so far."""
        return self._treebank.failed if self._treebank else 0


def is_conllu(path: str) -> bool:
    """Whether the name is that of a CoNLL-U file."""
    return bare_name(pathlib.Path(path).name).endswith(".conllu")


def annotated(sentence: Sentence) -> Annotated:
    """The labels and the tree of a sentence of CoNLL-U; no tree where several words are roots."""
    labels = {"upos": sentence.upos, "xpos": sentence.xpos, "relation": sentence.relations}
    if sentence.heads.count(-1) != 1:
        return Annotated(sentence.words, labels)
    return Annotated(sentence.words, labels, sentence.heads, tuple(upos == "PUNCT" for upos in sentence.upos))


def spread(sentences: Iterable[Annotated], words: int) -> Iterator[Annotated]:
    """Sentences evenly spread over `sentences`, which are iterated over twice, of at most `words` words together; all of them if
    they have no more. Long sentences are as likely as short ones."""
    total = sum(len(sentence.words) for sentence in sentences)
    share, taken = min(words, total), 0
    for i, sentence in enumerate(sentences):
        if (i + 1) * share // total > i * share // total:
            taken += len(sentence.words)
            if taken > words:
                return
            yield sentence
