"""How a step could fit: the search for the largest batch, and the settings that are tried."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tpu import programs
from bert_jax.tpu.costs import examination
from bert_jax.tpu.costs import flags as aot_flags
from bert_jax.tpu.costs.compiler import DoesNotFit
from bert_jax.tpu.costs.examination import Remedy, Size, Trial, attempt, first_that_fits, largest, largest_batch
from bert_jax.tpu.costs.topologies import parse_topology
from bert_jax.tpu.programs import costliest_run
from tests.tpu.costs.test_memory import Statistics

LARGEST = "the largest batch"
GRID = "experiments/finetune/grid.py:glue/rte"


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


class Refusing:
    """A compiler that refuses every program; the program is the exception to raise."""

    def compile(self, lowered: Exception) -> None:
        raise lowered


def of_pallas() -> Exception:
    """Returns an exception as Pallas reports a refusal of the compiler."""
    error = Exception("Mosaic failed to compile the kernel")
    error.__cause__ = jax.errors.JaxRuntimeError("INTERNAL: Mosaic")
    return error


def test_remedies_that_are_invalid_or_do_not_fit_are_skipped():
    class Fitting:
        def compile(self, lowered: int) -> Any:
            return types.SimpleNamespace(memory=Statistics(peak_memory_in_bytes=lowered, generated_code_size_in_bytes=0))

    errors = (UserError("no"), DoesNotFit(2, 1, "hbm"), jax.errors.JaxRuntimeError("INTERNAL: a bug"), of_pallas())
    trials = [Trial("a", lambda error=error: error) for error in errors]  # type: ignore[misc]
    assert first_that_fits(Refusing(), trials) is None  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        first_that_fits(Refusing(), [Trial("c", ZeroDivisionError)])  # type: ignore[arg-type]
    assert first_that_fits(Fitting(), [Trial("d", lambda: 7), Trial("e", lambda: 8)]) == Remedy("d", 7)  # type: ignore[arg-type]
    assert [attempt(Refusing(), lambda error=error: error) for error in errors] == [
        (False, 0),
        (False, 2),
        (False, 0),
        (False, 0),
    ]  # type: ignore[arg-type, misc]


def test_a_batch_that_the_compiler_refuses_for_any_reason_is_too_large():
    class Moody:
        def compile(self, rows: int) -> Any:
            if rows > 5:
                raise jax.errors.JaxRuntimeError("INTERNAL: a bug of the compiler")
            return types.SimpleNamespace(memory=Statistics())

    assert largest_batch(Moody(), lambda rows: rows, 100.0, Size(64, 1e9), 1e8).rows == 5  # type: ignore[arg-type]
    assert largest_batch(Moody(), lambda rows: rows + 5, 100.0, Size(64, 1e9), 1e8).rows == 0  # type: ignore[arg-type]


MIB = 2**20
PARAMETERS = 64
"""MiB of a whole model; every device has 1/(fsdp x tensor) of it."""


def bytes_of(case: programs.Case) -> float:
    """Computes a device's memory by a simple rule: parameters, gradients and optimizer, and 32 MiB of activations per row, an
    eighth of that if they are recomputed."""
    x: Any = case.experiment
    batch = {"train": lambda: x.phases[0].batch_size, "eval": lambda: x.evaluation.batch_size,
             "finetune": lambda: costliest_run(x).training.batch_size}[case.kind]()  # fmt: skip
    activations = 32 / (1 if x.model.remat == "none" else 8)
    kept = (1 if case.kind == "eval" else 4) * PARAMETERS / x.mesh.fsdp / x.mesh.tensor
    return MIB * (kept + activations * batch / (8 // x.mesh.tensor) / case.accumulation)


class Reckoning:
    """A compiler for eight devices with 600 MiB each. Its programs are cases, whose memory `bytes_of` computes. It fails for
    the remat setting "dots"."""

    topology = parse_topology("v5e:2x4")
    devices = tuple(range(8))

    def __init__(self) -> None:
        self.tried: list[Any] = []

    def compile(self, case: programs.Case) -> Any:
        self.tried.append(case.experiment)
        assert case.experiment.model.scan_layers
        if case.experiment.model.remat == "dots":
            raise jax.errors.JaxRuntimeError("INTERNAL: a bug of the compiler")
        if (needs := bytes_of(case)) > 600 * MIB:
            raise DoesNotFit(needs, 600 * MIB, "hbm")
        return types.SimpleNamespace(memory=Statistics(generated_code_size_in_bytes=0, peak_memory_in_bytes=int(needs)))


def lower(case: programs.Case, devices: Any) -> Any:
    """Returns the case instead of a program."""
    assert devices in ((), Reckoning.devices)
    fsdp, tensor = case.experiment.mesh.fsdp, case.experiment.mesh.tensor
    mesh = types.SimpleNamespace(shape={"data": 8 // fsdp // tensor, "fsdp": fsdp, "tensor": tensor}, size=8)
    parameters = jax.ShapeDtypeStruct((PARAMETERS * MIB // 4,), jnp.float32)
    arguments = {"parameters": parameters} | ({} if case.kind == "eval" else {"optimizer": (parameters, parameters)})
    return types.SimpleNamespace(lowered=case, mesh=mesh, rows=256, length=128, flops=1.0, arguments=lambda: arguments)


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
            [f"--config={GRID}", "--config.sweep.batch_sizes=[256,16]", "--config.sweep.devices_per_run=8"],
            [
                "training.accumulation=4",
                "model.remat=full",
                f"sweep.batch_sizes=[16,80], {LARGEST}, 10 rows per chip",
            ],
        ),
    ],
    ids=["train", "eval", "finetune", "sweep"],
)
def test_every_kind_of_step_has_its_own_remedies(flags: list[str], helps: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(programs.Case, "lower", lower)
    options, overrides, _ = aot_flags.parse_flags("", [*flags, "--topology=v5e:2x4"])
    (case,) = programs.cases(options.config, overrides, options)
    found = examination.remedies(case, Reckoning(), lower(case, ()), DoesNotFit(1280 * MIB, 600 * MIB, "hbm"))  # type: ignore[arg-type]
    assert [remedy.removeprefix("--config.").rpartition(" (")[0] for remedy in found] == helps


def remedies(program: Any, compiler: Reckoning, needs: float, has: float, *flags: str) -> list[str]:
    """Returns the remedies for the step of `flags` with the attributes `program`, which needs `needs` MiB and has `has`."""
    options, overrides, _ = aot_flags.parse_flags("", [*flags, "--topology=v5e:2x4"])
    (case,) = programs.cases(options.config, overrides, options)
    made = lower(case, ())
    for name, value in program.items():
        setattr(made, name, value)
    return examination.remedies(case, compiler, made, DoesNotFit(needs * MIB, has * MIB, "hbm"))  # type: ignore[arg-type]


def test_remedies_account_for_microbatches_and_sharded_models(monkeypatch: pytest.MonkeyPatch):
    """With two devices along each axis, a microbatch of n rows takes 64 + 32 n MiB of 600, and its batch has 8 n rows."""
    monkeypatch.setattr(programs.Case, "lower", lower)
    compiler = Reckoning()
    flags = ("phases.0.accumulation=2", "phases.0.batch_size=256", "mesh.fsdp=2", "mesh.tensor=2")
    config = ("--config=experiments/pretrain/bert_base.py", "--phase=0", *(f"--config.{flag}" for flag in flags))
    assert remedies({}, compiler, 1088, 600, *config) == [
        "--config.phases.0.accumulation=4 (0.6 GiB)",
        "--config.model.remat=full (0.2 GiB)",
        f"--config.phases.0.batch_size=128, {LARGEST}, 16 rows per chip (0.6 GiB)",
    ]
    kept = PARAMETERS + 2 * PARAMETERS
    rows = round(float(np.interp(600, [kept, 1088], [0, 32])))
    assert compiler.tried[0].phases[0].batch_size == 8 * rows, "the first is where the line from the fixed part meets the limit"


@pytest.mark.parametrize(
    ("needs", "has", "tried"), [(839, 600, [4]), (840, 600, [8]), (959, 600, [8]), (960, 600, []), (960, 0, [4])]
)
def test_a_model_is_sharded_further_only_if_that_can_help(
    needs: float, has: float, tried: list[int], monkeypatch: pytest.MonkeyPatch
):
    """Parameters, gradients and optimizer take 2 x 80 + 320 MiB of each of two devices. Four devices save up to half of that,
    and eight up to three quarters. A number that saves too little is not tried. If the compiler does not report the available
    memory, the memory of the chip counts."""
    monkeypatch.setattr(programs.Case, "lower", lower)
    monkeypatch.setitem(globals(), "PARAMETERS", 160)
    compiler = Reckoning()
    flags = ("--config=experiments/finetune/glue.py:mrpc", "--config.training.batch_size=8", "--config.mesh.fsdp=2")
    found = remedies({"rows": 8}, compiler, needs, has, *flags)
    assert [experiment.mesh.fsdp for experiment in compiler.tried if experiment.mesh.fsdp != 2] == tried
    assert [remedy for remedy in found if "fsdp" in remedy] == [
        f"--config.mesh.fsdp={n} ({0.2 if n == 4 else 0.1} GiB)" for n in tried
    ]


def test_no_more_than_three_numbers_of_microbatches_are_tried(monkeypatch: pytest.MonkeyPatch):
    """The three smallest numbers whose microbatches should fit are tried. Here none of them does."""
    monkeypatch.setattr(programs.Case, "lower", lower)
    compiler = Reckoning()

    def refuses(self: Reckoning, case: programs.Case) -> Any:
        fits = case.accumulation == 1 and case.experiment.phases[0].batch_size <= 32  # type: ignore[union-attr]
        self.tried.append(case.experiment)
        if not fits:
            raise DoesNotFit(1e9, 6e8, "hbm")
        return types.SimpleNamespace(memory=Statistics())

    monkeypatch.setattr(Reckoning, "compile", refuses)
    flags = ("--config=experiments/pretrain/bert_base.py", "--phase=0", "--config.phases.0.batch_size=256")
    assert len(remedies({}, compiler, 1280, 600, *flags)) == 1
    assert [x.phases[0].accumulation for x in compiler.tried if x.phases[0].accumulation > 1] == [8, 16, 32]


def test_sharding_is_a_remedy_if_the_model_does_not_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(programs.Case, "lower", lower)
    monkeypatch.setitem(globals(), "PARAMETERS", 160)
    flags = ["--config=experiments/finetune/glue.py:mrpc", "--config.training.batch_size=8", "--config.mesh.data=8"]
    options, overrides, _ = aot_flags.parse_flags("", [*flags, "--topology=v5e:2x4"])
    (case,) = programs.cases(options.config, overrides, options)
    program = lower(case, ())
    program.rows = 8
    found = examination.remedies(case, Reckoning(), program, DoesNotFit(672 * MIB, 600 * MIB, "hbm"))  # type: ignore[arg-type]
    assert found[-1] == "--config.mesh.fsdp=2 --config.mesh.data=-1 (0.3 GiB)"
