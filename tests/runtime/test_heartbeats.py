from __future__ import annotations

import contextlib
import dataclasses
import queue
import socket
import time
from collections.abc import Iterator
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
    """The heartbeats of three processes in one; a process that leaves puts its number and its exit status into `left`."""

    members: list[Heartbeats]
    sockets: dict[int, list[socket.socket]]
    left: queue.Queue[tuple[int, int]]

    def ends(self, count: int) -> dict[int, int]:
        """The exit status of the next `count` processes that leave."""
        return dict(self.left.get(timeout=30) for _ in range(count))

    def die(self, index: int) -> None:
        """Closes the connections of a process as the kernel does after SIGKILL."""
        for connection in self.sockets[index]:
            connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def group(patience: float = 60.0, beating: tuple[int, ...] = (0, 1, 2)) -> Iterator[Group]:
    pairs = {other: socket.socketpair() for other in (1, 2)}
    sockets = {0: [pair[0] for pair in pairs.values()], **{other: [pair[1]] for other, pair in pairs.items()}}
    connections = [{other: pair[0] for other, pair in pairs.items()}, {0: pairs[1][1]}, {0: pairs[2][1]}]
    left: queue.Queue[tuple[int, int]] = queue.Queue()
    members = [
        Heartbeats(i, NAMES, connections[i], patience=patience, beat=0.05, leave=lambda status, i=i: left.put((i, status)))
        for i in range(3)
    ]
    for index in beating:
        members[index].__enter__()
    try:
        yield Group(members, sockets, left)
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


def test_a_silent_process_is_named_in_all_others_which_end(capfd: pytest.CaptureFixture[str]):
    with group(patience=0.5, beating=(0, 1)) as three:
        assert three.ends(2) == {0: HUNG, 1: HUNG}
        assert capfd.readouterr().err.count("worker 2 (c) of 3 has given no sign of life for ") == 2


def test_processes_that_say_that_they_end_disturb_nobody(capfd: pytest.CaptureFixture[str]):
    with group() as three:
        for member in (three.members[2], three.members[0], three.members[1]):
            member.__exit__(None, None, None)
        for member in three.members:
            member._thread.join(30)
            assert not member._thread.is_alive()
    assert three.left.empty()
    assert capfd.readouterr().err == ""


def test_a_mistake_that_one_process_finds_ends_the_others_with_its_words(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(heartbeats, "GRACE", 0.05)
    with group() as three:
        error = UserError("the bucket is gone; make it again")
        three.members[1].__exit__(UserError, error, None)
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
        assert three.ends(2) == {0: status, 1: status}
    said = capfd.readouterr().err
    assert says in said
    assert said.count(str(error).splitlines()[0]) == 3
