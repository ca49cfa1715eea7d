"""Labelled tasks from the catalogue of TensorFlow Datasets, without TensorFlow: the same examples that the official files give.

    task                     data set        splits
    glue/NAME                glue/NAME       the official ones; `idx` brings the order of the files back, which the data set lost
    squad/v1.1, squad/v2.0   squad/VERSION   train, dev
    gap                      gap             train (gap-development), dev (gap-validation), test (gap-test)
    conll2003                conll2003       train, dev, test: sentences without their documents, and in another order

SWAG, SICK, CODAH, WNUT-17 and trees of CoNLL-U are not in it, or in another form.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from bert_jax.corpus import catalogue
from bert_jax.corpus.records import TextSet, catalogue_builder, quietly
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.tasks.examples import PronounExample, QuestionExample, TextExample, WordsExample
from bert_jax.tasks.glue import GLUE_NAMES, TASKS, GlueTask
from bert_jax.tasks.readers import GENDERS
from bert_jax.tasks.squad import AnswerPlaces
from bert_jax.tasks.tables import Say, note

Record = Mapping[str, Any]
Convert = Callable[[Mapping[str, Any], int, Record], Any]
"""(features of the data set, number of the record, record) -> example."""

DATA_SETS: Mapping[str, str] = {
    **{name: name for name in GLUE_NAMES},
    "squad/v1.1": "squad/v1.1",
    "squad/v2.0": "squad/v2.0",
    "gap": "gap",
    "conll2003": "conll2003/conll2003",
}
"""Data sets by the names of the tasks."""
_TEXTS = {"mrpc": ("sentence1", "sentence2"), "mnli": ("premise", "hypothesis"), "ax": ("premise", "hypothesis")}
"""The columns of texts that are called otherwise than in the official files."""
_UNKNOWN = -1  # the label of a test set


def examples(task: str, split: str, *, say: Say = note) -> list[Any]:
    """The examples of one split: "train", "dev" (of MNLI "dev_matched", "dev_mismatched"), "test" and so on; [] where the data
    set has no such split.

    It lies where tfds keeps data sets ($TFDS_DATA_DIR), and is fetched on the first call. Raises UserError that says to set
    `config.task.data_dir` for a task that is not in the catalogue, or cannot be had.
    """
    remedy = "set config.task.data_dir to the directory of its official files"
    if task not in DATA_SETS:
        raise UserError(f"{task} is not in the catalogue of tfds; {remedy}")
    try:
        with quietly():
            builder = catalogue_builder(DATA_SETS[task], catalogue.tfds_directory(None))
            names = {name.replace("validation", "dev"): name for name in builder.info.splits}
            return _examples(task, builder, names[split], say) if split in names else []
    except UserError as error:
        raise UserError(f"{task} cannot be had from the catalogue: {str(error).partition(';')[0]}; {remedy}") from error


def _examples(task: str, builder: Any, split: str, say: Say) -> list[Any]:
    """split: as the data set calls it."""
    places = AnswerPlaces()
    convert: Convert
    if task in GLUE_NAMES:
        convert = partial(_text, TASKS[GLUE_NAMES[task]])
    else:
        convert = {"gap": _pronoun, "conll2003": _words}.get(task, partial(_question, places))
    found: list[Any] = [convert(builder.info.features, n, record) for n, record in enumerate(_records(builder, split))]
    if task in GLUE_NAMES or task == "gap":  # a prepared data set is shuffled, predictions are in the order of the file
        found.sort(key=lambda example: int(example.id.rpartition("-")[2]))
    origin = pathlib.Path(f"tfds:{DATA_SETS[task]}")
    places.report(origin, say)
    if task == "gap" and (astray := [example.id for example in found if not _stands(example)]):
        say(f"{origin}: left out {counted(len(astray), 'row')} whose names do not stand where it says, first {astray[0]}")
        found = [example for example in found if _stands(example)]
    return found


def _records(builder: Any, split: str) -> Iterator[Record]:
    """The decoded records of a split, in the order of its files."""
    texts = TextSet(builder, split, "")
    if builder.info.file_format.value == "tfrecord":  # that most data sets are prepared in; tfds reads it with TensorFlow only
        yield from map(builder.info.features.deserialize_example_np, texts.tfrecords(0, len(texts)))
    else:
        source = builder.as_data_source(split=split)
        yield from (source[i] for i in range(len(texts)))


def _string(value: bytes) -> str:
    return value.decode("utf-8")


def _text(task: GlueTask, features: Mapping[str, Any], n: int, record: Record) -> TextExample:
    """Its labels are classes by id; some have the names of the official files, the others the official ids."""
    columns = _TEXTS.get(task.key, (task.text, task.text_b))
    texts = [_string(record[name]) for name in columns if name]
    value = record["label"]
    label: str | float | None
    if value == _UNKNOWN:
        label = None
    elif task.is_regression:
        label = float(str(np.float32(value)))  # the decimal number that was written: 3.8, not the nearest float32, 3.799999952
    else:
        name = features["label"].int2str(int(value))
        label = name if name in task.labels else task.labels[int(value)]
    return TextExample(str(int(record["idx"])), texts[0], texts[1] if len(texts) > 1 else None, label)


def _question(places: AnswerPlaces, features: Mapping[str, Any], n: int, record: Record) -> QuestionExample:
    name, context = _string(record["id"]), _string(record["context"])
    impossible = bool(record.get("is_impossible", False))
    given = record["answers"]
    answers = [] if impossible else zip(map(_string, given["text"]), map(int, given["answer_start"]), strict=True)
    found = tuple((text, places.find(name, context, text, start)) for text, start in answers)
    return QuestionExample(name, _string(record["question"]), context, found, impossible)


def _pronoun(features: Mapping[str, Any], n: int, record: Record) -> PronounExample:
    pronoun = _string(record["Pronoun"])
    corefers = [name for name in ("A", "B") if record[f"{name}-coref"]]
    return PronounExample(
        id=_string(record["ID"]),
        text=_string(record["Text"]),
        pronoun=pronoun,
        pronoun_start=int(record["Pronoun-offset"]),
        a=_string(record["A"]),
        a_start=int(record["A-offset"]),
        b=_string(record["B"]),
        b_start=int(record["B-offset"]),
        label=(*corefers, "neither")[0],
        gender=GENDERS.get(pronoun.lower()),
    )


def _stands(example: PronounExample) -> bool:
    """Whether the offsets are right: the data set was read with quotes as marks, which moves what stands after one."""
    places = {example.pronoun_start: example.pronoun, example.a_start: example.a, example.b_start: example.b}
    return all(name and example.text.startswith(name, start) for start, name in places.items())


def _words(features: Mapping[str, Any], n: int, record: Record) -> WordsExample:
    name = features["ner"].feature.int2str
    return WordsExample(str(n), tuple(map(_string, record["tokens"])), tuple(name(int(tag)) for tag in record["ner"]), n)
