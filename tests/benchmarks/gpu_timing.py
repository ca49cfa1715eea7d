"""Measures benchmark_gpu_step.py and its peer in the same way. It imports nothing that either of them lacks."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

WARM_UP = 5
"""Steps before the timed ones; the first compiles."""
PRODUCTS = 10
"""The number of multiplications that are timed together."""


def timed(step: Callable[[], float], finish: Callable[[], Any], steps: int, blocks: int) -> dict[str, Any]:
    """Returns the seconds per step in each of `blocks` blocks of `steps` steps, the part of them spent waiting for batches, and
    the seconds of the first step.

    `step` starts one and returns the seconds that it waited for its batch; `finish` waits for the GPU.
    """
    started = time.perf_counter()
    step()
    finish()
    first = time.perf_counter() - started
    for _ in range(WARM_UP - 1):
        step()
    seconds, waited = [], 0.0
    for _ in range(blocks):
        finish()
        started = time.perf_counter()
        waited += sum(step() for _ in range(steps))
        finish()
        seconds.append((time.perf_counter() - started) / steps)
    return {"seconds": seconds, "waiting_for_input": waited / (sum(seconds) * steps), "first_step_seconds": first}


def largest_rate(multiply: Callable[[int], None], side: int) -> float:
    """Returns the FLOP/s of products of square matrices, the best of five measurements. `multiply(times)` computes that many
    products and waits for the last one."""
    multiply(PRODUCTS)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        multiply(PRODUCTS)
        seconds.append(time.perf_counter() - started)
    return PRODUCTS * 2 * side**3 / min(seconds)


def process_bytes() -> int:
    """Returns the peak memory of this process, for machines without a GPU."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
