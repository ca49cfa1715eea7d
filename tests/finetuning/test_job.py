"""The batches, the scalars and the evaluation of one fine-tuning run."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.data.rows import row_shape
from bert_jax.errors import UserError
from bert_jax.finetuning import job as jobs
from bert_jax.finetuning.job import Inputs, Job
from bert_jax.objectives.cross_view import WEIGHTS
from bert_jax.objectives.flops import forward_flops, task_row_flops
from bert_jax.objectives.labels import LabelLoss
from bert_jax.runtime.goodput import GoodputRecorder, TimeCategory
from bert_jax.sharding import device_errors
from tests.random_features import HEADS, LAYOUTS, random_features
from tests.random_rows import TINY

FEATURES = {"train": random_features("sequence", 20), "dev": random_features("sequence", 7, seed=1)}
SHAPE = row_shape([*FEATURES["train"], *FEATURES["dev"]], LAYOUTS["sequence"])
TRAINING = {"batch_size": 8, "epochs": 4, "warmup_fraction": 0.25, "learning_rate": 0.5}


class Task:
    """A task that scores the sum of the logits."""

    name, head = "glue/tiny", HEADS["sequence"]

    def scores(self, split: str, logits: list[np.ndarray]) -> dict[str, Any]:
        return {"split": split, "logits": [float(one[0]) for one in logits]}


class Noting:
    """A jitted function that records the shapes for which it is lowered, and how often it runs."""

    def __init__(self, function: Any):
        self._function, self.calls = function, list[Any]()

    def __call__(self, *arguments: Any) -> jax.Array:
        self.calls.append("runs")
        return self._function(*arguments)

    def lower(self, params: jax.Array, batch: dict[str, jax.Array]) -> Any:
        self.calls.append(batch["input_ids"].shape)
        return self._function.lower(params, batch)


class Program:
    """A program whose logits are the token after [CLS] times the parameter."""

    def __init__(self, *settings: Any):
        self.settings, self.compiled = settings, set()

        def logits(params: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
            return params * jnp.take_along_axis(batch["input_ids"], batch["cls_positions"] + 1, axis=1)[..., None]

        self.evaluation_step = Noting(jax.jit(logits))

    def is_new(self, function: str, batch: dict[str, np.ndarray]) -> bool:
        key = (function, batch["input_ids"].shape)
        seen = key in self.compiled
        self.compiled.add(key)
        return not seen

    def init_state(self, make: Any, params: Any) -> Any:
        return ("state", make(params))

    def arguments(self, *arguments: Any) -> Any:
        return arguments


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Records the programs that are made."""
    programs: list[Program] = []

    def program_of(*settings: Any) -> Program:
        programs.append(Program(*settings))
        return programs[-1]

    monkeypatch.setattr(jobs, "finetuning_program", program_of)
    return programs


def job_in(
    workdir: pathlib.Path, directory: pathlib.Path | None = None, devices: int = 2, unlabelled: Any = None, **values: Any
) -> Job:
    experiment = FinetuningExperiment.from_dict(
        {"init_from": "m", "seed": 3, **values, "training": TRAINING | values.get("training", {})}
    )
    alive: list[str] = []
    watchdog = types.SimpleNamespace(alive=alive.append, seen=alive)
    run: Any = types.SimpleNamespace(workdir=workdir, goodput=GoodputRecorder(), watchdog=watchdog, is_first=True)
    run.compiling = lambda goodput: goodput.during(TimeCategory.COMPILING)
    data: Any = types.SimpleNamespace(features=FEATURES, shape=SHAPE, pad_id=0, task=Task(), dev=["dev"])
    start: Any = types.SimpleNamespace(config=TINY)

    def teaching_on(mesh: jax.sharding.Mesh) -> Any:
        return lambda batch: batch | {"taught by": mesh}

    inputs = Inputs(data, start, teaching_on, unlabelled=unlabelled)
    return Job(experiment, run, directory or workdir, jax.devices()[:devices], inputs)


def test_a_sweep_run_has_its_own_log_prefix_and_goodput(tmp_path: pathlib.Path, made: list[Program]):
    alone, of_sweep = job_in(tmp_path), job_in(tmp_path, tmp_path / "seed-3")
    assert (alone.prefix, alone.goodput) == ("", alone.run.goodput)
    assert of_sweep.prefix == "seed-3  "
    assert of_sweep.goodput is not of_sweep.run.goodput


def test_the_scalars_of_a_run_follow_from_its_steps(tmp_path: pathlib.Path, made: list[Program]):
    job = job_in(tmp_path)
    assert (job.batches.steps_per_epoch, job.last_step) == (3, 12)
    assert job.scalars == {"steps": 12, "warmup_steps": 3, "peak": 0.5, "seed": 3}
    assert job.evaluations == {3, 6, 9, 12}
    experiment, config, head, loss, steps_per_epoch, mesh = made[0].settings
    assert experiment is job.experiment
    assert config == job.config == job.experiment.model_config(TINY, "cpu")
    assert (head, loss, steps_per_epoch, mesh) == (job.head, LabelLoss(), 3, job.mesh)


def test_cross_view_training_alternates_with_unlabelled_sentences(
    tmp_path: pathlib.Path, made: list[Program], monkeypatch: pytest.MonkeyPatch
):
    sentences = types.SimpleNamespace(row_count=6, at=lambda step, shard: {"step": np.full(1, step)})
    asked: list[Any] = []
    monkeypatch.setattr(jobs, "UnlabelledBatches", lambda *given, **named: (asked.append((given, named)), sentences)[1])
    settings: dict[str, Any] = {"cross_view": {"corpus": "text", "batch_size": 5}, "training": {"accumulation": 3}}
    job = job_in(tmp_path, unlabelled="corpus", **settings)
    assert asked == [(("corpus", SHAPE, 5, 3), {"row_multiple": 6, "weights": WEIGHTS})]
    assert (job.batches.steps_per_epoch, job.last_step) == (6, 24)
    assert job.batches.at(7)["step"].tolist() == [3]
    monkeypatch.setattr(jobs, "with_own_head", lambda *given: types.SimpleNamespace(params={"word": 1}))
    views = types.SimpleNamespace(training_parameters=lambda key: {"views": nn.Partitioned(jax.random.key_data(key), (None,))})
    monkeypatch.setattr(jobs, "CrossView", lambda config, head: views)
    _, params = job.init_state()  # type: ignore[misc]
    assert params["word"] == 1
    np.testing.assert_array_equal(params["views"], jax.random.key_data(jax.random.key(3)))
    _, params = job_in(tmp_path).init_state()  # type: ignore[misc]
    assert params == {"word": 1}


def test_too_many_steps_are_refused(tmp_path: pathlib.Path, made: list[Program], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "MAX_COUNT", 12)
    assert job_in(tmp_path).last_step == 12
    with pytest.raises(UserError, match=r"config\.training\.epochs=5 gives 15 steps, but at most 12 are possible; lower it"):
        job_in(tmp_path, training={"epochs": 5})


def test_a_batch_that_cannot_fit_is_refused_unless_fewer_layers_are_kept(
    tmp_path: pathlib.Path, made: list[Program], monkeypatch: pytest.MonkeyPatch
):
    rows = job_in(tmp_path).batches.row_counts[-1]
    one_layer = rows * SHAPE.length * TINY.hidden_size * 4  # bytes of the hidden states; the model has two layers
    monkeypatch.setattr(device_errors, "host_memory", lambda: 3 * one_layer // 2)
    with pytest.raises(UserError, match="the training step does not fit in memory"):
        job_in(tmp_path)
    job_in(tmp_path, model={"remat": "full"})
    job_in(tmp_path, training={"freeze_encoder": True})
    job_in(tmp_path, training={"accumulation": 2})
    monkeypatch.setattr(device_errors, "host_memory", lambda: one_layer // 2)
    for training in ({"freeze_encoder": True}, {"accumulation": 2}):
        with pytest.raises(UserError, match="the training step does not fit in memory"):
            job_in(tmp_path, training=training)


def test_a_device_holds_its_share_of_the_rows(tmp_path: pathlib.Path, made: list[Program], monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    monkeypatch.setattr(jobs, "require_memory", lambda needs, mesh, advice: asked.append((needs, mesh, advice().what)))
    job = job_in(tmp_path)
    rows = job.batches.row_counts[-1]
    assert asked == [(rows / 2 * 2 * SHAPE.length * TINY.hidden_size * 4, job.mesh, "the training step")]  # of two layers


def test_rows_fill_all_devices_and_microbatches_and_ids_are_checked(tmp_path: pathlib.Path, made: list[Program]):
    job = job_in(tmp_path, training={"accumulation": 3})
    assert len(job.rows(0)["input_ids"]) % 6 == 0
    for name, array in job.batches.at(5).items():
        np.testing.assert_array_equal(job.rows(5)[name], array)
    start: Any = job.start
    start.config = dataclasses.replace(TINY, vocab_size=6)
    with pytest.raises(UserError, match="a different vocabulary"):
        job.rows(0)


def test_a_step_gets_the_state_the_batch_with_teacher_and_the_scalars(tmp_path: pathlib.Path, made: list[Program]):
    job = job_in(tmp_path)
    state: Any = "state"
    given, batch, scalars = job.arguments(state, job.rows(0))
    assert (given, scalars, batch.pop("taught by")) == ("state", job.scalars, job.mesh)  # type: ignore[attr-defined]
    assert batch["input_ids"].sharding.mesh == job.mesh  # type: ignore[index]


def test_row_flops_include_the_forward_pass_of_the_teacher(tmp_path: pathlib.Path, made: list[Program]):
    alone, taught = (job_in(tmp_path / name, training={"freeze_encoder": True}) for name in ("alone", "taught"))
    teacher: Any = types.SimpleNamespace(config=dataclasses.replace(TINY, num_layers=5), head=HEADS["sequence"])
    taught._inputs = dataclasses.replace(taught._inputs, teacher=teacher)
    assert alone.row_flops == task_row_flops(TINY, HEADS["sequence"], SHAPE, frozen=True)
    assert taught.row_flops - alone.row_flops == forward_flops(task_row_flops(teacher.config, teacher.head, SHAPE))


def test_dev_features_are_scored_in_order_with_one_compilation(
    tmp_path: pathlib.Path, made: list[Program], monkeypatch: pytest.MonkeyPatch
):
    shown: list[Any] = []

    @contextlib.contextmanager
    def progress(what: str, unit: str, is_shown: bool) -> Iterator[Any]:
        shown.append((what, unit, is_shown))
        yield lambda done, total: shown.append((done, total))

    monkeypatch.setattr(jobs, "evaluation_progress", progress)
    asked: list[Any] = []
    monkeypatch.setattr(jobs, "evaluation_rows", lambda shape, *rest: (asked.append((shape, *rest)), 2)[1])
    job = job_in(tmp_path, tmp_path / "seed-3", devices=1)
    timed: list[TimeCategory] = []
    during = job.goodput.during
    monkeypatch.setattr(job.goodput, "during", lambda category: (timed.append(category), during(category))[1])
    wanted = [0.5 * float(feature.ids[0][1]) for feature in FEATURES["dev"]]
    for _ in range(2):
        scores, logits = job.evaluate(jnp.float32(0.5))
        assert scores.keys() == logits.keys() == {"dev"}
        np.testing.assert_allclose(logits["dev"], np.array(wanted)[:, None])
        assert scores["dev"]["split"] == "dev"
        np.testing.assert_allclose(scores["dev"]["logits"], wanted)  # type: ignore[arg-type]
    assert asked == [(SHAPE, "cpu", 1)]
    assert timed == [TimeCategory.COMPILING]
    assert shown[0] == ("seed-3  dev", "examples", True)
    assert shown[len(shown) // 2 - 1] == (len(FEATURES["dev"]), len(FEATURES["dev"]))
    batches = len(shown) // 2 - 1
    assert job.program.evaluation_step.calls == [(2, SHAPE.length), *["runs"] * 2 * batches]  # type: ignore[attr-defined]
    assert job.run.watchdog.seen == 2 * batches * ["evaluation"]  # type: ignore[attr-defined]
