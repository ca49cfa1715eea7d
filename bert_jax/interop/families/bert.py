"""BERT as in transformers (`modeling_bert.py`), and the models that only this package supports. Their files use BERT's tensor
names where these exist. All other parameters have our own names, with dots, and our layout."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from bert_jax.interop.families.family import (
    REQUIRED,
    Constant,
    Family,
    Key,
    Row,
    TokenId,
    attention,
    classifiers,
    linear,
    norm,
)
from bert_jax.model.config import ModelConfig

SELF = ("self.query", "self.key", "self.value")
# Axis letters: D width, E width (as an output), H heads, G heads of keys and values, K head width, F feed-forward width, V
# vocabulary, S positions, T token types, C = 2 classes, Y outputs of a task head.
TABLE = (
    Row("embeddings/word_embeddings/embedding", "V D", "bert.embeddings.word_embeddings.weight", "V D"),
    Row("embeddings/position_embeddings/embedding", "S D", "bert.embeddings.position_embeddings.weight", "S D"),
    Row("embeddings/token_type_embeddings/embedding", "T D", "bert.embeddings.token_type_embeddings.weight", "T D"),
    *norm("embeddings/layer_norm", "bert.embeddings.LayerNorm"),
    *attention("encoder/layers/attention", "bert.encoder.layer.{}.attention", SELF, "output.dense"),
    *norm("encoder/layers/attention_layer_norm", "bert.encoder.layer.{}.attention.output.LayerNorm"),
    *linear("encoder/layers/feed_forward/intermediate", "D", "F", "bert.encoder.layer.{}.intermediate.dense"),
    *linear("encoder/layers/feed_forward/output", "F", "D", "bert.encoder.layer.{}.output.dense"),
    *norm("encoder/layers/feed_forward_layer_norm", "bert.encoder.layer.{}.output.LayerNorm"),
    *linear("pooler/dense", "D", "E", "bert.pooler.dense"),
    *linear("mlm_head/transform", "D", "E", "cls.predictions.transform.dense"),
    *norm("mlm_head/layer_norm", "cls.predictions.transform.LayerNorm"),
    Row("mlm_head/bias", "V", "cls.predictions.bias", "V"),
    Row("mlm_head/decoder", "V D", "cls.predictions.decoder.weight", "V D"),
    *linear("nsp_head/dense", "D", "C", "cls.seq_relationship"),
    *classifiers("sequence", "token"),
    *linear("span_head/dense", "D", "Y", "qa_outputs"),
    *classifiers("choice"),
)

FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_epsilon": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
"""Field of `ModelConfig` -> the equivalent field of `config.json`. If `config.json` may
omit a field, the default is the same in transformers and in `ModelConfig`."""

SHAPE_FIELDS = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_position")
"""Fields that `config.json` must have. If a default were assumed, the import would fail later with a less clear error."""

ACTIVATIONS = {
    # "gelu" uses erf in transformers, as here. The tanh approximation that TensorFlow BERT later used is `gelu_new`.
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""transformers' `hidden_act` -> `ModelConfig.activation`. Exports use the first name of each activation."""

FIXED = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
}

BERT = Family(
    model_type="bert",
    title="BERT",
    prefix="bert.",
    table=TABLE,
    keys=(
        *(Key(theirs, ours, REQUIRED if ours in SHAPE_FIELDS else getattr(ModelConfig, ours)) for ours, theirs in FIELDS.items()),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS, carried=True),
        Constant("position_embedding_type", "absolute"),
        TokenId("pad_token_id", "pad"),
        Key("tie_word_embeddings", "tied_decoder", True),
        Constant("torch_dtype", "float32"),
        Key("is_decoder", "direction", False, {False: "both", True: "left_to_right"}, unless=False, carried=True),
    ),
    fixed=FIXED,
    classes={
        "BertModel": (),
        "BertForPreTraining": ("pooler", "mlm_head", "nsp_head"),
        "BertForMaskedLM": ("mlm_head",),
        "BertLMHeadModel": ("mlm_head",),
        "BertForNextSentencePrediction": ("pooler", "nsp_head"),
        "BertForSequenceClassification": ("pooler", "sequence_head"),
        "BertForTokenClassification": ("token_head",),
        "BertForQuestionAnswering": ("span_head",),
        "BertForMultipleChoice": ("pooler", "choice_head"),
    },
    causal="BertLMHeadModel",
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    untied_bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
    # The published checkpoints were converted from TensorFlow long ago, and still have TensorFlow's names for LayerNorm's
    # parameters. In NVIDIA's checkpoints, dense layers that include their activation have a different name.
    renamed={
        "LayerNorm.gamma": "LayerNorm.weight",
        "LayerNorm.beta": "LayerNorm.bias",
        ".dense_act.weight": ".dense.weight",
        ".dense_act.bias": ".dense.bias",
    },
    buffers={
        "bert.embeddings.position_ids": ("0, 1, 2", lambda size, config: np.arange(size)),
        "bert.embeddings.token_type_ids": ("0, 0, 0", lambda size, config: np.zeros(size)),
    },
    position_table="bert.embeddings.position_embeddings.weight",
)


@functools.cache
def own_family(model_type: str) -> Family:
    """Returns the family of one of OWN_FAMILIES. Its `model_type` makes transformers refuse the model. Only Transformers have
    BERT's names of tensors."""
    family = dataclasses.replace(BERT, model_type=model_type, position_table="")
    return family if model_type == "bert_jax" else dataclasses.replace(family, prefix="", table=())
