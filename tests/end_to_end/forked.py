"""Verbs in processes that start at once: forked from one that has imported everything, so that a test can afford a dozen.

A process is given command lines as a person would type them after `python -m bert_jax.`, and does them one after another. It can
be told to send itself a signal at a certain call of a certain function, so that a run ends exactly there, not somewhere near.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import multiprocessing
import os
import pathlib
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["bert_jax.finetune", "bert_jax.predict", "bert_jax.pretrain"])


@dataclasses.dataclass(frozen=True)
class Signal:
    """`number` is sent at the `call`th call of `function` ("module:Class.method"), before it does anything; `after`: once it is
    done. With `once_there` (a pattern of paths) it waits for such a path first: what is saved in the background is then there."""

    function: str
    call: int = 1
    number: int = signal.SIGKILL
    after: bool = False
    once_there: str = ""

    def arm(self) -> None:
        """Wraps the function, in this process."""
        module, _, path = self.function.partition(":")
        *owners, name = path.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        original, calls = getattr(owner, name), 0

        @functools.wraps(original)
        def counting(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == self.call and not self.after:
                self.send()
            result = original(*arguments, **named)
            if calls == self.call and self.after:
                self.send()
            return result

        setattr(owner, name, counting)

    def send(self) -> None:
        """Sends it to this process."""
        deadline = time.monotonic() + 60
        while self.once_there and not list(pathlib.Path("/").glob(self.once_there.lstrip("/"))) and time.monotonic() < deadline:
            time.sleep(0.001)
        os.kill(os.getpid(), self.number)


@dataclasses.dataclass(frozen=True)
class Done:
    """How a command line ended: its exit status, or minus the signal that ended it, and everything it said."""

    status: int | None
    output: str


def run(
    directory: pathlib.Path,
    *commands: Sequence[str],
    devices: int = 1,
    at: Signal | None = None,
    largest_file: int | None = None,
    optimised: bool = True,
    timeout: float = 300,
) -> list[Done]:
    """Does `commands` in one process on so many devices; what they compile is kept in `directory` for the runs that follow.

    largest_file: no file can grow beyond so many bytes, as on a full disk. optimised: False compiles faster and runs slower.
    """
    directory.mkdir(parents=True, exist_ok=True)
    outputs = [directory / f"output-{time.monotonic_ns()}-{i}.txt" for i in range(len(commands))]
    names = [str(path) for path in outputs]
    child = SERVER.Process(
        target=_child, args=(str(directory), [list(c) for c in commands], names, devices, at, largest_file, optimised)
    )
    child.start()
    child.join(timeout)
    if child.is_alive():
        child.kill()
        child.join()
        raise AssertionError(f"not done after {timeout} s: {[path.read_text() for path in outputs if path.exists()]}")
    done = []
    for path in outputs:
        status = path.with_suffix(".status")
        ended = int(status.read_text()) if status.exists() else child.exitcode
        done.append(Done(ended, path.read_text() if path.exists() else ""))
    return done


def _child(
    directory: str,
    commands: list[list[str]],
    outputs: list[str],
    devices: int,
    at: Signal | None,
    largest_file: int | None,
    optimised: bool,
) -> None:
    """In the new process: the verbs, with everything they say in `outputs` and their statuses beside."""
    import resource

    import jax

    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(directory, "compiled")
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_disable_most_optimizations", not optimised)
    if at:
        at.arm()
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for (verb, *arguments), output in zip(commands, outputs, strict=True):
        with open(output, "wb") as file:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        status = _do(verb, arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        pathlib.Path(output).with_suffix(".status").write_text(str(status))


def _do(verb: str, arguments: list[str]) -> int:
    """The exit status that `python -m bert_jax.VERB` would have."""
    module = importlib.import_module(f"bert_jax.{verb}")
    sys.argv = [verb, *arguments]
    try:
        module.run_verb(module.main)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
