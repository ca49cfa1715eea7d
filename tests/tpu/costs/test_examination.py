"""The examination of one step: the calls to the compiler, and the results in the record."""

from __future__ import annotations

import argparse
import types
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.sharding.device_errors import DoesNotFit
from bert_jax.tpu.costs import examination

ARGUMENTS = {"parameters": jax.ShapeDtypeStruct((4,), "float32"), "batch": jax.ShapeDtypeStruct((3,), "int8")}
COMPILED = types.SimpleNamespace(memory="statistics", module="module", executable="executable")
STEP = types.SimpleNamespace(name="phase 0, train step")
DEVICES = np.array([["a", "b"], ["c", "d"]], dtype=object)
PROGRAM = types.SimpleNamespace(lowered="lowered", mesh=types.SimpleNamespace(devices=DEVICES), arguments=lambda: ARGUMENTS)


class Compiler:
    """A compiler that returns COMPILED, or raises."""

    topology = types.SimpleNamespace(name="v5e:2x2", device_memory=16)
    devices = "devices"

    def __init__(self, error: Exception | None = None):
        self._error = error

    def compile(self, lowered: str) -> Any:
        assert lowered == "lowered"
        if self._error:
            raise self._error
        return COMPILED

    def estimate(self, compiled: Any, devices: list[str]) -> tuple[Any, ...]:
        return ("estimate", compiled, devices)


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the functions that make the reports with functions that return their arguments."""
    monkeypatch.setattr(examination, "calibrate", lambda compiler: ("calibration", type(compiler)))
    monkeypatch.setattr(examination, "program_memory", lambda *given: ("memory", *given))
    monkeypatch.setattr(examination, "record", lambda *given: {"record": given})
    monkeypatch.setattr(examination, "refused", lambda *given: {"refused": given})
    monkeypatch.setattr(examination, "remedies", lambda *given: [given])
    monkeypatch.setattr(examination, "save_program", lambda *given: given)


def examined(compiler: Compiler, save: str | None = None, no_remedies: bool = False) -> dict[str, Any]:
    def lowered(devices: str) -> Any:
        assert devices == "devices"
        return PROGRAM

    CASE.lower = lowered
    return examination.examine(CASE, compiler, argparse.Namespace(save=save, no_remedies=no_remedies))  # type: ignore[arg-type]


CASE: Any = types.SimpleNamespace(config="a.py", step=lambda program: STEP if program is PROGRAM else None)


def test_a_step_that_fits_is_reported_with_estimate_memory_and_calibration(capsys: pytest.CaptureFixture[str]):
    flat = ["a", "b", "c", "d"]
    estimate, memory = ("estimate", COMPILED, flat), ("memory", "statistics", "module", ARGUMENTS, 16)
    given = (STEP, Compiler.topology, COMPILED, estimate, memory, ("calibration", Compiler))
    assert examined(Compiler()) == {"record": given}
    assert capsys.readouterr().err == "compiling phase 0, train step of a.py for v5e:2x2 ...\n"
    saved = examined(Compiler(), save="there")["saved"]
    assert saved == str(("there", "lowered", "executable", flat))


def test_a_step_that_does_not_fit_is_reported_with_arguments_and_remedies():
    error = DoesNotFit(2.0, 1.0, "hbm")
    compiler = Compiler(error)
    sizes = {"parameters": 16, "batch": 3}
    assert examined(compiler)["refused"] == (STEP, compiler.topology, error, sizes, [(CASE, compiler, PROGRAM, error)])
    assert examined(compiler, no_remedies=True)["refused"] == (STEP, compiler.topology, error, sizes, [])


def test_other_refusals_of_the_compiler_are_user_errors():
    with pytest.raises(UserError, match=r"^the TPU compiler refuses phase 0, train step for v5e:2x2: INTERNAL: a bug$"):
        examined(Compiler(jax.errors.JaxRuntimeError("INTERNAL: a bug\nwith more")))
    with pytest.raises(ZeroDivisionError):
        examined(Compiler(ZeroDivisionError()))
