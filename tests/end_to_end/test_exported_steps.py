"""States of chosen steps of a run, and the models made of them."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.convert import main
from bert_jax.errors import UserError
from tests.end_to_end.conftest import Ended
from tests.end_to_end.runs import LAST_STEP, assert_same_weights, checkpoints, weights


def test_kept_checkpoints_do_not_change_training(uninterrupted: Ended, continued: Ended):
    assert checkpoints(continued.workdir) == [18, 19, 20, LAST_STEP]
    assert_same_weights(continued.workdir, uninterrupted.workdir)


def test_the_last_checkpoint_converts_to_the_exported_model_and_an_earlier_one_does_not(
    uninterrupted: Ended, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    trained = weights(uninterrupted.workdir)
    for step in (LAST_STEP, 20):
        main([f"--from={uninterrupted.workdir}", f"--step={step}", f"--to={tmp_path / str(step)}"])
        assert f"{uninterrupted.workdir}, step {step}: " in capsys.readouterr().out
    last, earlier = (load_file(tmp_path / str(step) / "model.safetensors") for step in (LAST_STEP, 20))
    assert last.keys() == earlier.keys() == trained.keys()
    assert all(np.array_equal(last[name], x) for name, x in trained.items())
    assert not all(np.array_equal(earlier[name], x) for name, x in trained.items())


def test_averaging_checkpoints_averages_their_models(
    uninterrupted: Ended, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    for step in (LAST_STEP, 20):
        main([f"--from={uninterrupted.workdir}", f"--step={step}", f"--to={tmp_path / str(step)}"])
    main([f"--from={uninterrupted.workdir}", "--last=2", f"--to={tmp_path / 'mean'}"])
    assert f"{uninterrupted.workdir}, the mean of 2 checkpoints: " in capsys.readouterr().out
    last, earlier, mean = (load_file(tmp_path / name / "model.safetensors") for name in (str(LAST_STEP), "20", "mean"))
    for name, x in mean.items():
        both = (last[name].astype(np.float64) + earlier[name].astype(np.float64)) / 2
        np.testing.assert_array_equal(x, both.astype(np.float32))
    assert f"after 20 and {LAST_STEP} steps" in (tmp_path / "mean" / "README.md").read_text()
    with pytest.raises(UserError, match=r"--last=3: .* only has 2 checkpoints; average fewer, or .*config.checkpoints.keep=3"):
        main([f"--from={uninterrupted.workdir}", "--last=3", f"--to={tmp_path / 'more'}"])


def test_a_model_of_an_unfinished_run_has_the_tokenizer_of_its_corpus(late: Ended, tmp_path: pathlib.Path):
    main([f"--from={late.workdir}", "--step=18", f"--to={tmp_path / 'model'}", "--drop=nsp_head"])
    assert (tmp_path / "model" / "vocab.txt").exists()


def test_a_missing_step_is_refused_with_the_list_of_steps(uninterrupted: Ended, tmp_path: pathlib.Path):
    with pytest.raises(
        UserError,
        match=r"--step=7: .* has no checkpoint of that step \(it has steps 20, 24\); "
        r".*keep_at='\[7\]'",
    ):
        main([f"--from={uninterrupted.workdir}", "--step=7", f"--to={tmp_path}"])
