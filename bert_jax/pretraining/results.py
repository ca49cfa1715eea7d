"""The results of a pretraining run: `results.json` and the exported model."""

from __future__ import annotations

import contextlib
import pathlib
import platform
from collections.abc import Mapping

import jax
from jaxtyping import PyTree

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.corpus.files import JsonObject, read_object
from bert_jax.data.corpus.hub import is_hub_name
from bert_jax.data.corpus.store import SETTINGS
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.interop.card import Training, pretraining_scores
from bert_jax.interop.card import training_of as read_training
from bert_jax.interop.huggingface import Model
from bert_jax.interop.locate import find_model_directory
from bert_jax.model.pretraining import count_parameters
from bert_jax.objectives.distillation import PROJECTION
from bert_jax.objectives.scores import token_measure
from bert_jax.pretraining.corpora import Corpora
from bert_jax.pretraining.program import PretrainingProgram
from bert_jax.training.spikes import WatchedTrainState
from bert_jax.training.steps import TrainState


def results(
    program: PretrainingProgram, state: TrainState, scores: Mapping[str, float], corpora: Corpora, seconds: float
) -> JsonObject:
    """The content of `results.json`: the final numbers of a run, of which `seconds` have passed since its last start.

    `times_unigram_accuracy` is None without a baseline, and where its accuracy is 0: few held-out rows may lack the most frequent
    token.
    """
    experiment, mesh = program.experiment, program.mesh
    parameters = count_parameters(experiment.model, heads=True, next_sentence=experiment.next_sentence)
    baseline = scores.get("unigram_accuracy")
    return {
        "steps": int(state.step),
        "skipped_steps": int(state.skipped),
        **_spikes(state),
        "parameters": parameters.trained,
        "fixed_parameters": parameters.fixed,
        "padded_parameters": parameters.padded,
        "heldout": scores,
        "times_unigram_accuracy": scores[f"{token_measure(scores)}_accuracy"] / baseline if baseline else None,
        "vocabulary_sha256": corpora.train.vocabulary.sha256,
        "seconds_since_last_start": round(seconds, 1),
        "devices": f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def training_of(experiment: PretrainingExperiment, corpora: Corpora, scores: Mapping[str, float]) -> Training:
    """The training section of the exported model's card, for a run that ended with these held-out `scores`."""
    train, start = corpora.train, Training()
    sources = []
    with contextlib.suppress(UserError, OSError):  # they may have been removed during the run
        if train.directory is not None:
            sources = read_object(train.directory / SETTINGS).get("sources", [])
        if experiment.init_from:
            start, _ = read_training(find_model_directory(experiment.init_from))
    name = f" of {pathlib.PurePath(experiment.corpus.directory).name}" if experiment.corpus.directory else ""
    phases = ", ".join(
        f"{phase.steps:,} of {counted(phase.batch_size, 'row')} of {counted(phase.length, 'token')}"
        for phase in experiment.phases
    )
    origin = f", starting from {pathlib.PurePath(experiment.init_from).name}" if experiment.init_from else ""
    return Training(
        data=f"Pretrained on {counted(train.num_tokens, 'token')} in {counted(train.num_documents, 'document')}{name}.",
        steps=f"Steps: {phases}{origin}.",
        scores=pretraining_scores(scores),
        language="en" if "embedded" in sources else start.language,
        license=start.license,
        base_model=experiment.init_from if experiment.init_from and is_hub_name(experiment.init_from) else start.base_model,
    )


def _spikes(state: TrainState) -> JsonObject:
    """The numbers of a run with a policy for spikes."""
    if not isinstance(state, WatchedTrainState):
        return {}
    return {name: int(getattr(state, name)) for name in ("spikes", "returns", "passed_over")}


def trained_model(experiment: PretrainingExperiment, params: PyTree[jax.Array], tokenizer: Tokenizer | None) -> Model:
    """The model to export, with `params` as whole numpy arrays (not sharded) and the tokenizer of the corpus; the projection of a
    distillation is left out."""
    assert tokenizer is not None, "a corpus opened from a directory has a tokenizer"
    own = {part: tree for part, tree in params.items() if part != PROJECTION}
    return Model(params=own, config=experiment.model, tokenizer=tokenizer)
