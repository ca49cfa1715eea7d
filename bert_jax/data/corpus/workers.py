"""Runs jobs on worker processes. The processes report progress, stop on request, and end when their parent process is
killed."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from bert_jax.errors import UserError

_TICK = 0.2  # seconds

Job = TypeVar("Job")
Result = TypeVar("Result")

Report = Callable[[float, int], None]  # (fraction of the job done, tokens so far)
Tick = Callable[[Sequence[float], int, int], None]  # (fraction of each job, tokens of all, jobs finished)


class _SharedProgress:
    """Shared memory with the progress (fraction, tokens) of every job and a flag that stops all workers."""

    def __init__(self, jobs: int):
        context = multiprocessing.get_context("spawn")
        self.fractions = context.RawArray("d", jobs)
        self.tokens = context.RawArray("q", jobs)
        self.stop = context.RawValue("b", 0)
        self.parent = os.getpid()


class _Stopped(Exception):
    """Raised in a worker to stop it after another worker has failed."""


_board: _SharedProgress | None = None


def _start(board: _SharedProgress) -> None:
    global _board
    _board = board
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and sets `stop`


def _run(function: Callable[[Job, Report], Result], number: int, job: Job) -> Result:
    board = _board
    assert board is not None

    def report(fraction: float, tokens: int) -> None:
        board.fractions[number], board.tokens[number] = fraction, tokens
        if board.stop.value:
            raise _Stopped
        if os.getppid() != board.parent:  # the parent was killed; this worker must not interfere with the next build
            os._exit(1)

    report(0.0, 0)
    return function(job, report)


def run_jobs(function: Callable[[Job, Report], Result], jobs: Sequence[Job], workers: int, tick: Tick) -> list[Result]:
    """Computes `[function(job, report) for job in jobs]` on `workers` processes. If there is only one worker or one job, the
    jobs run in this process.

    `tick(fractions, tokens, finished)` is called about every 0.2 s. `function` and `jobs` must be picklable, since the
    processes are spawned. (A fork would copy locks that other threads hold.) Raises UserError if a worker process is killed.
    """
    board = _SharedProgress(len(jobs))
    if workers == 1 or len(jobs) == 1:
        return _run_here(function, jobs, board, tick)
    pool = concurrent.futures.ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=multiprocessing.get_context("spawn"), initializer=_start, initargs=(board,)
    )
    try:
        futures = [pool.submit(_run, function, number, job) for number, job in enumerate(jobs)]
        waiting = set(futures)
        while waiting:
            finished, waiting = concurrent.futures.wait(waiting, _TICK, concurrent.futures.FIRST_EXCEPTION)
            for future in finished:
                future.result()
            tick(board.fractions, sum(board.tokens), len(futures) - len(waiting))
        return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, most often because memory ran out; run the same command with --workers below "
            f"{workers} (finished shards are intact)"
        ) from error
    finally:
        board.stop.value = 1
        pool.shutdown(cancel_futures=True)


def _run_here(function: Callable[[Job, Report], Result], jobs: Sequence[Job], board: _SharedProgress, tick: Tick) -> list[Result]:
    results: list[Result] = []
    shown = time.monotonic()

    def reporter(number: int) -> Report:
        def report(fraction: float, tokens: int) -> None:
            nonlocal shown
            board.fractions[number], board.tokens[number] = fraction, tokens
            if time.monotonic() - shown > _TICK:
                shown = time.monotonic()
                tick(board.fractions, sum(board.tokens), len(results))

        return report

    for number, job in enumerate(jobs):
        results.append(function(job, reporter(number)))
        tick(board.fractions, sum(board.tokens), len(results))
    return results
