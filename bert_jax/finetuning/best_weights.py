"""The weights with the best dev score of a fine-tuning run, saved during the run and exported at its end."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.data.corpus.hub import is_hub_name
from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.finetuning.job import Job
from bert_jax.interface.named import Record
from bert_jax.interface.words import counted
from bert_jax.interop.card import Training, read_training
from bert_jax.interop.huggingface import Model
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.runtime.goodput import TimeCategory
from bert_jax.runtime.workdir import FILES, own_files
from bert_jax.tasks import ENGLISH
from bert_jax.tasks.config import OwnDataConfig, TaskConfig
from bert_jax.tasks.readers.own_data import table_settings, text_columns
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.exporting import export_trained, exported_files, files_in_words, on_host
from bert_jax.training.steps import TrainState

log = logging.getLogger(__name__)

BEST = "best"
"""The folder of the best weights during a run."""


class BestWeights:
    """The parameters, score and step of the best evaluation so far, in memory and in the run's folder `best`.

    A run that resumes from step `until` loads the best weights up to that step. If `until` is None, the newest saved weights
    are loaded."""

    def __init__(self, job: Job, until: int | None = None):
        self._job = job
        saved, transferring = job.run.durable(job.directory / BEST), job.run.watchdog.transferring
        self.checkpoints = Checkpoints(saved, keep=1, gather=job.run.gather, transferring=transferring)
        layout = best_layout(job.program.state, job.mesh)
        self._best: Mapping[str, Any] | None = self.checkpoints.restore_latest(layout, until=until)

    def __enter__(self) -> BestWeights:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.checkpoints.__exit__(kind, error, trace)

    @property
    def step(self) -> int | None:
        """The step of the best evaluation. None before the first evaluation."""
        return None if self._best is None else int(self._best["step"])

    @property
    def found(self) -> Mapping[str, Any]:
        """The "params", "score" and "step" of the best evaluation. Raises UserError if there are no weights. The last step is
        always evaluated, so the files must have been removed in this case."""
        if self._best is None:
            raise UserError(f"{self._job.directory / BEST} holds no weights; start this run again in another --workdir")
        return self._best

    def offer(
        self, step: int, score: float, params: PyTree[jax.Array], logits: Mapping[str, list[np.ndarray]]
    ) -> None:
        """If `score` is the best so far, keeps the weights of `step` and starts saving them. The `logits` of the weights on
        each dev split are also kept."""
        if self._best is None or better(self._job.experiment, step, score, self._best):
            self._job.predicted = dict(logits)
            self._best = {"params": self._job.program.copy(params), "score": jnp.float32(score), "step": jnp.int32(step)}
            with self._job.goodput.during(TimeCategory.SAVING):
                self.checkpoints.save(step, self._best)

    def ends_run(self, step: int) -> bool:
        """Returns whether early stopping ends the run, i.e. whether the last `patience` evaluations brought no improvement."""
        return self.step is not None and early(self._job.experiment, self._job.evaluations, step, self.step)

    def logits(self, split: str) -> list[np.ndarray]:
        """Returns the logits of the best weights on a split. If this process has already computed the logits, they are reused.
        Otherwise, the split is evaluated once, and this is logged."""
        job, best = self._job, self.found
        if split not in job.predicted:
            examples = counted(len(job.data.features[split]), "example")
            log.info("%sevaluating the weights of step %s on %s: %s", job.prefix, f"{int(best['step']):,}", split, examples)
            job.predicted[split] = job.logits(best["params"], split)
        return job.predicted[split]

    def ensure_saved(self) -> None:
        """Waits until the best weights are on disk. Call this before a state is saved, because a run that resumes from the
        state does not repeat earlier evaluations."""
        try:
            self.checkpoints.finish()
        except UserError:  # the error is already logged, and there may be space on the disk again
            if self._best is not None and jax.process_count() == 1:  # only some processes may see the failure
                self.checkpoints.save(int(self._best["step"]), self._best)

    def export(self, directory: pathlib.Path, start: Model, results: JsonObject | None = None) -> None:
        """Exports the best weights as a model to the folder model/ in `directory`. The model has the tokenizer of `start`, the
        run's model configuration and the task's head. If `results` has scores, the model card shows them. This is a collective,
        so every process must call it."""
        job, best = self._job, self.found
        kept = {part: tree for part, tree in best["params"].items() if part not in job.objective.temporary}
        params = on_host(kept, job.mesh)
        if job.run.is_first:
            dropout = {name: getattr(job.experiment.model, name) for name in ("hidden_dropout", "attention_dropout")}
            config = dataclasses.replace(job.config, **dropout)  # `job.config` has no dropout if the encoder is frozen
            whole = dataclasses.replace(start, params=params, config=config, head=job.head)
            task = job.data.task
            of_pairs, unanswerable = getattr(task, "of_pairs", None), getattr(task, "may_be_unanswerable", False)
            threshold = results["scores"].get("dev", {}).get("threshold") if results and unanswerable else None
            settings = text_settings(job.experiment.task, task.name, job.head, unanswerable=unanswerable, threshold=threshold)
            whole = dataclasses.replace(whole, of_pairs=of_pairs, **settings)
            trained = dataclasses.replace(whole, untrained=frozenset(), other_fields={})
            files = (results or {}).get(FILES) or own_files(job.run.workdir)  # a sweep's best run may have used other files
            about: JsonObject = {"task": task.name, "step": int(best["step"]), **exported_files(files)}
            training = training_section(job.experiment, task.name, start, results or {}, files)
            export_trained(directory, trained, about, None, training)


def text_settings(
    config: TaskConfig, task: str, head: TaskHead, *, unanswerable: bool = False, threshold: float | None = None
) -> dict[str, Any]:
    """Returns the fields of `Model` that describe how the texts of `task` were read: `columns` and `reading`. For questions, it
    also has the settings of the search for answers: whether they may be `unanswerable`, and the tuned `threshold` of "no
    answer"."""
    own = config.own if task.startswith("own/") else OwnDataConfig()
    reading: JsonObject = dict(table_settings(own))
    if isinstance(head, ChoiceHead) and own.first_choice:
        reading["first_choice"] = own.first_choice
    if isinstance(head, SpanHead):
        reading["length"] = config.length  # `predict` has another default
        usual = TaskConfig()
        stated = {name: getattr(config, name) for name in ("doc_stride", "max_question", "max_answer", "n_best")}
        reading |= {name: value for name, value in stated.items() if value != getattr(usual, name)}
        if unanswerable:
            reading["may_be_unanswerable"] = True
        if threshold is not None:
            reading["no_answer_threshold"] = threshold
    return {"columns": text_columns(own, head.kind), "reading": reading}


def training_section(
    experiment: FinetuningExperiment, task: str, start: Model, results: JsonObject, files: Mapping[str, Record] | None = None
) -> Training:
    """Returns the training section of the exported model's card, for a fine-tuning run with these `results`. `files` maps a
    configuration key to the user's file that the run used."""
    before, _ = read_training(pathlib.Path(start.source)) if start.source else (Training(), "")
    name = experiment.init_from
    scores: list[tuple[str, float, float | None]] = []
    for kind in ("scores", "test_scores"):
        for split, found in results.get(kind, {}).items():
            baseline = results.get("baseline", {}).get(split, {})
            numbers = {metric: value for metric, value in found.items() if isinstance(value, int | float)}
            scores += [(f"{split} {metric}", float(value), baseline.get(metric)) for metric, value in numbers.items()]
    rate = f"{experiment.training.learning_rate:g}"
    taken = f"; the weights are from step {results['best_step']:,}" if "best_step" in results else ""
    steps = f"{counted(results['steps'], 'step')} of " if "steps" in results else ""
    own = files_in_words(files or {})
    return Training(
        data=f"Fine-tuned on the task {task}{f', starting from {pathlib.PurePath(name).name}' if name else ''}.",
        steps=f"{steps}{counted(experiment.training.batch_size, 'example')} at a rate of {rate}{taken}.{own}",
        scores=scores,
        language="en" if task in ENGLISH else before.language,
        license=before.license,
        base_model=name if name and is_hub_name(name) else before.base_model,
    )


def early(experiment: FinetuningExperiment, evaluations: frozenset[int], step: int, best_step: int) -> bool:
    """Returns whether `patience` evaluations have passed since `best_step`."""
    patience = experiment.selection.patience
    return bool(patience) and sum(best_step < e <= step for e in evaluations) >= patience


def better(experiment: FinetuningExperiment, step: int, score: float, best: Mapping[str, Any]) -> bool:
    """Returns whether the weights of `step` replace the `best` weights so far."""
    if experiment.selection.select == "last":
        return step > int(best["step"])
    return float(np.float32(score)) > float(best["score"])  # the stored score is float32


def best_layout(state: TrainState, mesh: Mesh) -> dict[str, PyTree[jax.ShapeDtypeStruct]]:
    """Returns abstract arrays for the parameters, the score and the step of the best evaluation. The parameters have the shapes
    and shardings of `state`."""
    whole = NamedSharding(mesh, PartitionSpec())
    scalars = {"score": jnp.float32, "step": jnp.int32}
    kept = {name: jax.ShapeDtypeStruct((), dtype, sharding=whole) for name, dtype in scalars.items()}
    return {"params": state.params} | kept
