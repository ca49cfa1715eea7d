"""The jitted forward passes of the commands. Each computes probabilities, vectors or logits from parameters and a packed batch.

A batch has `Packed.arrays` (`packing.py`) and "piece_kinds" int8 [V], the kind of each piece (`engine.piece_kinds`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from bert_jax.model.bert import Bert
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.bert_with_head import BertWithHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.pretraining import BertForPreTraining, pretraining_model
from bert_jax.model.tokens import Batch, Tokens
from bert_jax.prediction.engine import CONTINUATION, NO_PIECE, START, compiled

Params = Mapping[str, PyTree[jax.Array]]


@compiled
def candidates(
    params: Params, batch: Batch, *, config: ModelConfig, top_k: int, kind: str
) -> tuple[Int[Array, "X {top_k}"], Float[Array, "X {top_k}"]]:
    """Returns the ids of the `top_k` most probable tokens at the query positions, and their probabilities, float32.

    `kind` selects the subwords: "any" is all subwords, "start" is the subwords that start a word, and "continuation" is the
    subwords that continue a word. The softmax is always over all rows of the word embeddings, including unused rows, as in
    transformers."""
    probabilities = jax.nn.softmax(masked_logits(params, batch, config))
    kinds = batch["piece_kinds"][None]
    fits = {"any": kinds != NO_PIECE, "start": kinds == START, "continuation": kinds == CONTINUATION}[kind]
    probabilities = jnp.where(fits, probabilities, 0.0)
    best, ids = jax.lax.top_k(probabilities, top_k)
    return ids, best


@compiled
def target_log_probabilities(params: Params, batch: Batch, *, config: ModelConfig) -> Float[Array, " X"]:
    """Returns ln p of the batch's `targets` at the query positions, float32."""
    logits = jax.nn.log_softmax(masked_logits(params, batch, config))
    return jnp.take_along_axis(logits, batch["targets"][:, None], axis=1).squeeze(1)


@compiled
def next_sentence(params: Params, batch: Batch, *, config: ModelConfig) -> Float[Array, "T 2"]:
    """Returns two probabilities, float32: that B follows A, and that B is a random text."""

    def read(model: BertForPreTraining, batch: Batch) -> Float[Array, " ..."]:
        last, _ = model.encode(Tokens.of(batch))
        return model.nsp_head(model.pool(_flat(last), batch["starts"][None])).squeeze(0)

    logits: Any = pretraining_model(config).apply({"params": params}, batch, method=read)
    return jax.nn.softmax(logits)


class CombinedLayers(NamedTuple):
    """The hidden states that are combined to a vector."""

    layers: tuple[int, ...]
    """0 is the embeddings, N the last layer."""
    combine: str
    """"concat", "sum" or "mean"."""


@compiled
def text_vectors(
    params: Params, batch: Batch, *, config: ModelConfig, source: CombinedLayers, pooling: str, normalise: bool
) -> Float[Array, "T I"]:
    """Returns a vector for each text, float32. If layers are concatenated, I is D times the number of layers. Otherwise I is D.

    `pooling` and `normalise` are explained in `embedding.Embed`."""

    def read(model: Bert, batch: Batch) -> Float[Array, " ..."]:
        last, hidden_states = model.encode(Tokens.of(batch))
        if pooling == "pooler":
            return model.pool(_flat(last), batch["starts"][None]).squeeze(0).astype(jnp.float32)
        vectors = _combined(last, hidden_states, source)
        if pooling == "cls":
            return _flat(vectors).squeeze(0)[batch["starts"]]
        slots = 1 + jnp.arange(batch["starts"].size, dtype=jnp.int32)
        members = (slots[:, None] == batch["sequence_ids"].reshape(1, -1)).astype(jnp.float32)
        sums = jnp.matmul(members, _flat(vectors).squeeze(0), precision=jax.lax.Precision.HIGHEST)
        return sums / jnp.maximum(members.sum(1, keepdims=True), 1.0)

    vectors: Any = Bert(config).apply({"params": params}, batch, method=read)
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=1, keepdims=True), 1e-12) if normalise else vectors


@compiled
def token_vectors(
    params: Params, batch: Batch, *, config: ModelConfig, source: CombinedLayers
) -> Float[Array, "B L I"]:
    """Returns a vector for each token, float32."""

    def read(model: Bert, batch: Batch) -> Float[Array, " ..."]:
        return _combined(*model.encode(Tokens.of(batch)), source)

    vectors: Any = Bert(config).apply({"params": params}, batch, method=read)
    return vectors


@compiled
def tags(
    params: Params, batch: Batch, *, config: ModelConfig, head: TaskHead
) -> tuple[Int[Array, "B L"], Float[Array, "B L C"]]:
    """Returns (the predicted label of each token, the logits of its label probabilities) from a token head. With a CRF, the
    batch also has word_starts [B, L], which is 1 on the first subword of each word."""

    def read(model: BertWithHead, batch: Batch) -> tuple[Array, Array]:
        tokens = Tokens.of(batch)
        return model.tags(model.features(*model.encode(tokens), tokens), batch)

    found: Any = BertWithHead(config, head).apply({"params": params}, batch, method=read)
    return found


@compiled
def label_logits(params: Params, batch: Batch, *, config: ModelConfig, head: TaskHead) -> Float[Array, "*shape C"]:
    """Returns the logits of a task head, float32: [B, L, C] if the head has logits for every token, [T, C] if it has logits for
    every text.

    A head that reads n positions per text returns [X, C]. Element i is computed from the query positions i to i + n - 1, so
    the logits of an item are at the first of its n query positions."""

    def read(model: BertWithHead, batch: Batch) -> Float[Array, " ..."]:
        tokens = Tokens.of(batch)
        features = model.features(*model.encode(tokens), tokens)
        if head.per_token:
            return model.answer(features, batch)
        where = {"sequence_ids": tokens.sequence_ids.reshape(1, -1), "cls_positions": batch["starts"][None]}
        if count := head.layout.read_positions:
            where["read_positions"] = jnp.stack([jnp.roll(batch["query_positions"], -n) for n in range(count)], axis=1)[None]
        return model.answer(_flat(features), where).squeeze(0)

    logits: Any = BertWithHead(config, head).apply({"params": params}, batch, method=read)
    return logits


def masked_logits(params: Params, batch: Batch, config: ModelConfig) -> Float[Array, "X V"]:
    """Returns the MLM logits at the query positions, float32. The model needs neither a pooler nor an NSP head."""

    def read(model: BertForPreTraining, batch: Batch) -> Float[Array, " ..."]:
        states = model.predicting(Tokens.of(batch))
        return model.masked_logits(_flat(states), batch["query_positions"][None]).squeeze(0)

    logits: Any = pretraining_model(config).apply({"params": params}, batch, method=read)
    return logits


def _combined(
    last: Float[Array, "B L D"], hidden_states: Float[Array, "S B L D"], source: CombinedLayers
) -> Float[Array, "B L I"]:
    """Combines the hidden states of the layers of `source`, float32. `last` is layer N.

    If `source` has only layer N, `hidden_states` is not read, so XLA does not store it."""
    n = len(hidden_states) - 1
    chosen = [(last if layer == n else hidden_states[layer]).astype(jnp.float32) for layer in source.layers]
    if source.combine == "concat":
        return jnp.concatenate(chosen, axis=-1)
    total = functools.reduce(jnp.add, chosen)
    return total if source.combine == "sum" else total / len(chosen)


def _flat(x: Float[Array, "B L D"]) -> Float[Array, "1 R D"]:
    """Concatenates the tokens of all rows, as the flat indices of `Packed` expect."""
    return x.reshape(1, -1, x.shape[-1])
