from __future__ import annotations

import os
import pathlib
import signal
import sys
import threading
import types

import pytest

from bert_jax.interface.exit_statuses import HUNG
from bert_jax.runtime import interruptions
from bert_jax.runtime.interruptions import Preemption, Watchdog


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


def test_the_user_is_told_what_a_signal_does(capfd: pytest.CaptureFixture[str]):
    with Preemption():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    with Preemption():
        os.kill(os.getpid(), signal.SIGINT)
    stopping = "saving after this step, then stopping"
    again = "; Ctrl-C again stops at once, without saving"
    assert capfd.readouterr().err == f"\nSIGTERM: {stopping}\n" * 2 + f"\nSIGINT: {stopping}{again}\n"


def test_a_request_of_another_process_is_a_stop_like_sigterm_and_leaves_a_signal_of_its_own():
    with Preemption() as preemption:
        assert preemption.exit_status == 143
        preemption.request()
        assert preemption.requested(1)
        assert preemption.exit_status == 143
    with Preemption() as preemption:
        os.kill(os.getpid(), signal.SIGINT)
        preemption.request()
        assert preemption.exit_status == 130


def test_several_processes_stop_at_the_step_that_the_service_of_jax_chooses(monkeypatch: pytest.MonkeyPatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(interruptions.jax, "process_count", lambda: 2)
    monkeypatch.setattr(interruptions.multihost_utils, "reached_preemption_sync_point", lambda step: step == 3)
    with Preemption() as preemption:
        assert signal.getsignal(signal.SIGTERM) is before, "it handles the signal"
        assert [preemption.requested(step) for step in range(2, 6)] == [False, True, True, True]
        assert preemption.exit_status == 143


def test_a_run_in_another_thread_sets_no_handlers():
    before = signal.getsignal(signal.SIGTERM)
    found: list[object] = []

    def run() -> None:
        with Preemption() as preemption:
            found.extend([signal.getsignal(signal.SIGTERM), preemption.requested(1)])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before, False]


def test_the_limits_are_an_hour_for_the_start_ten_steps_after_it_and_ten_minutes_at_least(tmp_path: pathlib.Path):
    now = [0.0]
    watchdog = Watchdog(tmp_path, clock=lambda: now[0])
    assert watchdog.limit() == 3600
    assert watchdog._thread.daemon
    for seconds in (0, 100, 100):
        now[0] += seconds
        watchdog.step_done(1)
    assert watchdog.limit() == 1000
    for _ in range(3):
        now[0] += 1
        watchdog.step_done(1)
    assert watchdog.limit() == 600
    assert Watchdog(tmp_path, floor=9000.0).limit() == 9000


def test_the_median_is_that_of_the_last_101_steps(tmp_path: pathlib.Path):
    now = [0.0]
    watchdog = Watchdog(tmp_path, floor=1.0, clock=lambda: now[0])
    watchdog.step_done(0)
    for seconds in (4.0,) * 51 + (2.0,) * 51:
        now[0] += seconds
        watchdog.step_done(1)
    assert watchdog.limit() == 20.0


@pytest.mark.parametrize(("limit", "pause"), [(8.0, 2.0), (100.0, 5.0)])
def test_the_watchdog_looks_four_times_within_the_limit_and_every_five_seconds(
    limit: float, pause: float, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    now, pauses, left = [1000.0], list[float](), list[int]()
    watchdog = Watchdog(tmp_path, floor=limit, start=limit, clock=lambda: now[0], leave=left.append)

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        now[0] += seconds
        return False

    said: list[object] = []
    watchdog.heartbeats = types.SimpleNamespace(silent=lambda: "", tell=lambda *reasons: said.append(reasons))  # type: ignore[assignment]
    monkeypatch.setattr(watchdog, "_closed", types.SimpleNamespace(wait=wait))
    monkeypatch.setattr(watchdog, "_report", lambda *given: said.append(given))
    watchdog._watch()
    assert left == [HUNG]
    assert pauses == [pause] * (int(limit / pause) + 1), "not yet at the limit itself"
    found = f"process 0 made no progress for {limit + pause:.0f} s in the start (compilation) (limit {limit:.0f} s)"
    assert said == [(found, 0), (found, "")]


@pytest.mark.parametrize("silent", ["", "worker 3 is silent"])
def test_the_report_begins_with_what_was_found(
    silent: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    left: list[int] = []
    watchdog = Watchdog(tmp_path, floor=1.0, start=1.0, clock=iter([0.0, 5.0]).__next__, leave=left.append)
    told: list[object] = []
    watchdog.heartbeats = types.SimpleNamespace(silent=lambda: silent, tell=lambda *reasons: told.append(reasons))  # type: ignore[assignment]
    monkeypatch.setattr(watchdog, "_closed", types.SimpleNamespace(wait=lambda seconds: False))
    with open(2, "w", closefd=False, encoding="utf8") as buffered:
        monkeypatch.setattr(sys, "stderr", buffered)
        watchdog._watch()
    found = "process 0 made no progress for 5 s in the start (compilation) (limit 1 s)"
    title = f"{found}; {silent}" if silent else found
    title += "; the same command resumes from the last checkpoint. Stack of every thread:\n"
    (report,) = tmp_path.glob("hang-0-*.txt")
    for text in (report.read_text(), capfd.readouterr().err):
        assert text.startswith(title)
        assert "test_the_report_begins_with_what_was_found" in text
    assert (told, left) == ([(found, silent)], [HUNG])


def test_time_in_which_the_process_was_stopped_is_no_hang(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    now, pauses, left = [1000.0], [1.0, 500.0, 1.0, 4.0, 4.0, 4.0], list[int]()
    monkeypatch.setattr(interruptions, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    watchdog = Watchdog(tmp_path, floor=8.0, start=8.0, clock=lambda: now[0], leave=left.append)
    watchdog.step_done(1)

    def wait(seconds: float) -> bool:
        now[0] += pauses.pop(0)  # 500: Ctrl-Z, and `fg` after eight minutes
        return not pauses

    monkeypatch.setattr(watchdog, "_closed", types.SimpleNamespace(wait=wait))
    monkeypatch.setattr(watchdog, "_report", lambda *given: None)
    watchdog._watch()
    assert (left, now[0]) == ([HUNG], 1510.0), "1 + 2 + 1 + 4 seconds are within the limit of 8, and the next 4 are not"
    watchdog.step_done(2)
    assert watchdog._steps[0] == 510.0 - 498.0


def test_a_report_that_cannot_be_written_is_on_stderr_all_the_same(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]):
    Watchdog(tmp_path / "gone")._report("it hangs", 0)
    said = capfd.readouterr().err
    assert "Stack of every thread:" in said
    assert "could not write" in said
    assert "No such file or directory" in said


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
    now, left, progress = [0.0], list[int](), list[int]()
    watchdog = Watchdog(tmp_path, floor=8.0, start=8.0, clock=lambda: now[0], leave=left.append)

    def wait(seconds: float) -> bool:
        """Nothing for a moment less than the limit, and then progress of one kind or the other."""
        now[0] += 7.9
        progress.append(len(progress))
        watchdog.step_done(len(progress)) if len(progress) % 2 else watchdog.alive("evaluation")
        return len(progress) == 30

    watchdog._closed = types.SimpleNamespace(wait=wait)  # type: ignore[assignment]
    watchdog._watch()
    assert (left, list(tmp_path.iterdir())) == ([], [])


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


def test_a_process_ends_at_once_wherever_it_hangs(tmp_path: pathlib.Path):
    """`sys.exit` would end the watching thread alone, and a regular exit waits for what hangs."""
    assert Watchdog(tmp_path)._leave is os._exit
