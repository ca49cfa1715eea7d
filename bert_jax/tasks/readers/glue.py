"""Reads the files of GLUE's nine tasks and of its diagnostic set AX. Also writes submissions to the leaderboard.

The formats are the same as in the benchmark's download. Columns are separated by TABs, quotes are ordinary characters, and test
files have indices from 0. The labels are in the order of the original BERT (run_classifier.py)."""

from __future__ import annotations

import io
import math
import os
import pathlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bert_jax.errors import UserError, nearest
from bert_jax.files import write_bytes, write_text
from bert_jax.interface.words import counted
from bert_jax.storage.records import Location
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.readers.tables import CORRECT_ROW, Say, note, parse_number, read_rows, read_table

_SPLITS = {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)}
_MNLI_LABELS = ("contradiction", "entailment", "neutral")
_MSR = {"train": "msr_paraphrase_train.txt", "dev": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"}
_STS_RANGE = (0.0, 5.0)


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """The files of a task and the names of their columns."""

    name: str  # also the name of the folder in the download
    text: str
    text_b: str | None = None
    label: str | None = None  # test files do not have this column
    labels: tuple[str, ...] = ("0", "1")  # by id, or () for a regression
    files: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _SPLITS)  # by split; the first file that exists is read
    folders: tuple[str, ...] = ()  # other names of the task's folder
    columns: tuple[str, ...] = ()  # the columns of train and dev files without a header
    skips_broken_lines: bool = False  # the official train and dev files have lines with a wrong number of columns
    unlabelled: str | None = None  # the label if the annotators did not agree; these examples are left out

    @property
    def key(self) -> str:
        """The name of the task in `scores`, configurations and tfds, e.g. "sst2" for SST-2."""
        return self.name.lower().replace("-", "")

    @property
    def is_regression(self) -> bool:
        """Whether the task is a regression (STS-B, labels from 0 to 5)."""
        return not self.labels


_TASKS = (
    GlueTask(name="CoLA", text="sentence", label="label", columns=("source", "label", "mark", "sentence")),
    GlueTask(name="SST-2", text="sentence", label="label"),
    GlueTask(name="MRPC", text="#1 String", text_b="#2 String", label="Quality"),
    GlueTask(name="STS-B", text="sentence1", text_b="sentence2", label="score", labels=()),
    GlueTask(name="QQP", text="question1", text_b="question2", label="is_duplicate", skips_broken_lines=True),
    GlueTask(
        name="MNLI",
        text="sentence1",
        text_b="sentence2",
        label="gold_label",
        labels=_MNLI_LABELS,
        unlabelled="-",
        files={
            "train": ("train.tsv",),
            "dev_matched": ("dev_matched.tsv",),
            "dev_mismatched": ("dev_mismatched.tsv",),
            "test_matched": ("test_matched.tsv",),
            "test_mismatched": ("test_mismatched.tsv",),
        },
    ),
    GlueTask(name="QNLI", text="question", text_b="sentence", label="label", labels=("entailment", "not_entailment")),
    GlueTask(name="RTE", text="sentence1", text_b="sentence2", label="label", labels=("entailment", "not_entailment")),
    GlueTask(name="WNLI", text="sentence1", text_b="sentence2", label="label"),
    GlueTask(
        name="AX",
        text="sentence1",
        text_b="sentence2",
        labels=_MNLI_LABELS,
        files={"test": ("diagnostic.tsv", "AX.tsv")},
        folders=("diagnostic",),
    ),
)
TASKS: Mapping[str, GlueTask] = {task.name: task for task in _TASKS}
GLUE_NAMES: Mapping[str, str] = {f"glue/{task.key}": task.name for task in _TASKS}
"""Maps names in a configuration to names in `TASKS`: {"glue/sst2": "SST-2", ...}."""


@dataclass(frozen=True)
class _TestSet:
    task: str
    rows: int  # the row count of the official test set; the leaderboard rejects any other count


SUBMISSION: Mapping[str, _TestSet] = {
    "CoLA": _TestSet("CoLA", 1063),
    "SST-2": _TestSet("SST-2", 1821),
    "MRPC": _TestSet("MRPC", 1725),
    "STS-B": _TestSet("STS-B", 1379),
    "QQP": _TestSet("QQP", 390_965),
    "MNLI-m": _TestSet("MNLI", 9796),
    "MNLI-mm": _TestSet("MNLI", 9847),
    "QNLI": _TestSet("QNLI", 5463),
    "RTE": _TestSet("RTE", 3000),
    "WNLI": _TestSet("WNLI", 146),
    "AX": _TestSet("AX", 1104),
}
"""The files of a submission. The keys are the file names without .tsv, and the values are the test sets."""


def glue_task(name: str) -> GlueTask:
    """Returns the task with this name. Raises UserError for an unknown name. The error suggests the most similar name."""
    if name not in TASKS:
        raise UserError(f"GLUE has no task {name!r}; {nearest(name, TASKS)}")
    return TASKS[name]


def read_glue(task: str, directory: str | os.PathLike[str], split: str, *, say: Say = note) -> list[TextExample]:
    """Returns the examples of a split in the order of the file. The id of an example is its value in the column "index" or
    "id". If the file has neither column, the id is the index of the example, from 0.

    directory: the task's directory, or a directory with a folder for each task. MRPC may be in its authors' format, with the
    files `msr_paraphrase_train.txt` and `msr_paraphrase_test.txt` (with labels), and GLUE's `dev_ids.tsv`. This file lists the
    rows of the training file that form the dev set.

    Two kinds of rows are dropped and reported. One kind is lines of QQP with a wrong number of columns (only in train and dev,
    since every row of a test set needs a prediction). The other kind is examples of MNLI without a gold label. Empty texts (QQP
    has some) are kept and reported. Raises UserError for all other errors in a file."""
    about = glue_task(task)
    if split not in about.files:
        raise UserError(f"{task} has no split {split!r}; {nearest(split, about.files)}")
    path = _find(about, pathlib.Path(directory), split)
    is_test = split.startswith("test")
    broken: list[int] = []  # line numbers
    skips = about.skips_broken_lines and not is_test
    skipped = (lambda location, columns: broken.append(location.line)) if skips else None
    table = read_table(path, columns=() if is_test else about.columns, skipped=skipped)
    label = about.label if about.label in table.columns or not is_test else None
    table.require(*filter(None, (about.text, about.text_b, label)))
    index = next((name for name in ("index", "id") if name in table.columns), None)
    belongs = _mrpc_members(path, split) if path.name == _MSR.get(split) else None
    unlabelled = 0
    blank: list[int] = []  # line numbers
    examples: list[TextExample] = []
    for location, row in table:
        if belongs and not belongs(row):
            continue
        if label and row[label] == about.unlabelled:
            unlabelled += 1
            continue
        if not all(row[name].strip() for name in (about.text, about.text_b) if name):
            blank.append(location.line)
        value = _label(about, location, row[label]) if label else None
        name = row[index] if index else str(len(examples))
        examples.append(TextExample(name, row[about.text], row[about.text_b] if about.text_b else None, value))
    if broken:
        say(f"{path}: left out {counted(len(broken), 'line')} with too many or too few columns; the first is line {broken[0]}")
    if blank:
        kept = counted(len(blank), "example")
        say(f"{path}: kept {kept} with an empty text, which `predict` refuses; the first is line {blank[0]}")
    if unlabelled:
        say(f"{path}: left out {counted(unlabelled, 'example')} without a gold label")
    if not examples:
        raise UserError(f"{path} has no examples of the {split} split; fetch the file again")
    return examples


def has_glue(task: str, directory: str | os.PathLike[str], split: str) -> bool:
    """Returns whether the file that `read_glue` would read exists."""
    return any(path.is_file() for path in _places(glue_task(task), pathlib.Path(directory), split))


def _places(task: GlueTask, directory: pathlib.Path, split: str) -> list[pathlib.Path]:
    names = (*task.files[split], *((_MSR[split],) if task.name == "MRPC" else ()))
    return [directory / folder / name for folder in (task.name, *task.folders, ".") for name in names]


def _find(task: GlueTask, directory: pathlib.Path, split: str) -> pathlib.Path:
    places = _places(task, directory, split)
    for path in places:
        if path.is_file():
            return path
    looked = ", ".join(map(str, places))
    here = "" if directory.is_dir() else f" ({directory} is not a directory)"
    raise UserError(
        f"the {split} split of {task.name} does not exist{here}; looked for {looked}. Give the directory of {task.name}"
    )


def _mrpc_members(path: pathlib.Path, split: str) -> Callable[[Mapping[str, str]], bool] | None:
    """Returns a function that decides whether a row of the authors' training file belongs to the split, or None if all rows
    belong to the split."""
    if split == "test":
        return None
    ids = path.with_name("dev_ids.tsv")
    if not ids.is_file():
        raise UserError(
            f"{ids} is missing; it lists the rows of {path.name} that form GLUE's dev set, so put it next to {path.name}"
        )
    dev = {tuple(row) for _, row in read_rows(ids)}
    return lambda row: ((row["#1 ID"], row["#2 ID"]) in dev) == (split == "dev")


def _label(task: GlueTask, location: Location, value: str) -> str | float:
    if task.is_regression:
        return parse_number(location, task.label or "", value, *_STS_RANGE)
    if value not in task.labels:
        raise location.error(f"{task.label} is {value!r}, not one of {', '.join(task.labels)}; {CORRECT_ROW}")
    return value


def write_submission(
    directory: str | os.PathLike[str], predictions: Mapping[str, Sequence[str | float]], *, complete: bool = True
) -> pathlib.Path:
    """Writes NAME.tsv for each of `predictions` and a zip archive of all files. Returns the path of the archive.

    predictions: for each name in `SUBMISSION`, the label names in the order of the test file. STS-B has numbers instead, which
    are clipped to [0, 5]. The leaderboard accepts only `complete` submissions. Raises UserError if a task has a wrong number of
    predictions, or if a task is missing and the submission should be `complete`."""
    for name in predictions:
        if name not in SUBMISSION:
            raise UserError(f"a GLUE submission has no {name!r}; {nearest(name, SUBMISSION)}")
    if complete and (missing := [name for name in SUBMISSION if name not in predictions]):
        raise UserError(
            f"the submission lacks {', '.join(missing)}; the leaderboard only accepts all {counted(len(SUBMISSION), 'file')} "
            "together"
        )
    for name, given in predictions.items():
        if len(given) != (rows := SUBMISSION[name].rows):
            raise UserError(
                f"{name} has {counted(len(given), 'prediction')}, but the official test set has {counted(rows, 'row')}; "
                "predict every row of the test set"
            )
    tables = {f"{name}.tsv": prediction_table(name, predictions[name]) for name in SUBMISSION if name in predictions}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, table in tables.items():
            # This ZipInfo has no date, so the archive depends only on the predictions.
            packed.writestr(zipfile.ZipInfo(name), table, zipfile.ZIP_DEFLATED)
    directory = pathlib.Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            write_text(directory / name, table)
        path = directory / "submission.zip"
        write_bytes(path, archive.getvalue())
    except OSError as error:
        raise UserError(f"{error.filename or directory} cannot be written: {error.strerror}; choose another directory") from error
    return path


def prediction_table(name: str, predictions: Sequence[str | float]) -> str:
    """Returns the text of the file `name` in `SUBMISSION`. Raises UserError for a value that is not a valid prediction."""
    task = TASKS[SUBMISSION[name].task]
    lines = ["index\tprediction"]
    for index, prediction in enumerate(predictions):
        if task.is_regression:
            if isinstance(prediction, str) or not math.isfinite(prediction):
                raise UserError(f"prediction {index} of {name} is {prediction!r}, not a finite number; check the model")
            prediction = f"{min(max(prediction, _STS_RANGE[0]), _STS_RANGE[1]):.3f}"
        elif prediction not in task.labels:
            raise UserError(f"prediction {index} of {name} is {prediction!r}, not one of {', '.join(task.labels)}")
        lines.append(f"{index}\t{prediction}")
    return "\n".join(lines) + "\n"
