"""Fine-tuning runs of a tiny model on random features; they train nothing by themselves."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.data.rows import row_shape
from bert_jax.finetuning.data import Data
from bert_jax.finetuning.job import Inputs, Job
from bert_jax.interop.huggingface import Model
from bert_jax.model.config import ModelConfig
from bert_jax.runtime.interruptions import Preemption, Watchdog
from bert_jax.runtime.launch import Run
from bert_jax.tasks.examples import TextExample
from bert_jax.tasks.scores import Baseline
from bert_jax.tasks.text_task import TextTask
from tests.random_features import HEADS, LABELS, LAYOUTS, random_features
from tests.random_rows import TINY

CONFIG = dataclasses.replace(TINY, num_layers=1)
FEATURES = {"train": random_features("sequence", 20), "dev": random_features("sequence", 7, seed=1)}
SHAPE = row_shape([*FEATURES["train"], *FEATURES["dev"]], LAYOUTS["sequence"])
BASELINES = {"dev": Baseline({"f1": 0.75}, {"'a' for all, best on dev": 0.75})}


def score(split: str, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return {"f1": float(np.mean(predictions == labels)), "accuracy": float(np.mean(predictions))}


def task_of(name: str = "toy", head: Any = HEADS["sequence"], metric: str = "f1", train: int = 20, dev: int = 7) -> TextTask:
    """Returns a task with as many examples as features."""
    counts = {"train": train, "dev": dev}
    splits = {split: [TextExample(str(i), "it", label=LABELS[i % 3]) for i in range(count)] for split, count in counts.items()}
    return TextTask(name, 16, head, metric, splits, score)


def model(config: ModelConfig = CONFIG, params: Any = None, **fields: Any) -> Model:
    """Returns a model that no text is read with."""
    return Model(params=params or {}, config=config, tokenizer=None, **fields)  # type: ignore[arg-type]


def run_in(workdir: pathlib.Path, is_first: bool = True, **parts: Any) -> Run:
    return Run(workdir, is_first, Preemption(), Watchdog(workdir), **{"figure_formats": (), **parts})


def job_in(
    workdir: pathlib.Path, directory: pathlib.Path | None = None, *, run: Run | None = None, devices: int = 1,
    task: Any = None, baselines: Mapping[str, Baseline] = BASELINES, start: Model | None = None, features: Any = None,
    inputs: Mapping[str, Any] | None = None, **values: Any,
) -> Job:  # fmt: skip
    """Returns a run of four epochs of three steps, with these `values` of its experiment."""
    training = {"batch_size": 8, "epochs": 4, "warmup_fraction": 0.25, "learning_rate": 0.5} | values.pop("training", {})
    experiment = FinetuningExperiment.from_dict({"init_from": "m", "seed": 3, **values, "training": training})
    data = Data(task or task_of(), features or FEATURES, SHAPE, 0, baselines)
    given: dict[str, Any] = {"data": data, "start": start or model()}
    given |= inputs or {}
    run = run or run_in(workdir)
    return Job(experiment, run, directory or workdir, jax.devices()[:devices], Inputs(**given))
