"""Pure steps: (state, batch) -> (state, sums). No mesh, no I/O; the caller jits them with shardings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Float, Int, Integer, Num, PyTree, UInt32

from bert_jax.model.layers import Seed, hash_word
from bert_jax.training.losses import Sums
from bert_jax.training.objectives import Batch, Objective, Params


@struct.dataclass
class TrainState:
    """Everything that training changes, and therefore everything a checkpoint holds."""

    step: Int[Array, ""]
    """int32: batches consumed; also the position in the data."""
    params: Params
    opt_state: optax.OptState
    skipped: Int[Array, ""]
    """int32: steps whose loss or gradient norm was not finite, which changed nothing but the two counters."""
    skipped_in_a_row: Int[Array, ""]
    """int32: how many of them ended with the last step."""


def new_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    step, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))  # three buffers: a shared one could not be donated
    return TrainState(step=step, params=params, opt_state=optimizer.init(params), skipped=skipped, skipped_in_a_row=in_a_row)


def dropout_seed(seed: int | Integer[Array, ""], step: Int[Array, ""], microbatch: Int[Array, ""]) -> Seed:
    """The number from which every dropout mask of one microbatch follows: a function of the step, so a resumed run repeats it."""
    of_step = hash_word(jnp.asarray(seed, jnp.uint32) + step.astype(jnp.uint32) * np.uint32(0x9E3779B9))
    return hash_word(of_step + microbatch.astype(jnp.uint32))


def split_rows(batch: Batch, parts: int) -> dict[str, Num[Array, "{parts} _ ..."]]:
    """[B, ...] -> [parts, B / parts, ...], taking every parts-th row so that each device's rows stay on the device."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1), batch)


Gradients = Callable[[Objective, Params, Batch, Sums, int | UInt32[Array, ""], Int[Array, ""], int], tuple[Params, Sums]]
"""`gradients`, or what does the same on a mesh."""


def gradients(
    objective: Objective,
    params: Params,
    batch: Batch,
    counts: Sums,
    seed: int | Integer[Array, ""],
    step: Int[Array, ""],
    accumulation: int,
) -> tuple[Params, Sums]:
    """The gradient of the objective over these rows, and their sums.

    `counts` are those of the whole batch, of which these rows may be a part. With `accumulation` > 1 they pass in that many
    microbatches. Each one's loss is divided by the counts of the *whole* batch, so the gradients add up to the large batch's
    (dropout aside), however unevenly the targets fall. They add up in float32, whatever the parameters are.
    """

    def loss(params: Params, rows: Batch, microbatch: Int[Array, ""]) -> tuple[Float[Array, ""], Sums]:
        sums = objective.sums(params, rows, dropout_seed(seed, step, microbatch))
        return objective.loss(sums, counts), sums

    differentiate = jax.grad(loss, has_aux=True)
    if accumulation == 1:
        return differentiate(params, batch, jnp.zeros((), jnp.int32))

    def add_one(
        carry: tuple[Params, Sums], rows_and_index: tuple[Batch, Int[Array, ""]]
    ) -> tuple[tuple[Params, Sums], None]:
        found = differentiate(params, *rows_and_index)
        return jax.tree.map(lambda total, one: total + one.astype(jnp.float32), carry, found), None

    rows = split_rows(batch, accumulation)
    indices = jnp.arange(accumulation, dtype=jnp.int32)
    first = differentiate(params, jax.tree.map(lambda x: x[0], rows), indices[0])
    first = jax.tree.map(lambda x: x.astype(jnp.float32), first)
    total, _ = jax.lax.scan(add_one, first, jax.tree.map(lambda x: x[1:], (rows, indices)))
    return total


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    learning_rate: Callable[[Int[Array, ""]], Float[Array, ""]],
    clip_norm: float,
    seed: int | Integer[Array, ""],
    accumulation: int = 1,
    learning_rate_multipliers: Callable[[Int[Array, ""]], PyTree[Float[Array, " ..."]]] | None = None,
    gradients: Gradients = gradients,
) -> tuple[TrainState, Sums]:
    """One update. Returns the new state and float32 sums, to be added over steps and divided at last; beside them
    "learning_rate", the one of this step.

    Gradients are clipped by their global norm over the whole batch (the original clips each core's own). If the loss or that norm
    is not finite, parameters and optimizer stay as they are and the skip is counted: one bad batch costs one batch.
    `learning_rate_multipliers` gives, for a step, a factor of the learning rate for every parameter (arrays that broadcast
    against it); where it is 0 the gradient is left out of the norm too. `gradients` may be those of `data_parallel.py`.
    """
    counts = objective.counts(batch)
    grads, sums = gradients(objective, state.params, batch, counts, seed, state.step, accumulation)
    sums |= counts
    factors = learning_rate_multipliers(state.step) if learning_rate_multipliers else None
    if factors is not None:
        grads = jax.tree.map(lambda g, f: jnp.where(f > 0, g, 0.0), grads, factors)
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(norm) & jnp.isfinite(objective.loss(sums, sums))
    if clip_norm:
        factor = clip_norm / jnp.maximum(norm, clip_norm)
        grads = jax.tree.map(lambda g: g * factor, grads)
    rate = learning_rate(state.step)
    direction, opt_state = optimizer.update(grads, state.opt_state, state.params)
    if factors is not None:
        direction = jax.tree.map(jnp.multiply, direction, factors)
    params = jax.tree.map(lambda p, d: p - rate * d, state.params, direction)

    def if_finite(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

    bad = 1 - finite.astype(jnp.int32)
    state = TrainState(
        step=state.step + 1,
        params=if_finite(params, state.params),
        opt_state=if_finite(opt_state, state.opt_state),
        skipped=state.skipped + bad,
        skipped_in_a_row=(state.skipped_in_a_row + 1) * bad,
    )
    sums = {name: jnp.where(finite, total, 0.0) for name, total in sums.items()}
    return state, sums | {
        "steps": finite.astype(jnp.float32),
        "skipped": bad.astype(jnp.float32),
        "skipped_in_a_row": state.skipped_in_a_row.astype(jnp.float32),
        "grad_norm": jnp.where(finite, norm, 0.0),
        "learning_rate": jnp.float32(rate),
    }


def eval_step(params: Params, batch: Batch, *, objective: Objective) -> Sums:
    """The sums of one batch without dropout. Padded rows have nothing to predict and count nothing."""
    return objective.sums(params, batch, None) | objective.counts(batch)


def add_sums(window: Sums, sums: Sums) -> Sums:
    """Sums of several steps, still on the device; of the learning rate, that of the last step."""
    return {name: window[name] + value if window and name != "learning_rate" else value for name, value in sums.items()}
