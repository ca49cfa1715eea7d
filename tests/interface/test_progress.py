"""The progress line that every long command shows."""

from __future__ import annotations

import io

import pytest

from bert_jax.interface import progress
from bert_jax.interface.progress import Progress, evaluation_progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


class Terminal(io.StringIO):
    """A stream that shows only what has been flushed."""

    def __init__(self, is_terminal: bool = True):
        super().__init__()
        self._is_terminal, self.shown = is_terminal, ""

    def isatty(self) -> bool:
        return self._is_terminal

    def flush(self) -> None:
        self.shown = self.getvalue()


CLEAR = "\r\x1b[2K"


def test_a_terminal_shows_one_line_that_is_redrawn_every_tenth_of_a_second(clock: Clock):
    stream = Terminal()
    progress = Progress("tokenising", 1_004, "shards", stream=stream)
    progress.update(4)
    assert stream.shown == f"{CLEAR}tokenising 4/1,004 shards"
    clock.now = 0.0625
    progress.update(8)  # too soon
    clock.now = 0.125
    progress.update(1_000, note="12 M tokens", seconds_left=61)
    progress.update(1_001)
    drawn = f"{CLEAR}tokenising 4/1,004 shards{CLEAR}tokenising 1,000/1,004 shards, 12 M tokens, ETA 1m01s"
    assert stream.shown == drawn
    progress.close()
    assert stream.shown == f"{drawn}{CLEAR}tokenising 1,001/1,004 shards, ETA 0s\n"


def test_other_streams_show_a_line_every_ten_seconds(clock: Clock):
    stream = Terminal(is_terminal=False)
    progress = Progress("read", 7, "texts", stream=stream)
    for now, done in ((0.0, 2), (9.9, 3), (10.0, 4), (19.9, 5), (20.0, 5)):  # the first 2 were already done
        clock.now = now
        progress.update(done)
    assert stream.shown.splitlines() == ["read 2/7 texts", "read 4/7 texts, ETA 15s", "read 5/7 texts, ETA 13s"]
    progress.update(7)
    progress.close()
    assert stream.shown.splitlines()[3:] == ["read 7/7 texts"]
    progress.close()
    assert len(stream.shown.splitlines()) == 4


def test_no_time_left_is_shown_without_a_total_or_progress(clock: Clock):
    stream = Terminal(is_terminal=False)
    for total in (None, 9):
        progress = Progress("read", total, "texts", plain_every=0.0, stream=stream)
        progress.update(1)
        clock.now += 30.0
        progress.update(1 if total else 3, note="a note")
    assert stream.shown.splitlines() == ["read 1 texts", "read 3 texts, a note", "read 1/9 texts", "read 1/9 texts, a note"]
    Progress("read", 9, "texts", stream=stream).close()  # nothing was done
    assert len(stream.shown.splitlines()) == 4


def test_the_time_left_is_estimated_from_the_first_unit(clock: Clock):
    stream = Terminal(is_terminal=False)
    progress = Progress("read", 5, "texts", plain_every=0.0, stream=stream)
    for done in (0, 1):
        progress.update(done)
        clock.now += 30.0
    progress.update(1)
    assert stream.shown.splitlines()[1:] == ["read 1/5 texts, ETA 2m00s", "read 1/5 texts, ETA 4m00s"]


def test_short_work_shows_no_progress(clock: Clock):
    stream = io.StringIO()
    progress = Progress("evaluating", 8, "rows", delay=2.0, stream=stream)
    for done in range(1, 9):
        clock.now += 0.2
        progress.update(done)
    progress.close()
    assert stream.getvalue() == ""


def test_longer_work_shows_its_progress_and_its_end(clock: Clock):
    stream = io.StringIO()
    progress = Progress("evaluating", None, "rows", delay=2.0, stream=stream)
    for done in range(1, 9):
        clock.now += 1.0
        progress.update(done, total=8)
    progress.close()
    assert stream.getvalue().splitlines() == ["evaluating 2/8 rows, ETA 6s", "evaluating 8/8 rows"]


def test_only_one_process_shows_the_progress_of_an_evaluation(clock: Clock, capsys: pytest.CaptureFixture[str]):
    for is_shown in (True, False):
        with evaluation_progress("dev", "examples", is_shown) as progress:
            for done in (1, 2):
                clock.now += 30.0
                progress(done, 2)
    shown = capsys.readouterr().err.splitlines()
    assert shown == ["evaluating dev: 1/2 examples", "evaluating dev: 2/2 examples"]  # no line is printed twice


def test_an_evaluation_of_two_seconds_shows_its_progress_and_its_end(clock: Clock, capsys: pytest.CaptureFixture[str]):
    with evaluation_progress("dev", "examples", True) as progress:
        for done in (1, 2, 8):
            progress(done, 8)
            clock.now += 0.9
    assert capsys.readouterr().err == ""
    with evaluation_progress("dev", "examples", True) as progress:
        for done in (1, 2, 8):
            progress(done, 8)
            clock.now += 2.0
    assert capsys.readouterr().err.splitlines() == ["evaluating dev: 2/8 examples, ETA 12s", "evaluating dev: 8/8 examples"]
