"""Estimates the time of one execution of a compiled program on one chip. The estimate is made from the text of the compiled
module.

The program runs its instructions in the order of the text. There are five kinds of time:

    compute       the compiler's `estimated_cycles` of an instruction, at the clock of the chip
    kernel        the schedule of a Pallas kernel (`kernel_cycles.py`), or the transfers of its arrays if these take longer
    collective    the network model (`collectives.py`)
    memory        instructions without a cycle estimate (gathers, reshapes): their bytes divided by the bandwidth of HBM
    copy          asynchronous copies between HBM and the chip's fast memory

The time of a loop is the time of its body multiplied by its trip count. Asynchronous operations (collectives and copies)
overlap with the instructions after them, so they only count for the time that the program waits for them. The network runs one
operation at a time, and so does the copy engine. The model does not include the slowdown of compute by overlapping copies and
collectives, the launch time of instructions, the host, the input, and stragglers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import jax

from bert_jax.tpu.costs.collectives import KINDS, Transfer, between_slices, transfer
from bert_jax.tpu.costs.hlo import UNNAMED, Computation, Instruction, Module, place, trips
from bert_jax.tpu.costs.kernel_cycles import Schedule
from bert_jax.tpu.costs.topologies import Topology

FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "partition-id", "replica-id", "after-all", "opt-barrier",
    "add-dependency", "copy-done", "slice-done",
}  # fmt: skip
FREE_TARGETS = (
    "AllocateBuffer", "ConcatBitcast", "Sharding", "AsyncCollectiveDone", "AssumeGatherIndicesInBound", "PrepareAsyncCallStart",
    "PrepareAsyncCallDone",
)  # fmt: skip
CARRYING = ("fusion", "async-start", "call-start")
"""Opcodes whose called computation may contain a collective. On v7x, the sparse cores run the collective (`call-start`)."""
SCALARS = 1 << 12
"""An instruction without a cycle estimate counts as free if it moves fewer bytes than this, e.g. a counter or a sum."""
PASSING = ("get-tuple-element", "fusion", "bitcast", "tuple", "async-update")
"""Opcodes that pass on the state of an asynchronous operation."""
CONTINUING = "async_collective_fusion"
"""The prefix of the names of fused computations that continue a collective during other work."""
STARTS = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")


@dataclasses.dataclass(frozen=True)
class Operation:
    """All executions of one instruction of the program."""

    name: str
    place: str
    kind: str
    seconds: float
    """The exposed seconds (not overlapped with compute) of all executions."""
    count: int


@dataclasses.dataclass
class Timeline:
    """The times and sums of one pass over a computation."""

    now: float = 0.0
    network_free: float = 0.0
    copies_free: float = 0.0
    slices_free: float = 0.0
    finish: dict[str, float] = dataclasses.field(default_factory=dict)
    operations: list[Operation] = dataclasses.field(default_factory=list)
    transfers: list[tuple[Transfer, int]] = dataclasses.field(default_factory=list)
    bytes: float = 0.0
    """The bytes moved between HBM and the chip."""
    unread_loops: int = 0
    unknown_kernels: int = 0


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The estimate for one execution of a program on each chip."""

    seconds: float
    by_kind: Mapping[str, float]
    """The exposed seconds of each kind of time: compute, kernel, collective, memory, copy."""
    operations: Sequence[Operation]
    """The operations, costliest first."""
    collectives: Mapping[str, Mapping[str, float]]
    """For each kind of collective: count, payload, sent, sent_between_slices (bytes per device), seconds (including hidden
    seconds)."""
    bytes: float
    unread_loops: int
    unknown_kernels: int
    uncounted_collectives: int
    """The number of collectives in the text of the program that the estimator did not reach. The estimate does not include
    their time and bytes."""


class Estimator:
    """Walks through a module in the order of execution and adds up the time."""

    def __init__(self, module: Module, kernels: Mapping[str, Schedule], topology: Topology, devices: Sequence[jax.Device]):
        self._module, self._kernels, self._topology, self._devices = module, kernels, topology, devices
        chip = topology.chip
        self._clock, self._bandwidth = chip.clock, chip.bandwidth / chip.devices
        self._counted: set[str] = set()

    def estimate(self) -> Estimate:
        """Returns the estimate for the whole program."""
        line = self._run(self._module.entry, 1)
        totals: dict[str, float] = {}
        for operation in line.operations:
            totals[operation.kind] = totals.get(operation.kind, 0.0) + operation.seconds
        moved: dict[str, dict[str, float]] = {}
        for one, count in line.transfers:
            sums = moved.setdefault(one.kind, dict.fromkeys(("count", "payload", "sent", "sent_between_slices", "seconds"), 0.0))
            for name in sums:
                sums[name] += count * (1 if name == "count" else getattr(one, name))
        operations = sorted(line.operations, key=lambda o: -o.seconds)
        uncounted = len(self._held() - self._counted)
        return Estimate(line.now, totals, operations, moved, line.bytes, line.unread_loops, line.unknown_kernels, uncounted)

    def _held(self) -> set[str]:
        """Returns the names of the collectives of the program. If several fusions have copies of one collective, only the copy
        in the fusion that starts the collective is included."""
        started = (c for name, c in self._module.computations.items() if not name.startswith(CONTINUING))
        first = [c for c in started if all(i.target != "AsyncCollectiveDone" for i in c.instructions)]
        return {i.name for computation in first for i in computation.instructions if _kind(i.opcode)}

    def _run(self, computation: Computation, times: int) -> Timeline:
        """Adds up one pass over `computation`. `times` is the number of passes, by which sums over all executions are
        multiplied."""
        line = Timeline()
        for instruction in computation.instructions:
            before = line.now
            kind = self._step(computation, instruction, line, times)
            if kind:
                spent = (line.now - before) * times
                where = self._place(computation, instruction, kind)
                line.operations.append(Operation(instruction.name, where, kind, spent, times))
        return line

    def _place(self, computation: Computation, i: Instruction, kind: str) -> str:
        """Returns the part of the model that an instruction comes from. It is found from the name of the instruction, of the
        instructions fused into it, or of its operands. The compiler splits a collective over several slices into parts without
        names. Each part gets the name of the instruction that uses it."""
        inside = (inner.op_name for called in self._module.called(i) for inner in reversed(called.instructions))
        read = (computation.by_name[name].op_name for name in i.operands if name in computation.by_name)
        used = (user.op_name for user in computation.users(i)) if kind == "collective" and self._topology.slices > 1 else ()
        names = itertools.chain((i.op_name,), inside, read, used)
        return next((found for name in names if name and (found := place(name)) != UNNAMED), UNNAMED)

    def _step(self, computation: Computation, i: Instruction, line: Timeline, times: int) -> str:
        """Adds the time of one instruction to `line`. Returns the kind of the time, or "" if the instruction takes no time
        itself."""
        if i.opcode == "while":
            self._loop(computation, i, line, times)
            return ""
        if i.opcode in ("conditional", "call"):
            branches = [self._run(called, times) for called in self._module.called(i)]
            if branches:
                self._add(line, max(branches, key=lambda branch: branch.now), 1)
            return ""
        if i.opcode in STARTS:
            moved = _moved(i)
            line.copies_free = max(line.now, line.copies_free) + moved / self._bandwidth
            line.finish[i.name] = line.copies_free
            line.bytes += moved * times
            return ""
        if i.opcode in ("send", "send-done", "recv"):
            self._cross(computation, i, line, times)
            return ""
        if i.opcode.endswith("-done") or self._calls_target(i, "AsyncCollectiveDone"):
            started = self._started(computation, i, line)
            line.now = max(line.now, line.finish.get(started, line.now))
            return "copy" if i.opcode in ("copy-done", "slice-done") else "collective"
        if collective := self._collective(i):
            return self._communicate(computation, i, collective, line, times)
        return self._compute(computation, i, line, times)

    def _cross(self, computation: Computation, i: Instruction, line: Timeline, times: int) -> None:
        """Adds an exchange with other slices to the timeline. A `send` sends the message, and a `recv` receives the result.
        Only the `recv-done` of the same rendezvous waits for the message."""
        rendezvous = f"rendezvous {i.rendezvous or i.name}"
        if i.opcode == "send":
            size = sum(a.bytes for a in computation.by_name[i.operands[0]].arrays)
            one = between_slices(i, size, self._topology)
            line.transfers.append((one, times))
            line.slices_free = max(line.now, line.slices_free) + one.seconds
            line.finish[rendezvous] = line.slices_free
        elif i.opcode == "recv":
            line.finish[i.name] = line.finish.get(rendezvous, line.now)

    def _loop(self, computation: Computation, i: Instruction, line: Timeline, times: int) -> None:
        count = trips(self._module, computation, i)
        body = self._module.computations.get(i.named("body"))
        line.unread_loops += count is None
        if body is not None and count != 0:
            self._add(line, self._run(body, times * (count or 1)), count or 1)

    @staticmethod
    def _add(line: Timeline, inner: Timeline, trips: int) -> None:
        line.now += inner.now * trips
        line.operations += inner.operations
        line.transfers += inner.transfers
        line.bytes += inner.bytes
        line.unread_loops += inner.unread_loops
        line.unknown_kernels += inner.unknown_kernels

    def _calls_target(self, i: Instruction, target: str) -> bool:
        if i.opcode != "fusion":
            return False
        return any(inner.target == target for called in self._module.called(i) for inner in called.instructions)

    def _started(self, computation: Computation, done: Instruction, line: Timeline) -> str:
        """Returns the name of the start instruction that `done` waits for, or "". Searches the operands of `done`. If an
        operand has a PASSING opcode, its operands are searched too."""
        waiting = list(done.operands)
        for name in waiting:
            if name in line.finish:
                return name
            made = computation.by_name.get(name)
            if made is not None and made.opcode in PASSING:
                waiting += [operand for operand in made.operands if operand not in waiting]
        return ""

    def _collective(self, i: Instruction) -> Instruction | None:
        """Returns `i` if it is a collective. Otherwise returns the collective inside of `i`, or None. A collective counts in
        the fusion that starts it, so a fusion that only continues a collective returns None."""
        if _kind(i.opcode):
            return i
        if i.opcode not in CARRYING or any(name.startswith(CONTINUING) for name in i.called):
            return None
        return next((inner for c in self._module.called(i) for inner in c.instructions if _kind(inner.opcode)), None)

    def _communicate(self, computation: Computation, i: Instruction, collective: Instruction, line: Timeline, times: int) -> str:
        kind = _kind(collective.opcode)
        if kind == "all-reduce" and any("reduce-scatter" in name or "reduce_scatter" in name for name in (i.name, *i.called)):
            kind = "reduce-scatter"
        place_of = next((c for c in self._module.called(i) if collective.name in c.by_name), computation)
        size = sum(a.bytes for name in collective.operands if name in place_of.by_name for a in place_of.by_name[name].arrays)
        one = transfer(kind, collective, size, self._topology, self._devices)
        line.transfers.append((one, times))
        self._counted.add(collective.name)
        line.now += (i.cycles or 0) / self._clock
        line.network_free = max(line.now, line.network_free) + one.seconds
        if i.opcode.endswith("-start") or self._calls_target(i, "AsyncCollectiveStart"):
            line.finish[i.name] = line.network_free
            return ""
        line.now = line.network_free
        return "collective"

    def _compute(self, computation: Computation, i: Instruction, line: Timeline, times: int) -> str:
        if i.opcode in FREE or (i.opcode == "custom-call" and i.target in FREE_TARGETS):
            return ""
        size = self.traffic(computation, i)
        line.bytes += size * times
        if i.opcode == "custom-call" and i.target == "tpu_custom_call":
            schedule = self._kernels.get(i.kernel_body)
            line.unknown_kernels += schedule is None
            line.now += max((schedule.cycles if schedule else 0) / self._clock, size / self._bandwidth)
            return "kernel"
        if i.cycles is not None:
            line.now += i.cycles / self._clock
            return "compute"
        if size < SCALARS:
            return ""
        line.now += size / self._bandwidth
        return "memory"

    def traffic(self, computation: Computation, i: Instruction) -> float:
        """Returns the bytes that an instruction moves between HBM and the chip. These are its result, and the part of each
        operand that it reads."""
        written = float(sum(a.bytes for a in i.arrays if not a.fast))
        inner = next(self._module.called(i), None) if i.opcode == "fusion" else None
        parameters = {p.literal: p for p in inner.instructions if p.opcode == "parameter"} if inner else {}
        read = 0.0
        for position, name in enumerate(i.operands):
            made = computation.by_name.get(name)
            if made is None or made.opcode == "constant":
                continue
            whole = float(sum(a.bytes for a in made.arrays if not a.fast))
            if inner is None:
                read += whole
                continue
            parameter = parameters.get(str(position))
            part, replaced = _part(inner, parameter, whole) if parameter else (whole, 0.0)
            read += part
            written = max(0.0, written - replaced)
        return read + written


def _part(inner: Computation, parameter: Instruction, whole: float) -> tuple[float, float]:
    """Returns two numbers for an operand of a fusion: the bytes of the operand that are read, and the bytes of the fusion's
    result that are not written. `whole` is the size of the operand in bytes. A slice or a gather reads as many bytes as its
    result has. An update in place only writes the updated part."""
    read, replaced = 0.0, 0.0
    names = {parameter.name}
    for i in inner.instructions:
        if i.opcode == "bitcast" and set(i.operands) & names:
            names.add(i.name)
    for i in inner.instructions:
        if i.opcode == "bitcast" or not set(i.operands) & names:
            continue
        if i.opcode in ("slice", "dynamic-slice", "gather"):
            read += sum(a.bytes for a in i.arrays)
        elif i.opcode == "dynamic-update-slice" and i.operands[0] in names:
            update = inner.by_name[i.operands[1]]
            replaced = max(0.0, whole - sum(a.bytes for a in update.arrays))
        else:
            return whole, 0.0
    return min(read, whole), replaced


def _kind(opcode: str) -> str:
    kind = opcode.removesuffix("-start")
    return kind if kind in KINDS else ""


def _moved(start: Instruction) -> float:
    """Returns the bytes that an asynchronous copy moves, i.e. the size of its result. The arrays of the start instruction are
    (result, operand, context) for a copy and (operands, result, context) for a slice."""
    result = start.arrays[0] if start.opcode == "copy-start" else start.arrays[-2:][0]
    return float(result.bytes)


def interval(estimate: Estimate, flops: float, topology: Topology) -> tuple[float, float]:
    """Returns (roofline, estimate) in seconds. The roofline is the longer of two times: the time of `flops` model operations at
    the peak FLOP/s of a device, and the time of moving the estimated bytes at the peak bandwidth of a device."""
    chip = topology.chip
    return max(flops * chip.devices / chip.peak_flops, estimate.bytes * chip.devices / chip.bandwidth), estimate.seconds


def utilisation(flops: float, seconds: float, topology: Topology) -> float:
    """Returns the model FLOP utilisation, i.e. the model FLOP/s of a device as a fraction of its peak. `flops` are per
    device."""
    return flops * topology.chip.devices / topology.chip.peak_flops / seconds if seconds else math.nan
