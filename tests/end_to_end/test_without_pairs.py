"""A run whose rows hold no pairs: neither a next-sentence head nor the pooler is trained, so the model has neither."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from safetensors.numpy import load_file

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.pretraining.program import former_layout, state_layout, trained_parameters
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import with_shardings
from bert_jax.training.checkpoints.manager import Checkpoints
from bert_jax.training.optimizers import make_optimizer
from tests.end_to_end import forked
from tests.end_to_end.conftest import command
from tests.end_to_end.runs import LAST_STEP, assert_same_weights, checkpoints, records, weights

WITHOUT_PAIRS = "--config.examples.pairs=none"
OF_PAIRS = ("pooler", "nsp_head", "seq_relationship")
"""The parts in question, by our names and transformers'."""


@pytest.fixture(scope="module")
def workdir(experiment: pathlib.Path) -> pathlib.Path:
    return experiment.parent / "without_pairs"


@pytest.fixture(scope="module")
def done(experiment: pathlib.Path, workdir: pathlib.Path) -> list[forked.Done]:
    """The run, and what its model is asked."""
    asked = (
        ("next-sentence", "one", "two"),
        ("embed", "--pooling=pooler", "one"),
        ("fill-mask", "the [MASK] of paris"),
    )
    commands = [("predict", verb, f"--model={workdir}", *texts) for verb, *texts in asked]
    return forked.run(experiment.parent, command(experiment, workdir, WITHOUT_PAIRS), *commands)


def test_the_run_ends_and_speaks_of_no_next_sentences(done, workdir):
    assert done[0].status == 0, done[0].output
    assert "NSP" not in done[0].output
    assert not [name for record in records(workdir) for name in record if "nsp" in name]
    assert not [name for name in json.loads((workdir / "results.json").read_text())["heldout"] if "nsp" in name]


def test_the_exported_model_is_one_of_masked_words_alone(done, workdir):
    names = load_file(workdir / "model" / "model.safetensors").keys()
    assert not [name for name in names if any(part in name for part in OF_PAIRS)]
    assert any("cls.predictions" in name for name in names)
    assert json.loads((workdir / "model" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]


def test_questions_about_pairs_are_refused_and_masked_words_are_filled(done):
    next_sentence, pooled, filled = done[1:]
    assert next_sentence.status == pooled.status == 2
    assert "has no nsp_head, so it cannot" in next_sentence.output
    assert "has no pooler, so it cannot" in pooled.output
    assert filled.status == 0, filled.output


def with_former_parts(workdir: pathlib.Path, step: int) -> None:
    """Puts into `workdir` the state of `step` as it was saved while such runs still had pooler and next-sentence head."""
    values = json.loads((workdir / "config.json").read_text())
    experiment = PretrainingExperiment.from_dict(
        {field.name: values[field.name] for field in dataclasses.fields(PretrainingExperiment)}
    )
    mesh = make_mesh(experiment.mesh, jax.devices()[:1])
    optimizer = make_optimizer(experiment.optimizer, trained_parameters(experiment))
    (workdir / "checkpoints" / str(LAST_STEP)).rename(workdir / "last")
    with Checkpoints(workdir / "checkpoints", keep=2) as saved:
        state = saved.restore_latest(with_shardings(*state_layout(experiment, optimizer, mesh)))
    former: Any = former_layout(experiment, mesh)
    found = dict(jax.tree_util.tree_leaves_with_path(state))
    whole = jax.tree_util.tree_map_with_path(lambda path, x: found.get(path, jnp.ones(x.shape, x.dtype)), former)
    assert len(jax.tree.leaves(whole)) == len(found) + 3 * 4, "kernel and bias of two parts, with two moments each"
    (workdir / "checkpoints" / str(step)).rename(workdir / "before")
    with Checkpoints(workdir / "checkpoints", keep=2) as saved:
        saved.save(step, whole)
        saved.finish()


def test_a_state_saved_with_the_untrained_parts_continues_without_them(experiment, done, workdir):
    trained, step = weights(workdir), checkpoints(workdir)[-2]
    with_former_parts(workdir, step)
    for name in ("results.json", "model"):
        (workdir / name).rename(workdir / f"earlier_{name}")
    (continued,) = forked.run(experiment.parent, command(experiment, workdir, WITHOUT_PAIRS))
    assert continued.status == 0, continued.output
    assert f"arrays of the checkpoint of step {step} that this run does not train" in continued.output
    assert f"continuing from step {step}" in continued.output
    assert trained.keys() == weights(workdir).keys()
    (workdir / "earlier").mkdir()
    (workdir / "earlier_model").rename(workdir / "earlier" / "model")
    assert_same_weights(workdir, workdir / "earlier")
