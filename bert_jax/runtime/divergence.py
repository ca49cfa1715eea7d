"""Ends a run whose loss or gradient stays non-finite."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.examples.assemble import Batch
from bert_jax.interface.words import counted
from bert_jax.training.losses import Sums


def stop_if_diverged(limit: int, directory: pathlib.Path, rows: Callable[[int], Batch], step: int, sums: Sums) -> None:
    """Ends a run whose last `limit` steps were all skipped, and keeps the batch of the last one in `directory` for a look.

    `rows(step)` makes that batch again, `sums` are those of the step before `step`. Raises UserError.
    """
    if not sums or float(sums["skipped_in_a_row"]) < limit:
        return
    path = directory / f"nonfinite-step-{step}-process-{jax.process_index()}.npz"
    try:
        np.savez_compressed(path, **dict[str, Any](rows(step - 1)))
        kept = f"is in {path}"
    except OSError as error:
        path.unlink(missing_ok=True)
        kept = f"could not be kept in {path} ({error.strerror})"
    raise UserError(
        f"the loss or the gradient was not finite in {counted(limit, 'step')} in a row, up to step {step:,} "
        f"(config.abort_after_skipped); nothing was learned from them. The last batch {kept}. "
        "The checkpoints hold finite weights: lower the learning rate, or start the same command again to retry from the newest"
    )


def require_learned(steps: int, skipped: int) -> None:
    """Raises UserError where less than half of a run's `steps` changed its weights: the rest had no finite loss or gradient."""
    if 2 * (steps - skipped) < steps or steps == skipped:
        raise UserError(
            f"only {steps - skipped:,} of {counted(steps, 'step')} counted: loss or gradient of the others was not finite. "
            "No model is exported; lower the learning rate and name another --workdir"
        )
