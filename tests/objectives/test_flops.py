"""FLOPs counted by formula, compared with the matrix products that JAX traces."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data import DECODER_INPUTS, INPUTS
from bert_jax.data.rows import RowShape, assemble_features
from bert_jax.model.config import ModelConfig, published
from bert_jax.model.heads.bert_with_head import BertWithHead, initial_label_parameters
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.model.pretraining import abstract_parameters, pretraining_model
from bert_jax.objectives.flops import counted_flops, forward_flops, model_row_flops, task_row_flops
from bert_jax.objectives.model import Model
from bert_jax.objectives.skip_gram import SkipGram
from bert_jax.objectives.translation import Translation
from bert_jax.pretraining.program import flops_left, phase_row_flops
from tests.random_rows import TINY, random_batch, with_centres

ROWS, LENGTH, PREDICTIONS = 3, 16, 4
LABELS = ("a", "b", "c")
ONE_LAYER = dataclasses.replace(TINY, num_layers=1)
BILM = dataclasses.replace(ONE_LAYER, encoder="bilm", num_heads=1)
STATIC = dataclasses.replace(TINY, encoder="static", num_layers=0)
LAYERS = dataclasses.replace(TINY, num_layers=4, scan_layers=True)
TRANSLATOR = dataclasses.replace(ONE_LAYER, encoder="encoder_decoder", decoder_layers=1, type_vocab_size=0)
SHAPE = RowShape(TokenHead(labels=LABELS).layout, LENGTH, 2)


@pytest.mark.parametrize(
    ("model", "length", "predictions", "giga"),
    [("base", 128, 20, 69.9), ("base", 512, 76, 300.9), ("large", 128, 20, 240.6), ("large", 512, 76, 1019.8)],
)
def test_row_flops_of_base_and_large_equal_counts_by_hand(model: str, length: int, predictions: int, giga: float):
    assert model_row_flops(ModelConfig(**published(model)), length, predictions) / 1e9 == pytest.approx(giga, abs=0.06)


def test_row_flops_of_modernbert_count_129_keys_in_sliding_layers():
    config = ModelConfig(**published("modernbert-base"))
    matrices = 22 * (4 * 768**2 + 3 * 768 * 1_152)
    for length, sliding in ((64, 64), (1_024, 129), (8_192, 129)):
        keys = 8 * length + 14 * sliding
        encoder = 6 * length * (matrices + 2 * keys * 768)
        assert model_row_flops(config, length) == encoder
        assert model_row_flops(config, length, 10) == encoder + 6 * 10 * (768**2 + 768 * 50_368)
    shared = dataclasses.replace(TINY, num_key_value_heads=1, gate="first", mlm_head="decoder")
    width, wide = TINY.hidden_size, TINY.intermediate_size
    of_layer = 2 * width**2 + 2 * width * TINY.head_width + 3 * width * wide
    assert model_row_flops(shared, 8, 2) == 6 * (8 * TINY.num_layers * (of_layer + 2 * 8 * width) + 2 * width * 64)


def products(jaxpr: Any) -> int:
    """Returns the operations of all matrix products in a jaxpr; those in a loop are multiplied by its length."""
    found = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            found += 2 * int(np.prod(equation.outvars[0].aval.shape) * np.prod([shape[axis] for axis in contracted]))
        inside = sum(products(value.jaxpr) for value in equation.params.values() if hasattr(value, "jaxpr"))
        found += inside * equation.params.get("length", 1)
    return found


def of_step(loss: Callable[..., jax.Array], params: Any, batch: Any) -> float:
    """Returns the operations per row of a loss function of (parameters, batch), and of its gradients."""
    return products(jax.make_jaxpr(jax.grad(loss))(nn.unbox(params), batch).jaxpr) / ROWS


def of_forward(loss: Callable[..., jax.Array], params: Any, batch: Any) -> float:
    """Returns three times the operations per row of a loss function without its gradients, which take three times as long to
    trace. Some models of each kind are traced with gradients."""
    return 3 * products(jax.make_jaxpr(loss)(nn.unbox(params), batch).jaxpr) / ROWS


@pytest.mark.parametrize(
    ("model", "traced"),
    [
        (TINY, of_step),
        (dataclasses.replace(ONE_LAYER, tied_decoder=False), of_forward),
        (dataclasses.replace(BILM, direction="left_to_right", intermediate_size=16), of_forward),  # cells as wide as the output
        (dataclasses.replace(BILM, num_layers=2, character_cnn=True, tied_decoder=False), of_step),
    ],
)
def test_flops_of_a_pretraining_step_equal_its_matrix_products(model: ModelConfig, traced: Callable[..., float]):
    batch = random_batch(rows=ROWS, length=LENGTH, predictions=PREDICTIONS)
    network: Any = pretraining_model(model, next_sentence=False)
    method = "logits" if model.encoder == "bilm" else None  # a Transformer computes the last layer only at some positions

    def loss(params: Any, batch: Any) -> jax.Array:
        outputs = network.apply({"params": params}, batch, method=method)
        return sum(value.sum() for name, value in outputs.items() if name.endswith("logits"))

    params = abstract_parameters(model, next_sentence=False)
    assert model_row_flops(model, LENGTH, PREDICTIONS) == traced(loss, params, batch)


def test_flops_of_an_encoder_in_a_file_are_three_times_those_of_its_forward_pass():
    """Its Fourier transforms are products with constants, whose gradients are counted too, although nothing reads them."""
    model = dataclasses.replace(ONE_LAYER, encoder="experiments/extensions/fourier.py:Fourier")
    batch = random_batch(rows=ROWS, length=LENGTH, predictions=PREDICTIONS)
    params = nn.unbox(abstract_parameters(model))
    forward = products(jax.make_jaxpr(Model(model).encode)(params, batch).jaxpr) / ROWS
    head = PREDICTIONS * (TINY.hidden_size**2 + TINY.hidden_size * TINY.vocab_size)
    assert model_row_flops(model, LENGTH, PREDICTIONS) == 3 * forward + 6 * head


def test_flops_of_cove_equal_its_matrix_products():
    model = dataclasses.replace(BILM, encoder="cove", decoder_layers=3, intermediate_size=8)
    batch = dict.fromkeys((*INPUTS, *DECODER_INPUTS, "targets"), np.ones((ROWS, LENGTH), np.int32))
    objective: Any = Translation().for_model(Model(model))

    assert objective.row_flops(LENGTH, 0) == of_forward(
        lambda params, batch: objective.model.logits(params, batch)["logits"].sum(), abstract_parameters(model), batch
    )


def test_flops_of_skip_gram_equal_its_matrix_products():
    batch = with_centres(random_batch(rows=ROWS, length=LENGTH, predictions=PREDICTIONS))
    settings = SkipGram(shared_negatives=7)

    def loss(params: Any, batch: Any) -> jax.Array:
        return settings.sums(params, batch, None)["skip_gram_loss"]

    found = settings.for_model(Model(STATIC)).row_flops(LENGTH, PREDICTIONS)
    assert found == model_row_flops(STATIC, LENGTH, PREDICTIONS, negatives=7) == of_step(loss, abstract_parameters(STATIC), batch)


def test_loops_count_once_per_iteration_and_of_several_branches_only_the_costliest():
    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        x = jax.lax.scan(lambda x, _: (x @ y, None), x, None, length=5)[0]
        x = jax.lax.cond(x[0, 0] > 0, lambda x: x @ y @ y, lambda x: x @ y, x)
        return jax.jit(lambda x: x @ y)(x)

    assert counted_flops(function, np.zeros((2, 3)), np.zeros((3, 3))) == (5 + 2 + 1) * 2 * 2 * 3 * 3


def of_task(model: ModelConfig, head: Any, traced: Callable[..., float] = of_step, frozen: bool = False) -> float:
    shape = dataclasses.replace(SHAPE, layout=head.layout)
    batch: Any = assemble_features([], [], ROWS, shape, 0)
    params = jax.eval_shape(lambda: initial_label_parameters(model, head, jax.random.key(0)))

    def loss(params: Any, batch: Any) -> jax.Array:
        fixed = {part: jax.lax.stop_gradient(params[part]) for part in ("embeddings", "encoder") if frozen and part in params}
        outputs: Any = BertWithHead(model, head).apply({"params": params | fixed}, batch)
        return outputs["logits"].sum()

    return traced(loss, params, batch)


@pytest.mark.parametrize(
    ("model", "head", "traced"),
    [
        (ONE_LAYER, SequenceHead(labels=LABELS), of_step),
        (ONE_LAYER, SequenceHead(labels=LABELS, pooling="concat", lstm=5), of_forward),
        (STATIC, TokenHead(labels=LABELS), of_step),
        (STATIC, TokenHead(labels=LABELS, lstm=5), of_step),
        (BILM, TokenHead(labels=LABELS, lstm=5, mix_at="output"), of_forward),
        (LAYERS, TokenHead(labels=LABELS, lstm=5, layers="last_four_concat"), of_forward),
        (dataclasses.replace(ONE_LAYER, classifier_pooling="mean"), TokenHead(labels=LABELS), of_forward),
        (dataclasses.replace(ONE_LAYER, classifier_pooling="mean"), SequenceHead(labels=LABELS), of_forward),
        (dataclasses.replace(ONE_LAYER, classifier_pooling="late"), SequenceHead(labels=LABELS), of_forward),
        (TRANSLATOR, TokenHead(labels=LABELS), of_forward),
    ],
)
def test_flops_of_a_task_include_its_head(model: ModelConfig, head: Any, traced: Callable[..., float]):
    counted = task_row_flops(model, head, dataclasses.replace(SHAPE, layout=head.layout))
    assert counted == of_task(model, head, traced) > 0


def test_flops_of_a_frozen_encoder_have_no_backward_pass():
    head = TokenHead(labels=LABELS, lstm=5)
    counted = task_row_flops(ONE_LAYER, head, SHAPE, frozen=True)
    assert counted == of_task(ONE_LAYER, head, frozen=True)
    encoder = model_row_flops(ONE_LAYER, LENGTH)
    assert task_row_flops(ONE_LAYER, head, SHAPE) - counted == encoder - forward_flops(encoder) == 2 / 3 * encoder


@pytest.mark.parametrize(("layers", "states"), [("uniform", TINY.num_layers + 1), ("last", 1)])
def test_flops_of_distillation_include_the_teacher_and_the_projection(layers: str, states: int):
    wide = dataclasses.replace(TINY, hidden_size=24, num_layers=4)
    phase = {"steps": 5, "length": LENGTH, "max_predictions": PREDICTIONS, "batch_size": 7}
    values = {"model": dataclasses.asdict(TINY), "teacher": "t", "phases": [phase]}
    settings = {"hidden_weight": 0.5, "layers": layers}
    whole, soft = (PretrainingExperiment.from_dict(values | {"distillation": d}) for d in (settings, {}))
    student, theirs = phase_row_flops(soft, 0), forward_flops(model_row_flops(wide, LENGTH, PREDICTIONS))
    assert student == model_row_flops(TINY, LENGTH, PREDICTIONS)
    assert phase_row_flops(soft, 0, wide) == student + theirs
    projected = phase_row_flops(whole, 0, wide) - student - theirs
    assert projected == 6 * states * LENGTH * TINY.hidden_size * wide.hidden_size
    assert flops_left(soft, 2, wide) == 3 * 7 * (student + theirs)
