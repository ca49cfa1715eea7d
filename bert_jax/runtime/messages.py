"""Sends and receives short texts over a TCP connection: four bytes with the length, then UTF-8.

Anyone who reaches the port may call, and anything may come: port scanners, half-open connections, other programs' protocols.
`Calls` reads all callers at the same time, so that none of them keeps the others waiting.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import ipaddress
import selectors
import socket
import time
from types import TracebackType

LONGEST = 1 << 20
"""Bytes of a text."""
PATIENCE = 10.0
"""Seconds in which a caller has to send its text."""
MOST_CALLERS = 256
"""Callers whose texts are awaited at the same time, beside those that are expected; of more, the oldest are turned away."""


def send(connection: socket.socket, text: str) -> None:
    """Sends `text`. Raises OSError where the connection is lost."""
    data = text.encode()
    connection.sendall(len(data).to_bytes(4, "big") + data)


def receive(connection: socket.socket) -> str:
    """The next text. Raises OSError where the connection is lost or nothing comes in time, ValueError for what `send` has not
    sent."""

    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = connection.recv(size - len(data))
            if not part:
                raise ConnectionResetError("the peer closed the connection")
            data += part
        return data

    size = int.from_bytes(exactly(4), "big")
    if size > LONGEST:
        raise ValueError("the message is longer than any that is sent")
    return exactly(size).decode()


@dataclasses.dataclass
class _Caller:
    connection: socket.socket
    until: float
    """The time (of time.monotonic) after which it is turned away."""
    data: bytes = b""


class Calls(contextlib.AbstractContextManager["Calls"]):
    """Listens at `address` (HOST, PORT) and receives the first text of every caller. Raises OSError where it cannot listen.

    >>> with Calls(("10.0.0.2", 8476), expected=3) as calls:
    ...     while call := calls.next(seconds=1.0):
    ...         connection, text = call
    """

    def __init__(self, address: tuple[str, int], expected: int):
        self._server = socket.create_server(address, backlog=expected + MOST_CALLERS)
        self._server.setblocking(False)
        self._most = expected + MOST_CALLERS
        self._callers: dict[socket.socket, _Caller] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)

    def next(self, seconds: float) -> tuple[socket.socket, str] | None:
        """The next caller that has sent a text, and the text; None where there is none within `seconds`. Callers that send
        anything else, or nothing in time, are turned away."""
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
        with contextlib.suppress(OSError):  # it has gone already
            connection, _ = self._server.accept()
            connection.setblocking(False)
            self._callers[connection] = _Caller(connection, time.monotonic() + PATIENCE)
            self._selector.register(connection, selectors.EVENT_READ)
            if len(self._callers) > self._most:
                self._turn_away(next(iter(self._callers.values())))

    def _read(self, caller: _Caller) -> tuple[socket.socket, str] | None:
        try:
            data = caller.connection.recv(1 << 16)
            caller.data += data
            size = int.from_bytes(caller.data[:4], "big") if len(caller.data) >= 4 else 0
            if not data or size > LONGEST or len(caller.data) > 4 + LONGEST:
                raise ValueError
            if len(caller.data) < 4 or len(caller.data) - 4 < size:
                return None
            text = caller.data[4:].decode()
        except BlockingIOError:
            return None
        except (OSError, ValueError):
            self._turn_away(caller)
            return None
        self._forget(caller)
        caller.connection.settimeout(PATIENCE)
        return caller.connection, text

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
    """The address of this machine that `host` names, at which to listen; "" for all of its addresses, where the name does not
    tell: Debian gives a machine's own name the address 127.0.1.1, and behind a NAT the address is that of another machine."""
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
