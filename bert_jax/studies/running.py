"""Runs the parts of a study that are not done yet, shows the progress of the whole study, and stops when it is asked to."""

from __future__ import annotations

import logging
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from bert_jax.errors import MENDED_BY_RESTART, UserError
from bert_jax.interface.progress import Progress
from bert_jax.interface.words import counted, duration
from bert_jax.runtime.launch import Run
from bert_jax.runtime.workdir import LOCK, locked
from bert_jax.storage.paths import AnyPath, is_remote
from bert_jax.studies import children
from bert_jax.studies.parts import PRETRAINING, Part, Planned


def expected_seconds(part: Part, spent: Mapping[Part, float]) -> float | None:
    """Returns the expected time of a part (seconds). This is the mean time of the same part with other seeds. If there is none,
    it is the mean time of parts with the same name in other arms. If there is none either, and the part is not a pretraining,
    it is the mean time of all parts that are not pretrainings. Returns None if no such part is done."""
    same = [seconds for other, seconds in spent.items() if (other.arm, other.name) == (part.arm, part.name)]
    kind = [seconds for other, seconds in spent.items() if other.name == part.name]
    tasks = [seconds for other, seconds in spent.items() if PRETRAINING not in (other.name, part.name)]
    found = same or kind or tasks
    return statistics.fmean(found) if found else None


def seconds_left(waiting: Sequence[Part], spent: Mapping[Part, float], of_current: float) -> float | None:
    """Returns the time until all parts in `waiting` are done (seconds). The first part has been running for `of_current`
    seconds. Returns None if the time is unknown."""
    if not waiting:
        return 0.0
    expected = [expected_seconds(part, spent) for part in waiting]
    known = [seconds for seconds in expected if seconds is not None]
    if not known:
        return None
    usual = statistics.fmean(known)
    first, *others = [usual if seconds is None else seconds for seconds in expected]
    return max(0.0, first - of_current) + sum(others)


log = logging.getLogger(__name__)

PLAIN_EVERY = 60.0
"""The interval between two progress lines if stderr is not a terminal (seconds)."""


class Stopped(Exception):
    """Raised if a part stopped early. Either the part or the study was asked to stop, or the part ended with an exit status
    after which the same command resumes the part."""

    def __init__(self, status: int):
        super().__init__(f"exit status {status}")
        self.status = status


class Runner:
    """Runs commands as separate processes, one after another. `run` is the run of the command `study`. The workdir of `run` has
    the experiment files and the logs of the commands. `flags` are added to all commands that train."""

    def __init__(self, run: Run, flags: Sequence[str]):
        self._run, self._flags = run, flags

    def command(
        self, command: Sequence[str], log_file: pathlib.Path, title: str, shown: Callable[[str], object] = lambda line: None
    ) -> None:
        """Runs `command` to its end. `shown` is called regularly with the last line that the command printed.

        Raises Stopped if the study was asked to stop, or if the command ended with an exit status after which a restart resumes
        the command. Raises UserError with the last lines of the output if the command failed.
        """

        def watch() -> bool:
            self._run.watchdog.alive(title)
            shown(next(iter(children.last_lines(log_file, 1)), ""))
            return self._run.preemption.requested()

        self._run.require_in_place()
        trains = command[0] in ("pretrain", "finetune")
        status = children.run_alone([*command, *(self._flags if trains else ())], log_file, watch)
        self._run.require_in_place()
        if self._run.preemption.requested():
            raise Stopped(self._run.preemption.exit_status)
        if status in MENDED_BY_RESTART:
            log.error("%s ended (%s); the same command resumes", title, MENDED_BY_RESTART[status])
            raise Stopped(status)
        if status:
            said = "\n".join(f"  {line}" for line in children.last_lines(log_file))
            raise UserError(
                f"{title} failed with status {status}; {log_file} ends with:\n{said}\nfix the error, and run the study again"
            )

    def parts(self, planned: Planned, parts: Sequence[Part], done: Callable[[Part], object]) -> None:
        """Runs the `parts` that have no record yet, in order, and calls `done` after each part.

        Raises Stopped and UserError as `command` does."""
        waiting = [part for part in parts if not planned.is_done(part)]
        for part in parts:
            if part not in waiting:
                planned.clean_up(part)  # a killed study may have written the record without cleaning up
        spent = {part: seconds for part in parts if (seconds := _seconds(planned, part)) is not None}
        with Progress("study:", len(parts), "parts", plain_every=PLAIN_EVERY) as progress:
            for i, part in enumerate(waiting):
                began = time.monotonic()

                def shown(latest: str, i: int = i, part: Part = part, began: float = began) -> None:
                    left = seconds_left(waiting[i:], spent, time.monotonic() - began)
                    note = f"{part}: {latest}" if latest else str(part)
                    progress.update(len(parts) - len(waiting) + i, note, seconds_left=left)

                shown("")
                self._wait_for_earlier(part.workdir(planned.root))
                self.command(planned.command(part, self._run.workdir), part.log(self._run.workdir), str(part), shown)
                planned.finish(part)
                planned.clean_up(part)
                spent[part] = _seconds(planned, part) or time.monotonic() - began
                log.info("%s: done in %s", part, duration(time.monotonic() - began))
                done(part)
        log.info("%s done", counted(len(parts), "part"))

    def _wait_for_earlier(self, workdir: AnyPath) -> None:
        """Waits until no process uses the workdir of a part. If an earlier start of the study was killed, it may have left such
        a process."""
        while not is_remote(workdir) and (workdir / LOCK).exists():
            try:
                with locked(workdir, LOCK):
                    return
            except UserError as error:
                self._run.watchdog.alive("waiting for an earlier start")
                if self._run.preemption.requested():
                    raise Stopped(self._run.preemption.exit_status) from error
                time.sleep(children.POLL)


def _seconds(planned: Planned, part: Part) -> float | None:
    """Returns the seconds that a part has taken in all its starts together. Returns None if the part is not done. Also returns
    None for an earlier state, because its record has no times."""
    record = planned.record(part)
    spent = (record or {}).get("measured", {}).get("seconds", {})
    return sum(seconds for name, seconds in spent.items() if name != "between_starts") if spent else None
