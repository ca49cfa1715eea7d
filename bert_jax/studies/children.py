"""Runs the commands of a study's parts as separate processes, one after another. Each process has the whole machine to itself.

This module is also the program of the child process, with the arguments PID, COMMAND and flags. PID is the process that started
the child. When this process has ended, the child sends itself SIGTERM. If a study is killed, its training processes therefore
end too."""

from __future__ import annotations

import os
import pathlib
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

POLL = 0.5
"""The interval in seconds at which the study checks the part, and at which the part checks the process of the study."""
LAST_LINES = 12


def run_alone(command: Sequence[str], log: pathlib.Path, watch: Callable[[], bool]) -> int:
    """Runs `command` (its name and flags) to its end, and appends its output to the file `log`. Returns the exit status.

    `watch` is called regularly. Once it returns True, the child gets SIGTERM."""
    log.parent.mkdir(parents=True, exist_ok=True)
    isolated = ["-P"] if sys.flags.safe_path else []  # if this process does not search the current directory for modules
    started = [sys.executable, *isolated, "-m", __name__, str(os.getpid()), *command]
    with log.open("ab") as output, subprocess.Popen(started, stdout=output, stderr=subprocess.STDOUT) as process:
        asked = False
        while (status := process.poll()) is None:
            if watch() and not asked:
                asked = True
                process.terminate()
            time.sleep(POLL)
    return status if status >= 0 else 128 - status  # if a signal ended the process, this is the status that a shell reports


def last_lines(log: pathlib.Path, count: int = LAST_LINES) -> list[str]:
    """Returns at most `count` lines from the end of a log, without empty lines. Returns [] if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 20_000))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.replace("\r", "\n").splitlines() if line.strip()][-count:]


def _stop_with(parent: int) -> None:
    """Waits until the parent of this process is no longer `parent`, and then sends SIGTERM to this process."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: Sequence[str]) -> None:
    """Runs a command in this process. The `arguments` are PID, COMMAND and flags."""
    parent, name, *flags = arguments
    threading.Thread(target=_stop_with, args=(int(parent),), name="parent", daemon=True).start()
    sys.argv = [name, *flags]
    runpy.run_module(f"bert_jax.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
