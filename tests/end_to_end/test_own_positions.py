"""Positions in a user's own file (`experiments/extensions/alibi.py`), through the real command line."""

from __future__ import annotations

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import import_model
from bert_jax.model.kernels.dispatch import choose_attention
from tests.end_to_end import forked
from tests.end_to_end.conftest import ASKED, command
from tests.end_to_end.forked import Signal
from tests.end_to_end.runs import REPOSITORY, learned, weights

FLAGS = ["--config.phases.0.steps=6", "--config.phases.1.steps=1", "--config.checkpoints.every=2", "--config.evaluation.every=7"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the user's file, outside of the package."""
    return pathlib.Path(shutil.copy(REPOSITORY / "experiments/extensions/alibi.py", tmp_path_factory.mktemp("mine")))


@pytest.fixture(scope="module")
def run(experiment: pathlib.Path, file: pathlib.Path) -> pathlib.Path:
    """Returns the workdir of an uninterrupted run."""
    workdir = file.parent / "run"
    (done,) = forked.run(file.parent, command(experiment, workdir, *FLAGS, f"--config.model.positions={file}:Alibi"))
    assert done.status == 0, done.output
    return workdir


def test_a_killed_run_with_user_positions_resumes_bit_for_bit(experiment: pathlib.Path, file: pathlib.Path, run: pathlib.Path):
    workdir = file.parent / "killed"
    ours = command(experiment, workdir, *FLAGS, f"--config.model.positions={file}:Alibi")
    forked.run(file.parent, ours, at=Signal(ASKED, argument=5, once_there=(f"{workdir}/checkpoints/4",)))
    (done,) = forked.run(file.parent, ours)
    assert done.status == 0, done.output
    assert learned(workdir) == learned(run)
    for name, array in weights(run).items():
        np.testing.assert_array_equal(array, weights(workdir)[name], err_msg=name)


def test_eight_devices_train_as_one_device(experiment: pathlib.Path, file: pathlib.Path, run: pathlib.Path):
    workdir = file.parent / "eight"
    ours = command(experiment, workdir, *FLAGS, f"--config.model.positions={file}:Alibi")
    (done,) = forked.run(file.parent, ours, devices=8)
    assert done.status == 0, done.output
    for a, b in zip(learned(workdir), learned(run), strict=True):
        assert a.get("train/loss", 0) == pytest.approx(b.get("train/loss", 0), rel=1e-3)


def test_the_model_loads_only_with_this_package_and_the_same_file(file: pathlib.Path, run: pathlib.Path):
    model = import_model(run / "model")
    assert model.config.positions == f"{file}:Alibi"
    assert "position_embeddings" not in model.params["embeddings"]
    fields = json.loads((run / "model" / "config.json").read_text())
    assert fields["model_type"] == "bert_jax"
    assert all(name.startswith("bert_jax.") for name in weights(run))
    reason = f"since model.positions={file}:Alibi changes the scores, which the fused attention kernels keep on the chip"
    choice = choose_attention(model.config, jax.local_devices()[0], 32)
    assert choice.why == reason
    changed = shutil.copytree(run / "model", run / "changed")
    fields["bert_jax"]["positions_file"]["sha256"] = "0" * 64
    (changed / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=r"alibi\.py:Alibi computes the positions of this model, but the file is missing"):
        import_model(changed)


def test_transformers_refuses_a_model_with_user_positions(run: pathlib.Path):
    transformers = pytest.importorskip("transformers")
    with pytest.raises((ValueError, KeyError), match="bert_jax"):
        transformers.AutoModel.from_pretrained(run / "model")


def test_a_name_missing_from_the_file_is_refused_with_the_nearest(experiment: pathlib.Path, file: pathlib.Path):
    flags = f"--config.model.positions={file}:Alabi"
    (done,) = forked.run(file.parent, command(experiment, file.parent / "wrong", flags))
    assert done.status == 2
    assert f"error: config.model.positions={file}:Alabi: {file} has no 'Alabi'; did you mean 'Alibi'?" in done.output
