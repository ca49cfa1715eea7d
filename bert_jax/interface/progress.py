"""One line of progress with an estimate of the remaining time."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Self, TextIO

from bert_jax.interface.words import duration

CLEAR_LINE = "\r\x1b[2K"
"""The control sequence that clears a progress line."""


class Progress:
    """One line of progress with an ETA. On a terminal, the line is redrawn in place. Elsewhere, a plain line is written every
    `plain_every` seconds.

    Nothing is shown before `delay` seconds have passed.

    >>> with Progress("tokenising", total=8, unit="shards") as progress:
    ...     progress.update(3, note="12.1 M tokens")    # tokenising 3/8 shards, 12.1 M tokens, ETA 41s
    """

    def __init__(
        self,
        title: str,
        total: int | None,
        unit: str,
        *,
        plain_every: float = 10.0,
        delay: float = 0.0,
        stream: TextIO | None = None,
    ):
        self._title, self._total, self._unit = title, total, unit
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._every = 0.1 if self._live else plain_every
        self._start = time.monotonic()
        self._first: int | None = None
        self._shown = self._start + delay - self._every  # the first line appears after `delay` seconds
        self._delay, self._last_shown = delay, ""
        self._line = ""

    def update(self, done: int, note: str = "", total: int | None = None, seconds_left: float | None = None) -> None:
        """Shows that `done` units are finished. `total` sets the number of units if it was unknown at construction.
        `seconds_left` sets the remaining time. Use `seconds_left` if units take different times."""
        self._total = self._total if total is None else total
        now = time.monotonic()
        if self._first is None:  # units that were already finished at the start do not count towards the speed
            self._first, self._start = done, now
        self._line = self._format(done, note, now - self._start, seconds_left)
        if now - self._shown >= self._every:
            self._shown = now
            self._draw()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Draws the latest line. On a terminal, also writes a line break."""
        if self._line and (self._last_shown or not self._delay):
            if self._live or self._line != self._last_shown:
                self._draw()
            if self._live:
                self._stream.write("\n")
                self._stream.flush()

    def _format(self, done: int, note: str, elapsed: float, left: float | None) -> str:
        line = f"{self._title} {done:,}" + (f"/{self._total:,}" if self._total is not None else "") + f" {self._unit}"
        line += f", {note}" if note else ""
        gained = done - (self._first or 0)
        if left is None and self._total is not None and gained > 0 and done < self._total:
            left = elapsed / gained * (self._total - done)
        line += f", ETA {duration(left)}" if left is not None else ""
        return line

    def _draw(self) -> None:
        self._last_shown = self._line
        self._stream.write(f"{CLEAR_LINE}{self._line}" if self._live else f"{self._line}\n")
        self._stream.flush()


EVALUATION_PROGRESS_DELAY = 2.0
"""The delay in seconds before an evaluation shows its progress."""


@contextlib.contextmanager
def evaluation_progress(what: str, unit: str, is_shown: bool) -> Iterator[Callable[[int, int], None]]:
    """Yields a function that shows the progress of an evaluation. The arguments of the function are the count of scored units
    and the count of all units. The function shows nothing in the first 2 s, or if `is_shown` is false. `what` follows
    "evaluating" in the line. `unit` is "rows" or "examples"."""
    with Progress(f"evaluating {what}:", None, unit, delay=EVALUATION_PROGRESS_DELAY) as progress:
        yield lambda done, total: progress.update(done, total=total) if is_shown else None
