"""Finds the processes of a run, from flags on any hardware or from the slices of TPUs.

Variables describe the slices. GKE sets them in the environment, and Cloud TPU sets them in the metadata of each VM. If several
slices were requested together, the variables describe all of them (`MEGASCALE_*`). SkyPilot requests slices one by one
(`num_nodes`) and gives all hosts the same names. The hosts therefore exchange the addresses of the workers of each slice. They
then set the variables that libtpu needs to join the slices."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shlex
import socket
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from typing import cast

from bert_jax.errors import UserError
from bert_jax.files import Json
from bert_jax.interface.ranges import whole_number
from bert_jax.interface.words import counted, cut
from bert_jax.runtime.messages import ask, framed, hear, signed

# Google's firewall for a slice opens the ports 8470, 8471, 8474 and 8476. JAX's default, 8482 since 0.8.1, is closed on v6e
# (jax-ml/jax#35905).
PORT = 8476
MEGASCALE_PORT = 8080
"""The port of libtpu's coordinator for several slices, as on GKE and Cloud TPU."""
METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/"


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The processes of a run. `count` is the number of processes, and `index` is the index of this process. Process 0 listens
    at `coordinator` (HOST:PORT)."""

    coordinator: str
    count: int
    index: int
    names: tuple[str, ...]
    """The name of each process in messages."""
    remedy: str
    """The command that starts all processes, for messages."""


def find_hosts(coordinator: str | None = None, count: int | None = None, index: int | None = None) -> Hosts | None:
    """Returns the processes of this run, or None for a single process.

    The flags (on any hardware) or the variables of a TPU slice (`slice_variables`) describe the processes. Raises UserError for
    incomplete or invalid flags.
    """
    given = {"--coordinator": coordinator, "--processes": count, "--process": index}
    missing = [flag for flag, value in given.items() if value is None]
    if len(missing) < 3:
        if coordinator is None or count is None or index is None:
            raise UserError(
                f"{', '.join(missing)} missing: --coordinator=HOST:PORT, --processes=N and --process=I must be given together"
            )
        host, _, port = coordinator.rpartition(":")
        if not host or whole_number(port, 1, 65_535) is None:
            raise UserError(
                f"--coordinator={coordinator} must be HOST:PORT of process 0, with a port of at least 1 and at most 65,535, for "
                f"example --coordinator={host or 'localhost'}:{PORT}"
            )
        if not 0 <= index < count:
            raise UserError(f"--process={index} of --processes={count}: processes are numbered from 0 to {count - 1}")
        names = tuple(f"process {i}" for i in range(count))
        remedy = f"start one process for each of --process=0 to --process={count - 1}, with the same other flags"
        return Hosts(coordinator, count, index, names, remedy) if count > 1 else None
    if (os.environ.get("JAX_PLATFORMS") or "tpu").split(",")[0] != "tpu":
        return None
    slice_ = slice_variables()
    return _tpu_hosts(slice_) if slice_ else None


def _tpu_hosts(slice_: Mapping[str, str]) -> Hosts | None:
    """Returns the workers of one slice or of several slices (`MEGASCALE_*`), or None for a single worker. Workers are numbered
    slice by slice, as in JAX."""
    workers = slice_["TPU_WORKER_HOSTNAMES"].split(",")
    slices = _parse_number(slice_, "MEGASCALE_NUM_SLICES", 1, 10_000, 1)
    count = len(workers) * slices
    if count == 1:
        return None
    here = _parse_number(slice_, "MEGASCALE_SLICE_ID", 0, slices - 1, 0)
    first = (slice_.get("MEGASCALE_COORDINATOR_ADDRESS") or workers[0]).split(":")[0]
    names = tuple(
        f"worker {i}" + (f" ({workers[i % len(workers)]})" if i // len(workers) == here else f" (slice {i // len(workers)})")
        for i in range(count)
    )
    name, zone = slice_.get("NODE_ID") or "TPU_NAME", slice_.get("ZONE") or "ZONE"
    command = shlex.join(["tpu_scripts/run.sh", pathlib.Path(sys.argv[0]).stem, *sys.argv[1:]])
    where = pathlib.Path(__file__).resolve().parents[2]
    everywhere = shlex.quote(f"cd {shlex.quote(str(where))} && {command}")
    group = f"tpu-vm ssh {name}" if slices == 1 else f"queued-resources ssh {name.rpartition('-')[0] or name} --node=all"
    remedy = f"gcloud compute tpus {group} --zone={zone} --worker=all --command={everywhere}"
    worker = _parse_number(slice_, "TPU_WORKER_ID", 0, len(workers) - 1, 0)
    return Hosts(f"{first}:{PORT}", count, worker + here * len(workers), names, remedy)


def _parse_number(slice_: Mapping[str, str], name: str, low: int, high: int, default: int) -> int:
    """Returns the number in the variable `name` of a slice, or the default if the variable is missing or empty. Raises
    UserError if the variable is not a whole number from `low` to `high`."""
    text = slice_.get(name) or str(default)
    number = whole_number(text, low, high)
    if number is None:
        raise UserError(f"{name}={cut(text)} is not a whole number from {low} to {high}; correct the variable, or unset it")
    return number


def slice_variables() -> dict[str, str] | None:
    """Returns the variables that describe the slice of this process, or None if there is no slice. If there are several slices,
    the variables include their number and the index of this slice.

    Raises UserError if slices that were started separately do not find each other."""
    if "TPU_WORKER_HOSTNAMES" in os.environ:
        return dict(os.environ)
    devices = [*pathlib.Path("/dev").glob("accel[0-9]*"), *pathlib.Path("/dev/vfio").glob("[0-9]*")]
    if not devices or "TPU_SKIP_MDS_QUERY" in os.environ:
        return None
    endpoints, index = _metadata("attributes/worker-network-endpoints"), _metadata("attributes/agent-worker-number")
    if not endpoints or not index:
        return None
    # `tpu-env` has lines such as NODE_ID: 'my-slice'. An endpoint is a host name, or NAME:ID:ADDRESS on older slices.
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
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach the metadata of this VM
    try:
        with direct.open(request, timeout=5) as response:
            return str(response.read().decode())
    except OSError:  # not on Google Cloud, or the attribute does not exist
        return None


def _megascale(slices: Sequence[Sequence[str]], own: Sequence[str]) -> dict[str, str]:
    """Returns the variables with which libtpu joins several slices. `own` are the workers of the slice of this process."""
    return {
        "MEGASCALE_NUM_SLICES": str(len(slices)),
        "MEGASCALE_SLICE_ID": str([list(one) for one in slices].index(list(own))),
        "MEGASCALE_COORDINATOR_ADDRESS": f"{slices[0][0]}:{MEGASCALE_PORT}",
        "MEGASCALE_PORT": str(MEGASCALE_PORT),
    }


def joined_slices(
    own: Sequence[str], worker: int, addresses: Sequence[str], *, port: int = PORT, timeout: float = 300.0
) -> list[list[str]]:
    """Returns the addresses of the workers of every slice. All processes of all slices call this function and get the same
    result.

    `own` are the addresses of the slice of this process, and `worker` is the index of this process in its slice. `addresses`
    are the addresses of all hosts of all slices. The first host collects the slices.

    Raises UserError if a host is missing after `timeout` seconds.
    """
    if own[worker] == addresses[0]:
        slices, missing = _collected(own, addresses, port, timeout)
    else:
        slices, missing = [], [addresses[0]]
        if found := ask((addresses[0], port), {"slice": list(own), "worker": worker}, timeout=timeout):
            answer, connection = found
            slices, missing = cast(tuple[list[list[str]], list[str]], answer)
            connection.close()
    if missing:
        raise UserError(
            f"{', '.join(missing)} of {counted(len(addresses), 'host')} did not start within {timeout:.0f} s, so the slices "
            "cannot be joined; look for the error of that host in the log of the job, and launch it again"
        )
    return slices


def _collected(own: Sequence[str], addresses: Sequence[str], port: int, timeout: float) -> tuple[list[list[str]], list[str]]:
    """Runs on the host that collects the slices. Returns the slices, and the addresses of the hosts that are missing."""
    slice_of, connections = {addresses[0]: list(own)}, list[socket.socket]()

    def accept(message: Json, connection: socket.socket) -> bool:
        match message:
            case {"slice": [*workers], "worker": int(worker)}:
                names = [str(address) for address in workers]
                if {*names} <= {*addresses} and worker in range(len(names)):
                    slice_of[names[worker]] = names
                    connections.append(connection)
                    return True
        return False

    try:
        hear(
            (addresses[0], port),
            accept,
            expected=len(addresses),
            timeout=timeout,
            complete=lambda: slice_of.keys() == set(addresses),
        )
    except OSError as error:
        raise UserError(
            f"port {port} cannot be opened ({error.strerror}); stop the other run on this machine if there is one"
        ) from error
    found = [slice_of[address] for address in addresses if address in slice_of]
    slices = [one for i, one in enumerate(found) if one not in found[:i]]
    missing = [address for address in addresses if address not in slice_of]
    for connection in connections:
        with connection, contextlib.suppress(OSError):  # the host has ended, and the roll call will report it as missing
            connection.sendall(framed(signed([slices, missing])))
    return slices, missing


def isolate_tpu_chips() -> None:
    """Makes JAX treat the TPU chips of this host as a separate slice. Call it before JAX starts. On other hardware, it changes
    nothing.

    It sets the environment variables with which several processes can share the chips of a host, here for a single process with
    all chips. Without these variables, libtpu waits for all hosts of the slice."""
    chips = len([*pathlib.Path("/dev").glob("accel[0-9]*"), *pathlib.Path("/dev/vfio").glob("[0-9]*")])
    bounds = {1: "1,1,1", 8: "2,4,1"}.get(chips, "2,2,1")
    os.environ |= {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": bounds, "CLOUD_TPU_TASK_ID": "0"}
    os.environ |= {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}
    for name in [name for name in os.environ if name.startswith("MEGASCALE_")]:
        del os.environ[name]
