"""Skip-gram with negative sampling against loops over pairs, and its draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training.objectives import skip_gram_objective
from bert_jax.training.optimizers import NAMES, OptimizerConfig, make_optimizer
from bert_jax.training.skip_gram import EVALUATION_SEED, SkipGramConfig, draw_negatives, keep_weights, skip_gram_sums
from tests.model.test_bilm import STATIC, TEXTS, random_params, rows

COUNTS = np.array([0] * 5 + [400, 300, 200] + [10] * 12, np.float32)
SETTINGS = SkipGramConfig(window=3, negatives=4, shared_negatives=6, subsampling=1e-2)


def parameters() -> dict:
    params = random_params(STATIC)
    return {**params, "skip_gram_head": {**params["skip_gram_head"], "counts": COUNTS}}


def test_the_loss_is_that_of_a_loop_over_pairs():
    params, batch = parameters(), rows()
    sums = jax.jit(lambda p, b: skip_gram_sums(p, b, None, SETTINGS))(params, batch)
    words = np.float64(params["embeddings"]["word_embeddings"]["embedding"])
    contexts = np.float64(params["skip_gram_head"]["context_embeddings"]["embedding"])
    negatives = np.asarray(draw_negatives(jnp.asarray(COUNTS), (len(TEXTS), 6), EVALUATION_SEED))
    kept = np.asarray(keep_weights(jnp.asarray(COUNTS), 1e-2), np.float64)
    loss = weight = positive = 0.0
    for row, ids in enumerate(batch["sequence_ids"]):
        tokens = batch["input_ids"][row]
        for i in batch["masked_positions"][row][batch["masked_targets"][row] >= 0]:
            for j in range(len(ids)):
                distance = abs(i - j)
                if ids[i] == ids[j] and 1 <= distance <= 3:
                    share = (3 - distance + 1) / 3 * kept[tokens[i]] * kept[tokens[j]]
                    noise = np.log1p(np.exp(contexts[negatives[row]] @ words[tokens[i]])).mean()
                    score = contexts[tokens[j]] @ words[tokens[i]]
                    loss += share * (np.log1p(np.exp(-score)) + 4 * noise)
                    weight, positive = weight + share, positive + share * (score > 0)
    np.testing.assert_allclose(sums["skip_gram_loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(sums["skip_gram_targets"], weight, rtol=1e-5)
    np.testing.assert_allclose(sums["skip_gram_correct"], positive, rtol=1e-5)


def test_a_word_is_no_context_of_itself():
    batch = rows(((1, 1, 1),))
    batch["masked_targets"][:] = 7
    sums = jax.jit(lambda p, b: skip_gram_sums(p, b, None, SETTINGS))(parameters(), batch)
    assert sums["skip_gram_targets"] == 0
    assert sums["skip_gram_loss"] == 0


def test_negatives_follow_the_counts_to_the_power_of_three_quarters():
    drawn = np.asarray(draw_negatives(jnp.asarray(COUNTS), (200, 500), np.uint32(1)))
    wanted = COUNTS**0.75 / (COUNTS**0.75).sum()
    found = np.bincount(drawn.ravel(), minlength=20) / drawn.size
    assert np.abs(found - wanted).max() < 5 * np.sqrt(0.25 / drawn.size)
    assert not np.array_equal(drawn, draw_negatives(jnp.asarray(COUNTS), (200, 500), np.uint32(2)))


def test_frequent_words_are_left_out_at_the_rate_of_word2vec():
    kept = np.asarray(keep_weights(jnp.asarray(COUNTS), 0.05))
    frequency = COUNTS / COUNTS.sum()
    assert (kept[:5] == 0).all()
    assert (kept[8:] == 1).all()
    assert kept[5] == pytest.approx(np.sqrt(0.05 / frequency[5]) + 0.05 / frequency[5], rel=1e-5)


def test_no_optimizer_changes_the_counts():
    params, batch = parameters(), rows()
    objective = skip_gram_objective(STATIC, skip_gram=SETTINGS)

    @jax.jit
    def directions(params, batch):
        counts = objective.counts(batch)
        gradients = jax.grad(lambda p: objective.loss(objective.sums(p, batch, jnp.uint32(3)), counts))(params)
        found = []
        for name in NAMES:
            optimizer = make_optimizer(OptimizerConfig(name=name), params)
            found.append(optimizer.update(gradients, optimizer.init(params), params)[0])
        return found

    for direction in directions(params, batch):
        assert not np.any(direction["skip_gram_head"].pop("counts"))
        assert all(np.any(x) for x in jax.tree.leaves(direction))
