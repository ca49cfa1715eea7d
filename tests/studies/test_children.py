"""The process of a part, without starting one."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import types
from typing import Any

import pytest

from bert_jax.studies import children


class Process:
    """A process that ends with `status` at the third poll."""

    def __init__(self, status: int):
        self.looks, self.status, self.asked = 0, status, 0

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def poll(self) -> int | None:
        self.looks += 1
        return self.status if self.looks > 3 else None

    def terminate(self) -> None:
        self.asked += 1


def run(monkeypatch: pytest.MonkeyPatch, log: pathlib.Path, status: int, watched: list[bool]) -> tuple[int, Process, list[Any]]:
    """Returns (exit status, the process, the arguments of its start and the length of each pause)."""
    process, seen = Process(status), []

    def start(command: list[str], stdout: Any, stderr: int) -> Process:
        stdout.write(b"said\n")
        seen.append((command, stderr))
        return process

    monkeypatch.setattr(children.subprocess, "Popen", start)
    monkeypatch.setattr(children.time, "sleep", seen.append)
    return children.run_alone(["pretrain", "--config=a"], log, lambda: watched.pop(0)), process, seen


@pytest.mark.parametrize(("ended", "status"), [(0, 0), (2, 2), (-9, 137), (-15, 143)])
def test_a_part_is_a_process_with_output_in_its_log(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, ended: int, status: int
):
    log = tmp_path / "a" / "seed-0" / "x.log"
    found, process, seen = run(monkeypatch, log, ended, [False] * 3)
    assert (found, process.asked) == (status, 0)
    program = [sys.executable, "-m", "bert_jax.studies.children", str(os.getpid()), "pretrain", "--config=a"]
    assert seen == [(program, children.subprocess.STDOUT), *[children.POLL] * 3]
    run(monkeypatch, log, ended, [False] * 3)
    assert log.read_text() == "said\nsaid\n"


def test_a_part_gets_one_stop_request(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    watched = [False, True, True]
    found, process, _ = run(monkeypatch, tmp_path / "x.log", -15, watched)
    assert (found, process.asked, watched) == (143, 1, [])


def test_a_part_has_the_module_path_of_the_study(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(children.sys, "flags", types.SimpleNamespace(safe_path=True))
    _, _, seen = run(monkeypatch, tmp_path / "x.log", 0, [False] * 3)
    assert seen[0][0][:3] == [sys.executable, "-P", "-m"]


def test_the_last_lines_of_a_log_skip_blank_ones(tmp_path: pathlib.Path):
    log = tmp_path / "x.log"
    assert children.last_lines(log) == []
    log.write_bytes(b"zero\n\none\r  \rtwo\xff\n")
    assert children.last_lines(log) == ["zero", "one", "two\ufffd"]
    assert children.last_lines(log, 1) == ["two\ufffd"]
    log.write_text("".join(f"{i}\n" for i in range(20)))
    assert children.last_lines(log) == [str(i) for i in range(8, 20)]
    log.write_text("a" + "b" * 19_999 + "\n")
    assert children.last_lines(log) == ["b" * 19_999]


def test_the_process_of_a_part_ends_with_its_study(monkeypatch: pytest.MonkeyPatch):
    ran: list[Any] = []
    threads: list[Any] = []

    class Thread:
        def __init__(self, **given: Any):
            threads.append(given)

        def start(self) -> None:
            threads.append("started")

    monkeypatch.setattr(children.runpy, "run_module", lambda *given, **how: ran.append((given, how, list(sys.argv))))
    monkeypatch.setattr(children.threading, "Thread", Thread)
    monkeypatch.setattr(sys, "argv", sys.argv)
    children.main(["71", "pretrain", "--config=a", "--workdir=b"])
    told = {"run_name": "__main__", "alter_sys": True}
    assert ran == [(("bert_jax.pretrain",), told, ["pretrain", "--config=a", "--workdir=b"])]
    assert threads == [{"target": children._stop_with, "args": (71,), "name": "parent", "daemon": True}, "started"]


def test_a_part_stops_if_its_study_has_ended(monkeypatch: pytest.MonkeyPatch):
    parents, events = [71, 71, 1], []
    monkeypatch.setattr(children.os, "getppid", lambda: parents.pop(0))
    monkeypatch.setattr(children.time, "sleep", events.append)
    monkeypatch.setattr(children.os, "kill", lambda process, number: events.append((process, number)))
    children._stop_with(71)
    assert events == [children.POLL, children.POLL, (os.getpid(), signal.SIGTERM)]
