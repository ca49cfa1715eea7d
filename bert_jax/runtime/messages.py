"""Sends and receives short texts over a TCP connection: four bytes with the length, then UTF-8."""

from __future__ import annotations

import socket

LONGEST = 1 << 20
"""Bytes of a text."""


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
