"""The heartbeats of one process by a clock that is given: what it says, what it understands, when it ends and how."""

from __future__ import annotations

import io
import json
import types
from collections.abc import Callable
from typing import Any

import jax
import pytest

from bert_jax.data.corpus.integrity import CorruptedCorpus
from bert_jax.errors import USER_ERROR_STATUS, UserError
from bert_jax.interface.exit_statuses import HUNG
from bert_jax.runtime import heartbeats
from bert_jax.runtime.heartbeats import REMEDY, Heartbeats
from bert_jax.sharding.out_of_memory import OutOfMemory
from tests.runtime.test_roll_call import Time

NAMES = ("worker 0 (a)", "worker 1 (b)", "worker 2 (c)")


class Wire:
    """A connection: what was sent over it, and what comes."""

    def __init__(self) -> None:
        self.lines, self.incoming, self.timeout, self.broken = list[bytes](), list[bytes](), 0.0, False

    def settimeout(self, seconds: float) -> None:
        self.timeout = seconds

    def sendall(self, data: bytes) -> None:
        if self.broken:
            raise BrokenPipeError
        self.lines.append(data)

    def recv(self, size: int) -> bytes:
        assert size == 65_536
        if self.broken:
            raise ConnectionResetError
        return self.incoming.pop(0) if self.incoming else b""

    @property
    def said(self) -> list[Any]:
        """The messages that were sent, each of which ends its line."""
        text = b"".join(self.lines)
        assert text.endswith(b"\n") or not text
        return [json.loads(line) for line in text.splitlines()]


class Thread:
    """In place of the listening thread: alive, and joined for so many seconds."""

    def __init__(self) -> None:
        self.alive, self.joined, self.started = True, list[float | None](), 0
        self.while_joined: Callable[[], object] = lambda: None

    def start(self) -> None:
        self.started += 1

    def is_alive(self) -> bool:
        return self.alive

    def join(self, timeout: float | None = None) -> None:
        self.joined.append(timeout)
        self.while_joined()


class Process(Heartbeats):
    """Process `index` of three; `left` has the statuses with which it has left."""

    def __init__(self, index: int):
        self.wires = {other: Wire() for other in ((1, 2) if index == 0 else (0,))}
        self.left: list[int] = []
        super().__init__(index, NAMES, self.wires, patience=60.0, leave=self.left.append)  # type: ignore[arg-type]
        self.thread = Thread()
        self._thread = self.thread  # type: ignore[assignment]

    @property
    def said(self) -> list[list[Any]]:
        """The messages to each of the others."""
        return [wire.said for wire in self.wires.values()]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(heartbeats, "time", clock)
    return clock


class Stream(io.StringIO):
    """A stderr of which only what was flushed is seen, as after `os._exit`."""

    seen = ""

    def flush(self) -> None:
        self.seen = self.getvalue()


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream()
    monkeypatch.setattr(heartbeats, "sys", types.SimpleNamespace(stderr=stream))
    return stream


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is called at the regular exit; `os._exit` raises SystemExit."""
    registered: list[Any] = []
    monkeypatch.setattr(heartbeats.atexit, "register", registered.append)

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(heartbeats.os, "_exit", leave)
    return registered


def test_a_process_that_is_silent_for_some_beats_is_named(clock: Time):
    first = Process(0)
    clock.now += 7.0  # three and a half beats
    assert first.silent() == ""
    first._told = "worker 9 of 9"
    assert first.silent() == "worker 9 of 9", "what process 0 has told"
    clock.now += 0.5
    silence = [f"{NAMES[i]} of 3 has given no sign of life for 8 s" for i in (1, 2)]
    assert first.silent() == "; ".join(silence)
    first._leaving.add(1)
    assert first.silent() == silence[1]


@pytest.mark.parametrize(
    ("index", "alive", "closed", "waits"),
    [(0, True, (), 25), (0, True, (1,), 25), (0, True, (1, 2), 0), (0, False, (), 0), (1, True, (), 0)],
)
def test_the_first_process_waits_five_seconds_for_those_whom_it_tells_to_end(
    index: int, alive: bool, closed: tuple[int, ...], waits: int, clock: Time
):
    process = Process(index)
    process.thread.alive = alive
    process._closed.update(closed)
    process.tell("it hangs", "", "and so does another")
    assert process.said == [[] if other in closed else [{"lost": "it hangs; and so does another"}] for other in process.wires]
    assert process._leaving == set(process.wires)
    assert clock.slept == [pytest.approx(0.2)] * waits


def test_what_cannot_be_sent_is_no_error_and_one_may_be_left_out(clock: Time):
    first = Process(0)
    first._send({"a": 1}, but=2)
    first.wires[1].broken = True
    first._send({"b": 2})
    assert first.said == [[{"a": 1}], [{"b": 2}]]


def test_a_process_that_begins_listens_and_waits_for_nobody_longer_than_five_seconds(clock: Time):
    first = Process(0)
    assert first.__enter__() is first
    assert ([wire.timeout for wire in first.wires.values()], first.thread.started) == ([5.0, 5.0], 1)
    assert Heartbeats(1, NAMES, {}, patience=60.0)._thread.daemon, "one that is interrupted does not wait for it"


FAILED = {"failed": "worker 1 (b) of 3 has failed: the corpus is empty", "status": USER_ERROR_STATUS}


@pytest.mark.parametrize(
    ("index", "error", "said", "waits"),
    [
        (0, None, {"ends": True}, True),
        (1, None, {"ends": True}, True),
        (1, SystemExit(0), {"ends": True}, True),
        (1, UserError("the corpus is empty\nname another"), FAILED, False),
        (0, UserError("the corpus is empty"), FAILED | {"failed": "worker 0 (a) of 3 has failed: the corpus is empty"}, True),
        (1, ValueError(), {"failed": "worker 1 (b) of 3 has failed: ValueError", "status": HUNG}, False),
        (1, KeyboardInterrupt(), {"failed": "worker 1 (b) of 3 has failed: KeyboardInterrupt", "status": HUNG}, False),
    ],
)
def test_a_process_that_ends_says_so_and_waits_where_the_others_would_be_aborted(
    index: int, error: BaseException | None, said: dict[str, Any], waits: bool, clock: Time, exits: list[Any]
):
    process = Process(index)
    process.__exit__(type(error) if error else None, error, None)
    assert process.said == [[said]] * len(process.wires)
    assert process._ended
    assert exits == [process._part] * waits
    process._part()
    assert process.thread.joined == [None]


@pytest.mark.parametrize("error", [OutOfMemory("no room"), CorruptedCorpus("a bit is wrong")])
@pytest.mark.parametrize(("index", "joined"), [(0, [15.0]), (1, [])])
def test_a_shortage_or_a_corrupted_corpus_ends_a_process_at_once_with_its_words(
    error: Exception, index: int, joined: list[float], clock: Time, exits: list[Any], stderr: Stream
):
    process = Process(index)
    with pytest.raises(SystemExit) as ended:
        process.__exit__(type(error), error, None)
    assert ended.value.code == USER_ERROR_STATUS
    failed = {"failed": f"{NAMES[index]} of 3 has failed: {error}", "status": USER_ERROR_STATUS}
    assert process.said == [[failed]] * len(process.wires)
    assert (process.thread.joined, exits) == (joined, [])
    assert stderr.seen == f"error: {error}\n"


@pytest.mark.parametrize("named", [True, False])
def test_a_failed_collective_waits_for_the_name_of_the_culprit(named: bool, clock: Time, exits: list[Any], stderr: Stream):
    process = Process(1)
    if named:
        process.thread.while_joined = lambda: process._lost("worker 2 (c) of 3 has ended", 0)
    with pytest.raises(SystemExit) as ended:
        process.end_after(jax.errors.JaxRuntimeError("Gloo failed\nat x.cc"))
    assert ended.value.code == HUNG
    assert process.thread.joined == ([7.0, 20.0] if named else [7.0])
    lost = "worker 1 (b) of 3 lost the other processes: Gloo failed"
    assert process.said == [[{"lost": lost}]]
    remedy = "the same command on all of them continues from the last checkpoint"
    assert stderr.seen == f"{lost}\nlook for the process that ended first and why; {remedy}\n"


def test_an_error_that_is_not_of_the_devices_ends_no_process_at_once(clock: Time, exits: list[Any]):
    process = Process(1)
    process.__exit__(RuntimeError, RuntimeError("no device"), None)
    assert process.thread.joined == []


def test_what_comes_is_read_line_by_line_whatever_its_parts(clock: Time, monkeypatch: pytest.MonkeyPatch):
    first = Process(0)
    understood: list[Any] = []
    monkeypatch.setattr(first, "_understand", lambda other, message: understood.append((other, message)))
    first.wires[2].incoming = [b'{"a"', b': 1}\nnonsense\n{"b": ', b"2}\n{}\n"]
    for beat in range(1, 4):
        clock.now += 1
        assert first._listen(2) is True
        assert first._heard == {1: 1000.0, 2: 1000.0 + beat}
    assert understood == [(2, {"a": 1}), (2, {"b": 2}), (2, {})]


@pytest.mark.parametrize("broken", [True, False])
def test_a_connection_that_closes_without_a_farewell_is_a_process_that_was_killed(broken: bool, clock: Time):
    first = Process(0)
    first.wires[2].broken = broken
    first._leaving.add(1)
    assert first._listen(1) is False
    assert (first._closed, first._ending) == ({1}, None)
    assert first._listen(2) is False
    assert (first._closed, first._leaving) == ({1, 2}, {1, 2})
    assert first._ending is not None
    text = "worker 2 (c) of 3 has ended without a word, as after a kill or a crash"
    assert (first._ending.words, first._ending.status) == (f"{text}\n{REMEDY}", HUNG)
    assert (first._ending.earliest, first._ending.latest) == (1000.0, 1005.0)


@pytest.mark.parametrize("index", [0, 1])
def test_the_first_process_passes_on_what_it_hears_and_the_first_news_counts(index: int, clock: Time):
    process = Process(index)
    sender = 2 if index == 0 else 0
    clock.now += 5
    process._understand(sender, {"failed": "worker 2 (c) of 3 has failed", "status": USER_ERROR_STATUS})
    passed = {"failed": "worker 2 (c) of 3 has failed", "status": USER_ERROR_STATUS}
    assert process.said == ([[passed], []] if index == 0 else [[]])
    assert process._leaving == {sender}
    ending = process._ending
    assert ending is not None
    assert (ending.words, ending.status) == ("error: worker 2 (c) of 3 has failed", USER_ERROR_STATUS)
    assert (ending.earliest, ending.latest) == (1015.0, 1020.0)
    process._understand(sender, {"lost": "worker 1 (b) of 3 has ended"})
    process._understand(sender, {"failed": "another", "status": HUNG})
    assert process._ending is ending
    again = Process(index)
    again._understand(sender, {"lost": "worker 2 hangs"})
    assert again.said == ([[{"lost": "worker 2 hangs"}], []] if index == 0 else [[]])
    assert again._ending == heartbeats._Ending(f"worker 2 hangs\n{REMEDY}", HUNG, 1005.0, 1010.0)
    assert again._leaving == set()
    last = Process(index)
    last._understand(sender, {"failed": "it hangs", "status": HUNG})
    assert last._ending == heartbeats._Ending(f"it hangs\n{REMEDY}", HUNG, 1015.0, 1020.0)


def test_a_farewell_and_the_silent_ones_are_noted(clock: Time):
    second = Process(1)
    second._understand(0, {"silent": "worker 2 (c) of 3 has given no sign of life for 9 s"})
    assert second.silent() == "worker 2 (c) of 3 has given no sign of life for 9 s"
    second._understand(0, {"silent": "worker 1 (b) of 3 has given no sign of life for 9 s"})
    assert second.silent() == "", "that is this one, which lives"
    for unknown in ({"ends": False}, {"silent": 3}, [], "words"):
        second._understand(0, unknown)  # type: ignore[arg-type]
    assert second._leaving == set()
    second._understand(0, {"ends": True})
    assert (second._leaving, second._ending, second.said) == ({0}, None, [[]])
    assert not second._over(clock.now), "it has not come to its own end"


def test_a_process_that_is_silent_beyond_the_patience_is_lost_and_named_once(clock: Time):
    first = Process(0)
    clock.now += 60
    first._look_for_silence()
    assert first._ending is None
    first._heard[1] = clock.now
    clock.now += 0.4
    first._look_for_silence()
    text = "worker 2 (c) of 3 has given no sign of life for 60 s: it was stopped, or its network is cut"
    assert first.said == [[{"lost": text}], []]
    assert (first._leaving, first._ending) == ({2}, heartbeats._Ending(f"{text}\n{REMEDY}", HUNG, 1060.4, 1065.4))
    clock.now += 0.1
    first._look_for_silence()
    assert first.said == [[{"lost": text}], []]


@pytest.mark.parametrize(
    ("index", "ended", "leaving", "closed", "quiet", "over"),
    [
        (0, False, (), (1, 2), 0.0, True),  # nobody is there
        (0, True, (1, 2), (), 59.0, False),
        (0, True, (1, 2), (), 60.0, True),
        (0, True, (1,), (1,), 99.0, False),
        (0, False, (1, 2), (1,), 99.0, False),
        (1, True, (0,), (), 0.0, True),
        (1, True, (), (), 99.0, False),
        (1, False, (0,), (), 99.0, False),
    ],
)
def test_the_first_process_waits_for_the_exit_of_all_and_the_others_for_its_farewell(
    index: int, ended: bool, leaving: tuple[int, ...], closed: tuple[int, ...], quiet: float, over: bool, clock: Time
):
    process = Process(index)
    process._ended = ended
    process._leaving.update(leaving)
    process._closed.update(closed)
    assert process._over(clock.now - quiet) is over


@pytest.mark.parametrize(
    ("index", "closed", "now", "time"),
    [
        (1, (), 9.9, False),
        (1, (), 10.0, True),
        (0, (), 10.0, False),
        (0, (1, 2), 10.0, True),
        (0, (1, 2), 9.9, False),
        (0, (1,), 14.9, False),
        (0, (1,), 15.0, True),
    ],
)
def test_a_process_ends_at_the_earliest_time_but_the_first_one_after_the_others(
    index: int, closed: tuple[int, ...], now: float, time: bool, clock: Time
):
    process = Process(index)
    process._closed.update(closed)
    clock.now = now
    assert process._is_time(heartbeats._Ending("words", HUNG, 10.0, 15.0)) is time
