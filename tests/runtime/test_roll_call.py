"""The roll call by a clock that is given: what is said while processes are missing, how long each step waits, what is closed."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.runtime import processes, slices
from bert_jax.runtime.processes import Hosts

NAMES = tuple(f"worker {i}" for i in range(12))


def hosts(count: int, index: int = 0) -> Hosts:
    return Hosts("a:1", count, index, NAMES[:count], "THE REMEDY")


class Connection:
    """A connection with the text that has come over it; "" for one that comes from a stranger."""

    def __init__(self, text: str = ""):
        self.text, self.timeout, self.closed, self.sent = text, 0.0, False, list[str]()

    def settimeout(self, seconds: float) -> None:
        self.timeout = seconds

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Time:
    """A clock that goes on only where something waits; it begins at 1000."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Calls:
    """Callers one after the other, None for nobody within the time that is waited."""

    def __init__(self, clock: Time, connections: list[Connection | None]):
        self._clock, self._connections = clock, connections
        self.waited: list[float] = []
        self.at_pause: Callable[[], object] = lambda: None

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def next(self, seconds: float) -> tuple[Connection, str] | None:
        self.waited.append(seconds)
        connection = self._connections.pop(0) if self._connections else None
        if connection is None:
            self._clock.now += seconds
            self.at_pause()
            return None
        return connection, connection.text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """In place of the time; texts go over a `Connection`."""

    def receive(connection: Connection) -> str:
        if not connection.text:
            raise ValueError("no text")
        return connection.text

    clock = Time()
    for module in (processes, slices):
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, "receive", receive)
        monkeypatch.setattr(module, "send", lambda connection, text: connection.sent.append(text))
    return clock


def serve(monkeypatch: pytest.MonkeyPatch, clock: Time, *connections: Connection | None) -> Calls:
    calls = Calls(clock, list(connections))
    for module in (processes, slices):
        monkeypatch.setattr(module, "own_address", lambda host: f"own of {host}")
        monkeypatch.setattr(module, "Calls", lambda address, expected: calls)
    return calls


def test_the_first_process_says_every_ten_seconds_who_is_missing(clock: Time, monkeypatch: pytest.MonkeyPatch):
    server = serve(monkeypatch, clock)
    said: list[str] = []
    with pytest.raises(UserError, match=r"3 workers expected, and worker 1, worker 2 did not start"):
        processes.roll_call(hosts(3), {}, 25.005, say=said.append)
    assert said == ["waiting for worker 1, worker 2 of 3 (11s)", "waiting for worker 1, worker 2 of 3 (22s)"]
    assert server.waited == [1.0] * 25 + [0.01]


def test_the_others_say_every_ten_seconds_that_they_wait(clock: Time, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []

    def create_connection(address: Any, timeout: float) -> None:
        asked.append((address, timeout))
        raise ConnectionRefusedError

    monkeypatch.setattr(processes.socket, "create_connection", create_connection)
    said: list[str] = []
    with pytest.raises(UserError, match="this is worker 2 of 3, and worker 0 at a:1 did not answer within 25 s"):
        processes.roll_call(hosts(3, 2), {}, 25.0, say=said.append)
    assert said == ["waiting for worker 0 at a:1 (10s)", "waiting for worker 0 at a:1 (20s)"]
    assert set(asked) == {(("a", 1), 5)}
    assert set(clock.slept) == {0.2}
    assert 124 <= len(clock.slept) <= 126


def test_what_is_said_goes_to_stderr_where_nobody_asks_for_it(
    clock: Time, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    serve(monkeypatch, clock)
    with pytest.raises(UserError):
        processes.roll_call(hosts(2), {}, 12.0)
    assert capsys.readouterr().err == "waiting for worker 1 of 2 (11s)\n"


def test_connections_are_kept_where_all_is_well_and_else_closed(clock: Time, monkeypatch: pytest.MonkeyPatch):
    def called(jax: str, kept: dict[int, Any] | None) -> list[Connection]:
        stranger, first, second = Connection(), Connection('[2, {"jax": "1"}]'), Connection(json.dumps([1, {"jax": jax}]))
        serve(monkeypatch, clock, None, stranger, first, second)
        try:
            result = processes.roll_call(hosts(3), {"jax": "1"}, 30.0, begin=lambda: "this start", kept=kept)
            error = ""
        except UserError as caught:
            result, error = "", str(caught)
        assert [json.loads(text) for text in (*first.sent, *second.sent)] == [[error, result]] * 2
        assert stranger.closed
        assert (result == "this start") is (jax == "1")
        return [first, second]

    kept: dict[int, Any] = {}
    first, second = called("1", kept)
    assert (kept, first.closed, second.closed) == ({2: first, 1: second}, False, False)
    assert all(connection.closed for connection in called("1", None))
    kept.clear()
    assert all(connection.closed for connection in called("2", kept))
    assert kept == {}


def test_another_process_keeps_its_connection_to_the_first_one(clock: Time, monkeypatch: pytest.MonkeyPatch):
    good = Connection('["", "this start"]')
    answers: list[Connection] = [Connection(), good]
    monkeypatch.setattr(processes.socket, "create_connection", lambda address, timeout: answers.pop(0))
    stranger = answers[0]
    kept: dict[int, Any] = {}
    assert processes.roll_call(hosts(3, 2), {"jax": "1"}, 30.0, kept=kept) == "this start"
    assert (kept, good.closed, good.timeout) == ({0: good}, False, 30 + 15)
    assert (stranger.closed, clock.slept) == (True, [0.2])
    assert [json.loads(text) for text in good.sent] == [[2, {"jax": "1"}, ""]]
    refused = Connection('["they differ", ""]')
    answers.append(refused)
    with pytest.raises(UserError, match="they differ"):
        processes.roll_call(hosts(3, 2), {}, 30.0, kept=kept)
    assert refused.closed


def test_a_roll_call_has_no_time_left_at_its_deadline(clock: Time, monkeypatch: pytest.MonkeyPatch):
    serve(monkeypatch, clock, Connection("[1, {}]"))
    with pytest.raises(UserError, match="worker 1 did not start"):
        processes.roll_call(hosts(2), {}, 0.0)
    monkeypatch.setattr(processes.socket, "create_connection", lambda address, timeout: pytest.fail("too late"))
    with pytest.raises(UserError, match="did not answer within 0 s"):
        processes.roll_call(hosts(2, 1), {}, 0.0)


def test_the_port_is_opened_at_the_named_address(clock: Time, monkeypatch: pytest.MonkeyPatch):
    def listen(address: tuple[str, int], expected: int) -> None:
        assert (address, expected) == (("own of a", 1), 3)
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(processes, "own_address", lambda host: f"own of {host}")
    monkeypatch.setattr(processes, "Calls", listen)
    with pytest.raises(UserError, match=r"^port 1 cannot be opened \(Address already in use\): another run"):
        processes.roll_call(hosts(3), {}, 30.0)


@pytest.mark.parametrize(
    ("others", "lines"),
    [
        ([{"jax": "2"}], ["jax: worker 0 has 1, worker 1 has 2"]),
        ([{"jax": "2"}, {"jax": "2"}], ["jax: worker 0 has 1, the other 2 have 2"]),
        ([{"jax": "2"}, {"jax": "3"}], ["jax: worker 0 has 1, worker 1 has 2", "jax: worker 0 has 1, worker 2 has 3"]),
        ([{"jax": "1"}, {"jax": "3"}], ["jax: worker 0 has 1, worker 2 has 3"]),
        ([{"jax": "1", "new": "x"}], ["new: worker 0 has absent, worker 1 has x"]),
        ([{}], ["jax: worker 0 has 1, worker 1 has absent"]),
        (
            [{"jax": "1"} | {f"key{n:02}": "x" for n in range(13)}],
            [f"key{n:02}: worker 0 has absent, worker 1 has x" for n in range(12)],
        ),
        ([{"jax": "1"}], []),
    ],
)
def test_differences_are_listed_by_what_differs(others: list[dict[str, str]], lines: list[str]):
    found = processes._missing_or_differing(hosts(len(others) + 1), {"jax": "1"}, dict(enumerate(others, 1)))
    assert [line.strip() for line in found.splitlines() if line.startswith("  ")][:-1] == lines


def test_at_most_eight_of_the_missing_are_named():
    assert processes._listed(hosts(12), list(range(8))) == ", ".join(NAMES[:8])
    assert processes._listed(hosts(12), list(range(1, 12))) == ", ".join(NAMES[1:9]) + " and 3 more"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "GET / HTTP/1.1",
            '"x"',
            "[]",
            "{}",
            "null",
            '[1, "x"]',
            "[1e999, {}]",
            '["1", {}]',
            "[[1], {}]",
            "[0, {}]",
            "[2, {}]",
        ),
        *("[-1, {}]", "[1, {}]", '[1, {"jax": "1"}, "no proof"]', '[1, {"commit": "a"}]', "[" * 50_000),
    ],
)
def test_what_no_process_of_the_run_says_is_ignored(text: str, clock: Time, monkeypatch: pytest.MonkeyPatch):
    stranger, other = Connection(text), Connection('[1, {"jax": "1"}]')
    serve(monkeypatch, clock, stranger, other)
    assert processes.roll_call(hosts(2), {"jax": "1"}, 30.0, begin=lambda: "this start") == "this start"
    assert (stranger.sent, stranger.closed) == ([], True)


def test_with_a_secret_only_those_that_know_it_are_heard(clock: Time, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BERT_JAX_SECRET", "the secret")
    good = Connection('["", "this start"]')
    monkeypatch.setattr(processes.socket, "create_connection", lambda address, timeout: good)
    processes.roll_call(hosts(2, 1), {"jax": "1"}, 30.0)
    knows, stranger = Connection(good.sent[0]), Connection('[1, {"jax": "1"}]')
    serve(monkeypatch, clock, stranger, Connection(good.sent[0].replace('"1"', '"2"')), knows)
    assert processes.roll_call(hosts(2), {"jax": "1"}, 30.0, begin=lambda: "this start") == "this start"
    assert (stranger.sent, knows.sent) == ([], ['["", "this start"]'])


def test_a_number_is_that_of_the_first_caller_for_as_long_as_it_is_there(clock: Time, monkeypatch: pytest.MonkeyPatch):
    ended: list[Connection] = []
    monkeypatch.setattr(processes, "_has_ended", ended.__contains__)
    first, again, third, other = (Connection(f'[{i}, {{"jax": "1"}}]') for i in (1, 1, 1, 2))
    calls = serve(monkeypatch, clock, first, again, None, third, other)
    calls.at_pause = lambda: ended.append(first)
    processes.roll_call(hosts(3), {"jax": "1"}, 30.0)
    assert [len(one.sent) for one in (first, again, third, other)] == [0, 0, 1, 1]


# ------------------------------------------------------------------------------------------------------- slices, one by one
def joined(own: list[str], worker: int, timeout: float | None = 30.0) -> list[list[str]]:
    more = {} if timeout is None else {"timeout": timeout}
    return slices.joined_slices(own, worker, ["h0", "h1", "h2", "h3"], **more)


def told(own: list[str], worker: int) -> Connection:
    return Connection(json.dumps({"slice": own, "worker": worker}))


def test_the_first_host_collects_the_slices_and_tells_them_to_all(clock: Time, monkeypatch: pytest.MonkeyPatch):
    stranger, odd = Connection('{"slice": ["h2"], "worker": 1e999}'), Connection('{"slice": ["h2", "h9"], "worker": 0}')
    others = [told(["h2", "h1"], 1), told(["h2", "h1"], 0), told(["h0", "h3"], 1)]
    server = serve(monkeypatch, clock, None, stranger, odd, *others)
    assert joined(["h0", "h3"], 0) == [["h0", "h3"], ["h2", "h1"]]
    assert [json.loads(text) for one in others for text in one.sent] == [[[["h0", "h3"], ["h2", "h1"]], []]] * 3
    assert [one.closed for one in (stranger, odd, *others)] == [True] * 5
    assert server.waited == [1.0] * 6


def test_hosts_that_do_not_come_are_named_after_the_time(clock: Time, monkeypatch: pytest.MonkeyPatch):
    here = told(["h2", "h1"], 1)
    server = serve(monkeypatch, clock, here)
    with pytest.raises(UserError, match=r"^h2, h3 of 4 hosts did not start within 2 s, so"):
        joined(["h0", "h3"], 0, 2.005)
    assert server.waited == [1.0, 1.0, 1.0, 0.01]
    assert json.loads(here.sent[0]) == [[["h0", "h3"], ["h2", "h1"]], ["h2", "h3"]]
    serve(monkeypatch, clock, here)
    with pytest.raises(UserError, match=r"^h1, h2, h3 of 4 hosts did not start within 0 s"):
        joined(["h0", "h3"], 0, 0.0)

    def listen(address: tuple[str, int], expected: int) -> None:
        assert (address, expected) == (("own of h0", 8476), 4)
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(slices, "Calls", listen)
    with pytest.raises(UserError, match=r"^port 8476 cannot be opened \(Address already in use\)"):
        joined(["h0", "h3"], 0)


def test_the_other_hosts_ask_the_first_one_until_it_answers(clock: Time, monkeypatch: pytest.MonkeyPatch):
    answer = Connection('[[["h0", "h3"], ["h2", "h1"]], []]')
    answers: list[Connection] = [Connection(), answer]
    asked: list[Any] = []

    def create_connection(address: Any, timeout: float) -> Connection:
        asked.append((address, timeout))
        if not answers:
            raise ConnectionRefusedError
        return answers.pop(0)

    monkeypatch.setattr(slices.socket, "create_connection", create_connection)
    assert joined(["h2", "h1"], 1) == [["h0", "h3"], ["h2", "h1"]]
    assert [json.loads(text) for text in answer.sent] == [{"slice": ["h2", "h1"], "worker": 1}]
    assert (asked, clock.slept) == ([(("h0", 8476), 5)] * 2, [0.2])
    assert (answer.timeout, answer.closed) == (pytest.approx(29.8 + 15), True)
    late = Connection('[[["h0", "h3"], ["h2", "h1"]], []]')
    answers.append(late)
    assert joined(["h2", "h1"], 1, 0.5)
    assert late.timeout == 1 + 15, "of a deadline that is near"
    with pytest.raises(UserError, match=r"^h0 of 4 hosts did not start within 300 s"):
        joined(["h2", "h1"], 1, None)
    assert clock.now == pytest.approx(1300.2, abs=0.3)
    with pytest.raises(UserError, match="within 0 s"):
        joined(["h2", "h1"], 1, 0.0)


def test_a_host_without_chips_or_without_metadata_is_no_slice(monkeypatch: pytest.MonkeyPatch):
    environment: dict[str, str] = {}
    devices: list[str] = []
    metadata: dict[str, str] = {}
    asked: list[str] = []

    def ask(key: str) -> str | None:
        asked.append(key)
        return metadata.get(key)

    monkeypatch.setattr(slices.os, "environ", environment)
    monkeypatch.setattr(slices.pathlib, "Path", lambda path: types.SimpleNamespace(glob=lambda pattern: devices))
    monkeypatch.setattr(slices, "_metadata", ask)
    assert slices.slice_variables() is None
    devices.append("accel0")
    environment["TPU_SKIP_MDS_QUERY"] = "1"
    assert slices.slice_variables() is None
    assert asked == []
    del environment["TPU_SKIP_MDS_QUERY"]
    for name, value in (("worker-network-endpoints", "h0,h1"), ("agent-worker-number", "1")):
        metadata.clear()
        metadata[f"attributes/{name}"] = value
        assert slices.slice_variables() is None
    metadata |= {"attributes/worker-network-endpoints": "h0,h1"}
    assert slices.slice_variables() == {"TPU_WORKER_HOSTNAMES": "h0,h1", "TPU_WORKER_ID": "1"}
    metadata["attributes/tpu-env"] = "a line\nZONE: 'us:b'\n"
    environment |= {"MEGASCALE_NUM_SLICES": "2", "OTHER": "x"}
    found = {"ZONE": "us:b", "MEGASCALE_NUM_SLICES": "2", "TPU_WORKER_HOSTNAMES": "h0,h1", "TPU_WORKER_ID": "1"}
    assert slices.slice_variables() == found
    environment["SKYPILOT_NODE_IPS"] = "h0 h1 h2 h3"
    assert slices.slice_variables() == found, "GKE has joined them"
    environment["TPU_WORKER_HOSTNAMES"] = "t0"
    assert slices.slice_variables() == environment


def test_the_metadata_server_is_asked_as_google_wants(monkeypatch: pytest.MonkeyPatch):
    answers: list[Callable[[], Connection]] = []

    def urlopen(request: Any, timeout: float) -> Any:
        url = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/x"
        assert (request.full_url, request.headers, timeout) == (url, {"Metadata-flavor": "Google"}, 5)
        return answers.pop()()

    class Answer(Connection):
        def read(self) -> bytes:
            return b"h0"

    def nobody() -> Connection:
        raise OSError

    monkeypatch.setattr(slices.urllib.request, "urlopen", urlopen)
    answers += [nobody, Answer]
    assert [slices._metadata("attributes/x"), slices._metadata("attributes/x")] == ["h0", None]
