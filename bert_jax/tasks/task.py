"""A labelled task: its examples, how a model reads them, what its answers are worth, and the files that report them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol

import numpy as np
from annotated_types import Interval

from bert_jax.corpus.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.examples.config import LONGEST
from bert_jax.examples.labelled import Feature
from bert_jax.examples.pairs import truncation
from bert_jax.heads.head import TaskHead
from bert_jax.interface.ranges import CountOrZero, Name, OneOf
from bert_jax.tasks.baselines import Baseline
from bert_jax.tasks.entity_scores import SCHEMES
from bert_jax.tasks.readers.own_data import OwnDataConfig

CONTEXTS = ("sentence", "document")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Which task, where its files are, and how its texts become rows."""

    name: Name = "glue/mrpc"
    """One of the NAMES of the files `tasks/*_task.py`, such as "glue/mrpc", "squad/v2.0" and "conll2003", or, of data of one's
    own, "own/sequence", "own/token", "own/span" and "own/choice"."""
    module: str = ""
    """A Python file with tasks of one's own, which `name` may then be, too (`tasks/__init__.py` says what it holds)."""
    data_dir: str = ""
    """The directory of the official files; empty: from the catalogue of tfds, which needs the network."""
    length: Annotated[int, Interval(ge=8, le=LONGEST)] = 128
    """Tokens of a sequence with [CLS] and [SEP]; a longer one is cut, a longer context read in windows."""
    train_rows: CountOrZero = 0
    """The first so many training examples; 0 takes all."""
    dev_rows: CountOrZero = 0
    """The first so many examples of each dev split, for an evaluation that takes less time; 0 takes all."""
    context: Annotated[str, OneOf(CONTEXTS)] = "sentence"
    """Token tasks: "sentence" reads a sentence alone, "document" with what stands around it (paper section 5.3)."""
    scheme: Annotated[str, OneOf(("", *SCHEMES))] = ""
    """Token tasks: the scheme that tags are converted to for training, such as "IOB2"; empty leaves them as they are."""
    doc_stride: Annotated[int, Interval(ge=1, le=LONGEST)] = 128
    """Tokens between two windows over a context."""
    max_question: Annotated[int, Interval(ge=1, le=LONGEST)] = 64
    max_answer: Annotated[int, Interval(ge=1, le=LONGEST)] = 30
    """Tokens of a question that are read, and of an answer."""
    n_best: Annotated[int, Interval(ge=1, le=1_000)] = 20
    own: OwnDataConfig = dataclasses.field(default_factory=OwnDataConfig)


class Task(Protocol):
    """What `finetune` asks of a task. Logits are float32 arrays, one for each feature of a split in its order: [C] of a sequence
    or mention head, [n, C] of a token head, [n, 2] of a span head, [candidates] of a choice head."""

    @property
    def name(self) -> str:
        """As in `TaskConfig.name`."""

    @property
    def head(self) -> TaskHead:
        """The layer it needs, with its labels."""

    @property
    def metric(self) -> str:
        """The name among `scores` by which models are compared; more is better."""

    @property
    def splits(self) -> Mapping[str, Sequence[Any]]:
        """The examples by split: "train"; "dev", or several that begin with it, of which the first decides; "test" likewise."""

    def features(self, split: str, tokenizer: Tokenizer) -> list[Feature]:
        """The examples of a split as a model with this tokenizer reads them."""

    def scores(self, split: str, logits: Sequence[np.ndarray]) -> dict[str, float]:
        """The official metrics: fractions, but SQuAD's in percent. A split without labels has none: {}."""

    def baseline(self, split: str) -> Baseline:
        """The same metrics of one answer for the whole split: of the most frequent in training, or of the best on this split,
        whichever has more of `metric`."""

    def degeneracy(self, split: str, logits: Sequence[np.ndarray]) -> str:
        """What shows that the answers depend on no text, such as "all answers are alike"; "" where they do."""

    def write_predictions(self, directory: pathlib.Path, split: str, logits: Sequence[np.ndarray]) -> list[pathlib.Path]:
        """Writes the official files of predictions for a split; returns their paths."""


def encode_pair(
    tokenizer: Tokenizer, ids: Sequence[int], ids_b: Sequence[int] | None, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """`[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` in at most `length` tokens, int32 [n] ids and token types.

    What is too long is cut at its end, from the longer of the two, token by token (run_classifier.py, `_truncate_seq_pair`).
    """
    cut_a, cut_b = truncation(len(ids), len(ids_b or ()), length - (2 if ids_b is None else 3))
    first = [tokenizer.cls_id, *ids[: len(ids) - cut_a], tokenizer.sep_id]
    second = [] if ids_b is None else [*ids_b[: len(ids_b) - cut_b], tokenizer.sep_id]
    types = np.zeros(len(first) + len(second), np.int32)
    types[len(first) :] = 1
    return np.array(first + second, np.int32), types


def usable_splits(config: TaskConfig, splits: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Those of `splits` that hold examples, of "train" the first `config.train_rows`, of "dev" and those that begin with it the
    first `config.dev_rows`. Raises UserError where there is nothing to train on, or no dev set."""
    held = {split: examples for split, examples in splits.items() if examples}
    for part in ("train", "dev"):
        if not any(split.startswith(part) for split in held):
            where = f"config.task.own.{part}" if config.name.startswith("own/") else "config.task.data_dir"
            raise UserError(f"{config.name} has no examples of its {part} split; give them with {where}")
    most = {"train": config.train_rows, "dev": config.dev_rows}
    return {split: examples[: most.get(split.partition("_")[0], 0) or None] for split, examples in held.items()}


def all_equal(answers: np.ndarray) -> bool:
    """Whether several answers, [N] or [N, C], are all the same."""
    return len(answers) > 1 and bool((answers == answers[0]).all())


def table_text(rows: Iterable[Sequence[str]]) -> str:
    """Rows with TABs between their cells; a TAB or a line end inside a cell is a space."""
    return "".join("\t".join(re.sub(r"[\t\r\n]", " ", cell) for cell in row) + "\n" for row in rows)


def predictions_file(directory: str | os.PathLike[str], name: str, text: str) -> pathlib.Path:
    """Writes one file of predictions. Raises UserError where it cannot."""
    path = pathlib.Path(directory) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); free space, or choose another --workdir") from error
    return path
