"""Messages between the processes of a run after they are connected: heartbeats, agreements, final messages."""

from __future__ import annotations

import contextlib
import os
import pathlib
import selectors
import signal
import socket
import sys
import threading
import time
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import pytest

from bert_jax import pretrain
from bert_jax.configs.command_line import parse_flags
from bert_jax.data.corpus.store import CorruptedCorpus
from bert_jax.errors import HUNG, USER_ERROR_STATUS, UserError
from bert_jax.interface import python_files
from bert_jax.interface.python_files import load_module
from bert_jax.runtime import processes
from bert_jax.runtime.hosts import Hosts
from bert_jax.runtime.interruptions import Watchdog
from bert_jax.runtime.launch import start_run
from bert_jax.runtime.processes import BEAT, MARKER_FILE, SILENT, Processes, ProcessesLost, require_shared_directory
from bert_jax.sharding.device_errors import OutOfMemory
from tests.clock import Clock, SelectorClock
from tests.end_to_end import forked
from tests.end_to_end.forked import Started
from tests.end_to_end.runs import free_port
from tests.runtime.connected import NAMES, group


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a process 0.3 s, instead of 10, to end on its own after another has failed."""
    monkeypatch.setattr(processes, "GRACE", 0.3)


# ---------------------------------------------------------------------------------------------------------------------- the ends
def test_a_killed_process_is_named_by_all_others_before_they_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    class Selector(selectors.DefaultSelector):
        """A selector that records the connections that are no longer waited for."""

        def unregister(self, file: Any) -> Any:
            left_out.append(file)
            return super().unregister(file)

    left_out: list[Any] = []
    monkeypatch.setattr(selectors, "DefaultSelector", Selector)
    with group(beating=(0, 1)) as three:
        three.die(2)
        assert three.ends(2) == {0: HUNG, 1: HUNG}
        assert three.sockets[0][1] in left_out, "a closed connection would always be ready, and keep a core busy"
        line = "worker 2 (c) of 3 has ended without a final message, as after a kill or a crash\n"
        assert capfd.readouterr().err.count(line) == 2


def test_a_silent_process_is_named_by_all_others_before_they_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(processes, "FAREWELL", 0.5)
    with group(patience=0.5, beating=(0, 1)) as three:
        assert list(three.ends(2).items()) == [(1, HUNG), (0, HUNG)]  # process 0 ends last
        assert capfd.readouterr().err.count("worker 2 (c) of 3 has sent no heartbeat for ") == 2


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 1, 2), (1, 2, 0)])
def test_processes_that_announce_their_end_do_not_disturb_others(order: tuple[int, ...], capfd: pytest.CaptureFixture[str]):
    with group() as three:
        threads = {index: three.exit(index) for index in order}
        for index in order:
            threads[index].join(30)
            assert not threads[index].is_alive()
            assert not three.members[index]._thread.is_alive()
    assert three.left.empty()
    assert capfd.readouterr().err == ""


def test_processes_exit_after_the_first_has_finished_and_the_first_exits_last():
    """If the first process exited earlier, JAX's coordination service would abort the others."""
    with group() as three:
        early = three.exit(2, SystemExit(0))
        early.join(0.3)
        assert early.is_alive()  # process 0 still works, and may fail
        first = three.exit(0)
        early.join(30)
        assert not early.is_alive()
        first.join(0.3)
        assert first.is_alive()  # process 1 still works
        three.exit(1).join(30)
        first.join(30)
        assert not first.is_alive()
    assert three.left.empty()


def test_heartbeats_continue_after_the_first_process_has_ended():
    with group(patience=0.4) as three:
        first, second = three.exit(0), three.exit(1)
        first.join(1.0)
        assert first.is_alive()
        assert three.left.empty()
        three.exit(2)
        for thread in (first, second):
            thread.join(30)
            assert not thread.is_alive()
    assert three.left.empty()


@pytest.mark.usefixtures("hurried")
def test_a_failed_first_process_ends_after_the_others(capfd: pytest.CaptureFixture[str]):
    with group() as three:
        first = three.exit(0, UserError("the corpus is empty; name another"))
        first.join(0.1)
        assert first.is_alive()
        assert three.ends(2) == {1: USER_ERROR_STATUS, 2: USER_ERROR_STATUS}
        first.join(30)
        assert not first.is_alive()
    assert three.left.empty()
    assert capfd.readouterr().err.count("error: worker 0 (a) of 3 has failed: the corpus is empty; name another\n") == 2


def test_if_all_fail_alike_the_first_process_exits_after_the_others(capfd: pytest.CaptureFixture[str]):
    """Otherwise the first process would wait `GRACE` more seconds, and then report its own error as the error of another
    process."""
    error = UserError("the corpus is empty; name another")
    with group(beating=(0,)) as three:
        first = three.exit(0, error)
        for index in (1, 2):
            first.join(0.1)
            assert first.is_alive()
            three.exit(index, error)
        first.join(30)
        assert not first.is_alive()
    assert three.left.empty()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (KeyboardInterrupt(), HUNG, "worker 1 (b) of 3 has failed: KeyboardInterrupt\n"),
        (UserError("the bucket is gone"), USER_ERROR_STATUS, "error: worker 1 (b) of 3 has failed: the bucket is gone\n"),
    ],
    ids=["interrupted", "failed"],
)
@pytest.mark.usefixtures("hurried")
def test_an_error_of_one_process_ends_the_others_with_its_message(
    error: BaseException, status: int, says: str, capfd: pytest.CaptureFixture[str]
):
    with group() as three:
        ended = three.exit(1, error)
        ended.join(30)
        assert not ended.is_alive()
        assert three.ends(2) == {0: status, 2: status}
    assert capfd.readouterr().err.count(says) == 2


@pytest.mark.usefixtures("hurried")
def test_a_failure_of_another_ends_a_finished_process_with_an_error_and_a_failed_one_that_does_not_exit():
    for finished in (True, False):
        with group(count=2, beating=(0,)) as two:
            if finished:
                two.exit(0)
            else:
                two.members[0].__exit__(UserError, UserError("it failed"), None)  # e.g. a thread that hangs delays the exit
            two.exit(1, UserError("it failed"))
            assert two.ends(1) == {0: USER_ERROR_STATUS}, f"{finished=}"


def test_silence_is_reported_to_all_before_it_counts_as_loss():
    with group(patience=60.0, beating=(0, 1)) as three:
        deadline = time.monotonic() + 30
        while not all("worker 2 (c) of 3 has sent no heartbeat for" in three.members[i].silent() for i in (0, 1)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert three.left.empty()


@pytest.mark.parametrize("index", [0, 2])
def test_a_hang_of_one_process_ends_all_with_its_message(index: int, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]):
    with group() as three:
        now = [0.0]
        with three.members[index].watched_by(Watchdog(tmp_path, floor=9.0, start=9.0, clock=lambda: now[0])) as watchdog:
            watchdog.alive("evaluation")
            now[0] = 15.0
            ends = three.ends(3)
    assert ends == {0: HUNG, 1: HUNG, 2: HUNG}
    assert [*ends][-1] == 0, "process 0 ends last"
    said = f"process {index} made no progress for 15 s in evaluation (limit 9 s)"
    assert capfd.readouterr().err.count(f"{said}\n") == 2
    (report,) = tmp_path.glob(f"hang-{index}-*.txt")
    assert report.read_text().startswith(f"{said}; the same command resumes from the last checkpoint. Stack of every thread:\n")


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (OutOfMemory("this run does not fit in memory"), USER_ERROR_STATUS, "error: this run does not fit in memory\n"),
        (CorruptedCorpus("a bit is wrong"), USER_ERROR_STATUS, "error: a bit is wrong\n"),
        (jax.errors.JaxRuntimeError("Gloo failed\nat x.cc"), HUNG, "worker 2 (c) of 3 lost the other processes: Gloo failed\n"),
    ],
    ids=["memory", "corpus", "collective"],
)
@pytest.mark.usefixtures("hurried")
def test_a_device_error_ends_all_processes_with_its_message(
    error: Exception, status: int, says: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """A process that exited regularly would wait for the others, while the others wait for it."""

    def leave(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    with group() as three:
        with pytest.raises(SystemExit) as ended:
            three.members[2].__exit__(type(error), error, None)
        assert ended.value.code == status
        three.die(2)
        assert three.ends(2) == {0: status, 1: status}
    said = capfd.readouterr().err
    assert says in said
    assert said.count(str(error).splitlines()[0]) == 3


def test_the_first_process_exits_last_after_a_device_error(monkeypatch: pytest.MonkeyPatch):
    """If it exited earlier, JAX's coordination service would abort the others before they have read why."""

    def leave(status: int) -> NoReturn:
        left.append(three.left.qsize())
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    error, left = jax.errors.JaxRuntimeError("Gloo failed"), list[int]()
    with group() as three:
        with pytest.raises(SystemExit) as ended:
            three.members[0].__exit__(type(error), error, None)
        assert (ended.value.code, left) == (HUNG, [2])
        assert three.ends(2) == {1: HUNG, 2: HUNG}


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError("Gloo failed"), UserError("no such file")])
def test_other_errors_do_not_skip_the_cleanup(error: Exception):
    with group() as three:
        three.members[1].end_after(error)
        assert three.left.empty()


def test_a_single_process_waits_for_nobody():
    for error in (None, OutOfMemory("no room")):
        with pytest.raises(type(error)) if error else contextlib.nullcontext(), Processes() as alone:
            assert alone.gather({"a": 1}) == [{"a": 1}]
            if error:
                raise error


def test_a_process_counts_as_silent_after_missed_heartbeats(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    first = Processes(Hosts("", 3, 0, NAMES, ""), {i: socket.socket() for i in (1, 2)})
    clock.advance(SILENT * BEAT)
    assert first.silent() == ""
    clock.advance(0.5)
    assert first.silent() == "; ".join(f"{NAMES[i]} of 3 has sent no heartbeat for 8 s" for i in (1, 2))


# ------------------------------------------------------------------------------------------------------------------- by the clock
def watchdog(directory: pathlib.Path, seconds: float) -> Watchdog:
    """Returns a watchdog that waits this long for each step."""
    return Watchdog(directory, floor=seconds, start=seconds, clock=time.monotonic)


@pytest.mark.parametrize(("limit", "pause"), [(4.0, 1.0), (100.0, 2.0)])
def test_hangs_are_checked_four_times_per_limit_and_every_heartbeat(
    limit: float, pause: float, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    clock = SelectorClock(monkeypatch)
    with group(count=1, beating=(), beat=BEAT) as one, one.members[0].watched_by(watchdog(tmp_path, limit)), one.members[0]:
        assert one.ends(1) == {0: HUNG}
    assert clock.passed == limit + pause, "not yet at the limit itself"


def test_time_while_the_process_is_stopped_is_no_hang(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    clock = SelectorClock(monkeypatch, 2.0, 500.0)  # 500: Ctrl-Z, then `fg` after eight minutes
    with group(count=1, beating=(), beat=BEAT) as one, one.members[0].watched_by(watchdog(tmp_path, 8.0)), one.members[0]:
        assert one.ends(1) == {0: HUNG}
    assert clock.passed == 2 + 500 + 3 * 2


def test_time_while_the_process_is_stopped_is_no_silence_of_others(monkeypatch: pytest.MonkeyPatch):
    clock = SelectorClock(monkeypatch, 2.0, 500.0)
    with group(count=2, beating=(1,), beat=BEAT) as two:
        assert two.ends(1) == {1: HUNG}
    assert clock.passed == 500 + 60


def test_a_hung_process_names_the_silent_ones(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    clock = SelectorClock(monkeypatch)
    clock.runs.clear()
    with group(count=2, beating=(1,), beat=BEAT) as two, two.members[1].watched_by(watchdog(tmp_path, 9.0)):
        clock.runs.set()
        assert two.ends(1) == {1: HUNG}
    found = "process 1 made no progress for 10 s in the start (compilation) (limit 9 s); "
    assert f"{found}worker 0 (a) of 2 has sent no heartbeat for 10 s; the same command" in capfd.readouterr().err


@pytest.mark.parametrize(("index", "seconds"), [(1, 10.0), (0, 16.0)])
def test_a_process_has_ten_seconds_to_end_on_its_own_after_another_has_failed(
    index: int, seconds: float, monkeypatch: pytest.MonkeyPatch
):
    """Process 0 waits five more seconds for the others to exit, until its next heartbeat."""
    clock, error = SelectorClock(monkeypatch), UserError("it failed")
    with group(count=2, beating=(), beat=BEAT) as two:
        two.members[1 - index].__exit__(UserError, error, None)
        two.members[index].__enter__()
        assert two.ends(1) == {index: USER_ERROR_STATUS}
    assert clock.passed == seconds


def test_the_first_process_waits_at_most_a_minute_for_others_that_announced_their_end(monkeypatch: pytest.MonkeyPatch):
    clock = SelectorClock(monkeypatch)
    clock.runs.clear()
    with group(count=2, beating=(0,), beat=BEAT) as two:
        two.members[1].__exit__(None, None, None)
        first = two.exit(0)
        first.join(0.1)
        assert first.is_alive()
        clock.runs.set()
        first.join(30)
        assert two.left.empty()
        assert clock.passed == 60


# -------------------------------------------------------------------------------------------------------------------- agreements
def test_a_peer_that_reads_nothing_blocks_a_message_for_at_most_five_seconds():
    with group() as three:
        assert {connection.gettimeout() for connections in three.sockets.values() for connection in connections} == {5.0}


def test_values_are_gathered_in_process_order():
    """A process may already send its next value while another still waits for the one before."""

    def several(one: Processes) -> list[Any]:
        long = one.gather(f"é{'x' * 200_000 * one.index}")
        return [one.gather([one.index, number]) for number in range(100)] + [[len(text) for text in long]]

    with group() as three:
        for said in three.all(several):
            assert said == [[[index, number] for index in range(3)] for number in range(100)] + [[1, 200_001, 400_001]]


def test_errors_of_the_first_process_are_raised_in_all():
    did, error = [], UserError("é" * 3000)

    def fails() -> None:
        raise error

    def call(one: Processes) -> str:
        one.first(lambda: did.append("once"))
        with pytest.raises(UserError) as raised:
            one.first(fails)
        return str(raised.value)

    with pytest.raises(UserError) as raised:
        Processes().first(fails)
    assert raised.value is error
    for count in (2, 3):
        with group(count=count) as several:
            assert several.all(call) == ["é" * 3000] * count
    assert did == ["once", "once"]


@pytest.mark.parametrize("asked", [{0}, {2}, {0, 1, 2}])
@pytest.mark.parametrize("before", [0, 20])
def test_all_processes_stop_in_the_same_call_which_none_had_reached_before_the_request(asked: set[int], before: int):
    def steps(one: Processes) -> int | None:
        for call in range(10_000):
            time.sleep(0.001 * (one.index + 1))
            if one.stop_together(one.index in asked and call >= before):
                assert one.stop_together(False)
                return call
        return None

    with group() as three:
        first, *others = three.all(steps)
        assert first is not None
        assert first >= before
        assert others == [first, first]


def test_a_process_that_waits_for_a_value_of_one_that_dies_is_ended():
    with group(beating=(0, 1)) as three:
        dying = threading.Timer(0.1, three.die, args=(2,))
        dying.start()
        with pytest.raises(ProcessesLost):
            three.members[0].gather(1)
        assert three.ends(2) == {0: HUNG, 1: HUNG}


def test_processes_without_a_shared_directory_detect_it(tmp_path: pathlib.Path):
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()

    def look(one: Processes, blind: int) -> str:
        directory = tmp_path / ("theirs" if one.index == blind else "ours")
        try:
            require_shared_directory(one, directory, patience=0.0)
        except UserError as error:
            return str(error)
        return ""

    with group() as three:
        assert three.all(lambda one: look(one, 9)) == [""] * 3
        (tmp_path / "theirs" / MARKER_FILE).write_text("of an earlier start")
        for said in three.all(lambda one: look(one, 2)):
            assert "is not the directory that process 2 sees under that name" in said
    assert not (tmp_path / "ours" / MARKER_FILE).exists()
    require_shared_directory(Processes(), tmp_path / "gone")


def test_a_file_of_another_machine_may_take_a_minute_to_appear(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    clock, first, second = Clock(monkeypatch), tmp_path / "first", tmp_path / "second"
    first.mkdir()

    def sleep(seconds: float) -> None:
        clock.advance(seconds)
        if clock.passed == 60:
            second.symlink_to(first)

    def look(one: Processes) -> None:
        require_shared_directory(one, second if one.index else first)

    monkeypatch.setattr(time, "sleep", sleep)
    with group(count=2) as two:
        assert two.all(look) == [None, None]
        assert clock.passed == 60
        second.unlink()
        with pytest.raises(UserError, match="is not the directory that process 1 sees"):
            two.all(look)
        assert clock.passed == 120


# --------------------------------------------------------------------------------------------------------------- with JAX itself
def test_a_silent_process_is_named_before_jax_aborts_all(monkeypatch: pytest.MonkeyPatch):
    asked: dict[str, Any] = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given, **limits: asked.update(limits, given=given))
    hosts = [Hosts("127.0.0.1:1", 2, i, NAMES[:2], "") for i in range(2)]
    Processes(hosts[1]).join_jax(300.0)
    assert asked["heartbeat_timeout_seconds"] / 2 > 600 + SILENT * BEAT  # heartbeats come after half of the limit
    assert asked == {
        "given": ("127.0.0.1:1", 2, 1),
        "coordinator_bind_address": "127.0.0.1:1",
        "initialization_timeout": 300,
        "heartbeat_timeout_seconds": 2 * 600 + 100,
        "shutdown_timeout_seconds": 0,  # JAX's barrier could deadlock: others wait for process 0
    }
    Processes(hosts[0], patience=0.7).join_jax(5.0)
    assert (asked["initialization_timeout"], asked["heartbeat_timeout_seconds"]) == (60, 100), "a minute at least"


def test_a_file_that_computes_before_the_processes_are_connected_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(python_files, "_loaded", {})
    jnp.ones(2)  # not in a user's file
    with pytest.raises(UserError, match=r"JAX was used before .* probably by a file of yours .* Loaded files: none$"):
        Processes(Hosts("127.0.0.1:1", 2, 1, NAMES[:2], "")).join_jax(1.0)
    file = tmp_path / "mine.py"
    file.write_text("import jax.numpy as jnp\nSCALE = jnp.ones(2)\n")
    load_module(file, "config.optimizer.name")
    says = rf"a file of yours that computes with JAX .* .*Loaded files: config\.optimizer\.name={file}"
    with pytest.raises(UserError, match=says):
        Processes(Hosts("127.0.0.1:1", 2, 1, NAMES[:2], "")).join_jax(1.0)


def stand_by() -> int:
    """Runs 2,000 short steps that do nothing."""
    flags = parse_flags("pretrain", "", sys.argv[1:])
    with start_run("pretrain", flags, flags.config) as run:
        print("together", jax.process_count() * 10 + jax.process_index(), flush=True)
        for step in range(2_000):
            time.sleep(0.02)
            if run.preemption.requested():
                print("left after", step, flush=True)
                return run.preemption.exit_status
    return 0


def stand_by_instead() -> None:
    """Makes `pretrain` in a new process run `stand_by` instead."""
    pretrain.main = stand_by


def start(tmp_path: pathlib.Path, port: int, index: int) -> Started:
    """Starts process `index` of two."""
    (tmp_path / "experiment.py").write_text("def get_config(): return {'seed': 0}")
    flags = [f"--config={tmp_path / 'experiment.py'}", f"--workdir={tmp_path / 'run'}"]
    flags += [f"--coordinator=127.0.0.1:{port}", "--processes=2", f"--process={index}", "--start-timeout=60"]
    return forked.start(tmp_path, ("pretrain", *flags), prepare=stand_by_instead)


def test_two_processes_stop_at_the_same_step_when_one_is_interrupted(tmp_path: pathlib.Path):
    port = free_port()
    pair = [start(tmp_path, port, i) for i in range(2)]
    pair[1].wait_until(lambda: any("together" in text for text in pair[1].said()))
    assert pair[1].process.pid is not None
    os.kill(pair[1].process.pid, signal.SIGINT)
    ends = [process.end()[0] for process in pair]
    assert [end.status for end in ends] == [143, 130], ends
    assert ["together 20" in ends[0].output, "together 21" in ends[1].output] == [True, True]
    steps = [line for end in ends for line in end.output.splitlines() if line.startswith("left after")]
    assert len(steps) == 2
    assert steps[0] == steps[1]


def test_an_error_of_the_first_of_two_processes_ends_both(tmp_path: pathlib.Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("")
    port = free_port()
    pair = [start(tmp_path, port, i) for i in range(2)]
    ends = [process.end()[0] for process in pair]
    assert [end.status for end in ends] == [2, 2]
    assert all("holds files that are not from a run (thesis.tex)" in end.output for end in ends)
