"""The listening of one process from beat to beat, by a clock that is given."""

from __future__ import annotations

import types
from typing import Any

import pytest

from bert_jax.interface.exit_statuses import HUNG
from bert_jax.runtime import heartbeats
from tests.runtime.test_heartbeats_alone import Process, Stream, Wire, clock, stderr
from tests.runtime.test_roll_call import Time

__all__ = ["clock", "stderr"]


class Selector:
    """Waits by the clock; `events` says after how many seconds who has something to say."""

    def __init__(self, clock: Time, events: dict[float, int]):
        self._clock, self._events = clock, events
        self.registered: dict[int, Any] = {}
        self.waited: list[float] = []

    def __enter__(self) -> Selector:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def register(self, connection: Wire, event: int, other: int) -> None:
        assert event == heartbeats.selectors.EVENT_READ
        self.registered[other] = connection

    def unregister(self, connection: Wire) -> None:
        (other,) = [name for name, one in self.registered.items() if one is connection]
        del self.registered[other]

    def select(self, timeout: float) -> list[Any]:
        assert timeout > 0
        start = self._clock.now - 1000.0
        due = [at for at in sorted(self._events) if start < at <= start + timeout]
        self.waited.append(round(due[0] - start if due else timeout, 6))
        self._clock.now += self.waited[-1]
        if not due:
            return []
        other = self._events.pop(due[0])
        return [(types.SimpleNamespace(data=other, fileobj=self.registered[other]), None)]


def lived(process: Process, clock: Time, events: dict[float, int], monkeypatch: pytest.MonkeyPatch) -> Selector:
    selector = Selector(clock, events)
    monkeypatch.setattr(heartbeats.selectors, "DefaultSelector", lambda: selector)
    process._live()
    return selector


def test_both_sides_say_something_every_two_seconds(clock: Time, monkeypatch: pytest.MonkeyPatch):
    first = Process(0)
    first.wires[1].incoming = [b"{}\n", b'{"ends": true}\n']
    first.wires[2].incoming = [b'{"ends": true}\n']
    selector = lived(first, clock, {3.0: 1, 7.0: 1, 7.5: 1, 8.5: 2, 9.0: 2}, monkeypatch)
    assert selector.waited == [2.0, 1.0, 1.0, 2.0, 1.0, 0.5, 0.5, 0.5, 0.5], "until the next line, or what comes"
    silence = "worker 2 (c) of 3 has given no sign of life for 8 s"
    assert first.wires[2].said[:5] == [{"silent": ""}] * 4 + [{"silent": silence}]
    assert (selector.registered, first.left) == ({}, [])
    second = Process(1)
    second._ended = True
    second.wires[0].incoming = [b'{"ends": true}\n']
    clock.now = 1000.0
    assert lived(second, clock, {3.0: 0}, monkeypatch).waited == [2.0, 1.0]
    assert second.said == [[{}, {}]]


def test_a_process_ends_with_the_words_and_the_status_of_the_failure(
    clock: Time, monkeypatch: pytest.MonkeyPatch, stderr: Stream
):
    second = Process(1)
    second.wires[0].incoming = [b'{"failed": "worker 0 (a) of 3 has failed", "status": 2}\n']
    selector = lived(second, clock, {0.5: 0}, monkeypatch)
    assert (second.left, clock.now) == ([2], 1010.5)
    assert selector.waited == [0.5, 1.5, 2.0, 2.0, 2.0, 2.0, 0.5]
    assert stderr.seen == "error: worker 0 (a) of 3 has failed\n"


def test_the_minute_of_the_first_process_begins_once_all_say_that_they_end(clock: Time, monkeypatch: pytest.MonkeyPatch):
    first = Process(0)
    first._ended = True
    for wire in first.wires.values():
        wire.incoming = [b'{"ends": true}\n']
    lived(first, clock, {10.5: 1, 31.0: 2}, monkeypatch)
    assert clock.now == 1090.0  # at the first beat a minute after the last farewell was heard


def test_silence_is_looked_for_at_every_beat(clock: Time, monkeypatch: pytest.MonkeyPatch, stderr: Stream):
    second = Process(1)
    lived(second, clock, {}, monkeypatch)
    assert (second.left, clock.now) == ([HUNG], 1062.0)
    assert stderr.seen.startswith("worker 0 (a) of 3 has given no sign of life for 62 s: it was stopped, or")
