"""ModernBERT in the format of transformers (`modeling_modernbert.py`). Ettin's encoders and mmBERT have the same format
(arXiv:2412.13663, 2507.11412, 2509.06888)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interop.families.bert import ACTIVATIONS
from bert_jax.interop.families.family import (
    ENCODER_ONLY,
    SIZES,
    Constant,
    Family,
    Key,
    Row,
    TokenId,
    Written,
    attention,
    classifiers,
    linear,
    norm,
)
from bert_jax.interop.families.rotary import LayerTypes, RotaryThetas, Window
from bert_jax.model.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Dropouts:
    """The dropout rates. transformers has one rate for the attention weights and the output of attention, so a different
    `attention_output_dropout` is lost."""

    carried: bool = False
    names: ClassVar[tuple[str, ...]] = ("attention_dropout", "embedding_dropout", "mlp_dropout")

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns the four rates. Raises UserError if one of them is not a number."""
        rates = {name: Key(name, "hidden_dropout", 0.0).read(fields, {}, source)["hidden_dropout"] for name in self.names}
        hidden, attention, embedding = rates["mlp_dropout"], rates["attention_dropout"], rates["embedding_dropout"]
        return {
            "hidden_dropout": hidden,
            "attention_dropout": attention,
            "embedding_dropout": None if embedding == hidden else embedding,
            "attention_output_dropout": None if attention == hidden else attention,
        }

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns the three rates."""
        embedding = config.hidden_dropout if config.embedding_dropout is None else config.embedding_dropout
        rates = (config.attention_dropout, embedding, config.hidden_dropout)
        return dict(zip(self.names, rates, strict=True))


class UnreadEpsilon(Written):
    """The key "layer_norm_eps". Published files have it in addition to "norm_eps". Servers in Rust read it, but transformers does
    not."""

    carried = False

    def write(self, config: ModelConfig, ids: Mapping[str, int], carried: JsonObject) -> JsonObject:
        """Returns the epsilon of the norms."""
        return {self.theirs: config.layer_norm_epsilon}


class HeadActivation(Key):
    """The activation of the heads. It must be the activation of the layers, unless the model has no head."""

    def read(self, fields: JsonObject, read: JsonObject, source: str) -> JsonObject:
        """Returns no settings. Raises UserError if the activation is unknown or differs from the activation of the layers."""
        if fields.get("architectures") == [HEADLESS]:
            return {}
        value = fields.get(self.theirs, self.default)
        if self.translated(self.theirs, value, source) != read["activation"]:
            layers = fields.get("hidden_activation", self.default)
            raise UserError(
                f"{source}: {self.theirs}={value!r} and hidden_activation={layers!r} cannot be represented, because heads use "
                "the activation of the layers; choose another model, or one that was saved without a head"
            )
        return {}


HEADLESS = "ModernBertModel"
"""The class without heads."""
ALWAYS = {
    "type_vocab_size": 0, "positions": "rotary", "norm_placement": "pre", "first_attention_norm": False, "final_norm": True,
    "gate": "first", "initializer": "modernbert",
}  # fmt: skip

MODERNBERT = Family(
    model_type="modernbert",
    title="ModernBERT",
    prefix="model.",
    table=(
        Row("embeddings/word_embeddings/embedding", "V D", "model.embeddings.tok_embeddings.weight", "V D"),
        *norm("embeddings/layer_norm", "model.embeddings.norm"),
        *norm("encoder/layers/attention_layer_norm", "model.layers.{}.attn_norm", first=1),
        *attention("encoder/layers/attention", "model.layers.{}.attn", ("Wqkv",), "Wo"),
        *norm("encoder/layers/feed_forward_layer_norm", "model.layers.{}.mlp_norm"),
        *linear("encoder/layers/feed_forward/intermediate", "D", "F", "model.layers.{}.mlp.Wi", split=(0, 2)),
        *linear("encoder/layers/feed_forward/gate", "D", "F", "model.layers.{}.mlp.Wi", split=(1, 2)),
        *linear("encoder/layers/feed_forward/output", "F", "D", "model.layers.{}.mlp.Wo"),
        *norm("encoder/final_layer_norm", "model.final_norm"),
        *linear("mlm_head/transform", "D", "E", "head.dense"),
        *norm("mlm_head/layer_norm", "head.norm"),
        Row("mlm_head/bias", "V", "decoder.bias", "V"),
        Row("mlm_head/decoder", "V D", "decoder.weight", "V D"),
        *linear("pooler/dense", "D", "E", "head.dense"),
        *norm("pooler/layer_norm", "head.norm"),
        *classifiers("sequence", "token", "span", "choice"),
    ),
    keys=(
        *SIZES,
        Key("max_position_embeddings", "max_position", 8_192),
        Key("hidden_activation", "activation", "gelu", ACTIVATIONS, carried=True),
        Key("norm_eps", "layer_norm_epsilon", 1e-5),
        UnreadEpsilon("layer_norm_eps"),
        Key("norm_bias", "norm_bias", False),
        Key("attention_bias", "attention_bias", False),
        Key("mlp_bias", "intermediate_bias output_bias", False),
        Key("decoder_bias", "decoder_bias", True),
        Key("classifier_bias", "head_dense_bias", False),
        HeadActivation("classifier_activation", "activation", "gelu", ACTIVATIONS, carried=True),
        Key("classifier_pooling", "classifier_pooling", "cls", {"cls": "cls", "mean": "mean"}),
        Key("tie_word_embeddings", "tied_decoder", True),
        LayerTypes(every=3),
        Window(default=128),
        RotaryThetas(full=160_000.0, sliding=10_000.0),
        Dropouts(),
        Key("initializer_range", "initializer_range", 0.02),
        Constant("initializer_cutoff_factor", 2.0, carried=True),
        Constant("deterministic_flash_attn", False, carried=True),
        Constant("classifier_dropout", 0.0, carried=True),
        TokenId("pad_token_id", "pad"),
        TokenId("cls_token_id", "cls"),
        TokenId("sep_token_id", "sep"),
        TokenId("bos_token_id", "cls", carried=True),
        TokenId("eos_token_id", "sep", carried=True),
        Constant("torch_dtype", "float32"),
    ),
    always=ALWAYS,
    fixed=ENCODER_ONLY,
    classes={
        HEADLESS: (),
        "ModernBertForMaskedLM": ("mlm_head",),
        "ModernBertForSequenceClassification": ("pooler", "sequence_head"),
        "ModernBertForTokenClassification": ("pooler", "token_head"),
        "ModernBertForQuestionAnswering": ("pooler", "span_head"),
        "ModernBertForMultipleChoice": ("pooler", "choice_head"),
    },
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
)
