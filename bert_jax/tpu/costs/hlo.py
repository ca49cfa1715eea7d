"""Parses the text of a scheduled, optimized HLO module: instructions, cycle estimates of the compiler, names from JAX.

The text is the output of `jax.stages.Compiled.as_text()` for a TPU. The parser keeps the attributes that the estimates need. It
ignores all other attributes, including attributes that newer compilers add. A *computation* is a named list of instructions in
the order of execution. The computation ENTRY is the program. If the layout of a result has the memory space `S(1)`, the result
is in the fast memory of the chip. Otherwise it is in HBM."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

BITS = {
    "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32,
    "s64": 64, "u64": 64, "f8e4m3fn": 8, "f8e5m2": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip

_ARRAY = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](\{[^{}]*\})?")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%([^\s=]+) = (.*)$")
_COMPUTATION = re.compile(r"(ENTRY )?%(\S+) \(.*\{$")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_OPERAND = re.compile(r"%([^\s,()]+)")
_CALLED = re.compile(r"(?:calls|body|condition|to_apply|\w+_computations)=\{?(%[^\s,}]+(?:, %[^\s,}]+)*)\}?")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
KERNEL_BODY = re.compile(r'"body":"([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of an instruction's result."""

    dtype: str
    shape: tuple[int, ...]
    fast: bool
    """Whether the array is in the fast memory of the chip (VMEM or SMEM), not in HBM."""
    tiles: tuple[int, int] | None = None
    """The tile sizes to which the (second fastest, fastest) dimensions are padded. None if the layout has no tiles."""
    minor: tuple[int, ...] = ()
    """The dimensions in the order of the layout. The fastest-varying dimension is first."""

    @property
    def bytes(self) -> int:
        """The bytes in memory. The two fastest dimensions are padded to the tile."""
        sizes = list(self.shape)
        if self.tiles and len(sizes) >= 2 and len(self.minor) == len(sizes):
            for dimension, tile in ((self.minor[0], self.tiles[1]), (self.minor[1], self.tiles[0])):
                sizes[dimension] = -(-sizes[dimension] // tile) * tile
        return math.prod(sizes) * BITS.get(self.dtype, 32) // 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    """The arrays of the result. Tuples are flattened."""
    operands: tuple[str, ...]
    text: str
    """The text after the operands, which has the attributes and metadata."""
    root: bool
    literal: str
    """The text in the parentheses of a constant or a parameter."""

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """The names of the computations that the instruction calls, in order."""
        return tuple(name.removeprefix("%") for found in _CALLED.findall(self.text) for name in found.split(", "))

    @functools.cached_property
    def cycles(self) -> int | None:
        """The compiler's `estimated_cycles` for one execution. None if there is no estimate."""
        found = self._found(_CYCLES)
        return int(found) if found else None

    @functools.cached_property
    def op_name(self) -> str:
        """The name of the operation in JAX, which is a path. "" if the compiler has added the instruction."""
        return self._found(_OP_NAME)

    @functools.cached_property
    def target(self) -> str:
        """The target of a custom call."""
        return self._found(_TARGET)

    @functools.cached_property
    def rendezvous(self) -> str:
        """The name that a send shares with the recv of its result. "" if there is none."""
        return self._found(_RENDEZVOUS)

    @functools.cached_property
    def known_trips(self) -> int | None:
        """The `known_trip_count` of a loop. None if the compiler has not recorded it."""
        found = self._found(_TRIPS)
        return int(found) if found else None

    @functools.cached_property
    def index(self) -> int:
        """The index of the tuple element that a get-tuple-element instruction returns."""
        return int(self.attribute("index"))

    @functools.cached_property
    def kernel_body(self) -> str:
        """The serialised program of a Pallas kernel, from its custom call. Equal kernels have equal bodies."""
        return self._found(KERNEL_BODY)

    def _found(self, pattern: re.Pattern[str]) -> str:
        """Returns the group that `pattern` matches in the text. Returns "" if it does not match."""
        found = pattern.search(self.text)
        return found[1] if found else ""

    def named(self, name: str) -> str:
        """Returns the name of the computation in the attribute `name=%...`. Returns "" if there is no such attribute."""
        return self._found(re.compile(rf"\b{name}=%([^\s,}}]+)"))

    def attribute(self, name: str) -> str:
        """Returns the text of the attribute `name=...`. Returns "" if there is no such attribute."""
        return self._found(re.compile(rf"\b{name}=(.*?)(?:, [a-z_]+=|$)"))


@dataclasses.dataclass(frozen=True)
class Computation:
    """A named list of instructions in the order of execution."""

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """The instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @functools.cached_property
    def _readers(self) -> Mapping[str, Sequence[Instruction]]:
        """Name of an instruction -> the instructions that use its result. A recv counts as a user of its send."""
        sends = {i.rendezvous: i.name for i in self.instructions if i.opcode == "send"}
        readers: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            sent = [sends.get(instruction.rendezvous, "")] if instruction.opcode == "recv" else []
            for name in dict.fromkeys([*instruction.operands, *sent]):
                readers.setdefault(name, []).append(instruction)
        return readers

    def users(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yields the instructions of this computation that depend on the result of `instruction`. Direct users come first."""
        waiting, seen = [instruction.name], {instruction.name}
        for name in waiting:
            for reader in self._readers.get(name, ()):
                if reader.name not in seen:
                    yield reader
                    seen.add(reader.name)
                    waiting.append(reader.name)

    @property
    def root(self) -> Instruction:
        """The instruction whose result is the result of the computation."""
        return next((i for i in self.instructions if i.root), self.instructions[-1])


@dataclasses.dataclass(frozen=True)
class Module:
    """A program."""

    computations: Mapping[str, Computation]
    entry: Computation

    def called(self, instruction: Instruction) -> Iterator[Computation]:
        """Returns the computations that an instruction calls."""
        return (self.computations[name] for name in instruction.called if name in self.computations)


def parse(text: str) -> Module:
    """Parses the `text` of a module. If the text has no ENTRY, it is not an HLO module, and ValueError is raised."""
    computations: dict[str, Computation] = {}
    entry, header, lines = None, None, list[Instruction]()
    # puts each instruction of JAX's own kernels on one line
    text = re.sub(r"kernel_metadata=\{\n.*\n\}", "kernel_metadata={}", text)
    for line in text.splitlines():
        if beginning := _COMPUTATION.match(line):
            header, lines = beginning, []
        elif header and line.startswith("}"):
            computations[header[2]] = Computation(header[2], tuple(lines))
            entry = computations[header[2]] if header[1] else entry
            header = None
        elif header and (instruction := _instruction(line)):
            lines.append(instruction)
    if entry is None:
        raise ValueError("no ENTRY computation: this is not the text of an HLO module")
    return Module(computations, entry)


def _instruction(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if not match:
        return None
    rest = match[3]
    end = _closing(rest) if rest.startswith("(") else _array_end(rest)
    opcode = _OPCODE.match(rest, end)
    if not opcode:
        return None
    close = _closing(rest, opcode.end(1))
    inside = rest[opcode.end() : close - 1]
    plain = opcode[1] in ("constant", "parameter")
    operands = () if plain else tuple(_OPERAND.findall(inside))
    return Instruction(match[2], opcode[1], arrays(rest[:end]), operands, rest[close:], bool(match[1]), inside if plain else "")


def _closing(text: str, start: int = 0) -> int:
    """Returns the position after the closing parenthesis. `start` is the position of the opening parenthesis."""
    depth = 0
    for found in re.compile(r"[()]").finditer(text, start):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.end()
    return len(text)


def _array_end(text: str) -> int:
    found = _ARRAY.match(text)
    return found.end() if found else text.find(" ")


@functools.lru_cache(maxsize=1 << 16)
def arrays(text: str) -> tuple[Array, ...]:
    """Parses the arrays of a type in HLO notation, e.g. `(f32[8,128]{1,0:T(8,128)S(1)}, s32[])`."""
    return tuple(_array(*found) for found in _ARRAY.findall(text))


def _array(dtype: str, shape: str, layout: str) -> Array:
    sizes = tuple(int(size) for size in shape.split(",") if size)
    order, _, rest = layout.strip("{}").partition(":")
    tiles = re.match(r"T\((\d+),(\d+)\)", rest)
    minor = tuple(int(d) for d in order.split(",") if d)
    return Array(dtype, sizes, "S(" in rest, (int(tiles[1]), int(tiles[2])) if tiles else None, minor)


def trips(module: Module, inside: Computation, loop: Instruction) -> int | None:
    """Returns the trip count of the `while` instruction `loop` in the computation `inside`. Returns None if it cannot be
    derived.

    If the compiler has recorded a `known_trip_count`, this is returned. Otherwise the trip count is derived from the condition
    `counter < limit`. The limit must be a constant of the condition, or a loop invariant that starts as a constant. The counter
    must start at a constant, and the body must add a constant to it."""
    if loop.known_trips is not None:
        return loop.known_trips
    condition, body = (module.computations.get(loop.named(key)) for key in ("condition", "body"))
    if condition is None or body is None:
        return None
    compare = _compare(module, condition)
    if compare is None:
        return None
    counter, limit, direction = compare
    if counter.index is None:
        return None
    first = _initial(inside, loop, counter)
    last = limit.value if limit.value is not None else _initial(inside, loop, limit)
    step = _step(module, body, counter.index)
    if first is None or last is None or not step:
        return None
    span = last - first + (1 if direction == "LE" else -1 if direction == "GE" else 0)
    return max(0, -(-span // step))


@dataclasses.dataclass(frozen=True)
class _Source:
    """The source of a scalar in the condition of a loop. It is the constant `value`, or the element `index` of the carried
    state. If the scalar has another source, both fields are None."""

    index: int | None = None
    value: int | None = None


def _compare(module: Module, condition: Computation) -> tuple[_Source, _Source, str] | None:
    """Returns (counter, limit, direction) of the comparison in the condition of a loop. The comparison may be inside a fusion.
    Returns None if there is no comparison."""
    root = condition.root
    inner = next(module.called(root), None) if root.opcode == "fusion" else None
    compare = inner.root if inner else root
    if compare.opcode != "compare":
        return None
    parameters = (i for i in inner.instructions if i.opcode == "parameter") if inner else ()
    outside = {parameter.name: root.operands[int(parameter.literal)] for parameter in parameters}
    counter, limit = (
        _scalar(condition, outside[name]) if name in outside else _scalar(inner or condition, name) for name in compare.operands
    )
    return counter, limit, compare.attribute("direction")


def _scalar(computation: Computation, name: str) -> _Source:
    instruction = computation.by_name.get(name)
    while instruction is not None and instruction.opcode in ("copy", "bitcast", "convert"):
        instruction = computation.by_name.get(instruction.operands[0])
    if instruction is None:
        return _Source()
    if instruction.opcode == "get-tuple-element":
        return _Source(index=instruction.index)
    return _Source(value=_integer(instruction))


def _integer(instruction: Instruction) -> int | None:
    if instruction.opcode != "constant" or not re.fullmatch(r"-?\d+", instruction.literal):
        return None
    return int(instruction.literal)


def _initial(inside: Computation, loop: Instruction, source: _Source) -> int | None:
    """Returns the initial value of element `source.index` of the carried state. Returns None if it is not a constant."""
    made = inside.by_name.get(loop.operands[0])
    if made is None or made.opcode != "tuple" or source.index is None:
        return None
    return _scalar(inside, made.operands[source.index]).value


def _step(module: Module, body: Computation, index: int) -> int | None:
    """Returns the constant that the body adds to element `index` of the carried state. Returns None if it adds no constant."""
    root = body.root
    if root.opcode != "tuple":
        return None
    made = body.by_name.get(root.operands[index])
    while made is not None and made.opcode in ("copy", "bitcast"):
        made = body.by_name.get(made.operands[0])
    if made is None:
        return None
    place, names = body, made.operands
    if made.opcode == "fusion":
        inner = next(module.called(made), None)
        if inner is None:
            return None
        adds = [i for i in inner.instructions if i.opcode in ("add", "subtract")]
        if len(adds) != 1:
            return None
        made, place, names = adds[0], inner, adds[0].operands
    sign = {"add": 1, "subtract": -1}.get(made.opcode)
    values = [_scalar(place, name).value for name in names]
    known = [value for value in values if value is not None]
    return sign * known[0] if sign and len(known) == 1 else None


# ----------------------------------------------------------------------------------------------------------- places in the model
_CALL = re.compile(r"^(?:[a-z_]+\()*([^()]*)\)*$")
_MERGED = re.compile(r"/\(([^:]+):.*\)$")
"""Matches the name of an operation that the compiler has merged from several: `(optimizer/reduce_sum:optimizer/reduce_sum)`."""
NOISE = {
    "closed_call", "while", "body", "cond", "checkpoint", "rematted_computation", "remat", "remat2", "scan", "pjit", "shard_map",
    "shmap_body",
    "custom_vjp_call", "custom_jvp_call", "pallas_call", "Block", "layers", "encoder", "transpose", "loss", "optimizer",
}  # fmt: skip
UNNAMED = "(unnamed)"
HEADS = ("embeddings", "pooler", "mlm_head", "nsp_head", "classifier")


def place(op_name: str) -> str:
    """Converts the name of an operation in JAX to a part of the model, such as
    `jit(train_step)/transpose(jvp(M))/M.encode/encoder/closed_call/layers/attention/output/dot_general` ->
    `layers/attention/output backward`.

    The part of operations outside the model's modules is `loss`. If they are also outside the differentiated function (gradient
    norm, optimizer), it is `update`. In `layers/saved`, the loop over layers saves and loads activations. Operations that the
    compiler has added have no name in JAX, and their part is `(unnamed)`."""
    op_name = _MERGED.sub(r"/\1", op_name.split(";")[0])
    if not op_name.startswith(("jit(", "pjit(")):
        return f"parameters/{op_name.split('[')[0]}" if op_name.startswith(("state", "params")) else UNNAMED
    path = op_name.split("/")[1:]
    backward = any("transpose(" in part for part in path)
    again = "rematted_computation" in path
    names = [name for part in path[:-1] if (name := _plain(part))]
    inside = [name for name in names if name not in NOISE]
    in_layers = "layers" in names
    if inside and inside[0] in HEADS:
        where = "/".join(inside[:2])
    elif in_layers or inside:
        where = "/".join(["layers", *inside[:2]]) if in_layers else "/".join(inside[:2])
    elif "encoder" in names:
        where = "layers/saved" if "while" in path else "encoder"
    else:
        where = "loss" if any("jvp(" in part for part in path) else "update"
    return where + (" recomputed" if again else " backward" if backward else "")


def _plain(part: str) -> str:
    """Removes the wrappers of transformations from a part of the path. Returns "" if the part is not the name of a module."""
    if re.match(r"(jit|pjit|vmap|cond|branch_\w*|custom_\w+)\b", part):
        return ""
    found = _CALL.match(part)
    name = found[1] if found else part
    return "" if not name or "." in name or name[0].isupper() or name.startswith("_") else name
