"""The first state of a pretraining run, and the rollback after a spike of the loss: an earlier state, and skipped batches
(`training/spikes.py`)."""

from __future__ import annotations

import dataclasses
import logging

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.data.corpus.store import Corpus
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.model.characters import symbols_of
from bert_jax.pretraining.branch import kept_state
from bert_jax.pretraining.program import PretrainingProgram
from bert_jax.pretraining.warm_start import pretraining_start
from bert_jax.training.checkpoints.manager import Checkpoints
from bert_jax.training.loop import Stage
from bert_jax.training.spikes import LossSpike, WatchedTrainState
from bert_jax.training.steps import TrainState

log = logging.getLogger(__name__)


def skipped_batches(state: TrainState) -> int:
    """The number of skipped batches: the batch of a step is this many later."""
    return int(state.skipped_batches) if isinstance(state, WatchedTrainState) else 0


def first_parameters(program: PretrainingProgram, corpus: Corpus) -> TrainState:
    """The initial state of a run: `init_state`, or a state before step 0 with the weights of `init_from` or random
    ones, and with the counts or the characters of the words of `corpus` where the model has them."""
    experiment = program.experiment
    if experiment.init_state:
        return kept_state(experiment, corpus, program.state)
    state = program.begin(pretraining_start(experiment, corpus.vocabulary) if experiment.init_from else None)
    facts = dict(experiment.trained_objective.corpus_parameters(corpus))
    rows = experiment.model.padded_vocab_size
    if experiment.model.character_cnn:
        assert corpus.tokenizer is not None, "a corpus opened from a directory has a tokenizer"
        facts["embeddings", "characters", "symbols"] = symbols_of(corpus.tokenizer.pieces, rows)
    flat = flatten_dict(state.params)
    flat |= {path: jax.device_put(value, flat[path].sharding) for path, value in facts.items()}
    return dataclasses.replace(state, params=unflatten_dict(flat)) if facts else state


class Rollback:
    """Rolls a run back after a spike of the loss. The run begins or continues with `state`."""

    def __init__(self, program: PretrainingProgram, checkpoints: Checkpoints, corpus: Corpus, state: TrainState):
        self._program, self._checkpoints, self._corpus = program, checkpoints, corpus
        self._times = int(state.rollbacks) if isinstance(state, WatchedTrainState) else 0

    def __call__(self, stage: Stage, spike: LossSpike) -> TrainState:
        """Returns the state to continue from after a spike in `stage`: the newest checkpoint at least
        `config.spikes.rollback_steps` steps before it, else the initial state. Removes later checkpoints; the batches from that
        checkpoint to the spike are skipped.

        A run that is killed before its next checkpoint meets the spike again and rolls back again. Raises UserError after
        `config.spikes.max_rollbacks` rollbacks.
        """
        config, times = self._program.experiment.spikes, self._times
        if times >= config.max_rollbacks:
            raise UserError(
                f"the loss was a spike in {counted(spike.in_a_row, 'step')} in a row up to step {spike.step:,}, after the run "
                f"had rolled back {counted(times, 'time')} (config.spikes.max_rollbacks); the checkpoints are from before it: "
                f"lower the learning rate, or look at the batch with --replay={spike.step}"
            )
        until = max(0, spike.step - spike.in_a_row - config.rollback_steps)
        state = self._checkpoints.restore_latest(self._program.state, until=until)
        if state is None:
            state = first_parameters(self._program, self._corpus)
        step = int(state.step)
        skipped = stage.skipped_batches + spike.step - step
        log.warning(
            "the loss was a spike in %s in a row up to step %s: "
            "rolling back to step %s and skipping %s (rollback %d of at most %d)",
            counted(spike.in_a_row, "step"),
            f"{spike.step:,}",
            f"{step:,}",
            counted(spike.step - step, "batch"),
            times + 1,
            config.max_rollbacks,
        )
        assert isinstance(state, WatchedTrainState)
        self._times += 1

        def like(old: jax.Array, value: int) -> jax.Array:
            return jax.device_put(jnp.int32(value), old.sharding)

        return dataclasses.replace(
            state, skipped_batches=like(state.skipped_batches, skipped), rollbacks=like(state.rollbacks, self._times)
        )
