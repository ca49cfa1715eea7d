from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from bert_jax.interface.exit_statuses import HUNG
from bert_jax.runtime.interruptions import Preemption, Watchdog

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_becomes_a_request_and_the_old_handlers_return(number: signal.Signals, status: int):
    before = signal.getsignal(number)
    with Preemption() as preemption:
        assert not preemption.requested(1)
        os.kill(os.getpid(), number)
        assert preemption.requested(2)
        assert preemption.requested(3)
        assert preemption.exit_status == status
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_interrupts_at_once():
    with Preemption():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def watched(tmp_path: pathlib.Path, **limits: float) -> tuple[Watchdog, list[int], threading.Event]:
    left, ended = [], threading.Event()

    def leave(status: int) -> None:
        left.append(status)
        ended.set()

    return Watchdog(tmp_path, leave=leave, **limits), left, ended


def test_a_step_that_never_ends_is_reported_with_the_stacks(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]):
    watchdog, left, ended = watched(tmp_path, floor=0.2, factor=10.0, start=0.2)
    with watchdog:
        for step in range(3):
            watchdog.step_done(step)
        assert ended.wait(30), "the watchdog never fired"
    assert left == [HUNG]
    (report,) = tmp_path.glob("hang-0-*.txt")
    for text in (report.read_text(), capfd.readouterr().err):
        assert "made no progress" in text
        assert "the step after 2" in text
        assert "test_a_step_that_never_ends_is_reported_with_the_stacks" in text  # this thread's stack


def test_progress_of_any_kind_keeps_the_watchdog_quiet(tmp_path: pathlib.Path):
    watchdog, left, _ = watched(tmp_path, floor=1.0, start=1.0)
    with watchdog:
        for i in range(30):
            watchdog.step_done(i) if i % 2 else watchdog.alive("evaluation")
            time.sleep(0.05)
    assert left == []


def test_the_limit_follows_the_median_step_and_not_the_evaluations(tmp_path: pathlib.Path):
    now = [0.0]
    watchdog = Watchdog(tmp_path, floor=5.0, factor=10.0, start=100.0, clock=lambda: now[0])
    assert watchdog.limit() == 100.0  # nothing done yet: this may be the compilation
    for step, seconds in enumerate([0, 1, 1, 50, 1]):  # one outlier
        now[0] += seconds
        watchdog.step_done(step)
    assert watchdog.limit() == 10.0
    now[0] += 500
    watchdog.alive("evaluation")
    now[0] += 500
    watchdog.step_done(6)
    assert watchdog.limit() == 10.0


def test_a_compilation_between_steps_is_given_the_time_of_the_first_one(tmp_path: pathlib.Path):
    """That of a second phase, or of an evaluation; and so is the step after it, which may wait for another process's."""
    now = [0.0]
    watchdog = Watchdog(tmp_path, floor=5.0, start=100.0, clock=lambda: now[0])
    for step in range(3):
        watchdog.step_done(step)
    assert watchdog.limit() == 5.0
    watchdog.compiling()
    assert watchdog.limit() == 100.0
    watchdog.step_done(3)
    assert watchdog.limit() == 5.0
    watchdog.compiling()
    watchdog.alive("evaluation")
    assert watchdog.limit() == 5.0


def test_a_hang_names_the_processes_that_are_silent(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]):
    heartbeats = types.SimpleNamespace(silent=lambda: "worker 3 has given no sign of life for 9 s", tell=lambda *reasons: None)
    ended = threading.Event()
    watchdog = Watchdog(tmp_path, floor=0.1, start=0.1, leave=lambda status: ended.set())
    watchdog.heartbeats = heartbeats  # type: ignore[assignment]
    with watchdog:
        assert ended.wait(30)
    said = capfd.readouterr().err
    assert "made no progress for 0 s in the start (compilation) (limit 0 s); worker 3 has given no sign of life" in said


def test_a_hung_process_ends_with_its_own_status(tmp_path: pathlib.Path):
    program = (
        "import pathlib, sys, time\n"
        "from bert_jax.runtime.interruptions import Watchdog\n"
        "with Watchdog(pathlib.Path(sys.argv[1]), floor=0.2, start=0.2):\n"
        "    time.sleep(300)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == HUNG
    assert "Thread" in done.stderr
