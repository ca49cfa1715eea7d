"""Batches from background threads, so that the device does not wait for the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import grain

Made = TypeVar("Made")


class prefetch(Iterator[Made], Generic[Made]):
    """An iterator over `function(step)` for start <= step < stop, in order; `threads` threads compute up to `ahead` results in
    advance, and start immediately.

    An exception in `function` is raised at its step. To stop early, call `close()` or use the iterator as a context manager;
    otherwise a program that ends waits for the batches that are being computed.
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
        except BaseException:  # the end, or an error in `function`: the threads are no longer needed
            self.close()
            raise

    def close(self) -> None:
        """Ends the threads, and drops the batches computed in advance."""
        self._closed = True
        self._iterator.close()

    def __enter__(self) -> prefetch[Made]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
