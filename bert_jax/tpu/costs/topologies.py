"""Parses names of TPU slices, such as `v5e:4x4` or `2xv5p:4x4x4`. Returns their chips, their network, and devices for the
compiler."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.metadata
import importlib.util
import itertools
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bert_jax.errors import UserError
from bert_jax.hardware import CHIPS, Chip
from bert_jax.interface.words import counted

if TYPE_CHECKING:  # `run.sh` checks the name of a topology before jax is installed
    import jax

FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
"""The available slices of v5e and v6e."""
LARGEST = {"v4": (4, 4, 4), "v5p": (4, 5, 7), "v7x": (4, 6, 6)}
"""The sides of the pod of each generation, in cubes of 4 x 4 x 4 chips. The shortest side is first."""
LISTED = 9
"""An error message lists this many of the smallest slices, and the largest slice."""
SPELT = {
    "tpu7x": "v7x", "7x": "v7x", "v7": "v7x", "ironwood": "v7x", "trillium": "v6e", "v5litepod": "v5e", "v5": "v5p", "v6": "v6e",
}  # fmt: skip
NEAR = 0.75
"""A name counts as a misspelling of another name if the `difflib` ratio of the names is at least this. The ratio of `v3` and
`v7` is 0.5. The ratio of `v6p` and `v6` is 0.8."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """One or more slices of the same shape."""

    chip: Chip
    shape: tuple[int, ...]
    """The number of chips along each dimension of a slice."""
    slices: int = 1

    @property
    def slice_chips(self) -> int:
        """The number of chips in one slice."""
        return math.prod(self.shape)

    @property
    def chips(self) -> int:
        """The number of chips in all slices."""
        return self.slice_chips * self.slices

    @property
    def devices(self) -> int:
        """The number of JAX devices in all slices."""
        return self.chips * self.chip.devices

    @property
    def device_memory(self) -> int:
        """The bytes of HBM of one device."""
        return self.chip.memory_bytes // self.chip.devices

    @property
    def name(self) -> str:
        """The name of the topology, in the notation of --topology."""
        several = f"{self.slices}x" if self.slices > 1 else ""
        return f"{several}{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def rings(self) -> tuple[bool, ...]:
        """Whether each dimension is a ring. A three-dimensional slice has no rings unless it is built from cubes of 4 x 4 x 4
        chips."""
        closed = tuple(size % self.chip.whole_ring == 0 for size in self.shape)
        return closed if self.chip.dimensions == 2 or all(closed) else (False,) * len(closed)


def parse_topology(text: str, slices: int | None = None) -> Topology:
    """Parses `[Nx]GENERATION:AxB[xC]`. `slices` may replace the prefix `Nx`. If there is no such slice, raises UserError with
    the nearest slice and the available slices."""
    match = re.fullmatch(r"(?:([0-9]{1,6})x)?([a-z0-9]+):([0-9]{1,6}(?:x[0-9]{1,6})*)", text.strip().lower())
    if not match:
        count = re.fullmatch(r"(?:[0-9]+x)?([a-z0-9]+)-([0-9]{1,9})", text.strip().lower())
        if count and (name := _chip_name(count[1])):
            chips = int(count[2]) // (2 if name in ("v4", "v5p") else 1)  # names of v4 and v5p have the number of cores
            raise UserError(f"--topology={text} has a number where a shape is needed; {_nearest(name, chips)}")
        forms = "v5e:4x4 or v5p:4x4x4, or 4xv5e:16x16 for four slices"
        raise UserError(f"--topology={text} is not written as GENERATION:SHAPE, such as {forms}; {_existing()}")
    generation, shape = match[2], tuple(int(n) for n in match[3].split("x"))
    several = int(match[1] or (1 if slices is None else slices))
    if slices is not None and several != slices:
        raise UserError(f"--topology={text} says {counted(int(match[1]), 'slice')}, but --slices={slices}; give only one of them")
    if several < 1:
        flag = f"--topology={text}" if match[1] else f"--slices={slices}"
        raise UserError(f"{flag} is {counted(several, 'slice')}; give at least 1")
    name = _chip_name(generation)
    if not name:
        close = difflib.get_close_matches(generation, [*CHIPS, *SPELT], cutoff=NEAR)
        hint = f"did you mean {SPELT.get(close[0], close[0])!r}? " if close else ""
        raise UserError(f"--topology={text}: there is no TPU {generation!r}; {hint}{_existing()}")
    chip = CHIPS[name]
    if chip.dimensions == 3 and len(shape) == 2:
        shape = (*shape, 1)
    if not _possible(chip, shape):
        raise UserError(f"--topology={text}: {name} has no slice {match[3]}; {_nearest(name, math.prod(shape))}")
    return Topology(chip, shape, several)


def check_topology(arguments: Sequence[str]) -> int:
    """Checks --topology and --slices in the arguments of `aot`. Returns the exit status 0. If there is no such topology, prints
    the error and returns 2. `tpu_scripts/run.sh` calls this function before it installs the compiler."""
    given: dict[str, str] = {}
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        for flag in ("--topology", "--slices"):
            if argument == flag or argument.startswith(f"{flag}="):
                given[flag] = following if argument == flag else argument.partition("=")[2]
    slices = given.get("--slices", "")
    try:
        if "--topology" in given and (not slices or re.fullmatch("[0-9]{1,6}", slices)):
            parse_topology(given["--topology"], int(slices) if slices else None)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _chip_name(generation: str) -> str:
    name = SPELT.get(generation, generation)
    return name if name in CHIPS else ""


def _possible(chip: Chip, shape: tuple[int, ...]) -> bool:
    if chip.dimensions == 2:
        return shape in FLAT or shape[::-1] in FLAT
    return len(shape) == 3 and sorted(shape) in [sorted(known) for known in known_shapes(chip)]


def known_shapes(chip: Chip) -> list[tuple[int, ...]]:
    """Returns all slices of a generation, smallest first. FLAT lists the two-dimensional slices. The small three-dimensional
    slices are 1x1x1, 2x2x1, 2x2x2, 2x2x4 and 2x4x4. Larger slices are boxes built from cubes of 4 x 4 x 4 chips, up to the
    pod."""
    if chip.dimensions == 2:
        return list(FLAT)
    boxes = itertools.product(*(range(1, most + 1) for most in LARGEST[chip.name]))
    larger = [tuple(4 * side for side in box) for box in boxes if list(box) == sorted(box)]
    return sorted([(1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), *larger], key=math.prod)


def _nearest(name: str, chips: int) -> str:
    """Returns the part of an error message that has the slice with the number of chips nearest to `chips`, and a list of known
    slices."""
    chip = CHIPS[name]
    known = known_shapes(chip)
    best = min(known, key=lambda shape: abs(math.log(math.prod(shape) / chips)) if chips else math.prod(shape))
    listed = ", ".join("x".join(map(str, shape)) for shape in known[:LISTED])
    more = f" ... {'x'.join(map(str, known[-1]))}" if known[LISTED:] else ""
    return f"nearest: {name}:{'x'.join(map(str, best))} ({counted(math.prod(best), 'chip')}); {name} has {listed}{more}"


def _existing() -> str:
    shapes = [f"{chip.name}:{'x'.join(map(str, known_shapes(chip)[3]))}" for chip in CHIPS.values()]
    return f"there are {', '.join(CHIPS)}, for example {', '.join(shapes)}"


# ------------------------------------------------------------------------------------------------------------------ the compiler
def require_compiler() -> str:
    """Returns the version of the TPU compiler. Raises UserError if the compiler is not installed, or if this JAX needs a
    different version."""
    import jax

    remedy = f"`tpu_scripts/run.sh aot` installs it; in an environment of your own: pip install 'jax[tpu]=={jax.__version__}'"
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"the TPU compiler (the package libtpu) is not installed; it runs on any CPU: {remedy}")
    version = importlib.metadata.version("libtpu")
    for line in importlib.metadata.requires("jax") or []:
        wanted = re.match(r"libtpu\s*==\s*([\d.]+?)(?:\.\*)?\s*;", line)
        if wanted and not f"{version}.".startswith(f"{wanted[1]}."):
            raise UserError(f"libtpu has version {version}, but jax {jax.__version__} needs {wanted[1]}.*; {remedy}")
    return version


def prepare_compiler(dumps: str = "") -> None:
    """Sets the environment variables that the TPU compiler reads when it is loaded. The compiler then expects no TPU on this
    machine, queries no metadata server, and may be loaded by several processes. If `dumps` names a directory, the compiler
    writes schedules to it, which doubles the compilation time."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    if dumps:
        flags = f"--xla_jf_dump_to={dumps} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=.*final_bundles"
        os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {flags}".strip()
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }.items():
        os.environ.setdefault(name, value)


def topology_devices(topology: Topology) -> list[jax.Device]:
    """Returns the devices of the topology, for a mesh. Raises UserError if the compiler does not know the topology."""
    import jax
    from jax.experimental import topologies

    chip = topology.chip
    options: dict[str, Any] = {"num_slices": topology.slices} if topology.slices > 1 else {}
    if topology.slice_chips == 1:
        options["chips_per_host_bounds"] = [1, 1, 1]
    if chip.config:
        options["chip_config_name"] = chip.config
    name = f"{chip.library_name}:{'x'.join(map(str, topology.shape))}"
    try:
        with silence():
            return list(topologies.get_topology_desc(name, "tpu", **options).devices)
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"the TPU compiler (libtpu {importlib.metadata.version('libtpu')}) refuses the topology {topology.name}: "
            f"{str(error).splitlines()[0]}; {_nearest(chip.name, topology.slice_chips)}"
        ) from error


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discards all output of C++ libraries to stderr inside the context."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
