"""The mesh axis `context`, which splits the length of activations, trained from the command line."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from tests.end_to_end import forked
from tests.end_to_end.conftest import command
from tests.end_to_end.runs import build_corpus, learned, weights, write_experiment

SHORT = ("--config.steps=20", "--config.evaluation.every=20", "--config.checkpoints.every=20", "--config.log_every=1")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("context")
    return write_experiment(directory / "experiment.py", build_corpus(directory / "corpus"))


def test_a_run_whose_rows_are_split_over_devices_is_the_run_whose_rows_are_whole(experiment: pathlib.Path):
    found = {}
    for context in (1, 2):
        workdir = experiment.parent / f"context-{context}"
        flags = (*SHORT, "--config.model.attention=plain", f"--config.mesh.context={context}")
        (done,) = forked.run(experiment.parent, command(experiment, workdir, *flags), devices=8)
        assert done.status == 0, done.output
        assert f"context {context} x" in done.output
        found[context] = workdir
    ours, theirs = weights(found[2]), weights(found[1])
    for name in theirs:
        if not name.endswith("key.bias"):  # without effect on the loss, so nothing but rounding moves it
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-5, err_msg=name)
    for a, b in zip(learned(found[2]), learned(found[1]), strict=True):
        for name in a:
            assert a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-5), name
