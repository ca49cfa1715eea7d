"""Finds the blocks of arrays that the kernels of a program access."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np


def calls(jaxpr: Any) -> Iterator[Any]:
    """Yields every call of a kernel in `jaxpr`, and in the functions that it calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
            continue
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from calls(inner)


def blocks_outside(jaxpr: Any) -> list[tuple[Any, ...]]:
    """Returns (array, block, grid step) for every block that is not inside its array: a chip would read or write other memory
    there, while an interpreted kernel moves the block inside."""
    found = []
    for call in calls(jaxpr):
        mapping = call.params["grid_mapping"]
        for step in itertools.product(*map(range, mapping.grid)):
            for block in mapping.block_mappings:
                index = jax.core.eval_jaxpr(block.index_map_jaxpr.jaxpr, block.index_map_jaxpr.consts, *map(np.int32, step))
                sizes = [getattr(size, "block_size", 1) for size in block.block_shape]
                ends = [(int(i) + 1) * size for i, size in zip(index, sizes, strict=True)]
                if any(end > whole for end, whole in zip(ends, block.array_aval.shape, strict=True)):
                    found.append((block.array_aval.shape, sizes, step))
    return found
