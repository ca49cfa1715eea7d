from __future__ import annotations

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.pretraining import abstract_parameters, initial_parameters
from bert_jax.objectives.losses import cross_entropy
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.steps import (
    StepSeed,
    add_sums,
    dropout_seed,
    gradients,
    new_state,
)
from tests.random_rows import (
    TINY,
    gradients_of,
    largest_difference,
    objective_for,
    program_for,
    random_batch,
    random_parameters,
)

MODEL = dataclasses.replace(TINY, scan_layers=True)  # compiled quickly
OPTIMIZER = make_optimizer(OptimizerConfig(), abstract_parameters(MODEL))
CLIP_NORM = 1.0
SCALARS = {"seed": np.uint32(3)}


def step(state, batch, *, first_rate=1e-3, slope=0.0):
    """Returns one step, with the rate `first_rate + slope * step`. It is compiled once for all rates."""
    return compiled_step(state, batch, first_rate, slope)


@jax.jit
def compiled_step(state, batch, first_rate, slope):
    program = program_for(objective_for(MODEL), OPTIMIZER, lambda step, scalars: first_rate + slope * step, clip_norm=CLIP_NORM)
    return program.train_step(state, batch, SCALARS)


def fresh():
    return jax.jit(new_state, static_argnums=1)(random_parameters(), OPTIMIZER)


def test_cross_entropy_equals_brute_force_and_is_zero_for_ignored_targets():
    logits = np.random.default_rng(0).normal(size=(3, 4, 7)).astype(np.float32)
    targets = np.array([[0, 6, -1, 3], [2, -1, -1, 1], [5, 5, 0, -1]], np.int32)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = [[-np.log(probabilities[i, j, t]) if t >= 0 else 0.0 for j, t in enumerate(row)] for i, row in enumerate(targets)]
    np.testing.assert_allclose(cross_entropy(jnp.asarray(logits), jnp.asarray(targets)), expected, rtol=1e-5)


def test_one_step_moves_every_parameter_and_counts_itself():
    before = fresh()
    after, sums = step(before, random_batch())
    moved = jax.tree.map(lambda a, b: bool(np.any(np.asarray(a) != b)), before.params, after.params)
    assert all(jax.tree.leaves(moved)), moved
    assert int(after.step) == 1
    assert float(sums["steps"]) == 1.0


def test_without_pairs_weights_and_gradients_of_other_parts_are_the_same():
    """Rows without pairs have no next-sentence label: the pooler and its head would get no gradient."""
    begin = jax.jit(lambda key: [nn.unbox(initial_parameters(MODEL, key, next_sentence=pairs)) for pairs in (True, False)])
    whole, alone = begin(jax.random.key(3))
    assert alone.keys() == {"embeddings", "encoder", "mlm_head"}
    jax.tree.map(np.testing.assert_array_equal, alone, {part: whole[part] for part in alone})
    batch = random_batch()
    batch["nsp_labels"] = jnp.full_like(batch["nsp_labels"], -1)
    objective = objective_for(MODEL, next_sentence=False)
    differentiate = jax.jit(functools.partial(gradients, objective, accumulation=1))
    grads, sums = differentiate(alone, batch, objective.counts(batch), StepSeed(0, jnp.int32(0)))
    wanted, wanted_sums = gradients_of(MODEL, whole, batch, 0, jnp.int32(0), 1)
    assert largest_difference({part: wanted[part] for part in grads}, grads) < 1e-5
    assert sums.keys() == {"mlm_loss", "mlm_correct"}
    assert float(sums["mlm_loss"]) == pytest.approx(float(wanted_sums["mlm_loss"]), rel=1e-6)


def test_twenty_steps_overfit_one_batch():
    state, batch = fresh(), random_batch()
    losses = []
    for _ in range(20):
        state, sums = step(state, batch, first_rate=3e-3)
        losses.append(float(objective_for(MODEL).loss(*[jax.device_get(sums)] * 2)))
    assert losses[-1] < 0.1 * losses[0]  # 0.004 of it at the worst of five seeds


def test_accumulated_gradients_equal_the_large_batch():
    params, batch = random_parameters(), random_batch()
    whole, sums = gradients_of(MODEL, params, batch, 0, jnp.int32(0), 1)
    summed, sums_of_parts = gradients_of(MODEL, params, batch, 0, jnp.int32(0), 4)
    assert largest_difference(whole, summed) < 1e-5
    assert largest_difference(sums, sums_of_parts) < 1e-5


def test_the_gradient_is_clipped_by_its_global_norm():
    batch, params = random_batch(), random_parameters()
    grads, _ = gradients_of(MODEL, params, batch, 0, jnp.int32(0), 1)
    norm = float(np.sqrt(sum((np.asarray(g, np.float64) ** 2).sum() for g in jax.tree.leaves(grads))))
    assert norm > 2 * CLIP_NORM
    state, sums = step(fresh(), batch)
    assert float(sums["grad_norm"]) == pytest.approx(norm, rel=1e-4)
    first_moments = state.opt_state[0].mu  # (1 - b1) times the clipped gradient
    assert largest_difference(jax.tree.map(lambda g: 0.1 * np.asarray(g) * CLIP_NORM / norm, grads), first_moments) < 1e-4


def test_replayed_gradient_norms_equal_each_layer_and_the_step():
    state, batch = fresh(), random_batch()
    program = program_for(objective_for(MODEL), OPTIMIZER, clip_norm=0.0)
    norms, sums = jax.jit(program.gradient_norms)(state, batch, SCALARS)
    grads, _ = gradients_of(MODEL, state.params, batch, 3, state.step, 1)
    kernel = grads["encoder"]["layers"]["attention"]["query"]["kernel"]
    each = [np.linalg.norm(np.asarray(layer).ravel()) for layer in kernel]
    np.testing.assert_allclose(norms["encoder"]["layers"]["attention"]["query"]["kernel"], each, rtol=1e-4)
    total = np.sqrt(sum(np.square(np.asarray(norm, np.float64)).sum() for norm in jax.tree.leaves(norms)))
    _, of_step = step(state, batch)
    assert total == pytest.approx(float(of_step["grad_norm"]), rel=1e-4)
    assert float(sums["mlm_loss"]) == pytest.approx(float(of_step["mlm_loss"]), rel=1e-4)


def test_a_step_that_is_not_finite_changes_only_counters():
    state, _ = step(fresh(), random_batch())
    broken = jax.tree.map(np.array, state)
    broken.params["pooler"]["dense"]["kernel"][0, 0] = np.nan
    after, sums = step(broken, random_batch(1))
    wanted = {"steps": 0, "skipped": 1, "skipped_in_a_row": 1, "grad_norm": 0, "mlm_loss": 0}
    assert {name: float(sums[name]) for name in wanted} == wanted, "a skipped step must not poison the sums of its window"
    assert (int(after.step), int(after.skipped), int(after.skipped_in_a_row)) == (2, 1, 1)
    same = jax.tree.map(
        lambda a, b: bool(np.array_equal(a, b, equal_nan=True)),
        (broken.params, broken.opt_state),
        (after.params, after.opt_state),
    )
    assert all(jax.tree.leaves(same))
    mended = after.replace(params=state.params)
    assert int(step(mended, random_batch(2))[0].skipped_in_a_row) == 0


def test_the_reported_rate_is_the_applied_one():
    """A step reports the rate from before the state advances, so the first step has the schedule's first rate."""
    state = fresh()
    for wanted in (1e-3, 2e-3):
        after, sums = step(state, random_batch(), first_rate=1e-3, slope=1e-3)
        assert float(sums["learning_rate"]) == pytest.approx(wanted)
        by_one, _ = step(state, random_batch(), first_rate=1.0)
        rate, before, of_one = float(sums["learning_rate"]), jax.device_get(state.params), jax.device_get(by_one.params)
        moved = jax.tree.map(lambda p, q, rate=rate: p - rate * (p - q), before, of_one)
        assert largest_difference(moved, after.params) < 1e-6
        state = after


def test_an_infinite_gradient_norm_with_a_finite_loss_is_skipped():
    state = jax.tree.map(np.array, fresh())
    state.params["mlm_head"]["layer_norm"]["scale"][:] = 1e-30
    state.params["embeddings"]["word_embeddings"]["embedding"] *= 1e25
    after, sums = step(state, random_batch())
    assert float(sums["skipped"]) == 1.0
    assert int(after.skipped) == 1


def test_dropout_differs_between_steps_and_microbatches():
    seed, number, part = np.meshgrid(np.arange(4), np.arange(50), np.arange(4))
    seeds = jax.jit(jax.vmap(dropout_seed))(*(x.ravel().astype(np.int32) for x in (seed, number, part)))
    assert len(set(np.asarray(seeds).tolist())) == 4 * 50 * 4


def test_the_dropout_of_a_step_equals_earlier_versions():
    """A run that is continued or replayed with a newer version therefore draws the same masks."""
    numbers = [(0, 1, 0), (3, 5, 0), (3, 5, 2), (2**32 - 1, 10**6, 1)]
    found = jax.jit(lambda: [dropout_seed(np.uint32(seed), jnp.int32(step), jnp.int32(part)) for seed, step, part in numbers])()
    assert [int(seed) for seed in found] == [
        3578996390, 617439959, 2915265999, 2341559719,
    ]  # fmt: skip


def test_sums_add_up_over_steps_except_for_the_learning_rate():
    first, second = ({"loss": jnp.float32(loss), "learning_rate": jnp.float32(rate)} for loss, rate in ((3, 0.5), (4, 0.25)))
    assert add_sums({}, first) == first
    assert {name: float(x) for name, x in add_sums(first, second).items()} == {"loss": 7.0, "learning_rate": 0.25}


def test_evaluation_of_a_padded_batch_counts_only_its_real_rows():
    params, batch = random_parameters(), random_batch()
    _, sums = gradients_of(MODEL, params, batch, 0, jnp.int32(0), 1)
    padded = {}
    for name, rows in batch.items():
        fill = -1 if name in ("masked_targets", "nsp_labels") else 0
        padded[name] = np.concatenate([rows, np.full_like(rows, fill)])
    of_padded = jax.jit(program_for(objective_for(MODEL), OPTIMIZER).evaluate)(params, padded)
    assert sums.keys() == of_padded.keys()
    assert largest_difference(sums, of_padded) < 1e-6
