"""The commit and the digest that distinguish copies of the code."""

from __future__ import annotations

import hashlib
import pathlib
import subprocess
from typing import Any

import pytest

from bert_jax.runtime import processes

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "bert_jax"


@pytest.mark.parametrize(("changed", "commit"), [("", "0123456789ab"), (" M bert_jax/errors.py\n", "0123456789ab+")])
def test_the_commit_is_marked_if_the_package_has_changed(changed: str, commit: str, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []

    def run(command: list[str], **how: Any) -> Any:
        asked.append(how)
        answers = {"rev-parse --short=12 HEAD": "0123456789ab\n", "status --porcelain --untracked-files=no .": changed}
        return subprocess.CompletedProcess(command, 0, answers[" ".join(command[1:])])

    monkeypatch.setattr(subprocess, "run", run)
    assert processes.git_commit() == commit
    assert asked == [{"cwd": PACKAGE, "capture_output": True, "text": True, "check": True, "timeout": 20}] * 2


@pytest.mark.parametrize(
    "error", [FileNotFoundError(), subprocess.CalledProcessError(128, "git"), subprocess.TimeoutExpired("git", 20)]
)
def test_outside_of_git_the_commit_is_unknown(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def fails(*given: Any, **how: Any) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fails)
    assert processes.git_commit() == "unknown"


def test_the_digest_covers_every_file_of_the_package_and_its_name():
    files = sorted(PACKAGE.rglob("*.py"))
    whole = b"".join(f"{path.relative_to(PACKAGE)}\n".encode() + path.read_bytes() for path in files)
    assert processes.code_digest() == hashlib.sha256(whole).hexdigest()[:12]
