"""Worker processes: results in order, progress, and an end to all when one fails."""

from __future__ import annotations

import os

import pytest

from bert_jax.corpus.workers import run_jobs
from bert_jax.errors import UserError
from tests.corpus import jobs


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_jobs_and_progress_adds_up(workers):
    seen = []
    results = run_jobs(jobs.square, range(6), workers, lambda fractions, tokens, finished: seen.append((tokens, finished)))
    assert [value for value, _ in results] == [0, 1, 4, 9, 16, 25]
    assert (os.getpid() in {process for _, process in results}) is (workers == 1)
    assert seen[-1] == (15, 6)


def test_an_error_in_one_job_stops_the_others_and_is_raised_here(tmp_path):
    with pytest.raises(UserError, match="the second job failed"):
        run_jobs(jobs.fail, [(number, tmp_path) for number in range(4)], 2, lambda *_: None)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_worker_is_an_error_that_says_what_to_do():
    with pytest.raises(UserError, match=r"a worker process was killed, .* --workers below 2"):
        run_jobs(jobs.vanish, range(2), 2, lambda *_: None)
