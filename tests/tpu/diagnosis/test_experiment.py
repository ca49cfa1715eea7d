"""The sentences of `doctor` about a step's memory, its time and the estimate of `aot`."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

import jax
import pytest

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.hardware import GIB, PEAKS
from bert_jax.runtime.processes import Processes
from bert_jax.sharding.device_errors import DoesNotFit
from bert_jax.sharding.mesh import make_mesh
from bert_jax.tpu.costs.topologies import parse_topology
from bert_jax.tpu.diagnosis import experiment
from bert_jax.tpu.diagnosis.experiment import estimate, slice_name
from bert_jax.tpu.diagnosis.judgement import Check
from bert_jax.tpu.programs import Case, StepProgram
from tests.runtime.connected import group
from tests.tpu.costs.devices import Executable, PlaceInSlice, Statistics, devices_of, unnumbered

TOO_LARGE = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.25G of 15.75G hbm."
PRETRAINING = PretrainingExperiment.from_dict({"phases": [{"steps": 1}] * 2})
FINETUNING = FinetuningExperiment.from_dict({"init_from": "any", "training": {"accumulation": 3}})


def test_a_task_that_does_not_fit_gets_its_own_advice():
    case, mesh = Case("b.py", FINETUNING, "finetune", 0, "", None), make_mesh(FINETUNING.mesh, jax.devices()[:1])
    program = StepProgram(jax.jit(lambda: 0).lower(), mesh, {}, {}, 32, 128, 1.0)
    assert experiment.too_large(case, program, DoesNotFit(2 * GIB, GIB, "hbm")) == (
        "the training step does not fit in memory: it needs 2.00 GiB of HBM, but there are 1.00 GiB; lower "
        "--config.training.batch_size below 32, or set --config.training.accumulation=6"
    )


TEACHER = pathlib.Path(__file__).parents[2] / "golden" / "heads" / "pretraining"  # 20 wide
STUDENT = {
    "teacher": str(TEACHER),
    "examples": {"pairs": "none"},
    "model": {"vocab_size": 97, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32, "max_position": 16,
              "scan_layers": True},
    "phases": [{"steps": 1, "length": 16, "batch_size": 8, "max_predictions": 5}],
}  # fmt: skip
STUDENT_CASE = Case("a.py", PretrainingExperiment.from_dict(STUDENT), "train", 0, "", None)


@pytest.fixture(scope="module")
def student() -> StepProgram:
    """Returns the step of a tiny student for one device, lowered."""
    return STUDENT_CASE.lower(jax.devices()[:1])


@pytest.fixture
def checked(
    student: StepProgram, machine_files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Check]:
    """Returns the check of the student's step on a machine with 128 MiB of memory, of which a device has 16. The compiler
    returns an executable with these statistics, or raises this error."""
    machine_files["/proc/meminfo"] = "MemAvailable: 131072 kB\n"

    def check(compiled: Statistics | str, flops: float = 1e9, workdir: pathlib.Path | None = None) -> Check:
        def compile(lowered: jax.stages.Lowered) -> Executable:
            if isinstance(compiled, str):
                raise jax.errors.JaxRuntimeError(compiled)
            return Executable("", compiled)

        with monkeypatch.context() as patch:
            patch.setattr(jax.stages.Lowered, "compile", compile)
            return experiment.fit_check(Processes(), STUDENT_CASE, student, [], flops, workdir, estimated=False)

    return check


def test_a_step_that_fits_is_timed_with_its_teacher(student: StepProgram, monkeypatch: pytest.MonkeyPatch):
    """The steps take 0.1, 2, 1 and 4 seconds by the clock, and the first one does not count."""
    ticks = iter([0, 0.1, 5, 7, 7, 8, 10, 14])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    monkeypatch.setitem(PEAKS, "cpu", 1e6)
    check = experiment.fit_check(Processes(), STUDENT_CASE, student, [], 1e9, None, estimated=True)
    share = 100 * student.flops / jax.device_count() / 1e6
    times = rf"a step takes 1 s, 8 rows/s, {student.flops / 1e6:.2f} MFLOP/s \({share:.0f} % of peak\)"
    assert re.fullmatch(rf"a\.py: 0\.00 of [\d.]+ GiB per device, fits; {times}", check.text)
    assert check.faults == ()


def test_a_step_that_would_take_too_long_is_not_run(checked: Callable[..., Check], student: StepProgram):
    """It needs 16 MiB, all that the device has."""
    assert checked(Statistics(), flops=student.flops / 20.4) == Check(
        "phase 0", "a.py: 0.02 of 0.02 GiB per device, fits; a step would take 20s or more, so none was run"
    )


def test_a_step_that_needs_more_than_the_free_memory_is_a_fault(checked: Callable[..., Check]):
    name, text, (fault,) = dataclasses.astuple(checked(Statistics(temp_size_in_bytes=2**30)))
    assert (name, text) == ("phase 0", "a.py: 1.01 of 0.02 GiB per device, which is too much")
    assert fault.startswith("the training step of phase 0 does not fit in memory: it needs 1.01 GiB of host memory, but ")
    assert "--config.phases.0.batch_size=4" in fault


def test_only_memory_errors_of_the_compiler_are_faults(checked: Callable[..., Check]):
    name, text, (fault,) = dataclasses.astuple(checked(TOO_LARGE))
    assert (name, text) == ("phase 0", "a.py does not fit")
    assert "it needs 20.25 GiB of HBM, but there are 15.75 GiB" in fault
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        checked("INTERNAL: a bug")


@pytest.mark.parametrize("fails", ["cases", "compile"])
def test_a_fault_of_one_process_ends_the_check_in_all(fails: str, student: StepProgram, monkeypatch: pytest.MonkeyPatch):
    """A process that went on alone would wait for the others."""
    errors = {"cases": UserError("no corpus here"), "compile": jax.errors.JaxRuntimeError(TOO_LARGE)}
    calls = {name: iter([error] if name == fails else []) for name, error in errors.items()}

    def fail_once(name: str, *_: object, **__: object) -> None:
        if error := next(calls[name], None):
            raise error

    def found(*_: object) -> list[Case]:
        fail_once("cases")
        return [STUDENT_CASE]

    monkeypatch.setattr(experiment, "cases", found)
    monkeypatch.setattr(Case, "lower", lambda case, devices: student)
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda lowered: fail_once("compile"))
    with group(count=2) as several:
        one, other = several.all(lambda processes: experiment.fit_checks(processes, "a.py", [], 1e9, None, estimated=False))
    assert one == other
    (fault,) = one[0].faults
    assert fault == "no corpus here" or "does not fit in memory: it needs 20.25 GiB of HBM" in fault


def test_the_disk_of_the_workdir_must_have_space_for_a_checkpoint(
    checked: Callable[..., Check], student: StepProgram, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(student.state)]
    for free, fault in ((sum(sizes) - 1, "a checkpoint of this run has 0.00 GB, but "), (sum(sizes), "")):
        usage = shutil._ntuple_diskusage(free, 0, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)
        faults = checked(Statistics(), student.flops / 21, tmp_path / "run").faults
        assert fault in "".join(faults)
        assert len(faults) == bool(fault)


def test_memory_is_the_compilers_peak_on_tpus_and_the_sum_of_parts_elsewhere(monkeypatch: pytest.MonkeyPatch):
    statistics = Statistics()
    assert experiment.step_bytes(statistics) == (10 + 9 - 8 + 5) * 2**20
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert experiment.step_bytes(statistics) == (14 + 1) * 2**20


@dataclasses.dataclass(frozen=True)
class Device:
    """A device with its memory statistics."""

    stats: dict[str, int] | None = None

    def memory_stats(self) -> dict[str, int] | None:
        return self.stats


def test_free_memory_is_the_minimum_over_all_devices(machine_files: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    full, free = Device({"bytes_limit": 50, "bytes_in_use": 20}), Device({"bytes_limit": 40})
    machine_files["/proc/meminfo"] = "MemAvailable:  160 kB\n"
    monkeypatch.setattr(jax, "local_device_count", lambda: 4)

    def least(of: list[Device], processes: Processes | None = None) -> float | None:
        monkeypatch.setattr(jax, "local_devices", lambda: of)
        return experiment.least_free(processes or Processes())

    assert (least([full, free]), least([free])) == (30, 40)
    assert least([Device()]) == 160 * 1024 / 4, "the devices of a CPU share its memory"
    with group(count=2) as several:
        of_processes = [[full], [free]]
        monkeypatch.setattr(jax, "local_devices", of_processes.pop)
        assert several.all(experiment.least_free) == [30, 30]
    machine_files["/proc/meminfo"] = ""
    assert least([Device()]) is None


@pytest.mark.parametrize("name", ["v5e:2x4", "2xv5e:2x4", "v5p:2x2x1", "v7x:2x2x1", "v6e:1x1", "4xv4:4x4x4"])
def test_the_slice_is_recognised_by_the_positions_of_its_chips(name: str):
    topology = parse_topology(name)
    assert slice_name(devices_of(topology)) == name
    if topology.slices == 1:
        assert slice_name(unnumbered(topology)) == name


def test_a_part_of_a_slice_and_other_devices_have_no_name():
    places, two = devices_of(parse_topology("v5e:2x4")), devices_of(parse_topology("2xv5e:2x4"))
    assert slice_name(places[1:]) is None
    assert slice_name([place for place in two if place.coords != (1, 3, 0)]) is None
    assert slice_name([dataclasses.replace(place, device_kind="TPU v2") for place in places]) is None
    assert slice_name([PlaceInSlice("TPU v5 lite", (0, 0, 0), platform="gpu")]) is None
    assert slice_name(jax.devices()) is None


CASE = Case("a.py", PRETRAINING, "train", 1, "", None)


def answer(monkeypatch: pytest.MonkeyPatch, stdout: str) -> list[list[str]]:
    """Makes `aot` print `stdout`. Returns the modules and flags of the processes that were started without a TPU."""
    asked: list[list[str]] = []

    def run(command: list[str], *, env: dict[str, str], **more: Any) -> subprocess.CompletedProcess[str]:
        assert more == {"capture_output": True, "text": True, "timeout": 900, "check": True}
        assert (env["PATH"], env["JAX_PLATFORMS"]) == (os.environ["PATH"], "cpu")
        assert not [name for name in env if name.startswith("TPU_")]
        asked.append(command[2:])
        return subprocess.CompletedProcess(command, 0, stdout)

    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setattr(subprocess, "run", run)
    return asked


ANSWER = json.dumps({"experiments": [{"steps": [{"seconds": 0.0184, "roofline_seconds": 0.011}]}]})


def test_the_estimate_comes_from_aot_in_a_process_without_tpus(monkeypatch: pytest.MonkeyPatch):
    asked = answer(monkeypatch, ANSWER)
    assert estimate(CASE, [("seed", "1")], "v5e:4x4") == "; aot estimates 0.0184 s on v5e:4x4, at least 0.011 s"
    flags = ["--config=a.py", "--config.seed=1", "--topology=v5e:4x4", "--phase=1", "--json", "--no-remedies"]
    assert asked == [["bert_jax.aot", *flags]]
    for stdout, name in (("no json", "JSONDecodeError"), ('{"experiments": []}', "IndexError")):
        answer(monkeypatch, stdout)
        assert estimate(CASE, [], "v5e:4x4") == f"; aot has no estimate ({name})"

    def fails(*_: Any, **__: Any) -> Any:
        raise subprocess.CalledProcessError(2, "aot", stderr="a line\nerror: no compiler\n")

    monkeypatch.setattr(subprocess, "run", fails)
    assert estimate(CASE, [], "v5e:4x4") == "; aot has no estimate (error: no compiler)"


def test_the_first_process_estimates_for_a_whole_slice(monkeypatch: pytest.MonkeyPatch):
    asked = answer(monkeypatch, ANSWER)
    assert experiment._estimate(Processes(), CASE, []) == "", "a CPU has none"
    monkeypatch.setattr(jax, "devices", lambda: devices_of(parse_topology("v5e:2x4")))
    with group(count=2) as several:
        found = several.all(lambda processes: experiment._estimate(processes, CASE, []))
    assert found == ["; aot estimates 0.0184 s on v5e:2x4, at least 0.011 s"] * 2
    assert len(asked) == 1
