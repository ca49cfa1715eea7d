"""Computes the outputs of the plain modules for one text in a row of its own; models and texts on which answers are compared."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.data import INPUTS
from bert_jax.interop.huggingface import Model
from bert_jax.model.bert import Bert
from bert_jax.model.config import ModelConfig
from bert_jax.model.pretraining import BertForPreTraining
from bert_jax.model.tokens import Tokens
from bert_jax.prediction.engine import Engine
from tests.interop.tiny import WORDS
from tests.model.head_in_numpy import head_logits

WITHIN = 1e-5


@contextlib.contextmanager
def first_devices(count: int = 1) -> Iterator[None]:
    """Hides all but the first of the eight virtual devices; a program for one of them compiles faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "local_devices", lambda: jax.devices()[:count])
        yield


def engine_on(directory: pathlib.Path, devices: int = 1, tokens: int = 40) -> Engine:
    """Returns the model in `directory` on the first of the eight virtual devices, in batches of one row, which compile few
    shapes."""
    with first_devices(devices):
        engine = Engine.load(directory)
    engine.tokens = tokens
    return engine


def row(config: ModelConfig, ids: Sequence[int], segment_b: int | None = None) -> dict[str, np.ndarray]:
    """Returns the arrays INPUTS, int32 [1, max_position], of one text and padding."""
    n, length = len(ids), config.max_position
    types = [0] * length
    if segment_b is not None:
        types[segment_b:n] = [1] * (n - segment_b)
    columns = ([*ids, *[0] * (length - n)], types, range(length), [1] * n + [0] * (length - n))
    return {name: np.array([column], np.int32) for name, column in zip(INPUTS, columns, strict=True)}


@functools.cache
def _pretraining(config: ModelConfig) -> Any:
    everywhere, first = np.arange(config.max_position, dtype=np.int32)[None], np.zeros((1, 1), np.int32)
    read = {"masked_positions": everywhere, "cls_positions": first}
    return jax.jit(lambda params, batch: BertForPreTraining(config).apply({"params": params}, batch | read))


@functools.cache
def _encoder(config: ModelConfig) -> Any:
    return jax.jit(lambda params, batch: Bert(config).apply({"params": params}, Tokens.of(batch), method="encode")[1])


def pretrained_outputs(model: Model, ids: Sequence[int], segment_b: int | None = None) -> dict[str, np.ndarray]:
    """Returns mlm [n, V] and nsp [2] probabilities, hidden [N+1, n, D] and pooled [D] of a text of n tokens."""
    n, v = len(ids), model.config.vocab_size
    outputs = jax.device_get(_pretraining(model.config)(model.params, row(model.config, ids, segment_b)))
    logits, nsp = outputs["mlm_logits"][0, :n, :v], outputs["nsp_logits"][0, 0]
    return {
        "mlm": softmax(logits),
        "nsp": softmax(nsp),
        "hidden": outputs["hidden_states"][:, 0, :n],
        "pooled": outputs["pooled"][0, 0],
    }


def label_outputs(
    model: Model, ids: Sequence[int], segment_b: int | None = None, mention_positions: np.ndarray | None = None
) -> np.ndarray:
    """Returns logits [C] for a sequence, choice or mention head (at `mention_positions`), or [n, C] for a token or span head, for
    a text of n tokens: from the encoder's hidden states, with the pooler and the head in numpy."""
    assert model.head is not None
    encoder = {part: model.params[part] for part in ("embeddings", "encoder")}
    states = np.asarray(_encoder(model.config)(encoder, row(model.config, ids, segment_b)))[:, 0, : len(ids)]
    return head_logits(model.head, model.params, states, mention_positions)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Computes the softmax in float64 over the last axis."""
    p = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def with_specials(model: Model, *parts: str) -> tuple[list[int], int | None]:
    """Returns ([CLS] a [SEP] b [SEP], the position where b begins). "[MASK]" in a text becomes the mask token."""
    t = model.tokenizer
    encoded = [t.encode_with_specials(part) for part in parts]
    ids = [t.cls_id, *(i for part in encoded for i in (*part, t.sep_id))]
    return ids, len(encoded[0]) + 2 if len(parts) > 1 else None


def mixed_texts(count: int, longest: int = 36, seed: int = 1, blank: str = "") -> list[str]:
    """Returns texts of 1 to `longest` words of one token each, short ones more often; `blank` replaces some of the words."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        words = draw.choices(WORDS, k=min(longest, 1 + int(draw.expovariate(1 / 9))))
        if blank:
            for place in draw.sample(range(len(words)), min(len(words), draw.choice((1, 1, 2, 3)))):
                words[place] = blank
        texts.append(" ".join(words))
    return texts
