"""Pretrains a BERT from a tokenised corpus: masked language modelling and next sentence prediction.

    python -m bert_jax.pretrain --config=experiments/pretrain/quickstart.py --workdir=runs/quickstart

The run writes config.json, metrics.jsonl, ledger.jsonl, tensorboard/, curves.png, results.json, checkpoints/ and model/ to the
workdir; the transformers library can load model/. The same command continues an interrupted run from its last checkpoint.

    python -m bert_jax.pretrain --workdir=runs/quickstart --replay=1234

prints training step 1234 of that run once more: the texts of its batch, the loss of each row, the norm of every gradient.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.pretrain", check="bert_jax.configs.command_line:check_flags")

import bisect
import functools
import logging
import time
from collections.abc import Sequence

import flax.linen as nn
import jax

from bert_jax.configs.command_line import parse_flags
from bert_jax.configs.files import with_defaults
from bert_jax.configs.memory_advice import pretraining_demand, state_demand
from bert_jax.configs.pretraining import CorpusConfig, PretrainingExperiment
from bert_jax.configs.sections import dataclass_from_dict
from bert_jax.data.corpus.staging import staged
from bert_jax.data.corpus.store import Corpus, open_splits
from bert_jax.data.corpus.verification import Verification, verify
from bert_jax.data.prefetch import prefetch
from bert_jax.interface.words import counted
from bert_jax.objectives.distillation import Teacher
from bert_jax.pretraining.corpora import FINGERPRINT, Corpora, check_corpus, fingerprint
from bert_jax.pretraining.inferred_settings import infer_settings
from bert_jax.pretraining.log import PICTURE, PretrainingLog
from bert_jax.pretraining.phases import Phase
from bert_jax.pretraining.program import PretrainingProgram, check_batch_sizes, former_layout, pretraining_program
from bert_jax.pretraining.replay import experiment_of, replay, report
from bert_jax.pretraining.results import results, trained_model, training_of
from bert_jax.pretraining.returns import first_parameters, go_back, passed_over, returns
from bert_jax.pretraining.teacher import load_teacher, taught_by
from bert_jax.runtime.compilation_cache import enable_compilation_cache
from bert_jax.runtime.goodput import Activity, Ledger, goodput_line
from bert_jax.runtime.launch import Run, begin
from bert_jax.runtime.log_setup import quiet_libraries, start_logging
from bert_jax.runtime.workdir import MODEL, RESULTS
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.out_of_memory import fits_in_memory
from bert_jax.sharding.rules import ACTIVATION_RULES
from bert_jax.storage.paths import Place
from bert_jax.training.checkpoints.manager import Checkpoints
from bert_jax.training.exporting import export_trained, on_host
from bert_jax.training.saving import Saver, due
from bert_jax.training.spikes import LossSpike
from bert_jax.training.step_sums import StepSums, require_learned
from bert_jax.training.steps import TrainState

log = logging.getLogger("bert_jax.pretrain")  # not __name__: that is __main__ when run as a verb

MAY_CHANGE = (
    "log_every",
    "evaluation.every",
    "evaluation.batch_size",
    "checkpoints.*",
    "corpus.directory",
    "teacher",
    "mesh.*",
    "model.rematerialisation",
    "model.scan_unroll",
    "model.attention",
    "model.residual_norm",
    "phases.*.accumulation",
)
"""Keys that a continued run may change. None of them changes the result, apart from the order and rounding of sums and, with
fused attention, the random bits of its dropout."""


def pretrain(
    experiment: PretrainingExperiment,
    run: Run,
    corpora: Corpora,
    checkpoints: Checkpoints,
    teacher: Teacher | None = None,
    file: str = "",
) -> int:
    """Trains the experiment of `file` (FILE[:ARG]) until its last step or until asked to stop; returns the exit status."""
    started = time.monotonic()
    starts = experiment.phase_starts()
    last_step = starts[-1]
    run.profile.require(last_step)

    # -------------------------------------------------- the first state: of a checkpoint, of `init_from`, or with random weights
    mesh = make_mesh(experiment.mesh)
    check_batch_sizes(experiment, mesh)
    program = pretraining_program(experiment, mesh, teacher)
    state = first_state(program, checkpoints, corpora.train, run.ledger)
    step, times = int(state.step), returns(state)
    first = step
    if step == last_step and (place := run.durable(run.workdir / RESULTS)).exists():
        log.info("all %s are done: see %s", counted(last_step, "step"), place)
        return 0

    # ---------------------------------------------------------------------------------------------------------------- the phases
    stopped = False
    run_log = PretrainingLog(program, run, corpora, step, file)
    with run_log, nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        verified = functools.partial(corpora.verification.wait, functools.partial(run.watchdog.alive, "verifying the corpus"))
        verified = run.ledger.during(Activity.STAGING)(verified)
        saver = Saver(checkpoints, run_log.metrics, run.watchdog, verified, mirror=run.mirror, in_place=run.require_in_place)
        while step < last_step and not stopped:
            index = bisect.bisect(starts, step) - 1
            with fits_in_memory(functools.partial(pretraining_demand, experiment, index, mesh)):
                phase = Phase(program, index, corpora, run, passed_over(state))
                train_step = phase.compile(step, must_be_saved=step == first)
                try:
                    state, stopped = train_phase(phase, train_step, state, run, run_log, saver)
                except LossSpike as spike:
                    before = phase.passed_over, times
                    state = go_back(program, checkpoints, corpora.train, spike, before)
                    times += 1
                    run_log.went_back(int(state.step))
            step = int(state.step)

        # --------------------------------------------------------------------------------------------------------------- the end
        with run.ledger.during(Activity.SAVING):
            unsaved = saver.finish(step)
        if stopped and step < last_step:
            if unsaved:
                raise unsaved
            log.info("stopped at step %s of %s, saved; the same command continues", f"{step:,}", f"{last_step:,}")
            return run.preemption.exit_status
        require_learned(last_step, int(state.skipped))
        if not run_log.scores:  # an earlier start was killed between its last checkpoint and its results
            with run.ledger.during(Activity.EVALUATING):
                run_log.scores = Phase(program, len(experiment.phases) - 1, corpora, run).evaluate(state.params)
            run_log.draw()
        params = on_host(state.params, mesh)
    if run.is_first:
        found = results(program, state, run_log.scores, corpora, time.monotonic() - started)
        found |= {"failed_saves_since_last_start": checkpoints.failures, "ledger": run.ledger.totals()}
        model, told = trained_model(experiment, params, corpora.train.tokenizer), training_of(experiment, corpora, run_log.scores)
        export_trained(run.workdir, model, {"step": last_step}, found, told)
        places = (run.durable(run.workdir / name) for name in (RESULTS, PICTURE, MODEL))
        log.info("%s\nresults: %s\ncurves: %s\nmodel: %s", goodput_line(found["ledger"]), *places)
    if unsaved:
        raise unsaved
    return 0


def train_phase(
    phase: Phase, train_step: jax.stages.Compiled, state: TrainState, run: Run, run_log: PretrainingLog, saver: Saver
) -> tuple[TrainState, bool]:
    """The training loop of a phase. Returns (the state after the last step of the phase, or after the step at which the run was
    asked to stop; whether it was asked to stop)."""
    experiment = phase.experiment
    step, last_step, stopped = int(state.step), experiment.phase_starts()[-1], False
    sums = StepSums(experiment.abort_after_skipped, run.workdir, phase.rows, experiment.spikes)
    run_log.phase(phase)
    if step == 0:
        with run_log.throughput.pause(Activity.EVALUATING):
            run_log.evaluation(step, phase.evaluate(state.params))
    with run.ledger.training(prefetch(phase.rows, step, phase.end), sums.is_computing) as batches:
        for batch in run.profile.of_steps(batches, step, sums.check):
            state, of_step = train_step(*phase.arguments(state, batch))
            step += 1
            sums.add(step, of_step)
            run.watchdog.step_done(step)
            run.ledger.step_done(step)
            phase.verification.check()
            stopped = run.preemption.requested(step)
            saves = due(step, experiment.checkpoints.every, last=last_step) or step in experiment.checkpoints.keep_at or stopped
            if due(step, experiment.log_every, last=phase.end) or saves:
                run_log.training(step, phase, sums.take())
            if due(step, experiment.evaluation.every, last=phase.end):
                with run_log.throughput.pause(Activity.EVALUATING):
                    run_log.evaluation(step, phase.evaluate(state.params))
            if saves:
                with run_log.throughput.pause(Activity.SAVING):
                    saver.save(step, state)
            if stopped:
                break
        sums.check(step)
    return state, stopped


def first_state(
    program: PretrainingProgram, checkpoints: Checkpoints, corpus: Corpus, ledger: Ledger
) -> TrainState:
    """The first state of this start: from the newest checkpoint, else from the model `init_from`, else with random weights."""
    experiment = program.experiment
    with fits_in_memory(functools.partial(state_demand, experiment, program.mesh)):
        with ledger.during(Activity.RESTORING):
            state = checkpoints.restore_latest(program.state, former=former_layout(experiment, program.mesh))
        if state is None:
            state = first_parameters(program, corpus)
        return state


def main() -> int:
    """The verb."""
    flags = parse_flags("pretrain", __doc__, schema=PretrainingExperiment)
    if flags.replay is not None:
        return replay_step(flags.workdir, flags.replay, flags.overrides)
    directory = staged(dataclass_from_dict(CorpusConfig, flags.config.get("corpus", {}), "config.corpus").directory)
    if flags.verify:
        verify(directory)
    train, heldout = open_splits(directory)
    values, notes = infer_settings(flags.config, flags.given, vocabulary_size=train.vocabulary.size, workdir=flags.workdir)
    experiment = PretrainingExperiment.from_dict(values)
    check_corpus(experiment, train, heldout)
    teacher = load_teacher(experiment, train.vocabulary)
    experiment = taught_by(experiment, teacher)
    completed = functools.partial(with_defaults, PretrainingExperiment, beside=FINGERPRINT)
    config, kept = experiment.to_dict() | {FINGERPRINT: fingerprint(train, heldout)}, experiment.checkpoints
    with (
        begin("pretrain", flags, config, may_change=MAY_CHANGE, completed=completed) as run,
        Checkpoints(run.durable(run.workdir / "checkpoints"), keep=kept.keep, keep_at=kept.keep_at) as checkpoints,
        Verification(directory) as verification,
    ):
        for note in notes:
            log.info("%s", note)
        return pretrain(experiment, run, Corpora(train, heldout, verification), checkpoints, teacher, flags.experiment)


def replay_step(workdir: Place, step: int, overrides: Sequence[tuple[str, str]]) -> int:
    """Prints a training step of the run in `workdir` once more. Returns the exit status."""
    quiet_libraries()
    start_logging(0)
    enable_compilation_cache()
    experiment, corpus = experiment_of(workdir, overrides, MAY_CHANGE)
    for line in report(replay(experiment, workdir, corpus, step), workdir, corpus.tokenizer):
        print(line)
    return 0
