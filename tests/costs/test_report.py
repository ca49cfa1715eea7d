"""What a person reads: one step, the whole experiment with its price, two steps side by side, and refusals."""

from __future__ import annotations

import types
from typing import Any

import pytest

from bert_jax.aot import Case, cases, parse, refusal
from bert_jax.costs.calibration import Calibration
from bert_jax.costs.memory import Memory
from bert_jax.costs.report import Step, comparison, costliest, record, text, totals, totals_text
from bert_jax.costs.topologies import parse_topology
from bert_jax.terminal import UserError
from tests.costs.test_estimate import A, estimated, program, work

BASE = "experiments/pretrain/bert_base.py"


def one(cycles: int = 1_500_000, steps: int = 3_600_000, data: int = 16) -> dict[str, Any]:
    """A record of a step of so many cycles on one core and an all-reduce, on `data` of 16 chips."""
    reduce = "ROOT %r = f32[1024,1024]{1,0:T(8,128)} all-reduce(%a), replica_groups=[1,16]<=[16]"
    found = estimated(program(A, work("w", cycles), reduce))
    step = Step("phase 0, train step", "a.py", "train", {"data": data, "fsdp": 1}, 16 * data, 128, data * 197e12 / 1e4, steps)
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
    assert "fits: 12.00 of 16 GiB a device (75 %)" in said
    assert "kept: parameters 1.00, optimizer 2.00\n" in said
    assert "temporary: activations 8.00; program 1.00" in said
    assert "time        1.1 ms a step, estimated (compute 1.0, collective 0.1); at best 0.1 (roofline)" in said
    assert "utilisation 9.1 % of peak bf16 FLOP/s, estimated" in said
    assert "all-reduce: 1 a step, 7.9 MB sent a device, 0.1 ms" in said
    assert "8,192^3 88 % of peak" in said
    assert "not modelled: " in said


def test_loops_and_kernels_that_could_not_be_read_are_admitted():
    assert "could not be read" not in text(one())
    assert "2 loops whose trips could not be read count once" in text(one() | {"unread_loops": 2})


def test_an_experiment_costs_the_sum_of_its_phases():
    both = [one(), one(cycles=3_000_000)]
    whole = totals(both, 1.5)
    assert whole["chip_hours"] == pytest.approx(both[0]["chip_hours"] + both[1]["chip_hours"])
    assert whole["cost"] == pytest.approx(1.5 * whole["chip_hours"])
    assert "cost" not in totals(both, None)
    table = totals_text(both, 1.5).splitlines()
    assert table[-1].split()[-1] == f"{whole['cost']:,.2f}"
    assert totals_text([one(steps=0)], 1.5) == ""


def test_a_comparison_takes_the_first_as_the_measure():
    lines = comparison([one(), one(cycles=3_000_000)]).splitlines()
    (ratio,) = [line.split()[-2:] for line in lines if "times the first's" in line]
    assert ratio == ["1.00", "0.52"]


def test_a_step_that_does_not_fit_is_refused_with_figures_and_remedies():
    found = {"config": "a.py", "step": "phase 0, train step", "topology": "v5e:4x4", "message": "needs 20.00 GiB of hbm",
             "rows": 4096, "length": 512, "rows_per_chip": 256.0, "remedies": ["--config.mesh.fsdp=2 (9.0 GiB)"]}  # fmt: skip
    said = refusal(found)
    assert "does not fit. It needs 20.00 GiB of hbm a device, with 4,096 rows of 512 tokens a step, 256 a chip." in said
    assert said.endswith("    --config.mesh.fsdp=2 (9.0 GiB)")
    assert refusal(found | {"remedies": []}).endswith("Take more chips, chips with more memory, or fewer rows.")


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
        ([f"--config={BASE}", "--topology=v5e:4x4", "--price=-1"], "--price=-1.0 must not be negative"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--against.seed=1"], "--against.seed sets a key of --against"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--phase=7"], "has the phases 0 to 1"),
        ([f"--config={BASE}", "--topology=v5e:4x4", "--step=finetune"], "--step=finetune, but .* pretrains"),
        (["--config=experiments/finetune/glue.py", "--topology=v5e:1x1", "--step=eval"], "is a task's experiment"),
        (["--config=experiments/finetune/glue.py", "--topology=v5e:1x1", "--config.phases.0.length=8"], "there is no 'phases'"),
    ],
)
def test_a_wrong_flag_is_an_error_that_names_it(flags: list[str], says: str):
    with pytest.raises(UserError, match=says):
        wanted(*flags)


def test_all_phases_are_examined_unless_one_is_named():
    base = (f"--config={BASE}", "--topology=v5e:4x4")
    assert [(case.phase, case.kind) for case in wanted(*base)] == [(0, "train"), (1, "train")]
    assert [(case.phase, case.kind) for case in wanted(*base, "--phase=1", "--step=eval")] == [(1, "eval")]
