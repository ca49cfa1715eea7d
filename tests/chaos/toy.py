"""The run that is disturbed: 20 steps of pretraining in several processes, with a workdir on a disk or in a bucket."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from bert_jax.storage import objects
from bert_jax.storage.fetching import cached_path, fetched
from bert_jax.storage.objects import as_path
from tests.end_to_end import forked
from tests.end_to_end.forked import Done, Started, Surroundings
from tests.end_to_end.runs import (
    REPOSITORY,
    build_corpus,
    checkpoints,
    environment_of_a_person,
    free_port,
    learned,
    records,
    results,
    weights,
    write_experiment,
)
from tests.storage.emulator import Emulator

PATIENCE = 30.0
"""Seconds without a step after which a process of the run counts as hung (--hang-seconds), and for which it waits for the others
at its start (--start-timeout)."""
LIMIT = 60.0
"""Seconds within which a disturbed run has to end."""
WHOLE = 600.0
"""Seconds within which a continued run has to finish."""
BRISK = 30.0
"""If the undisturbed run takes longer than this many seconds, all of these limits grow in proportion."""
AT_MOST = 3600.0
"""Seconds within which the undisturbed run has to end."""
TOO_SLOW = "Gloo context initialization failed"
"""An error of JAX's collectives between CPUs: all processes have to reach each collective within 30 s of the first one. A machine
that is busy with other programs may miss this limit, which no setting changes, so such a run is started again."""
STARTS = 3
"""The maximum number of such restarts."""
PAUSE = 0.1
"""Seconds added to every step, so that most of a run is training."""
ROUNDING = 2e-3
"""The tolerance after 20 steps with a different order of summation, relative to the largest weight of each array."""
DISK, BUCKET = "disk", "bucket"


EXPERIMENT = '''
"""One phase; weights and states divided by two; a checkpoint every four steps, a line of metrics every step."""

def get_config():
    return {{
        "corpus": {{"directory": {corpus!r}}},
        "model": {{"vocab_size": {vocabulary_size}, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32,
                  "max_position": 64, "initializer_range": 0.1}},
        "examples": {{"pairs": "none"}},
        "phases": [{{"steps": 20, "length": 32, "batch_size": 8, "max_predictions": 5, "learning_rate": 3e-3}}],
        "mesh": {{"fsdp": 2}},
        "evaluation": {{"every": 10, "rows": 20, "batch_size": 8}},
        "checkpoints": {{"every": 4, "keep": 2}},
        "log_every": 1,
    }}
'''


class Wrong(Exception):
    """Raised if a disturbance had a forbidden effect."""


class Skipped(Exception):
    """Raised if a disturbance is not possible on this machine."""


@dataclasses.dataclass(eq=False)
class Toys:
    """The files and the emulator that all trials share, and the undisturbed runs."""

    directory: pathlib.Path
    emulator: Emulator
    experiment: pathlib.Path = pathlib.Path()
    said: dict[int, int] = dataclasses.field(default_factory=dict)
    """The length of the output of process 0 in an undisturbed run, by the number of processes: it measures progress."""
    seconds: dict[int, float] = dataclasses.field(default_factory=dict)
    """The time that an undisturbed run took, by the number of processes."""

    def __post_init__(self) -> None:
        corpus = build_corpus(self.directory / "corpus")
        self.experiment = write_experiment(self.directory / "experiment.py", corpus, EXPERIMENT)

    @functools.cache  # noqa: B019 - there is one
    def undisturbed(self, processes: int) -> pathlib.Path:
        """Returns the workdir of the undisturbed run in this many processes, which also compiles everything that trials use."""
        for number in range(STARTS):
            began = time.monotonic()
            with contextlib.closing(Trial(self, "undisturbed", processes, DISK, random.Random(0), fresh=number)) as trial:
                ends = trial.ends(trial.start(pause=0.0), within=AT_MOST)
            if not any(TOO_SLOW in end.output for end in ends):
                break
        if any(end.status for end in ends):
            raise Wrong(f"the undisturbed run failed: {ends}")
        self.said[processes], self.seconds[processes] = len(ends[0].output), time.monotonic() - began
        return pathlib.Path(trial.workdir)

    def scaled(self, seconds: float) -> float:
        """Scales a time limit for this machine by the slowest of the undisturbed runs."""
        return seconds * max(1.0, max(self.seconds.values(), default=AT_MOST) / BRISK)


@dataclasses.dataclass(eq=False)
class Trial:
    """A run in several processes that is disturbed; `storage` is where its workdir is."""

    toys: Toys
    name: str
    processes: int
    storage: str
    rng: random.Random
    host: str = "127.0.0.1"
    """The address of process 0."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Environment variables for all processes."""
    kills: int = 5
    """The number of kills in a disturbance that kills processes."""
    fresh: int = 0
    """The number of times that this trial has started its run."""
    begun: list[Started] = dataclasses.field(default_factory=list)
    """All processes started so far."""

    def close(self) -> None:
        """Ends the processes that a failed trial has left, including stopped ones."""
        for run in self.begun:
            if run.process.is_alive():
                run.process.kill()
                run.process.join(10)

    @property
    def directory(self) -> pathlib.Path:
        """The local files of the trial."""
        return self.toys.directory / f"{self.name}-{self.processes}-{self.storage}"

    @property
    def workdir(self) -> str:
        """The workdir of the current run."""
        name = f"run-{self.fresh}"
        if self.storage == DISK:
            return str(self.directory / "disk" / name)
        return f"gs://{self.toys.emulator.bucket}/{self.directory.name}/{name}"

    def command(self, index: int, count: int, port: int) -> tuple[str, ...]:
        """Returns the command of process `index` of `count`."""
        patience = round(self.toys.scaled(PATIENCE))
        flags = [f"--config={self.toys.experiment}", f"--workdir={self.workdir}", f"--hang-seconds={patience}"]
        if count > 1:
            flags += [f"--coordinator={self.host}:{port}", f"--processes={count}", f"--process={index}"]
            flags += [f"--start-timeout={patience}"]
        return ("pretrain", *flags)

    def surroundings(self, index: int) -> dict[str, str]:
        """Returns the environment of process `index`, which has local copies of its own, like a separate host."""
        cache = {"BERT_JAX_CACHE": str(self.directory / f"cache-{index}"), "TF_CPP_MIN_LOG_LEVEL": "2"}
        return {**self.toys.emulator.environment, **cache, **self.environment}

    def start(
        self,
        count: int = 0,
        prepare: Mapping[int, Callable[[], object]] | None = None,
        pause: float = PAUSE,
        spawned: Mapping[int, Mapping[str, str]] | None = None,
    ) -> list[Started]:
        """Starts training in `count` processes, by default the trial's number. `prepare` is called first in the processes that it
        names. Processes in `spawned` start as programs of their own, with additional variables."""
        count, port = count or self.processes, free_port()
        started = []
        for index in range(count):
            command, environment = self.command(index, count, port), self.surroundings(index)
            if spawned and index in spawned:
                run = _spawn(self.directory, command, environment | dict(spawned[index]))
            else:
                first = functools.partial(_prepare, (prepare or {}).get(index), pause)
                around = Surroundings(environment=environment)
                run = forked.start(self.directory, command, prepare=first, around=around)
            self.begun.append(run)
            started.append(run)
        return started

    def ends(self, started: Sequence[Started], within: float = 0.0) -> list[Done]:
        """Returns how the processes end. Raises Wrong if one is still running after `within` seconds, by default LIMIT scaled for
        this machine."""
        within = within or self.toys.scaled(LIMIT)
        deadline, ends, late = time.monotonic() + within, [], []
        for index, run in enumerate(started):
            try:
                ends.append(run.end(max(0.1, deadline - time.monotonic()))[0])
            except AssertionError as error:
                late.append(f"process {index} has not ended within {within:.0f} s: {error}")
        if late:
            raise Wrong("\n".join(late))
        return ends

    def finish(self, count: int = 0) -> str:
        """Runs the same command again until the run is complete. Returns the output of process 0."""
        return self.whole(self.start(count, pause=0.0), "the same command does not go on")[0].output

    def whole(self, started: Sequence[Started], otherwise: str) -> list[Done]:
        """Waits for the processes to finish the run, and returns how they ended. Raises Wrong with the text `otherwise` if one
        fails."""
        ends = self.ends(started, within=self.toys.scaled(WHOLE))
        if any(end.status for end in ends):
            raise Wrong(f"{otherwise}: {ends}")
        return ends

    def saved(self) -> list[int]:
        """The steps whose checkpoints are complete."""
        if self.storage == DISK:
            return checkpoints(pathlib.Path(self.workdir))
        complete = [name.split("/") for name in objects.listed(self.workdir) if name.endswith("/commit_success.txt")]
        return sorted(int(parts[-2]) for parts in complete if parts[0] == "checkpoints" and parts[-2].isdigit())

    def wait_for(self, reached: Callable[[], bool], started: Sequence[Started], timeout: float = WHOLE) -> None:
        """Waits until `reached()`. If a process ends before that, or after `timeout` seconds, scaled for this machine, ends the
        processes and raises Wrong."""
        if not self.comes_to(reached, started, timeout):
            for run in started:
                run.process.kill()
            raise Wrong(f"the run ended or did not come so far: {[run.said() for run in started]}")

    def comes_to(self, reached: Callable[[], bool], started: Sequence[Started], timeout: float) -> bool:
        """Waits until `reached()`, a process ends, or `timeout` seconds are over, scaled for this machine. Returns whether it was
        reached."""
        deadline = time.monotonic() + self.toys.scaled(timeout)
        while not reached():
            if time.monotonic() > deadline or not all(run.process.is_alive() for run in started):
                return reached()
            time.sleep(0.05)
        return True

    def killed_after(self, count: int) -> int:
        """Starts the run, and kills all processes once this many checkpoints are complete. Returns the step of the newest."""
        started = self.start()
        self.wait_for(lambda: len(self.saved()) >= count, started)
        for run in started:
            run.process.kill()
        self.ends(started)
        return self.saved()[-1]

    def is_done(self) -> bool:
        """Returns whether the run has written its results."""
        with contextlib.suppress(OSError):
            return bool(as_path(f"{self.workdir}/results.json").exists())
        return False

    def compare(self, *, exact: bool = True) -> str:
        """Compares curve, weights and results with the undisturbed run in as many processes: bit for bit, or within rounding
        unless `exact`. Raises Wrong. Returns the text for the table."""
        wanted = self.toys.undisturbed(self.processes)
        if self.storage == BUCKET:  # as seen from a third machine
            if left := [name for name in objects.listed(self.workdir) if name.startswith((".lock", ".shared"))]:
                raise Wrong(f"files that only a run needs are left in the bucket: {left}")
            shutil.rmtree(cached_path(self.workdir), ignore_errors=True)
        ours = fetched(self.workdir, "--model")
        if exact:
            if learned(ours) != learned(wanted):
                raise Wrong(f"another curve: {_first_difference(learned(ours), learned(wanted))}")
            if results(ours) != results(wanted):
                raise Wrong(f"other results: {results(ours)} {results(wanted)}")
        elif [record["step"] for record in records(ours)] != [record["step"] for record in records(wanted)]:
            raise Wrong("other lines in metrics.jsonl")
        found, expected = weights(ours), weights(wanted)
        if found.keys() != expected.keys():
            raise Wrong(f"other arrays: {found.keys() ^ expected.keys()}")
        for name, array in expected.items():
            room = 0.0 if exact or name.endswith("key.bias") else ROUNDING * float(np.abs(array).max())
            difference = float(np.abs(found[name] - array).max())
            if difference > room and (exact or not name.endswith("key.bias")):
                raise Wrong(f"{name} differs by {difference}")
        return "the same bits" if exact else "the same within rounding"


class _Program:
    """A program with the methods of a forked process."""

    def __init__(self, program: subprocess.Popen[bytes]):
        self._program, self.pid, self.kill = program, program.pid, program.kill

    def is_alive(self) -> bool:
        return self._program.poll() is None

    def join(self, timeout: float | None = None) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._program.wait(timeout)

    @property
    def exitcode(self) -> int | None:
        return self._program.poll()


def _spawn(directory: pathlib.Path, command: Sequence[str], environment: Mapping[str, str]) -> Started:
    output = directory / f"spawned-{time.monotonic_ns()}.txt"
    name, *arguments = command
    with output.open("wb") as file:
        program = subprocess.Popen(
            [sys.executable, "-m", f"bert_jax.{name}", *arguments],
            cwd=REPOSITORY,
            env=environment_of_a_person() | dict(environment),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    return Started(cast(Any, _Program(program)), [output])


def _prepare(first: Callable[[], object] | None, pause: float) -> None:
    """Runs in the new process: calls `first`, and adds a pause after every step."""
    if first:
        first()
    if pause:
        _lengthen_steps(pause)


def _lengthen_steps(pause: float) -> None:
    from bert_jax.runtime.interruptions import Preemption

    requested = Preemption.requested

    def late(self: Preemption) -> bool:
        time.sleep(pause)
        return requested(self)

    Preemption.requested = late  # type: ignore[method-assign]


def _first_difference(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> str:
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            return f"{one} instead of {other}"
    return f"{len(ours)} lines instead of {len(theirs)}"
