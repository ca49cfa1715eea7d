"""The verb is a stand-in: a module `bert_jax.NAME` in a directory of its own, on the child's PYTHONPATH."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from bert_jax.errors import UserError
from bert_jax.interface.exit_statuses import HUNG, MENDED_BY_RESTART
from bert_jax.runtime.restarts import keep_running, steps_done, workdir_of

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


def put_in_place(verb: str, directory: pathlib.Path) -> None:
    """Writes the text of a module `bert_jax.pretrain` into a package of its own."""
    (directory / "bert_jax").mkdir()
    (directory / "bert_jax" / "__init__.py").touch()
    (directory / "bert_jax" / "pretrain.py").write_text(verb)


@pytest.fixture
def ends(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """A function that lets a stand-in end as `plan` says, a `STEP:STATUS` for each start, and returns (exit status, starts)."""
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


def test_a_run_that_hangs_once_and_is_killed_once_comes_to_its_end(ends, capfd: pytest.CaptureFixture[str]):
    assert ends("1500:42,1600:-9,2000:0") == (0, 3)
    told = capfd.readouterr().err.splitlines()
    assert told == [
        "pretrain ended with exit status 42 (no progress, or another process was lost) after 1,500 steps; restart 1 of 3 in 0s",
        "pretrain ended with exit status 137 (killed: host memory ran out, or the machine is going away) after 1,600 steps; "
        "restart 2 of 3 in 0s",
    ]


def test_signals_mean_what_they_meant_before_once_the_verb_has_ended(ends):
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    assert ends("10:0") == (0, 1)
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("status", [1, 2, 130, 141])
def test_a_bug_a_mistake_and_ctrl_c_are_not_restarted(ends, status: int):
    assert ends(f"10:{status}") == (status, 1)


def test_the_same_step_failing_twice_ends_the_run_with_the_reason(ends):
    with pytest.raises(UserError, match=r"status 42 .* after 1,500 steps, as it did before: a restart does not mend it.*hang-\*"):
        ends("1500:42,1400:-6,1500:42,0:0")
    assert ends.starts == 3


def test_failing_twice_before_the_first_step_ends_the_run(ends):
    with pytest.raises(UserError, match="before its first logged step, as it did before"):
        ends("0:42,0:42,0:0")


def test_a_stop_by_sigterm_elsewhere_is_no_failure_of_its_step(ends):
    assert ends("10:143,10:143,10:42,20:0") == (0, 4)


def test_where_the_restarts_are_used_up_the_status_says_that_another_start_may_succeed(ends, capfd: pytest.CaptureFixture[str]):
    assert ends("10:-9,20:-9", restarts=1) == (HUNG, 2)
    assert "error: pretrain ended with exit status 137" in (told := capfd.readouterr().err)
    assert "--restarts=1 allows no further restart; the same command continues" in told


SLOW = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(60)\n"
PAUSED = "import os, pathlib, sys\npathlib.Path(sys.argv[1]).touch()\nos._exit(42)\n"


@pytest.mark.parametrize(
    ("verb", "number"),
    [(SLOW, signal.SIGTERM), (PAUSED, signal.SIGTERM), (PAUSED, signal.SIGINT)],
    ids=["while it runs", "in the pause", "Ctrl-C in the pause"],
)
def test_a_signal_ends_the_verb_or_the_pause_and_starts_nothing_again(tmp_path: pathlib.Path, verb: str, number: signal.Signals):
    put_in_place(verb, tmp_path)
    started = tmp_path / "started"
    begin = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from bert_jax.runtime.restarts import keep_running"
    run = f"{begin}; sys.exit(keep_running('pretrain', [{str(started)!r}], 3))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-P", "-c", run], env=environment, stderr=subprocess.PIPE, text=True) as supervisor:
        if verb is PAUSED:
            assert "restart 1 of 3 in 10s" in supervisor.stderr.readline()
        else:
            deadline = time.monotonic() + 30
            while not started.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        supervisor.send_signal(number)
        assert supervisor.wait(timeout=8) == 128 + number  # less than the pause


@pytest.mark.parametrize("flags", [["--workdir=a b"], ["--config=c", "--workdir", "a b"], ["--workdir=first", "--workdir=a b"]])
def test_the_workdir_is_found_in_either_form(flags: list[str]):
    assert workdir_of([*flags, "--config.seed=1"]) == pathlib.Path("a b")
    assert workdir_of(["--workdirs=a", "workdir=b"]) is None


def test_the_steps_of_a_sweep_are_those_of_all_its_runs(tmp_path: pathlib.Path):
    assert steps_done(tmp_path) == 0
    for name, step in (("", 0), ("runs/seed=0", 30), ("runs/seed=1", 12)):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "metrics.jsonl").write_text("".join(f'{{"step": {i}}}\n' for i in range(1, step + 1)))
    assert steps_done(tmp_path) == 42


def test_the_table_of_exit_statuses_in_the_readme_is_the_one_that_decides():
    rows = re.findall(
        r"^\| ([\d, ]+) \| .* \| (starts again|ends)[^|]* \|$", (REPOSITORY / "README.md").read_text(), re.MULTILINE
    )
    table = {int(status): what for statuses, what in rows for status in statuses.split(", ")}
    assert {status for status, what in table.items() if what == "starts again"} == set(MENDED_BY_RESTART)
    assert {0, 1, 2, 130, 141} <= {status for status, what in table.items() if what == "ends"}
