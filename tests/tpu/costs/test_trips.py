"""How often a loop of a compiled program runs, from the compiler's record or from its condition, start and step."""

from __future__ import annotations

import pytest

from bert_jax.tpu.costs.hlo import parse, trips

PAIR = "(s32[]{:T(128)}, s32[]{:T(128)})"
LOOP = f"""HloModule m

%body (p: (s32[], s32[])) -> (s32[], s32[]) {{
  %p = {PAIR} parameter(0)
  %two = s32[]{{:T(128)}} constant(2)
  %i = s32[]{{:T(128)}} get-tuple-element(%p), index=0
  %n = s32[]{{:T(128)}} get-tuple-element(%p), index=1
  %next = s32[]{{:T(128)}} add(%i, %two)
  ROOT %t = {PAIR} tuple(%next, %n)
}}

%condition (p: (s32[], s32[])) -> pred[] {{
  %p = {PAIR} parameter(0)
  %five = s32[]{{:T(128)}} constant(5)
  %i = s32[]{{:T(128)}} get-tuple-element(%p), index=0
  %n = s32[]{{:T(128)}} get-tuple-element(%p), index=1
  ROOT %lt = pred[]{{:T(512)}} compare(%i, %n), direction=LT
}}

ENTRY %main (a: s32[]) -> s32[] {{
  %a = s32[]{{:T(128)}} parameter(0)
  %start = s32[]{{:T(128)}} constant(1)
  %limit = s32[]{{:T(128)}} constant(7)
  %in = {PAIR} tuple(%start, %limit)
  ROOT %w = {PAIR} while(%in), condition=%condition, body=%body
}}
"""
"""Counts 1, 3, 5."""
FUSED = """
%fused_compare (j: s32[], m: s32[]) -> pred[] {
  %m = s32[]{:T(128)} parameter(1)
  %j = s32[]{:T(128)} parameter(0)
  %three = s32[]{:T(128)} constant(3)
  ROOT %lt = pred[]{:T(512)} compare(%j, %m), direction=LT
}

%fused_add (j: s32[]) -> s32[] {
  %j = s32[]{:T(128)} parameter(0)
  %four = s32[]{:T(128)} constant(4)
  ROOT %sum = s32[]{:T(128)} add(%j, %four)
}

"""


def trips_of(*changes: tuple[str, str]) -> int | None:
    """Returns the trips of LOOP next to FUSED, after these replacements."""
    text = LOOP.replace("%condition (", FUSED + "%condition (", 1)
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    module = parse(text)
    return trips(module, module.entry, module.entry.root)


FUSED_CONDITION = ("pred[]{:T(512)} compare(%i, %n), direction=LT", "pred[]{:T(512)} fusion(%i, %n), calls=%fused_compare")
FROM_16 = ("constant(1)", "constant(16)")
FUSED_STEP = ("add(%i, %two)", "fusion(%i), calls=%fused_add")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], 3),
        ([("condition=%condition", 'condition=%condition, backend_config={"known_trip_count":{"n":"11"}}')], 11),
        ([("compare(%i, %n), direction=LT", "compare(%i, %five), direction=LT, metadata={}")], 2),  # 1, 3
        ([("constant(1)", "constant(-2)")], 5),  # -2, 0, 2, 4, 6
        ([FUSED_CONDITION], 3),
        ([FUSED_CONDITION, ("compare(%j, %m)", "compare(%j, %three)")], 1),
        ([FUSED_STEP], 2),  # 1, 5
        # 16, 12, 8
        ([FUSED_STEP, ("add(%j, %four)", "subtract(%j, %four)"), ("%n), direction=LT", "%n), direction=GT"), FROM_16], 3),
        ([("add(%i, %two)", "subtract(%i, %two)"), ("%n), direction=LT", "%n), direction=GE"), FROM_16], 5),  # 16, 14, 12, 10, 8
        ([("tuple(%next, %n)", "tuple(%moved, %n)"), ("  ROOT %t", "  %moved = s32[]{:T(128)} copy(%next)\n  ROOT %t")], 3),
        ([("tuple(%start,", "tuple(%same,"), ("  %in =", "  %same = s32[]{:T(128)} convert(%start)\n  %in =")], 3),
    ],
)  # fmt: skip
def test_trips_follow_from_constant_counter_limit_and_step(changes: list[tuple[str, str]], expected: int):
    assert trips_of(*changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        [("condition=%condition", "condition=%gone")],
        [("body=%body", "body=%gone")],
        [("compare(%i, %n), direction=LT", "negate(%i)")],  # another condition
        [("compare(%i, %n), direction=LT", "compare(%five, %i), direction=GT")],  # the counter is on the right
        [("compare(%i, %n), direction=LT", "compare(%i, %gone), direction=LT")],
        [("pred[]{:T(512)} compare(%i, %n), direction=LT", "pred[]{:T(512)} fusion(%i, %n), calls=%gone")],
        [("constant(7)", "custom-call()")],
        [("constant(7)", "constant(7.5)")],
        [("constant(1)", "custom-call()")],
        [("tuple(%start, %limit)", "copy(%start)")],
        [("while(%in)", "while(%gone)")],
        [("tuple(%next, %n)", "copy(%p)")],
        [("tuple(%next, %n)", "tuple(%gone, %n)")],
        [("add(%i, %two)", "add(%i, %i)")],
        [("add(%i, %two)", "add(%two, %two)")],
        [("add(%i, %two)", "multiply(%i, %two)")],
        [("constant(2)", "constant(0)")],
        [("add(%i, %two)", "fusion(%i), calls=%gone")],
        [FUSED_STEP, ("add(%j, %four)", "multiply(%j, %four)")],
        [FUSED_STEP, ("  ROOT %sum", "  %more = s32[]{:T(128)} add(%j, %four)\n  ROOT %sum")],
    ],
)  # fmt: skip
def test_other_loops_have_an_unknown_number_of_trips(changes: list[tuple[str, str]]):
    assert trips_of(*changes) is None
