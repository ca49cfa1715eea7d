"""Phases with their own lengths, masks, rotary bases, corpora and schedules, and runs that branch off from one another."""

from __future__ import annotations

import pathlib
import signal
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.configs.files import read_experiment
from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.convert import main as convert
from bert_jax.data.corpus.store import open_splits
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import read_model_config
from bert_jax.interop.huggingface_config import config_from_json
from bert_jax.pretraining.start import load_branch_state
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
        "evaluation": {{"every": 11, "rows": 20, "batch_size": 8}},
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


def run(experiment: pathlib.Path, name: str, *flags: str, at: Signal | None = None) -> Ended:
    workdir = experiment.parent / name
    (done,) = forked.run(experiment.parent, command(experiment, workdir, *flags), at=at)
    return Ended(workdir, done.status, done.output)


@pytest.fixture(scope="module")
def trunk(experiment: pathlib.Path) -> Ended:
    ended = run(experiment, "trunk")
    assert ended.status == 0, ended.output
    return ended


def test_phases_report_their_rows_and_masks_and_the_model_has_the_last_rotary_base(trunk: Ended):
    assert "phase 1 of 3: 8 steps of 8 rows x 32 tokens, 30 % masked (held out: 15 %)" in trunk.output
    assert "phase 2 of 3: 8 steps of 8 rows x 48 tokens, 30 % masked (held out: 15 %)" in trunk.output
    assert "phase 3 of 3: 6 steps of 8 rows x 64 tokens, 5 % masked (held out: 15 %)" in trunk.output
    of_steps = [record for record in learned(trunk.workdir) if "train/learning_rate" in record]
    rates = {record["step"]: record["train/learning_rate"] for record in of_steps}
    wanted = {1: 0.0, 3: 1.5e-3, 5: 3e-3, 16: 3e-3, 17: 3e-3, 22: 3e-3 * (0.1 + 0.9 * (1 - (5 / 6) ** 0.5))}
    assert {step: rates[step] for step in wanted} == pytest.approx(wanted, rel=1e-5)


def test_a_branch_with_the_same_phases_killed_in_one_with_another_corpus_equals_its_trunk(experiment: pathlib.Path, trunk: Ended):
    flag, workdir = f"--config.init_state={trunk.workdir}@12", experiment.parent / "same"
    death = Signal(ASKED, argument=16, once_there=(f"{workdir}/checkpoints/15",), after=True)
    before, branch = (run(experiment, "same", flag, at=at) for at in (death, None))
    assert [before.status, branch.status] == [-signal.SIGKILL, 0], branch.output
    assert f"continuing from step 12 of {trunk.workdir}, with its optimizer" in before.output
    assert "resuming from step 15" in branch.output
    assert learned(branch.workdir) == [record for record in learned(trunk.workdir) if record["step"] > 12]
    assert_same_weights(branch.workdir, trunk.workdir)
    assert results(branch.workdir) == results(trunk.workdir)


def test_decay_phases_branch_off_and_are_averaged(experiment: pathlib.Path, trunk: Ended, tmp_path: pathlib.Path):
    early = ("--config.phases.1.steps=4", f"--config.init_state={trunk.workdir}@12")
    branch = run(experiment, "early", *early)
    assert branch.status == 0, branch.output
    assert [record["step"] for record in learned(branch.workdir) if "train/learning_rate" in record] == [13, 14, 15, 16, 17, 18]
    further = run(experiment, "further", "--config.phases.2.steps=9", f"--config.init_state={trunk.workdir}@20")
    assert further.status == 0, further.output
    assert learned(further.workdir)[-1]["step"] == 25
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


def refusal(experiment: pathlib.Path, state: str, **changes: Any) -> str:
    overrides = [(key.replace("__", "."), value) for key, value in changes.items()]
    values = read_experiment(str(experiment), overrides, PretrainingExperiment)
    made = PretrainingExperiment.from_dict(values | {"init_state": state})
    with pytest.raises(UserError) as error:
        load_branch_state(made, open_splits(made.corpus.directory)[0], None)  # type: ignore[arg-type]
    return str(error.value)


def test_branching_from_a_bad_checkpoint_is_refused_in_one_sentence(
    experiment: pathlib.Path, trunk: Ended, tmp_path: pathlib.Path
):
    there = str(trunk.workdir)
    assert checkpoints(trunk.workdir) == [12, 16, 20, 22]
    assert refusal(experiment, f"{there}@7").endswith(
        f"{there} has no state of step 7 (it has steps 12, 16, 20, 22); name an existing step, or train that run with "
        "--config.checkpoints.keep_at='[7]'"
    )
    assert "is not WORKDIR@STEP, e.g. " in refusal(experiment, there)
    assert "holds no run; name the workdir of a run of pretrain" in refusal(experiment, f"{tmp_path}@12")
    assert refusal(experiment, f"{there}@12", model__hidden_size="32").endswith(
        "is a state of a different model or optimizer: config.model.hidden_size is 16 in that run, but 32 here; use "
        "the same model and optimizer"
    )
    assert "config.optimizer.name is stable_adamw in that run, but adamw here" in refusal(
        experiment, f"{there}@12", optimizer__name="adamw"
    )
    assert refusal(experiment, f"{there}@12", phases__0__learning_rate="1e-3").endswith(
        "up to step 12 the phases must be the same as in that run, but config.phases.0.learning_rate is 0.003 there and 0.001 "
        "here; repeat the phases of that run up to that step, and add others after them"
    )
    assert "is a state after step 22, but config.phases have only 22 steps together" in refusal(experiment, f"{there}@22")
    (trunk.workdir.parent / "bare").mkdir()
    (trunk.workdir.parent / "bare" / "config.json").write_text((trunk.workdir / "config.json").read_text())
    assert "bare has no state of step 12" in refusal(experiment, f"{trunk.workdir.parent}/bare@12")
