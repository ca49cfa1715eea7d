"""A program's memory: the sum of the compiler's figures, and the arrays that are alive at the peak."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.tpu.costs.hlo import parse
from bert_jax.tpu.costs.memory import local_bytes, peak, program_memory, used_bytes
from tests.tpu.costs.devices import Statistics, StatisticsWithoutPeak
from tests.tpu.costs.test_estimate import A, program

SHAPE = "f32[1024,1024]{1,0:T(8,128)}"
MATRIX = 2**22


def test_donated_arguments_count_once_and_the_compilers_peak_before_the_sum_of_parts():
    assert used_bytes(Statistics()) == 15 * 2**20
    assert used_bytes(Statistics(peak_memory_in_bytes=0)) == (10 + 9 - 8 + 5 + 1) * 2**20
    assert used_bytes(StatisticsWithoutPeak()) == (10 + 9 - 8 + 5 + 1) * 2**20


def test_memory_consists_of_named_arguments_padding_temporaries_and_code():
    lines = (A, '%x = f32[1024,1024]{1,0:T(8,128)} negate(%a), metadata={op_name="jit(step)/jvp(M)/layers/neg"}',
             "ROOT %r = f32[1024,1024]{1,0:T(8,128)} add(%x, %a)")  # fmt: skip
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    batch = jax.ShapeDtypeStruct((8, 2**18), jnp.float32, sharding=split)
    assert local_bytes({"x": batch}) == 2 * 2**20
    found = program_memory(Statistics(), parse(program(*lines)), {"batch": {"x": batch}}, 16 * 2**20)
    assert found.arguments == {"batch": 2 * 2**20, "padding": 8 * 2**20}
    assert found.temporaries == {"activations": 4 * 2**20}
    assert (found.total, found.code, found.has) == (15 * 2**20, 2**20, 16 * 2**20)
    whole = jax.ShapeDtypeStruct((11 * 2**18,), jnp.float32)
    assert local_bytes({"x": whole, "y": jax.ShapeDtypeStruct((3, 5), jnp.bfloat16)}) == 11 * 2**20 + 30
    small = program_memory(Statistics(peak_memory_in_bytes=2**20), parse(program(*lines)), {"batch": whole}, 16 * 2**20)
    assert small.arguments == {"batch": 11 * 2**20, "padding": 0}, "donated arrays are not padded"
    assert small.temporaries == {"activations": 0}
    lines = (A, "ROOT %r = f32[1024,1024]{1,0:T(8,128)} add(%a, %a)")
    assert program_memory(Statistics(), parse(program(*lines)), {}, 16 * 2**20).temporaries == {}


def made(name: str, of: str, where: str) -> str:
    """Returns a matrix that `where` makes from another."""
    return f'%{name} = {SHAPE} negate(%{of}), metadata={{op_name="jit(step)/{where}/neg"}}'


FORWARD, BACKWARD = "jvp(M)/layers", "transpose(jvp(M))/layers"


def test_the_peak_counts_live_arrays_and_reuses_dead_ones():
    lines = (A, made("x", "a", "jvp(M)/layers"), made("y", "x", "jvp(M)/layers"), made("g", "y", "transpose(jvp(M))/layers"))
    last = "ROOT %r = f32[1024,1024]{1,0:T(8,128)} add(%g, %z)"
    assert peak(parse(program(*lines, last.replace("%z", "%y")))) == {"activations": 2**22, "gradients": 2**22}
    assert peak(parse(program(*lines, last.replace("%z", "%x")))) == {"activations": 2 * 2**22}  # g replaces y
    assert peak(parse(program(*lines, last.replace("%z", "%a")))) == {"activations": 2**22}


def test_a_dead_array_is_reused_once():
    """y has the same size as x and replaces it. h is half as large, and takes memory of its own while y is alive."""
    half = '%h = f32[512,1024]{1,0:T(8,128)} slice(%y), metadata={op_name="jit(step)/transpose(jvp(M))/layers/s"}'
    chain = (A, made("x", "a", FORWARD), made("y", "x", FORWARD), half)
    last = f"ROOT %r = {SHAPE} add(%a, %h)"
    assert peak(parse(program(*chain, last))) == {"activations": MATRIX, "gradients": MATRIX // 2}
    more = (made("u", "a", FORWARD), made("v", "a", FORWARD), f"ROOT %r = {SHAPE} add(%h, %u, %v)")
    assert peak(parse(program(*chain, *more))) == {"activations": 2 * MATRIX, "gradients": MATRIX // 2}


def test_parts_of_the_peak_are_sorted_by_size():
    whose = {"u": "optimizer", "g": BACKWARD, "h": BACKWARD, "x": FORWARD, "y": FORWARD, "z": FORWARD}
    lines = [made(name, "a", where) for name, where in whose.items()]
    found = peak(parse(program(A, *lines, f"ROOT %r = {SHAPE} add(%u, %g, %h, %x, %y, %z)")))
    assert list(found.items()) == [("activations", 3 * MATRIX), ("gradients", 2 * MATRIX), ("update", MATRIX)]
    named = made("u", "a", "optimizer").replace("jit(step)/optimizer/neg", "params['pooler']['kernel']")
    assert peak(parse(program(A, named, f"ROOT %r = {SHAPE} add(%u, %u)"))) == {"update": MATRIX}


def test_arrays_on_the_chip_take_no_memory():
    fast = SHAPE.replace("T(8,128)", "T(8,128)S(1)")
    lines = (
        made("x", "a", FORWARD).replace("T(8,128)", "T(8,128)S(1)"),
        f"%c = ({SHAPE}, {fast}, u32[]{{:S(2)}}) copy-start(%x)",
        f"%d = {SHAPE} copy-done(%c)",
        f'%p = ({fast}, {SHAPE}) custom-call(%d), metadata={{op_name="jit(step)/jvp(M)/layers/k"}}',
        f"%q = {SHAPE} get-tuple-element(%p), index=1",
    )
    assert peak(parse(program(A, *lines, f"ROOT %r = {SHAPE} add(%q, %a)"))) == {"activations": MATRIX}


PAIR = f"({SHAPE}, {SHAPE})"
BODY = f"""%body (p: f32[1024,1024]) -> f32[1024,1024] {{
  %p = {PAIR} parameter(0)
  %u = {SHAPE} get-tuple-element(%p), index=0
  %v = {SHAPE} get-tuple-element(%p), index=1
  {made("x", "u", FORWARD)}
  {made("y", "u", FORWARD)}
  %z = {SHAPE} add(%x, %y, %v)
  ROOT %t = {PAIR} tuple(%u, %z)
}}

%condition (p: f32[1024,1024]) -> pred[] {{
  %p = {PAIR} parameter(0)
  %u = {SHAPE} get-tuple-element(%p), index=0
  {made("x", "u", FORWARD)}
  ROOT %lt = pred[] compare(%x, %x), direction=LT
}}
"""


def loop(root: str) -> dict[str, int]:
    """Returns the peak of a program with a loop that carries a gradient and an unnamed allocation, and ends with `root`."""
    lines = (
        made("g", "a", BACKWARD),
        f'%b = {SHAPE} custom-call(), custom_call_target="AllocateBuffer"',
        f"%in = {PAIR} tuple(%g, %b)",
        f"%w = {PAIR} while(%in), condition=%condition, body=%body, "
        'metadata={op_name="jit(step)/jvp(M)/encoder/while/body/dynamic_update_slice"}',
        f"%i = {SHAPE} get-tuple-element(%w), index=0",
        f"%o = {SHAPE} get-tuple-element(%w), index=1",
    )
    return peak(parse(program(A, *lines, root, called=BODY)))


def test_a_loop_updates_its_carry_in_place_and_adds_the_peak_of_its_body():
    """The allocation belongs to the loop that fills it. The program's result is not counted."""
    assert loop(f"ROOT %r = {SHAPE} add(%i, %o)") == {"activations": 3 * MATRIX, "gradients": MATRIX}
    assert loop(f"ROOT %r = {SHAPE} bitcast(%o)") == {"activations": 2 * MATRIX, "gradients": MATRIX}
    assert loop(f"ROOT %r = {SHAPE} bitcast(%i)") == {"activations": 3 * MATRIX}
    assert loop(f"ROOT %r = {PAIR} tuple(%o, %i)") == {"activations": 2 * MATRIX}
    assert loop(f"ROOT %r = {PAIR} get-tuple-element(%w), index=2") == {"activations": 2 * MATRIX}, "of both"


def test_an_array_lives_as_long_as_its_views():
    lines = (A, made("x", "a", FORWARD), f"%b = {SHAPE} bitcast(%x)", made("g", "a", BACKWARD), f"ROOT %r = {SHAPE} add(%b, %g)")
    assert peak(parse(program(*lines))) == {"activations": MATRIX, "gradients": MATRIX}
    unused = (A, made("x", "a", FORWARD), made("g", "a", BACKWARD), f"ROOT %r = {SHAPE} add(%a, %a)")
    assert peak(parse(program(*unused))) == {"activations": MATRIX}, "a result without readers is freed at once"
