"""The default settings follow the papers and the released code, or turn a feature off."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.labels import LabelLoss
from bert_jax.objectives.skip_gram import SkipGram
from bert_jax.training.config import OptimizerConfig, SpikeConfig
from bert_jax.training.schedules import Span
from bert_jax.training.steps import Program, new_state

ORIGINAL = {"name": "bert_adam", "b1": 0.9, "b2": 0.999, "epsilon": 1e-6, "weight_decay": 0.01, "clip_norm": 1.0}
"""AdamWeightDecayOptimizer and create_optimizer of google-research/bert `optimization.py`; its decay is linear, to 0."""


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (
            OptimizerConfig,
            ORIGINAL
            | {"decay_power": 1.0, "end_learning_rate": 0.0, "schedule": "original", "layer_decay": 1.0}
            | {"decouple_rate": False},
        ),
        (SkipGram, {"window": 5, "negatives": 5, "subsampling": 1e-3, "shared_negatives": 64}),  # as in word2vec.c
        (
            SpikeConfig,
            {"policy": "none", "deviations": 6.0, "window": 100, "in_a_row": 3, "rollback_steps": 100, "max_rollbacks": 3},
        ),  # rolls back as PaLM did
        (LabelLoss, {"label_smoothing": 0.0, "class_weights": ()}),
        (
            PretrainingDistillation,
            {"temperature": 2.0, "soft_weight": 0.5, "hidden_weight": 0.0, "attention_weight": 0.0, "layers": "uniform"}
            | {"dtype": "", "teacher_width": 0, "teacher_sha256": ""},
        ),
    ],
)
def test_settings_have_their_documented_defaults(settings: type[Any], wanted: dict[str, Any]):
    assert vars(settings()) == wanted


def test_schedule_microbatches_and_spike_filter_have_their_defaults():
    plain = Span(schedule="original", start=0, steps=1, warmup_steps=0, peak=1.0)
    assert (plain.decay_power, plain.end_learning_rate) == (1.0, 0.0)
    program = {field.name: field.default for field in dataclasses.fields(Program) if field.default is not dataclasses.MISSING}
    absent = dict.fromkeys(("learning_rate_multipliers", "spike_filter", "teacher", "logits"))
    assert program == {"new_state": new_state, "zero_sharding": False, "reduce_dtype": "", **absent}
    for step in (Program.train_step, Program.gradient_norms):
        assert inspect.signature(step).parameters["accumulation"].default == 1


@pytest.mark.parametrize(
    ("settings", "values", "says"),
    [
        (SkipGram, {"window": 0}, r"objective_options\.window=0 must be at least 1"),
        (PretrainingDistillation, {"temperature": 0.0}, r"distillation\.temperature=0\.0 must be at least 0\.01"),
        (PretrainingDistillation, {"hidden_weight": -0.5}, r"distillation\.hidden_weight=-0\.5 must be at least 0 and at most"),
        (PretrainingDistillation, {"hidden_weight": 1.5e6}, r"hidden_weight=1500000\.0 must be at least 0 and at most 1e\+06"),
    ],
)
def test_settings_out_of_range_are_refused(settings, values, says):
    with pytest.raises(UserError, match=says):
        settings(**values)


def test_a_weight_of_a_loss_may_be_small():
    assert PretrainingDistillation(hidden_weight=0.5, attention_weight=1e6).hidden_weight == 0.5
