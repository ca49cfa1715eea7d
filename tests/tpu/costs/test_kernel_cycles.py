"""Schedules of Pallas kernels: bundles times the trips of the enclosing loops."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from bert_jax.tpu.costs.hlo import parse
from bert_jax.tpu.costs.kernel_cycles import READER, kernel_calls, kernel_schedules, read_schedule
from bert_jax.tpu.costs.topologies import parse_topology

# The structure of a real schedule: a loop over the grid with its pipeline's two extra trips, a loop inside, and a branch with
# its delay slots.
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


def test_cycles_are_bundles_times_trips_of_nested_loops():
    found = read_schedule(SCHEDULE)
    assert found.trips == (64, 5)  # the grid's exit test counts two more than the number of steps
    assert found.bundles == 13
    assert found.cycles == 3 + 64 * (7 + 5 * 3)
    assert found.unread_loops == 0


def test_delay_slots_of_the_back_branch_belong_to_the_loop():
    slots = "   0xc   : > { %s9 = smov %s4 }\n   0xd   :  { %21 = vsyncpa [#allocation3], 1 }"
    found = read_schedule(SCHEDULE.replace("   0xc   :  { %21 = vsyncpa [#allocation3], 1 }", slots))
    assert (found.trips, found.unread_loops) == ((64, 5), 0)
    assert found.cycles == 3 + 64 * (8 + 5 * 3)


def test_instructions_moved_into_a_loop_do_not_end_it():
    moved = "   0x8   : > { %22 = vst [vmem:%s8] (%p55_p6), %v1 }\n   0x8   : >> { %p55_p6"
    found = read_schedule(SCHEDULE.replace("   0x8   : >> { %p55_p6", moved))
    assert (found.trips, found.unread_loops) == ((64, 5), 0)
    assert found.cycles == 3 + 64 * (7 + 5 * 4)


def test_the_exit_test_of_an_outer_loop_may_be_in_an_inner_one():
    early = "%p55_p6 = scmp.ge.s32.totalorder %s30_s6, 5  ;;  %p18_p2 = scmp.ge.s32.totalorder (%p55_p6), %s4, 66 }"
    text = SCHEDULE.replace("%p18_p2 = scmp.ge.s32.totalorder %s4, 66 /* loop exit test */", "%s8 = smov 0")
    found = read_schedule(text.replace("%p55_p6 = scmp.ge.s32.totalorder %s30_s6, 5 }", early))
    assert (found.trips, found.unread_loops) == ((64, 5), 0)


def test_a_loop_without_a_constant_limit_counts_once_and_is_reported():
    found = read_schedule(SCHEDULE.replace("%s30_s6, 5 }", "%s30_s6, %s31 }"))
    assert (found.trips, found.unread_loops) == ((64, 1), 1)


@pytest.mark.parametrize(
    ("change", "trips"),
    [
        (("%s4, 66 /*", "%s4, 3 /*"), (1, 5)),
        (("%s4, 66 /*", "%s4, 2 /*"), (1, 5)),  # a grid without steps still runs once
        (("%s30_s6 = sadd.s32 1, %s27", "%s30_s6 = sadd.s32 2, %s27"), (64, 3)),
        (("%s30_s6 = sadd.s32 1, %s27", "%s30_s6 = sadd.s32 %s27, %s8"), (64, 5)),
    ],
)
def test_a_loop_runs_until_its_counter_reaches_the_limit(change: tuple[str, str], trips: tuple[int, ...]):
    assert SCHEDULE.count(change[0]) == 1
    found = read_schedule(SCHEDULE.replace(*change))
    assert (found.trips, found.cycles) == (trips, 3 + trips[0] * (7 + trips[1] * 3))


def test_loops_may_follow_and_contain_loops():
    """After the inner loop of five trips comes one of seven, which contains another of two trips with two bundles."""
    begin, end = SCHEDULE.split("   0xa PF: > {")
    after = """   0x7 LB: >> { %s31 = sadd.s32 1, %s28 }
   0x8   : >> { %p56 = scmp.ge.s32.totalorder %s31, 7 }
   0x8 LB: >>> { %s32 = sadd.s32 1, %s29 }
   0x8   : >>> { %p57 = scmp.ge.s32.totalorder %s32, 2  ;;  %235 = sbr.rel (!%p57) target = $region95 }
   0x9   : >> { %236 = sbr.rel (!%p56) target = $region94 }
"""
    found = read_schedule(f"{begin}{after}   0xa PF: > {{{end}")
    assert (found.trips, found.unread_loops, found.bundles) == ((64, 5, 7, 2), 0, 18)
    assert found.cycles == 3 + 64 * (7 + 5 * 3 + 7 * (3 + 2 * 2))


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


OTHERS = CALL.replace("QUJD", "REVG", 1).replace(
    "  ROOT",
    '  %c = f32[8,128]{1,0:T(8,128)} custom-call(%a), custom_call_target="Sharding", backend_config={"body":"R0hJ"}\n  ROOT',
)
"""Two different kernels, and a call that is not a kernel."""


def test_equal_kernels_are_compiled_once_with_their_own_configuration():
    calls = kernel_calls(parse(CALL))
    assert list(calls) == ["QUJD"]
    assert calls["QUJD"]["results"] == [("f32", (8, 128))]
    assert list(kernel_calls(parse(OTHERS))) == ["REVG", "QUJD"]
    own = {"body": "QUJD", "needs_layout_passes": True, "serialization_format": 1}
    assert json.loads(calls["QUJD"]["config"]) == {"custom_call_config": own}
    assert calls["QUJD"]["operands"] == [("bf16", (8, 128))]


def test_a_kernel_that_cannot_be_compiled_alone_is_missing_and_not_cached(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "executable", "false")
    assert kernel_schedules(parse(OTHERS), parse_topology("v5e:4x4"), "1", tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def answer(monkeypatch: pytest.MonkeyPatch, *schedules: str | None) -> list[tuple[int, str]]:
    """Makes the process that compiles kernels answer with these texts. Returns what it is asked: number of kernels, topology."""
    asked: list[tuple[int, str]] = []

    def run(command: list[str], *, input: str, **more: Any) -> subprocess.CompletedProcess[str]:
        asked.append((len(json.loads(input)), command[-1]))
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps(schedules))

    monkeypatch.setattr(subprocess, "run", run)
    return asked


@pytest.mark.parametrize("cache", ["its own", "given"])
def test_a_cached_schedule_is_not_compiled_again(cache: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    shorter = SCHEDULE.replace("%s4, 66", "%s4, 10")
    schedules = {"REVG": read_schedule(shorter), "QUJD": read_schedule(SCHEDULE)}
    asked = answer(monkeypatch, shorter, SCHEDULE)
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "a" / "b"))
    directory = None if cache == "its own" else tmp_path / "c" / "d"
    for _ in range(2):
        assert kernel_schedules(parse(OTHERS), parse_topology("v5e:4x4"), "1", directory) == schedules
    assert asked == [(2, "v5e:2x2")]
    assert len(list((directory or tmp_path / "a" / "b" / "kernels").iterdir())) == 2
    for name, version in (("v6e:2x2", "1"), ("v5e:2x2", "2")):
        kernel_schedules(parse(OTHERS), parse_topology(name), version, directory)
        assert asked[-1] == (2, name), "of another chip or compiler"
    assert len(asked) == 3


def test_every_kernel_gets_a_schedule_or_none(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    answer(monkeypatch)
    with pytest.raises(ValueError, match="shorter"):
        kernel_schedules(parse(CALL), parse_topology("v5e:4x4"), "1", tmp_path)


@pytest.mark.parametrize(("name", "one"), [("v5e:4x4", "v5e:2x2"), ("v5p:4x4x4", "v5p:2x2x1")])
def test_the_kernel_compiler_process_can_import_this_package(
    name: str, one: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def run(command: list[str], *, input: str, env: dict[str, str], **more: Any) -> Any:
        assert command[1:] == ["-m", "bert_jax.tpu.costs.kernel_compiler", one]
        assert [call["operands"] for call in json.loads(input)] == [[["bf16", [8, 128]]]] * 2
        assert (pathlib.Path(env["PYTHONPATH"].split(os.pathsep)[0]) / "bert_jax" / "tpu" / "costs").is_dir()
        assert set(os.environ) <= set(env)
        assert more == {"capture_output": True, "text": True, "check": False}
        return subprocess.CompletedProcess(command, 0, stdout="a word\n" + json.dumps([SCHEDULE, None]) + "\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert kernel_schedules(parse(OTHERS), parse_topology(name), "1", tmp_path) == {"REVG": read_schedule(SCHEDULE)}


def test_schedules_cached_by_an_older_reader_are_ignored(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    asked = answer(monkeypatch, SCHEDULE)
    for reader in (READER, READER + 1, READER + 1):
        monkeypatch.setattr("bert_jax.tpu.costs.kernel_cycles.READER", reader)
        assert kernel_schedules(parse(CALL), parse_topology("v5e:4x4"), "1", tmp_path) == {"QUJD": read_schedule(SCHEDULE)}
    assert len(asked) == 2
