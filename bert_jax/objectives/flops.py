"""Counts the model FLOPs per row of encoders, pretraining heads, task heads and teachers.

Only matrix products are counted, with 2 operations per multiply-add, including padding. The backward pass of a product consists
of two products of the same size, so a training step has three times the operations of a forward pass. Remat is not counted, as
usual for model FLOPs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from bert_jax.data import INPUTS
from bert_jax.interface.named import is_in_file
from bert_jax.model import encoder_classes
from bert_jax.model.config import Execution, ModelConfig
from bert_jax.model.pretraining import pretraining_class
from bert_jax.objectives.model import Model, unboxed

if TYPE_CHECKING:  # pretraining does not load any tasks
    from bert_jax.data.rows import RowShape
    from bert_jax.model.heads.head import TaskHead

FORWARD, TRAINING = 2.0, 6.0
"""FLOPs per multiply-add in the forward pass. There are 2 without the backward pass, and 6 with the backward pass."""


def model_row_flops(model: ModelConfig, length: int, predictions: int = 0, negatives: int = 0) -> float:
    """Returns the FLOPs of a training step per row. With 0 predictions, only the encoder is counted.

    This is 69.9 G for BERT-Base at length 128 with 20 predictions, and 300.9 G at 512 with 76. The multiply-adds of a row are
    counted by the method `products` of the encoder's class. The multiply-adds of the predictions are counted by `head_products`
    of the model's class for pretraining. A user's own encoder has its matrix products counted in the program instead."""
    head = pretraining_class(model).head_products(model, length, predictions, negatives)
    products = None if is_in_file(model.encoder) else encoder_classes(model)[1].products(model, length)
    if products is None:
        return _encoder_flops(model, length) / FORWARD * TRAINING + TRAINING * head
    return TRAINING * (products + head)


@functools.lru_cache(maxsize=64)
def _encoder_flops(model: ModelConfig, length: int) -> float:
    """Counts the matrix products in the forward pass of the encoder for a row."""
    found = Model(countable(model))
    params = unboxed(jax.eval_shape(lambda: found.encoder(jax.random.key(0))))
    batch = {name: jax.ShapeDtypeStruct((1, length), jnp.int32) for name in INPUTS}
    return counted_flops(lambda params, batch: found.encode(params, batch, None), params, batch)


def countable(model: ModelConfig) -> ModelConfig:
    """Returns the model without kernels, remat and scans, whose program `counted_flops` reads."""
    execution = Execution(vocab_multiple=model.vocab_multiple)
    return dataclasses.replace(model, **dataclasses.asdict(execution.plain() if model.has_attention else execution))


def forward_flops(flops: float) -> float:
    """Returns the forward-pass part of the FLOPs of a training step."""
    return flops * FORWARD / TRAINING


def task_row_flops(model: ModelConfig, head: TaskHead, shape: RowShape, *, frozen: bool = False) -> float:
    """Returns the FLOPs of a task's training step per row of `shape`, for encoder and head. A `frozen` encoder has no backward
    pass.

    In the head, a two-layer BiLSTM of width W on features of width I takes 6 L (8 I W + 32 W^2). The pooler takes 6 P D^2 on P
    texts, or 6 L D^2 if it reads every token. The last layer takes 6 O C for each of the L tokens or P texts that it reads,
    where O is the width of its input and C is the number of its outputs. If the features are frozen, the gradients of the
    features are counted too (16 L I W with an LSTM), although the compiler leaves them out."""
    encoder = model_row_flops(model, shape.length)
    read = shape.length if head.layout.logits_per_token else shape.slots
    products = read * head.input_width(model.hidden_size) * head.num_outputs
    if head.has_pooler(model):
        pooled = shape.length if head.per_token or model.classifier_pooling == "late" else shape.slots
        products += pooled * model.hidden_size**2
    if head.lstm:
        features = model.hidden_size if head.mix_at == "output" else head.token_width(model.hidden_size)
        products += shape.length * head.lstm * (8 * features + 32 * head.lstm)
    return (forward_flops(encoder) if frozen else encoder) + TRAINING * products


def counted_flops(function: Callable[..., Any], *arguments: Any) -> float:
    """Counts the operations of the matrix products in `function` for abstract `arguments`, 2 per multiply-add. The body of a loop
    counts once per iteration. If there are several branches, only the costliest counts."""
    return _jaxpr_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def _jaxpr_flops(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            outputs = math.prod(equation.outvars[0].aval.shape)
            total += 2.0 * outputs * math.prod(shape[axis] for axis in contracted)
            continue
        inner = [_jaxpr_flops(one) for one in _inner(equation.params)]
        if equation.primitive.name == "cond":
            total += max(inner)
        else:
            total += sum(inner) * equation.params.get("length", 1)
    return total


def computed_shapes(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """Yields the shape of every array that a program computes, also in its loops, branches and called functions."""
    for equation in jaxpr.eqns:
        yield from (getattr(one.aval, "shape", ()) for one in equation.outvars)
        for one in _inner(equation.params):
            yield from computed_shapes(one)


def _inner(params: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the programs inside an operation: a loop body, branches of a condition, or a called function."""
    for value in params.values():
        for one in value if isinstance(value, list | tuple) else (value,):
            found = getattr(one, "jaxpr", one)
            if hasattr(found, "eqns"):
                yield found
