"""The whole command `doctor` on the available CPU, with small measurements: a report, its faults, the exit status, nothing left
behind."""

from __future__ import annotations

import json
import pathlib
import sys
import types
from typing import Any

import jax
import pytest

from bert_jax import doctor
from bert_jax.runtime.processes import code_digest
from bert_jax.tpu.diagnosis import experiment, speed

EXPERIMENT = """
def get_config():
    return {
        "corpus": {"directory": "nowhere"},
        "model": {"vocab_size": 100, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32,
                  "max_position": 64, "scan_layers": True},
        "phases": [{"steps": 14, "length": 16, "batch_size": 8, "max_predictions": 5, "learning_rate": 3e-3}] * 2,
    }
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    for name, value in {"SECONDS": 0.001, "TRIES": 1, "CPU_SIDE": 256, "CPU_STREAMED": 2**12, "CPU_SENT": 2**10}.items():
        monkeypatch.setattr(speed, name, value)
    monkeypatch.setattr(doctor, "enable_compilation_cache", lambda: None)
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))


def examined(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["doctor", *arguments])
    return doctor.main()


def test_a_healthy_machine_ends_with_status_0_and_leaves_no_workdir(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: pathlib.Path
):
    workdir, figures = tmp_path / "runs" / "mine", tmp_path / "figures.json"
    assert examined(monkeypatch, f"--workdir={workdir}", f"--json={figures}", f"--chips={jax.device_count()}") == 0
    said = capsys.readouterr().out
    assert said.endswith("all is well\n")
    assert "there is none for a cpu: XLA compiles everything" in said
    assert not (tmp_path / "runs").exists()
    stored = json.loads(figures.read_text())
    assert stored["well"] is True
    (record,) = stored["processes"]
    assert record["devices"][0]["flops"] > 0
    assert record["links"] > 0
    assert record["facts"]["code"] == code_digest()


def test_an_experiment_is_compiled_and_timed_and_every_fault_is_found_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: pathlib.Path
):
    (tmp_path / "file").touch()
    (tmp_path / "experiment.py").write_text(EXPERIMENT)
    asked = (f"--config={tmp_path / 'experiment.py'}", f"--workdir={tmp_path / 'file'}", "--chips=1000")
    here, sizes = jax.devices()[:1], [1.0, 2.0**50]
    compiles = [jax.stages.Lowered.compile, lambda _: types.SimpleNamespace(memory_analysis=lambda: None)]
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda lowered: compiles.pop(0)(lowered))
    monkeypatch.setattr(jax, "devices", lambda: here)
    monkeypatch.setattr(experiment, "step_bytes", lambda _: sizes.pop(0))
    monkeypatch.setattr(experiment, "require_room", lambda *_: None)
    assert examined(monkeypatch, *asked) == 1
    said = capsys.readouterr().out
    assert "fits; a step takes" in said
    assert "4 faults:" in said
    assert (
        f"--workdir={tmp_path / 'file'} cannot be created (a file is in the way); give a directory that you may write to"
    ) in said
    assert "config.corpus.directory=nowhere (looked for in " in said
    assert "does not exist; build the corpus with `tpu_scripts/run.sh corpus`" in said
    assert "8 chips seen, but --chips=1000" in said
    assert "the training step of phase 1 does not fit in memory: it needs 1048576.00 GiB of host memory" in said
    assert "--config.phases.1.batch_size=4" in said


def test_a_machine_without_devices_is_a_fault(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    def none() -> Any:
        raise RuntimeError("Unable to initialize backend 'tpu': the chip is in use\nmore")

    monkeypatch.setattr(jax, "local_device_count", none)
    assert examined(monkeypatch) == 1
    assert "JAX finds no device (Unable to initialize backend 'tpu': the chip is in use); end other" in capsys.readouterr().out


def test_processes_that_differ_are_a_fault(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    def differ(*_: Any, **__: Any) -> None:
        raise doctor.UserError("the workers differ in code or configuration:\n  jax: process 0 has 1, process 1 has 2")

    monkeypatch.setattr(doctor, "meet", differ)
    assert examined(monkeypatch, "--coordinator=localhost:1", "--processes=2", "--process=0") == 1
    assert "jax: process 0 has 1, process 1 has 2" in capsys.readouterr().out


def test_a_fault_of_one_process_is_reported_once(tmp_path: pathlib.Path):
    several: Any = types.SimpleNamespace(index=0, count=3, gather=lambda own: [own, "disk of host-1", "disk of host-1"])
    assert experiment.workdir_check(several, tmp_path).faults == ("disk of host-1",)
