"""The time for which a save stops the training, on a disk and in a bucket, and the time that a run's bookkeeping adds to a step.

    python tests/benchmarks/benchmark_saving.py [--directory=DIR] [--size=base]

A pretraining state (parameters and both moments of Adam) is saved as `pretrain` saves it, in DIR and in a bucket of the emulator
on this machine. For each save the table has the time until the training continues and the time until the save is complete. For
comparison, it has the time to copy the state in memory, which every save in the background needs, and the time to compute the
digests, which comes before that. Then the loop of a run is timed with empty steps, once with the goodput recorder and a disabled
profile and once without them: the difference is what they add to a step. The results are medians over --saves; the first save,
which compiles the digests, is left out. Run it on an idle machine with room for two states on the disk and four in memory. All
figures go to --json=FILE.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import flax.linen as nn
import jax
import numpy as np
from etils import epath

from bert_jax.data.prefetch import prefetch
from bert_jax.model.config import ModelConfig, published
from bert_jax.model.pretraining import initial_parameters
from bert_jax.runtime.environment import quiet_libraries
from bert_jax.runtime.goodput import GoodputRecorder
from bert_jax.runtime.profile import Profile
from bert_jax.storage import objects
from bert_jax.storage.paths import AnyPath
from bert_jax.training.checkpoints import Checkpoints, digests
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.steps import TrainState, new_state
from tests.benchmarks.figures import flag_parser, give
from tests.storage.emulator import running

GIB = 2**30
EMPTY_STEPS = 20_000


def state_of(size: str) -> TrainState:
    """Returns a pretraining state with random weights."""
    config = ModelConfig(**cast(dict[str, Any], published(size)))
    params = initial_parameters(config, jax.random.key(0))
    return new_state(nn.unbox(params), make_optimizer(OptimizerConfig(name="adamw"), params))


def seconds(function: Callable[[], object]) -> float:
    """Returns the time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_memory(state: TrainState) -> None:
    """Copies the state array by array, as a host copies it from a device. (A CPU device shares the memory of its host.)"""
    jax.tree.map(lambda x: np.array(x, copy=True), state)


def saves(place: AnyPath, state: TrainState, count: int) -> Iterator[dict[str, float]]:
    """Returns the seconds of each save in `place`: until it returns, and until it is complete. The first save is left out."""
    with Checkpoints(place) as checkpoints:
        for step in range(count + 1):
            stopped = seconds(functools.partial(checkpoints.save, step, state))
            rest = seconds(checkpoints.finish)
            if step:
                yield {"stopped": stopped, "complete": stopped + rest}


def bookkeeping() -> dict[str, float]:
    """Returns the microseconds of an empty step in a loop, without and with the goodput recorder and a profile that is off."""

    def bare() -> None:
        with prefetch(int, 0, EMPTY_STEPS) as batches:
            for _ in batches:
                pass

    def as_in_a_run() -> None:
        goodput, profile, step = GoodputRecorder(), Profile(), 0
        with goodput.training(prefetch(int, 0, EMPTY_STEPS), lambda: False) as batches:
            for _ in profile.trace_steps(batches, step, int):
                step += 1
                goodput.step_done(step)

    found: dict[str, list[float]] = {"bare": [], "run": []}
    for _ in range(5):
        for name, loop in (("bare", bare), ("run", as_in_a_run)):
            found[name].append(seconds(loop))
    return {name: 1e6 * min(times) / EMPTY_STEPS for name, times in found.items()}


def report(figures: dict[str, Any], file: pathlib.Path | None) -> None:
    """Prints a row for each place, with the medians."""

    def median(times: list[float]) -> str:
        return f"{statistics.median(times):.2f}"

    columns = ["where", "GiB", "copy in memory, s", "digests, s", "training stopped, s", "complete after, s"]
    rows = [
        [
            where,
            f"{figures['bytes'] / GIB:.2f}",
            median(figures["copy"]),
            median(figures["digests"]),
            *(median([save[what] for save in found]) for what in ("stopped", "complete")),
        ]
        for where, found in figures["saves"].items()
    ]
    added = figures["bookkeeping"]["run"] - figures["bookkeeping"]["bare"]
    print(f"an empty step takes {added:+.0f} microseconds longer with the goodput recorder on and the profile off")
    give(columns, rows, figures, file)


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--directory", type=pathlib.Path, help="a directory on the disk (default: a temporary one)")
    parser.add_argument("--size", default="base", help="a published size")
    parser.add_argument("--saves", type=int, default=5)
    options = parser.parse_args()
    quiet_libraries()
    state = state_of(options.size)
    times = range(options.saves)
    figures: dict[str, Any] = {"bytes": sum(x.nbytes for x in jax.tree.leaves(state)), "bookkeeping": bookkeeping(), "saves": {}}
    in_memory(state)  # the first of each is slower
    digests(state)
    figures["copy"] = [seconds(functools.partial(in_memory, state)) for _ in times]
    figures["digests"] = [seconds(functools.partial(digests, state)) for _ in times]
    with contextlib.ExitStack() as stack:
        disk = options.directory or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures["saves"]["disk"] = list(saves(disk / "checkpoints", state, options.saves))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        emulator = stack.enter_context(running(port))
        os.environ |= emulator.environment
        objects.set_up()
        figures["saves"]["bucket"] = list(saves(epath.Path(f"gs://{emulator.bucket}/checkpoints"), state, options.saves))
    report(figures, options.json)


if __name__ == "__main__":
    main()
