"""Adds up the sums of training steps between log lines, and ends a run whose loss or gradient stays non-finite."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax.data.rows import Batch
from bert_jax.errors import UserError
from bert_jax.interface.words import counted
from bert_jax.objectives.losses import Sums
from bert_jax.training.spikes import LossSpike, SpikeConfig
from bert_jax.training.steps import add_sums


class StepSums:
    """The sums of the steps since the last log line, kept on the device; ends a run whose steps are not finite.

    The run ends after `limit` consecutive steps without a finite loss and gradient. The batch of the last of them, which
    `rows(step)` builds again, is written to `directory` for inspection.

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
        """Adds the `sums` of the training step that led to `step`. Checks the step before it, so that the host does not wait for
        the device. Raises UserError as `check` does."""
        self.check(step - 1)
        self._last, self._window = sums, add_sums(self._window, sums)

    def take(self) -> dict[str, Any]:
        """Returns the sums since the last call as host values, and resets them."""
        taken, self._window = self._window, {}
        return jax.device_get(taken)

    def is_computing(self) -> bool:
        """Whether the devices of this process still compute the training step that was added last."""
        last: Any = self._last.get("skipped_in_a_row")  # the stubs of jax.Array lack is_ready
        return last is not None and not last.is_ready()

    def check(self, step: int) -> None:
        """Waits for the training step that led to `step`, the last one added. Raises UserError where it ended a series of `limit`
        steps that were not finite, or of spikes; LossSpike where the run has to go back."""
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
            kept = f"could not be kept in {path} ({error.strerror})"
        raise UserError(
            f"the loss or the gradient was not finite in {counted(self._limit, 'step')} in a row, up to step {step:,} "
            f"(config.abort_after_skipped); these steps did not change the weights. The last batch {kept}. "
            "The checkpoints hold finite weights: lower the learning rate, or start the same command again to retry from the "
            "newest"
        )


    def _check_spikes(self, step: int, in_a_row: int) -> None:
        if self._spikes.policy == "go_back" and in_a_row >= self._spikes.in_a_row:
            raise LossSpike(step, in_a_row)
        if in_a_row >= self._limit:
            raise UserError(
                f"the loss was far above that of the steps before in {counted(in_a_row, 'step')} in a row, up to step {step:,} "
                "(config.abort_after_skipped); these steps did not change the weights. This is no spike: lower the learning "
                "rate, or set config.spikes.policy=none in another --workdir"
            )


def require_learned(steps: int, skipped: int) -> None:
    """Raises UserError where more than half of a run's `steps` were `skipped` because their loss or gradient was not finite."""
    if 2 * (steps - skipped) < steps or steps == skipped:
        raise UserError(
            f"only {steps - skipped:,} of {counted(steps, 'step')} changed the weights: the loss or gradient of the others "
            "was not finite. "
            "No model is exported; lower the learning rate and name another --workdir"
        )
