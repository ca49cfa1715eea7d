"""A line in OBJECTIVES, MASKING or SCHEDULES has the same effects as FILE.py:NAME with the same code."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data import MASKING
from bert_jax.data.config import ExampleConfig
from bert_jax.data.masking import UNUSED, Examples, MaskingTables, choose, masks_whole_words, takes_one_example
from bert_jax.errors import UserError
from bert_jax.interface.named import load_named
from bert_jax.interface.ranges import NamedIn
from bert_jax.objectives import OBJECTIVES
from bert_jax.pretraining.inferred_settings import infer_settings
from bert_jax.training import SCHEDULES

CODE = """
from bert_jax.objectives.mlm_nsp import MlmNsp
class Words(MlmNsp): judges_pairs = False
class Order(MlmNsp): pass
def first(example, rate, rng): return example.words[0]
def whole(example, rate, rng): return example.words[0]
whole.whole_words = True
def power(step, steps, decay_power): return (1 - step / steps) ** decay_power
def plain(step, steps): return 1.0 + 0.0 * step
"""
PHASES: list[dict[str, Any]] = [{"steps": 8, "length": 16, "max_predictions": 4}]


@pytest.fixture(params=["file", "line"])
def own(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Returns a function that returns the value of a key which selects an object in CODE."""
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.setattr(NamedIn, "error", lambda self, value: "")  # it has the names that were known at import

    def value(name: str, known: dict[str, str]) -> str:
        in_file = f"{tmp_path}/mine.py:{name}"
        if request.param == "file":
            return in_file
        line = f"{tmp_path.name}_{name}"  # the masks of each name are cached
        monkeypatch.setitem(known, line, f"{load_named(in_file, {}, '').__module__}:{name}")
        return line

    return value


def test_an_objective_that_does_not_judge_pairs_gets_none(own: Callable[..., str]):
    objective = own("Words", OBJECTIVES)
    values, notes = infer_settings({"objective": objective, "phases": PHASES}, ())
    assert values["examples"] == {"pairs": "none"}
    assert notes == [f"config.examples.pairs is none: config.objective={objective} does not learn from pairs"]


def test_a_subclass_of_masked_language_modelling_may_read_successive_pairs(own: Callable[..., str]):
    values = {"objective": own("Order", OBJECTIVES), "phases": PHASES, "examples": {"pairs": "successive"}}
    assert PretrainingExperiment.from_dict(values).next_sentence
    with pytest.raises(UserError, match="pairs=successive has no random second texts, so next sentence prediction would learn"):
        PretrainingExperiment.from_dict(values | {"objective": "bert"})


def test_the_power_of_the_decay_is_for_schedules_that_read_it(own: Callable[..., str]):
    def settings(schedule: str) -> dict[str, Any]:
        return {"phases": PHASES, "optimizer": {"schedule": own(schedule, SCHEDULES), "decay_power": 2.0}}

    assert infer_settings(settings("power"), ())[0]["optimizer"]["decay_power"] == 2.0
    with pytest.raises(UserError, match=r"decay_power has no effect, because no phase's schedule reads it \(.*plain\); leave it"):
        infer_settings(settings("plain"), ["optimizer.decay_power"])


@pytest.mark.parametrize("name", ["first", "whole"])
def test_a_mask_policy_takes_one_example_and_may_choose_whole_words(own: Callable[..., str], name: str):
    config = ExampleConfig(length=8, max_predictions=4, masking=own(name, MASKING))
    assert (config.counts_words, takes_one_example(config.masking)) == (True, True)
    assert masks_whole_words(config.masking) == (name == "whole")
    tables = MaskingTables(4, np.array([3], np.int32), np.array([False] * 4 + [True]), tuple("abcde"), str)
    ids = np.array([[1, 3, 4, 3, 2]])
    examples = Examples(config, tables, np.array([[5]], np.uint64), np.array([5]), ids, ids >= 3)
    assert choose(examples)[0].tolist() == [[1, 2, UNUSED, UNUSED]]
