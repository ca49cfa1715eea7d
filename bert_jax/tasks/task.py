"""`Task`, the interface of all labelled tasks: examples, features, scores and prediction files."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bert_jax.data.plan import truncation
from bert_jax.data.rows import Feature
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import write_text
from bert_jax.model.heads.head import TaskHead
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.scores import Baseline


class Task(Protocol):
    """The interface of all tasks for `finetune`. Logits are float32 arrays, one for each feature of a split, in order. The
    shape of an array is [C] for a sequence or mention head, [tokens, C] for a token head, [tokens, 2] for a span head, and
    [candidates] for a choice head. The runs of a sweep share a task, and may call its methods from several threads.

    A task may also have these attributes: `in_percent` is True if its scores are in percent (SQuAD); `of_pairs` says whether its
    texts are pairs (`TextTask`); `may_be_unanswerable` says whether its questions may have no answer (`SpanTask`). The last two
    are stored with the exported model."""

    @property
    def name(self) -> str:
        """The name of the task: `TaskConfig.name`."""

    @property
    def head(self) -> TaskHead:
        """The head of the task, with its labels."""

    @property
    def metric(self) -> str:
        """The name of the metric in `scores` that selects the best model. Higher values are better."""

    @property
    def splits(self) -> Mapping[str, Sequence[Any]]:
        """The examples by split. The names are "train", "dev" and "test". Several names may start with "dev" or "test". The
        first dev split selects the model."""

    def features(self, split: str, tokenizer: Tokenizer) -> list[Feature]:
        """Returns the features of a split, i.e. its examples as tokens of `tokenizer`."""

    def scores(self, split: str, logits: Sequence[np.ndarray]) -> dict[str, float]:
        """Returns the official metrics, or {} for a split without labels. The metrics are fractions, unless the task is
        `in_percent`."""

    def baseline(self, split: str) -> Baseline:
        """Returns the metrics of a constant prediction for the whole split. This is the most frequent label in training, or the
        best constant prediction on this split, whichever has the higher `metric`."""

    def degeneracy(self, split: str, logits: Sequence[np.ndarray]) -> str:
        """Returns a description of degenerate predictions, such as "all predictions are the same". Returns "" if the
        predictions depend on the input."""

    def write_predictions(self, directory: pathlib.Path, split: str, logits: Sequence[np.ndarray]) -> list[pathlib.Path]:
        """Writes the prediction files of a split in the official formats, and returns their paths."""


def encode_pair(
    tokenizer: Tokenizer, ids: Sequence[int], ids_b: Sequence[int] | None, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids and token types, int32 [tokens], of `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` in at most `length`
    tokens.

    Texts that are too long are truncated at the end. Tokens are removed one by one, from the longer text (run_classifier.py,
    `_truncate_seq_pair`).
    """
    cut_a, cut_b = truncation(len(ids), len(ids_b or ()), length - (2 if ids_b is None else 3))
    first = [tokenizer.cls_id, *ids[: len(ids) - cut_a], tokenizer.sep_id]
    second = [] if ids_b is None else [*ids_b[: len(ids_b) - cut_b], tokenizer.sep_id]
    types = np.zeros(len(first) + len(second), np.int32)
    types[len(first) :] = 1
    return np.array(first + second, np.int32), types


def usable_splits(config: TaskConfig, splits: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Returns the splits that have examples. "train" is limited to the first `config.train_rows` examples, and each dev split
    to the first `config.dev_rows`. Raises UserError if the training set or the dev set is empty."""
    held = {split: examples for split, examples in splits.items() if examples}
    for part in ("train", "dev"):
        if not any(split.startswith(part) for split in held):
            where = f"config.task.own.{part}" if config.name.startswith("own/") else "config.task.data_dir"
            raise UserError(f"{config.name} has no examples of the {part} split; give examples with {where}")
    most = {"train": config.train_rows, "dev": config.dev_rows}
    return {split: examples[: most.get(split.partition("_")[0], 0) or None] for split, examples in held.items()}


def all_equal(answers: np.ndarray) -> bool:
    """Returns whether there are at least two predictions, [E] or [E, C], and all predictions are the same."""
    return len(answers) > 1 and bool((answers == answers[:1]).all())


def table_text(rows: Iterable[Sequence[str]]) -> str:
    """Returns the text of a table, with TABs between the cells of a row. A TAB or a line end inside a cell becomes a space."""
    return "".join("\t".join(re.sub(r"[\t\r\n]", " ", cell) for cell in row) + "\n" for row in rows)


def predictions_file(directory: str | os.PathLike[str], name: str, text: str) -> pathlib.Path:
    """Writes a prediction file and returns its path. Raises UserError if the file cannot be written."""
    path = pathlib.Path(directory) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); free space and rerun the command") from error
    return path
