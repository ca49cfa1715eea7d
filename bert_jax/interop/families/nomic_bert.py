"""nomic-bert as transformers has it (`modeling_nomic_bert.py`; arXiv:2402.01613). The tensors have the same names as in nomic's
own code, because transformers translates the names when it reads and writes files. A config.json may have the keys of nomic's
own code, the keys of transformers, or both."""

from __future__ import annotations

from bert_jax.errors import UserError
from bert_jax.files import JsonObject
from bert_jax.interop.families.bert import ACTIVATIONS
from bert_jax.interop.families.family import (
    ENCODER_ONLY,
    SIZES,
    Constant,
    Family,
    Key,
    OtherNames,
    Row,
    TokenId,
    attention,
    classifiers,
    linear,
    means_only,
    norm,
    stated,
)
from bert_jax.interop.families.rotary import HeadWidth, RotaryTheta

ALWAYS = {
    "positions": "rotary", "attention_bias": False, "intermediate_bias": False, "output_bias": False, "gate": "second",
    "initializer": "normal",
}  # fmt: skip

# nomic's own code (`configuration_hf_nomic_bert.py`) uses the keys of GPT2Config.
GPT2_NAMES = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps", "resid_pdrop": "hidden_dropout_prob", "attn_pdrop": "attention_probs_dropout_prob",
    "rotary_emb_base": "rope_theta",
}  # fmt: skip
GPT2_DEFAULTS = {
    "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "rope_theta": 10_000.0,
}  # fmt: skip
"""The defaults of nomic's own code, for keys that a file leaves out."""
ONLY = {
    "activation_function": "swiglu", "rotary_emb_fraction": 1.0, "qkv_proj_bias": False, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "prenorm": False, "parallel_block": False, "use_rms_norm": False, "causal": False, "num_experts": 0,
}  # fmt: skip
"""The other keys of nomic's own code, with the only value that transformers supports."""
STATED = ("activation_function", "rotary_emb_fraction", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
"""The keys of ONLY that a file must contain, since their defaults in nomic's own code are different."""


def current_keys(fields: JsonObject, source: str) -> JsonObject:
    """Returns the fields of a config.json, with the keys of nomic's own code translated to the keys of transformers. Raises
    UserError if both kinds of keys are present and contradict each other, or if a setting is not supported."""
    own = "n_embd" in fields and "hidden_size" not in fields
    for name, value in ONLY.items():
        if not means_only(fields.get(name, "missing" if own and name in STATED else value), value):
            found = f"{name}={fields[name]!r}" if name in fields else f"{name} is missing, and its default"
            raise UserError(f"{source}: {found} cannot be represented; only {name}={value!r} is supported")
    defaults: JsonObject = {}
    if own:
        defaults = {**GPT2_DEFAULTS, "max_position_embeddings": fields.get("n_positions", 1_024)}
        defaults |= {"intermediate_size": 4 * fields["n_embd"]} if isinstance(fields["n_embd"], int) else {}
    values = {new: stated(fields, (new, old), source)[1] for old, new in GPT2_NAMES.items()}
    translated = {new: value for new, value in values.items() if value is not None}
    return {**defaults, **{name: x for name, x in fields.items() if name not in (*GPT2_NAMES, "n_positions")}, **translated}


NOMIC_BERT = Family(
    model_type="nomic_bert",
    title="nomic-bert",
    prefix="nomic_bert.",
    table=(
        Row("embeddings/word_embeddings/embedding", "V D", "nomic_bert.embeddings.word_embeddings.weight", "V D"),
        Row("embeddings/token_type_embeddings/embedding", "T D", "nomic_bert.embeddings.token_type_embeddings.weight", "T D"),
        *norm("embeddings/layer_norm", "nomic_bert.emb_ln"),
        *attention("encoder/layers/attention", "nomic_bert.encoder.layers.{}.attn", ("Wqkv",), "out_proj"),
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
        *classifiers("sequence", "token"),
    ),
    renamed_keys=current_keys,
    keys=(
        OtherNames((*GPT2_NAMES, "n_positions", "embd_pdrop", "max_trained_positions", *ONLY)),
        *SIZES,
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
    fixed=ENCODER_ONLY,
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
    # nomic's own code leaves these biases out if mlp_fc1_bias is false
    omitted=("cls.predictions.transform.dense.bias", "cls.predictions.bias"),
)
