"""Loads and checks the teacher of a distillation in pretraining."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.tokenizers.tokenizer import VocabularyInfo
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model, import_model
from bert_jax.objectives.distillation import TEACHER_PARTS, Teacher
from bert_jax.pretraining.program import taught_config


def load_teacher(experiment: PretrainingExperiment, vocabulary: VocabularyInfo) -> Teacher | None:
    """The teacher `experiment.teacher` for a run on a corpus of this `vocabulary`, float32 numpy arrays; None without one.

    Raises UserError for a model without a trained masked-language-model head, with another vocabulary or number of heads than
    the run needs, and with fewer positions or token types than its rows have.
    """
    if not experiment.teacher:
        return None
    model = import_model(experiment.teacher, vocab_multiple=experiment.model.vocab_multiple)
    _check(experiment, model, vocabulary)
    params = {part: model.params[part] for part in TEACHER_PARTS}
    return Teacher(taught_config(model.config, experiment), params, _sha256(params))


def taught_by(experiment: PretrainingExperiment, teacher: Teacher | None) -> PretrainingExperiment:
    """The experiment with the width and the hash of its `teacher`. Raises UserError where other ones were given."""
    if teacher is None:
        return experiment
    found: dict[str, Any] = {"teacher_width": teacher.config.hidden_size, "teacher_sha256": teacher.sha256}
    for name, value in found.items():
        if (given := getattr(experiment.distillation, name)) not in (0, "", value):
            raise UserError(
                f"config.distillation.{name}={given}, but config.teacher={experiment.teacher} has {value}; name the "
                "teacher that belongs to it, or leave the key out"
            )
    return dataclasses.replace(experiment, distillation=dataclasses.replace(experiment.distillation, **found))


def _check(experiment: PretrainingExperiment, model: Model, vocabulary: VocabularyInfo) -> None:
    named, config = f"config.teacher={experiment.teacher}", model.config
    if "mlm_head" not in model.params or "mlm_head" in model.untrained:
        raise UserError(f"{named} has no trained mlm_head, so it predicts no masked words; name a pretrained model with one")
    if (config.direction, config.encoder) != ("both", "transformer"):
        raise UserError(
            f"{named} is not a masked language model: its direction is {config.direction} and its encoder {config.encoder}; name "
            "a pretrained BERT"
        )
    theirs = model.tokenizer.vocabulary
    if (theirs.sha256, theirs.lowercase) != (vocabulary.sha256, vocabulary.lowercase):
        raise UserError(
            f"{named} has another vocabulary than the corpus {experiment.corpus.directory}; build the corpus with "
            f"--vocab={model.source}, or choose a teacher of its vocabulary"
        )
    if config.vocab_size != experiment.model.vocab_size:
        raise UserError(
            f"{named} has {counted(config.vocab_size, 'row')} of word embeddings, the student {experiment.model.vocab_size:,}: "
            "one of them has rows without a piece; leave them out by convert --replace-vocab=MODEL, with its own vocabulary"
        )
    longest = max(phase.length for phase in experiment.phases)
    if config.max_position < longest:
        raise UserError(
            f"{named} reads {counted(config.max_position, 'token')}, and the rows have {longest}; shorten the rows, or lengthen "
            f"its table by convert --max-position={longest}"
        )
    if experiment.next_sentence and config.type_vocab_size < 2:
        raise UserError(
            f"{named} has no token type for the second text of a pair; set config.examples.pairs=none, or add one by "
            "convert --token-types=2"
        )
    if experiment.distillation.attention_weight and config.num_heads != experiment.model.num_heads:
        raise UserError(
            f"config.distillation.attention_weight compares attention maps, but {named} has {counted(config.num_heads, 'head')} "
            f"and the student {experiment.model.num_heads}; set config.model.num_heads={config.num_heads}, or attention_weight=0"
        )


def _sha256(params: PyTree[np.ndarray]) -> str:
    """The hash of every array of `params` with its place in the tree."""
    digest = hashlib.sha256()
    for path, leaf in sorted(jax.tree_util.tree_leaves_with_path(params), key=lambda item: jax.tree_util.keystr(item[0])):
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.ascontiguousarray(leaf, np.float32).tobytes())
    return digest.hexdigest()
