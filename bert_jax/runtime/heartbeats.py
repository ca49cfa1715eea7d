"""Heartbeats between the processes of a run: finds out which process has ended or does not answer, and ends all the others.

A collective with a dead peer waits, or fails with an error that names no process; JAX's own service aborts all processes
with a C++ stack trace, and its start waits minutes for a process that has died. So the connections of the roll call stay open:
process 0 has one to every other process, over which both sides send a line every few seconds. A connection that closes without a
farewell is a process that was killed, a silent one a process that was stopped or has lost its network. Process 0 passes on what
it finds out, so that every process ends within seconds and names the same culprit.

JAX's service lives in process 0, and aborts every process that is still connected to it when process 0 exits. Its own barrier
before the exit does not prevent that on busy machines: process 0 closes the service before the others have left the barrier. So
process 0 exits after all others here, and they wait for it to reach its end; `processes.connect` turns JAX's barrier off.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NoReturn

from bert_jax.data.corpus.integrity import CorruptedCorpus
from bert_jax.errors import USER_ERROR_STATUS, UserError
from bert_jax.files import Json, JsonObject, parse_json
from bert_jax.interface.exit_statuses import HUNG
from bert_jax.sharding.device_errors import is_device_error
from bert_jax.sharding.out_of_memory import OutOfMemory

BEAT = 2.0
"""Seconds between two lines."""
SILENT = 3.5
"""Beats without a line after which a process is named as silent where this one hangs."""
GRACE = 10.0
"""Seconds in which a process that hears of the failure of another one may end by itself, as where all fail alike."""
FAREWELL = 5.0
"""Seconds for which process 0, about to end after a failure, waits until the others have ended."""
PARTING = 60.0
"""Seconds for which process 0 waits, at its regular end, until the others, which have said that they end, have exited."""
REMEDY = "look for why it ended; the same command on all of them continues from the last checkpoint"


@dataclasses.dataclass(frozen=True)
class _Ending:
    """The `words` on stderr and the exit status with which this process ends unless it ends by itself before, the time `earliest`
    before which it does not, and the time `latest` until which it waits for the others to exit (of time.monotonic)."""

    words: str
    status: int
    earliest: float
    latest: float


class Heartbeats(contextlib.AbstractContextManager["Heartbeats"]):
    """The heartbeats of process `index`, whose `connections` are those to the others by their numbers: in process 0 all, in each
    other one that to process 0. `names` are those of all processes.

    A process that is silent for `patience` seconds counts as lost. `leave` ends this process with an exit status.

    >>> with Heartbeats(0, names, connections, patience=600.0) as heartbeats:
    ...     train()
    """

    def __init__(
        self,
        index: int,
        names: tuple[str, ...],
        connections: Mapping[int, socket.socket],
        *,
        patience: float,
        beat: float = BEAT,
        leave: Callable[[int], object] = os._exit,  # sys.exit would only end the listening thread
    ):
        self._index, self._names, self._patience, self._beat, self._leave = index, names, patience, beat, leave
        self._connections, now = dict(connections), time.monotonic()
        self._heard = dict.fromkeys(connections, now)
        self._received = dict.fromkeys(connections, b"")
        self._leaving: set[int] = set()
        """The processes that have said that they end, or were told to. They may wait for this one, and are told when it ends."""
        self._closed: set[int] = set()
        self._ended = False
        """Whether this process has said that it ends, and does nothing more than wait."""
        self._failed, self._parting = False, False
        """Whether it has said that it failed, and whether it has reached its end."""
        self._ending: _Ending | None = None
        self._told = ""
        """The silent processes, as process 0 has last told."""
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._live, name="heartbeats", daemon=True)

    def __enter__(self) -> Heartbeats:
        for connection in self._connections.values():
            connection.settimeout(5.0)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Says that this process ends. After an error, the others end too.

        The listening goes on in the background until the interpreter exits, which waits for the other processes (`_part`).
        """
        if isinstance(error, Exception) and (is_device_error(error) or isinstance(error, CorruptedCorpus)):
            self.end_after(error)
        self._ended = True
        if error is None or isinstance(error, SystemExit):
            self._send({"ends": True})
        else:
            self._tell_failure(error)
        if self._index == 0 or error is None or isinstance(error, SystemExit):
            atexit.register(self._part)  # before the handler of JAX, which was registered earlier and so is called later

    def _part(self) -> None:
        """Waits for the others: process 0 until they have exited, the others until process 0 has reached its end."""
        self._parting = True
        self._thread.join()

    def silent(self) -> str:
        """The processes that have been silent for some beats, in words; "" if there are none."""
        now = time.monotonic()
        ours = [
            f"{self._named(other)} has given no sign of life for {now - heard:.0f} s"
            for other, heard in self._heard.items()
            if other not in self._leaving and now - heard > SILENT * self._beat
        ]
        return "; ".join(ours) or self._told

    def tell(self, *reasons: str) -> None:
        """Tells the others to end, and why; for a process that ends at once. Process 0 waits for them, some seconds."""
        self._leaving.update(self._connections)
        self._send({"lost": "; ".join(reason for reason in reasons if reason)})
        latest = time.monotonic() + FAREWELL
        while self._index == 0 and self._thread.is_alive() and not self._alone() and time.monotonic() < latest:
            time.sleep(self._beat / 10)

    def end_after(self, error: Exception) -> NoReturn:
        """Ends this process without cleanup after a failed collective, whose usual cause is the death of a peer.

        A regular exit would wait for devices that are still in the collective.
        """
        if isinstance(error, OutOfMemory | CorruptedCorpus):
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()
            self._tell_failure(error)
            if self._index == 0:
                self._thread.join(GRACE + FAREWELL)
            os._exit(USER_ERROR_STATUS)  # a restart would fail again, so the exit status is not that of a hang
        self._thread.join(SILENT * self._beat)  # which names the culprit, and ends this process
        if self._ending:
            self._thread.join(GRACE + 2 * FAREWELL)
        first = str(error).splitlines()[0]
        text = f"{self._named(self._index)} lost the other processes: {first}"
        sys.stderr.write(f"{text}\nlook for the process that ended first and why; {REMEDY.partition('; ')[2]}\n")
        sys.stderr.flush()
        self.tell(text)
        os._exit(HUNG)  # the remedy is that of a hang: a supervisor starts all processes again

    def _named(self, index: int) -> str:
        return f"{self._names[index]} of {len(self._names)}"

    def _tell_failure(self, error: BaseException) -> None:
        message = (str(error).strip() or type(error).__name__).splitlines()[0]
        status = USER_ERROR_STATUS if isinstance(error, UserError | CorruptedCorpus | OutOfMemory) else HUNG
        self._failed = True
        self._leaving.update(self._connections)
        self._send({"failed": f"{self._named(self._index)} has failed: {message}", "status": status})

    def _send(self, message: JsonObject, but: int | None = None) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._sending:
            for other, connection in self._connections.items():
                if other != but and other not in self._closed:
                    with contextlib.suppress(OSError):  # what it means will show when it is read
                        connection.sendall(data)

    def _live(self) -> None:
        """Sends and listens until there is nothing more to wait for, or ends this process."""
        due, quiet = time.monotonic(), time.monotonic()
        with selectors.DefaultSelector() as selector:
            for other, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, other)
            while not self._over(quiet):
                now = time.monotonic()
                if now >= due:
                    self._send({"silent": self.silent()} if self._index == 0 else {})
                    due = now + self._beat
                times = [due, self._ending.earliest] if self._ending else [due]
                ready = selector.select(min(at - now for at in times if at > now))
                if time.monotonic() - now > SILENT * self._beat:  # this process was stopped, and the others perhaps with it
                    self._heard = dict.fromkeys(self._heard, time.monotonic())
                for key, _ in ready:
                    if not self._listen(key.data):
                        selector.unregister(key.fileobj)
                self._look_for_silence()
                if not self._ended or self._leaving != self._connections.keys():
                    quiet = time.monotonic()
                if self._ending and self._is_time(self._ending):
                    sys.stderr.write(f"{self._ending.words}\n")
                    sys.stderr.flush()
                    self._leave(self._ending.status)
                    return

    def _alone(self) -> bool:
        """Whether the connections to all others are closed."""
        return self._closed == self._connections.keys()

    def _over(self, quiet: float) -> bool:
        """Whether all that this process waits for has come: in process 0 the exit of all others, or `PARTING` seconds since they
        have said that they end (at the time `quiet`), in the others the end of process 0 and of this one.

        A process that is about to be ended waits for that, unless it has failed as the others have and is at its end by itself.
        """
        if self._ending and not (self._failed and self._parting):
            return False
        patience = 0.0 if self._index else PARTING
        all_end = self._ended and self._leaving == self._connections.keys()
        return self._alone() or (all_end and time.monotonic() - quiet >= patience)

    def _is_time(self, ending: _Ending) -> bool:
        now = time.monotonic()
        return now >= ending.latest or (now >= ending.earliest and (self._index > 0 or self._alone()))

    def _listen(self, other: int) -> bool:
        """Reads what a process has sent. Returns whether its connection is still open."""
        try:
            data = self._connections[other].recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            if other not in self._leaving:
                self._lost(f"{self._named(other)} has ended without a word, as after a kill or a crash", other)
            self._leaving.add(other)
            self._closed.add(other)
            return False
        self._heard[other] = time.monotonic()
        *lines, self._received[other] = (self._received[other] + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                self._understand(other, parse_json(line))
        return True

    def _understand(self, other: int, message: Json) -> None:
        match message:
            case {"lost": str(text)}:
                self._lost(text, other)
            case {"failed": str(text), "status": int(status)}:
                self._leaving.add(other)
                if self._index == 0:
                    self._send({"failed": text, "status": status}, but=other)
                self._end_soon(text, status)
            case {"ends": True}:
                self._leaving.add(other)
            case {"silent": str(text)}:
                self._told = text if self._named(self._index) not in text else ""

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        for other, heard in list(self._heard.items()):
            if other not in self._leaving and now - heard > self._patience:
                silence = f"has given no sign of life for {now - heard:.0f} s: it was stopped, or its network is cut"
                self._lost(f"{self._named(other)} {silence}", other)
                self._leaving.add(other)

    def _lost(self, text: str, other: int) -> None:
        """Ends this process because the process `other` is lost, or has said so of another one."""
        if self._ending is None:
            if self._index == 0:
                self._send({"lost": text}, but=other)
            now = time.monotonic()
            self._ending = _Ending(f"{text}\n{REMEDY}", HUNG, now, now + FAREWELL)

    def _end_soon(self, text: str, status: int) -> None:
        """Ends this process because another one has failed, unless it ends by itself within `GRACE` seconds."""
        if self._ending is None:
            words = f"error: {text}" if status == USER_ERROR_STATUS else f"{text}\n{REMEDY}"
            now = time.monotonic()
            self._ending = _Ending(words, status, now + GRACE, now + GRACE + FAREWELL)
