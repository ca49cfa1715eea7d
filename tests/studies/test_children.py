"""The process of a part."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import types
from collections.abc import Callable

import pytest

from bert_jax.studies import children


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "POLL", 0.01)


@pytest.mark.parametrize(("end", "status"), [("exit 0", 0), ("exit 2", 2), ("kill -9 $$", 137), ("kill -15 $$", 143)])
def test_a_part_is_a_process_with_output_in_its_log(
    tmp_path: pathlib.Path, played: Callable[[str], pathlib.Path], end: str, status: int
):
    log = tmp_path / "a" / "seed-0" / "x.log"
    played(f"echo and an error >&2; {end}")
    for _ in range(2):
        assert children.run_alone(["pretrain", "--config=a"], log, lambda: False) == status
    assert log.read_text() == "pretrain --config=a\nand an error\n" * 2


def test_a_part_gets_one_stop_request(tmp_path: pathlib.Path, played: Callable[[str], pathlib.Path]):
    played(f"trap 'echo asked; n=1' TERM; touch {tmp_path}/ready; until [ $n ]; do sleep 0.01; done; sleep 0.1; exit 7")
    ready, log = tmp_path / "ready", tmp_path / "x.log"
    assert children.run_alone(["pretrain"], log, ready.exists) == 7
    assert log.read_text() == "pretrain\nasked\n"


def test_a_part_is_a_command_of_this_python(tmp_path: pathlib.Path):
    log = tmp_path / "x.log"
    assert children.run_alone(["doctor", "--help"], log, lambda: False) == 0
    assert log.read_text().startswith("usage: python -m bert_jax.doctor ")


def test_a_part_stops_if_its_study_has_ended():
    """The process of the study is not the parent of this one, as if it had been killed."""
    line = [sys.executable, "-m", "bert_jax.studies.children", str(os.getppid()), "doctor"]
    assert subprocess.run(line, capture_output=True, check=False).returncode == -signal.SIGTERM


def test_a_part_has_the_module_path_of_the_study(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    script, log = tmp_path / "python", tmp_path / "x.log"
    script.write_text('#!/bin/sh\necho "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    parent = os.getpid()
    for safe, isolated in ((False, ""), (True, "-P ")):
        monkeypatch.setattr(sys, "flags", types.SimpleNamespace(safe_path=safe))
        children.run_alone(["pretrain"], log, lambda: False)
        assert log.read_text().splitlines()[-1] == f"{isolated}-m bert_jax.studies.children {parent} pretrain"


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
