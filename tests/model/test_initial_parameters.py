"""The deviation with which every new array is drawn, and the sizes of the convolutions over characters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.characters import CharacterCnn, character_products
from bert_jax.model.config import ModelConfig, Target
from bert_jax.model.heads.token import TokenHead
from bert_jax.model.lstm import Lstm
from bert_jax.model.pretraining import initial_parameters
from bert_jax.objectives.cross_view import CrossView
from bert_jax.objectives.model import dense

BERT = ModelConfig(
    vocab_size=50, hidden_size=24, num_layers=2, num_heads=3, intermediate_size=40, max_position=30, initializer_range=0.3
)
BILM = dataclasses.replace(BERT, encoder="bilm", intermediate_size=36)


@pytest.fixture(autouse=True)
def all_draws_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameters are drawn as ones, so each has the value of its deviation."""
    monkeypatch.setattr(jax.random, "truncated_normal", lambda key, lower, upper, shape, dtype: jnp.ones(shape, dtype))


def deviations(initial: Callable[[], Any]) -> dict[str, tuple[tuple[int, ...], float]]:
    """Returns the shape and the deviation of each array that is drawn, by its path; layers are stacked."""
    found = {}
    for path, array in jax.tree.leaves_with_path(nn.unbox(jax.jit(initial)())):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name.rpartition("/")[2] not in ("bias", "scale", "symbols"):
            (value,) = np.unique(array)
            found[name.removesuffix("/kernel").removesuffix("/embedding")] = (array.shape, round(float(value), 6))
    return found


def root(inputs: int) -> float:
    return round(inputs**-0.5, 6)


def drawn(config: ModelConfig, **settings: Any) -> dict[str, tuple[tuple[int, ...], float]]:
    """Returns the deviations of the arrays of a model."""
    return deviations(lambda: initial_parameters(config, jax.random.key(0), **settings))


def test_bert_draws_every_kernel_and_table_with_its_initializer_range():
    attention = {f"attention/{name}": (2, 24, 3, 8) for name in ("query", "key", "value")} | {"attention/output": (2, 3, 8, 24)}
    layers = attention | {"feed_forward/intermediate": (2, 24, 40), "feed_forward/output": (2, 40, 24)}
    tables = {"word": (50, 24), "position": (30, 24), "token_type": (2, 24)}
    shapes: dict[str, tuple[int, ...]] = {f"embeddings/{name}_embeddings": shape for name, shape in tables.items()}
    shapes |= {f"encoder/layers/{name}": shape for name, shape in layers.items()}
    shapes |= {"mlm_head/transform": (24, 24), "pooler/dense": (24, 24), "nsp_head/dense": (24, 2)}
    assert drawn(BERT) == {name: (shape, 0.3) for name, shape in shapes.items()}


def test_an_untied_decoder_is_drawn_like_the_word_embeddings():
    config = dataclasses.replace(BILM, direction="left_to_right", tied_decoder=False, vocab_multiple=16)
    table, kernel = ((64, 24), 0.3), ((2, 1, 24, 4, 36), root(24))
    assert drawn(config, next_sentence=False) == {
        "embeddings/word_embeddings": table,
        "encoder/layers/input": kernel,
        "encoder/layers/recurrence": kernel,
        "encoder/layers/projection": ((2, 1, 36, 24), root(36)),
        "softmax/decoder": table,
    }


def test_an_lstm_draws_with_one_over_the_root_of_its_inputs():
    kernel = ((2, 2, 12, 4, 36), root(12))
    assert drawn(BILM, next_sentence=False) == {
        "embeddings/word_embeddings": ((50, 12), 0.3),
        "encoder/layers/input": kernel,
        "encoder/layers/recurrence": kernel,
        "encoder/layers/projection": ((2, 2, 36, 12), root(36)),
    }
    fresh = jax.jit(lambda: Lstm(5, Target()).init(jax.random.key(0), jnp.zeros((1, 2, 7)), jnp.ones((1, 2), jnp.int32)))()
    biases = [x for path, x in jax.tree.leaves_with_path(nn.unbox(fresh)) if path[-1].key == "bias"]
    assert len(biases) == 2
    assert not np.any(biases)
    lstm = deviations(lambda: fresh)
    assert {*lstm.values()} == {((7, 2, 4, 5), root(7)), ((2, 5, 4, 5), root(5)), ((10, 2, 4, 5), root(10))}


def test_a_layer_of_an_objective_is_drawn_like_bert_and_a_view_by_the_root_of_its_width():
    assert deviations(lambda: dense(7, 3, jax.random.key(0))) == {"kernel": ((7, 3), 0.02)}
    views = CrossView(BILM, TokenHead(labels=("a", "b", "c")))
    found = deviations(lambda: views.training_parameters(jax.random.key(0)))
    assert {*found.values()} == {((12, 12), root(12)), ((12, 3), root(12))}


def test_context_vectors_start_at_zero_as_in_word2vec():
    static = dataclasses.replace(BERT, encoder="static", num_layers=0)
    paths = jax.tree.leaves_with_path(nn.unbox(initial_parameters(static, jax.random.key(0))))
    arrays = {jax.tree_util.keystr(path): np.asarray(array) for path, array in paths}
    tables = {("context" in path): bool(array.any()) for path, array in arrays.items() if array.shape == (50, 24)}
    assert tables == {True: False, False: True}


SIZES = {1: 32, 2: 32, 3: 64, 4: 64, 5: 64}
"""Filters by their width, in symbols of 16 numbers; 256 in all."""


def test_character_convolutions_have_their_sizes_and_initial_deviation():
    config = dataclasses.replace(BILM, character_cnn=True, tied_decoder=False)

    def initial() -> Any:
        return CharacterCnn(config).init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]

    kernels = {f"filters_{width}": (16 * width, filters) for width, filters in SIZES.items()}
    kernels |= {"highway_0": (256, 2, 256), "highway_1": (256, 2, 256), "projection": (256, 12)}
    found = nn.unbox(jax.eval_shape(initial))
    assert {name: found[name]["bias"].shape for name in kernels} == {name: kernel[1:] for name, kernel in kernels.items()}
    assert found["symbols"].shape == (50, 20)
    wanted = {name: (kernel, root(kernel[0])) for name, kernel in kernels.items()}
    assert deviations(initial) == {"embedding": ((259, 16), 0.25)} | wanted


def test_the_multiply_adds_of_a_piece_are_filters_highways_and_projection():
    filters = sum(len(range(20)[: 20 - width + 1]) * 16 * width * count for width, count in SIZES.items())
    assert character_products(12) == filters + 2 * 256 * 512 + 256 * 12
