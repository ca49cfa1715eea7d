"""The results of a pretraining run. They are `results.json` and the model to export, from the last step or from an earlier
step."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from bert_jax.configs.experiment_files import with_defaults
from bert_jax.configs.pretraining import CheckpointConfig, PretrainingExperiment
from bert_jax.data.corpus.store import corpus_sources, open_splits
from bert_jax.data.corpus.verification import local_corpus
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interface.named import Record
from bert_jax.interface.words import counted
from bert_jax.interop.card import Training, read_training
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.electra import CLASS, DISCRIMINATOR
from bert_jax.interop.families.family import export_family
from bert_jax.interop.huggingface import Model
from bert_jax.interop.names import REQUIRED_PARTS, rows
from bert_jax.model.config import ModelConfig
from bert_jax.model.pretraining import count_parameters
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.scores import Score
from bert_jax.pretraining.program import EXPORTED, pretraining_program
from bert_jax.pretraining.splits import FINGERPRINT, Splits, trained_splits
from bert_jax.runtime.workdir import MODEL, from_start, run_config
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.storage.fetching import fetched
from bert_jax.storage.paths import AnyPath, is_remote
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.exporting import files_in_words, on_host
from bert_jax.training.steps import TrainState

SPIKE_COUNTS = ("spikes", "rollbacks", "skipped_batches")
"""If a run has a spike policy, its results include these counts from the state (`spikes.WatchedTrainState`)."""


def results(
    experiment: PretrainingExperiment,
    mesh: Mesh,
    state: TrainState,
    scores: Mapping[str, float],
    splits: Splits,
    seconds: float,
) -> JsonObject:
    """Returns the content of `results.json`, the final numbers of a run. `seconds` is the time since the last start of the run.

    `times_unigram_accuracy` is None if there is no baseline, or if the accuracy of the baseline is 0. The accuracy is 0 if
    there are few held-out rows and none of their predicted tokens is the most frequent token.
    """
    objective = experiment.trained_objective
    parameters = count_parameters(experiment.model, objective.model_parameters())
    baseline = scores.get("unigram_accuracy")
    predicted = [name for name, score in objective.shown_scores().items() if score.baseline == "unigram_accuracy"]
    return {
        "steps": int(state.step),
        "skipped_steps": int(state.skipped),
        **{name: int(getattr(state, name)) for name in (SPIKE_COUNTS if experiment.spikes.policy != "none" else ())},
        "parameters": parameters.trained,
        "fixed_parameters": parameters.fixed,
        "padded_parameters": parameters.padded,
        "eval": scores,
        "times_unigram_accuracy": scores[predicted[0]] / baseline if baseline and predicted else None,
        "vocabulary_sha256": splits.train.vocabulary.sha256,
        "seconds_since_last_start": round(seconds, 1),
        "devices": f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def training_section(
    experiment: PretrainingExperiment, splits: Splits, scores: Mapping[str, float], files: Mapping[str, Record] | None = None
) -> Training:
    """Returns the training section of the model card for a run that ended with these held-out `scores`. `files` maps a
    configuration key to the user's file that the run used."""
    trained, start = trained_splits(experiment, splits.train, splits.of_phases), Training()
    sources = {source for split in trained for source in corpus_sources(split) or [""]}
    with contextlib.suppress(UserError, OSError):  # the model may have been removed during the run
        if experiment.init_from:
            from bert_jax.interop.locate import find_model_directory

            start, _ = read_training(find_model_directory(experiment.init_from))
    base_model = start.base_model
    if experiment.init_from:
        from bert_jax.data.corpus.hub import is_hub_name

        base_model = experiment.init_from if is_hub_name(experiment.init_from) else base_model
    corpora = {pathlib.PurePath(phase.corpus or experiment.corpus.directory).name: None for phase in experiment.phases}
    names = f" of {' and '.join(corpora)}" if all(corpora) else ""
    tokens, documents = sum(split.num_tokens for split in trained), sum(split.num_documents for split in trained)
    phases = ", ".join(
        f"{phase.steps:,} of {counted(phase.batch_size, 'row')} of {counted(phase.length, 'token')}"
        for phase in experiment.phases
    )
    start_of = experiment.init_from or experiment.init_state
    origin = f", starting from {pathlib.PurePath(start_of).name}" if start_of else ""
    return Training(
        data=f"Pretrained on {counted(tokens, 'token')} in {counted(documents, 'document')}{names}.",
        steps=f"Steps: {phases}{origin}.{files_in_words(files or {})}",
        scores=card_scores(experiment.trained_objective, scores),
        language="en" if sources == {"embedded"} else start.language,
        license=start.license,
        base_model=base_model,
    )


def card_scores(objective: Objective, scores: Mapping[str, float]) -> list[tuple[str, float, float | None]]:
    """Returns the held-out scores for a card as (name, score, baseline or None)."""
    named = objective.named_scores()
    baselines = {score.baseline for score in named.values() if isinstance(score, Score)}
    lines: list[tuple[str, float, float | None]] = []
    for name, value in scores.items():
        if name not in baselines and name != "loss":
            score = named.get(name)
            bar = scores.get(score.baseline) if isinstance(score, Score) else None
            lines.append((f"held-out {name}", float(value), bar))
    return lines


def exported_parts(objective: Objective, model: ModelConfig) -> set[str]:
    """Returns the names of the parameter subtrees that are exported. They are the encoder, the parts that belong to the
    objective's transformers class, and the parts that belong to none of the classes in `EXPORTED`. Temporary parts are left
    out. An encoder that ELECTRA's classes do not support is exported without the discriminator."""
    if objective.exported == CLASS and export_family(model) is BERT:
        return {*REQUIRED_PARTS, DISCRIMINATOR} - {*objective.temporary}
    if objective.exported in (None, CLASS):
        return {*REQUIRED_PARTS}
    others = {part for parts in EXPORTED.values() for part in parts} - {*EXPORTED[objective.exported]}
    return {row.subtree for row in rows(model)} - {*objective.temporary} - others


def trained_model(experiment: PretrainingExperiment, params: PyTree[jax.Array], tokenizer: Tokenizer | None) -> Model:
    """Returns the model to export. It has the `exported_parts` and the tokenizer of the corpus. `params` are whole numpy
    arrays, not shards."""
    assert tokenizer is not None, "a corpus opened from a directory has a tokenizer"
    parts = exported_parts(experiment.trained_objective, experiment.model)
    own = {part: tree for part, tree in params.items() if part in parts}
    discriminator = own.pop(DISCRIMINATOR, None)
    return Model(params=own, discriminator=discriminator, config=experiment.model, tokenizer=tokenizer)


def load_checkpointed_model(workdir: AnyPath, step: int) -> Model:
    """Loads the model of the pretraining run in `workdir` after `step` steps. The run may still be training.

    Raises UserError if `workdir` holds no pretraining run, or no checkpoint of this step. The message lists the steps that have
    a checkpoint.
    """

    def chosen(there: Sequence[int], kept: CheckpointConfig) -> Sequence[int]:
        if step in there:
            return [step]
        others = f" (it has steps {', '.join(f'{saved:,}' for saved in there)})" if there else ""
        raise UserError(
            f"--step={step}: {workdir} has no checkpoint of that step{others}; name an existing step, or train with "
            f"--config.checkpoints.keep_at='[{step}]'"
        )

    return next(_models(workdir, chosen))[1]


def model_of_last(workdir: AnyPath, count: int) -> tuple[Model, list[int]]:
    """Returns (a model, a list of steps). The model has the mean weights of the last `count` checkpoints of the pretraining run
    in `workdir`, and the list has the steps of these checkpoints. See arXiv:1706.03762, section 6.1, and
    `load_checkpointed_model`. Raises UserError if the run has fewer checkpoints, or if checkpoints after a step of
    `checkpoints.keep_at` no longer exist."""

    def chosen(there: Sequence[int], kept: CheckpointConfig) -> Sequence[int]:
        there, remedy = there[-count:], f"or train with --config.checkpoints.keep={count}"
        if len(there) < count:
            raise UserError(
                f"--last={count}: {workdir} only has {counted(len(there), 'checkpoint')}; average fewer, {remedy}"
            )
        # Other gaps are short: `checkpoints.every` was changed, or a save failed.
        if gaps := [i for i in range(1, count) if there[i - 1] in kept.keep_at and there[i] - there[i - 1] > kept.every]:
            before, after = there[gaps[-1] - 1], there[gaps[-1]]
            raise UserError(
                f"--last={count}: {workdir} has no checkpoints between steps {before:,} and {after:,}, so the mean "
                f"would include a much earlier state; give --last={count - gaps[-1]}, {remedy}"
            )
        return there

    steps: list[int] = []

    def models() -> Iterator[Model]:
        for step, model in _models(workdir, chosen):
            steps.append(step)
            yield model

    from bert_jax.interop.surgery import average  # imported here because a run does not need it

    return average(models()), steps


def _models(workdir: AnyPath, chosen: Callable[[Sequence[int], CheckpointConfig], Sequence[int]]) -> Iterator[tuple[int, Model]]:
    """Yields (step, model) for the checkpoints of a run that `chosen` returns. It gets the steps of all checkpoints, and
    the `checkpoints` section of the configuration. Only one model is in memory at a time."""
    stored = with_defaults(PretrainingExperiment, run_config(workdir, "pretrain", "--from"), extra_key=FINGERPRINT)
    stored.pop(FINGERPRINT, None)
    experiment = dataclasses.replace(PretrainingExperiment.from_dict(stored), mesh=MeshConfig())
    directory, kept = workdir / "checkpoints", experiment.checkpoints
    mesh = make_mesh(experiment.mesh, jax.devices()[:1])
    if not directory.is_dir():
        chosen([], kept)
    with Checkpoints(directory, read_only=True) as checkpoints:
        steps = chosen(checkpoints.steps, kept)
        program, tokenizer = pretraining_program(experiment, mesh), _tokenizer(workdir, experiment)
        for step in steps:
            params = on_host(checkpoints.restore(step, program.state).params, mesh)
            phase = experiment.phase_after(step - 1)
            model = trained_model(experiment.for_phase(phase), params, tokenizer)
            yield step, dataclasses.replace(model, source=f"step {step:,} of {workdir}")


def _tokenizer(workdir: AnyPath, experiment: PretrainingExperiment) -> Tokenizer | None:
    """Returns the tokenizer of the run. The tokenizer is read from the exported model, which is smaller than the corpus. If the
    run has not ended and there is no exported model, the tokenizer is read from the corpus."""
    if (workdir / MODEL).is_dir():
        model = workdir / MODEL
        return load_tokenizer(fetched(str(model), "--from", deep=False) if is_remote(workdir) else model)
    return open_splits(local_corpus(from_start(workdir, experiment.corpus.directory)))[0].tokenizer
