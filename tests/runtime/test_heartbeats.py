from __future__ import annotations

import contextlib
import dataclasses
import functools
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import jax
import pytest

from bert_jax.errors import USER_ERROR_STATUS, UserError
from bert_jax.interface.exit_statuses import HUNG
from bert_jax.runtime import heartbeats
from bert_jax.runtime.heartbeats import Heartbeats
from bert_jax.sharding.out_of_memory import OutOfMemory

NAMES = ("worker 0 (a)", "worker 1 (b)", "worker 2 (c)")


@dataclasses.dataclass
class Group:
    """The heartbeats of three processes in one; a process that leaves puts its number and its exit status into `left`, and its
    connections close. `exits` has what each calls before it exits regularly."""

    members: list[Heartbeats]
    sockets: dict[int, list[socket.socket]]
    left: queue.Queue[tuple[int, int]]
    exits: list[list[Callable[[], None]]] = dataclasses.field(default_factory=lambda: [[], [], []])

    def ends(self, count: int) -> dict[int, int]:
        """The exit status of the next `count` processes that leave."""
        return dict(self.left.get(timeout=30) for _ in range(count))

    def die(self, index: int) -> None:
        """Closes the connections of a process as the kernel does after SIGKILL."""
        for connection in self.sockets[index]:
            with contextlib.suppress(OSError):  # the other end is closed already
                connection.shutdown(socket.SHUT_RDWR)

    def leave(self, index: int, status: int) -> None:
        self.left.put((index, status))
        self.die(index)

    def exit(self, index: int, error: BaseException | None = None) -> threading.Thread:
        """Ends a process as the interpreter does, in a thread of its own."""

        def run() -> None:
            self.members[index].__exit__(type(error) if error else None, error, None)
            for part in self.exits[index]:
                part()
            self.die(index)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


@contextlib.contextmanager
def group(patience: float = 60.0, beating: tuple[int, ...] = (0, 1, 2)) -> Iterator[Group]:
    pairs = {other: socket.socketpair() for other in (1, 2)}
    sockets = {0: [pair[0] for pair in pairs.values()], **{other: [pair[1]] for other, pair in pairs.items()}}
    connections = [{other: pair[0] for other, pair in pairs.items()}, {0: pairs[1][1]}, {0: pairs[2][1]}]
    left: queue.Queue[tuple[int, int]] = queue.Queue()
    three = Group([], sockets, left)
    members = three.members
    for i in range(3):
        leave = functools.partial(three.leave, i)
        members.append(Heartbeats(i, NAMES, connections[i], patience=patience, beat=0.05, leave=leave))
    for index in beating:
        members[index].__enter__()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(heartbeats.atexit, "register", lambda part: three.exits[members.index(part.__self__)].append(part))
            yield three
    finally:
        for pair in pairs.values():
            for connection in pair:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for index in beating:
            members[index]._thread.join(30)
        for pair in pairs.values():
            for connection in pair:
                connection.close()


def test_a_killed_process_is_named_in_all_others_which_end(capfd: pytest.CaptureFixture[str]):
    with group(beating=(0, 1)) as three:
        three.die(2)
        assert three.ends(2) == {0: HUNG, 1: HUNG}
        assert capfd.readouterr().err.count("worker 2 (c) of 3 has ended without a word, as after a kill or a crash\n") == 2


def test_a_silent_process_is_named_in_all_others_which_end(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setattr(heartbeats, "FAREWELL", 0.5)
    with group(patience=0.5, beating=(0, 1)) as three:
        assert list(three.ends(2).items()) == [(1, HUNG), (0, HUNG)]  # process 0 last, also with another one silent
        assert capfd.readouterr().err.count("worker 2 (c) of 3 has given no sign of life for ") == 2


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 1, 2), (1, 2, 0)])
def test_processes_that_say_that_they_end_disturb_nobody(order: tuple[int, ...], capfd: pytest.CaptureFixture[str]):
    with group() as three:
        threads = {index: three.exit(index) for index in order}
        for index in order:
            threads[index].join(30)
            assert not threads[index].is_alive()
            assert not three.members[index]._thread.is_alive()
    assert three.left.empty()
    assert capfd.readouterr().err == ""


def test_the_first_process_exits_last_and_no_other_before_the_first_one_has_reached_its_end():
    """The service of JAX in it would abort them."""
    with group() as three:
        early = three.exit(2)
        early.join(0.3)
        assert early.is_alive()  # process 0 is still at work, and may fail
        first = three.exit(0)
        early.join(30)
        assert not early.is_alive()
        first.join(0.3)
        assert first.is_alive()  # process 1 is still at work
        three.exit(1).join(30)
        first.join(30)
        assert not first.is_alive()
    assert three.left.empty()


def test_a_process_that_works_on_after_the_end_of_the_first_one_gives_signs_of_life():
    with group(patience=0.4) as three:
        first, second = three.exit(0), three.exit(1)
        first.join(1.0)
        assert first.is_alive()
        assert three.left.empty()
        three.exit(2)
        for thread in (first, second):
            thread.join(30)
            assert not thread.is_alive()
    assert three.left.empty()


def test_the_first_process_waits_no_longer_than_a_minute_for_one_that_does_not_exit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heartbeats, "PARTING", 0.3)
    with group() as three:
        first = three.exit(0)
        for index in (1, 2):
            three.members[index].__exit__(None, None, None)
        first.join(30)
        assert not first.is_alive()
    assert three.left.empty()


def test_a_failure_of_the_first_process_ends_it_after_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(heartbeats, "GRACE", 0.3)
    with group() as three:
        first = three.exit(0, UserError("the corpus is empty; name another"))
        first.join(0.1)
        assert first.is_alive()
        assert three.ends(2) == {1: USER_ERROR_STATUS, 2: USER_ERROR_STATUS}
        first.join(30)
        assert not first.is_alive()
    assert three.left.empty()
    assert capfd.readouterr().err.count("error: worker 0 (a) of 3 has failed: the corpus is empty; name another\n") == 2


def test_where_all_fail_alike_the_first_process_exits_as_soon_as_the_others_have(capfd: pytest.CaptureFixture[str]):
    """It waited `GRACE` seconds more, and said of another one what it had said itself."""
    error = UserError("the corpus is empty; name another")
    with group(beating=(0,)) as three:
        first = three.exit(0, error)
        for index in (1, 2):
            first.join(0.1)
            assert first.is_alive()
            three.exit(index, error)
        first.join(30)
        assert not first.is_alive()
    assert three.left.empty()
    assert capfd.readouterr().err == ""


def test_a_process_that_is_interrupted_does_not_wait_and_ends_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(heartbeats, "GRACE", 0.05)
    with group() as three:
        interrupted = three.exit(1, KeyboardInterrupt())
        interrupted.join(30)
        assert not interrupted.is_alive()
        assert three.ends(2) == {0: HUNG, 2: HUNG}
    assert capfd.readouterr().err.count("worker 1 (b) of 3 has failed: KeyboardInterrupt\n") == 2


def test_a_mistake_that_one_process_finds_ends_the_others_with_its_words(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(heartbeats, "GRACE", 0.05)
    with group() as three:
        three.exit(1, UserError("the bucket is gone; make it again"))
        assert three.ends(2) == {0: USER_ERROR_STATUS, 2: USER_ERROR_STATUS}
    assert capfd.readouterr().err.count("error: worker 1 (b) of 3 has failed: the bucket is gone; make it again\n") == 2


def test_silence_is_known_everywhere_before_it_counts_as_loss():
    with group(patience=60.0, beating=(0, 1)) as three:
        deadline = time.monotonic() + 30
        while not all("worker 2 (c) of 3 has given no sign of life for" in three.members[i].silent() for i in (0, 1)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert three.left.empty()


def test_a_hang_that_one_process_reports_ends_the_others_with_its_words(capfd: pytest.CaptureFixture[str]):
    with group() as three:
        three.members[2].tell("process 2 made no progress for 15 s in evaluation", "")
        three.die(2)
        assert three.ends(2) == {0: HUNG, 1: HUNG}
    assert capfd.readouterr().err.count("process 2 made no progress for 15 s in evaluation\n") == 2


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (OutOfMemory("this run does not fit in memory"), USER_ERROR_STATUS, "error: this run does not fit in memory\n"),
        (jax.errors.JaxRuntimeError("Gloo failed\nat x.cc"), HUNG, "worker 2 (c) of 3 lost the other processes: Gloo failed\n"),
    ],
    ids=["memory", "collective"],
)
def test_an_error_of_the_devices_ends_a_process_at_once_and_the_others_with_its_words(
    error: Exception, status: int, says: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """One that ended in good order would wait for the others, which wait for it."""

    def leave(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setattr(heartbeats, "GRACE", 0.05)
    monkeypatch.setattr(heartbeats.os, "_exit", leave)
    with group() as three:
        with pytest.raises(SystemExit) as ended:
            three.members[2].__exit__(type(error), error, None)
        assert ended.value.code == status
        three.die(2)
        assert three.ends(2) == {0: status, 1: status}
    said = capfd.readouterr().err
    assert says in said
    assert said.count(str(error).splitlines()[0]) == 3
