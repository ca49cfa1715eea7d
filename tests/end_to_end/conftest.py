from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import shutil
import signal
from collections.abc import Callable

import jax
import pytest
from safetensors.numpy import load_file, save_file

from tests.end_to_end import forked
from tests.end_to_end.forked import Command, Crash, Done, Failure, Move, Signal, Surroundings
from tests.end_to_end.runs import BRIEF, LAST_STEP, as_a_person, build_corpus, damage_newest_checkpoint, write_experiment
from tests.end_to_end.toy_tasks import own_texts, write_model

ASKED = "bert_jax.runtime.interruptions:Watchdog.step_done"
"""The function that a run calls after every step, with the step's number."""
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes."
TOO_LARGE = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.25G of 15.75G hbm."
"""JAX's errors for a program that runs out of memory, and for one that does not compile."""


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Writes the experiment file of a tiny run on a tiny corpus, which is next to it in `corpus`."""
    directory = tmp_path_factory.mktemp("end_to_end")
    return write_experiment(directory / "experiment.py", build_corpus(directory / "corpus"))


@pytest.fixture(scope="session")
def brief(experiment: pathlib.Path) -> pathlib.Path:
    """Writes the experiment file of a run with one phase on the same corpus."""
    return write_experiment(experiment.with_name("brief.py"), experiment.parent / "corpus", BRIEF)


@dataclasses.dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    workdir: pathlib.Path
    status: int
    output: str


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a directory with a pretrained `model` of a few thousand weights and the `train.csv` and `dev.csv` of
    `toy_tasks.own_texts`. Programs compiled by runs on them are cached there too."""
    directory = tmp_path_factory.mktemp("toys")
    write_model(directory / "model")
    own_texts(directory)
    return directory


def command(experiment: pathlib.Path, workdir: pathlib.Path, *flags: str) -> tuple[str, ...]:
    """Returns the command of a pretraining run."""
    return ("pretrain", f"--config={experiment}", f"--workdir={workdir}", *flags)


def copying(source: pathlib.Path, target: pathlib.Path) -> Callable[[], object]:
    """Returns a function that copies a workdir, to be called between the commands of a process."""
    return functools.partial(shutil.copytree, source, target)


@pytest.fixture(scope="session")
def finished(experiment: pathlib.Path) -> dict[str, Done]:
    """Runs the experiment on one device without interruptions. In the same process, starts it again, replays three steps, starts
    another run that twice runs out of memory, the second time after a restart with a flag that needs less, and one that is killed
    before its first checkpoint and again after it, both times in its first phase. The second is a SIGKILL, which ends the
    process."""
    base = experiment.parent
    names = ("uninterrupted", "bare", "short_of_memory", "begun", "killed")
    workdir, bare, short, begun, killed = (base / name for name in names)
    commands: dict[str, Command] = {
        "run": command(experiment, workdir, "--format=svg,png"),
        "copied": copying(workdir, base / "before"),
        "restarted": command(experiment, workdir),
        **{f"step {step}": ("pretrain", f"--workdir={workdir}", f"--replay={step}") for step in (22, 17)},
        "copied again": copying(workdir, base / "after"),
        "copied once more": copying(workdir, bare),
        "without checkpoints": functools.partial(shutil.rmtree, bare / "checkpoints"),
        "step 5": ("pretrain", f"--workdir={bare}", "--replay=5"),
        "restarted without checkpoints": command(experiment, bare),
        "armed": Failure("jax.stages:Compiled.__call__", call=7, error=jax.errors.JaxRuntimeError(OUT_OF_MEMORY)).arm,
        "out of memory": command(experiment, short),
        "armed again": Failure(
            "bert_jax.pretraining.evaluation:add_sums", error=jax.errors.JaxRuntimeError(OUT_OF_MEMORY)
        ).arm,
        "with the flag": command(experiment, short, "--config.phases.0.accumulation=2"),
        "first death": Crash(ASKED, argument=2, source=begun, target=killed).arm,
        "begun": command(experiment, begun),
        "second death": Signal(ASKED, argument=7, once_there=(f"{killed}/checkpoints/4",)).arm,
        "killed": command(experiment, killed),
    }
    return forked.commands_run(base, commands).ends


@pytest.fixture(scope="session")
def uninterrupted(experiment: pathlib.Path, finished: dict[str, Done]) -> Ended:
    """Returns the uninterrupted run, as the reference for others, which read its programs."""
    return Ended(experiment.parent / "uninterrupted", *dataclasses.astuple(finished["run"]))


@pytest.fixture(scope="session")
def evaluated(experiment: pathlib.Path, uninterrupted: Ended) -> Ended:
    """Restarts a copy of the uninterrupted run as if it had been killed before its results, in a process of its own."""
    workdir = shutil.copytree(uninterrupted.workdir, experiment.parent / "evaluated")
    (workdir / "results.json").unlink()
    for name in ("svg", "png"):
        (workdir / f"curves.{name}").unlink()
    shutil.rmtree(workdir / "model")
    return Ended(workdir, *as_a_person(*command(experiment, workdir, "--format=svg,png")))


@pytest.fixture(scope="session")
def killed(experiment: pathlib.Path, finished: dict[str, Done]) -> Ended:
    """Returns the run that was killed twice."""
    return Ended(experiment.parent / "killed", *dataclasses.astuple(finished["killed"]))


@pytest.fixture(scope="session")
def restarts(experiment: pathlib.Path, killed: Ended) -> dict[str, Done]:
    """Restarts a copy of the killed run and stops it with SIGTERM in its second phase. In the same process, copies of the stopped
    run continue: with a profile and two more checkpoints; with a step that does not compile; and with its workdir moved away and
    back, the newest checkpoint damaged, and the last save failed."""
    base = experiment.parent
    late, continued, uncompiled, hindered = (base / name for name in ("late", "continued", "uncompiled", "hindered"))
    moved = base / "hindered-moved"
    commands: dict[str, Command] = {
        "killed": copying(killed.workdir, late),
        "armed": Signal(ASKED, argument=18, number=signal.SIGTERM).arm,
        "late": command(experiment, late),
        "copied": copying(late, continued),
        "continued": command(experiment, continued, "--profile=19:21", "--config.checkpoints.keep_at=[18,19]"),
        "copied again": copying(late, uncompiled),
        "too large": Failure("jax.stages:Lowered.compile", error=jax.errors.JaxRuntimeError(TOO_LARGE)).arm,
        "uncompiled": command(experiment, uncompiled),
        "copied once more": copying(late, hindered),
        "moving": Move(ASKED, argument=19, source=str(hindered), target=str(moved)).arm,
        "moved": command(experiment, hindered),
        "moved back": functools.partial(os.rename, moved, hindered),
        "damaged": functools.partial(damage_newest_checkpoint, hindered),
        "full": Failure("orbax.checkpoint:CheckpointManager.save", argument=LAST_STEP).arm,
        "hindered": command(experiment, hindered),
    }
    return forked.commands_run(base, commands).ends


@pytest.fixture(scope="session")
def late(experiment: pathlib.Path, restarts: dict[str, Done]) -> Ended:
    """Returns the run that was killed twice and then stopped."""
    return Ended(experiment.parent / "late", *dataclasses.astuple(restarts["late"]))


@pytest.fixture(scope="session")
def continued(experiment: pathlib.Path, restarts: dict[str, Done]) -> Ended:
    """Returns the run that was killed twice and stopped, and then finished."""
    return Ended(experiment.parent / "continued", *dataclasses.astuple(restarts["continued"]))


@pytest.fixture(scope="session")
def hindered(experiment: pathlib.Path, restarts: dict[str, Done]) -> Ended:
    """Returns the continued run whose workdir was moved, whose newest checkpoint was damaged, and whose last save failed."""
    return Ended(experiment.parent / "hindered", *dataclasses.astuple(restarts["hindered"]))


@pytest.fixture(scope="session")
def briefs(brief: pathlib.Path, uninterrupted: Ended) -> dict[str, Done]:
    """Runs with one phase, in one process and in workdirs of their names: one with the weights of the uninterrupted run, one with
    weights that overflow, one whose corpus has a flipped byte, and one whose disk is full."""
    base = brief.parent
    damaged, overflowing = base / "damaged", base / "overflowing"
    victim = next(shutil.copytree(base / "corpus", damaged).glob("shard-*/train.tokens.npy"))
    content = victim.read_bytes()
    victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    file = shutil.copytree(uninterrupted.workdir / "model", overflowing) / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("embeddings.LayerNorm.weight"))
    save_file(tensors | {name: 1e30 * tensors[name]}, file)
    flags = {
        "from_weights": (f"--config.init_from={uninterrupted.workdir}", "--config.seed=3", "--config.log_every=5"),
        "not_finite": (f"--config.init_from={overflowing}", "--config.abort_after_skipped=3"),
        "flipped": (f"--config.corpus.directory={damaged}",),
        "full": (),
    }
    usual = Surroundings()
    around = [usual] * (len(flags) - 1) + [Surroundings(file_size=16_000)]
    ends = forked.run(base, *(command(brief, base / name, *some) for name, some in flags.items()), around=around)
    return dict(zip(flags, ends, strict=True))
