"""Worker processes: results in order, progress, and the end of all workers when one fails."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from bert_jax.data.corpus import workers as workers_module
from bert_jax.data.corpus.workers import run_jobs
from bert_jax.errors import UserError
from tests.data.corpus import jobs


@pytest.mark.parametrize("workers", [1, 2])
def test_results_keep_the_order_of_jobs_and_progress_adds_up(workers):
    seen = []
    results = run_jobs(jobs.square, range(6), workers, lambda fractions, tokens, finished: seen.append((tokens, finished)))
    assert seen == sorted(seen)
    assert max(finished for _, finished in seen) == 6
    assert [value for value, _ in results] == [0, 1, 4, 9, 16, 25]
    assert (os.getpid() in {process for _, process in results}) is (workers == 1)
    assert seen[-1] == (15, 6)


def test_an_error_in_one_job_stops_the_others_and_is_raised(tmp_path):
    with pytest.raises(UserError, match="the second job failed"):
        run_jobs(jobs.fail, [(number, tmp_path) for number in range(20)], 2, lambda *_: None)
    begun = [path.name for path in tmp_path.iterdir()]
    assert "begun 1" in begun
    assert len(begun) < 20
    assert all(name.startswith("begun") for name in begun)
    assert multiprocessing.active_children() == []


def test_a_killed_worker_is_an_error_with_a_remedy():
    with pytest.raises(UserError, match=r"a worker process was killed, .* --workers below 2"):
        run_jobs(jobs.vanish, range(2), 2, lambda *_: None)


def test_a_single_job_runs_in_this_process():
    assert run_jobs(jobs.square, [3], 2, lambda *_: None) == [(9, os.getpid())]


def test_progress_is_shown_after_a_fifth_of_a_second_and_after_every_job(monkeypatch):
    clock, seen = [0.0], []
    monkeypatch.setattr(workers_module.time, "monotonic", lambda: clock[0])

    def job(steps, report):
        for done, seconds in enumerate(steps):
            clock[0] += seconds
            report(done, 7)

    run_jobs(job, [(0.2, 0.125, 0.125), (0.25,)], 1, lambda fractions, *counts: seen.append((*fractions, *counts)))
    assert seen == [(1, 0, 7, 0), (2, 0, 7, 1), (2, 0, 14, 1), (2, 0, 14, 2)]


def test_a_worker_stops_on_request_and_ends_with_its_parent(monkeypatch):
    board = workers_module._SharedProgress(2)
    board.parent = os.getppid()
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(workers_module, "_board", None)
    try:
        workers_module._start(board)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    ended = []
    monkeypatch.setattr(workers_module.os, "_exit", ended.append)

    def job(number, report):
        report(0.5, 7)
        return number

    assert workers_module._run(job, 1, 33) == 33
    assert (list(board.fractions), list(board.tokens), ended) == ([0.0, 0.5], [0, 7], [])
    board.parent = -1
    workers_module._run(job, 0, 33)
    assert {*ended} == {1}
    board.stop.value = 1
    with pytest.raises(workers_module._Stopped):
        workers_module._run(job, 0, 33)
