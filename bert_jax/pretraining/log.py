"""The log of a pretraining run: log lines, records in `metrics.jsonl`, and the plot of the training curves."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import jax

from bert_jax.interface.words import counted
from bert_jax.model.kernels.dispatch import in_words
from bert_jax.model.pretraining import count_parameters
from bert_jax.pretraining.corpora import Corpora, fingerprint
from bert_jax.pretraining.phases import Phase
from bert_jax.pretraining.program import PretrainingProgram, flops_left, phase_row_flops
from bert_jax.pretraining.reference_curves import comparison, find_curve, losses, usual_causes
from bert_jax.runtime.goodput import LedgerFile
from bert_jax.runtime.launch import Run
from bert_jax.runtime.workdir import METRICS
from bert_jax.training.curves import draw_curves
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.throughput import Throughput, training_line

log = logging.getLogger(__name__)

PICTURE = "curves.png"
CONSTANT = 0.01
"""The share of one answer to next sentence prediction below which the labels count as constant."""


class PretrainingLog(contextlib.AbstractContextManager["PretrainingLog"]):
    """The log of a run that begins or continues at `step`, of the experiment file `config` (FILE[:ARG]), if any.

    A run that begins at step 0 drops all records of an earlier start, also the evaluation of step 0, which it repeats.
    """

    def __init__(self, program: PretrainingProgram, run: Run, corpora: Corpora, step: int, config: str = ""):
        self._experiment, self._run, self._objective = program.experiment, run, program.experiment.trained_objective
        self._teacher = program.teacher.config if program.teacher else None
        self._fingerprint, self._skipped = fingerprint(corpora.train, corpora.heldout) if config else "", 0
        self._last_step = program.experiment.phase_starts()[-1]
        self.throughput = Throughput(run.ledger)
        self.scores: dict[str, float] = {}
        """The held-out scores of the last evaluation."""
        _log_start(program, corpora, step)
        self._curve, note = (
            find_curve(config, program.experiment, corpora.train.num_tokens, self._fingerprint) if config else (None, "")
        )
        if note:
            log.info("%s", note)
        self.metrics = MetricsWriter(run.workdir, resume_step=step or -1) if run.is_first else None
        """The writer of `metrics.jsonl`; None in processes that do not write files."""
        self._ledger = LedgerFile(run.workdir, run.ledger) if run.is_first else None
        self._is_drawn = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.metrics:
            self.metrics.close()
        if self._ledger:
            self._ledger.close()
        if not self._is_drawn:  # a run that is interrupted before its next evaluation has curves too
            self.draw()

    def went_back(self, step: int) -> None:
        """Drops the records of the steps after `step`, which are repeated."""
        if self.metrics:
            self.metrics.go_back(step or -1)
        self._run.ledger.went_back()

    def phase(self, phase: Phase) -> None:
        """Logs a line about the rows of a phase that begins or continues, and restarts the measurement of rates."""
        plan = phase.source.plan(0).summary()
        random, of_pairs = plan["random_next_fraction"], self._experiment.next_sentence
        log.info(
            "phase %d of %d: %s of %s x %s; an epoch is %s, %s%.0f %% padding",
            phase.index + 1,
            len(self._experiment.phases),
            counted(phase.config.steps, "step"),
            counted(phase.config.batch_size, "row"),
            counted(phase.config.length, "token"),
            counted(phase.source.rows_per_epoch, "row"),
            f"{100 * random:.0f} % random next sentences, " if of_pairs else "",
            100 * plan["padding_fraction"],
        )
        if of_pairs and not CONSTANT < random < 1 - CONSTANT:
            log.warning(
                "WARNING: %.0f %% of the second texts are random, so next sentence prediction has one answer for all pairs and "
                "its head learns nothing; build the corpus from documents of several sentences, or set "
                "config.examples.pairs=none, which leaves the head out",
                100 * random,
            )
        self.throughput = Throughput(self._run.ledger)

    def training(self, step: int, phase: Phase, window: Mapping[str, Any]) -> None:
        """Writes a log line and a record in `metrics.jsonl`: means over the steps since the last one, whose sums are `window`."""
        self._run.require_in_place()
        rows, steps = float(window["rows"]), max(float(window["steps"]), 1.0)
        flops = rows * phase_row_flops(self._experiment, phase.index, self._teacher)
        self.throughput.add(rows, tokens=float(window["tokens"]), flops=flops)
        rates = self.throughput.report(flops_left(self._experiment, step, self._teacher))
        scores = self._objective.summarise(window)
        texts = [score.text(scores.get(name, math.nan)) for name, score in self._objective.shown_scores().items()]
        log.info(training_line(step, self._last_step, texts, rates, jax.devices()[0].device_kind, jax.device_count()))
        self._skipped += int(window["skipped"])
        if float(window["skipped"]):
            log.warning("%d of these steps had no finite loss or gradient and were skipped", int(window["skipped"]))
        if window.get("spikes"):
            log.warning("%d of these steps had a loss far above the mean before and were left out", int(window["spikes"]))
        values = scores | rates | {"grad_norm": float(window["grad_norm"]) / steps}
        values |= {name: float(window[name]) for name in ("learning_rate", "skipped", "spikes") if name in window}
        self._is_drawn = False
        if self.metrics:
            self.metrics.write(step, {f"train/{name}": value for name, value in values.items()})
        if self._ledger:
            self._ledger.write()

    def evaluation(self, step: int, scores: dict[str, float]) -> None:
        """Writes held-out scores as a log line and a record in `metrics.jsonl`, and draws the curves again."""
        self._run.require_in_place()
        self.scores = scores
        log.info("held out after step %s: %s", f"{step:,}", self._objective.heldout_line(scores))
        self._compare(step, scores)
        if self.metrics:
            self.metrics.write(step, {f"heldout/{name}": value for name, value in scores.items()})
        if step:
            self.draw()

    def _compare(self, step: int, scores: dict[str, float]) -> None:
        """Logs whether held-out scores lie in the band of the experiment's reference curve, where there is one."""
        if self._curve is None:
            return
        inside, line = comparison(self._curve, step, scores, losses(self._objective))
        if inside and line:
            log.info("%s", line)
        elif line:
            corpus, skipped = self._fingerprint, self._skipped
            causes = usual_causes(
                self._curve, step, scores, self._experiment, fingerprint=corpus, skipped=skipped
            )
            log.warning("%s; %s", line, causes)

    def draw(self) -> None:
        """Draws the curves of `metrics.jsonl` to WORKDIR/curves.png."""
        self._is_drawn = True
        if self._run.is_first:
            starts = zip(self._experiment.phase_starts(), self._experiment.phases, strict=False)
            phases = [(start, f"length {phase.length}") for start, phase in starts]
            workdir = self._run.workdir
            panels = self._objective.shown_scores()
            draw_curves(workdir / METRICS, workdir / PICTURE, panels, title=workdir.name, phases=phases)


def _log_start(program: PretrainingProgram, corpora: Corpora, step: int) -> None:
    """Logs lines about the model, the corpus and the devices, and the first step of the run."""
    experiment, mesh = program.experiment, program.mesh
    m, devices = experiment.model, mesh.devices.flat
    log.info(
        "model: %s, vocabulary %s: %s, %s",
        m.in_words,
        f"{m.vocab_size:,}",
        count_parameters(m, experiment.trained_objective.model_parameters()).in_words,
        m.dtype,
    )
    log.info(
        "corpus: %s in %s to train on, %s held out",
        counted(corpora.train.num_tokens, "token"),
        counted(corpora.train.num_documents, "document"),
        counted(corpora.heldout.num_documents, "document"),
    )
    log.info(
        "devices: %d x %s, mesh %s",
        mesh.size,
        devices[0].device_kind,
        " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items()),
    )
    if m.encoder == "transformer":
        log.info(in_words(m, [phase.length for phase in experiment.phases], mesh))
    begin = f"starting from the weights of {experiment.init_from}" if experiment.init_from else "starting from random weights"
    log.info("continuing from step %s", f"{step:,}") if step else log.info("%s (step 0)", begin)
