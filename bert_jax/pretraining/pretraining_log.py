"""The log of a pretraining run. It has log lines, records in `metrics.jsonl`, and a plot of the training curves."""

from __future__ import annotations

import logging
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.batches import BatchSource
from bert_jax.interface.words import counted
from bert_jax.model.kernels.dispatch import in_words
from bert_jax.model.pretraining import count_parameters
from bert_jax.pretraining.program import flops_left, phase_row_flops
from bert_jax.pretraining.reference_curves import comparison, find_curve, losses, usual_causes
from bert_jax.pretraining.splits import Splits, fingerprint, trained_splits
from bert_jax.runtime.launch import Run
from bert_jax.runtime.workdir import METRICS
from bert_jax.training.log import RunLog, Throughput
from bert_jax.training.steps import Program

log = logging.getLogger(__name__)

CONSTANT = 0.01
"""If the rarer value has less than this fraction of the NSP labels, the labels count as constant."""


class PretrainingLog(RunLog):
    """The log of a run that starts or resumes at `step`. `config` is the experiment file of the run (FILE[:ARG]), or "" if
    there is none.

    A run that starts at step 0 drops all records of earlier starts. This includes the evaluation of step 0, because the run
    evaluates step 0 again.
    """

    def __init__(
        self, experiment: PretrainingExperiment, program: Program, run: Run, splits: Splits, step: int, config: str = ""
    ):
        self._experiment = experiment
        self._objective = experiment.trained_objective
        super().__init__(run, run.workdir, run.goodput, program.mesh, experiment.phase_starts()[-1], log)
        self._teacher = program.teacher.config if program.teacher else None
        self._fingerprint = fingerprint(splits.train, splits.eval, *splits.of_phases.values()) if config else ""
        self._phase = 0
        self.scores: dict[str, float] = {}
        """The held-out scores of the last evaluation."""
        _log_start(experiment, program, splits, step, run.rejected_kernels)
        self._curve, note = (
            find_curve(config, experiment, splits.train.num_tokens, self._fingerprint) if config else (None, "")
        )
        if note:
            self.note(note)
        self.open(step or -1, experiment)

    def phase(self, index: int, source: BatchSource) -> None:
        """Logs a line about the rows of a phase that starts or resumes. Restarts the measurement of the throughput."""
        self._phase, config = index, self._experiment.phases[index]
        plan = source.plan(0).summary()
        random, of_pairs = plan["random_next_fraction"], self._experiment.next_sentence
        log.info(
            "phase %d of %d: %s of %s x %s%s; an epoch is %s, %s%.0f %% padding",
            index + 1,
            len(self._experiment.phases),
            counted(config.steps, "step"),
            counted(config.batch_size, "row"),
            counted(config.length, "token"),
            self._masks(index),
            counted(source.rows_per_epoch, "row"),
            f"{100 * random:.0f} % random next sentences, " if of_pairs else "",
            100 * plan["padding_fraction"],
        )
        if of_pairs and self._experiment.examples.pairs != "successive" and not CONSTANT <= random <= 1 - CONSTANT:
            log.warning(
                "WARNING: %.0f %% of the second texts are random, so next sentence prediction has the same answer for all pairs "
                "and its head learns nothing. Build the corpus from documents of several sentences, or set "
                "config.examples.pairs=none, which removes the head",
                100 * random,
            )
        self.throughput = Throughput(self._run.goodput)

    def _masks(self, index: int) -> str:
        """Returns a note with both masked fractions if a phase and the held-out rows have different ones. Otherwise returns
        ""."""
        trained, eval_rows = self._experiment.example_config(index), self._experiment.eval_config(index)
        if "masked_fraction" not in trained.kind.reads or trained.reached_fraction == eval_rows.reached_fraction:
            return ""
        return f", {100 * trained.reached_fraction:.3g} % masked (held out: {100 * eval_rows.reached_fraction:.3g} %)"

    def compute_scores(self, window: Mapping[str, Any]) -> dict[str, float]:
        """Returns the losses and accuracies."""
        return self._objective.summarise(window)

    def shown(self, scores: Mapping[str, float]) -> list[str]:
        """Returns the objective's scores as texts for a log line."""
        return [score.text(scores.get(name, math.nan)) for name, score in self._objective.shown_scores().items()]

    def count_work(self, step: int, window: Mapping[str, Any]) -> tuple[float, float, float]:
        """Returns (the number of rows, the FLOPs of these rows, the FLOPs of all later steps)."""
        rows = float(window["rows"])
        flops = rows * phase_row_flops(self._experiment, self._phase, self._teacher)
        return rows, flops, flops_left(self._experiment, step, self._teacher)

    def evaluation(self, step: int, scores: dict[str, float]) -> None:
        """Writes held-out scores to the log and to `metrics.jsonl`, and draws the curves again."""
        self._run.require_in_place()
        self.scores = scores
        log.info("held out after step %s: %s", f"{step:,}", self._objective.eval_line(scores))
        self._compare(step, scores)
        self.write(step, {f"eval/{name}": value for name, value in scores.items()})
        if step:
            self.draw()

    def _compare(self, step: int, scores: dict[str, float]) -> None:
        """If the experiment has a reference curve, logs whether the held-out scores are within the band of the curve."""
        if self._curve is None:
            return
        inside, line = comparison(self._curve, step, scores, losses(self._objective))
        if inside and line:
            log.info("%s", line)
        elif line:
            corpus = self._fingerprint
            causes = usual_causes(self._curve, step, scores, self._experiment, fingerprint=corpus, skipped=self.skipped)
            log.warning("%s; %s", line, causes)

    def draw_to(self, path: pathlib.Path) -> None:
        """Draws losses, accuracies and the learning rate. A line marks the start of each phase."""
        from bert_jax.training.curves import draw_curves  # matplotlib would delay the start of a run

        starts = zip(self._experiment.phase_starts(), self._experiment.phases, strict=False)
        phases = [(start, f"length {phase.length}") for start, phase in starts]
        panels, formats = self._objective.shown_scores(), self._run.figure_formats
        draw_curves(path.with_name(METRICS), path, panels, title=path.parent.name, phases=phases, formats=formats)


def _log_start(
    experiment: PretrainingExperiment, program: Program, splits: Splits, step: int, rejected: Mapping[str, str]
) -> None:
    """Logs lines about the model, the corpus, the devices, and the step at which the run starts."""
    m, mesh = program.objective.model.config, program.mesh
    log.info(
        "model: %s, vocabulary %s: %s, %s",
        m.in_words,
        f"{m.vocab_size:,}",
        count_parameters(m, experiment.trained_objective.model_parameters()).in_words,
        m.dtype,
    )
    trained = trained_splits(experiment, splits.train, splits.of_phases)
    log.info(
        "corpus: %s in %s%s to train on, %s held out",
        counted(sum(split.num_tokens for split in trained), "token"),
        counted(sum(split.num_documents for split in trained), "document"),
        f" of {counted(len(trained), 'corpus')}" if len(trained) > 1 else "",
        counted(splits.eval.num_documents, "document"),
    )
    log.info(
        "devices: %d x %s, mesh %s",
        mesh.size,
        mesh.devices.flat[0].device_kind,
        " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items()),
    )
    if m.has_attention and not m.translates:
        log.info(in_words(m, [phase.length for phase in experiment.phases], rejected))
    begin = f"starting from the weights of {experiment.init_from}" if experiment.init_from else "starting from random weights"
    log.info("resuming from step %s", f"{step:,}") if step else log.info("%s (step 0)", begin)
