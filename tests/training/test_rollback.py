"""Rolling back before a spike of the loss, and the state before step 0."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import shutil
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.corpus.store import Corpus
from bert_jax.errors import UserError
from bert_jax.model.characters import piece_symbols
from bert_jax.objectives.model import Model
from bert_jax.objectives.skip_gram import SkipGram
from bert_jax.pretraining.start import initial_state
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.config import SpikeConfig
from bert_jax.training.loop import LossSpike, Stage
from bert_jax.training.spikes import Rollback, WatchedTrainState
from bert_jax.training.steps import TrainState, skipped_batches
from tests.data.corpora import corpus_of, random_documents
from tests.random_rows import TINY, objective_for
from tests.training.test_checkpoints_on_meshes import abstract, steps_in

CORPUS = corpus_of(random_documents(5, seed=0))
COUNTERS = {"step", "skipped", "skipped_in_a_row"}


def plain(params: Any = None) -> TrainState:
    return TrainState(params=params or {}, opt_state=(), **{name: jnp.int32(0) for name in COUNTERS})


def watched(**numbers: int) -> WatchedTrainState:
    names = {field.name for field in dataclasses.fields(WatchedTrainState)} - {"params", "opt_state"}
    return WatchedTrainState(params={}, opt_state=(), **{name: jnp.int32(numbers.get(name, 0)) for name in names})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a directory of states just after two spikes."""
    directory = tmp_path_factory.mktemp("saved")
    with Checkpoints(directory, keep=9) as checkpoints:
        for step in (50, 99, 100, 101, 110):
            checkpoints.save(step, jax.device_put(watched(step=step, spikes=2, spikes_in_a_row=2)))
        checkpoints.finish()
    return directory


@contextlib.contextmanager
def rollback(
    saved: pathlib.Path, directory: pathlib.Path, steps: Sequence[int], rollbacks: int = 0, **config: Any
) -> Iterator[Rollback]:
    """Yields the rollback of a run that has saved these `steps`."""
    for step in steps:
        shutil.copytree(saved / f"{step}", directory / f"{step}")
    with Checkpoints(directory, keep=9) as checkpoints:
        layout = abstract(jax.device_put(watched()))
        yield Rollback(SpikeConfig(**config), watched(rollbacks=rollbacks), checkpoints, layout, lambda: watched(spikes=2))


STAGE = cast(Stage, types.SimpleNamespace(skipped_batches=40))


def test_a_state_without_a_spike_policy_has_no_skipped_batches():
    assert skipped_batches(plain()) == 0
    assert skipped_batches(watched(skipped_batches=7)) == 7


@pytest.mark.parametrize(
    ("steps", "left", "step", "skipped"),
    [
        ((50, 100, 110), [50, 100], 100, 40 + 20),
        ((50, 99, 101), [50, 99], 99, 40 + 21),
        ((101, 110), [101], 101, 40 + 19),
        ((), [], 0, 40 + 120),
    ],
)
def test_a_rollback_restores_the_newest_trusted_checkpoint_before_the_spikes(
    steps: Sequence[int], left: list[int], step: int, skipped: int, saved: pathlib.Path, tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    """The spikes are the steps 118 to 120, and the 17 steps before them are not trusted. If all checkpoints are later, the run
    continues from the earliest. It starts again only if there is none."""
    caplog.set_level(logging.WARNING, logger="bert_jax")
    with rollback(saved, tmp_path, steps, 1, policy="rollback", rollback_steps=17, max_rollbacks=3) as roll_back:
        found: Any = roll_back(STAGE, LossSpike(120, 3))
    assert steps_in(tmp_path) == left
    assert {name: int(getattr(found, name)) for name in ("step", "skipped_batches", "rollbacks", "spikes")} == {
        "step": step, "skipped_batches": skipped, "rollbacks": 2, "spikes": 2,
    }  # fmt: skip
    assert (found.skipped_batches.dtype, found.rollbacks.dtype, int(found.spikes_in_a_row)) == (jnp.int32, jnp.int32, 0)
    said = f"rolling back to step {step} and skipping {skipped - 40} batches (rollback 2 of at most 3)"
    assert f"the loss spiked in 3 steps in a row up to step 120: {said}" in caplog.messages
    assert any("there is no checkpoint up to step 100" in line for line in caplog.messages) == (step == 101)


def test_a_rollback_does_not_remove_every_checkpoint_if_the_earliest_is_unreadable(saved: pathlib.Path, tmp_path: pathlib.Path):
    with rollback(saved, tmp_path, (50, 101, 110), policy="rollback", rollback_steps=17) as roll_back:
        for damaged in (50, 101):
            shutil.rmtree(tmp_path / f"{damaged}" / "state")
        assert int(roll_back(STAGE, LossSpike(120, 3)).step) == 110
    assert (steps_in(tmp_path), steps_in(tmp_path / "unreadable")) == ([110], [50, 101])


@pytest.mark.parametrize("before", [2, 3, 4])
def test_the_number_of_rollbacks_is_limited(before: int, saved: pathlib.Path, tmp_path: pathlib.Path):
    with rollback(saved, tmp_path, [50], before, max_rollbacks=3) as roll_back:
        for _ in range(before, 3):
            roll_back(STAGE, LossSpike(120, 3))
        with pytest.raises(UserError, match=f"rolled back {max(before, 3)} times"):
            roll_back(STAGE, LossSpike(120, 3))


# ------------------------------------------------------------------------------------------------------- the state before step 0


def begun(
    model: Any,
    params: Any,
    corpus: Any = CORPUS,
    of_phases: Mapping[int, Corpus] | None = None,
    objective: Any = None,
    init_state: str = "",
) -> TrainState:
    """Returns the state with which a run of three phases starts whose program gives these values to the parameters."""
    objective = objective or objective_for(model, False)
    experiment: Any = types.SimpleNamespace(
        init_from="", init_state=init_state, model=model, trained_objective=objective, phases=[None] * 3
    )
    program: Any = types.SimpleNamespace(init_state=lambda make, start: plain(params), state=None)
    return initial_state(experiment, program, corpus, of_phases or {})


def test_static_vectors_start_with_the_counts_of_the_corpus():
    size = CORPUS.vocabulary.size
    model = dataclasses.replace(TINY, encoder="static", num_layers=0, vocab_size=size, vocab_multiple=64)
    rows = model.padded_vocab_size
    assert rows > size
    vectors = {"context_embeddings": jnp.ones((rows, 2)), "counts": jnp.zeros(rows)}
    state = begun(model, {"skip_gram_head": vectors, "embeddings": jnp.ones(2)})
    counts = state.params["skip_gram_head"]["counts"]
    assert (counts.dtype, counts.shape) == (jnp.float32, (rows,))
    np.testing.assert_array_equal(counts[:size], CORPUS.token_counts)
    assert not counts[size:].any()
    np.testing.assert_array_equal(state.params["embeddings"], jnp.ones(2))
    np.testing.assert_array_equal(state.params["skip_gram_head"]["context_embeddings"], jnp.ones((rows, 2)))


@pytest.mark.parametrize("init_state", ["", "trunk@2"])
def test_the_counts_are_those_of_the_corpora_of_all_phases(init_state: str, monkeypatch: pytest.MonkeyPatch):
    """A branch may train on other corpora than its trunk. It keeps what the objective of a user's file has trained."""

    class Mine(SkipGram):
        def corpus_parameters(self, corpus: Corpus) -> dict[tuple[str, ...], np.ndarray]:
            return {**super().corpus_parameters(corpus), ("bias",): corpus.token_counts}

    size = CORPUS.vocabulary.size
    model = dataclasses.replace(TINY, encoder="static", num_layers=0, vocab_size=size, vocab_multiple=1)
    params = {"skip_gram_head": {"counts": jnp.zeros(size)}, "bias": jnp.ones(size)}
    monkeypatch.setattr("bert_jax.pretraining.start.load_branch_state", lambda *_: plain(params))
    of_phases = {i: dataclasses.replace(CORPUS, token_counts=np.full(size, 2 + i)) for i in (0, 2)}
    for corpora, wanted in (
        (of_phases, CORPUS.token_counts + 6),
        ({0: of_phases[0], 1: of_phases[2], 2: of_phases[0]}, np.full(size, 6)),
    ):
        objective = Mine().for_model(Model(model, False))
        found = begun(model, params, of_phases=corpora, objective=objective, init_state=init_state).params
        np.testing.assert_array_equal(found["skip_gram_head"]["counts"], wanted)
        np.testing.assert_array_equal(found["bias"], params["bias"] if init_state else wanted)
        assert found["bias"].dtype == jnp.float32


@pytest.mark.parametrize(
    ("path", "shape", "says"),
    [
        (("head", "count"), (3,), "returns 'head/count', which is not a parameter; did you mean 'head/counts'?"),
        (("head", "counts"), (4,), "returns 'head/counts' with the shape (4,), but the parameter has (3,); return that"),
    ],
)
def test_an_array_of_the_corpus_that_does_not_fit_a_parameter_is_refused(path: tuple[str, ...], shape: tuple[int], says: str):
    model = dataclasses.replace(TINY, encoder="static", num_layers=0)
    objective = types.SimpleNamespace(corpus_parameters=lambda corpus: {path: np.zeros(shape)})
    with pytest.raises(UserError) as error:
        begun(model, {"head": {"counts": np.zeros(3)}}, objective=objective)
    assert says in str(error.value)


def test_a_character_model_starts_with_the_characters_of_the_pieces():
    model = dataclasses.replace(TINY, encoder="bilm", num_heads=1, tied_decoder=False, character_cnn=True)
    pieces = [f"w{i}" for i in range(TINY.vocab_size)]
    corpus = dataclasses.replace(CORPUS, tokenizer=types.SimpleNamespace(pieces=pieces))  # type: ignore[arg-type]
    symbols = piece_symbols(pieces, model.padded_vocab_size)
    state = begun(model, {"embeddings": {"characters": {"symbols": jnp.zeros_like(symbols)}}}, corpus=corpus)
    found = state.params["embeddings"]["characters"]["symbols"]
    np.testing.assert_array_equal(found, symbols)
    assert isinstance(found, jax.Array)
