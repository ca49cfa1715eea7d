"""Losses compared with loops over single features in float64, by the formulas that PyTorch documents."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.rows import assemble_features, feature_logits, pack_features, row_shape
from bert_jax.errors import UserError
from bert_jax.interface.named import load_named
from bert_jax.model.heads.bert_with_head import BertWithHead
from bert_jax.model.heads.outputs import MultiLabel, Outputs
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.distillation import READ, TaskDistillation, hidden_state_difference, teacher_layers
from bert_jax.objectives.labels import LabelLoss, Labels
from bert_jax.objectives.model import Model, dense
from bert_jax.objectives.objective import Objective, Teacher
from tests.documented import python_file
from tests.random_features import HEADS, KINDS, LAYOUTS, random_features, random_label_parameters, shapes_of
from tests.random_rows import TINY, largest_difference

COUNT = 12
CLASSIFYING = tuple(kind for kind in KINDS if type(HEADS[kind].outputs) is Outputs)
CLASSES = tuple(kind for kind in CLASSIFYING if HEADS[kind].has_labels)  # with names, and so weights
PLAIN = LabelLoss()
CONFIG = dataclasses.replace(TINY, num_layers=1)


@functools.cache
def packed(kind: str):
    """Returns (features, rows, shape, batch): twelve features in fewer rows, and empty rows up to twelve."""
    features = random_features(kind, COUNT, seed=5)
    shape = row_shape(features, LAYOUTS[kind])
    rows = pack_features(features, shape)
    batch = assemble_features(features, rows, COUNT, shape, pad_id=0)
    return features, rows, shape, batch


@functools.cache
def random_logits(kind: str, seed: int = 0) -> np.ndarray:
    """Returns random logits in the shape of the model's logits for `packed(kind)`."""
    _, _, shape, _ = packed(kind)
    outputs = HEADS[kind].num_outputs
    slots = shape.length if shape.layout.logits_per_token else shape.slots
    return np.random.default_rng(seed).normal(size=(COUNT, slots, outputs), scale=2.0).astype(np.float32)


def answers(kind: str, seed: int = 0) -> Iterator[tuple[np.ndarray, int]]:
    """Returns (logits to choose from, the correct one) for every label that is chosen, in float64."""
    features, rows, shape, _ = packed(kind)
    for feature, logits in zip(features, feature_logits(random_logits(kind, seed), features, rows, shape), strict=True):
        scores = logits.astype(np.float64)
        if LAYOUTS[kind].per_token:
            yield from ((row, label) for row, label in zip(scores, feature.target.tolist(), strict=True) if label >= 0)
        elif LAYOUTS[kind].are_positions:
            yield from zip(scores.T, feature.target.tolist(), strict=True)
        else:
            yield scores, int(feature.target)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum())


WEIGHTS = (0.5, 3.0, 1.25)
SETTINGS = tuple(LabelLoss(class_weights=weights, label_smoothing=n) for weights in ((), WEIGHTS) for n in (0.0, 0.2))
SOFT = PretrainingDistillation(temperature=2.0, soft_weight=1.0)
MIXED = PretrainingDistillation(temperature=3.0, soft_weight=0.75)
LITTLE = PretrainingDistillation(temperature=1.0, soft_weight=0.25)
Key = tuple[LabelLoss, PretrainingDistillation | None, int | None]


@functools.cache
def sums_and_counts(kind: str) -> dict[Key, tuple[dict[str, float], dict[str, float]]]:
    """Returns the sums and counts for all settings of labels and distillation, and seeds of a teacher's logits; one program
    computes them. The seed of the student's logits is 0."""
    known = [settings for settings in SETTINGS if kind in CLASSES or not settings.class_weights]
    keys: list[Key] = [*((settings, None, None) for settings in known), (PLAIN, MIXED, 1), (PLAIN, SOFT, 0)]
    keys += [(PLAIN, SOFT, 1)] if kind not in CLASSIFYING else []
    keys += [(SETTINGS[-1], LITTLE, 1)] if kind == "sequence" else []

    def every(logits, batch, teachers):
        found = []
        for settings, distillation, teacher in keys:
            objective = Labels(CONFIG, HEADS[kind], settings)
            if distillation is None or teacher is None:
                sums = objective.output_sums({"logits": logits}, batch)
            else:
                ours, theirs = ({"logits": x} for x in (logits, teachers[teacher]))
                sums = TaskDistillation(objective, distillation).distilled_sums(ours, theirs, batch)
            found.append((sums, objective.counts(batch)))
        return found

    logits = random_logits(kind)
    found = jax.jit(every)(logits, packed(kind)[3], [logits, random_logits(kind, 1)])
    return dict(zip(keys, jax.tree.map(float, found), strict=True))


def mean_loss(
    kind: str, settings: LabelLoss = PLAIN, distillation: PretrainingDistillation | None = None, teacher: int | None = None
) -> float:
    sums, counts = sums_and_counts(kind)[settings, distillation, teacher]
    return sums["loss"] / counts["weight"]


# ----------------------------------------------------------------------------------------------------------- losses from labels


def test_the_kinds_that_classify_are_known():
    assert set(CLASSIFYING) >= {"sequence", "token", "span", "choice", "mention"}
    assert set(CLASSES) >= {"sequence", "token", "mention"}


@pytest.mark.parametrize("kind", CLASSIFYING)
def test_cross_entropy_is_over_the_available_answers(kind):
    """The loss is over the labels; for a choice over its own candidates; for a span over its own tokens, the mean of start and
    end."""
    assert mean_loss(kind) == pytest.approx(np.mean([-log_softmax(x)[label] for x, label in answers(kind)]), rel=1e-5)


@pytest.mark.parametrize("kind", CLASSES)
def test_cross_entropy_with_class_weights_divides_by_the_weights_as_in_pytorch(kind):
    wanted = [(WEIGHTS[label], -WEIGHTS[label] * log_softmax(x)[label]) for x, label in answers(kind)]
    assert mean_loss(kind, LabelLoss(class_weights=WEIGHTS)) == pytest.approx(
        sum(loss for _, loss in wanted) / sum(weight for weight, _ in wanted), rel=1e-5
    )


@pytest.mark.parametrize("kind", CLASSIFYING)
def test_label_smoothing_equals_pytorch(kind):
    """As in torch.nn.CrossEntropyLoss: a mixture of the true label and the uniform distribution over all labels."""
    wanted = [-0.8 * log_softmax(x)[label] - 0.2 / len(x) * log_softmax(x).sum() for x, label in answers(kind)]
    assert mean_loss(kind, LabelLoss(label_smoothing=0.2)) == pytest.approx(np.mean(wanted), rel=1e-5)


@pytest.mark.parametrize("kind", CLASSES)
def test_class_weights_apply_to_label_smoothing_as_in_pytorch(kind):
    weights = np.array(WEIGHTS)
    wanted = [-0.8 * weights[y] * log_softmax(x)[y] - 0.2 / 3 * (weights * log_softmax(x)).sum() for x, y in answers(kind)]
    found = mean_loss(kind, LabelLoss(class_weights=WEIGHTS, label_smoothing=0.2))
    assert found == pytest.approx(sum(wanted) / sum(weights[label] for _, label in answers(kind)), rel=1e-5)


PYTORCH = {0.0: 0.449868918282507, 0.1: 0.5340265450202634, 0.3: 0.702341798495776}
"""torch 2.13.0: label_smoothing -> CrossEntropyLoss(weight=[0.5, 3.0, 1.25], label_smoothing=...)(SIX, LABELS) in float64."""
SIX = [[2.0, -1.0, 0.5], [0.0, 1.5, -0.5], [-1.0, 0.25, 3.0], [1.0, 1.0, -2.0], [0.5, -0.5, 0.0], [-2.0, 2.5, 1.0]]
LABELS = [0, 1, 2, 1, 2, 1]


def test_the_loss_with_class_weights_and_label_smoothing_equals_pytorch():
    @jax.jit
    def losses(logits, batch):
        settings = {smoothing: LabelLoss(class_weights=(0.5, 3.0, 1.25), label_smoothing=smoothing) for smoothing in PYTORCH}
        objectives = {smoothing: Labels(CONFIG, HEADS["sequence"], of) for smoothing, of in settings.items()}
        return {key: of.loss(of.output_sums({"logits": logits}, batch), of.counts(batch)) for key, of in objectives.items()}

    ones = np.ones((1, 6), np.float32)
    batch = {"labels": np.int32([LABELS]), "label_weights": ones, "sequence_ids": ones.astype(np.int32)}
    found = {smoothing: float(loss) for smoothing, loss in losses(np.float32([SIX]), batch).items()}
    assert found == pytest.approx(PYTORCH, rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_multi_label_loss_is_binary_cross_entropy_per_label(smoothing):
    """As in torch.nn.BCEWithLogitsLoss."""
    features, rows, shape, _ = packed("multi_label")
    p = 1 / (1 + np.exp(-np.float64(feature_logits(random_logits("multi_label"), features, rows, shape))))
    y = np.stack([feature.target for feature in features]) * (1 - smoothing) + smoothing / 2
    wanted = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()
    assert mean_loss("multi_label", LabelLoss(label_smoothing=smoothing)) == pytest.approx(wanted, rel=1e-5)


def test_regression_is_the_mean_squared_error():
    features, rows, shape, _ = packed("regression")
    values = np.array(feature_logits(random_logits("regression"), features, rows, shape))[:, 0]
    assert mean_loss("regression") == pytest.approx(np.mean((values - [u.target for u in features]) ** 2), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_of_labels_examples_and_tokens_do_not_depend_on_packing(kind):
    features, _, shape, batch = packed(kind)
    alone = assemble_features(features, [[i] for i in range(COUNT)], COUNT, shape, pad_id=0)
    of_batch = jax.jit(Labels(CONFIG, HEADS[kind], PLAIN).counts)
    for arrays in (batch, alone):
        counts = {name: float(x) for name, x in of_batch(arrays).items()}
        labels = sum((feature.target >= 0).sum() for feature in features) if LAYOUTS[kind].per_token else COUNT
        tokens = sum(feature.size for feature in features)
        assert counts == {"weight": labels, "labels": labels, "examples": COUNT, "tokens": tokens, "rows": COUNT}


@pytest.mark.parametrize("kind", KINDS)
def test_correct_answers_are_counted(kind):
    features, rows, shape, _ = packed(kind)
    found = sums_and_counts(kind)[PLAIN, None, None][0]["correct"]
    of_features = feature_logits(random_logits(kind), features, rows, shape)
    if not HEADS[kind].outputs.has_accuracy:
        wanted = 0
    elif isinstance(HEADS[kind].outputs, MultiLabel):
        wanted = sum(((logits >= 0) == feature.target).all() for logits, feature in zip(of_features, features, strict=True))
    elif LAYOUTS[kind].are_positions:
        wanted = sum((logits.argmax(0) == feature.target).all() for logits, feature in zip(of_features, features, strict=True))
    else:
        wanted = sum(x.argmax() == label for x, label in answers(kind))
    assert found == wanted


def test_a_label_of_probability_one_half_counts_as_predicted():
    logits = np.array([[0.0, -1.0], [0.0, -0.0]], np.float32)
    predicted = MultiLabel().predictions(logits)
    assert predicted.tolist() == [[True, False], [True, True]]
    assert jax.jit(MultiLabel().correct)(logits, predicted.astype(np.float32)).tolist() == [1, 1]


def test_a_batch_without_a_label_has_a_loss_of_zero():
    features, rows, shape, _ = packed("sequence")
    unknown = [dataclasses.replace(feature, target=None) for feature in features]
    batch, objective = assemble_features(unknown, rows, COUNT, shape, 0), Labels(CONFIG, HEADS["sequence"], PLAIN)
    loss = jax.jit(lambda outputs, batch: objective.loss(objective.output_sums(outputs, batch), objective.counts(batch)))
    assert float(loss({"logits": random_logits("sequence")}, batch)) == 0.0


def test_class_weights_apply_to_the_distillation_loss():
    both = mean_loss("sequence", SETTINGS[-1], LITTLE, teacher=1)
    alone = mean_loss("sequence", SETTINGS[-1])
    losses = []
    for (x, label), (teacher, _) in zip(answers("sequence"), answers("sequence", seed=1), strict=True):
        p = log_softmax(teacher)
        losses.append((WEIGHTS[label], (np.exp(p) * (p - log_softmax(x))).sum()))
    soft = sum(weight * loss for weight, loss in losses) / sum(weight for weight, _ in losses)
    assert both == pytest.approx(0.75 * alone + 0.25 * soft, rel=1e-5)


def test_an_objective_adds_its_head_and_gives_frozen_parts_no_gradient():
    objective = Labels(CONFIG, HEADS["sequence"], PLAIN, frozen=("embeddings", "encoder"))
    added = jax.eval_shape(lambda: objective.parameters(Model(CONFIG), jax.random.key(0)))
    assert set(added) == {"pooler", "sequence_head"}
    params = {part: jnp.float32(2) for part in ("embeddings", "encoder", "pooler")}
    found = jax.grad(lambda p: sum(objective.trained(p).values()))(params)
    assert found == {"embeddings": 0, "encoder": 0, "pooler": 1}


@pytest.mark.parametrize("kind", ["regression", "mention", "choice", "token"])
def test_the_loss_of_a_head_fulfils_the_contract_of_an_objective(kind: str):
    objective = Labels(CONFIG, HEADS[kind])
    objective.check("it")
    assert objective.named_scores().keys() == {"loss", *(["accuracy"] if HEADS[kind].outputs.has_accuracy else [])}


class Mine(Labels):
    scores: ClassVar[Any] = {**Labels.scores, "size": ("size", "tokens")}

    def training_parameters(self, key: Any) -> Any:
        return {"mine": dense(self.model.hidden_size, 1, key)}

    def sums(self, params: Any, batch: Any, seed: Any) -> Any:
        return super().sums(params, batch, seed) | {"size": jnp.square(self.model.encode(params, batch, seed)).sum()}

    def loss(self, sums: Any, counts: Any) -> Any:
        return super().loss(sums, counts) + 0.1 * sums["size"] / counts["tokens"]


def changed(**parts: Any) -> Labels:
    return type("Own", (Mine,), parts)(CONFIG, HEADS["sequence"])


def test_an_own_objective_adds_sums_scores_and_parameters_that_are_not_exported():
    objective = changed()
    objective.check("it")
    assert objective.temporary == ("mine",)
    assert objective.abstract_parameters().keys() == {"embeddings", "encoder", "pooler", "sequence_head", "mine"}
    shape = row_shape(random_features("sequence", COUNT), LAYOUTS["sequence"])
    assert objective.task_flops(shape) > 1.4 * Labels(CONFIG, HEADS["sequence"]).task_flops(shape), "it encodes twice"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"logits": lambda self, params, batch: 0}, "it overrides logits, but predictions are made with the model and the task"),
        ({"temporary": ()}, "it overrides temporary, but predictions"),
        ({"training_parameters": lambda self: {}}, "training_parameters must be a function of (key), but it cannot be called"),
        ({"training_parameters": lambda self, key: {"encoder": dense(3, 1, key)}}, "'encoder', a part of the model; give it an"),
        ({"counts": Objective.counts}, "it: counts lacks 'examples'; start it with `super().counts(batch) | {...}`"),
        ({"scores": {"size": ("siz", "tokens")}}, "it: the score 'size' needs 'siz', which neither sums nor counts returns; did"),
        ({"loss": lambda self, sums, counts: sums["size"] ** 2}, "it: loss is not linear in the sums, so microbatches would"),
        (
            {"output_sums": lambda self, outputs, batch: {"loss": jnp.einsum("bpc,dpc->bd", *2 * [outputs["logits"]]).sum()}},
            "on the numbers of microbatches and devices; compare only the texts of one row, which holds several texts",
        ),
    ],
)
def test_own_objectives_that_break_the_contract_are_refused(parts: dict[str, Any], says: str):
    with pytest.raises(UserError) as error:
        changed(**parts).check("it")
    assert says in str(error.value)


def test_the_focal_loss_of_the_page_weighs_the_cross_entropy_by_the_probability_of_other_labels(tmp_path: pathlib.Path):
    (tmp_path / "focal.py").write_text(python_file("bert_jax/tasks/README.md", "class Focal"))
    kind = load_named(f"{tmp_path}/focal.py:Focal", {}, "it")
    objective, batch = kind(CONFIG, HEADS["sequence"], gamma=1.5), packed("sequence")[-1]
    objective.check("it")
    found = jax.jit(objective.output_sums)({"logits": random_logits("sequence")}, batch)["loss"]
    log_p = np.array([log_softmax(row)[label] for row, label in answers("sequence")])
    assert float(found) == pytest.approx((-((1 - np.exp(log_p)) ** 1.5) * log_p).sum(), rel=1e-5)


def test_task_loss_is_divided_by_label_weights_and_hidden_states_by_tokens():
    plain = Labels(CONFIG, HEADS["sequence"])
    assert float(plain.loss({"loss": np.float32(3e-6)}, {"weight": np.float32(1.5e-6)})) == pytest.approx(2.0)
    objective = TaskDistillation(plain, PretrainingDistillation(hidden_weight=0.5))
    sums = {"loss": np.float32(6), "hidden_difference": np.float32(8)}
    for tokens, mean in ((0.0, 8.0), (1.0, 8.0), (4.0, 2.0)):
        counts = {"weight": np.float32(3), READ: np.float32(tokens)}
        assert float(objective.loss(sums, counts)) == pytest.approx(2.0 + 0.5 * mean)


# ---------------------------------------------------------------------------------------------------------------- distillation


def divergence(taught: np.ndarray, said: np.ndarray, temperature: float) -> float:
    p, q = (np.exp(log_softmax(x / temperature)) for x in (taught, said))
    return temperature**2 * (p * np.log(p / q)).sum()


@pytest.mark.parametrize("kind", CLASSIFYING)
def test_distillation_is_the_kl_from_the_softened_teacher_times_temperature_squared(kind):
    pairs = zip(answers(kind), answers(kind, seed=1), strict=True)
    wanted = [-0.25 * log_softmax(x)[label] + 0.75 * divergence(t, x, 3.0) for (x, label), (t, _) in pairs]
    found = mean_loss(kind, PLAIN, MIXED, teacher=1)
    assert found == pytest.approx(np.mean(wanted), rel=1e-5)


def test_multi_label_distillation_follows_every_label():
    features, rows, shape, _ = packed("multi_label")
    said, taught = (np.float64(feature_logits(random_logits("multi_label", seed), features, rows, shape)) for seed in (0, 1))
    found = mean_loss("multi_label", PLAIN, SOFT, teacher=1)
    each = [divergence(np.array([t, 0]), np.array([x, 0]), 2.0) for t, x in zip(taught.ravel(), said.ravel(), strict=True)]
    assert found == pytest.approx(np.mean(each), rel=1e-5)


def test_regression_distillation_follows_the_value():
    features, rows, shape, _ = packed("regression")
    said, taught = (np.array(feature_logits(random_logits("regression", seed), features, rows, shape))[:, 0] for seed in (0, 1))
    found = mean_loss("regression", PLAIN, SOFT, teacher=1)
    assert found == pytest.approx(np.mean((said - taught) ** 2), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_that_equals_its_teacher_has_zero_distillation_loss(kind):
    assert mean_loss(kind, PLAIN, SOFT, teacher=0) == pytest.approx(0.0, abs=1e-6)


def test_hidden_states_are_compared_for_real_tokens_only():
    _, _, shape, batch = packed("sequence")
    rng = np.random.default_rng(2)
    ours, theirs = (rng.normal(size=(3, COUNT, shape.length, 4)) for _ in range(2))
    wanted = 0.0
    for r in range(COUNT):
        real = np.asarray(batch["sequence_ids"][r]) > 0
        if real.any():
            wanted += np.mean((ours[:, r, real] - theirs[:, r, real]) ** 2) * real.sum()
    difference, (ours, theirs) = jax.jit(hidden_state_difference), np.float32([ours, theirs])
    assert float(difference(ours, theirs, batch["sequence_ids"])) == pytest.approx(wanted, rel=1e-5)
    assert float(difference(theirs, theirs, batch["sequence_ids"])) == 0.0


@pytest.mark.parametrize(
    ("teacher", "student", "layers"), [(12, 4, (0, 3, 6, 9, 12)), (2, 2, (0, 1, 2)), (12, 1, (0, 12)), (6, 4, (0, 2, 3, 4, 6))]
)
def test_a_deeper_teachers_layers_are_spread_evenly_from_end_to_end(teacher, student, layers):
    assert teacher_layers(teacher, student) == layers


def test_a_distilled_task_has_the_scores_of_the_task_in_their_order():
    plain = Labels(CONFIG, HEADS["sequence"])
    assert [*TaskDistillation(plain, SOFT).named_scores().items()] == [*plain.named_scores().items()]


def test_a_student_without_layers_learns_from_predictions_alone():
    config, head = dataclasses.replace(CONFIG, encoder="static", num_layers=0), VARIANTS["sequence, concat"]

    def sums(params, batch):
        objective = TaskDistillation(Labels(config, head), SOFT, Teacher(Labels(config, head), params))
        return objective.for_model(Model(config)).sums(params, batch, None)

    assert jax.eval_shape(sums, shapes_of(head, config), packed("sequence")[3]).keys() == {"loss", "correct"}


class Twice(Labels):
    """An objective of one's own whose sums are not made of one prediction."""

    def sums(self, params, batch, seed):
        return {name: 2 * x for name, x in super().sums(params, batch, seed).items()}


def test_an_objective_of_ones_own_with_its_own_sums_learns_the_hidden_states_of_a_teacher():
    head, settings = HEADS["sequence"], PretrainingDistillation(soft_weight=0.0, hidden_weight=1.0)
    params, others = (random_label_parameters(head, CONFIG, seed=seed) for seed in (0, 1))
    batch = packed("sequence")[3]

    @jax.jit
    def both(params, others, batch):
        taught = [TaskDistillation(kind(CONFIG, head), settings, Teacher(kind(CONFIG, head), others)) for kind in (Labels, Twice)]
        plain = Labels(CONFIG, head).sums(params, batch, None)
        return plain, *(one.for_model(Model(CONFIG)).sums(params, batch, None) for one in taught)

    plain, usual, own = jax.device_get(both(params, others, batch))
    assert usual.keys() == own.keys() == {*plain, "hidden_difference"}
    assert float(own["hidden_difference"]) == pytest.approx(float(usual["hidden_difference"]), rel=1e-5)
    assert [float(own[name]) for name in plain] == pytest.approx([2 * float(plain[name]) for name in plain], rel=1e-5)


# ------------------------------------------------------------------------------------------------------------- the whole model

VARIANTS = HEADS | {
    "sequence, concat": dataclasses.replace(HEADS["sequence"], pooling="concat"),
    "token, crf": dataclasses.replace(HEADS["token"], crf="free"),
}
DIFFERENTIATED = ("mention", "token, crf")


@functools.cache
def differentiated(name: str, gradients: bool):
    """Returns jitted (parameters, batch) -> (gradients or None, (loss, logits)), without dropout."""
    head = VARIANTS[name]

    def loss(params, batch):
        logits = BertWithHead(CONFIG, head).apply({"params": params}, batch, method="logits")
        objective = Labels(CONFIG, head, PLAIN)
        value = objective.output_sums({"logits": logits}, batch)["loss"] / objective.counts(batch)["weight"]
        return value, (value, logits)

    return jax.jit(jax.grad(loss, has_aux=True) if gradients else lambda *inputs: (None, loss(*inputs)[1]))


@pytest.mark.parametrize("name", VARIANTS)
def test_packed_features_have_the_logits_and_loss_of_separate_rows(name):
    features, rows, shape, batch = packed(name.partition(",")[0])
    alone = [[i] for i in range(COUNT)]
    params = random_label_parameters(VARIANTS[name], CONFIG)
    separate = assemble_features(features, alone, COUNT, shape, 0)
    step = differentiated(name, gradients=name in DIFFERENTIATED)
    (grads, (loss, logits)), (grads_alone, (loss_alone, logits_alone)) = step(params, batch), step(params, separate)
    mine, theirs = (feature_logits(np.asarray(x), features, r, shape) for x, r in ((logits, rows), (logits_alone, alone)))
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    assert float(loss) == pytest.approx(float(loss_alone), rel=1e-5)
    if grads is not None:
        assert largest_difference(grads_alone, grads) < 1e-4


def test_sums_of_microbatches_with_uneven_labels_add_up_to_those_of_the_batch():
    """Their losses are divided by the counts of the whole batch."""
    _, _, _, batch = packed("token")
    assert len(set(batch["label_weights"].reshape(-1, 3, batch["label_weights"].shape[1]).sum((0, 2)).tolist())) > 1
    objective = Labels(CONFIG, HEADS["token"], PLAIN)
    of_part = jax.jit(objective.output_sums)
    whole = sums_and_counts("token")[PLAIN, None, None][0]
    parts = [of_part({"logits": random_logits("token")[i::3]}, {name: x[i::3] for name, x in batch.items()}) for i in range(3)]
    for name, total in whole.items():
        assert sum(float(part[name]) for part in parts) == pytest.approx(total, rel=1e-6), name
