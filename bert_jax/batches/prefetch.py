"""Batches made in the background, so that the device never waits for the host. The only home of grain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import grain

Made = TypeVar("Made")


class prefetch(Iterator[Made], Generic[Made]):
    """`function(step)` for start <= step < stop, in order, up to `ahead` of them made in advance by `threads` threads, begun at
    once.

    An exception in `function` comes out at its step. Leave early with `close()`, or use it as a context manager; a program that
    just ends finishes the batches that were begun, and ends.
    """

    def __init__(self, function: Callable[[int], Made], start: int, stop: int, *, threads: int = 2, ahead: int = 4):
        steps: Any = grain.MapDataset.range(start, max(start, stop)).map(function)
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
        self._iterator: Any = iter(steps.to_iter_dataset(options, allow_nones=True))
        self._iterator.start_prefetch()
        self._closed = False

    def __next__(self) -> Made:
        if self._closed:
            raise StopIteration
        try:
            return next(self._iterator)
        except BaseException:  # the end, or an error of `function`: either way the threads have no more to do
            self.close()
            raise

    def close(self) -> None:
        """Ends the threads. Batches that were made or are in the making are dropped."""
        self._closed = True
        self._iterator.close()

    def __enter__(self) -> prefetch[Made]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
