"""Batches from background threads, so that the device does not wait for the host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import grain

Made = TypeVar("Made")


class prefetch(Iterator[Made], Generic[Made]):
    """An iterator over `function(step)` for start <= step < stop, in order. `threads` threads start immediately and compute up to
    `ahead` results in advance.

    If `function` raises an exception, the iterator raises it at the same step. To stop early, call `close()` or use the
    iterator as a context manager. Otherwise the program waits on exit for the batches that are being computed.
    """

    def __init__(self, function: Callable[[int], Made], start: int, stop: int, *, threads: int = 2, ahead: int = 4):
        self._next, self._stop = start, stop
        self._made = _Made()
        steps: Any = grain.MapDataset.range(start, stop).map(self._made.noting(function))
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
        self._iterator: Any = iter(steps.to_iter_dataset(options, allow_nones=True))
        self._iterator.start_prefetch()
        self._closed = False

    def __next__(self) -> Made:
        if self._closed:
            raise StopIteration
        try:
            batch: Made = next(self._iterator)
        except BaseException:  # the steps have ended, or `function` has raised an error: stop the threads
            self.close()
            raise
        self._made.forget(self._next)
        self._next += 1
        return batch

    def is_ready(self, within: float = 0.0) -> bool:
        """Returns whether the next call of `next` will return immediately. Waits up to `within` seconds for the result."""
        return self._closed or self._next >= self._stop or self._made.holds(self._next, within)

    def close(self) -> None:
        """Stops the threads and drops prefetched batches."""
        self._closed = True
        self._iterator.close()

    def __enter__(self) -> prefetch[Made]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Made:
    """Tracks the steps whose batches are ready and not yet consumed."""

    def __init__(self) -> None:
        self._steps: set[int] = set()
        self._changed = threading.Condition()

    def noting(self, function: Callable[[int], Made]) -> Callable[[int], Made]:
        """Wraps `function` to record its argument once it has returned or raised."""

        def noted(step: int) -> Made:
            try:
                return function(step)
            finally:
                with self._changed:
                    self._steps.add(int(step))
                    self._changed.notify_all()

        return noted

    def holds(self, step: int, within: float) -> bool:
        """Returns whether the batch of `step` is ready. Waits up to `within` seconds for the batch."""
        with self._changed:
            return self._changed.wait_for(lambda: step in self._steps, within)

    def forget(self, step: int) -> None:
        """Records that the batch of `step` was consumed."""
        self._steps.discard(step)
