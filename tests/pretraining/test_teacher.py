"""The teacher of a distillation in pretraining: what is rejected, and the width and hash that a run fills in."""

from __future__ import annotations

import dataclasses
import hashlib
import types
from typing import ClassVar

import numpy as np
import pytest

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from bert_jax.data.config import ExampleConfig
from bert_jax.errors import UserError
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.objectives.distillation import Distillation
from bert_jax.objectives.losses import cross_entropy
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.model import Model, apply_dense, dense
from bert_jax.objectives.objective import Objective
from bert_jax.pretraining import start as teacher
from bert_jax.training.teachers import make_teacher
from tests.data.corpora import vocabulary
from tests.random_rows import TINY, drawn_parameters

VOCABULARY = vocabulary(TINY.vocab_size)
EXPERIMENT = PretrainingExperiment(
    model=TINY, teacher="runs/teacher", phases=(PhaseConfig(steps=2, length=32),), distillation=PretrainingDistillation()
)


def loaded(monkeypatch: pytest.MonkeyPatch, experiment=EXPERIMENT, untrained=(), vocabulary=VOCABULARY, without=(), **fields):
    config = dataclasses.replace(TINY, **fields)
    params = {part: tree for part, tree in drawn_parameters(config).items() if part not in without}
    model = types.SimpleNamespace(
        params=params,
        config=config,
        untrained=frozenset(untrained),
        tokenizer=types.SimpleNamespace(vocabulary=vocabulary),
        source="runs/teacher/model",
    )
    monkeypatch.setattr(teacher, "import_model", lambda *_, **__: model)
    return teacher.load_teacher(experiment, VOCABULARY)


def attentive(**model):
    distillation = PretrainingDistillation(attention_weight=1.0)
    return dataclasses.replace(EXPERIMENT, distillation=distillation, model=dataclasses.replace(TINY, **model))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"without": ("mlm_head",)}, "has no trained mlm_head"),
        ({"untrained": ("mlm_head",)}, "has no trained mlm_head"),
        ({"direction": "left_to_right"}, "predicts other words than the student, since it has direction=left_to_right"),
        ({"max_position": 16}, "reads only 16 tokens, but the rows have 32; shorten the rows, or .* --max-position=32"),
        ({"type_vocab_size": 1}, "has no token type for the second text of a pair; set config.examples.pairs=none"),
        ({"vocab_size": TINY.vocab_size + 8}, r"rows of word embeddings, but the student .* convert --replace-vocab=MODEL"),
        ({"vocabulary": dataclasses.replace(VOCABULARY, sha256="other")}, "a different vocabulary than the corpus runs/embedded"),
        ({"experiment": attentive(num_heads=4)}, "has 2 heads and the student 4; set config.model.num_heads=2, or"),
    ],
)
def test_an_unsuitable_teacher_is_refused_with_a_remedy(monkeypatch, how, says):
    with pytest.raises(UserError, match=says):
        loaded(monkeypatch, **how)


def test_a_run_fills_in_the_width_and_the_hash_of_its_teacher(monkeypatch):
    found = loaded(monkeypatch, hidden_size=24)
    filled = teacher.with_teacher(EXPERIMENT, found).distillation
    assert (filled.teacher_width, filled.teacher_sha256) == (24, found.sha256)
    assert set(found.params) == {"embeddings", "encoder", "mlm_head"}
    found.params["mlm_head"]["bias"] = np.asarray(found.params["mlm_head"]["bias"]) + 1
    assert teacher._sha256(found.params) != found.sha256
    arrays = {"scale": np.arange(2.0), "bias": np.ones(3)}
    content = b"['bias']" + np.ones(3, np.float32).tobytes() + b"['scale']" + np.arange(2, dtype=np.float32).tobytes()
    assert teacher._sha256(arrays) == hashlib.sha256(content).hexdigest(), "workdirs store it"
    other = dataclasses.replace(EXPERIMENT, distillation=dataclasses.replace(filled, teacher_sha256="0"))
    with pytest.raises(UserError, match=r"teacher_sha256=0, but config\.teacher=runs/teacher has"):
        teacher.with_teacher(other, found)


def test_the_teacher_uses_the_dtype_of_the_student_or_its_own(monkeypatch):
    student = dataclasses.replace(EXPERIMENT, model=dataclasses.replace(TINY, dtype="bfloat16", scan_layers=True))
    assert (loaded(monkeypatch, student).config.dtype, loaded(monkeypatch, student).config.scan_layers) == ("bfloat16", True)
    own = dataclasses.replace(student, distillation=PretrainingDistillation(dtype="float32"))
    assert loaded(monkeypatch, own).config.dtype == "float32"


@pytest.mark.parametrize(
    ("experiment", "fields"),
    [
        (EXPERIMENT, {"max_position": 32, "type_vocab_size": 2}),
        (EXPERIMENT, {"num_heads": 4}),  # may differ: this student does not compare attention
        (attentive(), {}),
        (dataclasses.replace(EXPERIMENT, examples=ExampleConfig(pairs="none")), {"type_vocab_size": 1}),
    ],
)
def test_a_suitable_teacher_is_accepted(experiment, fields, monkeypatch):
    assert loaded(monkeypatch, experiment, **fields) is not None


class Own(MlmNsp):
    """An objective of one's own that predicts words as BERT does."""


class Unnamed(Objective):
    hard_loss = ("my_loss", "masked")
    scores: ClassVar[dict[str, tuple[str, str]]] = {"my loss": hard_loss}

    def parameters(self, model, key):
        return {"mlm_head": model.mlm_head(key)}

    def outputs(self, params, batch, seed):
        return {"words": self.model.logits(params, batch, seed)["mlm_logits"]}

    def output_sums(self, outputs, batch):
        return {"my_loss": cross_entropy(outputs["words"], batch["masked_targets"]).sum()}

    def loss(self, sums, counts):
        return sums["my_loss"] / counts["masked"]


class Misnamed(Unnamed):
    def targets(self, batch):
        return {"mlm_logits": batch["masked_targets"]}


class Uncounted(Misnamed):
    hard_loss = ("my_loss",)


class Unused(Misnamed):
    """Its loss does not read the sum of `hard_loss`."""

    def output_sums(self, outputs, batch):
        return {**super().output_sums(outputs, batch), "other": outputs["words"].sum()}

    hard_loss = ("other", "masked")


class NotADict(Unnamed):
    def targets(self, batch):
        return batch["masked_targets"]


class WithoutBatch(Unnamed):
    def targets(self):
        return {}


class Broadcast(Unnamed):
    def targets(self, batch):
        return {"words": batch["nsp_labels"]}


class OtherName(Unnamed):
    def soft_loss(self, outputs, taught, batch, temperature):
        return taught["nsp_logits"].sum()


class ShortCall(Unnamed):
    def soft_loss(self, outputs, taught):
        return taught["words"].sum()


class Each(Unnamed):
    def soft_loss(self, outputs, taught, batch, temperature):
        return outputs["words"]


class Pairs(MlmNsp):
    hard_loss = ("nsp_loss", "nsp_examples")

    def targets(self, batch):
        return {"nsp_logits": batch["nsp_labels"]}


class OtherHead(Unnamed):
    def parameters(self, model, key):
        return {"mlm_head": dense(model.hidden_size, model.vocab_size, key)}

    def outputs(self, params, batch, seed):
        return {"words": apply_dense(params["mlm_head"], self.model.encode_at(params, batch["masked_positions"], batch, seed))}


class Further(MlmNsp):
    def parameters(self, model, key):
        return super().parameters(model, key) | {"order": dense(model.hidden_size, 2, key)}

    def outputs(self, params, batch, seed):
        return {**super().outputs(params, batch, seed), "order": params["order"]["bias"]}


class NoDict(Unnamed):
    def outputs(self, params, batch, seed):
        return super().outputs(params, batch, seed)["words"]

    def output_sums(self, outputs, batch):
        return super().output_sums({"words": outputs}, batch)


class Taken(MlmNsp):
    scores: ClassVar[dict[str, tuple[str, str]]] = {**MlmNsp.scores, "soft loss": ("mlm_loss", "mlm_targets")}


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Own, None),
        (Unnamed, "it: the method targets returns ids for no logits, but the outputs of T are words; return a dict, name of the"),
        (Misnamed, "it: the method targets returns ids for mlm_logits, but the outputs of T are words; return a dict"),
        (Uncounted, r"it: hard_loss=\('my_loss',\) must be a pair \(sum, count\), with one of the sums my_loss and one of the"),
        (Each, r"it: soft_loss must return a float32 scalar, but returns float32 \[2, 4, 64\]; sum over all predictions"),
        (Unused, "it: hard_loss names the sum 'other', but loss does not use it, so soft targets would replace nothing; name"),
        (NotADict, "it: the method targets returns ids for no logits, but the outputs of T are words; return a dict"),
        (WithoutBatch, r"it: targets must be a function of \(batch\), but it cannot be called with them"),
        (Broadcast, r"it: the method targets returns ids \[2, 1\] for words, which has the shape \[2, 4, 64\]; return"),
        (OtherName, "it: soft_loss reads 'nsp_logits', but the outputs of T are words; read only these, or learn only"),
        (ShortCall, r"it: soft_loss must be a function of \(outputs, taught, batch, temperature\), but it cannot be called"),
        (Pairs, "it: the method targets returns ids for nsp_logits, but the outputs of T are mlm_logits; "),
        (OtherHead, "it: its parameters mlm_head have other arrays than those of T; give them another name"),
        (Further, "it: outputs reads 'order', which is neither an array of the batch nor among the parameters of T .*; read"),
        (NoDict, "it: outputs must return a dict, name -> array, to learn from a teacher, but returns"),
        (Taken, "it: 'soft_loss' is a name that a run with a teacher uses; give it another name"),
    ],
)
def test_an_objective_that_cannot_learn_the_predictions_of_a_teacher_is_refused_with_a_remedy(kind, says):
    settings, params = PretrainingDistillation(), drawn_parameters(TINY)

    def begun():
        Distillation(kind(), settings).for_model(Model(TINY, kind is Pairs)).check("it")
        return make_teacher(kind().for_model(Model(TINY)), settings, params, "T", "it")

    if says is None:
        assert begun().params.keys() == {"embeddings", "encoder", "mlm_head"}
    else:
        with pytest.raises(UserError, match=says):
            begun()


def test_a_teacher_of_other_words_is_refused_for_an_objective_of_ones_own(monkeypatch):
    """Unlike the built-in one, it does not say which models it trains."""
    own = dataclasses.replace(EXPERIMENT, objective="experiments/extensions/sentence_order.py:SentenceOrder")
    with pytest.raises(UserError, match="predicts other words than the student, since it has direction=left_to_right"):
        loaded(monkeypatch, own, direction="left_to_right")


def test_a_run_without_a_teacher_loads_none(monkeypatch):
    alone = dataclasses.replace(EXPERIMENT, teacher="")
    assert loaded(monkeypatch, alone) is None
    assert teacher.with_teacher(alone, None) is alone
