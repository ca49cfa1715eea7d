"""Texts over a connection, and a JSON value from every process."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bert_jax.runtime import gathering
from bert_jax.runtime.messages import receive, send


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(10)
    yield ends
    for end in ends:
        end.close()


def test_texts_arrive_one_after_the_other(pair: tuple[socket.socket, socket.socket]):
    for text in ("first", "", "dämmerung", "x" * 70_000):
        send(pair[0], text)
    assert [receive(pair[1]) for _ in range(4)] == ["first", "", "dämmerung", "x" * 70_000]
    pair[0].close()
    with pytest.raises(ConnectionResetError, match="the peer closed the connection"):
        receive(pair[1])


class Bytes:
    """A connection that has received `data`, and gives one part of it at a time."""

    def __init__(self, data: bytes, part: int = 1 << 20):
        self._data, self._part = data, part

    def recv(self, size: int) -> bytes:
        size = min(size, self._part)
        given, self._data = self._data[:size], self._data[size:]
        return given


def test_a_text_may_come_in_parts_and_has_a_megabyte_at_most():
    found: Any = Bytes(b"\0\0\0\x05abcde\0\0\0\x01f", part=2)
    assert [receive(found), receive(found)] == ["abcde", "f"]
    longest: Any = Bytes((1 << 20).to_bytes(4, "big") + b"x" * (1 << 20))
    assert len(receive(longest)) == 2**20
    longer: Any = Bytes(((1 << 20) + 1).to_bytes(4, "big") + b"x" * (1 << 21))
    with pytest.raises(ValueError, match="longer than any"):
        receive(longer)


def test_values_of_different_lengths_are_gathered_in_the_order_of_the_processes(monkeypatch: pytest.MonkeyPatch):
    assert gathering.gather_json({"a": 1}) == [{"a": 1}], "of one process"
    values = [{"a": 1}, {"b": "a longer one"}]
    sent = [np.frombuffer(json.dumps(value).encode(), np.uint8) for value in values]
    width = max(data.size for data in sent)

    def allgather(own: np.ndarray) -> np.ndarray:
        """The own value among those of the others."""
        if own.ndim == 0:
            assert own == sent[0].size
            return np.array([data.size for data in sent], np.int32)
        rows = np.stack([np.pad(data, (0, width - data.size)) for data in sent])
        np.testing.assert_array_equal(own, rows[0])
        return rows

    monkeypatch.setattr(gathering.jax, "process_count", lambda: 2)
    monkeypatch.setattr(gathering.multihost_utils, "process_allgather", allgather)
    assert gathering.gather_json(values[0]) == values
