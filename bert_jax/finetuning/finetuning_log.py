"""The log of a fine-tuning run. It has log lines, records in `metrics.jsonl`, and the plot of the curves."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.finetuning.job import Job
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.model.kernels.dispatch import in_words
from bert_jax.objectives.scores import Score
from bert_jax.runtime.goodput import TimeCategory
from bert_jax.runtime.workdir import METRICS
from bert_jax.tasks.published import published, score_lines
from bert_jax.tasks.scores import Baseline
from bert_jax.tasks.task import Task
from bert_jax.training.compilation import compiling
from bert_jax.training.curves import draw_task_curves
from bert_jax.training.log import RunLog

log = logging.getLogger(__name__)

DRAWN_EVERY = 10.0
"""The minimum number of seconds between two plots during a run. Drawing takes longer than an epoch of some small tasks."""


class FinetuningLog(RunLog):
    """The log of a run that starts or resumes at `step`. In a sweep, log lines start with the name of the run."""

    unit = "examples"

    def __init__(self, job: Job, step: int):
        super().__init__(job.run, job.directory, job.goodput, job.mesh, job.last_step, log, job.prefix)
        self._job, self._task, self._done = job, job.data.task, step
        job.directory.mkdir(parents=True, exist_ok=True)
        self.open(step, job.experiment)
        self._drawn = time.monotonic()
        training = job.experiment.training
        if step:
            self.note(f"resuming from step {step:,}")
        else:
            self.note(
                f"{counted(job.last_step, 'step')} of {counted(training.batch_size, 'example')} in rows of "
                f"{counted(job.data.shape.length, 'token')}; an epoch is {counted(job.batches.steps_per_epoch, 'step')}"
            )
        if job.config.has_attention and not job.config.translates:
            self.note(in_words(job.program.objective.model.config, [job.data.shape.length], job.run.rejected_kernels))
        # The first epoch trains the head. Each further epoch unfreezes one more layer.
        frozen = job.config.num_layers + 2 - training.epochs
        if training.gradual_unfreezing and frozen > 0:
            lowest = f"the lowest {frozen} of layers and embeddings"
            self.note(f"gradual unfreezing: in {counted(training.epochs, 'epoch')}, {lowest} are never unfrozen")

    @contextlib.contextmanager
    def compiling(self, what: str, batch: Mapping[str, np.ndarray]) -> Iterator[None]:
        """Returns a context in which `what` is compiled for the shapes of `batch`. It logs the compilation, and excludes the
        time from the rates."""
        rows, length = batch["input_ids"].shape
        self._job.run.watchdog.compiling()
        of_rows = f"the {what} for {counted(rows, 'row')} of {counted(length, 'token')}"
        with self.pause(TimeCategory.COMPILING), compiling(of_rows, self.prefix):
            yield

    def compute_scores(self, window: Mapping[str, Any]) -> dict[str, float]:
        """Returns the scores of the objective, such as the loss and the accuracy. They are 0 for a window without labels."""
        objective = self._job.program.objective
        counts = {score.denominator for score in objective.named_scores().values() if isinstance(score, Score)}
        return objective.summarise({**window, **{name: max(float(window[name]), 1e-6) for name in counts if name in window}})

    def shown(self, scores: Mapping[str, float]) -> list[str]:
        """Returns the loss and the other scores of the objective as texts."""
        named = self._job.program.objective.shown_scores()
        others = [score.text(scores[name]) for name, score in named.items() if name in scores]
        return others if "loss" in named else [f"loss {scores['loss']:.3f}", *others]

    def count_work(self, step: int, window: Mapping[str, Any]) -> tuple[float, float, float]:
        """Returns the number of examples, the FLOPs of their rows, and the estimated FLOPs of the remaining steps."""
        flops, since = float(window["rows"]) * self._job.row_flops, step - self._done
        self._done = step
        return float(window["examples"]), flops, flops / since * (self._job.last_step - step)

    def evaluation(self, step: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Writes the scores of every dev split as log lines and a record, and draws the curves."""
        self._job.run.require_in_place()
        for split, own in scores.items():
            self.note(f"{split} after step {step:,}: {shown(own, self._task.metric, self._job.data.baselines[split].bar)}")
        self._is_drawn = False
        self.write(step, {f"{split}/{name}": value for split, own in scores.items() for name, value in own.items()})
        if time.monotonic() - self._drawn > DRAWN_EVERY:
            self.draw()

    def tests(self, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Logs the scores of every test split with labels, then the published scores of other systems."""
        for split, own in scores.items():
            self.note(f"{split}: {shown(own, self._task.metric)}")
        for line in score_lines(published(self._task.name), self._task.metric):
            self.note(line)

    def warn_degenerate(self, split: str, reason: str) -> None:
        """Warns that the predictions on `split` are degenerate, with the `reason`. Weights with such predictions are
        useless."""
        self.warn(f"{split}: {reason} (degenerate); use another seed or a smaller learning rate")

    def draw(self) -> None:
        """Draws the curves and records the time."""
        self._drawn = time.monotonic()
        super().draw()

    def draw_to(self, path: pathlib.Path) -> None:
        """Draws the loss, the score of the first dev split with its baselines, and the learning rate."""
        split = next(iter(self._job.data.baselines))
        draw_task_curves(
            path.with_name(METRICS),
            path,
            title=f"{self._task.name}: {self._job.directory.name}",
            metric=f"{split}/{self._task.metric}",
            baselines=self._job.data.baselines[split].named,
            formats=self._run.figure_formats,
        )


def shown(scores: Mapping[str, float], metric: str, bar: float | None = None, most: int = 8) -> str:
    """Formats the first `most` scores in a line, e.g. "f1 0.8912 (baseline 0.8122)  accuracy 0.8456". The baseline `bar`
    follows the score of the main `metric`."""
    baseline = "" if bar is None else f" (baseline {bar:.4g})"
    parts = [f"{name} {value:.4g}" + (baseline if name == metric else "") for name, value in scores.items()]
    return "  ".join(parts[:most])


def log_start(experiment: FinetuningExperiment, task: Task, model: ModelConfig, baselines: Mapping[str, Baseline]) -> None:
    """Logs lines about the model, the task, its labels and baselines, and the devices."""
    origin = f"random weights in the shape of {experiment.init_from}" if experiment.init_random else experiment.init_from
    log.info("model: %s, from %s", model.in_words, origin)
    log.info("task: %s, %s", task.name, ", ".join(f"{len(examples):,} {split}" for split, examples in task.splits.items()))
    labels = task.head.labels
    if labels and task.head.outputs.has_accuracy:
        log.info("labels: %s", ", ".join(labels) if len(labels) <= 20 else f"{len(labels)}")
    for split, baseline in baselines.items():
        answers = ", ".join(f"{value:.4g} ({name})" for name, value in baseline.named.items())
        log.info("baseline of %s: %s %s", split, task.metric, answers)
    log.info("devices: %d x %s", jax.device_count(), jax.devices()[0].device_kind)
