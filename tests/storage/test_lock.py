from __future__ import annotations

import os
import re
import threading
import time

import pytest

from bert_jax.errors import UserError
from bert_jax.storage import lock, objects
from bert_jax.storage.lock import locked_in_bucket
from tests.storage.emulator import Emulator


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("BEAT", 0.1), ("STALE", 2.0), ("_LOOK", 0.05)):
        monkeypatch.setattr(lock, name, seconds)


def elsewhere(text: str) -> bytes:
    """Returns a lock's text as written by a process on another machine."""
    return f"process 7 on other, since then\nanother machine\n7\n{text}\n".encode()


def test_a_held_lock_refuses_another_start_and_names_the_holder(bucket: str):
    place = objects.as_path(bucket)
    with locked_in_bucket(place, ".lock"):
        with (
            pytest.raises(UserError, match=rf"--workdir={bucket} is in use by process \d+ on .*; wait until this process"),
            locked_in_bucket(place, ".lock"),
        ):
            pass
        time.sleep(0.3)
        assert objects.read(f"{bucket}/.lock") is not None
    assert objects.read(f"{bucket}/.lock") is None
    with locked_in_bucket(place, ".lock"):
        pass


def test_the_lock_of_a_dead_process_elsewhere_is_taken_over_once_it_is_stale(bucket: str, caplog: pytest.LogCaptureFixture):
    objects.write(f"{bucket}/.lock", elsewhere("dead"))
    began = time.monotonic()
    with locked_in_bucket(objects.as_path(bucket), ".lock"):
        assert time.monotonic() - began > 0.9
    assert re.search(r"locked by process 7 on other, since then; waiting for \d s to see whether", caplog.text)
    assert f"the lock of {bucket} belonged to a dead process: process 7 on other" in caplog.text


def test_the_lock_of_a_dead_local_process_is_taken_over_immediately(bucket: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock, "STALE", 1e9)
    dead = (1 << 22) + 5  # beyond the largest process number
    objects.write(f"{bucket}/.lock", f"process {dead} on here\n{lock._machine()}\n{dead}\nx\n".encode())
    with locked_in_bucket(objects.as_path(bucket), ".lock"):
        assert (held := objects.read(f"{bucket}/.lock")) is not None
        assert held.data.startswith(f"process {os.getpid()} on ".encode())


def test_only_one_of_two_processes_gets_a_stale_lock(bucket: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock, "STALE", 0.2)
    objects.write(f"{bucket}/.lock", elsewhere("dead"))
    write = objects.write

    def late(path: str, data: bytes, generation: str | None = None) -> str:
        if generation != "0" and b"another" not in data:  # between our read and our write, another start takes it over
            monkeypatch.setattr(lock, "write", write)
            write(path, elsewhere("another"), generation)
        return write(path, data, generation)

    monkeypatch.setattr(lock, "write", late)
    with pytest.raises(UserError, match="is in use by process 7"), locked_in_bucket(objects.as_path(bucket), ".lock"):
        pass


def test_the_loser_of_a_race_for_a_stale_lock_gets_it_after_the_winner(
    bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lock, "STALE", 0.2)
    objects.write(f"{bucket}/.lock", elsewhere("dead"))
    held: list[str] = []

    def start() -> None:
        with locked_in_bucket(objects.as_path(bucket), ".lock"):
            found = objects.read(f"{bucket}/.lock")
            held.append(found.data.decode() if found else "nobody")

    def lose() -> None:
        objects.write(f"{bucket}/.lock", elsewhere("the winner"))
        objects.remove(f"{bucket}/.lock")

    emulator.at(r"^POST .*ifGenerationMatch=[1-9]", lose, start)
    assert held[0].startswith(f"process {os.getpid()} on ")
    assert objects.read(f"{bucket}/.lock") is None


@pytest.mark.parametrize("holder", ["process 7 on other, since then", "nobody"])
def test_a_process_whose_lock_was_taken_over_or_removed_ends(bucket: str, capsys: pytest.CaptureFixture[str], holder: str):
    left: list[int] = []
    with locked_in_bucket(objects.as_path(bucket), ".lock", leave=left.append):
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
    found = objects.read(f"{bucket}/.lock")
    assert (found and found.data) == (None if holder == "nobody" else elsewhere("another"))


@pytest.mark.parametrize("signalled", [None, ProcessLookupError, PermissionError, OverflowError])
def test_a_local_process_is_dead_if_its_pid_does_not_exist(signalled: type[Exception] | None, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, int]] = []

    def kill(number: int, what: int) -> None:
        asked.append((number, what))
        if signalled:
            raise signalled

    monkeypatch.setattr(lock.os, "kill", kill)
    machine = lock._machine()
    assert machine
    for number in (12, 1):  # 1: the first process of a container
        assert lock._is_dead(f"process\n{machine}\n{number}\nx\n") is (signalled is ProcessLookupError)
    assert asked == [(12, 0), (1, 0)]
    for other in (
        "",
        "process",
        f"process\n{machine}\n",
        f"process\n{machine}\n-12\n",
        f"process\n{machine}\n0\n",
        "process\nanother\n12\n",
        "process\n\n12\n",
    ):
        assert not lock._is_dead(other)
    monkeypatch.setattr(lock, "_machine", lambda: "")
    assert not lock._is_dead("process\n\n12\n")
    assert len(asked) == 2


@pytest.mark.parametrize(("age", "looks", "left"), [(-30.0, 17, "1"), (0.5, 9, "0"), (1.0, 1, ""), (5.0, 1, "")])
def test_a_lock_becomes_stale_by_the_clock_of_the_storage(
    age: float, looks: int, left: str, bucket: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The clock of this machine stands still except for the pauses; a lock from the future counts as one from now."""
    clock, sleep, looked = [0.0], time.sleep, []

    def pause(seconds: float) -> None:
        clock[0] += seconds if seconds == 0.0625 else 0.0
        sleep(0.001)

    def write(path: str, data: bytes, generation: str) -> str:
        if generation == "0":
            raise FileExistsError
        return "6"

    monkeypatch.setattr(lock, "STALE", 1.0)
    monkeypatch.setattr(lock, "_LOOK", 0.0625)
    monkeypatch.setattr(lock.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(lock.time, "sleep", pause)
    monkeypatch.setattr(lock, "read", lambda path: looked.append(clock[0]) or objects.Content(elsewhere("dead"), "5", age))
    monkeypatch.setattr(lock, "remove", lambda *_: None)
    monkeypatch.setattr(lock, "write", write)
    with locked_in_bucket(objects.as_path(bucket), ".lock"):
        pass
    assert looked == [0.0625 * k for k in range(looks)]
    assert re.findall(r"waiting for (\d) s", caplog.text) == [left] * bool(left)


def test_a_lock_whose_answer_was_lost_is_recognised_as_ours(bucket: str, monkeypatch: pytest.MonkeyPatch):
    write = objects.write

    def twice(path: str, data: bytes, generation: str | None = None) -> str:
        write(path, data, generation)
        return write(path, data, generation)  # like gcsfs after a lost answer

    monkeypatch.setattr(lock, "write", twice)
    left: list[int] = []
    with locked_in_bucket(objects.as_path(bucket), ".lock", leave=left.append):
        time.sleep(0.5)
        assert (held := objects.read(f"{bucket}/.lock")) is not None
        assert held.data.startswith(f"process {os.getpid()} on ".encode())
    assert left == []


def test_a_lost_connection_does_not_end_the_holder(bucket: str, emulator: Emulator):
    left: list[int] = []
    with locked_in_bucket(objects.as_path(bucket), ".lock", leave=left.append):
        before = objects.read(f"{bucket}/.lock")
        emulator.fail(403, count=3)
        time.sleep(0.5)
        after = objects.read(f"{bucket}/.lock")
        assert before is not None
        assert after is not None
        assert (after.data, after.generation != before.generation) == (before.data, True)  # renewed as soon as possible
    assert left == []
