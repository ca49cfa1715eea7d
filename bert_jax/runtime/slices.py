"""Finds the TPU slice of this process, and the other slices of its run.

The variables that describe them are set by GKE in the environment, and by Cloud TPU in the metadata of each VM. Slices that were
requested together know each other there (`MEGASCALE_*`). SkyPilot requests them one by one (`num_nodes`) and names the hosts of
all of them alike, so they tell each other which hosts are one slice, and set the variables by which libtpu joins them.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import time
import urllib.request
from collections.abc import Sequence

from bert_jax.errors import UserError
from bert_jax.files import parse_json
from bert_jax.interface.words import counted
from bert_jax.runtime.messages import Calls, own_address, receive, send

# Google's firewall for a slice opens the ports 8470, 8471, 8474 and 8476; JAX's default, 8482 since 0.8.1, is closed on v6e
# (jax-ml/jax#35905).
PORT = 8476
MEGASCALE_PORT = 8080
"""The port of libtpu's coordinator of several slices, as GKE and Cloud TPU have it."""
METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/"


def slice_variables() -> dict[str, str] | None:
    """The variables that describe the slice of this process and, where there are several, its place among them; None elsewhere.

    Raises UserError where slices that were started one by one do not find each other.
    """
    if "TPU_WORKER_HOSTNAMES" in os.environ:
        return dict(os.environ)
    devices = [*pathlib.Path("/dev").glob("accel[0-9]*"), *pathlib.Path("/dev/vfio").glob("[0-9]*")]
    if not devices or "TPU_SKIP_MDS_QUERY" in os.environ:
        return None
    endpoints, index = _metadata("attributes/worker-network-endpoints"), _metadata("attributes/agent-worker-number")
    if not endpoints or not index:
        return None
    # `tpu-env` has lines such as NODE_ID: 'my-slice'; an endpoint is a host name, or NAME:ID:ADDRESS on older slices
    lines = [line.split(":", 1) for line in (_metadata("attributes/tpu-env") or "").splitlines() if ":" in line]
    described = {name.strip(): value.strip().strip("'") for name, value in lines}
    workers = [endpoint.split(":")[-1] for endpoint in endpoints.split(",")]
    addresses = os.environ.get("SKYPILOT_NODE_IPS", "").split()
    if len(addresses) > len(workers) and "MEGASCALE_NUM_SLICES" not in described | dict(os.environ):
        os.environ |= _megascale(joined_slices(workers, int(index), addresses), workers)
    described |= {name: value for name, value in os.environ.items() if name.startswith("MEGASCALE_")}
    return described | {"TPU_WORKER_HOSTNAMES": ",".join(workers), "TPU_WORKER_ID": index}


def _metadata(key: str) -> str | None:
    request = urllib.request.Request(METADATA + key, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.read().decode()
    except OSError:  # not on Google Cloud, or no such attribute
        return None


def _megascale(slices: Sequence[Sequence[str]], own: Sequence[str]) -> dict[str, str]:
    """The variables of libtpu for the slice with the workers `own`."""
    return {
        "MEGASCALE_NUM_SLICES": str(len(slices)),
        "MEGASCALE_SLICE_ID": str([list(one) for one in slices].index(list(own))),
        "MEGASCALE_COORDINATOR_ADDRESS": f"{slices[0][0]}:{MEGASCALE_PORT}",
        "MEGASCALE_PORT": str(MEGASCALE_PORT),
    }


def joined_slices(
    own: Sequence[str], worker: int, addresses: Sequence[str], *, port: int = PORT, timeout: float = 300.0
) -> list[list[str]]:
    """The addresses of the workers of every slice, the same in every process of all slices, which all call this function.

    own: the addresses of the slice of this process, in which it is number `worker`.
    addresses: those of all hosts of all slices; the slice of the first one comes first. That host collects the slices.

    Raises UserError where hosts are missing after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    if own[worker] == addresses[0]:
        slices, missing = _collected(own, addresses, port, deadline)
    else:
        slices, missing = _asked({"slice": list(own), "worker": worker}, (addresses[0], port), deadline)
    if missing:
        raise UserError(
            f"{', '.join(missing)} of {counted(len(addresses), 'host')} did not start within {timeout:.0f} s, so the slices "
            "cannot be joined; look for the error of that host in the log of the job, and launch it again"
        )
    return slices


Slices = tuple[list[list[str]], list[str]]
"""The slices, and the addresses of the hosts that are missing."""


def _collected(own: Sequence[str], addresses: Sequence[str], port: int, deadline: float) -> Slices:
    slice_of, connections = {addresses[0]: list(own)}, []
    try:
        calls = Calls((own_address(addresses[0]), port), len(addresses))
    except OSError as error:
        raise UserError(f"port {port} cannot be opened ({error.strerror}): another run on this machine? Stop it") from error
    with calls:
        while slice_of.keys() != set(addresses) and time.monotonic() < deadline:
            call = calls.next(min(1.0, max(0.01, deadline - time.monotonic())))
            if call is None:
                continue
            connection, text = call
            workers, worker = _read_slice(text)
            if {*workers} <= {*addresses} and worker in range(len(workers)):
                slice_of[workers[worker]] = workers
                connections.append(connection)
            else:  # the caller is no host of this run
                connection.close()
        found = [slice_of[address] for address in addresses if address in slice_of]
        slices = [one for i, one in enumerate(found) if one not in found[:i]]
        missing = [address for address in addresses if address not in slice_of]
        for connection in connections:
            with connection, contextlib.suppress(OSError):  # it has ended meanwhile, which the roll call will tell
                send(connection, json.dumps([slices, missing]))
    return slices, missing


def _read_slice(text: str) -> tuple[list[str], int]:
    """The addresses of a slice and the number of the worker that tells them; ([], 0) where `text` is something else."""
    with contextlib.suppress(ValueError, RecursionError):
        match parse_json(text):
            case {"slice": [*workers], "worker": int(worker)} if all(isinstance(address, str) for address in workers):
                return [str(address) for address in workers], worker
    return [], 0


def _asked(told: dict[str, object], head: tuple[str, int], deadline: float) -> Slices:
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(head, timeout=5) as connection:
                send(connection, json.dumps(told))
                connection.settimeout(max(1.0, deadline - time.monotonic()) + 15)
                slices, missing = parse_json(receive(connection))
                return slices, missing
        except (OSError, ValueError):  # it does not listen yet
            time.sleep(0.2)
    return [], [head[0]]
