from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractDevice, Mesh

from bert_jax.model.pretraining import abstract_parameters, initial_parameters
from bert_jax.objectives.losses import cross_entropy
from bert_jax.objectives.objective import Objective
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.steps import (
    TrainState,
    add_sums,
    dropout_seed,
    new_state,
)
from tests.random_rows import (
    TINY,
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
    np.testing.assert_allclose(jax.jit(cross_entropy)(logits, targets), expected, rtol=1e-5)


def test_one_step_moves_every_parameter_and_counts_itself():
    before = fresh()
    after, sums = step(before, random_batch())
    moved = jax.tree.map(lambda a, b: bool(np.any(np.asarray(a) != b)), before.params, after.params)
    assert all(jax.tree.leaves(moved)), moved
    assert int(after.step) == 1
    assert float(sums["steps"]) == 1.0


def test_without_pairs_weights_and_losses_of_other_parts_are_the_same():
    """Rows without pairs have no next-sentence label: the pooler and its head would get no gradient. An array of each part is
    compared, since drawing all of them is a large program."""
    parts = ("embeddings", "encoder", "mlm_head")

    @jax.jit
    def begin(key):
        found = []
        for pairs in (True, False):
            params = nn.unbox(initial_parameters(MODEL, key, next_sentence=pairs))
            assert params.keys() == {*parts, *(("pooler", "nsp_head") if pairs else ())}
            embeddings, encoder, head = (params[part] for part in parts)
            found.append((embeddings["word_embeddings"], encoder["layers"]["attention"]["query"], head["transform"]))
        return found

    jax.tree.map(np.testing.assert_array_equal, *begin(jax.random.key(3)))
    batch = random_batch()
    batch["nsp_labels"] = jnp.full_like(batch["nsp_labels"], -1)
    state = fresh()
    _, wanted = step(state, batch)
    sums = jax.jit(objective_for(MODEL, next_sentence=False).sums)({part: state.params[part] for part in parts}, batch, None)
    assert sums.keys() == {"mlm_loss", "mlm_correct"}
    assert float(sums["mlm_loss"]) == pytest.approx(float(wanted["mlm_loss"]), rel=1e-6)


def test_twenty_steps_overfit_one_batch():
    state, batch = fresh(), random_batch()
    losses = []
    for _ in range(20):
        state, sums = step(state, batch, first_rate=3e-3)
        losses.append(float(objective_for(MODEL).loss(*[jax.device_get(sums)] * 2)))
    assert losses[-1] < 0.1 * losses[0]  # 0.004 of it at the worst of five seeds


class Quadratic(Objective):
    """The mean over the used rows of (kernel . x)^2 + bias . y. NumPy computes its gradient below."""

    def sums(self, params: Any, batch: Any, seed: Any) -> Any:
        of_rows = (params["layers"]["kernel"][None] * batch["x"]).sum((1, 2)) ** 2 + (params["bias"][None] * batch["y"]).sum(1)
        return {"loss": (batch["used"] * of_rows).sum()}

    def counts(self, batch: Any) -> Any:
        return {"rows": batch["used"].sum()}

    def loss(self, sums: Any, counts: Any) -> Any:
        return sums["loss"] / counts["rows"]


@pytest.fixture(scope="module")
def quadratic() -> tuple[TrainState, dict[str, np.ndarray], Any, float]:
    """Returns (a state, a batch, the gradient, the sum of the losses) of `Quadratic`. Of the two rows of each of four
    microbatches, 2, 2, 0 and 1 are used."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 2, 3), np.float32), rng.standard_normal((8, 4), np.float32)
    used = np.array([1, 1, 0, 1, 1, 1, 0, 0], np.float32)
    kernel, bias = np.float32([[1, 2, 3], [-1, 0, 1]]), np.float32([1, 2, 3, 4])
    products = (kernel[None] * x).sum((1, 2), keepdims=True, dtype=np.float64)
    gradient = {"layers": {"kernel": (2 * products * x)[used > 0].mean(0)}, "bias": y[used > 0].mean(0)}
    loss = float(used @ (products[:, 0, 0] ** 2 + y @ bias))
    state = new_state({"layers": {"kernel": kernel}, "bias": bias}, optax.identity())
    return state, {"x": x, "y": y, "used": used}, gradient, loss


def direction(quadratic: Any, **settings: Any) -> tuple[Any, Any]:
    """Returns (how far a step with the rate 1 moves the parameters, its sums)."""
    state, batch, *_ = quadratic
    accumulation = settings.pop("accumulation", 1)
    program = program_for(Quadratic(), optax.identity(), lambda step, scalars: 1.0, **settings)
    after, sums = jax.jit(functools.partial(program.train_step, accumulation=accumulation))(state, batch, SCALARS)
    return jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), state.params, after.params), sums


def norm_of(gradient: Any) -> float:
    return float(np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradient))))


def test_accumulated_gradients_equal_the_large_batch(quadratic):
    _, _, gradient, loss = quadratic
    moved, sums = direction(quadratic, accumulation=4, clip_norm=0.0)
    assert largest_difference(gradient, moved) < 1e-6
    wanted = {"loss": loss, "rows": 5, "grad_norm": norm_of(gradient)}
    assert {name: float(sums[name]) for name in wanted} == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_the_gradient_is_clipped_by_its_global_norm(quadratic, share: float):
    gradient = quadratic[2]
    norm = norm_of(gradient)
    moved, sums = direction(quadratic, clip_norm=share * norm)
    assert float(sums["grad_norm"]) == pytest.approx(norm, rel=1e-6)
    assert largest_difference(jax.tree.map(lambda g: g * min(share, 1.0), gradient), moved) < 1e-6


def test_replayed_gradient_norms_equal_each_layer_before_clipping(quadratic):
    state, batch, gradient, loss = quadratic
    norms, sums = jax.jit(program_for(Quadratic(), optax.identity(), clip_norm=1e-3).gradient_norms)(state, batch, SCALARS)
    each = [np.linalg.norm(layer) for layer in gradient["layers"]["kernel"]]
    np.testing.assert_allclose(norms["layers"]["kernel"], each, rtol=1e-6)
    assert float(norms["bias"]) == pytest.approx(np.linalg.norm(gradient["bias"]), rel=1e-6)
    assert {name: float(x) for name, x in sums.items()} == pytest.approx({"loss": loss, "rows": 5}, rel=1e-6)


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


def test_a_step_whose_learning_rate_is_not_finite_changes_no_weights():
    state = fresh()
    kept = jax.device_get(state.params)
    after, sums = step(state, random_batch(), first_rate=np.nan)
    assert (float(sums["skipped"]), int(after.skipped)) == (1.0, 1)
    assert largest_difference(kept, after.params) == 0


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


@pytest.mark.parametrize(("platform", "slots"), [("tpu", 16), ("gpu", 11)])
def test_every_objective_gets_whole_tiles_of_predictions_only_on_a_tpu(platform: str, slots: int):
    """With other numbers of slots, a TPU copies the logits. An objective of a user does not have to know this."""
    batch = {"masked_positions": np.full((4, 11), 3, np.int32), "masked_targets": np.full((4, 11), 7, np.int32)}
    seen: list[dict[str, tuple[int, ...]]] = []

    class Own(Objective):
        def sums(self, params: Any, batch: Any, seed: Any) -> Any:
            seen.append({name: x.shape for name, x in batch.items()})
            return {"loss": params["bias"] * (batch["masked_targets"] * (batch["masked_positions"] + 1)).sum()}

        def counts(self, batch: Any) -> Any:
            return {"masked": (batch["masked_targets"] != -1).sum().astype(jnp.float32)}

        def loss(self, sums: Any, counts: Any) -> Any:
            return sums["loss"] / counts["masked"]

    mesh = Mesh(np.array([AbstractDevice(platform, 1, platform)]), ("data",))
    program = program_for(Own(), optax.identity(), mesh=mesh)
    state = new_state({"bias": np.float32(1)}, program.optimizer)
    found = jax.jit(program.evaluate)(state.params, batch)
    assert found == {"loss": 4 * (11 * 7 * (3 + 1) - (slots - 11)), "masked": 4 * 11}, "unused slots hold 0 and -1"
    jax.eval_shape(functools.partial(program.train_step, accumulation=2), state, batch, SCALARS)
    assert [{*rows.values()} for rows in seen[:2]] == [{(4, slots)}, {(2, slots)}]


def test_sums_add_up_over_steps_except_for_the_learning_rate():
    first, second = ({"loss": jnp.float32(loss), "learning_rate": jnp.float32(rate)} for loss, rate in ((3, 0.5), (4, 0.25)))
    assert add_sums({}, first) == first
    assert {name: float(x) for name, x in add_sums(first, second).items()} == {"loss": 7.0, "learning_rate": 0.25}


def test_evaluation_of_a_padded_batch_counts_only_its_real_rows():
    state, batch = fresh(), random_batch()
    _, sums = step(state, batch)
    padded = {}
    for name, rows in batch.items():
        fill = -1 if name in ("masked_targets", "nsp_labels") else 0
        padded[name] = np.concatenate([rows, np.full_like(rows, fill)])
    of_padded = jax.jit(program_for(objective_for(MODEL), OPTIMIZER).evaluate)(state.params, padded)
    scores = {f"{measure}_{what}" for measure in ("mlm", "nsp") for what in ("loss", "correct")}
    assert of_padded.keys() == {*scores, "mlm_targets", "nsp_examples", "tokens", "rows"}
    assert largest_difference({name: sums[name] for name in of_padded}, of_padded) < 1e-6
