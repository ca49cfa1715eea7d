"""Runs commands in processes that start at once: they are forked from a process that has imported everything, so a test can start
a dozen.

A process gets command lines as a user types them after `tpu_scripts/run.sh`, and runs them one after another. Between them it
can call functions, for example to copy a workdir. It can send itself a signal at a given call of a given function, so that a run
ends exactly there, not just nearby.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import errno
import functools
import importlib
import multiprocessing
import os
import pathlib
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unittest.mock
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax._src import compiler, distributed
from jax.sharding import Mesh
from matplotlib.figure import Figure

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.interface.command import run_main
from bert_jax.objectives.objective import Teacher
from bert_jax.pretraining import program
from bert_jax.storage.objects import as_path
from bert_jax.training import curves as plots
from bert_jax.training.steps import Program
from tests.compiling import keep_programs, share_contexts
from tests.end_to_end.runs import CACHE, xla_flags

Command = Sequence[str] | Callable[[], object]
"""A command line, or a function of a module that is called in its place."""

SERVER = multiprocessing.get_context("forkserver")
COMMANDS = (
    *("corpus", "pretrain", "finetune", "study", "predict", "analyse", "convert", "aot", "doctor"),
    *("tasks.glue_submission", "tasks.texts"),
)
MODELS = ("bert_jax.interop.", "bert_jax.model.")
SERVER.set_forkserver_preload(
    [
        *("tests.collecting", *(f"bert_jax.{module}" for module in COMMANDS), "tensorboardX"),
        *("tests.end_to_end.forked", "tests.end_to_end.traced"),
    ]
)


@dataclasses.dataclass(frozen=True)
class Signal:
    """Sends `number` to the process at a call of `function` ("module:Class.method"), before the call does anything, or `after`
    it."""

    function: str
    call: int = 1
    """The number of the call."""
    argument: object = None
    """If set, only calls with this argument count."""
    number: int = signal.SIGKILL
    after: bool = False
    once_there: tuple[str, ...] = ()
    """Paths, on a disk or in a bucket, to wait for first, when something is saved in the background."""

    def arm(self) -> None:
        """Wraps the function in this process."""
        module, _, path = self.function.partition(":")
        *owners, name = path.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        original, calls = getattr(owner, name), 0

        @functools.wraps(original)
        def counting(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            counts = self.argument is None or any(value is self.argument or value == self.argument for value in arguments[:2])
            calls += counts
            if counts and calls == self.call and not self.after:
                self.send()
            result = original(*arguments, **named)
            if counts and calls == self.call and self.after:
                self.send()
            return result

        setattr(owner, name, counting)

    def send(self) -> None:
        """Waits for `once_there`, and acts."""
        deadline = time.monotonic() + 60
        while not all(as_path(path).exists() for path in self.awaited()):
            if time.monotonic() > deadline:
                os.write(2, f"{self.once_there} are not there after a minute\n".encode())
                os._exit(1)
            time.sleep(0.001)
        self.act()

    def awaited(self) -> Sequence[str]:
        return self.once_there

    def act(self) -> None:
        """Sends the signal to this process."""
        os.kill(os.getpid(), self.number)


@dataclasses.dataclass(frozen=True)
class Failure(Signal):
    """Raises `error` instead of sending a signal."""

    error: Exception = dataclasses.field(default_factory=lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def act(self) -> None:
        raise self.error


@dataclasses.dataclass(frozen=True)
class Move(Signal):
    """Moves `source` to `target` instead of sending a signal, as a user who tidies up might."""

    source: str = ""
    target: str = ""

    def act(self) -> None:
        pathlib.Path(self.source).rename(self.target)


class Killed(BaseException):
    """Ends a command whose workdir was copied by `Crash`."""


@dataclasses.dataclass(frozen=True)
class Crash(Signal):
    """Copies the workdir `source` to `target`, as SIGKILL would leave it, and ends the command with the status of SIGKILL, but
    not the process. Later commands resume the copy with the programs of this process. Paths in `once_there` are of `source`."""

    source: pathlib.Path = pathlib.Path()
    target: pathlib.Path = pathlib.Path()

    def awaited(self) -> Sequence[str]:
        return [f"{self.source}/{path}" for path in self.once_there]

    def act(self) -> None:
        with contextlib.suppress(shutil.Error):  # a thread may be removing an old checkpoint
            shutil.copytree(self.source, self.target)
        raise Killed


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """The environment in which a process starts."""

    directory: pathlib.Path | None = None
    """The current directory; if None, the tests' own."""
    stdin: bytes = b""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Environment variables in addition to the tests' own."""
    file_size: int | None = None
    """The maximum size of a file in bytes, as on a full disk."""
    closed: tuple[int, ...] = ()
    """The file descriptors to close, as after `>&-` in a shell."""

    def enter(self) -> None:
        """Applies these settings to this process."""
        if self.directory:
            os.chdir(self.directory)
        os.environ.update(self.environment)
        with tempfile.TemporaryFile() as file:
            file.write(self.stdin)
            file.seek(0)
            os.dup2(file.fileno(), 0)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # forkserver replaced the original
        for descriptor in self.closed:
            os.close(descriptor)
            setattr(sys, ("stdin", "stdout", "stderr")[descriptor], None)  # as Python starts if one is closed
        if self.file_size is not None:
            never = 1e9  # seconds; half-written programs would be cached for other processes
            jax.config.update("jax_persistent_cache_min_compile_time_secs", never)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_size, resource.RLIM_INFINITY))


@dataclasses.dataclass(frozen=True)
class Done:
    """How a command line ended: its exit status, or minus the signal that ended it, and all of its output."""

    status: int | None
    output: str


@dataclasses.dataclass(frozen=True)
class Started:
    """A running process, and the output of its command lines."""

    process: multiprocessing.process.BaseProcess
    outputs: Sequence[pathlib.Path]

    def end(self, timeout: float = 600) -> list[Done]:
        """Waits for the process. Returns how each command line ended."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            raise AssertionError(f"not done after {timeout} s: {self.said()}")
        done = []
        for path in self.outputs:
            status = path.with_suffix(".status")
            ended = int(status.read_text()) if status.exists() else self.process.exitcode
            done.append(Done(ended, path.read_text(errors="replace") if path.exists() else ""))
        return done

    def wait_until(self, reached: Callable[[], bool], timeout: float = 300) -> None:
        """Waits until `reached()`. Fails if the process ends before that."""
        deadline = time.monotonic() + timeout
        while not reached():
            if not self.process.is_alive() or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"ended or timed out too early: {self.said()}")
            time.sleep(0.005)

    def said(self) -> list[str]:
        return [path.read_text() for path in self.outputs if path.exists()]


def start(
    directory: pathlib.Path,
    *commands: Command,
    devices: int = 1,
    at: Signal | Sequence[Signal] | None = None,
    prepare: Callable[[], None] | None = None,
    slow: Sequence[str] = (),
    around: Surroundings | Sequence[Surroundings] = Surroundings(),
) -> Started:
    """Starts running `commands` in one process with this many devices; their output goes to files in `directory`.

    prepare: a function of a module, which the process calls first. slow: files and directories in whose path one of these regular
    expressions is found appear a second late, as on a slow disk. around: the environment of all commands, or one for each.
    """
    directory.mkdir(parents=True, exist_ok=True)
    outputs = [directory / f"output-{time.monotonic_ns()}-{i}.txt" for i in range(len(commands))]
    names = [str(path) for path in outputs]
    environment = {"XLA_FLAGS": xla_flags(devices), CACHE: os.environ[CACHE]}
    each = [around] * len(commands) if isinstance(around, Surroundings) else list(around)
    signals = [at] if isinstance(at, Signal) else list(at or ())
    lines = [command if callable(command) else list(command) for command in commands]
    arguments = (lines, names, environment, signals, prepare, slow, each)
    child = SERVER.Process(target=_child, args=arguments)
    child.start()
    return Started(child, outputs)


def run(
    directory: pathlib.Path,
    *commands: Command,
    devices: int = 1,
    at: Signal | Sequence[Signal] | None = None,
    prepare: Callable[[], None] | None = None,
    slow: Sequence[str] = (),
    around: Surroundings | Sequence[Surroundings] = Surroundings(),
    timeout: float = 600,
) -> list[Done]:
    """Runs `commands` as `start` does, and waits for them."""
    started = start(directory, *commands, devices=devices, at=at, prepare=prepare, slow=slow, around=around)
    return started.end(timeout)


@dataclasses.dataclass(frozen=True)
class Commands:
    """The directory in which the commands of a module's tests ran, and how each command ended, by its name."""

    base: pathlib.Path
    ends: dict[str, Done]
    lines: Mapping[str, Command] = dataclasses.field(default_factory=dict)


def commands_run(base: pathlib.Path, commands: Mapping[str, Command], **options: Any) -> Commands:
    """Runs `commands`, given by name, one after another in a process in the directory `base`, with the options of `run`."""
    return Commands(base, dict(zip(commands, run(base, *commands.values(), **options), strict=True)), commands)


def _child(
    commands: list[Command],
    outputs: list[str],
    environment: Mapping[str, str],
    at: Sequence[Signal],
    prepare: Callable[[], None] | None,
    slow: Sequence[str],
    around: Sequence[Surroundings],
) -> None:
    """Runs the commands in the new process. Their output goes to `outputs`, and their statuses to files next to it."""
    atexit._clear()  # only the parent runs what it has registered
    os.environ.update(environment)
    _keep_what_is_compiled([] if callable(commands[0]) else commands[0])
    jax.config.update("jax_disable_most_optimizations", True)  # compiling takes longer than running here
    share_contexts()
    multiprocessing.set_start_method("fork", force=True)  # its queues leave nothing behind if a process is killed
    _draw_blank_figures()
    _share_programs()
    if prepare:
        prepare()
    for one in at:
        one.arm()
    if slow:
        _slow_down(slow)
    for command, output, surroundings in zip(commands, outputs, around, strict=True):
        with pathlib.Path(output).open("wb") as file:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        if surroundings is not around[0]:
            _forget()
        surroundings.enter()
        status = _do(command)
        for stream in (sys.stdout, sys.stderr):
            if stream:
                stream.flush()
        pathlib.Path(output).with_suffix(".status").write_text(str(status))
    atexit._run_exitfuncs()  # as every command does as it exits, and multiprocessing's processes do not


def _forget() -> None:
    """Clears the caches of the package's functions: some have file names as keys, which mean other files in another directory.
    The caches of models have configurations as keys; to fill them again would take longer than most commands."""
    for cached in _cached_functions(len(sys.modules)):
        cached.cache_clear()


@functools.lru_cache(maxsize=1)
def _cached_functions(modules: int) -> list[Any]:
    """Returns the functions that `_forget` clears, among this number of loaded modules. To look for them takes 10 ms."""
    ours = [vars(module).values() for name, module in sys.modules.items() if name.startswith("bert_jax.")]
    found = [value for values in ours for value in values if isinstance(value, functools._lru_cache_wrapper)]
    return [value for value in found if not value.__module__.startswith(MODELS)]


def _share_programs() -> None:
    """Makes pretraining runs of this process that differ only in settings that their program does not have, such as the workdir,
    share a program, as fine-tuning runs do. To trace and compile a step again takes longer than to train."""
    make, kept = program.pretraining_program, {}
    usual = PretrainingExperiment()
    names = ("seed", "init_from", "init_state", "corpus", "evaluation", "checkpoints", "log_every", "abort_after_skipped")
    unused = {name: getattr(usual, name) for name in names}

    def shared(experiment: PretrainingExperiment, mesh: Mesh, teacher: Teacher | None = None) -> Program:
        same = dataclasses.replace(experiment, **unused)
        key = (pathlib.Path.cwd(), same, mesh, teacher is None)  # an experiment with a teacher has a digest of its weights
        if key not in kept:
            kept[key] = make(experiment, mesh, teacher)
        return kept[key]

    for module in list(sys.modules.values()):
        if vars(module).get(make.__name__) is make:
            setattr(module, make.__name__, shared)


def _keep_what_is_compiled(command: Sequence[str]) -> None:
    """Keeps compiled programs for later processes. JAX caches nothing that the second process of a run
    compiles, so that process gets a directory of its own."""
    index = next((word.partition("=")[2] for word in command if word.startswith("--process=")), "0")
    keep_programs(least=0.0, suffix="" if index == "0" else f"-{index}")
    write = getattr(compiler, "_cache_write", None)
    if index == "0" or write is None:  # a later version of JAX does not have it
        return

    def as_process_0(*arguments: Any) -> None:
        with unittest.mock.patch.object(distributed.global_state, "process_id", 0):
            write(*arguments)

    compiler._cache_write = as_process_0


def _draw_blank_figures() -> None:
    """Saves a blank figure when a run first draws its curves, and none later: drawing takes 0.3 s in each of a hundred runs.

    Real curves are drawn in the fixture `evaluated` of conftest.py, which starts a process of its own, and in the tests of
    `training/curves.py`.
    """

    def blank(records: Any, panels: Any, path: pathlib.Path, title: str, formats: Sequence[str], **rest: Any) -> None:
        if not path.exists():
            plots._save(Figure(figsize=(0.1, 0.1)), path, formats)

    plots._draw = blank


def _slow_down(patterns: Sequence[str]) -> None:
    rename = os.rename

    def late(source: Any, target: Any, **named: Any) -> None:
        if any(re.search(pattern, os.fspath(target)) for pattern in patterns):
            time.sleep(1)
        rename(source, target, **named)

    os.rename = late


def _do(command: Command) -> int:
    """Returns the exit status that `python -m bert_jax.COMMAND` would have; that of a function is 0."""
    try:
        if callable(command):
            command()
            return 0
        sys.argv = list(command)
        run_main(importlib.import_module(f"bert_jax.{command[0]}").main)
    except SystemExit as end:
        return int(end.code or 0)
    except Killed:
        return -signal.SIGKILL
    except BaseException:
        traceback.print_exc()
        return 1
