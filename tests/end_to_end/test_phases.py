"""Phases with their own lengths, masks, rotary bases, corpora and schedules, and runs that branch off from one another."""

from __future__ import annotations

import pathlib
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.convert import main as convert
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import read_model_config
from bert_jax.interop.huggingface_config import config_from_json
from tests.end_to_end import forked
from tests.end_to_end.conftest import ASKED, Ended, command
from tests.end_to_end.forked import Signal
from tests.end_to_end.runs import (
    assert_same_weights,
    build_corpus,
    checkpoints,
    learned,
    results,
    weights,
    write_experiment,
)

EXPERIMENT = '''
"""A warmup with short rows, a constant rate with longer ones of another text, and a decay with long ones and fewer masks."""

def get_config():
    masks = {{"masked_fraction": 0.3, "max_predictions": 10}}
    long = {{"length": 64, "batch_size": 8, "packed_examples": 2, "rotary_theta": 2000.0}}
    phases = [
        {{"tokens": 2048, "length": 32, "batch_size": 8, "learning_rate": 3e-3, "warmup_steps": 4, **masks}},
        {{"steps": 8, "length": 48, "batch_size": 8, "learning_rate": 3e-3, **masks, "max_predictions": 15,
          "corpus": {corpus!r} + "2"}},
        {{"steps": 6, **long, "schedule": "1-sqrt", "learning_rate": 3e-3, "end_fraction": 0.1, "max_predictions": 4,
          "masked_fraction": 0.05}},
    ]
    return {{
        "corpus": {{"directory": {corpus!r}}},
        "model": {{"vocab_size": {vocabulary_size}, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32,
                  "max_position": 64, "initializer_range": 0.1, "positions": "rotary", "rotary_theta": 100.0}},
        "examples": {{"pairs": "none"}},
        "optimizer": {{"name": "stable_adamw", "b2": 0.98, "weight_decay": 1e-3, "decouple_rate": True, "clip_norm": 0.0,
                      "schedule": "constant"}},
        "phases": phases,
        "evaluation": {{"every": 22, "rows": 20, "batch_size": 8}},
        "checkpoints": {{"every": 5, "keep_at": [12, 16]}},
        "log_every": 1,
    }}
'''


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("phases")
    corpus = build_corpus(directory / "corpus")
    build_corpus(directory / "corpus2", seed=5, documents=40)
    return write_experiment(directory / "experiment.py", corpus, EXPERIMENT)


@pytest.fixture(scope="module")
def runs(experiment: pathlib.Path) -> dict[str, Ended]:
    """Trains the trunk and its branches in one process: one with the same phases, which is stopped in the phase with another
    corpus and resumed, and one whose decay begins earlier."""
    branch = f"--config.init_state={experiment.parent / 'trunk'}@12"
    flags = {
        "trunk": (),
        "stopped": (branch,),
        "same": (branch,),
        "early": (branch, "--config.phases.1.steps=4"),
    }
    workdirs = {name: experiment.parent / name.replace("stopped", "same") for name in flags}
    lines = [command(experiment, workdirs[name], *given) for name, given in flags.items()]
    stop = Signal(ASKED, argument=14, call=2, number=signal.SIGTERM)
    ends = forked.run(experiment.parent, *lines, at=stop)
    for name, done in zip(flags, ends, strict=True):
        assert done.status == (143 if name == "stopped" else 0), done.output
    return {name: Ended(workdirs[name], done.status, done.output) for name, done in zip(flags, ends, strict=True)}


@pytest.fixture(scope="module")
def trunk(runs: dict[str, Ended]) -> Ended:
    return runs["trunk"]


def test_phases_report_their_rows_and_masks_and_the_model_has_the_last_rotary_base(trunk: Ended):
    assert "phase 1 of 3: 8 steps of 8 rows x 32 tokens, 30 % masked (held out: 15 %)" in trunk.output
    assert "phase 2 of 3: 8 steps of 8 rows x 48 tokens, 30 % masked (held out: 15 %)" in trunk.output
    assert "phase 3 of 3: 6 steps of 8 rows x 64 tokens, 5 % masked (held out: 15 %)" in trunk.output
    of_steps = [record for record in learned(trunk.workdir) if "train/learning_rate" in record]
    rates = {record["step"]: record["train/learning_rate"] for record in of_steps}
    wanted = {1: 0.0, 3: 1.5e-3, 5: 3e-3, 16: 3e-3, 17: 3e-3, 22: 3e-3 * (0.1 + 0.9 * (1 - (5 / 6) ** 0.5))}
    assert {step: rates[step] for step in wanted} == pytest.approx(wanted, rel=1e-5)


def test_a_branch_with_the_same_phases_stopped_in_one_with_another_corpus_equals_its_trunk(runs: dict[str, Ended], trunk: Ended):
    branch = runs["same"]
    assert f"continuing from step 12 of {trunk.workdir}, with its optimizer" in runs["stopped"].output
    assert "resuming from step 14" in branch.output
    assert learned(branch.workdir) == [record for record in learned(trunk.workdir) if record["step"] > 12]
    assert_same_weights(branch.workdir, trunk.workdir)
    assert results(branch.workdir) == results(trunk.workdir)


def test_decay_phases_branch_off_and_are_averaged(runs: dict[str, Ended], trunk: Ended, tmp_path: pathlib.Path):
    branch = runs["early"]
    assert [record["step"] for record in learned(branch.workdir) if "train/learning_rate" in record] == [13, 14, 15, 16, 17, 18]
    convert([f"--from={trunk.workdir}", f"--average={branch.workdir}", f"--to={tmp_path / 'mean'}"])
    mean, one, other = load_file(tmp_path / "mean" / "model.safetensors"), weights(trunk.workdir), weights(branch.workdir)
    assert all(np.allclose(mean[name], (one[name] + other[name]) / 2, atol=1e-7) for name in one)
    assert not all(np.array_equal(one[name], other[name]) for name in one)


def test_a_model_of_an_earlier_step_has_the_rotary_base_of_its_phase(trunk: Ended, tmp_path: pathlib.Path):
    for step, base in ((16, 100.0), (22, 2000.0)):  # the second phase ends after step 16
        convert([f"--from={trunk.workdir}", f"--step={step}", f"--to={tmp_path / str(step)}"])
        exported = tmp_path / str(step)
        assert config_from_json(read_model_config(exported), str(exported)).rotary_theta == base
    says = "step 16 of .*trunk and step 20 of .*trunk cannot be averaged: rotary_theta is 100.0 and 2000.0; name models of the"
    with pytest.raises(UserError, match=says):
        convert([f"--from={trunk.workdir}", "--last=3", f"--to={tmp_path / 'mean'}"])


def test_the_checkpoints_of_the_named_steps_are_kept(trunk: Ended):
    assert checkpoints(trunk.workdir) == [12, 16, 20, 22]
