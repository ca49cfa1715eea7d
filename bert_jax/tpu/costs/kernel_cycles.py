"""Estimates the cycles of Pallas kernels from their schedules, because the compiler has no cycle estimate for a custom call.

If the compiler writes schedules, the compilation of a program takes twice as long. Instead, a separate process
(`kernel_compiler.py`) compiles the kernels alone a second time, and the results are cached on disk.

A bundle is a group of instructions that the core issues together, in about one cycle. The schedule has one line per bundle. A
line has one `>` for each loop that encloses the bundle, and the exit test of each loop is shown. A bundle is executed as often
as the product of the trip counts of its enclosing loops. The number of cycles is the sum of these products over all bundles.
Regions under a condition (`pl.when`) count as if they were always executed. The schedule does not include the time of waiting
for memory. So the estimate of a kernel is at least the time of its transfers between HBM and the chip."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from bert_jax.files import Json, JsonObject, parse_json, read_record, write_json
from bert_jax.storage.paths import cache_directory
from bert_jax.tpu.costs.hlo import Instruction, Module
from bert_jax.tpu.costs.topologies import Topology

_BUNDLE = re.compile(r"\s*(?:0x)?[0-9a-f]+\s+(LB|LH|LE|PB|PF|CT)?:\s?(>*) \{")
_BRANCH = re.compile(r"sbr\.rel \(!%(p\w+)\) target")
_EXIT = re.compile(r"%(p\w+) = scmp\.ge\.s32\.totalorder (?:\(%p\w+\), )?%(s\w+), (\d+|%s\w+)")
_EMPTY = re.compile(r":  \{\}")
_GRID = "/* iteration index, stage = "
_ADVANCE = re.compile(r"%(s\w+) = sadd\.s32 (\d+), ")

READER = 2
"""The version of `read_schedule`. Cached results of other versions are not used."""
KERNEL = "tpu_custom_call"
"""The custom call target of Pallas kernels."""
PIPELINE_STAGES = 2
"""The loop over the grid of a kernel has this many additional trips, which fill and drain the pipeline of copies."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The schedule of a compiled kernel."""

    bundles: int
    """The number of bundles in the text of the schedule."""
    cycles: int
    """The cycles of one call. Each bundle counts as often as it is executed."""
    trips: tuple[int, ...]
    """The trip count of each loop, in the order of the text. If the kernel has a grid, the first loop is the loop over the
    grid."""
    unread_loops: int
    """The number of loops whose trip count could not be read. These loops count as one trip."""


@dataclasses.dataclass
class _Loop:
    """A loop, or a predicated region. A predicated region counts as a loop with one trip."""

    has_body: bool = False
    """Whether the text starts like the body of a loop, not like a predicated region."""
    bundles: int = 0
    over_grid: bool = False
    exit: tuple[str, str] | None = None
    """(counter, limit) in the exit test of the loop. None until the test has been read."""
    inner: list[_Loop] = dataclasses.field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether the branch back to the start of the loop has not been read yet. The scheduler moves some of the code after
        the loop into the last bundles of the loop. These bundles have a lower depth but come before the branch, so every trip
        issues them."""
        return self.has_body and self.exit is None

    def trips(self, steps: Mapping[str, int]) -> int | None:
        """Returns the trip count, or None if it cannot be read. `steps` is the increment of each counter."""
        if self.exit is None or not self.exit[1].isdigit():
            return None
        counter, limit = self.exit[0], int(self.exit[1])
        return max(1, -(-limit // steps.get(counter, 1)) - (PIPELINE_STAGES if self.over_grid else 0))

    def whole(self) -> int:
        """Returns the number of bundles in the loop, including inner loops."""
        return self.bundles + sum(loop.whole() for loop in self.inner)

    def cycles(self, trips: int, steps: Mapping[str, int]) -> int:
        """Returns the cycles of `trips` trips."""
        return trips * (self.bundles + sum(loop.cycles(loop.trips(steps) or 1, steps) for loop in self.inner))


def read_schedule(text: str) -> Schedule:
    """Parses the text of a `final_bundles` file. Raises ValueError if the text has no bundles."""
    whole = _Loop()
    stack, all_loops = [whole], list[_Loop]()
    steps: dict[str, int] = {}
    tests: dict[str, tuple[str, str]] = {}  # of all loops, because an inner loop may have the step of an outer loop's counter
    for line in text.splitlines():
        match = _BUNDLE.match(line)
        steps |= {name: int(step) for name, step in _ADVANCE.findall(line)}
        tests |= {name: (counter, limit) for name, counter, limit in _EXIT.findall(line)}
        back = [tests[branch[1]] for branch in _BRANCH.finditer(line) if branch[1] in tests]
        if match:
            # Empty bundles have no `>`. They are the delay slots of a branch, and belong to the loop of the line before them. A
            # branch back to the start of a loop may have no `>` either. Its delay slots follow it.
            depth = len(match[2]) if match[2] or not (_EMPTY.search(line) or back) else len(stack) - 1
            while (len(stack) > depth + 1 and not stack[-1].is_open) or (match[1] == "LB" and len(stack) > depth and depth):
                stack.pop()
            while len(stack) < depth + 1:
                loop = _Loop(has_body=match[1] == "LB")
                stack[-1].inner.append(loop)
                all_loops.append(loop)
                stack.append(loop)
            stack[-1].bundles += 1
        stack[-1].over_grid = stack[-1].over_grid or _GRID in line
        for test in back:
            for loop in reversed(stack):
                if loop.is_open:
                    loop.exit = test
                    break
    total = whole.whole()
    if not total:
        raise ValueError("no bundles: this is not the text of a schedule")
    trips = [loop.trips(steps) for loop in all_loops]
    return Schedule(total, whole.cycles(1, steps), tuple(count or 1 for count in trips), sum(count is None for count in trips))


def kernel_calls(module: Module) -> dict[str, JsonObject]:
    """Returns kernel body -> the arguments that `kernel_compiler` needs, for the different kernels of a program."""
    calls: dict[str, JsonObject] = {}
    for computation in module.computations.values():
        for i in computation.instructions:
            if i.target == KERNEL and i.kernel_body not in calls:
                operands = [a for name in i.operands for a in computation.by_name[name].arrays]
                calls[i.kernel_body] = {
                    "config": json.dumps(_config(i)),
                    "operands": [(a.dtype, a.shape) for a in operands],
                    "results": [(a.dtype, a.shape) for a in i.arrays],
                }
    return calls


def _config(call: Instruction) -> JsonObject:
    """Returns two parts of the configuration of a custom call: the part for Mosaic, the compiler of kernels, and the limit on
    vector memory."""
    found: JsonObject = {}
    for name in ("custom_call_config", "scoped_memory_configs"):
        if (start := call.text.find(f'"{name}":')) >= 0:
            found[name] = json.JSONDecoder().raw_decode(call.text, start + len(f'"{name}":'))[0]
    found["custom_call_config"] = {name: _number(value) for name, value in found["custom_call_config"].items() if value != []}
    scoped = [{name: _number(value) for name, value in one.items()} for one in found.pop("scoped_memory_configs", [])]
    return found | ({"scoped_memory_configs": scoped} if scoped else {})


def _number(value: Json) -> Json:
    return int(value) if isinstance(value, str) and value.isdigit() else value


def kernel_schedules(
    module: Module, topology: Topology, version: str, cache: pathlib.Path | None = None
) -> Mapping[str, Schedule]:
    """Returns kernel body -> schedule, for the kernels of a program. Kernels that cannot be compiled alone are left out.
    Schedules are cached in the directory `cache`, separately for each compiler `version`, `READER` and chip."""
    cache = cache or cache_directory() / "kernels"
    found: dict[str, Schedule] = {}
    missing: dict[str, tuple[pathlib.Path, JsonObject]] = {}
    for body, call in kernel_calls(module).items():
        key = hashlib.sha256(repr((version, READER, topology.chip.name, call)).encode()).hexdigest()
        kept = cache / f"{key}.json"
        if fields := read_record(kept):
            found[body] = Schedule(**fields | {"trips": tuple(fields["trips"])})
        else:
            missing[body] = (kept, call)
    if missing:
        compiled = _compile([call for _, call in missing.values()], topology)
        for (body, (kept, _)), schedule in zip(missing.items(), compiled, strict=True):
            if schedule is not None:
                found[body] = schedule
                cache.mkdir(parents=True, exist_ok=True)
                write_json(kept, dataclasses.asdict(schedule))
    return found


def _compile(calls: Sequence[JsonObject], topology: Topology) -> list[Schedule | None]:
    """Compiles each kernel alone, in a separate process. Returns None for kernels that could not be compiled."""
    one = f"{topology.chip.name}:{'x'.join(map(str, (2, 2, 1)[: topology.chip.dimensions]))}"
    command = [sys.executable, "-m", "bert_jax.tpu.costs.kernel_compiler", one]
    root = os.fspath(pathlib.Path(__file__).resolve().parents[3])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, input=json.dumps(calls), capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        return [None] * len(calls)
    texts = parse_json(done.stdout.splitlines()[-1])
    return [read_schedule(text) if text else None for text in texts]
