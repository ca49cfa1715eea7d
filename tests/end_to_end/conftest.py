from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import signal

import pytest

from tests.compiling import keep_those_in
from tests.end_to_end import forked
from tests.end_to_end.forked import Signal
from tests.end_to_end.runs import BRIEF, CACHE, as_a_person, build_corpus, write_experiment
from tests.end_to_end.toy_tasks import own_texts, write_model

ASKED = "bert_jax.runtime.interruptions:Preemption.requested"
"""The function that a run calls after every step, with the step's number."""


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


@pytest.fixture(scope="session")
def uninterrupted(experiment: pathlib.Path) -> Ended:
    """Runs the experiment on one device without interruptions, as the reference for others, which read its programs."""
    workdir = experiment.parent / "uninterrupted"
    ended = Ended(workdir, *as_a_person(*command(experiment, workdir), "--format=svg,png"))
    keep_those_in(os.environ[CACHE])
    return ended


@pytest.fixture(scope="session")
def killed(experiment: pathlib.Path, uninterrupted: Ended) -> Ended:
    """Runs the same, killed with SIGKILL before its first checkpoint and again after it, both times in its first phase."""
    workdir = experiment.parent / "killed"
    for death in (
        Signal(ASKED, argument=2),
        Signal(ASKED, argument=7, once_there=(f"{workdir}/checkpoints/4",)),
    ):
        (done,) = forked.run(experiment.parent, command(experiment, workdir), at=death)
    return Ended(workdir, done.status, done.output)


@pytest.fixture(scope="session")
def late(experiment: pathlib.Path, killed: Ended) -> Ended:
    """Restarts a copy of the killed run and stops it with SIGTERM in its second phase, so that its continuation compiles only
    that phase's programs."""
    workdir = shutil.copytree(killed.workdir, killed.workdir.with_name("late"))
    stop = Signal(ASKED, argument=18, number=signal.SIGTERM)
    (done,) = forked.run(experiment.parent, command(experiment, workdir), at=stop)
    return Ended(workdir, done.status, done.output)


@pytest.fixture(scope="session")
def continued(experiment: pathlib.Path, late: Ended) -> Ended:
    """Restarts the run that was killed twice and then stopped, and lets it finish, with a profile and two more checkpoints."""
    workdir = shutil.copytree(late.workdir, late.workdir.with_name("continued"))
    flags = ("--profile=19:21", "--config.checkpoints.keep_at=[18,19]")
    (done,) = forked.run(experiment.parent, command(experiment, workdir, *flags))
    assert done.status == 0, done.output
    return Ended(workdir, done.status, done.output)
