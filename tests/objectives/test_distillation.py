"""The losses of distillation in pretraining, compared with plain numpy and with a student that is the teacher."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special

from bert_jax.data import DECODER, INPUTS
from bert_jax.errors import UserError
from bert_jax.model.bert import Bert, attention_weights
from bert_jax.model.config import ModelConfig, modern_block, published
from bert_jax.model.pretraining import BertForPreTraining, pretraining_model
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.distillation import (
    PROJECTION,
    Distillation,
    attention_divergence,
    projection_parameters,
    soft_loss_sum,
    teacher_parameters,
)
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.model import Model, dense
from bert_jax.objectives.objective import Objective, Teacher
from tests.random_rows import TINY, drawn_parameters, objective_for, program_for, random_batch, teacher_of

STUDENT = dataclasses.replace(TINY, initializer_range=0.3, scan_layers=True)  # compiled quickly
WIDE = dataclasses.replace(STUDENT, hidden_size=24, num_layers=1)
MODERN = dataclasses.replace(STUDENT, **modern_block(1) | {"layer_types": ("sliding",), "sliding_radius": 3}, num_layers=1)
WISE = teacher_of(WIDE, drawn_parameters(WIDE, 1))
ALL = PretrainingDistillation(temperature=2.0, soft_weight=0.4, hidden_weight=0.3, attention_weight=0.2, teacher_width=24)


@functools.partial(jax.jit, static_argnums=0)
def compiled_outputs(config, params, batch):
    outputs = BertForPreTraining(config).apply({"params": params}, batch)
    return outputs["mlm_logits"], outputs["hidden_states"], *attention_weights(params, config, Tokens.of(batch))


def outputs_of(config, params, batch):
    """Returns (logits, hidden states, the attention maps of all layers) in float64."""
    logits, states, *maps = (np.asarray(x, np.float64) for x in compiled_outputs(config, params, batch))
    return logits, states, maps


def soft_loss(ours, theirs, batch):
    """Returns the KL divergence at temperature 2, times 4, over masked words."""
    p, q = (special.log_softmax(logits / 2, -1) for logits in (theirs, ours))
    return 4 * (np.exp(p) * (p - q)).sum(-1)[np.asarray(batch["masked_targets"]) >= 0].sum()


def evaluated(objective, params, batch):
    return jax.jit(program_for(objective, optax.identity()).evaluate)(params, batch)


@pytest.fixture(scope="module")
def batch():
    return random_batch(3, rows=4)


def distilled(settings: PretrainingDistillation, teacher: Teacher) -> Distillation:
    return Distillation(objective_for(STUDENT), settings, teacher).for_model(Model(STUDENT, True))


@pytest.fixture(scope="module")
def student():
    kernel = np.random.default_rng(0).normal(0, 0.2, (16, 24)).astype(np.float32)
    return {**drawn_parameters(STUDENT), PROJECTION: {"kernel": jnp.asarray(kernel)}}


LAST = dataclasses.replace(ALL, layers="last")
UNIFORM = dataclasses.replace(ALL, layers="uniform", teacher_width=16)


@pytest.fixture(scope="module")
def differentiated(batch, student):
    """Returns (the gradients of the student's projection and MLM head and of the teacher, the sums) for `LAST` and a teacher
    `WIDE`. The gradients of the student's encoder would double the program."""
    last = {part: student[part] for part in (PROJECTION, "mlm_head")}

    def loss(last, of_teacher, student, batch):
        objective = distilled(LAST, dataclasses.replace(WISE, params=of_teacher))
        sums, counts = objective.sums(student | last, batch, None), objective.counts(batch)
        return objective.loss(sums, counts), sums | counts

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
    return jax.device_get(gradient(last, WISE.params, student, batch))


def test_the_losses_of_the_last_layer_equal_numpy(batch, student, differentiated):
    check_losses(distilled(LAST, WISE), student, batch, differentiated[1], [(2, 1)])


def test_the_losses_of_all_layers_and_the_embeddings_equal_numpy(batch):
    """A teacher with another kind of layers; it is as wide as the student, so nothing is projected."""
    objective, params = distilled(UNIFORM, teacher_of(MODERN, drawn_parameters(MODERN, 1))), drawn_parameters(STUDENT)
    check_losses(objective, params, batch, evaluated(objective, params, batch), [(0, 0), (1, 0), (2, 1)])


def check_losses(objective, params, batch, found, pairs):
    """Checks that the losses are `soft_loss`, and differences of projected states and KL of attention over real tokens."""
    targets, real = np.asarray(batch["masked_targets"]) >= 0, np.asarray(batch["sequence_ids"]) > 0
    said, ours, a = outputs_of(STUDENT, params, batch)
    taught, theirs, b = outputs_of(objective.teacher.config, drawn_parameters(objective.teacher.config, 1), batch)
    assert float(found["soft_loss"]) == pytest.approx(soft_loss(said, taught, batch), rel=1e-4)

    kernel = np.asarray(params[PROJECTION]["kernel"], np.float64) if PROJECTION in params else np.eye(16)
    squares = np.mean([np.square(ours[i] @ kernel - theirs[j]).mean(-1) for i, j in pairs], 0)
    assert float(found["hidden_difference"]) == pytest.approx(squares[real].sum(), rel=1e-4)

    of_layers = [(i - 1, j - 1) for i, j in pairs if j]  # the teacher's embeddings have no map
    kl = [special.rel_entr(b[j], a[i]) for i, j in of_layers]
    divergence = np.mean([one.sum(-1).mean(1) for one in kl], 0)
    assert float(found["attention_divergence"]) == pytest.approx(divergence[real].sum(), rel=1e-3)

    n, tokens = targets.sum(), real.sum()
    expected = 0.6 * found["mlm_loss"] / n + found["nsp_loss"] / 4 + 0.4 * found["soft_loss"] / n
    expected += 0.3 * found["hidden_difference"] / tokens + 0.2 * found["attention_divergence"] / tokens
    assert float(objective.loss(found, found)) == pytest.approx(float(expected), rel=1e-5)


TRANSLATOR = ModelConfig(
    **published("transformer_base")
    | {"vocab_size": 64, "hidden_size": 16, "num_layers": 1, "decoder_layers": 1, "num_heads": 2, "intermediate_size": 32}
    | {"max_position": 32, "hidden_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.3}
)
OTHERS = {
    "next tokens": dataclasses.replace(STUDENT, direction="left_to_right"),
    "next tokens by an LSTM": dataclasses.replace(STUDENT, encoder="bilm", direction="left_to_right", scan_layers=False),
    "both directions of LSTMs": dataclasses.replace(STUDENT, encoder="bilm", scan_layers=False),
    "translations": TRANSLATOR,
    "translations by LSTMs": dataclasses.replace(STUDENT, encoder="cove", decoder_layers=1, scan_layers=False),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_every_objective_that_predicts_words_learns_the_words_and_the_states_of_a_teacher(kind, batch):
    config = OTHERS[kind]
    wide = dataclasses.replace(config, hidden_size=24, num_layers=1)
    settings = PretrainingDistillation(temperature=2.0, soft_weight=0.4, hidden_weight=0.3, layers="last", teacher_width=24)
    models = (config, drawn_parameters(config)), (wide, drawn_parameters(wide, 1))
    kernel = np.random.default_rng(0).normal(0, 0.2, (16, 24)).astype(np.float32)
    other = random_batch(4, rows=4)
    batch = batch | {f"{DECODER}{name}": other[name] for name in INPUTS}
    batch["targets"] = jnp.where(other["sequence_ids"] > 0, jnp.roll(other["input_ids"], -1, 1), -1)
    objective = Distillation(objective_for(config, False), settings, teacher_of(*models[1])).for_model(Model(config))

    @jax.jit
    def separate(models, batch):
        networks = [pretraining_model(one, next_sentence=False) for one in (config, wide)]
        said = [
            network.apply({"params": params}, batch, method="logits") for network, params in zip(networks, models, strict=True)
        ]
        states = [
            Bert(one).apply({"params": params}, Tokens.of(batch), method="encode")[0]
            for one, params in zip((config, wide), models, strict=True)
        ]
        return said, states

    found = evaluated(objective, models[0][1] | {PROJECTION: {"kernel": kernel}}, batch)
    (said, taught), (ours, theirs) = jax.device_get(separate([params for _, params in models], batch))
    targets = {"mlm_logits": np.asarray(batch["masked_targets"]), "logits": np.asarray(batch["targets"])}
    if "backward_logits" in said:  # the last token of a text has no later one
        after = np.asarray(batch["masked_positions"]) + 2
        ids = np.pad(np.asarray(batch["sequence_ids"]), ((0, 0), (0, 2)))
        exists = np.take_along_axis(ids, after, 1) > 0
        targets["backward_logits"] = np.where(exists, targets["mlm_logits"], -1)
    wanted, count = 0.0, 0
    for name, logits in said.items():
        p, q = (special.log_softmax(np.float64(x) / 2, -1) for x in (taught[name], logits))
        wanted += 4 * (np.exp(p) * (p - q)).sum(-1)[targets[name] >= 0].sum()
        count += (targets[name] >= 0).sum()
    assert float(found["soft_loss"]) == pytest.approx(wanted, rel=1e-4)
    real = np.asarray(batch["sequence_ids"]) > 0
    difference = np.square(np.float64(ours) @ kernel - theirs).mean(-1)[real].sum()
    assert float(found["hidden_difference"]) == pytest.approx(difference, rel=1e-4)

    hard, of = objective.plain.hard_loss
    assert float(found[of]) == count
    plain = evaluated(objective.plain, models[0][1], batch)
    assert float(found[hard]) == pytest.approx(float(plain[hard]), rel=1e-5), "the same as without a teacher"
    expected = (0.6 * found[hard] + 0.4 * wanted) / count + 0.3 * difference / real.sum()
    assert float(objective.loss(found, found)) == pytest.approx(float(expected), rel=1e-4)


@dataclasses.dataclass(frozen=True)
class Shifted(Objective):
    """An objective of one's own whose sums are not made of outputs. It reads the encoder only."""

    scores: ClassVar[dict[str, tuple[str, str]]] = {"size": ("size", "tokens")}

    def sums(self, params, batch, seed):
        return {"size": jnp.square(self.model.encode(params, batch, seed).astype(jnp.float32)).sum()}

    def loss(self, sums, counts):
        return sums["size"] / counts["tokens"]


def test_an_objective_with_sums_of_its_own_learns_the_states_of_a_teacher_of_any_kind(batch, student):
    settings = PretrainingDistillation(soft_weight=0.0, hidden_weight=0.3, layers="last", teacher_width=24)
    only = {part: WISE.params[part] for part in ("embeddings", "encoder")}
    teacher = Teacher(Shifted().for_model(Model(WIDE)), only)
    objective = Distillation(Shifted(), settings, teacher).for_model(Model(STUDENT))
    assert teacher_parameters(teacher.objective, settings).keys() == only.keys()
    params = {part: student[part] for part in (*only, PROJECTION)}
    found = evaluated(objective, params, batch)
    (_, ours, _), (_, theirs, _) = (
        outputs_of(one, x, batch) for one, x in ((STUDENT, student), (WIDE, drawn_parameters(WIDE, 1)))
    )
    real = np.asarray(batch["sequence_ids"]) > 0
    difference = np.square(ours[-1] @ np.float64(student[PROJECTION]["kernel"]) - theirs[-1]).mean(-1)[real].sum()
    assert float(found["size"]) == pytest.approx(np.square(ours[-1]).sum(), rel=1e-4)
    assert float(found["hidden_difference"]) == pytest.approx(difference, rel=1e-4)
    expected = np.square(ours[-1]).sum() / real.sum() + 0.3 * difference / real.sum()
    assert float(objective.loss(found, found)) == pytest.approx(expected, rel=1e-4)


class Rolled(MlmNsp):
    """An objective of one's own that reads other tokens than those of the batch."""

    def outputs(self, params, batch, seed):
        return super().outputs(params, batch | {"input_ids": jnp.roll(batch["input_ids"], 1, axis=1)}, seed)

    def initial_parameters(self, key):
        made = super().initial_parameters(key)
        return made | {"mlm_head": jax.tree.map(jnp.zeros_like, made["mlm_head"]), "further": dense(2, 2, key)}

    def output_sums(self, outputs, batch):
        assert outputs.keys() == {"mlm_logits"}, "what is kept for the comparison is not shown to the objective"
        return super().output_sums(outputs, batch)


@pytest.mark.parametrize("soft_weight", [0.0, 0.5])
def test_student_and_teacher_are_compared_on_the_same_tokens(batch, soft_weight):
    """A student that is its own teacher differs from it only if they read other tokens."""
    settings = PretrainingDistillation(soft_weight=soft_weight, hidden_weight=1.0, attention_weight=1.0)
    params = drawn_parameters(STUDENT)
    plain = Rolled().for_model(Model(STUDENT))
    teacher = Teacher(plain, {part: params[part] for part in ("embeddings", "encoder", "mlm_head")})
    objective = Distillation(plain, settings, teacher).for_model(Model(STUDENT))
    found = evaluated(objective, teacher.params, batch)
    assert float(found["hidden_difference"]) == pytest.approx(0, abs=1e-6)
    assert float(found["attention_divergence"]) == pytest.approx(0, abs=1e-5)
    assert float(found.get("soft_loss", 0.0)) == pytest.approx(0, abs=1e-5)
    drawn = nn.unbox(jax.jit(objective.initial_parameters)(jax.random.key(0)))
    assert {*drawn} == {*params, "further"} - {"pooler", "nsp_head"}
    assert not any(np.any(x) for x in jax.tree.leaves(drawn["mlm_head"])), "initial parameters of one's own stay"


def test_no_gradient_reaches_the_teacher_and_the_projection_has_one(differentiated):
    (ours, theirs), _ = differentiated
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(theirs))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(ours))


def test_soft_targets_alone_need_no_hidden_states_and_give_the_same_loss(batch, student):
    found = evaluated(distilled(PretrainingDistillation(temperature=2.0), WISE), student, batch)
    assert found.keys().isdisjoint({"hidden_difference", "attention_divergence"})
    (ours, *_), (theirs, *_) = outputs_of(STUDENT, student, batch), outputs_of(WIDE, drawn_parameters(WIDE, 1), batch)
    assert float(found["soft_loss"]) == pytest.approx(soft_loss(ours, theirs, batch), rel=1e-4)


def test_the_terms_are_means_over_targets_and_tokens():
    loss = jax.jit(distilled(ALL, dataclasses.replace(WISE, params={})).loss)
    sums = {"mlm_loss": 10, "nsp_loss": 3, "soft_loss": 5, "hidden_difference": 7, "attention_divergence": 11}
    for n in (0.0, 1.0, 4.0):
        counts = {"mlm_targets": n, "nsp_examples": n, "read_tokens": 2 * n}
        found = loss(*({name: np.float32(value) for name, value in numbers.items()} for numbers in (sums, counts)))
        n, tokens = max(n, 1), max(2 * n, 1)
        wanted = (0.6 * 10 + 3 + 0.4 * 5) / n + (0.3 * 7 + 0.2 * 11) / tokens
        assert float(found) == pytest.approx(wanted)


@dataclasses.dataclass(frozen=True)
class Doubled(MlmNsp):
    """An objective of one's own that adds the MLM loss once more."""

    def loss(self, sums, counts):
        return super().loss(sums, counts) + sums["mlm_loss"] / counts["mlm_targets"]


def test_an_inherited_objective_with_its_own_loss_has_the_loss_without_the_terms_as_score():
    sums = {"mlm_loss": 10.0, "nsp_loss": 3.0, "soft_loss": 5.0, "hidden_difference": 7.0, "attention_divergence": 11.0}
    sums = {name: np.float32(x) for name, x in {**sums, "mlm_targets": 4.0, "nsp_examples": 4.0, "read_tokens": 8.0}.items()}
    for plain, loss in ((objective_for(STUDENT), 3.25), (Doubled(), 5.75)):
        found = Distillation(plain, ALL, dataclasses.replace(WISE, params={})).for_model(Model(STUDENT, True)).summarise(sums)
        assert (found["loss"], found["soft_loss"], [*found][-1]) == (loss, 1.25, "loss")


def test_soft_targets_count_only_slots_with_a_target():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=(2, 2, 3, 6))
    targets = np.array([[3, -1, 0], [-1, -1, 5]])
    p, q = (special.log_softmax(x / 3, -1) for x in (theirs, ours))
    wanted = 9 * (np.exp(p) * (p - q)).sum(-1)[targets >= 0].sum()
    ours, theirs = ({"words": x} for x in np.float32([ours, theirs]))
    found = jax.jit(soft_loss_sum, static_argnums=3)(ours, theirs, {"words": targets.astype(np.int32)}, 3.0)
    assert float(found) == pytest.approx(wanted, rel=1e-5)


def test_the_attention_divergence_is_a_mean_over_layers_heads_and_real_tokens():
    rng = np.random.default_rng(0)
    a, b = (special.softmax(rng.normal(size=(3, 2, 4, 5, 5)), -1) for _ in range(2))
    a[0, 0, 0, 0] = [1, 0, 0, 0, 0]
    b[0, 0, 0, 0] = [0.5, 0.5, 0, 0, 0]
    a[0, 0, 0, 0, 1] = 1e-3  # attention where the teacher has none adds nothing
    ids = np.array([[1, 1, 2, 0, 0], [1, 1, 1, 1, 1]])
    wanted = special.rel_entr(b, a).sum(-1).mean((0, 2))[ids > 0].sum()
    found = jax.jit(attention_divergence)(*np.float32([a, b]), ids.astype(np.int32))
    assert float(found) == pytest.approx(wanted, rel=1e-5)


def test_the_projection_is_trained_but_is_no_part_of_the_model():
    objective = distilled(ALL, WISE)
    assert objective.abstract_parameters().keys() - objective.model_parameters().keys() == {PROJECTION}


def test_a_weight_of_a_million_is_the_largest():
    assert PretrainingDistillation(hidden_weight=1e6, attention_weight=0.0).hidden_weight == 1e6
    with pytest.raises(UserError, match=r"distillation\.attention_weight=1100000\.0 must be at least 0 and at most 1e\+06"):
        PretrainingDistillation(attention_weight=1.1e6)


@pytest.mark.parametrize(
    ("weight", "width", "projects"), [(0.5, 24, True), (0.5, 16, False), (0.5, 0, False), (0.0, 24, False), (1.5, 24, True)]
)
def test_a_student_has_a_projection_if_widths_differ(weight, width, projects):
    """Its random numbers have deviation 1/sqrt(D), so that states keep their size."""
    settings = PretrainingDistillation(hidden_weight=weight, teacher_width=width)
    found = nn.unbox(jax.jit(lambda key: projection_parameters(settings, 16, key))(jax.random.key(0)))
    assert (found != {}) == projects
    if projects:
        kernel = found[PROJECTION]["kernel"]
        assert kernel.shape == (16, 24)
        assert float(kernel.std()) == pytest.approx(0.25, rel=0.15)
