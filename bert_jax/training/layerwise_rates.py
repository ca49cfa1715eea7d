"""Learning rates by depth: lower layers change less, later, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

KeyPath = tuple[Any, ...]
"""Where a leaf stands in a tree, as `jax.tree_util.tree_map_with_path` gives it."""


def depths(params: Mapping[str, Any]) -> dict[str, Any]:
    """How far below the head every parameter lies: 0 the heads and the pooler, 1 the last layer, N the first, N + 1 the
    embeddings; a tree like `params`, of float32 arrays that broadcast against it ([N, 1, ...] where layers are stacked).
    """
    stacks = [x for path, x in jax.tree_util.tree_leaves_with_path(params) if _is_layer(path)]
    layers = stacks[0].shape[0]

    def depth(path: KeyPath, x: Any) -> Float[np.ndarray, " ..."]:
        if _is_layer(path):
            return np.arange(layers, 0, -1, dtype=np.float32).reshape(-1, *[1] * (x.ndim - 1))
        return np.float32(layers + 1 if path[0].key == "embeddings" else 0) * np.ones([1] * x.ndim, np.float32)

    return jax.tree_util.tree_map_with_path(depth, params)


def _is_layer(path: KeyPath) -> bool:
    return path[0].key == "encoder"


def learning_rate_multipliers(
    params: Mapping[str, Any], *, decay: float = 1.0, frozen: Collection[str] = (), unfreeze_every: int = 0
) -> Callable[[Int[Array, ""]], PyTree[Float[Array, " ..."]]] | None:
    """The factor of the learning rate for every parameter as a function of the step; None where it is 1 for all.

    `decay` to the power of the depth (discriminative rates, ULMFiT, arXiv:1801.06146, section 3.2; ELECTRA's layer-wise decay);
    0 for the `frozen` parts of the tree; and with `unfreeze_every` 0 until the layers above have been trained for so many steps
    each (gradual unfreezing, ULMFiT, section 3.3: the head alone first).
    """
    if decay == 1.0 and not frozen and not unfreeze_every:
        return None
    below = depths(params)
    fixed = {part: jax.tree.map(lambda d, part=part: decay**d * (part not in frozen), tree) for part, tree in below.items()}

    def factors(step: Int[Array, ""]) -> PyTree[Float[Array, " ..."]]:
        if not unfreeze_every:
            return jax.tree.map(jnp.asarray, fixed)
        return jax.tree.map(lambda f, d: jnp.where(step >= d * unfreeze_every, f, 0.0), fixed, below)

    return factors
