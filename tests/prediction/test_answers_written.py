"""The writer of answers in a single process: its messages, the figures that it shows, and the files that it leaves open."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from bert_jax.prediction.answers import Writer, answer_records
from bert_jax.prediction.fields import Record
from bert_jax.prediction.streams import Records
from tests.prediction.test_answers import answered, loud, source

__all__ = ["source"]  # a fixture


@pytest.mark.parametrize(
    ("texts", "said"), [("numbers\n", []), ("a\nnumbers\n", ["1 of 2 lines failed"])], ids=["alone", "of two"]
)
def test_a_single_line_is_not_counted(tmp_path, capsys, texts, said):
    (tmp_path / "in.txt").write_text(texts)
    assert answered(tmp_path / "in.txt", tmp_path / "out.jsonl").status == 1
    assert capsys.readouterr().err.splitlines()[1:] == said


def test_letters_are_not_escaped_and_nan_is_never_written(source, tmp_path):
    answered(source, tmp_path / "out.jsonl")
    assert '"text": "ü", "loud": "Ü"}' in (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="not JSON compliant"), Writer(str(tmp_path / "nan.jsonl")) as writer:
        writer.answer(Record(1, ""), {"x": float("nan")})


def test_too_deeply_nested_fields_fail_only_their_record(tmp_path, capsys):
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with Writer(str(tmp_path / "out.jsonl")) as writer:
        writer.answer(Record(1, "line 1: ", rest={"deep": deep}), {"loud": "A"})
        writer.answer(Record(2, "line 2: "), {"loud": "B"})
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert first == {"line": 1, "error": "its other fields are nested too deep to be written"}
    assert second == {"loud": "B"}
    assert capsys.readouterr().err == f"error: line 1: {first['error']}\n1 of 2 lines failed\n"


@pytest.mark.parametrize(
    ("output", "typed", "stderr", "stdout", "shown"),
    [
        ("out.jsonl", False, True, True, True),
        ("out.jsonl", False, True, False, True),
        ("out.jsonl", False, False, True, False),
        ("out.jsonl", True, True, True, False),
        (None, False, True, True, False),
        (None, False, True, False, True),
    ],
)
def test_progress_is_shown_on_a_terminal_that_shows_no_answers(
    tmp_path, monkeypatch, capsys, output, typed, stderr, stdout, shown
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: stderr)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout)
    texts = [Record(n, "", {"text": text}) for n, text in enumerate(("a", "numbers", "b"), 1)]
    records = Records(iter(texts), typed=typed, count=lambda: 3)
    with Writer(str(tmp_path / output) if output else None, lambda answer: answer["loud"], records) as writer:
        answer_records(records, 3, loud, writer)
    lines = [line.rpartition("\x1b[2K")[2] for line in capsys.readouterr().err.rstrip("\n").split("\n")]
    assert lines == ["error: no word in it", *(["answered 3/3 lines, 1 failed"] if shown else []), "1 of 3 lines failed"]


@pytest.mark.parametrize(("terminal", "shown"), [(True, "\\u001b[2JA\n"), (False, "\x1b[2JA\n")])
def test_control_characters_of_an_answer_are_escaped_on_a_terminal_only(tmp_path, monkeypatch, terminal, shown):
    with (tmp_path / "out").open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(stdout, "isatty", lambda: terminal)
        with Writer(None, lambda answer: answer["loud"]) as writer:
            writer.answer(Record(1, ""), {"loud": "\x1b[2JA"})
    assert (tmp_path / "out").read_text() == shown


def test_answers_come_after_earlier_output(tmp_path, monkeypatch):
    with (tmp_path / "out").open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        print("before")
        with Writer() as writer:
            writer.answer(Record(1, ""), {"loud": "A"})
    assert (tmp_path / "out").read_text() == 'before\n{"loud": "A"}\n'


def test_an_error_closes_open_files():
    with pytest.raises(KeyboardInterrupt), Writer("/dev/null") as writer:
        raise KeyboardInterrupt
    assert writer._file is not None
    assert writer._file.closed
