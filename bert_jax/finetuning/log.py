"""The log of a fine-tuning run: log lines, records in `metrics.jsonl`, and the plot of the curves."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import jax
import numpy as np

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.finetuning.job import Job
from bert_jax.interface.words import counted
from bert_jax.model.config import ModelConfig
from bert_jax.model.kernels.dispatch import in_words
from bert_jax.runtime.goodput import Activity, LedgerFile
from bert_jax.runtime.workdir import METRICS
from bert_jax.tasks.baselines import Baseline
from bert_jax.tasks.published import PUBLISHED
from bert_jax.tasks.task import Task
from bert_jax.training.compilation import compiling
from bert_jax.training.curves import draw_task_curves
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.throughput import Throughput, training_line

log = logging.getLogger(__name__)

PICTURE = "curves.png"
DRAWN_EVERY = 10.0
"""Minimum seconds between two plots during a run: drawing takes longer than an epoch of some small tasks."""


class FinetuningLog(contextlib.AbstractContextManager["FinetuningLog"]):
    """The log of a run that begins or continues at `step`; the lines of a run of a sweep begin with its name."""

    def __init__(self, job: Job, step: int):
        self._job, self._task, self._done = job, job.data.task, step
        self.throughput = Throughput(job.ledger, unit="examples")
        job.directory.mkdir(parents=True, exist_ok=True)
        self.metrics = MetricsWriter(job.directory, resume_step=step) if job.run.is_first else None
        """The writer of `metrics.jsonl`; None in processes that do not write files."""
        self._ledger = LedgerFile(job.directory, job.ledger) if job.run.is_first else None
        self._drawn, self._is_drawn = time.monotonic(), True
        training = job.experiment.training
        if step:
            self.note(f"continuing from step {step:,}")
        else:
            self.note(
                f"{counted(job.last_step, 'step')} of {counted(training.batch_size, 'example')} in rows of "
                f"{counted(job.data.shape.length, 'token')}; an epoch is {counted(job.batches.steps_per_epoch, 'step')}"
            )
        if job.program.config.encoder == "transformer":
            self.note(in_words(job.program.config, [job.data.shape.length], job.mesh))
        frozen = job.program.config.num_layers + 2 - training.epochs  # head, layers and embeddings are unfrozen one per epoch
        if training.gradual_unfreezing and frozen > 0:
            lowest = f"the lowest {frozen} of layers and embeddings"
            self.note(f"gradual unfreezing: in {counted(training.epochs, 'epoch')}, {lowest} stay as they are")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.metrics:
            self.metrics.close()
        if self._ledger:
            self._ledger.close()
        if not self._is_drawn:  # a run that is interrupted before its next evaluation has curves too
            self.draw()

    def note(self, text: str) -> None:
        """Logs one line."""
        log.info("%s%s", self._job.prefix, text)

    @contextlib.contextmanager
    def compiling(self, what: str, batch: Mapping[str, np.ndarray]) -> Iterator[None]:
        """A context for the compilation of `what` for the shapes of `batch`: logs it, and excludes its time from the rates."""
        rows, length = batch["input_ids"].shape
        self._job.run.watchdog.compiling()
        of_rows = f"the {what} for {counted(rows, 'row')} of {counted(length, 'token')}"
        with self.throughput.pause(Activity.COMPILING), compiling(of_rows, self._job.prefix):
            yield

    def training(self, step: int, window: Mapping[str, Any]) -> None:
        """Writes a log line and a record: the means over the steps since the last one, whose sums are `window`."""
        if not window:
            return
        self._job.run.require_in_place()
        values = {name: float(value) for name, value in window.items()}
        steps, since = max(values["steps"], 1.0), step - self._done
        flops = values["rows"] * self._job.row_flops
        self.throughput.add(values["examples"], tokens=values["tokens"], flops=flops)
        rates = self.throughput.report(flops_left=flops / since * (self._job.last_step - step))
        self._done = step
        scores = {"loss": values["loss"] / max(values["weight"], 1e-6)}
        if self._task.head.outputs.has_accuracy:
            scores["accuracy"] = values["correct"] / max(values["labels"], 1.0)
        kind = self._job.mesh.devices.flat[0].device_kind
        texts = [score.text(scores[name]) for name, score in self._job.program.objective.shown_scores().items() if name in scores]
        self.note(training_line(step, self._job.last_step, texts, rates, kind, self._job.mesh.size))
        if values["skipped"]:
            skipped = int(values["skipped"])
            log.warning("%s%d of these steps had no finite loss or gradient and were skipped", self._job.prefix, skipped)
        record = scores | rates | {"grad_norm": values["grad_norm"] / steps}
        record |= {name: values[name] for name in ("skipped", "learning_rate")}
        self._is_drawn = False
        if self.metrics:
            self.metrics.write(step, {f"train/{name}": value for name, value in record.items()})
        if self._ledger:
            self._ledger.write()

    def evaluation(self, step: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Writes the scores of every dev split as log lines and a record, and draws the curves."""
        self._job.run.require_in_place()
        for split, own in scores.items():
            self.note(f"{split} after step {step:,}: {shown(own, self._task.metric, self._job.data.baselines[split].bar)}")
        self._is_drawn = False
        if self.metrics:
            self.metrics.write(step, {f"{split}/{name}": value for split, own in scores.items() for name, value in own.items()})
        if time.monotonic() - self._drawn > DRAWN_EVERY:
            self.draw()

    def tests(self, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Logs the scores of every test split with labels, then the `PUBLISHED` scores of other systems."""
        for split, own in scores.items():
            self.note(f"{split}: {shown(own, self._task.metric)}")
        for row in PUBLISHED.get(self._task.name, ()):
            self.note(f"published, {row.split}: {row.system}: {shown(row.scores, self._task.metric)} ({row.source})")

    def warn_degenerate(self, split: str, reason: str) -> None:
        """Warns that the predictions on `split` are degenerate, for the given `reason`, so that the weights are of no use."""
        log.warning("%s%s: %s (degenerate); take another seed, or a smaller learning rate", self._job.prefix, split, reason)

    def draw(self) -> None:
        """Draws the curves of `metrics.jsonl`."""
        self._drawn, self._is_drawn = time.monotonic(), True
        if self._job.run.is_first:
            split = next(iter(self._job.data.baselines))
            draw_task_curves(
                self._job.directory / METRICS,
                self._job.directory / PICTURE,
                title=f"{self._task.name}: {self._job.directory.name}",
                metric=f"{split}/{self._task.metric}",
                baselines=self._job.data.baselines[split].named,
            )


def shown(scores: Mapping[str, float], metric: str, bar: float | None = None, most: int = 8) -> str:
    """The scores in a line, with the baseline `bar` of the main `metric`: "f1 0.8912 (baseline 0.8122)  accuracy 0.8456"."""
    beside = "" if bar is None else f" (baseline {bar:.4g})"
    parts = [f"{name} {value:.4g}" + (beside if name == metric else "") for name, value in scores.items()]
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
