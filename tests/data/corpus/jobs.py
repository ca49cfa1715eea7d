"""Jobs for `test_workers`, in a module that spawned processes can import."""

from __future__ import annotations

import os
import pathlib
import time

from bert_jax.errors import UserError


def square(number: int, report) -> tuple[int, int]:
    """Returns (number squared, the process that computed it)."""
    report(1.0, number)
    time.sleep(0.05)
    return number * number, os.getpid()


def fail(job: tuple[int, pathlib.Path], report) -> None:
    """Raises a UserError in the second job. The other jobs leave a file unless they are stopped within 10 s."""
    number, directory = job
    (directory / f"begun {number}").touch()
    if number == 1:
        raise UserError("the second job failed")
    for _ in range(1000):
        time.sleep(0.01)
        report(0.5, 0)
    (directory / str(number)).touch()


def vanish(number: int, report) -> int:
    """Ends like a process that the kernel kills for its memory."""
    os._exit(9)
