"""The short form of `tests/chaos/run.py`."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.chaos.run import main


def test_kills_and_a_damaged_checkpoint_change_no_bit_of_a_run_in_two_processes_and_a_bucket(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The undisturbed run has its workdir on the local disk."""
    figures = tmp_path / "figures.json"
    assert main(["--short", "--kills=1", "--seed=1", "--storage=bucket", f"--json={figures}"]) == 0, capsys.readouterr().err
    (row,) = json.loads(figures.read_text())["rows"]
    assert row["outcome"].startswith("1 kills")
    assert "a flipped bit; the same bits" in row["outcome"]
