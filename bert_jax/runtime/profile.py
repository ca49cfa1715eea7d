"""Profiles a few steps for XProf, if `pretrain`, `finetune` or `predict` has the flag `--profile=FIRST:LAST`."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

import jax

from bert_jax.errors import UserError

log = logging.getLogger(__name__)

Made = TypeVar("Made")

PROFILE = "profile"
"""The directory of the profile in a workdir."""
SESSIONS = pathlib.Path("plugins") / "profile"
"""The location of XProf's sessions below its --logdir."""


class Profile(contextlib.AbstractContextManager["Profile"]):
    """Writes a profile of the `steps` of a loop to `directory`, where `xprof --logdir=DIRECTORY` finds it. Does nothing if
    `steps` is None.

    The numbers count finished steps, so 10:15 starts after step 10 and ends after step 15. If a loop resumes between these
    steps, the profile starts when the loop starts. Every process writes its own part. If the profile is still running at the
    end of the `with` block, it is written then.

    >>> with Profile(range(10, 15), workdir / PROFILE) as profile:
    ...     for batch in profile.trace_steps(batches, step, sums.check):
    ...         ...
    """

    def __init__(self, steps: range | None = None, directory: pathlib.Path = pathlib.Path(), what: str = "train"):
        self.steps, self.directory, self._what = steps, directory, what
        self.was_taken = False
        """Whether a profile has been started."""
        self._is_tracing = False
        self._free = threading.Lock()  # only the first run of a sweep, which acquires this lock, is profiled

    def __str__(self) -> str:
        return f"--profile={self.steps.start}:{self.steps.stop}" if self.steps else "no profile"

    def require(self, last_step: int) -> None:
        """Raises UserError if the profile would end after the last step of the run."""
        if self.steps and self.steps.stop > last_step:
            raise UserError(f"{self} ends after the last step of this run, {last_step:,}; name earlier steps")

    def for_run(self, last_step: int, *, alone: bool) -> Profile:
        """Returns the profile for a run that ends at `last_step`. In a sweep, only the first run with enough steps is profiled.
        Raises UserError, as `require` does, for a run that is `alone` and does not have enough steps."""
        if alone:
            self.require(last_step)
        if self.steps and self.steps.stop <= last_step and self._free.acquire(blocking=False):
            return self
        return Profile()

    def trace_steps(self, batches: Iterator[Made], step: int, wait: Callable[[int], object]) -> Iterator[Made]:
        """Yields `batches`, starting with the batch after `step`, and profiles them. `wait(step)` waits until the devices have
        finished `step`. If the steps to profile were done in an earlier start, this is logged."""
        if self.steps is not None and step >= self.steps.stop and not self.was_taken:
            log.warning("no profile: this start continues after step %s; name later steps than %s", f"{step:,}", str(self))
            self.steps = None
        return batches if self.steps is None or step >= self.steps.stop else self._of_steps(batches, step, self.steps, wait)

    def _of_steps(
        self, batches: Iterator[Made], step: int, steps: range, wait: Callable[[int], object]
    ) -> Iterator[Made]:
        while True:
            if step == steps.stop and self._is_tracing:
                wait(step)
                self._stop()
            try:
                batch = next(batches)
            except StopIteration:
                return
            if step in steps and not self.was_taken:
                self._start(steps)
            with jax.profiler.StepTraceAnnotation(self._what, step_num=step) if self._is_tracing else contextlib.nullcontext():
                yield batch
            step += 1

    def _start(self, steps: range) -> None:
        options = jax.profiler.ProfileOptions()
        options.session_id = f"steps-{steps.start}-{steps.stop}"  # the same on every host, so that XProf shows all hosts together
        options.python_tracer_level = 0  # otherwise, every Python call would be an event and slow down the host
        self.was_taken = True
        with self._problems_told():
            self._place.mkdir(parents=True, exist_ok=True)  # report directory errors before the profile, not after it
            jax.profiler.start_trace(self._place, profiler_options=options)
            self._is_tracing = True

    def _stop(self) -> None:
        self._is_tracing = False
        with self._problems_told():
            jax.profiler.stop_trace()
            if jax.process_count() > 1:
                self._collect()
            log.info("profile: %s; open it with `xprof --logdir=%s`", self.directory, self.directory)

    @property
    def _place(self) -> pathlib.Path:
        """The directory into which JAX writes. Several processes get separate directories, since processes on the same host use
        the same file names."""
        return self.directory / f".process-{jax.process_index()}" if jax.process_count() > 1 else self.directory

    def _collect(self) -> None:
        """Moves this process's files to the shared directory, and names them after the process instead of the host."""
        for path in sorted((self._place / SESSIONS).glob("*/*")):
            session = self.directory / SESSIONS / path.parent.name
            session.mkdir(parents=True, exist_ok=True)
            path.rename(session / f"process-{jax.process_index()}{''.join(path.suffixes[-2:])}")
        for path in sorted(self._place.rglob("*"), reverse=True):
            path.rmdir()
        self._place.rmdir()

    @contextlib.contextmanager
    def _problems_told(self) -> Iterator[None]:
        """Logs errors of the profiler or the disk instead of raising them, so that a profile never ends a run."""
        try:
            yield
        except (OSError, RuntimeError) as error:  # JaxRuntimeError too
            log.warning("the profile in %s could not be written (%s)", self.directory, str(error).splitlines()[0])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_tracing:
            self._stop()
