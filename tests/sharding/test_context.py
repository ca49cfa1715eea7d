"""The mesh axis `context`, which splits the length of activations, trained from the command line."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from tests.end_to_end import forked
from tests.end_to_end.conftest import command
from tests.end_to_end.runs import build_corpus, learned, weights, write_experiment

SHORT = ("--config.steps=20", "--config.evaluation.every=20", "--config.checkpoints.every=20", "--config.log_every=1")


def test_a_run_whose_rows_are_split_over_devices_is_the_run_whose_rows_are_whole(tmp_path: pathlib.Path):
    experiment = write_experiment(tmp_path / "experiment.py", build_corpus(tmp_path / "corpus"))
    workdirs = {context: tmp_path / f"context-{context}" for context in (1, 2)}
    runs = [
        command(experiment, workdir, *SHORT, "--config.model.attention=plain", f"--config.mesh.context={context}")
        for context, workdir in workdirs.items()
    ]
    for context, done in zip(workdirs, forked.run(tmp_path, *runs, devices=8), strict=True):
        assert done.status == 0, done.output
        assert f"context {context} x" in done.output
    ours, theirs = weights(workdirs[2]), weights(workdirs[1])
    for name in theirs:
        if not name.endswith("key.bias"):  # without effect on the loss, so nothing but rounding moves it
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-5, err_msg=name)
    for a, b in zip(learned(workdirs[2]), learned(workdirs[1]), strict=True):
        for name in a:
            assert a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-5), name
