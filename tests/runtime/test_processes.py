from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from bert_jax.errors import UserError
from bert_jax.runtime import processes, slices
from bert_jax.runtime.heartbeats import BEAT, SILENT

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

PROGRAM = """
import pathlib, sys, time
import jax
from bert_jax.interface.command import run_verb
from bert_jax.runtime.flags import parse_flags
from bert_jax.runtime.launch import begin

def main():
    flags = parse_flags("pretrain", "", sys.argv[1:])
    with begin("pretrain", flags, flags.config) as run:
        total = jax.process_count() * 10 + jax.process_index()
        print("together", total, flush=True)
        for step in range(2000 if flags.config["wait"] else 1):
            time.sleep(0.02)
            if run.preemption.requested(step):
                print("left after", step, flush=True)
                return run.preemption.exit_status

run_verb(main)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


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


def test_a_first_worker_that_is_the_odd_one_is_named_as_such():
    told = call(group(3, free_port()), [{"jax": "0.11.0"}, {"jax": "0.10.2"}, {"jax": "0.10.2"}], timeout=30)
    assert "  jax: worker 0 has 0.11.0, the other 2 have 0.10.2\n" in told[0]


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
    assert facts["jax"][0].isdigit()
    assert facts["libtpu"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("host:1", 2, None), "--process missing"),
        ((None, None, 1), "--coordinator, --processes missing"),
        (("host", 2, 0), "--coordinator=host must be HOST:PORT of process 0, with a port of at least 1 and at most 65,535; "),
        (("host:99999", 2, 0), "--coordinator=host:99999 must be .* at most 65,535; --coordinator=host:8476 is one"),
        (("host:0", 2, 0), "--coordinator=host:0 must be .* at least 1 "),
        (("host:1", 2, 2), "numbered from 0 to 1"),
    ],
)
def test_flags_that_do_not_go_together_are_errors(flags: tuple[str | None, int | None, int | None], message: str):
    with pytest.raises(UserError, match=message):
        processes.find_hosts(*flags)


def test_one_process_is_no_group(monkeypatch: pytest.MonkeyPatch):
    assert processes.find_hosts("host:1", 1, 0) is None
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    assert processes.find_hosts() is None  # the user asked for the CPU


def test_our_heartbeats_name_a_silent_process_before_the_service_of_jax_aborts_all(monkeypatch: pytest.MonkeyPatch):
    asked: dict[str, int] = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **limits: asked.update(limits))
    processes.connect(group(2, 1)[0], timeout=300.0, patience=600.0)
    assert asked["heartbeat_timeout_seconds"] / 2 > 600 + SILENT * BEAT  # it may speak after half of its limit
    assert asked["shutdown_timeout_seconds"] == 0  # its barrier would wait for processes that wait for the first one


def on_tpu(monkeypatch: pytest.MonkeyPatch, **variables: str) -> processes.Hosts | None:
    for name in ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["/x/bert_jax/pretrain.py", "--config=a b.py"])
    return processes.find_hosts()


def test_a_slice_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    found = on_tpu(monkeypatch, TPU_WORKER_HOSTNAMES="t0,t1,t2,t3", TPU_WORKER_ID="2")
    assert found is not None
    assert (found.coordinator, found.count, found.index) == ("t0:8476", 4, 2)
    assert found.names[3] == "worker 3 (t3)"
    assert on_tpu(monkeypatch, TPU_WORKER_HOSTNAMES="localhost", TPU_WORKER_ID="0") is None


def test_several_slices_number_their_workers_one_slice_after_the_other(monkeypatch: pytest.MonkeyPatch):
    found = on_tpu(
        monkeypatch,
        TPU_WORKER_HOSTNAMES="t4,t5",
        TPU_WORKER_ID="1",
        MEGASCALE_NUM_SLICES="3",
        MEGASCALE_SLICE_ID="2",
        MEGASCALE_COORDINATOR_ADDRESS="t0:8080",
    )
    assert found is not None
    assert (found.coordinator, found.count, found.index) == ("t0:8476", 6, 5)
    assert found.names == (
        "worker 0 (slice 0)",
        "worker 1 (slice 0)",
        "worker 2 (slice 1)",
        "worker 3 (slice 1)",
        "worker 4 (t4)",
        "worker 5 (t5)",
    )


def on_a_tpu_vm(monkeypatch: pytest.MonkeyPatch, tpu_env: str = "", **variables: str) -> processes.Hosts | None:
    """The hosts as the second worker of `my-slice` finds them."""
    metadata = {
        "attributes/worker-network-endpoints": "name:8470:10.0.0.2,name:8470:10.0.0.3",
        "attributes/agent-worker-number": "1",
        "attributes/tpu-env": f"ACCELERATOR_TYPE: 'v4-16'\nNODE_ID: 'my-slice'\nZONE: 'us-central2-b'\n{tpu_env}",
    }
    monkeypatch.delenv("TPU_WORKER_HOSTNAMES", raising=False)
    monkeypatch.setattr(slices, "_metadata", metadata.get)
    monkeypatch.setattr(pathlib.Path, "glob", lambda self, pattern: [pathlib.Path("/dev/accel0")])
    return on_tpu(monkeypatch, **variables)


def test_a_slice_is_read_from_the_metadata_of_a_tpu_vm(monkeypatch: pytest.MonkeyPatch):
    found = on_a_tpu_vm(monkeypatch)
    assert found is not None
    assert (found.coordinator, found.index, found.names) == ("10.0.0.2:8476", 1, ("worker 0 (10.0.0.2)", "worker 1 (10.0.0.3)"))
    assert "gcloud compute tpus tpu-vm ssh my-slice --zone=us-central2-b --worker=all --command=" in found.remedy
    assert "tpu_scripts/run.sh pretrain" in found.remedy


def test_slices_that_were_requested_together_are_read_from_the_metadata(monkeypatch: pytest.MonkeyPatch):
    tpu_env = "MEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\nMEGASCALE_COORDINATOR_ADDRESS: '10.0.0.9:8080'\n"
    found = on_a_tpu_vm(monkeypatch, tpu_env, SKYPILOT_NODE_IPS="10.0.0.8\n10.0.0.9\n10.0.0.2\n10.0.0.3")
    assert found is not None
    assert (found.coordinator, found.count, found.index) == ("10.0.0.9:8476", 4, 3)
    assert "gcloud compute tpus queued-resources ssh my --node=all --zone=us-central2-b --worker=all" in found.remedy


def test_slices_that_skypilot_has_requested_one_by_one_are_joined(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slices.os, "environ", os.environ.copy())
    asked: list[object] = []

    def joined(own: list[str], worker: int, addresses: list[str]) -> list[list[str]]:
        asked.append((own, worker, addresses))
        return [["10.0.0.8", "10.0.0.9"], ["10.0.0.2", "10.0.0.3"]]

    monkeypatch.setattr(slices, "joined_slices", joined)
    found = on_a_tpu_vm(monkeypatch, SKYPILOT_NODE_IPS="10.0.0.9\n10.0.0.2\n10.0.0.3\n10.0.0.8")
    assert asked == [(["10.0.0.2", "10.0.0.3"], 1, ["10.0.0.9", "10.0.0.2", "10.0.0.3", "10.0.0.8"])]
    assert found is not None
    assert (found.coordinator, found.count, found.index) == ("10.0.0.8:8476", 4, 3)
    found_by_libtpu = {name: os.environ[name] for name in os.environ if name.startswith("MEGASCALE_")}
    assert found_by_libtpu == {
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
        "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.8:8080",
        "MEGASCALE_PORT": "8080",
    }
    asked.clear()
    for name in found_by_libtpu:
        del os.environ[name]
    alone = on_a_tpu_vm(monkeypatch, SKYPILOT_NODE_IPS="10.0.0.2\n10.0.0.3")  # the hosts of this slice
    assert alone is not None
    assert asked == []


def test_hosts_tell_each_other_which_of_them_are_one_slice():
    """The first address is that of the host that collects; the others stand in the order of their names, not of slices."""
    first, other = ["c", "127.0.0.1"], ["d", "b"]
    addresses, port = ["127.0.0.1", "b", "c", "d"], free_port()
    with ThreadPoolExecutor(4) as pool:
        told = [
            pool.submit(slices.joined_slices, own, worker, addresses, port=port, timeout=30)
            for own in (first, other)
            for worker in range(2)
        ]
        assert [one.result() for one in told] == [[first, other]] * 4


def test_a_host_that_does_not_start_is_named_in_those_that_did():
    addresses, port = ["127.0.0.1", "b", "c", "d"], free_port()
    with ThreadPoolExecutor(2) as pool:
        told = [
            pool.submit(slices.joined_slices, own, worker, addresses, port=port, timeout=0.5)
            for own, worker in ((["127.0.0.1", "b"], 0), (["c", "d"], 0))
        ]
        for one in told:
            with pytest.raises(UserError, match="b, d of 4 hosts did not start within 0 s, so the slices cannot be joined"):
                one.result()


def start(tmp_path: pathlib.Path, port: int, index: int, *arguments: str) -> subprocess.Popen[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "experiment.py").write_text("def get_config(): return {'seed': 0, 'wait': False}")
    command = [
        sys.executable,
        str(tmp_path / "program.py"),
        f"--config={tmp_path / 'experiment.py'}",
        f"--workdir={tmp_path / 'run'}",
    ]
    command += [f"--coordinator=127.0.0.1:{port}", "--processes=2", f"--process={index}", "--start-timeout=60", *arguments]
    environment = {
        "PYTHONPATH": str(REPOSITORY),
        "JAX_PLATFORMS": "cpu",
        "PATH": "/usr/bin:/bin",
        "JAX_COMPILATION_CACHE_DIR": "",
    }
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)


def test_two_processes_run_together_and_leave_at_the_same_step_when_one_is_preempted(tmp_path: pathlib.Path):
    port = free_port()
    pair = [start(tmp_path, port, i, "--config.wait=true") for i in range(2)]
    first = pair[1].stdout.readline() if pair[1].stdout else ""
    while first and not first.startswith("together"):  # Gloo greets on stdout
        first = pair[1].stdout.readline() if pair[1].stdout else ""
    pair[1].terminate()
    outputs = [process.communicate(timeout=120)[0] + (first if i else "") for i, process in enumerate(pair)]
    assert [process.returncode for process in pair] == [143, 143]
    assert ["together 20" in outputs[0], "together 21" in outputs[1]] == [True, True]
    steps = [line for output in outputs for line in output.splitlines() if line.startswith("left after")]
    assert len(steps) == 2
    assert steps[0] == steps[1]


def test_an_error_of_the_first_process_ends_both(tmp_path: pathlib.Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("")
    port = free_port()
    pair = [start(tmp_path, port, i) for i in range(2)]
    errors = [process.communicate(timeout=120)[1] for process in pair]
    assert [process.returncode for process in pair] == [2, 2]
    assert all("holds files that are not of a run (thesis.tex)" in error for error in errors)
