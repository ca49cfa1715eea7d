from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from bert_jax.errors import UserError
from bert_jax.storage import objects
from bert_jax.storage.lock import locked_in_bucket
from tests.clock import Clock
from tests.storage.emulator import LOST_ANSWER, Emulator

DEAD = (1 << 22) + 5
"""A process number beyond the largest one."""


def elsewhere(text: str) -> bytes:
    """Returns a lock's text as written by a process on another machine."""
    return f"process 7 on other, since then\nanother machine\n7\n{text}\n".encode()


def text_of(bucket: str) -> str:
    """Returns the text of the lock, or "" if there is none."""
    there = objects.read(f"{bucket}/.lock")
    return there.data.decode() if there else ""


def test_a_held_lock_refuses_another_start_and_names_the_holder(bucket: str):
    place = objects.as_path(bucket)
    with locked_in_bucket(place, ".lock", beat=0.3):
        with (
            pytest.raises(UserError, match=rf"--workdir={bucket} is in use by process \d+ on .*; wait until this process"),
            locked_in_bucket(place, ".lock", beat=0.3),
        ):
            pass
        time.sleep(0.4)
        assert text_of(bucket)
    assert text_of(bucket) == ""
    with locked_in_bucket(place, ".lock"):
        pass


@pytest.mark.parametrize(("age", "left"), [(-30, 60), (45, 15), (58, 2), (61, 0), (500, 0)])
def test_the_lock_of_a_dead_process_elsewhere_is_taken_over_after_a_minute(
    age: int, left: int, bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """By the clock of the storage. The age of a lock has whole seconds."""
    objects.write(f"{bucket}/.lock", elsewhere("dead"))
    with emulator.answering(older=age):
        clock = Clock(monkeypatch)
        with locked_in_bucket(objects.as_path(bucket), ".lock"):
            assert clock.passed == pytest.approx(left, abs=1.01)
    waits = re.findall(r"locked by process 7 on other, since then; waiting for (\d+) s to see whether", caplog.text)
    assert [int(wait) for wait in waits] == ([pytest.approx(left, abs=1.01)] if left else [])
    assert f"the lock of {bucket} belonged to a dead process: process 7 on other" in caplog.text


@pytest.fixture
def is_taken_at_once(
    bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[[str, str], bool]]:
    """Returns whether a lock is taken over without waiting, if its text has this machine and this process number."""
    with locked_in_bucket(objects.as_path(bucket), ".lock"):
        machine = text_of(bucket).split("\n")[1]

    def check(machine_in_text: str, process: str) -> bool:
        there = machine if machine_in_text == "this" else machine_in_text
        objects.write(f"{bucket}/.lock", f"process {process} on some machine\n{there}\n{process}\nx\n".encode())
        with monkeypatch.context() as patch:
            clock = Clock(patch)
            with locked_in_bucket(objects.as_path(bucket), ".lock"):
                assert text_of(bucket).startswith(f"process {os.getpid()} on ")
                assert ("waiting for" in caplog.text) == (clock.passed > 0)
                caplog.clear()
                return clock.passed == 0

    with emulator.answering(older=57.0):
        yield check


def test_the_lock_of_a_dead_process_of_this_machine_is_taken_over_at_once(is_taken_at_once: Callable[[str, str], bool]):
    assert is_taken_at_once("this", f"{DEAD}")
    assert not is_taken_at_once("another machine", f"{DEAD}")
    for alive in (str(os.getpid()), "1", str(1 << 40), "-12", "0", "", "one"):
        assert not is_taken_at_once("this", alive), alive


@pytest.mark.parametrize(("error", "is_dead"), [(ProcessLookupError, True), (PermissionError, False)])
def test_a_process_of_another_user_is_not_dead(
    error: type[Exception], is_dead: bool, is_taken_at_once: Callable[[str, str], bool], monkeypatch: pytest.MonkeyPatch
):
    """Process 1 is the first one of a container."""

    def kill(number: int, what: int) -> None:
        assert (number, what) == (1, 0)
        raise error

    monkeypatch.setattr(os, "kill", kill)
    assert is_taken_at_once("this", "1") is is_dead


def test_without_a_name_of_this_machine_no_process_is_dead(
    is_taken_at_once: Callable[[str, str], bool], monkeypatch: pytest.MonkeyPatch
):
    def unknown(path: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "readlink", unknown)
    assert not is_taken_at_once("", f"{DEAD}")


def test_only_one_of_two_processes_gets_a_stale_lock(bucket: str, emulator: Emulator):
    objects.write(f"{bucket}/.lock", elsewhere("dead"))
    told: list[str] = []

    def start() -> None:
        with pytest.raises(UserError) as error, locked_in_bucket(objects.as_path(bucket), ".lock", beat=0.05):
            pass
        told.append(str(error.value))

    emulator.at(r"^POST .*ifGenerationMatch=[1-9]", lambda: objects.write(f"{bucket}/.lock", elsewhere("the winner")), start)
    assert "is in use by process 7" in told[0]
    assert text_of(bucket).encode() == elsewhere("the winner")


def test_the_loser_of_a_race_for_a_stale_lock_gets_it_after_the_winner(bucket: str, emulator: Emulator):
    objects.write(f"{bucket}/.lock", elsewhere("dead"))
    held: list[str] = []

    def start() -> None:
        with locked_in_bucket(objects.as_path(bucket), ".lock", beat=0.05):
            held.append(text_of(bucket))

    def lose() -> None:
        objects.write(f"{bucket}/.lock", elsewhere("the winner"))
        objects.remove(f"{bucket}/.lock")

    emulator.at(r"^POST .*ifGenerationMatch=[1-9]", lose, start)
    assert held[0].startswith(f"process {os.getpid()} on ")
    assert text_of(bucket) == ""


@pytest.mark.parametrize("holder", ["process 7 on other, since then", "nobody"])
def test_a_process_whose_lock_was_taken_over_or_removed_ends(bucket: str, capsys: pytest.CaptureFixture[str], holder: str):
    left: list[int] = []
    with locked_in_bucket(objects.as_path(bucket), ".lock", beat=0.1, leave=left.append):
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "lock")
        assert thread.daemon
        if holder == "nobody":
            objects.remove(f"{bucket}/.lock")
        else:
            objects.write(f"{bucket}/.lock", elsewhere("another"))
        deadline = time.monotonic() + 10
        while not left and time.monotonic() < deadline:
            time.sleep(0.02)
    assert not thread.is_alive()
    assert left[0] == 2
    assert f"the lock of {bucket} is now held by {holder}, because this process was stopped" in capsys.readouterr().err
    assert text_of(bucket) == ("" if holder == "nobody" else elsewhere("another").decode())


def test_a_lock_whose_answer_was_lost_is_recognised_as_ours(
    bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("gcsfs.retry.min", lambda *_: 0.05, raising=False)  # seconds before the next try
    left: list[int] = []
    emulator.fail(LOST_ANSWER, count=1)
    with locked_in_bucket(objects.as_path(bucket), ".lock", beat=0.1, leave=left.append):
        emulator.fail(LOST_ANSWER, count=1, match="POST")
        time.sleep(0.5)
        assert text_of(bucket).startswith(f"process {os.getpid()} on ")
    assert left == []
    assert caplog.text == "", "no other process was waited for"
    assert text_of(bucket) == ""


def test_a_lost_connection_does_not_end_the_holder(bucket: str, emulator: Emulator):
    left: list[int] = []
    with locked_in_bucket(objects.as_path(bucket), ".lock", beat=0.1, leave=left.append):
        before = objects.read(f"{bucket}/.lock")
        emulator.fail(403, count=3, match="POST")
        assert before is not None
        deadline = time.monotonic() + 60
        while (after := objects.read(f"{bucket}/.lock")) is not None and after.generation == before.generation:
            assert time.monotonic() < deadline, "renewed as soon as possible"
            time.sleep(0.02)
        assert after is not None
        assert after.data == before.data
    assert left == []
