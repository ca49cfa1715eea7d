from __future__ import annotations

import gzip
import json
import pathlib

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.examples import ChoiceExample, QuestionExample, TextExample, WordsExample
from bert_jax.tasks.readers.own_data import OwnDataConfig, load_own_data, read_own_data
from tests.compressed import PACK, compressed


def put(path: pathlib.Path, *rows: object) -> str:
    """A file of these rows, objects as JSON."""
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


def test_a_cell_in_quotes_may_hold_a_line_end_and_any_length(tmp_path: pathlib.Path):
    long = "w " * 100_000
    path = put(tmp_path / "a.csv", "text,label", '"one\ntwo","x"', f'"{long}",y', "three,")
    assert [e.text for e in read_own_data(OwnDataConfig(test=path), "sequence", "test")] == ["one\ntwo", long, "three"]
    with pytest.raises(UserError, match=r"a\.csv, line 5: label is \"\", not a text"):
        read_own_data(OwnDataConfig(train=path), "sequence", "train")
    torn = put(tmp_path / "b.csv", "text,label", "fine,x", '"torn,x', "more,x")
    with pytest.raises(UserError, match=r"b\.csv, line 3: the quotes of this row do not match"):
        read_own_data(OwnDataConfig(train=torn), "sequence", "train")


def test_labels_come_sorted_from_the_training_file_numbers_as_numbers(tmp_path: pathlib.Path):
    def labels(*names: object) -> tuple[str, ...]:
        path = put(tmp_path / "a.jsonl", *({"text": "t", "label": name} for name in names))
        return load_own_data(OwnDataConfig(train=path), "sequence").labels

    assert labels("pear", "Fig", "apple", "pear") == ("Fig", "apple", "pear")
    assert labels(10, 9, "-1", 2.5) == ("-1", "2.5", "9", "10")
    assert labels(10, 9, "none") == ("10", "9", "none")
    assert labels(True, False) == ("false", "true")


def test_a_label_unknown_to_training_is_an_error_with_its_place(tmp_path: pathlib.Path):
    train = put(tmp_path / "train.tsv", "text\tlabel", "a\tyes", "b\tno")
    dev = put(tmp_path / "dev.tsv", "text\tlabel", "a\tyes", "b\tmaybe")
    with pytest.raises(UserError, match=r"dev\.tsv, line 3: the label 'maybe' is not known; known: no, yes"):
        load_own_data(OwnDataConfig(train=train, dev=dev), "sequence")
    data = load_own_data(OwnDataConfig(train=train, dev=dev, label_names=("yes", "no", "maybe")), "sequence")
    assert (data.labels, len(data.train), len(data.dev), data.test) == (("yes", "no", "maybe"), 2, 2, [])
    with pytest.raises(UserError, match=r"train\.tsv, line 3: the label 'no' is not known; known: yes, maybe"):
        load_own_data(OwnDataConfig(train=train, label_names=("yes", "maybe")), "sequence")
    with pytest.raises(UserError, match="the labels are not known: set train"):
        load_own_data(OwnDataConfig(dev=dev), "sequence")


def test_only_a_test_file_may_keep_its_labels_back(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "text", "a")
    assert read_own_data(OwnDataConfig(test=path), "sequence", "test") == [TextExample("0", "a", None, None)]
    with pytest.raises(UserError, match=r"a\.csv, line 1: no column 'label'; known: text"):
        read_own_data(OwnDataConfig(dev=path), "sequence", "dev")


def test_a_missing_column_is_told_with_the_nearest_one(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "Text,label", "a,b")
    with pytest.raises(UserError, match="no column 'text'; did you mean 'Text'"):
        read_own_data(OwnDataConfig(train=path), "sequence", "train")
    path = put(tmp_path / "a.jsonl", {"text": "a", "label": "b"}, {"text": "a", "labels": "b"})
    with pytest.raises(UserError, match="line 2: no field 'label'; did you mean 'labels'"):
        read_own_data(OwnDataConfig(train=path), "sequence", "train")


@pytest.mark.parametrize("label", ["1e300", "-1e7", "nan", "inf"])
def test_a_value_that_no_float32_can_be_trained_on_is_refused(tmp_path: pathlib.Path, label: str):
    path = tmp_path / "train.csv"
    path.write_text(f"text,label\ngood,1\nbad,{label}\n")
    with pytest.raises(UserError, match=rf"train\.csv, line 3: label is '{label}', not a number from -1e\+06 to 1e\+06; correct"):
        load_own_data(OwnDataConfig(train=str(path), problem="regression"), "sequence")


def test_regression_and_several_labels(tmp_path: pathlib.Path):
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
    grouped = put(tmp_path / "b.csv", "words,labels,from", "a,O,x", "b,O,y", "c,O,y")
    read = read_own_data(OwnDataConfig(train=grouped, document="from"), "token", "train")
    assert [e.document for e in read if isinstance(e, WordsExample)] == [0, 1, 1]
    text = put(tmp_path / "c.jsonl", {"words": "Ada sings", "labels": ["PER", "O"]})
    with pytest.raises(UserError, match=r'line 1: words is "Ada sings", not a list of texts'):
        read_own_data(OwnDataConfig(train=text), "token", "train")
    short = put(tmp_path / "c.csv", "words,labels", "Ada sings,PER")
    with pytest.raises(UserError, match="line 2: 2 words but 1 labels"):
        read_own_data(OwnDataConfig(train=short), "token", "train")


def test_answers_are_found_where_they_stand(tmp_path: pathlib.Path):
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
    assert "moved 1 answer to the nearest place with their text, first one of 3" in said[0]
    assert "first one of 4" in said[1]
    path = put(tmp_path / "a.csv", "question,context,answers,start", f"q,{context},two,12", f"q,{context},,")
    read = read_own_data(OwnDataConfig(train=path, answer_start="start"), "span", "train")
    assert [e.answers for e in read if isinstance(e, QuestionExample)] == [(("two", 12),), ()]
    path = put(tmp_path / "b.csv", "question,context", f"q,{context}")
    assert read_own_data(OwnDataConfig(test=path), "span", "test") == [QuestionExample("0", "q", context)]


def test_a_json_file_of_questions_is_squads(tmp_path: pathlib.Path):
    entry = {"id": "x", "question": "q", "answers": [{"text": "b", "answer_start": 2}]}
    path = put(tmp_path / "a.json", {"data": [{"paragraphs": [{"context": "a b", "qas": [entry]}]}]})
    assert load_own_data(OwnDataConfig(train=path), "span").train == [QuestionExample("x", "q", "a b", (("b", 2),))]


def test_choices_are_a_list_or_columns_and_labels_count_from_where_they_are_said_to(tmp_path: pathlib.Path):
    lists = put(tmp_path / "a.jsonl", {"prompt": "p", "choices": ["x", "y", "z"], "label": 2})
    cells = put(tmp_path / "a.csv", "prompt,c0,c1,c2,label", "p,x,y,z,3")
    wanted = [ChoiceExample("0", "p", ("x", "y", "z"), 2)]
    assert load_own_data(OwnDataConfig(train=lists), "choice").train == wanted
    config = OwnDataConfig(train=cells, choices=("c0", "c1", "c2"), first_choice=1)
    assert load_own_data(config, "choice").train == wanted
    with pytest.raises(UserError, match=r"line 2: label is '3', not one of 0, 1, 2 \(first_choice=0\)"):
        load_own_data(OwnDataConfig(train=cells, choices=("c0", "c1", "c2")), "choice")


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("a.jsonl", ['{"text": "a", "label": "b"}', "{torn"], "line 2: not JSON"),
        ("a.jsonl", ["[1]"], r"line 1: \[1\] is not an object"),
        ("a.jsonl", [{"text": 3, "label": "b"}], "line 1: text is 3, not a text"),
        ("a.jsonl", ['{"text": "a \\ud83d", "label": "b"}'], "line 1: 'text' holds half a surrogate pair, which is no character"),
        ("a.jsonl", [{"text": "a", "label": None}], "line 1: label is null"),
        ("a.tsv", ["text\tlabel", "a\tb\tc"], "line 2: 3 columns, not the 2 of text, label"),
        ("a.tsv", ["text\tlabel"], r"a\.tsv has no rows"),
        ("a.doc", ["text\tlabel"], r"'\.doc', which is no known format"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(tmp_path: pathlib.Path, name: str, rows: list[object], message: str):
    with pytest.raises(UserError, match=message):
        read_own_data(OwnDataConfig(train=put(tmp_path / name, *rows)), "sequence", "train")


def test_blanks_around_a_label_are_not_part_of_it(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.csv", "text,label", "a,x", "b, x", '"c","y "')
    assert load_own_data(OwnDataConfig(train=path), "sequence").labels == ("x", "y")


def test_what_is_not_given_is_asked_for(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="no file is given"):
        load_own_data(OwnDataConfig(), "sequence")
    with pytest.raises(UserError, match="the dev split is not given; set dev=FILE"):
        read_own_data(OwnDataConfig(), "sequence", "dev")
    with pytest.raises(UserError, match=r"none\.csv cannot be read: No such file"):
        load_own_data(OwnDataConfig(train=str(tmp_path / "none.csv")), "sequence")
    with pytest.raises(UserError, match="kind='tokens' is no kind of head; did you mean 'token'"):
        read_own_data(OwnDataConfig(), "tokens", "train")
    with pytest.raises(UserError, match=r"own.problem='regresion' is not one of .*; did you mean 'regression'"):
        OwnDataConfig(problem="regresion")
    with pytest.raises(UserError, match=r"label_names=\[pos\] is one label, .*; name two or more as \[a,b\], or none"):
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
