"""The content of the `results.json` of one fine-tuning run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from bert_jax.files import JsonObject
from bert_jax.finetuning.best_weights import BestWeights
from bert_jax.finetuning.job import Job
from bert_jax.tasks.published import PUBLISHED
from bert_jax.training.steps import TrainState


def results(
    job: Job, state: TrainState, best: BestWeights, logits: Mapping[str, Sequence[np.ndarray]], seconds: float
) -> JsonObject:
    """The content of `results.json`: the final numbers of a run whose best weights have these `logits` on each dev split and each
    test split with labels, and of which `seconds` have passed since its last start; beside them the `PUBLISHED` scores of other
    systems, if there are any."""
    scored = {split: job.data.task.scores(split, found) for split, found in logits.items()}
    task, training, baselines = job.data.task, job.experiment.training, job.data.baselines
    return {
        "task": task.name,
        "metric": task.metric,
        "scores": {split: scores for split, scores in scored.items() if not split.startswith("test")},
        "test_scores": {split: scores for split, scores in scored.items() if split.startswith("test")},
        "published": [dataclasses.asdict(row) for row in PUBLISHED.get(task.name, ())],
        "baseline": {split: baseline.scores for split, baseline in baselines.items()},
        "baseline_answers": {split: baseline.named for split, baseline in baselines.items()},
        "degenerate": bool(task.degeneracy(job.data.dev[0], logits[job.data.dev[0]])),
        "best_step": best.step,
        "steps": int(state.step),
        "steps_per_epoch": job.batches.steps_per_epoch,
        "skipped_steps": int(state.skipped),
        "seed": job.experiment.seed,
        "learning_rate": training.learning_rate,
        "batch_size": training.batch_size,
        "epochs": training.epochs,
        "seconds_since_last_start": round(seconds, 1),
        "devices": f"{job.mesh.size} x {job.mesh.devices.flat[0].device_kind}",
        "jax": jax.__version__,
    }
