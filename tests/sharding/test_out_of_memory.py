from __future__ import annotations

import os
from collections.abc import Callable

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interface import command
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.device_errors import DoesNotFit, MemoryAdvice, OutOfMemory, fits_in_memory, host_memory, require_memory
from bert_jax.sharding.mesh import make_mesh

ADVICE = MemoryAdvice("the step", "8 rows", ["--config.a=1", "--config.b=2"], "The rest stays.")
TPU = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.25G of 15.75G hbm."


def explained(error: Exception, advice: MemoryAdvice = ADVICE) -> str:
    """Returns the error that an exception becomes."""
    with pytest.raises(OutOfMemory) as raised, fits_in_memory(lambda: advice):
        raise error
    assert raised.value.__cause__ is error
    return str(raised.value)


@pytest.mark.parametrize(
    ("message", "needs", "has", "says"),
    [
        (
            "RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That was not possible. There are 6.78G "
            "free, 0B reserved, and 3.33G reservable.",
            6.48 * 2**30,
            3.33 * 2**30,
            "asks for 6.48 GiB of HBM at once, but 3.33 GiB are free",
        ),
        (
            "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 15.65G. That was not possible. There are "
            "11.08G free.; (0x0x0_HBM0)",
            15.65 * 2**30,
            11.08 * 2**30,
            "asks for 15.65 GiB of HBM at once, but 11.08 GiB are free",
        ),
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.\nBufferAssignment OOM Debugging.",
            4770354232,
            0,
            "asks for 4.44 GiB of memory at once, which is not free",
        ),
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 64.00MiB.",
            2**26,
            0,
            "asks for 64.00 MiB of memory at once, which is not free",
        ),
        (
            "RESOURCE_EXHAUSTED: Failed to allocate request for 1.50GiB (1610612736B) on device ordinal 0",
            1.5 * 2**30,
            0,
            "asks for 1.50 GiB of memory at once, which is not free",
        ),
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 128.0MiB.",
            2**27,
            0,
            "asks for 0.12 GiB of memory at once, which is not free",
        ),
        ("INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory", 0, 0, "needs more memory than there is"),
        ("RESOURCE_EXHAUSTED: vmem", 0, 0, "needs more VMEM than there is"),
        (TPU, 20.25 * 2**30, 15.75 * 2**30, "needs 20.25 GiB of HBM, but there are 15.75 GiB"),
    ],
)
def test_memory_messages_of_devices_and_compilers_are_parsed(message: str, needs: float, has: float, says: str):
    found = DoesNotFit.from_message(message)
    assert (found.needs, found.has) == (needs, has)
    assert str(found) == says


def test_the_error_shows_the_figures_the_batch_and_the_remedies():
    assert explained(jax.errors.JaxRuntimeError(TPU)).splitlines() == [
        "the step does not fit in memory: it needs 20.25 GiB of HBM, but there are 15.75 GiB, with 8 rows.",
        "Each of these flags takes less memory:",
        "    --config.a=1",
        "    --config.b=2",
        "Or end other programs that use this memory, or use devices with more memory.",
        "The rest stays.",
    ]


def test_the_error_without_figures_names_none():
    says = explained(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: ?"), MemoryAdvice("it"))
    assert says == (
        "it does not fit in memory: it needs more memory than there is.\n"
        "End other programs that use this memory, or use devices with more memory."
    )


def test_the_error_on_a_gpu_names_the_memory_fraction_of_jax(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95" in explained(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: ?"))
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in explained(MemoryError())


def test_memory_errors_of_jax_and_numpy_are_parsed():
    with pytest.raises(OutOfMemory, match=r"asks for 262144\.00 GiB of memory at once"), fits_in_memory(lambda: ADVICE):
        jax.device_put(np.broadcast_to(np.float32(1), (2**46,)))
    with (
        pytest.raises(
            OutOfMemory,
            match=r"asks for 8388608\.00 GiB of host memory at once, which is not free, with.*\n(.*\n)*.*a machine with more",
        ),
        fits_in_memory(lambda: ADVICE),
    ):
        np.zeros(2**50)
    assert "needs more host memory than there is" in explained(MemoryError())


@pytest.mark.parametrize(
    "message",
    [
        "INTERNAL: a fault of the driver",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 20M of 16M vmem.",
    ],
)
def test_other_device_errors_stay_as_they_are(message: str):
    with pytest.raises(jax.errors.JaxRuntimeError) as raised, fits_in_memory(lambda: ADVICE):
        raise jax.errors.JaxRuntimeError(message)
    assert not isinstance(raised.value, UserError)


def test_the_innermost_explanation_wins():
    with pytest.raises(OutOfMemory, match="the step does not fit"), fits_in_memory(lambda: MemoryAdvice("the whole run")):  # noqa: SIM117
        with fits_in_memory(lambda: ADVICE):
            raise jax.errors.JaxRuntimeError(TPU)


def test_a_command_that_runs_out_of_host_memory_ends_with_a_sentence(capsys: pytest.CaptureFixture[str]):
    def main() -> None:
        raise MemoryError("Unable to allocate 8.00 PiB")

    with pytest.raises(SystemExit) as ended:
        command.run_main(main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "error: this machine ran out of memory (Unable to allocate 8.00 PiB); end other programs, or use a machine with more "
        "memory\n"
    )


@pytest.fixture
def machine(machine_files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Returns a function that changes the memory (bytes) of the machine. No container limits it."""

    def change(size: int) -> None:
        monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": size // 4096, "SC_PAGE_SIZE": 4096}.__getitem__)

    return change


def test_cpu_devices_share_the_memory_of_the_machine(machine: Callable[[int], None], monkeypatch: pytest.MonkeyPatch):
    machine(8 << 30)
    for devices in (1, 4):
        mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
        require_memory((8 << 30) / devices, mesh, lambda: ADVICE)
        says = f"it needs {9 if devices == 1 else 12}.00 GiB of host memory, but there are 8.00 GiB"
        with pytest.raises(OutOfMemory, match=says):
            require_memory((9 if devices == 1 else 3) << 30, mesh, lambda: ADVICE)
    monkeypatch.delattr(os, "sysconf")
    require_memory(2**60, mesh, lambda: ADVICE)


def test_a_step_must_fit_the_device_with_the_least_memory(monkeypatch: pytest.MonkeyPatch):
    mesh = make_mesh(MeshConfig(), jax.devices()[:3])
    sizes = {device: size << 30 for device, size in zip(jax.devices(), (4, 2, 3), strict=False)}
    monkeypatch.setattr(jax.Device, "memory_stats", lambda device: {"bytes_limit": sizes[device]})
    require_memory(2 << 30, mesh, lambda: ADVICE)
    with pytest.raises(OutOfMemory, match=r"it needs 3\.00 GiB of HBM, but there are 2\.00 GiB"):
        require_memory(3 << 30, mesh, lambda: ADVICE)


def test_devices_without_figures_are_not_judged_by_the_memory_of_the_host(
    machine: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
):
    machine(1 << 30)
    mesh = make_mesh(MeshConfig(), jax.devices()[:2])
    with pytest.raises(OutOfMemory, match="the step"):
        require_memory(2**60, mesh, lambda: ADVICE)
    monkeypatch.setattr(jax.Device, "platform", "gpu")
    require_memory(2**60, mesh, lambda: ADVICE)


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        ("/sys/fs/cgroup/memory.max", "4096\n", 4_096),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "8192\n", 8_192),
        ("/sys/fs/cgroup/memory.max", "max\n", None),
        ("/sys/fs/cgroup/memory.max", f"{2**62}\n", None),
    ],
)
def test_a_container_may_limit_the_memory_of_its_machine(
    file: str, text: str, limit: int | None, machine_files: dict[str, str]
):
    machine_files[file] = text
    assert host_memory() == (limit or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def test_the_memory_of_this_machine_is_found():
    assert (host_memory() or 0) > 2**28
