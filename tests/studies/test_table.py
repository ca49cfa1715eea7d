"""The numbers of a table, from the records of a study worked by hand."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.configs.study import StudyExperiment
from bert_jax.files import write_json
from bert_jax.model.config import ModelConfig
from bert_jax.pretraining.program import phase_row_flops
from bert_jax.studies.parts import PRETRAINING, Part, Planned
from bert_jax.studies.table import all_scores, measured, pretraining_numbers, table, task_baseline, task_metric, trained_steps
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.span_task import SpanTask
from bert_jax.tasks.task import Task
from tests.studies.conftest import study, text_task

TEACHER = ModelConfig(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32)
STEPS = {"a": [3, 5], "b": [2, 1], "c": [1, 1]}
TASKS: dict[str, Task] = {
    "squad": SpanTask("squad", TaskConfig(name="squad/v1.1"), {"train": (), "dev": ()}, may_be_unanswerable=False),
    "sick": text_task("sick", "train", "dev_m", "dev_mm"),
}


def worked() -> StudyExperiment:
    """Returns a study in which arm b continues a; "half" is a after half of its steps, "none" has random weights instead, and c
    has not run yet."""
    return study(
        title="Worked",
        setting="laptop",
        arms=[
            {"name": "b", "continues": "a", "paper": {"SQuAD": 88.5}},
            {"name": "a", "label": "the first"},
            {"name": "half", "shares": "a", "at": 0.5},
            {"name": "none", "shares": "a", "finetune": {"init_random": True}},
            {"name": "c"},
        ],
        reference="a",
        tasks=[{"name": "squad", "experiment": "e", "metric": "dev/em"}, {"name": "sick", "experiment": "e"}],
        seeds=[3, 8, 5],
        restarts=2,
        evaluations=4,
        budget={"equal": "tokens", "tokens": 5_000},
        expected=[{"order": "b > a"}, {"order": "a > half, none", "tasks": ["sick"]}],
        paper="Table 5",
    )


def scores(em: float, second: float, accuracy: float) -> dict[str, dict[str, Any]]:
    """Returns the records of both tasks: two runs on SQuAD, one on SICK."""
    squad = {"scores": [{"dev": {"em": em, "f1": 1.0}}, {"dev": {"em": second, "f1": 2.0}}], "metric": "dev/f1"}
    sick = {"scores": [{"dev_m": {"accuracy": accuracy}, "dev_mm": {"accuracy": 0.0}}], "metric": "dev_m/accuracy"}
    baseline = {"squad": {"dev": {"em": 10.0, "f1": 20.0}}, "sick": {"dev_m": {"accuracy": 0.4}}}
    return {
        "squad": squad | {"baseline": baseline["squad"], "degenerate": 1, "failed": 0},
        "sick": sick | {"baseline": baseline["sick"], "degenerate": 0, "failed": 2},
    }


FOUND = {  # by arm and seed: both runs on SQuAD in percent, SICK as a fraction
    ("a", 3): (60.0, 80.0, 0.5),
    ("a", 8): (70.0, 70.0, 0.7),
    ("b", 3): (80.0, 80.0, 0.6),
    ("b", 8): (84.0, 88.0, 0.8),
    ("half", 3): (50.0, 50.0, 0.3),
    ("none", 8): (20.0, 20.0, 0.2),
}
LOSSES = {3: 2.0, 8: 4.0}


def pretraining_record(name: str, seed: int) -> dict[str, Any]:
    loss, factor = LOSSES[seed], {"a": 1, "b": 10}[name]
    end = {"mlm_loss": loss, "mlm_accuracy": None if seed == 8 else 0.5, "step": 8, "nsp_loss": loss / 2}
    half = {"mlm_loss": loss + 1, "step": 4}
    seconds = {"training": 4.0 * factor, "waiting_for_data": 1.0 * factor, "compiling": 20.0}
    if seed == 8:
        del seconds["waiting_for_data"]
    ran = {"seconds": seconds, "devices": f"cpu {seed}", "jax": "1"}
    return {"parameters": 11 * factor, "eval": end, "curve": [{"mlm_loss": 9.0, "step": 2}, half, end], "measured": ran}


@pytest.fixture
def planned(tmp_path: pathlib.Path, experiment: PretrainingExperiment) -> Planned:
    made = worked()
    for (arm, seed), found in FOUND.items():
        Part(arm, seed, "squad").record(tmp_path).parent.mkdir(parents=True)  # type: ignore[union-attr]
        for task, record in scores(*found).items():
            write_json(Part(arm, seed, task).record(tmp_path), record)
    for arm in ("a", "b"):
        for seed in LOSSES:
            write_json(Part(arm, seed, PRETRAINING).record(tmp_path), pretraining_record(arm, seed))
    of_arms = dict.fromkeys(STEPS, experiment) | {"b": dataclasses.replace(experiment, teacher="t")}
    return Planned(made, STEPS, of_arms, TASKS, tmp_path, {"b": TEACHER})


def test_scores_are_means_over_restarts_and_averages_need_all_tasks(planned: Planned):
    (planned.root / "half" / "seed-3" / "sick.json").unlink()  # type: ignore[union-attr]
    write_json(Part("none", 8, "squad").record(planned.root), scores(0, 0, 0)["squad"] | {"scores": []})
    found = all_scores(planned)
    assert found["a"]["squad"] == pytest.approx({3: 0.7, 8: 0.7})
    assert found["a"]["sick"] == {3: 0.5, 8: 0.7}
    assert found["a"]["average"] == pytest.approx({3: 0.6, 8: 0.7})
    assert found["half"] == {"squad": {3: 0.5}, "sick": {}, "average": {}}
    assert found["none"] == {"squad": {}, "sick": {8: 0.2}, "average": {}}
    assert found["c"] == {"squad": {}, "sick": {}, "average": {}}


def test_the_metric_comes_from_the_study_or_the_first_dev_split(planned: Planned):
    assert [task_metric(planned, task) for task in TASKS] == ["dev/em", "dev_m/accuracy"]
    assert [task_baseline(planned, task) for task in TASKS] == [0.1, 0.4]
    for record in planned.root.rglob("sick.json"):  # type: ignore[union-attr]
        write_json(record, {**scores(0, 0, 0)["sick"], "baseline": {}})
    assert task_baseline(planned, "sick") is None


def test_costs_cover_all_pretraining_up_to_the_state(planned: Planned, experiment: PretrainingExperiment):
    assert trained_steps(planned, planned.study.arm("b")) == {"a": [3, 5], "b": [2, 1]}
    assert trained_steps(planned, planned.study.arm("half")) == {"a": [3, 1]}  # 4 of 8, where the second evaluation is
    assert planned.steps == STEPS
    numbers = {arm.name: pretraining_numbers(planned, arm) for arm in planned.study.arms}
    assert {name: one["steps"] for name, one in numbers.items()} == {"a": 8, "b": 3, "half": 4, "none": 0, "c": 2}
    tokens = {"a": 3 * 80 + 5 * 128, "half": 3 * 80 + 128, "none": 0, "c": 80 + 128}
    tokens["b"] = tokens["a"] + 2 * 80 + 128
    assert {name: one["tokens"] for name, one in numbers.items()} == tokens
    first, second = (phase_row_flops(experiment, i) for i in (0, 1))
    taught = [phase_row_flops(planned.pretraining["b"], i, TEACHER) for i in (0, 1)]
    flops = {"a": 30 * first + 20 * second, "half": 30 * first + 4 * second, "none": 0.0, "c": 10 * first + 4 * second}
    flops["b"] = flops["a"] + 20 * taught[0] + 4 * taught[1]
    assert {name: one["flops"] for name, one in numbers.items()} == pytest.approx(flops, rel=1e-12)
    sizes = {name: one["parameters"] for name, one in numbers.items()}
    assert sizes == {"a": 11, "b": 110, "half": 11, "none": 11, "c": None}


def test_held_out_scores_are_means_over_seeds_at_the_step_of_the_state(planned: Planned):
    eval_split = {arm.name: pretraining_numbers(planned, arm)["eval"] for arm in planned.study.arms}
    end = {"mlm_loss": 3.0, "nsp_loss": 1.5}
    assert eval_split == {"a": end, "b": end, "half": {"mlm_loss": 4.0}, "none": {}, "c": {}}
    record = pretraining_record("a", 3)
    write_json(Part("a", 3, PRETRAINING).record(planned.root), {**record, "curve": record["curve"][:1]})
    assert pretraining_numbers(planned, planned.study.arm("half"))["eval"] == {"mlm_loss": 5.0}


def test_times_are_means_over_seeds_with_finished_chains(planned: Planned):
    def times(name: str) -> dict[str, Any]:
        return measured(planned, planned.study.arm(name))

    assert times("a") == {"training_seconds": 4.5, "all_seconds": 24.5, "devices": ["cpu 3", "cpu 8"]}
    assert times("b") == {"training_seconds": 4.5 + 45, "all_seconds": 24.5 + 65, "devices": ["cpu 3", "cpu 8"]}
    assert times("half") == times("none") == times("c") == {}
    Part("a", 8, PRETRAINING).record(planned.root).unlink()  # type: ignore[union-attr]
    assert times("b") == {"training_seconds": 55.0, "all_seconds": 95.0, "devices": ["cpu 3"]}


def test_a_table_has_the_columns_arms_and_orders_of_its_study(planned: Planned):
    content = table(planned)
    found = content["table"]
    arms = {arm["name"]: arm for arm in found.pop("arms")}
    expected = found.pop("expected")
    assert found == {
        "title": "Worked",
        "setting": "laptop",
        "equal": "tokens",
        "amount": 5_000,
        "seeds": [3, 8, 5],
        "restarts": 2,
        "reference": "a",
        "tasks": {"squad": "dev/em", "sick": "dev_m/accuracy"},
        "baselines": {"squad": 0.1, "sick": 0.4},
        "paper": "Table 5",
    }
    assert list(arms) == ["b", "a", "half", "none", "c"]
    assert [arms[name]["title"] for name in ("a", "b")] == ["the first", "b"]
    assert [arms[name]["paper"] for name in ("a", "b")] == [{}, {"SQuAD": 88.5}]
    assert list(arms["a"]["scores"]) == ["squad", "sick", "average"]
    sick = arms["a"]["scores"]["sick"]
    assert (sick["mean"], sick["deviation"], sick["seeds"]) == (
        pytest.approx(0.6),
        pytest.approx(0.2 / 2**0.5),
        {"3": 0.5, "8": 0.7},
    )
    assert arms["half"]["scores"]["sick"] == {"mean": 0.3, "deviation": None, "seeds": {"3": 0.3}}
    assert arms["a"]["minus_reference"] == {}
    assert list(arms["b"]["minus_reference"]) == ["squad", "sick", "average"]
    assert arms["b"]["minus_reference"]["sick"]["mean"] == pytest.approx(0.1)
    assert arms["half"]["minus_reference"]["sick"] == {"mean": pytest.approx(-0.2), "low": None, "high": None, "n": 1}
    assert arms["a"]["one_answer"] == {"squad": 2, "sick": 0}
    assert arms["a"]["failed"] == {"squad": 0, "sick": 4}
    assert arms["half"]["failed"] == {"squad": 0, "sick": 2}
    assert [(one["order"], one["task"], one["holds"], one["came_out"]) for one in expected] == [
        ("b > a", "squad", True, ["b", "a"]),
        ("b > a", "sick", True, ["b", "a"]),
        ("b > a", "average", True, ["b", "a"]),
        ("a > half, none", "sick", True, ["a", "half", "none"]),
    ]
    assert [(pair["higher"], pair["lower"], pair["verdict"], pair["n"]) for pair in expected[3]["pairs"]] == [
        ("a", "half", "undecided", 1),
        ("a", "none", "undecided", 1),
    ]
    assert content["measured"] == {arm.name: measured(planned, arm) for arm in planned.study.arms}


def test_a_study_of_one_task_has_no_average(planned: Planned):
    made = study(arms=[{"name": "a"}, {"name": "b"}], tasks=[{"name": "sick", "experiment": "e"}], seeds=[3, 8])
    alone = Planned(made, STEPS, planned.pretraining, TASKS, planned.root)
    found = table(alone)["table"]
    assert list(found["arms"][0]["scores"]) == ["sick"]
    assert found["amount"] is None
    assert found["reference"] == "a"
