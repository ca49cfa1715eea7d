"""Reads the user's own data for every kind of head. Files are tables, JSON, Parquet or Arrow with named columns, or have
columns of words.

    kind        columns                                         example
    sequence    text, text_b?, label                            TextExample
    token       words, labels, document?, sentence?             WordsExample
    span        question, context, answers, answer_start?       QuestionExample (or a file of SQuAD)
    choice      prompt, choices, label                          ChoiceExample

A file is CSV, TSV or JSON (one object per line, or a list), and may be compressed (.gz, .bz2, .xz, .zst). Parquet and Arrow may
be a file, a pattern, a folder of the Hugging Face hub, or a directory of `save_to_disk`.

Lists (words, labels, answers, choices, the labels of a multi-label text) are lists in JSON and Parquet. In a table, a list is
written as in JSON or Python, or as a cell with `separator` between its items. Choices may also be several columns, of which the
last may be blank, or an object of texts and labels as in ARC, e.g. {"text": ["red", "blue"], "label": ["A", "B"]}. The label of
a choice is its index, its letter (A is the first), or its label in the object. In a test set, -1 means that it is unknown. The
labels of a multi-label text may also be columns of 0 and 1, one for each of `label_names`, or a list of 0s and 1s in every row.
If each row is a single word, the column `sentence` numbers the sentences.

In SNLI, the label "-" marks a text without a label, and -1 does in data sets of the Hugging Face hub. Such rows of train and dev
must be removed, unless `label_names` lists the label.

If no text of a multi-label test set has a label, the labels are unknown. In a test set, a list or a row of columns in which all
labels are -1 or null is unknown as well. If all tags of a test set are "_", they are unknown.

One text of a pair may be empty, as in QQP. The number of such pairs is reported.

A question whose `answers` are empty has no answer, unless its `is_impossible` is false. If no question of a test set has an
answer, and there is no column `is_impossible`, the answers are unknown.

For token heads, a file may also be in the CoNLL format, with a word and its tag on each line, an empty line after each
sentence, and no column names. If the word is not in the first column, or its tag not in the last, `columns` names all columns;
a dev or test file may have more or fewer, and a test file may end before the column of the tags. Files in CoNLL-U are read
too. Their tags are in the column upos, or in xpos if labels=xpos."""

from __future__ import annotations

import functools
import itertools
import math
import os
import pathlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any, TypeAlias

from bert_jax.errors import UserError, nearest
from bert_jax.files import parse_json
from bert_jax.interface.ranges import decimal_number
from bert_jax.interface.words import counted
from bert_jax.model.heads.outputs import OUTPUTS, Label
from bert_jax.storage.records import Location, read_text, split_lines
from bert_jax.tasks.config import OwnDataConfig
from bert_jax.tasks.entity_scores import as_tags, is_tag
from bert_jax.tasks.examples import ChoiceExample, QuestionExample, TextExample, WordsExample
from bert_jax.tasks.readers.conll import COLUMN_FILES, begins_document, column_instead_of_words, conll_width, read_conll
from bert_jax.tasks.readers.conllu import COLUMNS as CONLLU_COLUMNS
from bert_jax.tasks.readers.conllu import CONLLU, TAGS, read_conllu
from bert_jax.tasks.readers.own_rows import (
    CHOICES_OBJECT,
    COLUMNAR,
    DELIMITERS,
    JSON,
    MISSING,
    SENTENCE,
    NoColumn,
    Row,
    as_choices,
    class_names,
    data_files,
    label_text,
    read_own_rows,
    several_questions,
    short,
    split_words,
    suffix,
    without_blank_end,
)
from bert_jax.tasks.readers.squad import AnswerPlaces, listed_answers, read_squad
from bert_jax.tasks.readers.tables import CORRECT_ROW, INVISIBLE, Say, is_invisible, note, parse_number

Example: TypeAlias = TextExample | WordsExample | QuestionExample | ChoiceExample

SPLITS = ("train", "dev", "test")
_MOST_SHOWN, _MOST_LISTED = 5, 30
_UNLABELLED = ("-", "-1")
"""Labels that mean that the label is unknown, in SNLI and in data sets of the Hugging Face hub."""
LARGEST = 1e6
"""The largest absolute value of a label in a regression, since squares are summed in float32. Labels near 1 are learned
best."""


TEXT_COLUMNS = {
    "sequence": ("text", "text_b"),
    "token": ("words",),
    "span": ("question", "context"),
    "choice": ("prompt", "choices"),
}
"""The settings of `OwnDataConfig` that name columns of text, by kind of head."""


def text_columns(config: OwnDataConfig, kind: str) -> dict[str, str | list[str]]:
    """Returns the column or columns of text by setting. A setting is left out if its column has the same name."""
    stated = {name: getattr(config, name) for name in TEXT_COLUMNS.get(kind, ())}
    listed = {name: list(value) if isinstance(value, tuple) and len(value) > 1 else value for name, value in stated.items()}
    named = {name: value[0] if isinstance(value, tuple) else value for name, value in listed.items()}
    return {name: value for name, value in named.items() if value and value != name}


def table_settings(config: OwnDataConfig) -> dict[str, str | bool]:
    """Returns the settings of tables (delimiter, quotes, separator, sentence) with which `config.train` is read, without those
    that are the default of its suffix."""
    is_default = config.quotes in (None, suffix(pathlib.Path(config.train or "")) == ".csv")
    delimiter = config.delimiter and config.delimiter.replace("\\t", "\t")
    stated = {"delimiter": delimiter, "quotes": None if is_default else config.quotes, "separator": config.separator}
    stated["sentence"] = config.sentence or None
    return {name: value for name, value in stated.items() if value is not None}


@dataclass(frozen=True)
class OwnData:
    """The examples of all splits, and the names of the labels by id. Regression, spans and choices have no names of labels."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]
    labels: tuple[str, ...]


def load_own_data(config: OwnDataConfig, kind: str, *, say: Say = note) -> OwnData:
    """Returns the data of `config` for a kind of head in `FORMATS`. A split without a file has no examples.

    Raises UserError for invalid files, and for a label that is not in `label_names`. If `label_names` is empty, the labels must
    be in the training file. The error names the file and the line."""
    named = FORMATS[kind].has_labels(config)
    names = _label_texts(config.label_names) if named else ()
    if len(set(names)) < len(names):
        raise UserError(f"task.own.label_names={config.label_names} names a label twice; name each label once")
    examples: dict[str, list[Example]] = {split: [] for split in SPLITS}
    by_number = bool(names)
    vectors: dict[pathlib.Path, bool] = {}
    for split in SPLITS:
        if not getattr(config, split):  # "" on the command line removes a file that the experiment names
            continue
        if split == "train" and named and not names:
            names = _names_in_file(config, kind)
            by_number = bool(names)
        examples[split] = read_own_data(config, kind, split, labels=names, by_number=by_number, vectors=vectors, say=say)
        if split == "train" and named and not names:
            names = collect_labels(examples[split])
            if not names:
                raise UserError(f"no row of {config.train} has a label; fill in the column of the labels")
            _refuse_unlabelled(config, names, examples[split])
    if not any(examples.values()):
        raise UserError("no file is given; set train, dev or test")
    if named and not names:
        raise UserError("the labels are not known; set train to the training file, or name the labels in label_names")
    _report_labels(config, names, examples["train"], say)
    _report_equal_answers(config, kind, examples["train"], say)
    for split in SPLITS:
        _report_texts(getattr(config, split), kind, examples[split], say)
        if config.id is not None:
            _report_ids(getattr(config, split), examples[split], say)
    _report_shared_files(config, say)
    if kind == "token" and examples["train"]:
        _check_words(config, names, examples["train"], say)
    return OwnData(examples["train"], examples["dev"], examples["test"], names)


def _refuse_unlabelled(config: OwnDataConfig, names: Sequence[str], train: Sequence[Example]) -> None:
    """Raises UserError if one of the classes of the training texts is "-" or -1, as in SNLI for texts on which the annotators
    did not agree. "-" may be a class if "+" is one, and -1 if it is one of at most three classes (-1, 0 and 1)."""
    others = {*names} - {*_UNLABELLED}
    for mark in _UNLABELLED:
        count = sum(isinstance(example, TextExample) and example.label == mark for example in train)
        may_be_class = "+" in others if mark == "-" else len(others) < 3 or not all(map(str.isdecimal, others))
        if count and len(others) > 1 and not may_be_class:
            raise UserError(
                f"{config.train}: {counted(count, 'row')} with the {config.label} {mark}, which usually means that the label is "
                "unknown; remove these rows, or list all classes in label_names if it is one of them"
            )


def _report_equal_answers(config: OwnDataConfig, kind: str, train: Sequence[Example], say: Say) -> None:
    """Warns if all training texts have the same value (regression), or if no question has an answer. Also warns if there are at
    least 100 training texts and all of them have different labels."""
    values = {example.label for example in train if isinstance(example, TextExample)}
    if kind == "sequence" and config.problem == "regression" and len(values) == 1 < len(train):
        say(f"WARNING: every {config.label} of {config.train} is {values.pop()}, so there is nothing to learn")
    rows = [example.label for example in train if isinstance(example, TextExample) and isinstance(example.label, str)]
    if len(set(rows)) == len(rows) >= 100:
        say(
            f"WARNING: no two of the {counted(len(rows), 'row')} of {config.train} have the same label (the first is "
            f"{rows[0]!r}), so there is nothing to learn; name the column of the labels with task.own.label"
        )
    if kind == "span" and train and not any(isinstance(example, QuestionExample) and example.answers for example in train):
        say(f"WARNING: no question of {config.train} has an answer, so there is nothing to learn")


def _report_texts(file: str | None, kind: str, examples: Sequence[Example], say: Say) -> None:
    """Warns about texts that usually stand for missing values, texts in the form of Python bytes, and texts with characters
    escaped for HTML."""
    texts = [text for e in examples if isinstance(e, TextExample) for text in (e.text, e.text_b) if text]
    if missing := [text for text in texts if text.strip() in MISSING]:
        say(
            f"WARNING: {file}: {missing[0]!r} is read as a text, although it usually marks a missing value; fill in a text, or "
            f"remove the row ({counted(len(missing), 'such text')})"
        )
    if written := [text for text in texts if _BYTES.fullmatch(text)]:
        say(
            f"WARNING: {file}: {counted(len(written), 'text')} in the form of Python bytes, such as {written[0][:60]}; write "
            "the text itself (Python's ast.literal_eval and decode)"
        )
    escaped = [match[0] for text in texts if (match := _ESCAPED.search(text))]
    if len(escaped) > len(texts) // 50:
        say(
            f"WARNING: {file}: {len(escaped):,} of {counted(len(texts), 'text')} with characters escaped for HTML, such as "
            f"{escaped[0]!r}; unescape them (Python's html.unescape), unless the texts should stay as they are"
        )


_BYTES = re.compile(r"""b'.*'|b".*\"""", re.DOTALL)
_ESCAPED = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#[0-9]{2,5}|#x[0-9a-fA-F]{2,4});")


def _report_ids(file: str | None, examples: Sequence[Example], say: Say) -> None:
    """Warns about an id that several examples share. For questions, `span_task` then raises UserError."""
    first = {example.id: i for i, example in reversed([*enumerate(examples)])}
    if repeated := [example.id for i, example in enumerate(examples) if first[example.id] < i]:
        say(
            f"WARNING: {file}: the id {repeated[0]!r} is also the id of an earlier row, so the two predictions have the same "
            f"id ({counted(len(repeated), 'such row')})"
        )


def _names_in_file(config: OwnDataConfig, kind: str) -> tuple[str, ...]:
    """Returns the class names in the training file, by class id, or () if the file has no class names."""
    first = data_files(pathlib.Path(config.train or ""), "train")[0]
    column = config.labels if kind == "token" else config.label
    names = tuple(map(label_text, class_names(first).get(column, ()))) if suffix(first) in COLUMNAR else ()
    if len(set(names)) < len(names):
        raise UserError(f"{first} names a class of {column} twice; give each class a different name")
    return names


def _report_shared_files(config: OwnDataConfig, say: Say) -> None:
    """Warns about a file that several splits share."""
    splits: dict[str, list[str]] = {}
    for split in SPLITS:
        given = data_files(pathlib.Path(value), split) if (value := getattr(config, split)) else []
        for path in {os.path.realpath(path) for path in given}:
            splits.setdefault(path, []).append(split)
    if shared := {path: some for path, some in splits.items() if len(some) > 1}:
        path, some = next(iter(shared.items()))
        say(
            f"WARNING: {' and '.join(some)} are the same file, {path}, so the scores do not show how well the model does on "
            "new text"
        )


def _report_labels(config: OwnDataConfig, names: Sequence[str], train: Sequence[Example], say: Say) -> None:
    """Warns about labels with similar spellings, and about label names without examples."""
    alike: dict[str, list[str]] = {}
    for name in names:
        spellings = (_spelling(name), _spelling(name.translate(_LATIN)))
        group = next((alike[spelling] for spelling in spellings if spelling in alike), [])
        group.append(name)
        for spelling in spellings:
            alike.setdefault(spelling, group)
    groups = [group for group in {id(group): group for group in alike.values()}.values() if len(group) > 1]
    for group in groups[: 2 * _MOST_SHOWN]:
        looks = {_look(name) for name in group}
        listed = " and ".join(map(repr if len(looks) == len(group) else ascii, group[:_MOST_SHOWN]))
        say(f"WARNING: the labels {listed} are read as different classes; if they mean the same, write them in the same way")
    fraction = next((name for name in names if re.fullmatch(r"-?[0-9]+\.[0-9]+", name)), None)
    if fraction and not config.label_names and None not in map(_finite, names):
        say(
            f"WARNING: labels are numbers such as {fraction}, and each number is a class; if they are scores, set "
            "problem=regression"
        )
    occurring = {label for example in train for label in _names(example)} if config.label_names else set(names)
    if train and (unused := [name for name in names if name not in occurring]):
        listed = ", ".join(unused[:_MOST_SHOWN])
        more = f" and {len(unused) - _MOST_SHOWN:,} more" if len(unused) > _MOST_SHOWN else ""
        say(f"WARNING: label_names lists {listed}{more}, but {config.train} has no example of this")


def _check_words(config: OwnDataConfig, names: Sequence[str], train: Sequence[Example], say: Say) -> None:
    """Raises UserError if the words are tags and the labels are not. Warns if the labels are numbers, or if there is only one
    label."""
    words = {word for example in train if isinstance(example, WordsExample) for word in example.words}
    tags = [word for word in sorted(words) if is_tag(word) and "-" in word]
    if tags and all(map(is_tag, words)) and not as_tags(names):
        raise UserError(
            f"{config.train}: the column of words has tags, such as {tags[0]!r}; name the columns with task.own.words and "
            "task.own.labels (if the file has no column names, set columns=[labels,words])"
        )
    if all(name.lstrip("-").isdecimal() for name in names):
        say(
            f"{config.train}: the labels are numbers, so the metric is accuracy over words; if the numbers stand for entity "
            "tags, name the tags in label_names, such as [O,B-PER,I-PER], and the metric is F1 over entities"
        )
    if len(names) == 1:
        say(f"WARNING: every word of {config.train} has the label {names[0]!r}, so there is nothing to learn")


def _spelling(name: str) -> str:
    """Returns a key that all spellings of one label share. The key is the label in lower case, without white space, invisible
    characters and enclosing quotes, and with "-" for every dash. If the label is a number, the key is its value."""
    letters = _visible(unicodedata.normalize("NFKC", name).casefold())
    key = "".join(sign for sign in letters if not sign.isspace())
    key = (key[1:-1] if len(key) > 2 and key[0] in _QUOTES and key[-1] in _QUOTES else key).replace("\u2212", "-")
    key = {"true": "1", "false": "0"}.get(key, key)
    value = decimal_number(key.replace(",", "") if _THOUSANDS.fullmatch(key) else key)
    return key if value is None else repr(value + 0.0)  # -0 is 0


def _visible(text: str) -> str:
    """Returns a text without invisible characters, such as U+200B, and with "-" for every dash."""
    kinds = ((unicodedata.category(sign), sign) for sign in text if sign not in INVISIBLE)
    return "".join("-" if kind == "Pd" else sign for kind, sign in kinds if kind not in ("Cf", "Cc"))


def _look(text: str) -> str:
    """Returns the same text for all texts that look the same when they are printed."""
    return _visible(unicodedata.normalize("NFC", text)).translate(_LATIN)


_LATIN = str.maketrans(
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0405\u0406\u0408"
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf\u03bd\u0131",
    "ABEKMHOPCTYXSIJaeopcyxsijABEZHIKMNOPTYXovi",
)
"""The letters of Cyrillic, Greek and Turkish that look like Latin letters."""
_QUOTES = "\"'`\u2018\u2019\u201c\u201d"
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?")


def read_own_data(
    config: OwnDataConfig,
    kind: str,
    split: str,
    *,
    labels: Sequence[str] = (),
    by_number: bool = False,
    vectors: dict[pathlib.Path, bool] | None = None,
    say: Say = note,
) -> list[Example]:
    """Returns the examples of `split`, in the order of its files. `labels` are the valid names. If `labels` is empty, all names
    are valid. If `by_number` is set, files may have the indices of names in `labels` instead of the names. `vectors` has the file
    that has decided whether lists of numbers have a 0 or 1 for each label, instead of indices. If it is empty, the rows decide,
    as in `_read_vectors`, and this file is added. Raises UserError in the same cases as `load_own_data`."""
    if kind not in FORMATS:
        raise UserError(f"kind={kind!r} is not a kind of head; {nearest(kind, FORMATS)}")
    if split not in SPLITS:
        raise UserError(f"there is no split {split!r}; {nearest(split, SPLITS)}")
    if not getattr(config, split):
        raise UserError(f"the file of the {split} split is not given; set {split}=FILE")
    form, given = FORMATS[kind], pathlib.Path(getattr(config, split))
    known = labels if form.has_labels(config) else ()
    found: list[tuple[Location, Example]] = []
    documents: dict[str, int] = {}
    states_impossible = False
    empty: list[Location] = []
    for path in data_files(given, split, say):
        whole = form.read_whole(config, path, split, say)
        if whole is not None:
            start = len(found) + len(empty)
            found += [(location, _numbered(example, start)) for location, example in whole]
            states_impossible |= kind == "span" and f'"{_IMPOSSIBLE}"' in read_text(path)
            continue
        places = AnswerPlaces()
        unread = {name for name in _UNREAD[kind] if name != _IMPOSSIBLE and getattr(config, name) is None}
        try:
            for row in _rows(config, kind, path, split, say):
                for name in sorted(unread & row.values.keys()):
                    say(f"{path}: the column {name} is not read; set task.own.{name}={name} to read it")
                unread = set()
                states_impossible |= row.values.get(_IMPOSSIBLE) not in (None, "")
                example = form.parse(config, row, len(found) + len(empty), split == "test", places)
                if example is None:
                    empty.append(row.location)
                    continue
                if isinstance(example, WordsExample) and config.document:
                    at = documents.setdefault(row.name(config.document) or "", len(documents))
                    example = replace(example, document=at)
                found.append((row.location, example))
        except NoColumn as error:
            raise UserError(f"{error} ({_naming(config, kind, path, error)})") from error
        places.report(path, say)
    if empty and not found:
        raise UserError(f"{given}: {config.words} is empty in every row; name the column of the words in task.own.words")
    if empty:
        first = f"{empty[0].unit} {empty[0].line}"
        say(f"{given}: left out {counted(len(empty), 'row')} without words; the first is {first}")
    if not found:
        raise UserError(f"{given} has no rows; give a file with one example per row")
    if kind == "sequence" and config.text_b:
        blank = [at for at, e in found if isinstance(e, TextExample) and (is_invisible(e.text) or is_invisible(e.text_b or ""))]
        if blank:
            kept, first = counted(len(blank), "example"), f"{blank[0].unit} {blank[0].line}"
            say(f"{given}: kept {kept} with an empty text, which `predict` refuses; the first is {first}")
    if kind == "token" and len(found) > 1 and all(isinstance(e, WordsExample) and len(e.words) == 1 for _, e in found):
        say(f"WARNING: {given}: each of the {len(found):,} sentences has only one word, so no word has a context")
    if split == "test" and kind == "token" and "_" not in known and {name for _, e in found for name in _names(e)} == {"_"}:
        say(f"{given}: every tag is _, so the tags are unknown")
        found = [(location, replace(e, labels=None) if isinstance(e, WordsExample) else e) for location, e in found]
    if split == "test" and "-1" not in known:
        found = _without_hidden_labels(given, config, found, say)
    if split == "test" and kind == "span" and not states_impossible:
        found = _without_hidden_answers(given, found, say)
    if kind == "sequence" and config.problem == "multi_label":
        if config.label_names:
            found = _read_vectors(given, config, found, {} if vectors is None else vectors, say)
        else:
            _refuse_vectors(given, known, [example for _, example in found])
        if split == "test":
            found = _without_hidden_sets(given, found, say)
    if (by_number or config.label_names) and known:
        found = _by_number(given, found, known, say)
    return [example for _, example in (_valid(found, known) if known else found)]


def _without_hidden_labels(
    path: pathlib.Path, config: OwnDataConfig, found: list[tuple[Location, Example]], say: Say
) -> list[tuple[Location, Example]]:
    """Returns the examples of a test set, with unknown labels instead of -1. A list of labels is unknown if all its items are
    -1, but the single labels of a file only if all of them are."""
    if {e.label for _, e in found if isinstance(e, TextExample)} in ({"-1"}, {-1.0}):
        say(f"{path}: every {config.label} is -1, so the labels are unknown, as in test sets of the Hugging Face hub")
        return [(location, replace(e, label=None) if isinstance(e, TextExample) else e) for location, e in found]
    read: list[tuple[Location, Example]] = []
    hidden = 0
    for location, example in found:
        if isinstance(example, WordsExample) and {*(example.labels or ())} == {"-1"}:
            example = replace(example, labels=None)
            hidden += 1
        elif isinstance(example, TextExample) and isinstance(example.label, tuple) and {*example.label} == {"-1"}:
            example = replace(example, label=None)
            hidden += 1
        read.append((location, example))
    if hidden:
        say(
            f"{path}: all labels of {counted(hidden, 'row')} are -1, so they are unknown, as in test sets of the Hugging Face hub"
        )
    return read


def _without_hidden_sets(
    path: pathlib.Path, found: list[tuple[Location, Example]], say: Say
) -> list[tuple[Location, Example]]:
    """Returns the texts of a multi-label test set. If no label applies to any text, the labels are unknown, not empty."""
    if any(_names(example) for _, example in found) or not any(e.label == () for _, e in found if isinstance(e, TextExample)):
        return found
    say(
        f"{path}: no row has a label, so the labels are unknown, as in test sets of the Hugging Face hub, and there is no score"
    )
    return [(location, replace(e, label=None) if isinstance(e, TextExample) else e) for location, e in found]


def _without_hidden_answers(
    path: pathlib.Path, found: list[tuple[Location, Example]], say: Say
) -> list[tuple[Location, Example]]:
    """Returns the questions of a test set. If no question has an answer, the answers are unknown, not empty."""
    questions = [(location, example) for location, example in found if isinstance(example, QuestionExample)]
    impossible = sum(example.is_impossible for _, example in questions)
    if not impossible or any(example.answers for _, example in questions):
        return found
    say(
        f"{path}: no question has an answer, so the answers are unknown, as in test sets of the Hugging Face hub "
        f"({counted(impossible, 'question')}); if no answer is right, add the column {_IMPOSSIBLE} with true"
    )
    return [(location, replace(example, is_impossible=False)) for location, example in questions]


def _naming(config: OwnDataConfig, kind: str, path: pathlib.Path, error: NoColumn) -> str:
    """Returns the setting that names the missing column."""
    named = {name: getattr(config, name) for name in (*_COLUMNS[kind], "choices")}
    several = "label_names" if error.column in config.label_names else "choices"
    setting = next((name for name, value in named.items() if value in (error.column, (error.column,))), several)
    is_first_row = suffix(path) in DELIMITERS and not config.columns and "; known: " in str(error)
    return f"task.own.{setting}{', or columns if the first row is an example' if is_first_row else ''}"


def _numbered(example: Example, start: int) -> Example:
    """Adds `start` to the id and the document of a sentence, because both are indices within one file. `start` is the number of
    examples in all earlier files of the split. Questions are unchanged, since they have their own ids."""
    if isinstance(example, WordsExample) and start:
        return replace(example, id=str(int(example.id) + start), document=example.document + start)
    return example


def _rows(config: OwnDataConfig, kind: str, path: pathlib.Path, split: str, say: Say) -> Iterator[Row]:
    """Returns the rows of a file. Each row is an example. Raises UserError if two settings name the same column."""
    stated = {name: value for name in _COLUMNS[kind] if isinstance(value := getattr(config, name), str)}
    read = [name for name in stated if name not in ("id", "document", "sentence")]
    for name, other in itertools.combinations(read, 2):
        if stated[name] == stated[other]:
            raise UserError(f"task.own.{name} and task.own.{other} are both {stated[name]!r}; name a different column for each")
    wanted = {
        *stated.values(),
        *_UNREAD[kind],
        *(config.choices if kind == "choice" else config.label_names),
        SENTENCE,
    }
    rows = read_own_rows(
        path,
        (config.delimiter or "").replace("\\t", "\t") or None,
        quotes=config.quotes,
        columns=config.columns,
        separator=config.separator,
        wanted=wanted,
        by_name=FORMATS[kind].has_labels(config),
        say=say,
    )
    return _sentences(config, path, rows, split) if kind == "token" else rows


_COLUMNS = {
    "sequence": ("id", "text", "text_b", "label"),
    "token": ("id", "words", "labels", "document", "sentence"),
    "span": ("id", "question", "context", "answers", "answer_start"),
    "choice": ("id", "prompt", "label"),
}
"""The settings that name columns, by kind of head."""
_IMPOSSIBLE = "is_impossible"
_UNREAD = {"sequence": ("text_b",), "token": (), "span": ("answer_start", _IMPOSSIBLE), "choice": ()}
"""Columns that are read only if a setting names them, and SQuAD's column for questions without an answer."""


def _by_number(
    path: pathlib.Path, found: list[tuple[Location, Example]], known: Sequence[str], say: Say
) -> list[tuple[Location, Example]]:
    """Reads labels as indices of `known`, and replaces them by the names. If a label is not a number, or if a known name is a
    number, returns `found` unchanged. Raises UserError if an index is out of range."""
    numbers = {str(i): name for i, name in enumerate(known)}
    names = {name for _, example in found for name in _names(example)}
    if not names or not all(map(str.isdecimal, names)) or any(name.lstrip("-").isdecimal() for name in known):
        return found
    if not names <= numbers.keys():
        wrong = next((place, name) for place, example in found for name in _names(example) if name not in numbers)
        raise wrong[0].error(
            f"the label {wrong[1]} is out of range: labels are 0 ({known[0]}) to {len(known) - 1} ({known[-1]}); correct the "
            "label, or add its name to label_names"
        )

    def named(example: Example) -> Example:
        if isinstance(example, WordsExample) and example.labels is not None:
            return replace(example, labels=tuple(numbers[label] for label in example.labels))
        if isinstance(example, TextExample) and isinstance(example.label, str):
            return replace(example, label=numbers[example.label])
        if isinstance(example, TextExample) and isinstance(example.label, tuple):
            return replace(example, label=tuple(numbers[label] for label in example.label))
        return example

    say(
        f"{path}: the labels are numbers, which are read as {', '.join(f'{i}={numbers[i]}' for i in sorted(names, key=int)[:20])}"
    )
    return [(location, named(example)) for location, example in found]


def _valid(found: Iterable[tuple[Location, Example]], known: Sequence[str]) -> Iterator[tuple[Location, Example]]:
    """Yields the examples. Raises UserError for a label that is not `known`."""
    valid = frozenset(known)
    for location, example in found:
        if unknown := next((label for label in _names(example) if label not in valid), None):
            if alike := next((name for name in known if _look(name) == _look(unknown)), None):
                raise location.error(
                    f"the label {unknown!a} is not known, although it looks like {alike!a}; write both in the same way"
                )
            if unknown in _UNLABELLED and isinstance(example, TextExample):
                raise location.error(
                    f"the label {unknown!r} usually means that the label is unknown; remove the row, or add {unknown!r} to "
                    "label_names if it is a class"
                )
            listed = ", ".join(known[:_MOST_LISTED]) + (f", ... ({len(known):,} in all)" if len(known) > _MOST_LISTED else "")
            raise location.error(
                f"the label {unknown!r} is not known; known: {listed}. Correct the label, or add it to label_names"
            )
        yield location, example


def _read_vectors(
    path: pathlib.Path,
    config: OwnDataConfig,
    found: list[tuple[Location, Example]],
    vectors: dict[pathlib.Path, bool],
    say: Say,
) -> list[tuple[Location, Example]]:
    """Replaces lists of 0s and 1s, one for each of `label_names`, by the names that apply.

    `vectors` has the first file with lists of numbers and whether they are such lists, and not lists of indices. If it is empty,
    the rows decide: a list of 0s and 1s is unlike a list of indices if it repeats a number. If no list does so, as with [0, 1]
    for two labels, and some row has another number of labels, all lists are left as indices. If all rows fit both, they are
    read as 0s and 1s, with a warning. If there are lists of numbers, `path` is then added to `vectors`. Raises UserError if rows
    of both kinds occur."""
    names = _label_texts(config.label_names)
    if set(names) & set(_FLAGS):
        return found
    lists = [(place, e.label) for place, e in found if isinstance(e, TextExample) and isinstance(e.label, tuple)]
    flags = {labels: place for place, labels in lists if len(labels) == len(names) and all(map(_FLAGS.__contains__, labels))}
    others = [(place, labels) for place, labels in lists if labels not in flags]
    indices = set() if any(name.lstrip("-").isdecimal() for name in names) else {str(i) for i in range(len(names))}
    clear = next((labels for labels in flags if len(set(labels)) < len(labels) or not set(labels) <= indices), None)
    same = "write the labels of all rows in the same way"
    decider, as_flags = next(iter(vectors.items()), (path, None))
    if as_flags is False and clear:
        raise flags[clear].error(f"{config.label} is {short(list(clear))}, but {decider} has the indices of labels; {same}")
    of_indices = any(labels and set(labels) <= indices for _, labels in others)
    if as_flags is False or (as_flags is None and (not flags or (clear is None and others))):
        if flags or of_indices:
            vectors.setdefault(path, False)
        return found
    wrong = next(((place, labels) for place, labels in others if labels and (clear or set(labels) <= indices)), None)
    if wrong and (clear or as_flags):
        where = flags[clear] if clear else decider
        raise wrong[0].error(
            f"{config.label} is {short(list(wrong[1]))}, but {where} has a 0 or 1 for each of the "
            f"{counted(len(names), 'label')} of label_names; {same}"
        )

    def named(labels: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name, label in zip(names, labels, strict=True) if _FLAGS[label])

    if as_flags is None and clear is None:
        first = next(iter(flags))
        say(
            f"WARNING: {path}: {config.label} may be the indices of labels, or a 0 or 1 for each label; it is read as 0s and 1s, "
            f"so {short(list(map(int, first)))} is {', '.join(named(first)) or 'no label'}; if this is wrong, write the names"
        )
    read: dict[Any, tuple[str, ...]] = {labels: named(labels) for labels in flags}
    vectors.setdefault(path, True)
    return [(at, replace(e, label=read[e.label]) if isinstance(e, TextExample) and e.label in read else e) for at, e in found]


def _refuse_vectors(path: pathlib.Path, known: Sequence[str], examples: Sequence[Example]) -> None:
    """Raises UserError if the labels of all texts are lists of 0s and 1s. Such a list is ambiguous, because it may have a 0 or
    1 for each label, or 0 and 1 may be the names of labels."""
    sets = [example.label for example in examples if isinstance(example, TextExample) and isinstance(example.label, tuple)]
    flags = {label in _FLAGS for each in sets for label in each}
    if flags != {True} or set(known) & set(_FLAGS):
        return
    names = ",".join(sorted({label for each in sets for label in each}))
    or_names = f"if 0 and 1 are the names of labels, set label_names=[{names}]"
    sizes = sorted({len(each) for each in sets if each})
    if len(sizes) == 1:
        raise UserError(f"{path}: {_vector_remedy('each label', sizes[0])}; {or_names}")
    raise UserError(
        f"{path}: each label is a list of 0s and 1s, but the lists have different lengths "
        f"({', '.join(map(str, sizes[:_MOST_SHOWN]))}); give a 0 or 1 for each label in every row, or, {or_names}"
    )


_FLAGS: Mapping[str, bool] = {
    **dict.fromkeys(("0", "false", "False", "FALSE"), False),
    **dict.fromkeys(("1", "true", "True", "TRUE"), True),
}
"""Whether a label applies, by the spelling of 0 or 1 in lists and columns."""


def _vector_remedy(name: str, size: int) -> str:
    example = ",".join("abcdefgh"[:size]) if size <= 8 else "a,b,..."
    return f"{name} is a list of 0s and 1s, one for each of {counted(size, 'label')}; name the labels: label_names=[{example}]"


def collect_labels(examples: Iterable[Example]) -> tuple[str, ...]:
    """Returns the distinct label names of `examples`, sorted. If all names are numbers, they are sorted as numbers, so that
    "10" comes after "9"."""
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
    """Returns the label names of an example, or () for a regression or a choice."""
    if isinstance(example, WordsExample):
        return example.labels or ()
    if not isinstance(example, TextExample) or example.label is None or isinstance(example.label, float):
        return ()
    return (example.label,) if isinstance(example.label, str) else example.label


def _id(config: OwnDataConfig, row: Row, n: int) -> str:
    return str(n) if config.id is None else row.name(config.id) or ""


def _text(config: OwnDataConfig, row: Row, n: int, optional: bool, places: AnswerPlaces) -> TextExample:
    values = [row.values.get(name) for name in (config.text, config.text_b) if name]
    of_pair = len(values) > 1 and not all(isinstance(value, str) and is_invisible(value) for value in values)
    text = row.text(config.text, may_be_empty=of_pair)
    text_b = row.text(config.text_b, may_be_empty=of_pair) if config.text_b else None
    return TextExample(_id(config, row, n), text, text_b, _LABELS[config.problem](config, row, optional))


def _one_label(config: OwnDataConfig, row: Row, optional: bool) -> str | None:
    value = row.values.get(config.label)
    if isinstance(value, list) or (isinstance(value, str) and _LIST.fullmatch(value.strip())):
        raise row.location.error(f"{config.label} is the list {short(value)}; set problem=multi_label, or give one label per row")
    return row.label(config.label, optional=optional, known=config.label_names)


_LIST = re.compile(r"""[\[({]\s*['"].*|\[[-0-9., \n]+\]""", re.DOTALL)
"""A list of names or numbers that is written as text."""


def _value(config: OwnDataConfig, row: Row, optional: bool) -> float | None:
    text = row.name(config.label, optional=optional)
    return None if text is None else parse_number(row.location, config.label, text, -LARGEST, LARGEST)


@functools.lru_cache(maxsize=8)
def _label_texts(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns `label_text` of all names. The result is kept, since every row needs it."""
    return tuple(map(label_text, names))


def _several_labels(config: OwnDataConfig, row: Row, optional: bool) -> tuple[str, ...] | None:
    name, names = config.label, _label_texts(config.label_names)
    if name not in row.values:
        return _flagged_columns(config, row, optional)
    # An empty cell means that no label applies. The labels are unknown only if the column is missing or has nulls.
    _require_separator(config, row, name)
    labels = row.labels(name, optional=optional and row.values[name] != "", known=names)
    if labels is None:
        return None
    if optional and {*labels} == {"-1"} and "-1" not in names:
        return ("-1",)  # `_without_hidden_labels` decides
    if labels and not set(names) & set(_FLAGS) and all(label in _FLAGS for label in labels):
        if len(labels) == len(names):
            return labels  # `_read_vectors` decides for all rows
        if (names and not set(labels) <= {str(i) for i in range(len(names))}) or len(set(labels)) < len(labels):
            named = f", but label_names has {len(names)}" if names else ""
            raise row.location.error(f"{_vector_remedy(name, len(labels))}{named}")
    if fraction := next((label for label in labels if re.fullmatch(r"-?[0-9]+\.[0-9]+", label) and label not in names), None):
        raise row.location.error(f"{name} has the number {fraction}, which is not a label; list the labels that apply")
    if len(set(labels)) < len(labels):
        repeated = next(label for i, label in enumerate(labels) if label in labels[:i])
        raise row.location.error(f"{name} has {repeated!r} twice; list each label once")
    return labels


def _flagged_columns(config: OwnDataConfig, row: Row, optional: bool) -> tuple[str, ...] | None:
    """Returns the names in `config.label_names` whose column is 1, or None if these columns are missing from a test set."""
    if not any(name in row.values for name in config.label_names):
        if optional:
            return None
        flags = [name for name, value in row.values.items() if str(value).strip() in {*_FLAGS, "0.0", "1.0"}]
        listed = ",".join(flags[:_MOST_SHOWN]) + (",..." if len(flags) > _MOST_SHOWN else "")
        known = "" if flags else f"{nearest(config.label, row.values)}; "
        remedy = f"{known}set label_names=[{listed or 'a,b'}] to read columns of 0 and 1"
        location = Location(row.location.path, 1) if row.has_cells else row.location
        raise location.error(f"there is no column {config.label!r} with lists of labels; {remedy}")
    stated = {row.name(name, optional=name in row.values) for name in config.label_names}
    if optional and stated == {None}:
        return None
    if optional and stated == {"-1"} and "-1" not in config.label_names:
        return ("-1",)  # as in the test set of Jigsaw's toxic comments; `_without_hidden_labels` decides
    labels = []
    for name in config.label_names:
        flag = row.name(name, optional=name in row.values) or ""
        if flag not in _FLAGS:
            raise row.location.error(f"{name} is {flag!r}, not 0 or 1; {CORRECT_ROW}")
        labels += [label_text(name)] * _FLAGS[flag]
    return tuple(labels)


def _require_separator(config: OwnDataConfig, row: Row, name: str) -> None:
    """Raises UserError if no separator is set and a cell seems to be a list with a separator other than spaces. Items that are
    all in `label_names` are names of labels."""
    value = str(row.values.get(name))
    begins = value.lstrip()[:2]
    if config.separator is not None or not row.has_cells or begins[:1] == "[" or begins in ("('", '("', "{'", '{"'):
        return
    items = split_words(value)
    names = _label_texts(config.label_names)
    if all(label_text(item) in names for item in items):
        return
    if "\n" in value.strip() and re.search(r"\S[ \t]+\S", value):
        raise row.location.error(
            f'{name} is {short(value)}, with spaces and a line end inside; list the items as ["a", "b"], or, if spaces separate '
            "them too, set separator=' '"
        )
    found = _SEPARATOR.search(value)
    sign = found[0].strip() if found else None
    if sign is None and len(items) > 1:
        sign = next((item for item in items if all(unicodedata.category(mark) in _MARKS for mark in item)), None)
    if sign:
        raise row.location.error(
            f'{name} is {short(value)}; set separator={sign!r} if this sign separates the items, or list the items as ["a", "b"] '
            "(set separator=' ' if only spaces separate them)"
        )


_SEPARATOR = re.compile(r"[,;|、，；／：،؛]|(?<=\w)\s*[/&+](?=\s*\w)")
"""Signs that separate the items of a list. Some, such as "/", do so only between two words."""
_MARKS = ("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm")
"""The Unicode categories of punctuation and of mathematical signs."""


_LABELS: Mapping[str, Callable[[OwnDataConfig, Row, bool], Label | None]] = {
    "classification": _one_label,
    "regression": _value,
    "multi_label": _several_labels,
}
"""The functions that read the label of a text, by `OwnDataConfig.problem`."""


_IGNORED = "-100"
"""PyTorch's loss ignores this label. It occurs in data sets that were tokenised for training."""


def _tagging(config: OwnDataConfig, row: Row, n: int, optional: bool, places: AnswerPlaces) -> WordsExample | None:
    """Returns the sentence of a row, or None if it has neither words nor labels, as some rows of NCBI's diseases."""
    words = row.texts(config.words) or ()
    labels = row.labels(config.labels, optional=optional, known=config.label_names)
    if not words and not labels:
        return None
    if not words:
        raise row.location.error(f"{config.words} is empty; remove the row")
    if optional and not labels:
        labels = None
    if labels is not None and _IGNORED in labels and _IGNORED not in config.label_names:
        raise row.location.error(
            f"{config.labels} has the number {_IGNORED}, which marks subwords without a label; give the words and labels as "
            "they were before tokenisation"
        )
    if row.has_cells and config.separator is None and labels is not None and len(words) == len(labels) == 1:
        sign = next((sign for sign in ",;|" if 0 < labels[0].count(sign) == words[0].count(sign)), None)
        if sign:
            raise row.location.error(
                f"{config.words} and {config.labels} have {sign!r} inside a single word and a single label; set "
                f"separator={sign!r}"
            )
    if labels is not None and len(labels) != len(words):
        raise row.location.error(
            f"there are {len(words)} {config.words}, but {len(labels)} {config.labels}; give one label per word"
        )
    return WordsExample(_id(config, row, n), words, labels, n)


def _has_spans(value: object) -> bool:
    """Returns whether a value lists entities, either as [first character, last character, name] or as objects with a start and
    an end."""
    if not isinstance(value, list) or not value:
        return False
    return all(
        (isinstance(item, list) and len(item) == 3 and [type(part) for part in item] == [int, int, str])
        or (isinstance(item, dict) and {"start", "end"} <= item.keys() and {"label", "labels"} & item.keys())
        for item in value
    )


def _sentences(config: OwnDataConfig, path: pathlib.Path, rows: Iterable[Row], split: str) -> Iterator[Row]:
    """Yields the sentences of a file as rows. If each row is a word, the rows of a sentence are joined. A row without a
    sentence number continues the sentence. Raises UserError if most sentences of a table (`_MOST_OF`) have only one word."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return
    if not first.has_cells and config.words not in first.values and any(map(_has_spans, first.values.values())):
        raise first.location.error(
            f"there is no field {config.words!r}, but entities with the offsets of their characters, as in spaCy, doccano and "
            'Label Studio; give the words and tags of each text, as {"words": ["in", "Paris"], "labels": ["O", "B-LOC"]}'
        )
    column = config.sentence or (SENTENCE if SENTENCE in first.values else None)
    if first.has_cells and config.words not in first.values:
        known = nearest(config.words, first.values)
        raise Location(path, 1).error(f"there is no column {config.words!r}; {known} (task.own.words); {_IN_COLUMNS}")
    whole: Iterable[Row] = itertools.chain([first], rows)
    if column:
        whole = _joined(config, column, whole, split == "test")
    count = single = 0
    for row in whole:
        count += 1
        single += len(row.texts(config.words) or ()) == 1
        yield row
    if first.has_cells and single > 1 and single >= _MOST_OF * count:
        those = f"each of the {count:,} sentences has" if single == count else f"{single:,} of the {count:,} sentences have"
        if column:
            raise UserError(
                f"{path}: {those} only one word if the column {column!r} has the sentence of each row; sort the rows by this "
                "column, or name another column in sentence"
            )
        raise UserError(
            f"{path}: {those} only one word; if a column has the sentence of each row, set sentence=COLUMN; if each row is a "
            f"complete sentence, give JSON lines; {_IN_COLUMNS}"
        )


_MOST_OF = 0.9
"""If at least this fraction of the sentences has only one word, each row of the table is assumed to be a word."""
_IN_COLUMNS = (
    "if each line has a word and its tag, separate them by spaces or TABs, end each sentence with an empty line, leave out "
    "column names, and give the file a name that ends in .conll"
)


def _joined(config: OwnDataConfig, column: str, rows: Iterable[Row], optional: bool) -> Iterator[Row]:
    """Yields the sentences of a table with a word in each row. A sentence also ends where its document ends, since each
    document may number its sentences from 1."""
    held: list[tuple[Row, str, str | None]] = []
    now: dict[str, str] = {}

    def joined() -> Row:
        (begin, *_), values = held[0], {config.words: [word for _, word, _ in held]}
        labels = [label for *_, label in held if label is not None]
        if labels:
            values[config.labels] = labels
        rest = {name: value for name, value in begin.values.items() if name not in (config.words, config.labels)}
        return replace(begin, values={**rest, **values}, has_cells=False)

    for row in rows:
        stated = {name: row.name(name, optional=name in row.values) for name in filter(None, (column, config.document))}
        begun = {name: value for name, value in stated.items() if value}
        if held and not begun.items() <= now.items():
            yield joined()
            held = []
        now |= begun
        label = row.label(config.labels, optional=optional, known=config.label_names)
        held.append((row, row.text(config.words), label))
    if held:
        yield joined()


def _column_file(config: OwnDataConfig, path: pathlib.Path, split: str, say: Say) -> list[tuple[Location, Example]] | None:
    """Returns the sentences of a file in the CoNLL or CoNLL-U format, or None for a table, JSON or Parquet."""
    ending = suffix(path)
    if ending in CONLLU:
        if config.document:
            raise UserError(
                f"{path}: a CoNLL-U file has no column {config.document!r}, since a line '# newdoc' begins a document; remove "
                "task.own.document"
            )
        column = TAGS[0] if config.labels == OwnDataConfig.labels else config.labels
        return _placed(path, read_conllu(path, column=column, may_lack_tags=split == "test", say=say))
    is_table = DELIMITERS.get(ending) in (",", "|") or config.delimiter not in (None, "\t", "\\t", " ")
    if ending in (*JSON, *COLUMNAR) or config.quotes or is_table:
        return None
    if ending not in COLUMN_FILES and not _has_word_lines(config, path):
        return None
    word: int = 0
    tag: int | None = -1
    if config.document and config.document not in config.columns:
        named, width = (config.document, config.words, config.labels), conll_width(path)
        remedy = f"name all columns in their order, such as columns={_example_columns(named, width)}, or "
        raise UserError(
            f"{path}: no column is named {config.document!r} (task.own.document); {remedy if width >= len(named) else ''}"
            "remove this setting if lines -DOCSTART- begin the documents"
        )
    if config.columns:
        if config.words not in config.columns:
            raise UserError(
                f"{path}: columns={config.columns} does not name {config.words!r}; {nearest(config.words, config.columns)}"
            )
        word = config.columns.index(config.words)
        tag = config.columns.index(config.labels) if config.labels in config.columns else None
    document = config.columns.index(config.document) if config.document else None
    width = conll_width(path)
    if split == "test" and tag == -1 and (width == 1 or (config.train and width < _column_count(config.train))):
        tag = None
    only_first = split == "test" and tag is not None and max(word, document or 0) < width <= tag
    if only_first:  # a test file may end before the column of the tags
        tag = None
    if tag is None and split != "test":
        raise UserError(
            f"{path}: columns={config.columns} does not name {config.labels!r}; {nearest(config.labels, config.columns)}"
        )
    if split != "test" and width < 2:
        raise UserError(
            f"{path} has only one column; write a word and its tag on each line, separated by a TAB or spaces (not by a comma)"
        )
    fits = width == len(config.columns) if split == "train" else max(word, tag or 0, document or 0) < width
    if config.columns and not fits:  # a dev or test file may have more columns or fewer, such as notes
        example = f", such as columns={_example_columns(config.columns, width)}" if width > len(config.columns) else ""
        remedy = f"name all columns in their order{example}" if split == "train" else "give a file with these columns"
        raise UserError(
            f"{path} has {counted(width, 'column')}, but columns=[{','.join(config.columns)}] names {len(config.columns)}; "
            f"{remedy}"
        )
    found = read_conll(path, word=word, tag=tag, document=document, say=say)
    first = found[0]
    if first.words[0].lower() in _HEADER[0] and (first.labels is None or first.labels[0].lower() in _HEADER[1]):
        raise Location(path, 1).error(
            f"the line has column names ({first.words[0]}) instead of a word and its tag; remove the line"
        )
    if not config.columns and (fault := column_instead_of_words(found, width)):
        has, columns = fault
        conllu = "if it is CoNLL-U, give it a name that ends in .conllu, or " if width == len(CONLLU_COLUMNS) else ""
        example = _example_columns([{"words": config.words, "labels": config.labels}.get(name, name) for name in columns], width)
        remedy = f"name all columns in their order, such as columns={example}"
        if split != "test" and width < 3:
            remedy = "write a word and its tag on each line"
        raise UserError(f"{path}: {has}; {conllu}{remedy}")
    return _placed(path, found)


def _example_columns(names: Sequence[str], width: int) -> str:
    """Returns a setting `columns` with these names for a file with `width` columns. Further columns get the names x, x2, ...
    that are not used yet, and come before the last one. If there are too many names, those after the first are left out, but
    not the last two."""
    names = [*names[:1], *names[len(names) - max(2, width - 1) :]] if width < len(names) else names
    others = [name for name in ("x", *(f"x{i}" for i in range(2, 2 * width + 1))) if name not in names]
    return f"[{','.join([*names[:-1], *others[: width - len(names)], names[-1]])}]"


_HEADER = (
    {"word", "words", "token", "tokens", "form", "text"},
    {"tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "pos", "pos_tag", "upos", "entity", "bio", "iob"},
)
"""Usual names of the column of words, and of the column of tags."""


def _column_count(train: str) -> int:
    """Returns the number of columns of a training file with a word on each line, or 0 for any other file."""
    path = pathlib.Path(train)
    return conll_width(path) if path.is_file() and suffix(path) in (*COLUMN_FILES, ".tsv", ".txt") else 0


def _has_word_lines(config: OwnDataConfig, path: pathlib.Path) -> bool:
    """Returns whether a text file has a word on each line, empty lines between sentences, and no row of column names."""
    lines = split_lines(read_text(path).strip("\r\n"))
    rows = [[cell.strip() for cell in line.split("\t")] for line in lines if line.strip()]
    if not config.columns and config.words.lower() in {cell.strip('"').lower() for cell in rows[0]}:
        return False
    # If a row has a sentence and a tag for each of its words, the file is a table, even if rows are separated by empty lines.
    if any(" " in row[0] and len(row) > 1 and len(row[0].split()) == len(row[-1].split()) for row in rows):
        return False
    return len(rows) < len(lines) or any(map(begins_document, lines))


def _placed(path: pathlib.Path, examples: Sequence[WordsExample]) -> list[tuple[Location, Example]]:
    return [(Location(path, i, "sentence"), example) for i, example in enumerate(examples, 1)]


def _question(config: OwnDataConfig, row: Row, n: int, optional: bool, places: AnswerPlaces) -> QuestionExample:
    if {"qas", "header"} & row.values.keys() and config.question not in row.values:
        raise row.location.error(several_questions(config.question, row.location.path))
    context, given = row.text(config.context), row.values.get(config.answers)
    name, question = _id(config, row, n), row.text(config.question)
    is_impossible = str(row.values.get(_IMPOSSIBLE)).strip().lower()
    if is_impossible in ("true", "1", "1.0"):
        return QuestionExample(name, question, context, is_impossible=True)
    if row.values.get(config.answers) is None and optional:
        return QuestionExample(name, question, context)
    given = row.value(config.answers) if given != "" else []
    if isinstance(given, str) and given.strip() not in context:
        given = row.written(config.answers)
    start = row.value(config.answer_start) if config.answer_start and given != [] else None
    try:
        answers = listed_answers(given, start)
    except ValueError as error:
        raise row.location.error(f"{config.answers} {error}; {CORRECT_ROW}") from error
    found = tuple(places.find(name, context, text, start) for text, start in answers)
    return QuestionExample(name, question, context, found, is_impossible=not found and is_impossible not in ("false", "0", "0.0"))


def _choice(config: OwnDataConfig, row: Row, n: int, optional: bool, places: AnswerPlaces) -> ChoiceExample:
    choices, keys = _choices(config, row)
    if len(choices) < 2:
        raise row.location.error(
            f"{', '.join(config.choices)} has {counted(len(choices), 'choice')}; give two or more choices for each question"
        )
    label, first = row.name(config.label, optional=optional), config.first_choice
    names = [str(i) for i in range(first, first + len(choices))] if keys is None else list(keys)
    if keys is None and label is not None and len(label) == 1 and label.upper() in ascii_uppercase[: len(choices)]:
        names, label = list(ascii_uppercase[: len(choices)]), label.upper()
    if optional and label == "-1":  # unknown, as in test sets of the Hugging Face hub
        label = None
    if label is not None and label not in names:
        listed = ", ".join(names)
        if keys is not None:
            raise row.location.error(f"{config.label} is {label!r}, but the labels of the choices are {listed}; {CORRECT_ROW}")
        other = 0 if first else 1
        counts_from_other = label in map(str, range(other, other + len(choices)))
        remedy = f"set first_choice={other}" if counts_from_other else CORRECT_ROW
        if label in choices:
            remedy = f"write the index of the choice ({names[choices.index(label)]}) instead of its text"
        raise row.location.error(f"{config.label} is {label!r}, not one of {listed} (first_choice={first}); {remedy}")
    right = None if label is None else names.index(label)
    return ChoiceExample(_id(config, row, n), row.text(config.prompt), choices, right)


def _choices(config: OwnDataConfig, row: Row) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Returns the choices in one or several columns. If a single column has texts with labels (`as_choices`), also returns the
    label of each choice, otherwise None. Blank columns after the last choice are left out."""
    name, *others = config.choices
    if others:
        given = without_blank_end([row.value(name, optional=name in row.values) for name in config.choices])
        return tuple(row.text(name) for name in config.choices[: len(given)]), None
    value = row.value(name)
    if isinstance(value, str) and CHOICES_OBJECT.match(value):
        value = row.written(name)
    if choices := as_choices(value):
        parts = replace(row, values={f"{name}.{part}": held for part, held in choices.items()}, has_cells=False)
        texts, keys = parts.texts(f"{name}.text") or (), parts.labels(f"{name}.label") or ()
        if len(texts) != len(keys) or len(set(keys)) != len(keys):
            raise row.location.error(
                f"{name} has {counted(len(texts), 'text')} and the labels {', '.join(keys)}; give each text a label of its own"
            )
        return texts, keys
    if config.separator is None and row.has_cells and isinstance(value, str) and not value.lstrip().startswith(("[", "(", "{")):
        raise row.location.error(
            f'{name} is {short(value)}, not a list like ["a", "b"]; set separator to the text between the choices, or name a '
            "column for each choice with choices=[a,b]"
        )
    return row.texts(name) or (), None


def _squad_file(config: OwnDataConfig, path: pathlib.Path, split: str, say: Say) -> list[tuple[Location, Example]] | None:
    """Returns the questions of a file in the SQuAD format, or None for a file with one question per row."""
    if suffix(path) not in JSON:
        return None
    text = read_text(path)
    first = text.lstrip().partition("\n")[0]
    try:
        value = parse_json(first)
    except ValueError:
        value = None
    has_rows = first[:1] == "[" or (isinstance(value, dict) and "data" not in value)
    if has_rows or (suffix(path) != ".json" and value is None and '"paragraphs"' not in text):
        return None
    return [(Location(path, i, "question"), example) for i, example in enumerate(read_squad(path, say=say), 1)]


def _no_whole_file(config: OwnDataConfig, path: pathlib.Path, split: str, say: Say) -> None:
    """Returns None, since the files of this kind of head always have rows."""


@dataclass(frozen=True)
class Format:
    """The functions that read the data of a kind of head."""

    parse: Callable[[OwnDataConfig, Row, int, bool, AnswerPlaces], Example | None]
    """Takes the settings, a row, the index of the row, whether the label may be absent, and `AnswerPlaces`. Returns an
    example, or None for a row that is left out."""
    has_labels: Callable[[OwnDataConfig], bool] = lambda config: False
    """Whether the labels are names."""
    read_whole: Callable[[OwnDataConfig, pathlib.Path, str, Say], list[tuple[Location, Example]] | None] = _no_whole_file
    """Reads a file without named columns. Returns None for a file with named columns."""


FORMATS: Mapping[str, Format] = {
    "sequence": Format(_text, has_labels=lambda config: OUTPUTS[config.problem].has_accuracy),
    "token": Format(_tagging, has_labels=lambda config: True, read_whole=_column_file),
    "choice": Format(_choice),
    "span": Format(_question, read_whole=_squad_file),
}
"""The formats by kind of head."""
