"""A clock for tests of waits that take minutes."""

from __future__ import annotations

import selectors
import threading
import time

import pytest


class Clock:
    """The monotonic time of this process, from 1000. It advances only while the program sleeps, or by `advance`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.advance)

    @property
    def passed(self) -> float:
        """The seconds since the clock was made."""
        return self.now - 1000.0

    def advance(self, seconds: float) -> None:
        self.now += seconds


class SelectorClock(Clock):
    """A clock that also advances while the program waits for connections: by the timeout, or by the next of `pauses`. While
    `runs` is cleared, the program waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pauses: float):
        super().__init__(monkeypatch)
        clock, left, self.runs = self, list(pauses), threading.Event()
        self.runs.set()

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                clock.runs.wait(30)
                ready = super().select(0)
                if not ready:
                    clock.advance(left.pop(0) if left else timeout or 0.0)
                return ready

        monkeypatch.setattr(selectors, "DefaultSelector", Selector)
