"""The features of a task's examples for training and evaluation, and the fingerprints of data and weights."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.data.corpus.store import MANIFEST, Corpus, open_corpus
from bert_jax.data.corpus.verification import local_corpus
from bert_jax.data.rows import Feature, RowShape, row_shape
from bert_jax.errors import UserError
from bert_jax.finetuning.start import config_fingerprint, tokenizer_fingerprint, weights_fingerprint
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.model.heads.head import TaskHead
from bert_jax.objectives.cross_view import check_views
from bert_jax.tasks.entity_scores import convert
from bert_jax.tasks.examples import WordsExample
from bert_jax.tasks.scores import Baseline
from bert_jax.tasks.task import Task
from bert_jax.training.warm_start import same_vocabulary


@dataclasses.dataclass(frozen=True)
class Data:
    """A task's examples, converted to the features of one model."""

    task: Task
    features: Mapping[str, Sequence[Feature]]
    """The features of each split."""
    shape: RowShape
    pad_id: int
    baselines: Mapping[str, Baseline]
    """The baseline of each dev split."""

    @property
    def dev(self) -> list[str]:
        """The splits that are scored during training. The score on the first split selects the best weights."""
        return [split for split in self.features if split.startswith("dev")]

    @property
    def scored_tests(self) -> list[str]:
        """The test splits that have labels. They are scored once, with the selected weights."""
        tests = [split for split in self.features if split.startswith("test")]
        return [split for split in tests if any(feature.target is not None for feature in self.features[split])]


def check_tags(experiment: FinetuningExperiment, task: Task) -> None:
    """Raises UserError if head.crf=iob2 excludes tags of the training set, i.e. if an I-X follows neither B-X nor I-X."""
    scheme, excluded = experiment.task.scheme, []
    for example in task.splits["train"] if experiment.head.crf == "iob2" else ():
        given = (example.labels or ()) if isinstance(example, WordsExample) else ()
        tags = convert(given, scheme) if scheme else given
        pairs = enumerate(itertools.pairwise(("O", *tags)))
        excluded += [(example.words[i], tag) for i, (before, tag) in pairs if tag[:2] == "I-" and tag[2:] != before[2:]]
    if excluded:
        word, tag = excluded[0]
        raise UserError(
            f"config.head.crf=iob2 predicts I-X only after B-X or I-X, but {task.name}, train, has "
            f"{counted(len(excluded), 'word')} with I-X after another tag (the first is {word!r}, {tag}); set "
            "config.task.scheme=IOB2 to convert the tags"
        )


def read_features(task: Task, start: Model, teacher: Model | None = None) -> Data:
    """Converts the task's examples to features for the model `start`. Raises UserError if train or a dev split has no labels.
    Also raises it if `teacher` reads other token types than `start` for these examples."""
    features = {split: task.features(split, start.tokenizer) for split in task.splits}
    if teacher is not None:
        _check_segments(features, start, teacher)
    if start.config.direction == "left_to_right":
        features = {split: [_without_segments(feature) for feature in some] for split, some in features.items()}
    if all(feature.target is None for feature in features["train"]):
        raise UserError(f"no training example of {task.name} has a label; give the file with labels")
    baselines = {split: task.baseline(split) for split in features if split.startswith("dev")}
    for split, baseline in baselines.items():
        if not baseline.scores:
            raise UserError(f"no example of {task.name}, {split}, has a label, so it cannot be scored; give the file with labels")
    everything = [feature for split in features.values() for feature in split]
    return Data(task, features, row_shape(everything, task.head.layout), start.tokenizer.pad_id, baselines)


def _check_segments(features: Mapping[str, Sequence[Feature]], start: Model, teacher: Model) -> None:
    """Raises UserError if there are pairs, and only one of the models reads the second text with a token type of its own. Both
    models get the same rows."""
    reads_types = teacher.config.kind.has_positions and teacher.config.type_vocab_size  # LSTMs have no token types
    if not reads_types or teacher.config.has_segments == (start.config.direction == "both"):
        return
    if any(types.any() for some in features.values() for feature in some for types in feature.types):
        has = "a token type" if teacher.config.has_segments else "no token type"
        raise UserError(
            f"config.distillation.teacher={teacher.source} has {has} for the second text of a pair, unlike {start.source}, so it "
            "would read pairs differently than in its training; name a teacher with the same direction and type_vocab_size"
        )


def _without_segments(feature: Feature) -> Feature:
    """Sets the token types of both texts in a pair to 0."""
    return dataclasses.replace(feature, types=tuple(np.zeros_like(types) for types in feature.types))


def open_unlabelled(experiment: FinetuningExperiment, head: TaskHead, start: Model) -> Corpus | None:
    """Opens the unlabelled text for cross-view training of the task's `head`. Returns None if no corpus is set. Raises
    UserError if the model or the head does not support cross-view training. Also raises it if the corpus has a different
    vocabulary, contains translations or has no sentence."""
    directory = experiment.cross_view.corpus
    if not directory:
        return None
    corpus = open_corpus(local_corpus(directory, CORPUS_KEY))
    check_views(start.config, experiment.head_config(head), frozen=experiment.training.freeze_encoder)
    if not same_vocabulary(corpus.vocabulary, start.tokenizer.vocabulary):
        raise UserError(
            f"{CORPUS_KEY}={directory} has a different vocabulary than {experiment.init_from}; build it with "
            f"--vocab={start.source}"
        )
    if corpus.languages:
        raise UserError(f"{CORPUS_KEY}={directory} holds texts and their translations; build a corpus of texts only")
    if not corpus.num_sentences:
        raise UserError(f"{CORPUS_KEY}={directory} has no sentence to train on; build it with a smaller --eval-fraction")
    return corpus


CORPUS_KEY = "config.cross_view.corpus"


def examples_fingerprint(task: Task) -> str:
    """Returns a hash of the examples of all splits."""
    digest = hashlib.sha256()
    for split, examples in task.splits.items():
        digest.update(split.encode())
        for example in examples:
            digest.update(repr(example).encode())
    return digest.hexdigest()


def fingerprints(experiment: FinetuningExperiment, task: Task) -> dict[str, str]:
    """Returns hashes of the examples, the weights, settings and vocabulary of each model, and the cross-view corpus (if there is
    one), by name. A resumed run compares the hashes, so files may have moved but must have the same content."""
    teacher = experiment.distillation.teacher
    models = {"init_from": experiment.init_from} | ({"teacher": teacher} if teacher else {})
    found = {"examples": examples_fingerprint(task)}
    for name, model in models.items():
        found |= {
            name: weights_fingerprint(model),
            f"{name}_config": config_fingerprint(model),
            f"{name}_tokenizer": tokenizer_fingerprint(model),
        }
    if directory := experiment.cross_view.corpus:
        manifest = local_corpus(directory, CORPUS_KEY) / MANIFEST
        found["cross_view"] = hashlib.sha256(manifest.read_bytes() if manifest.is_file() else b"").hexdigest()
    return found
