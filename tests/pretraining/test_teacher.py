"""The teacher of a distillation in pretraining: what is rejected, and the width and hash that a run fills in."""

from __future__ import annotations

import dataclasses
import hashlib
import types

import numpy as np
import pytest

from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from bert_jax.data.config import ExampleConfig
from bert_jax.errors import UserError
from bert_jax.objectives.config import PretrainingDistillation
from bert_jax.pretraining import start as teacher
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


def test_a_run_without_a_teacher_loads_none(monkeypatch):
    alone = dataclasses.replace(EXPERIMENT, teacher="")
    assert loaded(monkeypatch, alone) is None
    assert teacher.with_teacher(alone, None) is alone
