"""The run directory that TensorFlow wrote (`tests/golden/make_tf1_checkpoint.py`), and ways to damage a copy of it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from bert_jax.interop.tensor_bundle import read_bundle, write_bundle

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "tf1" / "bert"
CHECKPOINT = "model.ckpt-1000"
Tensors = dict[str, np.ndarray]


def rewrite(directory: pathlib.Path, change: Callable[[Tensors], Tensors]) -> None:
    """Replaces the checkpoint by one with its tensors as modified by `change`."""
    write_bundle(directory / CHECKPOINT, change(dict(read_bundle(directory / CHECKPOINT))))


def assert_same_trees(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Checks that the parameters are the same bit for bit, with the same types."""
    flat, other = flatten_dict(ours, sep="/"), flatten_dict(theirs, sep="/")
    assert flat.keys() == other.keys()
    assert [p for p in flat if flat[p].dtype != other[p].dtype or not np.array_equal(flat[p], other[p])] == []
