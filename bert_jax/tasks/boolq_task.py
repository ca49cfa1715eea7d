"""BoolQ: yes-no questions about a passage (Clark et al., arXiv:1905.10044). An example is a pair of question and passage.

Reads the authors' files (train.jsonl and dev.jsonl, with the fields "question", "passage" and "answer") or SuperGLUE's files
(train.jsonl, val.jsonl and test.jsonl, with "label" instead of "answer").
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.readers import catalogue
from bert_jax.tasks.readers.own_rows import read_own_rows
from bert_jax.tasks.readers.tables import CORRECT_ROW, Say, note
from bert_jax.tasks.scores import accuracy, scorer
from bert_jax.tasks.task import predictions_file, usable_splits
from bert_jax.tasks.text_task import TextTask

KIND = SequenceHead.kind
"""The kind of the head."""
LABELS = ("false", "true")
_FILES = {"train": ("train.jsonl",), "dev": ("dev.jsonl", "val.jsonl"), "test": ("test.jsonl",)}


def load(config: TaskConfig, say: Say = note) -> TextTask:
    """Loads BoolQ from `config.data_dir`, or from the tfds catalogue if `data_dir` is empty. The test set may be absent.

    Raises UserError for missing or invalid files.
    """
    splits = {split: _split(config, split, say) for split in _FILES}
    return BoolqTask(
        name=config.name,
        length=config.length,
        head=SequenceHead(labels=LABELS),
        metric="accuracy",
        splits=usable_splits(config, splits),
        score=scorer({"accuracy": accuracy}),
    )


@dataclasses.dataclass(frozen=True)
class BoolqTask(TextTask):
    """A text task that also writes the file of SuperGLUE's leaderboard."""

    def write_predictions(self, directory: pathlib.Path, split: str, logits: Sequence[np.ndarray]) -> list[pathlib.Path]:
        """Writes SPLIT.tsv, as every text task does. For the test set, also writes BoolQ.jsonl, which has a line {"idx",
        "label"} for each question."""
        paths = super().write_predictions(directory, split, logits)
        if split == "test":
            labels = [LABELS[int(values.argmax())] for values in logits]
            lines = [{"idx": int(example.id), "label": labels[i]} for i, example in enumerate(self.splits[split])]
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            paths.append(predictions_file(directory, "BoolQ.jsonl", text))
        return paths


def _split(config: TaskConfig, split: str, say: Say) -> list[TextExample]:
    """Returns the examples of a split, or [] if the test set has no file."""
    if not config.data_dir:
        return catalogue.examples(config.name, split, data_set=DATA_SET, say=say)
    directory = pathlib.Path(config.data_dir)
    path = next((directory / name for name in _FILES[split] if (directory / name).is_file()), None)
    if path is None and split != "test":
        names = " or ".join(_FILES[split])
        raise UserError(
            f"config.task.data_dir={directory} has no {names}, the {split} split of {config.name}; give another directory"
        )
    return [] if path is None else read_boolq(path, may_lack_labels=split == "test")


def read_boolq(path: pathlib.Path, *, may_lack_labels: bool = False) -> list[TextExample]:
    """Returns the questions of a file in order. The second text of each example is the passage. The id of an example is "idx",
    or the index of its row if there is no "idx".

    Raises UserError if a row is not a valid question. The error names the file and the line.
    """
    examples: list[TextExample] = []
    for row in read_own_rows(path):
        name = "answer" if "answer" in row.values else "label"
        label = row.name(name, optional=may_lack_labels)
        number = row.values.get("idx", len(examples))
        if label is not None and label not in LABELS:
            raise row.location.error(f"{name} is {label!r}, not true or false; {CORRECT_ROW}")
        if not isinstance(number, int):
            raise row.location.error(f"idx is {number!r}, not a whole number; {CORRECT_ROW}")
        examples.append(TextExample(str(number), row.text("question"), row.text("passage"), label))
    if not examples:
        raise UserError(f"{path} has no questions; fetch the file again")
    return examples


def _example(features: Any, n: int, record: catalogue.Record, places: Any) -> TextExample:
    text, text_b = catalogue.string(record["question"]), catalogue.string(record["passage"])
    label = int(record["label"])
    return TextExample(str(int(record["idx"])), text, text_b, None if label < 0 else LABELS[label])


DATA_SET = catalogue.DataSet("super_glue/boolq", _example, in_order_of_ids=True)
