"""The keys of `config.task`: the task, its files, and the lengths of its features."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from annotated_types import Interval

from bert_jax.data.config import LONGEST
from bert_jax.errors import UserError
from bert_jax.interface.ranges import CountOrZero, Name, OneOf, PathText, check_ranges
from bert_jax.model.heads import PROBLEMS
from bert_jax.tasks.entity_scores import SCHEMES

CONTEXTS = ("sentence", "document")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnDataConfig:
    """The settings of `config.task.own`: the files and the names of their columns. Columns that the kind of head does not need
    are ignored."""

    train: PathText | None = None
    dev: PathText | None = None
    test: PathText | None = None  # the columns of labels and answers may be missing
    delimiter: str | None = None  # None: depends on the suffix: comma for .csv, TAB for .tsv and .txt
    quotes: bool | None = None  # whether fields may be in double quotes; None: only in .csv files
    columns: tuple[Name, ...] = ()  # the names of the columns, if the first row of the files does not have them
    id: str | None = None  # None: the index of the row, from 0
    problem: Annotated[str, OneOf(PROBLEMS)] = "classification"  # for a sequence head
    text: Name = "text"
    text_b: str | None = None
    label: Name = "label"
    words: Name = "words"
    labels: Name = "labels"  # in CoNLL-U: "xpos", or the default for upos
    document: str | None = None  # None: every sentence is a separate document
    # if each row of a table is a word: the column that numbers the sentences; None: the column "Sentence #", if any
    sentence: str | None = None
    question: Name = "question"
    context: Name = "context"
    answers: Name = "answers"  # texts, or {"text": ..., "answer_start": ...}; empty: no answer
    answer_start: str | None = None  # None: the first match in the context, unless `answers` contains the starts
    prompt: Name = "prompt"
    choices: tuple[Name, ...] = ("choices",)  # one column with a list, or a column for each choice
    first_choice: Annotated[int, Interval(ge=0, le=1_000)] = 0  # the label of the first choice
    separator: Name | None = None  # the separator of the items of a list in a cell; None: spaces, but not between choices
    # in the order of their numbers; (): the names in the file (Parquet, Arrow), or all labels in the training file, sorted
    label_names: tuple[Name, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self, "task.own")
        if self.delimiter is not None and len(self.delimiter.replace("\\t", "\t")) != 1:
            raise UserError(f"task.own.delimiter={self.delimiter!r} must be one character, for example ';'")
        if len(self.label_names) == 1 and self.problem == "classification":
            raise UserError(
                f"task.own.label_names=[{self.label_names[0]}] has only one label, so there is nothing to predict; name two or "
                "more labels as [a,b], or leave label_names empty to use the labels of the training file"
            )
        if not all(map(str.strip, self.label_names)):
            names = list(self.label_names)
            raise UserError(f"task.own.label_names={names} has a blank name; name each label, as [a,b]")
        for name, things in (("label_names", "label"), ("columns", "column")):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise UserError(f"task.own.{name}={getattr(self, name)} names a {things} twice; name each {things} once")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The settings of `config.task`: the task, its files, and the lengths of its features."""

    name: Name = "glue/mrpc"
    """A name in `tasks.TASKS`, such as "glue/mrpc", "squad/v2.0" and "conll2003"; for the user's own data "own/sequence",
    "own/token", "own/span" or "own/choice"; FILE.py:NAME, one of the NAMES in your own file (see `tasks/__init__.py`)."""
    data_dir: PathText = ""
    """The directory of the official files; empty: the tfds catalogue, which needs the network."""
    length: Annotated[int, Interval(ge=8, le=LONGEST)] = 128
    """The maximum length of a sequence in tokens, with [CLS] and [SEP]. A longer sequence is truncated; a longer context of a
    question is split into windows."""
    train_rows: CountOrZero = 0
    """Use only this many training examples, from the start of the file; 0: all."""
    dev_rows: CountOrZero = 0
    """For faster evaluations, use only this many examples of each dev split, from its start; 0: all."""
    context: Annotated[str, OneOf(CONTEXTS)] = "sentence"
    """For token tasks, the text of a feature: only the "sentence", or also the text around it in the "document" (paper
    section 5.3)."""
    scheme: Annotated[str, OneOf(("", *SCHEMES))] = ""
    """For token tasks: the scheme that tags are converted to for training, such as "IOB2"; empty: no conversion."""
    doc_stride: Annotated[int, Interval(ge=1, le=LONGEST)] = 128
    """The distance in tokens between the starts of two windows over a context."""
    max_question: Annotated[int, Interval(ge=1, le=LONGEST)] = 64
    """The maximum length of a question in tokens; a longer one is truncated."""
    max_answer: Annotated[int, Interval(ge=1, le=LONGEST)] = 30
    """The maximum length of an answer in tokens."""
    n_best: Annotated[int, Interval(ge=1, le=1_000)] = 20
    """The length of the list of best answers. The answers are combined from this many best starts and as many best ends."""
    own: OwnDataConfig = dataclasses.field(default_factory=OwnDataConfig)
