"""The line of progress that every long verb shows."""

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


def test_what_is_done_before_the_delay_shows_nothing(clock: Clock):
    stream = io.StringIO()
    progress = Progress("evaluating", 8, "rows", delay=2.0, stream=stream)
    for done in range(1, 9):
        clock.now += 0.2
        progress.update(done)
    progress.close()
    assert stream.getvalue() == ""


def test_what_takes_longer_shows_how_far_it_is_and_that_it_is_done(clock: Clock):
    stream = io.StringIO()
    progress = Progress("evaluating", None, "rows", delay=2.0, stream=stream)
    for done in range(1, 9):
        clock.now += 1.0
        progress.update(done, total=8)
    progress.close()
    assert stream.getvalue().splitlines() == ["evaluating 2/8 rows, ETA 6s", "evaluating 8/8 rows"]


def test_one_process_alone_shows_how_far_an_evaluation_is(clock: Clock, capsys: pytest.CaptureFixture[str]):
    for is_shown in (True, False):
        with evaluation_progress("dev", is_shown) as progress:
            for done in (1, 2):
                clock.now += 30.0
                progress(done, 2)
    assert capsys.readouterr().err.splitlines() == ["evaluating dev: 1/2 rows", "evaluating dev: 2/2 rows"]  # no line twice
