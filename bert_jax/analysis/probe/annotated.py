"""Reads CoNLL-U or CoNLL files as sentences with labels and trees, and picks sentences that are evenly spread over a file."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int32

from bert_jax.analysis.reading import Treebank
from bert_jax.errors import UserError, missing_path
from bert_jax.storage.fetching import fetched
from bert_jax.storage.formats import bare_name
from bert_jax.tasks.readers.conll import column_instead_of_words, conll_width, read_conll
from bert_jax.tasks.readers.conllu import CONLLU, Sentence

NO_LABEL = "_"
TAG = "tag"
"""The name of the labels of a CoNLL file."""


@dataclasses.dataclass(frozen=True)
class Annotated:
    """A sentence with its words, and with a label of each kind for each word."""

    words: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]]
    """The kinds are "upos", "xpos" and "relation" for CoNLL-U, and "tag" for CoNLL. Words without a label have NO_LABEL."""
    heads: tuple[int, ...] = ()
    """For each word, the index of its head; -1 for the root. Empty if the sentence has no tree with exactly one root."""
    punctuation: tuple[bool, ...] = ()
    """For each word, whether its universal part of speech is PUNCT. Empty if `heads` is empty."""


class AnnotatedFile:
    """The sentences of a file. If the name of the file ends in .conllu (possibly compressed), the file is read as CoNLL-U.
    Other files are read as CoNLL with a tag in one column.

    A CoNLL-U file is read again in each iteration. A CoNLL file is held in memory. A CoNLL-U sentence that cannot be read is
    reported to `report` (default: standard error), counted in `failed` and left out. Raises UserError if the file cannot be
    read.
    """

    def __init__(self, path: str | os.PathLike[str], column: int = -1, report: Callable[[str], object] | None = None):
        self.path = os.fspath(path)
        """The path as it was given; it may be in a bucket."""
        local = fetched(path, "--input")
        try:
            with local.open("rb") as file:
                self.file = os.fstat(file.fileno())
        except OSError as error:
            reason = f"{missing_path(self.path)} cannot be read: {error.strerror}"
            raise UserError(f"{reason}; name a CoNLL-U or CoNLL file that you have permission to read") from error
        self._treebank = Treebank(path, report=report) if is_conllu(self.path) else None
        self._tagged = [] if self._treebank else read_conll(local, tag=column)
        if self._tagged and (fault := column_instead_of_words(self._tagged, conll_width(local))):
            raise UserError(
                f"{self.path}: {fault[0]}; give a file whose first column has the words, or the treebank itself with a name that "
                "ends in .conllu"
            )

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
    """Returns whether `path` is the name of a CoNLL-U file, possibly compressed."""
    return bare_name(pathlib.Path(path).name).endswith(CONLLU)


def annotated(sentence: Sentence) -> Annotated:
    """Returns a CoNLL-U sentence with its labels and its tree. The tree is left out unless exactly one word is a root."""
    labels = {"upos": sentence.upos, "xpos": sentence.xpos, "relation": sentence.relations}
    if sentence.heads.count(-1) != 1:
        return Annotated(sentence.words, labels)
    return Annotated(sentence.words, labels, sentence.heads, tuple(upos == "PUNCT" for upos in sentence.upos))


def spread(sentences: Iterable[Annotated], words: int) -> Iterator[Annotated]:
    """Yields evenly spread `sentences` that have at most `words` words in total. Yields all sentences if they do not have more
    words. Long sentences are as likely as short ones. `sentences` is iterated over twice."""
    total = sum(len(sentence.words) for sentence in sentences)
    share, taken = min(words, total), 0
    for i, sentence in enumerate(sentences):
        if (i + 1) * share // total > i * share // total:
            taken += len(sentence.words)
            if taken > words:
                return
            yield sentence


NONE = -1
"""The index of words without a label. These words count neither in training nor in the score."""
Type = tuple[int, ...]
"""The pieces of a word, which identify its type."""


@dataclasses.dataclass(frozen=True, eq=False)
class Labels:
    """The labels of all words of a training and an evaluation part, as indices of `classes`."""

    name: str
    classes: tuple[str, ...]
    """The labels in the training part, in alphabetical order."""
    training: Int32[np.ndarray, " _"]
    """The label of each word, counted from 0; NONE for words without a label."""
    evaluation: Int32[np.ndarray, " _"]
    """The labels of the evaluation part, in the same form. A label that does not occur in the training part has the number of
    classes as its index, which no probe can predict."""

    @property
    def n(self) -> int:
        """The number of words with a label in the evaluation part."""
        return int((self.evaluation != NONE).sum())

    @property
    def unseen(self) -> int:
        """The number of words of the evaluation part whose label does not occur in the training part."""
        return int((self.evaluation == len(self.classes)).sum())


def numbered(name: str, training: Sequence[Annotated], evaluation: Sequence[Annotated]) -> Labels:
    """Returns the labels of the kind `name` as indices of the classes."""
    known = [label for sentence in training for label in sentence.labels.get(name, ())]
    classes = sorted({*known} - {NO_LABEL})
    numbers = {label: i for i, label in enumerate(classes)} | {NO_LABEL: NONE}
    asked = [label for sentence in evaluation for label in sentence.labels.get(name, ())]
    return Labels(
        name,
        tuple(classes),
        np.array([numbers[label] for label in known], np.int32),
        np.array([numbers.get(label, len(classes)) for label in asked], np.int32),
    )


def control_task(labels: Labels, training: Sequence[Type], evaluation: Sequence[Type], seed: int) -> Labels:
    """Returns the control task of `labels` (Hewitt and Liang 2019, arXiv:1909.03368, section 2). Each word type gets one label,
    which is drawn at random from the label distribution of the training part. Words without a label have no label in the
    control task either."""
    counts = np.bincount(labels.training[labels.training != NONE], minlength=len(labels.classes))
    ends = np.cumsum(counts) / counts.sum()
    drawn: dict[Type, int] = {}

    def draw(words: Sequence[Type], own: Int32[np.ndarray, " _"]) -> Int32[np.ndarray, " _"]:
        for word in words:
            if word not in drawn:
                drawn[word] = int(np.searchsorted(ends, _uniform(word, seed), side="right"))
        return np.where(own == NONE, NONE, np.array([drawn[word] for word in words])).astype(np.int32)

    return dataclasses.replace(
        labels,
        name=f"{labels.name} (control)",
        training=draw(training, labels.training),
        evaluation=draw(evaluation, labels.evaluation),
    )


def _uniform(word: Type, seed: int) -> float:
    """Returns a number in [0, 1) that depends only on the seed and the word."""
    digest = hashlib.blake2b(repr((seed, word)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53


def majority_accuracy(labels: Labels, training: Sequence[Type], evaluation: Sequence[Type]) -> float:
    """Returns the accuracy of predicting the most frequent label of each word type. For unseen types, the most frequent label
    of all words is predicted."""
    labelled = [pair for pair in zip(training, labels.training.tolist(), strict=True) if pair[1] != NONE]
    by_type: dict[Type, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for word, label in labelled:
        by_type[word].update((label,))
    if not labelled or not labels.n:
        return float("nan")
    usual = _most_frequent(collections.Counter(label for _, label in labelled))
    best = {word: _most_frequent(counts) for word, counts in by_type.items()}
    pairs = zip(evaluation, labels.evaluation.tolist(), strict=True)
    return sum(best.get(word, usual) == label for word, label in pairs if label != NONE) / labels.n


def _most_frequent(counts: collections.Counter[int]) -> int:
    """Returns the most frequent item. If several items are equally frequent, returns the first of them."""
    return max(counts, key=counts.__getitem__)
