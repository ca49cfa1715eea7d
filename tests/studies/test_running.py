"""What a study does when one of its parts ends: with success, with a failure, or because it was asked to stop."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import re
import types
from collections.abc import Callable
from typing import Any

import pytest

from bert_jax.errors import MENDED_BY_RESTART, UserError
from bert_jax.runtime.workdir import LOCK, locked
from bert_jax.studies import children, running
from bert_jax.studies.parts import PRETRAINING, Part
from bert_jax.studies.running import Runner, Stopped


def run_ending_with(
    monkeypatch: pytest.MonkeyPatch, log: pathlib.Path, status: int, asked: bool = False, name: str = "pretrain"
) -> list[Any]:
    """Records the commands that a runner starts for a part; each prints 20 lines and ends with `status`, whether it is `asked` to
    stop or not."""
    started: list[Any] = []

    def run(command: Any, file: pathlib.Path, watch: Callable[[], bool]) -> int:
        started.append(command)
        assert watch() == asked
        file.write_text("".join(f"line {i}\n" for i in range(20)))
        assert watch() == asked
        return status

    monkeypatch.setattr(children, "run_alone", run)
    told: list[str] = []
    runner, shown = Runner(around(told.append, asked, in_place=lambda: told.append("in place")), 60.0), []
    try:
        runner.command([name, "--config=a"], log, "the arm 'a', seed 0, pretraining", shown.append)
    finally:
        assert told == ["in place", *["the arm 'a', seed 0, pretraining"] * 2, "in place"]
        assert shown == ["", "line 19"]
    return started


def around(alive: Callable[[str], object], asked: bool = False, in_place: Callable[[], object] = lambda: None) -> Any:
    """Imitates the parts of a run that a runner uses. A stop takes effect at once, whatever the step."""
    preemption = types.SimpleNamespace(requested=lambda step: asked and step == 0, exit_status=99)
    return types.SimpleNamespace(
        preemption=preemption,
        watchdog=types.SimpleNamespace(alive=alive),
        workdir=pathlib.Path("local"),
        require_in_place=in_place,
    )


def test_a_failed_part_is_reported_with_status_and_the_end_of_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    log = tmp_path / "a.log"
    with pytest.raises(UserError) as caught:
        run_ending_with(monkeypatch, log, 2)
    lines = [f"  line {i}" for i in range(20 - children.LAST_LINES, 20)]
    begin = f"the arm 'a', seed 0, pretraining failed with status 2; {log} ends with:"
    assert str(caught.value).splitlines() == [begin, *lines, "fix the error, and run the study again"]


@pytest.mark.parametrize("status", MENDED_BY_RESTART)
def test_a_part_that_a_restart_can_fix_stops_the_study_with_its_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, status: int
):
    caplog.set_level(logging.INFO, logger="bert_jax")
    with pytest.raises(Stopped) as caught:
        run_ending_with(monkeypatch, tmp_path / "a.log", status)
    assert (caught.value.status, str(caught.value)) == (status, f"exit status {status}")
    assert re.fullmatch(r"the arm 'a', seed 0, pretraining ended \(.+\); the same command resumes", caplog.messages[-1])


def test_a_part_stopped_with_the_study_is_not_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    with pytest.raises(Stopped) as caught:
        run_ending_with(monkeypatch, tmp_path / "a.log", 1, asked=True)
    assert caught.value.status == 99


def test_a_training_part_gets_the_hang_limits_of_the_study(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    for name, watched in (("pretrain", ["--hang-seconds=60"]), ("finetune", ["--hang-seconds=60"]), ("convert", [])):
        log = tmp_path / f"{name}.log"
        assert run_ending_with(monkeypatch, log, 0, name=name) == [[name, "--config=a", *watched]]


class InBucket:
    """A workdir in a bucket, which no process of this machine locks."""

    def __fspath__(self) -> str:
        return "gs://bucket/workdir"


def test_a_part_waits_for_its_process_from_an_earlier_start(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(children, "POLL", 0.01)
    slept: list[float] = []
    monkeypatch.setattr(running.time, "sleep", slept.append)
    told: list[str] = []
    with contextlib.ExitStack() as earlier:

        def alive(doing: str) -> None:
            told.append(doing)
            if len(told) == 2:
                earlier.close()

        runner = Runner(around(alive), 60.0)
        runner._wait_for_earlier(tmp_path)  # returns at once: the workdir has not been used
        runner._wait_for_earlier(InBucket())  # type: ignore[arg-type]
        assert told == []
        earlier.enter_context(locked(tmp_path, LOCK))
        runner._wait_for_earlier(tmp_path)
    assert (told, slept) == (["waiting for an earlier start"] * 2, [0.01] * 2)
    with locked(tmp_path, LOCK), pytest.raises(Stopped) as caught:
        Runner(around(told.append, asked=True), 60.0)._wait_for_earlier(tmp_path)
    assert caught.value.status == 99


class Shown:
    """The progress that a runner shows: its lines as (parts done, note, seconds left)."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.lines: list[tuple[int, str, float | None]] = []

    def __call__(self, *given: Any, **settings: Any) -> Shown:
        self.given = [*given, settings]
        return self

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, done: int, note: str, *, seconds_left: float | None) -> None:
        self.lines.append((done, note, seconds_left))


def test_parts_without_a_record_run_in_order_with_the_time_left_and_every_part_is_cleaned_up(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    trained, stsb, sick = (Part("a", 0, name) for name in (PRETRAINING, "stsb", "sick"))
    other, again = Part("b", 0, PRETRAINING), Part("a", 1, "sick")
    took = {"training": 30.0, "compiling": 10.0, "between_starts": 500.0}
    records: dict[Part, Any] = {trained: {"measured": {"seconds": took}}}
    ends = {stsb: {"measured": {"seconds": {"training": 20.0}}}, sick: {}, other: {}, again: {}}
    events: list[Any] = []
    clock, shown = [0.0], Shown()

    def command(self: Runner, command: list[str], log: pathlib.Path, title: str, show: Callable[[str], object]) -> None:
        events.append((command, log, title))
        clock[0] += 7.0
        show("step 3")

    def finish(part: Part) -> None:
        events.append(("finished", part))
        records[part] = ends[part]

    monkeypatch.setattr(running, "Progress", shown)
    monkeypatch.setattr(running.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(Runner, "command", command)
    monkeypatch.setattr(Runner, "_wait_for_earlier", lambda self, workdir: events.append(("waited", workdir)))
    planned: Any = types.SimpleNamespace(
        root=tmp_path,
        is_done=records.__contains__,
        record=records.get,
        command=lambda part, local: [str(part), str(local)],
        finish=finish,
        clean_up=lambda part: events.append(("cleaned up", part)),
    )
    parts = [trained, stsb, sick, other, again]
    Runner(around(lambda doing: None), 60.0).parts(planned, parts, lambda part: events.append(("done", part)))
    assert events[0] == ("cleaned up", trained)
    assert events[1:] == [
        event
        for part in parts[1:]
        for event in (
            ("waited", part.workdir(tmp_path)), ([str(part), "local"], part.log(pathlib.Path("local")), str(part)),
            ("finished", part), ("cleaned up", part), ("done", part),
        )
    ]  # fmt: skip
    assert shown.given == ["study:", 5, "parts", {"plain_every": 60.0}]
    # At first, only a pretraining of 40 seconds is known, without the time between its starts. Then stsb has taken 20 seconds,
    # and sick, whose record has no times, 7.
    assert shown.lines == [
        (1, "a, seed 0, stsb", 160.0), (1, "a, seed 0, stsb: step 3", 153.0),
        (2, "a, seed 0, sick", 80.0), (2, "a, seed 0, sick: step 3", 73.0),
        (3, "b, seed 0, pretraining", 47.0), (3, "b, seed 0, pretraining: step 3", 40.0),
        (4, "a, seed 1, sick", 7.0), (4, "a, seed 1, sick: step 3", 0.0),
    ]  # fmt: skip
