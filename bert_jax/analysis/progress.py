"""The lines of progress of an analysis: through a file, through texts, through the stages of probes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Protocol

from bert_jax.interface.progress import Progress

DELAY = 2.0
"""Seconds before the first line."""
Note = Callable[[str], None]
"""Is told how far the work is, such as "3,000 words"."""


class Lined(Protocol):
    """A file that is read line by line."""

    line: int
    """The line that was read last, from 1."""
    count: Callable[[], int | None]
    """Returns the number of lines, or None if counting takes too long."""


Show = Callable[[Lined], contextlib.AbstractContextManager[Note]]
"""A file -> a context with a function that shows a note while the file is read."""


@contextlib.contextmanager
def in_silence(file: object) -> Iterator[Note]:
    """A function that shows nothing."""
    yield lambda note: None


@contextlib.contextmanager
def progress_of(file: Lined) -> Iterator[Note]:
    """A function that shows the progress through the lines of a file and the time left, with a note."""
    progress, total = Progress("read", None, "lines", delay=DELAY), file.count()
    try:
        yield lambda note: progress.update(file.line, note, total)
    finally:
        progress.close()


@contextlib.contextmanager
def progress_through(texts: Iterable[str]) -> Iterator[tuple[Iterable[str], Note]]:
    """(`texts`, which are counted as they are read; a function that shows the progress through them, with a note). The time left
    is shown for texts that have a length, as a list has."""
    progress, read = Progress("read", len(texts) if isinstance(texts, Sized) else None, "texts", delay=DELAY), 0

    def counted_texts() -> Iterator[str]:
        nonlocal read
        for text in texts:
            read += 1
            yield text

    try:
        yield counted_texts(), lambda note: progress.update(read, note)
    finally:
        progress.close()


def progress_of_stage(stage: str, unit: str) -> Callable[[int, int], None]:
    """A function of (what is done, the whole), in `unit`s, that shows the progress of a stage and the time left."""
    progress: list[Progress] = []

    def say(done: int, total: int) -> None:
        if not progress:
            progress.append(Progress(stage, total, unit, delay=DELAY))
        progress[0].update(done)
        if done >= total:
            progress[0].close()

    return say
