"""Labels as numbers; the control task and the baseline of a kind of label, which both give one label to each word type."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from bert_jax.analysis.probe.annotated import NO_LABEL, Annotated

NONE = -1
"""The number of no label: the word counts neither in training nor in the score."""
Type = tuple[int, ...]
"""The pieces of a word."""


@dataclasses.dataclass(frozen=True, eq=False)
class Labels:
    """The labels of all words of a training and an evaluation part, as numbers."""

    name: str
    classes: tuple[str, ...]
    """The labels of the training part, in alphabetical order."""
    training: Int32[np.ndarray, " _"]
    """A label for each word, from 0; NONE for no label."""
    evaluation: Int32[np.ndarray, " _"]
    """As above; the number of classes for a label that the training part lacks, which no probe can find."""

    @property
    def n(self) -> int:
        """The number of words with a label in the evaluation part."""
        return int((self.evaluation != NONE).sum())


def numbered(name: str, training: Sequence[Annotated], evaluation: Sequence[Annotated]) -> Labels:
    """The labels of one kind."""
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
    """The control task of `labels` (Hewitt and Liang 2019, arXiv:1909.03368, section 2): each word type has one label, drawn at
    random from the distribution of the labels of the training part. A word without a label has none here either."""
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
    """A number from [0, 1) that follows from the seed and the word."""
    digest = hashlib.blake2b(repr((seed, word)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53


def majority_accuracy(labels: Labels, training: Sequence[Type], evaluation: Sequence[Type]) -> float:
    """The accuracy of the most frequent label of each word type, and for a new type of the most frequent label of all."""
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
    """Of equally frequent ones the one that was counted first."""
    return max(counts, key=counts.__getitem__)
