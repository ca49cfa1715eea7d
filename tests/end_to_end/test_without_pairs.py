"""A run on rows without pairs trains neither a next-sentence head nor the pooler, so the model has neither."""

from __future__ import annotations

import json
import pathlib

import pytest
from safetensors.numpy import load_file

from tests.end_to_end import forked
from tests.end_to_end.conftest import command
from tests.end_to_end.runs import records

WITHOUT_PAIRS = "--config.examples.pairs=none"
OF_PAIRS = ("pooler", "nsp_head", "seq_relationship")
"""The names of these parts, ours and transformers'."""


@pytest.fixture(scope="module")
def workdir(brief: pathlib.Path) -> pathlib.Path:
    return brief.parent / "without_pairs"


@pytest.fixture(scope="module")
def done(brief: pathlib.Path, workdir: pathlib.Path) -> list[forked.Done]:
    """Runs the training and queries its model."""
    asked = (
        ("next-sentence", "one", "two"),
        ("embed", "--pooling=pooler", "one"),
        ("fill-mask", "the [MASK] of paris"),
    )
    commands = [("predict", name, f"--model={workdir}", *texts) for name, *texts in asked]
    return forked.run(brief.parent, command(brief, workdir, WITHOUT_PAIRS, "--config.phases.0.steps=4"), *commands)


def test_a_run_without_pairs_logs_no_next_sentence_scores(done, workdir):
    assert done[0].status == 0, done[0].output
    assert "NSP" not in done[0].output
    assert not [name for record in records(workdir) for name in record if "nsp" in name]
    assert not [name for name in json.loads((workdir / "results.json").read_text())["eval"] if "nsp" in name]


def test_the_exported_model_has_only_the_mlm_head(done, workdir):
    names = load_file(workdir / "model" / "model.safetensors").keys()
    assert not [name for name in names if any(part in name for part in OF_PAIRS)]
    assert any("cls.predictions" in name for name in names)
    assert json.loads((workdir / "model" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]


def test_the_model_fills_masks_and_refuses_next_sentence(done):
    next_sentence, pooled, filled = done[1:]
    assert next_sentence.status == pooled.status == 2
    assert "has no nsp_head, so it cannot" in next_sentence.output
    assert "has no pooler, so it cannot" in pooled.output
    assert filled.status == 0, filled.output
