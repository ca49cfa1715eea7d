"""Draws random labelled features for every kind of head, with the vocabulary and the positions of `random_rows.TINY`."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from bert_jax.data.rows import Feature
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads import head_classes
from bert_jax.model.heads.bert_with_head import initial_label_parameters
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.outputs import MultiLabel
from bert_jax.model.heads.sequence import SequenceHead
from tests.random_rows import TINY

LABELS = ("a", "b", "c")
CLS = 2
CANDIDATES = 3
HEADS: dict[str, TaskHead] = {kind: head(labels=LABELS if head.has_labels else ()) for kind, head in head_classes().items()} | {
    "regression": SequenceHead(labels=("value",), problem="regression"),
    "multi_label": SequenceHead(labels=LABELS, problem="multi_label"),
}
"""Features by the kind of their labels."""
KINDS = tuple(HEADS)
LAYOUTS = {kind: head.layout for kind, head in HEADS.items()}


def random_features(kind: str, count: int, seed: int = 0, *, shortest: int = 4, longest: int = 10) -> list[Feature]:
    """Returns features with targets in the layout of the head; all begin with [CLS], and no subword occurs twice in a text.

    A feature with candidates has two or three; some tokens have no label, and some questions no answer.
    """
    rng = np.random.default_rng(seed)
    return [_feature(kind, number, rng, shortest, longest) for number in range(count)]


def _feature(kind: str, number: int, rng: np.random.Generator, shortest: int, longest: int) -> Feature:
    head, layout = HEADS[kind], LAYOUTS[kind]
    sequences = int(rng.integers(2, CANDIDATES + 1)) if layout.logits_per_candidate else 1
    ids, types = [], []
    for _ in range(sequences):
        n = int(rng.integers(shortest, longest + 1))
        ids.append(np.array([CLS, *rng.choice(np.arange(5, TINY.vocab_size), n - 1, replace=False)], np.int32))
        types.append((np.arange(n) > rng.integers(1, n)).astype(np.int32))
    length = len(ids[0])
    target: Any
    if layout.per_token:
        target = np.where(rng.random(length) < 0.3, -1, rng.integers(head.num_outputs, size=length))
    elif layout.are_positions:
        start = int(rng.integers(1, length)) * int(rng.random() < 0.8)  # 0: no answer
        target = [start, rng.integers(start, length) if start else 0]
    elif isinstance(head.outputs, MultiLabel):
        target = rng.random(layout.shape) < 0.5
    elif np.issubdtype(layout.dtype, np.floating):
        target = rng.normal(size=layout.shape)
    else:
        target = rng.integers(sequences if layout.logits_per_candidate else head.num_outputs, size=layout.shape)
    count = layout.read_positions
    read_positions = rng.choice(np.arange(1, length), count, replace=False).astype(np.int32) if count else None
    if layout.per_token:  # all but the [CLS] begin words
        read_positions = np.arange(1, length, dtype=np.int32)
    return Feature(number, tuple(ids), tuple(types), np.asarray(target, layout.dtype), read_positions)


@functools.cache
def shapes_of(head: TaskHead, config: ModelConfig) -> Any:
    """Returns the shape and type of every parameter; tracing the model for them takes longer than drawing the parameters."""
    return nn.unbox(jax.eval_shape(lambda: initial_label_parameters(config, head, jax.random.key(0))))


def random_label_parameters(head: TaskHead, config: ModelConfig = TINY, seed: int = 0) -> Any:
    """Returns random values for all parameters, far from the initial ones."""
    rng = np.random.default_rng(seed)

    def draw(path: Any, x: Any) -> np.ndarray:
        return (0.3 * rng.standard_normal(x.shape) + (path[-1].key == "scale")).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes_of(head, config))
