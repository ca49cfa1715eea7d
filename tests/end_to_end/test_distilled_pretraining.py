"""Pretraining with a teacher: what it saves, how it continues, and what it exports."""

from __future__ import annotations

import pathlib
import signal

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.interop.huggingface import Model, export_model
from tests.end_to_end import forked
from tests.end_to_end.conftest import ASKED, command
from tests.end_to_end.forked import Done, Signal
from tests.end_to_end.runs import VOCABULARY, assert_same_weights, learned, records
from tests.interop.tiny import make_model

SHORT = (
    "--config.phases.0.steps=6",
    "--config.model.num_layers=1",
    "--config.model.scan_layers=false",
    "--config.distillation.hidden_weight=0.5",
    "--config.distillation.attention_weight=0.25",
)


@pytest.fixture(scope="module")
def runs(brief: pathlib.Path) -> dict[str, Done]:
    """In one process: stops a run after three steps, runs another completely, tries to continue the stopped run with another
    teacher, and continues it."""
    root = brief.parent
    tokenizer = load_tokenizer(VOCABULARY, lowercase=True)
    tokenizer.save(root / "vocabulary")
    shape = {"hidden_size": 24, "num_layers": 1, "num_heads": 2, "max_position": 64, "type_vocab_size": 2}
    params, config = make_model(root / "vocabulary", **shape)
    for name, weights in (("teacher", params), ("another", jax.tree.map(lambda x: 2 * np.asarray(x), params))):
        export_model(root / name, Model(params=weights, config=config, tokenizer=tokenizer))
    taught = (*SHORT, f"--config.teacher={root / 'teacher'}")
    stop = Signal(ASKED, argument=3, number=signal.SIGTERM)
    commands: dict[str, forked.Command] = {
        "armed": stop.arm,
        "stopped": command(brief, root / "stopped", *taught),
        "whole": command(brief, root / "taught", *taught),
        "other": command(brief, root / "stopped", *SHORT, f"--config.teacher={root / 'another'}"),
        "went_on": command(brief, root / "stopped", *taught),
        "replayed": ("pretrain", f"--workdir={root / 'taught'}", "--replay=6"),
    }
    return forked.commands_run(root, commands).ends


def test_a_stopped_and_resumed_run_equals_the_uninterrupted_run_bit_for_bit(brief, runs):
    assert [runs[name].status for name in ("stopped", "whole", "went_on")] == [143, 0, 0], runs
    assert "resuming from step 3" in runs["went_on"].output
    assert_same_weights(brief.parent / "stopped", brief.parent / "taught")
    assert learned(brief.parent / "stopped") == learned(brief.parent / "taught")


def test_distillation_losses_are_logged_and_the_projection_is_not_exported(brief, runs):
    last = [record for record in records(brief.parent / "taught") if "train/loss" in record][-1]
    assert last["train/soft_loss"] > 0
    assert last["train/hidden_difference"] > 0
    assert last["train/attention_divergence"] > 0
    names = load_file(brief.parent / "taught" / "model" / "model.safetensors")
    assert not [name for name in names if "distill" in name or "projection" in name]


def test_a_run_does_not_resume_with_another_teacher(runs):
    assert runs["other"].status == 2
    assert "distillation.teacher_sha256" in runs["other"].output


def test_a_step_with_a_teacher_can_be_replayed(runs):
    assert runs["replayed"].status == 0, runs["replayed"].output
    assert "distillation/kernel" in runs["replayed"].output
