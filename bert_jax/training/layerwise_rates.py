"""Learning rates by layer: layer-wise decay, frozen parts, and gradual unfreezing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from bert_jax.errors import UserError

KeyPath = tuple[Any, ...]
"""The path of a leaf, as in `jax.tree_util.tree_map_with_path`."""


def depths(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the depth of every parameter below the head. The depth is 0 for heads and pooler, 1 for the last layer and the
    final norm, N for the first layer, and N + 1 for the embeddings. The result is a tree like `params`, with float32 arrays
    that broadcast against the parameters ([N, 1, ...] for stacked layers)."""
    stacks = [x for path, x in jax.tree_util.tree_leaves_with_path(params) if _is_layer(path)]
    layers = stacks[0].shape[0] if stacks else 0

    def depth(path: KeyPath, x: Any) -> Float[np.ndarray, " ..."]:
        if _is_layer(path):
            return np.arange(layers, 0, -1, dtype=np.float32).reshape(layers, *[1] * (x.ndim - 1))
        return np.float32({"embeddings": layers + 1, "encoder": 1}.get(path[0].key, 0)) * np.ones([1] * x.ndim, np.float32)

    return jax.tree_util.tree_map_with_path(depth, params)


def _is_layer(path: KeyPath) -> bool:
    return [key.key for key in path[:2]] == ["encoder", "layers"]


def _require_stacked_layers(params: Mapping[str, Any]) -> None:
    """Raises UserError if the encoder has parameters, but none of them are stacked over layers, so that the depth of a layer is
    unknown."""
    encoder = [path for path, _ in jax.tree_util.tree_leaves_with_path(params) if path[0].key == "encoder"]
    if encoder and not any(map(_is_layer, encoder)):
        found = "/".join(str(key.key) for key in encoder[0])
        raise UserError(
            "layer_decay and gradual_unfreezing need the depth of each layer, but the parameters of the config.model.encoder are "
            f"not stacked over layers in encoder/layers (the first one is {found}); leave layer_decay=1 and "
            "gradual_unfreezing=false, or inherit from Encoder in bert_jax/model/encoder.py"
        )


def learning_rate_multipliers(
    params: Mapping[str, Any],
    *,
    decay: float = 1.0,
    frozen: Collection[str] = (),
    unfreeze_every: int = 0,
    crf_multiplier: float = 1.0,
) -> Callable[[Int[Array, ""]], PyTree[Float[Array, " ..."]]] | None:
    """Returns a function that maps the step to a learning-rate factor for each parameter. Returns None if all factors are 1.

    decay: the factor is `decay` to the power of the depth (discriminative fine-tuning of ULMFiT, arXiv:1801.06146, section 3.2;
        ELECTRA's layer-wise decay).
    frozen: the factor is 0 for these subtrees.
    unfreeze_every: the factor of depth d is 0 before step d * `unfreeze_every` (ULMFiT's gradual unfreezing, section 3.3). Only
        the head is trained at first, then the last layer is added, and so on. 0 trains all parameters from the start.
    crf_multiplier: the factor of a CRF's transitions.

    Raises UserError if `decay` or `unfreeze_every` is set, and the encoder has no stacked layers.
    """
    if decay == 1.0 and not frozen and not unfreeze_every and crf_multiplier == 1.0:
        return None
    if decay != 1.0 or unfreeze_every:
        _require_stacked_layers(params)
    below = depths(params)

    def factor(path: KeyPath, depth: Float[np.ndarray, " ..."]) -> Float[np.ndarray, " ..."]:
        in_crf = any(key.key == "crf" for key in path)
        return decay**depth * (path[0].key not in frozen) * np.float32(crf_multiplier if in_crf else 1.0)

    fixed = jax.tree_util.tree_map_with_path(factor, below)

    def factors(step: Int[Array, ""]) -> PyTree[Float[Array, " ..."]]:
        if not unfreeze_every:
            return jax.tree.map(jnp.asarray, fixed)
        return jax.tree.map(lambda f, d: jnp.where(step >= d * unfreeze_every, f, 0.0), fixed, below)

    return factors
