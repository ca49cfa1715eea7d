"""Saves the checkpoints of a run, and records failed saves in `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Callable

from bert_jax.errors import UserError
from bert_jax.runtime.interruptions import Watchdog
from bert_jax.storage.mirror import Mirror
from bert_jax.training.checkpoints.manager import Checkpoints
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.steps import TrainState


def due(step: int, every: int, *, last: int) -> bool:
    """Whether an action that is due every `every` steps, and after the `last` step, is due after `step`."""
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
        """`before` is called before every save. `best` are the checkpoints of the best weights, whose failed saves are recorded
        too. `mirror` is told of every save, so that the metrics reach the bucket of a workdir as early as the state does.
        `in_place` raises UserError where the workdir was moved or removed."""
        self._checkpoints, self._metrics, self._watchdog, self._before = checkpoints, metrics, watchdog, before
        self._mirror, self._require_in_place = mirror, in_place
        self._kinds = {"checkpoints": checkpoints} | ({"best": best} if best else {})

    def save(self, step: int, state: TrainState) -> None:
        """Starts saving `state`, the state after `step`. Call it after the metrics of `step` are written: a run that is killed
        between the two then repeats the step and loses no metrics."""
        self._require_in_place()
        self._before()
        if self._mirror:
            self._mirror.soon()
        self._checkpoints.save(step, state)
        self._record(step)
        self._watchdog.alive("saving")

    def finish(self, step: int) -> UserError | None:
        """Waits for the last save, and returns its error, or None."""
        failure = self._checkpoints.failure()
        self._require_in_place()  # before the results are written
        self._record(step)
        return failure

    def _record(self, step: int) -> None:
        failed = {
            f"{kind}/failed_saves_in_a_row": kept.failed_in_a_row for kind, kept in self._kinds.items() if kept.failed_in_a_row
        }
        if self._metrics and failed:
            self._metrics.write(step, failed)
