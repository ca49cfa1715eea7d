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
from bert_jax.model.config import LSTMS, Execution, ModelConfig
from bert_jax.objectives.model import Model, unboxed

if TYPE_CHECKING:  # pretraining does not load any tasks
    from bert_jax.data.rows import RowShape
    from bert_jax.model.heads.head import TaskHead

FORWARD, TRAINING = 2.0, 6.0
"""FLOPs per multiply-add in the forward pass. There are 2 without the backward pass, and 6 with the backward pass."""


def model_row_flops(model: ModelConfig, length: int, predictions: int = 0, negatives: int = 0) -> float:
    """Returns the FLOPs of a training step per row. With 0 predictions, only the encoder is counted.

    A row of length L takes 6 L N (4 D^2 + 2 D F) for the projections, 12 L^2 N D for attention, and 6 M (D^2 + D V) for the MLM
    head on M positions. This is 69.9 G for BERT-Base at length 128 with 20 predictions, and 300.9 G at 512 with 76. A gated
    feed-forward layer has 3 D F instead of 2 D F, and shared key and value heads have fewer columns. In a sliding layer, only
    the keys in the window of a token are counted (129 for ModernBERT), even if the program computes more.

    A decoder of N' layers that reads the encoder's output adds 6 M N' (8 D^2 + 2 D F + 2 (L + M) D) for a translation of M
    tokens.

    An LSTM with cells of width F in R directions of width W takes 6 L N R (2 W 4 F + F W) for gates and projection (no
    projection if F equals W), 6 L times `character_products` if it reads characters, and 6 M R W V for the softmax. In CoVe,
    the input of every layer has width D, so the gates take (D + W) 4 F. Each of the M words of the translation adds 6 ((8 N' +
    7) D^2 + 2 L D + D V) for N' layers, attention and softmax. For static vectors, each of the M words is scored with the L
    tokens and the negatives of its row, which takes 6 M D (L + negatives). Skip-gram only uses the scores with tokens in the
    window."""
    width, cell = model.word_width, model.intermediate_size
    if model.encoder in LSTMS:
        from bert_jax.model.characters import character_products

        half = model.direction_width
        directions = model.hidden_size // half
        projection = 0 if cell == half else cell * half
        layers = directions * length * model.num_layers * ((width + half) * 4 * cell + projection)
        if model.encoder == "cove":
            decoder = (8 * model.decoder_layers + 4 + 3) * width**2 + 2 * length * width
            return TRAINING * (layers + predictions * (decoder + width * model.vocab_size))
        characters = length * character_products(width) if model.character_cnn else 0
        return TRAINING * (characters + layers + directions * predictions * width * model.vocab_size)
    if model.encoder == "static":
        return TRAINING * predictions * width * (length + negatives)
    width, shared = model.hidden_size, model.key_value_heads * model.head_width
    head = predictions * ((width**2 if model.mlm_head == "bert" else 0) + width * model.vocab_size)
    if is_in_file(model.encoder):
        return _encoder_flops(model, length) / FORWARD * TRAINING + TRAINING * head
    kernels = 2 * width**2 + 2 * width * shared + (2 if model.gate == "none" else 3) * width * model.intermediate_size
    near = min(length, 2 * model.sliding_radius + 1)
    seen = sum(near if model.layer_type(n) == "sliding" else length for n in range(model.num_layers))
    encoder = length * (model.num_layers * kernels + 2 * seen * width)
    if model.encoder == "encoder_decoder":
        projections = 2 * width**2 + 2 * width * shared  # the layers' attention on the encoder's output
        attention = 2 * (length + predictions) * width
        decoder = predictions * model.decoder_layers * (kernels + projections + attention)
        words = model.decoder_vocab_size or model.vocab_size
        return TRAINING * (encoder + decoder + predictions * width * words)
    return TRAINING * (encoder + head)


@functools.lru_cache(maxsize=64)
def _encoder_flops(model: ModelConfig, length: int) -> float:
    """Counts the matrix products in the forward pass of the encoder for a row."""
    found = Model(dataclasses.replace(model, **dataclasses.asdict(Execution(attention="plain", residual_norm="plain"))))
    params = unboxed(jax.eval_shape(lambda: found.encoder(jax.random.key(0))))
    batch = {name: jax.ShapeDtypeStruct((1, length), jnp.int32) for name in INPUTS}
    return counted_flops(lambda params, batch: found.encode(params, batch, None), params, batch)


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


def _inner(params: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the programs inside an operation: a loop body, branches of a condition, or a called function."""
    for value in params.values():
        for one in value if isinstance(value, list | tuple) else (value,):
            found = getattr(one, "jaxpr", one)
            if hasattr(found, "eqns"):
                yield found
