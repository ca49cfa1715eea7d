"""The texts of the report: one step, the whole experiment with its price, two steps compared, and refusals."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from bert_jax.aot import as_json, as_text
from bert_jax.hardware import DCN_LATENCY, ICI_EFFICIENCY, ICI_LATENCY
from bert_jax.interface.words import duration
from bert_jax.tpu.costs.compiler import Calibration, DoesNotFit
from bert_jax.tpu.costs.memory import Memory
from bert_jax.tpu.costs.step_report import (
    Step,
    _wrapped,
    comparison,
    costliest,
    record,
    refusal,
    refused,
    text,
    totals,
    totals_text,
)
from bert_jax.tpu.costs.topologies import parse_topology
from tests.tpu.costs.test_estimate import V5E, A, estimated, program, work


def one(
    cycles: int = 1_500_000, steps: int | None = 3_600_000, data: int = 16, config: str = "a.py", kind: str = "train",
    topology: str = "v5e:4x4",
) -> dict[str, Any]:  # fmt: skip
    """Returns the record of a step with this many cycles on one core and an all-reduce, on `data` devices of the topology."""
    reduce = "ROOT %r = f32[1024,1024]{1,0:T(8,128)} all-reduce(%a), replica_groups=[1,16]<=[16]"
    found = estimated(program(A, work("w", cycles), reduce))
    mesh = {"data": data, "fsdp": 1}
    step = Step(f"phase 0, {kind} step", config, kind, mesh, 16 * data, 128, data * 197e12 / 1e4, steps)
    kept = {"parameters": 2**30, "optimizer": 2**31, "padding": 0}
    memory = Memory(12 * 2**30, 16 * 2**30, kept, {"activations": 2**33}, 2**30)
    return record(step, parse_topology(topology), found, memory, Calibration(0.88, 0.57), 7.0)


def test_a_step_that_wastes_its_chips_gets_a_cheaper_suggestion():
    wasteful, single = text(one()), one(data=1)["advice"]
    advice = "at 9.1 % of peak with 16 rows of 128 tokens per chip, a larger batch or fewer chips (a smaller --topology) would"
    assert advice in " ".join(wasteful.split())
    assert "a larger batch would cost less for the same work" in single  # fewer than one chip is not possible
    better = one(cycles=100_000)
    assert better["utilisation"] > 0.2
    assert better["advice"] is None
    assert "would cost less" not in text(better)


def test_rates_are_per_chip_and_utilisation_is_relative_to_the_peak_of_all_chips():
    found = one()
    assert found["seconds"] == pytest.approx(1e-3 + 2 * (2**22 * 15 / 16 / 90e9 + 6e-6))
    assert found["utilisation"] == pytest.approx(1e-4 / found["seconds"])
    assert found["rows_per_second_per_chip"] == pytest.approx(16 / found["seconds"])
    assert found["tokens_per_second_per_chip"] == pytest.approx(128 * found["rows_per_second_per_chip"])
    assert found["hours"] == pytest.approx(1000 * found["seconds"])
    assert found["chip_hours"] == pytest.approx(16 * found["hours"])
    assert found["roofline_seconds"] == pytest.approx(1e-4)
    assert [o["name"] for o in found["operations"]] == ["w", "r"]
    assert found["roofline_utilisation"] == pytest.approx(1)
    assert (found["compile_seconds"], found["calibration"]) == (7.0, {"matmul": 0.88, "stream": 0.57})
    assert (found["memory"]["total"], found["memory"]["has"], found["memory"]["code"]) == (12 * 2**30, 16 * 2**30, 2**30)
    assert sum(found["seconds_by_kind"].values()) == pytest.approx(found["seconds"])
    assert found["memory_traffic_bytes"] == 2 * 2**22


@pytest.mark.parametrize(("devices", "chips"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_two_devices_count_as_one_chip_if_each_core_is_a_device(devices: int, chips: int):
    step = Step("phase 0, train step", "a.py", "train", {"data": devices, "fsdp": 1}, 8, 128, 1.0)
    assert (step.devices, step.chips(parse_topology("v7x:2x2x1"))) == (devices, chips)


def test_rates_of_chips_with_two_devices_are_per_chip():
    found = one(data=8, topology="v7x:2x2x1")
    assert (found["chips"], found["rows_per_chip"]) == (4, 32)
    assert found["rows_per_second_per_chip"] == pytest.approx(32 / found["seconds"])
    assert found["tokens_per_second_per_chip"] == pytest.approx(32 * 128 / found["seconds"])
    assert found["chip_hours"] == pytest.approx(4 * found["hours"])


def test_a_sweep_run_is_estimated_on_its_own_chips():
    whole, part = one(), one(data=2)
    assert part["chips"] == 2
    for rate in ("rows_per_chip", "utilisation", "rows_per_second_per_chip", "tokens_per_second_per_chip"):
        assert part[rate] == pytest.approx(whole[rate]), rate


def test_costs_are_added_up_by_place_and_evaluations_have_no_update():
    named = 'metadata={op_name="jit(step)/reduce"}, backend_config={"window_config":{"estimated_cycles":"1500"}}'
    lines = [f"%{name} = f32[1024,1024]{{1,0:T(8,128)S(1)}} negate(%a), {named}" for name in ("x", "y")]
    found = estimated(program(A, *lines, "ROOT %r = f32[1024,1024]{1,0:T(8,128)S(1)} bitcast(%y)"))
    (train,), (evaluation,) = costliest(found, "train"), costliest(found, "eval")
    assert train == {"place": "update", "kind": "compute", "seconds": pytest.approx(2e-6), "share": 1.0, "executions": 2}
    assert evaluation["place"] == "loss"
    named = named.replace("jit(step)/reduce", "jit(step)/jvp(M)/pooler/dot")
    elsewhere = estimated(program(A, f"ROOT %x = f32[1024,1024]{{1,0:T(8,128)S(1)}} negate(%a), {named}"))
    assert [costliest(elsewhere, kind)[0]["place"] for kind in ("train", "eval")] == ["pooler", "pooler"]


def test_the_twenty_costliest_operations_and_the_eight_costliest_modules_are_listed():
    def operation(n: int) -> str:
        return work(f"w{n}", 1500 * (30 - n)) + f', metadata={{op_name="jit(step)/jvp(M)/part{n}/x/dot"}}'

    found = estimated(program(A, *(operation(n) for n in range(25)), "ROOT %r = f32[1024,1024]{1,0:T(8,128)S(1)} bitcast(%w0)"))
    step = Step("phase 0, train step", "a.py", "train", {"data": 1}, 8, 128, 1.0, 5)
    memory = Memory(2**30, 2**34, {}, {}, 0)
    whole = record(step, V5E, found, memory, Calibration(0.9, 0.9), 7.0)
    assert [o["name"] for o in whole["operations"]] == [f"w{n}" for n in range(20)]
    assert [o["place"] for o in whole["places"]] == [f"part{n}/x" for n in range(20)]
    said = text(whole)
    modules = said.partition("share of the time: ")[2].partition("\n\n")[0].split(",")
    assert [module.split()[0] for module in modules] == [f"part{n}/x" for n in range(8)]
    assert "1 chip, mesh one device, 8 rows of 128 tokens per step, 8 per chip" in said
    assert "network     no collectives" in said
    assert "temporaries, GiB: 0.00;" in said


def test_long_lines_are_wrapped_between_words_and_indented():
    lines = _wrapped("method", " ".join("a" * 120))
    assert lines[0] == "method      " + " ".join("a" * 53)
    assert lines[1] == " " * 12 + " ".join("a" * 53)
    assert [len(line) for line in lines] == [117, 117, 12 + 27]
    assert _wrapped("", "a" * 100 + " two-words 5 %") == [" " * 12 + "a" * 100, " " * 12 + "two-words 5 %"]
    assert _wrapped("", "a" * 104 + " 5 %") == [" " * 12 + "a" * 104, " " * 12 + "5 %"], "a percentage is not split over lines"


def test_the_text_has_memory_time_network_and_unmodelled_effects():
    found = one()
    said = text(found)
    assert "fits: 12.00 of 16 GiB per device (75 %)" in said
    assert "arguments, GiB: parameters 1.00, optimizer 2.00\n" in said
    assert "temporaries, GiB: activations 8.00; program code 1.00" in said
    assert "time        1.1 ms per step, estimated (compute 1.0, collective 0.1); lower bound 0.1 (roofline)" in said
    assert "utilisation 9.1 % of peak bf16 FLOP/s, estimated" in said
    assert "all-reduce: 1 per step, 7.9 MB sent per device, 0.1 ms" in said
    assert "8,192^3 at 88 % of peak" in said
    assert "modules     share of the time: (unnamed) 100.0 %\n" in said
    assert "not modelled: " in said
    assert "16 chips, mesh data=16, 256 rows of 128 tokens per step, 16 per chip" in said
    assert "mesh data=2, 32 rows" in text(one(data=2))
    assert "chips reach over 80 %, so the estimate is too long" in " ".join(said.split())
    assert "compilation 7 s" in said
    rates = found["rows_per_second_per_chip"], found["tokens_per_second_per_chip"]
    assert f"speed       {rates[0]:,.1f} rows/s, {rates[1]:,.0f} tokens/s per chip" in said
    assert "upper bound 100.0 %; 3.15e+11 model FLOPs per step" in said


def test_times_and_sizes_that_round_to_zero_are_left_out():
    found = one()
    found["seconds_by_kind"] = {"kernel": 4e-5, "memory": 6e-5, "compute": 1e-3}
    found["memory"]["temporaries"] = {"activations": 5_370_000, "gradients": 5_360_000}
    said = text(found)
    assert "estimated (compute 1.0, memory 0.1); lower" in said
    assert "temporaries, GiB: activations 0.01; program" in said


def test_collectives_are_listed_longest_first_with_traffic_between_slices():
    found = one()
    sums = {"count": 2.0, "payload": 1e6, "sent": 3e6, "sent_between_slices": 1.5e6, "seconds": 0.5e-3}
    found["collectives"] = {"all-gather": sums, "all-reduce": sums | {"sent_between_slices": 0.0, "seconds": 1e-3}}
    lines = text(found).splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("network"))
    hidden = "(with the part hidden by compute)"
    assert lines[first] == f"network     all-reduce: 2 per step, 3.0 MB sent per device, 1.0 ms {hidden}"
    assert lines[first + 1] == (
        f"            all-gather: 2 per step, 3.0 MB sent per device, of which 1.5 MB between slices, 0.5 ms {hidden}"
    )


def test_the_text_lists_the_operations_with_their_places():
    lines = text(one()).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("costliest operations"))
    assert lines[start].split() == ["costliest", "operations", "kind", "ms", "share", "count", "module"]
    found = one()["operations"][0]
    assert lines[start + 1].split() == ["w", "compute", "1.000", f"{100 * found['share']:.1f}", "%", "1", found["place"]]
    assert len(lines[start + 1 : lines.index("", start)]) == 2
    assert sum(operation["share"] for operation in one()["operations"]) == pytest.approx(1)


def test_the_report_states_its_method_with_the_figures_of_the_network():
    found = one()
    latencies = f"with {1e6 * ICI_LATENCY:g} us per hop and {1e6 * DCN_LATENCY:g} us per exchange"
    assert f"{ICI_EFFICIENCY:g} of their published rate, {latencies}" in found["method"]
    assert " ".join(["method", *found["method"].split()]) in " ".join(text(found).split())
    assert any("kernels" in what and "optimistic" in what for what in found["not_modelled"])


def test_memory_pessimism_is_claimed_only_if_the_calibration_shows_it():
    pessimistic = "the true time probably lies between the roofline and the estimate"
    assert pessimistic in " ".join(text(one()).split())
    said = " ".join(text(one() | {"calibration": {"matmul": 0.9, "stream": 0.85}}).split())
    assert pessimistic not in said
    assert "at 85 % of the memory bandwidth; the true time is longer by the effects that are not modelled" in said


def test_a_small_model_has_no_empty_lines_of_figures():
    found = one()
    found["memory"]["arguments"] = {"parameters": 2**20}
    assert "arguments" not in text(found)
    assert "temporaries, GiB: activations 8.00" in text(found)


def test_unreadable_loops_and_kernels_are_reported():
    assert "too short" not in text(one())
    said = " ".join(text(one() | {"unread_loops": 2, "uncounted_collectives": 1}).split())
    assert "the estimate is too short: 2 loops of unknown trip count, counted as one trip; 1 collective that could not" in said
    assert "without a schedule" not in said
    said = " ".join(text(one() | {"unknown_kernels": 3}).split())
    assert "the estimate is too short: 3 kernels without a schedule, counted as memory traffic compilation" in said


def test_an_experiment_costs_the_sum_of_its_phases():
    both = [one(), one(cycles=3_000_000)]
    whole = totals(both, 1.5)
    assert whole["chip_hours"] == pytest.approx(both[0]["chip_hours"] + both[1]["chip_hours"])
    assert whole["cost"] == pytest.approx(1.5 * whole["chip_hours"])
    assert "cost" not in totals(both, None)
    table = totals_text(both, 1.5).splitlines()
    assert table[-1].split()[-1] == f"{whole['cost']:,.2f}"
    assert " ".join(table[0].split()) == "experiment steps ms per step time chip-hours cost at 1.5"
    each, spent, second = (f"{1e3 * both[0]['seconds']:.1f}", both[0]["chip_hours"], both[0]["seconds"])
    time = duration(3_600_000 * second)
    row = ["phase", "0,", "train", "step", "3,600,000", each, time, f"{spent:,.1f}", f"{1.5 * spent:,.2f}"]
    assert table[1].split() == row
    assert table[-1].split()[:3] == ["all", "7,200,000", duration(3600 * whole["hours"])]
    assert whole["hours"] == both[0]["hours"] + both[1]["hours"]
    assert "cost" not in totals_text(both, None)
    assert totals_text(both, None).splitlines()[1].split() == row[:-1]
    assert len(totals_text(both[:1], None).splitlines()) == 2  # without a sum of one


def test_an_unknown_number_of_steps_is_reported():
    unknown = one(steps=None, kind="eval")
    assert (unknown["hours"], unknown["chip_hours"]) == (None, None)
    assert totals([unknown], 1.5) == {"hours": None, "chip_hours": None, "price": 1.5, "cost": None}
    assert totals_text([unknown], 1.5).endswith("depends on the data; give --rows=N, the number of held-out rows")
    assert "number of training examples" in totals_text([one(steps=None, kind="finetune")], None)
    assert comparison([unknown, unknown]).splitlines()[8].split() == ["chip-hours", "-", "-"]


def test_a_comparison_is_relative_to_the_first_experiment():
    lines = comparison([one(), one(cycles=3_000_000)]).splitlines()
    (ratio,) = [line.split()[-2:] for line in lines if "relative to [1]" in line]
    assert ratio == ["1.00", "0.52"]
    assert lines[0].split() == ["[1]", "a.py", "[2]", "a.py"]
    assert comparison([one(config="x/" + "a" * 40), one()]).splitlines()[0].split()[1] == "a" * 22
    table = {line[:26].strip(): line[26:].split() for line in comparison([one(), unfit("b.py")]).splitlines()[1:]}
    figures = {"memory, GiB": "12.00", "ms per step": "1.1", "ms compute": "1.0", "ms collective": "0.1", "compilation, s": "7"}
    figures |= {"MB sent per device": "7.9", "utilisation, %": "9.1", "rows/s relative to [1]": "1.00"}
    for name, figure in figures.items():
        assert table[name] == [figure, "-"], name
    assert table["rows per chip x tokens"] == ["16", "x", "128", "-"]


def unfit(config: str = "a.py", remedies: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the record of a step that does not fit."""
    step = Step("phase 0, train step", config, "train", {"data": 16, "fsdp": 1}, 4096, 512, 1.0, 5)
    arguments = {"parameters": 3 * 2**29, "optimizer": 2**31, "batch": 2**10}
    return refused(step, parse_topology("v5e:4x4"), DoesNotFit(20 * 2**30, 16 * 2**30, "hbm"), arguments, remedies)


def test_a_step_that_does_not_fit_is_refused_with_figures_and_remedies():
    found = unfit(remedies=("--config.mesh.fsdp=2 (9.0 GiB)",))
    said = refusal(found)
    needs = "needs 20.00 GiB of HBM, but there are 16.00 GiB per device"
    assert f"does not fit. It {needs}, with 4,096 rows of 512 tokens per step, 256 per chip." in said
    assert "The arguments of the step take, in GiB: parameters 1.50, optimizer 2.00; temporaries" in said
    assert said.endswith(
        "\nIt fits with any one of these changes (compiled with model.scan_layers=true, where it is allowed):\n"
        "    --config.mesh.fsdp=2 (9.0 GiB)"
    )
    assert (found["needs_bytes"], found["has_bytes"], found["steps"]) == (20 * 2**30, 16 * 2**30, 5)
    assert refusal(unfit()).endswith("Use more chips, chips with more memory, or fewer rows.")
    small = found | {"memory": {"arguments": {"parameters": 1}}}
    assert "The arguments" not in refusal(small)


def test_parts_without_a_comparison_are_reported():
    options = argparse.Namespace(price=None)
    pair = as_text([[one()], [one(config="b.py")]], options)
    assert "rows/s relative to [1]" in pair[-1]
    lonely = as_text([[one(), one()], [one(config="b.py")]], options)
    assert lonely[-1] == "not compared: b.py has no phase 0, train step, which a.py has"
    assert "rows/s relative to [1]" in lonely[-2]
    without = as_text([[unfit()], [one(config="b.py")]], options)
    assert without[-1].startswith("not compared: the phase 0, train step of a.py, the reference, does not fit")
    assert "rows/s relative to [1]" in as_text([[one()], [unfit("b.py")]], options)[-1]


def test_json_has_null_for_unknown_values():
    whole = as_json([[one(steps=None)], [unfit()]], argparse.Namespace(price=2.0))
    assert whole["experiments"][0]["total"]["cost"] is None
    assert whole["experiments"][1]["total"] is None
