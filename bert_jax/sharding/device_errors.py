"""Recognises errors of devices, e.g. if a collective has lost a process. Also parses the out-of-memory errors of compilers,
devices and numpy, and raises an error with the figures and remedies."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence

import jax
from jax.sharding import Mesh

from bert_jax.errors import UserError

_STATUS = re.compile(r"(ABORTED|CANCELLED|DATA_LOSS|DEADLINE_EXCEEDED|FAILED_PRECONDITION|INTERNAL|UNAVAILABLE|UNKNOWN): ")
_SIZE = r"(\d[\d.]*) ?([KMGTPE]?)(?:i?B| bytes)?"
_TOTALS = (
    re.compile(rf"Used {_SIZE} of {_SIZE} (\w+)"),
    re.compile(rf"\({_SIZE}\) exceeds available (?:\w+) \({_SIZE}\)()"),
)
"""Messages of the TPU compiler. They name the memory that a program needs, and the memory that a device has."""
_REQUESTS = (
    re.compile(rf"Attempting to reserve {_SIZE} .{{0,200}} {_SIZE} reservable()"),
    re.compile(rf"Attempting to allocate {_SIZE}\. .{{0,200}} There are {_SIZE} free()"),
)
"""Messages of a TPU at run time. They name the requested memory and the free memory."""
_REQUEST = re.compile(rf"allocat(?:e|ing)(?: request for)? {_SIZE}")
"""Messages of GPUs, CPUs and numpy. They name the requested memory."""
_UNITS = {unit: 2 ** (10 * power) for power, unit in enumerate(("", "K", "M", "G", "T", "P", "E"))}
_SHORTAGE = ("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY")


def is_device_error(error: BaseException | None) -> bool:
    """Returns whether `error` came from a program on the devices.

    Usually, the error is a JaxRuntimeError. If it comes from the fast path of jit, it is a ValueError whose message starts with
    the name of XLA's status.

    >>> is_device_error(ValueError("UNKNOWN: Gloo AllGather failed: Connection closed by peer"))
    True
    >>> is_device_error(ValueError("the shapes differ"))
    False
    """
    return isinstance(error, jax.errors.JaxRuntimeError) or (isinstance(error, ValueError) and bool(_STATUS.match(str(error))))


class DoesNotFit(Exception):
    """A program does not fit in the memory of a device or of the host.

    `space` is the memory that is too small, e.g. "hbm". The program needs `needs` bytes of it, and there are `has` bytes. A
    count is 0 if it is unknown. If `at_once` is set, the program was already running. It then requested `needs` more bytes
    while `has` bytes were free."""

    def __init__(self, needs: float, has: float, space: str, at_once: bool = False):
        name = space if "memory" in space else space.upper()
        there = f"{_format_bytes(has)} are free" if at_once else f"there are {_format_bytes(has)}"
        asks = f"{'asks for' if at_once else 'needs'} {_format_bytes(needs)} of {name}{' at once' if at_once else ''}"
        super().__init__(
            f"needs more {name} than there is" if not needs else f"{asks}, but {there}" if has else f"{asks}, which is not free"
        )
        self.needs, self.has, self.space = needs, has, space

    @classmethod
    def from_message(cls, message: str) -> DoesNotFit:
        """Parses an error message of a compiler, a device or numpy. The bytes are 0 if the message has no figures."""
        for forms in (_TOTALS, _REQUESTS):
            if found := next((match for form in forms if (match := form.search(message))), None):
                needs, has = (float(found[n]) * _UNITS[found[n + 1]] for n in (1, 3))
                return cls(needs, has, found[5] or "hbm", at_once=forms is _REQUESTS)
        space = next((space for space in ("vmem", "hbm") if space in message.lower()), "memory")
        if found := _REQUEST.search(message):
            return cls(float(found[1]) * _UNITS[found[2]], 0.0, space, at_once=True)
        return cls(0.0, 0.0, space)


def _format_bytes(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.2f} MiB"


class OutOfMemory(UserError, jax.errors.JaxRuntimeError):
    """Memory ran out; the message names remedies. The class is also a JaxRuntimeError, so that this process ends immediately: in
    a run with several processes, the other processes are waiting for it."""


@dataclasses.dataclass(frozen=True)
class MemoryAdvice:
    """The contents of the error message if a part of a run (`what`) does not fit in memory."""

    what: str
    batch: str = ""
    """The number and the length of the rows, as text."""
    remedies: Sequence[str] = ()
    """Flags that reduce the memory. The flag with the fewest side effects comes first."""
    notes: str = ""
    """Further lines of the message."""

    def message(self, shortage: DoesNotFit) -> str:
        """Returns the error message, with figures, remedies and advice."""
        lines = [f"{self.what} does not fit in memory: it {shortage}{self.batch and f', with {self.batch}'}."]
        if self.remedies:
            lines += ["Each of these flags takes less memory:", *(f"    {remedy}" for remedy in self.remedies)]
        owner = "a machine" if shortage.space == "host memory" else "devices"
        end = "Or end" if self.remedies else "End"
        lines.append(f"{end} other programs that use this memory, or use {owner} with more memory.")
        if jax.default_backend() == "gpu" and owner == "devices":
            lines.append("XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 in the environment lets JAX use 95 % of a GPU instead of 75 %.")
        return "\n".join([*lines, *([self.notes] if self.notes else [])])


@contextlib.contextmanager
def fits_in_memory(advice: Callable[[], MemoryAdvice]) -> Iterator[None]:
    """Raises OutOfMemory if the memory of a device or of the host runs out inside the `with` block."""
    try:
        yield
    except OutOfMemory:  # an inner block has raised this error, and its advice is more specific
        raise
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if shortage := memory_shortage(error):
            raise OutOfMemory(advice().message(shortage)) from error
        raise


def require_memory(needs: float, mesh: Mesh, advice: Callable[[], MemoryAdvice]) -> None:
    """Raises OutOfMemory if a device of `mesh` has less than `needs` bytes of memory. `needs` is a lower bound on the memory of
    a step on each device.

    Without this check, a program that is far too large may compile for minutes, or fill the memory of the host, before a device
    rejects the program."""
    devices = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    limits = [limit for device in devices if (limit := (device.memory_stats() or {}).get("bytes_limit"))]
    if len(limits) == len(devices):
        has, space = min(limits), "hbm"
    elif (memory := host_memory()) is not None and all(device.platform == "cpu" for device in devices):
        needs, has, space = needs * len(devices), memory, "host memory"
    else:
        return
    if needs > has:
        raise OutOfMemory(advice().message(DoesNotFit(needs, has, space)))


def host_memory() -> int | None:
    """Returns the memory (bytes) of this machine, or the limit of the container that this process runs in if it is lower.
    Returns None if the memory is unknown."""
    try:
        sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, OSError, ValueError):
        return None
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # the file holds "max" if there is no limit
            sizes.append(int(pathlib.Path(file).read_text()))
    return min(sizes)


def memory_shortage(error: BaseException) -> DoesNotFit | None:
    """Returns the shortage of memory that `error` reports, or None if the error has another cause. Also returns None if vmem is
    too small, because this is a bug in a kernel of bert_jax."""
    shortage = DoesNotFit.from_message(str(error))
    if isinstance(error, MemoryError):
        return DoesNotFit(shortage.needs, 0.0, "host memory", at_once=True)
    is_device = isinstance(error, jax.errors.JaxRuntimeError) and any(name in str(error) for name in _SHORTAGE)
    return shortage if is_device and shortage.space != "vmem" else None
