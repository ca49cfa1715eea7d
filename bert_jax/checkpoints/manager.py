"""Training state to disk and back, through Orbax: asynchronous, atomic, and never trusting the newest file blindly."""

from __future__ import annotations

import itertools
import logging
import pathlib
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from bert_jax.checkpoints.digests import by_name, differing, digests
from bert_jax.errors import UserError
from bert_jax.sharding.out_of_memory import shortage_of

log = logging.getLogger(__name__)

State: TypeAlias = PyTree[jax.Array]
AbstractState: TypeAlias = PyTree[jax.ShapeDtypeStruct]

QUARANTINE = "unreadable"
ITEM = "state"  # named in every call: left to itself, Orbax guesses from the newest state, and a damaged one misleads it
DIGESTS = "digests"
SHOUTED = 3  # failed saves in a row: one may be chance
UNFINISHED = ".orbax-checkpoint-tmp"  # what Orbax appends to the name of a state that it is writing

# Orbax tells the parts of one save from those of another by a number that it keeps once a process: two saves that begin at
# the same moment, as runs side by side do, would wait for each other's directories until they time out.
_beginning = threading.Lock()


class Checkpoints:
    """The states saved under `WORKDIR/checkpoints/STEP`.

    A state is written beside its final name and renamed when it is whole, so a kill at any moment leaves complete states
    only. Writing happens in the background: `save` returns once the arrays are copied to the host. A save that fails (a
    full disk) is reported at the next one and training goes on, since the earlier states are intact; only `finish`, at
    the end of a run, turns it into an error.

    Beside the arrays lie their digests, which are compared when a state is read: of what Orbax writes, the data have no
    checksum. States saved before there were digests are read without. A state with values that are not finite is neither
    saved nor read: nothing could be learned from it.

    >>> with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
    ...     state = checkpoints.restore_latest(abstract_state)
    ...     checkpoints.save(step, state)
    ...     checkpoints.finish()
    """

    def __init__(self, directory: pathlib.Path, *, keep: int):
        self._directory = directory.absolute()
        self._options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=True, cleanup_tmp_directories=True
        )
        self._manager = self._open()
        self._failed: tuple[int, BaseException] | None = None
        self._saving: int | None = None
        self._saved = max(self._manager.all_steps(), default=None)
        self.failures = 0
        """Saves that have failed so far."""
        self.failed_in_a_row = 0
        """How many of them came after the last one that succeeded."""

    def _open(self) -> ocp.CheckpointManager:
        return ocp.CheckpointManager(self._directory, options=self._options)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Lets the save in progress end, also when an error ends the run; but not a save that waits for a process that died."""
        if isinstance(error, jax.errors.JaxRuntimeError) and jax.process_count() > 1:
            return
        self._settle()
        self._manager.close()

    def restore_latest(
        self, abstract_state: AbstractState, until: int | None = None, former: AbstractState | None = None
    ) -> State | None:
        """The newest state that can be read, laid out as `abstract_state` (ShapeDtypeStructs with shardings) asks; None if
        there is none yet. One that an earlier version saved in the layout `former`, which holds more, is read without the rest.

        Of `until` and the steps before it alone: states after it are removed, since the run is about to repeat them. If there
        are such and none up to `until` can be read, it is None too: a kill has come while Orbax removed the states that the
        later ones had replaced.

        A state that cannot be read (a truncated file, a bad block) is passed over with a warning for the one before it, and
        moved to `unreadable/` for a post-mortem; one for which memory does not suffice is not such. Raises UserError when there
        are states and none can be read, and then leaves them where they are, so that the next start says so too: starting over
        would bury them.
        """
        there = sorted(self._manager.all_steps(), reverse=True)
        steps = [step for step in there if until is None or step <= until]
        repeated = there[: len(there) - len(steps)]
        unreadable: list[int] = []
        for step in steps:
            state, error = self._try_restore(step, abstract_state, former)
            if state is not None:
                self._quarantine(unreadable)
                self._remove(repeated)
                return state
            unreadable.append(step)
            if not repeated:
                message = "the checkpoint of step %s cannot be read (%s); trying the one before it"
                log.warning(message, f"{step:,}", _cause(error))
        if repeated:
            self._remove(there)
        elif steps:
            raise UserError(
                f"none of the checkpoints in {self._directory} can be read (steps {', '.join(map(str, steps))}); "
                "restore the directory from a backup, or move it away to start over"
            )
        return None

    def _try_restore(
        self, step: int, abstract_state: AbstractState, former: AbstractState | None
    ) -> tuple[State | None, BaseException | None]:
        """One state, or why not. All processes decide alike: what one of them cannot read, none of them uses."""
        found: Any = None
        error: BaseException | None = None
        try:
            layout = former if former is not None and self._arrays_in(step) == len(jax.tree.leaves(former)) else abstract_state
            wanted: dict[str, Any] = {ITEM: ocp.args.StandardRestore(layout)}
            if (self._directory / str(step) / DIGESTS).is_dir():
                wanted[DIGESTS] = ocp.args.JsonRestore()
            found = self._manager.restore(step, args=ocp.args.Composite(**wanted))
        except Exception as failure:  # Orbax and TensorStore raise many kinds; all but one mean that this state is unusable
            if shortage_of(failure):
                raise
            error = failure
        if not _everywhere(found is not None):
            return None, error or OSError("unreadable on another process")
        error = _fault(found[ITEM], found.get(DIGESTS))
        if not _everywhere(error is None):
            return None, error or OSError("damaged on another process")
        return _only(found[ITEM], abstract_state, step), None

    def _arrays_in(self, step: int) -> int:
        """How many arrays the state of `step` has, by its metadata alone."""
        return len(jax.tree.leaves(ocp.StandardCheckpointHandler().metadata(self._directory / str(step) / ITEM).tree))

    def _quarantine(self, steps: Sequence[int]) -> None:
        """Moves the states of `steps` out of the way of new ones with the same numbers."""

        def move(path: pathlib.Path) -> None:
            (self._directory / QUARANTINE).mkdir(exist_ok=True)
            path.rename(_free_name(self._directory / QUARANTINE / path.name))

        self._take_away(steps, move)

    def _remove(self, steps: Sequence[int]) -> None:
        """Removes the states of `steps`, the earliest first: as long as a later one is there, an earlier one may lack parts."""
        self._take_away(sorted(steps), shutil.rmtree)

    def _take_away(self, steps: Sequence[int], how: Callable[[pathlib.Path], None]) -> None:
        """Does `how` to the directory of each of `steps` on one process, while Orbax does not look."""
        if not steps:
            return
        self._manager.close()
        if jax.process_index() == 0:
            for step in steps:
                how(self._directory / str(step))
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("states taken away")
        self._manager = self._open()
        self._saved = max(self._manager.all_steps(), default=None)

    def save(self, step: int, state: State) -> None:
        """Begins saving `state` as of `step`; waits for the save before it, whose failure is reported here."""
        self._settle()
        self._saving = step
        found, nonfinite = digests(state)
        if nonfinite:
            return self._note_failure(_not_finite(nonfinite))
        parts = {ITEM: ocp.args.StandardSave(state), DIGESTS: ocp.args.JsonSave(found)}
        try:
            with _beginning:
                self._manager.save(step, args=ocp.args.Composite(**parts), force=True)
        except Exception as error:
            self._note_failure(error)

    def _settle(self) -> None:
        """Waits for the save in progress and notes how it ended."""
        if self._saving is None:
            return
        try:
            self._manager.wait_until_finished()
            self._saved, self._saving, self._failed, self.failed_in_a_row = self._saving, None, None, 0
        except Exception as error:
            self._note_failure(error)

    def _note_failure(self, error: BaseException) -> None:
        step, self._saving = self._saving or 0, None
        self._failed = (step, error)
        self.failures += 1
        self.failed_in_a_row += 1
        if jax.process_index() == 0:  # what was written of it would keep the disk full
            for path in self._directory.glob(f"{step}{UNFINISHED}*"):
                shutil.rmtree(path, ignore_errors=True)
        log.warning(
            "the checkpoint of step %s could not be saved (%s); training goes on and the next one will be tried",
            f"{step:,}",
            _cause(error),
        )
        if self.failed_in_a_row >= SHOUTED:
            log.error(
                "!!! %d CHECKPOINTS IN A ROW COULD NOT BE SAVED in %s: if this run is killed, it loses everything since %s !!!",
                self.failed_in_a_row,
                self._directory,
                "its beginning" if self._saved is None else f"step {self._saved:,}",
            )

    def failure(self) -> UserError | None:
        """Waits for the last save; says what is to be done if it failed: what was computed since the save before it is not on
        disk."""
        self._settle()
        if self._failed is None:
            return None
        step, error = self._failed
        return UserError(
            f"the checkpoint of step {step:,} could not be saved in {self._directory} ({_cause(error)}); "
            "free space or mend the directory, then start the same command again: it continues from the newest complete one"
        )

    def finish(self) -> None:
        """Waits for the last save. Raises `failure`, if there is one."""
        if (error := self.failure()) is not None:
            raise error


def _only(state: State, wanted: AbstractState, step: int) -> State:
    """The arrays of `state` that `wanted` has, in its structure; says what is left out."""
    arrays, names = by_name(state), by_name(wanted)
    if left := sorted(arrays.keys() - names):
        log.info("left out of the checkpoint of step %s, since this run does not train it: %s", f"{step:,}", ", ".join(left))
    return jax.tree.unflatten(jax.tree.structure(wanted), [arrays[name] for name in names])


def _everywhere(here: bool) -> bool:
    """Whether all processes say so."""
    return here if jax.process_count() == 1 else bool(np.all(multihost_utils.process_allgather(np.asarray(here))))


def _fault(state: State, written: Mapping[str, int] | None) -> ValueError | None:
    """Why a state that was read is of no use; `written` are its digests as they were saved, if they were."""
    found, nonfinite = digests(state)
    changed = [] if written is None else differing(found, written)
    if changed:
        return ValueError(f"what it holds is not what was written: {_some(changed)} changed on the disk")
    return _not_finite(nonfinite) if nonfinite else None


def _not_finite(names: Sequence[str]) -> ValueError:
    return ValueError(f"NaN or infinity in {_some(names)}")


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more arrays"


def _free_name(path: pathlib.Path) -> pathlib.Path:
    names = (path if i == 1 else path.with_name(f"{path.name}-{i}") for i in itertools.count(1))
    return next(name for name in names if not name.exists())


def _cause(error: BaseException | None) -> str:
    """What the operating system said, also from within TensorStore's long account of it; else the first line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).strip() or type(error).__name__
    said = re.search(r"([^:]+) \[[^\]]*os_error_code", text)
    return said[1].strip() if said else text.splitlines()[0][:200]
