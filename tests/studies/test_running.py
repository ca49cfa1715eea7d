"""What a study does when one of its parts ends: with success, with a failure, or because it was asked to stop."""

from __future__ import annotations

import logging
import pathlib
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bert_jax.errors import MENDED_BY_RESTART, UserError
from bert_jax.files import write_json
from bert_jax.runtime.workdir import LOCK, locked
from bert_jax.studies import children
from bert_jax.studies.arms import Checked
from bert_jax.studies.parts import PRETRAINING, Part, Planned, digest, read_numbers
from bert_jax.studies.running import Runner, Stopped
from tests.studies.conftest import RESULTS, run_in

TITLE = "the arm 'a', seed 0, pretraining"
Play = Callable[[str], pathlib.Path]


def test_a_failed_part_is_reported_with_status_and_the_end_of_its_log(tmp_path: pathlib.Path, played: Play):
    played("seq 20; exit 2")
    log = tmp_path / "a.log"
    with pytest.raises(UserError) as caught:
        Runner(run_in(tmp_path), ["--hang-seconds=60"]).command(["pretrain", "--config=a"], log, TITLE)
    lines = [f"  {i}" for i in range(21 - children.LAST_LINES, 21)]
    begin = f"{TITLE} failed with status 2; {log} ends with:"
    assert str(caught.value).splitlines() == [begin, *lines, "fix the error, and run the study again"]


@pytest.mark.parametrize("status", MENDED_BY_RESTART)
def test_a_part_that_a_restart_can_fix_stops_the_study_with_its_status(
    tmp_path: pathlib.Path, played: Play, caplog: pytest.LogCaptureFixture, status: int
):
    played(f"exit {status}")
    with pytest.raises(Stopped) as caught:
        Runner(run_in(tmp_path), ["--hang-seconds=60"]).command(["pretrain", "--config=a"], tmp_path / "a.log", TITLE)
    assert (caught.value.status, str(caught.value)) == (status, f"exit status {status}")
    assert re.fullmatch(rf"{TITLE} ended \(.+\); the same command resumes", caplog.messages[-1])


def test_a_part_stopped_with_the_study_is_not_a_failure(tmp_path: pathlib.Path, played: Play):
    played("trap 'exit 1' TERM; while :; do sleep 0.01; done")
    run = run_in(tmp_path)
    run.preemption.request()
    with pytest.raises(Stopped) as caught:
        Runner(run, ["--hang-seconds=60"]).command(["pretrain", "--config=a"], tmp_path / "a.log", TITLE)
    assert caught.value.status == 143


def test_only_a_training_part_gets_the_flags_of_the_study(tmp_path: pathlib.Path, played: Play):
    played("")
    log = tmp_path / "a.log"
    for name in ("pretrain", "finetune", "convert"):
        Runner(run_in(tmp_path), ["--hang-seconds=60"]).command([name, "--config=a"], log, TITLE)
    assert log.read_text().splitlines() == [
        "pretrain --config=a --hang-seconds=60", "finetune --config=a --hang-seconds=60", "convert --config=a",
    ]  # fmt: skip


def test_the_last_line_of_a_part_is_shown_and_the_study_counts_as_alive(tmp_path: pathlib.Path, played: Play):
    played(f"echo step 3; while ! [ -e {tmp_path / 'seen'} ]; do sleep 0.01; done")
    run, shown = run_in(tmp_path), list[str]()

    def show(line: str) -> None:
        shown.append(line)
        if line == "step 3":
            (tmp_path / "seen").touch()

    Runner(run, ["--hang-seconds=60"]).command(["pretrain", "--config=a"], tmp_path / "a.log", TITLE, show)
    assert shown[-1] == "step 3"
    run.watchdog.skip(-1e6)  # a million seconds later
    assert f"in {TITLE} " in run.watchdog.hang()


def test_no_part_starts_in_a_workdir_that_was_moved(tmp_path: pathlib.Path, played: Play):
    ran = played("")

    def moved() -> None:
        raise UserError("the workdir was moved")

    with pytest.raises(UserError, match="the workdir was moved"):
        Runner(run_in(tmp_path, require_in_place=moved), ["--hang-seconds=60"]).command(["pretrain"], tmp_path / "a.log", TITLE)
    assert not ran.exists()


# ---------------------------------------------------------------------------------------------------------- the parts in order
@pytest.fixture
def planned(checked: Checked, tmp_path: pathlib.Path) -> Planned:
    steps = {name: [6] for name in checked.pretraining}
    return Planned(checked.study, steps, checked.pretraining, checked.tasks, tmp_path / "root", checked.teachers)


def test_a_part_waits_for_its_process_from_an_earlier_start(planned: Planned, tmp_path: pathlib.Path, played: Play):
    ran, part = played('cp "$workdir/.lock" "$workdir/holder"'), Part("a", 3, PRETRAINING)
    workdir = pathlib.Path(part.workdir(planned.root))
    workdir.mkdir(parents=True)
    asked = run_in(tmp_path / "local")
    asked.preemption.request()
    with locked(workdir, LOCK), pytest.raises(Stopped) as caught:
        Runner(asked, ["--hang-seconds=60"]).parts(planned, [part], lambda part: None)
    assert caught.value.status == 143
    assert not ran.exists()
    earlier = locked(workdir, LOCK)
    earlier.__enter__()
    threading.Timer(0.1, earlier.__exit__, (None, None, None)).start()
    Runner(run_in(tmp_path / "local"), ["--hang-seconds=60"]).parts(planned, [part], lambda part: None)
    assert (workdir / "holder").read_text() == "", "the earlier process has released its lock"


def test_parts_without_a_record_run_in_order_with_the_time_left_and_every_part_is_cleaned_up(
    planned: Planned, tmp_path: pathlib.Path, played: Play, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, logger="bert_jax")
    ran, done = played(""), list[Part]()
    parts = [Part(arm, 3, name) for arm in "ab" for name in (PRETRAINING, "own")]
    trained, *others = parts
    took = {"training": 30.0, "compiling": 10.0, "between_starts": 500.0}
    record: dict[str, Any] = {"part": digest(planned.values(trained)), "measured": {"seconds": took}}
    left = trained.workdir(planned.root) / "checkpoints"  # as after a kill between the record and the end of the cleanup
    left.mkdir(parents=True)
    write_json(trained.record(planned.root), record)
    Runner(run_in(tmp_path / "local"), ["--hang-seconds=60"]).parts(planned, parts, done.append)
    commands = ("finetune", "pretrain", "finetune")
    started = [f"{command} {part.workdir(planned.root)}" for command, part in zip(commands, others, strict=True)]
    assert ran.read_text().splitlines() == started
    assert done == others
    for part in others:
        numbers = read_numbers(part.workdir(planned.root))
        assert planned.record(part) == {"part": digest(planned.values(part)), **numbers}
        assert part.log(tmp_path / "local").read_text().endswith(" --hang-seconds=60\n")
    assert not list(pathlib.Path(planned.root).rglob("checkpoints"))
    assert [message.partition(" done in ")[0] for message in caplog.messages[:-1]] == [f"{part}:" for part in others]
    assert caplog.messages[-1] == "4 parts done"
    # At first, only a pretraining of 40 seconds is known, without the time between its starts. At last, a fine-tuning of 20.
    first, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"study: 1/4 parts, a, seed 3, own, ETA 2m00s", first)
    assert re.fullmatch(r"study: 3/4 parts, b, seed 3, own(: .*)?, ETA (20|1\d)s", last)
    assert RESULTS["finetune"]["ledger"]["seconds"] == {"training": 20.0}
