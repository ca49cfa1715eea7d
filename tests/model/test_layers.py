"""Dropout's random words, and how layers compile for a TPU."""

from __future__ import annotations

import itertools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.model.config import ModelConfig, Target
from bert_jax.model.layers import (
    Dense,
    Dropout,
    Norm,
    activation,
    dropout,
    hash_word,
    random_words,
    row_words,
    sum_rows,
    truncated_normal,
)
from bert_jax.model.pretraining import SOFTMAX_SEED, whole_tiles
from tests.model.lowbias32 import hashed, rate_at_a_word, word_of

SHAPES = ((3, 4), (2, 3, 4), (2, 2, 3, 4))
WORDS, SEED = (0, 1, 255, 2**31, 2**32 - 1), 0xDEADBEEF
POSITIONS = ((4, 1), (0, 3))


@pytest.fixture(scope="module")
def drawn() -> tuple[list[np.ndarray], ...]:
    """Returns the hashes of WORDS, random words of SHAPES, [words at POSITIONS, all words of that shape], and [words from a
    first index on, all words of that shape]."""

    @jax.jit
    def draw(words: jax.Array, seed: jax.Array, positions: jax.Array) -> tuple[list[jax.Array], ...]:
        later = row_words(seed, (2, 2, 5), first=(jnp.uint32(3), jnp.uint32(1)))
        return (
            [hash_word(words)],
            [random_words(seed, shape) for shape in SHAPES],
            [random_words(seed, (2, 3, 2, 5), positions), random_words(seed, (2, 3, 5, 5))],
            [later, row_words(seed, (5, 3, 5))],
        )

    return jax.device_get(draw(jnp.array(WORDS, jnp.uint32), jnp.uint32(SEED), jnp.array(POSITIONS)))


def test_random_words_equal_a_loop_over_elements(drawn):
    hashes, words, *_ = drawn
    assert hashes[0].tolist() == [hashed(word) for word in WORDS]
    for shape, found in zip(SHAPES, words, strict=True):
        wanted = [word_of(SEED, index) for index in itertools.product(*map(range, shape))]
        assert found.ravel().tolist() == wanted


def test_random_words_at_positions_equal_those_among_all(drawn):
    *_, (some, whole), (later, all_rows) = drawn
    for row, chosen in enumerate(POSITIONS):
        np.testing.assert_array_equal(some[row], whole[row][:, np.array(chosen)])
    np.testing.assert_array_equal(later, all_rows[3:, 1:])


def test_an_element_at_the_dropout_threshold_is_kept(drawn):
    rate, words = rate_at_a_word(SEED, axes=3), drawn[1][1]
    kept = np.asarray(jax.jit(lambda x: dropout(x, Dropout(rate, jnp.uint32(SEED))))(jnp.ones((2, 3, 4)))) != 0
    threshold = round(rate * 2**32)
    assert 0.1 < rate < 0.4
    np.testing.assert_array_equal(kept, words >= threshold)


def test_dropout_without_rate_or_seed_computes_nothing():
    x = jnp.ones((2, 2))
    for settings in (Dropout(0.0, jnp.uint32(1)), Dropout(0.5, None)):
        assert dropout(x, settings) is x


def test_the_seed_of_the_softmax_dropout_is_fixed():
    assert int(SOFTMAX_SEED) == int.from_bytes(b"soft", "big")


def test_positions_are_padded_to_tiles_of_eight_rows_only_on_a_tpu():
    assert whole_tiles(jnp.zeros((2, 11), jnp.int32), "cpu").shape == (2, 11)
    assert whole_tiles(jnp.arange(1, 4)[None], "tpu").tolist() == [[1, 2, 3, 0, 0, 0, 0, 0]]
    assert whole_tiles(jnp.zeros((2, 16), jnp.int32), "tpu").shape == (2, 16)


@pytest.mark.parametrize(("activation", "recomputed"), [("gelu", True), ("", False)])
def test_activations_are_recomputed_in_the_backward_pass_only_on_a_tpu(activation: str, recomputed: bool):
    layer = Dense((4,), (6,), ("embed", "mlp"), truncated_normal(0.02), jnp.dtype(jnp.float32), Target(), activation)
    params = {"kernel": jnp.ones((4, 6)), "bias": jnp.ones(6)}

    def program(platform: str) -> str:
        own = layer.clone(target=Target(platform))
        return str(jax.make_jaxpr(lambda x: own.apply({"params": params}, x))(jnp.ones((2, 4))))

    assert "remat" not in program("cpu")
    assert ("remat" in program("tpu")) == recomputed


@pytest.mark.parametrize(("platform", "rows"), [("cpu", 1), ("tpu", 8), ("cuda", 0)])
def test_rows_are_summed_by_a_matrix_product_if_that_is_faster(platform: str, rows: int):
    x = jax.ShapeDtypeStruct((5, 3), jnp.float32)
    program = jax.jit(sum_rows, static_argnums=1).trace(x, False).lower(lowering_platforms=(platform,)).as_text()
    assert ("stablehlo.dot_general" in program) == bool(rows)
    assert not rows or f"tensor<{rows}x5xf32>" in program
    assert rows or "across dimensions = [0]" in program


def test_a_norm_and_an_activation_may_be_in_a_user_file(tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    file.write_text("def norm(x, epsilon): return x / (abs(x).mean(-1, keepdims=True) + epsilon)\ndef cube(x): return x**3\n")
    config = ModelConfig(norm=f"{file}:norm", activation=f"{file}:cube", layer_norm_epsilon=0.5)
    x = np.float32([[1, -2, 3], [0, 0, 6]])
    params = {"scale": np.float32([1, 2, 3]), "bias": np.float32([0, 0, 1])}
    y = Norm(config).apply({"params": params}, x)
    np.testing.assert_allclose(y, x / np.float32([[2.5], [2.5]]) * params["scale"] + params["bias"], rtol=1e-6)
    np.testing.assert_array_equal(activation(config.activation)(x), x**3)


def test_a_norm_or_an_activation_with_other_arguments_or_another_shape_is_refused(tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    file.write_text("def one(x): return x\ndef none(): return 0\ndef sums(x, epsilon=0): return x.sum(-1)\n")
    x = np.ones((2, 3), np.float32)
    for name, says in (("one", r"config.model.norm=.*mine.py:one"), ("sums", r"returns an array of shape \(2,\) for .*\(2, 3\)")):
        with pytest.raises(UserError, match=says):
            Norm(ModelConfig(norm=f"{file}:{name}", norm_scale=False)).apply({}, x)
    for name, says in (("none", r"config.model.activation=.*mine.py:none"), ("sums", r"returns an array of shape \(2,\)")):
        with pytest.raises(UserError, match=says):
            activation(f"{file}:{name}")(x)
