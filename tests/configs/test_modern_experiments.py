"""The phases of the published recipes, as numbers from the papers."""

from __future__ import annotations

import functools
import pathlib

import pytest

from bert_jax.configs.experiment_files import read_experiment
from bert_jax.configs.pretraining import PretrainingExperiment

FILES = pathlib.Path(__file__).parents[2] / "experiments" / "pretrain"


@functools.cache
def experiment(name: str) -> PretrainingExperiment:
    return PretrainingExperiment.from_dict(read_experiment(f"{FILES}/{name}", [], PretrainingExperiment))


def tokens(phases) -> list[float]:
    """Returns the tokens of each phase, in units of 10^9."""
    return [phase.steps * phase.batch_size * phase.length / 1e9 for phase in phases]


@pytest.mark.parametrize(
    ("name", "sizes", "ramp", "warmup", "whole"),
    [
        ("modern_base.py", [768, 1536, 2304, 3072, 3840, 4608, 576, 576], 50, 3, [1_719, 250, 50]),
        ("modern_large.py", [*range(448, 4_929, 448), 4928, 624, 624], 10, 2, [919, 800, 250, 50]),
    ],
)
def test_a_published_recipe_has_the_tokens_batches_and_warmup_of_the_paper(name, sizes, ramp, warmup, whole):
    found = experiment(name)
    assert [phase.batch_size for phase in found.phases] == sizes
    each = tokens(found.phases)
    stages = sum(phase.continue_schedule for phase in found.phases)
    assert sum(each[:stages]) == pytest.approx(ramp, rel=1e-3)
    assert [sum(each[: stages + 1]), *each[stages + 1 :]] == pytest.approx(whole, rel=1e-3)
    left, warmed = found.phases[0].warmup_steps, 0.0
    for phase in found.phases[:stages]:
        taken = min(left, phase.steps)
        warmed, left = warmed + taken * phase.batch_size * phase.length / 1e9, left - taken
    assert warmed == pytest.approx(warmup, rel=0.01)
    assert {phase.masked_fraction for phase in found.phases} == {0.3}
    assert {found.eval_config(i).masked_fraction for i in range(len(sizes))} == {0.15}
    assert found.schedules()[-1].schedule == "1-sqrt"
    assert {span.schedule for span in found.schedules()[:-1]} == {"constant"}


def test_the_weight_decay_of_a_published_recipe_holds_at_the_peak_rate():
    for name, wanted in (("modern_base.py", [1e-5] * 8), ("modern_large.py", [1e-5] * 11 + [1e-6] * 3)):
        found = experiment(name)
        firsts = [max(j for j in range(i + 1) if not found.phases[j].continue_schedule) for i in range(len(wanted))]
        peaks = [found.phases[first].learning_rate for first in firsts]
        decays = [found.for_phase(i).optimizer.weight_decay * peak for i, peak in enumerate(peaks)]
        assert decays == pytest.approx(wanted)


def test_only_full_layers_raise_the_rotary_base_for_long_rows():
    found = experiment("modern_base.py")
    bases = [(found.for_phase(i).model.rotary_theta, found.for_phase(i).model.sliding_rotary_theta) for i in (0, 5, 6, 7)]
    assert bases == [(10_000.0, 10_000.0)] * 2 + [(160_000.0, 10_000.0)] * 2


def test_a_decay_of_the_base_model_branches_off_half_way_through_the_long_rows():
    whole, early = experiment("modern_base.py"), experiment("modern_base.py:early")
    assert whole.phases[:6] == early.phases[:6]
    assert tokens(early.phases)[6] == pytest.approx(125, rel=1e-3)


def test_the_laptops_recipe_is_a_trapezoid_with_short_rows_first():
    found = experiment("modern_laptop.py")
    assert [(phase.steps, phase.length) for phase in found.phases] == [(7_000, 32), (1_000, 128), (1_000, 128)]
    assert found.model.layer_types == ("full", "sliding", "sliding", "full")
