"""BERT and its predecessors as Linen modules, which compute logits from arrays. Meshes, files and losses are in other folders.

In: `Tokens`, int32 arrays of token ids, types, positions and sequence ids. Out: hidden states and logits.

    config.py           ModelConfig; the published sizes
    tokens.py           Tokens: the inputs of an encoder; Layer: the properties of a layer
    layers.py           matrix products, Dense, LayerNorm, GELU, dropout, LayerNorm(x + dropout(y))
    positions.py        learned, sinusoidal, rotary, none: objects that act on embeddings, on queries and keys, or on scores
    embeddings.py       token ids -> vectors
    characters.py       word vectors from characters
    attention.py        self-attention and a decoder's attention on its source; the plain implementation
    kernels/            fused attention and residual norm for TPUs and GPUs; `kernels/dispatch.py` chooses between them
    encoder.py          the stack of Transformer layers
    encoder_decoder.py  a decoder that attends to an encoder's output, and both as one model
    lstm.py             the recurrence of an LSTM, in one or two directions; the LSTM of task heads
    bilm.py             the layers of a bidirectional LSTM language model
    flair.py            a biLM over characters whose states are read at word boundaries
    cove.py             an LSTM that translates: its encoder, and a decoder with attention
    static.py           the empty stack of layers of a static model
    bert.py             embeddings, encoder, pooler
    features.py         the features of task heads: layers, their mixes, means over tokens
    crf.py              a conditional random field over the labels of words
    heads/              the pooler and the heads of pretraining and of tasks
    pretraining.py      BERT with the two pretraining heads
    decoding.py         next-token logits of a left-to-right model, with a cache of keys and values

To add an encoder, a position embedding, an activation or a norm, write an object in one file and add a line to the dict below.
An object is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bert_jax.errors import UserError
from bert_jax.interface.named import load_built_in, load_named, require_call

if TYPE_CHECKING:
    from bert_jax.model.config import ModelConfig

ENCODERS: Mapping[str, tuple[str, str]] = {
    "transformer": ("bert_jax.model.embeddings:Embeddings", "bert_jax.model.encoder:Encoder"),
    "encoder_decoder": ("bert_jax.model.embeddings:Embeddings", "bert_jax.model.encoder_decoder:SourceEncoder"),
    "bilm": ("bert_jax.model.embeddings:WordEmbeddings", "bert_jax.model.bilm:BiLstm"),
    "flair": ("bert_jax.model.embeddings:WordEmbeddings", "bert_jax.model.flair:Flair"),
    "cove": ("bert_jax.model.embeddings:WordEmbeddings", "bert_jax.model.cove:Cove"),
    "static": ("bert_jax.model.embeddings:WordEmbeddings", "bert_jax.model.static:NoLayers"),
}
"""`config.model.encoder` -> two classes. The first makes the input of the first layer from `Tokens`. The second is the stack of
layers, with the methods of `encoder.Encoder`."""

POSITIONS: Mapping[str, str] = {
    "learned": "bert_jax.model.positions:Learned",
    "sinusoidal": "bert_jax.model.positions:Sinusoidal",
    "none": "bert_jax.model.positions:Absent",
    "rotary": "bert_jax.model.positions:Rotary",
    "sinusoidal_halves": "bert_jax.model.positions:SinusoidalHalves",
}
"""`config.model.positions` -> a class with the methods that `positions.py` describes."""

ACTIVATIONS: Mapping[str, str] = {
    "gelu": "bert_jax.model.layers:gelu",
    "gelu_tanh": "bert_jax.model.layers:gelu_tanh",
    "relu": "jax.nn:relu",
    "silu": "jax.nn:silu",
}
"""`config.model.activation` -> an elementwise function."""

NORMS: Mapping[str, str] = {
    "layer_norm": "bert_jax.model.layers:standardise",
    "rms_norm": "bert_jax.model.layers:divide_by_root_mean_square",
}
"""`config.model.norm` -> a function of (float32 array, epsilon) that normalises the last axis, before scale and bias."""


def encoder_classes(config: ModelConfig) -> tuple[Any, Any]:
    """Returns two classes for `config.encoder`. The first makes the input of the first layer, and the second is the stack of
    layers. A user's own stack reads the embeddings of a Transformer. Raises UserError if the user's file does not define a
    valid class."""
    key = "config.model.encoder"
    embeddings, layers = ENCODERS[config.encoder_kind]
    if config.encoder in ENCODERS:
        return load_built_in(embeddings), load_built_in(layers)
    from bert_jax.model.encoder import Encoder, WholeRows  # imported here, since `encoder.py` imports this module

    own = load_named(config.encoder, ENCODERS, key)
    if not (isinstance(own, type) and issubclass(own, Encoder | WholeRows)):
        raise UserError(
            f"{key}={config.encoder} is {own!r}, not an encoder; make it a class that inherits from "
            "bert_jax.model.encoder.WholeRows, or from Encoder"
        )
    require_call(own.__call__, "self, x, tokens, seed", f"__call__ of {key}={config.encoder}")
    return load_built_in(embeddings), own


def natural_objective(config: ModelConfig) -> str:
    """Returns the name of a model's default objective, which the encoder declares."""
    name: str = encoder_classes(config)[1].objectives[config.direction]
    return name
