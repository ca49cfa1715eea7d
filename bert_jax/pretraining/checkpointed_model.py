"""Loads the model saved by a pretraining run at a given step, and the mean of its last checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import jax

from bert_jax.configs.files import with_defaults
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.corpus.store import open_splits
from bert_jax.data.corpus.verification import local_corpus
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.interop.surgery import average
from bert_jax.pretraining.program import pretraining_program
from bert_jax.pretraining.results import trained_model
from bert_jax.pretraining.splits import FINGERPRINT
from bert_jax.runtime.workdir import MODEL, from_start, run_config
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.storage.fetching import fetched
from bert_jax.storage.paths import AnyPath, is_remote
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.exporting import on_host


def load_checkpointed_model(workdir: AnyPath, step: int) -> Model:
    """Loads the model that the pretraining run in `workdir` saved after `step` steps. The run may still be training.

    Raises UserError if `workdir` holds no pretraining run, or no checkpoint of that step; the message lists the steps that have
    one.
    """

    def chosen(there: Sequence[int]) -> Sequence[int]:
        if step in there:
            return [step]
        has = f"has those of {', '.join(f'{saved:,}' for saved in there)}" if there else "has none"
        raise UserError(
            f"--step={step}: {workdir} {has}, not the checkpoint of that step; name one that is there, or train with "
            f"--config.checkpoints.keep_at='[{step}]'"
        )

    return next(_models(workdir, chosen))[1]


def model_of_last(workdir: AnyPath, count: int) -> tuple[Model, list[int]]:
    """Returns (the mean of the weights of the last `count` checkpoints of the pretraining run in `workdir`, their steps); see
    `load_checkpointed_model` (arXiv:1706.03762, section 6.1)."""

    def chosen(there: Sequence[int]) -> Sequence[int]:
        if len(there) >= count:
            return there[-count:]
        raise UserError(
            f"--last={count}: {workdir} holds {counted(len(there), 'checkpoint')}; average those, or train with "
            f"--config.checkpoints.keep={count}"
        )

    steps: list[int] = []

    def models() -> Iterator[Model]:
        for step, model in _models(workdir, chosen):
            steps.append(step)
            yield model

    return average(models()), steps


def _models(workdir: AnyPath, chosen: Callable[[Sequence[int]], Sequence[int]]) -> Iterator[tuple[int, Model]]:
    """Yields (step, model) of the checkpoints of a run that are `chosen` among its steps, with one in memory at a time."""
    stored = with_defaults(PretrainingExperiment, run_config(workdir, "pretrain", "--from"), beside=FINGERPRINT)
    stored.pop(FINGERPRINT, None)
    experiment = dataclasses.replace(PretrainingExperiment.from_dict(stored), mesh=MeshConfig())
    directory = workdir / "checkpoints"
    mesh = make_mesh(experiment.mesh, jax.devices()[:1])
    if not directory.is_dir():
        chosen([])
    with Checkpoints(directory, read_only=True) as checkpoints:
        steps = chosen(checkpoints.steps)
        program, tokenizer = pretraining_program(experiment, mesh), _tokenizer(workdir, experiment)
        for step in steps:
            params = on_host(checkpoints.restore(step, program.state).params, mesh)
            phase = experiment.phase_after(max(step - 1, 0))
            yield step, trained_model(experiment.for_phase(phase), params, tokenizer)


def _tokenizer(workdir: AnyPath, experiment: PretrainingExperiment) -> Tokenizer | None:
    """Loads the run's tokenizer from its exported model or, if the run has not finished, from the corpus."""
    if (workdir / MODEL).is_dir():
        model = workdir / MODEL
        return load_tokenizer(fetched(str(model), "--from", deep=False) if is_remote(workdir) else model)
    return open_splits(local_corpus(from_start(workdir, experiment.corpus.directory)))[0].tokenizer
