"""nomic-bert as transformers has it (`modeling_nomic_bert.py`; arXiv:2402.01613). Its files keep the names of nomic's own code,
which transformers translates when it reads and writes them."""

from __future__ import annotations

from bert_jax.interop.families.bert import ACTIVATIONS
from bert_jax.interop.families.family import Constant, Family, Key, Row, TokenId, linear, norm
from bert_jax.interop.families.rotary import HeadWidth, RotaryTheta

ALWAYS = {
    "positions": "rotary", "attention_bias": False, "intermediate_bias": False, "output_bias": False, "gate": "second",
    "initializer": "normal",
}  # fmt: skip

NOMIC_BERT = Family(
    model_type="nomic_bert",
    title="nomic-bert",
    prefix="nomic_bert.",
    table=(
        Row("embeddings/word_embeddings/embedding", "V D", "nomic_bert.embeddings.word_embeddings.weight", "V D"),
        Row("embeddings/token_type_embeddings/embedding", "T D", "nomic_bert.embeddings.token_type_embeddings.weight", "T D"),
        *norm("embeddings/layer_norm", "nomic_bert.emb_ln"),
        *linear("encoder/layers/attention/query", "D", "H K", "nomic_bert.encoder.layers.{}.attn.Wqkv", split=(0, 3)),
        *linear("encoder/layers/attention/key", "D", "G K", "nomic_bert.encoder.layers.{}.attn.Wqkv", split=(1, 3)),
        *linear("encoder/layers/attention/value", "D", "G K", "nomic_bert.encoder.layers.{}.attn.Wqkv", split=(2, 3)),
        *linear("encoder/layers/attention/output", "H K", "D", "nomic_bert.encoder.layers.{}.attn.out_proj"),
        *norm("encoder/layers/attention_layer_norm", "nomic_bert.encoder.layers.{}.norm1"),
        *linear("encoder/layers/feed_forward/intermediate", "D", "F", "nomic_bert.encoder.layers.{}.mlp.fc11"),
        *linear("encoder/layers/feed_forward/gate", "D", "F", "nomic_bert.encoder.layers.{}.mlp.fc12"),
        *linear("encoder/layers/feed_forward/output", "F", "D", "nomic_bert.encoder.layers.{}.mlp.fc2"),
        *norm("encoder/layers/feed_forward_layer_norm", "nomic_bert.encoder.layers.{}.norm2"),
        *linear("pooler/dense", "D", "E", "nomic_bert.pooler.dense"),
        *linear("mlm_head/transform", "D", "E", "cls.predictions.transform.dense"),
        *norm("mlm_head/layer_norm", "cls.predictions.transform.layer_norm"),
        Row("mlm_head/bias", "V", "cls.predictions.bias", "V"),
        Row("mlm_head/decoder", "V D", "cls.predictions.decoder.weight", "V D"),
        *linear("sequence_head/dense", "D", "Y", "classifier"),
        *linear("token_head/dense", "D", "Y", "classifier"),
    ),
    keys=(
        Key("vocab_size", "vocab_size"),
        Key("hidden_size", "hidden_size"),
        Key("intermediate_size", "intermediate_size"),
        Key("num_hidden_layers", "num_layers"),
        Key("num_attention_heads", "num_heads"),
        HeadWidth(),
        Key("max_position_embeddings", "max_position", 2_048),
        Key("type_vocab_size", "type_vocab_size", 2),
        Key("hidden_act", "activation", "silu", ACTIVATIONS, carried=True),
        Key("layer_norm_eps", "layer_norm_epsilon", 1e-12),
        Key("tie_word_embeddings", "tied_decoder", True),
        RotaryTheta(default=1_000.0),
        Key("hidden_dropout_prob", "hidden_dropout", 0.0),
        Key("attention_probs_dropout_prob", "attention_dropout", 0.0),
        Key("initializer_range", "initializer_range", 0.02),
        TokenId("pad_token_id", "pad"),
        Constant("torch_dtype", "float32"),
    ),
    always=ALWAYS,
    fixed={"is_decoder": False, "is_encoder_decoder": False, "quantization_config": None},
    classes={
        "NomicBertModel": (),
        "NomicBertForMaskedLM": ("mlm_head",),
        "NomicBertForSequenceClassification": ("pooler", "sequence_head"),
        "NomicBertForTokenClassification": ("token_head",),
    },
    tied={
        "cls.predictions.decoder.weight": "nomic_bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    untied_bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
)
