"""Classification and regression of texts and pairs: GLUE (paper section 4.1), SICK, and the user's own data.

The tokens of a text are `[CLS] A [SEP]`, and the tokens of a pair are `[CLS] A [SEP] B [SEP]`. Both are truncated to
`config.length`. Models are selected by `scores.main_score` for GLUE, and by Pearson's correlation for SICK's relatedness (as in
its competition). For the user's own data, they are selected by accuracy, Spearman's correlation or micro F1.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_jax.data.rows import Feature
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.errors import UserError, nearest
from bert_jax.model.heads.outputs import Label
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.readers import catalogue
from bert_jax.tasks.readers.glue import GLUE_NAMES, TASKS, GlueTask, has_glue, prediction_table, read_glue
from bert_jax.tasks.readers.own_data import SPLITS, load_own_data
from bert_jax.tasks.readers.sick import SICK_LABELS, has_sick, read_sick
from bert_jax.tasks.readers.tables import Say, note
from bert_jax.tasks.scores import (
    ALIKE,
    Baseline,
    Constant,
    Metric,
    accuracy,
    constant_baseline,
    degeneracy,
    glue_scores,
    macro_f1,
    macro_precision,
    macro_recall,
    main_score,
    matthews,
    mean_squared_error,
    micro_f1,
    pearson,
    scorer,
    spearman,
)
from bert_jax.tasks.task import all_equal, encode_pair, predictions_file, table_text, usable_splits

Scorer = Callable[[str, np.ndarray, np.ndarray], dict[str, float]]
"""Takes a split, predictions and labels, and returns the official metrics. The arrays are int64 [E] (classification), float64
[E] (regression) or bool [E, C] (multi-label)."""

SICK_FILE = "SICK.txt"
KIND = SequenceHead.kind
"""The kind of the head."""
_SEMEVAL = {"sick/entailment": "entailment_judgment", "sick/relatedness": "relatedness_score"}
_VALUE = ("score",)  # the name of the output of a regression
_SUBMITTED = {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm"}  # test sets that have their own name in a submission


_LABELS: Mapping[str, tuple[type, ...]] = {
    "classification": (str,), "multi_label": (tuple,), "regression": (float, int, np.number),
}  # fmt: skip
"""The possible types of `TextExample.label`, by `TaskHead.problem`."""


@dataclasses.dataclass(frozen=True)
class TextTask:
    """A task with one prediction for each text or pair."""

    name: str
    length: int
    """The maximum length of a sequence in tokens."""
    head: SequenceHead
    metric: str
    splits: Mapping[str, Sequence[TextExample]]
    score: Scorer
    submission: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The name in `glue.SUBMISSION` of each test split."""

    @property
    def of_pairs(self) -> bool | None:
        """Whether the training examples are pairs, or None if only some of them are pairs."""
        kinds = {example.text_b is not None for example in self.splits["train"]}
        return kinds.pop() if len(kinds) == 1 else None

    def features(self, split: str, tokenizer: Tokenizer) -> list[Feature]:
        """Returns one feature for each example, in order."""
        return [self._feature(i, example, tokenizer) for i, example in enumerate(self.splits[split])]

    def scores(self, split: str, logits: Sequence[np.ndarray]) -> dict[str, float]:
        """Returns the official metrics over the examples with a label, or {} if no example has a label."""
        known, labels = self._labels(split)
        return self._scored(split, self._predictions(logits)[known], labels) if known else {}

    def baseline(self, split: str) -> Baseline:
        """Returns the scores of a constant prediction. This is a label, a set of labels, or the mean value."""
        known, labels = self._labels(split)
        if not known:
            return Baseline()
        _, training = self._labels("train")

        def constant(answer: np.ndarray) -> Constant:
            shown = self._shown(answer)
            name = repr(shown) if isinstance(shown, str) else _text(shown) or "no label"
            return name, self._scored(split, np.broadcast_to(answer, labels.shape), labels)

        usual, *_ = self.head.outputs.constants(training)
        return constant_baseline(self.metric, split, constant(usual), map(constant, self.head.outputs.constants(labels)))

    def degeneracy(self, split: str, logits: Sequence[np.ndarray]) -> str:
        """Returns `scores.degeneracy` over the examples with a label. If no example has a label, returns `ALIKE` if all
        predictions are the same, otherwise ""."""
        predictions = self._predictions(logits)
        known, labels = self._labels(split)
        if not known:
            return ALIKE if all_equal(predictions) else ""
        if labels.ndim > 1:  # the labels are sets
            return ALIKE if all_equal(predictions[known]) and not all_equal(labels) else ""
        return degeneracy(predictions[known], labels)

    def write_predictions(self, directory: pathlib.Path, split: str, logits: Sequence[np.ndarray]) -> list[pathlib.Path]:
        """Writes NAME.tsv for a submission to GLUE's leaderboard if the split is a test set of GLUE. For all other splits,
        writes SPLIT.tsv with the columns id, prediction, label (empty if unknown) and the probability of each label. For SICK,
        also writes SPLIT.txt in the format of its competition (SemEval 2014, task 1). The column of the other task then has
        NA."""
        predictions = [self._shown(row) for row in self._predictions(logits)]
        if split in self.submission:
            name = self.submission[split]
            answers = [answer for answer in predictions if not isinstance(answer, tuple)]
            return [predictions_file(directory, f"{name}.tsv", prediction_table(name, answers))]
        header = ["id", "prediction", "label"]
        probabilities: list[list[str]] = [[] for _ in logits]
        if (p := self.head.outputs.probabilities(np.stack(logits))) is not None:
            header += [f"P({label})" for label in self.head.labels]
            probabilities = [[f"{value:.6f}" for value in row] for row in p]
        rows = [
            [example.id, _text(prediction), _text(example.label), *row]
            for example, prediction, row in zip(self.splits[split], predictions, probabilities, strict=True)
        ]
        written = [predictions_file(directory, f"{split}.tsv", table_text([header, *rows]))]
        if self.name in _SEMEVAL:
            judged = [[row[0], *(row[1] if name == self.name else "NA" for name in _SEMEVAL)] for row in rows]
            header = ["pair_ID", *_SEMEVAL.values()]
            written.append(predictions_file(directory, f"{split}.txt", table_text([header, *judged])))
        return written

    def _feature(self, number: int, example: TextExample, tokenizer: Tokenizer) -> Feature:
        second = None if example.text_b is None else tokenizer.encode(example.text_b)
        ids, types = encode_pair(tokenizer, tokenizer.encode(example.text), second, self.length)
        target: np.ndarray | None = None if example.label is None else np.asarray(self._target(example), self.head.outputs.dtype)
        return Feature(number, (ids,), (types,), target)

    def _scored(self, split: str, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """Returns the result of `score`, as Python numbers. Raises UserError if the result is not a dict of numbers, or if it
        lacks the `metric`. Also raises it if the metric of a dev split is not finite, because it selects the best weights."""
        found = self.score(split, predictions, labels)
        numbers = int | float | np.integer | np.floating
        if not isinstance(found, dict) or not all(isinstance(x, numbers) for x in found.values()):
            raise UserError(f"{self.name}: score returns {found!r:.100}; it must return a dict of numbers, name -> score")
        if self.metric not in found:
            raise UserError(f"{self.name}: metric={self.metric!r} is not one of the scores; {nearest(self.metric, found)}")
        if split.startswith("dev") and not math.isfinite(found[self.metric]):
            alike = " (all predictions are the same)" if all_equal(predictions) else ""
            raise UserError(
                f"{self.name}: score returns {self.metric}={found[self.metric]} for {split}{alike}, but weights are compared by "
                "this score; return a number, such as 0, if the score is undefined"
            )
        return {name: float(value) for name, value in found.items()}  # json cannot write numpy's numbers

    def _target(self, example: TextExample) -> int | float | list[bool]:
        """Returns the id of an example's label, or the value for a regression. For a multi-label task, returns whether each
        label of the head applies. Raises UserError for a label of another kind, or for a label that the head does not have."""
        label, wanted = example.label, _LABELS[self.head.problem]
        if not isinstance(label, wanted):
            needs = "a name" if wanted == (str,) else "a tuple of names" if wanted == (tuple,) else "a number"
            raise UserError(
                f"{self.name}: example {example.id} has the label {label!r}, but the head with problem={self.head.problem} needs "
                f"{needs}"
            )
        names = label if isinstance(label, tuple) else (label,) if isinstance(label, str) else ()
        if unknown := [name for name in names if name not in self.head.labels]:
            known = ", ".join(self.head.labels)
            raise UserError(f"{self.name}: example {example.id} has the label {unknown[0]!r}, which is not one of {known}")
        if isinstance(label, tuple):
            return [name in label for name in self.head.labels]
        assert label is not None, "its type was checked above"
        return self.head.labels.index(label) if isinstance(label, str) else label

    def _labels(self, split: str) -> tuple[list[int], np.ndarray]:
        """Returns the indices of the examples with a label, and their labels as an array."""
        examples = self.splits[split]
        known = [i for i, example in enumerate(examples) if example.label is not None]
        return known, np.array([self._target(examples[i]) for i in known])

    def _predictions(self, logits: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the predictions for all examples as an array, in the same form as `_labels`."""
        return self.head.outputs.predictions(np.stack(logits).astype(np.float64))

    def _shown(self, prediction: np.ndarray) -> Label:
        """Returns a prediction in the same form as `TextExample.label`."""
        return self.head.outputs.decode(prediction, self.head.labels)


def _text(label: Label | None) -> str:
    if label is None or isinstance(label, str):
        return label or ""
    return ", ".join(label) if isinstance(label, tuple) else f"{label:.6g}"


def load(config: TaskConfig, say: Say = note) -> TextTask:
    """Returns the task `config.name` from `config.data_dir` or `config.own`. If `data_dir` is empty, the data
    comes from the tfds catalogue.

    Raises UserError for missing or invalid files, and for unknown labels.
    """
    if config.name in GLUE_NAMES:
        return _glue(config, say)
    if config.name == "own/sequence":
        return _own(config, say)
    return _sick(config)


def _glue(config: TaskConfig, say: Say) -> TextTask:
    """Returns a task of GLUE. AX has no training data. It is MNLI with another test set, so it requires MNLI's files. MNLI has
    the additional split `test_ax` if the files of AX exist."""
    name = GLUE_NAMES[config.name]
    task = TASKS["MNLI" if name == "AX" else name]
    sources = {split: (task, split) for split in task.files if name != "AX" or not split.startswith("test")}
    if task.name == "MNLI":
        sources["test" if name == "AX" else "test_ax"] = (TASKS["AX"], "test")
    read = _glue_reader(config, say)
    splits = {split: read(*source) for split, source in sources.items()}
    for split in ("train", next(split for split in sources if split.startswith("dev"))):
        if config.data_dir and not splits[split]:
            read_glue(sources[split][0].name, config.data_dir, sources[split][1])  # raises UserError, which lists the files
    labels, problem = (_VALUE, "regression") if task.is_regression else (task.labels, "classification")

    def score(split: str, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        return glue_scores(sources[split][0].key, predictions, labels)

    return TextTask(
        name=config.name,
        length=config.length,
        head=SequenceHead(labels=labels, problem=problem),
        metric=main_score(task.key),
        splits=usable_splits(config, splits),
        score=score,
        submission={
            split: _SUBMITTED.get(its_split, its_task.name)
            for split, (its_task, its_split) in sources.items()
            if its_split.startswith("test")
        },
    )


def _glue_reader(config: TaskConfig, say: Say) -> Callable[[GlueTask, str], list[TextExample]]:
    """Returns a function that reads a split of a task. The function returns [] for a split that does not exist."""
    if config.data_dir:
        directory = config.data_dir

        def read(task: GlueTask, split: str) -> list[TextExample]:
            return read_glue(task.name, directory, split, say=say) if has_glue(task.name, directory, split) else []

        return read

    def fetch(task: GlueTask, split: str) -> list[TextExample]:
        name = f"glue/{task.key}"
        try:
            return catalogue.examples(name, split, say=say)
        except UserError as error:
            if task.name != "AX" or name == config.name:
                raise
            say(f"{config.name} continues without {name}: {error}")
            return []

    return fetch


def _sick(config: TaskConfig) -> TextTask:
    if not config.data_dir:
        catalogue.examples(config.name, "train")  # raises UserError, because the catalogue does not have SICK
    path = pathlib.Path(config.data_dir) / SICK_FILE
    kind = config.name.removeprefix("sick/")
    splits = {split: read_sick(path, split, label=kind) for split in SPLITS if has_sick(path, split)}
    is_class = kind == "entailment"
    labels, problem = (SICK_LABELS, "classification") if is_class else (_VALUE, "regression")
    return TextTask(
        name=config.name,
        length=config.length,
        head=SequenceHead(labels=labels, problem=problem),
        metric="accuracy" if is_class else "pearson",
        splits=usable_splits(config, splits),
        score=scorer(_ENTAILMENT if is_class else _VALUES),
    )


def _own(config: TaskConfig, say: Say) -> TextTask:
    data = load_own_data(config.own, KIND, say=say)
    problem = config.own.problem
    if problem == "classification" and len(data.labels) < 2:
        raise UserError(
            f"every example of {config.own.train} has the label {data.labels[0]!r}; give examples with two or more labels"
        )
    metric, metrics = _OWN_METRICS[problem]
    return TextTask(
        name=config.name,
        length=config.length,
        head=SequenceHead(labels=data.labels or _VALUE, problem=problem),
        metric=metric,
        splits=usable_splits(config, {split: getattr(data, split) for split in SPLITS}),
        score=scorer(metrics),
    )


def _all_right(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns the fraction of texts for which all labels are predicted correctly."""
    return float(np.mean((predictions == labels).all(1)))


_ENTAILMENT = {"precision": macro_precision, "recall": macro_recall, "accuracy": accuracy}
"""Precision and recall are means over the three labels. The order is the usual order of tables in the literature on SICK."""
_VALUES = {"pearson": pearson, "spearman": spearman, "mean_squared_error": mean_squared_error}
"""The metrics of SICK's competition (SemEval 2014, task 1)."""
_OWN_METRICS: Mapping[str, tuple[str, Mapping[str, Metric]]] = {
    "classification": ("accuracy", {"accuracy": accuracy, "macro_f1": macro_f1, "matthews": matthews}),
    "regression": ("spearman", _VALUES),
    "multi_label": ("micro_f1", {"micro_f1": micro_f1, "accuracy": _all_right}),
}
"""The main metric and all metrics for the user's own data, by problem."""
