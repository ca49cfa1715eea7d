"""`Task`, the interface of all labelled tasks: examples, features, scores and prediction files. `load_task` loads one by its name
in `TASKS`, or from a user's file."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bert_jax.data.plan import truncation
from bert_jax.data.rows import Feature
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.errors import UserError, missing_path, nearest
from bert_jax.files import write_text
from bert_jax.interface.named import file_module, is_in_file, split_named
from bert_jax.model.heads import KINDS, head_class
from bert_jax.model.heads.head import TaskHead
from bert_jax.storage.fetching import cached_path, copies_named_in_bucket, fetched, fetched_files
from bert_jax.storage.paths import is_url
from bert_jax.tasks import TASKS
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.readers.own_rows import COLUMNAR
from bert_jax.tasks.readers.tables import Say, note
from bert_jax.tasks.scores import Baseline

KEY = "config.task.name"
_WANTED = "a file with tasks defines NAMES, KIND and load (see bert_jax/tasks/__init__.py)"
_ANSWERS = ("name", "head", "metric", "splits", "features", "scores", "baseline", "degeneracy", "write_predictions")
"""The attributes and methods of a `Task`."""


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


@copies_named_in_bucket()
def load_task(config: TaskConfig, say: Say = note) -> Task:
    """Returns the task `config.name` with its examples.

    `say` is called with a sentence about each problem in the data that does not stop the run. Raises UserError for an unknown
    name and for missing or invalid files."""
    module, given = _task_module(config), config.name
    config = dataclasses.replace(_with_local_files(config), name=task_name(config))
    official = not config.name.startswith("own/")  # each file of an own/ task has its own key
    if official and config.data_dir and not pathlib.Path(config.data_dir).is_dir():
        is_file = pathlib.Path(config.data_dir).exists()
        problem = f"{config.data_dir} is a file" if is_file else f"{missing_path(config.data_dir)} does not exist"
        raise UserError(f"config.task.data_dir={problem}; give the directory that holds the files of {config.name}")
    try:
        task = module.load(config, say)
    except UserError as error:
        if not official or not (columnar := _columnar_file(config.data_dir)):
            raise
        own = f"set config.task.name=own/{module.KIND} and config.task.own.train={columnar}, and name its columns"
        remedy = own if f"own/{module.KIND}" in TASKS else f"write the data as a file of {config.name}"
        raise UserError(f"{error}. The task {config.name} does not read {columnar}; {remedy}") from error
    if lacking := [answer for answer in _ANSWERS if not hasattr(task, answer)]:
        raise UserError(
            f"{KEY}={given}: the task returned by load lacks {', '.join(lacking)}; see the class Task in bert_jax/tasks/task.py"
        )
    for split, examples in task.splits.items() if is_in_file(given) else ():
        if wrong := [example for example in examples if isinstance(example, str | bytes | tuple | list | dict)]:
            raise UserError(
                f"{KEY}={given}: the split {split} holds {wrong[0]!r:.60}, which is not an example; use a class of "
                "bert_jax/tasks/examples.py"
            )
    if type(task.head) is not (wanted := head_class(module.KIND)):
        raise UserError(
            f"{KEY}={given}: the head of the task has the class {type(task.head).__name__}, but KIND={module.KIND!r} means "
            f"{wanted.__name__}, as which its model would be exported and used; return a {wanted.__name__}, or add your class "
            "to the project: a file in bert_jax/model/heads/ and a line in KINDS of its __init__.py"
        )
    return task


def _columnar_file(directory: str) -> pathlib.Path | None:
    """Finds a Parquet or Arrow file in a directory or its subdirectories, or returns None. A file of the training split is
    preferred. Data sets on the hub are in these formats."""
    files = pathlib.Path(directory).rglob("*") if directory else ()
    found = [file for file in files if file.suffix in COLUMNAR and file.is_file()]
    return min(found, key=lambda file: ("train" not in str(file.relative_to(directory)), file), default=None)


def task_name(config: TaskConfig) -> str:
    """Returns the name of the task. This is `config.name`, or NAME if `config.name` is FILE.py:NAME."""
    return split_named(config.name)[1] if is_in_file(config.name) else config.name


def _with_local_files(config: TaskConfig) -> TaskConfig:
    """Downloads data that is in a bucket, and returns `config` with the paths of the local copies."""

    def local(path: str | None, key: str) -> str | None:
        if not path or not is_url(path):
            return path
        if not any(sign in path for sign in "*?["):
            return str(fetched(path, f"config.task.{key}"))
        if not fetched_files(path, f"config.task.{key}"):
            raise UserError(f"config.task.{key}={path} matches no file; correct the pattern")
        return str(cached_path(path))

    own = config.own
    files = {"train": local(own.train, "own.train"), "dev": local(own.dev, "own.dev"), "test": local(own.test, "own.test")}
    own = dataclasses.replace(own, **files)  # type: ignore[arg-type]
    return dataclasses.replace(config, data_dir=local(config.data_dir, "data_dir") or "", own=own)


def task_head_class(config: TaskConfig) -> type[TaskHead]:
    """Returns the head class of the task `config.name`, without reading data. Raises UserError for an unknown name."""
    return head_class(_task_module(config).KIND)


def _task_module(config: TaskConfig) -> Any:
    """Returns the module that defines the task `config.name`. Raises UserError for an unknown name."""
    if is_in_file(config.name):
        return _own_module(config.name)
    if config.name not in TASKS:
        raise UserError(f"{KEY}={config.name!r} is not a task; {nearest(config.name, TASKS)}; {KEY}=FILE.py:NAME loads your own")
    return importlib.import_module(TASKS[config.name])


def _own_module(value: str) -> Any:
    """Returns the module of a task FILE.py:NAME. Raises UserError if the file has no valid NAMES, KIND and load, or no task
    NAME."""
    module, (file, name, _) = file_module(value, KEY), split_named(value)
    names, kind, load = (getattr(module, name, None) for name in ("NAMES", "KIND", "load"))
    where = f"{KEY}={value}"
    if not isinstance(names, tuple | list) or not names or not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{where}: NAMES is {names!r}, not a tuple of names; {_WANTED}")
    if kind not in KINDS:
        raise UserError(f"{where}: KIND is {kind!r}; known: {', '.join(KINDS)}; {_WANTED}")
    try:
        inspect.signature(load).bind("config", "say")  # type: ignore[arg-type]
    except TypeError as error:
        raise UserError(f"{where}: load is {load!r}, not a function load(config, say); {_WANTED}") from error
    if (loads_ours := getattr(load, "__module__", None)) in TASKS.values():
        raise UserError(
            f"{where}: load is the function of {loads_ours}, which does not know your task; define a function load(config, say) "
            'that calls it with another name: dataclasses.replace(config, name="own/...")'
        )
    if taken := [name for name in names if name in TASKS]:
        raise UserError(f"{where}: {taken[0]!r} is the name of a task of bert_jax; give your task another name")
    if not name:
        raise UserError(f"{where} does not name a task of the file; write {KEY}={file}:{names[0]}")
    if name not in names:
        raise UserError(f"{where}: {file} has no task {name!r}; {nearest(name, names)}")
    return module


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
