"""The objective of experiments/extensions, replaced-token detection, used as a user does, through the command line with a file
outside the package: killed and continued, on one device and on eight, with its model loaded by others."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import pytest

from tests.end_to_end import forked
from tests.end_to_end.conftest import ASKED, command
from tests.end_to_end.forked import Signal
from tests.end_to_end.runs import REPOSITORY, assert_same_weights, learned, records, results, weights

SHORT = ("--config.steps=20", "--config.evaluation.every=20", "--config.checkpoints.every=4", "--config.log_every=1")
SCORES = ("rtd_accuracy", "rtd_loss", "generator_loss")
BAD = """import dataclasses

from bert_jax.objectives.objective import Objective


class Unknown(Objective):
    scores = {"my loss": ("mine", "masked")}

    def sums(self, params, batch, seed):
        return {"mine": self.model.encode(params, batch, seed).sum() + nothing}

    def loss(self, sums, counts):
        return sums["mine"] / counts["masked"]


class Electra(Unknown):
    exported = "ElectraForPreTraining"

    def sums(self, params, batch, seed):
        return {"mine": self.model.encode(params, batch, seed).sum()}


class Words(Electra):
    exported = "BertForMaskedLM"


class Unnamed(Electra):
    scores = {"my loss": ("mine", "masket")}


class Half(Objective):
    scores = {"my loss": ("mine", "masked")}


def function():
    pass
"""


@pytest.fixture(scope="module")
def mine(experiment: pathlib.Path) -> pathlib.Path:
    """Returns the directory with a user's copy of the file."""
    directory = experiment.parent / "objectives"
    directory.mkdir()
    shutil.copy(REPOSITORY / "experiments" / "extensions" / "replaced_tokens.py", directory)
    (directory / "bad.py").write_text(BAD)
    return directory


def run(experiment: pathlib.Path, workdir: pathlib.Path, *flags: str, **how: Any) -> forked.Done:
    own = f"--config.objective={experiment.parent}/objectives/replaced_tokens.py:ReplacedTokens"
    return forked.run(experiment.parent, command(experiment, workdir, *SHORT, own, *flags), **how)[0]


@pytest.mark.parametrize("devices", [1, 8])
def test_a_killed_run_with_a_user_objective_resumes_bit_for_bit(experiment: pathlib.Path, mine: pathlib.Path, devices: int):
    whole, killed = (experiment.parent / f"{name}-{devices}" for name in ("rtd", "rtd-killed"))
    done = run(experiment, whole, devices=devices)
    assert done.status == 0, done.output
    assert "held out after step 20: RTD accuracy" in done.output
    assert "(one answer for all " in done.output
    run(experiment, killed, devices=devices, at=Signal(ASKED, argument=10, once_there=(f"{killed}/checkpoints/8",)))
    done = run(experiment, killed, devices=devices)
    assert done.status == 0, done.output
    assert "resuming from step 8" in done.output
    assert_same_weights(killed, whole)
    assert learned(killed) == learned(whole)

    trained = [record for record in records(whole) if "train/loss" in record]
    assert len(trained) == 20
    assert all(f"train/{name}" in trained[-1] for name in SCORES)
    assert trained[-1]["train/generator_loss"] < trained[0]["train/generator_loss"]
    assert trained[-1]["train/rtd_loss"] < trained[0]["train/rtd_loss"]
    found = results(whole)
    assert found["eval"].keys() == {*SCORES, "loss", "rtd_accuracy_baseline"}
    assert found["files"]["objective"]["path"] == str(mine / "replaced_tokens.py")
    assert found["files"]["objective"]["source"] == (mine / "replaced_tokens.py").read_text()
    assert "config.objective replaced_tokens.py (" in (whole / "model" / "README.md").read_text()
    assert not {name for name in weights(whole) if "generator" in name or "detector" in name or "cls." in name}


def test_eight_devices_with_two_microbatches_train_as_one_device(experiment: pathlib.Path, mine: pathlib.Path):
    still = ("--config.model.hidden_dropout=0", "--config.model.attention_dropout=0", "--config.objective_options.weight=0")
    one, parts = experiment.parent / "rtd-one", experiment.parent / "rtd-parts"
    two = ("--config.phases.0.accumulation=2", "--config.phases.1.accumulation=2")
    for workdir, flags, devices in ((one, (), 1), (parts, two, 4)):
        done = run(experiment, workdir, *still, *flags, devices=devices)
        assert done.status == 0, done.output
    ours, theirs = (
        [record["train/generator_loss"] for record in records(workdir) if "train/generator_loss" in record]
        for workdir in (one, parts)
    )
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_a_step_is_replayed_and_converted_from_another_directory(
    experiment: pathlib.Path, mine: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = experiment.parent / "rtd-kept"
    done = run(experiment, workdir, "--config.checkpoints.keep_at=[8]")
    assert done.status == 0, done.output
    (replayed,) = forked.run(tmp_path, ["pretrain", f"--workdir={workdir}", "--replay=19"])
    assert replayed.status == 0, replayed.output
    assert "the largest generator loss first" in replayed.output
    (converted,) = forked.run(tmp_path, ["convert", f"--from={workdir}", "--step=8", f"--to={tmp_path / 'eight'}"])
    assert converted.status == 0, converted.output
    assert json.loads((tmp_path / "eight" / "config.json").read_text())["architectures"] == ["BertModel"]

    file = mine / "replaced_tokens.py"
    text = file.read_text()
    try:
        file.write_text(text + "\n")
        (replayed,) = forked.run(tmp_path, ["pretrain", f"--workdir={workdir}", "--replay=19"])
        assert replayed.status == 2
        assert f"another {file}: the file that config.objective names has changed" in replayed.output
        again = run(experiment, workdir)
        assert again.status == 2
        assert "or resume with the new file: --changed-files" in again.output
    finally:
        file.write_text(text)
    assert json.loads((workdir / "config.json").read_text())["files"]["objective"]["source"] == text


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--config.objective=electra", "config.objective='electra': known: bert, bilm, next_token, skip_gram, translation;"),
        ("--config.objective=MINE/replaced_tokens.py:Replaced", "has no 'Replaced'; did you mean 'ReplacedTokens'?"),
        ("--config.objective=MINE/bad.py:function", "is <function function"),
        ("--config.objective=MINE/bad.py:Half", "bad.py:Half has no loss and no sums; write them as described in Objective"),
        ("--config.objective=MINE/bad.py:Electra", "exported='ElectraForPreTraining' is not a class that this project writes: "),
        ("--config.objective=MINE/bad.py:Words", "exported='BertForMaskedLM' needs the parameters mlm_head, which the objective"),
        ("--config.objective=MINE/bad.py:Unnamed", "which neither sums nor counts returns; did you mean 'masked'?"),
        (
            "--config.objective=MINE/replaced_tokens.py:ReplacedTokens --config.objective_options.wight=3",
            "there is no 'wight' in config.objective_options; did you mean 'weight'?",
        ),
    ],
)  # fmt: skip
def test_an_unusable_objective_is_refused_in_one_sentence(experiment: pathlib.Path, mine: pathlib.Path, flags: str, says: str):
    workdir = experiment.parent / "refused"
    (done,) = forked.run(experiment.parent, command(experiment, workdir, *SHORT, *flags.replace("MINE", str(mine)).split()))
    assert done.status == 2, done.output
    assert says in done.output
    assert "Traceback" not in done.output
    assert "compiling" not in done.output
    assert not workdir.exists()


def test_an_error_in_the_user_file_shows_its_line(experiment: pathlib.Path, mine: pathlib.Path):
    flag = f"--config.objective={mine}/bad.py:Unknown"
    (done,) = forked.run(experiment.parent, command(experiment, experiment.parent / "refused", *SHORT, flag))
    assert done.status == 2, done.output
    assert f"config.objective={mine}/bad.py raises NameError; correct the file here:" in done.output
    assert "seed).sum() + nothing" in done.output
