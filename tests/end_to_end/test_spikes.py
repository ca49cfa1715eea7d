"""A run rolls back to a checkpoint before a spike of its loss. Its rows have no pairs, so it trains neither a next-sentence head
nor the pooler, and the model has neither."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.data.batches import BatchSource
from tests.end_to_end import forked
from tests.end_to_end.conftest import command
from tests.end_to_end.forked import Commands
from tests.end_to_end.runs import BRIEF_STEPS, assert_same_weights, records, results

POLICY = ("policy=rollback", "window=4", "deviations=2.0", "in_a_row=3", "rollback_steps=0")
FLAGS = (
    *(f"--config.spikes.{setting}" for setting in POLICY),
    "--config.evaluation.every=100",
    "--config.checkpoints.keep_at=[8]",
    "--config.examples.pairs=none",
)
OF_PAIRS = ("pooler", "nsp_head", "seq_relationship")
"""The names of the parts that only pairs train, ours and transformers'."""
BAD = range(9, 12)
"""The batches in which every word to predict is [SEP]."""
REPLAYED = 11


MADE = BatchSource.at


def _change_batches(change: Callable[[BatchSource, int, Callable[..., Any]], dict[str, np.ndarray]]) -> None:
    @functools.wraps(MADE)
    def changed(source: BatchSource, step: int, *shard: Any) -> dict[str, np.ndarray]:
        return change(source, step, functools.partial(MADE, source, *(), shard=shard[0] if shard else (0, 1)))

    BatchSource.at = changed  # type: ignore[method-assign]


def spoil() -> None:
    """Spoils the BAD batches."""

    def spoilt(source: BatchSource, step: int, make: Callable[..., Any]) -> dict[str, np.ndarray]:
        batch: dict[str, np.ndarray] = make(step)
        if step in BAD:
            batch["masked_targets"] = np.where(batch["masked_targets"] >= 0, 3, -1).astype(np.int32)
        return batch

    _change_batches(spoilt)


def take_later_batches() -> None:
    """Replaces each batch from the ninth on by the batch of four steps later."""

    def later(source: BatchSource, step: int, make: Callable[..., Any]) -> dict[str, np.ndarray]:
        return make(step if step < 8 else step + 4)

    _change_batches(later)


@pytest.fixture(scope="module")
def control(brief: pathlib.Path) -> Commands:
    """Trains without the bad batches, and queries the model. Trains with them in the same process, and replays a step."""
    workdir, bad = brief.with_name("control"), brief.with_name("bad")
    asked = {
        "next-sentence": ("one", "two"),
        "embed": ("--pooling=pooler", "one"),
        "fill-mask": ("the [MASK] of paris",),
    }
    commands: dict[str, forked.Command] = {
        "later": take_later_batches,
        "pretrain": command(brief, workdir, *FLAGS),
        **{name: ("predict", name, f"--model={workdir}", *texts) for name, texts in asked.items()},
        "spoil": spoil,
        "bad": command(brief, bad, *FLAGS),
        "replay": ("pretrain", f"--workdir={bad}", f"--replay={REPLAYED}"),
    }
    return Commands(workdir, forked.commands_run(brief.parent, commands).ends)


def test_a_rollback_trains_as_if_the_bad_batches_did_not_exist(control: Commands):
    """Batches 9 to 11 are bad, so steps 10 to 12 are spikes: the run rolls back to the checkpoint of step 8 and continues with
    batch 12. The replay of a later step reads the batches of the run too, although it starts from that checkpoint, which does
    not know of the rollback."""
    end, replayed, bad = control.ends["bad"], control.ends["replay"], control.base.with_name("bad")
    assert end.status == replayed.status == 0, end.output + replayed.output
    (loss,) = (one["train/mlm_loss"] for one in records(bad) if one["step"] == REPLAYED and "train/loss" in one)
    assert f"MLM loss {loss:.6g}," in replayed.output
    said = "spiked in 3 steps in a row up to step 12: rolling back to step 8 and skipping 4 batches (rollback 1 of at most 3)"
    assert said in end.output
    found = results(bad)
    assert [found[name] for name in ("rollbacks", "skipped_batches", "skipped_steps")] == [1, 4, 0]
    assert [record["step"] for record in records(bad) if "train/loss" in record] == list(range(1, BRIEF_STEPS + 1))
    assert json.loads((bad / "results.json").read_text())["ledger"]["seconds"]["repeated_steps"] > 0
    assert control.ends["pretrain"].status == 0, control.ends["pretrain"].output
    assert results(control.base)["rollbacks"] == 0
    assert_same_weights(bad, control.base)


def test_a_run_without_pairs_logs_no_next_sentence_scores(control: Commands):
    assert "NSP" not in control.ends["pretrain"].output
    assert not [name for record in records(control.base) for name in record if "nsp" in name]
    scores = json.loads((control.base / "results.json").read_text())["eval"]
    assert "mlm_accuracy" in scores
    assert not [name for name in scores if "nsp" in name]


def test_the_exported_model_has_only_the_mlm_head(control: Commands):
    names = load_file(control.base / "model" / "model.safetensors").keys()
    assert not [name for name in names if any(part in name for part in OF_PAIRS)]
    assert any("cls.predictions" in name for name in names)
    assert json.loads((control.base / "model" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]


def test_the_model_fills_masks_and_refuses_next_sentence(control: Commands):
    next_sentence, pooled, filled = (control.ends[name] for name in ("next-sentence", "embed", "fill-mask"))
    assert next_sentence.status == pooled.status == 2
    assert "has no nsp_head, so it cannot" in next_sentence.output
    assert "has no pooler, so it cannot" in pooled.output
    assert filled.status == 0, filled.output
