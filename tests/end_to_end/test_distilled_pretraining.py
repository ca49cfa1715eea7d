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


ONE_TEXT = "--config.examples.pairs=none"
REPLACED = "experiments/extensions/replaced_tokens.py:ReplacedTokens"


@pytest.fixture(scope="module")
def runs(brief: pathlib.Path) -> dict[str, Done]:
    """In one process: stops a run after three steps, runs another completely, tries to continue the stopped run with another
    teacher, and continues it. Then trains a left-to-right student of a left-to-right model, gives that teacher to a student of
    masked words, and stops and continues a student with an objective of its own."""
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
    left = ("--config.model.direction=left_to_right", ONE_TEXT, *SHORT[:3])
    taught = (*left, f"--config.teacher={root / 'reader'}", "--config.model.hidden_size=24", SHORT[3])
    own = (ONE_TEXT, *SHORT[:4], f"--config.teacher={root / 'teacher'}", f"--config.objective={REPLACED}")
    commands |= {
        "reader": command(brief, root / "reader", *left),
        "next_tokens": command(brief, root / "next_tokens", *taught),
        "masks_by_a_reader": command(brief, root / "other_kind", *SHORT, ONE_TEXT, f"--config.teacher={root / 'reader'}"),
        "armed_again": Signal(ASKED, argument=4, number=signal.SIGTERM).arm,
        "own_stopped": command(brief, root / "own", *own, "--config.distillation.soft_weight=0"),
        "own": command(brief, root / "own", *own, "--config.distillation.soft_weight=0"),
        "own_whole": command(brief, root / "own_whole", *own, "--config.distillation.soft_weight=0"),
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


def test_a_left_to_right_student_learns_the_next_tokens_of_a_left_to_right_teacher(brief, runs):
    assert runs["next_tokens"].status == 0, runs["next_tokens"].output
    last = [record for record in records(brief.parent / "next_tokens") if "train/loss" in record][-1]
    assert last["train/soft_loss"] > 0
    assert last["train/hidden_difference"] > 0
    assert load_file(brief.parent / "next_tokens" / "model" / "model.safetensors").keys() == load_file(
        brief.parent / "reader" / "model" / "model.safetensors"
    ).keys()


def test_a_teacher_that_predicts_other_words_is_refused(brief, runs):
    assert runs["masks_by_a_reader"].status == 2
    assert "predicts other words than the student, since it has direction=left_to_right" in runs["masks_by_a_reader"].output
    assert not (brief.parent / "other_kind" / "model").exists()


def test_an_objective_of_ones_own_learns_the_hidden_states_of_a_teacher_and_resumes_bit_for_bit(brief, runs):
    assert [runs[name].status for name in ("own_stopped", "own", "own_whole")] == [143, 0, 0], runs
    assert_same_weights(brief.parent / "own", brief.parent / "own_whole")
    assert learned(brief.parent / "own") == learned(brief.parent / "own_whole")
    last = [record for record in records(brief.parent / "own_whole") if "train/loss" in record][-1]
    assert last["train/hidden_difference"] > 0
    assert last["train/rtd_loss"] > 0
    assert "train/soft_loss" not in last
