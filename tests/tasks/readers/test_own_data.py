from __future__ import annotations

import bz2
import contextlib
import csv
import dataclasses
import functools
import gzip
import json
import lzma
import pathlib
import re
import subprocess
import time
from typing import Any

import pyarrow
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.config import OwnDataConfig
from bert_jax.tasks.examples import ChoiceExample, QuestionExample, TextExample, WordsExample
from bert_jax.tasks.readers import own_data
from bert_jax.tasks.readers.own_data import load_own_data, read_own_data, text_columns
from tests.compressed import PACK, compressed


def put(path: pathlib.Path, *rows: object) -> str:
    """Writes a file of these rows; objects are written as JSON."""
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_bytes(compressed(text.encode(), path.name))
    return str(path)


def test_every_format_gives_the_same_texts(tmp_path: pathlib.Path):
    wanted = [TextExample("0", 'a "b", c', "d", "x"), TextExample("1", "e", "f", "y")]
    files = {
        "a.csv": ["text,more,label", '"a ""b"", c",d,x', "e,f,y"],
        "a.tsv": ["label\ttext\tmore", 'x\ta "b", c\td', "y\te\tf"],
        "a.jsonl": [{"text": 'a "b", c', "more": "d", "label": "x"}, {"text": "e", "more": "f", "label": "y"}],
    }
    for name, rows in files.items():
        for ending in ("", *PACK):
            path = put(tmp_path / (name + ending), *rows)
            assert read_own_data(OwnDataConfig(train=path, text_b="more"), "sequence", "train") == wanted
    quoted = put(tmp_path / "c.tsv", "text\tmore\tlabel", '"a ""b"", c"\t"d"\tx', "e\tf\ty")
    assert read_own_data(OwnDataConfig(train=quoted, text_b="more", quotes=True), "sequence", "train") == wanted
    literal = put(tmp_path / "c.csv", "text,more,label", '"a,d",x')
    assert read_own_data(OwnDataConfig(train=literal, quotes=False), "sequence", "train") == [TextExample("0", '"a', None, "x")]
    headless = put(tmp_path / "b.txt", 'x;a "b", c;d', "y;e;f")
    config = OwnDataConfig(train=headless, delimiter=";", columns=("kind", "one", "two"), text="one", text_b="two", label="kind")
    assert read_own_data(config, "sequence", "train") == wanted


@pytest.mark.parametrize("between", [" ", "\t", "  "])
def test_the_remedy_for_fasttexts_format_is_right(tmp_path: pathlib.Path, between: str):
    path = put(tmp_path / "a.txt", *(f"__label__{labels}{between}it was so" for labels in ("x", f"x{between}__label__y")))
    with pytest.raises(UserError, match=r"a\.txt, line 1: the file is in fastText's format") as refused:
        read_own_data(OwnDataConfig(train=path), "sequence", "train")
    command = re.search(r"\(sed -E '(.*)'\), and set columns=\[label,text\]", str(refused.value))
    assert command
    made = subprocess.run(["sed", "-E", command[1], path], capture_output=True, text=True, check=True).stdout
    read = read_own_data(OwnDataConfig(train=put(tmp_path / "b.txt", made), columns=("label", "text")), "sequence", "train")
    assert [(example.text, example.label) for example in read] == [("it was so", "x"), ("it was so", "x y")]


def test_a_quoted_cell_may_have_line_ends_and_any_length(tmp_path: pathlib.Path):
    long = "w " * 100_000
    path = put(tmp_path / "a.csv", "text,label", '"one\ntwo","x"', f'"{long}",y', "three,")
    assert [e.text for e in read_own_data(OwnDataConfig(test=path), "sequence", "test")] == ["one\ntwo", long, "three"]
    with pytest.raises(UserError, match=r"a\.csv, line 5: label is \"\", not a text"):
        read_own_data(OwnDataConfig(train=path), "sequence", "train")
    torn = put(tmp_path / "b.csv", "text,label", "fine,x", '"torn,x', "more,x")
    with pytest.raises(UserError, match=r"b\.csv, line 3: the quotes in this row are not balanced"):
        read_own_data(OwnDataConfig(train=torn), "sequence", "train")


def test_labels_are_sorted_from_the_training_file_and_numbers_numerically(tmp_path: pathlib.Path):
    def labels(*names: object) -> tuple[str, ...]:
        path = put(tmp_path / "a.jsonl", *({"text": "t", "label": name} for name in names))
        return load_own_data(OwnDataConfig(train=path), "sequence").labels

    assert labels("pear", "Fig", "apple", "pear") == ("Fig", "apple", "pear")
    assert labels(10, 9, "-1", 2.5) == ("-1", "2.5", "9", "10")
    assert labels(10, 9, "none") == ("10", "9", "none")
    assert labels(True, False) == ("false", "true")


@pytest.mark.parametrize(
    ("classes", "mark"),
    [(("0", "1", "2"), "-1"), (("no", "yes"), "-"), (("0", "1"), "-"), (("-", "+", "="), ""), (("-1", "0", "1"), "")],
)
def test_a_label_that_means_unknown_is_no_class_unless_label_names_lists_it(tmp_path: pathlib.Path, classes, mark: str):
    path = put(tmp_path / "a.csv", "text,label", *(f"t,{name}" for name in (*classes, *[mark or classes[0]] * 2)))
    says = rf"a\.csv: 2 rows with the label {mark}, which usually means that the label is unknown; remove these rows, or list all"
    with pytest.raises(UserError, match=says) if mark else contextlib.nullcontext():
        load_own_data(OwnDataConfig(train=path), "sequence")
    names = (*classes, *filter(None, [mark]))
    assert load_own_data(OwnDataConfig(train=path, label_names=names), "sequence").labels == names
    with pytest.raises(UserError, match=rf"the label '{mark}' usually means that") if mark else contextlib.nullcontext():
        load_own_data(OwnDataConfig(train=path, label_names=classes), "sequence")


def test_a_label_missing_in_training_is_refused_with_its_line(tmp_path: pathlib.Path):
    train = put(tmp_path / "train.tsv", "text\tlabel", "a\tyes", "b\tno")
    dev = put(tmp_path / "dev.tsv", "text\tlabel", "a\tyes", "b\tmaybe")
    with pytest.raises(UserError, match=r"dev\.tsv, line 3: the label 'maybe' is not known; known: no, yes"):
        load_own_data(OwnDataConfig(train=train, dev=dev), "sequence")
    data = load_own_data(OwnDataConfig(train=train, dev=dev, label_names=("yes", "no", "maybe")), "sequence")
    assert (data.labels, len(data.train), len(data.dev), data.test) == (("yes", "no", "maybe"), 2, 2, [])
    with pytest.raises(UserError, match=r"train\.tsv, line 3: the label 'no' is not known; known: yes, maybe"):
        load_own_data(OwnDataConfig(train=train, label_names=("yes", "maybe")), "sequence")
    with pytest.raises(UserError, match="the labels are not known; set train"):
        load_own_data(OwnDataConfig(dev=dev), "sequence")


def test_only_a_test_file_may_be_unlabelled(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "text", "a")
    assert read_own_data(OwnDataConfig(test=path), "sequence", "test") == [TextExample("0", "a", None, None)]
    with pytest.raises(UserError, match=r"a\.csv, line 1: there is no column 'label'; known: text"):
        read_own_data(OwnDataConfig(dev=path), "sequence", "dev")


def test_a_missing_column_is_refused_with_the_nearest(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "Text,label", "a,b")
    with pytest.raises(UserError, match="no column 'text'; did you mean 'Text'"):
        read_own_data(OwnDataConfig(train=path), "sequence", "train")
    path = put(tmp_path / "a.jsonl", {"text": "a", "label": "b"}, {"text": "a", "labels": "b"})
    with pytest.raises(UserError, match="line 2: there is no field 'label'; did you mean 'labels'"):
        read_own_data(OwnDataConfig(train=path), "sequence", "train")


@pytest.mark.parametrize("label", ["1e300", "-1e7", "nan", "inf"])
def test_a_value_beyond_float32_is_refused(tmp_path: pathlib.Path, label: str):
    path = tmp_path / "train.csv"
    path.write_text(f"text,label\ngood,1\nbad,{label}\n")
    with pytest.raises(UserError, match=rf"train\.csv, line 3: label is '{label}', not a number from -1e\+06 to 1e\+06; correct"):
        load_own_data(OwnDataConfig(train=str(path), problem="regression"), "sequence")


def test_regression_and_multi_label_targets_are_read(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.jsonl", {"text": "a", "label": 2}, {"text": "b", "label": "-0.5"})
    data = load_own_data(OwnDataConfig(train=path, problem="regression"), "sequence")
    assert ([e.label for e in data.train], data.labels) == ([2.0, -0.5], ())
    path = put(tmp_path / "b.jsonl", {"text": "a", "label": "inf"})
    with pytest.raises(UserError, match=r"line 1: label is 'inf', not a number from -1e\+06"):
        load_own_data(OwnDataConfig(train=path, problem="regression"), "sequence")
    path = put(tmp_path / "c.csv", "text,label", "a,sad|old", "b,", "c,old")
    data = load_own_data(OwnDataConfig(train=path, problem="multi_label", separator="|"), "sequence")
    assert ([e.label for e in data.train], data.labels) == ([("sad", "old"), (), ("old",)], ("old", "sad"))
    path = put(tmp_path / "e.csv", "text", "a")
    config = OwnDataConfig(dev=path, test=path, problem="multi_label")
    assert read_own_data(config, "sequence", "test") == [TextExample("0", "a", None, None)]
    with pytest.raises(UserError, match="no column 'label'"):
        read_own_data(config, "sequence", "dev")
    path = put(tmp_path / "d.jsonl", {"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []})
    assert load_own_data(OwnDataConfig(train=path, problem="multi_label"), "sequence").labels == ("x", "y")


def test_words_are_lists_or_cells_and_each_has_one_label(tmp_path: pathlib.Path):
    wanted = [WordsExample("0", ("Ada", "sings"), ("PER", "O"), 0), WordsExample("1", ("a",), ("O",), 1)]
    lists = put(tmp_path / "a.jsonl", {"words": ["Ada", "sings"], "labels": ["PER", "O"]}, {"words": ["a"], "labels": ["O"]})
    cells = put(tmp_path / "a.csv", "words,labels", "Ada  sings,PER O", "a,O")
    for path in (lists, cells):
        data = load_own_data(OwnDataConfig(train=path), "token")
        assert (data.train, data.labels) == (wanted, ("O", "PER"))
    grouped = put(tmp_path / "b.csv", "words,labels,from", "a,O,x", "b b,O O,y", "c,O,y")
    read = read_own_data(OwnDataConfig(train=grouped, document="from"), "token", "train")
    assert [e.document for e in read if isinstance(e, WordsExample)] == [0, 1, 1]
    text = put(tmp_path / "c.jsonl", {"words": "Ada sings", "labels": ["PER", "O"]})
    with pytest.raises(UserError, match=r'line 1: words is "Ada sings", not a list of texts'):
        read_own_data(OwnDataConfig(train=text), "token", "train")
    short = put(tmp_path / "c.csv", "words,labels", "Ada sings,PER")
    with pytest.raises(UserError, match="line 2: there are 2 words, but 1 labels"):
        read_own_data(OwnDataConfig(train=short), "token", "train")


def test_answers_are_located_in_their_context(tmp_path: pathlib.Path):
    context = "one two one two"
    rows = [
        {"question": "q", "context": context, "answers": [{"text": "two", "answer_start": 12}, "one"]},
        {"question": "q", "context": context, "answers": {"text": ["two"], "answer_start": [4]}},
        {"question": "q", "context": context, "answers": []},
        {"question": "q", "context": context, "answers": [{"text": "one", "answer_start": 10}]},
        {"question": "q", "context": context, "answers": ["six"]},
    ]
    said: list[str] = []
    path = put(tmp_path / "a.jsonl", *rows)
    read = read_own_data(OwnDataConfig(train=path), "span", "train", say=said.append)
    answers = [(("two", 12), ("one", 0)), (("two", 4),), (), (("one", 8),), (("six", None),)]
    assert read == [QuestionExample(str(i), "q", context, given, given == ()) for i, given in enumerate(answers)]
    assert [line.split(": ")[1].split(" ")[0] for line in said] == ["moved", "1"]
    assert "moved 1 answer to the nearest place with the same text; the first belongs to the question 3" in said[0]
    assert "the first belongs to the question 4" in said[1]
    path = put(tmp_path / "a.csv", "question,context,answers,start", f"q,{context},two,12", f"q,{context},,")
    read = read_own_data(OwnDataConfig(train=path, answer_start="start"), "span", "train")
    assert [e.answers for e in read if isinstance(e, QuestionExample)] == [(("two", 12),), ()]
    path = put(tmp_path / "b.csv", "question,context", f"q,{context}")
    assert read_own_data(OwnDataConfig(test=path), "span", "test") == [QuestionExample("0", "q", context)]


def test_choices_are_a_list_or_columns_and_labels_count_from_the_given_start(tmp_path: pathlib.Path):
    lists = put(tmp_path / "a.jsonl", {"prompt": "p", "choices": ["x", "y", "z"], "label": 2})
    cells = put(tmp_path / "a.csv", "prompt,c0,c1,c2,label", "p,x,y,z,3")
    wanted = [ChoiceExample("0", "p", ("x", "y", "z"), 2)]
    assert load_own_data(OwnDataConfig(train=lists), "choice").train == wanted
    config = OwnDataConfig(train=cells, choices=("c0", "c1", "c2"), first_choice=1)
    assert load_own_data(config, "choice").train == wanted
    with pytest.raises(UserError, match=r"line 2: label is '3', not one of 0, 1, 2 \(first_choice=0\)"):
        load_own_data(OwnDataConfig(train=cells, choices=("c0", "c1", "c2")), "choice")
    with pytest.raises(UserError, match=r"line 1: there is no field 'label'"):
        labels_of(put(tmp_path / "c.jsonl", {"prompt": "p", "choices": ["x", "y"]}), "choice")
    from_0 = put(tmp_path / "b.csv", "prompt,c0,c1,c2,label", "p,x,y,z,0")
    with pytest.raises(UserError, match=r"label is '0', not one of 1, 2, 3 \(first_choice=1\); set first_choice=0"):
        load_own_data(dataclasses.replace(config, train=from_0), "choice")


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("a.csv", ["prompt,c0,c1,c2,label", "p,x,y,,1"]),
        ("a.jsonl", [{"prompt": "p", "c0": "x", "c1": "y", "c2": None, "label": 1}]),
    ],
)
def test_columns_after_the_last_choice_may_be_blank(tmp_path: pathlib.Path, name: str, rows: list[Any]):
    config = OwnDataConfig(train=put(tmp_path / name, *rows), choices=("c0", "c1", "c2"))
    assert load_own_data(config, "choice").train == [ChoiceExample("0", "p", ("x", "y"), 1)]
    for choices, says in ((("c0", "c2", "c1"), 'c2 is (""|null)[,;]'), (("c1", "c2"), "c1, c2 has 1 choice; give two or more")):
        with pytest.raises(UserError, match=f"line {len(rows)}: {says}"):
            load_own_data(dataclasses.replace(config, choices=choices), "choice")
    with pytest.raises(UserError, match=r"line 1: there is no (column|field) 'c3'"):
        load_own_data(dataclasses.replace(config, choices=("c0", "c1", "c3")), "choice")


@pytest.mark.parametrize(
    ("row", "right"),
    [
        ({"choices": ["x", "y", "z"], "label": "C"}, 2),  # RACE, MedQA
        ({"choices": {"text": ["x", "y", "z"], "label": ["A", "B", "C"]}, "label": "B"}, 1),  # ARC, CommonsenseQA
        ({"choices": {"label": ["1", "2", "3"], "text": ["x", "y", "z"]}, "label": "1"}, 0),  # some questions of ARC
        ({"choices": {"text": ["x", "y", "z"], "label": [7, 5, 6]}, "label": 6}, 2),
        ({"choices": "{'text': ['x', 'y', 'z'], 'label': ['A', 'B', 'C']}", "label": "C"}, 2),
        ({"choices": ["x", "y", "z"], "label": "A"}, 0),
        ({"choices": ["x", "y", "z"], "label": "b"}, 1),
        ({"choices": {"A": "x", "B": "y", "C": "z", "D": None}, "label": "C"}, 2),  # MedQA
        ({"choices": [{"text": text, "label": key} for text, key in ("xA", "yB", "zC")], "label": "B"}, 1),
    ],
)
def test_the_label_of_a_choice_is_its_letter_or_its_label_in_an_object(tmp_path: pathlib.Path, row: dict[str, Any], right: int):
    path = put(tmp_path / "a.jsonl", {"prompt": "p", **row})
    assert load_own_data(OwnDataConfig(train=path, first_choice=1), "choice").train == [
        ChoiceExample("0", "p", ("x", "y", "z"), right)
    ]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"choices": ["x", "y"], "label": "C"}, r"label is 'C', not one of 0, 1 \(first_choice=0\); correct the row"),
        ({"choices": ["x", "y"], "label": 2}, r"label is '2', not one of 0, 1 \(first_choice=0\); set first_choice=1"),
        ({"choices": ["x y", "z"], "label": "z"}, "label is 'z', not one of 0, 1 .*; write the index of the choice .1. ins"),
        ({"choices": ["x", "y"], "label": -1}, r"label is '-1', not one of 0, 1 \(first_choice=0\); correct the row"),
        ({"choices": {"text": ["x", "y"], "label": ["A", "B"]}, "label": "0"}, "'0', but the labels of the choices are A, B"),
        ({"choices": {"text": ["x", "y"], "label": ["A"]}, "label": "A"}, "choices has 2 texts and the labels A; give each"),
        ({"choices": {"text": ["x", "y"], "label": ["A", "A"]}, "label": "A"}, "choices has 2 texts and the labels A, A; give"),
        ({"choices": {"text": "x y", "label": ["A", "B"]}, "label": "A"}, 'choices.text is "x y", not a list of texts'),
        ({"choices": {"text": ["x", "y"]}, "label": "A"}, "choices is .*, not a list of texts"),
        ({"choices": "{'text': ['x'], []: 1}", "label": "A"}, "choices is .*, which cannot be read as an object; write it as"),
        ({"choices": {"text": ["x", None], "label": ["A", "B"]}, "label": "A"}, "item 2 of choices.text is null"),
    ],
)
def test_choices_whose_label_is_unknown_are_refused(tmp_path: pathlib.Path, row: dict[str, Any], problem: str):
    path = put(tmp_path / "a.jsonl", {"prompt": "p", **row})
    with pytest.raises(UserError, match=problem):
        load_own_data(OwnDataConfig(train=path), "choice")


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("a.jsonl", ['{"text": "a", "label": "b"}', "{torn"], "line 2: the line is not JSON"),
        ("a.jsonl", ["[1]"], r"line 1: \[1\] is not an object"),
        ("a.jsonl", [{"text": 3, "label": "b"}], "line 1: text is 3, not a text; correct the row"),
        ("a.jsonl", ['{"text": "a \\ud83d", "label": "b"}'], "line 1: 'text' has half a surrogate pair, which is not a"),
        ("a.jsonl", [{"text": "a", "label": None}], "line 1: label is null"),
        ("a.tsv", ["text\tlabel", "a\tb\tc"], r"line 2: the row has 3 columns, but there are 2 column names \(text, label\)"),
        ("a.tsv", ["text\tlabel", '"a\tb"\tc'], "line 2: .*; if double quotes enclose cells, set quotes=true; otherwise"),
        ("a.tsv", ["text\tlabel", '"a"\tb\tc'], "line 2: .*; correct the line, or remove it"),
        ("a.csv", ["# by Ada", "text,label", "a,b"], r"line 2: the row has 2 columns, but there is only one .* the first line"),
        ("a.csv", [",text,label", "0,a"], r"line 2: the row has 2 columns, but there are 3 column names \('', text, label\)"),
        ("a.csv", [",text,", "0,a,b"], r"line 1: there is no column 'label'; known: '', text \(task\.own\.label, or columns if"),
        ("a.csv", ["Text,label", "a,b"], r"line 1: there is no column 'text'; did you mean 'Text'\? \(task\.own\.text\)$"),
        ("a.jsonl", [{"txt": {"a": 1}}], r"line 1: there is no field 'text'; did you mean 'txt'\? \(task\.own\.text\)$"),
        ("a.jsonl", [{"text": {"en": "a"}}], r'line 1: text is \{"en": "a"\}, not a text; write each part to a field'),
        ("a.csv", ["'text','label'", "'a','b'"], "line 1: the column 'text' is in single quotes; enclose cells in double"),
        ("a.csv", ["text,label", "'a, b',c"], "line 2: the row has 3 columns, .*; enclose cells in double quotes, not"),
        ("a.csv", ["text,label", "'a b','c'"], "line 2: label is 'c', and the single quotes are part of the label; enclose"),
        ("a.csv", ["text,label", 'a, "x"'], "line 2: label is \"x\", and the quotes are part of the label because a space"),
        ("a.csv", ["text,label", "a,\u200b"], r"line 2: label is '\\u200b', not a text; correct the row"),
        ("a.csv", ["text,label", "a,\u3164"], r"line 2: label is '\\u3164', not a text; correct the row"),
        ("a.tsv", ["text\tlabel"], r"a\.tsv has no rows"),
        ("a.doc", ["text\tlabel"], r"'\.doc', which is not the ending of a known format; .*, or set delimiter='\\t'$"),
        ("a.doc", ["text"], "not the ending of a known format; .*, or set delimiter$"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(tmp_path: pathlib.Path, name: str, rows: list[object], message: str):
    with pytest.raises(UserError, match=message):
        read_own_data(OwnDataConfig(train=put(tmp_path / name, *rows)), "sequence", "train")


def labels_of(path: str, kind: str = "sequence", **settings: Any) -> list[Any]:
    """Returns the labels of the training examples in a file; for words, with the words."""
    found = load_own_data(OwnDataConfig(train=path, **settings), kind, say=lambda text: None).train
    return [(e.words, e.labels) if isinstance(e, WordsExample) else getattr(e, "label", None) for e in found]


ROWS = ((1, "a", "B-X"), (1, "b", "I-X"), (2, "a", "O"))
COLUMNS = "a\tB-X\nb\tI-X\n\na\tO\n"
KAGGLE = "Sentence #,Word,POS,Tag\nSentence: 1,a,N,B-X\n,b,N,I-X\nSentence: 2,a,N,O\n"
SENTENCES = [(("a", "b"), ("B-X", "I-X")), (("a",), ("O",))]


@pytest.mark.parametrize(
    ("name", "text", "settings"),
    [
        ("a.tsv", COLUMNS, {}),
        ("a.txt", COLUMNS.replace("\t", " "), {}),
        ("a.conll", COLUMNS.replace("\n", "\r\n"), {}),
        ("a.conll", "-DOCSTART- -X-\n\na B-X\nb I-X\n\na O", {}),
        ("eng.train", COLUMNS.replace("\t", " "), {}),
        ("train", COLUMNS, {}),
        ("a.tsv.gz", COLUMNS, {}),
        ("a.tsv", COLUMNS, {"columns": ("words", "labels")}),
        ("a.tsv", "B-X\t1\ta\nI-X\t2\tb\n\nO\t1\ta\n", {"columns": ("labels", "n", "words")}),
        ("a.csv", KAGGLE, {"words": "Word", "labels": "Tag"}),
        ("a.csv", "sid,words,labels\n1,a,B-X\n1,b,I-X\n2,a,O\n", {"sentence": "sid"}),
        ("a.ndjson", "".join(f'{{"s":{s},"words":"{w}","labels":"{t}"}}\n' for s, w, t in ROWS), {"sentence": "s"}),
    ],
)
def test_words_on_separate_lines_form_sentences(tmp_path: pathlib.Path, name: str, text: str, settings: dict[str, Any]):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert labels_of(str(path), "token", **settings) == SENTENCES


def test_reports_about_words_in_columns_and_squad_files_reach_the_caller(tmp_path: pathlib.Path):
    said: list[str] = []
    load_own_data(OwnDataConfig(train=put(tmp_path / "a.conll", "a O", "b X", " ", "c O", "d X")), "token", say=said.append)
    words = ["1\ta\t_\tDET\t_\t_\t0\troot\t_\t_", " ", "1\tb\t_\tX\t_\t_\t0\troot\t_\t_"]
    load_own_data(OwnDataConfig(train=put(tmp_path / "a.conllu", *words)), "token", say=said.append)
    question = {"question": "Who?", "answers": [{"text": "Bo", "answer_start": 0}]}
    path = put(tmp_path / "a.json", {"data": [{"paragraphs": [{"context": "Bo ran", "qas": [question]}]}]})
    load_own_data(OwnDataConfig(train=path), "span", say=said.append)
    (spaces, of_treebank, *_, unnamed) = said
    assert "line 3: the line has only spaces or TABs" in spaces
    assert "a.conllu, line 2: the line has only spaces or TABs" in of_treebank
    assert "1 question without an id" in unnamed


def test_a_long_value_is_cut_in_messages(tmp_path: pathlib.Path):
    for length, shown in ((58, '"' + 58 * "é" + '"'), (59, '"' + 56 * "é" + "...")):
        with pytest.raises(UserError, match=rf"line 1: {re.escape(shown)} is not an object"):
            labels_of(put(tmp_path / "a.jsonl", json.dumps("é" * length)))
    shown = "'" + 60 * "\\u200b" + "'"
    with pytest.raises(UserError, match=rf"label is {re.escape(shown)}, not a text"):
        labels_of(put(tmp_path / "b.jsonl", {"text": "a", "label": "\u200b" * 61}))


def test_the_questions_of_a_test_set_may_have_answers(tmp_path: pathlib.Path):
    question = {"question": "Who?", "context": "Bo ran"}
    path = put(tmp_path / "a.jsonl", {**question, "answers": ["Bo"]}, question)
    answered, unknown = read_own_data(OwnDataConfig(test=path), "span", "test")
    assert (answered.answers, unknown.answers) == ((("Bo", 0),), ())  # type: ignore[union-attr]


@pytest.mark.parametrize("answers", [{"text": [], "answer_start": []}, {"text": []}, [], None])
def test_the_answers_of_a_test_set_in_which_no_question_has_one_are_unknown(tmp_path: pathlib.Path, answers: object):
    """As in the test sets of AdversarialQA and ROPES on the hub."""
    row = {"question": "Who?", "context": "Bo ran", "answers": answers}
    qas = [{"question": "Who?", "answers": answers}]
    squad = put(tmp_path / "a.json", {"data": [{"paragraphs": [{"context": "Bo ran", "qas": qas}]}]})
    said: list[str] = []
    for path in (put(tmp_path / "a.jsonl", row, row), squad):
        for unknown in read_own_data(OwnDataConfig(test=path), "span", "test", say=said.append):
            assert isinstance(unknown, QuestionExample)
            assert (unknown.answers, unknown.is_impossible) == ((), False)
    assert any("a.jsonl: no question has an answer, so the answers are unknown" in line for line in said) == (answers is not None)


def test_a_question_without_an_answer_is_unanswerable_unless_it_is_stated_to_be_possible(tmp_path: pathlib.Path):
    row = {"question": "Who?", "context": "Bo ran", "answers": []}
    answered = {**row, "answers": ["Bo"]}
    for number, (rows, wanted) in enumerate([
        ([row, answered], [True, False]),
        ([row | {"is_impossible": True}], [True]),
        ([row | {"is_impossible": False}, answered], [False, False]),
    ]):
        path = put(tmp_path / f"{number}.jsonl", *rows)
        found = read_own_data(OwnDataConfig(test=path), "span", "test")
        assert [e.is_impossible for e in found if isinstance(e, QuestionExample)] == wanted


def test_a_comma_may_be_a_word_and_its_tag(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "n,words,labels", '1,",",","', "2,a,N", "2,b,N")
    assert labels_of(path, "token", sentence="n") == [((",",), (",",)), (("a", "b"), ("N", "N"))]
    test = OwnDataConfig(test=put(tmp_path / "b.csv", "n,words", "1,a", "1,b"), sentence="n")
    assert read_own_data(test, "token", "test") == [WordsExample("0", ("a", "b"), None, 0)]


def test_a_sentence_of_numbered_words_ends_with_its_document(tmp_path: pathlib.Path):
    rows = ["a,1,Anna,P", "a,1,ran,O", ",,home,O", "b,1,Bo,P", "b,1,ate,O", "b,2,so,O"]
    config = OwnDataConfig(train=put(tmp_path / "a.csv", "doc,n,words,labels", *rows), sentence="n", document="doc")
    found = [(e.words, e.document) for e in read_own_data(config, "token", "train") if isinstance(e, WordsExample)]
    assert found == [(("Anna", "ran", "home"), 0), (("Bo", "ate"), 1), (("so",), 1)]


@pytest.mark.parametrize("ending", ["conll", "tsv"])
def test_a_column_of_a_file_with_a_word_on_each_line_may_name_the_document(tmp_path: pathlib.Path, ending: str):
    lines = ["d1\tAnna\tP", "d1\tran\tO", "", "d2\tBo\tP", "d2\tate\tO", "", "d1\tshe\tO", "d2\the\tO"]
    config = OwnDataConfig(train=put(tmp_path / f"a.{ending}", *lines), columns=("doc", "words", "labels"), document="doc")
    found = [(e.words, e.document) for e in read_own_data(config, "token", "train") if isinstance(e, WordsExample)]
    assert found == [(("Anna", "ran"), 0), (("Bo", "ate"), 1), (("she",), 0), (("he",), 1)]


def test_a_text_may_be_the_name_of_its_column(tmp_path: pathlib.Path):
    assert labels_of(put(tmp_path / "a.csv", "text,label", "text,x", "b,y")) == ["x", "y"]
    assert labels_of(put(tmp_path / "a.csv", "text,label", "---,", "a,x"), problem="multi_label") == [(), ("x",)]
    path = put(tmp_path / "b.csv", '"it, and so"', "a")
    assert read_own_data(OwnDataConfig(test=path, text="it, and so"), "sequence", "test") == [TextExample("0", "a")]


def test_a_missing_column_of_several_is_named_with_its_setting(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "text,prompt,x", "a,b,1")
    with pytest.raises(UserError, match=r"no column 'y'; .*\(task\.own\.label_names"):
        labels_of(path, problem="multi_label", label_names=("x", "y"))
    with pytest.raises(UserError, match=r"no column 'y'; .*\(task\.own\.choices"):
        labels_of(path, "choice", choices=("x", "y"))


def test_sentences_of_one_word_give_a_warning(tmp_path: pathlib.Path):
    for name, rows in (
        ("a.csv", ["words,labels", "a,O", "b,O"]),
        ("a.tsv", ["words\tlabels", "a\tO", "", "b\tO"]),
        ("b.csv", ["s,words,labels", "1,a,O", "2,b,O"]),
    ):
        given = "s" if name == "b.csv" else None
        remedy = "; if a column .*, end each sentence" if given is None else " if the column 's' has the sentence of each row;"
        with pytest.raises(UserError, match=f"each of the 2 sentences has only one word{remedy}"):
            labels_of(put(tmp_path / name, *rows), "token", sentence=given)
    said: list[str] = []
    path = put(tmp_path / "a.jsonl", *({"words": [word], "labels": [tag]} for word, tag in (("a", "O"), ("b", "X"))))
    load_own_data(OwnDataConfig(train=path), "token", say=said.append)
    assert said == [f"WARNING: {path}: each of the 2 sentences has only one word, so no word has a context"]


@pytest.mark.parametrize(
    ("name", "rows", "settings", "message"),
    [
        ("a.tsv", ["a\tB-X", "b\tO"], {}, r"no column 'words'; known: B-X, a \(task.own.words\); if each line has a word and"),
        ("a.csv", ["a,B-X", "", "b,O"], {}, r"no column 'words'; known: B-X, a \(task.own.words\); if each line has a word"),
        ("a.conll", ["word tag", "a B-X", "", "b O"], {}, "line 1: the line has column names .word. instead of a word and its"),
        (
            "a.conll",
            ["1 a B-X", "2 b O", "", "1 a O"],
            {},
            r"the first column has word numbers, not words; name all columns .*\[n,words,labels\]",
        ),
        ("a.conll", [f"{i} a a N{' _' * 6}" for i in (1, 2)], {}, r"; if it is CoNLL-U, give it a name .* \.conllu, or name"),
        ("a.conll", ["1-2 ab O", "1 a B-X", "2 b O", "", "1 a O", "1.1 _ O"], {}, "the first column has word numbers, not words"),
        ("a.conll", ["0 a B-X", "1 b O", "", "0 a O"], {}, r"the first column has word numbers, not words; name all columns"),
        ("a.conll", ["1 a N B-X", "2 b N O"], {}, r"word numbers, not words; name all columns .*\[n,words,x,labels\]"),
        ("a.conll", ["1 a N _ B-X", "2 b N _ O"], {}, r"word numbers, not words; name all columns .*\[n,words,x,x2,labels\]"),
        (
            "a.conll",
            ["1 a N B-X", "2 b N O"],
            {"columns": ("n", "words", "labels")},
            r"a\.conll has 4 columns, but columns=\[n,words,labels\] names 3; name all columns .*=\[n,words,x,labels\]",
        ),
        ("a.conll", ["a N O O"], {"columns": ("words", "labels")}, r"has 4 columns, but .* names 2; .*=\[words,x,x2,labels\]"),
        ("a.conll", ["a N O O"], {"columns": ("x", "words", "labels")}, r"has 4 columns, .* names 3; .*=\[x,words,x2,labels\]$"),
        ("a.conll", ["a O N O"], {"columns": ("words", "labels", "x")}, r"has 4 columns, .* names 3; .*=\[words,labels,x2,x\]$"),
        ("a.conll", ["1 a", "2 b"], {}, "the first column has word numbers, not words; write a word and its tag on each line$"),
        ("a.conll", ["1 a O", "2 b O"], {"words": "w"}, r"the first column has word numbers, .*columns=\[n,w,labels\]$"),
        ("a.conll", ["d 0 0 a X", "d 0 1 b Y", "", "d 0 0 c X"], {}, r"it is 'd' in every .*=\[document,part,n,words,labels\]"),
        ("a.conll", ["d 0 a X", "d 1 b Y", "", "e 0 c X", "e 1 d Y"], {}, r"it is 'd' in every .*=\[document,n,words,labels\]"),
        ("a.csv", ["words,labels", '"a,b","O,X"', '"a,b,c","O,X,O"'], {}, "have ',' inside a single word .*; set separator=','"),
        ("a.conll", ["B-X a", "I-X b", "", "O c"], {}, r"the column of words has tags, such as 'B-X'; name .*=\[labels,words\]"),
        ("a.jsonl", ['{"words": ["B-X", "O"], "labels": ["a", "b"]}'], {}, "the column of words has tags, such as 'B-X'; name"),
        ("a.jsonl", ['{"words": ["a", "b"], "labels": [0, -100]}'], {}, "line 1: labels has the number -100, which marks"),
        ("a.csv", ["words,labels", *["a,O"] * 9, "a b,O O"], {}, r"9 of the 10 sentences have only one word; if a column"),
        ("a.csv", ["words,labels", "a b,O O"], {"labels": "words"}, "task.own.words and task.own.labels are both 'words'"),
        ("a.csv", ["Words,labels", "a b,O O"], {"columns": ("words", "labels")}, "line 1: the first row has the column"),
        ("a.conll", ["a", "b"], {}, "has only one column; write a word and its tag"),
        ("a.conll", ["-DOCSTART-", ""], {}, r"a\.conll has no words; give a file that has a word and its tag on each line"),
        (
            "a.conll",
            ["a O"],
            {"columns": ("word", "labels")},
            r"columns=\('word', 'labels'\) does not name 'words'; did you mean",
        ),
        ("a.conll", ["a O"], {"columns": ("words", "tag")}, r"columns=\('words', 'tag'\) does not name 'labels'"),
        ("a.csv", ["n,words,labels", "1,a,O"], {"sentence": "m"}, "no column 'm'"),
        ("a.conll", ["d a O"], {"document": "d"}, r"no column is named 'd' .*; name .* columns=\[d,words,labels\], or"),
        ("a.conll", ["a O"], {"document": "d"}, "no column is named 'd' .task.own.document.; remove this setting if lines"),
        ("a.conll", ["d a O"], {"document": "d", "words": "w"}, r"no column is named 'd' .* columns=\[d,w,labels\], or"),
        ("a.conll", ["a O"], {"columns": ("words", "labels", "d"), "document": "d"}, "has 2 columns, but .* names 3"),
        ("a.conllu", ["1\ta" + "\t_" * 8], {"document": "d"}, "has no column 'd', since a line '# newdoc' begins a document; r"),
        ("a.jsonl", ['{"text": "a b", "entities": [[0, 1, "X"]]}'], {}, "but entities with the offsets of their characters"),
        ("a.jsonl", ['{"label": [{"start": 0, "end": 1, "labels": ["X"]}]}'], {}, "but entities with the offsets of their char"),
        ("a.jsonl", ['{"text": "a b", "entities": [[0, 1, 2]]}'], {}, r"no field 'words'; known: entities, text \(task"),
        ("a.csv", ["n,words", "1,a", "1,b"], {"sentence": "n"}, "line 1: there is no column 'labels'"),
        ("a.jsonl", ['{"words": ["a"]}'], {}, "line 1: there is no field 'labels'; known: words"),
        ("a.jsonl", ['{"words": ["a"], "labels": ["\\u200b"]}'], {}, r"item 1 of 1 in labels is invisible \(U\+200B\)"),
        ("a.conll", ["a O", "b \u200b"], {}, r"line 2: the tag has only invisible characters \(U\+200B\); correct the line"),
        ("a.conllu", ["1\ta\t_\t\u200b\t_\t_\t0\tr\t_\t_"], {}, "line 1: 'a' has no upos; choose the other column"),
    ],
)
def test_unreadable_word_columns_are_refused(
    tmp_path: pathlib.Path, name: str, rows: list[str], settings: dict[str, Any], message: str
):
    with pytest.raises(UserError, match=message):
        labels_of(put(tmp_path / name, *rows), "token", **settings)


def test_numbers_for_tags_and_a_single_tag_are_reported(tmp_path: pathlib.Path):
    said: list[str] = []
    path = put(tmp_path / "a.jsonl", {"words": ["a", "b"], "labels": [0, 1]})
    load_own_data(OwnDataConfig(train=path), "token", say=said.append)
    assert len(said) == 1
    assert said[0].startswith(f"{path}: the labels are numbers, so the metric is accuracy over words; ")
    said.clear()
    load_own_data(OwnDataConfig(train=path, label_names=("O", "B-X")), "token", say=said.append)
    assert said == [f"{path}: the labels are numbers, which are read as 0=O, 1=B-X"]
    said.clear()
    load_own_data(OwnDataConfig(train=put(tmp_path / "b.conll", "a O", "b O")), "token", say=said.append)
    assert said == [f"WARNING: every word of {tmp_path}/b.conll has the label 'O', so there is nothing to learn"]


def test_columns_that_are_not_read_are_reported(tmp_path: pathlib.Path):
    for kind, name, row in (("sequence", "text_b", "a,b,x"), ("span", "answer_start", "q,a b a,a,4")):
        header = f"text,{name},label" if kind == "sequence" else f"question,context,answers,{name}"
        path, said = put(tmp_path / f"{kind}.csv", header, row), list[str]()
        load_own_data(OwnDataConfig(train=path), kind, say=said.append)
        assert said == [f"{path}: the column {name} is not read; set task.own.{name}={name} to read it"]
        said.clear()
        load_own_data(OwnDataConfig(train=path, **{name: name}), kind, say=said.append)
        assert said == []


@pytest.mark.parametrize("flag", ["true", "True", "1", "1.0"])
def test_a_question_that_is_marked_as_impossible_has_no_answer_as_in_squad(tmp_path: pathlib.Path, flag: str):
    path = put(tmp_path / "a.csv", "question,context,answers,is_impossible", f"q,a b,a,{flag}", "q,a b,a,false", "q,a b,a,")
    found = load_own_data(OwnDataConfig(train=path), "span").train
    assert [(e.answers, e.is_impossible) for e in found if isinstance(e, QuestionExample)] == [
        ((), True), ((("a", 0),), False), ((("a", 0),), False),
    ]  # fmt: skip


def test_the_case_of_a_suffix_does_not_matter(tmp_path: pathlib.Path):
    for name, rows in (("a.CSV", ["text,label", "a,x"]), ("a.TAB", ["text\tlabel", "a\tx"]), ("a.JsonL", [TEXT_A])):
        assert labels_of(put(tmp_path / name, *rows)) == ["x"]
    (tmp_path / "a.CSV.GZ").write_bytes(gzip.compress(b"text,label\na,x\n"))
    assert labels_of(str(tmp_path / "a.CSV.GZ")) == ["x"]
    assert labels_of(put(tmp_path / "a.CONLL", "a B-X", "b O"), "token") == [(("a", "b"), ("B-X", "O"))]


TEXT_A = {"text": "a", "label": "x"}


def test_the_labels_of_a_treebank_come_from_the_requested_column(tmp_path: pathlib.Path):
    rows = ["1\ta\t_\tDET\tDT\t_\t0\troot\t_\t_", "2\tb\t_\tNOUN\tNN\t_\t1\tdep\t_\t_"]
    path = put(tmp_path / "a.conllu", *rows)
    assert labels_of(path, "token") == labels_of(path, "token", labels="upos") == [(("a", "b"), ("DET", "NOUN"))]
    assert labels_of(path, "token", labels="xpos") == [(("a", "b"), ("DT", "NN"))]
    with pytest.raises(UserError, match="column='misc' is not a column of tags; known: upos, xpos"):
        labels_of(path, "token", labels="misc")


def test_a_test_file_of_words_in_columns_may_lack_the_tags(tmp_path: pathlib.Path):
    train, test = put(tmp_path / "train.tsv", "a\tN\tB-X", "", "b\tN\tO"), put(tmp_path / "test.tsv", "a\tN", "", "b\tN")
    assert load_own_data(OwnDataConfig(train=train, test=test), "token").test == [
        WordsExample("0", ("a",), None, 0),
        WordsExample("1", ("b",), None, 1),
    ]


@pytest.mark.parametrize("rows", [["1\ta"], ["1\ta\tN"], ["1\ta\tN\t_"]])
def test_a_test_file_may_lack_the_tags_if_the_columns_are_named(tmp_path: pathlib.Path, rows: list[str]):
    columns = ("n", "words", "pos", "labels")
    config = OwnDataConfig(train=put(tmp_path / "train.conll", "1\ta\tN\tB-X"), test=put(tmp_path / "b.conll", *rows))
    config = dataclasses.replace(config, columns=columns)
    assert load_own_data(config, "token").test == [WordsExample("0", ("a",), None, 0)]
    unnamed = put(tmp_path / "c.conll", "1")
    message = r"c\.conll has 1 column, but columns=\[n,words,pos,labels\] names 4; give a file with these columns"
    with pytest.raises(UserError, match=message):
        load_own_data(dataclasses.replace(config, test=unnamed), "token")


@pytest.mark.parametrize(
    ("columns", "train", "other"),
    [("words,labels", "a O", "b O note"), ("words,labels,x", "a O note", "b O"), ("words,labels,x", "a O y", "b O y z")],
)
def test_dev_and_test_files_may_have_more_or_fewer_columns_than_are_named(
    tmp_path: pathlib.Path, columns: str, train: str, other: str
):
    path = put(tmp_path / "b.conll", other)
    config = OwnDataConfig(train=put(tmp_path / "a.conll", train), dev=path, test=path, columns=tuple(columns.split(",")))
    data = load_own_data(config, "token")
    assert data.dev == data.test == [WordsExample("0", ("b",), ("O",), 0)]
    with pytest.raises(UserError, match=r"b\.conll has . columns, but columns="):
        load_own_data(dataclasses.replace(config, train=path), "token")


def test_rows_with_empty_lines_between_them_stay_sentences(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.tsv", "a b\tB O", "", "b a\tO O")
    assert labels_of(path, "token", columns=("words", "labels")) == [(("a", "b"), ("B", "O")), (("b", "a"), ("O", "O"))]


def test_blanks_around_the_separator_are_stripped(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "words,labels", "a b ; c,X ;O")
    assert labels_of(path, "token", separator=";") == [(("a b", "c"), ("X", "O"))]


def test_quoted_words_in_parentheses_without_commas_are_not_a_list(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "words,labels", '"(""a"" ""b"")",X O')
    assert labels_of(path, "token") == [(('("a"', '"b")'), ("X", "O"))]


def test_doubled_quotes_in_csv_cells_are_characters(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "text,label", '"""a""",x')
    said: list[str] = []
    (example,) = read_own_data(OwnDataConfig(train=path), "sequence", "train", say=said.append)
    assert (example, said) == (TextExample("0", '"a"', None, "x"), [])


@pytest.mark.parametrize(
    ("words", "labels", "wanted"),
    [
        ("['a', 'b']", "['X', 'O']", (("a", "b"), ("X", "O"))),
        ("['a' 'b']", "['X' 'O']", (("a", "b"), ("X", "O"))),  # numpy; Python joins 'a' 'b' to 'ab'
        ("('a', 'b')", "('X', 'O',)", (("a", "b"), ("X", "O"))),
        ('["it", "\'s"]', "[1, 0]", (("it", "'s"), ("1", "0"))),
        ("['it\\'s', \"b\"]", "[1. 0.]", (("it's", "b"), ("1", "0"))),
        ("['a', 'b',]", "('X', 'O')", (("a", "b"), ("X", "O"))),
        ("[\n  'a',\n  'b'\n]", "[true, false]", (("a", "b"), ("true", "false"))),
    ],
)
def test_a_list_written_in_a_cell_is_read(tmp_path: pathlib.Path, words: str, labels: str, wanted: Any):
    path = put(tmp_path / "a.csv", "words,labels", *('"{}","{}"'.format(*(cell.replace('"', '""') for cell in (words, labels))),))
    assert labels_of(path, "token") == [wanted]
    path = put(tmp_path / "a.jsonl", {"words": words, "labels": labels}) if words[1] != " " else path
    assert labels_of(path, "token") == [wanted]


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        ("{'text': ['b'], 'answer_start': [2]}", (("b", 2),)),
        ('{"text": ["b"], "answer_start": [2]}', (("b", 2),)),
        ("[{'text': 'b', 'answer_start': 2.0}]", (("b", 2),)),
        ("['b', 'a']", (("b", 2), ("a", 0))),
        ("[]", ()),
        ("[1]", (("[1]", 4),)),  # a text of the context
    ],
)
def test_answers_may_be_written_in_a_cell(tmp_path: pathlib.Path, answers: str, wanted: Any):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["question", "context", "answers"], ["q", "a b [1]", answers]])
    (example,) = load_own_data(OwnDataConfig(train=str(path)), "span").train
    assert isinstance(example, QuestionExample)
    assert example.answers == wanted


@pytest.mark.parametrize("label", ["\"['x']\"", '"[1, 0, 0]"'])
def test_a_list_is_refused_as_a_class(tmp_path: pathlib.Path, label: str):
    with pytest.raises(UserError, match=r"line 3: label is the list .*; set problem=multi_label, or give one label per row"):
        labels_of(put(tmp_path / "a.csv", "text,label", "a,[x]", f"b,{label}"))


@pytest.mark.parametrize(
    "words",
    [
        "[ a , b ]",
        "[ 1 ]",
        "[laughter]",
        "[1] a [2]",
        "[CLS] a, b [SEP]",
        '( " a " ) b',
        '("Go," he said)',
        '("a" b)',
        "{a}",
        "array( [ 1 ] )",
    ],
)
def test_brackets_are_accepted_as_words(tmp_path: pathlib.Path, words: str):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["words", "labels"], [words, "O " * len(words.split())]])
    assert labels_of(str(path), "token") == [(tuple(words.split()), ("O",) * len(words.split()))]


@pytest.mark.parametrize("words", ["[a, b]", "['a', 'b'", "['a' 'b' ... 'c']", "[['a'], ['b']]", "array(['a', 'b'])", "set()"])
def test_an_unreadable_list_is_refused(tmp_path: pathlib.Path, words: str):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["words", "labels"], [words, "O " * len(words.split())]])
    with pytest.raises(UserError, match=r"line 2: words is .*, not a list that can be read; write it as"):
        labels_of(str(path), "token")


def test_choices_may_be_a_list_written_in_a_cell(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "prompt,choices,label", "p,\"['x y', 'z']\",1.0")
    assert load_own_data(OwnDataConfig(train=path), "choice").train == [ChoiceExample("0", "p", ("x y", "z"), 1)]


@pytest.mark.parametrize(
    "rows",
    [
        ["text,label", 'a,"[""x"", ""z""]"', "b,[]"],
        ["text,label", "a,\"{'x', 'z'}\"", "b,"],
        ["text,label", 'a,"[1, 0, 1]"', 'b,"[0, 0, 0]"'],
        ["text,label", "a,1 0 1", "b,[0 0 0]"],
        ["text,label", 'a,"[True, False, True]"', 'b,"[False, False, False]"'],
        ["text,label", "a,x z", "b,"],
        ["text,x,y,z", "a,1,0,1.0", "b,0,0,0"],
        ["text,z,x,y", "a,True,True,False", "b,False,False,False"],
        ["text,z,x,y", "a,TRUE,true,FALSE", "b,FALSE,0,false"],
        ["text,label", 'a,"x\tz"', "b,"],
        ["text,label", "a,[0 2]", "b,[]"],
    ],
)
def test_multi_label_targets_are_names_numbers_or_zeros_and_ones(tmp_path: pathlib.Path, rows: list[str]):
    path = put(tmp_path / "a.csv", *rows)
    assert labels_of(path, problem="multi_label", label_names=("x", "y", "z")) == [("x", "z"), ()]


def test_many_names_of_labels_are_not_normalised_for_each_row(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    names, calls = tuple(f"name{i}" for i in range(100)), []
    monkeypatch.setattr(own_data, "label_text", lambda name: calls.append(name) or name)
    path = put(tmp_path / "a.csv", "text,label", *["a,name1 name7"] * 20)
    assert labels_of(path, problem="multi_label", label_names=names) == [("name1", "name7")] * 20
    assert len(calls) <= 200


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (['a,"x,y"', "b,x"], r"line 2: label is \"x,y\"; set separator=',' if"),
        (["a,x;y"], r"line 2: label is \"x;y\"; set separator=';' if"),
        (["a,情感、价格"], r"set separator='、' if .* \(set separator=' ' if only spaces separate them"),
        (["a,价格／服务"], "set separator='／' if"),
        (["a,joy/anger"], "set separator='/' if"),
        (["a,joy & anger"], "set separator='&' if"),
        (["a,joy - anger"], "set separator='-' if"),
        (['a,"Customer service\nPrice"'], r"line 2: label is .*, with spaces and a line end inside; list the items as"),
        (['a,"[1,0,0,0,0,0,0,0]"'], r"one for each of 8 labels; name the labels: label_names=\[a,b,c,d,e,f,g,h\]"),
        (['a,"[1,0,0,0,0,0,0,0,0]"'], r"one for each of 9 labels; name the labels: label_names=\[a,b,\.\.\.\]"),
        (["a,1 0 0", "b,0 1 0"], r"line 2: label is a list of 0s and 1s, one for each of 3 labels; .* label_names=\[a,b,c\]"),
        (['a,"[0, 1]"', 'b,"[1, 0]"'], r"a\.csv: each label is a list of 0s and 1s, one for each of 2 labels; name the labels"),
        (["a,[1]", "b,[0]"], r"one for each of 1 label; .*; if 0 and 1 are the names of labels, set label_names=\[0,1\]"),
        (['a,"[0, 1]"', "b,[1]"], r"a\.csv: each label is a list of 0s and 1s, but the lists .* \(1, 2\); .*\[0,1\]"),
        (['a,"{x,y}"', "b,{x}"], r"line 2: label is \"\{x,y\}\"; set separator=',' if"),
        (["a,\"['x', 'x']\""], "line 2: label has 'x' twice"),
        (["a,\"['x', 'y'\""], "line 2: label is .*, not a list that can be read"),
        (["a,[x]"], "line 2: label is .*, not a list that can be read"),
        (["a,set()"], "line 2: label is .*, not a list that can be read"),
        (["a,\"['x' 'y' ... 'z']\""], "line 2: label is .*, not a list that can be read"),
        (['a,"[0.2, 0.9]"'], "line 2: label has the number 0.2, which is not a label"),
        (["a,"], r"no row of .*a\.csv has a label"),
    ],
)
def test_multi_label_targets_that_are_not_a_list_of_names_are_refused(tmp_path: pathlib.Path, rows: list[str], message: str):
    with pytest.raises(UserError, match=message):
        labels_of(put(tmp_path / "a.csv", "text,label", *rows), problem="multi_label")


def test_a_missing_column_of_zeros_and_ones_is_a_label_name(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "text,x", "a,1")
    with pytest.raises(UserError, match=r"line 1: there is no column 'y'; known: text, x"):
        labels_of(path, problem="multi_label", label_names=("x", "y"))
    remedy = r"with lists of labels; .*set label_names=\[x\] to read columns of 0 and 1"
    for row in (path, put(tmp_path / "b.jsonl", {"text": "a", "x": 1})):
        with pytest.raises(UserError, match=rf"line 1: there is no column 'label' {remedy}"):
            labels_of(row, problem="multi_label")


@pytest.mark.parametrize(
    ("lists", "wanted", "says"),
    [
        ([[0, 1], [0], [1]], ["xy", "x", "y"], "which are read as 0=x, 1=y"),
        ([[0, 1], []], ["xy", ""], "which are read as 0=x, 1=y"),
        ([[0, 1], [1, 1]], ["y", "xy"], ""),
        ([[0, 1], [0, 0], []], ["y", "", ""], ""),
        ([[0, 1], [1, 0]], ["y", "x"], "it is read as 0s and 1s, so [0, 1] is y; if this is wrong, write the names"),
    ],
)
def test_lists_of_numbers_are_indices_in_all_rows_or_zeros_and_ones_in_all_rows(
    tmp_path: pathlib.Path, lists: list[list[int]], wanted: list[str], says: str
):
    path = put(tmp_path / "a.jsonl", *({"text": "a", "label": some} for some in lists))
    config, said = OwnDataConfig(train=path, problem="multi_label", label_names=("x", "y")), list[str]()
    found = read_own_data(config, "sequence", "train", labels=("x", "y"), say=said.append)
    assert [getattr(example, "label", None) for example in found] == [tuple(names) for names in wanted]
    assert [line for line in said if "read as" in line] == [line for line in said if says and says in line]
    assert any(says in line for line in [*said, ""])


@pytest.mark.parametrize(
    ("train", "dev", "wanted"),
    [
        ([[0, 1], [1, 1]], [[0, 1]], "y"),
        ([[0, 1], [0]], [[0, 1]], "xy"),
        ([[0, 1], [1, 0], []], [[0, 1], [1, 0]], "xy"),
        ([[0, 1], [1, 1]], [["x"], [0, 1]], "x"),
        ([[0, 1], [1, 1]], [[0]], r'dev.*line 1: label is \["0"\], but .*train.jsonl has a 0 or 1 for each of the 2 labels of'),
        ([[0, 1], [0]], [[1, 1]], r'dev.*line 1: label is \["1", "1"\], but .*train.jsonl has the indices of labels; write'),
    ],
)
def test_the_training_file_decides_whether_lists_of_numbers_are_indices(
    tmp_path: pathlib.Path, train: list[Any], dev: list[Any], wanted: str
):
    files = {
        split: put(tmp_path / f"{split}.jsonl", *({"text": f"{split} {i}", "label": some} for i, some in enumerate(lists)))
        for split, lists in (("train", train), ("dev", dev))
    }
    said = list[str]()
    config = OwnDataConfig(**files, problem="multi_label", label_names=("x", "y"))
    if "label" in wanted:  # without a training file, the dev file decides
        without = dataclasses.replace(config, train="", dev=files["train"], test=files["dev"])
        with pytest.raises(UserError, match=wanted):
            load_own_data(without, "sequence", say=said.append)
    with pytest.raises(UserError, match=wanted) if "label" in wanted else contextlib.nullcontext():
        first, *_ = load_own_data(config, "sequence", say=said.append).dev
        assert getattr(first, "label", None) == tuple(wanted)
    assert not [line for line in said if "may be the indices" in line]


def test_rows_with_a_number_for_each_label_and_rows_with_indices_are_refused(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.jsonl", {"text": "a", "label": [1, 1]}, {"text": "a", "label": [0]})
    with pytest.raises(UserError, match=r'line 2: label is \["0"\], but .*line 1 has a 0 or 1 for each of the 2 labels of'):
        labels_of(path, problem="multi_label", label_names=("x", "y"))


def test_numbers_that_are_named_as_labels_are_labels(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "text,label", 'a,"[0, 1]"', "b,[1]")
    assert labels_of(path, problem="multi_label", label_names=("0", "1")) == [("0", "1"), ("1",)]


def test_a_given_separator_may_have_blanks_around_it(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "text,label", 'a,"x, very good"', "b,x")
    assert labels_of(path, problem="multi_label", separator=",") == [("x", "very good"), ("x",)]


@pytest.mark.parametrize(
    ("cell", "settings", "wanted"),
    [
        ("a/b x", {"separator": " "}, ("a/b", "x")),
        ("a/b x", {"label_names": ("a/b", "x")}, ("a/b", "x")),
        ("c++ no-go", {}, ("c++", "no-go")),
        ("\U0001f600 \U0001f621", {}, ("\U0001f600", "\U0001f621")),
        ("a\nb", {}, ("a", "b")),
        ("+", {}, ("+",)),
    ],
)
def test_signs_inside_of_labels_are_no_separators(tmp_path: pathlib.Path, cell: str, settings: dict[str, Any], wanted: Any):
    path = put(tmp_path / "a.csv", "text,label", f'a,"{cell}"')
    assert labels_of(path, problem="multi_label", **settings) == [wanted]


@pytest.mark.parametrize("value", ["NaN", '"nan"', '"None"', "null", '"<NA>"', "Infinity", '"inf"'])
def test_a_missing_label_is_not_a_class(tmp_path: pathlib.Path, value: str):
    path = put(tmp_path / "a.jsonl", {"text": "a", "label": "x"}, f'{{"text": "b", "label": {value}}}')
    with pytest.raises(UserError, match=r"line 2: label is .*; fill in a value, or remove the row"):
        labels_of(path)
    path = put(tmp_path / "b.jsonl", f'{{"words": ["a", "b"], "labels": ["O", {value}]}}')
    with pytest.raises(UserError, match=r"line 1: (item 2 of .*labels|labels is)"):
        labels_of(path, "token")
    assert labels_of(put(tmp_path / "c.csv", "text,label", "a,x", "b,None"), label_names=("x", "None")) == ["x", "None"]


def test_a_whole_number_is_one_class_in_any_notation(tmp_path: pathlib.Path):
    rows = [{"text": "a", "label": label} for label in (1, 1.0, "1.0", "1", 2, -0.0, "-0.0")]
    assert labels_of(put(tmp_path / "a.jsonl", *rows)) == ["1", "1", "1", "1", "2", "0", "0"]
    stars = put(tmp_path / "a.csv", "text,label", "a,1", "b,2.0", "c,1.5")
    assert labels_of(stars, label_names=("1.0", "1.5", "2.0")) == ["1", "2", "1.5"]
    words = put(tmp_path / "b.jsonl", {"words": ["a", "b"], "labels": [1.0, 1]})
    assert labels_of(words, "token") == [(("a", "b"), ("1", "1"))]
    assert labels_of(put(tmp_path / "c.csv", "text,label", "a,1.10", "b,01")) == ["1.10", "01"]  # not numbers: a version, a code


def test_label_numbers_index_the_named_labels(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "text,label", "a,0", "b,1.0")
    said: list[str] = []
    data = load_own_data(OwnDataConfig(train=path, label_names=("no", "yes")), "sequence", say=said.append)
    assert ([e.label for e in data.train if isinstance(e, TextExample)], data.labels) == (["no", "yes"], ("no", "yes"))
    assert said == [f"{path}: the labels are numbers, which are read as 0=no, 1=yes"]
    with pytest.raises(UserError, match=r"line 3: the label 2 is out of range: labels are 0 \(no\) to 1 \(yes\)"):
        labels_of(put(tmp_path / "a.csv", "text,label", "a,1", "b,2"), label_names=("no", "yes"))
    train = put(tmp_path / "train.csv", "text,label", "a,no", "b,yes")
    with pytest.raises(UserError, match=r"a\.csv, line 2: the label '1' is not known"):  # the meaning of label 1 is not given
        load_own_data(OwnDataConfig(train=train, dev=str(tmp_path / "a.csv")), "sequence")


def test_a_long_list_written_in_a_cell_is_read_in_linear_time(tmp_path: pathlib.Path):
    def seconds(count: int) -> float:
        words = json.dumps([f"w{i}" for i in range(count)])
        path = put(tmp_path / "a.jsonl", {"words": words, "labels": ["O"] * count})
        began = time.process_time()
        assert len(labels_of(path, "token")[0][0]) == count
        return time.process_time() - began

    seconds(100)
    assert seconds(40_000) < 30 * max(seconds(5_000), 0.005)  # it would be 64 times as long if each item read the whole list


def test_similar_labels_and_labels_without_examples_are_reported(tmp_path: pathlib.Path):
    said: list[str] = []
    labels = ["Pos", "pos", "very  good", "very good", "neg", "caf\u00e9", "cafe\u0301", "x", "x\u200b", "ra\u0441e", "race"]
    labels += ["heart\ufe0f", "heart", "\u0412-PER", "B-PER", "\u0392-per", "\u0412\u043e\u0437", "\u0432\u043e\u0437"]
    labels += ["a\u2010b", "a-b"]
    rows = [f"text {i},{label}" for i, label in enumerate(labels)]
    path = put(tmp_path / "a.csv", "text,label", *rows)
    load_own_data(OwnDataConfig(train=path), "sequence", say=said.append)
    assert [text.partition(" are read as")[0] for text in said] == [
        "WARNING: the labels 'B-PER' and '\\u0392-per' and '\\u0412-PER'",
        "WARNING: the labels 'Pos' and 'pos'",
        "WARNING: the labels 'a-b' and 'a\\u2010b'",
        "WARNING: the labels 'cafe\\u0301' and 'caf\\xe9'",
        "WARNING: the labels 'heart' and 'heart\\ufe0f'",
        "WARNING: the labels 'race' and 'ra\\u0441e'",
        "WARNING: the labels 'very  good' and 'very good'",
        "WARNING: the labels 'x' and 'x\\u200b'",
        "WARNING: the labels '\u0412\u043e\u0437' and '\u0432\u043e\u0437'",
    ]
    many = [f"text,{label} {i}" for i in range(11) for label in ("Pos", "pos")]
    told: list[str] = []
    load_own_data(OwnDataConfig(train=put(tmp_path / "many.csv", "text,label", *many)), "sequence", say=told.append)
    assert len([text for text in told if "are read as" in text]) == 10, "more would hide other messages"
    dev = put(tmp_path / "dev.csv", "text,label", "a,ne\u0261", "b,n\u0435g")
    with pytest.raises(UserError, match=r"dev\.csv, line 2: the label 'ne\u0261' is not known; known: "):
        load_own_data(OwnDataConfig(train=path, dev=dev), "sequence", say=said.append)
    dev = put(tmp_path / "dev.csv", "text,label", "b,n\u0435g")
    with pytest.raises(UserError, match=r"line 2: the label 'n\\u0435g' is not known, although it looks like 'neg'; write both"):
        load_own_data(OwnDataConfig(train=path, dev=dev), "sequence", say=said.append)
    said.clear()
    path = put(tmp_path / "a.csv", "text,label", "a,x", "b,y")
    load_own_data(OwnDataConfig(train=path, label_names=("x", "y", "z")), "sequence", say=said.append)
    assert said == [f"WARNING: label_names lists z, but {path} has no example of this"]


@pytest.mark.parametrize(
    "names",
    ["1 +1", "1 01", "1 1e0", "0 -0.0", '"1,000" 1000', "2.5 2.50", "a\u2010b a-b", "-1 \u22121", "\u2018x\u2019 x", "1 \uff11"],
)
def test_labels_that_are_one_number_or_differ_in_quotes_or_dashes_are_reported(tmp_path: pathlib.Path, names: str):
    said: list[str] = []
    rows = [f"text {i},{name}" for i, name in enumerate([*names.split(" "), "other"])]
    load_own_data(OwnDataConfig(train=put(tmp_path / "a.csv", "text,label", *rows)), "sequence", say=said.append)
    assert len(said) == (names != "0 -0.0"), "-0.0 is 0"
    assert all("are read as different classes; if they mean the same" in text for text in said)


def test_labels_that_differ_in_more_are_not_reported(tmp_path: pathlib.Path):
    said: list[str] = []
    rows = [f"{i},{name}" for i, name in enumerate(["c", "c++", "c#", "1.0.1", "101", "1,5", "15", "2", "-2", "B-X", "BX", "x'"])]
    rows = [row if row.count(",") == 1 else f'{row[0]},"{row.partition(",")[2]}"' for row in rows]
    load_own_data(OwnDataConfig(train=put(tmp_path / "a.csv", "text,label", *rows)), "sequence", say=said.append)
    assert said == []


def test_the_line_of_excel_names_the_delimiter(tmp_path: pathlib.Path):
    for first in ("sep=;", '"sep=;"', "\ufeffsep=;"):
        assert labels_of(put(tmp_path / "a.csv", first, "text;label", "a;x", "b;y")) == ["x", "y"]
    assert labels_of(put(tmp_path / "a.csv", "sep=;", "text; label", 'a; "x;y"')) == ["x;y"], "spaces follow the delimiter"
    with pytest.raises(UserError, match=r"line 4: the row has 3 columns, but there are 2 column names \(text, label\)"):
        labels_of(put(tmp_path / "a.csv", "sep=;", "text;label", "a;x", "b;y;z"))
    assert labels_of(put(tmp_path / "a.csv", "text\tlabel", "a\tx"), delimiter="\\t") == ["x"]
    assert labels_of(put(tmp_path / "a.csv", "text,label,,", "a,x,,")) == ["x"]


def test_quoted_cells_of_a_tsv_give_a_warning(tmp_path: pathlib.Path):
    for rows in (['"text"\t"label"', "a\tx"], ["text\tlabel", '"a ""b"""\tx'], ["text\tlabel", 'a\t"x"']):
        path = put(tmp_path / "a.tsv", *rows)
        with pytest.raises(UserError, match="in double quotes; set quotes=true if"):
            labels_of(path)
    assert labels_of(path, quotes=True) == ["x"]
    assert labels_of(path, quotes=False) == ['"x"']
    said: list[str] = []
    path = put(tmp_path / "a.tsv", "text\tlabel", '"Go."\tx', 'a "b" c\tx', '"d\ty')
    data = load_own_data(OwnDataConfig(train=path), "sequence", say=said.append)
    assert [e.text for e in data.train if isinstance(e, TextExample)] == ['"Go."', 'a "b" c', '"d']
    assert len(said) == 1
    assert said[0].startswith(f"WARNING: {path}, line 2: ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n'),
        ("a.json", '[{"text": "a", "label": "x"},\n {"text": "b", "label": "y"}]'),
        ("a.jsonl", '[{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]\n'),
    ],
)
def test_json_is_lines_or_a_list_under_any_name(tmp_path: pathlib.Path, name: str, text: str):
    (tmp_path / name).write_text(text)
    assert labels_of(str(tmp_path / name)) == ["x", "y"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"data": [{"text": "a", "label": "x"}]}', r"is a single object \(data\); give one object per row"),
        ('{"data":\n [{"text": "a", "label": "x"}]}', r"is a single object \(data\); give one object per row"),
        ('{"text": {"0": "a"}, "label": {"0": "x"}}', "is a single object for the whole table, as written by pandas' to_json"),
        ('{"text": {"5": "a"}, "label": {"5": "x"}}', "is a single object for the whole table, as written by pandas' to_json"),
        ('{"0": {"text": "a", "label": "x"}}', "is a single object for the whole table, as written by pandas' to_json"),
        ('{"text": ["a", "b"], "label": ["x", "y"]}', r'line 1: text is \["a", "b"\], not a text'),
        ('{"text": ["a",\n"b"], "label": ["x", "y"]}', r"is a single object \(text, label\); the object holds whole columns"),
        ('{"text": "a", "label": "x"},\n{"text": "b", "label": "y"},\n', "line 1: a comma follows the object; remove the comma"),
        ('[{"text": "a", "label": "x"},\n', r"a\.json is not JSON \(Expecting value: line 2"),
        ('[{"text": "a", "label": "x"}, 3]', r"a\.json, item 2: 3 is not an object"),
    ],
)
def test_json_that_is_not_a_table_is_refused(tmp_path: pathlib.Path, text: str, message: str):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=message):
        labels_of(str(tmp_path / "a.json"))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["it,x,1", "nan,x,2", "NULL,y,3"], "'nan' is read as a text, although it usually marks a missing value; fill in"),
        (["it,x,1", "#NAME?,y,2"], "'#NAME?' is read as a text, although it usually marks a missing value; fill in"),
        (["it &amp; we,x,1", "it,y,2"], "1 of 2 texts with characters escaped for HTML, such as '&amp;'; unescape them"),
        (["b'it',x,1", "we,y,2"], "1 text in the form of Python bytes, such as b'it'; write the text itself"),
        (["it,x,1", "we,y,1"], "the id '1' is also the id of an earlier row, so the two predictions have the same id"),
    ],
)
def test_what_a_table_probably_does_not_mean_gives_a_warning(tmp_path: pathlib.Path, rows: list[str], said: str):
    told: list[str] = []
    path = put(tmp_path / "a.csv", "text,label,n", *rows)
    load_own_data(OwnDataConfig(train=path, id="n"), "sequence", say=told.append)
    assert len(told) == 1
    assert told[0].startswith(f"WARNING: {path}: {said}")


def test_rows_with_labels_of_their_own_give_a_warning(tmp_path: pathlib.Path):
    for labels, told in ((range(100), True), ([*range(99), 98], False), (range(99), False)):
        said: list[str] = []
        path = put(tmp_path / "a.csv", "text,label", *(f"it,x{label}" for label in labels))
        load_own_data(OwnDataConfig(train=path), "sequence", say=said.append)
        assert [line.partition(" (the first")[0] for line in said] == [
            f"WARNING: no two of the 100 rows of {path} have the same label"
        ] * told


def test_questions_are_rows_or_squad_format_under_any_name(tmp_path: pathlib.Path):
    entry = {"id": "x", "question": "q", "answers": [{"text": "b", "answer_start": 2}]}
    squad = json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [entry]}]}]}, indent=1)
    rows = json.dumps({"id": "x", "question": "q", "context": "a b", "answers": ["b"]}) + "\n"
    for text, ending in ((squad, ".json"), (squad, ".jsonl"), (rows, ".json"), (rows, ".jsonl"), (f"[{rows}]", ".json")):
        path = tmp_path / f"a{ending}"
        path.write_text(text)
        read = load_own_data(OwnDataConfig(train=str(path), id=None if text == squad else "id"), "span").train
        assert read == [QuestionExample("x", "q", "a b", (("b", 2),))]


@pytest.mark.parametrize("ending", [".bz2", ".xz", ".zst"])
def test_compressed_tables_are_read_by_their_name(tmp_path: pathlib.Path, ending: str):
    text = b"text,label\na,x\nb,y\n"
    zstd = functools.partial(pyarrow.compress, codec="zstd", asbytes=True)
    packed = {".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}[ending](text)
    path = tmp_path / f"a.csv{ending}"
    path.write_bytes(packed)
    assert labels_of(str(path)) == ["x", "y"]
    path.write_bytes(packed[:-5])
    with pytest.raises(UserError, match=r"is not a whole (bzip2|xz|zstd) file"):
        labels_of(str(path))
    (tmp_path / "a.csv").write_bytes(packed)
    with pytest.raises(UserError, match=rf"a\.csv is compressed with .*; give it a name that ends in \{ending}, or decompress"):
        labels_of(str(tmp_path / "a.csv"))


def test_an_excel_workbook_is_recognised_by_its_first_bytes(tmp_path: pathlib.Path):
    for name in ("a.xlsx", "a.csv"):
        (tmp_path / name).write_bytes(b"PK\x03\x04" + bytes(60))
        with pytest.raises(UserError, match=rf"{name} is a zip archive or an Excel workbook, not text; .*save the sheet as CSV"):
            labels_of(str(tmp_path / name))


def test_files_of_one_pattern_are_one_data_set(tmp_path: pathlib.Path):
    put(tmp_path / "b-1.csv", "text,label", "b,y")
    put(tmp_path / "b-0.csv", "text,label", "a,x")
    data = load_own_data(OwnDataConfig(train=str(tmp_path / "b-*.csv")), "sequence")
    assert data.train == [TextExample("0", "a", None, "x"), TextExample("1", "b", None, "y")]


def test_a_broken_link_among_the_files_of_a_pattern_is_refused(tmp_path: pathlib.Path):
    put(tmp_path / "a.csv", "text,label", "a,x")
    (tmp_path / "b.csv").symlink_to(tmp_path / "nothing.csv")
    with pytest.raises(UserError, match=r"b\.csv .*cannot be read; restore its target, or remove the link"):
        labels_of(str(tmp_path / "*.csv"))


def test_a_file_given_for_two_splits_is_reported(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "text,label", "one,x", "two,y")
    (tmp_path / "link.csv").symlink_to(path)
    other = put(tmp_path / "b.csv", "text,label", "three,x")
    for dev, told in ((path, True), (str(tmp_path / "link.csv"), True), (other, False), (f"{tmp_path}/*.csv", True)):
        said: list[str] = []
        load_own_data(OwnDataConfig(train=path, dev=dev), "sequence", say=said.append)
        problem = f"WARNING: train and dev are the same file, {path}"
        message = f"{problem}, so the scores do not show how well the model does on new text"
        assert said == [message] * told


def test_blanks_around_a_label_are_stripped(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "text,label", "a,x", "b, x", '"c","y "')
    assert load_own_data(OwnDataConfig(train=path), "sequence").labels == ("x", "y")


def test_missing_settings_are_refused_by_name(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="no file is given"):
        load_own_data(OwnDataConfig(), "sequence")
    with pytest.raises(UserError, match="the dev split is not given; set dev=FILE"):
        read_own_data(OwnDataConfig(), "sequence", "dev")
    with pytest.raises(UserError, match=r"none\.csv cannot be read: No such file"):
        load_own_data(OwnDataConfig(train=str(tmp_path / "none.csv")), "sequence")
    with pytest.raises(UserError, match="kind='tokens' is not a kind of head; did you mean 'token'"):
        read_own_data(OwnDataConfig(), "tokens", "train")
    with pytest.raises(UserError, match=r"own.problem='regresion' is not one of .*; did you mean 'regression'"):
        OwnDataConfig(problem="regresion")
    with pytest.raises(UserError, match=r"label_names=\[pos\] has only one label, .*; name two or more labels as \[a,b\], or"):
        OwnDataConfig(label_names=("pos",))
    with pytest.raises(UserError, match="there is no split 'training'; did you mean 'train'"):
        read_own_data(OwnDataConfig(), "sequence", "training")
    with pytest.raises(UserError, match=r"own\.delimiter=';;' must be one character"):
        OwnDataConfig(delimiter=";;")
    with pytest.raises(UserError, match="names a label twice"):
        OwnDataConfig(label_names=("a", "a"))
    (tmp_path / "torn.csv.gz").write_bytes(gzip.compress(b"text,label\n")[:-3])
    with pytest.raises(UserError, match="is not a whole gzip file"):
        load_own_data(OwnDataConfig(train=str(tmp_path / "torn.csv.gz")), "sequence")


def test_text_columns_list_only_renamed_fields():
    config = OwnDataConfig(text="review", text_b="text_b", choices=("end0", "end1"), words="w")
    assert text_columns(config, "sequence") == {"text": "review"}
    assert text_columns(config, "choice") == {"choices": ["end0", "end1"]}
    assert text_columns(config, "token") == {"words": "w"}
    assert text_columns(config, "span") == text_columns(OwnDataConfig(), "choice") == text_columns(config, "mention") == {}


@pytest.mark.parametrize(
    ("name", "lines", "kind", "problem", "says"),
    [
        ("a.csv", ["text,label", "a,2", "b,2.0"], "sequence", "regression", "every label of {} is 2.0, so"),
        ("a.csv", ["question,context,answers", "a,b,"], "span", "classification", "no question of {} has an answer, so"),
    ],
)
def test_data_with_nothing_to_learn_is_reported(
    tmp_path: pathlib.Path, name: str, lines: list[str], kind: str, problem: str, says: str
):
    said: list[str] = []
    path = put(tmp_path / name, *lines)
    load_own_data(OwnDataConfig(train=path, problem=problem), kind, say=said.append)
    assert said == [f"WARNING: {says.format(path)} there is nothing to learn"]


def test_labels_that_are_numbers_with_fractions_are_reported_as_classes(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "text,label", "a,2", "b,0.5")
    said: list[str] = []
    for settings in ({}, {"problem": "regression"}, {"label_names": ("0.5", "2")}):
        load_own_data(OwnDataConfig(train=path, **settings), "sequence", say=said.append)
    assert said == [
        "WARNING: labels are numbers such as 0.5, and each number is a class; if they are scores, set problem=regression"
    ]


@pytest.mark.parametrize("problem", ["classification", "regression"])
def test_a_test_set_in_which_every_label_is_minus_one_has_no_labels(tmp_path: pathlib.Path, problem: str):
    """As in the test sets of GLUE on the hub."""
    train = put(tmp_path / "a.csv", "text,label", "a,1", "b,0")
    said: list[str] = []
    for name, rows in (("t.jsonl", [{"text": "a", "label": -1}] * 2), ("t.csv", ["text,label", "a,-1", "a,-1.0"])):
        config = OwnDataConfig(train=train, test=put(tmp_path / name, *rows), problem=problem)
        found = load_own_data(config, "sequence", say=said.append).test
        assert [(example.text, example.label) for example in found if isinstance(example, TextExample)] == [("a", None)] * 2
    read = "every label is -1, so the labels are unknown, as in test sets of the Hugging Face hub"
    assert said == [f"{tmp_path / 't.jsonl'}: {read}", f"{tmp_path / 't.csv'}: {read}"]
    mixed = put(tmp_path / "u.csv", "text,label", "a,-1", "a,1")
    is_wrong = pytest.raises(UserError, match="the label '-1' usually means that the label is unknown; remove the row")
    with is_wrong if problem == "classification" else contextlib.nullcontext():
        load_own_data(OwnDataConfig(train=train, test=mixed, problem=problem), "sequence")


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_one_text_of_a_pair_may_be_empty(tmp_path: pathlib.Path, name: str, split: str):
    """As in QQP."""

    def read(*pairs: tuple[str, str], text_b: str | None = "b") -> list[tuple[str, str | None]]:
        rows = [{"a": one, "b": two, "label": "x"} for one, two in pairs]
        csv_rows = ["a,b,label", *(f"{one},{two},x" for one, two in pairs)]
        path = put(tmp_path / name, *(rows if name == "a.jsonl" else csv_rows))
        config = OwnDataConfig(text="a", text_b=text_b, **{split: path})
        found = read_own_data(config, "sequence", split, say=said.append)
        return [(example.text, example.text_b) for example in found if isinstance(example, TextExample)]

    said: list[str] = []
    pairs = [("who", "why"), ("", "what"), ("how", " ")]
    assert read(*pairs) == pairs
    first = "line 3" if name == "a.csv" else "line 2"
    assert said == [f"{tmp_path / name}: kept 2 examples with an empty text, which `predict` refuses; the first is {first}"]
    for text_b, wrong in (("b", ("", "")), (None, ("", "what"))):
        with pytest.raises(UserError, match=rf'{name}, {first}: a is "", not a text'):
            read(("who", "why"), wrong, text_b=text_b)


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_rows_without_words_are_left_out_of_sentences(tmp_path: pathlib.Path, split: str):
    """As in NCBI's diseases."""

    def read(*rows: dict[str, list[str]]) -> list[tuple[str, object]]:
        config = OwnDataConfig(**{split: put(tmp_path / "a.jsonl", *rows)})
        found = read_own_data(config, "token", split, say=said.append)
        return [(example.id, example.words) for example in found if isinstance(example, WordsExample)]

    said: list[str] = []
    nothing: dict[str, list[str]] = {"words": [], "labels": []}
    first, last = ({"words": [word, "ran"], "labels": ["P", "O"]} for word in ("Ada", "Bo"))
    assert read(first, nothing, last, nothing) == [("0", ("Ada", "ran")), ("2", ("Bo", "ran"))]
    assert said == [f"{tmp_path / 'a.jsonl'}: left out 2 rows without words; the first is line 2"]
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: words is empty; remove the row"):
        read(first, nothing | {"labels": ["O"]})
    with pytest.raises(UserError, match=r"a\.jsonl: words is empty in every row; name the column of the words"):
        read(nothing)


@pytest.mark.parametrize("hidden", [[-1, -1], [None, None], [], ["-1", "-1"]])
def test_a_sentence_of_a_test_set_may_have_hidden_labels(tmp_path: pathlib.Path, hidden: list[object]):
    words = {"words": ["Ada", "ran"]}
    train = put(tmp_path / "a.jsonl", words | {"labels": ["P", "O"]})
    test = put(tmp_path / "t.jsonl", words | {"labels": hidden}, words | {"labels": ["P", "O"]})
    said: list[str] = []
    found = load_own_data(OwnDataConfig(train=train, test=test), "token", say=said.append).test
    assert [example.labels for example in found if isinstance(example, WordsExample)] == [None, ("P", "O")]
    unknown = "all labels of 1 row are -1, so they are unknown, as in test sets of the Hugging Face hub"
    assert said == ([f"{test}: {unknown}"] if "-1" in map(str, hidden) else [])
    with pytest.raises(UserError, match=r"t\.jsonl, line 1: (there are 2|item 1 of labels is null|the label '-1' is not known)"):
        load_own_data(OwnDataConfig(train=train, dev=test), "token")
    put(tmp_path / "a.jsonl", words | {"labels": [-1, 0]})
    found = load_own_data(OwnDataConfig(test=put(tmp_path / "u.jsonl", words | {"labels": [-1, -1]}), train=train), "token").test
    assert [example.labels for example in found if isinstance(example, WordsExample)] == [("-1", "-1")]


@pytest.mark.parametrize("hidden", [{"label": [-1]}, {"label": [-1, -1]}, {"label": [None]}, {"x": -1, "y": -1}])
def test_a_text_of_a_test_set_may_have_hidden_sets_of_labels(tmp_path: pathlib.Path, hidden: dict[str, object]):
    """As in the test set of Jigsaw's toxic comments, in which only some rows are scored."""
    rows = [{"text": "a"} | hidden, {"text": "b"} | ({"x": 0, "y": 1} if "x" in hidden else {"label": ["y"]})]
    path = put(tmp_path / "t.jsonl", *rows)
    config = OwnDataConfig(dev=path, test=path, problem="multi_label", label_names=("x", "y"))
    found = read_own_data(config, "sequence", "test", labels=("x", "y"), say=lambda said: None)
    assert [example.label for example in found if isinstance(example, TextExample)] == [None, ("y",)]
    with pytest.raises(UserError, match=r"t\.jsonl, line 1: "):
        read_own_data(config, "sequence", "dev", labels=("x", "y"))


@pytest.mark.parametrize("rows", [[{"labels": []}] * 2, [{"labels": []}, {"labels": None}], [{"x": 0, "y": 0}] * 2])
def test_the_labels_of_a_test_set_in_which_no_row_has_one_are_unknown(tmp_path: pathlib.Path, rows: list[dict[str, Any]]):
    train = put(tmp_path / "a.jsonl", {"text": "a", "labels": ["x", "y"]}, {"text": "b", "labels": []})
    said: list[str] = []

    def labels(split: str, *more: dict[str, Any]) -> list[object]:
        path = put(tmp_path / "t.jsonl", *({"text": "a"} | row for row in (*rows, *more)))
        config = OwnDataConfig(train=train, label="labels", problem="multi_label", label_names=("x", "y"))
        found = read_own_data(dataclasses.replace(config, **{split: path}), "sequence", split, labels=("x", "y"), say=said.append)
        return [example.label for example in found if isinstance(example, TextExample)]

    assert labels("test") == [None, None]
    assert "no row has a label, so the labels are unknown, as in test sets of the Hugging Face hub" in said[0]
    one = {"x": 0, "y": 1} if "x" in rows[0] else {"labels": ["y"]}
    assert labels("test", one)[::2] == [(), ("y",)]
    if None not in rows[1].values():
        assert labels("dev") == [(), ()]


@pytest.mark.parametrize("choices", [["x", "y"], {"text": ["x", "y"], "label": ["A", "B"]}])
def test_a_choice_of_a_test_set_is_unknown_where_its_label_is_minus_one(tmp_path: pathlib.Path, choices: object):
    """As in the test sets of PIQA and COPA on the hub."""
    path = put(tmp_path / "a.jsonl", {"prompt": "p", "choices": choices, "label": -1})
    assert read_own_data(OwnDataConfig(test=path), "choice", "test") == [ChoiceExample("0", "p", ("x", "y"), None)]
    with pytest.raises(UserError, match="label is '-1', "):
        read_own_data(OwnDataConfig(dev=path), "choice", "dev")


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("1,000", "remove the comma if it separates thousands, replace it"),
        ("1,5", "replace the decimal comma by a point"),
    ],
)
def test_commas_in_numbers_are_refused_with_both_meanings(tmp_path: pathlib.Path, value: str, remedy: str):
    path = put(tmp_path / "a.csv", "text,label", f'a,"{value}"')
    with pytest.raises(UserError, match=f"line 2: label is '{value}', not a number from .*; {remedy}.*, correct the row"):
        load_own_data(OwnDataConfig(train=path, problem="regression"), "sequence")


def test_several_questions_about_a_context_are_refused_with_the_program_that_separates_them(tmp_path: pathlib.Path):
    question = {"qid": "x", "question": "who", "answers": ["Ada"]}
    says = r"line 1: there is no field 'question', but a list .* MRQA; .*\{context\} \+ \.qas\[\]' a\.jsonl"
    for head in ([], [{"header": {"dataset": "x"}}]):
        path = put(tmp_path / "a.jsonl", *head, {"context": "it was Ada", "qas": [question]})
        with pytest.raises(UserError, match=says):
            load_own_data(OwnDataConfig(train=path), "span")
    (found,) = load_own_data(OwnDataConfig(train=put(tmp_path / "b.jsonl", {"context": "it was Ada"} | question)), "span").train
    assert isinstance(found, QuestionExample)
    assert found.answers == (("Ada", 7),)


def test_spaces_and_byte_order_marks_in_a_header_and_unread_columns_of_one_name_do_not_matter(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "\ufeff\ufefftext, label,n,n", "it was, good,1,2", "it is, poor,3,4")

    def read() -> list[tuple[str, object]]:
        found = load_own_data(OwnDataConfig(train=path), "sequence").train
        return [(example.text, example.label) for example in found if isinstance(example, TextExample)]

    assert read() == [("it was", "good"), ("it is", "poor")]
    put(tmp_path / "a.csv", "label, text", 'good, "it was, then"', 'poor,  it is', 'poor, " ""so"""')
    assert read() == [("it was, then", "good"), ("it is", "poor"), (' "so"', "poor")]
    put(tmp_path / "a.csv", "label,text", 'good, it was', 'poor," ""so"""')
    assert read() == [(" it was", "good"), (' "so"', "poor")]
