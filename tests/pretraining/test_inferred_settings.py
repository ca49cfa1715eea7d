"""The model's shape follows the corpus and the initial model, unless the command line sets it."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

from bert_jax.configs.pretraining import PretrainingExperiment, batch_ramp
from bert_jax.errors import UserError
from bert_jax.model.config import published
from bert_jax.pretraining.inferred_settings import infer_settings
from bert_jax.runtime.workdir import METRICS, open_workdir

TINY = pathlib.Path(__file__).parents[1] / "golden" / "heads" / "pretraining"  # 2 layers, 20 wide, 16 positions
FILE: dict[str, Any] = {
    "model": {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "vocab_size": 8_192, "hidden_dropout": 0.3},
    "phases": [{"steps": 200, "length": 16, "max_predictions": 4, "warmup_steps": 100}],
}


def test_the_vocabulary_size_comes_from_the_corpus():
    values, notes = infer_settings(FILE, (), vocabulary_size=4_000)
    assert PretrainingExperiment.from_dict(values).model.vocab_size == 4_000
    assert notes == ["config.model.vocab_size is 4000, as in the corpus (the experiment file has 8192)"]
    assert FILE["model"]["vocab_size"] == 8_192
    assert infer_settings({"phases": []}, (), vocabulary_size=4_000) == ({"model": {"vocab_size": 4_000}, "phases": []}, [])


def test_the_shape_comes_from_the_initial_model_and_training_settings_stay():
    values, notes = infer_settings(FILE | {"init_from": str(TINY)}, (), vocabulary_size=4_000)
    model = PretrainingExperiment.from_dict(values).model
    assert (model.num_layers, model.hidden_size, model.num_heads, model.max_position) == (2, 20, 5, 16)
    assert model.vocab_size not in (4_000, 8_192)
    assert model.hidden_dropout == 0.3
    assert f"config.model.num_layers is 2, as in {TINY} (the experiment file has 4)" in notes
    assert len(notes) == 4  # among the fields that the file names


@pytest.mark.parametrize("kind", [list, tuple])
def test_equal_layer_types_are_no_change(kind):
    source = TINY.parents[1] / "families" / "modernbert_masked"
    types = ("full", "sliding", "sliding", "full", "sliding")
    file = FILE | {"init_from": str(source), "examples": {"pairs": "none"}}
    values, notes = infer_settings(file | {"model": {"layer_types": kind(types)}}, ())
    assert (values["model"]["layer_types"], notes) == ([*types], [])
    _, notes = infer_settings(file | {"model": {"layer_types": kind(types[:2])}}, ())
    assert [note.partition(" is ")[0] for note in notes] == ["config.model.layer_types"]


def test_conflicting_flags_are_kept_for_their_error():
    values, notes = infer_settings(FILE, {"model.vocab_size"}, vocabulary_size=4_000)
    assert (values["model"]["vocab_size"], notes) == (8_192, [])
    values, _ = infer_settings(FILE | {"init_from": str(TINY)}, {"model.num_layers"}, vocabulary_size=4_000)
    assert values["model"]["num_layers"] == 4


def test_a_resumed_run_does_not_need_its_initial_model(tmp_path: pathlib.Path):
    gone = str(tmp_path / "gone")
    with pytest.raises(UserError, match=r"there is no .*gone"):
        infer_settings(FILE | {"init_from": gone}, (), vocabulary_size=4_000, workdir=tmp_path / "run")
    stored = FILE | {"init_from": gone, "model": {"num_layers": 3, "hidden_size": 30, "hidden_dropout": 0.5}}
    with open_workdir(tmp_path / "run", "pretrain", stored):
        with pytest.raises(UserError, match=r"there is no .*gone"):  # it has not started
            infer_settings(FILE | {"init_from": gone}, (), vocabulary_size=4_000, workdir=tmp_path / "run")
        (tmp_path / "run" / METRICS).touch()
    with pytest.raises(UserError, match=r"there is no .*other"):
        infer_settings(FILE | {"init_from": gone + "/other"}, (), vocabulary_size=4_000, workdir=tmp_path / "run")
    values, _ = infer_settings(FILE | {"init_from": gone}, (), vocabulary_size=4_000, workdir=tmp_path / "run")
    assert (values["model"]["num_layers"], values["model"]["hidden_size"], values["model"]["hidden_dropout"]) == (3, 30, 0.3)


def test_estimates_do_not_fetch_a_hub_model():
    values, notes = infer_settings(FILE | {"init_from": "someone/model"}, (), vocabulary_size=4_000, download=False)
    assert (values["model"]["num_layers"], values["model"]["vocab_size"]) == (4, 4_000)
    assert len(notes) == 2
    assert notes[0].startswith("config.init_from=someone/model is not on this machine, so the sizes of the model are those of co")


def test_a_phase_shorter_than_its_warmup_has_a_shorter_warmup():
    short = [{"steps": 50, "warmup_steps": 100}, {"steps": 5, "warmup_steps": 100}, {"steps": 50, "warmup_steps": 50}]
    values, notes = infer_settings({"phases": short}, {"phases.0.steps"})
    assert [phase.warmup_steps for phase in PretrainingExperiment.from_dict(values).phases] == [5, 0, 50]
    assert notes[0] == "config.phases.0.warmup_steps is 5, a tenth of the phase's 50 steps, since 100 is longer than the phase"
    assert notes[2].startswith("the warmup takes 50 of 50 steps: the learning rate reaches its peak late; for a shorter run, ")
    assert len(notes) == 3
    with pytest.raises(UserError, match=r"config\.phases\.0\.warmup_steps=100 must be between 0 and the phase's steps=50"):
        PretrainingExperiment.from_dict(infer_settings({"phases": short}, {"phases.0.warmup_steps"})[0])


def test_a_warmup_may_continue_in_the_phases_that_continue_its_schedule():
    first = {"steps": 50, "warmup_steps": 80}
    others = [{"steps": 40, "continue_schedule": True}, {"steps": 500}, {"steps": 90, "continue_schedule": True}]
    settled, notes = infer_settings({"phases": [first, *others]}, ())
    assert settled["phases"][0]["warmup_steps"] == 80
    assert [note.partition(": ")[0] for note in notes] == ["the warmup takes 80 of 90 steps"]
    settled, notes = infer_settings({"phases": [first | {"warmup_steps": 100}, *others]}, ())
    assert settled["phases"][0]["warmup_steps"] == 9
    assert notes[0].startswith("config.phases.0.warmup_steps is 9, a tenth of the phase's 90 steps, since 100 is longer")
    invalid = [first | {"steps": 0}, {"steps": "50", "continue_schedule": True}, 3]
    assert infer_settings({"phases": [{"steps": 50, "warmup_steps": 80}, *invalid[1:]]}, ())[0]["phases"][0]["warmup_steps"] == 5


def test_a_warmup_fits_in_later_phases_with_a_budget_in_tokens():
    phase = {"tokens": 10**9, "length": 128, "batch_size": 256, "warmup_steps": 3_000, "learning_rate": 1e-3}
    ramp = batch_ramp(phase, sizes=[64, 128], tokens=20_000_000)
    settled, notes = infer_settings({"phases": ramp, "optimizer": {"schedule": "cosine"}}, ())
    assert settled["phases"] == ramp
    assert notes == []
    settled, notes = infer_settings({"phases": [phase | {"tokens": 32_768 * 50}]}, ())
    assert settled["phases"][0]["warmup_steps"] == 5
    assert notes[0].startswith("config.phases.0.warmup_steps is 5, a tenth of the phase's 50 steps, since 3,000 is longer than")


def test_too_few_predictions_for_the_masked_fraction_are_noted():
    published = [{"steps": 1, "length": 128}, {"steps": 1, "length": 512, "max_predictions": 77}]
    packed = {"steps": 1, "length": 32, "packed_examples": 4, "max_predictions": 12}
    assert infer_settings({"phases": [*published, packed]}, ())[1] == []
    file = {"phases": [{"steps": 1, "length": 32, "max_predictions": 5}], "examples": {"masked_fraction": 0.3}}
    told = "config.phases.0.max_predictions=5 masks at most 15.6 % of a row of 32 tokens, although masked_fraction is 0.3; "
    assert infer_settings(file, ())[1] == [told + "for the whole fraction, set it to at least 10"]
    assert len(infer_settings({**file, "examples": {"masked_fraction": 0.3, "masking": "words"}}, ())[1]) == 1
    everything = {"phases": [{"steps": 1, "length": 8, "max_predictions": 5}], "examples": {"masked_fraction": 1.0}}
    assert infer_settings(everything, ())[1] == [], "no example has more tokens"
    assert infer_settings({**file, "model": {"direction": "left_to_right"}}, {"examples.pairs"})[1] == []


TWO: list[dict[str, Any]] = [{"steps": 8, "length": 32, "max_predictions": 5}, {"steps": 8, "continue_schedule": True}]
TRANSLATOR = published("transformer_base")


@pytest.mark.parametrize(
    ("key", "file", "says"),
    [
        ("phases.1.learning_rate", {}, "phase 0; set config.phases.0.learning_rate, or config.phases.1.continue_schedule=false"),
        ("phases.1.warmup_steps", {}, "phase 0; set config.phases.0.warmup_steps, or config.phases.1.continue_schedule=false"),
        ("phases.0.warmup_steps", {"optimizer": {"schedule": "warmup"}}, "schedule=warmup does not use it; leave it out"),
        ("examples.length", {"phases": TWO[:1]}, "sets its own; set those of the phases, such as config.phases.0.length"),
        ("optimizer.schedule", {"phases": [{"steps": 1, "schedule": "cosine"}]}, "such as config.phases.0.schedule"),
        ("evaluation.masked_fraction", {"model": {"encoder": "bilm"}}, "config.objective=bilm masks nothing; leave it out"),
        ("phases.1.random_probability", {"model": {"encoder": "bilm"}}, "config.objective=bilm masks nothing; leave it out"),
        ("phases.0.max_predictions", {"model": TRANSLATOR}, "every token of a translation is predicted; leave it out"),
        ("model.sliding_radius", {}, "no layer is sliding; list sliding layers in config.model.layer_types, or leave it out"),
        ("model.sliding_rotary_theta", {"model": {"positions": "rotary"}}, "no layer is sliding; list"),
        ("model.rotary_theta", {}, "config.model.positions is learned; set config.model.positions=rotary, or leave it out"),
        ("model.rotary_pairing", {}, "config.model.positions is learned; set config.model.positions=rotary, or leave it out"),
        ("spikes.window", {}, "config.spikes.policy is none; set config.spikes.policy=skip or rollback, or leave it out"),
        ("spikes.in_a_row", {"spikes": {"policy": "skip"}}, "policy is skip; set config.spikes.policy=rollback, or leave it out"),
        ("model.layers_per_scan_step", {}, "scan_layers is false; set config.model.scan_layers=true, or leave it out"),
    ],
)
def test_a_key_of_the_command_line_without_effect_is_refused(key: str, file: dict[str, Any], says: str):
    file = {"phases": TWO} | file
    assert infer_settings(file, ())
    with pytest.raises(UserError, match=rf"^config\.{re.escape(key)} has no effect, because .*{re.escape(says)}"):
        infer_settings(file, (key,))


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ({"model": {"rotary_theta": 5.0}}, "model.rotary_theta=5.0"),
        ({"model": {"rotary_theta": 10_000.0}}, ""),  # the default
        ({"model": {"encoder": "bilm"}, "examples": {"pairs": "none", "masked_fraction": 0.3}}, "examples.masked_fraction=0.3"),
        ({"phases": [TWO[0], TWO[1] | {"learning_rate": 0.5}]}, "phases.1.learning_rate=0.5"),
        ({"spikes": {"policy": "skip", "window": 50, "deviations": 3.0, "max_rollbacks": 9}}, "spikes.max_rollbacks=9"),
        ({"spikes": {"policy": "rollback", "window": 50, "rollback_steps": 9, "max_rollbacks": 9, "in_a_row": 9}}, ""),
        ({"spikes": {"deviations": 3.0}}, "spikes.deviations=3.0"),
        ({"phases": [TWO[0] | {"warmup_steps": 2}], "optimizer": {"schedule": "warmup"}}, "phases.0.warmup_steps=2"),
    ],
)
def test_a_key_of_the_experiment_file_without_effect_is_noted(file: dict[str, Any], key: str):
    notes = [note.partition(", because ") for note in infer_settings({"phases": TWO} | file, ())[1]]
    assert [note[0] for note in notes if note[1]] == [f"config.{key} of the experiment file has no effect"] * bool(key)


@pytest.mark.parametrize(
    ("default", "of_phases", "used"),
    [
        ("linear", ["", "warmup"], False),
        ("original", ["linear", "cosine"], False),
        ("linear", ["cosine", "original"], True),
        ("original", ["linear", ""], True),
        ("experiments/extensions/wsd.py:warmup_stable_decay", ["linear", ""], False),
    ],
)
def test_a_decay_power_and_an_end_rate_need_a_phase_that_uses_them(default: str, of_phases: list[str], used: bool):
    phases = [{"steps": 1, "schedule": name} for name in of_phases] + [{"steps": 1, "continue_schedule": True}]
    for name, value in (("decay_power", 0.5), ("end_learning_rate", 0.25)):
        values = {"phases": phases, "optimizer": {"schedule": default, name: value}}
        if used:
            assert infer_settings(values, ())[0]["optimizer"][name] == value
        else:
            notes = "".join(infer_settings(values, ())[1])
            assert f"config.optimizer.{name}={value} of the experiment file has no effect" in notes
            with pytest.raises(UserError, match=rf"^config\.optimizer\.{name} has no effect, because no .* leave it out, or"):
                infer_settings(values, [f"optimizer.{name}"])


def test_a_key_of_the_command_line_that_one_phase_or_the_evaluation_uses_is_accepted():
    masks = [phase | {"mask_probability": 0.5} for phase in TWO]
    used = ("examples.length", "examples.mask_probability", "phases.0.warmup_steps", "evaluation.masked_fraction")
    assert infer_settings({"phases": masks}, used)[0]["phases"] == masks
    assert infer_settings({"phases": masks, "optimizer": {"schedule": "cosine"}}, ("optimizer.schedule", *used))


def test_a_key_of_the_command_line_that_the_model_uses_is_accepted():
    of_rotary = ("model.rotary_theta", "model.sliding_rotary_theta", "model.rotary_pairing", "model.sliding_radius")
    without_pairs = {"phases": TWO, "examples": {"pairs": "none"}}
    assert infer_settings(without_pairs | {"model": published("modernbert-base")}, of_rotary)
    own = {"positions": "experiments/extensions/alibi.py:Alibi", "scan_layers": True}
    assert infer_settings({"phases": TWO, "model": own}, (*of_rotary, "model.layers_per_scan_step"))
    assert infer_settings(without_pairs | {"init_from": str(MODERN), "model": {}}, of_rotary)


MODERN = TINY.parents[1] / "families" / "modernbert_masked"
SHAPE = ("full", "sliding", "sliding", "full", "sliding")


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ({"num_layers": 7, "layer_types": ["full"] * 7, "hidden_size": 8}, {"num_layers", "layer_types", "hidden_size"}),
        ({"num_layers": 5, "layer_types": ["full"] * 5, "hidden_size": 8}, {"num_layers", "hidden_size"}),
        ({"layer_types": ["full"] * 5, "vocab_size": 99}, set()),
    ],
)
def test_a_tiled_model_keeps_the_sizes_that_the_file_names(named: dict[str, Any], kept: set[str]):
    """The kinds of layers are sizes only if there is another number of them."""
    file = FILE | {"init_from": str(MODERN), "examples": {"pairs": "none"}, "model": named}
    tiled, _ = infer_settings(file | {"init_tiled": True}, ())
    plain, _ = infer_settings(file | {"init_tiled": False}, ())
    assert {name for name in named if tiled["model"][name] == named[name] != plain["model"][name]} >= kept - {"num_layers"}
    assert {name for name in named if tiled["model"][name] != plain["model"][name]} <= kept
    assert (plain["model"]["num_layers"], plain["model"]["layer_types"]) == (5, [*SHAPE])


def test_a_model_without_token_types_is_trained_without_pairs_by_default():
    values, notes = infer_settings(FILE | {"init_from": str(MODERN), "model": {}}, ())
    assert values["examples"] == {"pairs": "none"}
    assert notes == [f"config.examples.pairs is none: {MODERN} has no token types for the texts of a pair"]
    values, notes = infer_settings(FILE | {"init_from": str(MODERN), "model": {"type_vocab_size": 2}}, {"model.type_vocab_size"})
    assert (values.get("examples"), notes) == (None, [])


@pytest.mark.parametrize("judges", [False, True])
def test_a_user_objective_without_pairs_is_trained_without_them_by_default(judges: bool, tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    text = "from bert_jax.objectives.mlm_nsp import MlmNsp\nclass Mine(MlmNsp):\n    judges_pairs = "
    file.write_text(f"{text}{judges}\n")
    values, notes = infer_settings(FILE | {"objective": f"{file}:Mine"}, ())
    told = [f"config.examples.pairs is none: config.objective={file}:Mine does not learn from pairs"]
    assert (values.get("examples"), notes) == ((None, []) if judges else ({"pairs": "none"}, told))


def test_left_to_right_models_train_without_pairs_by_default():
    values, notes = infer_settings(FILE | {"model": {"direction": "left_to_right"}}, ())
    assert PretrainingExperiment.from_dict(values).examples.pairs == "none"
    assert notes == ["config.examples.pairs is none: the [CLS] of a left-to-right model sees no text"]
    values, notes = infer_settings({"model": {"direction": "left_to_right"}, "examples": {"pairs": "paper"}}, {"examples.pairs"})
    assert (values["examples"], notes) == ({"pairs": "paper"}, [])
    assert infer_settings({"model": {"direction": "left_to_right"}, "examples": {"pairs": "none"}}, ())[1] == []


def test_models_without_pair_objective_train_without_pairs_by_default():
    file = FILE | {"model": {"encoder": "bilm"}, "examples": {"duplicates": 3}}
    values, notes = infer_settings(file, ())
    assert values["examples"] == {"duplicates": 3, "pairs": "none"}
    assert notes == ["config.examples.pairs is none: model.encoder=bilm does not learn from pairs"]
    assert infer_settings(file, {"examples.pairs"}) == (file, [])
    assert infer_settings(FILE | {"model": {"encoder": "transformer"}}, ())[1] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"model": 3},
        {"examples": "paper"},
        {"phases": 3},
        {"phases": [3, {"steps": "50", "warmup_steps": 100}, {"steps": 50, "warmup_steps": "100"}, {"steps": 50}]},
        {"phases": [{"steps": 0, "warmup_steps": 100}, {"steps": 50, "warmup_steps": 100, "continue_schedule": True}]},
        {"init_from": 3},
    ],
)
def test_invalid_values_are_left_for_validation(changes: dict[str, Any]):
    file = FILE | changes
    assert infer_settings(file, ()) == (file, [])
