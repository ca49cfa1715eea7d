"""What a study does when one of its parts ends: with success, with a failure, or because something asked it to stop."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.interface import progress
from bert_jax.interface.exit_statuses import MENDED_BY_RESTART
from bert_jax.studies import children, running
from bert_jax.studies.parts import Part
from bert_jax.studies.running import Runner, Stopped


def run_ending_with(
    monkeypatch: pytest.MonkeyPatch, log: pathlib.Path, status: int, asked: bool = False, verb: str = "pretrain"
) -> list[Any]:
    """The commands that a runner starts for a part; each prints 20 lines and ends with `status`, `asked` to stop or not."""
    started: list[Any] = []

    def run(command: Any, file: pathlib.Path, watch: Callable[[], bool]) -> int:
        started.append(command)
        assert watch() == asked
        file.write_text("".join(f"line {i}\n" for i in range(20)))
        assert watch() == asked
        return status

    monkeypatch.setattr(children, "run_verb_alone", run)
    told: list[str] = []
    runner, shown = Runner(around(told.append, asked), 60.0), []
    try:
        runner.command([verb, "--config=a"], log, "the arm 'a', seed 0, pretraining", shown.append)
    finally:
        assert told == ["the arm 'a', seed 0, pretraining"] * 2
        assert shown == ["", "line 19"]
    return started


def around(alive: Callable[[str], object], asked: bool = False) -> Any:
    """As much of a run as a runner uses. A stop counts at once, whatever the step."""
    preemption = types.SimpleNamespace(requested=lambda step: asked and step == 0, exit_status=99)
    return types.SimpleNamespace(
        preemption=preemption,
        watchdog=types.SimpleNamespace(alive=alive),
        workdir=pathlib.Path("local"),
        require_in_place=lambda: None,
    )


def test_a_part_that_fails_is_told_with_its_status_its_log_and_the_end_of_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    log = tmp_path / "a.log"
    with pytest.raises(UserError) as caught:
        run_ending_with(monkeypatch, log, 2)
    lines = [f"  line {i}" for i in range(20 - children.LAST_LINES, 20)]
    begin = f"the arm 'a', seed 0, pretraining failed with status 2; {log} ends with:"
    assert str(caught.value).splitlines() == [begin, *lines, "correct that, and run the study again"]


@pytest.mark.parametrize("status", MENDED_BY_RESTART)
def test_a_part_that_a_restart_mends_stops_the_study_with_its_status_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, status: int
):
    caplog.set_level(logging.INFO, logger="bert_jax")
    with pytest.raises(Stopped) as caught:
        run_ending_with(monkeypatch, tmp_path / "a.log", status)
    assert (caught.value.status, str(caught.value)) == (status, f"exit status {status}")
    assert re.fullmatch(r"the arm 'a', seed 0, pretraining ended \(.+\); the same command goes on", caplog.messages[-1])


def test_a_part_that_ends_because_the_study_is_asked_to_stop_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    with pytest.raises(Stopped) as caught:
        run_ending_with(monkeypatch, tmp_path / "a.log", 1, asked=True)
    assert caught.value.status == 99


def test_a_part_that_trains_is_watched_as_the_study_is(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    for verb, watched in (("pretrain", ["--hang-seconds=60"]), ("finetune", ["--hang-seconds=60"]), ("convert", [])):
        log = tmp_path / f"{verb}.log"
        assert run_ending_with(monkeypatch, log, 0, verb=verb) == [[verb, "--config=a", *watched]]


class Recorded:
    """A study's plan whose parts take `seconds`, by name, once they are done."""

    def __init__(self, root: pathlib.Path, done: tuple[Part, ...], seconds: dict[str, dict[str, float]]):
        self.root, self.done, self.seconds = root, [*done], seconds
        self.events: list[str] = []

    def is_done(self, part: Part) -> bool:
        return part in self.done

    def record(self, part: Part) -> dict[str, Any] | None:
        return {"measured": {"seconds": self.seconds[part.name]}} if part in self.done and part.name in self.seconds else None

    def clean_up(self, part: Part) -> None:
        self.events.append(f"{part.name} is cleaned up")

    def finish(self, part: Part) -> None:
        self.events.append(f"{part.name} is finished")
        self.done.append(part)

    def command(self, part: Part, local: pathlib.Path) -> list[str]:
        return ["pretrain", f"{local}/{part.name}"]


def test_parts_that_are_not_done_run_in_their_order_with_the_progress_of_all(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, logger="bert_jax")
    parts = [Part("a", seed, name) for seed in (0, 1) for name in ("pretraining", "stsb")]
    seconds = {"pretraining": {"training": 30.0, "compiling": 10.0, "between_starts": 1_000.0}, "stsb": {}}
    planned: Any = Recorded(tmp_path, tuple(parts[:2]), seconds)
    clock = [100.0]
    lines: list[tuple[int, str, float | None]] = []
    made: list[Any] = []

    class Progress(progress.Progress):
        def __init__(self, *given: object, plain_every: float):
            made.append((*given, plain_every))

        def update(self, done: int, note: str, seconds_left: float | None) -> None:
            lines.append((done, note, seconds_left))

        def close(self) -> None:
            made.append("closed")

    def command(self: Runner, given: Any, log: pathlib.Path, title: str, shown: Callable[[str], object]) -> None:
        planned.events.append(f"{' '.join(given)} > {log}, {title}")
        clock[0] += 5.0
        shown("step 1")

    monkeypatch.setattr(running, "Progress", Progress)
    monkeypatch.setattr(running.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(Runner, "command", command)
    monkeypatch.setattr(Runner, "_wait_for_earlier", lambda self, workdir: planned.events.append(f"waits for {workdir.name}"))
    finished: list[Part] = []
    Runner(around(lambda doing: None), 60.0).parts(planned, parts, finished.append)
    assert made == [("study:", 4, "parts", 60.0), "closed"]
    assert finished == parts[2:]
    assert planned.events == [
        "pretraining is cleaned up",
        "stsb is cleaned up",
        "waits for pretraining",
        "pretrain local/pretraining > local/a/seed-1/pretraining.log, a, seed 1, pretraining",
        "pretraining is finished",
        "pretraining is cleaned up",
        "waits for stsb",
        "pretrain local/stsb > local/a/seed-1/stsb.log, a, seed 1, stsb",
        "stsb is finished",
        "stsb is cleaned up",
    ]
    assert lines == [
        (2, "a, seed 1, pretraining", 80.0),  # of stsb no time is known: that of the other part counts
        (2, "a, seed 1, pretraining: step 1", 75.0),
        (3, "a, seed 1, stsb", None),
        (3, "a, seed 1, stsb: step 1", None),
    ]
    assert caplog.messages == ["a, seed 1, pretraining: done in 5s", "a, seed 1, stsb: done in 5s", "4 parts done"]


def test_a_part_without_times_of_its_own_counts_with_those_of_the_study(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    planned: Any = Recorded(tmp_path, (), {})
    clock, seen = iter([100.0, 100.0, 107.0, 107.0, 110.0, 110.0, 110.0, 110.0]), []
    monkeypatch.setattr(running.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(Runner, "command", lambda *_: None)
    monkeypatch.setattr(running, "seconds_left", lambda waiting, spent, of_current: seen.append((list(waiting), dict(spent))))
    silent = types.SimpleNamespace(update=lambda *_, **__: 0)
    monkeypatch.setattr(running, "Progress", lambda *_, **__: contextlib.nullcontext(silent))
    first, second = Part("a", 0, "stsb"), Part("b", 0, "stsb")
    Runner(around(lambda doing: None), 60.0).parts(planned, [first, second], lambda part: None)
    assert seen == [([first, second], {}), ([second], {first: 7.0})]


class InBucket:
    """A workdir in a bucket, which no process of this machine locks."""

    def __fspath__(self) -> str:
        return "gs://bucket/workdir"


def test_a_part_waits_for_a_process_of_an_earlier_start(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    asleep: list[float] = []
    told: list[str] = []
    held = [True, True, False]

    @contextlib.contextmanager
    def locked(directory: pathlib.Path, name: str) -> Iterator[None]:
        assert (directory, name) == (tmp_path, running.LOCK)
        if held.pop(0):
            raise UserError("it is in use")
        yield

    monkeypatch.setattr(running, "locked", locked)
    monkeypatch.setattr(running.time, "sleep", asleep.append)
    runner = Runner(around(told.append), 60.0)
    runner._wait_for_earlier(tmp_path)  # nobody has used it
    assert len(held) == 3
    (tmp_path / running.LOCK).touch()
    runner._wait_for_earlier(tmp_path)
    assert (held, asleep, told) == ([], [children.POLL] * 2, ["waiting for an earlier start"] * 2)
    runner._wait_for_earlier(InBucket())  # type: ignore[arg-type]
    held[:] = [True]
    with pytest.raises(Stopped) as caught:
        Runner(around(told.append, asked=True), 60.0)._wait_for_earlier(tmp_path)
    assert caught.value.status == 99
