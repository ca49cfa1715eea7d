r"""Fine-tunes a model on a labelled task: every task of the paper, or your own data.

    python -m bert_jax.finetune --config=experiments/finetune/glue.py:mrpc --workdir=runs/mrpc \
        --config.init_from=MODEL --config.task.data_dir=DIR

The run writes config.json, metrics.jsonl, ledger.jsonl, tensorboard/, curves.png, results.json, predictions/ (in the official
format) and model/ to the workdir; the transformers library can load model/. If there are several seeds, learning rates, batch
sizes or epochs (`config.sweep`), each combination is a separate run in runs/; the runs are trained in parallel on several
devices or hosts. results.json then compares the runs, and predictions/ and model/ come from the best one. The same command
resumes an interrupted run from its last checkpoint."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.finetune", check="bert_jax.configs.command_line:check_flags")

import contextlib
import dataclasses
import functools
import logging
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence

import flax.linen as nn
import jax
import numpy as np

from bert_jax.configs.command_line import Flags, parse_flags
from bert_jax.configs.experiment_files import with_defaults
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.data.rows import Batch
from bert_jax.errors import UserError
from bert_jax.files import JsonObject, read_json, remove_tree, writing_directory
from bert_jax.finetuning.best_weights import BestWeights
from bert_jax.finetuning.data import check_tags, fingerprints, open_unlabelled, read_features
from bert_jax.finetuning.finetuning_log import FinetuningLog, log_start
from bert_jax.finetuning.job import Inputs, Job
from bert_jax.finetuning.program import check_label_loss, check_objective, task_teacher
from bert_jax.finetuning.start import labelled_start, load_teacher, with_pooling
from bert_jax.finetuning.sweep import UNSAVED, RunResult, sweep
from bert_jax.interface.words import counted
from bert_jax.interop.locate import find_model_directory
from bert_jax.model.config import Execution
from bert_jax.objectives.losses import Sums
from bert_jax.runtime.goodput import TimeCategory, goodput_line
from bert_jax.runtime.launch import Run, start_run
from bert_jax.runtime.workdir import FILES, MODEL, RESULTS, own_files, recorded_files_named
from bert_jax.sharding.device_errors import fits_in_memory
from bert_jax.sharding.rules import ACTIVATION_RULES
from bert_jax.tasks.published import published
from bert_jax.tasks.task import load_task, task_head_class
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.exporting import write_results
from bert_jax.training.log import load_sinks
from bert_jax.training.loop import Parts, Saver, Stage, due, train
from bert_jax.training.steps import TrainState

log = logging.getLogger("bert_jax.finetune")  # __name__ would be __main__ when this file runs as a command

MAY_CHANGE = (
    "log_every",
    "log.*",
    "checkpoints.*",
    "mesh.*",
    "training.accumulation",
    "task.data_dir",
    "task.own.train",
    "task.own.dev",
    "task.own.test",
    "init_from",
    "distillation.teacher",
    "cross_view.corpus",
    *(f"model.{name}" for name in Execution.exact()),
    "sweep.devices_per_run",
)
"""Keys that a resumed run may change. They do not affect the result, except for the random bits of dropout (in fused attention
and in microbatches). The paths of models and data may change, because `fingerprints` compares the content."""

FINGERPRINTS = "fingerprints"
"""The key of config.json under which the hashes of the examples and of the initial weights are saved."""
PREDICTIONS = "predictions"
PREDICTION_FILES = "prediction_files"
"""The key of results.json with the names of the files in predictions/. It is added when all of them are written."""


def finetune(job: Job) -> JsonObject | None:
    """Trains one run until the last step or early stopping. Returns the results, or None if the run was asked to stop."""
    started = time.monotonic()
    experiment, run, program = job.experiment, job.run, job.program
    profile = run.profile.for_run(job.last_step, alone=not job.prefix)
    with fits_in_memory(job.memory_advice), contextlib.ExitStack() as opened:
        # -------------------------------------------------------------------- the first state: from a checkpoint or `init_from`
        saved = run.durable(job.directory / "checkpoints")
        kept, transferring = experiment.checkpoints.keep, run.watchdog.transferring
        checkpoints = opened.enter_context(Checkpoints(saved, keep=kept, gather=run.gather, transferring=transferring))
        with job.goodput.during(TimeCategory.RESTORING):
            state = checkpoints.restore_latest(program.state)
            best = opened.enter_context(BestWeights(job, until=-1 if state is None else int(state.step)))
        if state is None:
            state = job.init_state()

        # ------------------------------------------------------------------------------------------------------------- the steps
        run_log = opened.enter_context(FinetuningLog(job, int(state.step)))

        def step(state: TrainState, rows: Batch) -> tuple[TrainState, Sums]:
            function, arguments = program.training_step(experiment.training.accumulation), job.arguments(state, rows)
            if program.is_new("train", rows):
                with run_log.compiling("training step", rows):
                    function.lower(*arguments).compile()  # the next call reads the compiled program from the cache
            found: tuple[TrainState, Sums] = function(*arguments)
            return found

        def evaluate(step: int, state: TrainState, _: Callable[[], object]) -> bool:  # a resumed run needs the best weights
            scores, logits = job.evaluate(state.params)
            run_log.evaluation(step, scores)
            best.offer(step, scores[job.data.dev[0]][job.data.task.metric], state.params, logits)
            return best.ends_run(step)

        every, evaluations, last = experiment.checkpoints.every, job.evaluations, job.last_step
        whole = Stage(
            end=last,
            rows=job.rows,
            step=step,
            logs=lambda step: due(step, experiment.log_every, last=last),
            evaluates=lambda step: step in evaluations,
            evaluate=evaluate,
            saves=lambda step: due(step, every, last=last),
        )
        with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(job.mesh):
            saved_by = checkpoints, run_log.metrics, run.watchdog, best.ensure_saved, best.checkpoints
            parts = Parts(
                run=run,
                directory=job.directory,
                goodput=job.goodput,
                profile=profile,
                last_step=last,
                stage=lambda state: contextlib.nullcontext(whole),
                log=run_log,
                saver=Saver(*saved_by, run.mirror, run.require_in_place),
                abort_after_skipped=experiment.abort_after_skipped,
                is_ended=best.ends_run(int(state.step)),
            )
            trained = train(parts, state)

            # ----------------------------------------------------------------------------------------------------------- the end
            if not trained.is_whole:
                return None
            if error := trained.best_unsaved:
                best.export(job.directory, job.start)
                raise type(error)(f"{error}. The best weights so far are in {job.directory / MODEL}")
            with job.goodput.during(TimeCategory.EVALUATING):
                logits = {split: best.logits(split) for split in (*job.data.dev, *job.data.scored_tests)}
        found = results(job, trained.state, best, logits, time.monotonic() - started)
        failures = checkpoints.failures + best.checkpoints.failures
        found |= {"failed_saves_since_last_start": failures, "ledger": job.goodput.totals()}
        run_log.tests(found["test_scores"])
        run_log.note(goodput_line(found["ledger"]))
        if found["degenerate"]:
            run_log.warn_degenerate(job.data.dev[0], job.data.task.degeneracy(job.data.dev[0], logits[job.data.dev[0]]))
        unsaved = trained.unsaved
        if run.is_first:
            unsaved = write_results(job.directory, found) or unsaved
            run_log.draw()
    return found | ({UNSAVED: str(unsaved)} if unsaved else {})


def results(
    job: Job, state: TrainState, best: BestWeights, logits: Mapping[str, Sequence[np.ndarray]], seconds: float
) -> JsonObject:
    """Returns the content of `results.json`, which has the final numbers of a run. `logits` are the logits of the best weights
    on each dev split and each labelled test split. `seconds` is the time since the last start. If other systems have published
    scores, these are included. If the configuration names the user's files, their records are included."""
    scored = {split: job.data.task.scores(split, found) for split, found in logits.items()}
    task, training, baselines = job.data.task, job.experiment.training, job.data.baselines
    files = own_files(job.run.workdir)
    return {
        "task": task.name,
        "metric": task.metric,
        "scores": {split: scores for split, scores in scored.items() if not split.startswith("test")},
        "test_scores": {split: scores for split, scores in scored.items() if split.startswith("test")},
        "published": [dataclasses.asdict(row) for row in published(task.name)],
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
        **({FILES: files} if files else {}),
    }


def finish(
    result: RunResult,
    devices: Sequence[jax.Device],
    run: Run,
    inputs: Inputs,
    predicted: Mapping[str, list[np.ndarray]],
) -> None:
    """Exports the best weights of a run to model/ in the workdir. Writes the predictions of these weights on every split to
    predictions/. This directory gets its name when all of its files are written, and results.json then lists them (`is_done`).
    Splits that have no logits in `predicted` are evaluated."""
    written = run.workdir / PREDICTIONS
    job = Job(result.experiment, run, result.directory, devices, inputs)
    job.predicted = dict(predicted)
    with BestWeights(job) as best:
        # the model is exported first, so that it is not lost if the predictions fail
        best.export(run.workdir, inputs.start, result.results)
        if run.is_first:
            remove_tree(written)  # the predictions of other weights; without this directory, the run is not done
        with writing_directory(written) if run.is_first else contextlib.nullcontext() as partial:
            for split in job.data.features:
                if split != "train":
                    logits = best.logits(split)
                    if partial:
                        job.data.task.write_predictions(partial, split, logits)
        if run.is_first:
            names = sorted(path.relative_to(written).as_posix() for path in written.rglob("*") if path.is_file())
            found = run.workdir / RESULTS
            if found.exists() and (unwritten := write_results(run.workdir, {**read_json(found), PREDICTION_FILES: names})):
                raise unwritten


def is_done(run: Run) -> bool:
    """Returns whether the workdir has the results, the model and the predictions, i.e. whether `finish` has returned. In a
    bucket, predictions/ is not complete as soon as it exists, so it must have all files that results.json lists."""
    found, model, predictions = (run.durable(run.workdir / name) for name in (RESULTS, MODEL, PREDICTIONS))
    if not (found.exists() and model.is_dir()):
        return False
    if run.mirror is None:
        return predictions.is_dir()
    names = read_json(found).get(PREDICTION_FILES)
    return names is not None and all((predictions / name).exists() for name in names)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with the arguments `argv` (default: sys.argv). Returns the exit status."""
    flags = parse_flags("finetune", __doc__, argv, schema=FinetuningExperiment)
    with recorded_files_named(flags.workdir):
        return _start(flags)


def _start(flags: Flags) -> int:
    """Starts or resumes the run of `flags`. Returns the exit status."""
    experiment = FinetuningExperiment.from_dict(flags.config)
    task_head_class(experiment.task)  # an unknown task is reported before a model is downloaded
    for name in filter(None, (experiment.init_from, experiment.distillation.teacher)):
        find_model_directory(name)  # a mistyped name is reported before the data is read
    task = load_task(experiment.task, say=lambda text: print(text, flush=True))
    check_label_loss(experiment, task)
    experiment, note = with_pooling(experiment, task.head, flags.given)
    check_tags(experiment, task)
    load_sinks(experiment.log.sinks)  # only to refuse an unusable sink early, and in every process
    config = experiment.to_dict() | {FINGERPRINTS: fingerprints(experiment, task)}
    completed = functools.partial(with_defaults, FinetuningExperiment, extra_key=FINGERPRINTS)
    independent = experiment.side_by_side
    with start_run("finetune", flags, config, may_change=MAY_CHANGE, completed=completed, independent=independent) as run:
        if is_done(run):
            log.info("this run is done; see %s and %s", *(run.durable(run.workdir / name) for name in (RESULTS, MODEL)))
            return 0
        if note:
            log.info("%s", note)
        start = labelled_start(experiment, task.head)
        if experiment.task.length > start.config.max_position:
            raise UserError(
                f"config.task.length={experiment.task.length} is longer than the position table of {experiment.init_from}, which "
                f"has {counted(start.config.max_position, 'position')}; shorten the texts, or extend the table with "
                "`python -m bert_jax.convert`"
            )
        trained = experiment.model_config(start.config, jax.devices()[0].platform)
        check_objective(experiment, trained, experiment.head_config(task.head))
        unlabelled = open_unlabelled(experiment, task.head, start)
        teacher = load_teacher(experiment, start, experiment.head_config(task.head))
        data = read_features(task, start, teacher)
        log_start(experiment, task, start.config, data.baselines)
        experiment = dataclasses.replace(experiment, model=experiment.model.without_kernels(run.rejected_kernels))
        inputs = Inputs(data, start, unlabelled=unlabelled)
        if teacher is not None and teacher.head is not None:
            from bert_jax.training.teachers import on_mesh  # only runs with a teacher need this module

            of_teacher = teacher.config.without_kernels(run.rejected_kernels)
            taught = task_teacher(experiment, of_teacher, teacher.head, teacher.params)
            inputs = dataclasses.replace(inputs, teacher_on=functools.cache(functools.partial(on_mesh, taught)))
        predicted: dict[pathlib.Path, Mapping[str, list[np.ndarray]]] = {}  # predictions of the best run so far
        best_score = -math.inf

        def train_run(
            one: FinetuningExperiment, directory: pathlib.Path, devices: Sequence[jax.Device]
        ) -> JsonObject | None:
            nonlocal predicted, best_score
            job = Job(one, run, directory, devices, inputs)
            found = finetune(job)
            if found is not None and (score := RunResult(one, directory, found).score) > best_score:
                predicted, best_score = {directory: job.predicted}, score
            return found

        def finish_best(best: RunResult, devices: Sequence[jax.Device]) -> None:
            finish(best, devices, run, inputs, predicted.get(best.directory, {}))

        return sweep(experiment, run, train_run, finish_best)
