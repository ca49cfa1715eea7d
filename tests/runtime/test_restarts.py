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

from bert_jax.errors import HUNG, MENDED_BY_RESTART, UserError
from bert_jax.runtime import restarts
from bert_jax.runtime.restarts import find_workdir, keep_running, steps_done
from tests.runtime.test_roll_call import Time

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

    def run(plan: str, restarts: int = 3) -> tuple[int, int]:
        starts = tmp_path / "starts"
        starts.unlink(missing_ok=True)
        arguments = [str(starts), plan, f"--workdir={tmp_path / 'run'}"]
        try:
            status = keep_running("pretrain", arguments, restarts, first_pause=0.01)
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


def test_failing_twice_before_the_first_step_ends_the_run(ends):
    with pytest.raises(UserError, match="before its first logged step, as before"):
        ends("0:42,0:42,0:0")


def test_a_stop_by_sigterm_does_not_count_as_a_failure_of_its_step(ends):
    assert ends("10:143,10:143,10:42,20:0") == (0, 4)


def test_the_status_after_the_last_restart_allows_another_start(ends, capfd: pytest.CaptureFixture[str]):
    assert ends("10:-9,20:-9", restarts=1) == (HUNG, 2)
    assert "error: pretrain ended with exit status 137" in (told := capfd.readouterr().err)
    assert "--restarts=1 allows no further restart; the same command resumes" in told


SLOW = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(60)\n"
PAUSED = "import os, pathlib, sys\npathlib.Path(sys.argv[1]).touch()\nos._exit(42)\n"


def test_sigterm_ends_the_command_without_a_restart(tmp_path: pathlib.Path):
    put_in_place(SLOW, tmp_path)
    started = tmp_path / "started"
    begin = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from bert_jax.runtime.restarts import keep_running"
    run = f"{begin}; sys.exit(keep_running('pretrain', [{str(started)!r}], 3))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-P", "-c", run], env=environment) as supervisor:
        deadline = time.monotonic() + 30
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(timeout=8) == 143


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

    monkeypatch.setattr(restarts.time, "sleep", sleep)
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


def test_the_steps_of_a_sweep_add_up_over_its_runs(tmp_path: pathlib.Path):
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


class Ends:
    """Replaces the children: each ends with one of `statuses`; `interrupted` is the pause in which a signal arrives."""

    def __init__(self, statuses: list[int], interrupted: int | None = None):
        self.statuses, self.interrupted = statuses, interrupted
        self.received, self.commands, self.pauses = 0, list[list[str]](), list[float]()

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def run(self, command: list[str]) -> int:
        self.commands.append(command)
        return self.statuses.pop(0)

    def interrupted_within(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        if len(self.pauses) == self.interrupted:
            self.received = 2
        return self.received != 0


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch):
    """Returns a function that restarts a command whose starts end with these statuses; every start gets ten steps further."""
    steps = iter(range(10, 1000, 10))
    monkeypatch.setattr(restarts, "steps_done", lambda workdir: next(steps))

    def keep(made: Ends, allowed: int, *arguments: str) -> int:
        monkeypatch.setattr(restarts, "_Signals", lambda: made)
        return keep_running("pretrain", arguments, allowed)

    return keep


def test_pauses_double_from_ten_seconds_and_stay_below_the_start_timeout(kept, capsys: pytest.CaptureFixture[str]):
    ends = Ends([42] * 7)
    assert kept(ends, 6, "--workdir=run", "--config.seed=1") == HUNG
    assert ends.pauses == [10, 20, 40, 80, 160, 160]
    assert ends.commands == [[sys.executable, "-P", "-m", "bert_jax.pretrain", "--workdir=run", "--config.seed=1"]] * 7
    told = capsys.readouterr().err.splitlines()
    assert told[5].endswith("after 60 steps; restart 6 of 6 in 2m40s")
    assert told[6].startswith("error: pretrain ended with exit status 42")


def test_a_signal_or_a_final_status_ends_the_restarts(kept):
    ends = Ends([42, 42, 42], interrupted=2)
    assert kept(ends, 6, "--workdir=run") == 128 + 2
    assert len(ends.commands) == 2
    assert kept(Ends([42, 0]), 6, "--workdir=run") == 0
    received = Ends([42])
    received.received = 15
    assert kept(received, 6, "--workdir=run") == 42, "the signal was for the command"


def test_without_a_workdir_a_command_fails_twice_after_the_same_step(kept):
    with pytest.raises(UserError, match="before its first logged step, as before"):
        kept(Ends([42, 42]), 6)


class Child:
    """A child process that has ended with this status; it records the signals that it is sent."""

    def __init__(self, status: int = 0):
        self.status, self.signals = status, list[int]()

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self) -> int:
        return self.status


@pytest.mark.parametrize(("status", "shown"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_a_child_ended_by_a_signal_has_the_status_of_a_shell(status: int, shown: int, monkeypatch: pytest.MonkeyPatch):
    child = Child(status)
    monkeypatch.setattr(restarts.subprocess, "Popen", lambda command: child)
    signals = restarts._Signals()
    assert (signals.run(["a"]), child.signals) == (shown, [])
    signals.received = signal.SIGTERM
    signals.run(["a"])
    assert child.signals == [signal.SIGTERM], "it came while the child was being started"


def test_sigterm_is_forwarded_and_ctrl_c_is_not(monkeypatch: pytest.MonkeyPatch):
    child = Child()
    monkeypatch.setattr(restarts.subprocess, "Popen", lambda command: child)
    with restarts._Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM, "without a child"
        signals.received = 0
        signals.run(["a"])
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
            assert signals.received == number
    assert child.signals == [signal.SIGTERM]


def test_a_pause_ends_at_its_time_or_at_a_signal(monkeypatch: pytest.MonkeyPatch):
    clock = Time()
    monkeypatch.setattr(restarts, "time", clock)
    signals = restarts._Signals()
    assert signals.interrupted_within(0.5) is False
    assert clock.slept == [pytest.approx(seconds) for seconds in (0.2, 0.2, 0.1)]
    signals.received = 2
    assert signals.interrupted_within(10.0) is True
    assert len(clock.slept) == 3


def test_the_command_line_has_the_restarts_the_command_and_its_arguments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["restarts", "3", "pretrain", "--config=a"])
    monkeypatch.setattr(restarts, "keep_running", lambda *given: given)
    assert restarts.main() == ("pretrain", ["--config=a"], 3)  # type: ignore[comparison-overlap]


def test_the_documented_exit_statuses_are_the_ones_in_the_code():
    rows = re.findall(
        r"^\| ([\d, ]+) \| .* \| (starts again|ends)[^|]* \|$",
        (REPOSITORY / "bert_jax" / "runtime" / "README.md").read_text(),
        re.MULTILINE,
    )
    table = {int(status): what for statuses, what in rows for status in statuses.split(", ")}
    assert {status for status, what in table.items() if what == "starts again"} == set(MENDED_BY_RESTART)
    assert {0, 1, 2, 130, 141} <= {status for status, what in table.items() if what == "ends"}
