"""The progress of reading texts and annotated files, and of a stage."""

from __future__ import annotations

import time

import pytest

from bert_jax.analysis import reading as progress
from bert_jax.prediction.fields import Field
from bert_jax.prediction.streams import read_texts


class _Lines:
    line = 0

    def count(self) -> int:
        return 9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """A clock that advances by the seconds added to it."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_progress_and_its_end_are_shown_after_two_seconds(clock, capsys):
    file = _Lines()
    with progress.line_progress(file) as say, progress.progress_through(["a"] * 5) as (texts, tell):
        for file.line, _ in zip((3, 6, 9), texts, strict=False):
            say("words")
            tell("words")
            clock[0] += 1.0
    lines = ["read 9/9 lines, words", "read 3/5 texts, words, ETA 2s"]
    assert capsys.readouterr().err.splitlines() == lines
    with progress.line_progress(file) as say, progress.progress_through(iter("abc")) as (texts, tell):
        for file.line, _ in zip((3, 6, 9), texts, strict=False):
            clock[0] += 1.0
            say("words")
            tell("words")
    assert capsys.readouterr().err.splitlines() == [
        "read 6/9 lines, words, ETA 1s", "read 2 texts, words", "read 3 texts, words", "read 9/9 lines, words",
    ]  # fmt: skip


def test_the_summary_of_texts_ends_their_progress(analyser, clock, capsys):
    reading = progress.Reading(analyser.engine, read_texts(["a", "b"], None, (Field("text"),)))
    for _ in reading.each(lambda text: iter([text, text])):
        clock[0] += 2.0
        reading.show("words")
    clock[0] += 0.5
    reading.show("3 words")
    assert reading.summary(3, 4) == "2 texts, 3 words; texts longer than 40 tokens were cut: 4 windows"
    assert capsys.readouterr().err.splitlines()[-1] == "read 2/2 lines, 3 words"


def test_a_note_about_a_treebank_is_shown_once(tmp_path, capsys):
    (tmp_path / "x.conllu").write_text("")
    treebank = progress.Treebank(tmp_path / "x.conllu")
    for problem in ("one", "two", "one"):
        treebank._note(problem)
    assert [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()] == ["one", "two"]


def test_a_stage_shows_its_progress_to_the_last_unit(clock, capsys):
    say = progress.stage_progress("training", "steps")
    for done in (1, 2, 3, 4):
        say(done, 4)
        clock[0] += 1.5
    assert capsys.readouterr().err.splitlines() == ["training 3/4 steps, ETA 2s", "training 4/4 steps"]
