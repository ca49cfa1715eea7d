"""The command `aot` from its flags to its exit status, with a compiler whose programs are given."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import pytest

from bert_jax import aot
from bert_jax.errors import UserError
from tests.tpu.costs.devices import Executable, install_compiler
from tests.tpu.costs.test_estimate import A, program, work
from tests.tpu.costs.test_kernel_cycles import SCHEDULE

EXPERIMENT = """
def get_config():
    return {
        "model": {"vocab_size": 100, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32,
                  "max_position": 64},
        "phases": [{"steps": 3_600_000, "length": 16, "batch_size": 2, "max_predictions": 3},
                   {"steps": 7_200_000, "length": 32, "batch_size": 2, "max_predictions": 5}],
    }
"""
KERNEL = 'ROOT %r = f32[8,128]{1,0:T(8,128)S(1)} custom-call(%w), custom_call_target="tpu_custom_call", '
KERNEL += 'backend_config={"custom_call_config":{"body":"XYZ"}}'
TEXT = program(A, work("w", 1_500_000), KERNEL)
TOO_LARGE = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.25G of 15.75G hbm."
CPU = jax.jit(lambda: 0).lower().compile()
Command = Callable[..., int]


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns a tiny experiment of two phases."""
    path = tmp_path / "experiment.py"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture
def compiled() -> list[str]:
    """Returns the programs that were compiled."""
    return []


@pytest.fixture
def command(file: pathlib.Path, compiled: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Returns the command `aot`, for the tiny experiment on one chip. Each program has a product of a millisecond and a kernel,
    takes 2.5 s to compile, and is refused if it has more than `rows` rows of 16 tokens."""

    def run(*flags: str, rows: int = 2**30, refusal: str = TOO_LARGE) -> int:
        def compile(lowered: jax.stages.Lowered) -> Executable:
            clock[0] += 2.5
            compiled.append(lowered.as_text())
            if any(int(n) > rows for n in re.findall(r"tensor<(\d+)x16xi32>", compiled[-1])):
                raise jax.errors.JaxRuntimeError(refusal)
            return Executable(TEXT, cpu=CPU)

        clock = [0.0]
        with monkeypatch.context() as patch:
            patch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
            patch.setattr(sys, "argv", ["aot", f"--config={file}", "--topology=v5e:1x1", *flags])
            patch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, json.dumps([SCHEDULE])))
            patch.setattr(time, "monotonic", lambda: clock[0])
            install_compiler(patch, compile)
            return aot.main()

    return run


def test_every_phase_is_compiled_and_reported_with_the_sum(
    command: Command, file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    assert command("--json", "--price=2", f"--save={tmp_path / 'programs'}") == 0
    said = capsys.readouterr()
    assert said.err == "".join(f"compiling phase {n}, train step of {file} for v5e:1x1 ...\n" for n in range(2))
    found = json.loads(said.out)
    assert (found["topology"], len(found["experiments"])) == ("v5e:1x1", 1)
    (experiment,) = found["experiments"]
    steps = experiment["steps"]
    assert [(step["step"], step["length"], step["steps"]) for step in steps] == [
        ("phase 0, train step", 16, 3_600_000), ("phase 1, train step", 32, 7_200_000),
    ]  # fmt: skip
    for step in steps:
        assert step["seconds_by_kind"] == {"compute": pytest.approx(1e-3), "kernel": pytest.approx((3 + 64 * 22) / 1.5e9)}
        assert (step["fits"], step["unknown_kernels"], step["compile_seconds"]) == (True, 0, 2.5)
        memory = step["memory"]
        assert (memory["total"], memory["has"], memory["code"]) == (15 * 2**20, 16 * 2**30, 2**20)
        assert 4 * 2**20 > memory["arguments"]["optimizer"] > memory["arguments"]["parameters"] > 0
        assert step["calibration"]["matmul"] == pytest.approx(2 * 8192**3 / 197e12 / 1e-3, rel=0.01)
        assert pathlib.Path(step["saved"]).parent == tmp_path / "programs"
        assert pathlib.Path(step["saved"]).is_file()
    hours = (3_600_000 + 7_200_000) * steps[0]["seconds"] / 3600
    assert experiment["total"] == {"hours": pytest.approx(hours), "chip_hours": pytest.approx(hours), "price": 2.0,
                                   "cost": pytest.approx(2 * hours)}  # fmt: skip


def test_compared_experiments_have_their_own_overrides(
    command: Command, file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    other = tmp_path / "other.py"
    other.write_text(EXPERIMENT)
    evaluation = ("--step=eval", "--phase=0", "--config.evaluation.batch_size=2")
    assert command(*evaluation, f"--against={other}", "--against.evaluation.batch_size=4") == 0
    said = capsys.readouterr().out
    assert f"{file}, phase 0, eval step, on v5e:1x1: 1 chip, mesh one device, 2 rows of 16 tokens" in said
    assert f"{other}, phase 0, eval step, on v5e:1x1: 1 chip, mesh one device, 4 rows of 16 tokens" in said
    assert "rows/s relative to [1]" in said


def test_a_step_that_does_not_fit_ends_with_status_1_and_the_largest_batch(
    command: Command, compiled: list[str], capsys: pytest.CaptureFixture[str]
):
    assert command("--step=eval", "--phase=0", "--config.evaluation.batch_size=4", rows=2) == 1
    said = capsys.readouterr()
    assert "does not fit. It needs 20.25 GiB of HBM, but there are 15.75 GiB per device, with 4 rows of 16 tokens" in said.out
    assert said.out.endswith("    --config.evaluation.batch_size=2, the largest batch, 2 rows per chip (0.0 GiB)\n")
    assert "it does not fit; searching for the largest batch ...\n" in said.err
    assert ["stablehlo.while" in text for text in compiled] == [False, True, True], "in a loop, which compiles faster"
    assert command("--step=eval", "--rows=8", "--no-remedies", "--json", rows=0) == 1
    said = capsys.readouterr()
    assert "searching" not in said.err
    (experiment,) = json.loads(said.out)["experiments"]
    assert [(step["fits"], step.get("remedies")) for step in experiment["steps"]] == [(False, []), (True, None)]
    assert experiment["total"] is None


def test_other_refusals_of_the_compiler_are_errors(command: Command):
    with pytest.raises(UserError, match=r"^the TPU compiler refuses phase 0, eval step for v5e:1x1: INTERNAL: a bug$"):
        command("--step=eval", "--phase=0", refusal="INTERNAL: a bug\nwith more", rows=0)
