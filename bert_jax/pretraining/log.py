"""What a pretraining run says: lines for the person, records for `metrics.jsonl`, the picture."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.batches.source import BatchSource
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.corpus.store import Corpus
from bert_jax.interface.words import counted
from bert_jax.metrics.pictures import draw_curves
from bert_jax.metrics.report import Pace, training_line
from bert_jax.metrics.scores import summarise
from bert_jax.metrics.writer import METRICS, MetricsWriter
from bert_jax.model.kernels.dispatch import in_words
from bert_jax.model.pretraining import count_parameters
from bert_jax.programs.pretraining import flops_left, phase_row_flops
from bert_jax.runtime.launch import Run

log = logging.getLogger(__name__)

PICTURE = "curves.png"


def metrics_writer(run: Run, step: int) -> contextlib.AbstractContextManager[MetricsWriter | None]:
    """The writer of a run that begins at `step`; None where another process writes. At step 0 all lines of an earlier start
    are dropped, the evaluation of step 0 too, since it is about to be repeated."""
    return MetricsWriter(run.workdir, resume_step=step or -1) if run.is_first else contextlib.nullcontext()


def log_start(experiment: PretrainingExperiment, train: Corpus, heldout: Corpus, mesh: Mesh, step: int) -> None:
    """What is about to be trained, on what."""
    m, devices = experiment.model, mesh.devices.flat
    log.info(
        "model: %s, %d wide, %s, vocabulary %s: %s, %s",
        counted(m.num_layers, "layer"),
        m.hidden_size,
        counted(m.num_heads, "head"),
        f"{m.vocab_size:,}",
        counted(count_parameters(m, heads=True, next_sentence=experiment.next_sentence), "parameter"),
        m.dtype,
    )
    log.info(
        "corpus: %s in %s to train on, %s held out",
        counted(train.num_tokens, "token"),
        counted(train.num_documents, "document"),
        counted(heldout.num_documents, "document"),
    )
    log.info(
        "devices: %d x %s, mesh %s",
        mesh.size,
        devices[0].device_kind,
        " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items()),
    )
    log.info(in_words(m, [phase.length for phase in experiment.phases], mesh))
    begin = f"starting from the weights of {experiment.init_from}" if experiment.init_from else "starting from random weights"
    log.info("continuing from step %s", f"{step:,}") if step else log.info("%s (step 0)", begin)


def log_phase(experiment: PretrainingExperiment, i: int, source: BatchSource) -> None:
    """What the rows of a phase are like."""
    phase, plan = experiment.phases[i], source.plan(0).summary()
    log.info(
        "phase %d of %d: %s of %s x %s; an epoch is %s, %.0f %% random next sentences, %.0f %% padding",
        i + 1,
        len(experiment.phases),
        counted(phase.steps, "step"),
        counted(phase.batch_size, "row"),
        counted(phase.length, "token"),
        counted(source.rows_per_epoch, "row"),
        100 * plan["random_next_fraction"],
        100 * plan["padding_fraction"],
    )


def log_training(
    experiment: PretrainingExperiment, metrics: MetricsWriter | None, pace: Pace, step: int, i: int, window: dict[str, Any]
) -> None:
    """One line for the person, one for `metrics.jsonl`: the means of the steps since the last one."""
    rows, steps = float(window["rows"]), max(float(window["steps"]), 1.0)
    pace.add(rows=rows, tokens=float(window["tokens"]), flops=rows * phase_row_flops(experiment, i))
    rates = pace.report(flops_left(experiment, step))
    scores = summarise(window)
    device = jax.devices()[0]
    log.info(training_line(step, experiment.phase_starts()[-1], scores, rates, device.device_kind, jax.device_count()))
    if float(window["skipped"]):
        log.warning("%d of these steps had no finite loss or gradient and were skipped", int(window["skipped"]))
    values = scores | rates | {"grad_norm": float(window["grad_norm"]) / steps}
    values |= {name: float(window[name]) for name in ("learning_rate", "skipped")}
    if metrics:
        metrics.write(step, {f"train/{name}": value for name, value in values.items()})


def log_evaluation(metrics: MetricsWriter | None, step: int, scores: dict[str, float]) -> dict[str, float]:
    """Held-out scores to the log and to `metrics.jsonl`; returns them."""
    line = f"held out after step {step:,}: MLM accuracy {100 * scores['mlm_accuracy']:.1f} %"
    line += f" (word frequency alone {100 * scores['unigram_accuracy']:.1f} %), loss {scores['mlm_loss']:.3f}"
    line += f" ({scores['unigram_loss']:.3f}), perplexity {scores['perplexity']:.1f}"
    if "nsp_accuracy" in scores:
        line += f", NSP accuracy {100 * scores['nsp_accuracy']:.1f} %"
        line += f" (one answer for all pairs {100 * scores['nsp_majority_accuracy']:.1f} %)"
    log.info(line)
    if metrics:
        metrics.write(step, {f"heldout/{name}": value for name, value in scores.items()})
    return scores


def draw(experiment: PretrainingExperiment, run: Run) -> None:
    """Draws the curves so far."""
    if run.is_first:
        phases = [
            (start, f"length {phase.length}") for start, phase in zip(experiment.phase_starts(), experiment.phases, strict=False)
        ]
        draw_curves(run.workdir / METRICS, run.workdir / PICTURE, title=run.workdir.name, phases=phases)
