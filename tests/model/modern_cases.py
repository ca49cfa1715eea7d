"""The models of `tests/golden/make_modernbert.py` in our form: their architectures, their weights, and the paths of their
tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.model.config import ModelConfig, modern_block
from tests.golden.make_modernbert import CASES, weights_of

COMMON = {"max_position": 64, "vocab_size": 67, "hidden_dropout": 0.0, "attention_dropout": 0.0}


def architecture(case: str, **changes: Any) -> ModelConfig:
    """Returns our configuration for a case of the golden file."""
    kind, c = CASES[case]
    fields: dict[str, Any] = {
        "hidden_size": c["hidden_size"], "intermediate_size": c["intermediate_size"], "num_layers": c["num_hidden_layers"],
        "num_heads": c["num_attention_heads"], **COMMON,
    }  # fmt: skip
    if kind == "ModernBert":
        full, sliding = c["thetas"]
        fields |= modern_block(c["num_hidden_layers"], radius=c["local_attention"] // 2)
        fields |= {
            "norm_bias": c["norm_bias"], "attention_bias": c["attention_bias"], "intermediate_bias": c["mlp_bias"],
            "output_bias": c["mlp_bias"], "head_dense_bias": c["classifier_bias"], "decoder_bias": c["decoder_bias"],
            "rotary_theta": full, "sliding_rotary_theta": sliding,
        }  # fmt: skip
    else:
        bias, mlp_bias = c.get("attention_bias", False), c.get("mlp_bias", False)
        fields |= {
            "attention_bias": bias, "intermediate_bias": mlp_bias, "output_bias": mlp_bias, "gate": "second",
            "activation": "silu", "positions": "rotary", "rotary_theta": c["rope_parameters"]["rope_theta"],
        }  # fmt: skip
    if kind == "EuroBert":
        fields |= {
            "norm": "rms_norm", "layer_norm_epsilon": 1e-5, "norm_placement": "pre", "embedding_norm": False, "final_norm": True,
            "type_vocab_size": 0, "num_key_value_heads": c["num_key_value_heads"], "mlm_head": "decoder", "tied_decoder": False,
            "decoder_bias": c.get("mlp_bias", False),
        }  # fmt: skip
    return ModelConfig(**fields | changes)


MODERN = {
    "embeddings/word_embeddings/embedding": "model.embeddings.tok_embeddings.weight",
    "embeddings/layer_norm": "model.embeddings.norm",
    "attention/output": "model.layers.{}.attn.Wo",
    "attention_layer_norm": "model.layers.{}.attn_norm",
    "feed_forward/output": "model.layers.{}.mlp.Wo",
    "feed_forward_layer_norm": "model.layers.{}.mlp_norm",
    "encoder/final_layer_norm": "model.final_norm",
    "mlm_head/transform": "head.dense",
    "mlm_head/layer_norm": "head.norm",
    "mlm_head/bias": "decoder.bias",
}
EURO = {
    "embeddings/word_embeddings/embedding": "model.embed_tokens.weight",
    "attention/query": "model.layers.{}.self_attn.q_proj",
    "attention/key": "model.layers.{}.self_attn.k_proj",
    "attention/value": "model.layers.{}.self_attn.v_proj",
    "attention/output": "model.layers.{}.self_attn.o_proj",
    "attention_layer_norm": "model.layers.{}.input_layernorm",
    "feed_forward/intermediate": "model.layers.{}.mlp.up_proj",
    "feed_forward/gate": "model.layers.{}.mlp.gate_proj",
    "feed_forward/output": "model.layers.{}.mlp.down_proj",
    "feed_forward_layer_norm": "model.layers.{}.post_attention_layernorm",
    "encoder/final_layer_norm": "model.norm",
    "mlm_head/decoder": "lm_head.weight",
    "mlm_head/bias": "lm_head.bias",
}
NOMIC = {
    "embeddings/word_embeddings/embedding": "nomic_bert.embeddings.word_embeddings.weight",
    "embeddings/token_type_embeddings/embedding": "nomic_bert.embeddings.token_type_embeddings.weight",
    "embeddings/layer_norm": "nomic_bert.embeddings.LayerNorm",
    **{ours: theirs.replace("model.", "nomic_bert.") for ours, theirs in EURO.items() if "/" in ours and "norm" not in ours
       and ours.startswith(("attention", "feed_forward"))},
    "attention_layer_norm": "nomic_bert.layers.{}.post_attention_layernorm",
    "feed_forward_layer_norm": "nomic_bert.layers.{}.post_mlp_layernorm",
    "mlm_head/transform": "cls.predictions.transform.dense",
    "mlm_head/layer_norm": "cls.predictions.transform.layer_norm",
    "mlm_head/bias": "cls.predictions.bias",
}  # fmt: skip
NAMES = {"ModernBert": MODERN, "EuroBert": EURO, "NomicBert": NOMIC}
SUFFIXES = {"kernel": ".weight", "scale": ".weight", "bias": ".bias"}
FUSED = {
    "attention/query": ("model.layers.{}.attn.Wqkv", 0, 3),
    "attention/key": ("model.layers.{}.attn.Wqkv", 1, 3),
    "attention/value": ("model.layers.{}.attn.Wqkv", 2, 3),
    "feed_forward/intermediate": ("model.layers.{}.mlp.Wi", 0, 2),
    "feed_forward/gate": ("model.layers.{}.mlp.Wi", 1, 2),
}
"""Our path -> ModernBERT's tensor, and which of its parts along the outputs."""


def as_ours(path: str, tensors: Mapping[str, np.ndarray], case: str, layer: int = 0) -> np.ndarray | None:
    """Returns the array of our parameter `path` from the other model's tensors, flat over heads; None if it has none. In
    a layer, `path` is relative to the layer."""
    names = NAMES[CASES[case][0]]
    parent, _, leaf = path.rpartition("/")
    if path in names:
        return tensors[names[path]]
    if parent in FUSED and CASES[case][0] == "ModernBert":
        name, part, parts = FUSED[parent]
        array = np.split(tensors[name.format(layer) + SUFFIXES[leaf]], parts)[part]
    elif (name := names[parent].format(layer) + SUFFIXES[leaf]) in tensors:
        array = tensors[name]
    else:
        return None
    return array.T if leaf == "kernel" else array


def parameters(case: str, shapes: Any, tensors: Mapping[str, np.ndarray] | None = None) -> dict[str, Any]:
    """Returns our parameters of a case with these `shapes`, from its weights or from other tensors by their names."""
    if tensors is None:
        tensors = {name: weights_of(name, tuple(shape)) for name, shape in json.loads(str(shapes["golden"])).items()}
        shapes = shapes["ours"]
    found = {}
    for path, leaf in flatten_dict(shapes, sep="/").items():
        if "encoder/layers/" in path:
            inside = path.removeprefix("encoder/layers/")
            layers = [as_ours(inside, tensors, case, n) for n in range(leaf.shape[0])]
            rows = [np.zeros(leaf.shape[1:]) if x is None else x.reshape(leaf.shape[1:]) for x in layers]
            found[path] = np.stack(rows)
        else:
            found[path] = np.asarray(as_ours(path, tensors, case)).reshape(leaf.shape)
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), unflatten_dict(found, sep="/"))


def as_theirs(case: str, params: Any, names: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns our parameters or gradients as tensors with the other model's names and layout."""
    found: dict[str, dict[int, np.ndarray]] = {}
    kind = CASES[case][0]

    def put(name: str, part: int, array: np.ndarray, leaf: str) -> None:
        if leaf == "kernel":
            outputs = names[name][0] // (FUSED_PARTS.get(name.split(".")[-2], 1))
            array = array.reshape(-1, outputs).T
        found.setdefault(name, {})[part] = array.reshape(-1) if leaf == "bias" else array

    for path, value in flatten_dict(params, sep="/").items():
        array = np.asarray(value)
        stacked = "encoder/layers/" in path
        inside = path.removeprefix("encoder/layers/")
        parent, _, leaf = inside.rpartition("/")
        for n, one in enumerate(array if stacked else array[None]):
            if inside in NAMES[kind]:
                put(NAMES[kind][inside], 0, one, "")
            elif parent in FUSED and kind == "ModernBert":
                name, part, _ = FUSED[parent]
                put(name.format(n) + SUFFIXES[leaf], part, one, leaf)
            elif (name := NAMES[kind][parent].format(n) + SUFFIXES[leaf]) in names:
                put(name, 0, one, leaf)
    return {name: np.concatenate([parts[n] for n in sorted(parts)]) for name, parts in found.items()}


FUSED_PARTS = {"Wqkv": 3, "Wi": 2}
