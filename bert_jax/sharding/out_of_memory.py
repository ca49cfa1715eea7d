"""Memory that ran out: what compilers, devices and numpy say of it as figures, and as an error that says what to do."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence

import jax

from bert_jax.errors import UserError

_SIZE = r"(\d[\d.]*) ?([KMGTPE]?)(?:i?B| bytes)?"
_TOTALS = (
    re.compile(rf"Used {_SIZE} of {_SIZE} (\w+)"),
    re.compile(rf"\({_SIZE}\) exceeds available (?:\w+) \({_SIZE}\)()"),
)
"""A TPU's compiler: what a program takes, and what a device has."""
_REQUESTS = (
    re.compile(rf"Attempting to reserve {_SIZE} .* {_SIZE} reservable()"),
    re.compile(rf"Attempting to allocate {_SIZE}\. .* There are {_SIZE} free()"),
)
"""A TPU that runs: what was asked for, and what was free."""
_REQUEST = re.compile(rf"allocat(?:e|ing)(?: request for)? {_SIZE}")
"""GPUs, CPUs and numpy: what was asked for."""
_UNITS = {unit: 2 ** (10 * power) for power, unit in enumerate(("", "K", "M", "G", "T", "P", "E"))}
_SHORTAGE = ("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY")


class DoesNotFit(Exception):
    """A program does not run in a device's memory: `needs` and `has` in bytes per device (0 where nobody says), `space` what ran
    out. `at_once`: it runs, and asked for `needs` more where `has` was free."""

    def __init__(self, needs: float, has: float, space: str, at_once: bool = False):
        name = space if "memory" in space else space.upper()
        there = f"{_shown(has)} are free" if at_once else f"there are {_shown(has)}"
        asks = f"{'asks for' if at_once else 'needs'} {_shown(needs)} of {name}{' at once' if at_once else ''}"
        super().__init__(
            f"needs more {name} than there is" if not needs else f"{asks}, and {there}" if has else f"{asks}, which is not free"
        )
        self.needs, self.has, self.space = needs, has, space

    @classmethod
    def from_message(cls, message: str) -> DoesNotFit:
        """From what is said in each of the ways."""
        for forms in (_TOTALS, _REQUESTS):
            if found := next((match for form in forms if (match := form.search(message))), None):
                needs, has = (float(found[n]) * _UNITS[found[n + 1]] for n in (1, 3))
                return cls(needs, has, found[5] or "hbm", at_once=forms is _REQUESTS)
        space = next((space for space in ("vmem", "hbm") if space in message.lower()), "memory")
        if found := _REQUEST.search(message):
            return cls(float(found[1]) * _UNITS[found[2]], 0.0, space, at_once=True)
        return cls(0.0, 0.0, space)


def _shown(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.2f} MiB"


class OutOfMemory(UserError, jax.errors.JaxRuntimeError):
    """What a person can do about memory that ran out. Still an error of a device: of several processes, the others wait for this
    one."""


@dataclasses.dataclass(frozen=True)
class Demand:
    """What takes the memory, as the person is told of it."""

    what: str
    batch: str = ""
    """How many rows of which length."""
    remedies: Sequence[str] = ()
    """Flags that make it smaller, mildest first."""
    advice: str = ""
    """What else is to be said."""

    def sentence(self, shortage: DoesNotFit) -> str:
        """The error for the person."""
        lines = [f"{self.what} does not fit in memory: it {shortage}{self.batch and f', with {self.batch}'}."]
        if self.remedies:
            lines += ["Each of these takes less:", *(f"    {remedy}" for remedy in self.remedies)]
        owner = "a machine" if shortage.space == "host memory" else "devices"
        lines.append(f"{'Or end' if self.remedies else 'End'} other programs that use this memory, or take {owner} with more.")
        if jax.default_backend() == "gpu" and owner == "devices":
            lines.append("XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 in the environment gives JAX more of a GPU than three quarters.")
        return "\n".join([*lines, *([self.advice] if self.advice else [])])


@contextlib.contextmanager
def fits_in_memory(demand: Callable[[], Demand]) -> Iterator[None]:
    """Around what may ask for too much: raises OutOfMemory where the memory of a device or of the host runs out."""
    try:
        yield
    except OutOfMemory:  # explained already, by somebody who knows more
        raise
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if shortage := shortage_of(error):
            raise OutOfMemory(demand().sentence(shortage)) from error
        raise


def shortage_of(error: BaseException) -> DoesNotFit | None:
    """What memory an error says is short; None where it is about something else, as a fault of a kernel of ours is (vmem)."""
    said = DoesNotFit.from_message(str(error))
    if isinstance(error, MemoryError):
        return DoesNotFit(said.needs, 0.0, "host memory", at_once=True)
    is_device = isinstance(error, jax.errors.JaxRuntimeError) and any(name in str(error) for name in _SHORTAGE)
    return said if is_device and said.space != "vmem" else None
