"""The processes of a run and their communication.

The processes meet before JAX starts (`meet`), because `jax.distributed.initialize` waits silently for a missing worker, and
then aborts the process with a C++ stack trace. Therefore, all processes first call process 0 over plain TCP, on the port that
JAX will use. Process 0 reports which workers are missing, and which versions, code or configuration keys differ.

The connections of this roll call stay open, and a loop in each process (`Processes`) sends a heartbeat over them every few
seconds. Without heartbeats, a collective with a dead process would wait, or fail with an error that names no process. With
heartbeats, a connection that closes without a final message shows that a process was killed. A silent connection shows that a
process was stopped or has lost its network. Process 0 is connected to every other process and reports every loss to all of
them. Every process then ends within seconds and names the same culprit. The same loop checks whether this process itself makes
progress (`interruptions.Watchdog`).

All other agreements use the same connections. `gather` exchanges the JSON values of all processes. `stop_together` finds a step
after which all processes save and stop. `RunShard` divides the runs of a sweep or a study among the processes without
collectives.

JAX's service runs in process 0. The service aborts every process that is still connected when process 0 exits. JAX's own
barrier before the exit does not prevent this on busy machines, since process 0 closes the service before the others have left
the barrier. Therefore, `join_jax` disables JAX's barrier. The other processes wait until process 0 has reached its end, and
process 0 exits last."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import os
import pathlib
import platform
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

import jax

from bert_jax.data.corpus.store import CorruptedCorpus
from bert_jax.errors import HUNG, USER_ERROR_STATUS, UserError, WorkersMissing
from bert_jax.files import Json, JsonObject
from bert_jax.interface.named import file_record
from bert_jax.interface.python_files import loaded_files
from bert_jax.interface.words import counted
from bert_jax.runtime.hosts import Hosts
from bert_jax.runtime.interruptions import Watchdog
from bert_jax.runtime.messages import ask, framed, hear, own_address, signed, unframed
from bert_jax.runtime.workdir import PROCESSES, flatten, locked
from bert_jax.sharding.device_errors import OutOfMemory, is_device_error
from bert_jax.storage.paths import AnyPath

log = logging.getLogger(__name__)

SAME_EVERYWHERE = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")
BEAT = 2.0
"""Seconds between heartbeats."""
SILENT = 3.5
"""The number of missed heartbeats after which a process counts as silent. A process that hangs reports the silent processes."""
GRACE = 10.0
"""The seconds that a process has to end on its own after another process has failed. All processes may fail in the same way,
and each then reports its own error."""
FAREWELL = 5.0
"""The maximum number of seconds for which a process that ends waits for the others to end or to receive its last message."""
PARTING = 60.0
"""At its regular end, process 0 waits until the other processes have exited, but at most this many seconds after their final
messages."""
EARLIER = 120.0
"""The seconds within which a process of an earlier start must save and end after it was asked to stop."""
REMEDY = "find out why it ended, then run the same command again in all processes: they resume from the last checkpoint"

Item = TypeVar("Item")
Value = TypeVar("Value")
"""The type of a JSON value."""


# ----------------------------------------------------------------------------------------------------------------- the roll call
def meet(hosts: Hosts | None, config: JsonObject, *, timeout: float, patience: float) -> Processes:
    """Waits until all processes of a run have started. Returns immediately if `hosts` is None, i.e. for a single process.
    `patience` is passed to `Processes`.

    Raises WorkersMissing in every started process if a process is missing after `timeout` seconds, and UserError if a process
    has different versions, code or `config`."""
    if hosts is None:
        return Processes(patience=patience)
    return Processes(hosts, roll_call(hosts, process_facts(config), timeout), patience=patience)


def process_facts(config: JsonObject) -> dict[str, str]:
    """Returns the facts that must be the same in every process, by name. They are the versions of Python and of packages, the
    commit, a digest of the code, all configuration keys, and the hashes of the user's files that they name."""
    facts = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in SAME_EVERYWHERE:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = "absent"
    facts["commit"] = git_commit()
    facts["code"] = code_digest()
    for key, value in flatten(config):
        if key:
            facts[f"config.{key}"] = json.dumps(value)
        if record := file_record(str(value), f"config.{key}"):
            facts[f"config.{key} (SHA-256 of the file)"] = record["sha256"][:12]
    return facts


def git_commit() -> str:
    """Returns the commit of this package, with `+` appended if its files have uncommitted changes. Outside of git, returns
    "unknown"."""
    here = pathlib.Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def code_digest() -> str:
    """Returns the first digits of a SHA-256 of this package's files. The digits distinguish copies of the code that are not git
    checkouts."""
    here, digest = pathlib.Path(__file__).resolve().parents[1], hashlib.sha256()
    for path in sorted(here.rglob("*.py")):
        digest.update(f"{path.relative_to(here)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def roll_call(
    hosts: Hosts, facts: Mapping[str, str], timeout: float, say: Callable[[str], object] | None = None
) -> dict[int, socket.socket]:
    """Waits until all processes have started and have the same `facts`. Returns the open connections by process index. Process
    0 is connected to all other processes, and each other process only to process 0.

    Raises WorkersMissing in every started process if a process is missing after `timeout` seconds, and UserError if the facts
    differ. `say` prints a line about missing processes."""
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    host, _, port = hosts.coordinator.rpartition(":")
    start, last_message = time.monotonic(), time.monotonic()

    def still_waiting(for_whom: str) -> None:
        nonlocal last_message
        if time.monotonic() - last_message > 10:
            last_message = time.monotonic()
            say(f"waiting for {for_whom} ({last_message - start:.0f}s)")

    if hosts.index:
        found = ask(
            (host, int(port)),
            [hosts.index, dict(facts)],
            timeout=timeout,
            waiting=lambda: still_waiting(f"{hosts.names[0]} at {hosts.coordinator}"),
        )
        if found is None:
            raise WorkersMissing(
                f"this is worker {hosts.index} of {hosts.count}, but {hosts.names[0]} at {hosts.coordinator} did not answer "
                f"within {timeout:.0f} s; {_TOGETHER}:\n  {hosts.remedy}"
            )
        answer, connections = found[0], {0: found[1]}
        fault, some_missing = answer if isinstance(answer, list) else (answer, False)  # other code may answer with a text
    else:
        received, connections = dict[int, dict[str, str]](), dict[int, socket.socket]()
        required = {name for name in facts if not name.startswith("config.")}

        def missing() -> list[int]:
            return [i for i in range(1, hosts.count) if i not in received]

        def accept(message: Json, connection: socket.socket) -> bool:
            match message:
                case [int(index), {**its_facts}] if 1 <= index < hosts.count and required <= its_facts.keys():
                    if index not in received or _has_ended(connections[index]):
                        received[index] = {str(name): str(value) for name, value in its_facts.items()}
                        connections[index] = connection
                        return True
            return False

        try:
            hear(
                (host, int(port)),
                accept,
                expected=hosts.count,
                timeout=timeout,
                complete=lambda: not missing(),
                waiting=lambda: still_waiting(f"{_listed(hosts, missing())} of {hosts.count}") if missing() else None,
            )
        except OSError as error:
            raise UserError(
                f"port {port} cannot be opened ({error.strerror}); stop the other run on this machine if there is one, or name "
                "another port"
            ) from error
        fault, some_missing = _missing_or_differing(hosts, dict(facts), received), bool(missing())
        for connection in connections.values():
            with contextlib.suppress(OSError):  # the process has ended; its closed connection will show this
                connection.sendall(framed(signed([fault, some_missing])))
    if fault:
        for connection in connections.values():
            connection.close()
        raise (WorkersMissing if some_missing else UserError)(fault)
    return connections


_TOGETHER = (
    "start the same command on all workers at the same time (if one of them needs longer, e.g. to copy the corpus, with a larger "
    "--start-timeout)"
)


def _has_ended(connection: socket.socket) -> bool:
    """Returns whether the other end has closed a connection that has no unread data."""
    timeout = connection.gettimeout()
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(timeout)


def _missing_or_differing(hosts: Hosts, facts: dict[str, str], received: Mapping[int, dict[str, str]]) -> str:
    """Returns the error message about missing processes or differing facts, or ""."""
    missing = [i for i in range(1, hosts.count) if i not in received]
    if missing:
        return (
            f"{counted(hosts.count, 'worker')} expected, but {_listed(hosts, missing)} did not start; {_TOGETHER}:\n"
            f"  {hosts.remedy}"
        )
    differing = []
    for name in sorted({*facts, *(name for its_facts in received.values() for name in its_facts)}):
        ours, theirs = facts.get(name, "absent"), {i: received[i].get(name, "absent") for i in sorted(received)}
        others = {i: value for i, value in theirs.items() if value != ours}
        if len(others) == len(theirs) > 1 and len({*others.values()}) == 1:  # this process differs from all others
            differing.append(f"  {name}: {hosts.names[0]} has {ours}, the other {len(others)} have {theirs[1]}")
        else:
            differing += [f"  {name}: {hosts.names[0]} has {ours}, {hosts.names[i]} has {value}" for i, value in others.items()]
    if differing:
        shown = "\n".join(differing[:12])
        return f"the workers differ in code or configuration:\n{shown}\nmake them equal and start all again:\n  {hosts.remedy}"
    return ""


def _listed(hosts: Hosts, indices: list[int]) -> str:
    shown = ", ".join(hosts.names[i] for i in indices[:8])
    return shown + (f" and {len(indices) - 8} more" if len(indices) > 8 else "")


# -------------------------------------------------------------------------------------------------------------------- the loop
@dataclasses.dataclass(frozen=True)
class _Ending:
    """A planned end of this process. The loop prints `words` to stderr and exits with `status`, unless the process ends on its
    own first. The loop exits between the times `earliest` and `latest` (time.monotonic). Process 0 waits until `latest` for the
    other processes to exit."""

    words: str
    status: int
    earliest: float
    latest: float


class ProcessesLost(Exception):
    """Another process has failed or does not respond."""


ALONE = Hosts("", 1, 0, ("process 0",), "")


class Processes(contextlib.AbstractContextManager["Processes"]):
    """The processes of a run, as seen by one of them. `connections` maps process indices to connections. Process 0 is connected
    to all other processes, and each other process only to process 0.

    A process that is silent for `patience` seconds counts as lost. `leave` ends this process with an exit status.

    >>> with meet(hosts, config, timeout=300.0, patience=600.0) as processes:
    ...     versions = processes.gather(version)
    ...     train()
    """

    def __init__(
        self,
        hosts: Hosts = ALONE,
        connections: Mapping[int, socket.socket] | None = None,
        *,
        patience: float = 600.0,
        beat: float = BEAT,
        leave: Callable[[int], object] = os._exit,  # sys.exit would only end the listening thread
    ):
        self.hosts, self.index, self.count = hosts, hosts.index, hosts.count
        self._patience, self._beat, self._leave = patience, beat, leave
        self._connections, now = dict(connections or {}), time.monotonic()
        self._heard = dict.fromkeys(self._connections, now)
        self._received = dict.fromkeys(self._connections, b"")
        self._leaving: set[int] = set()
        """The processes that announced their end, were asked to end, or are lost."""
        self._closed: set[int] = set()
        self._ended = False
        """Whether this process has announced its end and only waits for other processes."""
        self._failed, self._parting = False, False
        """Whether this process has announced its failure, and whether this process has reached its end."""
        self._ending: _Ending | None = None
        self._told = ""
        """The silent processes, as last reported by process 0."""
        self._watchdog: Watchdog | None = None
        self._sending = threading.Lock()
        self._news = threading.Condition()
        """A condition that is notified of every message and of the end of the loop."""
        self._over = False
        self._round = 0
        self._gathered: dict[int, dict[int, Any]] = {}
        """Number of the `gather` call -> values by process. Process 0 has the values of all other processes. Every other
        process has the values of all processes."""
        self._calls = 0
        """The number of calls of `stop_together`."""
        self._halts = False
        """Whether a process was asked to stop. Calls of `stop_together` then wait for `_last_call`."""
        self._calls_of: dict[int, int] = {}
        """In process 0, the number of calls of each process when it learned that a process was asked to stop."""
        self._last_call: int | None = None
        """The call of `stop_together` after which all processes stop."""
        self._apart: Callable[[], object] | None = None
        """A function that asks this process to save and stop. It is only set if each process works on its own."""
        self._asked_to_stop = False
        self._shares: dict[int, Any] = {}
        """In process 0, the results of all processes that have finished their runs. In another process, the acknowledgement of
        its own result."""
        self._thread = threading.Thread(target=self._live, name="processes", daemon=True)

    def __enter__(self) -> Processes:
        for connection in self._connections.values():
            connection.settimeout(5.0)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Announces the end of this process. After an error, the other processes end too, unless each process works on its own.

        The loop continues in the background until the interpreter exits. The interpreter waits for the other processes before it
        exits (`_part`)."""
        if isinstance(error, Exception):
            self.end_after(error)
        self._ended = True
        if error is None or isinstance(error, SystemExit):
            self._send({"ends": True})
        else:
            self._tell_failure(error)
        if self._apart:  # if a connection were closed before everything is read, the last message would be lost
            for connection in self._connections.values():
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
            self._thread.join(FAREWELL)
        elif self._connections and (self.index == 0 or error is None or isinstance(error, SystemExit)):
            atexit.register(self._part)  # this handler is registered after JAX's, and therefore called first

    def _part(self) -> None:
        """Waits for other processes. Process 0 waits until all others have exited, and the others wait until process 0 has
        reached its end."""
        self._parting = True
        self._thread.join()

    # ---------------------------------------------------------------------------------------------------------------- agreements
    def gather(self, value: Value) -> list[Value]:
        """Returns the JSON values of all processes, in order. Every process must call this method, which waits for the other
        processes. A process that works independently gets only its own value."""
        if self.count == 1 or self._apart:
            return [value]
        self._round += 1
        number = self._round
        if self.index:
            self._send({"round": number, "value": value})
            self._await(lambda: number in self._gathered)
            return [said for _, said in sorted(self._gathered.pop(number).items())]
        others = self._gathered.setdefault(number, {})
        self._await(lambda: len(others) == self.count - 1)
        said = cast(Json, [value, *(others[i] for i in range(1, self.count))])
        (values,), _ = unframed(framed(said))  # the values as the other processes receive them
        self._send({"round": number, "values": values})
        del self._gathered[number]
        return cast(list[Value], values)

    def first(self, action: Callable[[], None]) -> None:
        """Runs `action` in process 0 only. If `action` raises a UserError, every process raises this error, so that no process
        waits for process 0."""
        message = ""
        if self.index == 0:
            try:
                action()
            except UserError as error:
                if self.count == 1:
                    raise
                message = str(error)
        if message := str(self.gather(message)[0]):
            raise UserError(message)

    def stop_together(self, asked: bool) -> bool:
        """Returns whether this run stops, because a process was `asked` to stop. Every process must call this method after every
        step. It returns True from the same call on in all processes, so that a collective save cannot deadlock. This is the first
        call that no process had reached when it learned of the request.

        The calls are counted, since the step is not 0 at the start of a resumed run, and decreases after a rollback."""
        with self._news:
            if asked and not self._halts:
                self._halt()
            self._news.wait_for(lambda: not self._halts or self._last_call is not None or self._over)
            self._calls += 1
            return self._last_call is not None and self._calls >= self._last_call

    def _halt(self) -> None:
        self._halts = True
        if self.index == 0:
            self._calls_of[0] = self._calls
        self._send({"halts": True})

    def join_jax(self, timeout: float) -> None:
        """Starts `jax.distributed`. Raises UserError if JAX has already computed, e.g. in a user's file.

        JAX's own service aborts all processes with a C++ stack trace if a process is silent. The service expects two heartbeats
        per time limit, so it may react after half of the limit. The limit is therefore more than twice our patience, so that
        our own check reacts first. This check names the silent process. JAX's barrier at the exit is not used, because process
        0, which runs the service, exits last."""
        host, _, port = self.hosts.coordinator.rpartition(":")
        jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM, see `stop_together`
        try:
            jax.distributed.initialize(
                self.hosts.coordinator,
                self.count,
                self.index,
                coordinator_bind_address=f"{own_address(host) or '[::]'}:{port}",
                initialization_timeout=max(60, int(timeout)),
                heartbeat_timeout_seconds=2 * int(self._patience) + 100,
                shutdown_timeout_seconds=0,
            )
        except RuntimeError as error:
            if "must be called before any JAX calls" not in str(error):
                raise
            raise UserError(
                "JAX was used before the processes were connected, probably by a file of yours that computes with JAX (e.g. "
                "jnp.zeros or jax.devices) while it is loaded; use NumPy there, or compute in the functions that the run calls. "
                f"Loaded files: {', '.join(loaded_files()) or 'none'}"
            ) from error

    @contextlib.contextmanager
    def watched_by(self, watchdog: Watchdog) -> Iterator[Watchdog]:
        """Ends this process and all others if the watchdog detects a hang."""
        self._watchdog = watchdog
        try:
            yield watchdog
        finally:
            self._watchdog = None

    @contextlib.contextmanager
    def shard_runs(self, workdir: AnyPath, stop: Callable[[], object]) -> Iterator[RunShard]:
        """Lets each process work on its own from now on, so that the loss of one process does not end the others. `stop` is
        called when another process was asked to stop, or when process 0 has ended.

        If an earlier start's process with the same index is still running, waits until that process has ended, since both
        processes would write the same files. Such a process ends soon after process 0 of its start. Raises UserError if it does
        not end in time."""
        if self.count == 1:
            yield RunShard()
            return
        (workdir / PROCESSES).mkdir(exist_ok=True)
        deadline = time.monotonic() + self._patience + EARLIER
        with contextlib.ExitStack() as held:
            while True:
                try:
                    held.enter_context(locked(workdir, f"{PROCESSES}/{self.index}.lock"))
                    break
                except UserError:
                    if time.monotonic() > deadline:
                        raise
                time.sleep(0.2)
            self._apart = stop
            if self._asked_to_stop:  # asked while this process was waiting
                stop()
            yield RunShard(self)

    def stop_all(self) -> None:
        """Notifies the other, independent processes that this process was asked to stop, so that they stop too."""
        self._asked_to_stop = True
        self._send({"stop": True})

    def collect(self, value: JsonObject, waiting: Callable[[], bool]) -> list[JsonObject] | None:
        """Collects the results of the processes that work independently; see `RunShard.gather`."""
        if self.index:
            self._send({"done": value})
        else:
            self._shares[0] = value
        while True:
            with self._news:
                if self.index and (self._shares or 0 in self._leaving):
                    return None
            if waiting() or (self._asked_to_stop and not self.index):
                self.stop_all()
                return None
            with self._news:
                now = time.monotonic()
                if len(self._shares) == self.count:
                    return [self._shares[i] for i in range(self.count)]
                silent = {other for other, heard in self._heard.items() if now - heard > self._patience}
                lost = sorted((self._leaving | silent) - self._shares.keys())
                if lost and not self.index:
                    raise ProcessesLost(f"process {', '.join(map(str, lost))} of {self.count} failed or does not respond")
                self._news.wait(min(1.0, self._beat))

    def _await(self, condition: Callable[[], bool]) -> None:
        with self._news:
            self._news.wait_for(lambda: condition() or self._over)
            if not condition():
                raise ProcessesLost("the other processes are gone")

    # ------------------------------------------------------------------------------------------------------------------ the ends
    def silent(self) -> str:
        """Returns a description of the processes that have been silent for several heartbeats, or ""."""
        now = time.monotonic()
        ours = [
            f"{self._named(other)} has sent no heartbeat for {now - heard:.0f} s"
            for other, heard in self._heard.items()
            if other not in self._leaving and now - heard > SILENT * self._beat
        ]
        return "; ".join(ours) or self._told

    def end_after(self, error: Exception) -> None:
        """Ends this process without cleanup after a device error or a corrupted corpus. An example of a device error is a
        collective that fails because another process has died. A regular exit would wait for devices that are still busy with
        the collective.

        Does nothing after any other error, or if no other process computes together with this one."""
        if not self._connections or self._apart or not (is_device_error(error) or isinstance(error, CorruptedCorpus)):
            return
        if isinstance(error, OutOfMemory | CorruptedCorpus):
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()
            self._tell_failure(error)
            if self.index == 0:
                self._thread.join(GRACE + FAREWELL)
            os._exit(USER_ERROR_STATUS)  # a restart would fail again, so no status of a hang
        self._thread.join(SILENT * self._beat)  # the thread reports which process was lost, and ends this process
        if self._ending:
            self._thread.join(GRACE + 2 * FAREWELL)
        first = str(error).splitlines()[0]
        text = f"{self._named(self.index)} lost the other processes: {first}"
        sys.stderr.write(f"{text}\nfind out which process ended first and why; {REMEDY.partition('; ')[2]}\n")
        sys.stderr.flush()
        self._tell_loss(text)
        latest = time.monotonic() + FAREWELL
        while self.index == 0 and self._thread.is_alive() and not self._alone() and time.monotonic() < latest:
            time.sleep(self._beat / 10)
        os._exit(HUNG)  # as after a hang, so that a supervisor restarts all processes

    def _named(self, index: int) -> str:
        return f"{self.hosts.names[index]} of {self.count}"

    def _tell_failure(self, error: BaseException) -> None:
        message = (str(error).strip() or type(error).__name__).splitlines()[0]
        status = USER_ERROR_STATUS if isinstance(error, UserError | CorruptedCorpus | OutOfMemory) else HUNG
        self._failed = True
        self._leaving.update(self._connections)
        self._send({"failed": f"{self._named(self.index)} has failed: {message}", "status": status})

    def _tell_loss(self, text: str) -> None:
        self._leaving.update(self._connections)
        self._send({"lost": text})

    def _send(self, message: JsonObject, but: int | None = None) -> None:
        data = framed(message)
        with self._sending:
            for other, connection in self._connections.items():
                if other != but and other not in self._closed:
                    with contextlib.suppress(OSError):  # a closed connection is only noticed when it is read
                        connection.sendall(data)

    # ------------------------------------------------------------------------------------------------------------------ the loop
    def _live(self) -> None:
        """Sends heartbeats, reads messages and checks for a hang. Returns when there is nothing left to wait for, or ends this
        process."""
        due, quiet = time.monotonic(), time.monotonic()
        with selectors.DefaultSelector() as selector:
            for other, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, other)
            while not self._is_over(quiet):
                now = time.monotonic()
                if now >= due:
                    self._send({"silent": self.silent()} if self.index == 0 else {})
                    due = now + self._beat
                now, watchdog = time.monotonic(), self._watchdog
                times = [due, self._ending.earliest] if self._ending else [due]
                if watchdog:
                    times.append(now + watchdog.limit() / 4)
                pause = min((at - now for at in times if at > now), default=0.0)
                ready = selector.select(pause)
                stopped = time.monotonic() - now - pause
                if stopped > self._beat:  # this process was suspended (Ctrl-Z), perhaps together with the others
                    self._heard = {other: min(heard + stopped, now + pause + stopped) for other, heard in self._heard.items()}
                    if watchdog:
                        watchdog.skip(stopped)
                with self._news:
                    for key, _ in ready:
                        if not self._listen(key.data):
                            selector.unregister(key.fileobj)
                    self._news.notify_all()
                self._look_for_silence()
                if watchdog and watchdog is self._watchdog:
                    self._look_for_a_hang(watchdog)
                if not self._ended or self._leaving != self._connections.keys():
                    quiet = time.monotonic()
                if self._ending and self._is_time(self._ending):
                    if self._ending.words:
                        sys.stderr.write(f"{self._ending.words}\n")
                        sys.stderr.flush()
                    self._leave(self._ending.status)
                    break
        with self._news:
            self._over = True
            self._news.notify_all()

    def _alone(self) -> bool:
        """Returns whether the connections to all others are closed."""
        return self._closed == self._connections.keys()

    def _is_over(self, quiet: float) -> bool:
        """Returns whether this process and everything that it waits for has ended. Process 0 waits for the exit of all other
        processes, but at most `PARTING` seconds after their final messages (at the time `quiet`). The other processes wait for
        the end of process 0.

        If an end is planned (`_Ending`), the loop continues until that end, unless this process has failed too and is ending on
        its own."""
        if self._ending and not (self._failed and self._parting):
            return False
        patience = 0.0 if self.index else PARTING
        all_end = self._leaving == self._connections.keys() and time.monotonic() - quiet >= patience
        return self._ended and (self._alone() or all_end)

    def _is_time(self, ending: _Ending) -> bool:
        now = time.monotonic()
        return now >= ending.latest or (now >= ending.earliest and (self.index > 0 or self._alone()))

    def _listen(self, other: int) -> bool:
        """Reads the messages of a process. Returns whether its connection is still open."""
        try:
            data = self._connections[other].recv(1 << 16)
            messages, self._received[other] = unframed(self._received[other] + data)
        except (OSError, ValueError):
            data = b""
        if not data:
            if other not in self._leaving:
                self._lost(f"{self._named(other)} has ended without a final message, as after a kill or a crash", other)
            self._leaving.add(other)
            self._closed.add(other)
            if self._apart:
                # The other process waits until this connection is shut down, so that its own last message is not lost.
                with contextlib.suppress(OSError):
                    self._connections[other].shutdown(socket.SHUT_RDWR)
                if other == 0:
                    self._stop()
            return False
        self._heard[other] = time.monotonic()
        for message in messages:
            self._understand(other, message)
        return True

    def _understand(self, other: int, message: Json) -> None:
        match message:
            case {"lost": str(text)}:
                self._lost(text, other)
            case {"failed": str(text), "status": int(status)}:
                self._leaving.add(other)
                if not self._apart:
                    if self.index == 0:
                        self._send({"failed": text, "status": status}, but=other)
                    self._end_soon(text, status)
            case {"ends": True}:
                self._leaving.add(other)
            case {"silent": str(text)}:
                self._told = text if self._named(self.index) not in text else ""
            case {"round": int(number), "value": value}:
                self._gathered.setdefault(number, {})[other] = value
            case {"round": int(number), "values": [*values]}:
                self._gathered[number] = dict(enumerate(values))
            case {"halts": True} if self.index == 0:
                if not self._halts:
                    self._halt()
            case {"halts": True}:
                self._halts = True
                self._send({"calls": self._calls})
            case {"calls": int(count)}:
                self._calls_of[other] = count
                if len(self._calls_of) == self.count:
                    self._last_call = max(self._calls_of.values()) + 1
                    self._send({"last call": self._last_call})
            case {"last call": int(number)}:
                self._last_call = number
            case {"stop": True}:
                if self.index == 0:
                    self._send({"stop": True}, but=other)
                self._stop()
            case {"done": value}:
                self._shares[other] = value
                self._send({"received": other})
            case {"received": self.index}:
                self._shares[self.index] = None

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        for other, heard in list(self._heard.items()):
            if other not in self._leaving and now - heard > self._patience:
                if self._apart:  # the process may come back; if not, `collect` reports it
                    if other == 0:
                        self._stop()
                    continue
                silence = f"has sent no heartbeat for {now - heard:.0f} s: it was stopped, or its network is down"
                self._lost(f"{self._named(other)} {silence}", other)
                self._leaving.add(other)

    def _look_for_a_hang(self, watchdog: Watchdog) -> None:
        if hang := watchdog.hang():
            found = "; ".join(filter(None, (f"process {self.index} {hang}", self.silent())))
            watchdog.report(found, self.index)
            self._watchdog = None
            self._tell_loss(found)
            now = time.monotonic()
            self._ending = _Ending("", HUNG, now, now + FAREWELL)

    def _lost(self, text: str, other: int) -> None:
        """Ends this process because the process `other` is lost, or has reported that another process is lost."""
        if self._apart:
            self._leaving.add(other)
            if other == 0:
                self._stop()
        elif self._ending is None:
            if self.index == 0:
                self._send({"lost": text}, but=other)
            now = time.monotonic()
            self._ending = _Ending(f"{text}\n{REMEDY}", HUNG, now, now + FAREWELL)

    def _end_soon(self, text: str, status: int) -> None:
        """Ends this process because another process has failed, unless this process ends on its own within `GRACE` seconds."""
        if self._ending is None:
            words = f"error: {text}" if status == USER_ERROR_STATUS else f"{text}\n{REMEDY}"
            now = time.monotonic()
            self._ending = _Ending(words, status, now + GRACE, now + GRACE + FAREWELL)

    def _stop(self) -> None:
        """Asks this independent process to save and stop."""
        asked_before, self._asked_to_stop = self._asked_to_stop, True
        is_done = self.index > 0 and self.index in self._shares
        if self._apart and not (asked_before or is_done or self._ended):
            log.warning("another process was asked to stop, or process 0 is lost: saving, then stopping")
            self._apart()


# ------------------------------------------------------------------------------------------------------------- the shared work
@dataclasses.dataclass(frozen=True)
class RunShard:
    """The runs of a sweep or a study that this process trains.

    The processes divide the runs among themselves. Each process uses its own devices, without collectives. Otherwise, a sweep
    on several hosts would train one small run after another on all chips. In addition, collectives of processes that end hours
    apart would time out.

    >>> with processes.shard_runs(workdir, stop=preemption.request) as shard:
    ...     mine = {run: train(run) for run in shard.select(runs)}
    ...     everything = shard.gather(mine, waiting=lambda: False)  # in process 0; in the others None, and they may end
    """

    processes: Processes | None = None
    """All processes, if there are several."""

    @property
    def index(self) -> int:
        """The index of this process, from 0."""
        return self.processes.index if self.processes else 0

    @property
    def count(self) -> int:
        """The number of processes that share the work."""
        return self.processes.count if self.processes else 1

    def select(self, items: Sequence[Item]) -> Sequence[Item]:
        """Returns every `count`-th of the `items`, starting with item `index`. Neighbouring runs differ only in the seed and
        take the same time, so they go to different processes."""
        return items[self.index :: self.count]

    def tell_stopped(self) -> None:
        """Notifies the other processes that this process was asked to stop, so that they stop too."""
        if self.processes:
            self.processes.stop_all()

    def gather(self, value: JsonObject, waiting: Callable[[], bool]) -> list[JsonObject] | None:
        """In process 0, waits until every process has called `gather` and returns their JSON values in order.

        In the other processes, returns None once process 0 has their value. `waiting` is called every second. If it returns
        True, all processes are asked to stop and `gather` returns None. In process 0, `gather` also returns None if a process
        was asked to stop, and raises ProcessesLost if another process failed before its `gather`."""
        return self.processes.collect(value, waiting) if self.processes else [value]


# --------------------------------------------------------------------------------------------------------- the shared directory
MARKER_FILE = ".shared"
"""The file with which the processes check that they share a directory."""


def require_shared_directory(processes: Processes, directory: AnyPath, patience: float = 60.0) -> None:
    """Raises UserError in every process if a process does not see the `directory` of process 0 within `patience` seconds. Each
    process writes its part of a checkpoint to this directory. Network file systems only show new files after some seconds."""
    if processes.count == 1:
        return
    path, token = directory / MARKER_FILE, os.urandom(8).hex()
    if processes.index == 0:
        path.write_text(token)
    token, deadline = str(processes.gather(token)[0]), time.monotonic() + patience
    while not (seen := path.is_file() and path.read_text() == token) and time.monotonic() < deadline:
        time.sleep(0.5)
    everywhere = processes.gather(seen)
    if processes.index == 0:
        path.unlink(missing_ok=True)
    if blind := [str(i) for i, seen in enumerate(everywhere) if not seen]:
        raise UserError(
            f"--workdir={directory} of process 0 is not the directory that process {', '.join(blind)} sees under that name; give "
            "a directory in a bucket (gs://BUCKET/PATH), or on storage that all workers mount, such as NFS"
        )
