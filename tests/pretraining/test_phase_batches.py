"""The batches of a phase of pretraining, and the memory that they take."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import jax
import numpy as np
import optax
import pytest

from bert_jax.configs.memory_advice import require_training_memory
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.batches import BatchSource
from bert_jax.data.corpus.verification import Verifications
from bert_jax.errors import UserError
from bert_jax.model.config import published
from bert_jax.pretraining.evaluation import Evaluation, require_evaluation_memory
from bert_jax.pretraining.splits import PhaseBatches, Splits
from bert_jax.runtime.interruptions import Preemption, Watchdog
from bert_jax.runtime.launch import Run
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from tests.data.corpora import corpus_of, random_documents
from tests.random_rows import program_for

CORPUS = corpus_of(random_documents(40, seed=0))
GIBIBYTE = {"SC_PHYS_PAGES": 1 << 18, "SC_PAGE_SIZE": 1 << 12}


def test_a_phase_starts_at_its_first_row_with_its_own_seed():
    phases = [{"steps": 3, "length": 32, "batch_size": 8}, {"steps": 4, "length": 64, "batch_size": 4}]
    values = {"model": {"vocab_size": CORPUS.vocabulary.size}, "phases": phases, "seed": 5}
    experiment = PretrainingExperiment.from_dict(values)

    def ids(phase: int, step: int, shard: tuple[int, int] = (0, 1), skipped: int = 0) -> np.ndarray:
        found: np.ndarray = PhaseBatches(experiment, phase, CORPUS, shard, skipped).rows(step)["input_ids"]
        return found

    def wanted(phase: int, at: int) -> np.ndarray:
        seed = experiment.phase_seed(phase)
        source = BatchSource(CORPUS, experiment.example_config(phase), phases[phase]["batch_size"], seed)
        found: np.ndarray = source.at(at)["input_ids"]
        return found

    assert experiment.phase_seed(0) != experiment.phase_seed(1)
    for phase, step, at in ((0, 0, 0), (0, 2, 2), (1, 3, 0), (1, 6, 3)):
        np.testing.assert_array_equal(ids(phase, step), wanted(phase, at))
    np.testing.assert_array_equal(ids(1, 3, (1, 2)), wanted(1, 0)[2:])
    np.testing.assert_array_equal(ids(1, 5, skipped=9), wanted(1, 2 + 9))


def test_a_row_with_an_id_outside_of_the_vocabulary_is_refused():
    experiment = PretrainingExperiment.from_dict({"model": {"vocab_size": 1_010}, "phases": [{"steps": 3, "length": 32}]})
    with pytest.raises(UserError, match=r"input_ids holds \d{4}, outside \[0, 1010\)"):
        PhaseBatches(experiment, 0, CORPUS).rows(0)


def test_a_batch_that_cannot_fit_is_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sysconf", GIBIBYTE.get)
    mesh = make_mesh(MeshConfig(), jax.devices()[:2])
    for size, accumulation, fits in ((8, 1, True), (65_536, 1, False), (65_536, 1_024, True)):
        second = {"steps": 4, "length": 64, "batch_size": size, "accumulation": accumulation}
        values = {"model": published("tiny"), "phases": [{"steps": 3, "length": 32, "batch_size": 8}, second]}
        experiment = PretrainingExperiment.from_dict(values)
        if fits:
            require_training_memory(experiment, 1, mesh)
            continue
        says = r"training step of phase 1 does not fit in memory: it needs 15\d\.\d\d GiB of host memory, but there are 1\.00 GiB"
        with pytest.raises(UserError, match=says) as raised:
            require_training_memory(experiment, 1, mesh)
        assert "--config.phases.1.accumulation=2" in str(raised.value)


def test_an_evaluation_that_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 10, "SC_PAGE_SIZE": 1 << 12}.get)
    values = {"model": published("tiny") | {"vocab_size": 30_522}, "phases": [{"steps": 3, "length": 32}]}
    experiment = PretrainingExperiment.from_dict(values)
    program = program_for(experiment.trained_objective, optax.sgd(1.0))
    run = Run(tmp_path, True, Preemption(), Watchdog(tmp_path))
    source = PhaseBatches(experiment, 0, CORPUS).source
    with pytest.raises(
        UserError, match=r"the evaluation of phase 0 does not fit in memory: it needs .* of host memory, but there"
    ):
        Evaluation(experiment, program, 0, Splits(CORPUS, CORPUS, Verifications([])), run, source)
    several = dataclasses.replace(experiment, phases=experiment.phases * 2)
    with pytest.raises(UserError, match="the evaluation of phase 1 does not fit in memory: it needs "):
        require_evaluation_memory(several, 1, CORPUS, program.mesh)
    one_row = dataclasses.replace(experiment.evaluation, rows=1)
    require_evaluation_memory(dataclasses.replace(several, evaluation=one_row), 1, CORPUS, program.mesh)
