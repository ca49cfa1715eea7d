"""The batches, the scalars and the evaluation of one fine-tuning run."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
from typing import Any

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.finetuning import job as jobs
from bert_jax.objectives.flops import forward_flops, task_row_flops
from bert_jax.objectives.labels import Labels
from bert_jax.objectives.objective import Teacher
from bert_jax.runtime.interruptions import Preemption, Watchdog
from bert_jax.runtime.launch import Run
from tests.finetuning.jobs import CONFIG, FEATURES, SHAPE, job_in, model, task_of
from tests.random_features import HEADS, random_label_parameters
from tests.random_rows import TINY


def test_a_sweep_run_has_its_own_log_prefix_and_goodput(tmp_path: pathlib.Path):
    alone, of_sweep = job_in(tmp_path), job_in(tmp_path, tmp_path / "seed-3")
    assert (alone.prefix, alone.goodput) == ("", alone.run.goodput)
    assert of_sweep.prefix == "seed-3  "
    assert of_sweep.goodput is not of_sweep.run.goodput


def test_the_scalars_of_a_run_follow_from_its_steps(tmp_path: pathlib.Path):
    job = job_in(tmp_path)
    assert (job.batches.steps_per_epoch, job.last_step) == (3, 12)
    assert job.scalars == {"steps": 12, "warmup_steps": 3, "peak": 0.5, "seed": 3}
    assert job.evaluations == {3, 6, 9, 12}
    assert job.config == job.experiment.model_config(CONFIG, "cpu")
    assert job.head == HEADS["sequence"]


def test_too_many_steps_are_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "MAX_COUNT", 12)
    assert job_in(tmp_path).last_step == 12
    with pytest.raises(UserError, match=r"config\.training\.epochs=5 gives 15 steps, but at most 12 are possible; lower it"):
        job_in(tmp_path, training={"epochs": 5})


def test_a_batch_that_cannot_fit_is_refused_unless_fewer_layers_are_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    two_layers: dict[str, Any] = {"start": model(TINY), "devices": 2}
    rows = job_in(tmp_path, **two_layers).batches.row_counts[-1]
    one_layer = rows * SHAPE.length * TINY.hidden_size * 4  # bytes of the hidden states
    sysconf = os.sysconf

    def has(memory: int) -> None:
        figures = {"SC_PHYS_PAGES": memory, "SC_PAGE_SIZE": 1}
        monkeypatch.setattr(os, "sysconf", lambda name: figures[name] if name in figures else sysconf(name))

    has(3 * one_layer // 2)
    with pytest.raises(UserError, match="the training step does not fit in memory"):
        job_in(tmp_path, **two_layers)
    job_in(tmp_path, **two_layers, model={"remat": "full"})
    job_in(tmp_path, **two_layers, training={"freeze_encoder": True})
    job_in(tmp_path, **two_layers, training={"accumulation": 2})
    has(one_layer // 2)
    for training in ({"freeze_encoder": True}, {"accumulation": 2}):
        with pytest.raises(UserError, match="the training step does not fit in memory"):
            job_in(tmp_path, **two_layers, training=training)


def test_rows_fill_all_devices_and_microbatches_and_ids_are_checked(tmp_path: pathlib.Path):
    job = job_in(tmp_path, devices=2, training={"accumulation": 3})
    assert len(job.rows(0)["input_ids"]) % 6 == 0
    for name, array in job.batches.at(5).items():
        np.testing.assert_array_equal(job.rows(5)[name], array)
    with pytest.raises(UserError, match="a different vocabulary"):
        job_in(tmp_path, start=model(dataclasses.replace(CONFIG, vocab_size=6))).rows(0)


def test_a_step_gets_the_state_the_batch_the_scalars_and_the_teacher(tmp_path: pathlib.Path):
    teacher = Teacher(Labels(CONFIG, HEADS["sequence"]), {"encoder": "its weights"})
    job = job_in(tmp_path, devices=2, inputs={"teacher_on": lambda mesh: teacher})
    state: Any = "state"
    given, batch, scalars, weights = job.arguments(state, job.rows(0))
    assert (given, scalars, weights) == ("state", job.scalars, teacher.params)
    assert batch["input_ids"].sharding.mesh == job.mesh
    assert len(job_in(tmp_path).arguments(state, job.rows(0))) == 3


def test_row_flops_include_the_forward_pass_of_the_teacher(tmp_path: pathlib.Path):
    teacher = Teacher(Labels(dataclasses.replace(TINY, num_layers=5), HEADS["sequence"]), {})
    frozen = {"freeze_encoder": True}
    alone, taught = (job_in(tmp_path, training=frozen, inputs={"teacher_on": lambda mesh, t=t: t}) for t in (None, teacher))
    assert alone.row_flops == task_row_flops(CONFIG, HEADS["sequence"], SHAPE, frozen=True)
    forward = forward_flops(task_row_flops(teacher.config, HEADS["sequence"], SHAPE))
    assert taught.row_flops - alone.row_flops == forward


def test_dev_features_are_scored_in_order_with_one_compilation(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="bert_jax")
    now = [0.0]
    run = Run(tmp_path, True, Preemption(), Watchdog(tmp_path, clock=lambda: now[0]))
    mirrored = [*FEATURES["dev"], *reversed(FEATURES["dev"])] * 40  # several batches
    own = model(dataclasses.replace(CONFIG, layer_norm_epsilon=1e-9))  # other tests have not compiled its evaluation
    given = {"task": task_of(dev=len(mirrored)), "features": {**FEATURES, "dev": mirrored}, "start": own}
    job = job_in(tmp_path, tmp_path / "seed-3", run=run, **given)
    params = random_label_parameters(HEADS["sequence"], CONFIG)
    scores, logits = job.evaluate(params)
    before = [message for message in caplog.messages if message.startswith("seed-3  compiling the evaluation")]
    again, _ = job.evaluate(params)
    assert scores.keys() == logits.keys() == {"dev"}
    assert scores == again == {"dev": job.data.task.scores("dev", logits["dev"])}
    np.testing.assert_allclose(logits["dev"], logits["dev"][::-1], atol=1e-5)
    assert len({one.argmax() for one in logits["dev"]}) > 1
    compiled = [message for message in caplog.messages if message.startswith("seed-3  compiling the evaluation")]
    assert len(compiled) == 1 == len(before)
    assert job.goodput.totals()["seconds"]["compiling"] > 0
    now[0] = 1e6
    assert " in evaluation (limit " in run.watchdog.hang()
