"""Labelled tasks from the TensorFlow Datasets catalogue, without TensorFlow. The examples are the same as in the official
files.

    task                     data set        splits
    glue/NAME                glue/NAME       the official splits, sorted by `idx` because prepared data sets are shuffled
    squad/v1.1, squad/v2.0   squad/VERSION   train, dev
    gap                      gap             train (gap-development), dev (gap-validation), test (gap-test)
    conll2003                conll2003       train, dev, test, but the sentences have no documents and are in another order

The catalogue does not have SWAG, SICK, CODAH, WNUT-17 and CoNLL-U treebanks, or has them in other formats."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from bert_jax.data.corpus import tfds_text
from bert_jax.data.corpus.tfds_text import TextSet, catalogue_builder, without_tfds_warnings
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.tasks.examples import PronounExample, QuestionExample, TextExample, WordsExample
from bert_jax.tasks.readers.gap import GENDERS
from bert_jax.tasks.readers.glue import GLUE_NAMES, TASKS, GlueTask
from bert_jax.tasks.readers.squad import AnswerPlaces
from bert_jax.tasks.readers.tables import Say, note

Record = Mapping[str, Any]
Convert = Callable[[Mapping[str, Any], int, Record, AnswerPlaces], Any]
"""Takes the features of the data set, the index of a record, the record and `AnswerPlaces`. Returns an example."""


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A tfds data set, and the conversion of its records to examples."""

    name: str
    """The name in the catalogue, e.g. "glue/mrpc"."""
    convert: Convert
    in_order_of_ids: bool = False
    """Whether examples are sorted by the number at the end of their ids. This restores the order of the official file."""
    left_out: tuple[Callable[[Any], bool], str] | None = None
    """A function that returns True for examples to leave out, and the reason for the log, e.g. "whose names ..."."""


_TEXTS = {"mrpc": ("sentence1", "sentence2"), "mnli": ("premise", "hypothesis"), "ax": ("premise", "hypothesis")}
"""The names of the text columns in tfds, for tasks where these names differ from the names in the official files."""
_UNKNOWN = -1  # the label of a test set


def examples(task: str, split: str, *, data_set: DataSet | None = None, say: Say = note) -> list[Any]:
    """Returns the examples of a split, or [] if the data set has no such split. The splits are "train", "dev" (for MNLI
    "dev_matched" and "dev_mismatched"), "test" and so on.

    The data set is read from the tfds directory ($TFDS_DATA_DIR). The first call downloads it. `data_set` is needed for a task
    that is not in `DATA_SETS`. Raises UserError if the task is not in the catalogue, or if the download fails. The message asks
    for `config.task.data_dir`."""
    remedy = "set config.task.data_dir to the directory of the official files"
    data_set = data_set or DATA_SETS.get(task)
    if data_set is None:
        raise UserError(f"{task} is not in the catalogue of tfds; {remedy}")
    try:
        with without_tfds_warnings():
            builder = catalogue_builder(data_set.name, tfds_text.tfds_directory(None))
            names = {name.replace("validation", "dev"): name for name in builder.info.splits}
            return _examples(data_set, builder, names[split], say) if split in names else []
    except UserError as error:
        raise UserError(f"{task} is not available from the catalogue: {str(error).partition(';')[0]}; {remedy}") from error


def _examples(data_set: DataSet, builder: Any, split: str, say: Say) -> list[Any]:
    """Returns the examples of `split`, which is the name that the data set gives to a split."""
    places, features = AnswerPlaces(), builder.info.features
    found = [data_set.convert(features, n, record, places) for n, record in enumerate(_records(builder, split))]
    if data_set.in_order_of_ids:  # prepared data sets are shuffled, but predictions need the order of the file
        found.sort(key=lambda example: int(example.id.rpartition("-")[2]))
    origin = pathlib.Path(f"tfds:{data_set.name}")
    places.report(origin, say)
    is_left_out, why = data_set.left_out or (lambda example: False, "")
    if astray := [example.id for example in found if is_left_out(example)]:
        say(f"{origin}: left out {counted(len(astray), 'row')} {why}; the first row is {astray[0]}")
        found = [example for example in found if not is_left_out(example)]
    return found


def _records(builder: Any, split: str) -> Iterator[Record]:
    """Yields the decoded records of a split, in the order of its files."""
    texts = TextSet(builder, split, "")
    # This is the default format of tfds. tfds itself can only read it with TensorFlow.
    if builder.info.file_format.value == "tfrecord":
        yield from map(builder.info.features.deserialize_example_np, texts.tfrecords(0, len(texts)))
    else:
        source = builder.as_data_source(split=split)
        yield from (source[i] for i in range(len(texts)))


def string(value: bytes) -> str:
    """Decodes a text of a record."""
    return value.decode("utf-8")


def _text(task: GlueTask, features: Mapping[str, Any], n: int, record: Record, places: AnswerPlaces) -> TextExample:
    """Returns an example of GLUE. The label of a record is a class id. The class names in tfds are the official labels, or the
    ids of these labels."""
    columns = _TEXTS.get(task.key, (task.text, task.text_b))
    texts = [string(record[name]) for name in columns if name]
    value = record["label"]
    label: str | float | None
    if value == _UNKNOWN:
        label = None
    elif task.is_regression:
        label = float(str(np.float32(value)))  # the decimal number in the file, e.g. 3.8 and not its float32, 3.799999952
    else:
        name = features["label"].int2str(int(value))
        label = name if name in task.labels else task.labels[int(value)]
    return TextExample(str(int(record["idx"])), texts[0], texts[1] if len(texts) > 1 else None, label)


def _question(features: Mapping[str, Any], n: int, record: Record, places: AnswerPlaces) -> QuestionExample:
    name, context = string(record["id"]), string(record["context"])
    impossible = bool(record.get("is_impossible", False))
    given = record["answers"]
    answers = [] if impossible else zip(map(string, given["text"]), map(int, given["answer_start"]), strict=True)
    found = tuple(places.find(name, context, text, start) for text, start in answers)
    return QuestionExample(name, string(record["question"]), context, found, impossible)


def _pronoun(features: Mapping[str, Any], n: int, record: Record, places: AnswerPlaces) -> PronounExample:
    pronoun = string(record["Pronoun"])
    corefers = [name for name in ("A", "B") if record[f"{name}-coref"]]
    return PronounExample(
        id=string(record["ID"]),
        text=string(record["Text"]),
        pronoun=pronoun,
        pronoun_start=int(record["Pronoun-offset"]),
        a=string(record["A"]),
        a_start=int(record["A-offset"]),
        b=string(record["B"]),
        b_start=int(record["B-offset"]),
        label=(*corefers, "neither")[0],
        gender=GENDERS.get(pronoun.lower()),
    )


def _is_moved(example: PronounExample) -> bool:
    """Returns whether the offsets of an example are wrong. tfds removed quotes from some texts, so the following characters
    have moved."""
    places = {example.pronoun_start: example.pronoun, example.a_start: example.a, example.b_start: example.b}
    return not all(name and example.text.startswith(name, start) for start, name in places.items())


def _words(features: Mapping[str, Any], n: int, record: Record, places: AnswerPlaces) -> WordsExample:
    name = features["ner"].feature.int2str
    return WordsExample(str(n), tuple(map(string, record["tokens"])), tuple(name(int(tag)) for tag in record["ner"]), n)


DATA_SETS: Mapping[str, DataSet] = {
    **{name: DataSet(name, partial(_text, TASKS[short]), in_order_of_ids=True) for name, short in GLUE_NAMES.items()},
    "squad/v1.1": DataSet("squad/v1.1", _question),
    "squad/v2.0": DataSet("squad/v2.0", _question),
    "gap": DataSet("gap", _pronoun, in_order_of_ids=True, left_out=(_is_moved, "whose names are not at the stated offsets")),
    "conll2003": DataSet("conll2003/conll2003", _words),
}
"""The data sets by task. A task in its own module may pass its own data set to `examples`."""
