"""Processes that share out a sweep, here as threads with a `ProcessShare` each."""

from __future__ import annotations

import json
import pathlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime.independent_processes import FOLDER, ProcessesLost, ProcessShare
from tests.runtime.test_workdir import other_process

QUICK = 0.02


def share(directory: pathlib.Path, index: int, count: int, **settings: object) -> ProcessShare:
    return ProcessShare(directory, (index, count), **{"start": "this one", "beat": QUICK, **settings})  # type: ignore[arg-type]


def keep_waiting() -> bool:
    return False


def wait_for_beats(directory: pathlib.Path, index: int, beats: int) -> None:
    """Until a process has looked for the others so many times."""
    while json.loads((directory / FOLDER / f"{index}.json").read_text())["beats"] <= beats:  # it writes, then looks
        time.sleep(QUICK)


@pytest.mark.parametrize(("items", "count"), [(27, 4), (3, 8), (8, 1)])
def test_every_run_is_the_share_of_one_process(tmp_path, items, count):
    shares = [share(tmp_path, i, count).of(range(items)) for i in range(count)]
    assert sorted(item for own in shares for item in own) == list(range(items))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_first_process_gets_what_all_have_and_the_others_may_leave(tmp_path):
    def one(index: int) -> list[object] | None:
        with share(tmp_path, index, 3) as own:
            time.sleep(0.1 * index)  # the last one long after the first
            return own.gather({"score": 0.1 * index}, keep_waiting)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(one, range(3)))
    assert found == [[{"score": 0.0}, {"score": 0.1}, {"score": 0.2}], None, None]


def test_one_process_is_by_itself_and_writes_nothing(tmp_path):
    with share(tmp_path, 0, 1) as own:
        assert own.gather(5, keep_waiting) == [5]
        own.tell_stopped()
    assert list(tmp_path.iterdir()) == []


def test_where_one_is_stopped_all_stop_and_say_why(tmp_path, caplog):
    told = threading.Event()
    with share(tmp_path, 0, 3) as first, share(tmp_path, 2, 3, stop=told.set), share(tmp_path, 1, 3) as second:
        second.tell_stopped()
        assert told.wait(20)
        assert first.gather("mine", keep_waiting) is None
    assert "another process was asked to stop, or process 0 is lost: saving, then stopping" in caplog.messages


def test_the_first_one_stops_waiting_when_it_is_asked_to_and_says_so(tmp_path):
    told = threading.Event()
    with share(tmp_path, 0, 2) as first, share(tmp_path, 1, 2, stop=told.set):
        assert first.gather("mine", lambda: True) is None
        assert told.wait(20)


def test_a_process_that_failed_is_named_at_once(tmp_path):
    with share(tmp_path, 0, 3) as first, share(tmp_path, 1, 3) as second:
        second.gather("mine", keep_waiting)
        with pytest.raises(ZeroDivisionError), share(tmp_path, 2, 3):
            raise ZeroDivisionError
        with pytest.raises(ProcessesLost, match="process 2 of 3 failed or does not respond"):
            first.gather("mine", keep_waiting)


def test_a_process_that_shows_no_sign_of_life_is_named_and_one_that_does_is_waited_for(tmp_path):
    with share(tmp_path, 0, 3, patience=2.0) as first, share(tmp_path, 1, 3):
        with pytest.raises(ProcessesLost, match="process 2 of 3 failed"):  # it never came
            first.gather("mine", keep_waiting)
        assert (tmp_path / FOLDER / "1.json").exists()


def test_what_an_earlier_start_has_left_is_not_heeded(tmp_path):
    for index, state in ((1, "done"), (2, "stopped")):
        (tmp_path / FOLDER).mkdir(exist_ok=True)
        record = {"start": "an earlier one", "beats": 9, "state": state, "value": "old"}
        (tmp_path / FOLDER / f"{index}.json").write_text(json.dumps(record))
    told = threading.Event()
    with share(tmp_path, 0, 3, patience=0.3, stop=told.set) as first, pytest.raises(ProcessesLost, match="process 1, 2 of 3"):
        first.gather("mine", keep_waiting)
    assert not told.is_set()


def test_a_process_that_begins_before_process_0_of_its_start_waits_for_it(tmp_path):
    """What process 0 of an earlier start has left is still there then; it does not mean that the new one is gone."""
    (tmp_path / FOLDER).mkdir()
    record = {"start": "an earlier one", "beats": 9, "state": "stopped", "value": None}
    (tmp_path / FOLDER / "0.json").write_text(json.dumps(record))
    told = threading.Event()
    with share(tmp_path, 1, 2, stop=told.set) as second:
        wait_for_beats(tmp_path, 1, 5)
        with share(tmp_path, 0, 2) as first:
            wait_for_beats(tmp_path, 1, 10)
            assert second.gather("second", keep_waiting) is None
            assert first.gather("first", keep_waiting) == ["first", "second"]
    assert not told.is_set()


@pytest.mark.parametrize("how", ["by an error", "in silence"])
def test_when_the_first_process_is_gone_the_others_stop(tmp_path, how):
    told = threading.Event()
    with share(tmp_path, 1, 2, stop=told.set, patience=0.5 if how == "in silence" else 600.0):
        if how == "by an error":
            with pytest.raises(ZeroDivisionError), share(tmp_path, 0, 2):
                raise ZeroDivisionError
        assert told.wait(20)


def test_a_process_of_an_earlier_start_stops_when_a_new_one_begins(tmp_path):
    told = threading.Event()
    with share(tmp_path, 1, 2, start="an earlier one", stop=told.set), share(tmp_path, 0, 2, start="an earlier one"):
        assert not told.wait(5 * QUICK)
    told.clear()
    with share(tmp_path, 1, 2, start="an earlier one", stop=told.set), share(tmp_path, 0, 2):
        assert told.wait(20)


def test_a_process_waits_until_its_predecessor_has_left_and_says_who_it_is_if_it_does_not(tmp_path):
    (tmp_path / FOLDER).mkdir()
    with other_process(tmp_path / FOLDER / "1.lock") as predecessor:
        assert predecessor.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"is in use by process {predecessor.pid} on "), share(tmp_path, 1, 2, patience=0.1):
            pass
        leaving = threading.Timer(0.3, predecessor.stdin.close)
        leaving.start()
        with share(tmp_path, 1, 2):
            assert leaving.finished.is_set()


def test_a_full_disk_ends_no_run_before_its_value_is_due(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with share(tmp_path, 1, 2) as own:
        monkeypatch.setattr("bert_jax.runtime.independent_processes.write_json", full)
        time.sleep(5 * QUICK)
        with pytest.raises(OSError, match="No space left"):
            own.gather("mine", keep_waiting)
