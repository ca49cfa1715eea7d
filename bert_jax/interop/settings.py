"""`ModelConfig` and the `config.json` of a Hugging Face BERT: what each says about the same model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.model.settings import ModelConfig
from bert_jax.terminal import UserError

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
"""Ours -> theirs, for the fields that mean the same in both. Those `config.json` may leave out have the same default in both."""

SHAPE_FIELDS = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_position")
"""Without these a `config.json` describes no model: guessing a default would only fail later, and less clearly."""

ACTIVATIONS = {
    "gelu": "gelu",  # erf in transformers as in ours; the tanh approximation that TensorFlow BERT moved to is `gelu_new`
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}
"""Their `hidden_act` -> our `activation`; the first name of each is the one we write."""

FIXED: dict[str, Any] = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "tie_word_embeddings": True,
    "pruned_heads": {},
    "quantization_config": None,
}
"""What this BERT always is: a `config.json` may say so or say nothing, and anything else is a model we cannot represent."""


def config_to_json(config: ModelConfig, *, architecture: str, pad_token_id: int) -> dict[str, Any]:
    """The `config.json` of a model saved as `architecture` (a transformers class name)."""
    hidden_act = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)
    return {
        "architectures": [architecture],
        "model_type": "bert",
        **{theirs: getattr(config, ours) for ours, theirs in FIELDS.items()},
        "hidden_act": hidden_act,
        "position_embedding_type": "absolute",
        "pad_token_id": pad_token_id,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def config_from_json(fields: Mapping[str, Any], source: str) -> ModelConfig:
    """The model that a `config.json` describes; how it is compiled (dtype, vocabulary padding, ...) stays at our defaults.

    Raises UserError naming `source` and the field, for a field that is missing, of the wrong type or not representable.
    """
    for name, value in FIXED.items():
        if fields.get(name, value) != value:
            raise UserError(f"{source}: {name}={fields[name]!r} cannot be represented; this BERT has {name}={value!r} only")
    hidden_act = fields.get("hidden_act", "gelu")
    if hidden_act not in ACTIVATIONS:
        raise UserError(f"{source}: hidden_act={hidden_act!r} cannot be represented; known: {', '.join(sorted(ACTIVATIONS))}")
    values: dict[str, Any] = {}
    for ours, theirs in FIELDS.items():
        if theirs not in fields:
            if ours in SHAPE_FIELDS:
                raise UserError(f"{source}: {theirs} is missing, so the model's shape is unknown; copy the model's whole file")
            continue
        kind = type(getattr(ModelConfig, ours))
        value = fields[theirs]
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
            raise UserError(f"{source}: {theirs}={value!r} must be {'a number' if kind is float else 'a whole number'}")
        values[ours] = kind(value)
    try:
        return ModelConfig(activation=ACTIVATIONS[hidden_act], **values)
    except UserError as error:  # it names our fields, not the file's
        raise UserError(f"{source}: {error}") from None
