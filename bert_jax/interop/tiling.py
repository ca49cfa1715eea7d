"""Makes the first weights of a larger Transformer from a trained smaller one, as ModernBERT-large was made from ModernBERT-base
(arXiv:2412.13663, appendix A.3; `initialization.py` and `model.py` of its code).

Width: along every axis whose size differs, the small array is placed in the middle of the larger array and repeated on both
sides (Phi, arXiv:2306.11644). Heads stay whole. Depth: if N layers are made from n layers, layer i is a copy of layer
round(i*n/N) (Gopher, arXiv:2112.11446), even if the two layers have different types of attention."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Int

from bert_jax.errors import UserError
from bert_jax.interface.named import is_in_file
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model
from bert_jax.interop.names import our_shapes
from bert_jax.model.config import SIZES, Architecture

QUERY_HEADS = {"attention/query/kernel": -2, "attention/query/bias": -2, "attention/output/kernel": -3}
"""Ends of array paths -> the axis of the query heads. Query heads stay together with the key heads that they read."""


def tiled(model: Model, wanted: Architecture) -> Model:
    """Returns `model` enlarged by tiling to the sizes of `wanted`. All other settings are unchanged.

    Raises UserError if one of the two is not a Transformer, if a size of `wanted` is smaller than the size of the model, if the
    heads differ in width or share keys differently, or if only one of the two has sliding layers."""
    check_tiling(model, wanted)
    sizes: dict[str, Any] = {name: getattr(wanted, name) for name in SIZES}
    config = dataclasses.replace(model.config, **sizes)
    layers = layer_sources(model.config.num_layers, config.num_layers)
    heads = query_head_sources(model.config, config)
    shapes = our_shapes(config, model.head)
    flat = {}
    for path, value in flatten_dict(model.params, sep="/").items():
        of_heads = next((axis for end, axis in QUERY_HEADS.items() if path.endswith(end)), None)
        for axis, size in enumerate(shapes[path]):
            if "/layers/" in path and axis == 0:
                sources = layers
            elif of_heads is not None and axis == value.ndim + of_heads:
                sources = heads
            else:
                sources = centred(value.shape[axis], size)
            value = np.take(value, sources, axis=axis)
        flat[path] = value
    return dataclasses.replace(model, params=model.params | unflatten_dict(flat, sep="/"), config=config)


def centred(small: int, large: int, offset: int | None = None) -> Int[np.ndarray, " _"]:
    """Returns, for each of `large` entries along an axis, the index of its source among `small` entries. The small array starts
    at `offset`, by default in the middle, and is repeated on both sides."""
    return (np.arange(large) - ((large - small) // 2 if offset is None else offset)) % small


def layer_sources(small: int, large: int) -> Int[np.ndarray, " _"]:
    """Returns, for each of the `large` layers of the new model, the index of its source among the `small` layers of the old
    model. If the new model has at least twice as many layers, the published formula can exceed the last layer. In this case,
    the last layer is used."""
    return np.array([min(round(layer * small / large), small - 1) for layer in range(large)])


def query_head_sources(small: Architecture, large: Architecture) -> Int[np.ndarray, " _"]:
    """Returns, for each query head of the larger model, the index of its source. The query heads that share a key head stay
    together."""
    each, keys = small.num_heads // small.key_value_heads, (small.key_value_heads, large.key_value_heads)
    return centred(small.num_heads, large.num_heads, each * ((keys[1] - keys[0]) // 2))


def check_tiling(model: Model, wanted: Architecture) -> None:
    """Raises UserError if `model` cannot be tiled to the sizes of `wanted`."""
    there, source = model.config, model.source
    for kind in (there, wanted):
        if not kind.has_attention or kind.translates or is_in_file(kind.encoder):
            raise UserError(
                f"config.init_tiled is for Transformers, but {source if kind is there else 'config.model'} has the encoder "
                f"{kind.encoder}; leave config.init_tiled out"
            )
    for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size"):
        if getattr(wanted, name) < getattr(there, name):
            raise UserError(
                f"config.model.{name}={getattr(wanted, name)} is smaller than the {getattr(there, name)} of {source}, but tiling "
                f"only enlarges a model; set at least {getattr(there, name)}, or remove layers with convert --keep-layers"
            )
    if wanted.head_width != there.head_width:
        fitting = wanted.hidden_size / there.head_width
        remedy = f"config.model.num_heads={fitting:g}" if fitting.is_integer() else "another config.model.hidden_size"
        raise UserError(
            f"the heads of config.model are {wanted.head_width} wide, but the heads of {source} are {there.head_width} wide. "
            f"Tiling cannot change the width of heads; set {remedy}"
        )
    each = there.num_heads // there.key_value_heads
    if wanted.num_heads != each * wanted.key_value_heads:
        fits = f"; set it to {wanted.num_heads // each}" if wanted.num_heads % each == 0 else "; choose another num_heads"
        raise UserError(
            f"config.model.num_key_value_heads={wanted.key_value_heads} lets {wanted.num_heads / wanted.key_value_heads:g} query "
            f"heads share a key head, but in {source} the number is {each}{fits}"
        )
    if ("sliding" in wanted.layer_types) != ("sliding" in there.layer_types):
        has, lacks = (source, "config.model") if "sliding" in there.layer_types else ("config.model", source)
        raise UserError(
            f"{has} has sliding layers, but {lacks} has none; in config.model.layer_types, set the attention of each of "
            f"{counted(wanted.num_layers, 'layer')} as in {source}"
        )
