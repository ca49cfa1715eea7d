"""What a fine-tuning run says while it compiles, trains and evaluates."""

from __future__ import annotations

import logging
import pathlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bert_jax.batches.labelled import LabelledBatches
from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.examples.labelled import row_shape
from bert_jax.finetuning.log import FinetuningLog, log_start
from bert_jax.metrics.ledger import Ledger
from bert_jax.metrics.throughput import Throughput
from bert_jax.metrics.writer import METRICS, read_metrics
from bert_jax.sharding.mesh import MeshConfig, make_mesh
from bert_jax.tasks.baselines import Baseline
from tests.random_features import HEADS, LAYOUTS, random_features
from tests.random_rows import TINY

BASELINES = {"dev": Baseline({"f1": 0.75}, {"'a' for all, best on dev": 0.75})}
TASK: Any = types.SimpleNamespace(name="toy", head=HEADS["sequence"], metric="f1", splits={"train": "abc", "dev": "ab"})


class Clock:
    """A clock that goes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What was said so far."""
    monkeypatch.setattr(logging.getLogger("bert_jax"), "propagate", True)
    caplog.set_level(logging.INFO, logger="bert_jax")
    return lambda: list(caplog.messages)


@pytest.fixture
def said(tmp_path: pathlib.Path) -> Iterator[FinetuningLog]:
    run: Any = types.SimpleNamespace(workdir=tmp_path, is_first=True, watchdog=types.SimpleNamespace(alive=lambda doing: None))
    features = random_features("sequence", 8)
    shape = row_shape(features, LAYOUTS["sequence"])
    batches = LabelledBatches(features, shape, 4, 0, row_multiple=1, pad_id=0)
    job: Any = types.SimpleNamespace(
        experiment=FinetuningExperiment.from_dict({"init_from": "m"}),
        run=run,
        directory=tmp_path,
        prefix="",
        ledger=Ledger(),
        mesh=make_mesh(MeshConfig()),
        data=types.SimpleNamespace(task=TASK, baselines=BASELINES, shape=shape),
        program=types.SimpleNamespace(config=TINY),
        batches=batches,
        last_step=4,
    )
    with FinetuningLog(job, 0) as log:
        yield log


def window(**sums: float) -> dict[str, np.ndarray]:
    names = ("rows", "tokens", "packed_rows", "loss", "weight", "correct", "labels", "steps", "skipped", "grad_norm")
    names += ("learning_rate",)
    return {name: np.float32(sums.get(name, 1)) for name in names}


def test_compiling_is_announced_and_is_no_part_of_the_rates(said: FinetuningLog, told, tmp_path: pathlib.Path):
    clock = Clock()
    said.throughput = Throughput(Ledger(clock), clock)
    with said.compiling("training step", {"input_ids": np.zeros((12, 128), np.int32)}):
        assert told()[-1] == "compiling the training step for 12 rows of 128 tokens"  # before, not after
        clock.now += 136.0
    assert told()[-1].startswith("compiled the training step for 12 rows of 128 tokens in ")
    clock.now += 2.0
    said.training(1, window(rows=16))
    (record,) = read_metrics(tmp_path / METRICS)
    assert record["train/rows_per_second"] == 8.0


def test_every_dev_line_has_the_baseline_beside_the_score_that_counts(said: FinetuningLog, told):
    said.evaluation(2, {"dev": {"f1": 0.8125, "accuracy": 0.5}})
    assert told()[-1] == "dev after step 2: f1 0.8125 (baseline 0.75)  accuracy 0.5"


def test_the_start_says_what_the_baseline_is(told):
    log_start(FinetuningExperiment.from_dict({"init_from": "m"}), TASK, TINY, BASELINES)
    assert "baseline of dev: f1 0.75 ('a' for all, best on dev)" in told()
