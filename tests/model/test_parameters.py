"""Existing parameters are read unchanged if their shapes match the configuration."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax.errors import ScopeParamShapeError

from bert_jax.model.config import ModelConfig
from bert_jax.model.layers import parameter
from bert_jax.model.pretraining import HEAD_INPUTS, INPUTS, abstract_parameters, pretraining_model

BERT = ModelConfig(vocab_size=20, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=6, max_position=12)
BILM = dataclasses.replace(BERT, encoder="bilm", direction="left_to_right")


@pytest.mark.parametrize("config", [BERT, BILM], ids=["transformer", "bilm"])
@pytest.mark.parametrize(("setting", "named"), [("vocab_size", "embedding"), ("num_layers", "layers")])
def test_parameters_with_other_shapes_than_the_configuration_are_refused(config, setting, named):
    inputs = dict.fromkeys((*INPUTS, *HEAD_INPUTS), jnp.zeros((1, 1), jnp.int32))
    model = pretraining_model(config, next_sentence=False)
    jax.eval_shape(model.apply, {"params": abstract_parameters(config, next_sentence=False)}, inputs)
    larger = dataclasses.replace(config, **{setting: 600 if setting == "vocab_size" else 3})
    with pytest.raises(ScopeParamShapeError, match=f'"{named}"'):
        jax.eval_shape(model.apply, {"params": abstract_parameters(larger, next_sentence=False)}, inputs)


def test_an_existing_parameter_is_read_without_its_initializer():
    shapes = []

    def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        shapes.append(shape)
        return jnp.ones(shape)

    class One(nn.Module):
        @nn.compact
        def __call__(self) -> jax.Array:
            return parameter(self, "one", init, ("embed",), (3,))

    made = One().init(jax.random.key(0))["params"]["one"]
    assert made.names == ("embed",)
    assert shapes == [(3,)]
    assert One().apply({"params": {"one": jnp.arange(3.0)}}).tolist() == [0, 1, 2]
    assert shapes == [(3,)]
