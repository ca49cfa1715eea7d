from __future__ import annotations

import dataclasses
import functools
import json
import pathlib

import pytest

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads import make_head
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.heads.token import TokenHead

SMALL = {"init_from": "some/model"}
SEQUENCE = SequenceHead(labels=("no", "yes"))


def with_values(**changes):
    """Returns SMALL with dotted keys set; the keywords have two underscores for a dot."""
    values = json.loads(json.dumps(SMALL))
    for path, value in changes.items():
        *groups, name = path.split("__")
        node = values
        for group in groups:
            node = node.setdefault(group, {})
        node[name] = value
    return values


def experiment(**changes) -> FinetuningExperiment:
    return FinetuningExperiment.from_dict(with_values(**changes))


def test_an_experiment_survives_a_round_trip_through_json():
    one = experiment(sweep__seeds=[1, 2], training__class_weights=[1, 2.5], head__dropout=0.3, task__name="squad/v2.0")
    assert FinetuningExperiment.from_dict(json.loads(json.dumps(one.to_dict()))) == one


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("sed", "there is no config.sed; did you mean 'seed'"),
        ("training__lerning_rate", "there is no config.training.lerning_rate; did you mean 'training.learning_rate'"),
        ("task__nmae", "did you mean 'task.name'"),
        ("sweep__seed", "did you mean 'sweep.seeds'"),
        ("distillation__teecher", "did you mean 'distillation.teacher'"),
    ],
)
def test_a_misspelt_key_is_an_error_naming_the_nearest(path, says):
    with pytest.raises(UserError, match=says):
        experiment(**{path: 1})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"init_from": ""}, r"config\.init_from is empty; name the model"),
        ({"seed": -1}, r"config\.seed=-1 must be at least 0 and at most 4,294,967,295"),
        ({"sweep__seeds": [0, 2**32]}, r"config\.sweep\.seeds\.1=4294967296 must be at least 0 and at most 4,294,967,295"),
        ({"training__epochs": 0}, r"config\.training\.epochs=0 must be at least 1"),
        ({"sweep__epochs": [3, 0]}, r"config\.sweep\.epochs\.1=0 must be at least 1"),
        ({"training__batch_size": 0}, r"config\.training\.batch_size=0 must be at least 1"),
        ({"training__learning_rate": 0.0}, r"config\.training\.learning_rate=0\.0 must be above 0"),
        ({"sweep__learning_rates": [2e-5, -1e-5]}, r"config\.sweep\.learning_rates\.1=-1e-05 must be above 0"),
        ({"training__accumulation": 0}, r"config\.training\.accumulation=0 must be at least 1"),
        ({"training__schedule": "slanted"}, r"training\.schedule='slanted' is not one of .*; did you mean 'slanted_triangular'"),
        ({"training__warmup_fraction": 1.5}, r"config\.training\.warmup_fraction=1\.5 must be at least 0 and at most 1"),
        ({"training__label_smoothing": -0.1}, r"config\.training\.label_smoothing=-0\.1 must be at least 0 and below 1"),
        ({"training__layer_decay": 1.2}, r"config\.training\.layer_decay=1\.2 must be at least 0 and at most 1"),
        ({"training__class_weights": [1.0, -1.0]}, r"config\.training\.class_weights\.1=-1\.0 must be at least 0"),
        ({"training__class_weights": "balanced"}, r"class_weights='balanced' must be a list"),
        ({"training__freeze_encoder": True, "training__gradual_unfreezing": True}, "contradict each other; choose one"),
        ({"selection__select": "bset"}, r"config\.selection\.select='bset' is not one of best, last; did you mean 'best'"),
        ({"selection__patience": -1}, r"config\.selection\.patience=-1 must be at least 0"),
        ({"selection__per_epoch": 0}, r"config\.selection\.per_epoch=0 must be at least 1"),
        ({"selection__patience": 2, "selection__select": "last"}, r"patience=2 requires selection\.select=best; set it"),
        ({"distillation__temperature": 0.0}, r"config\.distillation\.temperature=0\.0 must be at least 0\.01 and at most 1,000"),
        ({"distillation__hidden_weight": -1.0}, r"config\.distillation\.hidden_weight=-1\.0 must be at least 0"),
        ({"distillation__soft_weight": 1.1}, r"config\.distillation\.soft_weight=1\.1 must be at least 0 and at most 1"),
        ({"optimizer__name": "adam"}, r"optimizer\.name='adam' is not one of .*; did you mean 'adamw'"),
        ({"optimizer__decay_power": 0.5}, r"layer_decay and decouple_rate are only for pretraining; use training\.schedule"),
        ({"sweep__devices_per_run": -1}, r"config\.sweep\.devices_per_run=-1 must be at least 0"),
        ({"sweep__seeds": [1, 2, 1]}, r"contains the run batch-32_rate-2e-05_epochs-3_seed-1 twice; remove the repeated value"),
        ({"init_random": True, "keep_head": True}, "so keep_head and init_new have no effect; leave the two out"),
        ({"init_random": True, "init_new": "pooler"}, "so keep_head and init_new have no effect; leave the two out"),
        ({"training__epochs": 10_001}, r"config\.training\.epochs=10001 must be at least 1 and at most 10,000"),
        ({"training__learning_rate": 1.5e30}, r"learning_rate=1\.5e\+30 must be above 0 and at most 1e\+30"),
        ({"training__class_weights": [1.5e6]}, r"class_weights\.0=1500000\.0 must be at least 0 and at most 1e\+06"),
        ({"checkpoints__keep_at": [3]}, r"config\.checkpoints\.keep_at is for pretraining; leave it out"),
        ({"optimizer__end_learning_rate": 1e-6}, r"end_learning_rate, .* are only for pretraining; use training\.schedule"),
        ({"optimizer__schedule": "slanted_triangular"}, r"schedule, layer_decay and decouple_rate are only for pretraining"),
        (
            {"optimizer__layer_decay": 0.9},
            r"decouple_rate are only for pretraining; use training\.schedule and "
            r"training\.layer_decay",
        ),
        ({"optimizer__decouple_rate": True}, r"layer_decay and decouple_rate are only for pretraining"),
        ({"distillation__temperature": 3.0}, r"config\.distillation has settings but no teacher; name one in config\.dist"),
        ({"cross_view__batch_size": 8}, r"config\.cross_view has settings but no text; name a corpus in config\.cross_view"),
        ({"cross_view__corpus": "c", "distillation__teacher": "t"}, "from another model; leave one of them out"),
        ({"objective": "bert"}, r"config\.objective=bert is an objective for python -m bert_jax\.pretrain, not for finetune; r"),
        ({"objective": "label"}, r"config\.objective='label': did you mean 'labels'\?; config\.objective=FILE\.py:NAME loads"),
        ({"objective": 7}, r"config\.objective=7 must be a name"),
        ({"objective_options": {"weight": 1}}, r"there is no config\.objective_options\.weight; there are no keys"),
        ({"objective": "cross_view"}, r"objective=cross_view also learns from text without labels; name a corpus in config\.cr"),
        ({"objective": "labels", "cross_view__corpus": "c"}, r"from which config\.objective=labels does not learn; leave one of"),
        ({"log_every": 0}, r"config\.log_every=0 must be at least 1"),
        ({"checkpoints__keep": 0}, r"config\.checkpoints\.keep=0 must be at least 1"),
        ({"head__lstm": -1}, r"config\.head\.lstm=-1 must be at least 0"),
        ({"task__length": 4}, r"config\.task\.length=4 must be at least 8"),
        ({"training__batch_size": 16.0}, r"config\.training\.batch_size=16\.0 must be an int"),
    ],
)
def test_an_impossible_value_is_an_error_naming_key_value_and_limit(changes, says):
    with pytest.raises(UserError, match=says):
        experiment(**changes)


OWN = """
from __future__ import annotations
import dataclasses
from typing import Annotated
from annotated_types import Interval
from bert_jax.objectives.labels import Labels
from bert_jax.objectives.mlm_nsp import MlmNsp

@dataclasses.dataclass(frozen=True)
class Mine(Labels):
    weight: Annotated[float, Interval(ge=0)] = 1.0
    layers: tuple[int, ...] = (1, 2)

class Words(MlmNsp): pass
"""


def test_the_settings_of_an_own_objective_are_the_fields_that_it_adds(tmp_path: pathlib.Path):
    (tmp_path / "mine.py").write_text(OWN)
    name = f"{tmp_path}/mine.py:Mine"
    one = experiment(objective=name, objective_options__layers=[3])
    assert one.objective_options == {"weight": 1.0, "layers": (3,)}
    assert FinetuningExperiment.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    for options, says in {
        "weigth": "there is no config.objective_options.weigth; did you mean 'weight'?",
        "frozen": "there is no config.objective_options.frozen; valid keys: layers, weight",
        "weight": "config.objective_options.weight=-1.0 must be at least 0",
    }.items():
        with pytest.raises(UserError) as error:
            experiment(objective=name, objective_options={options: -1.0})
        assert says in str(error.value)
    with pytest.raises(UserError, match=r"Words is an objective for python -m bert_jax\.pretrain, .* inherit from bert_jax\.obj"):
        experiment(objective=f"{tmp_path}/mine.py:Words")


def test_the_objective_is_that_of_the_data_unless_it_is_named():
    assert experiment().objective == experiment(objective="labels").objective == "labels"
    assert experiment(cross_view__corpus="c").objective == "cross_view"


@pytest.mark.parametrize(
    "changes",
    [
        {"training__epochs": 1},
        {"training__epochs": 10_000},
        {"training__learning_rate": 1e30},
        {"training__class_weights": [0.0, 1e6]},
        {"keep_head": True},
        {"init_new": "pooler"},
        {"init_random": True},
        {"selection__patience": 2},
        {"selection__select": "last"},
        {"training__freeze_encoder": True},
        {"training__gradual_unfreezing": True},
        {"distillation__temperature": 3.0, "distillation__teacher": "t"},
        {"cross_view__batch_size": 8, "cross_view__corpus": "c"},
    ],
)
def test_values_at_their_limits_and_single_settings_are_accepted(changes):
    made = experiment(**changes)
    for path, value in changes.items():
        found = functools.reduce(getattr, path.split("__"), made)
        assert found == (tuple(value) if isinstance(value, list) else value)


# --------------------------------------------------------------------------------------------------------------------- the runs


def test_without_a_sweep_the_experiment_is_the_only_run():
    one = experiment(seed=3, sweep__devices_per_run=2)
    assert one.runs() == [one]


def test_only_several_runs_with_their_own_devices_train_in_parallel():
    both = {"sweep__seeds": [1, 2]}
    assert experiment(**both).side_by_side
    assert experiment(**both, sweep__devices_per_run=2).side_by_side
    assert not experiment(**both, sweep__devices_per_run=0).side_by_side
    assert not experiment(sweep__seeds=[1]).side_by_side


def test_the_papers_grid_over_seeds_is_every_combination_with_seeds_fastest():
    grid = {"batch_sizes": [16, 32], "learning_rates": [5e-5, 3e-5, 2e-5], "epochs": [2, 3, 4], "seeds": [7, 8]}
    runs = experiment(sweep=grid).runs()
    found = [(r.training.batch_size, r.training.learning_rate, r.training.epochs, r.seed) for r in runs]
    assert found == [(b, rate, n, s) for b in (16, 32) for rate in (5e-5, 3e-5, 2e-5) for n in (2, 3, 4) for s in (7, 8)]
    assert len({run.name for run in runs}) == 36
    assert runs[0].name == "batch-16_rate-5e-05_epochs-2_seed-7"


def test_a_sweep_run_changes_only_the_swept_settings():
    whole = experiment(seed=1, sweep__seeds=[4, 5], sweep__learning_rates=[1e-5], training__layer_decay=0.9, task__name="gap")
    for run, seed in zip(whole.runs(), (4, 5), strict=True):
        training = dataclasses.replace(whole.training, learning_rate=1e-5)
        assert run == dataclasses.replace(whole, seed=seed, training=training, sweep=run.sweep)
        assert run.runs() == [run]


# ---------------------------------------------------------------------------------------------------------- the head, the model


def test_the_head_comes_from_the_task_and_the_configuration():
    assert experiment().head_config(SEQUENCE) == SEQUENCE
    asked = experiment(head__pooling="concat", head__layers="scalar_mix", head__dropout=0.4).head_config(SEQUENCE)
    assert asked == dataclasses.replace(SEQUENCE, pooling="concat", layers="scalar_mix", dropout=0.4)
    for head in (SEQUENCE, TokenHead(labels=("O", "B-X"))):
        assert experiment(head__lstm=8).head_config(head) == dataclasses.replace(head, lstm=8)
    with pytest.raises(UserError, match=r"head\.lstm=8 is for a sequence, span or token head"):
        experiment(head__lstm=8).head_config(ChoiceHead())


def test_the_configuration_changes_only_how_a_loaded_model_trains():
    loaded = ModelConfig(hidden_size=24, num_heads=3, activation="relu", hidden_dropout=0.3, max_position=77)
    config = experiment(model__hidden_dropout=0.2, model__dtype="bfloat16", model__vocab_multiple=8).model_config(loaded, "cpu")
    assert config == dataclasses.replace(loaded, hidden_dropout=0.2, dtype="bfloat16", vocab_multiple=8)


def test_a_pooling_of_the_model_is_not_one_of_the_head():
    for pooling in ("cls", "mean", "late"):
        one = experiment(head__pooling=pooling)
        assert one.head_config(SEQUENCE) == SEQUENCE
        assert one.head_config(ChoiceHead()) == ChoiceHead()
        assert one.model_config(ModelConfig(), "cpu").classifier_pooling == pooling
    assert experiment().model_config(ModelConfig(classifier_pooling="mean"), "cpu").classifier_pooling == "mean"


@pytest.mark.parametrize("pooling", ["cls", "mean", "late"])
def test_a_pooling_of_the_model_that_the_head_does_not_read_is_refused(pooling: str):
    for head in (TokenHead(labels=("O", "B-X")), SpanHead(), make_head("mention", labels=("A", "B", "neither"))):
        says = rf"^config\.head\.pooling='{pooling}' chooses the vector of a whole text, which a {head.kind} head does not read; "
        with pytest.raises(UserError, match=says):
            experiment(head__pooling=pooling).head_config(head)
    with pytest.raises(UserError, match=rf"^config\.head\.lstm=8 reads the final .*, so head\.pooling={pooling} has no effect; "):
        experiment(head__pooling=pooling, head__lstm=8).head_config(SEQUENCE)


def test_the_dtype_defaults_to_bfloat16_on_a_tpu_and_float32_elsewhere():
    def dtypes(**fields: object) -> list[str]:
        return [experiment(**fields).model_config(ModelConfig(), platform).dtype for platform in ("cpu", "gpu", "tpu")]

    assert dtypes() == ["float32", "float32", "bfloat16"]
    assert dtypes(model__dtype="float32") == ["float32"] * 3
    with pytest.raises(UserError, match=r"config\.model\.dtype='half' is not one of auto, float32, bfloat16"):
        dtypes(model__dtype="half")


def test_a_frozen_encoder_runs_without_dropout_and_the_head_on_it_keeps_its_own():
    frozen = experiment(training__freeze_encoder=True, model__hidden_dropout=0.3, model__attention_dropout=0.2)
    config = frozen.model_config(ModelConfig(), "cpu")
    assert (config.hidden_dropout, config.attention_dropout) == (0.0, 0.0)
    loaded = frozen.model_config(ModelConfig(embedding_dropout=0.2, attention_output_dropout=0.2), "cpu")
    assert (loaded.embedding_dropout, loaded.attention_output_dropout) == (None, None), "like the hidden states"
    assert frozen.head_config(SEQUENCE).dropout == 0.3
    assert frozen.head_config(SpanHead()).dropout is None  # no dropout, as in the original
    assert experiment(training__freeze_encoder=True, head__dropout=0.0).head_config(SEQUENCE).dropout == 0.0
