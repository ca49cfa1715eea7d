"""What a person reads: one step, the whole experiment with its price, two steps side by side, and refusals."""

from __future__ import annotations

import types
from typing import Any

import pytest

from bert_jax.aot import as_json, as_text, parse
from bert_jax.costs.calibration import Calibration
from bert_jax.costs.cases import Case, cases
from bert_jax.costs.chips import DCN_LATENCY, ICI_EFFICIENCY, ICI_LATENCY
from bert_jax.costs.compiling import DoesNotFit
from bert_jax.costs.memory import Memory
from bert_jax.costs.report import Step, comparison, costliest, record, refusal, refused, text, totals, totals_text
from bert_jax.costs.topologies import parse_topology
from bert_jax.errors import UserError
from tests.costs.test_estimate import A, estimated, program, work

BASE = "experiments/pretrain/bert_base.py"
MRPC = "--config=experiments/finetune/glue.py:mrpc"


def one(
    cycles: int = 1_500_000, steps: int | None = 3_600_000, data: int = 16, config: str = "a.py", kind: str = "train"
) -> dict[str, Any]:
    """A record of a step of so many cycles on one core and an all-reduce, on `data` of 16 chips."""
    reduce = "ROOT %r = f32[1024,1024]{1,0:T(8,128)} all-reduce(%a), replica_groups=[1,16]<=[16]"
    found = estimated(program(A, work("w", cycles), reduce))
    mesh = {"data": data, "fsdp": 1}
    step = Step(f"phase 0, {kind} step", config, kind, mesh, 16 * data, 128, data * 197e12 / 1e4, steps)
    kept = {"parameters": 2**30, "optimizer": 2**31, "padding": 0}
    memory = Memory(12 * 2**30, 16 * 2**30, kept, {"activations": 2**33}, 2**30)
    return record(step, parse_topology("v5e:4x4"), types.SimpleNamespace(seconds=7.0), found, memory, Calibration(0.88, 0.57))  # type: ignore[arg-type]


def test_rates_are_per_chip_and_utilisation_is_of_all_chips_peak():
    found = one()
    assert found["seconds"] == pytest.approx(1e-3 + 2 * (2**22 * 15 / 16 / 90e9 + 6e-6))
    assert found["utilisation"] == pytest.approx(1e-4 / found["seconds"])
    assert found["rows_per_second_per_chip"] == pytest.approx(16 / found["seconds"])
    assert found["tokens_per_second_per_chip"] == pytest.approx(128 * found["rows_per_second_per_chip"])
    assert found["hours"] == pytest.approx(1000 * found["seconds"])
    assert found["chip_hours"] == pytest.approx(16 * found["hours"])
    assert found["roofline_seconds"] == pytest.approx(1e-4)
    assert [o["name"] for o in found["operations"]] == ["w", "r"]


def test_a_run_of_a_sweep_is_reckoned_on_its_own_chips():
    whole, part = one(), one(data=2)
    assert part["chips"] == 2
    for rate in ("rows_per_chip", "utilisation", "rows_per_second_per_chip", "tokens_per_second_per_chip"):
        assert part[rate] == pytest.approx(whole[rate]), rate


def test_the_costliest_places_add_up_what_lies_there_and_an_evaluation_updates_nothing():
    named = 'metadata={op_name="jit(step)/reduce"}, backend_config={"window_config":{"estimated_cycles":"1500"}}'
    lines = [f"%{name} = f32[1024,1024]{{1,0:T(8,128)S(1)}} negate(%a), {named}" for name in ("x", "y")]
    found = estimated(program(A, *lines, "ROOT %r = f32[1024,1024]{1,0:T(8,128)S(1)} bitcast(%y)"))
    (train,), (evaluation,) = costliest(found, "train"), costliest(found, "eval")
    assert train == {"place": "update", "kind": "compute", "seconds": pytest.approx(2e-6), "share": 1.0, "executions": 2}
    assert evaluation["place"] == "loss"


def test_the_text_has_memory_time_network_and_what_is_not_modelled():
    said = text(one())
    assert "fits: 12.00 of 16 GiB per device (75 %)" in said
    assert "arguments, GiB: parameters 1.00, optimizer 2.00\n" in said
    assert "temporaries, GiB: activations 8.00; program code 1.00" in said
    assert "time        1.1 ms per step, estimated (compute 1.0, collective 0.1); lower bound 0.1 (roofline)" in said
    assert "utilisation 9.1 % of peak bf16 FLOP/s, estimated" in said
    assert "all-reduce: 1 per step, 7.9 MB sent per device, 0.1 ms" in said
    assert "8,192^3 at 88 % of peak" in said
    assert "modules     share of the time: (unnamed) 100.0 %\n" in said
    assert "not modelled: " in said


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


def test_pessimism_about_memory_is_claimed_only_where_the_calibration_shows_it():
    pessimistic = "the true time probably lies between the roofline and the estimate"
    assert pessimistic in " ".join(text(one()).split())
    said = " ".join(text(one() | {"calibration": {"matmul": 0.9, "stream": 0.85}}).split())
    assert pessimistic not in said
    assert "at 85 % of the memory bandwidth; the true time is longer by what is not modelled" in said


def test_a_small_model_has_no_line_of_empty_figures():
    found = one()
    found["memory"]["arguments"] = {"parameters": 2**20}
    assert "arguments" not in text(found)
    assert "temporaries, GiB: activations 8.00" in text(found)


def test_loops_and_kernels_that_could_not_be_read_are_admitted():
    assert "too short" not in text(one())
    said = " ".join(text(one() | {"unread_loops": 2, "uncounted_collectives": 1}).split())
    assert "the estimate is too short: 2 loops of unknown trip count, counted as one trip; 1 collective that could not" in said
    assert "without a schedule" not in said


def test_an_experiment_costs_the_sum_of_its_phases():
    both = [one(), one(cycles=3_000_000)]
    whole = totals(both, 1.5)
    assert whole["chip_hours"] == pytest.approx(both[0]["chip_hours"] + both[1]["chip_hours"])
    assert whole["cost"] == pytest.approx(1.5 * whole["chip_hours"])
    assert "cost" not in totals(both, None)
    table = totals_text(both, 1.5).splitlines()
    assert table[-1].split()[-1] == f"{whole['cost']:,.2f}"
    assert len(totals_text(both[:1], None).splitlines()) == 2  # without a sum of one


def test_a_number_of_steps_that_is_not_known_is_neither_zero_nor_silent():
    unknown = one(steps=None, kind="eval")
    assert (unknown["hours"], unknown["chip_hours"]) == (None, None)
    assert totals([unknown], 1.5) == {"hours": None, "chip_hours": None, "price": 1.5, "cost": None}
    assert totals_text([unknown], 1.5).endswith("depends on the data; give --rows=N, the number of held-out rows")
    assert "number of training examples" in totals_text([one(steps=None, kind="finetune")], None)
    assert comparison([unknown, unknown]).splitlines()[8].split() == ["chip-hours", "-", "-"]


def steps_of(rows: int, *flags: str) -> tuple[int | None, str]:
    """(steps, what they cover) of the only step that a command line asks for, on a program of so many rows."""
    (case,) = wanted("--topology=v5e:2x2", *flags)
    mesh = types.SimpleNamespace(shape={"data": 4})
    step = case.step(types.SimpleNamespace(mesh=mesh, rows=rows, length=128, flops=1.0))  # type: ignore[arg-type]
    return step.steps, step.covers


def test_rows_give_the_steps_of_a_pass():
    evaluation = (f"--config={BASE}", "--phase=0", "--step=eval")
    assert steps_of(256, *evaluation) == (None, "")
    assert steps_of(256, *evaluation, "--rows=10000") == (40, "1 pass, 10,000 rows")
    task = MRPC
    assert steps_of(32, task)[0] is None
    assert steps_of(32, task, "--rows=3668", "--config.training.epochs=2") == (2 * 115, "2 epochs, 3,668 examples")
    grid = ("--config=experiments/finetune/grid.py:rte", "--config.sweep.epochs=[2,4]", "--config.sweep.batch_sizes=[16,32]")
    assert steps_of(32, *grid, "--rows=3668")[0] == 4 * 115
    assert steps_of(16, f"--config={BASE}", "--phase=0") == (900_000, "experiment")


def test_a_comparison_takes_the_first_as_the_measure():
    lines = comparison([one(), one(cycles=3_000_000)]).splitlines()
    (ratio,) = [line.split()[-2:] for line in lines if "relative to [1]" in line]
    assert ratio == ["1.00", "0.52"]


def unfit(config: str = "a.py", remedies: tuple[str, ...] = ()) -> dict[str, Any]:
    """The record of a step that does not fit."""
    step = Step("phase 0, train step", config, "train", {"data": 16, "fsdp": 1}, 4096, 512, 1.0, 5)
    arguments = {"parameters": 3 * 2**29, "optimizer": 2**31, "batch": 2**10}
    return refused(step, parse_topology("v5e:4x4"), DoesNotFit(20 * 2**30, 16 * 2**30, "hbm"), arguments, remedies)


def test_a_step_that_does_not_fit_is_refused_with_figures_and_remedies():
    found = unfit(remedies=("--config.mesh.fsdp=2 (9.0 GiB)",))
    said = refusal(found)
    needs = "needs 20.00 GiB of HBM, and there are 16.00 GiB per device"
    assert f"does not fit. It {needs}, with 4,096 rows of 512 tokens per step, 256 per chip." in said
    assert "The arguments of the step take, in GiB: parameters 1.50, optimizer 2.00; temporaries" in said
    assert said.endswith("    --config.mesh.fsdp=2 (9.0 GiB)")
    assert refusal(unfit()).endswith("Use more chips, chips with more memory, or fewer rows.")
    small = found | {"memory": {"arguments": {"parameters": 1}}}
    assert "The arguments" not in refusal(small)


def test_what_is_not_compared_is_said():
    options = types.SimpleNamespace(price=None)
    pair = as_text([[one()], [one(config="b.py")]], options)
    assert "rows/s relative to [1]" in pair[-1]
    lonely = as_text([[one(), one()], [one(config="b.py")]], options)
    assert lonely[-1] == "not compared: b.py has no step to compare with the phase 0, train step of a.py"
    assert "rows/s relative to [1]" in lonely[-2]
    without = as_text([[unfit()], [one(config="b.py")]], options)
    assert without[-1].startswith("not compared: the phase 0, train step of a.py, the reference, does not fit")
    assert "rows/s relative to [1]" in as_text([[one()], [unfit("b.py")]], options)[-1]


def test_json_has_null_for_what_is_not_known():
    whole = as_json([[one(steps=None)], [unfit()]], types.SimpleNamespace(price=2.0))
    assert whole["experiments"][0]["total"]["cost"] is None
    assert whole["experiments"][1]["total"] is None


def wanted(*flags: str) -> list[Case]:
    """The steps that a command line asks for."""
    options, overrides, _ = parse(flags)
    return cases(options.config, overrides, options)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([f"--config={BASE}"], "--topology is missing, for example --topology=v5e:4x4"),
        (["--topology=v5e:4x4"], "--config is missing"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--step=trian"], "--step=trian is unknown: did you mean 'train'"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--price=-1"], "--price=-1 must be at least 0"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--against.seed=1"], "--against.seed sets a key of --against"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--phase=7"], "has the phases 0 to 1"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--step=finetune"], "--step=finetune, but .* pretrains"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--step=eval", "--rows=0"], "--rows=0 must be at least 1"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--rows=9"], "--rows=9, but .* has the number of steps"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--step=eval", "--save=x"], "--save=x saves .* no command loads the eval"),
        ([MRPC, "--topology=v5e:1x1", "--save=x"], "no command loads the finetune step of"),
        ([MRPC, "--topology=v5e:1x1", "--phase=0"], "--phase=0, but .* fine-tunes and has no phases"),
        ([MRPC, "--topology=v5e:1x1", "--step=eval"], "fine-tunes and has only the step finetune"),
        ([MRPC, "--topology=v5e:1x1", "--config.phases.0.length=8"], "there is no 'phases'"),
    ],
)
def test_a_wrong_flag_is_an_error_that_names_it(flags: list[str], says: str):
    with pytest.raises(UserError, match=says):
        wanted(*flags)


def test_all_phases_are_examined_unless_one_is_named():
    base = (f"--config={BASE}", "--topology=v5e:4x4")
    assert [(case.phase, case.kind) for case in wanted(*base)] == [(0, "train"), (1, "train")]
    assert [(case.phase, case.kind) for case in wanted(*base, "--phase=1", "--step=eval")] == [(1, "eval")]
