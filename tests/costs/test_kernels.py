"""Schedules of Pallas kernels: bundles times the trips of the loops around them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys

import pytest

from bert_jax.costs.hlo import parse
from bert_jax.costs.kernels import READER, Schedule, kernel_calls, read_schedule, schedules_of
from bert_jax.costs.topologies import parse_topology

# The shape of a real one: a loop over the grid with its pipeline's two extra trips, a loop inside, a branch with its delay slots.
SCHEDULE = """= control target key start
LB: loop body
= control target key end

     0   :  { %s1 = smov 0 }
   0x1   :  { %s2 = smov 0 }
   0x2 LB: > { %s3 = sadd.s32 4294967295, %s9 /* iteration index, stage = 1 */ }
   0x3   : > { %s4 = sadd.s32 1, %s9  ;;  %p5 = scmp.ge.s32.totalorder %s9, 1 }
   0x4   : > { %147 = sbr.rel (%p5) target = $region28 }
   0x5   :  {}
   0x6   :  {} /* End region 26 */
   0x7 LB: >> { %s30_s6 = sadd.s32 1, %s27 }
   0x8   : >> { %p55_p6 = scmp.ge.s32.totalorder %s30_s6, 5 }
   0x9   : >> { %234 = sbr.rel (!%p55_p6) target = $region93 }
   0xa PF: > { %p18_p2 = scmp.ge.s32.totalorder %s4, 66 /* loop exit test */ }
   0xb   :  { %20 = sbr.rel (!%p18_p2) target = $region104 }
   0xc   :  { %21 = vsyncpa [#allocation3], 1 }
"""


def test_cycles_are_bundles_times_trips_of_loops_in_loops():
    found = read_schedule(SCHEDULE)
    assert found.trips == (64, 5)  # the grid's exit test counts two more than it has steps
    assert found.bundles == 13
    assert found.cycles == 3 + 64 * (7 + 5 * 3)
    assert found.unread_loops == 0


def test_what_stands_in_the_delay_slots_of_the_branch_back_belongs_to_the_loop():
    slots = "   0xc   : > { %s9 = smov %s4 }\n   0xd   :  { %21 = vsyncpa [#allocation3], 1 }"
    found = read_schedule(SCHEDULE.replace("   0xc   :  { %21 = vsyncpa [#allocation3], 1 }", slots))
    assert (found.trips, found.unread_loops) == ((64, 5), 0)
    assert found.cycles == 3 + 64 * (8 + 5 * 3)


def test_a_loop_without_a_constant_limit_counts_once_and_is_reported():
    found = read_schedule(SCHEDULE.replace("%s30_s6, 5 }", "%s30_s6, %s31 }"))
    assert (found.trips, found.unread_loops) == ((64, 1), 1)


def test_a_text_without_bundles_is_refused():
    with pytest.raises(ValueError, match="no bundles"):
        read_schedule("nothing\n")


CALL = """HloModule m

ENTRY %main (a: bf16[8,128]) -> f32[8,128] {
  %a = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %k.1 = f32[8,128]{1,0:T(8,128)} custom-call(%a), custom_call_target="tpu_custom_call", backend_config={"flag_configs":[],\
"custom_call_config":{"body":"QUJD","needs_layout_passes":true,"allow_input_fusion":[],"serialization_format":"1"}}
  ROOT %k.2 = f32[8,128]{1,0:T(8,128)} custom-call(%a), custom_call_target="tpu_custom_call", backend_config={"flag_configs":[],\
"custom_call_config":{"body":"QUJD","needs_layout_passes":true,"allow_input_fusion":[],"serialization_format":"1"}}
}
"""


def test_equal_kernels_are_compiled_once_with_their_own_configuration():
    calls = kernel_calls(parse(CALL))
    assert list(calls) == ["QUJD"]
    own = {"body": "QUJD", "needs_layout_passes": True, "serialization_format": 1}
    assert json.loads(calls["QUJD"]["config"]) == {"custom_call_config": own}
    assert calls["QUJD"]["operands"] == [("bf16", (8, 128))]


def test_a_kernel_that_cannot_be_compiled_alone_is_missing_and_not_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "false")
    assert schedules_of(parse(CALL), parse_topology("v5e:4x4"), "1", tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_that_was_kept_is_not_compiled_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    wanted = read_schedule(SCHEDULE)
    monkeypatch.setattr("bert_jax.costs.kernels._compile", lambda calls, topology: [wanted])
    assert schedules_of(parse(CALL), parse_topology("v5e:4x4"), "1", tmp_path) == {"QUJD": wanted}
    monkeypatch.setattr("bert_jax.costs.kernels._compile", lambda calls, topology: pytest.fail("compiled again"))
    assert schedules_of(parse(CALL), parse_topology("v5e:4x4"), "1", tmp_path) == {"QUJD": dataclasses.replace(wanted)}


def test_a_schedule_that_an_older_reader_kept_is_not_taken(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    old, new = Schedule(1, 1, ()), Schedule(1, 2, ())
    monkeypatch.setattr("bert_jax.costs.kernels._compile", lambda calls, topology: [old])
    assert schedules_of(parse(CALL), parse_topology("v5e:4x4"), "1", tmp_path) == {"QUJD": old}
    monkeypatch.setattr("bert_jax.costs.kernels.READER", READER + 1)
    monkeypatch.setattr("bert_jax.costs.kernels._compile", lambda calls, topology: [new])
    assert schedules_of(parse(CALL), parse_topology("v5e:4x4"), "1", tmp_path) == {"QUJD": new}
