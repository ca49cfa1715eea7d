from __future__ import annotations

import os
import pathlib
import re
import signal
import sys
import threading

import pytest

from bert_jax.errors import HUNG
from bert_jax.runtime.interruptions import Preemption, Watchdog
from bert_jax.runtime.processes import Processes


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_becomes_a_request_and_the_old_handlers_return(number: signal.Signals, status: int):
    before = signal.getsignal(number)
    with Preemption() as preemption:
        assert not preemption.requested()
        os.kill(os.getpid(), number)
        assert preemption.requested()
        assert preemption.requested()
        assert preemption.exit_status == status
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_interrupts_at_once():
    with Preemption():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_run_started_to_ignore_ctrl_c_ignores_it_and_stops_after_sigterm():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # like `&` in a script
    try:
        with Preemption() as preemption:
            os.kill(os.getpid(), signal.SIGINT)
            assert not preemption.requested()
            os.kill(os.getpid(), signal.SIGTERM)
            assert preemption.requested()
    finally:
        assert signal.signal(signal.SIGINT, before) is signal.SIG_IGN


def test_the_effect_of_a_signal_is_logged(capfd: pytest.CaptureFixture[str]):
    with Preemption():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    with Preemption():
        os.kill(os.getpid(), signal.SIGINT)
    stopping = "saving after this step, then stopping"
    again = "; Ctrl-C again stops at once, without saving"
    assert capfd.readouterr().err == f"\nSIGTERM: {stopping}\n" * 2 + f"\nSIGINT: {stopping}{again}\n"


def test_a_stop_request_of_another_process_counts_like_sigterm():
    with Preemption() as preemption:
        assert preemption.exit_status == 143
        preemption.request()
        assert preemption.requested()
        assert preemption.exit_status == 143
    with Preemption() as preemption:
        os.kill(os.getpid(), signal.SIGINT)
        preemption.request()
        assert preemption.exit_status == 130


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (None, 143)])
def test_one_of_several_processes_stops_after_the_step_on_which_all_agree(
    number: signal.Signals | None, status: int, capfd: pytest.CaptureFixture[str]
):
    asked = list[bool]()

    def agreed(own: bool) -> bool:
        asked.append(own)
        return len(asked) >= 3

    with Preemption(agreed) as preemption:
        if number:
            os.kill(os.getpid(), number)
        assert [preemption.requested() for _ in range(4)] == [False, False, True, True]
        assert asked[:3] == [number is not None] * 3
        assert not preemption.requested_here()
        assert preemption.exit_status == status
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    stopping = "saving after a step that all processes reach, then stopping"
    again = "; Ctrl-C again stops at once, without saving" if number == signal.SIGINT else ""
    assert capfd.readouterr().err == (f"\n{number.name}: {stopping}{again}\n" if number else "")


def test_a_run_in_another_thread_sets_no_handlers():
    before = signal.getsignal(signal.SIGTERM)
    found: list[object] = []

    def run() -> None:
        with Preemption() as preemption:
            found.extend([signal.getsignal(signal.SIGTERM), preemption.requested()])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before, False]


def test_hang_limits_are_an_hour_at_the_start_then_ten_steps_or_ten_minutes(tmp_path: pathlib.Path):
    now = [0.0]
    watchdog = Watchdog(tmp_path, clock=lambda: now[0])
    assert watchdog.limit() == 3600
    for seconds in (0, 100, 100):
        now[0] += seconds
        watchdog.step_done(1)
    assert watchdog.limit() == 1000
    for _ in range(3):
        now[0] += 1
        watchdog.step_done(1)
    assert watchdog.limit() == 600
    assert Watchdog(tmp_path, floor=9000.0).limit() == 9000


def test_the_median_covers_the_last_101_steps(tmp_path: pathlib.Path):
    now = [0.0]
    watchdog = Watchdog(tmp_path, floor=1.0, clock=lambda: now[0])
    watchdog.step_done(0)
    for seconds in (4.0,) * 51 + (2.0,) * 51:
        now[0] += seconds
        watchdog.step_done(1)
    assert watchdog.limit() == 20.0


def test_time_while_the_process_is_stopped_does_not_count(tmp_path: pathlib.Path):
    now = [1000.0]
    watchdog = Watchdog(tmp_path, floor=8.0, start=8.0, clock=lambda: now[0])
    watchdog.step_done(1)
    now[0] += 510.0
    watchdog.skip(498.0)
    assert watchdog.hang() == "made no progress for 12 s in the step after 1 (limit 8 s)"
    watchdog.step_done(2)
    assert watchdog._steps[0] == 510.0 - 498.0
    watchdog.skip(3.0)
    now[0] += 8.0
    assert watchdog.hang() == "", "skipped time neither undoes progress nor hides a hang"


def test_an_unwritable_hang_report_is_still_on_stderr(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]):
    Watchdog(tmp_path / "gone").report("it hangs", 0)
    said = capfd.readouterr().err
    assert "Stack of every thread:" in said
    assert "could not write" in said
    assert "No such file or directory" in said


def test_a_step_that_never_ends_is_reported_with_stack_traces(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]):
    left, ended = list[int](), threading.Event()

    def leave(status: int) -> None:
        left.append(status)
        ended.set()

    with Processes(leave=leave) as alone, alone.watched_by(Watchdog(tmp_path, floor=0.2, factor=10.0, start=0.2)) as watchdog:
        for step in range(3):
            watchdog.step_done(step)
        with open(2, "w", closefd=False, encoding="utf8") as buffered, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stderr", buffered)
            assert ended.wait(30), "the watchdog never fired"
    assert left == [HUNG]
    (report,) = tmp_path.glob("hang-0-*.txt")
    for text in (report.read_text(), capfd.readouterr().err):
        found = r"process 0 made no progress for \d s in the step after 2 \(limit 0 s\); the same command resumes"
        assert re.match(found, text)
        assert "test_a_step_that_never_ends_is_reported_with_stack_traces" in text  # the stack of this thread


def test_progress_of_any_kind_keeps_the_watchdog_quiet(tmp_path: pathlib.Path):
    now = [0.0]
    watchdog = Watchdog(tmp_path, floor=8.0, start=8.0, clock=lambda: now[0])
    for progress in range(30):  # no progress for slightly less than the limit, then progress of either kind
        now[0] += 7.9
        assert watchdog.hang() == ""
        watchdog.step_done(progress) if progress % 2 else watchdog.alive("evaluation")


def test_the_limit_follows_the_median_step_without_evaluations(tmp_path: pathlib.Path):
    now = [0.0]
    watchdog = Watchdog(tmp_path, floor=5.0, factor=10.0, start=100.0, clock=lambda: now[0])
    assert watchdog.limit() == 100.0  # nothing is done yet: this may be the compilation
    for step, seconds in enumerate([0, 1, 1, 50, 1]):  # one outlier
        now[0] += seconds
        watchdog.step_done(step)
    assert watchdog.limit() == 10.0
    now[0] += 500
    watchdog.alive("evaluation")
    now[0] += 500
    watchdog.step_done(6)
    assert watchdog.limit() == 10.0


def test_a_later_compilation_has_the_limit_of_the_first(tmp_path: pathlib.Path):
    """A second phase or an evaluation compiles too. The step after a compilation gets as much time, since it may wait for the
    compilation in another process."""
    now = [0.0]
    watchdog = Watchdog(tmp_path, floor=5.0, start=100.0, clock=lambda: now[0])
    for step in range(3):
        watchdog.step_done(step)
    assert watchdog.limit() == 5.0
    now[0] += 4.0
    watchdog.compiling()
    assert watchdog.limit() == 100.0
    now[0] += 100.0
    assert watchdog.hang() == ""
    now[0] += 1.0
    assert watchdog.hang() == "made no progress for 101 s in compilation, or the first step after it (limit 100 s)"
    watchdog.step_done(3)
    assert watchdog.limit() == 5.0
    watchdog.compiling()
    watchdog.alive("evaluation")
    assert watchdog.limit() == 5.0


def test_a_slow_transfer_of_a_checkpoint_has_the_limit_of_the_start(tmp_path: pathlib.Path):
    """Another run of a sweep, which finishes a step meanwhile, does not change this."""
    now = [0.0]
    watchdog = Watchdog(tmp_path, floor=5.0, start=100.0, clock=lambda: now[0])
    for step in range(3):
        watchdog.step_done(step)
    with watchdog.transferring("saving a checkpoint"):
        watchdog.step_done(3)
        watchdog.alive("evaluation")
        now[0] += 100.0
        assert watchdog.hang() == ""
    now[0] += 6.0
    assert watchdog.hang() == "made no progress for 6 s in the work after saving a checkpoint (limit 5 s)"


def test_a_hung_process_ends_immediately():
    """`sys.exit` would end only the watching thread, and a regular exit waits for the hung one."""
    assert Processes()._leave is os._exit
    assert Processes()._thread.daemon
