"""The user's own data for every kind of head: CSV, TSV or JSON lines (also .gz) with named columns.

    kind        columns                                         example
    sequence    text, text_b?, label                            TextExample
    token       words, labels, document?                        WordsExample
    span        question, context, answers, answer_start?       QuestionExample (or a .json file as SQuAD's)
    choice      prompt, choices, label                          ChoiceExample

Lists (words, labels, answers, choices, the labels of a multi-label text) are lists in JSON; in a table a list is a cell with
`separator` between its items, and choices may also be several columns.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeAlias

from annotated_types import Interval

from bert_jax.errors import UserError, nearest
from bert_jax.heads.outputs import OUTPUTS, PROBLEMS, Label
from bert_jax.interface.ranges import Name, OneOf, check_ranges
from bert_jax.interface.words import counted
from bert_jax.tasks.examples import ChoiceExample, QuestionExample, TextExample, WordsExample
from bert_jax.tasks.readers.own_rows import Row, read_own_rows, suffix
from bert_jax.tasks.readers.squad import AnswerPlaces, listed_answers, read_squad
from bert_jax.tasks.readers.tables import CORRECT_ROW, Say, note, parse_number

Example: TypeAlias = TextExample | WordsExample | QuestionExample | ChoiceExample

SPLITS = ("train", "dev", "test")
LARGEST = 1e6
"""The largest label of a regression, since squares have to be summed in float32; labels near 1 are learned best."""


@dataclass(frozen=True, kw_only=True)
class OwnDataConfig:
    """The settings of `config.task.own`: the files and the names of their columns. Columns that the kind of head does not need
    are ignored."""

    train: str | None = None
    dev: str | None = None
    test: str | None = None  # the columns of labels and answers may be missing
    delimiter: str | None = None  # None: by the suffix: comma for .csv, TAB for .tsv and .txt
    quotes: bool | None = None  # whether fields may be in double quotes; None: in .csv files
    columns: tuple[Name, ...] = ()  # the names of the columns, if the first row of the files does not have them
    id: str | None = None  # None: the number of the row from 0
    problem: Annotated[str, OneOf(PROBLEMS)] = "classification"  # of a sequence head
    text: Name = "text"
    text_b: str | None = None
    label: Name = "label"
    words: Name = "words"
    labels: Name = "labels"
    document: str | None = None  # None: every sentence is a document of its own
    question: Name = "question"
    context: Name = "context"
    answers: Name = "answers"  # texts, or {"text": ..., "answer_start": ...}; empty: no answer
    answer_start: str | None = None  # None: the first match in the context, unless `answers` have it
    prompt: Name = "prompt"
    choices: tuple[Name, ...] = ("choices",)  # one column with a list, or a column for each choice
    first_choice: Annotated[int, Interval(ge=0, le=1_000)] = 0  # the label of the first choice
    separator: Name = " "  # between the items of a list in a cell
    label_names: tuple[Name, ...] = ()  # by id; (): all labels in the training file, sorted

    def __post_init__(self) -> None:
        check_ranges(self, "task.own")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise UserError(f"task.own.delimiter={self.delimiter!r} must be one character, for example ';'")
        if len(self.label_names) == 1 and self.problem == "classification":
            raise UserError(
                f"task.own.label_names=[{self.label_names[0]}] is one label, and there is nothing to choose; name two or more as "
                "[a,b], or none for those of the training file"
            )
        if len(set(self.label_names)) < len(self.label_names):
            raise UserError(f"task.own.label_names={self.label_names} names a label twice; name each once")


@dataclass(frozen=True)
class OwnData:
    """The examples of all splits, and the names of the labels by id (none for regression, spans and choices)."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]
    labels: tuple[str, ...]


def load_own_data(config: OwnDataConfig, kind: str, *, say: Say = note) -> OwnData:
    """The data of `config` for a kind of head in `FORMATS`; a split without a file has no examples.

    Raises UserError, with file and line, for a label that is not in `label_names` (or, if these are empty, not in the training
    file), and for invalid files.
    """
    named = FORMATS[kind].has_labels(config)
    names = config.label_names if named else ()
    examples: dict[str, list[Example]] = {split: [] for split in SPLITS}
    for split in SPLITS:
        if not getattr(config, split):  # "" on the command line removes the file of an experiment
            continue
        examples[split] = read_own_data(config, kind, split, labels=names, say=say)
        if split == "train" and named and not names:
            names = collect_labels(examples[split])
    if not any(examples.values()):
        raise UserError("no file is given; set train, dev or test")
    if named and not names:
        raise UserError("the labels are not known: set train to the training file, or label_names")
    return OwnData(examples["train"], examples["dev"], examples["test"], names)


def read_own_data(config: OwnDataConfig, kind: str, split: str, *, labels: Sequence[str] = (), say: Say = note) -> list[Example]:
    """The examples of the file of `split`, in its order. `labels` are the valid names; (): all names are valid. Raises UserError
    as `load_own_data`."""
    if kind not in FORMATS:
        raise UserError(f"kind={kind!r} is no kind of head; {nearest(kind, FORMATS)}")
    if split not in SPLITS:
        raise UserError(f"there is no split {split!r}; {nearest(split, SPLITS)}")
    if not getattr(config, split):
        raise UserError(f"the file of the {split} split is not given; set {split}=FILE")
    path, form = pathlib.Path(getattr(config, split)), FORMATS[kind]
    if suffix(path) in form.whole_files:
        return list(form.whole_files[suffix(path)](path, say=say))
    known = frozenset(labels if form.has_labels(config) else ())
    examples: list[Example] = []
    documents: dict[str, int] = {}
    places = AnswerPlaces()
    rows = read_own_rows(path, config.delimiter, quotes=config.quotes, columns=config.columns, separator=config.separator)
    for row in rows:
        example = form.parse(config, row, len(examples), split == "test", places)
        if isinstance(example, WordsExample) and config.document:
            at = documents.setdefault(row.text(config.document), len(documents))
            example = replace(example, document=at)
        if unknown := [label for label in _names(example) if label not in known] if known else []:
            listed = ", ".join(labels)
            raise row.place.error(f"the label {unknown[0]!r} is not known; known: {listed}; correct it, or add it to label_names")
        examples.append(example)
    if not examples:
        raise UserError(f"{path} has no rows; give a file with one example a row")
    places.report(path, say)
    return examples


def collect_labels(examples: Iterable[Example]) -> tuple[str, ...]:
    """The distinct label names of `examples`, sorted; as numbers if all are numbers, so that "10" comes after "9"."""
    names = {name for example in examples for name in _names(example)}
    values = {name: _finite(name) for name in names}
    if None in values.values():
        return tuple(sorted(names))
    return tuple(sorted(names, key=lambda name: (values[name], name)))


def _finite(text: str) -> float | None:
    try:
        return float(text) if math.isfinite(float(text)) else None
    except ValueError:
        return None


def _names(example: Example) -> tuple[str, ...]:
    """The names of the labels of an example; () for a regression or a choice."""
    if isinstance(example, WordsExample):
        return example.labels or ()
    if not isinstance(example, TextExample) or example.label is None or isinstance(example.label, float):
        return ()
    return (example.label,) if isinstance(example.label, str) else example.label


def _id(config: OwnDataConfig, row: Row, n: int) -> str:
    return str(n) if config.id is None else row.name(config.id, optional=False) or ""


def _text(config: OwnDataConfig, row: Row, n: int, optional: bool, places: AnswerPlaces) -> TextExample:
    label = _LABELS[config.problem](config, row, optional)
    text_b = row.text(config.text_b) if config.text_b else None
    return TextExample(_id(config, row, n), row.text(config.text), text_b, label)


def _one_label(config: OwnDataConfig, row: Row, optional: bool) -> str | None:
    return row.name(config.label, optional=optional)


def _value(config: OwnDataConfig, row: Row, optional: bool) -> float | None:
    text = row.name(config.label, optional=optional)
    return None if text is None else parse_number(row.place, config.label, text, -LARGEST, LARGEST)


def _several_labels(config: OwnDataConfig, row: Row, optional: bool) -> tuple[str, ...] | None:
    # an empty cell means that no label applies; only a missing column means that the labels are unknown
    return None if optional and row.values.get(config.label) is None else row.texts(config.label)


_LABELS: Mapping[str, Callable[[OwnDataConfig, Row, bool], Label | None]] = {
    "classification": _one_label,
    "regression": _value,
    "multi_label": _several_labels,
}
"""The functions that read the label of a text, by `OwnDataConfig.problem`."""


def _tagging(config: OwnDataConfig, row: Row, n: int, optional: bool, places: AnswerPlaces) -> WordsExample:
    words, labels = row.texts(config.words) or (), row.texts(config.labels, optional=optional)
    if not words:
        raise row.place.error(f"{config.words} is empty; remove the row")
    if labels is not None and len(labels) != len(words):
        raise row.place.error(f"{len(words)} {config.words} but {len(labels)} {config.labels}; each word needs one label")
    return WordsExample(_id(config, row, n), words, labels, n)


def _question(config: OwnDataConfig, row: Row, n: int, optional: bool, places: AnswerPlaces) -> QuestionExample:
    context, given = row.text(config.context), row.values.get(config.answers)
    name, question = _id(config, row, n), row.text(config.question)
    if config.answers not in row.values and optional:
        return QuestionExample(name, question, context)
    given = row.value(config.answers) if given != "" else []
    beside = row.value(config.answer_start) if config.answer_start and given != [] else None
    try:
        answers = listed_answers(given, beside)
    except ValueError as error:
        raise row.place.error(f"{config.answers} {error}; {CORRECT_ROW}") from error
    found = tuple(places.find(name, context, text, start) for text, start in answers)
    return QuestionExample(name, question, context, found, is_impossible=not found)


def _choice(config: OwnDataConfig, row: Row, n: int, optional: bool, places: AnswerPlaces) -> ChoiceExample:
    single = len(config.choices) == 1
    choices = row.texts(config.choices[0]) or () if single else tuple(row.text(name) for name in config.choices)
    if len(choices) < 2:
        raise row.place.error(
            f"{', '.join(config.choices)} gives {counted(len(choices), 'choice')}; a question needs two or more"
        )
    label, first = row.name(config.label, optional=optional), config.first_choice
    numbers = [str(i) for i in range(first, first + len(choices))]
    if label is not None and label not in numbers:
        listed = ", ".join(numbers)
        raise row.place.error(f"{config.label} is {label!r}, not one of {listed} (first_choice={first}); {CORRECT_ROW}")
    right = None if label is None else numbers.index(label)
    return ChoiceExample(_id(config, row, n), row.text(config.prompt), choices, right)


@dataclass(frozen=True)
class Format:
    """The functions that read the data of a kind of head."""

    parse: Callable[[OwnDataConfig, Row, int, bool, AnswerPlaces], Example]
    """(settings, row, number of the row, whether the label may be absent, places of answers) -> example."""
    has_labels: Callable[[OwnDataConfig], bool] = lambda config: False
    """Whether the labels are names."""
    whole_files: Mapping[str, Callable[..., Iterable[Example]]] = field(default_factory=dict)
    """Readers of files that are no tables, by suffix."""


FORMATS: Mapping[str, Format] = {
    "sequence": Format(_text, has_labels=lambda config: OUTPUTS[config.problem].has_accuracy),
    "token": Format(_tagging, has_labels=lambda config: True),
    "choice": Format(_choice),
    "span": Format(_question, whole_files={".json": read_squad}),
}
"""The formats by kind of head."""
