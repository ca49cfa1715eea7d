"""When the state of a run is saved, and the record of saves that fail."""

from __future__ import annotations

import logging

from bert_jax.checkpoints.manager import Checkpoints
from bert_jax.metrics.writer import MetricsWriter

log = logging.getLogger(__name__)


def due(step: int, every: int, *, last: int) -> bool:
    """Whether something done every so many steps, and at the last one, is to be done after `step`."""
    return step % every == 0 or step == last


def note_failed_saves(metrics: MetricsWriter | None, step: int, **kinds: Checkpoints) -> None:
    """Writes to `metrics.jsonl` how many saves in a row have failed, where some have; of the checkpoints of each kind."""
    failed = {f"{kind}/failed_saves_in_a_row": kept.failed_in_a_row for kind, kept in kinds.items() if kept.failed_in_a_row}
    if metrics and failed:
        metrics.write(step, failed)


