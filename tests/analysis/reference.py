"""Reference measurements in loops over the weights of one text at a time, and models whose heads are known."""

from __future__ import annotations

import functools
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.analysis.windows import Kind, Window
from bert_jax.interop.huggingface import Model
from bert_jax.model.bert import Bert, attention_weights
from bert_jax.model.config import ModelConfig
from bert_jax.model.tokens import Tokens
from tests.interop.tiny import as_model, make_model
from tests.prediction.reference import row

POSITIONS = 24


def _known_model(vocabulary: pathlib.Path) -> tuple[dict[str, Any], ModelConfig]:
    """Returns (parameters, configuration) of two layers of two heads. A token's state encodes its position, and attention is
    uniform."""
    fields = {"hidden_size": 2 * POSITIONS, "num_heads": 2, "max_position": POSITIONS, "intermediate_size": 4}
    params, config = make_model(vocabulary, **fields)
    params = jax.tree.map(np.zeros_like, params)
    layers, embeddings = params["encoder"]["layers"], params["embeddings"]
    for norm in (embeddings["layer_norm"], layers["attention_layer_norm"], layers["feed_forward_layer_norm"]):
        norm["scale"][:] = 1
    embeddings["position_embeddings"]["embedding"][:, :POSITIONS] = np.eye(POSITIONS)
    return params, config


def pointing_model(vocabulary: pathlib.Path) -> Model:
    """Returns a model with two layers of two heads, which attend by position alone: to the token before, the token after, the
    token itself, and [CLS]."""
    params, config = _known_model(vocabulary)
    layers, here = params["encoder"]["layers"], np.eye(POSITIONS, dtype=np.float32)
    first = np.zeros_like(here)
    first[:, 0] = 1
    query, key = layers["attention"]["query"]["kernel"], layers["attention"]["key"]["kernel"]  # [N, D, H, K]
    for layer, head, looks_at in ((0, 0, np.eye(POSITIONS, k=-1)), (0, 1, np.eye(POSITIONS, k=1)), (1, 0, here), (1, 1, first)):
        query[layer, :POSITIONS, head] = 10 * looks_at
        key[layer, :POSITIONS, head] = here
    return as_model(params, config, vocabulary)


def verb_model(vocabulary: pathlib.Path, verb: str) -> Model:
    """Returns a model whose heads attend to the token before (1-1), and to the word `verb`, of one piece, wherever it is (2-2);
    the others attend uniformly."""
    params, config = _known_model(vocabulary)
    model = as_model(params, config, vocabulary)
    attention, flag = params["encoder"]["layers"]["attention"], POSITIONS
    (piece,) = model.tokenizer.encode(verb)
    params["embeddings"]["word_embeddings"]["embedding"][piece, flag] = 1
    attention["query"]["kernel"][0, :POSITIONS, 0] = 10 * np.eye(POSITIONS, k=-1)
    attention["key"]["kernel"][0, :POSITIONS, 0] = np.eye(POSITIONS)
    attention["query"]["bias"][1, 1, 0] = 500  # the other weights are 0
    attention["key"]["kernel"][1, flag, 1, 0] = 1
    return model


@functools.cache
def _weights(config: ModelConfig) -> Any:
    return jax.jit(lambda params, batch: attention_weights(params, config, Tokens.of(batch)))


def weights_of(model: Model, window: Window) -> np.ndarray:
    """Returns float64 [N, H, n, n]: the model's weights for one window, in a row of its own."""
    item = window.item()
    n = len(item.ids)
    batch = row(model.config, item.ids, item.segment_b if item.segment_b > 0 else None)
    found = _weights(model.config)(model.params, batch)
    return np.stack([np.asarray(layer, np.float64)[0, :, :n, :n] for layer in found])


@functools.cache
def _hidden(config: ModelConfig) -> Any:
    return jax.jit(lambda params, batch: Bert(config).apply({"params": params}, Tokens.of(batch), method="encode")[1])


def word_vectors_of(model: Model, window: Window) -> np.ndarray:
    """Returns float64 [N + 1, words, D]: the mean over each word's pieces in every layer, for one window in a row of its own."""
    ids = window.item().ids
    encoder = {part: model.params[part] for part in ("embeddings", "encoder")}
    hidden = np.asarray(_hidden(model.config)(encoder, row(model.config, ids)), np.float64)[:, 0, : len(ids)]
    starts = np.cumsum([0, *(len(word.ids) for word in window.words)])
    return np.stack([hidden[:, a:b].mean(1) for a, b in itertools.pairwise(starts)], axis=1)


def in_words(weights: np.ndarray, window: Window) -> np.ndarray:
    """Returns [N, H, words, words]: the sum over the target's pieces, the mean over the source's."""
    starts = np.cumsum([0, *(len(word.ids) for word in window.words)])
    count = len(window.words)
    found = np.zeros((*weights.shape[:2], count, count))
    for i in range(count):
        for j in range(count):
            block = weights[:, :, starts[i] : starts[i + 1], starts[j] : starts[j + 1]]
            found[:, :, i, j] = block.sum(-1).mean(-1)
    return found


def sources(window: Window) -> Sequence[int]:
    """Returns the words that are counted."""
    return [i for i, word in enumerate(window.words) if word.kind in (Kind.WORD, Kind.PUNCTUATION)]
