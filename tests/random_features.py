"""Random labelled features of every kind of head, for the vocabulary and the positions of `random_rows.TINY`."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from bert_jax.examples.labelled import Feature
from bert_jax.heads import registry
from bert_jax.heads.bert_with_head import initial_label_parameters
from bert_jax.heads.head import TaskHead
from bert_jax.heads.sequence import SequenceHead
from bert_jax.model.config import ModelConfig
from tests.random_rows import TINY

LABELS = ("a", "b", "c")
CLS = 2
CANDIDATES = 3
HEADS: dict[str, TaskHead] = {kind: head(labels=LABELS if head.has_labels else ()) for kind, head in registry.HEADS.items()} | {
    "regression": SequenceHead(labels=("value",), problem="regression"),
    "multi_label": SequenceHead(labels=LABELS, problem="multi_label"),
}
"""By the kind of their labels."""
KINDS = tuple(HEADS)
LAYOUTS = {kind: head.layout for kind, head in HEADS.items()}
KIND_OF = {layout: kind for kind, layout in LAYOUTS.items()}


def random_features(kind: str, count: int, seed: int = 0, *, shortest: int = 4, longest: int = 10) -> list[Feature]:
    """Units that begin with [CLS] and have no two pieces of text alike; a choice has two or three candidates.

    Some tokens have no label, and some questions no answer.
    """
    rng = np.random.default_rng(seed)
    return [_feature(kind, number, rng, shortest, longest) for number in range(count)]


def _feature(kind: str, number: int, rng: np.random.Generator, shortest: int, longest: int) -> Feature:
    sequences = int(rng.integers(2, CANDIDATES + 1)) if kind == "choice" else 1
    ids, types = [], []
    for _ in range(sequences):
        n = int(rng.integers(shortest, longest + 1))
        ids.append(np.array([CLS, *rng.choice(np.arange(5, TINY.vocab_size), n - 1, replace=False)], np.int32))
        types.append((np.arange(n) > rng.integers(1, n)).astype(np.int32))
    length = len(ids[0])
    start = int(rng.integers(1, length)) * int(rng.random() < 0.8)  # 0: no answer
    targets = {
        "sequence": np.int32(rng.integers(len(LABELS))),
        "regression": np.float32(rng.normal()),
        "multi_label": (rng.random(len(LABELS)) < 0.5).astype(np.float32),
        "token": np.where(rng.random(length) < 0.3, -1, rng.integers(len(LABELS), size=length)).astype(np.int32),
        "span": np.array([start, rng.integers(start, length) if start else 0], np.int32),
        "choice": np.int32(rng.integers(sequences)),
        "mention": np.int32(rng.integers(len(LABELS))),
    }
    read_positions = rng.choice(np.arange(1, length), 3, replace=False).astype(np.int32) if kind == "mention" else None
    target = np.asarray(targets.get(kind, targets["sequence"]))  # a new kind has a label for each text, until it says otherwise
    return Feature(number, tuple(ids), tuple(types), target, read_positions)


@functools.cache
def shapes_of(head: TaskHead, config: ModelConfig) -> Any:
    """The shape and type of every parameter; to trace the model for them takes longer than to draw the parameters."""
    return nn.unbox(jax.eval_shape(lambda: initial_label_parameters(config, head, jax.random.key(0))))


def random_label_parameters(head: TaskHead, config: ModelConfig = TINY, seed: int = 0) -> Any:
    """Parameters whose every array is random, far from where training begins."""
    rng = np.random.default_rng(seed)

    def draw(path: Any, x: Any) -> np.ndarray:
        return (0.3 * rng.standard_normal(x.shape) + (path[-1].key == "scale")).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes_of(head, config))
