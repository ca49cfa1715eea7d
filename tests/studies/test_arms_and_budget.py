"""The experiments of arms, their steps, and the order of the parts."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
from typing import Any

import pytest

from bert_jax.configs.pretraining import PretrainingExperiment, scaled_steps, with_steps
from bert_jax.configs.study import StudyExperiment
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import export_model
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.studies.arms import (
    _check_pooling,
    chain,
    check,
    check_finetuning,
    contradictions,
    families,
    finetuning_values,
    merged,
    pretraining_values,
    with_new_parts,
)
from bert_jax.studies.budget import count_tokens, exported_steps, planned_steps, run_values
from bert_jax.studies.parts import Part, digest, part_groups
from bert_jax.studies.running import expected_seconds, seconds_left
from bert_jax.tasks.text_task import SequenceHead
from tests.bad_inputs.damage import other_vocabulary
from tests.interop.tiny import as_model, make_model
from tests.studies.conftest import arms, study


def test_later_changes_override_groups_key_by_key_and_replace_lists():
    base = {"model": {"num_layers": 2, "hidden_size": 64}, "phases": [1, 2], "seed": 0}
    changed = merged(base, {"model": {"num_layers": 4}, "phases": [3]}, {"seed": 5})
    assert changed == {"model": {"num_layers": 4, "hidden_size": 64}, "phases": [3], "seed": 5}
    assert base["phases"] == [1, 2]


def test_an_arm_changes_the_study_which_changes_the_experiment_file():
    made = study(
        pretraining="experiments/pretrain/laptop.py",
        corpus="c",
        pretrain={"model": {"num_layers": 3}, "optimizer": {"b2": 0.9}},
        arms=[{"name": "a", "pretrain": {"model": {"num_layers": 5}}}],
    )
    values = pretraining_values(made, made.arms[0])
    assert values["model"]["num_layers"] == 5
    assert values["optimizer"] == {"name": "bert_adam", "b2": 0.9}
    assert values["corpus"] == {"directory": "c"}


def test_a_task_gets_its_directory_and_changes_for_its_kind_of_head():
    made = study(
        data="d",
        restarts=2,
        arms=[{"name": "a", "finetune": {"seed": 9}, "heads": {"sequence": {"head": {"pooling": "concat"}}}}],
        tasks=[
            {"name": "stsb", "experiment": "experiments/finetune/glue.py:stsb", "data_dir": "glue"},
            {"name": "pos", "experiment": "experiments/finetune/pos.py", "data_dir": "/e"},
        ],
    )
    stsb, pos = (finetuning_values(made, made.arms[0], task, 3) for task in made.tasks)
    assert (stsb["task"]["data_dir"], pos["task"]["data_dir"]) == ("d/glue", "/e")
    assert (stsb.get("head"), pos.get("head")) == ({"pooling": "concat"}, None)
    assert (stsb["seed"], stsb["sweep"]) == (6, {"seeds": [6, 7]})
    once = study(finetune={"training": {"epochs": 1}})
    values = finetuning_values(once, once.arms[0], once.tasks[0], 3)
    assert (values["seed"], values["training"]["epochs"], "sweep" in values) == (3, 1, False)
    swept = study(finetune={"sweep": {"seeds": [7, 8], "epochs": [2]}})
    assert finetuning_values(swept, swept.arms[0], swept.tasks[0], 3)["sweep"] == {"seeds": [], "epochs": [2]}
    swept = study(finetune={"sweep": {"epochs": [2]}})
    assert finetuning_values(swept, swept.arms[0], swept.tasks[0], 3)["sweep"] == {"epochs": [2]}


def test_equal_tokens_match_within_a_step_of_each_phase(experiment: PretrainingExperiment):
    made = study(budget={"equal": "tokens", "tokens": 7_200})
    steps = planned_steps(made, made.arms[0], experiment, None)
    assert count_tokens(experiment.phases) == 100 * 80 + 50 * 128 == 14_400
    assert steps == [50, 25]


def test_equal_seconds_follow_the_measured_speed(experiment: PretrainingExperiment):
    made = study(budget={"equal": "seconds", "seconds": 60})
    steps = planned_steps(made, made.arms[0], experiment, [0.1, 0.4])  # 30 s unchanged
    assert steps == [200, 100]
    assert sum(count * seconds for count, seconds in zip(steps, [0.1, 0.4], strict=True)) == pytest.approx(60)


def test_arms_that_continue_another_keep_their_own_steps(experiment: PretrainingExperiment):
    made = study(budget={"equal": "tokens", "tokens": 7_200}, arms=[{"name": "a"}, {"name": "b", "continues": "a"}])
    assert planned_steps(made, made.arm("b"), experiment, None) == [100, 50]
    assert planned_steps(study(), study().arms[0], experiment, None) == [100, 50]


def test_a_too_large_budget_is_refused(experiment: PretrainingExperiment):
    made = study(budget={"equal": "tokens", "tokens": 1e18})
    says = r"config\.budget\.tokens=1e\+18 is .* steps of the arm 'a', above the maximum of 2,147,483,647; lower"
    with pytest.raises(UserError, match=says):
        planned_steps(made, made.arms[0], experiment, None)
    most = 2**31 - 1
    one = PretrainingExperiment.from_dict({"phases": [{"steps": 1, "batch_size": 1, "length": 8, "max_predictions": 1}]})
    made = study(budget={"equal": "tokens", "tokens": 8.0 * most})
    assert planned_steps(made, made.arms[0], one, None) == [most]


def test_a_phase_keeps_at_least_a_step_and_its_proportion_of_warmup(experiment: PretrainingExperiment):
    assert scaled_steps([1_000, 1], 0.01) == [10, 1]
    phases = with_steps(experiment.to_dict(), [50, 25])["phases"]
    assert [(phase["steps"], phase["warmup_steps"]) for phase in phases] == [(50, 5), (25, 0)]
    assert with_steps({"phases": [{"steps": 3}, {"steps": 7, "warmup_steps": 3}]}, [6, 5])["phases"] == [
        {"steps": 6}, {"steps": 5, "warmup_steps": 2},
    ]  # fmt: skip


def test_intermediate_states_are_kept_at_the_nearest_evaluation(experiment: PretrainingExperiment):
    early = [{"name": f"at_{at}", "shares": "a", "at": at} for at in (0.22, 0.5, 0.01)]
    others = [{"name": "same", "shares": "a"}, *arms("b"), {"name": "of_b", "shares": "b", "at": 0.5}]
    made = study(arms=[*arms("a"), *early, *others], evaluations=5)
    assert exported_steps(made, made.arms[0], [100, 50]) == {"at_0.22": 30, "at_0.5": 60, "at_0.01": 30}
    values = run_values(made, made.arms[0], experiment.to_dict(), [100, 50], seed=7)
    assert values["checkpoints"] == {**values["checkpoints"], "every": 30, "keep_at": [30, 60]}
    assert (values["seed"], values["evaluation"]["every"], values["log_every"]) == (7, 30, 1)
    assert run_values(made, made.arms[0], experiment.to_dict(), [1_000, 100], seed=7)["log_every"] == 11
    assert run_values(made, made.arms[0], experiment.to_dict(), [1, 1], seed=7)["log_every"] == 1
    assert run_values(made, made.arms[0], experiment.to_dict(), [1, 1], seed=7)["evaluation"]["every"] == 1
    PretrainingExperiment.from_dict(values)


def test_dependent_arms_form_a_family_in_order():
    made = study(
        arms=[{"name": "late", "shares": "next"}, {"name": "next", "continues": "first"}, *arms("other", "first")], seeds=[4, 5]
    )
    assert [[arm.name for arm in family] for family in families(made)] == [["first", "next", "late"], ["other"]]
    assert [arm.name for arm in chain(made, made.arm("late"))] == ["first", "next"]
    shares = part_groups(made)
    assert [part.seed for parts in shares for part in parts[:1]] == [4, 4, 5, 5]
    assert [str(part) for part in shares[0]][:3] == [
        "first, seed 4, pretraining",
        "next, seed 4, pretraining",
        "first, seed 4, stsb",
    ]


def test_keys_set_by_both_arm_and_task_are_reported():
    arm = {"training": {"epochs": 3, "batch_size": 8}, "head": {"layers": "last"}, "seed": 1}
    task = {"training": {"epochs": 4, "batch_size": 8}, "seed": 1, "task": {"length": 32}}
    assert contradictions(arm, task) == {"training.epochs": (3, 4)}
    assert contradictions({"head": "last"}, {"head": {"layers": "last"}}) == {"head": ("last", {"layers": "last"})}
    assert merged(task, arm)["training"]["epochs"] == 3, "the arm's value counts"


def test_the_identity_of_a_part_depends_on_settings_and_not_on_paths():
    values = {"task": {"name": "x", "data_dir": "a"}, "init_from": "b", "seed": 0}
    moved = {"task": {"name": "x", "data_dir": "c"}, "init_from": "d", "seed": 0}
    assert digest(values) == digest(moved) != digest({**values, "seed": 1})


@pytest.mark.parametrize(
    ("finetune", "says"),
    [
        ({"head": {"layers": "last_four_concat", "pooling": "concat"}}, "needs 4 layers, but the model has 2"),
        ({"task": {"length": 65}}, "config.task.length=65 is longer than the model's position table of 64 rows"),
    ],
)
def test_an_arm_that_cannot_do_a_task_is_refused(finetune: dict[str, Any], says: str):
    values = merged({"task": {"name": "glue/stsb", "length": 32}}, finetune)
    with pytest.raises(UserError, match=says):
        check_finetuning(values, pretrained(), SequenceHead(labels=("a", "b")))


def pretrained(**model: Any) -> PretrainingExperiment:
    small = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "max_position": 64}
    phases = {"phases": [{"steps": 1, "length": 32}], "examples": {"pairs": "none"}}
    return PretrainingExperiment.from_dict({"model": small | model, **phases})


def test_the_pooling_and_the_kernels_of_a_fine_tuning_are_checked():
    values, head = {"task": {"name": "glue/stsb", "length": 64}}, SequenceHead(labels=("a", "b"))
    left_to_right = pretrained(direction="left_to_right")
    with pytest.raises(UserError, match=r"from left to right; set head\.pooling=last_token"):
        check_finetuning(values, left_to_right, head)
    fused = values | {"head": {"pooling": "last_token"}, "model": {"attention": "fused"}}
    with pytest.raises(UserError, match="the fused attention kernels do not support left-to-right"):
        check_finetuning(fused, left_to_right, head)


@pytest.mark.parametrize(
    ("model", "head", "says"),
    [
        ({"encoder": "bilm"}, SequenceHead(labels=("a", "b")), "the [CLS] of a bilm does not represent the text; set head."),
        ({"encoder": "static", "num_layers": 0}, SequenceHead(labels=("a", "b")), "the [CLS] of a static does not represent"),
        ({"direction": "left_to_right"}, ChoiceHead(), "from left to right; leave the task out: it has a choice head"),
        ({"encoder": "bilm"}, ChoiceHead(), "the [CLS] of a bilm does not represent the text; leave the task out: it has a"),
    ],
)
def test_a_head_on_an_uninformative_cls_is_refused_with_alternatives(model: dict[str, Any], head: TaskHead, says: str):
    with pytest.raises(UserError, match=re.escape(says)):
        _check_pooling(ModelConfig(**model), head)


def test_a_model_without_pairs_gets_a_new_pooler_for_a_head_that_reads_one():
    model = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32}
    alone = PretrainingExperiment.from_dict({"model": model, "examples": {"pairs": "none"}, "phases": [{"steps": 1}]})
    values = {"task": {"name": "glue/stsb", "length": 32}}
    assert check_finetuning(values, alone, SequenceHead(labels=("a", "b"))).init_new == "pooler"
    assert (
        check_finetuning(merged(values, {"head": {"pooling": "concat"}}), alone, SequenceHead(labels=("a", "b"))).init_new == ""
    )


def test_a_pooler_from_the_layers_of_the_mlm_head_is_new_only_if_the_head_lacks_them():
    values, head = {"task": {"name": "glue/stsb", "length": 32}}, SequenceHead(labels=("a", "b"))
    mean = pretrained(classifier_pooling="mean")
    assert with_new_parts(values, mean, head) == values
    bare = pretrained(classifier_pooling="mean", mlm_head="decoder")
    assert with_new_parts(values, bare, head) == {**values, "init_new": "pooler"}


# ---------------------------------------------------------------------------------------------------------------- what is checked
@pytest.fixture(scope="module")
def teacher(tiny: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a masked language model with the vocabulary of the corpus."""
    tokenizer = pathlib.Path(tiny["corpus"]) / "tokenizer"
    params, config = make_model(tokenizer, num_layers=3, max_position=64)
    directory = tmp_path_factory.mktemp("teacher") / "model"
    export_model(directory, as_model(params, config, tokenizer))
    return directory


def test_every_arm_that_trains_and_every_task_of_every_arm_is_checked(tiny: dict[str, Any], teacher: pathlib.Path):
    taught = {"teacher": str(teacher)}
    further = {"name": "b", "continues": "a", "finetune": {"training": {"epochs": 9}}, "pretrain": taught}
    every = {**tiny["pretrain"], "model": {"num_layers": 1, "vocab_size": 9}}  # the corpus knows better
    values = tiny | {"arms": [{"name": "c", "shares": "a"}, further, *arms("a")], "pretrain": every}
    said: list[str] = []
    found = check(StudyExperiment.from_dict(values), said.append)
    assert list(found.pretraining) == ["a", "b"]
    words = json.loads((pathlib.Path(tiny["corpus"]) / "manifest.json").read_text())["vocabulary"]["size"]
    assert [(one.model.num_layers, one.model.vocab_size) for one in found.pretraining.values()] == [(1, words)] * 2
    assert {name: config.num_layers for name, config in found.teachers.items()} == {"b": 3}
    assert {name: list(task.splits) for name, task in found.tasks.items()} == {"own": ["train", "dev"]}
    assert said == ["the arm 'b' fine-tunes on 'own' with its own training.epochs=9, not the task's 2"]


@pytest.mark.parametrize(
    ("arm", "task", "says"),
    [
        ({"finetune": {"head": {"layers": "last_four_mix"}}}, {}, "the arm 'b' cannot do the task 'own': head.layers='last_four"),
        ({"pretrain": {"model": {"attention": "fused", "direction": "left_to_right"}}}, {}, "the arm 'b': model.attention='fus"),
        ({"pretrain": {"teacher": "nowhere"}}, {}, "the arm 'b': there is no nowhere"),
        ({"pretrain": {"corpus": {"directory": "nowhere"}}}, {}, "the arm 'b': there is no corpus nowhere (looked for in "),
        ({}, {"metric": "dev/f1"}, "the task 'own': metric='dev/f1': experiments/finetune/own_text.py has no 'f1'"),
        ({}, {"metric": "dev/acuracy"}, "the task 'own': metric='dev/acuracy': experiments/finetune/own_text.py has no "
         "'acuracy'; did you mean 'accuracy'?"),
        ({}, {"metric": "accuracy"}, "the task 'own': metric='accuracy' is not SPLIT/METRIC with a split of dev; correct it"),
        ({}, {"metric": "train/accuracy"}, "the task 'own': metric='train/accuracy' is not SPLIT/METRIC with a split of dev"),
    ],
)  # fmt: skip
def test_a_study_whose_run_would_fail_is_refused_before_training(
    tiny: dict[str, Any], arm: dict[str, Any], task: dict[str, Any], says: str
):
    (own,) = tiny["tasks"]
    tasks = [own | {"experiment": "experiments/finetune/own_text.py"} | task]
    made = StudyExperiment.from_dict(tiny | {"arms": [{"name": "b", **arm}, *arms("a")], "tasks": tasks})
    with pytest.raises(UserError) as caught:
        check(made)
    assert str(caught.value).startswith(says)


def test_an_arm_starts_from_one_model(tiny: dict[str, Any], teacher: pathlib.Path):
    both = {"name": "b", "continues": "a", "pretrain": {"init_from": str(teacher)}}
    with pytest.raises(UserError, match=f"the arm 'b': init_from={teacher} and continues=a both set the model to start from"):
        check(StudyExperiment.from_dict(tiny | {"arms": [both, *arms("a")]}))
    check(StudyExperiment.from_dict(tiny | {"arms": [both | {"continues": ""}, *arms("a")]}))


def test_an_arm_cannot_continue_one_with_another_vocabulary(tiny: dict[str, Any], tmp_path: pathlib.Path):
    other = shutil.copytree(tiny["corpus"], tmp_path / "other")
    other_vocabulary(other.name)(tmp_path)
    further = {"name": "b", "continues": "a", "pretrain": {"corpus": {"directory": str(other)}}}
    with pytest.raises(UserError, match="the arm 'b': its corpus has a different vocabulary than 'a', which it continues"):
        check(StudyExperiment.from_dict(tiny | {"arms": [further, *arms("a")]}))


# ---------------------------------------------------------------------------------------------------------------- the time left
def test_the_time_left_is_estimated_from_other_seeds_then_other_arms():
    spent = {Part("a", 0, "pretraining"): 100.0, Part("a", 0, "stsb"): 10.0, Part("b", 0, "stsb"): 20.0}
    assert expected_seconds(Part("b", 1, "stsb"), spent) == 20.0
    assert expected_seconds(Part("b", 0, "pretraining"), spent) == 100.0
    assert expected_seconds(Part("c", 0, "stsb"), spent) == 15.0
    waiting = [Part("b", 0, "pretraining"), Part("b", 1, "stsb")]
    assert seconds_left(waiting, spent, 30.0) == 70.0 + 20.0
    assert seconds_left(waiting, {}, 30.0) is None
    assert seconds_left([], {}, 30.0) == 0.0
    assert seconds_left(waiting[1:], spent, 30.0) == 0.0  # it takes longer than the others did
    assert seconds_left([Part("b", 1, "stsb"), Part("c", 0, "sick")], {Part("b", 0, "stsb"): 20.0}, 5.0) == 15.0 + 20.0
    unknown = [Part("c", 0, "model"), Part("b", 0, "pretraining")]
    assert seconds_left(unknown, {Part("a", 0, "pretraining"): 9.0}, 5.0) == 4.0 + 9.0
