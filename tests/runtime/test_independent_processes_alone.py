"""One process of a sweep by a clock that is given: what it writes, whom it hears, how long it waits."""

from __future__ import annotations

import contextlib
import json
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime import independent_processes
from bert_jax.runtime.independent_processes import DONE, FAILED, FOLDER, STOPPED, WORKING, ProcessesLost, ProcessShare
from tests.runtime.test_heartbeats_alone import Thread
from tests.runtime.test_roll_call import Time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(independent_processes, "time", clock)
    return clock


def share(directory: pathlib.Path, index: int = 0, count: int = 3, **settings: Any) -> ProcessShare:
    """A share whose thread does nothing."""
    made = ProcessShare(directory, (index, count), **{"start": "this one", **settings})
    made._thread = Thread()  # type: ignore[assignment]
    return made


def record(directory: pathlib.Path, index: int, state: str, start: str = "this one", value: Any = None, beats: int = 7) -> None:
    (directory / FOLDER).mkdir(exist_ok=True)
    written = {"start": start, "beats": beats, "state": state, "value": value}
    (directory / FOLDER / f"{index}.json").write_text(json.dumps(written))


def written(directory: pathlib.Path, index: int) -> dict[str, Any]:
    return json.loads((directory / FOLDER / f"{index}.json").read_text())


def test_without_other_processes_all_is_the_share_of_this_one(tmp_path: pathlib.Path):
    alone = ProcessShare(tmp_path)
    assert (alone.index, alone.count, alone.of([3, 4, 5])) == (0, 1, [3, 4, 5])


@pytest.mark.parametrize("state", [WORKING, DONE, STOPPED])
def test_a_process_writes_that_it_works_and_at_its_end_that_it_failed_unless_it_has_said_else(
    state: str, tmp_path: pathlib.Path, clock: Time
):
    (tmp_path / FOLDER).mkdir()
    own = share(tmp_path, 1, 2)
    assert own.__enter__() is own
    assert written(tmp_path, 1) == {"start": "this one", "beats": 0, "state": WORKING, "value": None}
    assert own._heard == {0: ({"state": WORKING}, 1000.0)}
    assert share(tmp_path, 1, 3)._heard == {}
    if state != WORKING:
        own._write(state=state)
    own.__exit__(None, None, None)
    assert written(tmp_path, 1)["state"] == (FAILED if state == WORKING else state)
    assert (own._closed.is_set(), own._thread.joined, own._thread.started) == (True, [None], 1)  # type: ignore[attr-defined]


def test_a_process_waits_two_minutes_or_its_patience_for_its_predecessor(
    tmp_path: pathlib.Path, clock: Time, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Any] = []

    @contextlib.contextmanager
    def locked(directory: Any, name: str) -> Iterator[None]:
        asked.append((directory, name))
        if clock.now < free[0]:
            raise UserError("in use by process 3")
        yield
        asked.append("free again")

    monkeypatch.setattr(independent_processes, "locked", locked)
    for patience, waited in ((600.0, 120.0), (60.0, 60.0)):
        free = [2000.0]
        clock.now = 1000.0
        with pytest.raises(UserError, match="in use by process 3"):
            share(tmp_path, 2, patience=patience).__enter__()
        assert waited < clock.now - 1000.0 <= waited + 0.4
    assert set(clock.slept) == {0.2}
    assert set(asked) == {(tmp_path, f"{FOLDER}/2.lock")}
    clock.now = 1999.0
    with share(tmp_path, 2):
        assert 2000.0 <= clock.now < 2000.4
    assert asked.count("free again") == 1
    clock.now = 1000.0
    asked.clear()
    with pytest.raises(UserError):
        share(tmp_path, 2, patience=0.0).__enter__()
    assert len(asked) == 2, "at once and at the end of its time"


def test_the_first_process_asks_every_second_until_all_are_done(tmp_path: pathlib.Path, clock: Time):
    own = share(tmp_path)
    own.__enter__()
    asked: list[float] = []

    def waiting() -> bool:
        asked.append(clock.now)
        record(tmp_path, len(asked), DONE, value=f"of {len(asked)}")
        return False

    assert own.gather("mine", waiting) == ["mine", "of 1", "of 2"]  # type: ignore[arg-type]
    assert written(tmp_path, 0) == {"start": "this one", "beats": 0, "state": DONE, "value": "mine"}
    assert (asked, clock.slept) == ([1000.0, 1001.0, 1002.0], [1.0, 1.0])
    quick = share(tmp_path, beat=0.3)
    quick.__enter__()
    record(tmp_path, 1, WORKING)
    answers = iter([False, False, True])
    assert quick.gather("mine", answers.__next__) is None  # type: ignore[arg-type]
    assert clock.slept[2:] == [0.3, 0.3]
    assert written(tmp_path, 0)["state"] == STOPPED


def test_a_process_is_lost_after_ten_minutes_of_silence_but_not_once_it_is_done(tmp_path: pathlib.Path, clock: Time):
    own = share(tmp_path)
    own.__enter__()
    clock.now += 600
    assert [own._lost(1), own._lost(2)] == [False, False]
    record(tmp_path, 1, DONE)
    own._listen()
    clock.now += 0.5
    assert [own._lost(1), own._lost(2)] == [False, True]
    clock.now += 6000
    assert own._lost(1) is False
    with pytest.raises(ProcessesLost, match="process 2 of 3 failed or does not respond"):
        own.gather({}, lambda: False)
    record(tmp_path, 2, FAILED)
    own._listen()
    assert own._lost(2) is True


def test_a_record_is_a_sign_of_life_where_it_has_changed_and_is_of_this_start(tmp_path: pathlib.Path, clock: Time):
    own = share(tmp_path)
    own.__enter__()
    clock.now += 1
    record(tmp_path, 1, WORKING, start="an earlier one")
    own._listen()
    assert own._heard[1][1] == 1000.0
    record(tmp_path, 1, WORKING)
    own._listen()
    assert own._heard[1] == ({"start": "this one", "beats": 7, "state": WORKING, "value": None}, 1001.0)
    clock.now += 1
    own._listen()
    assert own._heard[1][1] == 1001.0, "it has not changed"
    record(tmp_path, 1, WORKING, beats=8)
    own._listen()
    assert own._heard[1][1] == 1002.0
    (tmp_path / FOLDER / "2.json").write_text("{")
    own._listen()
    assert own._heard[2][1] == 1000.0


@pytest.mark.parametrize(
    ("index", "states", "over"),
    [
        (0, {1: WORKING, 2: WORKING}, False),
        (0, {1: WORKING, 2: STOPPED}, True),
        (0, {1: FAILED, 2: DONE}, False),  # which its gather tells
        (1, {0: WORKING, 2: FAILED}, False),
        (1, {0: FAILED, 2: WORKING}, True),
        (1, {0: DONE, 2: STOPPED}, True),
    ],
)
def test_a_process_is_over_where_one_was_stopped_or_the_first_one_is_lost(
    index: int, states: dict[int, str], over: bool, tmp_path: pathlib.Path, clock: Time
):
    own = share(tmp_path, index)
    own.__enter__()
    for other, state in states.items():
        record(tmp_path, other, state)
    own._listen()
    assert own._is_over() is over


def test_a_newer_start_ends_an_older_one_but_what_was_there_before_does_not(tmp_path: pathlib.Path, clock: Time):
    own = share(tmp_path, 1)
    own.__enter__()
    assert own._is_over() is False
    record(tmp_path, 0, WORKING, start="a newer one")
    assert own._is_over() is True
    again = share(tmp_path, 1)
    again._held.close()
    own._held.close()
    again.__enter__()
    assert again._is_over() is False, "it was there when this one began"


def test_a_process_gives_a_sign_of_life_every_two_seconds_and_stops_once(
    tmp_path: pathlib.Path, clock: Time, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    stops: list[int] = []
    own = share(tmp_path, 1, stop=lambda: stops.append(written(tmp_path, 1)["beats"]))
    own.__enter__()
    pauses: list[float] = []

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 3:
            record(tmp_path, 2, STOPPED)
        return len(pauses) == 6

    own._closed = types.SimpleNamespace(wait=wait)  # type: ignore[assignment]
    own._live()
    assert (pauses, stops, written(tmp_path, 1)["beats"]) == ([2.0] * 6, [3], 5)
    assert caplog.messages.count("another process was asked to stop, or process 0 is lost: saving, then stopping") == 1

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(independent_processes, "write_json", full)
    pauses.clear()
    own._live()
    assert caplog.messages.count(f"{tmp_path / FOLDER} cannot be written (No space left on device)") == 5
    own.tell_stopped()  # which is no error either
