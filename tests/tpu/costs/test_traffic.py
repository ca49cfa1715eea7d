"""The bytes that an instruction moves between HBM and the chip: its result, and the part of each operand that it reads."""

from __future__ import annotations

import pytest

from tests.tpu.costs.test_estimate import A, estimated, program

PART, WHOLE = 2**18, 2**22
OTHER = "%b = f32[1024,1024]{1,0:T(8,128)} parameter(1)"
CYCLES = ', backend_config={"window_config":{"estimated_cycles":"1"}}'


def test_a_fusion_reads_whole_operands_or_slices_and_writes_its_result():
    inside = """%fused (p: f32[1024,1024], q: f32[1024,1024]) -> f32[64,1024] {
  %p = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  %q = f32[1024,1024]{1,0:T(8,128)} parameter(1)
  %s = f32[64,1024]{1,0:T(8,128)} slice(%p), slice={[0:64], [0:1024]}
  %t = f32[64,1024]{1,0:T(8,128)} reduce-window(%q), window={size=16x1 stride=16x1}, to_apply=%region
  ROOT %u = f32[64,1024]{1,0:T(8,128)} add(%s, %t)
}
"""
    call = "ROOT %f = f32[64,1024]{1,0:T(8,128)} fusion(%a, %b), kind=kLoop, calls=%fused" + CYCLES
    assert estimated(program(A, OTHER, call, called=inside)).bytes == PART + WHOLE + PART
    assert estimated(program(A, OTHER, call)).bytes == WHOLE + WHOLE + PART, "instructions outside of the text are unknown"
    viewed = inside.replace("slice(%p)", "slice(%v)").replace(
        "  %s =", "  %v = f32[1024,1024]{1,0:T(8,128)} bitcast(%p)\n  %w = f32[1024,1024]{1,0:T(8,128)} bitcast(%q)\n  %s ="
    )
    assert estimated(program(A, OTHER, call, called=viewed)).bytes == PART + WHOLE + PART, "a view is not a use"
    nameless = inside.replace("  %p = f32[1024,1024]{1,0:T(8,128)} parameter(0)\n", "")
    assert estimated(program(A, OTHER, call, called=nameless)).bytes == WHOLE + WHOLE + PART


@pytest.mark.parametrize("opcode", ["slice", "dynamic-slice", "gather"])
def test_repeated_slices_are_read_repeatedly_up_to_the_whole_operand(opcode: str):
    inside = f"""%fused (p: f32[1024,1024]) -> f32[64,1024] {{
  %p = f32[1024,1024]{{1,0:T(8,128)}} parameter(0)
  %s = f32[64,1024]{{1,0:T(8,128)}} {opcode}(%p)
  %t = f32[64,1024]{{1,0:T(8,128)}} {opcode}(%p)
  ROOT %u = f32[64,1024]{{1,0:T(8,128)}} add(%s, %t)
}}
"""
    call = "ROOT %f = f32[64,1024]{1,0:T(8,128)} fusion(%a), kind=kLoop, calls=%fused" + CYCLES
    assert estimated(program(A, call, called=inside)).bytes == 2 * PART + PART
    large = inside.replace("f32[64,1024]", "f32[640,1024]")
    assert estimated(program(A, call, called=large)).bytes == WHOLE + PART


def updated(operand: str, result: str) -> float:
    """Returns the bytes of an update in place of 64 rows, with these memory spaces of the array and of the result."""
    inside = f"""%fused (p: f32[1024,1024], q: f32[64,1024]) -> f32[1024,1024] {{
  %p = f32[1024,1024]{{1,0:T(8,128){operand}}} parameter(0)
  %q = f32[64,1024]{{1,0:T(8,128)}} parameter(1)
  %z = s32[]{{:T(128)}} constant(0)
  ROOT %u = f32[1024,1024]{{1,0:T(8,128){result}}} dynamic-update-slice(%p, %q, %z, %z)
}}
"""
    given = A.replace("T(8,128)", f"T(8,128){operand}")
    rows = "%b = f32[64,1024]{1,0:T(8,128)} parameter(1)"
    call = f"ROOT %f = f32[1024,1024]{{1,0:T(8,128){result}}} fusion(%a, %b), kind=kLoop, calls=%fused" + CYCLES
    return estimated(program(given, rows, call, called=inside)).bytes


def test_an_update_in_place_reads_and_writes_only_the_updated_part():
    assert updated("", "") == PART + PART
    assert updated("", "S(1)") == PART, "a result on the chip is not written to memory"
    assert updated("S(1)", "") == PART + WHOLE, "nor is an unchanged array there"


def test_an_array_used_as_an_index_of_an_update_is_read_whole():
    inside = """%fused (p: f32[1024,1024], q: f32[64,1024]) -> f32[1024,1024] {
  %p = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  %q = f32[64,1024]{1,0:T(8,128)} parameter(1)
  %z = s32[]{:T(128)} constant(0)
  %y = f32[1024,1024]{1,0:T(8,128)} broadcast(%z)
  ROOT %u = f32[1024,1024]{1,0:T(8,128)} dynamic-update-slice(%y, %q, %p, %z)
}
"""
    rows = "%b = f32[64,1024]{1,0:T(8,128)} parameter(1)"
    call = "ROOT %f = f32[1024,1024]{1,0:T(8,128)} fusion(%a, %b), kind=kLoop, calls=%fused" + CYCLES
    assert estimated(program(A, rows, call, called=inside)).bytes == WHOLE + PART + WHOLE


def test_constants_and_arrays_on_the_chip_are_not_read_from_memory():
    lines = (
        "%c = f32[1024,1024]{1,0:T(8,128)} constant({...})",
        "%d = f32[1024,1024]{1,0:T(8,128)S(1)} parameter(1)",
        "ROOT %r = f32[1024,1024]{1,0:T(8,128)} add(%a, %c, %d, %unknown)" + CYCLES,
    )
    assert estimated(program(A, *lines)).bytes == WHOLE + WHOLE
