"""The sentences of `doctor` about a step's memory, its time and the estimate of `aot`, for given figures."""

from __future__ import annotations

import json
import os
import pathlib
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.errors import UserError
from bert_jax.runtime.processes import Processes
from bert_jax.sharding.device_errors import DoesNotFit
from bert_jax.tpu.diagnosis import experiment
from bert_jax.tpu.diagnosis.experiment import estimate, slice_name
from bert_jax.tpu.diagnosis.judgement import Check
from bert_jax.tpu.programs import Case
from bert_jax.training.steps import TrainState
from tests.tpu.costs.test_memory import Statistics

GIB = 2**30
PRETRAINING = Case("a.py", PretrainingExperiment.from_dict({"phases": [{"steps": 1}] * 2}), "train", 1, "", None)
FINETUNING = Case(
    "b.py", FinetuningExperiment.from_dict({"init_from": "any", "training": {"accumulation": 3}}), "finetune", 0, "", None
)


class Program(types.SimpleNamespace):
    """A program of 1e12 operations for 32 rows, which compiles to its statistics."""

    rows, flops, mesh, state = 32, 1e12, "a mesh", None

    @property
    def lowered(self) -> Any:
        return self

    @staticmethod
    def compile() -> Any:
        return types.SimpleNamespace(memory_analysis=lambda: "statistics")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns figures that a test may change: a step needs 3 of 4 GiB and takes half a second, on devices with 8e12 FLOP/s."""
    figures: dict[str, Any] = {"needs": 3 * GIB, "free": 4 * GIB, "share": None, "program": Program()}
    monkeypatch.setattr(Case, "lower", lambda case, devices: figures["program"])
    monkeypatch.setattr(experiment, "step_bytes", lambda statistics: figures["needs"] if statistics == "statistics" else None)
    monkeypatch.setattr(experiment, "least_free", lambda processes: figures["free"])
    monkeypatch.setattr(experiment, "step_seconds", lambda program, executable: 0.5 if program is figures["program"] else None)
    monkeypatch.setattr(experiment, "too_large", lambda case, program, shortage: f"{case.config} {program.rows}: {shortage}")
    monkeypatch.setattr(experiment, "_estimate", lambda processes, case, overrides: f"; {case.config} {overrides}")

    def share(flops: float, kind: str, count: int) -> float | None:
        assert (flops, kind, count) == (2e12, jax.devices()[0].device_kind, jax.device_count())
        return figures["share"]

    monkeypatch.setattr(experiment, "utilisation", share)
    return figures


def checked(case: Case = PRETRAINING, flops: float = 8e12, workdir: Any = None, estimated: bool = False) -> Check:
    return experiment._check(Processes(), case, [("seed", "1")], flops, workdir, estimated)


def test_a_step_that_fits_is_timed(given: dict[str, Any]):
    timed = "fits; a step takes 0.5 s, 64 rows/s, 2 TFLOP/s"
    assert checked() == Check("phase 1", f"a.py: 3.00 of 4.00 GiB per device, {timed}")
    assert checked(estimated=True).text.endswith(f"{timed}; a.py [('seed', '1')]")
    given |= {"share": 0.25, "free": None}
    assert checked().text == f"a.py: 3.00 GiB per device, {timed} (25 % of peak)"
    given |= {"free": 3 * GIB}
    assert checked().faults == (), "a step may use all free memory"
    assert checked(FINETUNING) == Check("step", "b.py: 3.00 of 3.00 GiB per device, fits")


def test_a_step_that_would_take_too_long_is_not_run(given: dict[str, Any]):
    assert "a step takes" in checked(flops=1e12 / 20).text
    assert (
        checked(flops=1e12 / 20.4).text
        == "a.py: 3.00 of 4.00 GiB per device, fits; a step would take 20s or more, so none was run"
    )


def test_a_step_that_is_too_large_is_a_fault(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    given["needs"] = 4 * GIB + 1
    fault = "a.py 32: needs 4.00 GiB of host memory, but there are 4.00 GiB"
    assert checked() == Check("phase 1", "a.py: 4.00 of 4.00 GiB per device, which is too much", (fault,))
    monkeypatch.setattr(experiment.jax, "default_backend", lambda: "tpu")
    assert checked().faults == (fault.replace("host memory", "HBM"),)


def test_only_memory_errors_of_the_compiler_are_faults(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    def refuses(message: str) -> None:
        def compile() -> None:
            raise jax.errors.JaxRuntimeError(message)

        monkeypatch.setattr(Program, "compile", staticmethod(compile))

    refuses("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.25G of 15.75G hbm.")
    fault = "a.py 32: needs 20.25 GiB of HBM, but there are 15.75 GiB"
    assert checked() == Check("phase 1", "a.py does not fit", (fault,))
    refuses("INTERNAL: a bug")
    with pytest.raises(jax.errors.JaxRuntimeError):
        checked()


def test_the_disk_of_the_workdir_must_have_space_for_a_checkpoint(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    needed: list[Any] = []

    def require_room(workdir: Any, size: int) -> None:
        needed.append((workdir, size))
        raise UserError("no room")

    monkeypatch.setattr(experiment, "require_room", require_room)
    assert checked(workdir=tmp_path).faults == (), "an evaluation saves nothing"
    state = TrainState(*(None for _ in TrainState.__dataclass_fields__))  # type: ignore[arg-type]
    given["program"].state = state.replace(params={"x": np.zeros((2, 3), np.float32), "y": np.zeros(5, np.int8)})
    assert checked().faults == ()
    assert checked(workdir=tmp_path) == Check("phase 1", "a.py", ("no room",))
    assert needed == [(tmp_path, 2 * 3 * 4 + 5)]


def test_every_step_of_the_experiment_is_checked(monkeypatch: pytest.MonkeyPatch):
    def cases(given: str, overrides: Any, options: Any) -> list[str]:
        assert vars(options) == {"step": None, "phase": None, "model": None, "rows": None, "save": None}
        return [f"{given} {overrides} {n}" for n in range(2)]

    monkeypatch.setattr(experiment, "cases", cases)
    monkeypatch.setattr(experiment, "_check", lambda processes, *given: given)
    workdir: Any = "a workdir"
    assert experiment.fit_checks(Processes(), "a.py", [("seed", "1")], 2.0, workdir, estimated=False) == [
        (f"a.py [('seed', '1')] {n}", [("seed", "1")], 2.0, "a workdir", False) for n in range(2)
    ]


def test_memory_is_the_compilers_peak_on_tpus_and_the_sum_of_parts_elsewhere(monkeypatch: pytest.MonkeyPatch):
    statistics = Statistics()
    assert experiment.step_bytes(statistics) == (10 + 9 - 8 + 5) * 2**20
    monkeypatch.setattr(experiment.jax, "default_backend", lambda: "tpu")
    assert experiment.step_bytes(statistics) == (14 + 1) * 2**20


def test_the_advice_on_a_too_large_step_fits_its_kind(monkeypatch: pytest.MonkeyPatch):
    program: Any = Program()
    said = experiment.too_large(FINETUNING, program, DoesNotFit(2 * GIB, GIB, "hbm"))
    assert said == (
        "the training step does not fit in memory: it needs 2.00 GiB of HBM, but there are 1.00 GiB; "
        "lower --config.training.batch_size below 32, or set --config.training.accumulation=6"
    )
    advice = types.SimpleNamespace(message=lambda shortage: f"the advice on {shortage}")
    asked: list[Any] = []
    monkeypatch.setattr(experiment, "pretraining_advice", lambda *given: asked.append(given) or advice)
    assert experiment.too_large(PRETRAINING, program, DoesNotFit(0, 0, "hbm")).startswith("the advice on needs more HBM")
    assert asked == [(PRETRAINING.experiment, 1, "a mesh")]


def test_free_memory_is_the_minimum_over_all_devices(monkeypatch: pytest.MonkeyPatch):
    def devices(*stats: dict[str, int] | None) -> Callable[[], Any]:
        return lambda: [types.SimpleNamespace(memory_stats=lambda one=one: one) for one in stats]

    others: list[Any] = []
    processes: Any = types.SimpleNamespace(gather=lambda own: [own, *others])
    monkeypatch.setattr(experiment, "host_memory", lambda: 80)
    monkeypatch.setattr(experiment.jax, "local_device_count", lambda: 4)
    monkeypatch.setattr(experiment.jax, "local_devices", devices({"bytes_limit": 50, "bytes_in_use": 20}, {"bytes_limit": 40}))
    assert experiment.least_free(processes) == 30
    others[:] = [None, 25]
    assert experiment.least_free(processes) == 25
    others.clear()
    monkeypatch.setattr(experiment.jax, "local_devices", devices({"bytes_limit": 40}))
    assert experiment.least_free(processes) == 40
    monkeypatch.setattr(experiment.jax, "local_devices", devices(None, None))
    assert experiment.least_free(processes) == 80 / 4, "the devices of a CPU share its memory"
    monkeypatch.setattr(experiment, "host_memory", lambda: None)
    assert experiment.least_free(processes) is None


def test_the_step_of_a_student_is_timed_with_its_teacher(monkeypatch: pytest.MonkeyPatch):
    array = jax.ShapeDtypeStruct((2,), "float32", sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    wide = jax.ShapeDtypeStruct((2, 3), "int32", sharding=array.sharding)
    called: list[Any] = []
    clock, lengths = [0.0], [0.5, 1.0, 3.0, 4.0]  # the first one does not count

    class Sums:
        def block_until_ready(self) -> None:
            clock[0] += lengths[len(called) - 1]

    def step(state: Any, batch: Any, scalars: Any, *teacher: Any) -> Any:
        assert scalars == {"seed": 7}
        assert (state.shape, str(state.dtype), batch.shape, str(batch.dtype)) == ((2,), "float32", (2, 3), "int32")
        called.append([weights["weight"].shape for weights in teacher])
        return state, Sums()

    monkeypatch.setattr(experiment.time, "perf_counter", lambda: clock[0])
    executable: Any = step
    for teacher in ({"weight": array}, None):
        program: Any = types.SimpleNamespace(state=array, batch=wide, scalars={"seed": 7}, teacher=teacher)
        assert experiment.step_seconds(program, executable) == 1.0
        assert called == [[(2,)] if teacher else []] * 4
        called.clear()


def chips(kind: str, places: list[tuple[int, ...]], slices: int = 1) -> list[Any]:
    return [
        types.SimpleNamespace(platform="tpu", device_kind=kind, coords=place, slice_index=s)
        for s in range(slices)
        for place in places
    ]


def test_the_slice_is_recognised_by_the_positions_of_its_chips():
    plane = [(x, y, 0) for y in range(4) for x in range(2)]
    assert slice_name(chips("TPU v5 lite", plane)) == "v5e:2x4"
    assert slice_name(chips("TPU v5 lite", plane, slices=2)) == "2xv5e:2x4"
    assert slice_name(chips("TPU v5", [(x, y, z) for x in range(2) for y in range(2) for z in range(1)])) == "v5p:2x2x1"
    assert slice_name(chips("TPU v5 lite", plane[1:])) is None
    assert slice_name(chips("TPU v5 lite", [place for place in plane if place != (1, 3, 0)], slices=2)) is None
    assert slice_name(chips("TPU7x", [(x, y, 0) for x in range(2) for y in range(2)] * 2)) == "v7x:2x2x1", "two cores a chip"
    unnumbered = [types.SimpleNamespace(platform="tpu", device_kind="TPU v6 lite", coords=(x, 0, 0)) for x in range(2)]
    assert slice_name(unnumbered[:1]) == "v6e:1x1"  # type: ignore[arg-type]
    assert slice_name(chips("TPU v2", plane)) is None
    assert slice_name([types.SimpleNamespace(platform="gpu", device_kind="TPU v5 lite")]) is None  # type: ignore[list-item]
    assert slice_name(jax.devices()) is None


def test_the_estimate_comes_from_aot_in_a_process_without_tpus(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []

    def run(command: list[str], *, env: dict[str, str], **more: Any) -> Any:
        assert more == {"capture_output": True, "text": True, "timeout": 900, "check": True}
        assert env["PATH"] == os.environ["PATH"]
        asked.append((command[2:], {name for name in env if name.startswith("TPU_")}, env["JAX_PLATFORMS"]))
        step = {"seconds": 0.0184, "roofline_seconds": 0.011}
        return types.SimpleNamespace(stdout=json.dumps({"experiments": [{"steps": [step]}]}))

    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setattr(experiment.subprocess, "run", run)
    case = Case("a.py", PretrainingExperiment.from_dict({"phases": [{"steps": 1}] * 2}), "train", 1, "", None)
    assert estimate(case, [("seed", "1")], "v5e:4x4") == "; aot estimates 0.0184 s on v5e:4x4, at least 0.011 s"
    flags = ["--config=a.py", "--config.seed=1", "--topology=v5e:4x4", "--phase=1", "--json", "--no-remedies"]
    assert asked == [(["bert_jax.aot", *flags], set(), "cpu")]

    def fails(*_: Any, **__: Any) -> Any:
        raise experiment.subprocess.CalledProcessError(2, "aot", stderr="a line\nerror: no compiler\n")

    monkeypatch.setattr(experiment.subprocess, "run", fails)
    assert estimate(case, [], "v5e:4x4") == "; aot has no estimate (error: no compiler)"
    for stdout, name in (("no json", "JSONDecodeError"), ('{"experiments": []}', "IndexError")):
        monkeypatch.setattr(experiment.subprocess, "run", lambda *_, stdout=stdout, **__: types.SimpleNamespace(stdout=stdout))
        assert estimate(case, [], "v5e:4x4") == f"; aot has no estimate ({name})"


def test_the_first_process_estimates_for_a_whole_slice(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    monkeypatch.setattr(experiment, "estimate", lambda *given: asked.append(given) or "; an estimate")
    first: Any = types.SimpleNamespace(index=0, gather=lambda own: [own, "of another"])
    case: Any = "a case"
    assert experiment._estimate(first, case, [("seed", "1")]) == "", "a CPU has none"
    monkeypatch.setattr(experiment.jax, "devices", lambda: chips("TPU v5 lite", [(0, 0, 0)]))
    assert experiment._estimate(first, case, [("seed", "1")]) == "; an estimate"
    assert asked == [("a case", [("seed", "1")], "v5e:1x1")]
    second: Any = types.SimpleNamespace(index=1, gather=lambda own: ["of the first", own])
    assert experiment._estimate(second, case, []) == "of the first"
    assert len(asked) == 1
