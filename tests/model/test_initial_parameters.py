"""The deviation with which every new array is drawn, and the sizes of the convolutions over characters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import bilm, characters, layers, lstm
from bert_jax.model.characters import CharacterCnn, character_products
from bert_jax.model.config import ModelConfig, Target
from bert_jax.model.heads.token import TokenHead
from bert_jax.model.lstm import Lstm
from bert_jax.model.pretraining import initial_parameters
from bert_jax.objectives import model as of_objectives
from bert_jax.objectives.cross_view import CrossView

BERT = ModelConfig(
    vocab_size=50, hidden_size=24, num_layers=2, num_heads=3, intermediate_size=40, max_position=30, initializer_range=0.3
)
BILM = dataclasses.replace(BERT, encoder="bilm", intermediate_size=36)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[tuple[int, ...], set[float]]]:
    """Returns the deviations with which arrays of a shape are drawn."""
    seen: dict[tuple[int, ...], set[float]] = {}

    def truncated_normal(stddev: float) -> Callable[..., Any]:
        def init(key: Any, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
            seen.setdefault(shape, set()).add(stddev)
            return jnp.zeros(shape, dtype)

        return init

    for module in (bilm, characters, lstm, layers, of_objectives):
        monkeypatch.setattr(module, "truncated_normal", truncated_normal)
    layers.initial_weights.cache_clear()
    yield seen
    layers.initial_weights.cache_clear()


def test_bert_draws_every_kernel_and_table_with_its_initializer_range(drawn):
    jax.eval_shape(lambda: initial_parameters(BERT, jax.random.key(0)))
    tables, attention = {(50, 24), (30, 24), (2, 24)}, {(24, 3, 8), (3, 8, 24)}
    assert drawn == {shape: {0.3} for shape in tables | attention | {(24, 40), (40, 24), (24, 24), (24, 2)}}


def test_an_untied_decoder_is_drawn_like_the_word_embeddings(drawn):
    config = dataclasses.replace(BILM, direction="left_to_right", tied_decoder=False, vocab_multiple=16)
    jax.eval_shape(lambda: initial_parameters(config, jax.random.key(0), next_sentence=False))
    assert drawn == {(64, 24): {0.3}, (1, 24, 4, 36): {24**-0.5}, (1, 36, 24): {36**-0.5}}


def test_an_lstm_draws_with_one_over_the_root_of_its_inputs(drawn):
    jax.eval_shape(lambda: initial_parameters(BILM, jax.random.key(0), next_sentence=False))
    assert drawn == {(50, 12): {0.3}, (2, 12, 4, 36): {12**-0.5}, (2, 36, 12): {36**-0.5}}
    drawn.clear()
    jax.eval_shape(lambda: Lstm(5, Target()).init(jax.random.key(0), jnp.zeros((1, 2, 7)), jnp.ones((1, 2), jnp.int32)))
    assert drawn == {(7, 2, 4, 5): {7**-0.5}, (2, 5, 4, 5): {5**-0.5}, (10, 2, 4, 5): {10**-0.5}}


def test_a_layer_of_an_objective_is_drawn_like_bert_and_a_view_by_the_root_of_its_width(drawn):
    jax.eval_shape(lambda: of_objectives.dense(7, 3, jax.random.key(0)))
    assert drawn == {(7, 3): {0.02}}
    drawn.clear()
    views = CrossView(BILM, TokenHead(labels=("a", "b", "c")))
    jax.eval_shape(lambda: views.training_parameters(jax.random.key(0)))
    assert drawn == {(12, 12): {12**-0.5}, (12, 3): {12**-0.5}}


def test_context_vectors_start_at_zero_as_in_word2vec():
    static = dataclasses.replace(BERT, encoder="static", num_layers=0)
    paths = jax.tree.leaves_with_path(nn.unbox(initial_parameters(static, jax.random.key(0))))
    arrays = {jax.tree_util.keystr(path): np.asarray(array) for path, array in paths}
    tables = {("context" in path): bool(array.any()) for path, array in arrays.items() if array.shape == (50, 24)}
    assert tables == {True: False, False: True}


SIZES = {1: 32, 2: 32, 3: 64, 4: 64, 5: 64}
"""Filters by their width, in symbols of 16 numbers; 256 in all."""


def test_character_convolutions_have_their_sizes_and_initial_deviation(drawn):
    config = dataclasses.replace(BILM, character_cnn=True, tied_decoder=False)
    found = jax.eval_shape(lambda: CharacterCnn(config).init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"]
    kernels = {f"filters_{width}": (16 * width, filters) for width, filters in SIZES.items()}
    kernels |= {"highway_0": (256, 2, 256), "highway_1": (256, 2, 256), "projection": (256, 12)}
    shapes: dict[str, tuple[int, ...]] = {"embedding": (259, 16)}
    for name, kernel in kernels.items():
        shapes |= {f"{name}/kernel": kernel, f"{name}/bias": kernel[1:]}
    leaves = jax.tree_util.tree_leaves_with_path(found)
    assert {jax.tree_util.keystr(path[:-1], simple=True, separator="/"): x.shape for path, x in leaves} == shapes | {
        "symbols": (50, 20)
    }
    assert drawn == {(259, 16): {0.25}} | {kernel: {kernel[0] ** -0.5} for kernel in kernels.values()}


def test_the_multiply_adds_of_a_piece_are_filters_highways_and_projection():
    filters = sum(len(range(20)[: 20 - width + 1]) * 16 * width * count for width, count in SIZES.items())
    assert character_products(12) == filters + 2 * 256 * 512 + 256 * 12
