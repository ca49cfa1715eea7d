from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.data.batches import LabelledBatches, to_device
from bert_jax.data.rows import Feature, row_shape
from bert_jax.errors import UserError
from bert_jax.finetuning import program as finetuning
from bert_jax.finetuning.program import finetuning_program, label_loss, step_scalars, task_teacher
from bert_jax.finetuning.sweep import sweep
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads import make_head
from bert_jax.model.heads.bert_with_head import BertWithHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.distillation import TaskDistillation
from bert_jax.objectives.labels import LabelLoss, Labels
from bert_jax.runtime.launch import Run
from bert_jax.sharding.config import MeshConfig
from bert_jax.sharding.mesh import make_mesh
from bert_jax.sharding.rules import ACTIVATION_RULES, BATCH
from bert_jax.tasks.text_task import TextTask
from bert_jax.training.layerwise_rates import learning_rate_multipliers
from bert_jax.training.steps import Program
from bert_jax.training.teachers import on_mesh
from tests.finetuning import jobs
from tests.random_features import HEADS, LAYOUTS, random_features, random_label_parameters
from tests.random_rows import TINY

CONFIG = dataclasses.replace(TINY, num_layers=1)  # compiled quickly
WORDS = dataclasses.replace(TINY, encoder="static", num_layers=0)  # compiled more quickly
R_DROP = "experiments/extensions/r_drop.py:RDrop"
HEAD = HEADS["sequence"]
FEATURES = random_features("sequence", 48, shortest=8, longest=8)
SHAPE = row_shape(FEATURES, LAYOUTS["sequence"])
PARAMS = random_label_parameters(HEAD, CONFIG)


def task_of(kind: str = "sequence") -> TextTask:
    return jobs.task_of("glue/tiny", HEADS[kind])


def experiment(**sections: Any) -> FinetuningExperiment:
    training = {"batch_size": 16, "schedule": "constant", "warmup_fraction": 0.0} | sections.pop("training", {})
    return FinetuningExperiment.from_dict({"init_from": "m", "training": training, **sections})


def learned(one: FinetuningExperiment, devices: Sequence[jax.Device], steps: int = 4, config: ModelConfig = CONFIG) -> Any:
    """Returns the parameters after this many steps from `random_label_parameters`, as numpy arrays."""
    mesh = make_mesh(MeshConfig(), devices)
    batches = LabelledBatches(FEATURES, SHAPE, one.training.batch_size, one.seed, epochs=2, row_multiple=8, pad_id=0)
    program = program_of(one, batches.steps_per_epoch, mesh, config=config)
    state = program.init_state(dict, random_label_parameters(HEAD, config))
    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        for step in range(steps):
            batch = to_device(batches.at(step), mesh, BATCH)
            state, _ = program.training_step(1)(*program.arguments(state, batch, step_scalars(one, steps)))
    return jax.device_get(state.params)


def test_a_schedule_whose_first_rate_is_not_finite_is_refused(tmp_path: pathlib.Path):
    (tmp_path / "mine.py").write_text("def starts(step, steps, warmup_steps): return step / warmup_steps")
    one = experiment(training={"schedule": f"{tmp_path}/mine.py:starts"})
    with pytest.raises(UserError, match=r"config.training.schedule=.*mine.py:starts returns nan for step 0 of 4 steps"):
        step_scalars(one, 4)


def program_of(one: FinetuningExperiment, steps: int, mesh: Any, config: ModelConfig = CONFIG) -> Program:
    task = task_of()
    loss, head = label_loss(one, task, FEATURES), one.head_config(task.head)
    return finetuning_program(one, one.model_config(config, "cpu"), head, loss, steps, mesh)


def test_an_own_objective_with_dropout_trains_on_eight_devices_as_on_one():
    one = experiment(objective=R_DROP, objective_options={"alpha": 2.0}, model={"hidden_dropout": 0.3})
    few, many = (learned(one, jax.devices()[:count], steps=2, config=WORDS) for count in (1, 8))
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-7), few, many)


def same(a: Any, b: Any) -> bool:
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


def test_parallel_sweep_runs_share_compiled_functions_and_train_as_alone(tmp_path):
    """There are two groups of four devices and two programs, each compiled once for runs with three seeds and two rates."""
    whole = experiment(sweep={"seeds": [1, 2, 3], "learning_rates": [1e-3, 1e-2], "devices_per_run": 4})
    together: dict[str, Any] = {}

    def train(one: FinetuningExperiment, directory: pathlib.Path, devices: Sequence[jax.Device]) -> dict[str, Any]:
        together[one.name] = learned(one, devices, config=WORDS)
        directory.mkdir(parents=True)
        t = one.training
        settings = {"batch_size": t.batch_size, "learning_rate": t.learning_rate, "epochs": t.epochs, "seed": one.seed}
        results = settings | {"metric": "f1", "scores": {"dev": {"f1": one.seed}}, "baseline": {"dev": {"f1": 0.0}}}
        (directory / "results.json").write_text(json.dumps(results))
        return results

    finetuning._program.cache_clear()
    run = Run(tmp_path, True, Any, Any)  # type: ignore[arg-type]
    assert sweep(whole, run, train, lambda best, devices: None) == 0
    assert finetuning._program.cache_info().currsize == 2
    meshes = [make_mesh(MeshConfig(), jax.devices()[i : i + 4]) for i in (0, 4)]
    programs = [program_of(whole.runs()[0], 3, mesh, WORDS) for mesh in meshes]
    assert finetuning._program.cache_info().currsize == 2
    assert [program.training_step(1)._cache_size() for program in programs] == [1, 1]

    for one in whole.runs():
        assert same(learned(one, jax.devices()[:4], config=WORDS), together[one.name]), one.name
    assert [program.training_step(1)._cache_size() for program in programs] == [1, 1]
    assert not any(same(a, b) for i, a in enumerate(together.values()) for b in list(together.values())[:i])


def test_a_copy_of_the_parameters_keeps_their_sharding_and_outlives_the_state():
    mesh = make_mesh(MeshConfig(data=1, fsdp=2), jax.devices()[:2])
    program = program_of(experiment(), 3, mesh)
    params = program.init_state(dict, PARAMS).params
    kept, wanted = program.copy(params), jax.device_get(params)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: a.sharding == b.sharding, kept, params)))
    for array in jax.tree.leaves(params):
        array.delete()  # like a step, which donates its memory
    assert same(jax.device_get(kept), wanted)


def test_a_frozen_encoder_does_not_change_and_the_head_trains_without_its_gradient():
    one = experiment(training={"freeze_encoder": True, "learning_rate": 1e-2}, optimizer={"weight_decay": 0.1})
    params = learned(one, jax.devices()[:1])
    assert {part: same(tree, PARAMS[part]) for part, tree in params.items()} == {
        "embeddings": True,
        "encoder": True,
        "pooler": False,
        "sequence_head": False,
    }


def test_only_gradual_unfreezing_recompiles_for_other_steps_per_epoch():
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])

    def differ(one: FinetuningExperiment) -> bool:
        first, second = (program_of(one, steps, mesh) for steps in (3, 4))
        return first is not second

    assert not differ(experiment())
    assert differ(experiment(training={"gradual_unfreezing": True}))


def test_a_program_is_made_of_the_settings_that_its_compiled_functions_depend_on():
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    usual = program_of(experiment(), 5, mesh)
    for training in ({"epochs": 7}, {"batch_size": 48}, {"learning_rate": 0.5}, {"warmup_fraction": 0.5}):
        assert program_of(experiment(training=training), 5, mesh) is usual
    compiled: list[dict[str, Any]] = [{"training": {"schedule": "linear"}}, {"training": {"layer_decay": 0.9}}]
    compiled += [{"training": {"class_weights": [0]}}, {"training": {"label_smoothing": 0.1}}]
    compiled += [
        {"training": {"freeze_encoder": True}},
        {"optimizer": {"weight_decay": 0.3}},
        {"model": {"hidden_dropout": 0.25}},
    ]
    programs = [usual, *(program_of(experiment(**sections), 5, mesh) for sections in compiled)]
    assert len({id(program) for program in programs}) == len(programs)
    weighted = program_of(experiment(training={"class_weights": [0], "label_smoothing": 0.1}), 5, mesh)
    assert isinstance(weighted.objective, Labels)
    assert (weighted.mesh, weighted.clip_norm) == (mesh, experiment().optimizer.clip_norm)


@pytest.mark.parametrize(
    ("head", "training", "settings"),
    [
        (HEAD, {"crf_multiplier": 7.0}, {}),
        (HEAD, {"layer_decay": 0.5, "freeze_encoder": True}, {"decay": 0.5, "frozen": ("embeddings", "encoder")}),
        (HEAD, {"gradual_unfreezing": True}, {"unfreeze_every": 3}),
        (dataclasses.replace(HEADS["token"], crf="free"), {"crf_multiplier": 7.0}, {"crf_multiplier": 7.0}),
    ],
)
def test_layer_rates_follow_the_settings_and_crf_rates_need_a_crf(
    head: TaskHead, training: dict[str, Any], settings: dict[str, Any]
):
    one, mesh = experiment(training=training), make_mesh(MeshConfig(), jax.devices()[:1])
    program = finetuning_program(one, CONFIG, head, LabelLoss(), 3, mesh)
    usual: dict[str, Any] = {"decay": 1.0, "frozen": (), "unfreeze_every": 0, "crf_multiplier": 1.0}
    wanted = learning_rate_multipliers(random_label_parameters(head, CONFIG), **usual | settings)
    found = program.learning_rate_multipliers
    for step in (0, 3, 100):
        ours, theirs = (one(np.int32(step)) if callable(one) else one for one in (found, wanted))
        assert jax.tree.all(jax.tree.map(np.array_equal, ours, theirs))


def test_a_function_counts_as_new_once_per_batch_shape():
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    program = dataclasses.replace(program_of(experiment(), 3, mesh), _compiled=set())
    small, large = ({"input_ids": np.zeros(shape)} for shape in ((2, 8), (2, 16)))
    calls = [("train", small), ("train", small), ("logits", small), ("train", large), ("logits", small)]
    assert [program.is_new(*call) for call in calls] == [True, False, True, True, False]


# -------------------------------------------------------------------------------------------------------------------- the loss


def test_balanced_class_weights_are_inverse_frequencies():
    """n / (classes * count of the class), scikit-learn's "balanced"; tokens without a label are not counted."""
    for kind in ("sequence", "token"):
        features = random_features(kind, 30)
        found = label_loss(experiment(training={"class_weights": [0]}), task_of(kind), features).class_weights
        targets = np.concatenate([np.ravel(feature.target) for feature in features])
        counts = [(targets == label).sum() for label in range(3)]
        np.testing.assert_allclose(found, [sum(counts) / (3 * count) for count in counts])


def test_balanced_class_weights_ignore_classes_without_examples():
    features = [Feature(0, (np.int32([2]),), (np.int32([0]),), np.array(label, np.int32)) for label in (0, 0, 1)]
    weights = label_loss(experiment(training={"class_weights": [0]}), task_of(), features).class_weights
    np.testing.assert_allclose(weights[:2], [0.5, 1.0])
    assert np.isfinite(weights[2])


def test_given_class_weights_are_used():
    loss = label_loss(experiment(training={"class_weights": [1, 2, 0.5], "label_smoothing": 0.1}), task_of(), FEATURES)
    assert loss == LabelLoss(class_weights=(1.0, 2.0, 0.5), label_smoothing=0.1)


@pytest.mark.parametrize(
    ("kind", "weights", "says"),
    [
        ("sequence", [1, 2], r"has 2 numbers, but glue/tiny has 3 labels \(a, b, c\); give one for each, or a single 0"),
        ("span", [0], "class_weights is for tasks that choose one of several labels, but glue/tiny does not; leave"),
        ("regression", [0], "but glue/tiny does not"),
        ("multi_label", [1, 1, 1], "but glue/tiny does not"),
    ],
)
def test_class_weights_that_do_not_fit_are_refused(kind, weights, says):
    with pytest.raises(UserError, match=says):
        label_loss(experiment(training={"class_weights": weights}), task_of(kind), random_features(kind, 3))


def test_a_regression_refuses_class_weights_and_label_smoothing():
    task = jobs.task_of("glue/tiny", make_head("sequence", labels=("score",), problem="regression"))
    features = random_features("regression", 3)
    with pytest.raises(UserError, match="class_weights is for tasks that choose one of several labels"):
        label_loss(experiment(training={"class_weights": [1]}), task, features)
    with pytest.raises(UserError, match="label_smoothing is for classification, but glue/tiny is a regression; set it to 0"):
        label_loss(experiment(training={"label_smoothing": 0.1}), task, features)
    assert label_loss(experiment(training={"label_smoothing": 0.1}), task_of("multi_label"), features).label_smoothing == 0.1


# ----------------------------------------------------------------------------------------------------------------- the teacher


def test_without_a_teacher_nothing_is_distilled():
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    program = program_of(experiment(), 3, mesh)
    assert (program.teacher, type(program.objective)) == (None, Labels)


def test_a_student_learns_the_predictions_and_the_layers_of_its_teacher():
    config = dataclasses.replace(TINY, num_layers=3, scan_layers=True, hidden_dropout=0.5, attention_dropout=0.5)
    mesh, params = make_mesh(MeshConfig()), random_label_parameters(HEAD, config, seed=1)
    settings = {"teacher": "t", "temperature": 3.0, "soft_weight": 0.75, "hidden_weight": 0.25}
    one = experiment(distillation=settings)
    teacher = on_mesh(task_teacher(one, config, HEAD, params), mesh)
    program = finetuning_program(one, CONFIG, HEAD, LabelLoss(), 3, mesh, teacher)
    batch = LabelledBatches(FEATURES, SHAPE, 16, 0, epochs=1, row_multiple=8, pad_id=0).at(0)

    @jax.jit
    def distilled(of_teacher, batch):
        objective = program.objective.with_teacher(dataclasses.replace(teacher, params=of_teacher))
        sums, counts = objective.sums(PARAMS, batch, None), objective.counts(batch)
        return sums, counts, objective.loss(sums, counts)

    @jax.jit
    def separate(params, batch):
        """No seed, and so no dropout."""
        models = (BertWithHead(CONFIG, HEAD), PARAMS), (BertWithHead(config, HEAD), params)
        ours, theirs = (model.apply({"params": params}, batch) for model, params in models)
        settings = PretrainingDistillation(temperature=3.0, soft_weight=0.75)
        sums = TaskDistillation(Labels(CONFIG, HEAD), settings).distilled_sums(ours, theirs, batch)
        return sums, ours["hidden_states"], theirs["hidden_states"]

    with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(mesh):
        sums, counts, loss = jax.device_get(distilled(teacher.params, to_device(batch, mesh, BATCH)))
    wanted, ours, theirs = jax.device_get(separate(params, batch))
    squares = np.square(ours - theirs[[0, 3]]).mean((0, 3))  # the student has one layer
    wanted["hidden_difference"] = squares[batch["sequence_ids"] > 0].sum()
    assert jax.tree.map(float, sums) == pytest.approx(jax.tree.map(float, wanted), rel=1e-4)
    mean = sums["loss"] / counts["weight"] + 0.25 * sums["hidden_difference"] / counts["read_tokens"]
    assert loss == pytest.approx(mean, rel=1e-6)
