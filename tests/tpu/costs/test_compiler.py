"""The compiler of a topology: the results that it returns, and how it handles a refusal."""

from __future__ import annotations

import types
from typing import Any

import jax
import pytest

from bert_jax.sharding.device_errors import DoesNotFit
from bert_jax.tpu.costs import compiler
from bert_jax.tpu.costs.compiler import Compiled, Compiler
from bert_jax.tpu.costs.kernels import Schedule
from bert_jax.tpu.costs.topologies import parse_topology
from tests.tpu.costs.devices import devices_of
from tests.tpu.costs.test_estimate import A, program

T = parse_topology("v5e:2x2")
KERNEL = 'ROOT %r = f32[1024,1024]{1,0:T(8,128)} custom-call(%a), custom_call_target="tpu_custom_call", '
KERNEL += 'backend_config={"body":"XYZ"}'


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the steps before the devices of a topology are requested; the compiler itself is missing."""
    done: list[str] = []
    monkeypatch.setattr(compiler, "require_compiler", lambda: "1.2")
    monkeypatch.setattr(compiler, "prepare_compiler", lambda: done.append("prepared"))

    def asked(topology: Any) -> list[Any]:
        done.append("asked for devices")
        return devices_of(topology)

    monkeypatch.setattr(compiler, "topology_devices", asked)

    def schedules(module: Any, topology: Any, version: str) -> dict[str, Schedule]:
        assert (topology, version) == (T, "1.2")
        return {i.kernel_body: Schedule(100, 1_500_000, (10,), 0) for i in module.entry.instructions if i.kernel_body}

    monkeypatch.setattr(compiler, "kernel_schedules", schedules)
    return done


def executable(text: str | None) -> Any:
    return types.SimpleNamespace(as_text=lambda: text, memory_analysis=lambda: "statistics")


def compiled(text: str | None) -> Compiled:
    return Compiler(T).compile(types.SimpleNamespace(compile=lambda: executable(text)))  # type: ignore[arg-type]


def test_compiling_returns_the_module_and_the_schedules_of_its_kernels(prepared: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler, "time", types.SimpleNamespace(monotonic=iter([3.0, 5.5]).__next__))
    found = compiled(program(A, KERNEL))
    assert prepared == ["prepared", "asked for devices"]
    assert [i.name for i in found.module.entry.instructions] == ["a", "r"]
    assert (found.text, found.memory) == (program(A, KERNEL), "statistics")
    assert found.seconds == 2.5
    assert Compiler(T).estimate(found).seconds == pytest.approx(1e-3)


def test_a_program_without_text_has_no_module(prepared: list[str]):
    with pytest.raises(ValueError, match="no ENTRY"):
        compiled(None)


def test_devices_come_from_the_mesh_or_the_topology(prepared: list[str]):
    reduce = "ROOT %r = f32[1024,1024]{1,0:T(8,128)} all-reduce(%a), replica_groups={}"
    found = compiled(program(A, reduce))
    sent = [Compiler(T).estimate(found, of).collectives["all-reduce"]["sent"] for of in (None, devices_of(T)[:2])]  # type: ignore[arg-type]
    assert sent == [2 * 2**22 * 3 / 4, 2 * 2**22 * 1 / 2]


def test_out_of_memory_refusals_have_figures_and_others_the_compilers_message(prepared: list[str]):
    def refused(message: str) -> None:
        def compile() -> None:
            raise jax.errors.JaxRuntimeError(message)

        Compiler(T).compile(types.SimpleNamespace(compile=compile))  # type: ignore[arg-type]

    with pytest.raises(DoesNotFit) as error:
        refused("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.25G of 15.75G hbm.")
    assert (error.value.needs, error.value.has) == (20.25 * 2**30, 15.75 * 2**30)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        refused("INTERNAL: a bug")
