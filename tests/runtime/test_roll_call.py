"""The roll call: which processes are missing, which differences are reported, and how long process 0 waits for callers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import pathlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from bert_jax.errors import MISSING, USER_ERROR_STATUS, UserError
from bert_jax.interface.named import read_files_again
from bert_jax.runtime import processes
from bert_jax.runtime.hosts import Hosts
from bert_jax.runtime.messages import framed, receive, signed, verified
from bert_jax.runtime.processes import code_digest, git_commit, meet, process_facts, roll_call
from tests.clock import Clock, SelectorClock
from tests.end_to_end.runs import free_port

NAMES = tuple(f"worker {i}" for i in range(12))


def group(count: int, port: int) -> list[Hosts]:
    return [Hosts(f"127.0.0.1:{port}", count, i, NAMES[:count], "THE REMEDY") for i in range(count)]


def call(
    present: list[Hosts], facts: list[dict[str, str]], timeout: float, status: int = USER_ERROR_STATUS
) -> list[str]:
    """Runs the roll call of several workers at once, each in a thread. Returns the error that each got, or "". All errors have
    the `status`."""
    told = [""] * len(present)

    def one(i: int) -> None:
        try:
            for connection in roll_call(present[i], facts[i], timeout, say=lambda line: None).values():
                connection.close()
        except UserError as error:
            told[i] = str(error) if error.status == status else f"status {error.status}: {error}"

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(present))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return told


def test_workers_that_agree_continue():
    assert call(group(4, free_port()), [{"jax": "1"}] * 4, timeout=30) == [""] * 4


def test_present_workers_learn_who_is_missing():
    told = call(group(4, free_port())[:2], [{"jax": "1"}] * 2, timeout=1, status=MISSING)
    assert told[0] == told[1]
    assert told[0].startswith("4 workers expected, but worker 2, worker 3 did not start; start the same command on all workers")
    assert "with a larger --start-timeout" in told[0]
    assert "THE REMEDY" in told[0]


def test_a_worker_reports_a_missing_first_process_in_time():
    (told,) = call(group(2, free_port())[1:], [{}], timeout=1, status=MISSING)
    assert told.startswith("this is worker 1 of 2, but worker 0 at 127.0.0.1")
    assert "with a larger --start-timeout" in told
    assert "did not answer within 1 s" in told
    assert "THE REMEDY" in told


def test_a_difference_is_reported_by_all():
    facts = [{"jax": "0.10.2", "config.seed": "0"}, {"jax": "0.10.2", "config.seed": "0"}, {"jax": "0.11.0", "config.seed": "1"}]
    told = call(group(3, free_port()), facts, timeout=30)
    assert told[0] == told[1] == told[2]
    assert told[0].startswith("the workers differ")
    assert "  config.seed: worker 0 has 0, worker 2 has 1\n  jax: worker 0 has 0.10.2, worker 2 has 0.11.0\n" in told[0]


def test_a_difference_in_a_text_about_missing_workers_is_still_a_difference():
    """Its exit status allows no restart."""
    facts = [{"config.note": text} for text in (processes._TOGETHER, "")]
    assert all(text.startswith("the workers differ") for text in call(group(2, free_port()), facts, timeout=30))


def test_a_stranger_on_the_port_changes_nothing():
    port = free_port()
    stop = threading.Event()

    def stranger() -> None:
        while not stop.wait(0.01):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            except OSError:
                pass

    thread = threading.Thread(target=stranger)
    thread.start()
    try:
        assert call(group(2, port), [{}, {}], timeout=30) == ["", ""]
    finally:
        stop.set()
        thread.join()


def test_a_port_in_use_is_an_error():
    with socket.create_server(("", 0)) as server, pytest.raises(UserError, match="cannot be opened"):
        roll_call(group(2, server.getsockname()[1])[0], {}, timeout=5)


def test_identity_names_packages_commit_and_every_configuration_key():
    facts = process_facts({"seed": 3, "optimizer": {"name": "lamb"}})
    assert facts["config.seed"] == "3"
    assert facts["config.optimizer.name"] == '"lamb"'
    assert facts["jax"] == jax.__version__
    assert facts["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert facts["libtpu"]
    assert (facts["commit"], facts["code"]) == (git_commit(), code_digest())


def test_workers_with_different_contents_of_a_users_file_are_reported(tmp_path: pathlib.Path):
    file, facts = tmp_path / "mine.py", list[dict[str, str]]()
    for source in ("def mine(): return 1\n", "def mine(): return 2\n"):
        file.write_text(source)
        read_files_again()  # each process reads the file once
        facts.append(process_facts({"optimizer": {"name": f"{file}:mine"}}))
    first, second = (hashlib.sha256(f"def mine(): return {n}\n".encode()).hexdigest()[:12] for n in (1, 2))
    told = call(group(2, free_port()), facts, timeout=30)
    says = f"  config.optimizer.name (SHA-256 of the file): worker 0 has {first}, worker 1 has {second}\nmake them equal"
    assert says in told[0] == told[1]


def test_processes_that_meet_agree_on_their_configuration_and_keep_their_connections():
    hosts, met = group(3, free_port()), list[Any]()

    def one(i: int) -> None:
        met.append(meet(hosts[i], {"seed": 3}, timeout=60.0, patience=60.0))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {one.index: sorted(one._connections) for one in met} == {0: [1, 2], 1: [0], 2: [0]}
    for one in met:
        for connection in one._connections.values():
            connection.close()
    assert meet(None, {}, timeout=60.0, patience=60.0).count == 1


class First:
    """Process 0 of a run, in a thread, and its result."""

    def __init__(self, count: int, facts: dict[str, str]):
        self.port, self.error, self.connections = free_port(), "", dict[int, socket.socket]()
        self._facts, self._hosts = facts, group(count, self.port)[0]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.connections = roll_call(self._hosts, self._facts, 60.0, say=lambda line: None)
        except UserError as error:
            self.error = str(error)

    def call(self, data: bytes) -> socket.socket:
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
            except ConnectionRefusedError:
                assert self._thread.is_alive(), f"process 0 listens no more: {self.error}"
                time.sleep(0.01)
            else:
                connection.sendall(data)
                return connection

    def is_over(self) -> bool:
        self._thread.join(0.2)
        return not self._thread.is_alive()


@contextlib.contextmanager
def first(count: int, facts: dict[str, str]) -> Iterator[First]:
    here = First(count, facts)
    yield here
    here._thread.join(60)
    for connection in here.connections.values():
        connection.close()


def turned_away(connection: socket.socket) -> bool:
    with connection:
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True


STRANGE = [
    *("x", [], {}, None, [1, "x"], ["1", {}], [[1], {}], [0, {"jax": "1"}], [2, {"jax": "1"}], [-1, {"jax": "1"}]),
    *([1, {}], [1, {"commit": "a"}], [1, {"jax": "1"}, 3], [float("inf"), {"jax": "1"}]),
]


def test_messages_from_outside_of_the_run_are_ignored():
    deep = b"[" * 50_000
    texts = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1x", len(deep).to_bytes(4, "big") + deep]
    texts += [framed(signed(said)) for said in STRANGE] + [framed([[1, {"jax": "1"}], "no proof"]), framed([1, {"jax": "1"}])]
    with first(2, {"jax": "1"}) as here:
        strangers = [here.call(text) for text in texts]
        assert all(turned_away(stranger) for stranger in strangers[1:])
        assert not here.is_over()
        with here.call(framed(signed([1, {"jax": "1", "config.seed": "0"}]))) as other:
            assert "config.seed: worker 0 has absent, worker 1 has 0" in str(verified(receive(other)))
        assert turned_away(strangers[0])
    assert "differ in code or configuration" in here.error


def test_with_a_secret_other_callers_are_ignored(monkeypatch: pytest.MonkeyPatch):
    unsigned = framed(signed([1, {"jax": "1"}]))
    monkeypatch.setenv("BERT_JAX_SECRET", "the secret")
    told = json.loads(framed(signed([1, {"jax": "1"}]))[4:])
    changed = framed([[1, {"jax": "2"}], told[1]])
    with first(2, {"jax": "1"}) as here:
        assert turned_away(here.call(unsigned))
        assert turned_away(here.call(changed))
        assert call(group(2, here.port)[1:], [{"jax": "1"}], 30) == [""]
    assert here.error == ""


def test_answers_without_the_secret_are_ignored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BERT_JAX_SECRET", "the secret")
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with stranger.accept()[0] as connection:
                        connection.sendall(framed(["", ""]))

        thread = threading.Thread(target=answer)
        thread.start()
        (told,) = call(group(2, stranger.getsockname()[1])[1:], [{}], 1)
        stranger.shutdown(socket.SHUT_RDWR)
        thread.join(30)
    assert "did not answer within 1 s" in told


def test_a_process_number_belongs_to_its_first_connected_caller():
    with first(3, {"jax": "1"}) as here:
        mine = framed(signed([1, {"jax": "1"}]))
        early = here.call(mine)
        time.sleep(0.5)
        again = here.call(mine)
        assert turned_away(again)
        early.close()
        time.sleep(0.2)
        third, other = here.call(mine), here.call(framed(signed([2, {"jax": "1"}])))
        with third, other:
            assert [verified(receive(third)), verified(receive(other))] == [["", False]] * 2


def test_a_worker_that_dies_does_not_prevent_answers_to_the_others():
    """The loop of `Processes` reports the dead worker later."""
    with first(3, {"jax": "1"}) as here:
        here.call(framed(signed([1, {"jax": "1"}]))).close()
        assert call(group(3, here.port)[2:], [{"jax": "1"}], 30) == [""]
    assert here.error == ""


# ------------------------------------------------------------------------------------------------------------------- by the clock
def test_the_first_process_reports_missing_workers_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    SelectorClock(monkeypatch)
    with pytest.raises(UserError, match=r"3 workers expected, but worker 1, worker 2 did not start"):
        roll_call(group(3, free_port())[0], {}, 25.005)
    says = "waiting for worker 1, worker 2 of 3"
    assert capsys.readouterr().err == f"{says} (11s)\n{says} (22s)\n"


def test_waiting_workers_report_every_ten_seconds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    clock, port = Clock(monkeypatch), free_port()
    with pytest.raises(UserError, match=rf"this is worker 2 of 3, but worker 0 at 127.0.0.1:{port} did not answer within 25 s"):
        roll_call(group(3, port)[2], {}, 25.0)
    says = f"waiting for worker 0 at 127.0.0.1:{port}"
    assert capsys.readouterr().err == f"{says} (10s)\n{says} (20s)\n"
    assert clock.passed == pytest.approx(25, abs=0.3)


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
def test_differences_are_listed_by_subject(others: list[dict[str, str]], lines: list[str]):
    found = processes._missing_or_differing(group(len(others) + 1, 1)[0], {"jax": "1"}, dict(enumerate(others, 1)))
    assert [line.strip() for line in found.splitlines() if line.startswith("  ")][:-1] == lines


def test_at_most_eight_missing_workers_are_named():
    assert processes._listed(group(12, 1)[0], list(range(8))) == ", ".join(NAMES[:8])
    assert processes._listed(group(12, 1)[0], list(range(1, 12))) == ", ".join(NAMES[1:9]) + " and 3 more"
