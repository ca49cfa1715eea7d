"""The processes of a run from flags, from the environment, from the metadata, and from messages between hosts."""

from __future__ import annotations

import http.client
import io
import os
import pathlib
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime import hosts, messages
from tests.clock import Clock
from tests.end_to_end.runs import free_port

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Makes this machine a TPU VM whose metadata server has these attributes; none at first."""
    attributes: dict[str, str] = {}

    def answered(opener: urllib.request.OpenerDirector, request: urllib.request.Request, timeout: float) -> io.BytesIO:
        assert not any(isinstance(handler, urllib.request.ProxyHandler) for handler in opener.handlers)
        folder, _, name = request.full_url.rpartition("/")
        assert folder == "http://metadata.google.internal/computeMetadata/v1/instance/attributes"
        assert (request.headers, timeout) == ({"Metadata-flavor": "Google"}, 5)
        if name not in attributes:
            raise urllib.error.HTTPError(request.full_url, 404, "Not Found", http.client.HTTPMessage(), None)
        return io.BytesIO(attributes[name].encode())

    for name in [name for name in os.environ if name.startswith(("TPU_", "MEGASCALE_", "SKYPILOT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setattr(urllib.request.OpenerDirector, "open", answered)
    monkeypatch.setattr(pathlib.Path, "glob", lambda self, pattern: [pathlib.Path("/dev/accel0")])
    return attributes


def on_tpu(monkeypatch: pytest.MonkeyPatch, **variables: str) -> hosts.Hosts | None:
    for name in ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["/x/bert_jax/pretrain.py", "--config=a b.py"])
    return hosts.find_hosts()


def test_a_slice_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    found = on_tpu(monkeypatch, TPU_WORKER_HOSTNAMES="t0,t1,t2,t3", TPU_WORKER_ID="2")
    assert found is not None
    assert (found.coordinator, found.count, found.index) == ("t0:8476", 4, 2)
    assert found.names[3] == "worker 3 (t3)"
    assert "gcloud compute tpus tpu-vm ssh TPU_NAME --zone=ZONE --worker=all" in found.remedy
    monkeypatch.delenv("TPU_WORKER_ID")
    first = on_tpu(monkeypatch)
    assert first is not None
    assert first.index == 0
    assert on_tpu(monkeypatch, TPU_WORKER_HOSTNAMES="localhost", TPU_WORKER_ID="0") is None


def test_workers_of_several_slices_are_numbered_slice_by_slice(monkeypatch: pytest.MonkeyPatch):
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


@pytest.mark.parametrize(
    ("name", "value", "most"),
    [
        ("MEGASCALE_NUM_SLICES", "0", "from 1 to 10000"),
        ("MEGASCALE_NUM_SLICES", "10001", "from 1 to 10000"),
        ("MEGASCALE_SLICE_ID", "2", "from 0 to 1"),
        ("MEGASCALE_SLICE_ID", "-1", "from 0 to 1"),
        ("TPU_WORKER_ID", "2", "from 0 to 1"),
        ("TPU_WORKER_ID", "one", "from 0 to 1"),
    ],
)
def test_numbers_of_a_slice_that_cannot_be_are_refused(name: str, value: str, most: str, monkeypatch: pytest.MonkeyPatch):
    variables = {"TPU_WORKER_HOSTNAMES": "t0,t1", "TPU_WORKER_ID": "1", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}
    assert on_tpu(monkeypatch, **variables) is not None
    with pytest.raises(UserError, match=rf"^{name}={value} is not a whole number {most}; correct the variable, or unset it$"):
        on_tpu(monkeypatch, **variables | {name: value})


def second_worker(metadata: dict[str, str], tpu_env: str = "", addresses: Sequence[str] = ("10.0.0.2", "10.0.0.3")) -> None:
    """Sets the metadata of the second worker of `my-slice`."""
    metadata["worker-network-endpoints"] = ",".join(f"name:8470:{address}" for address in addresses)
    metadata["agent-worker-number"] = "1"
    metadata["tpu-env"] = f"ACCELERATOR_TYPE: 'v4-16'\nNODE_ID: 'my-slice'\nZONE: 'us-central2-b'\n{tpu_env}"


def test_a_slice_is_read_from_the_metadata_of_a_tpu_vm(metadata: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    second_worker(metadata)
    found = on_tpu(monkeypatch)
    assert found is not None
    assert (found.coordinator, found.index, found.names) == ("10.0.0.2:8476", 1, ("worker 0 (10.0.0.2)", "worker 1 (10.0.0.3)"))
    assert "gcloud compute tpus tpu-vm ssh my-slice --zone=us-central2-b --worker=all --command=" in found.remedy
    assert f"cd {REPOSITORY} && tpu_scripts/run.sh pretrain" in found.remedy
    assert "--config=a b.py" in found.remedy


def test_slices_that_were_requested_together_are_read_from_the_metadata(
    metadata: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    tpu_env = "MEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\nMEGASCALE_COORDINATOR_ADDRESS: '10.0.0.9:8080'\n"
    second_worker(metadata, tpu_env)
    found = on_tpu(monkeypatch, SKYPILOT_NODE_IPS="10.0.0.8\n10.0.0.9\n10.0.0.2\n10.0.0.3")
    assert found is not None
    assert (found.coordinator, found.count, found.index) == ("10.0.0.9:8476", 4, 3)
    assert "gcloud compute tpus queued-resources ssh my --node=all --zone=us-central2-b --worker=all" in found.remedy


def loopback(count: int) -> list[str]:
    """Returns addresses of this machine that no other process of the tests uses."""
    return [f"127.{1 + os.getpid() // 256 % 254}.{os.getpid() % 256}.{1 + i}" for i in range(count)]


def test_slices_requested_separately_by_skypilot_are_joined(metadata: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    addresses = loopback(4)
    slices = [addresses[:1] + addresses[3:], addresses[1:3]]  # in the order in which SkyPilot names them
    monkeypatch.setattr(os, "environ", os.environ.copy())
    second_worker(metadata, addresses=slices[1])
    with ThreadPoolExecutor(3) as pool:
        others = [
            pool.submit(hosts.joined_slices, own, worker, addresses)
            for own, worker in ((slices[0], 0), (slices[0], 1), (slices[1], 0))
        ]
        found = on_tpu(monkeypatch, SKYPILOT_NODE_IPS="\n".join(addresses))
        assert [other.result() for other in others] == [slices] * 3
    assert found is not None
    assert (found.coordinator, found.count, found.index) == (f"{addresses[0]}:8476", 4, 3)
    found_by_libtpu = {name: os.environ[name] for name in os.environ if name.startswith("MEGASCALE_")}
    assert found_by_libtpu == {
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
        "MEGASCALE_COORDINATOR_ADDRESS": f"{addresses[0]}:8080",
        "MEGASCALE_PORT": "8080",
    }


def test_a_single_slice_of_skypilot_is_not_joined(metadata: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    Clock(monkeypatch)  # a wrong call to another host would be tried again for five minutes
    second_worker(metadata)
    alone = on_tpu(monkeypatch, SKYPILOT_NODE_IPS="10.0.0.2\n10.0.0.3")
    assert alone is not None
    assert alone.count == 2


def test_hosts_exchange_which_of_them_form_a_slice():
    """The first address is the host that collects the names; the others are in the order of their names."""
    first, other = ["c", "127.0.0.1"], ["d", "b"]
    addresses, port = ["127.0.0.1", "b", "c", "d"], free_port()
    with ThreadPoolExecutor(4) as pool:
        told = [
            pool.submit(hosts.joined_slices, own, worker, addresses, port=port, timeout=30)
            for own in (first, other)
            for worker in range(2)
        ]
        assert [one.result() for one in told] == [[first, other]] * 4


def test_a_host_that_does_not_start_is_named_in_those_that_did():
    addresses, port = ["127.0.0.1", "b", "c", "d"], free_port()
    with ThreadPoolExecutor(2) as pool:
        told = [
            pool.submit(hosts.joined_slices, own, worker, addresses, port=port, timeout=0.5)
            for own, worker in ((["127.0.0.1", "b"], 0), (["c", "d"], 0))
        ]
        for one in told:
            with pytest.raises(UserError, match="b, d of 4 hosts did not start within 0 s, so the slices cannot be joined"):
                one.result()


def test_only_hosts_with_the_secret_are_joined(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SKYPILOT_TASK_ID", "the secret of this run")
    addresses, port = ["127.0.0.1", "b"], free_port()
    stranger = messages.framed([{"slice": ["127.0.0.1", "b"], "worker": 1}, ""])
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(hosts.joined_slices, ["127.0.0.1"], 0, addresses, port=port, timeout=30)
        with connected(port) as connection:
            connection.sendall(stranger)
            assert connection.recv(1) == b"", "it is rejected"
        with pytest.raises(OSError, match=r"refused|timed out|unreachable"):  # it listens only at its own address
            socket.create_connection(("127.0.0.2", port), timeout=5).close()
        second = pool.submit(hosts.joined_slices, ["b"], 0, addresses, port=port, timeout=30)
        assert [first.result(), second.result()] == [[["127.0.0.1"], ["b"]]] * 2


@pytest.mark.parametrize("said", [{"slice": ["b", "c"], "worker": 0}, {"slice": ["b"], "worker": 1}, {"slice": "b"}, [1, {}], 7])
def test_a_caller_that_is_not_a_host_of_the_run_is_rejected(said: Any):
    addresses, port = ["127.0.0.1", "b"], free_port()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(hosts.joined_slices, ["127.0.0.1"], 0, addresses, port=port, timeout=1)
        with connected(port) as connection:
            connection.sendall(messages.framed(messages.signed(said)))
            assert connection.recv(1) == b""
        with pytest.raises(UserError, match=r"^b of 2 hosts did not start within 1 s"):
            first.result()


def test_a_host_waits_five_minutes_for_the_first(monkeypatch: pytest.MonkeyPatch):
    clock, (first, second) = Clock(monkeypatch), loopback(2)
    with pytest.raises(UserError, match=rf"^{first} of 2 hosts did not start within 300 s"):
        hosts.joined_slices([second], 0, [first, second])
    assert clock.passed == pytest.approx(300, abs=0.3)


def test_a_port_in_use_keeps_slices_apart():
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(UserError, match=r"cannot be opened .*the other run"):
        hosts.joined_slices(["127.0.0.1"], 0, ["127.0.0.1", "b"], port=server.getsockname()[1])


def connected(port: int) -> socket.socket:
    """Returns a connection to a port that may not be open yet."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=20)
        except ConnectionRefusedError:
            time.sleep(0.01)


def test_a_host_without_chips_or_without_metadata_is_no_slice(metadata: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    Clock(monkeypatch)
    assert hosts.slice_variables() is None
    for name, value in (("worker-network-endpoints", "h0,h1"), ("agent-worker-number", "1")):
        metadata.clear()
        metadata[name] = value
        assert hosts.slice_variables() is None
    metadata["worker-network-endpoints"] = "h0,h1"
    assert hosts.slice_variables() == {"TPU_WORKER_HOSTNAMES": "h0,h1", "TPU_WORKER_ID": "1"}
    metadata["tpu-env"] = "a line\nZONE: 'us:b'\n"
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "2")
    found = {"ZONE": "us:b", "MEGASCALE_NUM_SLICES": "2", "TPU_WORKER_HOSTNAMES": "h0,h1", "TPU_WORKER_ID": "1"}
    assert hosts.slice_variables() == found
    monkeypatch.setenv("SKYPILOT_NODE_IPS", "h0 h1 h2 h3")
    assert hosts.slice_variables() == found, "GKE has joined them"
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    assert hosts.slice_variables() is None
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "t0")
    assert hosts.slice_variables() == dict(os.environ)
    for name in ("TPU_SKIP_MDS_QUERY", "TPU_WORKER_HOSTNAMES"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(pathlib.Path, "glob", lambda self, pattern: [])
    assert hosts.slice_variables() is None


@pytest.mark.parametrize(("chips", "bounds"), [(1, "1,1,1"), (4, "2,2,1"), (8, "2,4,1"), (0, "2,2,1")])
def test_a_host_that_stays_apart_is_a_slice_of_its_own(monkeypatch: pytest.MonkeyPatch, chips: int, bounds: str):
    names = ("TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "CLOUD_TPU_TASK_ID", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES")
    found = [pathlib.Path(f"/dev/accel{i}") for i in range(chips)]
    monkeypatch.setattr(pathlib.Path, "glob", lambda self, pattern: found if pattern.startswith("accel") else [])
    environment = dict.fromkeys(names, "of the slice") | {"MEGASCALE_NUM_SLICES": "2", "OTHER": "stays"}
    monkeypatch.setattr(os, "environ", environment)
    hosts.isolate_tpu_chips()
    assert environment == dict(zip(names, ("1,1,1", bounds, "0", "0", "localhost"), strict=True)) | {"OTHER": "stays"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("host:1", 2, None), "--process missing"),
        ((None, None, 1), "--coordinator, --processes missing"),
        (("host", 2, 0), "--coordinator=host must be HOST:PORT of process 0, with a port of at least 1 and at most 65,535, "),
        (("host:99999", 2, 0), "--coordinator=host:99999 must be .* at most 65,535, for example --coordinator=host:8476"),
        (("host:0", 2, 0), "--coordinator=host:0 must be .* at least 1 "),
        (("host:1", 2, 2), "numbered from 0 to 1"),
        (("host:1", 2, -1), "numbered from 0 to 1"),
        (("host:65536", 2, 0), "at most 65,535"),
        ((":1", 2, 0), "--coordinator=:1 must be HOST:PORT of process 0.*, for example --coordinator=localhost:8476"),
        ((None, 2, 0), "--coordinator missing"),
        (("host:1", None, 0), "--processes missing"),
    ],
)
def test_contradictory_host_flags_are_refused(flags: tuple[str | None, int | None, int | None], message: str):
    with pytest.raises(UserError, match=message):
        hosts.find_hosts(*flags)


@pytest.mark.parametrize("port", [1, 65_535])
def test_consistent_host_flags_give_the_hosts(port: int):
    found = hosts.find_hosts(f"host:{port}", 2, 1)
    assert found is not None
    assert (found.coordinator, found.count, found.index) == (f"host:{port}", 2, 1)
    assert found.names == ("process 0", "process 1")
    assert found.remedy == "start one process for each of --process=0 to --process=1, with the same other flags"


def test_a_single_process_is_not_a_group(monkeypatch: pytest.MonkeyPatch):
    assert hosts.find_hosts("host:1", 1, 0) is None
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    assert hosts.find_hosts() is None  # the user asked for the CPU


def test_an_empty_list_of_platforms_is_no_choice_of_a_platform(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    found = hosts.find_hosts()
    assert found is not None
    assert (found.count, found.index) == (2, 1)
