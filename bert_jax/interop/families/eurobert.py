"""EuroBERT as transformers has it (`modeling_eurobert.py`; arXiv:2503.05500)."""

from __future__ import annotations

from bert_jax.interop.families.bert import ACTIVATIONS
from bert_jax.interop.families.family import (
    ENCODER_ONLY,
    SIZES,
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
from bert_jax.interop.families.rotary import HeadWidth, KeyValueHeads, RotaryTheta

POOLINGS = {"late": "late", "bos": "cls", "mean": "mean"}

ALWAYS = {
    "type_vocab_size": 0, "positions": "rotary", "norm": "rms_norm", "norm_bias": False, "norm_placement": "pre",
    "embedding_norm": False, "final_norm": True, "gate": "second", "mlm_head": "decoder", "hidden_dropout": 0.0,
    "initializer": "normal",
}  # fmt: skip

EUROBERT = Family(
    model_type="eurobert",
    title="EuroBERT",
    prefix="model.",
    table=(
        Row("embeddings/word_embeddings/embedding", "V D", "model.embed_tokens.weight", "V D"),
        *norm("encoder/layers/attention_layer_norm", "model.layers.{}.input_layernorm"),
        *attention("encoder/layers/attention", "model.layers.{}.self_attn", ("q_proj", "k_proj", "v_proj"), "o_proj"),
        *norm("encoder/layers/feed_forward_layer_norm", "model.layers.{}.post_attention_layernorm"),
        *linear("encoder/layers/feed_forward/intermediate", "D", "F", "model.layers.{}.mlp.up_proj"),
        *linear("encoder/layers/feed_forward/gate", "D", "F", "model.layers.{}.mlp.gate_proj"),
        *linear("encoder/layers/feed_forward/output", "F", "D", "model.layers.{}.mlp.down_proj"),
        *norm("encoder/final_layer_norm", "model.norm"),
        Row("mlm_head/bias", "V", "lm_head.bias", "V"),
        Row("mlm_head/decoder", "V D", "lm_head.weight", "V D"),
        *linear("pooler/dense", "D", "E", "dense"),
        *classifiers("sequence", "token"),
    ),
    keys=(
        *SIZES,
        KeyValueHeads(),
        HeadWidth(),
        Key("max_position_embeddings", "max_position", 8_192),
        Key("hidden_act", "activation", "silu", ACTIVATIONS, carried=True),
        Key("rms_norm_eps", "layer_norm_epsilon", 1e-5),
        Key("attention_bias", "attention_bias", False),
        # transformers also gives lm_head a bias if mlp_bias is true
        Key("mlp_bias", "intermediate_bias output_bias decoder_bias", False),
        # clf_pooling is the key of EuroBERT's own code
        Key("classifier_pooling", "classifier_pooling", "late", POOLINGS, also=("clf_pooling",)),
        Key("tie_word_embeddings", "tied_decoder", False),
        RotaryTheta(default=10_000.0),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("initializer_range", "initializer_range", 0.02),
        TokenId("pad_token_id", "pad"),
        TokenId("mask_token_id", "mask"),
        TokenId("bos_token_id", "cls", carried=True),
        TokenId("eos_token_id", "sep", carried=True),
        Constant("torch_dtype", "float32"),
    ),
    always=ALWAYS,
    fixed=ENCODER_ONLY,
    classes={
        "EuroBertModel": (),
        "EuroBertForMaskedLM": ("mlm_head",),
        "EuroBertForSequenceClassification": ("pooler", "sequence_head"),
        "EuroBertForTokenClassification": ("token_head",),
    },
    tied={"lm_head.weight": "model.embed_tokens.weight"},
)
