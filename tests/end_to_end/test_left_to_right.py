"""A left-to-right model from the experiment of a masked one: it is trained on next tokens, and generates."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from tests.end_to_end import forked
from tests.end_to_end.conftest import command
from tests.end_to_end.runs import records


@pytest.fixture(scope="module")
def workdir(brief: pathlib.Path) -> pathlib.Path:
    return brief.parent / "left_to_right"


@pytest.fixture(scope="module")
def done(brief: pathlib.Path, workdir: pathlib.Path) -> list[forked.Done]:
    """Runs the training, queries its model, and replays a step."""
    model = ("direction=left_to_right", "positions=sinusoidal", "num_layers=1", "scan_layers=false")
    flags = (*(f"--config.model.{setting}" for setting in model), "--config.phases.0.steps=4")
    generated = ("predict", "generate", f"--model={workdir}", "--tokens=4", "the")
    asked = [generated, ("pretrain", f"--workdir={workdir}", "--replay=2")]
    return forked.run(brief.parent, command(brief, workdir, *flags), *asked)


def test_the_log_reports_next_tokens_and_no_pairs(done, workdir):
    assert done[0].status == 0, done[0].output
    assert "config.examples.pairs is none: the [CLS] of a left-to-right model sees no text" in done[0].output
    assert "next token accuracy" in done[0].output
    assert "MLM" not in done[0].output
    names = {name for record in records(workdir) for name in record}
    assert {"train/next_token_loss", "eval/next_token_accuracy", "eval/perplexity", "eval/unigram_accuracy"} <= names
    results = json.loads((workdir / "results.json").read_text())
    assert results["eval"]["next_token_loss"] > 0


def test_the_exported_model_is_a_decoder_and_generates(done, workdir):
    config = json.loads((workdir / "model" / "config.json").read_text())
    assert (config["architectures"], config["is_decoder"]) == (["BertLMHeadModel"], True)
    assert config["bert_jax"]["positions"] == "sinusoidal"
    assert done[1].status == 0, done[1].output
    assert "the" in done[1].output


def test_a_step_replayed_from_the_beginning_has_the_loss_and_gradient_of_the_run(done, workdir):
    assert done[2].status == 0, done[2].output
    assert "with the original weights" in done[2].output
    said = [float(re.search(f"{name} ([0-9.]+)", done[2].output)[1]) for name in ("next token loss", "gradient")]
    (logged,) = (record for record in records(workdir) if record["step"] == 2)
    assert said == pytest.approx([logged["train/next_token_loss"], logged["train/grad_norm"]], rel=1e-4)
