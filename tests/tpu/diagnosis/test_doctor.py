"""The whole command `doctor` on the available CPU, with small measurements: a report, its faults, the exit status, nothing left
behind."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import threading

import jax
import pytest

from bert_jax import doctor
from bert_jax.model.kernels.self_test import KERNELS
from bert_jax.runtime.messages import ask
from bert_jax.runtime.processes import code_digest, process_facts
from bert_jax.tpu.diagnosis import speed
from tests.end_to_end.runs import free_port
from tests.runtime.connected import group

EXPERIMENT = """
def get_config():
    return {
        "corpus": {"directory": "nowhere"},
        "model": {"vocab_size": 100, "hidden_size": 16, "encoder": "static", "num_layers": 0},
        "examples": {"pairs": "none"},
        "phases": [{"steps": 14, "length": 16, "batch_size": 8, "max_predictions": 15, "learning_rate": 3e-3}] * 2,
    }
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    for name, value in {"SECONDS": 0.001, "TRIES": 1, "CPU_SIDE": 256, "CPU_STREAMED": 2**12, "CPU_SENT": 2**10}.items():
        monkeypatch.setattr(speed, name, value)
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "experiment.py").write_text(EXPERIMENT)


def examined(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["doctor", *arguments])
    return doctor.main()


def test_a_healthy_machine_ends_with_status_0_and_leaves_no_workdir(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
):
    workdir, figures = tmp_path / "runs" / "mine", tmp_path / "figures.json"
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5, 6, 8} if process == 0 else set(), raising=False)
    assert examined(monkeypatch, f"--workdir={workdir}", f"--json={figures}", f"--chips={jax.device_count()}") == 0
    said = capsys.readouterr().out
    assert said.endswith("all is well\n")
    assert "8 x cpu (3 cores) in 1 process" in said, "a machine may give a process a part of its cores"
    assert "there is none for a cpu: XLA compiles everything" in said
    assert not (tmp_path / "runs").exists()
    stored = json.loads(figures.read_text())
    assert stored["well"] is True
    (record,) = stored["processes"]
    (device,) = record["devices"]
    assert (device["flops"] > 0, device["memory"], record["seen"]) == (True, None, 8), "the devices of a CPU share its cores"
    assert record["links"] > 0
    assert record["links_of_all"] is None
    assert record["host_memory"] > 0
    assert record["facts"]["code"] == code_digest()


def test_every_fault_is_found_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
):
    def refuse(lowered: jax.stages.Lowered) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.25G of 15.75G hbm.")

    (tmp_path / "file").touch()
    config, here = tmp_path / "experiment.py", jax.devices()[:1]
    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    monkeypatch.setattr(jax, "devices", lambda: here)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    assert examined(monkeypatch, f"--config={config}", f"--workdir={tmp_path / 'file'}", "--chips=1000") == 1
    said = capsys.readouterr().out
    assert "8 x cpu (9 cores)" in said
    assert "5 faults:" in said
    assert (
        f"--workdir={tmp_path / 'file'} cannot be created (a file is in the way); give a directory that you may write to"
    ) in said
    assert "config.corpus.directory=nowhere (looked for in " in said
    assert "does not exist; build the corpus with `tpu_scripts/run.sh corpus`" in said
    assert "8 chips seen, but --chips=1000" in said
    for phase in range(2):
        assert f"FAULT  phase {phase}      {config} does not fit\n" in said
        assert f"the training step of phase {phase} does not fit in memory: it needs 20.25 GiB of HBM, but there are" in said
        assert f"--config.phases.{phase}.batch_size=4" in said


def test_an_experiment_that_cannot_run_on_these_devices_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
):
    assert examined(monkeypatch, f"--config={tmp_path / 'experiment.py'}", "--config.phases.0.batch_size=12") == 1
    said = capsys.readouterr().out
    assert f"FAULT  experiment   {tmp_path / 'experiment.py'}\n" in said
    assert "config.phases.0.batch_size=12 is not divisible by 8 devices" in said


def test_the_steps_are_not_compiled_if_a_process_has_no_corpus(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """Each process would infer another size of the vocabulary."""
    flags = argparse.Namespace(config="a.py", no_estimate=True)
    monkeypatch.setattr(doctor, "fit_checks", lambda *_, **__: pytest.fail("it compiled"))
    with group(count=2) as several:
        places = [{"corpus": {"directory": str(tmp_path / name)}} for name in ("", "nowhere")]
        found = several.all(lambda one: doctor._run_checks(one, flags, [], places[one.index], None, []))
    assert [[check.name for check in checks if check.faults] for checks in found] == [["corpus"]] * 2


def test_an_error_in_a_file_of_the_user_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
):
    own, config = tmp_path / "own.py", tmp_path / "experiment.py"
    own.write_text("def broken(x):\n    return x + nothing\n")
    layer = f'"num_layers": 1, "num_heads": 1, "activation": "{own}:broken"'
    text = EXPERIMENT.replace('"encoder": "static", "num_layers": 0', layer)
    config.write_text(text.replace('"max_predictions": 15', '"max_predictions": 2'))
    assert examined(monkeypatch, f"--config={config}") == 1
    said = capsys.readouterr().out
    assert f"FAULT  experiment   {config}\n" in said
    assert f"config.model.activation={own} raises NameError; correct the file here:" in said
    assert "return x + nothing" in said


@pytest.mark.parametrize("reason", ["", "Unable to initialize backend 'tpu': the chip is in use"])
def test_a_machine_without_devices_is_a_fault(
    reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def none() -> int:
        raise RuntimeError(f"{reason}\nmore" if reason else "")

    monkeypatch.setattr(jax, "local_device_count", none)
    assert examined(monkeypatch) == 1
    assert f"JAX finds no device ({reason}); end other" in capsys.readouterr().out


def test_processes_that_differ_are_a_fault(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    port = free_port()
    facts = process_facts({}) | {"jax": "2"}
    other = threading.Thread(target=lambda: ask(("localhost", port), [1, facts], timeout=60))
    other.start()
    assert examined(monkeypatch, f"--coordinator=localhost:{port}", "--processes=2", "--process=0") == 1
    other.join()
    assert f"jax: process 0 has {jax.__version__}, process 1 has 2" in capsys.readouterr().out


def test_a_process_that_does_not_start_in_time_is_a_fault(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    flags = (f"--coordinator=localhost:{free_port()}", "--processes=2", "--process=0", "--start-timeout=0.05")
    assert examined(monkeypatch, *flags) == 1
    assert "2 workers expected, but process 1 did not start" in capsys.readouterr().out


def test_a_kernel_that_fails_is_a_fault_of_each_device_and_is_not_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    here = jax.devices()[:2]
    monkeypatch.setitem(KERNELS, "cpu", ("attention",))
    monkeypatch.setattr(jax, "local_devices", lambda: here)
    assert examined(monkeypatch) == 1
    said = capsys.readouterr()
    assert "FAULT  kernel       attention disagrees with the plain path\n" in said.out
    for device in range(2):
        assert f"device {device}: the kernel does not run here: ValueError: Only interpret mode is supported on CPU" in said.out
    assert "model.attention=auto uses the plain path: device 0: the kernel does not run here" in said.err
