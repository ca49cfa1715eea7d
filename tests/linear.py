"""Checks that a call takes linear time: a text of FACTOR times the length takes about FACTOR times as long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LENGTH = 4_000
FACTOR = 8
"""The ratio of the two lengths; quadratic time would be 64 times as long."""
MOST = 24
"""The maximum time for FACTOR times the length, in multiples of the time for LENGTH."""
LEAST_SECONDS = 0.02
"""A call that takes less time for the long text passes: at this length, quadratic time takes longer."""


def seconds(call: Callable[[Any], object], text: str | bytes) -> float:
    """Returns the CPU time of a call, which other programs hardly change."""
    start = time.process_time()
    call(text)
    return time.process_time() - start


def is_slow(call: Callable[[str], object], make: Callable[[int], str]) -> bool:
    """Returns whether a call takes quadratic time on the texts of `make` in each of three attempts. Other programs may slow
    down one of them."""
    for _ in range(3):
        long = seconds(call, make(FACTOR * LENGTH))
        if long < LEAST_SECONDS or long < MOST * seconds(call, make(LENGTH)):
            return False
    return True
