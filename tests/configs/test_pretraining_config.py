from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from bert_jax.configs.experiment_files import read_experiment
from bert_jax.configs.pretraining import PretrainingExperiment, batch_ramp, scaled_steps, with_total_steps
from bert_jax.errors import UserError
from bert_jax.training.schedules import Span

SMALL = {
    "phases": [{"steps": 10, "warmup_steps": 2}, {"steps": 5, "length": 512, "max_predictions": 77, "continue_schedule": True}]
}


def with_value(path: str, value):
    """Returns SMALL with one dotted key set."""
    values = json.loads(json.dumps(SMALL))
    node = values
    *groups, name = path.split(".")
    for group in groups:
        node = node[int(group)] if isinstance(node, list) else node.setdefault(group, {})
    node[name] = value
    return values


def test_an_experiment_survives_a_round_trip_through_json():
    experiment = PretrainingExperiment.from_dict(SMALL)
    assert PretrainingExperiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment


def test_the_length_of_a_phase_defaults_to_the_length_of_the_examples():
    examples = {"length": 64, "max_predictions": 10, "packed_examples": 1}
    experiment = PretrainingExperiment.from_dict({"examples": examples, "phases": [{"steps": 2}, {"steps": 2, "length": 128}]})
    assert [phase.length for phase in experiment.phases] == [64, 128]
    assert [experiment.example_config(i).max_predictions for i in range(2)] == [10, 10]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("sed", "there is no config.sed; did you mean 'seed'"),
        ("model.hiden_size", "there is no config.model.hiden_size; did you mean 'model.hidden_size'"),
        ("optimizer.weight_deacy", "did you mean 'optimizer.weight_decay'"),
        ("phases.0.lerning_rate", "there is no config.phases.0.lerning_rate; did you mean 'phases.0.learning_rate'"),
        ("examples.pair", "did you mean 'examples.pairs'"),
    ],
)
def test_a_misspelt_key_is_an_error_naming_the_nearest(path, says):
    with pytest.raises(UserError, match=says):
        PretrainingExperiment.from_dict(with_value(path, 1))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("seed", "1", "config.seed='1' must be an int"),
        ("seed", -1, "config.seed=-1 must be at least 0 and at most 4,294,967,295"),
        ("model", 3, "config.model must be a group of keys"),
        ("phases", "many", "must be a list of phases"),
        ("phases", [], "nothing to train"),
        ("phases.0.length", 1024, "length=1024 is longer than the position table .model.max_position=512"),
        ("phases.0.batch_size", 0, "batch_size=0 must be at least 1"),
        ("phases.0.accumulation", 3, "batch_size=256 is not divisible by 3 microbatches"),
        ("phases.0.warmup_steps", 16, "warmup_steps=16 must be between 0 and the phase's steps=15"),
        ("phases.0.continue_schedule", True, "has no schedule to continue, because this is the first phase"),
        ("phases.0.max_predictions", 0, "max_predictions=0"),
        ("examples.pairs", "papper", "did you mean 'paper'"),
        ("examples.masking", "word", "is not one of tokens, whole_words, words, spans; did you mean 'words'"),
        ("mesh.zero_sharding", 1, "must be true or false"),
        ("mesh.data", 0, "mesh.data=0"),
        ("log_every", 0, "log_every=0"),
        ("examples", 3, "config.examples must be a group of keys"),
        ("examples.length", "x", "^config.examples.length='x' must be an int"),
        ("phases.0.length", 4, "^config.phases.0: length=4 must be at least 5"),
        ("init_new", "mlm_head", "config.init_new and config.init_drop name parts of config.init_from, which is empty"),
        ("init_drop", "nsp_head", "config.init_new and config.init_drop name parts of config.init_from, which is empty"),
        ("phases.0.steps", 2**31 - 5, "config.phases have 2,147,483,648 steps in total, above the limit 2,147,483,647; shorten"),
        ("checkpoints.keep_at", [15, 17, 16], "keep_at has step 17, but the run ends at step 15; name steps of the run"),
        ("model.rematerialisation", "full", "there is no config.model.rematerialisation; did you mean 'model.remat'?"),
        ("objective_options.window", 3, "there is no config.objective_options.window; there are no keys"),
        ("model.encoder", "bilm", "pairs=original needs .* model.encoder=bilm learns no such representation; set"),
        ("distillation.temperature", 3.0, "config.distillation has settings but there is no teacher; name one in config.teacher"),
        ("model.type_vocab_size", 1, "has no embedding for the second text of a pair; set it to 2, or config.examples.pairs"),
    ],
)
def test_an_impossible_value_is_an_error_naming_key_value_and_limit(path, value, says):
    with pytest.raises(UserError, match=says):
        PretrainingExperiment.from_dict(with_value(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("phases.0.steps", 2**31 - 6),
        ("checkpoints.keep_at", [1, 15]),
        ("phases.0.length", 512),
        ("phases.0.accumulation", 256),
        ("phases.0.warmup_steps", 15),
        ("phases.0.warmup_steps", 0),
        ("phases.1.warmup_steps", 6),  # not for a phase that continues a schedule
        ("model.type_vocab_size", 2),
    ],
)
def test_values_at_their_limits_are_accepted(path, value):
    values = with_value(path, value)
    made = PretrainingExperiment.from_dict(values | {"init_from": "m", "init_new": "mlm_head", "init_drop": "nsp_head"})
    found: Any = made
    for part in path.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    assert found == (tuple(value) if isinstance(value, list) else value)


def test_a_value_in_place_of_a_group_is_refused():
    with pytest.raises(UserError, match=r"^config must be a group of keys, not 3"):
        PretrainingExperiment.from_dict(3)  # type: ignore[arg-type]


ALONE = {"pairs": "none"}
WITH_MAPS = {"teacher": "t", "distillation": {"attention_weight": 0.5}}


@pytest.mark.parametrize(
    "values",
    [
        {"examples": ALONE, "model": {"type_vocab_size": 1}},
        {"examples": ALONE, "model": {"encoder": "static", "num_layers": 0}, "objective_options": {"window": 3}},
        {"teacher": "t"},
        {"teacher": "t", "distillation": {"soft_weight": 0.0, "hidden_weight": 0.5}},
        {"teacher": "t", "distillation": {"soft_weight": 0.0, "attention_weight": 0.5}},
        {"teacher": "t", "model": {"attention": "fused", "remat": "full", "scan_layers": True}},
        {"teacher": "t", "model": {"encoder": "bilm"}, "examples": ALONE},
        {"teacher": "t", "model": {"direction": "left_to_right"}, "examples": ALONE},
        {
            "teacher": "t",
            "examples": ALONE,
            "objective": "experiments/extensions/replaced_tokens.py:ReplacedTokens",
            "distillation": {"soft_weight": 0.0, "hidden_weight": 1.0},
        },
        WITH_MAPS | {"model": {"attention": "plain"}},
        WITH_MAPS,
    ],
)
def test_compatible_settings_are_accepted(values):
    made = PretrainingExperiment.from_dict({**SMALL, **values}).to_dict()
    for name, value in values.items():
        assert (made[name] | value if isinstance(value, dict) else value) == made[name]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"teacher": "t", "model": {"encoder": "static", "num_layers": 0}, "examples": ALONE},
            "teacher=t: a model with encoder=static has no layers to compare with a teacher's; leave config.teacher out",
        ),
        (
            {"teacher": "t", "model": {"encoder": "bilm"}, "examples": ALONE, "distillation": {"attention_weight": 0.5}},
            "attention_weight=0.5 compares attention maps, but a model with encoder=bilm has none; set attention_weight=0",
        ),
        (
            {"teacher": "t", "examples": ALONE, "objective": "experiments/extensions/replaced_tokens.py:ReplacedTokens"},
            "ReplacedTokens has no hard_loss, so it does not say which predictions to compare with a teacher's; define",
        ),
        (
            {"teacher": "t", "distillation": {"soft_weight": 0.0}},
            "teacher=t has no effect, because soft_weight, hidden_weight and attention_weight of config.distillation are 0;",
        ),
        (WITH_MAPS | {"model": {"attention": "fused"}}, "attention_weight=0.5 compares attention maps, which are only"),
        (WITH_MAPS | {"model": {"remat": "full"}}, "attention_weight=0.5 compares attention maps"),
        (WITH_MAPS | {"model": {"scan_layers": True}}, "attention_weight=0.5 compares attention maps"),
        (
            {"objective": "bert", "model": {"encoder": "bilm"}, "examples": ALONE},
            "objective=bert cannot train a model with encoder=bilm; leave it out",
        ),
        ({"objective": "labels"}, "config.objective=labels is an objective for python -m bert_jax.finetune, not for pretrain;"),
        ({"objective": "next_token"}, "config.objective=next_token cannot train a model with direction=both; leave it out"),
        (
            {"objective": "bert", "model": {"direction": "left_to_right"}, "examples": {"pairs": "none"}},
            "config.objective=bert cannot train a model with direction=left_to_right; leave it out",
        ),
        ({"model": {"direction": "left_to_right"}}, "config.examples.pairs=original .* set config.examples.pairs=none"),
        ({"examples": {"targets": "next"}}, "config.examples.targets=next does not fit config.objective=bert; leave targets out"),
    ],
)
def test_incompatible_settings_are_refused(values, says):
    with pytest.raises(UserError, match=says):
        PretrainingExperiment.from_dict({**SMALL, **values})


def test_whole_numbers_pass_for_floats():
    assert PretrainingExperiment.from_dict(with_value("phases.0.learning_rate", 1)).phases[0].learning_rate == 1.0


def test_a_phase_that_continues_the_schedule_lengthens_it():
    (schedule,) = PretrainingExperiment.from_dict(SMALL).schedules()
    assert (schedule.start, schedule.steps, schedule.warmup_steps) == (0, 15, 2)


def test_a_phase_without_continue_schedule_starts_its_own_schedule():
    values = with_value("phases.1.continue_schedule", False) | {}
    first, second = PretrainingExperiment.from_dict(values).schedules()
    assert (first.start, first.steps, second.start, second.steps) == (0, 10, 10, 5)


def test_a_schedule_has_the_rates_of_its_phase_and_the_shape_named_by_the_optimizer():
    values = with_value("optimizer", {"decay_power": 2.0, "end_learning_rate": 1e-6})
    values["phases"][1] |= {"continue_schedule": False, "learning_rate": 3e-4, "warmup_steps": 4}
    first, second = PretrainingExperiment.from_dict(values).schedules()
    assert second == Span(
        schedule="original", start=10, steps=5, warmup_steps=4, peak=3e-4, decay_power=2.0, end_learning_rate=1e-6,
        phase="config.phases.1",
    )  # fmt: skip
    assert (first.peak, first.warmup_steps) == (1e-4, 2)
    (slanted,) = PretrainingExperiment.from_dict(with_value("optimizer.schedule", "slanted_triangular")).schedules()
    assert slanted.schedule == "slanted_triangular"
    values["phases"][1]["schedule"] = "constant"
    assert PretrainingExperiment.from_dict(values).schedules()[1].schedule == "constant"
    values["phases"].append({"steps": 7, "continue_schedule": True})
    assert [one.steps for one in PretrainingExperiment.from_dict(values).schedules()] == [10, 12]


def test_every_phase_has_its_own_data_seed():
    experiment = PretrainingExperiment.from_dict(SMALL | {"seed": 7})
    assert [experiment.phase_seed(i) for i in range(3)] == [7, 7 + 2**32, 7 + 2 * 2**32]  # no phase gets the seed of a run


def test_an_unknown_objective_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"config\.objective='brt': did you mean 'bert'\?; config\.objective=FILE\.py:NAME loads"):
        PretrainingExperiment.from_dict({**SMALL, "objective": "brt"})


def test_the_objective_and_targets_default_to_the_direction_of_the_model():
    both, causal = (
        PretrainingExperiment.from_dict({**SMALL, "model": {"direction": direction}, "examples": {"pairs": "none"}})
        for direction in ("both", "left_to_right")
    )
    assert (both.objective, both.examples.targets, both.example_config(1).targets) == ("bert", "masked", "masked")
    assert (causal.objective, causal.examples.targets, causal.example_config(1).targets) == ("next_token", "next", "next")
    assert type(dataclasses.replace(causal, objective="auto").trained_objective).__name__ == "NextToken"
    assert PretrainingExperiment.from_dict(causal.to_dict()) == causal


def test_a_row_may_predict_all_its_next_tokens():
    values = {"model": {"direction": "left_to_right"}, "examples": {"pairs": "none", "length": 64, "max_predictions": 63}}
    experiment = PretrainingExperiment.from_dict(values | {"phases": [{"steps": 1}]})
    assert experiment.example_config(0).max_predictions == 63


RUN = {
    "phases": [
        {"steps": 8_000, "warmup_steps": 800, "length": 32, "max_predictions": 5},
        {"steps": 500, "warmup_steps": 100},
        {"steps": 1_500, "continue_schedule": True},
    ],
    "evaluation": {"every": 1_000, "rows": 64},
    "checkpoints": {"keep_at": [500, 10_000]},
}


def test_changing_the_steps_scales_phases_warmups_evaluations_and_checkpoints():
    short = PretrainingExperiment.from_dict(with_total_steps(RUN, 300))
    assert [phase.steps for phase in short.phases] == [240, 15, 45]
    assert [phase.warmup_steps for phase in short.phases] == [24, 3, 0]
    assert (short.evaluation.every, short.evaluation.rows) == (30, 64)
    assert (short.checkpoints.every, short.checkpoints.keep_at) == (30, (15, 300)), "1,000 is the default"
    assert short.log_every == 3
    odd = {"phases": [{"steps": 4}], "evaluation": 3, "checkpoints": {"every": "often", "keep_at": 7}, "log_every": "now"}
    assert with_total_steps(odd, 2) == odd | {"phases": [{"steps": 2}]}
    assert PretrainingExperiment.from_dict(with_total_steps(RUN, 10_000)) == PretrainingExperiment.from_dict(RUN)
    longer = with_total_steps(RUN, 20_000)["phases"]
    assert [phase.get("warmup_steps", 0) for phase in longer] == [1_600, 200, 0]
    for total in range(3, 60):
        steps = [phase["steps"] for phase in with_total_steps(RUN, total)["phases"]]
        assert sum(steps) == total
        assert min(steps) >= 1
    assert [phase.get("warmup_steps", 0) for phase in with_total_steps(RUN, 37)["phases"]] == [3, 0, 0], "37 / 10 and 2 / 5"
    shortest = PretrainingExperiment.from_dict(with_total_steps(RUN | {"log_every": 100}, 3))
    assert (shortest.log_every, shortest.evaluation.every, shortest.checkpoints.every) == (1, 1, 1)
    with pytest.raises(UserError, match=r"^config\.steps=2 is fewer than the 3 phases; each needs at least one step$"):
        with_total_steps(RUN, 2)
    for wrong in ({}, {"phases": 3}, {"phases": []}, {"phases": [{"steps": "many"}]}, {"phases": [{"steps": 0}]}):
        assert with_total_steps(wrong, 2) == wrong, "the error comes when the experiment is created"


def test_the_steps_flag_scales_the_run_before_other_overrides(tmp_path: pathlib.Path):
    file = tmp_path / "experiment.py"
    file.write_text(f"def get_config():\n    return {RUN!r}\n")
    for overrides in ([("evaluation.every", "7"), ("steps", "3e2")], [("steps", "300"), ("evaluation.every", "7")]):
        values = read_experiment(str(file), overrides, PretrainingExperiment)
        assert [phase["steps"] for phase in values["phases"]] == [240, 15, 45]
        assert values["evaluation"]["every"] == 7
        assert "steps" not in values
    with pytest.raises(UserError, match=r"--config\.steps=many"):
        read_experiment(str(file), [("steps", "many")], PretrainingExperiment)
    with pytest.raises(UserError, match=r"--config\.steps=: wanted"):
        read_experiment(str(file), [("steps", "")], PretrainingExperiment)
    with pytest.raises(UserError, match=r"config\.steps=0 is fewer"):
        read_experiment(str(file), [("steps", "0")], PretrainingExperiment)


def test_a_run_keeps_the_objective_of_a_file_that_changes(tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    file.write_text("from bert_jax.objectives.mlm_nsp import MlmNsp\n\n\nclass Mine(MlmNsp):\n    pass\n", encoding="utf-8")
    experiment = PretrainingExperiment.from_dict({**SMALL, "objective": f"{file}:Mine"})
    file.write_text("an edit that is half done", encoding="utf-8")
    assert type(experiment.trained_objective).__name__ == "Mine"
    assert experiment.example_config(1).targets == "masked"


def test_a_step_belongs_to_the_phase_that_trains_it():
    experiment = PretrainingExperiment.from_dict(SMALL)
    assert [experiment.phase_after(step) for step in (0, 9, 10, 14)] == [0, 0, 1, 1]


# ------------------------------------------------------------------------------------------------------------- recipes of phases


def of_phases(*phases, **values):
    return PretrainingExperiment.from_dict({"phases": list(phases), **values})


@pytest.mark.parametrize(
    ("start", "positions", "remedy"),
    [
        ({}, "learned", "raise model.max_position"),
        ({"init_from": "m"}, "rotary", "set --config.model.max_position=600"),
        ({"init_from": "m"}, "learned", "extend this model with .*convert --max-position=600 and set config.init_from to"),
        ({"init_state": "m@1"}, "rotary", "raise model.max_position"),
        ({"init_state": "m@1"}, "learned", "extend the model of that run with .* --max-position=600 and set config.init_from to"),
    ],
)
def test_rows_longer_than_the_positions_are_refused_with_a_remedy_that_the_start_of_the_run_accepts(start, positions, remedy):
    with pytest.raises(UserError, match=rf"\.length=600 is longer .*max_position=512\); shorten the rows, or {remedy}"):
        of_phases({"steps": 1, "length": 600}, model={"positions": positions}, **start).validate()


@pytest.mark.parametrize("stated", [None, 10_000.0])
def test_the_base_of_a_phase_changes_only_full_layers(stated):
    sliding = {"positions": "rotary", "layer_types": ("full", "sliding"), "num_layers": 2, "sliding_radius": 4}
    phases = [{"steps": 1}, {"steps": 1, "rotary_theta": 5.0}, {"steps": 1, "rotary_theta": 5.0, "sliding_rotary_theta": 7.0}]
    found = of_phases(*phases, model=sliding | {"sliding_rotary_theta": stated})
    models = [found.for_phase(i).model for i in range(3)]
    assert [(m.rotary_theta, m.sliding_rotary_theta) for m in models] == [(10_000.0, stated), (5.0, 10_000.0), (5.0, 7.0)]


def test_a_budget_in_tokens_gives_the_steps_of_a_phase_rounded_up():
    found = of_phases(
        {"tokens": 1_000_000, "length": 100, "batch_size": 32},
        {"tokens": 64 * 128, "batch_size": 64},
        {"steps": 7},
    )
    assert [phase.steps for phase in found.phases] == [313, 1, 7]
    assert PretrainingExperiment.from_dict(found.to_dict()) == found
    for size, steps in ((2, 10), (1, 20)):
        (phase,) = of_phases(
            {"tokens": 600, "steps": 0, "batch_size": size}, examples={"length": 30, "max_predictions": 5}
        ).phases
        assert phase.steps == steps


def test_changing_the_steps_drops_the_token_budget():
    values = {"phases": [{"tokens": 320_000, "length": 100, "batch_size": 32}, {"steps": 100}]}
    found = PretrainingExperiment.from_dict(with_total_steps(values, 20))
    assert [(phase.steps, phase.tokens) for phase in found.phases] == [(10, 0), (10, 0)]


@pytest.mark.parametrize(
    ("phase", "says"),
    [
        ({}, r"config\.phases\.0 needs steps, at least 1, or a budget in tokens"),
        ({"steps": 0}, r"config\.phases\.0 needs steps, at least 1, or a budget in tokens"),
        (
            {"steps": 3, "tokens": 1_000, "length": 10, "batch_size": 10, "max_predictions": 2},
            "has steps=3 and tokens=1,000, but 1,000 tokens take 10 steps of 10 x 10 tokens; set steps or tokens to 0",
        ),
        ({"tokens": -1}, "tokens=-1 must be at least 0"),
        ({"steps": 3, "masked_fraction": 0.0}, "masked_fraction=0.0 must be above 0"),
        ({"steps": 3, "mask_probability": 0.95}, r"config\.phases\.0: mask_probability=0.95 and random_probability=0.1 sum to"),
        ({"steps": 3, "packed_examples": 2, "masked_fraction": 0.3}, "one row can have 39 masks; set max_predictions=39"),
        ({"steps": 3, "end_fraction": 1.5}, "end_fraction=1.5 must be at least 0 and at most 1"),
    ],
)
def test_an_impossible_phase_is_an_error_of_one_sentence(phase, says):
    with pytest.raises(UserError, match=says):
        of_phases(phase)


def test_phases_have_their_own_masks_and_share_those_of_held_out_rows():
    found = of_phases(
        {"steps": 1, "masked_fraction": 0.3, "max_predictions": 39, "mask_probability": 1.0, "random_probability": 0.0},
        {"steps": 1},
        {"steps": 1, "masked_fraction": 0.05, "max_predictions": 6, "length": 128},
        {"steps": 1, "masked_fraction": 0.3, "max_predictions": 42, "packed_examples": 4},
    )
    trained = [found.example_config(phase) for phase in range(4)]
    assert [(one.masked_fraction, one.mask_probability) for one in trained] == [(0.3, 1.0), (0.15, 0.8), (0.05, 0.8), (0.3, 0.8)]
    eval_split = [found.eval_config(phase) for phase in range(4)]
    assert {(one.masked_fraction, one.mask_probability, one.random_probability) for one in eval_split} == {(0.15, 0.8, 0.1)}
    assert [one.max_predictions for one in eval_split] == [19, 20, 19, 21], "a phase with the same masks has its own"


def test_held_out_rows_may_have_another_masked_fraction():
    phase = {"steps": 1, "masked_fraction": 0.3, "max_predictions": 60}
    found = of_phases(phase, examples={"masking": "words"}, evaluation={"masked_fraction": 0.1})
    assert (found.eval_config(0).masked_fraction, found.eval_config(0).max_predictions) == (0.1, 20)


def test_schedule_pieces_follow_the_phases_and_a_ramp_shares_its_warmup():
    steady = {"tokens": 100_000, "length": 10, "batch_size": 40, "max_predictions": 2, "warmup_steps": 150}
    steady |= {"schedule": "constant"}
    found = of_phases(
        *batch_ramp(steady, sizes=[10, 20, 30], tokens=60_000),
        {"steps": 10, "schedule": "1-sqrt", "end_fraction": 0.1, "learning_rate": 5e-5},
    )
    assert [(phase.steps, phase.batch_size) for phase in found.phases[:-1]] == [(100, 10), (100, 20), (100, 30), (100, 40)]
    assert [phase.warmup_steps for phase in found.phases] == [150, 0, 0, 0, 0]
    spans = found.schedules()
    found = [(one.schedule, one.start, one.steps, one.warmup_steps) for one in spans]
    assert found == [("constant", 0, 400, 150), ("1-sqrt", 400, 10, 0)]
    assert (spans[1].peak, spans[1].end_fraction) == (5e-5, 0.1)


def test_a_batch_ramp_has_whole_microbatches_of_at_most_the_phase_rows():
    steady = {"tokens": 100_000, "length": 10, "batch_size": 40, "accumulation": 8}
    stages = batch_ramp(steady, sizes=[3, 10, 12, 20], tokens=33_000)
    assert [(stage["batch_size"], stage["accumulation"]) for stage in stages] == [(3, 1), (10, 2), (12, 3), (20, 4), (40, 8)]


def test_a_ramp_has_at_least_a_step_of_each_size_and_leaves_some_tokens():
    steady = {"tokens": 601, "length": 10, "batch_size": 40}
    assert [stage["steps"] for stage in batch_ramp(steady, sizes=[10, 20], tokens=1)[:-1]] == [1, 1]
    assert batch_ramp(steady, sizes=[10, 20, 30], tokens=600)[-1]["tokens"] == 1
    with pytest.raises(UserError, match="a ramp of 600 tokens is longer than its phase of 600"):
        batch_ramp(steady | {"tokens": 600}, sizes=[10, 20, 30], tokens=600)
    assert scaled_steps([7_000, 3], 0.01) == [70, 1]


def test_a_ramp_beyond_its_phase_is_refused():
    with pytest.raises(UserError, match="a ramp of 6,000 tokens is longer than its phase of 5,000"):
        batch_ramp({"tokens": 5_000, "length": 10, "batch_size": 40}, sizes=[10, 20, 30], tokens=6_000)


def test_a_fully_decoupled_weight_decay_is_divided_by_the_peak_of_the_schedule():
    phases = [{"steps": 1, "learning_rate": 8e-4}, {"steps": 1, "continue_schedule": True}, {"steps": 1, "learning_rate": 3e-4}]
    found = of_phases(*phases, optimizer={"weight_decay": 1e-5, "decouple_rate": True})
    assert [found.for_phase(phase).optimizer.weight_decay for phase in range(3)] == pytest.approx([0.0125, 0.0125, 1 / 30])
    assert of_phases({"steps": 1}).for_phase(0).optimizer.weight_decay == 0.01
    with pytest.raises(UserError, match=r"phases\.0\.learning_rate=0 cannot be combined with config\.optimizer\.decouple_rate"):
        of_phases({"steps": 1, "learning_rate": 0.0}, optimizer={"decouple_rate": True})
