from __future__ import annotations

import dataclasses
import pathlib
import signal
from collections.abc import Callable

import pytest

from tests.end_to_end.runs import Run, build_corpus, checkpoints, last_step, write_experiment
from tests.end_to_end.toy_tasks import own_texts, write_model


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


@pytest.fixture(scope="session")
def uninterrupted(experiment: pathlib.Path) -> Ended:
    """The run as it should be, from beginning to end on one device."""
    workdir = experiment.parent / "uninterrupted"
    return Ended(workdir, *Run(experiment, workdir).end())


@pytest.fixture(scope="session")
def killed(experiment: pathlib.Path, uninterrupted: Ended) -> Ended:
    """The same run, killed with SIGKILL before its first checkpoint and again after it, both in its first phase."""
    workdir = experiment.parent / "killed"

    def kill_once(reached: Callable[[], bool]) -> Ended:
        run = Run(experiment, workdir)
        run.wait_until(reached)
        run.process.kill()
        return Ended(workdir, *run.end())

    kill_once(lambda: last_step(workdir) >= 1)
    return kill_once(lambda: last_step(workdir) >= 6 and len(checkpoints(workdir)) > 0)


@pytest.fixture(scope="session")
def terminated(experiment: pathlib.Path, killed: Ended) -> Ended:
    """The killed run started again and stopped with SIGTERM somewhat later."""
    run = Run(experiment, killed.workdir)
    run.wait_until(lambda: last_step(run.workdir) >= 10)
    run.process.send_signal(signal.SIGTERM)
    return Ended(run.workdir, *run.end())
