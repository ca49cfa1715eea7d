"""Questions and answers as programs export them: files of SQuAD, JSON lines and tables with the same meaning."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import unicodedata
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.config import OwnDataConfig
from bert_jax.tasks.examples import QuestionExample
from bert_jax.tasks.readers.own_data import read_own_data
from bert_jax.tasks.readers.squad import read_squad

CONTEXT = "Ada ran to Bo"


def squad(directory: pathlib.Path, *questions: dict[str, Any], context: str = CONTEXT) -> tuple[list[QuestionExample], list[str]]:
    """Returns the questions of a file of SQuAD, and the messages."""
    entries = [{"question": "Who?", **question} for question in questions]
    path = directory / "x.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": entries}]}]}))
    said: list[str] = []
    return read_squad(path, say=said.append), [text.removeprefix(f"{path}: ") for text in said]


def own(directory: pathlib.Path, name: str, text: str, **settings: Any) -> list[QuestionExample]:
    path = directory / name
    path.write_text(text)
    examples: Any = read_own_data(OwnDataConfig(train=str(path), **settings), "span", "train", say=lambda problem: None)
    return examples


def as_lines(question: dict[str, Any], context: str = CONTEXT) -> str:
    return json.dumps({"question": "Who?", "context": context, **question}) + "\n"


def as_table(question: dict[str, Any]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows([["question", "context", *question], ["Who?", CONTEXT, *question.values()]])
    return file.getvalue()


# -------------------------------------------------------------------------------------------------------------- identifiers
def test_question_ids_may_be_numbers_and_default_to_the_position(tmp_path: pathlib.Path):
    questions, said = squad(tmp_path, {"id": 401}, {"id": None}, {}, {"id": ""}, {"id": " "}, {"id": 7.0}, {"id": float("nan")})
    assert [question.id for question in questions] == ["401", "1", "2", "3", "4", "7", "6"]
    assert said == ["5 questions without an id; the index of the question in the file, from 0, is used as id"]
    with pytest.raises(UserError, match=r"qas\[1\]: another question has the same id '5'"):
        squad(tmp_path, {"id": 5}, {"id": "5"})


@pytest.mark.parametrize("value", [True, 1.5, ["a"], {}])
def test_an_invalid_id_is_named_with_its_position(tmp_path: pathlib.Path, value: Any):
    with pytest.raises(UserError, match=r"x\.json, data\[0\]\.paragraphs\[0\]\.qas\[0\]\.id: .* is not a text or a whole number"):
        squad(tmp_path, {"id": value})


# -------------------------------------------------------------------------------------------------------------- offsets
@pytest.mark.parametrize("start", [11, 11.0, "11", "11.0", None])
def test_an_offset_may_be_a_float_or_a_text_in_every_format(tmp_path: pathlib.Path, start: Any):
    wanted = [(("Bo", 11),)]
    answer = {"text": "Bo", "answer_start": start}
    assert [q.answers for q in squad(tmp_path, {"answers": [answer]})[0]] == wanted
    assert [q.answers for q in squad(tmp_path, {"answers": {"text": ["Bo"], "answer_start": [start]}})[0]] == wanted
    assert [q.answers for q in own(tmp_path, "x.jsonl", as_lines({"answers": [answer]}))] == wanted
    if start is not None:
        text = as_table({"answers": "Bo", "start": start})
        assert [q.answers for q in own(tmp_path, "x.csv", text, answer_start="start")] == wanted


def test_an_answer_without_an_offset_has_the_one_of_its_row_or_else_the_first(tmp_path: pathlib.Path):
    context, answer = "Bo and Bo", {"answers": [{"text": "Bo"}]}
    assert [q.answers for q in squad(tmp_path, answer, context=context)[0]] == [(("Bo", 0),)]
    for starts, place in (({}, 0), ({"answer_start": []}, 0), ({"answer_start": [7]}, 7)):
        lists = {"answers": {"text": ["Bo"], **starts}}
        assert [q.answers for q in squad(tmp_path, lists, context=context)[0]] == [(("Bo", place),)]
    row = as_lines(answer | {"start": 7}, context)
    assert [q.answers for q in own(tmp_path, "x.jsonl", row, answer_start="start")] == [(("Bo", 7),)]


@pytest.mark.parametrize("start", [11.5, True, "x", "1_1", "²", 10**30, float("inf"), [11], "9" * 5000])
def test_an_invalid_offset_is_refused_in_every_format(tmp_path: pathlib.Path, start: Any):
    answer = {"text": "Bo", "answer_start": start}
    problem = r'answers.* has the text "Bo" with the start .*; give a text and a whole number'
    with pytest.raises(UserError, match=problem):
        squad(tmp_path, {"answers": [answer]})
    with pytest.raises(UserError, match=f"x.jsonl, line 1: {problem}"):
        own(tmp_path, "x.jsonl", as_lines({"answers": [answer]}))
    with pytest.raises(UserError, match=f"x.csv, line 2: {problem}"):
        own(tmp_path, "x.csv", as_table({"answers": "Bo", "start": start}), answer_start="start")


def test_the_nearest_place_may_be_the_start_of_the_context(tmp_path: pathlib.Path):
    (question,), _ = squad(tmp_path, {"id": "q", "answers": [{"text": "Bo", "answer_start": 3}]}, context="Bo ran to Bo")
    assert question.answers == (("Bo", 0),)


@pytest.mark.parametrize(("start", "place"), [(5, 0), (6, 11), (10, 11), (12, 11), (13, 11)])
def test_an_answer_is_moved_to_the_nearest_place_on_either_side(tmp_path: pathlib.Path, start: int, place: int):
    (question,), _ = squad(tmp_path, {"id": "q", "answers": [{"text": "Bob", "answer_start": start}]}, context="Bob ran to Bob")
    assert question.answers == (("Bob", place),)


def test_offsets_in_units_of_utf_16_or_in_bytes_are_understood(tmp_path: pathlib.Path):
    context = "🎉🎉🎉🎉 Bo or Bo or Bo"
    for encoding, size in (("utf-16-le", 2), ("utf-8", 1)):
        start = len(context[:11].encode(encoding)) // size
        questions, said = squad(tmp_path, {"answers": [{"text": "Bo", "answer_start": start}]}, context=context)
        assert [q.answers for q in questions] == [(("Bo", 11),)]
        assert len(said) == 2


# -------------------------------------------------------------------------------------------------------------- white space
@pytest.mark.parametrize("between", ["\n", "  ", "\u202f", "\u00a0", "\t\r\n "])
def test_an_answer_may_differ_from_the_context_in_white_space(tmp_path: pathlib.Path, between: str):
    context = f"a b? No: x{between}y, then x{between}y."
    for start, place in ((0, 9), (9, 9), (30, context.rindex("x"))):
        answer = {"answers": [{"text": " x y ", "answer_start": start}]}
        questions, said = squad(tmp_path, {**answer, "id": "q"}, context=context)
        assert [q.answers for q in questions] == [((f"x{between}y", place),)]
        assert said == []
        assert [q.answers for q in own(tmp_path, "x.jsonl", as_lines(answer, context))] == [((f"x{between}y", place),)]


def test_the_nearest_words_are_chosen_from_the_middle_of_a_long_word(tmp_path: pathlib.Path):
    answer = {"id": "q", "answers": [{"text": "x y", "answer_start": 14}]}
    (question,), _ = squad(tmp_path, answer, context="x\ny abcdefghijkl x\ny")
    assert question.answers == (("x\ny", 17),)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_an_answer_may_differ_from_the_context_in_its_form_of_unicode(tmp_path: pathlib.Path, form: Any):
    """Each syllable of Hangul is one character, or up to three."""
    context = unicodedata.normalize(form, "a cafe, the café, 한국 or a café")
    other = "NFD" if form == "NFC" else "NFC"
    for text, start in (("the café", 8), ("café", len(context)), ("한국", 0), ("국", 3)):
        found = unicodedata.normalize(form, text)
        place = context.rindex(found)
        answer = {"answers": [{"text": unicodedata.normalize(other, text), "answer_start": start}]}
        questions, said = squad(tmp_path, {**answer, "id": "q"}, context=context)
        assert [q.answers for q in questions] == [((found, place),)]
        assert said == []
        assert [q.answers for q in own(tmp_path, "x.jsonl", as_lines(answer, context))] == [((found, place),)]
    questions, said = squad(tmp_path, {"id": "q", "answers": [{"text": "or a cafe", "answer_start": 0}]}, context=context)
    assert questions[0].answers == (("or a cafe", context.index("or a") if form == "NFD" else None),)


def test_an_answer_with_other_words_counts_only_in_scores(tmp_path: pathlib.Path):
    questions, said = squad(tmp_path, {"id": "q", "answers": [{"text": "Adaran", "answer_start": 0}]})
    assert questions[0].answers == (("Adaran", None),)
    assert said == [
        "1 answer not found in the context, so they are used for the scores but not in training; the first belongs to the "
        "question q"
    ]


# -------------------------------------------------------------------------------------------------------------- no answer
@pytest.mark.parametrize("answers", [[], {"text": [], "answer_start": []}])
def test_an_empty_list_of_answers_is_no_answer_in_every_format(tmp_path: pathlib.Path, answers: Any):
    (question,), _ = squad(tmp_path, {"answers": answers})
    (line,) = own(tmp_path, "x.jsonl", as_lines({"answers": answers}))
    (cell,) = own(tmp_path, "x.csv", as_table({"answers": ""}))
    assert [(q.answers, q.is_impossible) for q in (question, line, cell)] == [((), True)] * 3


def test_answers_are_unknown_if_the_file_lacks_them(tmp_path: pathlib.Path):
    questions, _ = squad(tmp_path, {}, {"answers": [], "is_impossible": False})
    assert [(q.answers, q.is_impossible) for q in questions] == [((), False)] * 2


# -------------------------------------------------------------------------------------------------------------- other formats
@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (
            as_lines({"answers": ["Bo"]}) * 2,
            "the first line is a complete object; if each line is an object, give the file a name that ends in .jsonl",
        ),
        ("question,context\nWho?,Bo\n", "if it is a table, give it a name that ends in .csv or .tsv"),
        ("<p>not found</p>\n", "it is a web page; fetch the file itself"),
        ('{"data": [', "fetch the file again"),
    ],
)
def test_another_format_with_json_suffix_is_recognised(tmp_path: pathlib.Path, text: str, remedy: str):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_squad(path)
    assert str(error.value).startswith(f"{path} is not JSON (")
    assert str(error.value).endswith(f"); {remedy}")
    path.write_text("<!DOCTYPE html>\n")
    with pytest.raises(UserError, match=r"x\.json is a web page, not text; fetch the file itself"):
        read_squad(path)
