"""Pretrains a BERT from a tokenised corpus: masked language modelling and next sentence prediction.

    python -m bert_jax.pretrain --config=experiments/pretrain/quickstart.py --workdir=runs/quickstart

The workdir afterwards holds config.json, metrics.jsonl, tensorboard/, curves.png, results.json, checkpoints/ and model/, a
directory that transformers loads. Started again with the same command, a run continues where it was, however it ended.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.batches.device import process_shard, to_device
from bert_jax.batches.heldout import heldout_batches
from bert_jax.batches.prefetch import prefetch
from bert_jax.batches.source import BatchSource
from bert_jax.checkpoints.manager import Checkpoints
from bert_jax.configs.pretraining import CorpusConfig, PretrainingExperiment
from bert_jax.configs.sections import section
from bert_jax.corpus.store import Corpus, open_splits
from bert_jax.corpus.verification import Verification, verify
from bert_jax.errors import UserError
from bert_jax.examples import plan
from bert_jax.examples.assemble import Batch
from bert_jax.interface.command import run_verb
from bert_jax.interface.progress import evaluation_progress
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.metrics.report import Pace
from bert_jax.metrics.scores import next_sentence_baseline, summarise, unigram_baseline
from bert_jax.metrics.writer import RESULTS
from bert_jax.model.config import ModelConfig
from bert_jax.model.embeddings import check_ids
from bert_jax.model.pretraining import count_parameters
from bert_jax.pretraining.inferred_settings import settled
from bert_jax.pretraining.log import PICTURE, draw, log_evaluation, log_phase, log_start, log_training, metrics_writer
from bert_jax.pretraining.warm_start import pretraining_start
from bert_jax.programs.compilation import compiled, compiling
from bert_jax.programs.pretraining import (
    former_layout,
    initial_state,
    jitted_eval_step,
    jitted_train_step,
    state_layout,
    trained_parameters,
)
from bert_jax.runtime.divergence import require_learned, stop_if_diverged
from bert_jax.runtime.exporting import MODEL, export_trained, on_host
from bert_jax.runtime.flags import parse_flags
from bert_jax.runtime.launch import Run, begin
from bert_jax.runtime.memory_advice import evaluation_demand, pretraining_demand, state_demand
from bert_jax.runtime.saving import due, note_failed_saves
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.out_of_memory import fits_in_memory
from bert_jax.sharding.rules import (
    ACTIVATION_RULES,
    BATCH,
    check_batch_size,
    parameter_shardings,
    with_shardings,
)
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.steps import TrainState, add_sums, new_state

log = logging.getLogger("bert_jax.pretrain")  # not __name__: that is __main__ when run as a verb

Array = jax.Array

MAY_CHANGE = (
    "log_every",
    "evaluation.every",
    "evaluation.batch_size",
    "checkpoints.*",
    "corpus.directory",
    "mesh.*",
    "model.rematerialisation",
    "model.scan_unroll",
    "model.attention",
    "model.residual_norm",
    "phases.*.accumulation",
)
"""Keys that a continued run may give new values: none of them decides what is learned (beyond the order and rounding of sums,
and with fused attention what its dropout draws)."""

FINGERPRINT = "corpus_fingerprint"
"""The key of a workdir's config.json that says which corpus, to the byte, the run has read."""

HELDOUT_SEED = 20_181_011
"""Held-out pairs and masks are the same in every experiment, whatever its seed."""


def pretrain(
    experiment: PretrainingExperiment,
    run: Run,
    checkpoints: Checkpoints,
    train: Corpus,
    heldout: Corpus,
    verification: Verification,
) -> int:
    """Trains until the experiment's last step or until asked to stop; returns the exit status. Nothing is saved before
    `verification` has found the corpus whole."""
    started = time.monotonic()
    starts = experiment.phase_starts()
    last_step = starts[-1]

    # -------------------------------------------------------------------------------------------------- mesh and compiled steps
    mesh = make_mesh(experiment.mesh)
    for i, phase in enumerate(experiment.phases):
        check_batch_size(f"config.phases.{i}.batch_size", phase.batch_size, phase.accumulation, mesh)
    check_batch_size("config.evaluation.batch_size", experiment.evaluation.batch_size, 1, mesh)
    shard = process_shard(mesh, BATCH)
    optimizer = make_optimizer(experiment.optimizer, nn.unbox(trained_parameters(experiment)))
    fresh_state = functools.partial(initial_state, experiment, optimizer)
    abstract, shardings = state_layout(experiment, optimizer, mesh)

    # ------------------------------------------------------------ where the weights come from: a checkpoint, a model, the seed
    with fits_in_memory(functools.partial(state_demand, experiment, mesh)):
        state = checkpoints.restore_latest(with_shardings(abstract, shardings), former=former_layout(experiment, mesh))
        if state is None and experiment.init_from:
            begin = jax.jit(functools.partial(new_state, optimizer=optimizer), out_shardings=shardings)
            state = begin(pretraining_start(experiment, train.vocabulary))
        elif state is None:
            state = jax.jit(fresh_state, out_shardings=shardings)()
        step = first = int(state.step)
    if step == last_step and (run.workdir / RESULTS).exists():
        log.info("done, all of %s: see %s", counted(last_step, "step"), run.workdir / RESULTS)
        return 0
    log_start(experiment, train, heldout, mesh, first)

    # ------------------------------------------------------------------------------------------------------------------ the loop
    scores: dict[str, float] = {}
    stopped = False
    verifying = functools.partial(run.watchdog.alive, "verifying the corpus")
    diverged = functools.partial(stop_if_diverged, experiment.abort_after_skipped, run.workdir)
    with metrics_writer(run, first) as metrics, nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        for i, phase in enumerate(experiment.phases):
            if stopped or step >= starts[i + 1]:
                continue
            with fits_in_memory(functools.partial(pretraining_demand, experiment, i, mesh)):
                source = BatchSource(train, experiment.example_config(i), phase.batch_size, experiment.phase_seed(i))
                rows = functools.partial(checked_rows, source, starts[i], shard, experiment.model)
                train_fn = jitted_train_step(experiment, i, optimizer, shardings, mesh)
                train_fn = compiled(
                    train_fn, state, to_device(rows(step), mesh, BATCH), mesh=mesh, saved=run.compiled, must=step == first
                )
                evaluate = evaluation(experiment, i, train, heldout, mesh, shard, run)
                log_phase(experiment, i, source)
                if step == 0:
                    scores = log_evaluation(metrics, step, evaluate(state.params))
                pace = Pace()
                window: dict[str, Array] = {}
                previous: dict[str, Array] = {}
                for batch in prefetch(rows, step, starts[i + 1]):
                    state, sums = train_fn(state, to_device(batch, mesh, BATCH))
                    step += 1
                    diverged(rows, step - 1, previous)  # one step behind: the device never waits
                    previous, window = sums, add_sums(window, sums)
                    run.watchdog.step_done(step)
                    verification.check()
                    stopped = run.preemption.requested(step)
                    saving = due(step, experiment.checkpoints.every, last=last_step) or stopped
                    if due(step, experiment.log_every, last=starts[i + 1]) or saving:
                        log_training(experiment, metrics, pace, step, i, jax.device_get(window))
                        window = {}
                    if due(step, experiment.evaluation.every, last=starts[i + 1]):
                        with pace.pause():
                            scores = log_evaluation(metrics, step, evaluate(state.params))
                            draw(experiment, run)
                    if saving:  # after its metrics, so that a kill in between loses neither
                        with pace.pause():
                            verification.wait(verifying)
                            checkpoints.save(step, state)
                        note_failed_saves(metrics, step, checkpoints=checkpoints)
                        run.watchdog.alive("saving")
                    if stopped:
                        break
                diverged(rows, step, previous)

        # --------------------------------------------------------------------------------------------------------------- the end
        unsaved = checkpoints.failure()
        note_failed_saves(metrics, step, checkpoints=checkpoints)
        if stopped and step < last_step:
            if unsaved:
                raise unsaved
            log.info("stopped at step %s of %s, saved; the same command continues", f"{step:,}", f"{last_step:,}")
            return run.preemption.exit_status
        require_learned(last_step, int(state.skipped))
        if not scores:  # the run ended before, and was killed between its last checkpoint and its results
            scores = evaluation(experiment, len(experiment.phases) - 1, train, heldout, mesh, shard, run)(state.params)
        params = on_host(state.params, mesh)
    if run.is_first:
        draw(experiment, run)
        assert train.tokenizer is not None, "the corpus lies in a directory, and its tokenizer was read with it"
        model = Model(params=params, config=experiment.model, tokenizer=train.tokenizer)
        found = results(experiment, state, scores, train, mesh, time.monotonic() - started)
        found["failed_saves_since_last_start"] = checkpoints.failures
        export_trained(run.workdir, model, {"step": last_step}, found)
        places = (run.workdir / name for name in (RESULTS, PICTURE, MODEL))
        log.info("results: %s\ncurves: %s\nmodel: %s", *places)
    if unsaved:
        raise unsaved
    return 0


def checked_rows(source: BatchSource, start: int, shard: tuple[int, int], model: ModelConfig, step: int) -> Batch:
    """The rows of this process of the global `step`, their ids checked against the model's tables on the host."""
    batch = source.at(step - start, shard)
    check_ids(model, input_ids=batch["input_ids"], token_type_ids=batch["token_type_ids"], position_ids=batch["position_ids"])
    return batch


def evaluation(
    experiment: PretrainingExperiment, phase: int, train: Corpus, heldout: Corpus, mesh: Mesh, shard: tuple[int, int], run: Run
) -> Callable[[Any], dict[str, float]]:
    """A function from parameters to held-out scores, on rows of the phase's length, next to what word frequency alone and
    one answer for all pairs score on the same rows."""
    settings = experiment.evaluation
    batches = functools.partial(
        heldout_batches, heldout, experiment.example_config(phase), settings.batch_size, settings.rows, HELDOUT_SEED
    )
    rows = [(batch["masked_targets"], batch["nsp_labels"]) for batch in batches()]
    targets, labels = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))
    baseline = unigram_baseline(train.token_counts, targets) | next_sentence_baseline(labels)
    step_fn = jitted_eval_step(experiment, mesh)
    gathered = jax.jit(lambda params: params, out_shardings=parameter_shardings(trained_parameters(experiment), mesh))

    count = int((targets >= 0).any(1).sum())  # without the empty rows that fill up the last batch
    is_compiled = False

    def evaluate(params: Any) -> dict[str, float]:
        nonlocal is_compiled
        total: dict[str, Array] = {}
        with fits_in_memory(functools.partial(evaluation_demand, experiment, phase, mesh)):
            params = gathered(params)  # once, where they are spread over the data axis
            with evaluation_progress("held-out rows", run.is_first) as progress:
                for number, batch in enumerate(batches(shard), 1):
                    given = (params, to_device(batch, mesh, BATCH))
                    if not is_compiled:
                        with compiling("the evaluation"):
                            step_fn.lower(*given).compile()  # which the call then finds
                        is_compiled = True
                    total = add_sums(total, step_fn(*given))
                    run.watchdog.alive("evaluation")
                    progress(min(number * settings.batch_size, count), count)
            return summarise(jax.device_get(total)) | baseline

    return evaluate


def results(
    experiment: PretrainingExperiment, state: TrainState, scores: dict[str, float], train: Corpus, mesh: Mesh, seconds: float
) -> dict[str, Any]:
    """The final numbers of a run, as `results.json` holds them."""
    return {
        "steps": int(state.step),
        "skipped_steps": int(state.skipped),
        "parameters": count_parameters(experiment.model, heads=True, next_sentence=experiment.next_sentence),
        "heldout": scores,
        "times_unigram_accuracy": scores["mlm_accuracy"] / scores["unigram_accuracy"],
        "vocabulary_sha256": train.vocabulary.sha256,
        "seconds_since_last_start": round(seconds, 1),
        "devices": f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def check_corpus(experiment: PretrainingExperiment, train: Corpus, heldout: Corpus) -> None:
    """Raises UserError unless the corpus has as many words as the model, and examples can be made from both of its splits."""
    size, asked = train.vocabulary.size, experiment.model.vocab_size
    if size != asked and experiment.init_from:
        raise UserError(
            f"config.init_from={experiment.init_from} has a vocabulary of {counted(asked, 'entry')}, and that of the corpus "
            f"{train.directory} has {size:,}; build the corpus with --vocab={experiment.init_from}"
        )
    if size != asked:
        raise UserError(
            f"config.model.vocab_size={asked:,}, but the vocabulary of the corpus {train.directory} has "
            f"{counted(size, 'entry')}; "
            f"leave model.vocab_size out: it is {size} then; or build the corpus with the model's vocabulary"
        )
    for split in (train, heldout):
        plan.check_corpus(split, experiment.example_config(0))


def fingerprint(*splits: Corpus) -> str:
    """Changes when the tokens do: a run that continues must find the corpus it began with, wherever that lies now."""
    digest = hashlib.sha256(splits[0].vocabulary.sha256.encode())
    for corpus in splits:
        digest.update(np.array([corpus.num_documents, corpus.num_sentences, corpus.num_tokens]).tobytes())
        digest.update(corpus.token_counts.tobytes())
    return digest.hexdigest()


def main() -> int:
    """The verb."""
    flags = parse_flags("pretrain", __doc__, schema=PretrainingExperiment)
    directory = section(CorpusConfig, flags.config.get("corpus", {}), "config.corpus").directory
    if flags.verify:
        verify(directory)
    train, heldout = open_splits(directory)
    values, notes = settled(flags.config, flags.given, vocabulary_size=train.vocabulary.size, workdir=flags.workdir)
    experiment = PretrainingExperiment.from_dict(values)
    check_corpus(experiment, train, heldout)
    config = experiment.to_dict() | {FINGERPRINT: fingerprint(train, heldout)}
    with (
        begin("pretrain", flags, config, may_change=MAY_CHANGE, completed=with_defaults) as run,
        Checkpoints(run.workdir / "checkpoints", keep=experiment.checkpoints.keep) as checkpoints,
        Verification(directory) as verification,
    ):
        for note in notes:
            log.info("%s", note)
        return pretrain(experiment, run, checkpoints, train, heldout, verification)


def with_defaults(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """A stored configuration with the defaults of the keys that have come since; as it is, where some have gone."""
    try:
        experiment = PretrainingExperiment.from_dict({key: value for key, value in stored.items() if key != FINGERPRINT})
    except UserError:
        return stored
    return experiment.to_dict() | {FINGERPRINT: stored.get(FINGERPRINT)}


if __name__ == "__main__":
    run_verb(main)
