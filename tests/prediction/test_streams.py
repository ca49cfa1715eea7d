from __future__ import annotations

import bz2
import contextlib
import datetime
import decimal
import gzip
import io
import json
import lzma
import os
import pathlib
import re
import threading
import time
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.prediction import fields
from bert_jax.prediction.answers import in_groups
from bert_jax.prediction.fields import Field, Record
from bert_jax.prediction.streams import check_not_files, read_records, read_texts
from bert_jax.tasks.config import OwnDataConfig
from bert_jax.tasks.readers.own_data import load_own_data, read_own_data, table_settings
from tests.compressed import PACK, compressed
from tests.open_files import open_below

TEXT = (Field("text"),)
PAIR = (Field("text"), Field("text_b", optional=True))
QUESTION = (Field("question"), Field("context"))
CHOICE = (Field("prompt"), Field("choices", many=True))
WORDS = (Field("words", many=True, words=True),)


def read(path: pathlib.Path, content: bytes, fields=TEXT, **flags: Any) -> list[Record]:
    path.write_bytes(compressed(content, path.name))
    return list(read_records([], str(path), fields, **flags))


@pytest.fixture
def lines_of_a_megabyte(monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns the number of bytes of a megabyte, the longest line in such a test instead of 64 MiB."""
    monkeypatch.setattr(fields, "MOST_BYTES", 1 << 20)
    return 1 << 20


def one_line(line: str, fields) -> Record:
    (record,) = read_records([line], None, fields)
    return record


# Lines of text


@pytest.mark.parametrize("suffix", [".txt", *(f".txt{end}" for end in PACK)])
def test_every_line_is_a_record_with_its_number_and_position(tmp_path, suffix):
    path = tmp_path / f"in{suffix}"
    records = read(path, "\ufeffone\r\n\n \t\u00a0\n  two\ttwo \nlast".encode())
    assert [(r.number, r.values, r.problem) for r in records] == [
        (1, {"text": "one"}, None),
        (4, {"text": "  two\ttwo "}, None),
        (5, {"text": "last"}, None),
    ]
    assert [r.place for r in records] == [f"{path}, line {n}: " for n in (1, 4, 5)]


def test_texts_as_arguments_are_records():
    records = list(read_records(["one", "two\nlines"], None, TEXT))
    assert [(r.number, r.place, r.values["text"]) for r in records] == [(1, "text 1: ", "one"), (2, "text 2: ", "two\nlines")]
    assert one_line("one", TEXT).place == ""
    assert not read_records(["one"], None, TEXT).typed
    assert one_line("one", TEXT).size == 0


@pytest.mark.parametrize(
    ("fields", "line", "values"),
    [
        (PAIR, " a \t b ", {"text": " a ", "text_b": " b "}),
        (PAIR, "a", {"text": "a", "text_b": None}),
        (QUESTION, "who?\tme", {"question": "who?", "context": "me"}),
        (CHOICE, "p\tx\ty\tz", {"prompt": "p", "choices": ["x", "y", "z"]}),
        (CHOICE, "p\tx", {"prompt": "p", "choices": ["x"]}),
        ((Field("choices", many=True),), "x\ty", {"choices": ["x", "y"]}),
    ],
)
def test_tabs_separate_the_fields_of_a_line(fields, line, values):
    record = one_line(line, fields)
    assert (record.values, record.problem) == (values, None)


@pytest.mark.parametrize(
    ("fields", "line", "problem"),
    [
        (QUESTION, "who?", "no context: a line is question TAB context"),
        (CHOICE, "p", "no choices: a line is prompt TAB choices ..."),
        (PAIR, "a\tb\tc", "3 texts between TABs, but only 2 fields: text TAB text_b"),
        (QUESTION, "\tme", "its question is empty"),
        (CHOICE, "p\tx\t \ty", "its choices holds no text or an empty one"),
    ],
)
def test_a_line_without_its_fields_is_a_problem(tmp_path, fields, line, problem):
    (record,) = read(tmp_path / "in.txt", line.encode(errors="surrogateescape"), fields)
    assert (record.problem or "").startswith(problem)
    assert (record.number, record.place) == (1, f"{tmp_path / 'in.txt'}, line 1: ")


@pytest.mark.parametrize(
    ("fields", "arguments", "problem"),
    [
        (QUESTION, ["who?"], "no context: the arguments are question context, each in quotes"),
        (CHOICE, ["p"], "no choices: the arguments are prompt choices ..., each in quotes"),
        (QUESTION, ["who", "is", "me?"], "3 arguments, but only 2 fields: question context; put each in quotes"),
        (QUESTION, ["\tme"], "its question is empty"),
        (TEXT, ["  "], "its text is empty"),
        (TEXT, ["bad \udcff byte"], "its text holds half a surrogate pair, or a byte that is not UTF-8"),
    ],
)
def test_errors_about_arguments_name_them_as_arguments(fields, arguments, problem):
    (record,) = read_records(arguments, None, fields)
    assert (record.problem or "").startswith(problem)
    assert (record.number, record.place) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["the river"], [["the", "river"]]),
        (["the", "river"], [["the", "river"]]),
        (["New York\triver"], [["New York", "river"]]),
        (["the river", "is"], [["the", "river"], ["is"]]),
    ],
)
def test_words_are_separated_by_tabs_or_spaces(arguments, words, tmp_path):
    fields = (Field("words", many=True, words=True),)
    assert [record.values["words"] for record in read_records(arguments, None, fields)] == words
    records = read(tmp_path / "in.txt", "\n".join(map(" ".join, words)).encode(), fields)
    assert [record.values["words"] for record in records] == [" ".join(some).split() for some in words]


def test_blank_lines_are_records_if_each_line_has_an_answer(tmp_path):
    (tmp_path / "in.txt").write_bytes(b"\na\n \t\r\n\xff\n\n")
    records = list(read_records([], str(tmp_path / "in.txt"), TEXT, blank_lines=True))
    assert [(r.number, r.blank, bool(r.problem)) for r in records] == [
        (1, True, False), (2, False, False), (3, True, False), (4, False, True), (5, True, False),
    ]  # fmt: skip
    assert [r.number for r in read_records([], str(tmp_path / "in.txt"), TEXT)] == [2, 4]
    with (tmp_path / "in.txt").open() as stdin:
        assert [r.number for r in read_records([], None, TEXT, stdin=stdin)] == [2, 4]
    with (tmp_path / "in.txt").open() as stdin:
        assert [r.blank for r in read_records([], None, TEXT, stdin=stdin, blank_lines=True)] == [True, False, True, False, True]


# Lines of JSON


@pytest.mark.parametrize("name", ["in.jsonl", *(f"in.jsonl{end}" for end in PACK)])
def test_json_lines_give_their_fields_and_keep_the_rest(tmp_path, name, capsys):
    lines = [{"id": 7, "question": " who? ", "context": "a\tb\n", "tags": [1, {"x": None}]}, {"context": "c", "question": "q"}]
    records = read(tmp_path / name, "\n\n".join(map(json.dumps, lines)).encode(), QUESTION)
    assert [r.values for r in records] == [{"question": " who? ", "context": "a\tb\n"}, {"question": "q", "context": "c"}]
    assert [r.rest for r in records] == [{"id": 7, "tags": [1, {"x": None}]}, {}]
    assert [r.number for r in records] == [1, 3]
    assert capsys.readouterr().err == ""


def test_missing_and_null_optional_fields_are_none(tmp_path):
    records = read(tmp_path / "in.jsonl", b'{"text": "a"}\n{"text": "a", "text_b": null}\n{"text": "a", "text_b": "b"}', PAIR)
    assert [r.values["text_b"] for r in records] == [None, None, "b"]
    assert not any(r.problem for r in records)


@pytest.mark.parametrize(
    ("fields", "line", "problem"),
    [
        (TEXT, '{"text": "a"', "not JSON (Expecting ',' delimiter"),
        (TEXT, "plain text", "not JSON (Expecting value"),
        (TEXT, '{"text": "a", "x": NaN}', "not JSON (NaN is not a JSON number)"),
        (TEXT, '{"text": "a", "x": -1e999}', "not JSON (-1e999 is too large for a float)"),
        (TEXT, "[" * 200_000, "not JSON ("),
        (TEXT, '["a"]', "a JSON list, not an object with 'text'"),
        (TEXT, "{}", "no field 'text'"),
        (TEXT, '{"txt": "a"}', "no field 'text'; did you mean 'txt'?"),
        (TEXT, '{"text": 3}', "its text is 3, not text"),
        (TEXT, '{"text": null}', "its text is null, not text"),
        (TEXT, '{"text": " "}', "its text is empty"),
        (TEXT, '{"text": "\\ud800"}', "its text holds half a surrogate pair"),
        (PAIR, '{"text": "a", "text_b": ["b"]}', 'its text_b is ["b"], not text'),
        (CHOICE, '{"prompt": "p", "choices": "x"}', 'its choices is "x", not a list of texts'),
        (CHOICE, '{"prompt": "p", "choices": ["x", null]}', 'its choices is ["x", null], not a list of texts'),
        (CHOICE, '{"prompt": "p", "choices": []}', "its choices holds no text or an empty one"),
    ],
)
def test_a_bad_json_line_is_a_problem_and_the_next_is_read(tmp_path, fields, line, problem):
    good = '{"text": "a", "prompt": "p", "choices": ["x"]}'
    bad, after = read(tmp_path / "in.jsonl", f"{line}\n{good}\n".encode(), fields)
    assert (bad.problem or "").startswith(problem)
    assert (bad.number, bad.place) == (1, f"{tmp_path / 'in.jsonl'}, line 1: ")
    assert (after.number, after.problem) == (2, None)


# Any content of a file


def test_lines_that_are_not_text_are_separate_problems(tmp_path):
    records = read(tmp_path / "in.txt", b"\x7fELF\x00\x01\ngood\n\xdcber\n" + "zwölf".encode("utf-16") + b"\n\x00\n")
    assert [(r.number, r.problem and r.problem.partition(";")[0]) for r in records] == [
        (1, "byte 5 is NUL, which no text holds"),
        (2, None),
        (3, "byte 1 is not UTF-8"),
        (4, "byte 4 is NUL, which no text holds"),
        (5, "byte 1 is NUL, which no text holds"),
    ]


def test_a_long_line_is_read_and_one_beyond_the_limit_fails_alone(tmp_path, lines_of_a_megabyte):
    fits, long = "wörd " * 170_000, "wörd " * 600_000
    lines = [long.encode(), b"after", fits.encode(), b"x" * (lines_of_a_megabyte - 1), b"y" * lines_of_a_megabyte]
    records = read(tmp_path / "in.txt", b"\n".join(lines))
    assert [r.problem and r.problem[:17] for r in records] == ["longer than 1 MiB", None, None, None, "longer than 1 MiB"]
    assert [(r.number, r.values["text"]) for r in records[1:3]] == [(2, "after"), (3, fits)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nofile", r"--input=nofile \(looked for in /.*\) cannot be read: No such file or directory; name an existing file"),
        ("REDME.md", r"--input=REDME.md \(looked for in /.*; did you mean README.md\?\) cannot be read: No such file"),
        ("tests/prediktion/reference.py", r"; did you mean tests/prediction/reference.py\?\)"),
        (".", "--input=. cannot be read: Is a directory"),
        ("./.", r"--input=\./\. cannot be read: Is a directory"),
        ("nofile.jsonl.gz", r"--input=nofile.jsonl.gz \(looked for in /.*\) cannot be read: No such file"),
    ],
)
def test_a_missing_file_is_refused_before_reading(name, message, monkeypatch):
    monkeypatch.chdir(pathlib.Path(__file__).parents[2])
    with pytest.raises(UserError, match=message):
        read_records([], name, TEXT)


def test_a_truncated_gzip_file_fails_after_its_complete_lines(tmp_path):
    (tmp_path / "plain.gz").write_bytes(b"plain\n")
    with pytest.raises(UserError, match=r"plain\.gz cannot be read: it is not a whole gzip file \(Not a gzipped"):
        list(read_records([], str(tmp_path / "plain.gz"), TEXT))
    lines = b"".join(os.urandom(30).hex().encode() + b"\n" for _ in range(2000))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(lines)[:-2000])
    read_ones: list[str] = []
    windows = in_groups(read_records([], str(tmp_path / "cut.gz"), TEXT), 100)
    with pytest.raises(UserError, match="it is not a whole gzip file"):
        read_ones.extend(f"{record.values['text']}\n" for window in windows for record in window)
    assert len(read_ones) > 500
    assert lines.startswith("".join(read_ones).encode())


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (gzip.compress, "in.txt is compressed with gzip, not text; give it a name that ends in .gz, or decompress it first"),
        (bz2.compress, "in.txt is compressed with bzip2, not text; give it a name that ends in .bz2, or decompress it first"),
        (lzma.compress, "in.txt is compressed with xz, not text; give it a name that ends in .xz, or decompress it first"),
    ],
)
def test_a_compressed_file_without_its_suffix_is_refused(tmp_path, pack, message):
    (tmp_path / "in.txt").write_bytes(pack(b"text\n"))
    with pytest.raises(UserError, match=re.escape(message)):
        list(read_records([], str(tmp_path / "in.txt"), TEXT))


def test_texts_and_a_file_together_are_refused():
    with pytest.raises(UserError, match="not both"):
        read_records(["a"], "b", TEXT)


def test_closed_standard_input_is_an_error(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UserError, match="standard input is closed"):
        read_records([], None, TEXT)


@pytest.mark.parametrize("path", [None, "-"])
def test_standard_input_is_text_or_json(pipe, path):
    reader, writer = pipe
    writer.write(b'{"text": "a", "id": 1}\n')
    writer.close()
    (record,) = read_records([], path, TEXT, jsonl=True, stdin=reader)
    assert (record.values, record.rest, record.place) == ({"text": "a"}, {"id": 1}, "standard input, line 1: ")


def test_records_are_counted_if_that_is_cheap(tmp_path):
    def count(name: str, content: bytes) -> int | None:
        (tmp_path / name).write_bytes(content)
        records = read_records([], str(tmp_path / name), TEXT)
        list(records)
        return records.count()

    assert [count("a.txt", text) for text in (b"", b"a", b"a\n", b"a\n\nb")] == [0, 1, 1, 3]
    assert count("a.txt.gz", gzip.compress(b"a\n")) is None
    os.truncate(tmp_path / "a.txt", 2**30 + 1)
    assert read_records([], str(tmp_path / "a.txt"), TEXT).count() is None
    assert read_records(["a", "b"], None, TEXT).count() == 2


# Tables, lists of JSON, names of files


def test_only_fields_found_by_order_may_be_mistaken_labels(tmp_path):
    """If a line has fields without names, `predict` asks whether the second one is a label. JSON names its fields."""
    (line,) = read_any(tmp_path / "t.txt", "good\tbad\n", PAIR)
    assert (line.values, line.divided) == ({"text": "good", "text_b": "bad"}, True)
    assert [r.divided for r in read_any(tmp_path / "t.txt", "good\n", TEXT)] == [True]  # `tag` reads a word and its tag
    (item,) = read_any(tmp_path / "t.jsonl", '{"text": "good", "text_b": "bad"}\n', PAIR)
    assert (item.values, item.divided) == ({"text": "good", "text_b": "bad"}, False)


def read_any(path: pathlib.Path, content: bytes | str, fields=TEXT, **flags: Any) -> list[Record]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_texts([], str(path), fields, **flags))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", 'id,text,label\n7,"a, ""b""",pos\n8,c,neg\n'),
        ("t.csv", '\ufeffid;Text;label\r\n7;"a, ""b""";pos\r\n\r\n8;c;neg\r\n'),
        ("t.csv", 'sep=;\nid;text;label\n7;"a, ""b""";pos\n8;c;neg\n'),
        ("t.tsv", 'id\ttext\tlabel\n7\ta, "b"\tpos\n8\tc\tneg\n'),
        ("t.txt", 'id,text,label\n7,"a, ""b""",pos\n8,c,neg\n'),
        ("t.json", '[{"id": "7", "text": "a, \\"b\\"", "label": "pos"},\n {"id": "8", "text": "c", "label": "neg"}]'),
        ("t.json", '{"id": "7", "text": "a, \\"b\\"", "label": "pos"}\n{"id": "8", "text": "c", "label": "neg"}\n'),
        ("t.txt", '{"id": "7", "text": "a, \\"b\\"", "label": "pos"}\n{"id": "8", "text": "c", "label": "neg"}\n'),
        ("t.ndjson", '{"id": "7", "text": "a, \\"b\\"", "label": "pos"}\n{"id": "8", "text": "c", "label": "neg"}\n'),
    ],
)
@pytest.mark.parametrize("fields", [TEXT, PAIR])
def test_a_table_is_read_by_column_names_without_its_label(tmp_path, name, content, fields):
    records = read_any(tmp_path / name, content, fields)
    assert [r.problem for r in records] == [None, None]
    assert [r.values.get("text") for r in records] == ['a, "b"', "c"]
    assert not any(r.values.get("text_b") for r in records)
    assert [r.rest for r in records] == [{"id": "7", "label": "pos"}, {"id": "8", "label": "neg"}]


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"%PDF-1.7\n", "standard input is a PDF, not text"), ("a".encode("utf-16"), "standard input is not UTF-8")],
)
def test_other_content_is_recognised_in_a_stream_that_cannot_be_peeked_at(content, says):
    stdin = io.TextIOWrapper(io.BytesIO(content))
    with pytest.raises(UserError, match=says):
        list(read_texts([], None, TEXT, stdin=stdin))


@pytest.mark.parametrize("name", ["t.txt", "t.csv"])
def test_plain_lines_are_never_a_table(tmp_path, name):
    assert [r.values["text"] for r in read(tmp_path / name, b"text,label\na,pos\n")] == ["text,label", "a,pos"]


@pytest.mark.parametrize("first", ["Text, speech and dialogue", "speech; text", "Text | speech", "Text,a b"])
def test_a_text_that_starts_with_the_name_of_its_field_is_not_a_table_which_a_note_tells(tmp_path, capsys, first):
    records = read_any(tmp_path / "t.txt", f"{first}\nWe met, as planned.\n")
    assert [r.values.get("text") for r in records] == [first, "We met, as planned."]
    says = f"{tmp_path}/t.txt: the first line is read as a text; if it names columns, give a .csv or .tsv file\n"
    assert capsys.readouterr().err == says


def test_two_usual_names_make_a_header_whose_other_names_may_have_spaces(tmp_path, capsys):
    (record,) = read_any(tmp_path / "t.txt", "id;text;gold label\n7;a;pos\n")
    assert (record.values, record.rest) == ({"text": "a"}, {"id": "7", "gold label": "pos"})
    assert [r.values["text"] for r in read_any(tmp_path / "t.txt", "We met, as planned.\n")] == ["We met, as planned."]
    assert not capsys.readouterr().err


def test_an_object_on_several_lines_is_read_as_json_but_not_as_json_lines(tmp_path):
    for content in ('{\n"text": "a"\n}\n', '[\n{"text": "a"}\n]\n'):
        (record,) = read_any(tmp_path / "t.json", content)
        assert record.values == {"text": "a"}
        for name in ("t.jsonl", "t.ndjson"):
            with pytest.raises(UserError, match=rf"{name} has objects on several lines; write each on a line of its own"):
                read_any(tmp_path / name, content)
    (record,) = read_any(tmp_path / "t.txt", '[{"text": "a"}]\n', jsonl=True)
    assert record.problem == "a JSON list, not an object with 'text'"


def test_a_device_without_an_end_is_refused_and_an_empty_one_is_read():
    with pytest.raises(UserError, match="--input=/dev/zero is a device, not a file of texts; name a file"):
        read_records([], "/dev/zero", TEXT)
    assert list(read_records([], "/dev/null", TEXT)) == []


def test_a_table_from_a_pipe_is_recognised(pipe):
    reader, writer = pipe
    writer.write(b"text,label\na,pos\n")
    writer.close()
    (record,) = read_texts([], None, PAIR, stdin=reader)
    assert (record.values, record.rest) == ({"text": "a", "text_b": None}, {"label": "pos"})


def test_choices_may_be_an_object_of_texts_and_labels(tmp_path: pathlib.Path):
    line = '{"prompt": "p", "choices": {"text": ["a b", 7], "label": ["A", "B"]}}\n'
    (record,) = read_any(tmp_path / "arc.jsonl", line, CHOICE)
    assert (record.values, record.problem) == ({"prompt": "p", "choices": ["a b", "7"]}, None)
    for cell in ('{""text"": [""a b"", 7], ""label"": [""A"", ""B""]}', "{'text': ['a b', 7], 'label': ['A', 'B']}"):
        (record,) = read_any(tmp_path / "arc.csv", f'prompt,choices\np,"{cell}"\n', CHOICE)
        assert (record.values, record.problem) == ({"prompt": "p", "choices": ["a b", "7"]}, None)
    (record,) = read_any(tmp_path / "torn.jsonl", line.replace('["a b", 7]', '"a b"'), CHOICE)
    assert record.problem == 'its choices is "a b", not a list of texts'


def test_columns_have_the_names_with_which_the_model_was_trained(tmp_path):
    columns = {"text": "review", "text_b": "reply"}
    json_line = '{"review": "a", "reply": "b", "label": "pos"}'
    for name, content in (("t.csv", "review,reply,label\na,b,pos\n"), ("t.jsonl", json_line)):
        (record,) = read_any(tmp_path / name, content, PAIR, columns=columns)
        assert (record.values, record.rest) == ({"text": "a", "text_b": "b"}, {"label": "pos"})
    shorter = '{"ctx": "p", "e0": "a", "e1": "b", "e2": null}\n'
    for name, content in (("b.csv", "ctx,e0,e1,e2\np,a,b,\n"), ("b.jsonl", shorter)):
        (record,) = read_any(tmp_path / name, content, CHOICE, columns={"prompt": "ctx", "choices": ["e0", "e1", "e2"]})
        assert (record.values, record.problem) == ({"prompt": "p", "choices": ["a", "b"]}, None)
    for name, content in (("c.csv", "ctx,e0,e1,y\np,a,b,0\n"), ("c.jsonl", '{"ctx": "p", "e0": "a", "e1": "b", "y": "0"}\n')):
        (record,) = read_any(tmp_path / name, content, CHOICE, columns={"prompt": "ctx", "choices": ["e0", "e1"]})
        assert (record.values, record.rest) == ({"prompt": "p", "choices": ["a", "b"]}, {"y": "0"})
    (record,) = read_any(tmp_path / "one.jsonl", '{"review": "a", "reply": "b"}', TEXT, columns=columns)
    assert (record.values, record.rest) == ({"text": "a"}, {"reply": "b"})


def in_every_format(directory: pathlib.Path, row: dict[str, str]) -> list[pathlib.Path]:
    """Writes a row to a file of each format with columns or keys."""
    from pyarrow import Table, parquet

    paths = [directory / f"t.{kind}" for kind in ("csv", "jsonl", "json", "parquet")]
    paths[0].write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    for path in paths[1:3]:
        path.write_text(f"{json.dumps(row)}\n")
    parquet.write_table(Table.from_pylist([row]), paths[3])
    return paths


TITLE_AND_TEXT = {"text": "title", "text_b": "text"}


@pytest.mark.parametrize(
    ("row", "columns", "values", "rest"),
    [
        ({"title": "T", "text": "b"}, {"text": "title"}, {"text": "T", "text_b": None}, {"text": "b"}),
        ({"text": "b", "title": "T"}, TITLE_AND_TEXT, {"text": "T", "text_b": "b"}, {}),
        ({"title": "T", "text": "b", "text_b": "c"}, TITLE_AND_TEXT, {"text": "T", "text_b": "b"}, {"text_b": "c"}),
        ({"text": "a", "text_b": "b"}, TITLE_AND_TEXT, {"text": "a", "text_b": "b"}, {}),
        ({"text_b": "a", "y": "0"}, {"text": "text_b"}, {"text": "a", "text_b": None}, {"y": "0"}),
    ],
)
def test_the_column_with_which_the_model_was_trained_wins_over_a_column_with_the_name_of_a_field(
    tmp_path, row, columns, values, rest
):
    for path in in_every_format(tmp_path, row):
        (record,) = read_texts([], str(path), PAIR, columns=columns)
        assert (record.values, record.rest, record.problem) == (values, rest, None), path.suffix


def test_columns_that_are_not_read_may_have_the_same_name(tmp_path):
    for header in ("review,text,text", "review,Text,TEXT"):
        (record,) = read_any(tmp_path / "t.csv", f"{header}\na,b,c\n", PAIR, columns={"text": "review"})
        assert record.values == {"text": "a", "text_b": None}
    swapped = {"question": "context", "context": "other"}
    with pytest.raises(UserError, match="two columns are named 'question'; give"):  # read, because there is no column "other"
        read_any(tmp_path / "t.csv", "context,question,question\na,b,c\n", QUESTION, columns=swapped)


def test_one_column_is_not_read_as_two_fields(tmp_path):
    for path in in_every_format(tmp_path, {"text": "b", "id": "7"}):
        try:
            (record,) = read_texts([], str(path), PAIR, columns=TITLE_AND_TEXT)
            problem = str(record.problem)
        except UserError as error:
            problem = str(error)
        assert re.search("no (column|field) 'title'|one object, with text, id", problem), path.suffix
    (tmp_path / "t.json").write_text('["a"]')
    (record,) = read_texts([], str(tmp_path / "t.json"), PAIR, columns=TITLE_AND_TEXT)
    assert record.values == {"text": "a", "text_b": None}


def test_an_object_of_a_json_file_may_have_columns_of_choices(tmp_path):
    row = {"ctx": "p", "e0": "a", "e1": "b"}
    columns = {"prompt": "ctx", "choices": ["e0", "e1"]}
    (record,) = read_any(tmp_path / "t.json", json.dumps(row, indent=1), CHOICE, columns=columns)
    assert record.values == {"prompt": "p", "choices": ["a", "b"]}


def test_a_list_of_texts_is_read_if_a_record_needs_a_single_text(tmp_path):
    content = '["a", "b"]'
    for some in (TEXT, PAIR):
        assert [(r.values["text"], r.problem) for r in read_any(tmp_path / "t.json", content, some)] == [("a", None), ("b", None)]
    for some, name in ((QUESTION, "question"), (CHOICE[1:], "choices")):
        problem = f"a JSON str, not an object with {name!r}"
        assert [r.problem for r in read_any(tmp_path / "t.json", content, some)] == [problem] * 2


def test_lines_with_several_questions_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"line 1: there is no field 'question', but a list of questions .* t\.jsonl"):
        read_any(tmp_path / "t.jsonl", '{"context": "c", "qas": []}\n', QUESTION)
    for line, asked, problem in (
        ('{"context": "c"}', QUESTION, "no field 'question'"),
        ('{"context": "c", "question": "q", "header": 1}', QUESTION, ""),
        ('{"qas": []}', TEXT, "no field 'text'"),
    ):
        (record,) = read_any(tmp_path / "t.jsonl", f"{line}\n", asked)
        assert (record.problem or "").partition(";")[0] == problem


@pytest.mark.parametrize(
    ("content", "has_words"),
    [
        ("a\nb\n\nc\n", True),
        ("-DOCSTART-\n\na\nb\n", True),
        ("a\nb\nc\n\n", False),
        ("a\n\nb\n\nc\n", False),
        ("a b\n\nc\nd\n", False),
        ("我爱北京。\n他来了！\n\n你好\n", False),
        (f"{'ก' * 41}\n{'ข' * 41}\n\n{'ค' * 41}\n", False),
        ("a\nb\n.\n\nc\nd.\n", True),
        ("\n", False),
        ("Anna\tNNP\nslept\tVBD\n\nBob\tNNP\n", True),
        ("-DOCSTART- -X- O\n\n1 a -\n2 b -\n\n1 c -\n", True),
        ("# id 1\nAnna\tn\nslept\tv\n\n" + "Bob\tn\n" * 999, True),
        ("Anna\tn\nslept\tv\n", False),
        ("a b\tc\nd e\tf\n\ng h\ti\n", False),
        ("New York\nLos Angeles\n\nSt. Louis\n", False),
        ("A B\nC D\n\nE F\n", False),
        ("I saw her\nI met him\n\nI like it\n", False),
        ("A robin flew\nA trout swam\n\nUS hammers fell\n", False),
        ("No. 1 won\nNo. 2 lost\n\nNo. 3 drew\n", False),
        ("2019 was good\n2020 was bad\n\n2021 was fine\n", False),
        ("Ada slept .\nBob woke ?\n\nCy ran .\n", False),
        ("so am I\nso is he\n\nso are we\n", False),
        ("so am I\nso did I\n\nso was I\n", False),
        ("1 a b\n2 c d\n\n3 e f\n", False),
        ("a 0 b\nc 1 d\n\ne 0 f\n", True),
        ("-docstart- -x- o\n\nAda NNP\nslept VBD\n\nBob NNP\n", True),
    ],
)
def test_a_word_on_each_line_is_refused_if_every_word_has_its_own_answer(tmp_path, content, has_words):
    sentences, lines = (Field("text", sentence=True),), content.split("\n")
    with pytest.raises(UserError, match="has a word on each line") if has_words else contextlib.nullcontext():
        assert [record.values["text"] for record in read_any(tmp_path / "t.txt", content, sentences)] == list(filter(None, lines))
    assert len(read_any(tmp_path / "t.txt", content, TEXT)) == len(list(filter(None, lines)))


@pytest.mark.parametrize(
    ("content", "is_column"),
    [
        ("Ada\tslept\nBob\twoke\n\nCy\tran\n", False),
        ("Ada slept .\nBob woke .\n\nCy ran .\n", False),
        ("Ada\tslept\t.\nBob\twoke\t.\n\nCy\tran\t.\n", False),
        ("Ada\tNNP\nslept\tVBD\n\nBob\tNNP\n", True),
        ("1\tada\n2\tslept\n\n1\tbob\n", True),
    ],
)
def test_tabs_between_listed_words_are_no_columns_of_annotations(tmp_path, content, is_column):
    fields, sentences = (Field("words", many=True, words=True, sentence=True),), filter(None, content.split("\n"))
    with pytest.raises(UserError, match="has a word on each line in 2 columns") if is_column else contextlib.nullcontext():
        assert [r.values["words"] for r in read_any(tmp_path / "t.txt", content, fields)] == [s.split() for s in sentences]


def test_json_lines_and_tables_with_empty_lines_are_no_columns_of_words(tmp_path):
    for content in ('{"text": "A"}\n{"text": "B"}\n\n{"text": "C"}\n', "id\ttext\n1\tA\n2\tB\n\n3\tC\n"):
        records = read_any(tmp_path / "t.txt", content, (Field("text", sentence=True),))
        assert [record.values["text"] for record in records] == ["A", "B", "C"]


@pytest.mark.parametrize("cell", ['["a b", "c"]', "['a b', 'c']", "['a b' 'c']", "('a b', 'c')"])
def test_a_list_in_a_cell_is_a_list(tmp_path, cell):
    (record,) = read_any(tmp_path / "t.tsv", f"prompt\tchoices\nx\t{cell}\n", CHOICE)
    assert record.values["choices"] == ["a b", "c"]


@pytest.mark.parametrize(
    "cell",
    ["a b", "3\u00a0km\u3000a b", "['a', 'b']", "['a' 'b']", "('a', 'b')", '["it\'s"]', "[1, 2.5]", "[laughter] a", "[ a ]",
     "(a) b", "[true]"],
)  # fmt: skip
def test_words_in_a_cell_are_read_as_in_training(tmp_path, cell):
    path = tmp_path / "t.tsv"
    (record,) = read_any(path, f"words\n{cell}\n", WORDS)
    rows = [{"words": record.values["words"], "labels": ["O"] * len(record.values["words"])}]
    path.write_text(f"words\tlabels\n{cell}\t{json.dumps(rows[0]['labels'])}\n")
    (example,) = load_own_data(OwnDataConfig(train=str(path)), "token").train
    assert list(example.words) == record.values["words"]


def test_spaces_divide_the_words_of_a_line_but_no_break_spaces_do_not(tmp_path):
    words = ["3\u00a0km", "à\u3000b", "c"]
    (line,) = read_any(tmp_path / "t.txt", f"{' '.join(words)} \u00a0\n", WORDS)
    (argument,) = read_texts([" ".join(words)], None, WORDS)
    assert line.values == argument.values == {"words": words}


@pytest.mark.parametrize(
    ("kind", "name", "content", "settings"),
    [
        ("choice", "t.csv", "prompt,choices,label\nx,a b|c,0\n", {"separator": "|"}),
        ("choice", "t.tsv", "prompt\tchoices\tlabel\nx\ta b\t0\n", {"separator": " "}),
        ("token", "t.tsv", "words\tlabels\nNew York | is\tB|O\n['a', 'b']\tO|O\n", {"separator": "|"}),
        ("sequence", "t.tsv", 'text\tlabel\n"a ""b"""\tx\n', {"quotes": True}),
        ("sequence", "t.csv", 'text,label\n5" disk,x\n"b" c,y\n', {"quotes": False}),
        ("sequence", "t.psv", 'text|label\n5" disk|x\n"b" c|y\n', {}),
        ("sequence", "t.txt", "text^label\na, b^x\n", {"delimiter": "^"}),
        ("sequence", "t.tsv", "text\tlabel\n a film \tx\n", {}),  # SST-2's sentences end in a space
    ],
)
def test_cells_are_read_with_the_settings_of_the_training(tmp_path, kind, name, content, settings):
    (tmp_path / name).write_text(content)
    config = OwnDataConfig(train=str(tmp_path / name), **settings)
    examples = read_own_data(config, kind, "train", labels=("x", "y", "B", "O"), say=lambda said: None)
    asked = {"choice": CHOICE, "token": WORDS, "sequence": PAIR}[kind]
    for example, record in zip(examples, read_texts([], config.train, asked, table=table_settings(config)), strict=True):
        assert record.problem is None
        for field in asked:
            value = getattr(example, field.name)
            assert record.values[field.name] == (list(value) if field.many else value)


@pytest.mark.parametrize("cell", ["['a', 'b'", "['a', None]", "[['a'], ['b']]"])
def test_a_list_in_a_cell_that_cannot_be_read_is_a_problem(tmp_path, cell):
    (record,) = read_any(tmp_path / "t.tsv", f"words\n{cell}\n", WORDS)
    assert (record.problem or "").endswith("not a list of texts")


@pytest.mark.parametrize("line", ['{"words": ["a", 1, 2.5, true]}', "words\n[\"a\", 1, 2.5, true]"])
def test_numbers_among_words_are_texts_as_in_training(tmp_path, line):
    (record,) = read_any(tmp_path / ("t.jsonl" if line[0] == "{" else "t.tsv"), f"{line}\n", WORDS)
    assert record.values["words"] == ["a", "1", "2.5", "true"]


def test_a_parquet_file_is_recognised_by_its_content(tmp_path):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"id": [7, 8], "text": ["a", None], "label": ["x", "y"]}), tmp_path / "t.txt")
    first, second = read_texts([], str(tmp_path / "t.txt"), PAIR)
    assert (first.values, first.rest) == ({"text": "a", "text_b": None}, {"id": 7, "label": "x"})
    assert second.problem == "its text is null, not text"
    whole = (tmp_path / "t.txt").read_bytes()
    for content, message in ((whole[:-9], "cannot be read as Parquet"), (b"PAR1\n", "cannot be read as Parquet")):
        with pytest.raises(UserError, match=message):
            read_any(tmp_path / "cut.parquet", content)
    with pytest.raises(UserError, match="has no column 'prompt'; known: id, text, label"):
        list(read_texts([], str(tmp_path / "t.txt"), CHOICE))
    parquet.write_table(pyarrow.table({"question": ["q"], "x": ["y"]}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="has no column 'context'; known: question, x"):
        list(read_texts([], str(tmp_path / "t.parquet"), QUESTION))


def test_a_row_with_unbalanced_quotes_is_one_problem(tmp_path):
    content = 'text,label\na,1\n"b" c,2\nd,3\n"g ""h""",5\n'
    records = read_any(tmp_path / "t.csv", content)
    assert [(r.number, r.values.get("text")) for r in records] == [(2, "a"), (3, None), (4, "d"), (5, 'g "h"')]
    problem = "the quotes in this row are not balanced"
    assert [r.problem and r.problem.partition(" (")[0] for r in records] == [None, problem, None, None]
    assert sum(r.size for r in records) == len(content) - len("text,label\n")


@pytest.mark.parametrize("rows", ['"b,2\nc,3\n"x\ny",5\nd,6\n', '"e\nf,"4"\ng,5\n'])
def test_nothing_after_unbalanced_quotes_over_several_lines_is_read(tmp_path, rows):
    """The row could start in the wrong line, so that the next row would start inside a cell."""
    path = tmp_path / "t.csv"
    path.write_text(f"text,label\na,1\n{rows}")
    records = iter(read_texts([], str(path), TEXT))
    assert next(records).values["text"] == "a"
    with pytest.raises(UserError, match=r"t\.csv, line 3: the quotes in this row are not balanced"):
        next(records)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "review,label\na,pos\n", "its first line has no column 'text' (it is 'review,label'); name the column text"),
        ("t.csv", "it was fine\nit was bad\n", "its first line has no column 'text' (it is 'it was fine')"),
        ("t.tsv", "sentence\tlabel\na\t1\n", "has no column 'text'"),
        ("t.csv", 'text,label\n"a,pos\n', "line 2: the quotes in this row are not balanced"),
        ("t.json", "it was fine\n", "cannot be read as JSON (Expecting value"),
        ("t.json", '{"texts": ["a"]}', "holds one object, with texts; give a list of objects with 'text'"),
        ("t.conllu", "1\ta\n", "holds annotated words, one per line"),
        ("t.bmes", "in O\n", "holds annotated words, one per line"),
        ("t.csv", "", "is empty; give a table whose first line names the column 'text'"),
        ("t.csv", "\ufeff\n \n", "is empty; give a table whose first line names the column 'text'"),
    ],
)
def test_files_without_texts_are_refused(tmp_path, name, content, message):
    with pytest.raises(UserError, match=re.escape(message)):
        read_any(tmp_path / name, content)


def test_a_bad_row_of_a_table_is_a_problem_and_the_next_is_read(tmp_path):
    records = read_any(tmp_path / "t.csv", b"text,label\na\n\xff,pos\n,x\nb,pos\nc,pos,x\n")
    assert [(r.number, (r.problem or "").partition(";")[0]) for r in records] == [
        (2, "1 column, but the first line names 2: text, label"), (3, "byte 1 is not UTF-8"), (4, "its text is empty"), (5, ""),
        (6, "3 columns, but the first line names 2: text, label"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "start"), [("7", 7), ("0", 0), ("7.0", 7), ("7.5", None), ("-1", None), ("true", None), ("", None)]
)
def test_counts_in_cells_may_be_written_as_floats(tmp_path, cell, start):
    fields = (*TEXT, Field("start", number=True))
    (record,) = read_any(tmp_path / "t.csv", f"text,start\na,{cell}\n", fields)
    assert (record.values["start"] if record.problem is None else None) == start


@pytest.mark.parametrize(("value", "start"), [("0", 0), ("7", 7), ("-1", None), ("true", None), ("7.5", None), ('"7"', None)])
def test_counts_in_json_are_whole_numbers_from_0(tmp_path, value, start):
    (record,) = read_any(tmp_path / "a.jsonl", f'{{"text": "a", "start": {value}}}', (*TEXT, Field("start", number=True)))
    assert (record.values["start"] if record.problem is None else None) == start


def test_a_row_of_empty_cells_is_blank(tmp_path):
    content = "text,label\n , \nb,pos\n,\n"
    assert [r.number for r in read_any(tmp_path / "t.csv", content)] == [3]
    assert [(r.number, r.blank) for r in read_any(tmp_path / "t.csv", content, blank_lines=True)] == [
        (2, True),
        (3, False),
        (4, True),
    ]


def test_a_row_of_several_lines_has_the_number_of_its_first(tmp_path):
    records = read_any(tmp_path / "t.csv", 'text,label\n"a\nb",pos\n,x\n')
    assert [(r.number, r.place, r.size) for r in records] == [
        (2, f"{tmp_path / 't.csv'}, line 2: ", 10), (4, f"{tmp_path / 't.csv'}, line 4: ", 3)
    ]  # fmt: skip
    assert records[0].values == {"text": "a\nb"}


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("t.csv", 'text\tlabel\n"a, ""b"""\tpos\n', 'a, "b"'),
        ("t.csv", 'text;label\n"a; b";pos\n', "a; b"),
        ("t.csv", 'label, text\npos, "a, b"\n', "a, b"),
        ("t.csv", 'text,label\n"""he """"x"""" a""",pos\n', '"he ""x"" a"'),
        ("t.tsv", 'text\tlabel\n"a, b\tpos\n', '"a, b'),
        ("t.tsv", 'text\tlabel\n"a"\tpos\n', '"a"'),
        ("t.txt", 'text\tlabel\n"a\tpos\n', '"a'),
    ],
)
def test_quotes_enclose_csv_cells_and_are_characters_in_tsv(tmp_path, name, content, text):
    (record,) = read_any(tmp_path / name, content)
    assert (record.values, record.problem) == ({"text": text}, None)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_keeps_its_blanks_and_number_for_any_line_end(tmp_path, end):
    path = tmp_path / "a.conllu"
    path.write_bytes(end.join([" a\t", "", "b ", ""]).encode())
    found = list(read_records((), str(path), (Field("line", whole=True),), blank_lines=True))
    assert [(r.number, r.values.get("line"), r.blank) for r in found[:3]] == [
        (1, " a\t", False),
        (2, None, True),
        (3, "b ", False),
    ]
    assert [r.place for r in found[:3]] == [f"{path}, line {n}: " for n in (1, 2, 3)]
    assert all(r.blank for r in found[3:])


def test_parquet_columns_that_json_cannot_hold_are_left_out(tmp_path):
    import pyarrow
    from pyarrow import parquet

    columns = {"text": ["a"], "image": [b"\x89"], "at": [datetime.date(2020, 1, 1)], "score": [float("nan")], "id": [7]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    (record,) = read_texts([], str(tmp_path / "t.parquet"), TEXT)
    assert (record.values, record.rest) == ({"text": "a"}, {"id": 7})


@pytest.mark.parametrize(
    ("values", "text", "problem"),
    [
        ([b"a"], "a", None),  # as in training
        ([b"\xff"], None, 'its text is "b'),
        ([datetime.date(2020, 1, 1)], None, 'its text is "2020-01-01", not text'),
        ([decimal.Decimal("1.5")], None, "its text is 1.5, not text"),
        ([{"en": b"\xff"}], None, 'its text is {"en": '),
        ([[b"a"]], None, 'its text is ["a"], not text'),
    ],
)
def test_a_column_of_parquet_in_another_type_is_read_if_it_holds_text(tmp_path, values, text, problem):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": values}), tmp_path / "t.parquet")
    (record,) = read_texts([], str(tmp_path / "t.parquet"), TEXT)
    assert (record.values["text"] if text else None, bool(record.problem)) == (text, bool(problem))
    assert (record.problem or "").startswith(problem or "")


def test_columns_with_the_field_names_replace_missing_training_columns(tmp_path):
    (record,) = read_any(tmp_path / "t.csv", "text,label\na,pos\n", TEXT, columns={"text": "review"})
    assert (record.values, record.rest) == ({"text": "a"}, {"label": "pos"})


def test_a_named_pipe_is_waited_for_between_two_of_its_lines(tmp_path):
    os.mkfifo(tmp_path / "texts")
    answered = threading.Event()

    def write() -> None:
        with (tmp_path / "texts").open("w", buffering=1) as file:
            file.write("a\n")
            answered.wait(10)
            time.sleep(0.05)  # while the reader waits
            file.write("b\n")

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    records = iter(read_records([], str(tmp_path / "texts"), TEXT))
    first = next(records)
    answered.set()
    assert [first.values, *(record.values for record in records)] == [{"text": "a"}, {"text": "b"}]
    writer.join()


def test_a_single_column_name_in_a_tsv_is_a_text(tmp_path):
    assert [r.values for r in read_any(tmp_path / "t.tsv", "title\nit was fine\n")] == [
        {"text": "title"},
        {"text": "it was fine"},
    ]


def test_a_json_line_without_the_field_is_a_problem_of_its_line(tmp_path):
    (record,) = read_any(tmp_path / "t.txt", '{"review": "a"}\n')
    assert (record.number, record.place) == (1, f"{tmp_path / 't.txt'}, line 1: ")
    assert (record.problem or "").startswith("no field 'text'")


def test_the_json_flag_applies_to_files_of_any_name(tmp_path):
    records = read_any(tmp_path / "t.txt", '{"text": "a"}\nplain\n', jsonl=True)
    assert [(r.values, (r.problem or "").partition(" (")[0]) for r in records] == [({"text": "a"}, ""), ({}, "not JSON")]


def test_a_field_may_be_several_columns_of_parquet(tmp_path):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"ctx": ["p"], "e0": ["a"], "e1": ["b"], "y": [0]}), tmp_path / "t.parquet")
    columns = {"prompt": "ctx", "choices": ["e0", "e1"]}
    (record,) = read_texts([], str(tmp_path / "t.parquet"), CHOICE, columns=columns)
    assert (record.values, record.rest) == ({"prompt": "p", "choices": ["a", "b"]}, {"y": 0})


def test_two_fields_of_a_tsv_are_not_one_text(tmp_path):
    bad, good = read_any(tmp_path / "t.tsv", "it was fine\tpos\nit was bad\n")
    assert (bad.problem or "").startswith("2 texts between TABs, but only 1 field: text")
    assert good.values == {"text": "it was bad"}


@pytest.mark.parametrize("line", ["[MASK] is here.", "[1] Above.", "{not JSON}", "this text, its label", "a, b", '["a"] is it'])
def test_text_that_only_resembles_other_formats_is_text(tmp_path, line):
    first, second = read_any(tmp_path / "t.txt", f"{line}\nmore\n")
    assert (first.values["text"], second.values["text"]) == (line, "more")


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet"])
def test_two_columns_of_one_name_are_refused_and_the_case_of_a_name_decides(tmp_path, name):
    import pyarrow
    from pyarrow import parquet

    def read_columns(names: list[str]) -> list[Record]:
        if name == "t.parquet":
            arrays = [pyarrow.array([letter]) for letter in "abc"]
            parquet.write_table(pyarrow.Table.from_arrays(arrays, names), tmp_path / name)
        else:
            sign = "," if name == "t.csv" else "\t"
            (tmp_path / name).write_text("".join(f"{sign.join(row)}\n" for row in (names, "abc")))
        return list(read_texts([], str(tmp_path / name), TEXT))

    for columns in (["text", "id", "text"], ["id", "text", "text"]):
        with pytest.raises(UserError, match=rf"{name}: two columns are named 'text'; give each a different name"):
            read_columns(columns)
    if name == "t.parquet":
        with pytest.raises(UserError, match="two columns are named 'id'; give each a different name"):
            read_columns(["text", "id", "id"])
    (record,) = read_columns(["Text", "id", "text"])
    assert record.values == {"text": "c"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.txt", "a\rb\r"),
        ("t.txt", "\ufeffa\rb"),
        ("t.csv", "text,id\ra,1\rb,2\r"),
        ("t.csv", 'text,id\r"a",1\r"b",2'),
        ("t.tsv", "text\tid\ra\t1\rb\t2\r"),
        ("t.jsonl", '{"text": "a"}\r{"text": "b"}\r'),
        ("t.json", '[{"text": "a"},\r{"text": "b"}]\r'),
    ],
)
def test_lines_may_all_end_in_cr_as_in_training(tmp_path, name, content):
    assert [(r.number, r.values["text"], r.problem) for r in read_any(tmp_path / name, content)] == [
        (number, text, None) for number, text in enumerate("ab", 2 if name in ("t.csv", "t.tsv") else 1)
    ]


def test_a_list_of_json_and_a_file_of_squad_are_read_whatever_their_name(tmp_path):
    listed = '[{"text": "a"}, {"text": "b"}]\n'
    assert [r.values["text"] for r in read_any(tmp_path / "t.jsonl", listed)] == ["a", "b"]
    squad = {"data": [{"paragraphs": [{"context": "c", "qas": [{"id": 1, "question": "q", "answers": []}]}]}]}
    for name in ("t.json", "t.jsonl"):
        (record,) = read_any(tmp_path / name, json.dumps(squad), QUESTION)
        assert (record.values, record.rest) == ({"question": "q", "context": "c"}, {"id": "1"})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.jsonl", '["a", "b"]\n["c"]\n'),
        ("t.json", '[["a", "b"], ["c"]]'),
        ("t.txt", '["a", "b"]\n\n["c"]\n'),
        ("t.txt", '["a", "b"]\n["c"]\n["d", 3]\n'),
        ("t.jsonl", '["a", "b"]\n{"words": ["c"]}\n["d", 3]\n'),
    ],
)
def test_lists_of_words_are_sentences_for_words_and_a_problem_for_texts(tmp_path, name, content):
    records = read_any(tmp_path / name, content, WORDS)
    sentences = [["a", "b"], ["c"], ["d", "3"]]
    assert [r.values for r in records] == [{"words": words} for words in sentences[: len(records)]]
    assert len(records) >= 2
    for record in [r for r in read_any(tmp_path / name, content) if '"words"' not in content]:
        assert record.problem == "a JSON list, not an object with 'text'"
    texts = "[a, b] is a list\n[c] too\n"
    assert [r.values["text"] for r in read_any(tmp_path / "t.txt", texts)] == texts.splitlines()


def test_cells_of_a_tsv_whose_names_are_quoted_are_quoted_too_and_doubled_quotes_are_a_problem(tmp_path):
    content = '"text"\t"label"\n"he said ""a"""\t"x"\n"a\nb"\t"y"\n'
    assert [r.values["text"] for r in read_any(tmp_path / "t.tsv", content)] == ['he said "a"', "a\nb"]
    first, second = read_any(tmp_path / "t.tsv", 'text\tlabel\n"he said ""a"""\tx\nb\ty\n')
    assert (first.problem or "").startswith('"he said ""a""" is in double quotes, but fields between TABs have none')
    assert second.values == {"text": "b"}
    (only,) = read_any(tmp_path / "t.tsv", 'text\tlabel\n""""\tx\n')
    assert (only.problem or "").startswith('"""" is in double quotes')


def test_the_column_that_a_table_lacks_is_named(tmp_path):
    with pytest.raises(UserError, match="its first line has no column 'e1' "):
        read_any(tmp_path / "t.csv", "ctx,e0,y\np,a,0\n", CHOICE, columns={"prompt": "ctx", "choices": ["e0", "e1"]})


def test_a_table_with_a_word_in_each_row_is_no_sentences(tmp_path):
    with pytest.raises(UserError, match=r"t.csv has one word per row, with the number of its sentence in the column 'Sent"):
        read_any(tmp_path / "t.csv", "Sentence #,words\nSentence: 1,a\n,b\n", WORDS)
    table = table_settings(OwnDataConfig(sentence="sid"))
    with pytest.raises(UserError, match=r"t.csv has one word per row, .* column 'sid'; give one sentence per row"):
        read_any(tmp_path / "t.csv", "sid,words\n1,a\n1,b\n", WORDS, table=table)


def test_file_names_are_refused_as_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "reviews.txt", "b"):
        (tmp_path / name).write_text("x\n")
    (tmp_path / "folder").mkdir()
    for texts in (["a"], ["a", "b"], ["reviews.txt"], ["what is it?", "reviews.txt"], ["./folder"]):
        with pytest.raises(UserError, match=r"is the name of a file; read it with --input="):
            check_not_files(texts)
        with pytest.raises(UserError, match="--input="):
            read_texts(texts, None, PAIR)
    for texts in (["a", "text"], ["folder"], ["nofile.txt"], ["x" * 5000], ["\0"], []):
        check_not_files(texts)


def test_a_named_pipe_is_read_and_refused_after_ten_seconds_without_a_writer(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    with monkeypatch.context() as patch:
        patch.setattr("time.monotonic", iter([100.0, 105.0, 109.9, 110.1]).__next__)
        with pytest.raises(UserError, match=r"no program has written to for 10 seconds; start the"):
            read_texts([], str(tmp_path / "pipe"), TEXT)
    text = "".join(f"text {i}\n" for i in range(50_000))
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(text,))
    writer.start()
    assert [r.values["text"] for r in read_texts([], str(tmp_path / "pipe"), TEXT)] == text.splitlines()
    writer.join()
    assert open_below(tmp_path) == 0


def test_the_pipe_of_a_shell_is_read_even_if_it_is_empty():
    for content in (b"one\ntwo\n", b""):
        reader, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
        assert [r.values["text"] for r in read_texts([], f"/dev/fd/{reader}", TEXT)] == content.decode().split()
        os.close(reader)


def test_a_list_of_json_may_have_as_many_bytes_as_a_line(tmp_path, lines_of_a_megabyte):
    content = '[{"text": "a"},\n{"text": "b"}]'.ljust(lines_of_a_megabyte)
    assert [r.values["text"] for r in read_any(tmp_path / "t.json", content)] == ["a", "b"]
    with pytest.raises(UserError, match=r"t\.json cannot be read as JSON \(it is larger than 1 MiB\)"):
        read_any(tmp_path / "t.json", content + " ")


@pytest.mark.parametrize("name", ["t.json", "t.jsonl", "t.txt"])
def test_too_large_json_is_refused_early(tmp_path, lines_of_a_megabyte, name):
    os.mkfifo(tmp_path / name)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), (tmp_path / name).open("wb", buffering=0) as file:
            file.write(b'{"text": "' + b"x" * (lines_of_a_megabyte + 1000))  # more than the limit, in a line without an end
            time.sleep(60)

    threading.Thread(target=write, daemon=True).start()
    records = read_texts([], str(tmp_path / name), TEXT).source
    if name == "t.json":
        with pytest.raises(UserError, match=r"t\.json cannot be read as JSON \(it is larger than 1 MiB\); give JSON lines"):
            next(records)
    else:
        assert (next(records).problem or "").startswith("longer than 1 MiB; split the text into lines")
    records.close()  # type: ignore[attr-defined]
