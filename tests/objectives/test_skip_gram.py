"""Skip-gram with negative sampling, compared with loops over pairs, and its draws."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.pretraining import pretraining_model
from bert_jax.objectives.model import Model
from bert_jax.objectives.skip_gram import (
    EVALUATION_SEED,
    SkipGram,
    draw_negatives,
    keep_weights,
    window_weights,
)
from tests.data.corpora import corpus_from_arrays, vocabulary
from tests.model import test_bilm
from tests.model.test_bilm import STATIC, TEXTS, random_params
from tests.random_rows import with_centres

COUNTS = np.array([0] * 5 + [400, 300, 200] + [10] * 12, np.float32)
SETTINGS = SkipGram(window=3, negatives=4, shared_negatives=6, subsampling=1e-2)


def rows(*about: Any) -> dict[str, Any]:
    """Returns texts in rows, in which every token but the last of a text is a centre."""
    return with_centres(test_bilm.rows(*about))


def parameters() -> dict:
    params = random_params(STATIC)
    return {**params, "skip_gram_head": {**params["skip_gram_head"], "counts": COUNTS}}


sums_of = jax.jit(lambda params, batch: SETTINGS.sums(params, batch, None))


def test_the_loss_equals_a_loop_over_pairs_that_counts_negatives_equal_to_the_context():
    params, batch = parameters(), rows()
    sums = sums_of(params, batch)
    words = np.float64(params["embeddings"]["word_embeddings"]["embedding"])
    contexts = np.float64(params["skip_gram_head"]["context_embeddings"]["embedding"])
    draw = jax.jit(lambda counts: (draw_negatives(counts, (len(TEXTS), 6), EVALUATION_SEED), keep_weights(counts, 1e-2)))
    negatives, kept = map(np.asarray, draw(COUNTS))
    loss = weight = positive = skipped = 0.0
    for row, ids in enumerate(batch["sequence_ids"]):
        tokens = batch["input_ids"][row]
        for i in batch["centres"][row][batch["centres"][row] >= 0]:
            for j in range(len(ids)):
                distance = abs(i - j)
                if ids[i] == ids[j] and 1 <= distance <= 3:
                    share = (3 - distance + 1) / 3 * kept[tokens[i]] * kept[tokens[j]]
                    noises = np.log1p(np.exp(contexts[negatives[row]] @ words[tokens[i]]))
                    noise = noises.mean()
                    skipped += share * 4 * (noises * (negatives[row] == tokens[j])).mean()
                    score = contexts[tokens[j]] @ words[tokens[i]]
                    loss += share * (np.log1p(np.exp(-score)) + 4 * noise)
                    weight, positive = weight + share, positive + share * (score > 0)
    np.testing.assert_allclose(sums["skip_gram_loss"], loss, rtol=1e-5)
    assert skipped > 0.01 * loss  # word2vec.c leaves these out
    np.testing.assert_allclose(sums["skip_gram_targets"], weight, rtol=1e-5)
    np.testing.assert_allclose(sums["skip_gram_correct"], positive, rtol=1e-5)


def test_the_defaults_are_those_of_word2vec_with_64_shared_negatives():
    assert SkipGram().settings() == {"window": 5, "negatives": 5, "shared_negatives": 64, "subsampling": 1e-3}


def test_the_counts_of_a_corpus_have_zeros_for_the_rows_of_padding():
    objective = SETTINGS.for_model(Model(dataclasses.replace(STATIC, vocab_multiple=8)))
    tokens = np.repeat(np.arange(20, dtype=np.uint32), COUNTS.astype(int))
    corpus = corpus_from_arrays(tokens, np.array([0, len(tokens)]), np.array([0, 1]), vocabulary(20))
    ((path, counts),) = objective.corpus_parameters(corpus).items()
    assert path == ("skip_gram_head", "counts")
    assert counts.dtype == np.float32
    np.testing.assert_array_equal(counts, [*COUNTS, 0, 0, 0, 0])


def test_a_word_is_never_its_own_context():
    batch = rows()
    batch["sequence_ids"][:] = np.arange(1, 13)  # texts of one word
    sums = sums_of(parameters(), batch)
    assert sums["skip_gram_targets"] == 0
    assert sums["skip_gram_loss"] == 0


def changed_one_by_one(length: int) -> dict[str, np.ndarray]:
    """Returns a text, followed by rows with the same text in which the token at position 0, 1, ... is another one."""
    batch = {name: np.repeat(x, length + 1, axis=0) for name, x in rows(((length,),), length).items()}
    for t in range(length):
        batch["input_ids"][t + 1, t] = 5 + (batch["input_ids"][0, t] - 4) % 15
    return batch


def test_the_score_of_a_pair_depends_only_on_its_word_and_context():
    """The predicted word is not an input: another context does not change the scores of the other contexts."""
    params, length = parameters(), 9
    found = jax.jit(pretraining_model(STATIC).apply)({"params": params}, changed_one_by_one(length))
    scores = np.einsum("BMD,BLD->BML", found["last"], found["contexts"], dtype=np.float64)
    changed = scores[1:] != scores[:1]  # [token that changed, word, context]
    token, word, context = np.ogrid[:length, :length, :length]
    assert (changed == ((token == word) | (token == context))).all()


def test_the_loss_of_a_context_does_not_depend_on_the_other_contexts():
    """Only the word at position 4 is a centre. Its window of 2 covers positions 2 to 6."""
    params, length, settings = parameters(), 9, SkipGram(window=2, negatives=4, shared_negatives=6, subsampling=0.0)
    batch = changed_one_by_one(length)
    batch["centres"][:, np.arange(length - 1) != 4] = -1
    both = {name: np.repeat(x[:1], 2, axis=0) for name, x in batch.items()}
    both["input_ids"][1, [3, 5]] = batch["input_ids"][4, 3], batch["input_ids"][6, 5]
    params = jax.tree.map(jnp.asarray, params)  # each row separately, so that all have the same negatives
    row_by_row = jax.jit(jax.vmap(lambda b: settings.sums(params, jax.tree.map(lambda x: x[None], b), None)))
    losses = np.asarray(row_by_row(batch)["skip_gram_loss"], np.float64)
    moved = losses[1:] - losses[0]
    assert (moved[[0, 1, 7, 8]] == 0).all()
    assert (np.abs(moved[2:7]) > 1e-3).all()
    of_both = np.asarray(row_by_row(both)["skip_gram_loss"], np.float64)
    np.testing.assert_allclose(of_both[1] - of_both[0], moved[3] + moved[5], atol=1e-5)


def test_negatives_follow_the_counts_to_the_power_of_three_quarters():
    draw = jax.jit(lambda seed: draw_negatives(COUNTS, (200, 500), seed))
    drawn = np.asarray(draw(np.uint32(1)))
    wanted = COUNTS**0.75 / (COUNTS**0.75).sum()
    found = np.bincount(drawn.ravel(), minlength=20) / drawn.size
    assert np.abs(found - wanted).max() < 5 * np.sqrt(0.25 / drawn.size)
    assert not np.array_equal(drawn, draw(np.uint32(2)))


keep = jax.jit(keep_weights, static_argnums=1)


def test_frequent_words_are_left_out_at_the_rate_of_word2vec():
    kept = np.asarray(keep(COUNTS, 0.05))
    frequency = COUNTS / COUNTS.sum()
    assert (kept[:5] == 0).all()
    assert (kept[8:] == 1).all()
    assert kept[5] == pytest.approx(np.sqrt(0.05 / frequency[5]) + 0.05 / frequency[5], rel=1e-5)


def test_the_counts_have_no_gradient():
    """Optimizers do not change them therefore (tests/training/test_optimizers.py)."""
    gradients = jax.jit(jax.grad(lambda p, batch: SETTINGS.sums(p, batch, np.uint32(3))["skip_gram_loss"]))(parameters(), rows())
    assert not np.any(gradients["skip_gram_head"].pop("counts"))
    assert all(np.any(x) for x in jax.tree.leaves(gradients))


def test_the_negatives_of_a_seed_equal_those_of_earlier_versions():
    draw = jax.jit(lambda seed: draw_negatives(COUNTS, (1, 12), seed)[0])
    drawn = {seed: draw(np.uint32(seed)).tolist() for seed in (1, 2)}
    assert drawn == {1: [5, 6, 7, 6, 18, 7, 10, 7, 6, 6, 12, 7], 2: [5, 5, 7, 7, 5, 6, 5, 5, 5, 6, 5, 5]}


def test_a_single_word_corpus_gives_it_frequency_one():
    np.testing.assert_allclose(keep(np.float32([0, 1]), 0.04), [0.0, 0.2 + 0.04], rtol=1e-6)
    np.testing.assert_array_equal(keep(np.float32([0, 1, 7]), 0.0), [0.0, 1.0, 1.0])


def test_the_loss_is_a_weighted_mean_over_pairs_in_the_window():
    wide, narrow = (SkipGram(window=window) for window in (5, 1))
    batch = rows()
    counts, of_wide, pairs = jax.jit(lambda b: (narrow.counts(b), wide.counts(b), window_weights(b, 1).sum()))(batch)
    assert float(counts["windows"]) == float(pairs) < float(of_wide["windows"])
    assert "skip_gram_targets" not in counts  # the number of targets is one of the sums
    for windows, loss in ((1.0, 3.0), (4.0, 0.75)):
        assert float(narrow.loss({"skip_gram_loss": np.float32(3)}, {"windows": np.float32(windows)})) == loss
