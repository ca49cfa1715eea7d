"""Messages over a connection, also if unknown callers connect."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bert_jax.runtime import messages
from bert_jax.runtime.messages import Calls, ask, framed, own_address, receive, signed, unframed
from tests.clock import Clock


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(10)
    yield ends
    for end in ends:
        end.close()


def test_messages_arrive_in_order(pair: tuple[socket.socket, socket.socket]):
    said = ["first", "", {"dämmerung": [1, None]}, "x" * 70_000]
    for message in said:
        pair[0].sendall(framed(message))
    assert [receive(pair[1]) for _ in range(4)] == said
    pair[0].close()
    with pytest.raises(ConnectionResetError, match="the peer closed the connection"):
        receive(pair[1])


class Bytes:
    """A connection that has received `data`, and returns one part of it at a time."""

    def __init__(self, data: bytes, part: int = 1 << 20):
        self._data, self._part = data, part

    def recv(self, size: int) -> bytes:
        size = min(size, self._part)
        given, self._data = self._data[:size], self._data[size:]
        return given


def test_messages_may_arrive_in_parts_and_answers_are_limited_to_a_megabyte():
    data = framed("abcde") + framed([6])
    found: Any = Bytes(data, part=2)
    assert [receive(found), receive(found)] == ["abcde", [6]]
    for cut in range(len(data)):
        early, rest = unframed(data[:cut])
        assert early + unframed(rest + data[cut:])[0] == ["abcde", [6]]
    longest: Any = Bytes(framed("x" * ((1 << 20) - 2)))
    assert len(str(receive(longest))) == 2**20 - 2
    longer: Any = Bytes(framed("x" * ((1 << 20) - 1)))
    with pytest.raises(ValueError, match="too long"):
        receive(longer)
    assert unframed(framed("x" * (1 << 20)))[0] == ["x" * (1 << 20)], "from a known process"


@pytest.fixture
def calls() -> Iterator[Calls]:
    with Calls(("127.0.0.1", 0), expected=1) as calls:
        yield calls


def caller(calls: Calls, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(calls._server.getsockname(), timeout=10)
    connection.sendall(data)
    return connection


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_message_counts_once_complete_and_can_be_answered(calls: Calls):
    data = framed(signed("abcde"))
    connection = caller(calls, data[:-2])
    assert calls.next(0.2) is None
    assert not any(one.getblocking() for one in (calls._server, *calls._callers)), "another caller may have left by now"
    connection.sendall(data[-2:])
    heard = calls.next(10.0)
    assert heard is not None
    own, message = heard
    assert (message, own.gettimeout()) == ("abcde", 10.0)
    own.close()
    connection.close()


def test_callers_wait_in_a_queue_until_their_messages_are_read():
    with Calls(("127.0.0.1", 0), expected=3) as calls, contextlib.ExitStack() as opened:
        for _ in range(200):
            opened.enter_context(caller(calls))
        opened.enter_context(caller(calls, framed(signed("the last"))))
        call = calls.next(10)
        assert call is not None
        assert call[1] == "the last"
        call[0].close()


def test_a_caller_waits_for_the_answer_longer_than_for_the_connection():
    """The called process answers when all others have called it, which may have started later."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as connection:
                time.sleep(0.2)
                connection.sendall(framed(signed("late")))

        thread = threading.Thread(target=answer)
        thread.start()
        answered = ask(server.getsockname(), "x", timeout=0.1)
        thread.join(30)
    assert answered is not None
    assert answered[0] == "late"
    answered[1].close()


def test_slow_callers_do_not_block_others(calls: Calls):
    data = framed(signed("dämmerung"))
    strangers = [
        caller(calls, b"GET / HTTP/1.1\r\n\r\n"),
        caller(calls, (1 << 21).to_bytes(4, "big")),
        caller(calls, b"\0\0\0\2\xff\xff"),
        caller(calls, framed("without a proof")),
    ]
    silent, half, gone = caller(calls), caller(calls, b"\0\0\0\x09half"), caller(calls)
    gone.close()
    parts = caller(calls, data[:7])
    assert calls.next(0.2) is None
    parts.sendall(data[7:])
    call = calls.next(10)
    assert call is not None
    assert call[1] == "dämmerung"
    call[0].sendall(b"!")
    assert parts.recv(1) == b"!"
    assert all(is_closed(stranger) for stranger in strangers)
    calls.__exit__(None, None, None)
    assert all(is_closed(stranger) for stranger in (silent, half))
    call[0].close()


def test_a_caller_that_says_nothing_is_rejected_after_ten_seconds(calls: Calls, monkeypatch: pytest.MonkeyPatch):
    silent, clock = caller(calls), Clock(monkeypatch)

    def is_rejected() -> bool:
        silent.setblocking(False)
        try:
            return silent.recv(1) == b""
        except BlockingIOError:
            return False

    assert calls.next(0.0) is None
    clock.advance(9.9)
    assert calls.next(0.0) is None
    assert not is_rejected()
    clock.advance(0.1)
    assert calls.next(0.0) is None
    assert is_rejected()


def test_the_oldest_of_too_many_callers_are_rejected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(messages, "MOST_CALLERS", 2)
    with Calls(("127.0.0.1", 0), expected=1) as calls:
        callers = []
        for _ in range(5):
            callers.append(caller(calls))
            assert calls.next(0.05) is None
        assert [is_closed(one) for one in callers[:2]] == [True, True]
        callers[2].sendall(framed(signed("x")))
        call = calls.next(10)
        assert call is not None
        assert call[1] == "x"
        call[0].close()
        for one in callers:
            one.close()


def test_a_process_listens_at_the_given_address():
    assert [own_address(host) for host in ("127.0.0.1", "localhost", "127.0.0.2")] == ["127.0.0.1", "127.0.0.1", "127.0.0.2"]


def test_a_foreign_host_name_makes_a_process_listen_at_all_addresses(monkeypatch: pytest.MonkeyPatch):
    found = {"me": "127.0.1.1", "nat": "192.0.2.7"}

    def getaddrinfo(host: str, *_: object) -> list[Any]:
        if host not in found:
            raise socket.gaierror("no such name")
        return [(None, None, None, "", (found[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert [own_address(host) for host in ("me", "nat", "nowhere")] == ["", "", ""]
