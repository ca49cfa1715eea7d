"""Saves and restores the training state with Orbax. Saves are asynchronous and atomic, and every restored state is checked."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import logging
import os
import pathlib
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import PyTree

from bert_jax.errors import UserError, WorkdirError
from bert_jax.files import remove_tree
from bert_jax.model.layers import hash_word
from bert_jax.sharding.device_errors import is_device_error, memory_shortage
from bert_jax.storage.checks import require_room
from bert_jax.storage.objects import StorageError, explained, listed, move_tree
from bert_jax.storage.paths import AnyPath, is_remote

log = logging.getLogger(__name__)

State: TypeAlias = PyTree[jax.Array]
AbstractState: TypeAlias = PyTree[jax.ShapeDtypeStruct]
Gather: TypeAlias = Callable[[bool], list[bool]]
"""Returns the values of all processes, in order. See `Processes.gather`."""

QUARANTINE = "unreadable"
ITEM = "state"  # passed in every call, since Orbax would otherwise infer it from the newest state, which may be damaged
DIGESTS = "digests"
FAILURES_BEFORE_ERROR = 3  # the log line is an error after this many failed saves in a row; fewer may be transient
UNFINISHED = ".orbax-checkpoint-tmp"  # the suffix of a state that Orbax is writing
# The number of attempts to remove the files of a failed save, and the pause after each attempt in seconds (at most 2 s in
# total).
_REMOVALS, _REMOVAL_PAUSE = 40, 0.05
# The number of attempts to read a state that may be intact, and the pause after the first attempt in seconds. The pauses grow.
_READS, _READ_PAUSE = 4, 5.0
# Error numbers of the system or the network: these errors do not show that a file is damaged. EIO is not among them, since it is
# the error of a bad block.
_NOT_DAMAGE = frozenset({
    errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT,
    errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.ENETDOWN, errno.ENETUNREACH, errno.ENODEV, errno.ENXIO,
})  # fmt: skip
# The first words of TensorStore's errors for the same reasons.
_UNREACHABLE = re.compile("(UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|ABORTED|CANCELLED)\\b")
PROBE, PROBE_SIZE = ".probe", 1 << 16  # a test file that process 0 writes and removes before each save of a multi-process run
COMPLETE = "commit_success.txt"  # the object that marks a complete state in a bucket

# Orbax identifies the parts of a save by a per-process counter. If two runs in one process started saves at the same moment, each
# run would wait for directories of the other run, until a timeout.
_save_lock = threading.Lock()


class Checkpoints:
    """The states saved under `WORKDIR/checkpoints/STEP`, on a disk or in a bucket.

    A state is written under a temporary name and renamed when it is complete. In a bucket, a marker object shows that a state
    is complete. If the process is killed, only complete states remain. Writing happens in the background, and `save` returns
    when the arrays have been copied to the host. If a save fails, e.g. because the disk is full, the failure is logged at the
    next save. Training continues, since the earlier states are intact. Only `finish`, which is called at the end of a run,
    raises an error.

    Orbax writes no checksums of array data. Digests of the arrays are therefore saved with each state, and are compared when
    the state is restored. A state with NaN, or with infinity in its parameters, is neither saved nor restored, since training
    cannot continue from it.

    >>> with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
    ...     state = checkpoints.restore_latest(abstract_state)
    ...     checkpoints.save(step, state)
    ...     checkpoints.finish()
    """

    _writer: ClassVar[Checkpoints | None] = None
    """The instance that started the latest save of a multi-process run. All Orbax managers of a process share its barriers.
    Orbax raises an error if a second barrier starts while a barrier is pending, so saves must not overlap."""

    def __init__(
        self,
        directory: AnyPath,
        *,
        keep: int = 1,
        keep_at: Sequence[int] = (),
        read_only: bool = False,
        gather: Gather | None = None,
        transferring: Callable[[str], AbstractContextManager[object]] = contextlib.nullcontext,
    ):
        """Keeps the newest `keep` states and the states of the steps `keep_at`. With `read_only`, nothing is written or
        removed, not even the leftovers of a killed run. Use it to read the states of a run that may still be training. Several
        processes must give `gather`. Every wait for a save or a restore is inside a block of `transferring`, see
        `Watchdog.transferring`."""
        self._directory = directory if is_remote(directory) else pathlib.Path(directory).absolute()
        if not is_remote(directory) and os.path.lexists(directory) and not pathlib.Path(directory).is_dir():
            raise UserError(f"{directory} is not a directory, so checkpoints cannot be saved in it; move it away")
        kept = [ocp.checkpoint_managers.LatestN(keep), ocp.checkpoint_managers.CustomSteps(frozenset(keep_at))]
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.AnyPreservationPolicy(kept),
            cleanup_tmp_directories=True,
        )
        if read_only:
            self._options = ocp.CheckpointManagerOptions(read_only=True)
        self._gather, self._transferring = gather, transferring
        self._manager = self._open()
        self._failed: tuple[int, BaseException] | None = None
        self._saving: int | None = None
        self._saved = max(self._manager.all_steps(), default=None)
        self.failures = 0
        """The number of failed saves so far."""
        self.failed_in_a_row = 0
        """The number of failed saves since the last successful one."""

    def _open(self) -> ocp.CheckpointManager:
        with explained(self._directory):
            return ocp.CheckpointManager(self._directory, options=self._options)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Waits for the save in progress, even after an exception. If a device error occurs in one of several processes, does
        not wait, since the save may be waiting for a dead process."""
        if is_device_error(error) and jax.process_count() > 1:
            return
        self._wait_for_save(together=error is None)
        self._manager.close()

    def restore_latest(
        self, abstract_state: AbstractState, until: int | None = None, *, or_earliest: bool = False
    ) -> State | None:
        """Restores the newest readable state, sharded like `abstract_state` (ShapeDtypeStructs with shardings). Returns None if
        there is no state yet.

        With `until`, only states up to that step are considered. Later states are removed, since the run is about to repeat
        their steps. If there are later states but no readable earlier ones, removes all states and returns None. This can happen
        if the run was killed while Orbax was removing old states. With `or_earliest`, restores the earliest readable later state
        instead and removes only the states after it.

        An unreadable state (a truncated file, a bad block) is skipped with a warning and moved to `unreadable/` for inspection.
        A state that does not fit in memory does not count as unreadable. Neither does a state that cannot be read at the
        moment, e.g. because a connection was lost. In this case, raises WorkdirError or StorageError after several attempts. If
        there are no later states and none of the states is readable, raises WorkdirError. The unreadable states stay in place,
        so that the next run also fails instead of training from the start. Also raises WorkdirError if no state is readable and
        some have other arrays than `abstract_state`, or if the disk has no room for another state."""
        require_room(self._directory, sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract_state)))
        self._wait_for_save()
        there = sorted(self._manager.all_steps(), reverse=True)
        steps = [step for step in there if until is None or step <= until]
        repeated = there[: len(there) - len(steps)]
        if or_earliest:
            steps, repeated = steps + repeated[::-1], []
        unreadable: list[int] = []
        others: list[BaseException] = []
        for step in steps:
            state, error = self._try_restore(step, abstract_state)
            if state is not None:
                self._quarantine(unreadable)
                self._remove([later for later in there if later > step and later not in unreadable])
                return state
            unreadable.append(step)
            others += [error] if isinstance(error, OtherArrays) else []
            if not repeated:
                message = "the checkpoint of step %s cannot be read (%s); trying another one"
                log.warning(message, f"{step:,}", _cause(error))
        if others:
            raise WorkdirError(
                f"the checkpoints in {self._directory} have other arrays than this run ({others[0]}); continue the run with the "
                "code, the packages and the files of your own with which it began, or move the directory away to start over"
            )
        if repeated:
            self._remove(there)
        elif steps:
            raise WorkdirError(
                f"none of the checkpoints in {self._directory} can be read (steps {', '.join(map(str, steps))}); "
                "restore the directory from a backup, or move it away to start over"
            )
        return None

    @property
    def steps(self) -> list[int]:
        """The steps of the saved states, in order."""
        return sorted(self._manager.all_steps())

    def restore(self, step: int, abstract_state: AbstractState) -> State:
        """Restores the state of `step`, sharded like `abstract_state`. Raises UserError if the state cannot be read."""
        state, error = self._try_restore(step, abstract_state)
        if state is None:
            where = f"the checkpoint of step {step:,} in {self._directory}"
            if isinstance(error, OtherArrays):
                raise UserError(
                    f"{where} has other arrays than this run ({error}); use the code, the packages and the files of your own "
                    "with which it was saved"
                )
            raise UserError(f"{where} cannot be read ({_cause(error)}); use a checkpoint of another step")
        return state

    def _try_restore(self, step: int, abstract_state: AbstractState) -> tuple[State | None, BaseException | None]:
        """Returns (state, None) or (None, error). All processes make the same decision. If one process cannot read a state, no
        process uses the state. If the state may be intact, raises WorkdirError or StorageError on every process."""
        found: tuple[State, Mapping[str, int]] | None = None
        error: BaseException | None = None
        passing: UserError | None = None
        with self._transferring("restoring a checkpoint"):
            for attempt in range(_READS):
                if passing is not None:
                    log.warning("the checkpoint of step %s cannot be read (%s); trying again", f"{step:,}", _cause(error))
                    time.sleep(_READ_PAUSE * attempt)
                try:
                    found = self._read(step, abstract_state)
                except Exception as failure:  # any type of error, except out-of-memory and the passing ones, shows damage
                    if memory_shortage(failure):
                        raise
                    error, passing = failure, _passing(failure, self._directory / str(step))
                if found is not None or passing is None:
                    break
            is_read = self._on_all_processes(found is not None)
        if not is_read or found is None:
            if not self._on_all_processes(found is not None or passing is None):
                raise passing or WorkdirError(_may_be_intact(self._directory / str(step), "an error in another process"))
            return None, error or OSError("unreadable on another process")
        state, written = found
        error = _restore_error(state, written)
        if not self._on_all_processes(error is None):
            return None, error or OSError("damaged on another process")
        return state, None

    def _read(self, step: int, layout: AbstractState) -> tuple[State, Mapping[str, int]]:
        """Returns (the state of `step`, its saved digests). Each process reads without waiting for the others.

        Orbax's manager would wait for the other processes after reading. A process that could not read the state would go on to
        `gather`, while the other processes would still wait for it at Orbax's barrier. Each would wait for the other."""
        place = self._directory / str(step)
        written = ocp.JsonCheckpointHandler().restore(place / DIGESTS, args=ocp.args.JsonRestore())
        if by_name(layout).keys() != written.keys():
            raise OtherArrays(by_name(layout).keys(), written.keys())
        return ocp.StandardCheckpointHandler().restore(place / ITEM, args=ocp.args.StandardRestore(layout)), written

    def _quarantine(self, steps: Sequence[int]) -> None:
        """Moves the states of `steps` to `unreadable/`, so that new states can use their step numbers."""

        def move(path: AnyPath) -> None:
            (self._directory / QUARANTINE).mkdir(exist_ok=True)
            if is_remote(self._directory):  # in a bucket, Orbax removes every directory without a completion marker
                (self._directory / QUARANTINE / COMPLETE).write_text("these states are not complete")
            move_tree(path, _free_name(self._directory / QUARANTINE / path.name))

        self._change_directories(steps, move)

    def _remove(self, steps: Sequence[int]) -> None:
        """Removes the states of `steps`, earliest first. If the process is killed during the removal, the later states remain.
        They show that earlier states may be missing (see `restore_latest`)."""
        self._change_directories(sorted(steps), remove_tree)

    def _change_directories(self, steps: Sequence[int], how: Callable[[AnyPath], object]) -> None:
        """Calls `how` with the directory of every state in `steps`. Only process 0 makes the calls, while the Orbax manager is
        closed."""
        if not steps:
            return
        self._manager.close()
        if jax.process_index() == 0:
            for step in steps:
                how(self._directory / str(step))
        self._on_all_processes(True)  # wait for process 0
        self._manager = self._open()
        self._saved = max(self._manager.all_steps(), default=None)

    def save(self, step: int, state: State) -> None:
        """Starts saving `state` as `step`. First waits for the previous save, and logs an error if that save failed. With
        several processes, also waits for the latest save of another instance."""
        self._wait_for_save()
        if jax.process_count() > 1:
            if Checkpoints._writer is not None:
                Checkpoints._writer._wait_for_save()
            Checkpoints._writer = self
        self._saving = step
        found, nonfinite = digests(state)
        if nonfinite:
            return self._note_failure(step, _not_finite(nonfinite))
        if refusal := self._refusal(step):
            return self._note_failure(step, refusal)
        parts = {ITEM: ocp.args.StandardSave(state), DIGESTS: ocp.args.JsonSave(found)}
        try:
            with _save_lock:
                if self._failed and is_remote(self._directory):
                    self._reopen()  # pending writes of the failed save would make the new save fail too
                self._manager.save(step, args=ocp.args.Composite(**parts), force=True)
        except Exception as error:
            self._note_failure(step, error)

    def _refusal(self, step: int) -> BaseException | None:
        """Returns an error on every process if process 0 cannot start a save. Returns None if process 0 can start it, or if
        there is only one process.

        Orbax starts a save in process 0 between two barriers of all processes. If process 0 failed between the barriers, it
        would go on, while the other processes would wait for it at the second barrier."""
        if jax.process_count() == 1:
            return None
        failure: BaseException | None = None
        if jax.process_index() == 0:
            try:
                if is_remote(self._directory):
                    listed(f"{self._directory}/{step}", deep=False)
                else:
                    probe = self._directory / PROBE
                    try:
                        probe.write_bytes(bytes(PROBE_SIZE))
                    finally:
                        probe.unlink(missing_ok=True)
            except OSError as error:
                failure = error
        agreed = self._on_all_processes(failure is None)
        return None if agreed else failure or OSError("process 0 cannot write")

    def _reopen(self) -> None:
        with contextlib.suppress(Exception):
            self._manager.close()
        self._manager = self._open()

    def _wait_for_save(self, together: bool = True) -> None:
        """Waits for the save in progress and records whether it succeeded on all processes. A save is only complete if every
        process has finished its part. `together` is True if the other processes are waiting too. Otherwise, only this process
        is checked."""
        if self._saving is None:
            return
        failure: BaseException | None = None
        with self._transferring("saving a checkpoint"):
            try:
                self._manager.wait_until_finished()
            except Exception as error:
                failure = error
            if together and not self._on_all_processes(failure is None):
                failure = failure or OSError("another process could not write its part")
        if failure is not None:
            return self._note_failure(self._saving, failure)
        self._saved, self._saving, self._failed, self.failed_in_a_row = self._saving, None, None, 0

    def _note_failure(self, step: int, error: BaseException) -> None:
        self._saving, self._failed = None, (step, error)
        self.failures += 1
        self.failed_in_a_row += 1
        # The partial files of the failed save are removed, since they would keep the disk full.
        if jax.process_index() == 0 and not is_remote(self._directory):
            _remove_partial(self._directory, step)
        log.warning(
            "the checkpoint of step %s could not be saved (%s); training continues until the next save",
            f"{step:,}",
            _cause(error),
        )
        if self.failed_in_a_row >= FAILURES_BEFORE_ERROR:
            log.error(
                "%d CHECKPOINTS IN A ROW COULD NOT BE SAVED in %s: if this run is killed, all progress since %s is lost",
                self.failed_in_a_row,
                self._directory,
                "its beginning" if self._saved is None else f"step {self._saved:,}",
            )

    def failure(self) -> UserError | None:
        """Waits for the last save. Returns an error that includes the remedy if the save failed, otherwise None. It
        is a WorkdirError, unless the state has NaN or infinity (`digests`)."""
        self._wait_for_save()
        if self._failed is None:
            return None
        step, error = self._failed
        kind = UserError if isinstance(error, NonfiniteState) else WorkdirError
        return kind(
            f"the checkpoint of step {step:,} could not be saved in {self._directory} ({_cause(error)}); "
            "free disk space or repair the directory, then rerun the same command, which continues from the newest checkpoint"
        )

    def finish(self) -> None:
        """Waits for the last save. Raises UserError if the save failed."""
        if (error := self.failure()) is not None:
            raise error

    def _on_all_processes(self, here: bool) -> bool:
        """Returns whether `here` is True on every process. Waits until every process has called this method."""
        if self._gather is None:
            assert jax.process_count() == 1, "several processes cannot agree without `gather`"
            return here
        return all(self._gather(here))


def _remove_partial(directory: AnyPath, step: int) -> None:
    """Removes the files that the failed save of `step` has written to `directory`.

    Orbax raises an error at the first file that fails, while its other threads are still writing. If a file appears during the
    removal, the directory is not removed. The removal is therefore repeated until the directory no longer exists. There are at
    most `_REMOVALS` attempts, with a pause of `_REMOVAL_PAUSE` seconds after each."""
    name = f"{step}{UNFINISHED}*"
    for _ in range(_REMOVALS):
        with contextlib.suppress(OSError):  # the disk may still fail
            for path in directory.glob(name):
                remove_tree(path)
        time.sleep(_REMOVAL_PAUSE)
        with contextlib.suppress(OSError):
            if not any(directory.glob(name)):
                return


def _restore_error(state: State, written: Mapping[str, int]) -> ValueError | None:
    """Returns an error if a restored state is unusable, otherwise None. `written` holds the saved digests of the state."""
    found, nonfinite = digests(state)
    if changed := differing(found, written):
        return ValueError(f"its contents differ from the saved digests: {_format_names(changed)} changed on disk")
    return _not_finite(nonfinite) if nonfinite else None


class OtherArrays(ValueError):
    """A state has other arrays than the run, for example because its optimizer was of another version."""

    def __init__(self, wanted: Collection[str], found: Collection[str]):
        only = (sorted({*found} - {*wanted}), "has", "the run does not"), (sorted({*wanted} - {*found}), "lacks", "the run has")
        parts = [f"it {verb} {_format_names(names)}, which {rest}" for names, verb, rest in only if names]
        super().__init__("; ".join(parts))


class NonfiniteState(ValueError):
    """A state has NaN, or infinity in its parameters."""


def _not_finite(names: Sequence[str]) -> NonfiniteState:
    return NonfiniteState(f"NaN or infinity in {_format_names(names)}")


def _format_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more arrays"


def _free_name(path: AnyPath) -> AnyPath:
    names = (path if i == 1 else path.with_name(f"{path.name}-{i}") for i in itertools.count(1))
    return next(name for name in names if not name.exists())


def _cause(error: BaseException | None) -> str:
    """Returns the operating system's message for an error. If TensorStore gives only an error number, looks up its message. If
    the error has neither a message nor a number, returns the first line of the error."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).strip() or type(error).__name__
    number = _error_number(error)
    return os.strerror(number) if number else text.splitlines()[0][:200]


def _error_number(error: BaseException | None) -> int:
    """Returns the operating system's number of an error, which TensorStore writes in its message, or 0."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    number = re.search(r"os_error_code='(\d+)'", str(error))
    return int(number[1]) if number else 0


def _passing(error: Exception, state: AnyPath) -> UserError | None:
    """Returns an error with a remedy if a state could not be read although it may be intact, e.g. because a connection was lost.
    Returns None if the state is damaged."""
    if isinstance(error, FileNotFoundError):
        return None
    try:
        with explained(state):
            raise error
    except StorageError as found:
        return found
    except Exception:
        unreachable = _error_number(error) in _NOT_DAMAGE or isinstance(error, PermissionError) or _UNREACHABLE.match(str(error))
        return WorkdirError(_may_be_intact(state, _cause(error))) if unreachable else None


def _may_be_intact(state: AnyPath, cause: str) -> str:
    return (
        f"the checkpoint {state} cannot be read at the moment ({cause}), but it may be intact; when the directory can be read "
        "again, rerun the same command"
    )


# ------------------------------------------------------- digests: whether a restored array equals the saved one
INFINITE, NAN = np.uint32(1), np.uint32(2)
PARAMETERS = "params."
"""The beginning of the names of parameters in a state."""


def digests(state: PyTree[jax.Array]) -> tuple[dict[str, int], list[str]]:
    """Returns (digest of every array by name, names of arrays with NaN, and of parameters with infinity). An optimizer may use
    infinity in its state, for example as the best loss so far before the first step.

    A digest is a sum over the elements of an array, modulo 2**32. Each element adds a hash of its bits and of its index in the
    whole array, so the digest does not depend on the sharding. Each device reads its own part once, and no array is copied to
    the host. A change of a single element always changes the digest. Other changes go undetected with probability 2**-32. This
    is a collective that every process must call.
    """
    results = {}
    for name, array in by_name(state).items():
        sharding = array.sharding
        replicated = NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else None
        results[name] = _compiled(replicated)(array)
        if jax.default_backend() == "cpu":  # on a CPU, concurrent programs with collectives can deadlock
            jax.block_until_ready(results[name])
    results = jax.device_get(results)
    wrong = [name for name, (_, kind) in results.items() if kind > (0 if name.startswith(PARAMETERS) else INFINITE)]
    return {name: int(total) for name, (total, _) in results.items()}, wrong


def by_name(tree: PyTree[jax.Array]) -> dict[str, jax.Array]:
    """Returns path -> leaf of a tree, with paths like `params.pooler.dense.bias`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def differing(found: Mapping[str, int], written: Mapping[str, int]) -> list[str]:
    """Returns the names of the arrays whose digests differ, or that only one of the two arguments contains."""
    return sorted(name for name in {*found, *written} if found.get(name) != written.get(name))


@functools.cache
def _compiled(replicated: NamedSharding | None) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Returns the jitted `_sum_and_nonfinite` for arrays of one mesh. The function is compiled once per shape. Parameters and
    optimizer slots share shapes, and so do models with different heads. The first save therefore takes half as long as with one
    program for all arrays."""
    return jax.jit(_sum_and_nonfinite, out_shardings=replicated)


def _sum_and_nonfinite(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (uint32 digest, uint32: NAN if any element is NaN, otherwise INFINITE if any element is infinite, otherwise 0)."""
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    bits = (x if x.dtype == bool else jax.lax.bitcast_convert_type(x, unsigned)).astype(jnp.uint32)
    place = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        place = place * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    words = hash_word(bits + place * np.uint32(0x9E3779B9))
    kinds = jnp.zeros(x.shape, jnp.uint32)
    if jnp.issubdtype(x.dtype, jnp.floating):
        kinds = jnp.isinf(x) * INFINITE | jnp.isnan(x) * NAN
    start = (np.uint32(0), np.uint32(0))
    # One reduction computes both results, because XLA runs it 15 times faster on a CPU than two reductions.
    total, kind = jax.lax.reduce((words, kinds), start, lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])), (*range(x.ndim),))
    return total, kind
