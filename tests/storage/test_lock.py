from __future__ import annotations

import os
import re
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
    """A lock's text as of a process of another machine."""
    return f"process 7 on other, since then\nanother machine\n7\n{text}\n".encode()


def test_a_held_lock_refuses_another_start_and_names_the_holder(bucket: str):
    place = objects.place(bucket)
    with locked_in_bucket(place, ".lock"):
        with pytest.raises(UserError, match=rf"--workdir={bucket} is in use by process \d+ on .*; wait for it, stop it"), (
            locked_in_bucket(place, ".lock")
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
    with locked_in_bucket(objects.place(bucket), ".lock"):
        assert time.monotonic() - began > 0.9
    assert re.search(r"locked by process 7 on other, since then; watching for \d s whether it lives", caplog.text)
    assert f"the lock of {bucket} was of a process that is dead: process 7 on other" in caplog.text


def test_the_age_of_a_lock_by_the_clock_of_the_storage_counts(bucket: str, caplog: pytest.LogCaptureFixture):
    objects.write(f"{bucket}/.lock", elsewhere("dead"))
    time.sleep(3.1)  # the storage tells whole seconds
    with locked_in_bucket(objects.place(bucket), ".lock"):
        assert "watching for" not in caplog.text


def test_the_lock_of_a_dead_process_of_this_machine_is_taken_over_at_once(bucket: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock, "STALE", 1e9)
    dead = (1 << 22) + 5  # beyond the largest number of a process
    objects.write(f"{bucket}/.lock", f"process {dead} on here\n{lock._machine()}\n{dead}\nx\n".encode())
    with locked_in_bucket(objects.place(bucket), ".lock"):
        assert (held := objects.read(f"{bucket}/.lock")) is not None
        assert held.data.startswith(f"process {os.getpid()} on ".encode())


def test_of_two_that_take_a_stale_lock_over_only_one_gets_it(bucket: str, monkeypatch: pytest.MonkeyPatch):
    objects.write(f"{bucket}/.lock", elsewhere("dead"))
    write = objects.write

    def late(path: str, data: bytes, generation: str | None = None) -> str:
        if generation != "0" and b"another" not in data:  # between our look and our write, another start takes it over
            monkeypatch.setattr(lock, "write", write)
            write(path, elsewhere("another"), generation)
        return write(path, data, generation)

    monkeypatch.setattr(lock, "write", late)
    with pytest.raises(UserError, match="is in use by process 7"), locked_in_bucket(objects.place(bucket), ".lock"):
        pass


def test_a_process_whose_lock_was_taken_over_ends(bucket: str, capsys: pytest.CaptureFixture[str]):
    left: list[int] = []
    with locked_in_bucket(objects.place(bucket), ".lock", leave=left.append):
        objects.write(f"{bucket}/.lock", elsewhere("another"))
        deadline = time.monotonic() + 10
        while not left and time.monotonic() < deadline:
            time.sleep(0.02)
    assert left[0] == 2
    assert f"the lock of {bucket} is held by process 7 on other, since then" in capsys.readouterr().err
    assert (found := objects.read(f"{bucket}/.lock")) is not None
    assert found.data == elsewhere("another")


def test_a_write_whose_answer_was_lost_is_ours(bucket: str, monkeypatch: pytest.MonkeyPatch):
    write = objects.write

    def twice(path: str, data: bytes, generation: str | None = None) -> str:
        write(path, data, generation)
        return write(path, data, generation)  # as gcsfs does after a lost answer

    monkeypatch.setattr(lock, "write", twice)
    left: list[int] = []
    with locked_in_bucket(objects.place(bucket), ".lock", leave=left.append):
        time.sleep(0.5)
        assert (held := objects.read(f"{bucket}/.lock")) is not None
        assert held.data.startswith(f"process {os.getpid()} on ".encode())
    assert left == []


def test_a_lost_connection_does_not_end_the_holder(bucket: str, emulator: Emulator):
    left: list[int] = []
    with locked_in_bucket(objects.place(bucket), ".lock", leave=left.append):
        before = objects.read(f"{bucket}/.lock")
        emulator.fail(403, count=3)
        time.sleep(0.5)
        after = objects.read(f"{bucket}/.lock")
        assert before is not None
        assert after is not None
        assert (after.data, after.generation != before.generation) == (before.data, True)  # renewed once it could be
    assert left == []
