"""Computes how many bytes of a chip's memory each argument takes, and how many the temporaries of each part of the step
take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Protocol

import jax
from jaxtyping import PyTree

from bert_jax.tpu.costs.hlo import UNNAMED, Computation, Instruction, Module, place

ALIASES = {"bitcast", "tuple", "get-tuple-element", "while", "copy-done", "optimization-barrier", "opt-barrier"}

OTHER = "other"


class Statistics(Protocol):
    """The type of `jax.stages.Compiled.memory_analysis()`, in bytes per device."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes per device."""

    total: int
    """The memory that the program needs: the peak that the compiler computes, plus the program code."""
    has: int
    """The HBM of the device according to its data sheet. The compiler reserves about 1.5 % of this memory."""
    arguments: Mapping[str, int]
    temporaries: Mapping[str, int]
    """The temporaries at the time of their peak, for each part of the step that computes them."""
    code: int


def local_bytes(tree: PyTree[jax.ShapeDtypeStruct]) -> int:
    """Returns the bytes per device of a tree of abstract arrays. The shardings of the arrays are taken into account."""

    def size(leaf: jax.ShapeDtypeStruct) -> int:
        shape = leaf.sharding.shard_shape(leaf.shape) if leaf.sharding is not None else leaf.shape
        return math.prod(shape) * leaf.dtype.itemsize

    return sum(size(leaf) for leaf in jax.tree.leaves(tree))


def program_memory(
    statistics: Statistics, module: Module, arguments: Mapping[str, PyTree[jax.ShapeDtypeStruct]], has: int
) -> Memory:
    """Returns the memory of a program. `statistics` is the result of `jax.stages.Compiled.memory_analysis()`, `arguments` has
    trees of abstract arrays by name, and `has` is the size of the device's HBM. Bytes that layouts add to arguments are listed
    as `padding`."""
    named = {name: local_bytes(tree) for name, tree in arguments.items()}
    named["padding"] = max(0, statistics.argument_size_in_bytes - sum(named.values()))
    live = peak(module)
    total, code = used_bytes(statistics), statistics.generated_code_size_in_bytes
    rest = max(0, total - code - statistics.argument_size_in_bytes)
    temporaries = {name: round(rest * size / sum(live.values())) for name, size in live.items()}
    return Memory(total, has, named, temporaries, code)


def used_bytes(statistics: Statistics) -> int:
    """Returns the bytes per device that a program needs: the peak that the compiler computes, which includes arguments, plus
    the code. The sum of the other statistics would be too large, because results reuse the memory of donated arguments, and
    temporaries reuse the memory of dead parameters."""
    s = statistics
    parts = s.argument_size_in_bytes + s.output_size_in_bytes - s.alias_size_in_bytes + s.temp_size_in_bytes
    return int((getattr(s, "peak_memory_in_bytes", 0) or parts) + s.generated_code_size_in_bytes)


def peak(module: Module) -> dict[str, int]:
    """Returns the bytes of live temporaries in HBM at their peak. ENTRY runs in the order of its text. The bytes are listed by
    origin: `activations` (forward pass), `gradients` (the whole backward pass), `update`.

    A result reuses the memory of an operand if both have the same size and the operand is dead afterwards. Loops update their
    carried arrays in place, and add the peak of their body. The results of the program are left out, because they reuse the
    memory of its arguments.
    """
    return _peak(module, module.entry)


def _peak(module: Module, computation: Computation) -> dict[str, int]:
    holds: dict[str, list[list[int]]] = {}
    """Name of a value -> for each element of the value, the indices of the element's buffers in `sizes`."""
    sizes: list[int] = []
    makers: list[str] = []
    born: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for step, i in enumerate(computation.instructions):
        given = [holds.get(name, []) for name in i.operands]
        maker = _maker(place(i.op_name))
        for number in {n for value in given for element in value for n in element}:
            last[number] = step
            if makers[number] == OTHER and i.opcode != "tuple":
                makers[number] = maker  # an allocation without a name belongs to the loop that fills it
        if i.opcode in ALIASES:
            holds[i.name] = _alias(i, given)
            continue
        holds[i.name] = []
        elsewhere = i.opcode == "parameter" or i.opcode.endswith("-start")
        for array in i.arrays:
            fresh = [] if elsewhere or array.fast else [len(sizes)]
            holds[i.name].append(fresh)
            born.setdefault(step, []).extend(fresh)
            sizes += [array.bytes] * len(fresh)
            makers += [maker] * len(fresh)
    kept = {n for element in holds[computation.root.name] for n in element}
    born = {step: [n for n in numbers if n not in kept] for step, numbers in born.items()}
    return _sweep(module, computation.instructions, born, last, sizes, makers)


def _sweep(
    module: Module,
    order: tuple[Instruction, ...],
    born: Mapping[int, list[int]],
    last: Mapping[int, int],
    sizes: list[int],
    makers: list[str],
) -> dict[str, int]:
    now: dict[str, int] = {}
    best: dict[str, int] = {}
    dies: dict[int, list[int]] = {}
    for step, i in enumerate(order):
        free = dies.pop(step, [])
        for n in born.get(step, []):
            reused = next((m for m in free if sizes[m] == sizes[n]), None)
            if reused is not None:
                free.remove(reused)
                now[makers[reused]] -= sizes[reused]
            now[makers[n]] = now.get(makers[n], 0) + sizes[n]
            dies.setdefault(last.get(n, step), []).append(n)
        inside: dict[str, int] = {}
        if i.opcode == "while":
            bodies = [_peak(module, called) for called in module.called(i)]
            inside = max(bodies, key=lambda body: sum(body.values()), default={})
        if sum(now.values()) + sum(inside.values()) > sum(best.values()):
            best = {name: now.get(name, 0) + inside.get(name, 0) for name in {*now, *inside}}
        for n in [*free, *dies.pop(step, [])]:
            now[makers[n]] -= sizes[n]
    return {name: size for name, size in sorted(best.items(), key=lambda item: -item[1]) if size}


def _alias(i: Instruction, given: list[list[list[int]]]) -> list[list[int]]:
    """Returns the buffers of a value that is a view of its operands."""
    if i.opcode == "tuple":
        return [[n for element in value for n in element] for value in given]
    value = given[0]
    if i.opcode == "get-tuple-element":
        return [value[i.index]] if i.index < len(value) else [[n for element in value for n in element]]
    if i.opcode == "bitcast":
        return [[n for element in value for n in element]]
    return value


def _maker(where: str) -> str:
    if "backward" in where:
        return "gradients"
    if where == "update" or where.startswith("parameters"):
        return "update"
    return OTHER if where == UNNAMED else "activations"
