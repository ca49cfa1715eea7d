"""Batches made in the background, so that the device never waits for the host. The only home of grain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import grain

Made = TypeVar("Made")


def prefetch(function: Callable[[int], Made], start: int, stop: int, *, threads: int = 2, ahead: int = 4) -> Iterator[Made]:
    """`function(step)` for start <= step < stop, in order, up to `ahead` of them made in advance by `threads` threads.

    An exception in `function` comes out of the iterator at that step. Ending the iteration early (or closing the generator)
    drops what has not been started.
    """
    if stop <= start:
        return
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
    iterator = iter(grain.MapDataset.range(start, stop).map(function).to_iter_dataset(options))
    try:
        yield from iterator
    finally:
        iterator.close()
