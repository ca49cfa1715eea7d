"""Sends and receives JSON over TCP. A message is its length in four bytes, followed by its text in UTF-8.

All communication between the processes of a run uses such connections. One process listens at a known address (`hear`) and the
others call it (`ask`). Anyone who can reach the port may connect, such as a port scanner or a program with another protocol,
and a connection may be half open. `Calls` therefore reads from all callers concurrently, so that no caller blocks another. If
the run has a secret, both sides sign their messages with it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hmac
import ipaddress
import json
import os
import selectors
import socket
import time
from collections.abc import Callable
from types import TracebackType

from bert_jax.files import Json, parse_json

SECRET = "BERT_JAX_SECRET"
"""The environment variable with a secret that all processes of a run share. If it is not set, the secret is SkyPilot's task id,
if there is one. Callers without the secret are ignored."""
LONGEST = 1 << 20
"""The maximum number of bytes of a caller's message, and of the answer."""
PATIENCE = 10.0
"""The seconds within which a caller must send its message."""
MOST_CALLERS = 256
"""The maximum number of pending callers in addition to the expected callers. If there are more, the oldest caller is
disconnected."""
ANSWER = 15.0
"""The seconds that a caller waits for the answer in addition to its own time limit, since the called process may have started
later."""


# -------------------------------------------------------------------------------------------------------------------- messages
def framed(message: Json) -> bytes:
    """Returns a message as bytes. They are the length of the text, followed by the text."""
    data = json.dumps(message).encode()
    return len(data).to_bytes(4, "big") + data


def unframed(data: bytes, longest: int = (1 << 32) - 1) -> tuple[list[Json], bytes]:
    """Returns (the complete messages at the start of `data`, the rest of `data`). Raises ValueError for data not written by
    `framed`."""
    found = []
    while len(data) >= 4:
        size = int.from_bytes(data[:4], "big")
        if size > longest:
            raise ValueError("the message is too long")
        if len(data) < 4 + size:
            break
        found.append(parse_json(data[4 : 4 + size].decode()))
        data = data[4 + size :]
    return found, data


def receive(connection: socket.socket) -> Json:
    """Receives the next message and reads nothing beyond it. Raises OSError if the connection is lost or times out, and
    ValueError for data not written by `framed`."""
    data = b""
    while not (found := unframed(data, LONGEST)[0]):
        size = 4 + int.from_bytes(data[:4], "big") if len(data) >= 4 else 4
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the peer closed the connection")
        data += part
    return found[0]


def signed(message: Json) -> list[Json]:
    """Returns [message, HMAC]. The HMAC is made with the secret of the run, and shows that the message comes from a process of
    the run. If there is no secret, it is ""."""
    secret = os.environ.get(SECRET) or os.environ.get("SKYPILOT_TASK_ID", "")
    return [message, hmac.new(secret.encode(), json.dumps(message).encode(), "sha256").hexdigest() if secret else ""]


def verified(message: Json) -> Json:
    """Returns the content of a message that a process of this run has signed. Raises ValueError for anything else."""
    match message:
        case [said, str(proof)] if hmac.compare_digest(proof.encode(), str(signed(said)[1]).encode()):
            return said
    raise ValueError("the message does not come from a process of this run")


# ----------------------------------------------------------------------------------------------------------------------- calls
def hear(
    address: tuple[str, int],
    accept: Callable[[Json, socket.socket], bool],
    *,
    expected: int,
    timeout: float,
    complete: Callable[[], bool],
    waiting: Callable[[], object] = lambda: None,
) -> None:
    """Listens at `address` (HOST, PORT) until `complete` returns True, for at most `timeout` seconds. If it is not clear which
    address of this machine is meant, listens at all addresses.

    `accept` is called with the first message and the connection of each process of this run, and returns whether the message
    was expected. If the message was not expected, or if the caller is not a process of this run, the connection is closed.
    `waiting` is called at least every second. Raises OSError if the port cannot be opened.
    """
    deadline = time.monotonic() + timeout
    with Calls((own_address(address[0]), address[1]), expected) as calls:
        while not complete() and time.monotonic() < deadline:
            call = calls.next(min(1.0, max(0.01, deadline - time.monotonic())))
            if call is not None and not accept(call[1], call[0]):
                call[0].close()
            waiting()


def ask(
    address: tuple[str, int], message: Json, *, timeout: float, waiting: Callable[[], object] = lambda: None
) -> tuple[Json, socket.socket] | None:
    """Sends `message` to the process that listens at `address`. Returns the answer and the open connection, or None if the
    process does not answer within `timeout` seconds. `waiting` is called after each failed attempt."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            with contextlib.ExitStack() as opened:
                connection = opened.enter_context(socket.create_connection(address, timeout=5))
                connection.sendall(framed(signed(message)))
                connection.settimeout(timeout + ANSWER)
                answer = verified(receive(connection))
                opened.pop_all()
                return answer, connection
        except (OSError, ValueError, RecursionError):  # the process does not listen yet, or another program has the port
            time.sleep(0.2)
        waiting()
    return None


@dataclasses.dataclass
class _Caller:
    connection: socket.socket
    until: float
    """The time (time.monotonic) after which the caller is disconnected."""
    data: bytes = b""


class Calls(contextlib.AbstractContextManager["Calls"]):
    """Listens at `address` (HOST, PORT) and receives the first message of every caller. Raises OSError if it cannot listen.

    >>> with Calls(("10.0.0.2", 8476), expected=3) as calls:
    ...     while call := calls.next(seconds=1.0):
    ...         connection, message = call
    """

    def __init__(self, address: tuple[str, int], expected: int):
        self._server = socket.create_server(address, backlog=expected + MOST_CALLERS)
        self._server.setblocking(False)
        self._most = expected + MOST_CALLERS
        self._callers: dict[socket.socket, _Caller] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)

    def next(self, seconds: float) -> tuple[socket.socket, Json] | None:
        """Waits at most `seconds` for a message of this run. Returns (the connection of its sender, the message), or None if no
        message has arrived. Disconnects callers that send anything else or do not send a message in time."""
        deadline = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for caller in [caller for caller in self._callers.values() if now >= caller.until]:
                self._turn_away(caller)
            wait = min([deadline, *(caller.until for caller in self._callers.values())]) - now
            for key, _ in self._selector.select(max(0.0, wait)):
                if key.fileobj is self._server:
                    self._accept()
                elif (call := self._read(self._callers[key.fileobj])) is not None:  # type: ignore[index]
                    return call
            if time.monotonic() >= deadline:
                return None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the caller has already disconnected
            connection, _ = self._server.accept()
            connection.setblocking(False)
            self._callers[connection] = _Caller(connection, time.monotonic() + PATIENCE)
            self._selector.register(connection, selectors.EVENT_READ)
            if len(self._callers) > self._most:
                self._turn_away(next(iter(self._callers.values())))

    def _read(self, caller: _Caller) -> tuple[socket.socket, Json] | None:
        try:
            data = caller.connection.recv(1 << 16)
            if not data:
                raise ValueError
            caller.data += data
            found, _ = unframed(caller.data, LONGEST)
            if not found:
                return None
            message = verified(found[0])
        except BlockingIOError:
            return None
        except (OSError, ValueError, RecursionError):
            self._turn_away(caller)
            return None
        self._forget(caller)
        caller.connection.settimeout(PATIENCE)
        return caller.connection, message

    def _forget(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        del self._callers[caller.connection]

    def _turn_away(self, caller: _Caller) -> None:
        self._forget(caller)
        caller.connection.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for caller in list(self._callers.values()):
            self._turn_away(caller)
        self._selector.close()
        self._server.close()


def own_address(host: str) -> str:
    """Returns the address of this machine at which to listen for `host`. Returns "" (all addresses) if this is not clear from
    the name. For example, Debian resolves a machine's own name to 127.0.1.1, and behind a NAT the name has the address of
    another machine."""
    try:
        address = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        loopback = ipaddress.ip_address(address).is_loopback
    except OSError:
        return ""
    if loopback and host not in ("localhost", address):
        return ""
    try:
        socket.create_server((str(address), 0)).close()
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return ""
    return str(address)
