"""The command `aot` from its flags to its exit status, with a compiler that compiles nothing."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from bert_jax import aot
from tests.tpu.costs.test_report import one, unfit
from tests.tpu.test_cases import BASE


def run(monkeypatch: pytest.MonkeyPatch, *flags: str, fit: bool = True) -> tuple[int, list[str]]:
    """Returns the exit status of the command, and the steps that were examined: configuration, phase, topology."""
    examined: list[str] = []

    def examine(case: Any, compiler: Any, options: Any) -> dict[str, Any]:
        examined.append(f"{case.config.rpartition('/')[2]} {case.phase} {case.experiment.seed} {compiler}")
        return (one(config=case.config) if fit or case.phase else unfit(case.config)) | (
            {"saved": "there"} if options.save else {}
        )

    quiet: list[str] = []
    monkeypatch.setattr(aot, "Compiler", lambda topology: topology.name)
    monkeypatch.setattr(aot, "examine", examine)
    monkeypatch.setattr(aot, "require_stdout", lambda remedy: quiet.append("stdout"))
    monkeypatch.setattr(aot, "quiet_libraries", lambda: quiet.append("quiet"))
    monkeypatch.setattr(sys, "argv", ["aot", f"--config={BASE}", *flags])
    status = aot.main()
    assert quiet == ["stdout", "quiet"]
    return status, examined


def test_every_phase_and_their_sum_are_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    flags = ("--topology=v5e:4x4", "--slices=2", "--config.seed=3")
    assert run(monkeypatch, *flags) == (0, ["bert_base.py 0 3 2xv5e:4x4", "bert_base.py 1 3 2xv5e:4x4"])
    paragraphs = capsys.readouterr().out
    assert paragraphs.count("on v5e:4x4: 16 chips") == 2
    assert paragraphs.count("\n  all  ") == 1
    assert "saved: " not in paragraphs
    run(monkeypatch, "--topology=v5e:4x4", "--phase=1", "--save=x")
    assert capsys.readouterr().out.endswith("\n\nsaved: there\n")


def test_compared_experiments_have_their_own_overrides(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    others = ("--against=experiments/pretrain/bert_large.py", "--against.seed=4")
    status, examined = run(monkeypatch, "--topology=v5e:4x4", "--phase=0", "--config.seed=3", *others)
    assert (status, examined) == (0, ["bert_base.py 0 3 v5e:4x4", "bert_large.py 0 4 v5e:4x4"])
    assert "[2] bert_large.py" in capsys.readouterr().out


def test_a_step_that_does_not_fit_ends_with_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    status, _ = run(monkeypatch, "--topology=v5e:4x4", fit=False)
    assert status == 1
    said = capsys.readouterr().out
    assert "does not fit" in said
    assert "chip-hours" not in said, "there is no sum, since a part is missing"


def test_json_output_has_all_experiments_in_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    status, _ = run(
        monkeypatch, "--topology=v5e:4x4", "--json", "--price=2", "--against=experiments/pretrain/bert_large.py", fit=False
    )
    assert status == 1
    found = json.loads(capsys.readouterr().out)
    assert found["topology"] == "v5e:4x4"
    assert [[step["fits"] for step in group["steps"]] for group in found["experiments"]] == [[False, True]] * 2
    assert [group["config"].rpartition("/")[2] for group in found["experiments"]] == ["bert_base.py", "bert_large.py"]
    assert [group["total"] for group in found["experiments"]] == [None, None]
    run(monkeypatch, "--topology=v5e:4x4", "--json", "--price=2")
    total = json.loads(capsys.readouterr().out)["experiments"][0]["total"]
    assert total["cost"] == pytest.approx(2 * 2 * one()["chip_hours"])
