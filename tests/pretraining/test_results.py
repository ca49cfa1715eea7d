"""The content of a pretraining run's results.json."""

from __future__ import annotations

import types

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.model.config import published
from bert_jax.pretraining.results import results


@pytest.mark.parametrize(("baseline", "times"), [(0.25, 2.0), (0.0, None)])
def test_a_baseline_of_zero_leaves_the_ratio_to_it_undefined(baseline, times):
    values = {"corpus": {"directory": "corpus"}, "model": published("tiny"), "phases": [{"steps": 3}]}
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("data",))
    program = types.SimpleNamespace(experiment=PretrainingExperiment.from_dict(values), mesh=mesh)
    state = types.SimpleNamespace(step=np.int32(3), skipped=np.int32(0))
    corpora = types.SimpleNamespace(train=types.SimpleNamespace(vocabulary=types.SimpleNamespace(sha256="5e0c")))
    found = results(program, state, {"mlm_accuracy": 0.5, "unigram_accuracy": baseline}, corpora, 1.0)
    assert found["times_unigram_accuracy"] == times
