"""Training state to disk and back, through Orbax: asynchronous, atomic, and never trusting the newest file blindly."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from bert_jax.terminal import UserError

log = logging.getLogger(__name__)

QUARANTINE = "unreadable"


class Checkpoints:
    """The states saved under `WORKDIR/checkpoints/STEP`.

    A state is written beside its final name and renamed when it is whole, so a kill at any moment leaves complete states
    only. Writing happens in the background: `save` returns once the arrays are copied to the host. A save that fails (a
    full disk) is reported at the next one and training goes on, since the earlier states are intact; only `close`, at the
    end of a run, turns it into an error.
    """

    def __init__(self, directory: pathlib.Path, *, keep: int):
        self._directory = directory.absolute()
        self._options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=True, cleanup_tmp_directories=True
        )
        self._manager = self._open()
        self._failed: tuple[int, BaseException] | None = None
        self._saving: int | None = None

    def _open(self) -> ocp.CheckpointManager:
        return ocp.CheckpointManager(self._directory, options=self._options)

    def restore_latest(self, abstract_state: Any) -> Any | None:
        """The newest state that can be read, laid out as `abstract_state` (ShapeDtypeStructs with shardings) asks; None if
        there is none yet.

        A state that cannot be read (a truncated file, a bad block) is moved to `unreadable/` for a post-mortem and the one
        before it is tried, with a warning. Raises UserError when there were states and none can be read: starting over
        would bury them.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in steps:
            state, error = self._try_restore(step, abstract_state)
            if state is not None:
                return state
            log.warning("checkpoint of step %s cannot be read (%s); trying the one before it", f"{step:,}", _first_line(error))
        if steps:
            raise UserError(
                f"none of the checkpoints in {self._directory} can be read (steps {', '.join(map(str, steps))}); "
                "restore the directory from a backup, or move it away to start over"
            )
        return None

    def _try_restore(self, step: int, abstract_state: Any) -> tuple[Any | None, BaseException | None]:
        """One state, or why not. All processes decide alike: what one of them cannot read, none of them uses."""
        state, error = None, None
        try:
            state = self._manager.restore(step, args=ocp.args.StandardRestore(abstract_state))
        except Exception as failure:  # Orbax and TensorStore raise many kinds; all mean that this state is unusable
            error = failure
        readable = (
            bool(np.all(multihost_utils.process_allgather(np.asarray(state is not None))))
            if jax.process_count() > 1
            else state is not None
        )
        if readable:
            return state, None
        self._manager.close()
        if jax.process_index() == 0:
            (self._directory / QUARANTINE).mkdir(exist_ok=True)
            (self._directory / str(step)).rename(self._free_name(self._directory / QUARANTINE / str(step)))
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"quarantine {step}")
        self._manager = self._open()
        return None, error or OSError("unreadable on another process")

    @staticmethod
    def _free_name(path: pathlib.Path) -> pathlib.Path:
        number, candidate = 1, path
        while candidate.exists():
            number, candidate = number + 1, path.with_name(f"{path.name}-{number}")
        return candidate

    @property
    def latest_step(self) -> int | None:
        """The step of the newest complete state, None before the first."""
        return self._manager.latest_step()

    def save(self, step: int, state: Any) -> None:
        """Begins saving `state` as of `step`; waits for the save before it, whose failure is reported here."""
        self._settle()
        try:
            self._manager.save(step, args=ocp.args.StandardSave(state), force=True)
            self._saving = step
        except Exception as error:
            self._note_failure(step, error)

    def _settle(self) -> None:
        """Waits for the save in progress and notes how it ended."""
        try:
            self._manager.wait_until_finished()
            if self._saving is not None:
                self._failed = None
        except Exception as error:
            self._note_failure(self._saving if self._saving is not None else -1, error)
        self._saving = None

    def _note_failure(self, step: int, error: BaseException) -> None:
        self._failed = (step, error)
        log.warning(
            "could not save the checkpoint of step %s (%s); training goes on and the next one will be tried",
            f"{step:,}",
            _first_line(error),
        )

    def close(self) -> None:
        """Waits for the last save. Raises UserError if it failed: what was computed since the save before it is not on disk."""
        self._settle()
        self._manager.close()
        if self._failed is not None:
            step, error = self._failed
            raise UserError(
                f"the checkpoint of step {step:,} could not be saved in {self._directory} ({_first_line(error)}); "
                "free space or mend the directory, then start the same command again: it continues from the newest complete one"
            ) from error


def _first_line(error: BaseException | None) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
