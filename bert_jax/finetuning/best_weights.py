"""The best evaluation of a fine-tuning run: when one is due, which is better, and its weights on disk and as a model."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.checkpoints.manager import Checkpoints
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model
from bert_jax.programs.finetuning import Program
from bert_jax.runtime.exporting import export_trained, on_host
from bert_jax.runtime.launch import Run
from bert_jax.tasks.task import Task
from bert_jax.tasks.text_task import TextTask
from bert_jax.training.steps import TrainState


def evaluation_steps(epochs: int, steps_per_epoch: int, per_epoch: int) -> frozenset[int]:
    """The steps after which dev is scored: evenly within every epoch, and at its end."""
    each = {max(1, round(steps_per_epoch * i / per_epoch)) for i in range(1, per_epoch + 1)}
    return frozenset(epoch * steps_per_epoch + step for epoch in range(epochs) for step in each)


def early(experiment: FinetuningExperiment, evaluations: frozenset[int], step: int, best_step: int) -> bool:
    """Whether `patience` evaluations have passed without a better one."""
    patience = experiment.selection.patience
    return bool(patience) and sum(best_step < e <= step for e in evaluations) >= patience


def better(experiment: FinetuningExperiment, step: int, score: float, best: Mapping[str, Any]) -> bool:
    """Whether the weights of `step` are to take the place of the `best` so far."""
    if experiment.selection.select == "last":
        return step > int(best["step"])
    return float(np.float32(score)) > float(best["score"])  # which is kept in float32: equal scores must be equal


def best_layout(abstract: Any, mesh: Mesh) -> dict[str, Any]:
    """The shapes of what is kept of the best evaluation."""
    whole = NamedSharding(mesh, PartitionSpec())
    scalars = {"score": jnp.float32, "step": jnp.int32}
    kept = {name: jax.ShapeDtypeStruct((), dtype, sharding=whole) for name, dtype in scalars.items()}
    return {"params": abstract.params} | kept


def save(
    step: int, state: TrainState, checkpoints: Checkpoints, best: Mapping[str, Any] | None, best_checkpoints: Checkpoints
) -> None:
    """Saves `state` once the best weights so far are on disk: a run that continues from it will not evaluate them again."""
    try:
        best_checkpoints.finish()
    except UserError:  # which was said when it happened; there may be room again
        if best is not None and jax.process_count() == 1:  # of several, not all may know
            best_checkpoints.save(int(best["step"]), best)
    checkpoints.save(step, state)


def copy(params: Any) -> Any:
    """The same arrays in memory of their own: the next step gives the state's away."""
    return jax.tree.map(jnp.copy, params)


def export_best(
    experiment: FinetuningExperiment,
    run: Run,
    directory: pathlib.Path,
    program: Program,
    task: Task,
    start: Model,
    best: Mapping[str, Any],
    mesh: Mesh,
) -> None:
    """Exports the `best` weights of a run to the directory's model/. Collective: every process calls it."""
    params = on_host(best["params"], mesh)
    if run.is_first:
        dropout = {name: getattr(experiment.model, name) for name in ("hidden_dropout", "attention_dropout")}
        config = dataclasses.replace(program.config, **dropout)  # a frozen encoder has trained without
        whole = dataclasses.replace(start, params=params, config=config, head=program.head)
        of_pairs = task.of_pairs if isinstance(task, TextTask) else None
        trained = dataclasses.replace(whole, untrained=frozenset(), other_fields={}, of_pairs=of_pairs)
        export_trained(directory, trained, {"task": task.name, "step": int(best["step"])}, None)
