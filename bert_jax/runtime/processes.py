"""The processes of one run: finds their addresses, checks before JAX starts that all have started and run the same code, and
connects them.

`jax.distributed.initialize` waits without a message for a missing worker, and then aborts the process with a C++ stack trace. So
the workers first connect over plain TCP, on the port that JAX will use: process 0 reports which workers are missing, and which
versions or configuration keys differ.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Set

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.errors import UserError
from bert_jax.files import JsonObject, parse_json
from bert_jax.interface.numbers import whole_number
from bert_jax.interface.words import counted, cut
from bert_jax.runtime.code_version import code_digest, git_commit
from bert_jax.runtime.messages import Calls, own_address, receive, send
from bert_jax.runtime.slices import PORT, slice_variables
from bert_jax.runtime.workdir import flatten
from bert_jax.storage.paths import Place

SECRET = "BERT_JAX_SECRET"
"""The variable with a secret that all processes of a run share; SkyPilot gives them one. With it, process 0 ignores callers that
do not know it."""
SAME_EVERYWHERE = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The `count` processes of one run; this one is number `index`, and number 0 listens at `coordinator` (HOST:PORT)."""

    coordinator: str
    count: int
    index: int
    names: tuple[str, ...]
    """The name of each process in messages."""
    remedy: str
    """The command that starts all processes, for messages."""


def find_hosts(coordinator: str | None = None, count: int | None = None, index: int | None = None) -> Hosts | None:
    """The processes of the run that this process belongs to; None for a run of a single process.

    They are given by the flags (on any hardware), or by the variables of a TPU slice (`slices`). Raises UserError for incomplete
    or impossible flags.
    """
    given = {"--coordinator": coordinator, "--processes": count, "--process": index}
    missing = [flag for flag, value in given.items() if value is None]
    if len(missing) < 3:
        if coordinator is None or count is None or index is None:
            raise UserError(f"{', '.join(missing)} missing: --coordinator=HOST:PORT --processes=N --process=I go together")
        host, _, port = coordinator.rpartition(":")
        if not host or whole_number(port, 1, 65_535) is None:
            raise UserError(
                f"--coordinator={coordinator} must be HOST:PORT of process 0, with a port of at least 1 and at most 65,535; "
                f"--coordinator={host or 'localhost'}:{PORT} is one"
            )
        if not 0 <= index < count:
            raise UserError(f"--process={index} of --processes={count}: processes are numbered from 0 to {count - 1}")
        names = tuple(f"process {i}" for i in range(count))
        remedy = f"start one process for each of --process=0 to --process={count - 1}, with the same other flags"
        return Hosts(coordinator, count, index, names, remedy) if count > 1 else None
    if os.environ.get("JAX_PLATFORMS", "tpu").split(",")[0] != "tpu":
        return None
    slice_ = slice_variables()
    return _tpu_hosts(slice_) if slice_ else None


def meet(hosts: Hosts, config: JsonObject, *, timeout: float) -> dict[int, socket.socket]:
    """Waits for the other processes; returns the connections that stay open for their heartbeats, by the other's number. Raises
    UserError where one is missing after `timeout` seconds, or differs from this one in versions, commit or `config`."""
    kept: dict[int, socket.socket] = {}
    roll_call(hosts, process_facts(config), timeout, kept=kept)
    return kept


def connect(hosts: Hosts, *, timeout: float, patience: float) -> None:
    """Starts `jax.distributed`, once all processes have met; `patience` is that of their `Heartbeats`.

    JAX's own service aborts all processes with a C++ stack trace where one is silent. A process sends it a sign of life twice in
    its time limit, so that it may speak after half of it: twice the patience lets ours, which names the process, speak first.
    There is no barrier of JAX's at the exit: the heartbeats see to it that process 0, in which the service lives, exits last.
    """
    limit = 2 * int(patience) + 100
    start = max(60, int(timeout))
    host, _, port = hosts.coordinator.rpartition(":")
    jax.distributed.initialize(
        hosts.coordinator,
        hosts.count,
        hosts.index,
        coordinator_bind_address=f"{own_address(host) or '[::]'}:{port}",
        initialization_timeout=start,
        heartbeat_timeout_seconds=limit,
        shutdown_timeout_seconds=0,
    )


def isolate_tpu_chips() -> None:
    """Makes JAX, before it starts, treat the TPU chips of this host as a slice of their own; other hardware needs no change.

    Sets the environment variables by which several processes share the chips of one host, here for one process. Without them
    libtpu waits for all hosts of the slice.
    """
    chips = len([*pathlib.Path("/dev").glob("accel[0-9]*"), *pathlib.Path("/dev/vfio").glob("[0-9]*")])
    bounds = {1: "1,1,1", 8: "2,4,1"}.get(chips, "2,2,1")
    os.environ |= {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": bounds, "CLOUD_TPU_TASK_ID": "0"}
    os.environ |= {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}
    for name in [name for name in os.environ if name.startswith("MEGASCALE_")]:
        del os.environ[name]


def process_facts(config: JsonObject) -> dict[str, str]:
    """The facts that must be equal in every process, by name: versions of Python and packages, the commit, the digest of the
    code, every configuration key."""
    facts = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in SAME_EVERYWHERE:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = "absent"
    facts["commit"] = git_commit()
    facts["code"] = code_digest()
    return facts | {f"config.{key}": json.dumps(value) for key, value in flatten(config) if key}


def roll_call(
    hosts: Hosts,
    facts: Mapping[str, str],
    timeout: float,
    say: Callable[[str], object] | None = None,
    begin: Callable[[], str] = str,
    kept: dict[int, socket.socket] | None = None,
) -> str:
    """Waits until all processes have started and have the same `facts`; then process 0 calls `begin`.

    Returns the result of `begin` in every process. Raises UserError in every started process if another one is missing after
    `timeout` seconds, if the facts differ, or if `begin` raises a UserError. `say` prints a line about missing processes. Where
    all is well the connections are added to `kept`, if given, by the number of the process at the other end, else closed.
    """
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    deadline = time.monotonic() + timeout
    host, _, port = hosts.coordinator.rpartition(":")
    error_message, result, connections = (
        _collect_facts(hosts, dict(facts), int(port), deadline, say, begin)
        if hosts.index == 0
        else _send_facts(hosts, dict(facts), (host, int(port)), deadline, timeout, say)
    )
    if kept is not None and not error_message:
        kept.update(connections)
    else:
        for connection in connections.values():
            connection.close()
    if error_message:
        raise UserError(error_message)
    return result


Verdict = tuple[str, str, dict[int, socket.socket]]
"""The error message ("" for success), the result of `begin`, and the open connections by the other's number."""


def _collect_facts(
    hosts: Hosts, facts: dict[str, str], port: int, deadline: float, say: Callable[[str], object], begin: Callable[[], str]
) -> Verdict:
    """The roll call in process 0: receives the facts of the others, compares them, calls `begin`, and sends each the verdict."""
    start, last_message = time.monotonic(), 0.0
    required = {name for name in facts if not name.startswith("config.")}
    received: dict[int, dict[str, str]] = {}
    connections: dict[int, socket.socket] = {}
    try:
        calls = Calls((own_address(hosts.coordinator.rpartition(":")[0]), port), hosts.count)
    except OSError as error:
        refused = f"port {port} cannot be opened ({error.strerror}): another run on this machine? Stop it, or name another port"
        return refused, "", {}
    with calls:
        while len(received) < hosts.count - 1 and time.monotonic() < deadline:
            call = calls.next(min(1.0, max(0.01, deadline - time.monotonic())))
            if call is not None:
                connection, text = call
                index, its_facts = _read_facts(text, hosts.count, required)
                if index and (index not in received or _has_ended(connections[index])):
                    received[index], connections[index] = its_facts, connection
                else:  # the caller is no process of this run
                    connection.close()
            missing = [i for i in range(1, hosts.count) if i not in received]
            if missing and time.monotonic() - start - last_message > 10:
                last_message = time.monotonic() - start
                say(f"waiting for {_listed(hosts, missing)} of {hosts.count} ({last_message:.0f}s)")
        error_message, result = _missing_or_differing(hosts, facts, received), ""
        if not error_message:
            try:
                result = begin()
            except UserError as error:
                error_message = str(error)
        for connection in connections.values():
            with contextlib.suppress(OSError):  # it has ended meanwhile, which the closed connection will tell
                send(connection, json.dumps([error_message, result]))
    return error_message, result, connections


def _proof(text: str) -> str:
    """Signs `text` as sent by a process of this run, with the secret that all of them share; "" without a secret."""
    secret = os.environ.get(SECRET) or os.environ.get("SKYPILOT_TASK_ID", "")
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest() if secret else ""


def _read_facts(text: str, count: int, required: Set[str]) -> tuple[int, dict[str, str]]:
    """The number of a process that has called, and its facts, the `required` ones at least; (0, {}) where `text` is of no
    process of this run."""
    try:
        match parse_json(text):
            case [int(index), {**facts}, *proofs] if 1 <= index < count:  # older versions send no proof
                said = {str(name): str(value) for name, value in facts.items()}
                proof = str(proofs[0]) if proofs else ""
                if required <= said.keys() and hmac.compare_digest(proof.encode(), _proof(json.dumps([index, facts])).encode()):
                    return int(index), said
    except (ValueError, TypeError, RecursionError):
        pass
    return 0, {}


def _has_ended(connection: socket.socket) -> bool:
    """Whether the other end has closed a connection over which it sends nothing yet."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _missing_or_differing(hosts: Hosts, facts: dict[str, str], received: Mapping[int, dict[str, str]]) -> str:
    """The error message about processes that are missing or whose facts differ; "" if there are none."""
    missing = [i for i in range(1, hosts.count) if i not in received]
    if missing:
        return (
            f"{counted(hosts.count, 'worker')} expected, and {_listed(hosts, missing)} did not start; start the same "
            f"command on all of "
            f"them at once:\n  {hosts.remedy}"
        )
    differing = []
    for name in sorted({*facts, *(name for its_facts in received.values() for name in its_facts)}):
        ours, theirs = facts.get(name, "absent"), {i: received[i].get(name, "absent") for i in sorted(received)}
        others = {i: value for i, value in theirs.items() if value != ours}
        if len(others) == len(theirs) > 1 and len({*others.values()}) == 1:  # this process is the odd one
            differing.append(f"  {name}: {hosts.names[0]} has {ours}, the other {len(others)} have {theirs[1]}")
        else:
            differing += [f"  {name}: {hosts.names[0]} has {ours}, {hosts.names[i]} has {value}" for i, value in others.items()]
    if differing:
        shown = "\n".join(differing[:12])
        return f"the workers differ in code or configuration:\n{shown}\nmake them equal and start all again:\n  {hosts.remedy}"
    return ""


def _send_facts(
    hosts: Hosts, facts: dict[str, str], address: tuple[str, int], deadline: float, timeout: float, say: Callable[[str], object]
) -> Verdict:
    """The roll call in the other processes: sends the facts to process 0 and returns its verdict."""
    last_message = time.monotonic()
    while time.monotonic() < deadline:
        try:
            with contextlib.ExitStack() as opened:
                connection = opened.enter_context(socket.create_connection(address, timeout=5))
                send(connection, json.dumps([hosts.index, facts, _proof(json.dumps([hosts.index, facts]))]))
                connection.settimeout(timeout + 15)  # process 0 may have started just now, and waits as long for the others
                error_message, result = parse_json(receive(connection))
                opened.pop_all()
                return error_message, result, {0: connection}
        except (OSError, ValueError):  # process 0 does not listen yet, or another program uses the port
            time.sleep(0.2)
        if time.monotonic() - last_message > 10:
            last_message = time.monotonic()
            say(f"waiting for {hosts.names[0]} at {hosts.coordinator} ({timeout - (deadline - last_message):.0f}s)")
    return (
        f"this is worker {hosts.index} of {hosts.count}, and {hosts.names[0]} at {hosts.coordinator} did not answer within "
        f"{timeout:.0f} s; start the same command on all of them at once:\n  {hosts.remedy}",
        "",
        {},
    )


def _listed(hosts: Hosts, indices: list[int]) -> str:
    shown = ", ".join(hosts.names[i] for i in indices[:8])
    return shown + (f" and {len(indices) - 8} more" if len(indices) > 8 else "")


def on_first_process(action: Callable[[], None]) -> None:
    """Runs `action` in process 0 only. Where it raises a UserError, every process raises it, so that none waits for process 0."""
    message = ""
    if jax.process_index() == 0:
        try:
            action()
        except UserError as error:
            message = str(error)
            if jax.process_count() == 1:
                raise
    if jax.process_count() > 1:
        buffer = np.zeros(4096, np.uint8)
        data = message.encode()[: buffer.size]
        buffer[: len(data)] = np.frombuffer(data, np.uint8)
        message = bytes(np.asarray(multihost_utils.broadcast_one_to_all(buffer))).rstrip(b"\0").decode(errors="replace")
        if message:
            raise UserError(message)


MARKER_FILE = ".shared"
"""The file by which the processes check that they share a directory."""


def write_marker(directory: Place, token: str) -> None:
    """Writes `token` to the marker file in the directory, for `finds_marker` in the other processes."""
    (directory / MARKER_FILE).write_text(token)


def finds_marker(directory: Place, token: str, patience: float = 60.0) -> bool:
    """Whether the marker file with `token` appears in the `directory` of this process within `patience` seconds; network file
    systems show a new file after some seconds."""
    path, deadline = directory / MARKER_FILE, time.monotonic() + patience
    while not (seen := path.is_file() and path.read_text() == token) and time.monotonic() < deadline:
        time.sleep(0.5)
    return seen


def not_shared(directory: Place, blind: str) -> UserError:
    """The error where the processes `blind` (comma-separated numbers) do not see the directory of process 0."""
    return UserError(
        f"--workdir={directory} of process 0 is not the directory that process {blind} sees under that name; "
        "name one in a bucket (gs://BUCKET/PATH), or on storage that all workers mount, such as NFS"
    )


def require_shared_directory(directory: Place) -> None:
    """Raises UserError in every process unless all see the `directory` of process 0: each writes its part of a checkpoint
    there."""
    if jax.process_count() == 1:
        return
    number = np.asarray(multihost_utils.broadcast_one_to_all(np.frombuffer(os.urandom(4), np.int32)))
    if jax.process_index() == 0:
        write_marker(directory, str(number))
    everywhere = np.asarray(multihost_utils.process_allgather(np.array(finds_marker(directory, str(number)))))
    if jax.process_index() == 0:
        (directory / MARKER_FILE).unlink(missing_ok=True)
    if blind := [str(i) for i in np.flatnonzero(~everywhere)]:
        raise not_shared(directory, ", ".join(blind))


def _tpu_hosts(slice_: Mapping[str, str]) -> Hosts | None:
    """The workers of one slice, or of several (`MEGASCALE_*`), numbered slice by slice as in JAX; None for a single worker."""
    workers = slice_["TPU_WORKER_HOSTNAMES"].split(",")
    slices = _number_of(slice_, "MEGASCALE_NUM_SLICES", 1, 10_000, 1)
    count = len(workers) * slices
    if count == 1:
        return None
    here = _number_of(slice_, "MEGASCALE_SLICE_ID", 0, slices - 1, 0)
    first = (slice_.get("MEGASCALE_COORDINATOR_ADDRESS") or workers[0]).split(":")[0]
    names = tuple(
        f"worker {i}" + (f" ({workers[i % len(workers)]})" if i // len(workers) == here else f" (slice {i // len(workers)})")
        for i in range(count)
    )
    name, zone = slice_.get("NODE_ID") or "TPU_NAME", slice_.get("ZONE") or "ZONE"
    verb = pathlib.Path(sys.argv[0]).stem
    command = shlex.join(["tpu_scripts/run.sh", verb, *sys.argv[1:]])
    where = pathlib.Path(__file__).resolve().parents[2]
    everywhere = shlex.quote(f"cd {shlex.quote(str(where))} && {command}")
    group = f"tpu-vm ssh {name}" if slices == 1 else f"queued-resources ssh {name.rpartition('-')[0] or name} --node=all"
    remedy = f"gcloud compute tpus {group} --zone={zone} --worker=all --command={everywhere}"
    worker = _number_of(slice_, "TPU_WORKER_ID", 0, len(workers) - 1, 0)
    return Hosts(f"{first}:{PORT}", count, worker + here * len(workers), names, remedy)


def _number_of(slice_: Mapping[str, str], name: str, low: int, high: int, default: int) -> int:
    """The number in the description of a slice, or the default without one. Raises UserError for another text."""
    text = slice_.get(name) or str(default)
    number = whole_number(text, low, high)
    if number is None:
        raise UserError(f"{name}={cut(text)} is not a whole number from {low} to {high}; correct the variable, or unset it")
    return number
