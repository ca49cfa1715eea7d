"""The first state of a pretraining run."""

from __future__ import annotations

import dataclasses

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.corpus.store import Corpus
from bert_jax.model.characters import symbols_of
from bert_jax.pretraining.program import initial_parameters
from bert_jax.pretraining.start import pretraining_start
from bert_jax.training.steps import Program, TrainState


def first_parameters(experiment: PretrainingExperiment, program: Program, corpus: Corpus) -> TrainState:
    """The state before step 0: the weights of `init_from`, or random ones; with the counts or the characters of the words of
    `corpus` where the model has them."""
    start = pretraining_start(experiment, corpus.vocabulary) if experiment.init_from else {}
    state: TrainState = program.begin(lambda start: {**initial_parameters(experiment), **start}, start)
    facts = dict(experiment.trained_objective.corpus_parameters(corpus))
    rows = experiment.model.padded_vocab_size
    if experiment.model.character_cnn:
        assert corpus.tokenizer is not None, "a corpus opened from a directory has a tokenizer"
        facts["embeddings", "characters", "symbols"] = symbols_of(corpus.tokenizer.pieces, rows)
    flat = flatten_dict(state.params)
    flat |= {path: jax.device_put(value, flat[path].sharding) for path, value in facts.items()}
    return dataclasses.replace(state, params=unflatten_dict(flat)) if facts else state
