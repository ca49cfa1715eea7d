"""The parser of HLO text: instructions, sizes in memory, trip counts of loops, places in the model."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from bert_jax.tpu.costs.hlo import BITS, arrays, parse, place, trips

# Shortened from the TPU compiler's output for a kernel in a scan; the loop inside is added.
LOOPS = """HloModule jit_g, is_scheduled=true

%inner_body (p: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %p = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)S(1)}) parameter(0)
  %one = s32[]{:T(128)} constant(1)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %x = f32[8,128]{1,0:T(8,128)S(1)} get-tuple-element(%p), index=1
  %mul = f32[8,128]{1,0:T(8,128)S(1)} multiply(%x, %x), backend_config={"window_config":{"estimated_cycles":"7"}}
  %next = s32[]{:T(128)} add(%i, %one)
  ROOT %t = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)S(1)}) tuple(%next, %mul)
}

%inner_condition (p: (s32[], f32[8,128])) -> pred[] {
  %limit = s32[]{:T(128)} constant(5)
  %p = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)S(1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

%outer_body (q: (s32[], f32[8,128], s32[])) -> (s32[], f32[8,128], s32[]) {
  %q = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)S(1)}, s32[]{:T(128)}) parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %two = s32[]{:T(128)} constant(2)
  %j = s32[]{:T(128)} get-tuple-element(%q), index=0
  %y = f32[8,128]{1,0:T(8,128)S(1)} get-tuple-element(%q), index=1
  %n = s32[]{:T(128)} get-tuple-element(%q), index=2
  %in = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)S(1)}) tuple(%zero, %y)
  %while.1 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)S(1)}) while(%in), condition=%inner_condition, body=%inner_body
  %z = f32[8,128]{1,0:T(8,128)S(1)} get-tuple-element(%while.1), index=1
  %k = s32[]{:T(128)} add(%j, %two)
  ROOT %u = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)S(1)}, s32[]{:T(128)}) tuple(%k, %z, %n)
}

%outer_condition (q: (s32[], f32[8,128], s32[])) -> pred[] {
  %q = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)S(1)}, s32[]{:T(128)}) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%q), index=0
  %n = s32[]{:T(128)} get-tuple-element(%q), index=2
  ROOT %lt = pred[]{:T(512)} compare(%j, %n), direction=LT
}

ENTRY %main (a: f32[8,128]) -> f32[8,128] {
  %a = f32[8,128]{1,0:T(8,128)} parameter(0)
  %start = s32[]{:T(128)} constant(1)
  %seven = s32[]{:T(128)} constant(7)
  %begin = s32[]{:T(128)} copy(%start)
  %in = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)S(1)}, s32[]{:T(128)}) tuple(%begin, %a, /*index=2*/%seven)
  %while = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)S(1)}, s32[]{:T(128)}) while(%in), condition=%outer_condition, body=%outer_body
  ROOT %r = f32[8,128]{1,0:T(8,128)S(1)} get-tuple-element(%while), index=1
}
"""


CROSSING = """HloModule m

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %s = (f32[8]{0}, u32[], token[]) send(%a), frontend_attributes={_xla_host_transfer_rendezvous="r_0"}
  %t = (f32[8]{0}, u32[], token[]) recv(), frontend_attributes={_xla_host_transfer_rendezvous="r_0"}
  ROOT %u = (f32[8]{0}, token[]) recv-done(%t)
}
"""


def test_text_without_an_entry_is_refused():
    for text in ("HloModule nothing\n", CROSSING.replace("ENTRY ", ""), CROSSING.removesuffix("}\n")):
        with pytest.raises(ValueError, match="no ENTRY"):
            parse(text)


def test_other_lines_are_skipped_and_the_last_instruction_is_the_default_root():
    lines = ("%b = token after-all()", "%c = f32[8]{0} not an instruction", "# nothing", "",
             "%d = f32[8]{0} negate(%a), metadata={op_name=\"jit(f)/neg\"}", "%e = f32[8]{0} add(%a, %d)")  # fmt: skip
    entry = parse(
        "HloModule m\n%f = f32[] constant(1)\n\nENTRY %main (a: f32[8]) -> f32[8] {\n  " + "\n  ".join(lines) + "\n}\n"
    ).entry
    assert [i.name for i in entry.instructions] == ["b", "d", "e"]
    assert entry.root.name == "e"
    assert (entry.by_name["d"].op_name, entry.by_name["e"].op_name) == ("jit(f)/neg", "")
    assert parse(LOOPS.replace("  ROOT %r", "  %r").replace("%start", "ROOT %start", 1)).entry.root.name == "start"


def test_a_truncated_instruction_ends_with_its_line():
    (cut,) = parse("ENTRY %main (a: f32[8]) -> f32[8] {\n  %x = f32[8]{0} negate(%a, %b\n}\n").entry.instructions
    assert (cut.opcode, cut.text) == ("negate", "")


def test_instructions_have_opcode_operands_and_cycles():
    module = parse(LOOPS)
    multiply = module.computations["inner_body"].by_name["mul"]
    assert (multiply.opcode, multiply.operands, multiply.cycles) == ("multiply", ("x", "x"), 7)
    assert module.entry.by_name["in"].operands == ("begin", "a", "seven")
    assert module.entry.by_name["while"].called == ("outer_condition", "outer_body")
    assert module.entry.root.name == "r"


def test_users_of_a_result_are_found_nearest_first_and_across_slices():
    entry = parse(LOOPS).entry
    assert [user.name for user in entry.users(entry.by_name["start"])] == ["begin", "in", "while", "r"]
    entry = parse(CROSSING).entry
    assert [user.name for user in entry.users(entry.by_name["a"])] == ["s", "t", "u"]
    both = CROSSING.replace(
        "  %s =", "  %b = f32[8]{0} negate(%a)\n  %c = f32[8]{0} add(%a, %b)\n  %d = f32[8]{0} negate(%c)\n  %s ="
    )
    entry = parse(both).entry
    assert [user.name for user in entry.users(entry.by_name["a"])] == ["b", "c", "s", "d", "t", "u"], "each once"


def test_nested_loops_have_their_own_trips_and_carried_limits():
    module = parse(LOOPS)
    outer, inner = module.entry.by_name["while"], module.computations["outer_body"].by_name["while.1"]
    assert trips(module, module.entry, outer) == 3  # 1, 3, 5 below 7
    assert trips(module, module.computations["outer_body"], inner) == 5


@pytest.mark.parametrize(
    ("direction", "first", "limit", "step", "expected"),
    [
        ("LT", 1, 7, 2, 3),  # 1, 3, 5
        ("LE", 1, 7, 2, 4),  # 1, 3, 5, 7
        ("LE", 1, 8, 2, 4),
        ("GT", 7, 1, -2, 3),  # 7, 5, 3
        ("GE", 7, 1, -2, 4),  # 7, 5, 3, 1
        ("GE", 8, 1, -2, 4),
        ("LE", 8, 7, 1, 0),
    ],
)
def test_trips_follow_the_comparison_of_a_loop(direction: str, first: int, limit: int, step: int, expected: int):
    head, _, outer = LOOPS.partition("%outer_condition")
    text = head.replace("%two = s32[]{:T(128)} constant(2)", f"%two = s32[]{{:T(128)}} constant({step})")
    text += "%outer_condition" + outer.replace("direction=LT", f"direction={direction}")
    text = text.replace("%start = s32[]{:T(128)} constant(1)", f"%start = s32[]{{:T(128)}} constant({first})")
    text = text.replace("%seven = s32[]{:T(128)} constant(7)", f"%seven = s32[]{{:T(128)}} constant({limit})")
    module = parse(text)
    assert trips(module, module.entry, module.entry.by_name["while"]) == expected


def test_sizes_are_padded_to_the_tiles_of_the_layout():
    text = "(bf16[3,100]{1,0:T(8,128)(2,1)}, f32[16,2]{0,1:T(2,128)}, f32[8,128]{1,0:T(8,128)S(1)}, s32[])"
    plain, turned, fast, scalar = arrays(text)
    assert (plain.bytes, plain.fast) == (8 * 128 * 2, False)
    assert turned.bytes == 128 * 2 * 4
    assert fast.fast
    assert scalar.bytes == 4
    deep, untiled, unknown, few = arrays("(f32[2,3,100]{2,1,0:T(8,128)}, f32[3,100]{1,0}, f4e2m1[8]{0}, s4[3,5]{1,0})")
    assert deep.bytes == 2 * 8 * 128 * 4
    assert (untiled.bytes, untiled.fast) == (3 * 100 * 4, False)
    assert unknown.bytes == 8 * 4, "an unknown type: four bytes per element"
    assert few.bytes == 7
    assert arrays("f32[3,100]{1,0:T(256)}")[0].bytes == 3 * 100 * 4


@pytest.mark.parametrize(
    ("op_name", "where"),
    [
        ("jit(f)/transpose(jvp(M))/M.encode/encoder/closed_call/layers/attention/output/dot", "layers/attention/output backward"),
        ("jit(f)/jvp(M)/encoder/while/body/closed_call/layers/Block/feed_forward/wide/dot", "layers/feed_forward/wide"),
        ("jit(f)/jvp(M)/M.encode/encoder/while/body/jit(dynamic_update_index_in_dim)/dynamic_update_slice", "layers/saved"),
        ("jit(train_step)/transpose(jvp(M))/mlm_head/transform/dot_general", "mlm_head/transform backward"),
        ("jit(train_step)/jvp()/reduce_max", "loss"),
        ("jit(train_step)/sqrt", "update"),
        ("jit(train_step)/jvp(loss)/jit(take_along_axis)/gather", "loss"),
        ("jit(train_step)/optimizer/jit(_where)/select_n", "update"),
        ("jit(train_step)/(optimizer/reduce_sum:optimizer/reduce_sum)", "update"),
        ("jit(f)/(transpose(jvp(M))/mlm_head/dot:transpose(jvp(M))/pooler/dot)", "mlm_head backward"),
        ("jit(f)/transpose(jvp(M))/encoder/while/body/closed_call/checkpoint/rematted_computation/layers/feed_forward/dot",
         "layers/feed_forward recomputed"),
        ("jit(f)/jvp(M)/M.encode/encoder/closed_call/add", "encoder"),
        ("jit(f)/jvp(M)/encoder/while/body/closed_call/layers/add", "layers"),
        ("pjit(f)/jvp(M)/embeddings/norm/scale/mul", "embeddings/norm"),
        ("jit(f)/jvp(M)/adapter/down/kernel/dot", "adapter/down"),
        ("jit(f)/jvp(M)/branch_0_fun/pooler/tanh", "pooler"),
        ("jit(f)/jvp(M)/cond/branch_1/pooler/_dot/dense.1/tanh", "pooler"),
        ("jit(f)/jvp(M)/vmap(query)/Dense/pooler/dot;jit(g)/add", "pooler"),
        ("jit(f)/jvp(M)/jit(pooler)/dot", "loss"),
        ("jit(f)/jvp(M)/encoder/layers/attention/query/kernel/dot", "layers/attention/query"),
        ("state.params['pooler']['kernel']", "parameters/state.params"),
        ("params[0]", "parameters/params"),
        ("broadcast.12", "(unnamed)"),
        ("", "(unnamed)"),
    ],
)  # fmt: skip
def test_an_op_name_becomes_a_place_in_the_model(op_name: str, where: str):
    assert place(op_name) == where


@pytest.mark.parametrize(("dtype", "bits"), BITS.items())
def test_an_element_has_the_bits_of_its_type(dtype: str, bits: int):
    names = {"pred": "bool", "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
    kinds = {"s": "int", "u": "uint", "f": "float", "c": "complex"}
    found = jnp.dtype(names.get(dtype) or kinds[dtype[0]] + dtype[1:])
    narrow = dtype in ("s2", "u2", "s4", "u4")  # on the host, an array of these has one byte per element
    assert bits == (jnp.iinfo(found).bits if narrow else 8 * found.itemsize)
