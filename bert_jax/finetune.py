r"""Fine-tunes a model on a labelled task: every task of the paper, and one's own data.

    python -m bert_jax.finetune --config=experiments/finetune/glue.py:mrpc --workdir=runs/mrpc \
        --config.init_from=MODEL --config.task.data_dir=DIR

The workdir afterwards holds config.json, metrics.jsonl, tensorboard/, curves.png, results.json, predictions/ (the official files)
and model/, a directory that transformers loads. Several seeds, learning rates, batch sizes or epochs (`config.sweep`) become runs
of their own under runs/, side by side where there are several devices or hosts; results.json then compares them, and predictions/
and model/ are those of the best. Started again with the same command, it continues where it was, however it ended.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bert_jax.batches.device import process_rows, process_shard, to_device
from bert_jax.batches.labelled import EvaluationBatches, LabelledBatches, evaluation_rows
from bert_jax.batches.prefetch import prefetch
from bert_jax.checkpoints.manager import Checkpoints
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.errors import UserError
from bert_jax.examples.assemble import Batch
from bert_jax.finetuning.best_weights import (
    best_layout,
    better,
    copy,
    early,
    evaluation_steps,
    export_best,
    save,
)
from bert_jax.finetuning.data import Data, fingerprints, read_units
from bert_jax.finetuning.log import FinetuningLog, log_start
from bert_jax.finetuning.sweep import BEST, UNSAVED, Learned, sweep
from bert_jax.finetuning.warm_start import labelled_start, teacher_of, with_own_head
from bert_jax.interface.command import run_verb
from bert_jax.interface.progress import evaluation_progress
from bert_jax.interface.python_files import faults_told
from bert_jax.interface.ranges import MOST
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.metrics.writer import RESULTS
from bert_jax.model.config import ModelConfig
from bert_jax.model.embeddings import check_ids
from bert_jax.programs.compilation import compiling
from bert_jax.programs.finetuning import Program, Teach, program_of, teaching
from bert_jax.runtime.divergence import require_learned, stop_if_diverged
from bert_jax.runtime.exporting import MODEL, write_results
from bert_jax.runtime.flags import Flags, parse_flags
from bert_jax.runtime.launch import Run, begin
from bert_jax.runtime.memory_advice import finetuning_demand, scoring_demand
from bert_jax.runtime.saving import due
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.out_of_memory import fits_in_memory
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH, row_multiple, with_shardings
from bert_jax.tasks.registry import load_task
from bert_jax.training.steps import add_sums

log = logging.getLogger("bert_jax.finetune")  # not __name__: that is __main__ when run as a verb

Array = jax.Array

MAY_CHANGE = (
    "log_every",
    "checkpoints.*",
    "mesh.*",
    "training.accumulation",
    "task.module",
    "task.data_dir",
    "task.own.train",
    "task.own.dev",
    "task.own.test",
    "init_from",
    "distillation.teacher",
    "model.rematerialisation",
    "model.scan_unroll",
    "model.attention",
    "model.residual_norm",
    "sweep.devices_per_run",
)
"""Keys that a continued run may give new values: none of them decides what is learned, but for what dropout draws (of fused
attention, and in microbatches). Models and data may have moved; what they hold is compared."""

FINGERPRINTS = "fingerprints"
"""The key of a workdir's config.json that says which examples and weights, to the byte, the run began with."""
PREDICTIONS = "predictions"


def finetune(
    experiment: FinetuningExperiment,
    run: Run,
    directory: pathlib.Path,
    data: Data,
    start: Model,
    teaching_on: Callable[[Mesh], Teach],
    devices: Sequence[jax.Device],
) -> dict[str, Any] | None:
    """One run in `directory`: trains until the last step or early stopping, and gives its results; None when asked to stop."""
    started = time.monotonic()
    task, training = data.task, experiment.training

    # -------------------------------------------------------------------------------------------------- mesh and compiled steps
    mesh = make_mesh(experiment.mesh, devices)
    shard = process_shard(mesh, BATCH)
    multiple = row_multiple(mesh) * training.accumulation
    batches = LabelledBatches(
        data.units["train"], data.shape, training.batch_size, experiment.seed, row_multiple=multiple, pad_id=data.pad_id
    )
    rows = functools.partial(checked_rows, batches, shard, start.config)
    last_step = training.epochs * batches.steps_per_epoch
    if last_step > MOST:
        raise UserError(f"config.training.epochs={training.epochs} are {counted(last_step, 'step')}, above {MOST:,}; lower it")
    evaluations = evaluation_steps(training.epochs, batches.steps_per_epoch, experiment.selection.per_epoch)
    program = program_of(experiment, start, task, data.units["train"], batches.steps_per_epoch, mesh)
    scalars = {
        "steps": np.int32(last_step),
        "warmup_steps": np.int32(round(training.warmup_fraction * last_step)),
        "peak": np.float32(training.learning_rate),
        "seed": np.uint32(experiment.seed),
    }
    demand = functools.partial(finetuning_demand, experiment, batches, data.shape.length, mesh)

    # ------------------------------------------------------------------- where the weights come from: a checkpoint, or the model
    with fits_in_memory(demand), contextlib.ExitStack() as opened:
        teach = teaching_on(mesh)
        checkpoints = opened.enter_context(Checkpoints(directory / "checkpoints", keep=experiment.checkpoints.keep))
        abstract = with_shardings(program.abstract, program.shardings)
        state = checkpoints.restore_latest(abstract)
        best_checkpoints = opened.enter_context(Checkpoints(directory / BEST, keep=1))
        best = best_checkpoints.restore_latest(best_layout(abstract, mesh), until=-1 if state is None else int(state.step))
        if state is None:
            state = program.begin(with_own_head(start, program.config, program.head, experiment).params)
        step = int(state.step)
        about = (task, data.baselines, batches, data.shape, program.config, mesh)
        said = FinetuningLog(experiment, run, directory, *about, last_step, step)
        frozen = program.config.num_layers + 2 - training.epochs  # the head, the layers, and the embeddings, one an epoch
        if training.gradual_unfreezing and frozen > 0:
            lowest = f"the lowest {frozen} of layers and embeddings"
            said.note(f"gradual unfreezing: in {counted(training.epochs, 'epoch')}, {lowest} stay as they are")

        # -------------------------------------------------------------------------------------------------------------- the loop
        stopped = False
        ended = best is not None and early(experiment, evaluations, step, int(best["step"]))
        with said, nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
            evaluate = evaluation(experiment, data, program, mesh, run, said.prefix)
            window: dict[str, Array] = {}
            previous: dict[str, Array] = {}
            with prefetch(rows, step, step if ended else last_step) as prepared:
                for batch in prepared:
                    is_new = program.is_new("train", batch)
                    with said.compiling("training step", batch) if is_new else contextlib.nullcontext():
                        given = (state, teach(to_device(batch, mesh, BATCH)), scalars)
                        if is_new:
                            program.train.lower(*given).compile()  # which the call then finds
                    state, sums = program.train(*given)
                    step += 1
                    stop_if_diverged(experiment.abort_after_skipped, directory, rows, step - 1, previous)  # one step behind
                    previous, window = sums, add_sums(window, sums)
                    run.watchdog.step_done(step)
                    stopped = run.preemption.requested(step)
                    saving = due(step, experiment.checkpoints.every, last=last_step) or stopped
                    if due(step, experiment.log_every, last=last_step) or step in evaluations or saving:
                        said.training(step, jax.device_get(window))
                        window = {}
                    if step in evaluations:
                        with said.pace.pause():
                            scores = {split: task.scores(split, evaluate(state.params, split)) for split in data.dev}
                            said.evaluation(step, scores)
                            score = scores[data.dev[0]][task.metric]
                            if best is None or better(experiment, step, score, best):
                                best = {"params": copy(state.params), "score": jnp.float32(score), "step": jnp.int32(step)}
                                best_checkpoints.save(step, best)
                            ended = early(experiment, evaluations, step, int(best["step"]))
                    if saving or ended:
                        with said.pace.pause():
                            save(step, state, checkpoints, best, best_checkpoints)
                        said.failed_saves(step, checkpoints, best_checkpoints)
                        run.watchdog.alive("saving")
                    if stopped or ended:
                        break
                stop_if_diverged(experiment.abort_after_skipped, directory, rows, step, previous)

            # ----------------------------------------------------------------------------------------------------------- the end
            unsaved, best_unsaved = checkpoints.failure(), best_checkpoints.failure()
            said.failed_saves(step, checkpoints, best_checkpoints)
            if stopped and step < last_step and not ended:
                if error := unsaved or best_unsaved:
                    raise error
                said.note(f"stopped at step {step:,} of {last_step:,}, saved; the same command continues")
                return None
            if best is None:  # the last step is always evaluated: somebody has removed it
                raise UserError(f"{directory / BEST} holds no weights; start this run again in another --workdir")
            require_learned(step, int(state.skipped))
            if best_unsaved:
                export_best(experiment, run, directory, program, task, start, best, mesh)
                raise UserError(f"{best_unsaved}. The best weights so far are in {directory / MODEL}")
            logits = {split: evaluate(best["params"], split) for split in data.dev}
        degeneracy = task.degeneracy(data.dev[0], logits[data.dev[0]])
        results = {
            "task": task.name,
            "metric": task.metric,
            "scores": {split: task.scores(split, found) for split, found in logits.items()},
            "baseline": {split: baseline.scores for split, baseline in data.baselines.items()},
            "baseline_answers": {split: baseline.named for split, baseline in data.baselines.items()},
            "degenerate": bool(degeneracy),
            "best_step": int(best["step"]),
            "steps": step,
            "steps_per_epoch": batches.steps_per_epoch,
            "skipped_steps": int(state.skipped),
            "failed_saves_since_last_start": checkpoints.failures + best_checkpoints.failures,
            "seed": experiment.seed,
            "learning_rate": training.learning_rate,
            "batch_size": training.batch_size,
            "epochs": training.epochs,
            "seconds_since_last_start": round(time.monotonic() - started, 1),
            "devices": f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
            "jax": jax.__version__,
        }
        if degeneracy:
            said.warn_degenerate(data.dev[0], degeneracy)
        if run.is_first:
            unsaved = write_results(directory, results) or unsaved
            said.draw()
    return results | ({UNSAVED: str(unsaved)} if unsaved else {})


def evaluation(
    experiment: FinetuningExperiment, data: Data, program: Program, mesh: Mesh, run: Run, prefix: str = ""
) -> Callable[[Any, str], list[np.ndarray]]:
    """A function (parameters, split) -> the logits of each of the split's units, in their order. What takes long is said, in
    lines that begin with `prefix`."""
    rows = evaluation_rows(data.shape, mesh.devices.flat[0].platform, row_multiple(mesh))
    mine = process_rows(mesh, BATCH, rows)
    demand = functools.partial(scoring_demand, experiment, rows, data.shape.length, mesh)

    def evaluate(params: Any, split: str) -> list[np.ndarray]:
        def forward(batch: Batch) -> np.ndarray:
            given = (params, to_device(batch, mesh, BATCH))
            if program.is_new("logits", batch):
                with compiling("the evaluation", prefix):
                    program.logits.lower(*given).compile()
            found = program.logits(*given)
            run.watchdog.alive("evaluation")
            return np.asarray(found.addressable_data(0))

        batches = EvaluationBatches(data.units[split], data.shape, rows, data.pad_id)
        told = evaluation_progress(prefix + split, run.is_first)
        with fits_in_memory(demand), nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh), told as progress:
            return batches.logits(forward, mine.tolist(), progress)

    return evaluate


def checked_rows(batches: LabelledBatches, shard: tuple[int, int], model: ModelConfig, step: int) -> Batch:
    """The rows of this process of `step`, their ids checked against the model's tables on the host."""
    batch = batches.at(step, shard)
    check_ids(model, input_ids=batch["input_ids"], token_type_ids=batch["token_type_ids"], position_ids=batch["position_ids"])
    return batch


def finish(learned: Learned, run: Run, data: Data, start: Model, devices: Sequence[jax.Device]) -> None:
    """Exports the best weights of a run as a model, and predicts every split with them: the workdir's model/ and predictions/."""
    experiment = learned.experiment
    mesh = make_mesh(experiment.mesh, devices)
    steps_per_epoch = learned.results["steps_per_epoch"]
    program = program_of(experiment, start, data.task, data.units["train"], steps_per_epoch, mesh)
    with Checkpoints(learned.directory / BEST, keep=1) as checkpoints:
        best = checkpoints.restore_latest(best_layout(with_shardings(program.abstract, program.shardings), mesh))
    if best is None:
        raise UserError(f"{learned.directory / BEST} holds no weights; start this run again in another --workdir")
    # First: no fault of a prediction may cost the model.
    export_best(experiment, run, run.workdir, program, data.task, start, best, mesh)
    evaluate = evaluation(experiment, data, program, mesh, run)
    for split in data.units:
        if split != "train":
            logits = evaluate(best["params"], split)
            if run.is_first:
                data.task.write_predictions(run.workdir / PREDICTIONS, split, logits)


def main() -> int:
    """The verb."""
    flags = parse_flags("finetune", __doc__, schema=FinetuningExperiment)
    experiment = FinetuningExperiment.from_dict(flags.config)
    with faults_told(experiment.task.module, "config.task.module"):
        return train(experiment, flags)


def train(experiment: FinetuningExperiment, flags: Flags) -> int:
    """From a configuration to a workdir with its results; returns the exit status."""
    task = load_task(experiment.task, say=lambda text: print(text, flush=True))
    config = experiment.to_dict() | {FINGERPRINTS: fingerprints(experiment, task)}
    apart = experiment.side_by_side
    with begin("finetune", flags, config, may_change=MAY_CHANGE, completed=with_defaults, apart=apart) as run:
        if (run.workdir / RESULTS).exists() and (run.workdir / MODEL).is_dir():  # which is written last
            log.info("this run is done: see %s and %s", run.workdir / RESULTS, run.workdir / MODEL)
            return 0
        start = labelled_start(experiment, task.head)
        if experiment.task.length > start.config.max_position:
            raise UserError(
                f"config.task.length={experiment.task.length} is longer than the position table of {experiment.init_from} "
                f"({start.config.max_position}); shorten it, or extend the table with `python -m bert_jax.convert`"
            )
        data = read_units(task, start)
        log_start(experiment, task, start.config, data.baselines)
        teacher = teacher_of(experiment, start, experiment.head_config(task.head))
        teaching_on = functools.cache(functools.partial(teaching, teacher, experiment, start.config.num_layers))
        return sweep(
            experiment,
            run,
            lambda one, directory, devices: finetune(one, run, directory, data, start, teaching_on, devices),
            lambda learned: finish(learned, run, data, start, jax.devices()),
        )


def with_defaults(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """A stored configuration with the defaults of the keys that have come since; as it is, where some have gone."""
    try:
        experiment = FinetuningExperiment.from_dict({key: value for key, value in stored.items() if key != FINGERPRINTS})
    except UserError:
        return stored
    return experiment.to_dict() | {FINGERPRINTS: stored.get(FINGERPRINTS)}


if __name__ == "__main__":
    run_verb(main)
