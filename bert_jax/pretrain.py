"""Pretrains a BERT on a corpus: masked language modelling and next sentence prediction.

    python -m bert_jax.pretrain --config=experiments/pretrain/quickstart.py --workdir=runs/quickstart

The run writes config.json, metrics.jsonl, ledger.jsonl, tensorboard/, curves.png, results.json, checkpoints/ and model/ to the
workdir; the transformers library can load model/. The same command resumes an interrupted run from its last checkpoint.

    python -m bert_jax.pretrain --workdir=runs/quickstart --replay=1234

The last command recomputes and prints training step 1234 of that run: the texts of its batch, the loss of each row, the norm of
every gradient."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.pretrain", check="bert_jax.configs.command_line:check_flags")

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax

from bert_jax.configs.command_line import Flags, parse_flags
from bert_jax.configs.experiment_files import dataclass_from_dict, with_defaults
from bert_jax.configs.memory_advice import pretraining_advice, require_training_memory, state_advice
from bert_jax.configs.pretraining import CorpusConfig, PretrainingExperiment
from bert_jax.data.batches import process_shard, to_device
from bert_jax.data.corpus.store import open_splits
from bert_jax.data.corpus.verification import Verifications, local_corpus, verify
from bert_jax.data.rows import Batch
from bert_jax.errors import UserError
from bert_jax.files import read_record
from bert_jax.interface.flags import in_formats
from bert_jax.interface.words import counted
from bert_jax.model.config import Execution
from bert_jax.objectives.objective import Teacher
from bert_jax.pretraining.evaluation import Evaluation, require_evaluation_memory
from bert_jax.pretraining.inferred_settings import infer_settings
from bert_jax.pretraining.pretraining_log import PretrainingLog
from bert_jax.pretraining.program import check_batch_sizes, phase_step, pretraining_program, step_scalars
from bert_jax.pretraining.results import results, trained_model, training_section
from bert_jax.pretraining.splits import (
    FINGERPRINT,
    PHASE_CORPUS,
    PhaseBatches,
    Splits,
    check_corpus,
    fingerprint,
    open_phase_corpora,
    with_corpora_in_place,
)
from bert_jax.pretraining.start import initial_state, load_teacher, with_teacher
from bert_jax.runtime.goodput import TimeCategory, goodput_line
from bert_jax.runtime.launch import Run, start_run
from bert_jax.runtime.workdir import FILES, MODEL, RESULTS, own_files, recorded_files_named
from bert_jax.sharding.device_errors import fits_in_memory
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.compilation import compiled
from bert_jax.training.exporting import export_trained, exported_files, on_host
from bert_jax.training.log import FIGURE, load_sinks
from bert_jax.training.loop import Parts, Saver, Stage, due, train
from bert_jax.training.steps import TrainState, skipped_batches

log = logging.getLogger("bert_jax.pretrain")  # __name__ would be __main__ when this file runs as a command

MAY_CHANGE = (
    "log_every",
    "log.*",
    "evaluation.every",
    "evaluation.batch_size",
    "checkpoints.*",
    "corpus.directory",
    PHASE_CORPUS,
    "teacher",
    "mesh.*",
    *(f"model.{name}" for name in Execution.exact()),
    "phases.*.accumulation",
)
"""Keys that a resumed run may change. They do not affect the result, with two exceptions. Sums may be computed in a different
order, so their rounding may differ. Dropout uses different random bits with another `accumulation`, and may do so with fused
attention."""


def pretrain(
    experiment: PretrainingExperiment,
    run: Run,
    splits: Splits,
    checkpoints: Checkpoints,
    teacher: Teacher | None = None,
    file: str = "",
) -> int:
    """Trains the experiment of `file` (FILE[:ARG]) until the last step, or until the run is asked to stop. Returns the exit
    status."""
    started = time.monotonic()
    starts = experiment.phase_starts()
    last_step = starts[-1]
    run.profile.require(last_step)

    # ------------------------------------------------------------- the first state: from a checkpoint, `init_from`, or random
    if run.rejected_kernels:
        experiment = dataclasses.replace(experiment, model=experiment.model.without_kernels(run.rejected_kernels))
    mesh = make_mesh(experiment.mesh)
    check_batch_sizes(experiment, mesh)
    program = pretraining_program(experiment, mesh, teacher)
    init_state = functools.partial(initial_state, experiment, program, splits.train, splits.of_phases, run.gather)
    with fits_in_memory(functools.partial(state_advice, experiment, mesh)):
        with run.goodput.during(TimeCategory.RESTORING):
            state = checkpoints.restore_latest(program.state)
        if is_done(run, last_step, None if state is None else int(state.step)):
            log.info("all %s are done; see %s", counted(last_step, "step"), run.durable(run.workdir / RESULTS))
            return 0
        if state is None:
            state = init_state()
    first_step = int(state.step)

    # ---------------------------------------------------------------------------------------------------------------- the phases
    scalars = step_scalars(experiment)
    run_log = PretrainingLog(experiment, program, run, splits, first_step, file)

    verified = functools.partial(splits.verification.wait, functools.partial(run.watchdog.alive, "verifying the corpus"))

    @contextlib.contextmanager
    def phase_after(state: TrainState) -> Iterator[Stage]:
        step = int(state.step)
        index = experiment.phase_after(step)
        end = starts[index + 1]
        with fits_in_memory(functools.partial(pretraining_advice, experiment, index, mesh)):
            for later in range(index, len(experiment.phases)):  # later phases are checked too, so that the run fails early
                require_training_memory(experiment, later, mesh)
                require_evaluation_memory(experiment, later, splits.eval, mesh)
            batches = PhaseBatches(experiment, index, splits.for_phase(index), process_shard(mesh, BATCH), skipped_batches(state))
            evaluation = Evaluation(experiment, program, index, splits, run, batches.source)

            def rows_of(step: int) -> Batch:
                try:
                    return batches.rows(step)
                except UserError:  # if a damaged file caused it, the error names the file instead
                    verified()
                    raise

            def arguments(state: TrainState, rows: Batch) -> tuple[Any, ...]:
                return program.arguments(state, to_device(rows, mesh, BATCH), scalars)

            with run.compiling(run.goodput):
                function, needed = phase_step(experiment, program, index), step == first_step
                example = arguments(program.state, rows_of(step))
                train_step = compiled(function, *example, mesh=mesh, saved=run.compiled, must_be_saved=needed)

            def evaluate(step: int, state: TrainState, save_if_stopped: Callable[[], object]) -> bool:
                run_log.evaluation(step, evaluation(state.params, save_if_stopped))
                return False

            run_log.phase(index, batches.source)
            every, keep_at = experiment.checkpoints.every, experiment.checkpoints.keep_at
            yield Stage(
                end=end,
                rows=rows_of,
                step=lambda state, rows: train_step(*arguments(state, rows)),
                logs=lambda step: due(step, experiment.log_every, last=end),
                evaluates=lambda step: due(step, experiment.evaluation.every, last=end),
                evaluate=evaluate,
                saves=lambda step: due(step, every, last=last_step) or step in keep_at,
                skipped_batches=batches.skipped_batches,
            )

    rollback = None
    if experiment.spikes.policy == "rollback":
        from bert_jax.training.spikes import Rollback  # imported here, so that other runs do not load it

        rollback = Rollback(experiment.spikes, state, checkpoints, program.state, init_state)
    with run_log, nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        waited = run.goodput.during(TimeCategory.DOWNLOADING)(verified)
        saver = Saver(checkpoints, run_log.metrics, run.watchdog, waited, mirror=run.mirror, in_place=run.require_in_place)
        parts = Parts(
            run=run,
            directory=run.workdir,
            goodput=run.goodput,
            profile=run.profile,
            last_step=last_step,
            stage=phase_after,
            log=run_log,
            saver=saver,
            abort_after_skipped=experiment.abort_after_skipped,
            kept=experiment.checkpoints.keep_at,
            spikes=experiment.spikes,
            rollback=rollback,
            check=splits.verification.check,
        )
        trained = train(parts, state)

        # --------------------------------------------------------------------------------------------------------------- the end
        if not trained.is_whole:
            return run.preemption.exit_status
        if not run_log.scores:  # an earlier start was killed after the last checkpoint, before the results were written
            with run.goodput.during(TimeCategory.EVALUATING):
                last = len(experiment.phases) - 1
                source = PhaseBatches(experiment, last, splits.for_phase(last)).source
                run_log.scores = Evaluation(experiment, program, last, splits, run, source)(trained.state.params)
            run_log.draw()
        params = on_host(trained.state.params, mesh)
    if run.is_first:
        found = results(experiment, mesh, trained.state, run_log.scores, splits, time.monotonic() - started)
        found |= {"failed_saves_since_last_start": checkpoints.failures, "ledger": run.goodput.totals()}
        files = own_files(run.workdir)
        found |= {FILES: files} if files else {}
        model = trained_model(experiment.for_phase(len(experiment.phases) - 1), params, splits.train.tokenizer)
        if experiment.model.translates and experiment.examples.kind.parallel:
            from bert_jax.prediction.translating import translation_results  # other runs do not need it

            with run.goodput.during(TimeCategory.EVALUATING):
                alive = functools.partial(run.watchdog.alive, "translating")
                found |= translation_results(model, splits.train, splits.eval, alive)
        training = training_section(experiment, splits, run_log.scores, files)
        export_trained(run.workdir, model, {"step": last_step, **exported_files(files)}, found, training)
        curves = in_formats(FIGURE, run.figure_formats)[0]
        places = (run.durable(run.workdir / name) for name in (RESULTS, curves, MODEL))
        log.info("%s\nresults: %s\ncurves: %s\nmodel: %s", goodput_line(found["ledger"]), *places)
    if trained.unsaved:
        raise trained.unsaved
    return 0


def is_done(run: Run, last_step: int, restored: int | None) -> bool:
    """Returns whether the run with the newest state `restored` is finished. The checkpoints of a finished run may have been
    removed. If it has no state, its results must be of the last step, and its model must exist."""
    found, model = (run.durable(run.workdir / name) for name in (RESULTS, MODEL))
    if restored is not None:
        return restored == last_step and found.exists()
    return (read_record(found) or {}).get("steps") == last_step and model.is_dir()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with the arguments `argv` (default: sys.argv). Returns the exit status."""
    flags = parse_flags("pretrain", __doc__, argv, schema=PretrainingExperiment)
    if flags.replay is not None:
        from bert_jax.pretraining.replay import replay_step  # imported here, because training does not need it

        with recorded_files_named(flags.workdir):
            return replay_step(flags.workdir, flags.replay, flags.overrides, MAY_CHANGE)
    with recorded_files_named(flags.workdir):
        return _start(flags)


def _start(flags: Flags) -> int:
    """Starts or resumes the run of `flags`. Returns the exit status."""
    directory = local_corpus(dataclass_from_dict(CorpusConfig, flags.config.get("corpus", {}), "config.corpus").directory)
    if flags.verify:
        verify(directory)
    train, eval_split = open_splits(directory)
    values, notes = infer_settings(flags.config, flags.given, vocabulary_size=train.vocabulary.size, workdir=flags.workdir)
    experiment = PretrainingExperiment.from_dict(values)
    check_corpus(experiment, train, eval_split)
    of_phases = open_phase_corpora(experiment, train)
    directories = dict.fromkeys([directory, *(corpus.directory for corpus in of_phases.values() if corpus.directory)])
    if flags.verify:
        for other in [*directories][1:]:
            verify(other)
    load_sinks(experiment.log.sinks)  # only to refuse an unusable sink early, and in every process
    teacher = load_teacher(experiment, train.vocabulary)
    experiment = with_teacher(experiment, teacher)
    completed = functools.partial(with_defaults, PretrainingExperiment, extra_key=FINGERPRINT)
    config = experiment.to_dict() | {FINGERPRINT: fingerprint(train, eval_split, *of_phases.values())}
    kept, may_change = experiment.checkpoints, with_corpora_in_place(MAY_CHANGE, experiment)
    with (
        start_run("pretrain", flags, config, may_change=may_change, completed=completed) as run,
        Checkpoints(
            run.durable(run.workdir / "checkpoints"), keep=kept.keep, keep_at=kept.keep_at, gather=run.gather,
            transferring=run.watchdog.transferring,
        ) as checkpoints,
        Verifications(directories) as verification,
    ):
        for note in notes:
            log.info("%s", note)
        splits = Splits(train, eval_split, verification, of_phases)
        return pretrain(experiment, run, splits, checkpoints, teacher, flags.experiment)
