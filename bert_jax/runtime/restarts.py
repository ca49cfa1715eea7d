"""Restarts a command if its exit status is one that a restart may fix: `tpu_scripts/run.sh --restarts=N COMMAND ...`.

This program ends with the exit status of the command, with two exceptions: 2 if the command has failed twice after the same
step, since another restart would not help, and 42 if the restarts are used up after another status than 43."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.runtime.restarts")

import contextlib
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from bert_jax.errors import HUNG, MENDED_BY_RESTART, MISSING, STOPPED, UserError
from bert_jax.interface.flags import expand_home
from bert_jax.interface.words import counted, duration
from bert_jax.runtime.workdir import METRICS, read_metrics
from bert_jax.storage.objects import as_path, explained
from bert_jax.storage.paths import AnyPath

FIRST_PAUSE = 10.0
"""Seconds before the first restart. Each further pause is twice as long."""

LONGEST_PAUSE = 160.0
"""The longest pause in seconds. It is shorter than --start-timeout (default: 300), so that the workers of a pod still meet if
their pauses differ."""

MISSING_IN_A_ROW = 3
"""The number of consecutive starts without another process after which the command is not restarted."""


def keep_running(name: str, arguments: Sequence[str], restarts: int, first_pause: float = FIRST_PAUSE) -> int:
    """Runs a command. Restarts the command, at most `restarts` times, if its exit status is one that a restart may fix. Returns
    the last exit status, or 42 if all restarts are used up. After another process has not started in time, also in the last of
    three starts in a row, returns 43 instead.

    Raises UserError if the command fails twice after the same step. A stop by SIGTERM does not count as a failure, and
    neither does another process that has not started in time. If this process receives a signal, the command ends and is not
    restarted."""
    command = [sys.executable, "-P", "-m", f"bert_jax.{name}", *arguments]  # -P: do not import from the current directory
    workdir = find_workdir(arguments)
    failed: set[int] = set()
    missing = 0
    with _Signals() as signals:
        for restart in range(1, restarts + 2):
            status = signals.run(command)
            if signals.received or status not in MENDED_BY_RESTART:
                return status
            step = steps_done(workdir) if workdir else 0
            ended = f"{name} ended with exit status {status} ({MENDED_BY_RESTART[status]}) {_after(step)}"
            missing = missing + 1 if status == MISSING else 0
            if missing == MISSING_IN_A_ROW:
                _say(f"error: {ended}, {counted(missing, 'time')} in a row: look at the other processes, then start all again")
                return MISSING
            if status not in (MISSING, STOPPED):
                if step in failed:
                    raise UserError(
                        f"{ended}, as before: a restart does not help. The lines above show why it ended"
                        f" (after a hang also {workdir}/hang-*.txt). Fix the cause and rerun the same command, which resumes"
                    )
                failed.add(step)
            if restart > restarts:
                break
            pause = min(first_pause * 2 ** (restart - 1), LONGEST_PAUSE)
            _say(f"{ended}; restart {restart} of {restarts} in {duration(pause)}")
            if signals.interrupted_within(pause):
                return 128 + signals.received
    _say(f"error: {ended}, but --restarts={restarts} allows no further restart; the same command resumes")
    return MISSING if missing else HUNG


def find_workdir(arguments: Sequence[str]) -> AnyPath | None:
    """Returns the directory in `--workdir=DIR` or `--workdir DIR` among a command's arguments, or None."""
    found = None
    for argument, following in itertools.pairwise([*arguments, ""]):
        flag, equals, value = argument.partition("=")
        if flag == "--workdir":
            text = value if equals else following
            found = as_path(expand_home(text, f"--workdir={text}"))
    return found


def steps_done(workdir: AnyPath) -> int:
    """Returns the last step in the workdir's `metrics.jsonl`, or 0. For a sweep or a study, returns the sum over its runs,
    including the sweeps of a study."""
    total = 0
    with contextlib.suppress(OSError), explained(workdir):  # the storage may be temporarily unavailable
        runs = (path for below in ("*/*", "*/*/*", "*/*/*/runs/*") for path in sorted(workdir.glob(f"{below}/{METRICS}")))
        for path in [workdir / METRICS, *runs]:
            records = read_metrics(path)
            total += int(records[-1]["step"]) if records else 0
    return total


def _after(step: int) -> str:
    return f"after {counted(step, 'step')}" if step else "before its first logged step"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Signals:
    """Runs child processes and forwards SIGTERM to them. Ctrl-C is only recorded, since the terminal sends it to the child
    too. If this process was started to ignore Ctrl-C, the child ignores it as well."""

    def __init__(self) -> None:
        self.received = 0
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Signals:
        numbers = [signal.SIGTERM]
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # otherwise, this process was started with `&` in a script
            numbers.append(signal.SIGINT)
        self._previous = {number: signal.signal(number, self._notice) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def run(self, command: Sequence[str]) -> int:
        """Runs a command to its end. Returns its exit status, or 128 + the signal that ended it."""
        self._child = subprocess.Popen(command)
        if self.received:  # the signal came while the child was being started
            self._child.send_signal(self.received)
        status = self._child.wait()
        return status if status >= 0 else 128 - status

    def interrupted_within(self, seconds: float) -> bool:
        """Sleeps until a signal arrives, at most `seconds`. Returns whether a signal has arrived."""
        end = time.monotonic() + seconds
        while not self.received and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))
        return self.received != 0

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        if number == signal.SIGTERM and self._child is not None:
            self._child.send_signal(number)


def main() -> int:
    """Runs the command given as N COMMAND [ARGUMENT ...]. `tpu_scripts/run.sh` has already checked these arguments."""
    restarts, name, *arguments = sys.argv[1:]
    return keep_running(name, arguments, int(restarts))
