"""The initial state of a pretraining run, from random weights or an existing model, and the teacher of a distillation."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.tokenizers.tokenizer import VocabularyInfo
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model, NewParts, import_model, part_names, with_new_parts
from bert_jax.interop.names import PARTS, REQUIRED_PARTS
from bert_jax.model.characters import piece_symbols
from bert_jax.model.config import SIZES, ModelConfig
from bert_jax.model.heads import HEAD_PARTS
from bert_jax.objectives.model import Params
from bert_jax.objectives.objective import TEACHER_PARTS, Teacher
from bert_jax.pretraining.branch import load_branch_state
from bert_jax.pretraining.program import teacher_config
from bert_jax.training.steps import Program, TrainState
from bert_jax.training.warm_start import load_start, same_vocabulary, trained_parts

log = logging.getLogger(__name__)


def initial_state(experiment: PretrainingExperiment, program: Program, corpus: Corpus) -> TrainState:
    """Returns the initial state of a run: `init_state`, or a state before step 0 with random weights or those of `init_from`. If
    the model stores word counts or characters, they come from `corpus`."""
    if experiment.init_state:
        return load_branch_state(experiment, corpus, program.state)
    start = pretraining_start(experiment, corpus.vocabulary) if experiment.init_from else {}
    state: TrainState = program.init_state(lambda start: {**initial_parameters(experiment), **start}, start)
    facts = dict(experiment.trained_objective.corpus_parameters(corpus))
    rows = experiment.model.padded_vocab_size
    if experiment.model.character_cnn:
        assert corpus.tokenizer is not None, "a corpus opened from a directory has a tokenizer"
        facts["embeddings", "characters", "symbols"] = piece_symbols(corpus.tokenizer.pieces, rows)
    flat = flatten_dict(state.params)
    flat |= {path: jax.device_put(value, flat[path].sharding) for path, value in facts.items()}
    return dataclasses.replace(state, params=unflatten_dict(flat)) if facts else state


def initial_parameters(experiment: PretrainingExperiment) -> Params:
    """Returns random parameters, which depend only on the seed, not on the mesh."""
    found: Params = nn.unbox(experiment.trained_objective.initial_parameters(jax.random.key(experiment.seed)))
    return found


# ------------------------------------------------------------------------------------------------- an existing model
PAIR_PARTS = ("pooler", "nsp_head")
"""The parts that are trained only if examples are sentence pairs."""


def pretraining_start(experiment: PretrainingExperiment, vocabulary: VocabularyInfo) -> dict[str, PyTree[np.ndarray]]:
    """Loads the float32 parameters of `experiment.init_from` as numpy arrays, for a run on a corpus with this `vocabulary`.

    Parts that the model lacks must be named in `init_new`, and heads that pretraining does not use in `init_drop`. A run without
    sentence pairs drops the `PAIR_PARTS` with a log line. With `init_tiled`, the parameters are a tiling of the model's. Raises
    UserError if the architecture or vocabulary differs, or if there are undeclared parts.
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
    tiling = experiment.init_tiled
    model = load_start(
        experiment.init_from,
        init_new="" if tiling else experiment.init_new,
        init_drop=",".join((*drop, *new)) if tiling else experiment.init_drop,
        seed=experiment.seed,
        vocab_multiple=experiment.model.vocab_multiple,
    )
    if tiling:
        from bert_jax.interop.tiling import tiled  # which other runs do not load

        log.info("tiling %s, %s, to %s", model.source, model.config.in_words, experiment.model.in_words)
        model = tiled(model, experiment.model)
        model = with_new_parts(model, NewParts(new, seed=experiment.seed)) if new else model
    check_shape(experiment.model, model)
    if not same_vocabulary(model.tokenizer.vocabulary, vocabulary):
        raise UserError(
            f"config.init_from={experiment.init_from} has a different vocabulary than the corpus {experiment.corpus.directory}; "
            f"build the corpus with --vocab={model.source}"
        )
    why = "not trained with config.examples.pairs=none" if untrained else "not trained by this run"
    needed = [part for part in PARTS if part in wanted]
    model = trained_parts(
        model, experiment.init_from, trained={*wanted, *HEAD_PARTS}, needed=needed, init_new=experiment.init_new, why_unused=why
    )
    spare = [part for part in model.parts if part in HEAD_PARTS]
    if spare:
        raise UserError(
            f"config.init_from={experiment.init_from} has a {spare[0]}, which pretraining does not use; to leave it out, give "
            f"--config.init_drop={','.join((*drop, *spare))}"
        )
    if own := sorted(wanted - {*PARTS}):
        log.info("starting from random weights, parts only of config.objective=%s: %s", experiment.objective, ", ".join(own))
    return model.params


def check_shape(wanted: ModelConfig, model: Model) -> None:
    """Raises UserError with every field in which the architecture of `wanted`, the run's `config.model`, differs from `model`."""
    asked, there = dataclasses.asdict(wanted.architecture), dataclasses.asdict(model.config.architecture)
    differing = [name for name in asked if asked[name] != there[name]]
    if differing:
        flags = " ".join(f"--config.model.{name}={there[name]}" for name in differing)
        sizes = ("num_layers", "hidden_size", "intermediate_size")
        larger = {*differing} <= {*SIZES} and all(asked[name] >= there[name] for name in sizes)
        tiling = "; to initialise a larger model by tiling, give --config.init_tiled=True" if larger else ""
        raise UserError(f"{model.source} has a different architecture than config.model; to start from it, give {flags}{tiling}")


# --------------------------------------------------------------------------------------------------------- a teacher
def load_teacher(experiment: PretrainingExperiment, vocabulary: VocabularyInfo) -> Teacher | None:
    """Loads the teacher `experiment.teacher` for a run on a corpus with this `vocabulary`, as float32 numpy arrays, or returns
    None.

    Raises UserError if the teacher has no trained MLM head, a different vocabulary or number of heads than the run needs, or
    fewer positions or token types than the rows have.
    """
    if not experiment.teacher:
        return None
    model = import_model(experiment.teacher, vocab_multiple=experiment.model.vocab_multiple)
    _check(experiment, model, vocabulary)
    params = {part: model.params[part] for part in TEACHER_PARTS}
    return Teacher(teacher_config(model.config, experiment), params, _sha256(params))


def with_teacher(experiment: PretrainingExperiment, teacher: Teacher | None) -> PretrainingExperiment:
    """Fills in the width and the hash of the `teacher`. Raises UserError if different ones were given."""
    if teacher is None:
        return experiment
    found: dict[str, Any] = {"teacher_width": teacher.config.hidden_size, "teacher_sha256": teacher.sha256}
    for name, value in found.items():
        if (given := getattr(experiment.distillation, name)) not in (0, "", value):
            raise UserError(
                f"config.distillation.{name}={given}, but config.teacher={experiment.teacher} has {value}; use the "
                "matching teacher, or leave the key out"
            )
    return dataclasses.replace(experiment, distillation=dataclasses.replace(experiment.distillation, **found))


def _check(experiment: PretrainingExperiment, model: Model, vocabulary: VocabularyInfo) -> None:
    named, config = f"config.teacher={experiment.teacher}", model.config
    if "mlm_head" not in model.params or "mlm_head" in model.untrained:
        raise UserError(f"{named} has no trained mlm_head, so it cannot predict masked words; use a pretrained model with one")
    if (config.direction, config.encoder) != ("both", "transformer"):
        raise UserError(
            f"{named} is not a masked language model: its direction is {config.direction} and its encoder {config.encoder}; name "
            "a pretrained BERT"
        )
    theirs = model.tokenizer.vocabulary
    if not same_vocabulary(theirs, vocabulary):
        raise UserError(
            f"{named} has a different vocabulary than the corpus {experiment.corpus.directory}; build the corpus with "
            f"--vocab={model.source}, or choose a teacher with the same vocabulary"
        )
    if config.vocab_size != experiment.model.vocab_size:
        raise UserError(
            f"{named} has {counted(config.vocab_size, 'row')} of word embeddings, the student {experiment.model.vocab_size:,}: "
            "one of them has unused rows; remove them with convert --replace-vocab=MODEL, giving its own vocabulary"
        )
    longest = max(phase.length for phase in experiment.phases)
    if config.max_position < longest:
        raise UserError(
            f"{named} reads {counted(config.max_position, 'token')}, but the rows have {longest}; shorten the rows, or lengthen "
            f"its table with convert --max-position={longest}"
        )
    if experiment.next_sentence and config.type_vocab_size < 2:
        raise UserError(
            f"{named} has no token type for the second text of a pair; set config.examples.pairs=none, or add one with "
            "convert --token-types=2"
        )
    if experiment.distillation.attention_weight and config.num_heads != experiment.model.num_heads:
        raise UserError(
            f"config.distillation.attention_weight compares attention maps, but {named} has {counted(config.num_heads, 'head')} "
            f"and the student {experiment.model.num_heads}; set config.model.num_heads={config.num_heads}, or attention_weight=0"
        )


def _sha256(params: PyTree[np.ndarray]) -> str:
    """Returns the hash of every array of `params` with its place in the tree."""
    digest = hashlib.sha256()
    for path, leaf in sorted(jax.tree_util.tree_leaves_with_path(params), key=lambda item: jax.tree_util.keystr(item[0])):
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.ascontiguousarray(leaf, np.float32).tobytes())
    return digest.hexdigest()
