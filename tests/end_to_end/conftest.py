from __future__ import annotations

import dataclasses
import pathlib
import shutil
import signal

import pytest

from tests.end_to_end import forked
from tests.end_to_end.forked import Signal
from tests.end_to_end.runs import as_a_person, build_corpus, write_experiment
from tests.end_to_end.toy_tasks import own_texts, write_model

ASKED = "bert_jax.runtime.interruptions:Preemption.requested"
"""Called after every step, with its number."""


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The experiment file of a tiny run on a tiny corpus; the corpus lies beside it, in `corpus`."""
    directory = tmp_path_factory.mktemp("end_to_end")
    return write_experiment(directory / "experiment.py", build_corpus(directory / "corpus"))


@dataclasses.dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    workdir: pathlib.Path
    status: int
    output: str


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory with a pretrained `model` of a few thousand weights and the `train.csv` and `dev.csv` of `toy_tasks.own_texts`;
    what runs on them compile is kept there too."""
    directory = tmp_path_factory.mktemp("toys")
    write_model(directory / "model")
    own_texts(directory)
    return directory


def command(experiment: pathlib.Path, workdir: pathlib.Path, *flags: str) -> tuple[str, ...]:
    """A pretraining run."""
    return ("pretrain", f"--config={experiment}", f"--workdir={workdir}", *flags)


@pytest.fixture(scope="session")
def uninterrupted(experiment: pathlib.Path) -> Ended:
    """The run as it should be, from beginning to end on one device."""
    workdir = experiment.parent / "uninterrupted"
    return Ended(workdir, *as_a_person(*command(experiment, workdir), "--format=svg,png"))


@pytest.fixture(scope="session")
def killed(experiment: pathlib.Path, uninterrupted: Ended) -> Ended:
    """The same run, killed with SIGKILL before its first checkpoint and again after it, both in its first phase."""
    workdir = experiment.parent / "killed"
    for death in (
        Signal(ASKED, argument=2),
        Signal(ASKED, argument=7, once_there=(f"{workdir}/checkpoints/4",)),
    ):
        (done,) = forked.run(experiment.parent, command(experiment, workdir), at=death)
    return Ended(workdir, done.status, done.output)


@pytest.fixture(scope="session")
def terminated(experiment: pathlib.Path, killed: Ended) -> Ended:
    """The killed run started again and stopped with SIGTERM somewhat later."""
    stop = Signal(ASKED, argument=10, number=signal.SIGTERM)
    (done,) = forked.run(experiment.parent, command(experiment, killed.workdir), at=stop)
    return Ended(killed.workdir, done.status, done.output)


@pytest.fixture(scope="session")
def late(experiment: pathlib.Path, terminated: Ended) -> Ended:
    """A copy of the run started once more and stopped with SIGTERM in its second phase, so that what continues it has only that
    one's programs to compile."""
    workdir = shutil.copytree(terminated.workdir, terminated.workdir.with_name("late"))
    stop = Signal(ASKED, argument=18, number=signal.SIGTERM)
    (done,) = forked.run(experiment.parent, command(experiment, workdir), at=stop)
    return Ended(workdir, done.status, done.output)
