"""The keys of a study file, and what is rejected before any data is read."""

from __future__ import annotations

from typing import Any

import pytest

from bert_jax.configs.study import StudyExperiment
from bert_jax.errors import UserError
from tests.studies.conftest import arms, study


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"arms": arms("a", "a")}, "the study names the arm 'a' twice; give each arm a different name"),
        ({"arms": arms("a/b")}, "file names are made from the arm 'a/b'; use only letters, digits"),
        ({"arms": []}, "config.arms is empty, so there is nothing to train"),
        ({"seeds": [1, 1]}, "config.seeds=[1, 1] repeats a seed; name each seed once"),
        ({"reference": "c"}, "config.reference: there is no 'c'; known: a, b"),
        ({"only_arms": ["c"]}, "config.only_arms: there is no 'c'; known: a, b"),
        ({"only_tasks": ["stsc"]}, "config.only_tasks: there is no 'stsc'; did you mean 'stsb'?"),
        ({"arms": [{"name": "a", "shares": "b"}]}, "shares of the arm 'a': there is no 'b'"),
        ({"arms": [{"name": "a", "shares": "a"}]}, "the arm 'a' shares itself; name a different arm, or leave shares out"),
        (
            {"arms": [{"name": "a"}, {"name": "b", "shares": "a", "pretrain": {"seed": 1}}]},
            "the arm 'b' shares the model of 'a', so it cannot pretrain a model; leave out shares, or leave out pretrain and",
        ),
        ({"arms": [{"name": "a", "at": 0.5}]}, "the arm 'a' has at=0.5, which needs a shared model"),
        (
            {"arms": [{"name": "a", "continues": "b"}, {"name": "b", "continues": "a"}]},
            "the arms a and b continue each other; let one start from random weights",
        ),
        ({"arms": [{"name": "a", "paper": {"MNLI": "84"}}]}, "the arm 'a': the paper's MNLI='84' must be a number"),
        ({"budget": {"equal": "tokens"}}, "config.budget.equal=tokens needs a limit of tokens per arm; set config.budget."),
        ({"budget": {"equal": "time"}}, "config.budget.equal='time' is not one of steps, tokens, seconds"),
        ({"expected": [{"order": "a > c"}]}, "config.expected.0.order: there is no 'c'"),
        ({"expected": [{"order": "a > b > a"}]}, "config.expected.0.order='a > b > a' must name each arm once"),
        ({"expected": [{"order": "a > b"}, {"order": "a > b", "tasks": ["x"]}]}, "config.expected.1.tasks: there is no 'x'"),
        (
            {"arms": [*arms("a"), {"name": "b", "shares": "a"}, {"name": "c", "continues": "b"}]},
            "the arm 'c' continues 'b', which does not pretrain a model; name an arm that pretrains one",
        ),
        (
            {"arms": [*arms("a"), {"name": "b", "shares": "a"}, {"name": "c", "shares": "b"}]},
            "the arm 'c' shares 'b', which does not pretrain a model; name an arm that pretrains one",
        ),
        (
            {"arms": [*arms("a", "b"), {"name": "c", "shares": "a", "continues": "b"}]},
            "the arm 'c' shares the model of 'a', so it cannot pretrain a model; leave out shares, or leave out pretrain and",
        ),
        (
            {"arms": [{"name": name, "continues": other} for name, other in ("ab", "bc", "ca")]},
            "the arms a and b and c continue each other; let one start from random weights",
        ),
        ({"arms": [{"name": "a", "continues": "a"}]}, "the arm 'a' continues itself; name a different arm, or leave"),
        ({"arms": [{"name": "a", "continues": "x"}]}, "continues of the arm 'a': there is no 'x'"),
        ({"arms": [{"name": "a", "paper": {"MNLI": True}}]}, "the arm 'a': the paper's MNLI=True must be a number"),
        ({"arms": [{"name": "a", "shares": "b", "at": 0.0}, *arms("b")]}, "config.arms.0.at=0.0 must be above 0 and at most 1"),
        ({"tasks": []}, "config.tasks is empty, so there is nothing to train"),
        ({"seeds": []}, "config.seeds is empty, so there is nothing to train"),
        ({"tasks": [{"name": "a b", "experiment": "e"}]}, "file names are made from the task 'a b'; use only letters, digits"),
        ({"tasks": [{"name": "t", "experiment": "e"}] * 2}, "the study names the task 't' twice; give each task a different"),
        ({"budget": {"equal": "seconds"}}, "config.budget.equal=seconds needs a limit of seconds per arm; set config.budget."),
        ({"expected": [{"order": "a"}]}, "config.expected.0.order='a' must name each arm once"),
        ({"expected": [{"order": "a > b", "tasks": ["mnli"]}]}, "config.expected.0.tasks: there is no 'mnli'"),
        ({"arms": [{"name": "a", "pretrain": 3}]}, "config.arms.0.pretrain=3 must be a group of keys"),
        (
            {"tasks": [{"name": "model", "experiment": "e"}]},
            "a task cannot have the name 'model', which is reserved for the study itself; choose another name",
        ),
    ],
)
def test_a_contradictory_study_is_refused_with_a_remedy(values: dict[str, Any], says: str):
    with pytest.raises(UserError) as error:
        study(**values)
    assert str(error.value).startswith(says), error.value


def test_arms_and_tasks_can_be_selected_by_name_with_their_dependencies():
    tasks = [{"name": name, "experiment": "experiments/finetune/glue.py:stsb"} for name in ("x", "y")]
    more = [*arms("a", "b"), {"name": "c", "continues": "a"}, {"name": "d", "shares": "c"}]
    expected = [{"order": "d > b > a"}, {"order": "b > d", "tasks": ["y"]}, {"order": "c > b, a", "tasks": ["x", "average"]}]
    made = study(arms=more, tasks=tasks, reference="b", expected=expected, only_arms=["d"], only_tasks=["x"])
    assert [arm.name for arm in made.arms] == ["a", "c", "d"]
    assert [task.name for task in made.tasks] == ["x"]
    assert made.reference_arm.name == "a"
    assert [(order.order, order.tasks) for order in made.expected] == [("d > a", ()), ("c > a", ("x", "average"))]
    assert StudyExperiment.from_dict(made.to_dict()) == made
    whole = study(arms=more, tasks=tasks, reference="b", expected=expected)
    assert (len(whole.arms), len(whole.tasks), len(whole.expected), whole.reference) == (4, 2, 3, "b")


def test_a_study_survives_a_round_trip_through_plain_values():
    made = study(arms=[{"name": "a", "pretrain": {"model": {"num_layers": 2}}}], budget={"equal": "tokens", "tokens": 1e6})
    assert StudyExperiment.from_dict(made.to_dict()) == made


def test_an_expected_order_may_have_unordered_ranks():
    made = study(arms=arms("a", "b", "c"), expected=[{"order": "a > b, c"}])
    assert made.expected[0].ranks == [["a"], ["b", "c"]]


def test_values_at_their_limits_are_accepted():
    made = study(
        arms=[
            {"name": "a", "paper": {"MNLI": 84, "SQuAD": 88.5}},
            {"name": "b", "continues": "a"},
            {"name": "c", "continues": "b"},
            {"name": "half", "label": "half of c", "shares": "c", "at": 0.5},
        ],
        expected=[{"order": "a > b", "tasks": ["average", "stsb"]}],
        budget={"equal": "tokens", "tokens": 1.0},
        reference="b",
    )
    assert made.reference_arm.name == "b"
    assert study().reference_arm.name == "a"
    assert (made.trainer(made.arm("half")).name, made.trainer(made.arm("b")).name) == ("c", "b")
    assert [arm.title for arm in made.arms] == ["a", "b", "c", "half of c"]
