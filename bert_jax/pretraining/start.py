"""Initialises the parameters of a pretraining run from an existing model."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
from jaxtyping import PyTree

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.tokenizers.tokenizer import VocabularyInfo
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, NewParts, import_model, part_names, without_parts
from bert_jax.interop.names import PARTS, REQUIRED_PARTS
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads import HEAD_PARTS

log = logging.getLogger(__name__)


PAIR_PARTS = ("pooler", "nsp_head")
"""The parts that are trained only where examples are sentence pairs."""


def pretraining_start(experiment: PretrainingExperiment, vocabulary: VocabularyInfo) -> dict[str, PyTree[np.ndarray]]:
    """The float32 parameters of `experiment.init_from`, as numpy arrays, for a run on a corpus of this `vocabulary`.

    Parts that the model lacks must be named in `init_new`, and heads that pretraining does not use in `init_drop`. A run without
    sentence pairs leaves the `PAIR_PARTS` out and logs that. Raises UserError for a model of another architecture, another
    vocabulary, or with undeclared parts.
    """
    new, drop = (part_names(text) for text in (experiment.init_new, experiment.init_drop))
    objective = experiment.trained_objective
    wanted = {part for part in objective.abstract_parameters() if part not in (*REQUIRED_PARTS, *objective.temporary)}
    untrained = tuple(part for part in PAIR_PARTS if part not in wanted)
    if unused := [part for part in new if part in untrained]:
        raise UserError(
            f"config.init_new={experiment.init_new} names {' and '.join(unused)}, which a run with config.examples.pairs=none "
            "does not train; leave it out there, or choose other pairs"
        )
    random = NewParts(new, seed=experiment.seed)
    model = import_model(experiment.init_from, vocab_multiple=experiment.model.vocab_multiple, new=random, drop=drop)
    check_shape(experiment.model, model)
    if model.tokenizer.vocabulary.sha256 != vocabulary.sha256 or model.tokenizer.vocabulary.lowercase != vocabulary.lowercase:
        raise UserError(
            f"config.init_from={experiment.init_from} has another vocabulary than the corpus {experiment.corpus.directory}; "
            f"build the corpus with --vocab={model.source}"
        )
    absent = [part for part in PARTS if part in wanted and part not in model.params]
    if absent:
        raise UserError(
            f"config.init_from={experiment.init_from} has no {' and no '.join(absent)}; to start them from random weights, give "
            f"--config.init_new={','.join((*new, *absent))}"
        )
    spare = [part for part in model.parts if part in HEAD_PARTS]
    if spare:
        raise UserError(
            f"config.init_from={experiment.init_from} has a {spare[0]}, which pretraining does not use; to leave it out, give "
            f"--config.init_drop={','.join((*drop, *spare))}"
        )
    if left := [part for part in model.parts if part in untrained]:
        log.info("not trained with config.examples.pairs=none, left out: %s", ", ".join(left))
    if own := sorted(wanted - {*PARTS}):
        log.info("starting from random weights, parts of config.objective=%s alone: %s", experiment.objective, ", ".join(own))
    return without_parts(model, left).params


def check_shape(wanted: ModelConfig, model: Model) -> None:
    """Raises UserError naming every field in which the architecture of `wanted`, the run's `config.model`, differs from
    `model`."""
    asked, there = dataclasses.asdict(wanted.architecture), dataclasses.asdict(model.config.architecture)
    differing = [name for name in asked if asked[name] != there[name]]
    if differing:
        flags = " ".join(f"--config.model.{name}={there[name]}" for name in differing)
        raise UserError(f"{model.source} has another architecture than config.model; to start from it, give {flags}")
