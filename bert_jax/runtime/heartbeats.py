"""Heartbeats between the processes of a run: finds out which process has ended or does not answer, and ends all the others.

A collective with a dead peer waits, or fails with an error that names no process; JAX's own service aborts all processes
with a C++ stack trace, and its start waits minutes for a process that has died. So the connections of the roll call stay open:
process 0 has one to every other process, over which both sides send a line every few seconds. A connection that closes without a
farewell is a process that was killed, a silent one a process that was stopped or has lost its network. Process 0 passes on what
it finds out, so that every process ends within seconds and names the same culprit.
"""

from __future__ import annotations

import contextlib
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

import jax

from bert_jax.corpus.files import Json, JsonObject, parse_json
from bert_jax.corpus.integrity import CorruptedCorpus
from bert_jax.errors import USER_ERROR_STATUS, UserError
from bert_jax.interface.exit_statuses import HUNG
from bert_jax.sharding.out_of_memory import OutOfMemory

BEAT = 2.0
"""Seconds between two lines."""
SILENT = 3.5
"""Beats without a line after which a process is named as silent where this one hangs."""
GRACE = 10.0
"""Seconds in which a process that hears of the failure of another one may end by itself, as where all fail alike."""
REMEDY = "look for why it ended; the same command on all of them continues from the last checkpoint"


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
        """The processes that have said that they end. They may still wait for this one, so they are told when it ends too."""
        self._closed: set[int] = set()
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

        Other processes may still be at work, so this one listens on, in the background, until it exits.
        """
        if isinstance(error, jax.errors.JaxRuntimeError | CorruptedCorpus):
            self.end_after(error)
        if isinstance(error, Exception):
            self._tell_failure(error)
        else:
            self._send({"ends": True})

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
        """Tells the others to end, and why."""
        self._send({"lost": "; ".join(reason for reason in reasons if reason)})

    def end_after(self, error: Exception) -> NoReturn:
        """Ends this process without cleanup after a failed collective, whose usual cause is the death of a peer.

        A regular exit would wait minutes for the dead process in JAX's shutdown barrier.
        """
        if isinstance(error, OutOfMemory | CorruptedCorpus):
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()
            self._tell_failure(error)
            os._exit(USER_ERROR_STATUS)  # a restart would fail again, so the exit status is not that of a hang
        self._thread.join(SILENT * self._beat)  # which names the culprit, and ends this process
        first = str(error).splitlines()[0]
        text = f"{self._named(self._index)} lost the other processes: {first}"
        sys.stderr.write(f"{text}\nlook for the process that ended first and why; {REMEDY.partition('; ')[2]}\n")
        sys.stderr.flush()
        self.tell(text)
        os._exit(HUNG)  # the remedy is that of a hang: a supervisor starts all processes again

    def _named(self, index: int) -> str:
        return f"{self._names[index]} of {len(self._names)}"

    def _tell_failure(self, error: Exception) -> None:
        message = (str(error).strip() or type(error).__name__).splitlines()[0]
        status = USER_ERROR_STATUS if isinstance(error, UserError | CorruptedCorpus | OutOfMemory) else HUNG
        self._send({"failed": f"{self._named(self._index)} has failed: {message}", "status": status})

    def _send(self, message: JsonObject, but: int | None = None) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._sending:
            for other, connection in self._connections.items():
                if other != but and other not in self._closed:
                    with contextlib.suppress(OSError):  # what it means will show when it is read
                        connection.sendall(data)

    def _live(self) -> None:
        due = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for other, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, other)
            while self._leaving != self._connections.keys():
                if time.monotonic() >= due:
                    self._send({"silent": self.silent()} if self._index == 0 else {})
                    due = time.monotonic() + self._beat
                for key, _ in selector.select(max(0.0, due - time.monotonic())):
                    if not self._listen(key.data):
                        selector.unregister(key.fileobj)
                self._look_for_silence()

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
        if self._index == 0:
            self._send({"lost": text}, but=other)
        sys.stderr.write(f"{text}\n{REMEDY}\n")
        sys.stderr.flush()
        self._leave(HUNG)

    def _end_soon(self, text: str, status: int) -> None:
        def end() -> None:
            sys.stderr.write(f"error: {text}\n" if status == USER_ERROR_STATUS else f"{text}\n{REMEDY}\n")
            sys.stderr.flush()
            self._leave(status)

        timer = threading.Timer(GRACE, end)
        timer.daemon = True
        timer.start()
