"""The training loop of `pretrain` and `finetune`.

The commands assemble the parts (a state, batches as a function of the step, a compiled step, an evaluation, a log, checkpoints)
and call `train`. They also decide what to do with the trained weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bert_jax.data.prefetch import prefetch
from bert_jax.data.rows import Batch
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.objectives.losses import Sums
from bert_jax.runtime.goodput import GoodputRecorder, TimeCategory
from bert_jax.runtime.interruptions import Watchdog
from bert_jax.runtime.launch import Run
from bert_jax.runtime.profile import Profile
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.config import SpikeConfig
from bert_jax.training.log import SKIPPED_BATCHES, MetricsWriter, RunLog
from bert_jax.training.steps import TrainState, add_sums, skipped_batches

if TYPE_CHECKING:  # only runs in buckets load this module
    from bert_jax.storage.mirror import Mirror


class LossSpike(Exception):
    """Raised after `config.spikes.in_a_row` consecutive loss spikes, when the run must roll back."""

    def __init__(self, step: int, in_a_row: int):
        super().__init__(f"{in_a_row} spikes in a row up to step {step}")
        self.step, self.in_a_row = step, in_a_row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A range of steps with the same compiled step and evaluation. It is a phase of pretraining, or a whole fine-tuning run."""

    end: int
    """The last step."""
    rows: Callable[[int], Batch]
    """Maps the number of finished steps to this process's rows of the next batch."""
    step: Callable[[TrainState, Batch], tuple[TrainState, Sums]]
    """The compiled training step for batches of `rows`. It reuses the memory of the old state."""
    logs: Callable[[int], bool]
    """Whether a log line is due after a step. Steps with an evaluation or a save have one too."""
    evaluates: Callable[[int], bool]
    """Whether an evaluation is due after a step, including step 0."""
    evaluate: Callable[[int, TrainState, Callable[[], object]], bool]
    """Evaluates the state after a step and logs its scores. Returns whether the run should stop early. The third argument saves
    the state if the run was asked to stop. Evaluations that a resumed run does not need call it before each batch."""
    saves: Callable[[int], bool]
    """Whether a checkpoint is due after a step."""
    skipped_batches: int = 0
    """The number of batches skipped because of loss spikes. Step n reads the batch with index n + `skipped_batches`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a run."""

    run: Run
    directory: pathlib.Path
    """The directory of the run's files."""
    goodput: GoodputRecorder
    profile: Profile
    last_step: int
    stage: Callable[[TrainState], contextlib.AbstractContextManager[Stage]]
    """Maps a state to the stage of the next step. The stage contains the compiled step."""
    log: RunLog
    saver: Saver
    abort_after_skipped: int
    """The number of consecutive steps with a non-finite loss, gradient or learning rate after which the run fails."""
    kept: Sequence[int] = ()
    """The steps whose states are kept until the end. Their scores are results, like those of the last step."""
    spikes: SpikeConfig = dataclasses.field(default_factory=SpikeConfig)
    rollback: Callable[[Stage, LossSpike], TrainState] | None = None
    """Returns the state to continue from after loss spikes in a stage."""
    is_ended: bool = False
    """Whether the run had already stopped early before this start."""
    check: Callable[[], object] = lambda: None
    """Called after every step. An exception in this function ends the run."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of `train`."""

    state: TrainState
    is_whole: bool
    """Whether the run finished. If not, it was asked to stop."""
    unsaved: UserError | None
    """The error if the last checkpoint could not be saved, otherwise None."""
    best_unsaved: UserError | None
    """The error if the last save of the best weights failed, otherwise None."""


def train(parts: Parts, state: TrainState) -> Trained:
    """Trains `state` until the last step, early stopping, or a request to stop.

    Raises UserError if more than half of the steps were skipped because of a non-finite loss, gradient or learning
    rate, or if the run was asked to stop and its state could not be saved.
    """
    run, log, saver, goodput = parts.run, parts.log, parts.saver, parts.goodput
    step, ended, stopped = int(state.step), parts.is_ended, False
    if parts.rollback and step:  # an earlier start may have recorded a rollback after which it saved no checkpoint
        log.write_with_next(step, {SKIPPED_BATCHES: skipped_batches(state)})
    while step < parts.last_step and not ended and not stopped:
        with parts.stage(state) as stage:
            sums = StepSums(parts.abort_after_skipped, parts.directory, stage.rows, parts.spikes)
            try:
                if step == 0 and stage.evaluates(step):
                    with log.pause(TimeCategory.EVALUATING):
                        stage.evaluate(step, state, lambda: None)
                with goodput.training(prefetch(stage.rows, step, stage.end), sums.is_computing) as batches:
                    for batch in parts.profile.trace_steps(batches, step, sums.check):
                        state, of_step = stage.step(state, batch)
                        step += 1
                        sums.add(step, of_step)
                        run.watchdog.step_done(step)
                        goodput.step_done(step)
                        parts.check()
                        stopped = run.preemption.requested()
                        saves, saved = stage.saves(step) or stopped, False
                        if stage.logs(step) or saves or stage.evaluates(step):
                            log.training(step, sums.take())
                        if stage.evaluates(step):
                            early = EarlySave(parts, step, state, stopped)
                            with log.pause(TimeCategory.EVALUATING):
                                ended = stage.evaluate(step, state, early.save_if_stopped)
                            saved, stopped = early.is_done, stopped or run.preemption.requested()
                        if (saves or ended or stopped) and not saved:
                            with log.pause(TimeCategory.SAVING):
                                saver.save(step, state)
                        if stopped or ended:
                            break
                    sums.check(step)
            except LossSpike as spike:
                if parts.rollback is None:
                    raise
                state = parts.rollback(stage, spike)
                step, stopped = int(state.step), False
                log.rolled_back(step, skipped_batches(state))

    is_whole = ended or step == parts.last_step
    with goodput.during(TimeCategory.SAVING):
        unsaved, best_unsaved = saver.finish(step)
    if is_whole:
        require_learned(step, int(state.skipped))
    elif error := unsaved or best_unsaved:
        raise error
    else:
        log.note(f"stopped at step {step:,} of {parts.last_step:,}, saved; the same command resumes")
    return Trained(state, is_whole, unsaved, best_unsaved)


class EarlySave:
    """Saves the state of a step during its evaluation if the run was asked to stop. A machine that is preempted may be gone
    before the evaluation ends. If so, the scores of this step are missing from the metrics. The last step and the steps that
    are kept are not saved early, because their scores are results."""

    def __init__(self, parts: Parts, step: int, state: TrainState, stopped: bool):
        self._parts, self._step, self._state, self._stopped = parts, step, state, stopped
        self.is_done = False
        """Whether the state is saved."""

    def save_if_stopped(self) -> None:
        """Saves the state if a stop was requested before the evaluation or, in a run with one process, during it."""
        if self.is_done or self._step in (self._parts.last_step, *self._parts.kept):
            return
        if self._stopped or self._parts.run.preemption.requested_here():
            with self._parts.goodput.during(TimeCategory.SAVING):
                self._parts.saver.save(self._step, self._state)
            self.is_done = True


def due(step: int, every: int, *, last: int) -> bool:
    """Returns whether `step` is a multiple of `every` or the `last` step."""
    return step % every == 0 or step == last


class Saver:
    """Saves the states of a run in the background, and writes the number of consecutive failed saves to `metrics.jsonl`."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        metrics: MetricsWriter | None,
        watchdog: Watchdog,
        before: Callable[[], object],
        best: Checkpoints | None = None,
        mirror: Mirror | None = None,
        in_place: Callable[[], None] = lambda: None,
    ):
        """`before` is called before every save. `best` holds the checkpoints of the best weights. Failed saves of these
        checkpoints are recorded too. `mirror` is notified of every save, so that the metrics reach the workdir's bucket no
        later than the state. `in_place` raises UserError if the workdir was moved or removed."""
        self._checkpoints, self._metrics, self._watchdog, self._before = checkpoints, metrics, watchdog, before
        self._mirror, self._require_in_place = mirror, in_place
        self._kinds = {"checkpoints": checkpoints} | ({"best": best} if best else {})

    def save(self, step: int, state: TrainState) -> None:
        """Starts saving `state`, the state after `step`. Call it after writing the metrics of `step`. If the run is killed
        between the two, the step is repeated and no metrics are lost. Only an `EarlySave` precedes the scores of its step."""
        self._require_in_place()
        self._before()
        if self._mirror:
            self._mirror.soon()
        self._checkpoints.save(step, state)
        self._record(step)
        self._watchdog.alive("saving")

    def finish(self, step: int) -> tuple[UserError | None, UserError | None]:
        """Waits for the last saves. Returns (the error of the last state or None, the error of the best weights or None)."""
        failure = self._checkpoints.failure()
        self._require_in_place()  # before the results are written
        self._record(step)
        best = self._kinds.get("best")
        return failure, best.failure() if best else None

    def _record(self, step: int) -> None:
        failed = {
            f"{kind}/failed_saves_in_a_row": kept.failed_in_a_row for kind, kept in self._kinds.items() if kept.failed_in_a_row
        }
        if self._metrics and failed:
            self._metrics.write(step, failed)


class StepSums:
    """The sums of the steps since the last log line, kept on the device. Ends the run after too many non-finite steps.

    The run ends after `limit` consecutive steps with a non-finite loss, gradient or learning rate. The batch of the last step
    is computed again by `rows` and written to `directory` for inspection.

    >>> sums = StepSums(experiment.abort_after_skipped, run.workdir, rows)
    >>> for batch in batches:
    ...     state, of_step = train_step(state, batch)
    ...     step += 1
    ...     sums.add(step, of_step)
    ...     if due(step, 100, last=1000):
    ...         log.training(step, sums.take())
    >>> sums.check(step)
    """

    def __init__(
        self, limit: int, directory: pathlib.Path, rows: Callable[[int], Batch], spikes: SpikeConfig | None = None
    ):
        self._limit, self._directory, self._rows, self._spikes = limit, directory, rows, spikes or SpikeConfig()
        self._window: Sums = {}
        self._last: Sums = {}

    def add(self, step: int, sums: Sums) -> None:
        """Adds the `sums` of the training step that led to `step`. Checks only the previous step, so that the host does not
        wait for this step. Raises the errors of `check`."""
        self.check(step - 1)
        self._last, self._window = sums, add_sums(self._window, sums)

    def take(self) -> dict[str, Any]:
        """Returns the sums since the last call as host values, and resets them."""
        taken, self._window = self._window, {}
        return jax.device_get(taken)

    def is_computing(self) -> bool:
        """Returns whether the devices of this process are still computing the last training step."""
        last: Any = self._last.get("skipped_in_a_row")  # the stubs of jax.Array lack is_ready
        return last is not None and not last.is_ready()

    def check(self, step: int) -> None:
        """Waits for the last added training step, which led to `step`. Raises UserError after `limit` consecutive
        non-finite steps or spikes, and LossSpike if the run has to roll back."""
        if self._last and self._spikes.policy != "none":
            self._check_spikes(step, int(self._last["spikes_in_a_row"]))
        if not self._last or float(self._last["skipped_in_a_row"]) < self._limit:
            return
        path = self._directory / f"nonfinite-step-{step}-process-{jax.process_index()}.npz"
        try:
            np.savez_compressed(path, **dict[str, Any](self._rows(step - 1)))
            kept = f"is in {path}"
        except OSError as error:
            path.unlink(missing_ok=True)
            kept = f"could not be written to {path} ({error.strerror})"
        raise UserError(
            f"the loss, the gradient or the learning rate was not finite in {counted(self._limit, 'step')} in a row, up to step "
            f"{step:,} (config.abort_after_skipped); these steps did not change the weights. The last batch {kept}. "
            "Only finite weights are saved: lower the learning rate, or start the same command again to retry from the newest "
            "checkpoint, if there is one"
        )

    def _check_spikes(self, step: int, in_a_row: int) -> None:
        if self._spikes.policy == "rollback":  # ends after max_rollbacks instead
            if in_a_row >= self._spikes.in_a_row:
                raise LossSpike(step, in_a_row)
        elif in_a_row >= self._limit:
            raise UserError(
                f"the loss was far above the running mean in {counted(in_a_row, 'step')} in a row, up to step {step:,} "
                "(config.abort_after_skipped); these steps did not change the weights. This is not a spike: lower the learning "
                "rate, or continue from a checkpoint of this run in another --workdir with --config.init_state=WORKDIR@STEP "
                "--config.spikes.policy=none"
            )


def require_learned(steps: int, skipped: int) -> None:
    """Raises UserError if more than half of a run's `steps` were `skipped` because their loss, gradient or learning rate was
    not finite."""
    if 2 * (steps - skipped) < steps or steps == skipped:
        raise UserError(
            f"only {steps - skipped:,} of {counted(steps, 'step')} changed the weights, because the loss, gradient or learning "
            "rate of all other steps was not finite. No model is exported; lower the learning rate and use another --workdir"
        )
