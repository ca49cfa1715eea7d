"""The attention weights of the model, compared with transformers' `output_attentions` and with the attention that training
compiles."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.names import params_from_tensors
from bert_jax.model import attention
from bert_jax.model.bert import Bert, attention_weights
from bert_jax.model.config import ModelConfig, Resolved, Target
from bert_jax.model.encoder import Block, Encoder, FeedForward
from bert_jax.model.pretraining import pretraining_model
from bert_jax.model.tokens import Layer, Tokens
from tests.model.test_against_transformers import golden, model_config, our_inputs, packed, under  # noqa: F401
from tests.random_rows import TINY, random_batch, random_parameters, tokens_of

WITHIN = 1e-6


@pytest.fixture(scope="module")
def theirs() -> np.ndarray:
    """[N, B, H, L, L]"""
    with np.load(pathlib.Path(__file__).parents[1] / "golden" / "attention_golden.npz") as arrays:
        return arrays["attentions"]


@pytest.fixture(scope="module")
def weights(golden):  # noqa: F811
    """Returns weights(batch, **fields of the configuration): our weights for a batch, [N, B, H, L, L]."""

    def compute(batch: dict[str, np.ndarray], **fields) -> np.ndarray:
        config = model_config(golden, **fields)
        params = params_from_tensors(under(golden, "parameters/"), config, "the golden file")
        found = jax.jit(lambda params, batch: attention_weights(params, config, Tokens.of(batch)))(params, batch)
        assert all(layer.dtype == np.float32 for layer in found)
        return np.stack(found)

    return compute


def test_the_weights_of_every_layer_and_head_equal_transformers(weights, golden, theirs):  # noqa: F811
    ours = weights(our_inputs(golden), scan_layers=True, remat="full")
    assert ours.shape == theirs.shape
    real = golden["inputs/attention_mask"].astype(bool)
    for row, here in enumerate(real):  # padding attends to padding in ours, to words in theirs
        assert np.abs(ours[:, row][:, :, here] - theirs[:, row][:, :, here]).max() < WITHIN


def test_packed_texts_have_the_weights_of_separate_rows_and_none_between_them(weights, golden, theirs):  # noqa: F811
    row = packed(under(golden, "inputs/"))
    found, ids = weights(row)[:, 0], row["sequence_ids"][0]
    for text in (0, 1):
        own = ids == text + 1
        n = own.sum()
        assert np.abs(found[:, :, own][:, :, :, own] - theirs[:, text, :, :n, :n]).max() < WITHIN
        assert found[:, :, own][:, :, :, ~own].max() == 0.0


def test_a_model_without_attention_is_refused_with_the_remedy():
    for config in (ModelConfig(encoder="bilm"), ModelConfig(encoder="static", num_layers=0)):
        with pytest.raises(UserError, match=rf"^a model with encoder={config.encoder} has no attention; use a Transformer$"):
            attention_weights({}, config, tokens_of([[1]]))


class Sowing(FeedForward):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        self.sow("intermediates", "load", x.mean())
        self.sow("intermediates", "weights", x[..., :3])
        return super().__call__(x)


class OfSowing(Block):
    feed_forward = Sowing


class Loaded(Encoder):
    block = OfSowing


class NoMixing(Block):
    @nn.compact
    def __call__(self, x: Any, tokens: Tokens, seed: Any, layer: Layer) -> Any:
        self.sow("intermediates", "load", x.mean())
        return Sowing(self.config, name="feed_forward")(x)


class Separate(Encoder):
    block = NoMixing


def test_an_own_block_may_store_other_arrays_and_have_no_attention():
    configs = [dataclasses.replace(TINY, encoder=f"{__file__}:{name}") for name in ("Loaded", "Separate")]
    params, batch = random_parameters(TINY), random_batch()

    def weights(params: Any, config: ModelConfig) -> Any:
        return jax.eval_shape(lambda params, batch: attention_weights(params, config, Tokens.of(batch)), params, batch)

    assert len(weights(params, configs[0])) == TINY.num_layers
    layers = {"feed_forward": params["encoder"]["layers"]["feed_forward"]}
    with pytest.raises(UserError, match=r"Separate has no attention; use a Transformer"):
        weights({**params, "encoder": {"layers": layers}}, configs[1])


def test_values_inside_the_layers_are_read_without_a_scan_and_without_remat():
    def stored(**fields: Any) -> Any:
        config = dataclasses.replace(TINY, encoder=f"{__file__}:Loaded", **fields)
        model = functools.partial(pretraining_model(config).apply, method="logits", mutable=["intermediates"])
        return jax.eval_shape(model, {"params": random_parameters(TINY)}, random_batch())[1]["intermediates"]["encoder"]

    *whole, last = stored(scan_layers=False)["feed_forward_weights"]
    assert [x.shape for x in whole] == [(8, 16, 3)] * (TINY.num_layers - 1)
    assert last.shape[2] == 3
    for fields in ({"scan_layers": True}, {"scan_layers": False, "remat": "dots"}):
        with pytest.raises(UserError, match=r"cannot be read with .*; set config.model.scan_layers=false and config.model.remat"):
            stored(**fields)


def test_attention_weights_are_computed_only_on_request(golden):  # noqa: F811
    """The program divides scores [B, H, L, L] by their sums only if the weights are requested."""
    config = model_config(golden)
    batch = our_inputs(golden)
    params = params_from_tensors(under(golden, "parameters/"), config, "the golden file")
    rows, length = batch["input_ids"].shape
    shape = f"{rows},{config.num_heads},{length},{length}"

    def quotients(function) -> int:
        text = str(jax.make_jaxpr(function)(params))
        return sum(f"f32[{shape}] = div" in line for line in text.splitlines())

    def encode(params):
        return Bert(config).apply({"params": params}, Tokens.of(batch), method="encode")

    assert quotients(encode) == 0
    assert quotients(lambda params: attention_weights(params, config, Tokens.of(batch))) == config.num_layers


@pytest.mark.parametrize(
    ("fields", "by_head"),
    [
        ({}, True),
        ({"direction": "left_to_right"}, False),
        ({"positions": "experiments/extensions/alibi.py:Alibi"}, False),  # which changes the scores
    ],
)
def test_long_rows_on_one_cpu_have_the_attention_of_other_devices(fields: dict[str, Any], by_head: bool):
    """One head after the other, unless a mask or the scores depend on more than the texts."""
    length = attention.LONG
    config = dataclasses.replace(TINY, num_layers=1, max_position=length, **fields)
    params, batch = random_parameters(config), random_batch(rows=2, length=length)
    on_cpu = Resolved(**{f.name: getattr(config, f.name) for f in dataclasses.fields(config)}, target=Target("cpu", True))

    def program(config: ModelConfig) -> Any:
        return jax.jit(lambda p, b: Bert(config).apply({"params": p}, Tokens.of(b), method="encode")[0]).trace(params, batch)

    ours, others = program(on_cpu), program(config)
    scores = f"f32[2,{TINY.num_heads},{length},{length}]"
    assert [scores in str(each.jaxpr) for each in (ours, others)] == [not by_head, True]
    found, wanted = (each.lower().compile()(params, batch) for each in (ours, others))
    np.testing.assert_allclose(found, wanted, atol=1e-5)
