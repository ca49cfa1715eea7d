"""Positions that are not learned: the sinusoids of "Attention Is All You Need", and none."""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
import runpy
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data import INPUTS
from bert_jax.errors import UserError
from bert_jax.interface.named import read_files_again
from bert_jax.model import attention
from bert_jax.model.bert import Bert, attention_weights
from bert_jax.model.config import ModelConfig
from bert_jax.model.layers import parameter
from bert_jax.model.positions import fixed_table, make_positions, positions_class, sinusoids
from bert_jax.model.pretraining import count_parameters
from bert_jax.model.tokens import Layer, Tokens
from tests.random_rows import TINY, random_batch, random_parameters


@pytest.mark.parametrize("width", [16, 7])
def test_the_table_equals_the_formula_of_the_paper_scaled_by_the_width(width: int):
    table = sinusoids(600, width)
    for position in (0, 1, 17, 599):
        for column in range(width):
            angle = position / 10_000 ** ((column - column % 2) / width)
            wanted = (math.cos(angle) if column % 2 else math.sin(angle)) / math.sqrt(width)
            assert table[position, column] == pytest.approx(wanted, abs=1e-7)


ONE_LAYER = dataclasses.replace(TINY, num_layers=1)
WITHOUT_TABLE = dataclasses.replace(ONE_LAYER, positions="none")


@functools.partial(jax.jit, static_argnums=0)
def encoded(config: ModelConfig, params: Any, tokens: Tokens) -> Any:
    """Returns (the output of the last layer, all hidden states)."""
    return Bert(config).apply({"params": params}, tokens, method="encode")


@pytest.mark.parametrize("kind", ["sinusoidal", "none"])
def test_sinusoids_have_no_parameters_and_equal_a_learned_table_of_their_values(kind: str):
    config = dataclasses.replace(ONE_LAYER, positions=kind)
    assert count_parameters(ONE_LAYER).trained - count_parameters(config).trained == TINY.max_position * TINY.hidden_size
    tokens, params = Tokens.of(random_batch()), random_parameters(WITHOUT_TABLE)
    table = {"embedding": make_positions(config).table()}
    learned = {**params, "embeddings": {**params["embeddings"], "position_embeddings": table}}
    ours, theirs = (encoded(c, p, tokens)[0] for c, p in ((config, params), (ONE_LAYER, learned)))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_sinusoids_extend_beyond_the_training_length():
    config = dataclasses.replace(ONE_LAYER, positions="sinusoidal")
    params, tokens, long = random_parameters(WITHOUT_TABLE), Tokens.of(random_batch()), Tokens.of(random_batch(length=64))
    longer = dataclasses.replace(config, max_position=64)
    np.testing.assert_array_equal(*(encoded(c, params, tokens)[0] for c in (config, longer)))
    assert np.isfinite(encoded(longer, params, long)[0]).all()


class Reversed:
    """Positions that change the embeddings, the queries and keys, and the scores, all in ways that work in a loop over
    layers."""

    def embeddings(self, x: Any, tokens: Tokens) -> Any:
        return x + 0.1 * tokens.positions[..., None]

    def queries_and_keys(self, query: Any, key: Any, tokens: Tokens, layer: Layer) -> Any:
        turned = 1 + 0.1 * layer.number.astype(jnp.float32)
        return query * turned * (1 + tokens.query_positions[..., None, None]), key * (2 + tokens.positions[..., None, None])

    def scores(self, scores: Any, tokens: Tokens, layer: Layer) -> Any:
        return scores + 0.05 * tokens.offsets()


def test_custom_positions_act_equally_on_all_and_on_selected_columns_in_a_loop_too():
    config = dataclasses.replace(TINY, attention="plain", positions=f"{__file__}:Reversed")
    params, tokens = random_parameters(dataclasses.replace(config, positions="none")), Tokens.of(random_batch())
    columns = np.int32([[3, 0, 7]] * len(tokens.ids))
    for of in (config, dataclasses.replace(config, scan_layers=True)):
        whole, states = encoded(of, params, tokens)
        read = jax.jit(lambda p, t, of=of: Bert(of).apply({"params": p}, t, method="encode_queried"))
        some = np.asarray(read(params, tokens.reading(columns)))
        np.testing.assert_allclose(some, np.take_along_axis(np.asarray(whole), columns[..., None], axis=1), atol=1e-5)
    first = jax.jit(attention_weights, static_argnums=1)(params, config, tokens)[0]
    np.testing.assert_allclose(first, _weights_of_layer_0(params, config, np.asarray(states[0]), tokens), atol=1e-4)


def test_custom_positions_keep_the_dtype_of_queries_and_keys(monkeypatch: pytest.MonkeyPatch):
    """The fused kernels need it, and cosines and sines are usually float32."""
    config = dataclasses.replace(TINY, attention="plain", dtype="bfloat16", positions=f"{__file__}:Reversed")
    params, dtypes, plain = random_parameters(dataclasses.replace(config, positions="none")), [], attention.exponentials
    monkeypatch.setattr(attention, "exponentials", lambda q, k, *rest: dtypes.append((q.dtype, k.dtype)) or plain(q, k, *rest))
    jax.eval_shape(lambda t: Bert(config).apply({"params": params}, t, method="encode"), Tokens.of(random_batch()))
    assert dtypes[-1] == (jnp.bfloat16, jnp.bfloat16), "the shapes of the parameters, in float32, may be traced first"


class LearnedBias(nn.Module):
    """Adds a learned number for each head to the scores of a token with itself."""

    config: ModelConfig

    @nn.compact
    def scores(self, scores: Any, tokens: Tokens, layer: Layer) -> Any:
        bias = parameter(self, "bias", nn.initializers.ones, ("heads",), (self.config.num_heads,))
        return scores + bias[None, :, None, None] * (tokens.offsets() == 0)


def test_custom_positions_may_have_parameters_in_each_layer():
    config = dataclasses.replace(TINY, attention="plain", positions=f"{__file__}:LearnedBias")
    params = random_parameters(config)
    (bias,) = params["encoder"]["layers"]["attention"]["positions"].values()
    assert bias.shape == (TINY.num_layers, TINY.num_heads)
    attention = {**params["encoder"]["layers"]["attention"], "positions": {"bias": jnp.full_like(bias, 1e4)}}
    params = {**params, "encoder": {"layers": {**params["encoder"]["layers"], "attention": attention}}}
    for weights in jax.jit(attention_weights, static_argnums=1)(params, config, Tokens.of(random_batch(padding=False))):
        assert (np.asarray(weights).argmax(-1) == np.arange(weights.shape[-1])).all(), "each token attends to itself"


class Buckets(nn.Module):
    buckets: int = 16

    def embeddings(self, x: Any, tokens: Tokens) -> Any:
        return x


class OptionalConfig(nn.Module):
    config: Any = None

    embeddings = Buckets.embeddings


class Optional:
    def __init__(self, config: Any = None):
        self.config = config

    embeddings = Buckets.embeddings


def test_positions_get_the_configuration_only_for_an_argument_named_config_or_without_a_default():
    assert make_positions(ModelConfig(positions=f"{__file__}:Buckets"), parent=None).buckets == 16
    for name in ("LearnedBias", "OptionalConfig", "Optional"):
        config = ModelConfig(positions=f"{__file__}:{name}")
        assert make_positions(config, parent=None).config is config


def test_positions_in_a_file_must_be_a_class_with_a_method_of_positions(tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    file.write_text(
        "class Nothing: pass\ndef table(): pass\nclass Table:\n    def table(self): return 0\n"
        "class Wrong:\n    def scores(self, scores): return scores\n"
    )
    for name in ("Nothing", "table"):
        with pytest.raises(UserError, match=rf"mine.py:{name} is not a class with one of the methods embeddings, queries"):
            positions_class(ModelConfig(positions=f"{file}:{name}"))
    with pytest.raises(UserError, match=r"scores of config.model.positions=.*mine.py:Wrong"):
        positions_class(ModelConfig(positions=f"{file}:Wrong"))
    assert positions_class(ModelConfig(positions=f"{file}:Table")).__name__ == "Table"


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({"positions": "sinusoidal"}, (0.0, 0.25)),
        ({"positions": "none"}, (0.0, 0.0)),
        ({"positions": "learned"}, None),
        ({"positions": "rotary"}, None),
        ({"encoder": "bilm"}, None),
        ({"positions": "FILE:Both"}, None),
        ({"positions": "FILE:Turned"}, None),
    ],
)
def test_a_fixed_table_is_all_that_the_positions_add(fields: dict[str, str], first: Any, tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    file.write_text(
        "class Both:\n    def table(self): return 0\n    def scores(self, scores, tokens, layer): return scores\n"
        "class Turned:\n    def table(self): return 0\n"
        "    def queries_and_keys(self, query, key, tokens, layer): return query, key\n"
    )
    config = dataclasses.replace(TINY, **{name: value.replace("FILE", str(file)) for name, value in fields.items()})
    table = fixed_table(config)
    if first is None:
        assert table is None
    else:
        assert table is not None
        assert (table.shape, tuple(table[0, :2])) == ((TINY.max_position, TINY.hidden_size), first)


def test_only_the_index_of_a_layer_is_traced():
    assert jax.tree.leaves(Layer(jnp.uint32(3), "sliding", has_attention_norm=False)) == [3]


def test_scores_can_depend_on_the_distance_of_two_tokens():
    alibi = runpy.run_path("experiments/extensions/alibi.py")["Alibi"]()
    at, queried = np.array([[0, 1, 2, 3, 0, 1]]), np.array([[3, 1, 5]])  # two texts in a row; only some tokens are queries
    tokens = Tokens.of(dict.fromkeys(INPUTS, jnp.asarray(at))).reading(jnp.asarray(queried))
    offsets = at[:, None, :] - np.take_along_axis(at, queried, axis=1)[:, :, None]
    np.testing.assert_array_equal(tokens.offsets()[:, 0], offsets)
    scores = alibi.scores(jnp.zeros((1, 4, 3, 6)), tokens, Layer(jnp.uint32(0)))
    for head, slope in enumerate((1 / 4, 1 / 16, 1 / 64, 1 / 256)):  # the paper's slopes of 4 heads
        np.testing.assert_allclose(scores[:, head], -slope * np.abs(offsets))


def _weights_of_layer_0(params: Any, config: ModelConfig, x: np.ndarray, tokens: Tokens) -> np.ndarray:
    """Returns the attention weights [B, H, L, L] of the first layer, computed one score after another."""
    layer = jax.tree.map(lambda stack: np.asarray(stack[0], np.float64), params["encoder"]["layers"]["attention"])
    query, key = (np.einsum("bld,dhk->blhk", x, layer[name]["kernel"]) + layer[name]["bias"] for name in ("query", "key"))
    at, ids = np.asarray(tokens.positions), np.asarray(tokens.sequence_ids)
    (rows, length), heads = ids.shape, config.num_heads
    found = np.zeros((rows, heads, length, length))
    for b, h, q in np.ndindex(rows, heads, length):
        scores = np.full(length, -np.inf)
        for k in range(length):
            if ids[b, q] == ids[b, k]:
                product = (query[b, q, h] * (1 + at[b, q])) @ (key[b, k, h] * (2 + at[b, k])) / config.head_width**0.5
                scores[k] = product + 0.05 * (at[b, k] - at[b, q])
        found[b, h, q] = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    return found


def test_an_edited_file_is_used_by_compiled_functions_once_files_are_read_again(tmp_path: pathlib.Path):
    @functools.partial(jax.jit, static_argnames="config")
    def added(x: jax.Array, config: ModelConfig) -> jax.Array:
        return make_positions(config).embeddings(x, None)

    text = "class Constant:\n    def embeddings(self, x, tokens): return x + {}\n"
    (file := tmp_path / "mine.py").write_text(text.format(1))
    config = dataclasses.replace(TINY, positions=f"{file}:Constant")
    found = [added(jnp.zeros(1), config).item()]
    for again in (False, True):
        file.write_text(text.format(25))
        if again:
            read_files_again()
        found.append(added(jnp.zeros(1), config).item())
    assert found == [1, 1, 25]
