from __future__ import annotations

import pathlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax import pretrain
from bert_jax.configs.command_line import parse_flags
from bert_jax.errors import UserError
from bert_jax.runtime import processes
from bert_jax.runtime.code_version import code_digest, git_commit
from bert_jax.runtime.heartbeats import BEAT, SILENT
from bert_jax.runtime.launch import begin
from tests.end_to_end import forked
from tests.end_to_end.forked import Started
from tests.end_to_end.runs import free_port
from tests.runtime.test_roll_call import Time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def group(count: int, port: int) -> list[processes.Hosts]:
    names = tuple(f"worker {i}" for i in range(count))
    return [processes.Hosts(f"127.0.0.1:{port}", count, i, names, "THE REMEDY") for i in range(count)]


def call(
    present: list[processes.Hosts], facts: list[dict[str, str]], timeout: float, begin: Callable[[], str] = str
) -> list[str]:
    """The roll call of several workers at once, each in a thread: what each was told, "" for all well."""
    told = [""] * len(present)

    def one(i: int) -> None:
        try:
            told[i] = processes.roll_call(present[i], facts[i], timeout, say=lambda line: None, begin=begin)
        except UserError as error:
            told[i] = str(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(present))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return told


def test_workers_that_agree_go_on():
    assert call(group(4, free_port()), [{"jax": "1"}] * 4, timeout=30) == [""] * 4


def test_everyone_present_hears_who_is_missing():
    told = call(group(4, free_port())[:2], [{"jax": "1"}] * 2, timeout=1)
    assert told[0] == told[1]
    assert "4 workers expected, and worker 2, worker 3 did not start" in told[0]
    assert "THE REMEDY" in told[0]


def test_a_worker_whose_first_one_is_missing_says_so_within_the_time():
    (told,) = call(group(2, free_port())[1:], [{}], timeout=1)
    assert "this is worker 1 of 2, and worker 0 at 127.0.0.1" in told
    assert "did not answer within 1 s" in told
    assert "THE REMEDY" in told


def test_a_difference_is_named_to_all():
    facts = [{"jax": "0.10.2", "config.seed": "0"}, {"jax": "0.10.2", "config.seed": "0"}, {"jax": "0.11.0", "config.seed": "1"}]
    told = call(group(3, free_port()), facts, timeout=30)
    assert told[0] == told[1] == told[2]
    assert "  config.seed: worker 0 has 0, worker 2 has 1\n  jax: worker 0 has 0.10.2, worker 2 has 0.11.0\n" in told[0]


def test_all_go_on_with_what_the_first_one_begins_once_all_agree():
    begun: list[str] = []

    def begin() -> str:
        begun.append("once")
        return "this start"

    assert call(group(3, free_port()), [{}] * 3, timeout=30, begin=begin) == ["this start"] * 3
    assert begun == ["once"]
    told = call(group(2, free_port()), [{"jax": "1"}, {"jax": "2"}], timeout=30, begin=begin)
    assert ["jax: worker 0 has 1, worker 1 has 2" in text for text in told] == [True, True]
    assert begun == ["once"]


def test_a_worker_that_dies_after_its_answer_does_not_keep_the_first_one_from_telling_the_others(monkeypatch: pytest.MonkeyPatch):
    """Its heartbeats will name it."""
    send = processes.send

    def fails_once(connection: socket.socket, text: str) -> None:
        if text.startswith('["",') and not failed:
            failed.append(connection)
            raise BrokenPipeError
        send(connection, text)

    failed: list[socket.socket] = []
    monkeypatch.setattr(processes, "send", fails_once)
    port = free_port()
    first = threading.Thread(target=call, args=(group(3, port)[:1], [{}], 20))
    with socket.socket() as dying:
        first.start()
        while dying.connect_ex(("127.0.0.1", port)):
            dying.close()
            dying.__init__()
        send(dying, "[1, {}]")
        kept: dict[int, socket.socket] = {}
        processes.roll_call(group(3, port)[2], {}, 20, kept=kept)
        first.join(30)
    assert kept.keys() == {0}
    kept[0].close()


def test_what_keeps_the_first_one_from_beginning_is_told_to_all():
    def begin() -> str:
        raise UserError("the workdir holds another run")

    assert call(group(3, free_port()), [{}] * 3, timeout=30, begin=begin) == ["the workdir holds another run"] * 3


def test_a_worker_that_sees_another_directory_finds_out(tmp_path: pathlib.Path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for directory in (ours, theirs):
        directory.mkdir()
    processes.write_marker(ours, "this start")
    assert processes.finds_marker(ours, "this start", patience=0)
    assert not processes.finds_marker(theirs, "this start", patience=0)
    processes.write_marker(theirs, "an earlier start")
    assert not processes.finds_marker(theirs, "this start", patience=0)


def test_a_file_of_another_machine_may_take_a_minute_to_appear(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    clock = Time()
    monkeypatch.setattr(processes, "time", clock)
    assert not processes.finds_marker(tmp_path, "this start")
    assert clock.slept == [0.5] * 120
    processes.write_marker(tmp_path, "this start")
    assert processes.finds_marker(tmp_path, "this start")
    assert len(clock.slept) == 120


def several(monkeypatch: pytest.MonkeyPatch, index: int, count: int = 2) -> None:
    """This is process `index`, and what process 0 tells is what this one tells."""
    monkeypatch.setattr(processes.jax, "process_count", lambda: count)
    monkeypatch.setattr(processes.jax, "process_index", lambda: index)
    monkeypatch.setattr(processes.multihost_utils, "broadcast_one_to_all", lambda value: value)


@pytest.mark.parametrize(("index", "seen", "blind"), [(0, [True, True], ""), (0, [True, False], "1"), (1, [True, True], "")])
def test_the_first_process_marks_its_directory_and_all_look_for_it(
    index: int, seen: list[bool], blind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    marker = tmp_path / processes.MARKER_FILE
    several(monkeypatch, index)
    monkeypatch.setattr(processes, "time", Time())

    def allgather(own: np.ndarray) -> np.ndarray:
        assert bool(own) is marker.exists() is (index == 0)
        return np.array(seen)

    monkeypatch.setattr(processes.multihost_utils, "process_allgather", allgather)
    if blind:
        with pytest.raises(UserError, match=f"is not the directory that process {blind} sees under that name"):
            processes.require_shared_directory(tmp_path)
    else:
        processes.require_shared_directory(tmp_path)
    assert not marker.exists()


def test_a_marker_that_is_gone_already_is_no_error_and_one_process_needs_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    several(monkeypatch, 0, count=1)
    processes.require_shared_directory(tmp_path / "gone")
    assert list(tmp_path.iterdir()) == []
    several(monkeypatch, 0)
    asked: list[bool] = []

    def allgather(own: np.ndarray) -> np.ndarray:
        asked.append(bool(own))
        (tmp_path / processes.MARKER_FILE).unlink()
        return np.array([True, True])

    monkeypatch.setattr(processes.multihost_utils, "process_allgather", allgather)
    processes.require_shared_directory(tmp_path)
    assert asked == [True]


@pytest.mark.parametrize(("index", "count"), [(0, 1), (0, 2), (1, 2)])
def test_what_goes_wrong_in_the_first_process_is_raised_in_all(index: int, count: int, monkeypatch: pytest.MonkeyPatch):
    said = "é" * 3000
    told: list[bytes] = []

    def broadcast(value: np.ndarray) -> np.ndarray:
        told.append(value.tobytes())
        return np.frombuffer(first[0], np.uint8)

    def fails() -> None:
        raise UserError(said)

    several(monkeypatch, index, count)
    monkeypatch.setattr(processes.multihost_utils, "broadcast_one_to_all", broadcast)
    first = [b"a mistake".ljust(4096, b"\0")]
    if count == 1:
        processes.on_first_process(lambda: None)
        with pytest.raises(UserError, match=said):
            processes.on_first_process(fails)
        assert told == []
        return
    with pytest.raises(UserError, match="a mistake"):
        processes.on_first_process(fails)
    assert told == [said.encode()[:4096] if index == 0 else bytes(4096)]
    first = [bytes(4096)]
    done: list[str] = []
    processes.on_first_process(lambda: done.append("done"))
    assert done == ["done"] * (index == 0)


@pytest.mark.parametrize(("chips", "bounds"), [(1, "1,1,1"), (4, "2,2,1"), (8, "2,4,1"), (0, "2,2,1")])
def test_a_host_that_stays_apart_is_a_slice_of_its_own(monkeypatch: pytest.MonkeyPatch, chips: int, bounds: str):
    names = ("TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "CLOUD_TPU_TASK_ID", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES")
    found = [pathlib.Path(f"/dev/accel{i}") for i in range(chips)]
    monkeypatch.setattr(pathlib.Path, "glob", lambda self, pattern: found if pattern.startswith("accel") else [])
    environment = dict.fromkeys(names, "of the slice") | {"MEGASCALE_NUM_SLICES": "2", "OTHER": "stays"}
    monkeypatch.setattr(processes.os, "environ", environment)
    processes.isolate_tpu_chips()
    assert environment == dict(zip(names, ("1,1,1", bounds, "0", "0", "localhost"), strict=True)) | {"OTHER": "stays"}


def test_a_stranger_on_the_port_changes_nothing():
    port = free_port()
    stop = threading.Event()

    def stranger() -> None:
        while not stop.wait(0.01):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            except OSError:
                pass

    thread = threading.Thread(target=stranger)
    thread.start()
    try:
        assert call(group(2, port), [{}, {}], timeout=30) == ["", ""]
    finally:
        stop.set()
        thread.join()


def test_a_port_in_use_is_an_error():
    with socket.create_server(("", 0)) as server, pytest.raises(UserError, match="cannot be opened"):
        processes.roll_call(group(2, server.getsockname()[1])[0], {}, timeout=5)


def test_identity_names_packages_commit_and_every_configuration_key():
    facts = processes.process_facts({"seed": 3, "optimizer": {"name": "lamb"}})
    assert facts["config.seed"] == "3"
    assert facts["config.optimizer.name"] == '"lamb"'
    assert facts["jax"] == jax.__version__
    assert facts["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert facts["libtpu"]
    assert (facts["commit"], facts["code"]) == (git_commit(), code_digest())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("host:1", 2, None), "--process missing"),
        ((None, None, 1), "--coordinator, --processes missing"),
        (("host", 2, 0), "--coordinator=host must be HOST:PORT of process 0, with a port of at least 1 and at most 65,535; "),
        (("host:99999", 2, 0), "--coordinator=host:99999 must be .* at most 65,535; --coordinator=host:8476 is one"),
        (("host:0", 2, 0), "--coordinator=host:0 must be .* at least 1 "),
        (("host:1", 2, 2), "numbered from 0 to 1"),
        (("host:1", 2, -1), "numbered from 0 to 1"),
        (("host:65536", 2, 0), "at most 65,535"),
        ((":1", 2, 0), "--coordinator=:1 must be HOST:PORT of process 0.*; --coordinator=localhost:8476 is one"),
        ((None, 2, 0), "--coordinator missing"),
        (("host:1", None, 0), "--processes missing"),
    ],
)
def test_flags_that_do_not_go_together_are_errors(flags: tuple[str | None, int | None, int | None], message: str):
    with pytest.raises(UserError, match=message):
        processes.find_hosts(*flags)


@pytest.mark.parametrize("port", [1, 65_535])
def test_flags_that_go_together_are_the_hosts(port: int):
    found = processes.find_hosts(f"host:{port}", 2, 1)
    assert found is not None
    assert (found.coordinator, found.count, found.index) == (f"host:{port}", 2, 1)
    assert found.names == ("process 0", "process 1")
    assert found.remedy == "start one process for each of --process=0 to --process=1, with the same other flags"


def test_processes_that_meet_agree_on_their_configuration_and_keep_their_connections(monkeypatch: pytest.MonkeyPatch):
    hosts = group(2, 1)[0]
    connection: Any = "a connection"

    def roll_call(*given: Any, kept: dict[int, Any]) -> None:
        assert given == (hosts, {"facts": {"seed": 3}}, 7.0)
        kept[1] = connection

    monkeypatch.setattr(processes, "roll_call", roll_call)
    monkeypatch.setattr(processes, "process_facts", lambda config: {"facts": config})
    assert processes.meet(hosts, {"seed": 3}, timeout=7.0) == {1: connection}


def test_one_process_is_no_group(monkeypatch: pytest.MonkeyPatch):
    assert processes.find_hosts("host:1", 1, 0) is None
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    assert processes.find_hosts() is None  # the user asked for the CPU


def test_our_heartbeats_name_a_silent_process_before_the_service_of_jax_aborts_all(monkeypatch: pytest.MonkeyPatch):
    asked: dict[str, Any] = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given, **limits: asked.update(limits, given=given))
    processes.connect(group(2, 1)[1], timeout=300.0, patience=600.0)
    assert asked["heartbeat_timeout_seconds"] / 2 > 600 + SILENT * BEAT  # it may speak after half of its limit
    assert asked == {
        "given": ("127.0.0.1:1", 2, 1),
        "coordinator_bind_address": "127.0.0.1:1",
        "initialization_timeout": 300,
        "heartbeat_timeout_seconds": 2 * 600 + 100,
        "shutdown_timeout_seconds": 0,  # its barrier would wait for processes that wait for the first one
    }
    processes.connect(group(2, 1)[0], timeout=5.0, patience=0.7)
    assert (asked["initialization_timeout"], asked["heartbeat_timeout_seconds"]) == (60, 100), "a minute at least"


def stand_by() -> int:
    """A run of 2,000 short steps of nothing."""
    flags = parse_flags("pretrain", "", sys.argv[1:])
    with begin("pretrain", flags, flags.config) as run:
        print("together", jax.process_count() * 10 + jax.process_index(), flush=True)
        for step in range(2_000):
            time.sleep(0.02)
            if run.preemption.requested(step):
                print("left after", step, flush=True)
                return run.preemption.exit_status
    return 0


def stand_by_instead() -> None:
    """In a new process, in which `pretrain` does `stand_by`."""
    pretrain.main = stand_by


def start(tmp_path: pathlib.Path, port: int, index: int) -> Started:
    """Process `index` of two."""
    (tmp_path / "experiment.py").write_text("def get_config(): return {'seed': 0}")
    flags = [f"--config={tmp_path / 'experiment.py'}", f"--workdir={tmp_path / 'run'}"]
    flags += [f"--coordinator=127.0.0.1:{port}", "--processes=2", f"--process={index}", "--start-timeout=60"]
    return forked.start(tmp_path, ("pretrain", *flags), prepare=stand_by_instead)


def test_two_processes_run_together_and_leave_at_the_same_step_when_one_is_preempted(tmp_path: pathlib.Path):
    port = free_port()
    pair = [start(tmp_path, port, i) for i in range(2)]
    pair[1].wait_until(lambda: any("together" in text for text in pair[1].said()))
    pair[1].process.terminate()
    ends = [process.end()[0] for process in pair]
    assert [end.status for end in ends] == [143, 143], ends
    assert ["together 20" in ends[0].output, "together 21" in ends[1].output] == [True, True]
    steps = [line for end in ends for line in end.output.splitlines() if line.startswith("left after")]
    assert len(steps) == 2
    assert steps[0] == steps[1]


def test_an_error_of_the_first_process_ends_both(tmp_path: pathlib.Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("")
    port = free_port()
    pair = [start(tmp_path, port, i) for i in range(2)]
    ends = [process.end()[0] for process in pair]
    assert [end.status for end in ends] == [2, 2]
    assert all("holds files that are not of a run (thesis.tex)" in end.output for end in ends)
