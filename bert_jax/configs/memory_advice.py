"""Builds the message for a step that does not fit in the memory of the devices. The message describes the step and the settings
that lower its memory."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.device_errors import MemoryAdvice, require_memory
from bert_jax.sharding.mesh import shard_further
from bert_jax.sharding.rules import row_multiple

if TYPE_CHECKING:  # pretraining runs do not load any tasks
    from bert_jax.configs.finetuning import FinetuningExperiment
    from bert_jax.data.batches import AlternatingBatches, LabelledBatches

CONTINUES = "The workdir is unchanged. To resume the run, repeat the command with one of these flags."
ELSEWHERE = "(in another --workdir, because it changes the trained model)"


def least_bytes(model: ModelConfig, rows: int, length: int, predictions: int, mesh: Mesh, layers: int = 1) -> float:
    """Returns a lower bound on the bytes that a step needs on one device for its share of `rows`. It counts the hidden states of
    `layers` layers and the logits of the predicted tokens."""
    hidden = layers * length * model.hidden_size * jnp.dtype(model.dtype).itemsize
    logits = 0 if model.kind.is_static else 4 * predictions * model.vocab_size
    return rows / mesh.size * (hidden + logits)


def require_training_memory(experiment: PretrainingExperiment, phase: int, mesh: Mesh) -> None:
    """Raises OutOfMemory, before anything is compiled, if the batch of a phase cannot fit in the memory of the devices."""
    p, model = experiment.phases[phase], experiment.model
    needs = least_bytes(model, p.batch_size // p.accumulation, p.length, p.max_predictions, mesh, kept_layers(model))
    require_memory(needs, mesh, functools.partial(pretraining_advice, experiment, phase, mesh))


def kept_layers(model: ModelConfig) -> int:
    """Returns the number of layers whose inputs a training step keeps for the backward pass. These are all layers, or one layer
    with remat."""
    return max(model.num_layers, 1) if model.remat == "none" else 1


def state_advice(experiment: PretrainingExperiment, mesh: Mesh) -> MemoryAdvice:
    """Returns the memory message about the parameters and the optimizer state of a pretraining run."""
    return MemoryAdvice(
        "the state (parameters and optimizer)", remedies=_sharding(experiment.mesh, mesh), notes=f"{_before()} {CONTINUES}"
    )


def pretraining_advice(experiment: PretrainingExperiment, phase: int, mesh: Mesh) -> MemoryAdvice:
    """Returns the memory message about the training step of a phase."""
    p, key, parts = experiment.phases[phase], f"--config.phases.{phase}", row_multiple(mesh)
    k, per_device = p.accumulation, p.batch_size // parts
    more = next((n for n in range(2 * k, per_device + 1) if per_device % n == 0), None)
    fewer = p.batch_size // 2 // (k * parts) * k * parts
    remedies = [
        *([f"{key}.accumulation={more}"] if more else []),
        *_recomputing(experiment.model.remat),
        *_sharding(experiment.mesh, mesh),
        *([f"{key}.batch_size={fewer} {ELSEWHERE}"] if fewer else []),
    ]
    batch = f"{_rows(p.batch_size, p.length, mesh)} (config.phases.{phase}.batch_size={p.batch_size}, accumulation={k})"
    return MemoryAdvice(f"the training step of phase {phase}", batch, remedies, f"{_before(f'--phase={phase}')} {CONTINUES}")


def evaluation_advice(experiment: PretrainingExperiment, phase: int, mesh: Mesh) -> MemoryAdvice:
    """Returns the memory message about the evaluation step on held-out rows of a phase's length."""
    rows, parts = experiment.evaluation.batch_size, row_multiple(mesh)
    fewer = rows // 2 // parts * parts
    remedies = [*([f"--config.evaluation.batch_size={fewer}"] if fewer else []), *_sharding(experiment.mesh, mesh)]
    batch = f"{_rows(rows, experiment.phases[phase].length, mesh)} (config.evaluation.batch_size={rows})"
    return MemoryAdvice(
        f"the evaluation of phase {phase}", batch, remedies, f"{_before('--step=eval', f'--phase={phase}')} {CONTINUES}"
    )


def finetuning_advice(
    experiment: FinetuningExperiment, batches: LabelledBatches | AlternatingBatches, length: int, mesh: Mesh
) -> MemoryAdvice:
    """Returns the memory message about the training step of a task, on rows of `length` tokens."""
    t, rows = experiment.training, batches.row_counts[-1]
    remedies = [
        *([f"--config.training.accumulation={2 * t.accumulation}"] if rows >= 2 * t.accumulation * row_multiple(mesh) else []),
        *([] if t.freeze_encoder else _recomputing(experiment.model.remat)),
        *_sharding(experiment.mesh, mesh),
        *([f"--config.training.batch_size={t.batch_size // 2} {ELSEWHERE}"] if t.batch_size > 1 else []),
        f"--config.task.length below {experiment.task.length} {ELSEWHERE}",
    ]
    batch = f"{_rows(rows, length, mesh)} (config.training.batch_size={t.batch_size}, accumulation={t.accumulation})"
    return MemoryAdvice("the training step", batch, remedies, f"{_before('--model=base')} {CONTINUES}")


def scoring_advice(experiment: FinetuningExperiment, rows: int, length: int, mesh: Mesh) -> MemoryAdvice:
    """Returns the memory message about the evaluation of a task, in batches of `rows` with `length` tokens each."""
    remedies = [*_sharding(experiment.mesh, mesh), f"--config.task.length below {experiment.task.length} {ELSEWHERE}"]
    return MemoryAdvice("the evaluation", _rows(rows, length, mesh), remedies, CONTINUES)


def _rows(rows: int, length: int, mesh: Mesh) -> str:
    return f"{counted(rows, 'row')} of {counted(length, 'token')} per step, {rows / row_multiple(mesh):g} per device"


def _recomputing(now: str) -> list[str]:
    return [] if now == "full" else ["--config.model.remat=full"]


def _sharding(config: MeshConfig, mesh: Mesh) -> list[str]:
    changes = shard_further(config, mesh, 2)
    return [" ".join(f"--config.mesh.{axis}={size}" for axis, size in changes.items())] if changes else []


def _before(*flags: str) -> str:
    command = " ".join(["python -m bert_jax.aot --config=FILE --topology=v5e:4x4", *flags])
    return f"Before you rent a TPU, check with `{command}` whether a step fits."
