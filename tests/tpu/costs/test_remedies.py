"""How a step could fit: the search for the largest batch, and the settings that are tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.sharding.mesh import make_mesh
from bert_jax.tpu import programs
from bert_jax.tpu.costs import examination
from bert_jax.tpu.costs import flags as aot_flags
from bert_jax.tpu.costs.compiler import Compiler, DoesNotFit
from bert_jax.tpu.costs.examination import Size, attempt, largest
from bert_jax.tpu.costs.topologies import parse_topology
from bert_jax.tpu.programs import costliest_run
from bert_jax.training.steps import TrainState
from tests.tpu.costs.devices import Executable, install_compiler
from tests.tpu.costs.test_estimate import A, program

LARGEST = "the largest batch"
MIB = 2**20
Fits = Callable[[programs.Case], bool]
GRID = "experiments/finetune/grid.py:glue/rte"
BASE = ["--config=experiments/pretrain/bert_base.py", "--phase=0", "--config.phases.0.batch_size=256"]
MAPS = ["--config.teacher=models/teacher", "--config.distillation.attention_weight=1", "--config.model.attention=plain"]


@pytest.mark.parametrize("most", [0, 1, 6, 10, 11, 254])
@pytest.mark.parametrize("known", [True, False])
def test_the_search_finds_the_largest_batch_that_fits(most: int, known: bool):
    tried: list[int] = []

    def measure(rows: int) -> tuple[bool, float]:
        tried.append(rows)
        return rows <= most, 100.0 + rows if known else 0.0

    found = largest(measure, Size(0, 100.0), Size(255, 355.0 if known else 0.0), 100.0 + most + 0.5)
    assert found.rows == most
    assert len(tried) == len(set(tried)) <= 8
    assert not known or len(tried) <= 3


def test_the_search_among_very_many_rows_ends_within_a_percent():
    tried: list[int] = []

    def measure(rows: int) -> tuple[bool, float]:
        tried.append(rows)
        return rows <= 100_000, 0.0

    found = largest(measure, Size(0, 0.0), Size(2**20, 0.0), 1.0)
    assert 99_000 < found.rows <= 100_000
    assert len(tried) <= 12


def test_the_search_ends_for_nonlinear_memory():
    def used(rows: int) -> float:
        return 100.0 + rows**4 / 1e7

    found = largest(lambda rows: (rows <= 200, used(rows)), Size(0, used(0)), Size(255, used(255)), used(200) + 0.1)
    assert found.rows == 200


def test_the_search_bisects_after_two_linear_steps():
    tried: list[int] = []

    def used(rows: int) -> float:
        return 100.0 + rows**0.25

    def measure(rows: int) -> tuple[bool, float]:
        tried.append(rows)
        return rows <= 200, used(rows)

    limit = used(200) + 0.01
    assert largest(measure, Size(0, used(0)), Size(255, used(255)), limit).rows == 200
    first = round(float(np.interp(limit, [used(0), used(255)], [0, 255])))
    second = round(float(np.interp(limit, [used(0), used(first)], [0, first])))
    third = second // 2
    assert third < 200 < second < first
    fourth = third + round(float(np.interp(limit, [used(third), used(second)], [0, second - third])))
    assert tried[:4] == [first, second, third, fourth]
    assert len(tried) <= 13


def test_a_batch_at_the_limit_does_not_predict_the_next():
    tried: list[int] = []

    def measure(rows: int) -> tuple[bool, float]:
        tried.append(rows)
        return False, 600.0

    assert largest(measure, Size(10, 500.0), Size(30, 600.0), 500.0) == Size(10, 500.0)
    assert tried[0] == 20


@pytest.mark.parametrize(("low", "high", "measured"), [(5, 7, 1), (255, 257, 1), (256, 258, 0), (383, 386, 1), (384, 387, 0)])
def test_the_search_is_exact_up_to_256_rows_and_within_a_128th_above(low: int, high: int, measured: int):
    tried: list[int] = []

    def measure(rows: int) -> tuple[bool, float]:
        tried.append(rows)
        return True, 0.0

    assert largest(measure, Size(low, 0.0), Size(high, 0.0), 1.0).rows >= low
    assert len(tried) == measured


def of_pallas() -> Exception:
    """Returns an exception as Pallas reports a refusal of the compiler."""
    error = Exception("Mosaic failed to compile the kernel")
    error.__cause__ = jax.errors.JaxRuntimeError("INTERNAL: Mosaic")
    return error


@pytest.mark.parametrize(
    ("error", "needs"),
    [
        (UserError("config.mesh.fsdp=3 does not divide"), 0),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 3.00G of 2.00G hbm."), 3),
        (jax.errors.JaxRuntimeError("INTERNAL: a bug"), 0),
        (of_pallas(), 0),
    ],
)
def test_settings_that_are_invalid_or_refused_do_not_fit(error: Exception, needs: int, monkeypatch: pytest.MonkeyPatch):
    def refuse(lowered: jax.stages.Lowered) -> Executable:
        raise error

    install_compiler(monkeypatch, refuse)
    assert attempt(Compiler(parse_topology("v5e:1x1")), jax.jit(lambda: 0).lower) == (False, needs * 2**30)


def test_settings_that_fit_have_the_bytes_of_the_compiler(monkeypatch: pytest.MonkeyPatch):
    install_compiler(monkeypatch, lambda lowered: Executable(program(A)))
    compiler = Compiler(parse_topology("v5e:1x1"))
    assert attempt(compiler, jax.jit(lambda: 0).lower) == (True, 15 * MIB)
    with pytest.raises(ZeroDivisionError):
        attempt(compiler, lambda: 1 // 0)  # type: ignore[arg-type, return-value]


PARAMETERS = 64
"""MiB of a whole model; every device has 1/(fsdp x tensor) of it."""


def rows_of(case: programs.Case) -> int:
    """Returns the batch of a step, over all devices."""
    x: Any = case.experiment
    if case.kind == "finetune":
        return int(costliest_run(x).training.batch_size)
    return int((x.evaluation if case.kind == "eval" else x.phases[0]).batch_size)


def bytes_of(case: programs.Case) -> float:
    """Computes a device's memory by a simple rule: parameters, gradients and optimizer, and 32 MiB of activations per row, an
    eighth of that if they are recomputed."""
    x: Any = case.experiment
    mesh = make_mesh(x.mesh).shape
    activations = 32 / (1 if x.model.remat == "none" else 8)
    kept = (1 if case.kind == "eval" else 4) * PARAMETERS / mesh["fsdp"] / mesh["tensor"]
    return MIB * (kept + activations * rows_of(case) / (8 // mesh["tensor"]) / case.accumulation)


def described(case: programs.Case) -> programs.StepProgram:
    """Returns a program with the mesh and the parameters of a step, without its operations."""
    parameters = jax.ShapeDtypeStruct((PARAMETERS * MIB // 4,), jnp.float32)
    trained = TrainState(None, {"x": parameters}, (parameters, parameters), None, None)  # type: ignore[arg-type]
    state = {"x": parameters} if case.kind == "eval" else trained
    mesh = make_mesh(case.experiment.mesh, jax.devices())
    return programs.StepProgram(jax.jit(lambda: 0).lower(), mesh, state, {}, rows_of(case), 128, 1.0)


def remedies(flags: list[str], needs: float, has: float = 600, fits: Fits | None = None) -> tuple[list[str], list[Any]]:
    """Returns the remedies for a step that needs `needs` MiB and has `has`, and the experiments that were tried. They fit if
    `fits` returns true, by default in 600 MiB."""
    tried: list[Any] = []

    def measure(changes: JsonObject) -> tuple[bool, int]:
        try:
            changed = case.changed(changes)
        except UserError:  # counts as not fitting, as in `attempt`
            return False, 0
        tried.append(changed.experiment)
        if changed.experiment.model.remat == "dots":
            return False, 0
        size = bytes_of(changed)
        return (size <= 600 * MIB if fits is None else fits(changed)), int(size)

    options, overrides, _ = aot_flags.parse_flags("", [*flags, "--topology=v5e:2x4"])
    (case,) = programs.cases(options.config, overrides, options)
    error = DoesNotFit(needs * MIB, has * MIB, "hbm")
    return examination.remedies(case, described(case), error, parse_topology("v5e:2x4"), measure), tried


@pytest.mark.parametrize(
    ("flags", "helps"),
    [
        (
            ["--config=experiments/pretrain/bert_base.py", "--phase=0", "--config.phases.0.batch_size=256"],
            ["phases.0.accumulation=4", "model.remat=full", f"phases.0.batch_size=80, {LARGEST}, 10 rows per chip"],
        ),
        (
            ["--config=experiments/pretrain/bert_base.py", "--phase=0", "--step=eval", "--config.evaluation.batch_size=256"],
            ["evaluation.batch_size=128, the largest batch, 16 rows per chip"],
        ),
        (
            ["--config=experiments/finetune/glue.py:mrpc", "--config.training.batch_size=256", "--config.mesh.data=8"],
            ["training.accumulation=4", "model.remat=full", f"training.batch_size=80, {LARGEST}, 10 rows per chip"],
        ),
        (
            [*BASE, *MAPS, "--config.model.remat=none"],  # attention maps are not available from layers in a loop
            ["phases.0.accumulation=4", f"phases.0.batch_size=80, {LARGEST}, 10 rows per chip"],
        ),
        (
            [f"--config={GRID}", "--config.sweep.batch_sizes=[256,16]", "--config.sweep.devices_per_run=8"],
            [
                "training.accumulation=4",
                "model.remat=full",
                f"sweep.batch_sizes=[16,80], {LARGEST}, 10 rows per chip",
            ],
        ),
    ],
    ids=["train", "eval", "finetune", "maps", "sweep"],
)
def test_every_kind_of_step_has_its_own_remedies(flags: list[str], helps: list[str]):
    found, _ = remedies(flags, 1280)
    assert [remedy.removeprefix("--config.").rpartition(" (")[0] for remedy in found] == helps


MRPC = ["--config=experiments/finetune/glue.py:mrpc", "--config.training.batch_size=8"]


def test_remedies_account_for_microbatches_and_sharded_models():
    """With two devices along each axis, a microbatch of n rows takes 64 + 32 n MiB of 600, and its batch has 8 n rows."""
    found, tried = remedies(
        [*BASE, *(f"--config.{key}=2" for key in ("phases.0.accumulation", "mesh.fsdp", "mesh.tensor"))], 1088
    )
    assert found == [
        "--config.phases.0.accumulation=4 (0.6 GiB)",
        "--config.model.remat=full (0.2 GiB)",
        f"--config.phases.0.batch_size=128, {LARGEST}, 16 rows per chip (0.6 GiB)",
    ]
    kept = PARAMETERS + 2 * PARAMETERS
    rows = round(float(np.interp(600, [kept, 1088], [0, 32])))
    assert tried[0].phases[0].batch_size == 8 * rows, "the first is where the line from the fixed part meets the limit"


@pytest.mark.parametrize(
    ("needs", "has", "tried"), [(839, 600, [4]), (840, 600, [8]), (959, 600, [8]), (960, 600, []), (960, 0, [4])]
)
def test_a_model_is_sharded_further_only_if_that_can_help(
    needs: float, has: float, tried: list[int], monkeypatch: pytest.MonkeyPatch
):
    """Parameters, gradients and optimizer take 2 x 80 + 320 MiB of each of two devices. Four devices save up to half of that,
    and eight up to three quarters. A number that saves too little is not tried. If the compiler does not report the available
    memory, the memory of the chip counts."""
    monkeypatch.setitem(globals(), "PARAMETERS", 160)
    found, experiments = remedies([*MRPC, "--config.mesh.fsdp=2"], needs, has)
    assert [experiment.mesh.fsdp for experiment in experiments if experiment.mesh.fsdp != 2] == tried
    assert [remedy for remedy in found if "fsdp" in remedy] == [
        f"--config.mesh.fsdp={n} ({0.2 if n == 4 else 0.1} GiB)" for n in tried
    ]


def test_no_more_than_three_numbers_of_microbatches_are_tried():
    """The three smallest of the four numbers whose microbatches should fit are tried. Here none of them does."""
    flags = [*BASE[:2], "--config.phases.0.batch_size=512"]
    found, tried = remedies(flags, 2304, fits=lambda case: case.accumulation == 1 and rows_of(case) <= 64)
    assert len(found) == 1
    assert [x.phases[0].accumulation for x in tried if x.phases[0].accumulation > 1] == [8, 16, 32]


@pytest.mark.parametrize(
    ("sizes", "helps"),
    [
        ({"data": 8}, "--config.mesh.data=4 --config.mesh.fsdp=2 (0.3 GiB)"),
        ({"data": 4, "tensor": -1}, "--config.mesh.data=2 --config.mesh.fsdp=2 (0.2 GiB)"),
        ({"data": 2, "fsdp": -1}, "--config.mesh.data=1 --config.mesh.fsdp=8 (0.1 GiB)"),
    ],
)
def test_sharding_is_a_remedy_if_the_model_does_not_fit(sizes: dict[str, int], helps: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "PARAMETERS", 160)
    found, _ = remedies([*MRPC, *(f"--config.mesh.{axis}={size}" for axis, size in sizes.items())], 672)
    assert helps in found
