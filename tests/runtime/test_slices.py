"""The slice of a process and the other slices of its run, by the environment, the metadata, and what hosts tell each other."""

from __future__ import annotations

import os
import pathlib
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime import processes, slices
from tests.runtime.test_processes import REPOSITORY, free_port


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
    assert "gcloud compute tpus tpu-vm ssh TPU_NAME --zone=ZONE --worker=all" in found.remedy
    monkeypatch.delenv("TPU_WORKER_ID")
    first = on_tpu(monkeypatch)
    assert first is not None
    assert first.index == 0
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
    assert f"cd {REPOSITORY} && tpu_scripts/run.sh pretrain" in found.remedy
    assert "--config=a b.py" in found.remedy


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
