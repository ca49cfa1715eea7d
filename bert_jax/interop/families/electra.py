"""ELECTRA (arXiv:2003.10555) as in transformers (`modeling_electra.py`): BERT's encoder with another prefix, and a head that
finds replaced tokens.

The encoder is read as a BERT, and the head as `Model.discriminator`. A model with this head and no others is written as an
ELECTRA."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interop.families.bert import BERT
from bert_jax.model.config import ModelConfig

DISCRIMINATOR = "discriminator"
"""The part with the parameters of the head (`objectives.model.Model.discriminator`)."""
CLASS = "ElectraForPreTraining"
HEAD = "discriminator_predictions."
"""The prefix of the tensors of the head."""


@dataclasses.dataclass(frozen=True)
class EmbeddingSize:
    """The width of the embeddings. Only models without a projection of the embeddings are supported."""

    names: tuple[str, ...] = ("embedding_size",)
    carried: bool = False

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns no settings. Raises UserError if the embeddings have another width than the hidden states."""
        size, width = fields.get("embedding_size", 128), read["hidden_size"]
        if size != width:
            raise UserError(
                f"{source}: embedding_size={str(size)[:20]} cannot be represented; only an ELECTRA whose embedding_size equals "
                f"its hidden_size, {width}, is supported"
            )
        return {}

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns the width."""
        return {"embedding_size": config.hidden_size}


ELECTRA = dataclasses.replace(
    BERT,
    model_type="electra",
    title="ELECTRA",
    prefix="electra.",
    keys=(*BERT.keys, EmbeddingSize()),
    classes={"ElectraModel": (), CLASS: ()},
    causal="",
)


def discriminator_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns path -> shape of every parameter of the head."""
    width = config.hidden_size
    layers = {"dense": width, "dense_prediction": 1}
    kernels = {f"{DISCRIMINATOR}/{layer}/kernel": (width, outputs) for layer, outputs in layers.items()}
    return kernels | {f"{DISCRIMINATOR}/{layer}/bias": (outputs,) for layer, outputs in layers.items()}


def electra_tensors(
    tensors: Mapping[str, np.ndarray], discriminator: PyTree[np.ndarray], config: ModelConfig
) -> dict[str, np.ndarray]:
    """Returns the tensors of an ELECTRA. `tensors` are the tensors of its encoder, by BERT's names with BERT's prefix. Raises a
    ValueError if the head has other arrays than `discriminator_shapes`, which is a bug."""
    head = {path.removeprefix(f"{DISCRIMINATOR}/"): shape for path, shape in discriminator_shapes(config).items()}
    flat = flatten_dict(discriminator, sep="/")
    if found := {path: np.shape(x) for path, x in flat.items() if head.get(path) != np.shape(x)} or flat.keys() ^ head.keys():
        raise ValueError(f"the discriminator does not fit the model configuration: {found}")
    encoder = {ELECTRA.prefix + name.removeprefix(BERT.prefix): x for name, x in tensors.items()}
    return encoder | {_their_name(path): np.ascontiguousarray(np.asarray(x, np.float32).T) for path, x in flat.items()}


def read_discriminator(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> PyTree[np.ndarray] | None:
    """Returns the parameters of the head from its tensors. Returns None if a tensor is missing or has another shape than in
    `discriminator_shapes`."""
    head = {path.removeprefix(f"{DISCRIMINATOR}/"): shape for path, shape in discriminator_shapes(config).items()}
    names = {_their_name(path): path for path in head}
    if {name: np.shape(x)[::-1] for name, x in tensors.items()} != {name: head[path] for name, path in names.items()}:
        return None
    return unflatten_dict({names[name]: np.asarray(x, np.float32).T for name, x in tensors.items()}, sep="/")


def _their_name(path: str) -> str:
    return HEAD + path.replace("/kernel", "/weight").replace("/", ".")
