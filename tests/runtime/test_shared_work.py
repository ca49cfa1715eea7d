"""Processes that divide a sweep among them, connected in one process."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
import time
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime.processes import Processes, ProcessesLost, RunShard
from bert_jax.runtime.workdir import PROCESSES, locked
from tests.clock import Clock
from tests.runtime.connected import Group, group


class Sharing:
    """Processes of a group that work independently; `asked` is set once each was asked to stop."""

    def __init__(self, several: Group, directory: pathlib.Path):
        self.asked = [threading.Event() for _ in several.members]
        self._contexts = [one.shard_runs(directory, self.asked[one.index].set) for one in several.members]
        self.shares = [context.__enter__() for context in self._contexts]

    def stopped(self) -> list[int]:
        """Waits 0.2 s, then returns the processes that were asked to stop."""
        time.sleep(0.2)
        return [i for i, asked in enumerate(self.asked) if asked.is_set()]


def keep_waiting() -> bool:
    return False


@pytest.mark.parametrize(("items", "count"), [(27, 4), (3, 8), (8, 1)])
def test_every_run_belongs_to_one_process(items: int, count: int):
    with group(count=count, beating=()) as several:
        shares = [RunShard(one).select(range(items)) for one in several.members]
    assert sorted(item for own in shares for item in own) == list(range(items))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_first_process_gathers_all_results_and_others_may_leave(tmp_path: pathlib.Path):
    def one(own: Processes) -> Any:
        with own.shard_runs(tmp_path, lambda: pytest.fail("asked to stop")) as shard:
            time.sleep(0.1 * own.index)  # the last one long after the first
            found = shard.gather({"score": 0.1 * own.index}, keep_waiting)
            own.__exit__(None, None, None)
            return found

    with group() as three:
        assert three.all(one) == [[{"score": 0.0}, {"score": 0.1}, {"score": 0.2}], None, None]
        assert three.left.empty()


def test_a_single_process_sends_nothing(tmp_path: pathlib.Path):
    with Processes().shard_runs(tmp_path, lambda: pytest.fail("asked to stop")) as shard:
        assert (shard.index, shard.count, shard.select([3, 4, 5])) == (0, 1, [3, 4, 5])
        assert shard.gather({"a": 5}, keep_waiting) == [{"a": 5}]
        shard.tell_stopped()
    assert list(tmp_path.iterdir()) == []


def test_independent_processes_make_no_other_agreements(tmp_path: pathlib.Path):
    with group() as three:
        Sharing(three, tmp_path)
        assert three.members[1].gather({"kernels": "of this one"}) == [{"kernels": "of this one"}]


def test_if_one_process_is_stopped_all_stop_with_the_reason(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    with group() as three:
        here = Sharing(three, tmp_path)
        here.shares[1].tell_stopped()
        assert here.asked[2].wait(20)
        assert here.shares[0].gather({"a": "mine"}, keep_waiting) is None
        assert here.stopped() == [0, 2], "the process that was stopped knows it"
    assert caplog.messages.count("another process was asked to stop, or process 0 is lost: saving, then stopping") == 2


def test_a_stop_reaches_a_process_that_starts_later(tmp_path: pathlib.Path):
    with group(count=2) as two:
        asked = threading.Event()
        with two.members[1].shard_runs(tmp_path, lambda: None) as second:
            second.tell_stopped()
            time.sleep(0.2)
        with two.members[0].shard_runs(tmp_path, asked.set) as first:
            assert asked.is_set()
            assert first.gather({}, keep_waiting) is None


def test_the_first_process_stops_waiting_on_request(tmp_path: pathlib.Path):
    with group() as three:
        here = Sharing(three, tmp_path)
        assert here.shares[0].gather({}, lambda: True) is None
        assert here.asked[1].wait(20)
        assert here.asked[2].wait(20)


@pytest.mark.parametrize("how", ["an error", "a kill", "an end before its share"])
def test_a_failed_process_is_named_and_does_not_end_others(how: str, tmp_path: pathlib.Path):
    with group() as three:
        here = Sharing(three, tmp_path)
        assert here.shares[1].gather({}, keep_waiting) is None
        if how == "a kill":
            three.die(2)
        else:
            three.exit(2, ZeroDivisionError() if how == "an error" else None).join(30)
        with pytest.raises(ProcessesLost, match=r"^process 2 of 3 failed or does not respond"):
            here.shares[0].gather({}, keep_waiting)
        assert {*here.stopped()} <= {2}
        assert three.left.empty()


def test_a_silent_process_is_named_and_a_live_one_is_waited_for(tmp_path: pathlib.Path):
    with group(patience=1.0, beating=(0, 1)) as three:
        here = Sharing(three, tmp_path)
        with pytest.raises(ProcessesLost, match=r"^process 2 of 3 failed"):
            here.shares[0].gather({}, keep_waiting)
        assert three.left.empty()


@pytest.mark.parametrize("how", ["an error", "a kill", "silence", "an end without waiting for the others"])
def test_the_others_stop_if_the_first_process_is_gone(how: str, tmp_path: pathlib.Path):
    with group(patience=0.5 if how == "silence" else 60.0, beating=(1, 2) if how == "silence" else None) as three:
        here = Sharing(three, tmp_path)
        if how == "a kill":
            three.die(0)
        elif how != "silence":
            three.exit(0, ZeroDivisionError() if how == "an error" else None)
        assert here.asked[1].wait(20)
        assert here.asked[2].wait(20)
        assert three.left.empty(), "each saves before it ends"


def test_finished_results_survive_the_first_process(tmp_path: pathlib.Path):
    with group() as three:
        here = Sharing(three, tmp_path)
        assert here.shares[1].gather({}, keep_waiting) is None
        three.die(0)
        assert here.asked[2].wait(20)
        assert here.shares[2].gather({}, keep_waiting) is None, "its results are on the disk"
        assert here.stopped() == [2]


def test_the_last_message_of_a_process_is_received(tmp_path: pathlib.Path):
    """If a process closed its connection before reading what process 0 has sent, the connection would be reset."""
    with group(beat=0.001) as three:
        here = Sharing(three, tmp_path)
        here.shares[2].tell_stopped()
        three.exit(2).join(30)
        assert here.shares[0].gather({}, keep_waiting) is None
        assert here.asked[1].wait(20)


def test_a_process_waits_two_minutes_longer_for_its_predecessor_than_for_a_silent_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / PROCESSES).mkdir()
    with group(patience=30.0, count=2, beating=()) as two, locked(tmp_path, f"{PROCESSES}/1.lock"):
        clock = Clock(monkeypatch)
        with (
            pytest.raises(UserError, match=rf"is in use by process {os.getpid()} on "),
            two.members[1].shard_runs(tmp_path, lambda: None),
        ):
            pass
    assert clock.passed == pytest.approx(150.0, abs=0.3)


def test_a_process_starts_when_its_predecessor_has_ended(tmp_path: pathlib.Path):
    (tmp_path / PROCESSES).mkdir()
    with group(count=2, beating=()) as two, contextlib.ExitStack() as predecessor:
        predecessor.enter_context(locked(tmp_path, f"{PROCESSES}/1.lock"))
        leaving = threading.Timer(0.3, predecessor.close)
        leaving.start()
        with two.members[1].shard_runs(tmp_path, lambda: None):
            assert leaving.finished.is_set()
