"""The restarts of a command. The command is a stand-in: a module `bert_jax.NAME` in a directory of its own, on the child's
PYTHONPATH."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from bert_jax.errors import HUNG, MENDED_BY_RESTART, MISSING, UserError
from bert_jax.runtime import restarts
from bert_jax.runtime.restarts import FIRST_PAUSE, find_workdir, keep_running, steps_done
from tests.clock import Clock

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
STAND_IN = """
import os, pathlib, signal, sys
starts = pathlib.Path(sys.argv[1])
number = len(starts.read_text()) if starts.exists() else 0
starts.write_text("x" * (number + 1))
step, status = [part.split(":") for part in sys.argv[2].split(",")][number]
if int(step):
    workdir = pathlib.Path(sys.argv[3].removeprefix("--workdir="))
    workdir.mkdir(exist_ok=True)
    (workdir / "metrics.jsonl").write_text('{"step": %s}\\n{"step": 99' % step)
os.kill(os.getpid(), -int(status)) if int(status) < 0 else os._exit(int(status))
"""


def put_in_place(command: str, directory: pathlib.Path) -> None:
    """Writes the text of a module `bert_jax.pretrain` into a package of its own."""
    (directory / "bert_jax").mkdir()
    (directory / "bert_jax" / "__init__.py").touch()
    (directory / "bert_jax" / "pretrain.py").write_text(command)


@pytest.fixture
def ends(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Returns a function that runs a stand-in and returns (exit status, starts). Each start of the stand-in ends as its
    `STEP:STATUS` in `plan` says."""
    put_in_place(STAND_IN, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(plan: str, restarts: int = 3, first_pause: float = 0.01, workdir: bool = True) -> tuple[int, int]:
        starts = tmp_path / "starts"
        starts.unlink(missing_ok=True)
        arguments = [str(starts), plan, f"--workdir={tmp_path / 'run'}"][: 2 + workdir]
        try:
            status = keep_running("pretrain", arguments, restarts, first_pause)
        finally:
            run.starts = len(starts.read_text())
        return status, run.starts

    return run


def test_a_run_that_hangs_once_and_is_killed_once_finishes(ends, capfd: pytest.CaptureFixture[str]):
    assert ends("1500:42,1600:-9,2000:0") == (0, 3)
    told = capfd.readouterr().err.splitlines()
    assert told == [
        "pretrain ended with exit status 42 (no progress, or another process was lost) after 1,500 steps; restart 1 of 3 in 0s",
        "pretrain ended with exit status 137 (killed: host memory ran out, or the machine is being shut down) after 1,600 steps; "
        "restart 2 of 3 in 0s",
    ]


def test_signal_handlers_are_restored_after_the_command(ends):
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    assert ends("10:0") == (0, 1)
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("status", [1, 2, 130, 141])
def test_bugs_mistakes_and_ctrl_c_are_not_restarted(ends, status: int):
    assert ends(f"10:{status}") == (status, 1)


def test_the_same_step_failing_twice_ends_the_run_with_the_reason(ends):
    with pytest.raises(UserError, match=r"status 42 .* after 1,500 steps, as before: a restart does not help.*hang-\*"):
        ends("1500:42,1400:-6,1500:42,0:0")
    assert ends.starts == 3


@pytest.mark.parametrize("workdir", [True, False])
def test_failing_twice_before_the_first_step_ends_the_run(ends, workdir: bool):
    with pytest.raises(UserError, match="before its first logged step, as before"):
        ends("0:42,0:42,0:0", workdir=workdir)


def test_a_stop_by_sigterm_does_not_count_as_a_failure_of_its_step(ends):
    assert ends("10:143,10:143,10:42,20:0") == (0, 4)


def test_another_worker_that_starts_late_does_not_count_as_a_failure(ends):
    """It may copy its corpus for longer than the others wait."""
    assert ends("10:43,10:43,10:42,20:0") == (0, 4)


def test_a_worker_that_never_starts_ends_the_run_with_a_status_of_its_own(ends, capfd: pytest.CaptureFixture[str]):
    """`tpu_scripts/pod.yaml` does not start a new slice after this status."""
    assert ends("10:42,10:43,10:43,10:43,20:0", restarts=20) == (MISSING, 4)
    assert "another process did not start in time) after 10 steps, 3 times in a row: look at the" in capfd.readouterr().err
    assert ends("20:43,20:43", restarts=1) == (MISSING, 2)
    assert ends("20:43,20:43,20:42", restarts=2) == (HUNG, 3)


def test_the_status_after_the_last_restart_allows_another_start(ends, capfd: pytest.CaptureFixture[str]):
    assert ends("10:-9,20:-9", restarts=1) == (HUNG, 2)
    assert "error: pretrain ended with exit status 137" in (told := capfd.readouterr().err)
    assert "--restarts=1 allows no further restart; the same command resumes" in told


def test_pauses_double_from_ten_seconds_and_stay_below_the_start_timeout(
    ends, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    clock = Clock(monkeypatch)
    assert ends(",".join(f"{step}:42" for step in range(10, 80, 10)), 6, FIRST_PAUSE) == (HUNG, 7)
    assert clock.passed == pytest.approx(10 + 20 + 40 + 80 + 160 + 160)
    told = capfd.readouterr().err.splitlines()
    pauses = ("10s", "20s", "40s", "1m20s", "2m40s", "2m40s")
    assert [line.rpartition("; ")[2] for line in told[:6]] == [
        f"restart {i} of 6 in {pause}" for i, pause in enumerate(pauses, 1)
    ]


def test_a_pause_is_not_exceeded(ends, monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    assert ends("10:42,20:0", first_pause=0.5) == (0, 2)
    assert clock.passed == pytest.approx(0.5)


SIGNALLED = "import os, sys, time\nos.kill(os.getppid(), int(sys.argv[1]))\ntime.sleep(float(sys.argv[2]))\nos._exit(42)\n"
SLOW = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(60)\n"
PAUSED = "import os, pathlib, sys\npathlib.Path(sys.argv[1]).touch()\nos._exit(42)\n"


@pytest.mark.parametrize(("number", "seconds", "status"), [(signal.SIGTERM, 60, 143), (signal.SIGINT, 0.1, 42)])
def test_only_sigterm_is_forwarded_and_neither_signal_leads_to_a_restart(
    number: signal.Signals, seconds: float, status: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """The terminal sends Ctrl-C to the command too."""
    put_in_place(SIGNALLED, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert keep_running("pretrain", [str(int(number)), str(seconds)], 3) == status


def test_ctrl_c_stays_ignored_if_the_command_was_started_to_ignore_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # like `&` in a script
    try:
        with restarts._Signals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.received == 0
    finally:
        assert signal.signal(signal.SIGINT, before) is signal.SIG_IGN


def test_a_signal_while_the_command_is_being_started_reaches_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    class Popen(subprocess.Popen[bytes]):
        def __init__(self, command: list[str]):
            super().__init__(command)
            os.kill(os.getpid(), signal.SIGTERM)

    put_in_place(SLOW, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", Popen)
    assert keep_running("pretrain", [str(tmp_path / "started")], 3) == 143


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_pause_prevents_the_restart(
    number: signal.Signals, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    put_in_place(PAUSED, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(time, "sleep", sleep)
    assert keep_running("pretrain", [str(tmp_path / "started")], 3) == 128 + number
    assert capfd.readouterr().err.endswith("before its first logged step; restart 1 of 3 in 10s\n")
    assert slept == [0.2]


@pytest.mark.parametrize("flags", [["--workdir=a b"], ["--config=c", "--workdir", "a b"], ["--workdir=first", "--workdir=a b"]])
def test_the_workdir_is_found_in_either_form(flags: list[str]):
    assert find_workdir([*flags, "--config.seed=1"]) == pathlib.Path("a b")
    assert find_workdir(["--workdirs=a", "workdir=b"]) is None
    assert find_workdir(["--config=c", "--workdir"]) == pathlib.Path()
    assert find_workdir([]) is None


def test_the_workdir_is_the_one_of_the_command_where_it_begins_with_a_tilde(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/house/of/ada")
    assert find_workdir(["--workdir=~/runs/a"]) == find_workdir(["--workdir", "~/runs/a"]) == pathlib.Path("/house/of/ada/runs/a")


def test_the_steps_of_a_sweep_or_a_study_add_up_over_its_runs(tmp_path: pathlib.Path):
    assert steps_done(tmp_path) == 0
    for name, step in (("", 0), ("runs/seed=0", 30), ("runs/seed=1", 12)):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "metrics.jsonl").write_text("".join(f'{{"step": {i}}}\n' for i in range(1, step + 1)))
    assert steps_done(tmp_path) == 42
    study = tmp_path / "arms" / "small" / "seed=0"
    study.mkdir(parents=True)
    (study / "metrics.jsonl").write_text('{"step": 5}\n{"step": 8}\n')
    assert steps_done(tmp_path) == 50
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n')
    assert steps_done(tmp_path) == 53
    swept = tmp_path / "small" / "seed-0" / "rte" / "runs" / "seed-1"
    swept.mkdir(parents=True)
    (swept / "metrics.jsonl").write_text('{"step": 7}\n')
    assert steps_done(tmp_path) == 60


def test_the_command_line_has_the_restarts_the_command_and_its_arguments(
    ends, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(
        sys, "argv", ["restarts", "0", "pretrain", str(tmp_path / "starts"), "10:42", f"--workdir={tmp_path / 'run'}"]
    )
    assert restarts.main() == HUNG
    assert "after 10 steps, but --restarts=0 allows no further restart" in capfd.readouterr().err


def test_the_documented_exit_statuses_are_the_ones_in_the_code():
    rows = re.findall(
        r"^\| ([\d, ]+) \| .* \| (starts again|ends)[^|]* \|$",
        (REPOSITORY / "bert_jax" / "runtime" / "README.md").read_text(),
        re.MULTILINE,
    )
    table = {int(status): what for statuses, what in rows for status in statuses.split(", ")}
    assert {status for status, what in table.items() if what == "starts again"} == set(MENDED_BY_RESTART)
    assert {0, 1, 2, 130, 141} <= {status for status, what in table.items() if what == "ends"}
