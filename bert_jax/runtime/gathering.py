"""Gathers a JSON value from every process of a run."""

from __future__ import annotations

import json

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.files import JsonObject, parse_json


def gather_json(value: JsonObject) -> list[JsonObject]:
    """The JSON values of all processes, in their order. Every process has to call it, and waits for the others."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.array(data.size, np.int32)))
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: data.size] = data
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [parse_json(rows[i, :size].tobytes().decode()) for i, size in enumerate(sizes)]
