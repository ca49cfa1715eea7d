from __future__ import annotations

import dataclasses

import pytest

from bert_jax.interop.settings import FIXED, config_from_json, config_to_json
from bert_jax.model.settings import ModelConfig
from bert_jax.terminal import UserError

CONFIG = ModelConfig(
    vocab_size=99, hidden_size=24, num_layers=3, num_heads=4, intermediate_size=40, max_position=17, type_vocab_size=3,
    hidden_dropout=0.25, attention_dropout=0.05, layer_norm_epsilon=1e-6, initializer_range=0.03,
)  # fmt: skip


def as_json(config: ModelConfig = CONFIG) -> dict:
    return config_to_json(config, architecture="BertForPreTraining", pad_token_id=0)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_there_and_back_is_the_same_configuration(activation):
    config = dataclasses.replace(CONFIG, activation=activation)
    assert config_from_json(as_json(config), "config.json") == config


def test_gelu_is_the_exact_form_in_both_worlds():
    assert as_json()["hidden_act"] == "gelu"
    assert as_json(dataclasses.replace(CONFIG, activation="gelu_tanh"))["hidden_act"] == "gelu_new"
    assert config_from_json(as_json() | {"hidden_act": "gelu_pytorch_tanh"}, "").activation == "gelu_tanh"


def test_how_a_model_is_compiled_does_not_travel():
    config = dataclasses.replace(CONFIG, dtype="bfloat16", rematerialisation="full", scan_unroll=1, vocab_multiple=128)
    assert config_from_json(as_json(config), "") == CONFIG


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("tie_word_embeddings", False),
        ("model_type", "roberta"),
        ("pruned_heads", {"0": [1]}),
        ("hidden_act", "silu"),
        ("quantization_config", {"bits": 8}),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(field, value):
    with pytest.raises(UserError, match=rf"DIR/config\.json: {field}="):
        config_from_json(as_json() | {field: value}, "DIR/config.json")


def test_fields_that_later_versions_of_the_format_leave_out_default_to_a_plain_bert():
    fields = {name: value for name, value in as_json().items() if name not in FIXED}
    assert config_from_json(fields, "") == CONFIG


def test_a_missing_shape_a_wrong_type_and_an_impossible_shape_name_the_file_and_field():
    fields = as_json()
    with pytest.raises(UserError, match=r"c\.json: num_hidden_layers is missing"):
        config_from_json({name: value for name, value in fields.items() if name != "num_hidden_layers"}, "c.json")
    for value in ("24", 24.0, True, None):
        with pytest.raises(UserError, match=r"c\.json: hidden_size=.* must be a whole number"):
            config_from_json(fields | {"hidden_size": value}, "c.json")
    with pytest.raises(UserError, match=r"c\.json: .*hidden_size=24 does not divide"):
        config_from_json(fields | {"num_attention_heads": 5}, "c.json")
